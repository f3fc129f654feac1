"""Shards: the workers of a parallel run read the batches of one process with so many times the batch, each its part."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortrain.data import as_loader
from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from tests.data_loading.test_blocks import Numbers

workers = st.integers(1, 5)
some = st.integers(1, 12)


class Stream:
    """Batches of consecutive numbers, of different sizes."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        ends = np.cumsum(self.sizes)
        return iter([(np.arange(end - size, end),) for size, end in zip(self.sizes, ends, strict=True)])


def joined(loader, count, epoch, first=0):
    """Return the batches of all shards, put together in the order of ranks; each is checked to know how many samples the whole batch has."""
    batches = []
    for parts in zip(*(loader.shard(rank, count).epoch(epoch, first) for rank in range(count)), strict=True):
        whole = [int(value) for part in parts if part for value in part[0]]
        if count > 1:
            assert {part.samples for part in parts} == {len(whole)}
            sizes = [len(part[0]) if part else 0 for part in parts]
            assert max(sizes) - min(sizes) <= 1, "expected parts of equal size, give or take one"
        batches.append(whole)
    return batches


def batches_of(loader, epoch, first=0):
    return [[int(value) for value in batch[0]] for batch in loader.epoch(epoch, first)]


@given(samples=st.integers(1, 60), size=some, count=workers, shuffle=st.booleans(), drop_last=st.booleans(), data=st.data())
def test_shards_of_arrays_are_the_batches_of_one_process(samples, size, count, shuffle, drop_last, data):
    if drop_last and samples < size * count:
        return
    how = {"names": ["x"], "shuffle": shuffle, "seed": 3, "drop_last": drop_last}
    loader, single = (as_loader(np.arange(samples), batch_size=batch, **how) for batch in (size, size * count))
    first = data.draw(st.integers(0, single.batches_per_epoch))
    assert loader.shard(0, count).batches_per_epoch == single.batches_per_epoch
    assert joined(loader, count, 2, first) == batches_of(single, 2, first)


@given(rows=st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(lambda rows: sum(rows) > 0), piece=some, window=some, size=some, count=workers,
       shuffle=st.booleans(), data=st.data())
def test_shards_of_blocks_are_the_batches_of_one_process(rows, piece, window, size, count, shuffle, data):
    with mock.patch("ortrain.data.loader.WINDOW_ROWS", window):
        loader, single = (as_loader(Numbers(rows, piece), names=["x"], batch_size=batch, shuffle=shuffle) for batch in (size, size * count))
        first = data.draw(st.integers(0, single.batches_per_epoch))
        assert joined(loader, count, 1, first) == batches_of(single, 1, first)


@given(sizes=st.lists(some, min_size=1, max_size=6), count=workers, first=st.integers(0, 3))
def test_batches_of_a_stream_are_divided(sizes, count, first):
    loader = as_loader(Stream(sizes), names=["x"])
    assert joined(loader, count, 0, first) == batches_of(loader, 0, first)


def test_a_worker_reads_its_own_samples_only():
    read = []

    class Samples:
        def __len__(self):
            return 10

        def __getitem__(self, number):
            read.append(number)
            return (np.float32(number),)

    loader = as_loader(Samples(), names=["x"], batch_size=2, shuffle=False, prefetch=0)
    assert [part[0].tolist() for part in loader.shard(1, 2).epoch(0)] == [[2, 3], [6, 7], [9]] and read == [2, 3, 6, 7, 9]


def test_a_shard_says_what_it_is():
    loader = as_loader(np.arange(10), names=["x"], batch_size=2).shard(2, 3)
    assert "2 batches of 6 per epoch, shuffled, of each the part of rank 2 of 3" in loader.describe()
    assert loader.batch_sizes() == {2}                  # parts of 6 and 4 samples
    assert as_loader(np.arange(10), names=["x"], batch_size=2).batch_sizes() == {2}
    assert as_loader(np.arange(7), names=["x"], batch_size=4).batch_sizes() == {4, 3}
    assert as_loader(np.arange(5), names=["x"], batch_size=4).shard(0, 2).batch_sizes() == {2}


@pytest.mark.parametrize("rank, count, error, message", [
    (2, 2, InvalidArgumentError, "expected a rank below the number of workers, 2, got 2"),
    (-1, 2, InvalidArgumentError, "expected rank >= 0, got -1"),
    (0, 0, InvalidArgumentError, "expected workers >= 1, got 0"),
    (0.0, 2, ArgumentTypeError, "expected rank as an integer"),
])
def test_wrong_ranks_are_refused(rank, count, error, message):
    with pytest.raises(error, match=message):
        as_loader(np.arange(10), names=["x"]).shard(rank, count)


def test_data_that_do_not_suffice_for_all_workers_are_refused():
    with pytest.raises(InvalidArgumentError, match="expected at least one whole batch of 12 with drop_last, got 10 samples"):
        as_loader(np.arange(10), names=["x"], batch_size=4, drop_last=True).shard(0, 3)
    with pytest.raises(InvalidArgumentError, match="expected steps_per_epoch up to 2, the batches that the data have, got 3"):
        as_loader(np.arange(10), names=["x"], batch_size=3, steps_per_epoch=3).shard(0, 2)
    with pytest.raises(InvalidArgumentError, match="expected data that every worker can iterate again"):
        as_loader(iter(Stream([3, 3])), names=["x"], steps_per_epoch=1).shard(0, 2)
