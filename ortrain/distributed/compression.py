"""Gradients that are sent in fewer bytes, with error feedback: what rounding or leaving out takes from a gradient is added to the next one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from ortrain.distributed.strategy import GatheringStrategy
from ortrain.distributed.synchronization import Synchronization, scale
from ortrain.distributed.workers import Workers
from ortrain.errors import InvalidArgumentError
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.numbers import check_number
from ortrain.training.session import TrainingSession


class CompressedSynchronization(Synchronization):
    """Base of those that compress: subclasses sum what they can send. Buffers of other dtypes than float32 are sent as they are.

    Each worker keeps what it has not sent yet, as large as the gradients. Checkpoints do not have it: a resumed run begins without.

    Source: S. P. Karimireddy and others, Error Feedback Fixes SignSGD and other Gradient Compression Schemes (2019)."""

    def __init__(self) -> None:
        self._unsent: dict[str, np.ndarray] = {}
        """The first parameter of a buffer -> what is to be added to its next gradient."""

    def sum_gradients(self, buffers: Sequence[FlatBuffer], share: float) -> None:
        for buffer in buffers:
            if buffer.array.dtype == np.float32:
                self._sum_compressed(buffer, share)
            else:
                super().sum_gradients([buffer], share)

    def _sum_compressed(self, buffer: FlatBuffer, share: float) -> None:
        name, gradient = next(iter(buffer.offsets)), buffer.array
        unsent = self._unsent.get(name)
        scale(buffer, share)
        if unsent is None or unsent.size != gradient.size:      # the first step, or one after parameters were frozen or unfrozen
            unsent = self._unsent[name] = np.zeros_like(gradient)
        gradient += unsent
        self._sum(gradient, unsent)
        if not np.isfinite(np.add.reduce(unsent)):              # a gradient that was not finite is not to stay for ever
            unsent.fill(0)

    @abstractmethod
    def _sum(self, gradient: np.ndarray, unsent: np.ndarray) -> None:
        """Replace a gradient by the sum of what the workers send of theirs, and `unsent` by what this worker does not send of its own."""


class BFloat16Synchronization(CompressedSynchronization):
    """Sends gradients in bfloat16, in half the bytes: each worker sums its part of the rounded gradients of all workers in float32, and sends the rounded sums.

    Needs a strategy that is a GatheringStrategy, as MPI is."""

    def start(self, session: TrainingSession, workers: Workers) -> None:
        missing = [name for name in ("all_gather", "all_to_all") if not hasattr(workers.strategy, name)]
        if missing:
            raise InvalidArgumentError(f"expected a strategy with {' and '.join(missing)} (see ortrain.distributed.GatheringStrategy) for "
                                       f"{type(self).__name__}, got {type(workers.strategy).__name__}")
        super().start(session, workers)

    def _sum(self, gradient: np.ndarray, unsent: np.ndarray) -> None:
        strategy: GatheringStrategy = self.workers.strategy     # type: ignore[assignment]
        size = self.workers.size
        sent = np.zeros(-(-gradient.size // size) * size, np.uint16)
        sent[: gradient.size] = bfloat16_of(gradient)
        np.subtract(gradient, float32_of(sent[: gradient.size]), out=unsent)
        parts = strategy.all_to_all(sent.view(np.uint8).reshape(size, -1)).view(np.uint16)
        total = float32_of(parts[0])
        for part in parts[1:]:
            total += float32_of(part)
        gradient[...] = float32_of(strategy.all_gather(bfloat16_of(total).view(np.uint8)).view(np.uint16).reshape(-1)[: gradient.size])


class TopKSynchronization(CompressedSynchronization):
    """Sends the largest elements of the gradients alone, with their numbers, 8 bytes each.

    share: of the elements, above 0 and below 1; at least one of each buffer is sent. It sends less than all of them where the share times the number of workers
    is below 1.

    Source: S. U. Stich and others, Sparsified SGD with Memory (2018). Raises InvalidArgumentError for another share, ArgumentTypeError for no number."""

    def __init__(self, share: float = 0.01) -> None:
        super().__init__()
        self.share = check_number(share, "share", positive=True)
        if self.share >= 1:
            raise InvalidArgumentError(f"expected a share of the elements below 1, got {self.share:g}")

    def _sum(self, gradient: np.ndarray, unsent: np.ndarray) -> None:
        kept = gradient.size - max(1, round(self.share * gradient.size))
        largest = np.argpartition(np.abs(gradient), kept)[kept:].astype(np.uint32)
        values = gradient[largest]
        unsent[...] = gradient
        unsent[largest] = 0
        gradient.fill(0)
        for data in self.workers.gather(largest.tobytes() + values.tobytes()):
            numbers, amounts = np.frombuffer(data[: len(data) // 2], np.uint32), np.frombuffer(data[len(data) // 2 :], np.float32)
            gradient[numbers] += amounts


def bfloat16_of(values: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to bfloat16, the nearest and among two the even one, as uint16."""
    bits = values.view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def float32_of(values: np.ndarray) -> np.ndarray:
    """Return bfloat16 numbers, given as uint16, as float32."""
    return (values.astype(np.uint32) << 16).view(np.float32)
