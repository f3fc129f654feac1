"""Rows in blocks, for any sizes of blocks, pieces, windows and batches: every row comes once, and a resumed epoch continues the one that was left."""

import subprocess
import sys
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ortrain.data import as_loader, split
from ortrain.data.sources import Blocks, rebatched
from tests.layers import ROOT


class Numbers(Blocks):
    """Blocks that hold consecutive numbers."""

    def __init__(self, rows, piece):
        self.names, self.rows, self.samples, self._piece = ["x"], list(rows), sum(rows), piece

    row_bytes = 8

    def read_block(self, number):
        start = sum(self.rows[:number])
        for first in range(start, start + self.rows[number], self._piece):
            yield [np.arange(first, min(first + self._piece, start + self.rows[number]))]

    def describe(self):
        return "numbers"


def numbers(loader, epoch=0, first=0):
    return [int(value) for batch in loader.epoch(epoch, first) for value in batch[0]]


sizes = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(lambda rows: sum(rows) > 0)
some = st.integers(1, 12)


@given(rows=sizes, piece=some, window=some, size=some, shuffle=st.booleans(), drop_last=st.booleans(), data=st.data())
def test_every_row_comes_once_and_a_resumed_epoch_continues(rows, piece, window, size, shuffle, drop_last, data):
    if drop_last and sum(rows) < size:
        return
    with mock.patch("ortrain.data.loader.WINDOW_ROWS", window):
        loader = as_loader(Numbers(rows, piece), names=["x"], batch_size=size, shuffle=shuffle, drop_last=drop_last)
        whole = numbers(loader, 1)
        first = data.draw(st.integers(0, loader.batches_per_epoch))
        assert numbers(loader, 1, first) == whole[first * size :]
    assert len(set(whole)) == len(whole) == (sum(rows) // size * size if drop_last else sum(rows))
    if not shuffle:
        assert whole == list(range(len(whole)))


@given(rows=sizes.filter(lambda rows: sum(rows) > 3), piece=some, seed=st.integers(0, 3))
def test_the_parts_of_blocks_are_the_rows_that_were_chosen(rows, piece, seed):
    rest, part = split(as_loader(Numbers(rows, piece), names=["x"], batch_size=2), 0.5, seed)
    expected = split(np.arange(sum(rows)), 0.5, seed)
    assert sorted(numbers(rest)) == expected[0].tolist() and sorted(numbers(part)) == expected[1].tolist()


@given(rows=sizes, size=some)
def test_pieces_become_batches_of_the_wanted_size(rows, size):
    pieces = np.split(np.arange(sum(rows)), np.cumsum(rows)[:-1])
    batches = [batch[0] for batch in rebatched(([piece] for piece in pieces), size)]
    assert np.concatenate(batches).tolist() == list(range(sum(rows)))
    assert {len(batch) for batch in batches[:-1]} <= {size} and 0 < len(batches[-1]) <= size


def test_integers_beside_missing_values_in_a_later_piece_do_not_become_garbage():
    batches = list(rebatched(([piece] for piece in (np.array([1, 2]), np.array([np.nan, 4.0]))), 4))
    np.testing.assert_array_equal(batches[0][0], [1, 2, np.nan, 4])


def test_importing_the_package_imports_no_library_of_an_extra():
    code = "import sys, ortrain.data, ortrain.data.images, ortrain.data.tables; print({'PIL', 'pyarrow', 'pandas', 'onnx', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "set()"
