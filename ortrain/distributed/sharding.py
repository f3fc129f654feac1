"""An optimizer that several workers divide: each updates its shard of the parameters, and keeps the moments of this shard alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from ortrain.distributed.strategy import ShardingStrategy, Strategy
from ortrain.distributed.synchronization import Synchronization, scale
from ortrain.distributed.workers import Workers, as_exchanged
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.segments import Sharding
from ortrain.training.session import TrainingSession


class OptimizerSharding(Synchronization):
    """Divides the optimizer's work and moments evenly among the workers, so that AdamW's moments take 8 bytes per parameter in all of them together.

    Each worker receives the sums of its shard of the gradients (reduce-scatter), updates its shard of the parameters, and sends it to all (all-gather), which
    takes as much communication as an all-reduce. A strategy that is no ShardingStrategy does the same by all_reduce and broadcasts, in more time. Callbacks
    find the sums of gradients in the worker's own shard alone; norms are those of all gradients, so that TrainingSession.gradient_norm is a call that all
    workers make together. A session has all moments when it is made, until it is given to a Trainer, and rank 0 for as long as it writes a checkpoint, which
    any number of workers can load.

    Source: S. Rajbhandari and others, ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020), its first stage."""

    def prepare(self, session: TrainingSession, workers: Workers) -> None:
        self.session, self.workers = session, workers
        if session.has_optimizer:
            session.shard_optimizer(workers.rank, workers.size, lambda value: workers.sum(value)[0])

    @property
    def _sharding(self) -> Sharding:
        sharding = self.session.state.sharding
        assert sharding is not None
        return sharding

    def sum_gradients(self, buffers: Sequence[FlatBuffer], share: float) -> None:
        segments = list(zip(self.session.state.trainable_segments, self._sharding.bounds, strict=True))
        for buffer in buffers:
            scale(buffer, share)
            name = next(iter(buffer.offsets))
            start, bounds = next((segment.offsets[name], bounds) for segment, bounds in segments if name in segment.offsets)
            reduce_scatter(self.workers.strategy, buffer.array, np.clip(np.array(bounds) - start, 0, buffer.array.size).tolist())

    def gather_parameters(self) -> None:
        self.workers.sum()                                  # has no worker failed since the gradients were summed?
        for segment, bounds in zip(self.session.state.trainable_segments, self._sharding.bounds, strict=True):
            array = as_exchanged(segment.array)
            all_gather(self.workers.strategy, array, [bound * (segment.dtype.itemsize // array.itemsize) for bound in bounds])

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        state, sharding = self.session.state, self.session.state.sharding
        if sharding is None:                                # without an optimizer
            yield
            return
        self.workers.sum()
        moments = state.new_moments(state.trainable_segments if sharding.rank == 0 else [])
        for root in range(sharding.size):
            shards = sharding.shards(state.trainable_segments, root)
            parts = state.moments if root == sharding.rank else state.new_moments(shards)
            for whole, segments in zip(moments, parts, strict=True):
                for number, part in enumerate(segments):
                    self.workers.strategy.broadcast(as_exchanged(part.array), root)
                    for name, view in part.views.items() if whole else ():
                        shards[number].part_of(name, whole[number].views[name], view)[...] = view
        if sharding.rank:
            yield
        else:
            with state.with_moments(moments):
                yield


def reduce_scatter(strategy: Strategy, array: np.ndarray, bounds: Sequence[int]) -> None:
    """ShardingStrategy.reduce_scatter, by all_reduce where a strategy has none."""
    if isinstance(strategy, ShardingStrategy):
        strategy.reduce_scatter(array, bounds)
    else:
        strategy.all_reduce(array)


def all_gather(strategy: Strategy, array: np.ndarray, bounds: Sequence[int]) -> None:
    """ShardingStrategy.all_gather_in_place, by broadcasts where a strategy has none."""
    if isinstance(strategy, ShardingStrategy):
        strategy.all_gather_in_place(array, bounds)
        return
    for root, (start, end) in enumerate(pairwise(bounds)):
        if start < end:
            strategy.broadcast(array[start:end], root)
