"""Loaders over real objects of Hugging Face datasets and pandas."""

import numpy as np
import pytest

from ortrain.data import as_loader

X = np.arange(30, dtype=np.float32).reshape(10, 3)
Y = np.arange(10) % 4
NAMES = ("x", "labels")
DTYPES = {"x": np.dtype("float32"), "labels": np.dtype("int64")}


def joined(loader, epoch=0):
    """The batches of an epoch, put together, by input."""
    batches = list(loader.epoch(epoch))
    return [np.concatenate([batch[number] for batch in batches]) for number in range(len(NAMES))]


def assert_shuffled(loader, seed, epoch=0):
    order = np.random.default_rng([seed, epoch]).permutation(len(Y))
    x, labels = joined(loader, epoch)
    np.testing.assert_array_equal(x, X[order])
    np.testing.assert_array_equal(labels, Y[order])
    assert (x.dtype, labels.dtype) == (DTYPES["x"], DTYPES["labels"])


# ---- Hugging Face datasets


@pytest.fixture
def rows():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"idx": list(range(10)), "x": X.tolist(), "labels": Y.tolist()})


def test_the_rows_of_a_dataset_are_shuffled_like_arrays(rows):
    assert_shuffled(as_loader(rows, names=NAMES, dtypes=DTYPES, batch_size=4, seed=3), 3)
    assert rows.format["type"] is None, "the caller's dataset is left as it is"


def test_a_dataset_with_a_format_gives_the_same_batches(rows):
    assert_shuffled(as_loader(rows.with_format("numpy"), names=NAMES, dtypes=DTYPES, batch_size=4, seed=1), 1)


def test_a_mapped_and_filtered_dataset_gives_the_rows_that_are_left(rows):
    kept = rows.filter(lambda row: row["idx"] % 2 == 0).map(lambda row: {"x": [2 * value for value in row["x"]]})
    x, labels = joined(as_loader(kept, names=NAMES, dtypes=DTYPES, batch_size=4, shuffle=False))
    np.testing.assert_array_equal(x, 2 * X[::2])
    np.testing.assert_array_equal(labels, Y[::2])


def test_a_dataset_in_a_file_is_read_as_it_comes(rows, tmp_path):
    datasets = pytest.importorskip("datasets")
    rows.to_parquet(tmp_path / "rows.parquet")
    stream = datasets.load_dataset("parquet", data_files=str(tmp_path / "rows.parquet"), split="train", streaming=True, cache_dir=str(tmp_path / "cache"))
    x, labels = joined(as_loader(stream, names=NAMES, dtypes=DTYPES, batch_size=4))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(labels, Y)


# ---- pandas


def test_the_columns_of_a_frame_go_to_inputs_by_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"number": range(10), "labels": Y, "x": X[:, 0]})
    x, labels = joined(as_loader(frame, names=NAMES, dtypes=DTYPES, batch_size=4, shuffle=False))
    np.testing.assert_array_equal(x, X[:, 0])
    np.testing.assert_array_equal(labels, Y)
