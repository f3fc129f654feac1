"""Splitting: every sample is in exactly one part, the choice depends on the seed, and stratified parts have all classes."""

import numpy as np
import pytest

from ortrain.data import as_loader, split
from ortrain.errors import InvalidArgumentError
from tests.data_loading.fakes import Dataset
from tests.data_loading.test_arrays import NAMES

X = np.arange(200, dtype=np.float32)[:, None]
Y = np.repeat(np.arange(4), [100, 60, 30, 10])


def test_arrays_are_divided_as_the_command_line_divides_them():
    (x, y), (held_x, held_y) = split((X, Y), 0.25, seed=3)
    order = np.random.default_rng(3).permutation(200)
    np.testing.assert_array_equal(held_x[:, 0], np.sort(order[:50]))
    np.testing.assert_array_equal(x[:, 0], np.sort(order[50:]))
    np.testing.assert_array_equal(y, Y[x[:, 0].astype(int)])
    np.testing.assert_array_equal(held_y, Y[held_x[:, 0].astype(int)])


def test_parts_have_the_form_of_what_was_divided():
    rest, part = split({"x": X, "y": Y}, 0.5)
    assert set(rest) == set(part) == {"x", "y"}
    assert isinstance(split([X, Y], 0.5)[0], list) and isinstance(split((X, Y), 0.5)[0], tuple) and isinstance(split(X, 0.5)[0], np.ndarray)


@pytest.mark.parametrize("stratify", [True, Y])
def test_stratified_parts_have_every_class_by_its_share(stratify):
    rest, part = split([X, Y], 0.2, seed=1, stratify=stratify)
    assert np.bincount(part[1]).tolist() == [20, 12, 6, 2] and np.bincount(rest[1]).tolist() == [80, 48, 24, 8]
    assert sorted([*rest[0][:, 0], *part[0][:, 0]]) == X[:, 0].tolist()
    assert not np.array_equal(part[0], split([X, Y], 0.2, seed=2, stratify=stratify)[1][0])


def test_a_stratified_split_has_the_same_size_as_another_when_classes_are_small():
    classes = np.arange(200) // 2
    assert len(split([X, classes], 0.25, stratify=True)[1][0]) == 50


def samples(loader, epoch=0):
    x, y = (np.concatenate(parts) for parts in zip(*loader.epoch(epoch), strict=True))
    np.testing.assert_array_equal(y, Y[x[:, 0].astype(int)])
    return x[:, 0].astype(int).tolist()


@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.parametrize("kind", ["arrays", "dataset", "parquet"])
def test_the_parts_of_a_loader_share_its_data_and_settings(kind, stratify, tmp_path, monkeypatch):
    data = (X, Y) if kind == "arrays" else Dataset(X, Y)
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow.parquet import write_table

        monkeypatch.setattr("ortrain.data.loader.WINDOW_ROWS", 32)
        write_table(pyarrow.table({"x": pyarrow.array(X.tolist(), pyarrow.list_(pyarrow.float32())), "labels": Y}), tmp_path / "d.parquet", row_group_size=33)
        data = tmp_path / "d.parquet"
    loader = as_loader(data, names=NAMES, batch_size=16, seed=5)
    rest, part = split(loader, 0.2, seed=1, stratify=stratify)
    assert (rest.samples, part.samples, rest.batch_size, rest.seed) == (160, 40, 16, 5)
    assert (rest.batches_per_epoch, part.batches_per_epoch) == (10, 3)
    first, held = samples(rest), samples(part)
    assert sorted(first + held) == list(range(200)) and first != sorted(first)
    expected = split([X, Y], 0.2, seed=1, stratify=stratify)
    assert sorted(held) == expected[1][0][:, 0].tolist()
    whole = list(rest.epoch(3))
    np.testing.assert_array_equal(next(rest.epoch(3, first_batch=7))[0], whole[7][0])


def test_a_part_of_arrays_is_shuffled_like_its_arrays_alone():
    rest, _ = split(as_loader(X, Y, names=NAMES, seed=5), 0.2, seed=1)
    alone = as_loader(*split([X, Y], 0.2, seed=1)[0], names=NAMES, seed=5)
    assert samples(rest, 2) == samples(alone, 2)


def test_a_part_can_be_divided_again():
    rest, test = split(as_loader(X, Y, names=NAMES), 0.1)
    training, validation = split(rest, 0.5)
    assert sorted(samples(training) + samples(validation) + samples(test)) == list(range(200))


@pytest.mark.parametrize("share", [0, 1, -0.5, 0.001, 0.999])
def test_a_share_that_leaves_a_part_empty_is_refused(share):
    with pytest.raises(InvalidArgumentError, match=r"expected a share between 0 and 1|expected samples in both parts, got 200 samples and the share"):
        split([X, Y], share)


def test_arrays_of_different_length_and_streams_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"as many samples in every input, got 200 in 'array 0' .* and 10 in 'array 1'"):
        split([X, Y[:10]], 0.5)
    with pytest.raises(InvalidArgumentError, match=r"expected data with numbered samples to split, got a list of 1 batches: divide the data before"):
        split(as_loader([(X, Y)], names=NAMES), 0.5)
    with pytest.raises(InvalidArgumentError, match=r"expected stratify as one label for each of 200 samples, got shape \[3\]"):
        split([X, Y], 0.5, stratify=[1, 2, 3])
    with pytest.raises(InvalidArgumentError, match=r"expected seed as an integer >= 0, got -1"):
        split([X, Y], 0.5, seed=-1)
