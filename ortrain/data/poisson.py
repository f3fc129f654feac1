"""Poisson sampling: each sample is in each batch by chance, as accountants of differential privacy take for granted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ortrain.data.loader import DataLoader
from ortrain.data.prefetch import Batch
from ortrain.data.sources import RandomAccess
from ortrain.errors import InvalidArgumentError


class PoissonLoader(DataLoader):
    """A loader whose batches differ in size: every sample is in every batch with the same probability, independently of all others.

    loader: whose data it reads, and whose batch size is the expected one. parts: batches that make one optimizer step, which are parts of one larger batch.
    seed: numbers that the choice depends on, beside those of epoch and batch; known to nobody where privacy rests on them.

    A batch without samples is an empty list. Raises InvalidArgumentError for data whose samples have no numbers."""

    def __init__(self, loader: DataLoader, parts: int, seed: Sequence[int]) -> None:
        if not isinstance(loader.source, RandomAccess):
            raise InvalidArgumentError(f"expected data with numbered samples for Poisson sampling, got {loader.source.describe()}: load them as arrays, or set "
                                       "poisson_sampling=False")
        self.parts, self._key = parts, tuple(seed)
        self.sample_rate = min(1.0, loader.batch_size * parts / loader.source.samples)
        """The probability of a sample to be in the batches of an optimizer step."""
        super().__init__(loader.source, loader.conversions, batch_size=loader.batch_size, shuffle=loader.shuffle, seed=loader.seed, prefetch=loader.prefetch,
                         steps_per_epoch=loader.steps_per_epoch)

    def describe(self) -> str:
        return f"{self.source.describe()}; {self.batches_per_epoch} batches of {self.batch_size} on average per epoch, by Poisson sampling"

    def batch_sizes(self) -> set[int]:
        """Return the expected size of a batch; all sizes are possible."""
        return {min(self.batch_size, self.source.samples or 0)}

    def _count_batches(self) -> int:
        assert self.source.samples is not None
        return self.steps_per_epoch or -(-self.source.samples // (self.batch_size * self.parts)) * self.parts

    def _random_access(self, source: RandomAccess, number: int, first: int) -> Iterator[Batch]:
        assert self.batches_per_epoch is not None
        for batch in range(first, self.batches_per_epoch):
            step, part = divmod(batch, self.parts)
            key = (*self._key, number, step)
            chosen = np.flatnonzero(np.random.default_rng(key).random(source.samples) < self.sample_rate)
            rows = np.array_split(chosen, self.parts)[part]
            values = source.read(rows, (self.seed, number)) if len(rows) else None
            yield [] if values is None else [conversion(array, rows, self._checked) for conversion, array in zip(self.conversions, values, strict=True)]
