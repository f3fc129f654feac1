"""Dividing data into samples to train on and samples to hold out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortrain.data.conversion import as_array
from ortrain.data.loader import DataLoader
from ortrain.data.sources import Blocks, BlocksPart, RandomAccess, RandomAccessPart, Source, check_lengths
from ortrain.errors import InvalidArgumentError


def split(data: Any, share: float, seed: int = 0, stratify: Any = False) -> tuple[Any, Any]:
    """Divide the samples of a DataLoader or of arrays into (rest, part), `part` holding the given share of them, chosen at random.

    data: a DataLoader, whose parts are DataLoaders with its settings that share its data; or one array, a sequence or a mapping of arrays, whose parts have
    the same form. share: in (0, 1). seed: the choice depends on it alone. stratify: True for the same shares of every class of the last input or array, or
    an array of labels, one per sample. Samples keep their order. Augmentation of images stays with the first part: the second is for evaluation.

    Raises InvalidArgumentError for a share that leaves one of the parts empty, for arrays of different length, and for data that have no sample numbers."""
    if isinstance(data, DataLoader):
        return _split_loader(data, share, seed, stratify)
    named = isinstance(data, Mapping)
    several = named or isinstance(data, list | tuple)
    labels = [str(name) for name in data] if named else [f"array {number}" for number in range(len(data))] if several else ["data"]
    values = list(data.values()) if named else list(data) if several else [data]
    if not values:
        raise InvalidArgumentError("expected at least one array, got none")
    arrays = [as_array(value, name) for name, value in zip(labels, values, strict=True)]
    check_lengths(labels, arrays)
    classes = None if stratify is False else arrays[-1] if stratify is True else as_array(stratify, "stratify")
    parts = [[array[rows] for array in arrays] for rows in choose(len(arrays[0]), share, seed, classes)]
    if named:
        return dict(zip(data, parts[0], strict=True)), dict(zip(data, parts[1], strict=True))
    if several:
        return (tuple(parts[0]), tuple(parts[1])) if isinstance(data, tuple) else (parts[0], parts[1])
    return parts[0][0], parts[1][0]


def choose(count: int, share: float, seed: int, classes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the sample numbers (rest, part), each ascending; see `split`. classes: one label per sample, [count]."""
    if not 0 < share < 1:
        raise InvalidArgumentError(f"expected a share between 0 and 1, got {share}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidArgumentError(f"expected seed as an integer >= 0, got {seed!r}")
    random = np.random.default_rng(seed)
    if classes is None:
        order = random.permutation(count)
        taken = order[: round(count * share)]
    else:
        if classes.shape != (count,):
            raise InvalidArgumentError(f"expected stratify as one label for each of {count} samples, got shape {list(classes.shape)}")
        _, inverse = np.unique(classes, return_inverse=True)
        order = random.permutation(count)
        # within a class, numbers 0, 1, 2, ... in random order; ranks spread over the classes so that the total is that of an unstratified split
        by_class = order[np.argsort(inverse[order], kind="stable")]
        sizes = np.bincount(inverse)
        wanted = np.round(np.cumsum(sizes) * share).astype(int)
        starts = np.cumsum(sizes) - sizes
        taken = np.concatenate([by_class[start : start + many] for start, many in zip(starts, np.diff(wanted, prepend=0), strict=True)])
    if not 0 < len(taken) < count:
        raise InvalidArgumentError(f"expected samples in both parts, got {count} samples and the share {share}")
    part = np.zeros(count, bool)
    part[taken] = True
    return np.flatnonzero(~part), np.flatnonzero(part)


def _split_loader(loader: DataLoader, share: float, seed: int, stratify: Any) -> tuple[DataLoader, DataLoader]:
    source = loader.source
    if not isinstance(source, RandomAccess | Blocks):
        raise InvalidArgumentError(f"expected data with numbered samples to split, got {source.describe()}: divide the data before they become batches")
    classes = None if stratify is False else source.targets() if stratify is True else as_array(stratify, "stratify")
    rest, part = choose(source.samples, share, seed, classes)
    if isinstance(source, Blocks):
        return _with_source(loader, BlocksPart(source, rest)), _with_source(loader, BlocksPart(source, part))
    return _with_source(loader, RandomAccessPart(source, rest)), _with_source(loader, RandomAccessPart(source.plain(), part))


def _with_source(loader: DataLoader, source: Source) -> DataLoader:
    return DataLoader(source, loader.conversions, batch_size=loader.batch_size, shuffle=loader.shuffle, seed=loader.seed, drop_last=loader.drop_last,
                      prefetch=loader.prefetch)
