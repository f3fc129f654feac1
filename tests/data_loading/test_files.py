"""Loaders over files, frames and Arrow tables: which columns become which inputs, and what is said of files that cannot be read."""

import numpy as np
import pytest

from ortrain.data import as_loader
from ortrain.data.columns import read_csv
from ortrain.data.files import read_arrays
from ortrain.errors import ArtifactNotFoundError, InputTypeError, InvalidArgumentError, InvalidStateError
from tests.data_loading.test_arrays import NAMES, X, Y, joined

DTYPES = {"x": "float32", "labels": "int64"}
CSV = "a,b,c,labels\n" + "\n".join(",".join(map(str, [*row, label])) for row, label in zip(X.tolist(), Y.tolist(), strict=True)) + "\n"


def is_x_and_y(loader):
    order = np.random.default_rng([loader.seed, 0]).permutation(10)
    x, labels = joined(loader)
    np.testing.assert_array_equal(x, X[order])
    np.testing.assert_array_equal(labels, Y[order])
    assert (x.dtype, labels.dtype) == (np.float32, np.int64)


# ---- NumPy's files

def test_arrays_of_an_npz_file_go_to_inputs_by_name(tmp_path):
    np.savez(tmp_path / "data.npz", labels=Y, x=X)
    is_x_and_y(as_loader(tmp_path / "data.npz", names=NAMES, dtypes=DTYPES))
    is_x_and_y(as_loader(str(tmp_path / "data.npz"), names=NAMES, dtypes=DTYPES))


def test_a_target_of_a_usual_name_or_named_by_targets_is_found(tmp_path):
    np.savez(tmp_path / "data.npz", x=X, y=Y, other=-Y)
    is_x_and_y(as_loader(tmp_path / "data.npz", names=NAMES, dtypes=DTYPES))
    np.testing.assert_array_equal(joined(as_loader(tmp_path / "data.npz", "other", names=NAMES, shuffle=False))[1], -Y)
    with pytest.raises(InvalidArgumentError, match=r"expected a column 'nope' as target in .*data.npz, got"):
        as_loader(tmp_path / "data.npz", "nope", names=NAMES)


def test_npy_files_are_memory_mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    for data, targets in ((tmp_path / "x.npy", tmp_path / "y.npy"), ([tmp_path / "x.npy", tmp_path / "y.npy"], None), (str(tmp_path / "x.npy"), Y),
                          (np.load(tmp_path / "x.npy", mmap_mode="r"), Y), ({"x": tmp_path / "x.npy", "labels": Y}, None)):
        loader = as_loader(data, targets, names=NAMES, dtypes=DTYPES)
        assert "memory-mapped" in loader.describe()
        is_x_and_y(loader)


@pytest.mark.parametrize("shuffle", [False, True])
def test_memory_maps_of_users_and_files_in_other_layouts_are_read_right(tmp_path, monkeypatch, shuffle):
    monkeypatch.setattr("ortrain.data.sources.RELEASE", 0)
    np.save(tmp_path / "x.npy", np.concatenate([X, X]))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(X))
    np.save(tmp_path / "big_endian.npy", X.astype(">f4"))
    np.save(tmp_path / "one.npy", X[:, 0])
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")[:10]
    changed[3] = -1
    expected = X.copy()
    expected[3] = -1
    cases = [(np.load(tmp_path / "x.npy", mmap_mode="r")[10:], X), (np.load(tmp_path / "x.npy", mmap_mode="r+")[::2], np.concatenate([X, X])[::2]),
             (changed, expected), (tmp_path / "fortran.npy", X), (tmp_path / "big_endian.npy", X), (tmp_path / "one.npy", X[:, 0])]
    for data, values in cases:
        x, labels = joined(as_loader(data, Y, names=NAMES, dtypes=DTYPES, batch_size=3, shuffle=shuffle))
        np.testing.assert_array_equal(x, values[labels])
        assert x.dtype == np.float32 and sorted(labels) == list(range(10))
    np.testing.assert_array_equal(changed, expected)


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1000, 100), np.float32))
    for shuffle in (False, True):
        np.save(tmp_path / "x.npy", np.zeros((1000, 100), np.float32))
        iterator = as_loader(tmp_path / "x.npy", np.zeros(1000), names=NAMES, batch_size=100, shuffle=shuffle, prefetch=0).epoch(0)
        next(iterator)
        with open(tmp_path / "x.npy", "r+b") as file:
            file.truncate(50000)
        with pytest.raises(InvalidStateError, match=r"expected the file '.*x.npy' as long as it was, got \d+ of 40000 bytes"):
            list(iterator)


def test_a_value_that_is_not_finite_is_found_in_a_memory_map_when_its_batch_is_read(tmp_path):
    x = X.copy()
    x[7, 2] = np.nan
    np.save(tmp_path / "x.npy", x)
    loader = as_loader(tmp_path / "x.npy", Y, names=NAMES, batch_size=2, prefetch=0)
    with pytest.raises(InvalidArgumentError, match=r"in 'x', got nan in sample 7, position \[2\]"):
        list(loader.epoch(0))


UNREADABLE = {"text.npz": b"hello", "text.npy": b"hello", "empty.npz": b"", "cut.npy": b"\x93NUMPY\x01\x00v\x00{'descr'"}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named_without_advice_to_unpickle_it(name, tmp_path):
    (tmp_path / name).write_bytes(UNREADABLE[name])
    with pytest.raises(InvalidArgumentError, match=rf"expected an .* file of .* in '.*{name}', got one that cannot be read") as caught:
        as_loader(tmp_path / name, Y, names=NAMES)
    assert "pickle" not in str(caught.value)


def test_an_archive_of_objects_is_refused_and_not_unpickled(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.array([{}, {}]), labels=Y)
    with pytest.raises(InvalidArgumentError, match=r"cannot be read$"):
        as_loader(tmp_path / "data.npz", names=NAMES)


def test_paths_of_no_file_and_of_an_unknown_kind_are_refused_with_the_kinds_that_are_known(tmp_path):
    with pytest.raises(ArtifactNotFoundError, match=r"expected a data file \(.npz, .npy, .csv, .parquet or a folder .* found nothing at '.*nothing.csv'"):
        as_loader(tmp_path / "nothing.csv", names=NAMES)
    (tmp_path / "data.xlsx").write_bytes(b"PK")
    with pytest.raises(InvalidArgumentError, match=r"expected a data file .* got '.*data.xlsx'"):
        as_loader(tmp_path / "data.xlsx", names=NAMES)
    with pytest.raises(InvalidArgumentError, match=r"expected a data file with named arrays or columns .* got a folder"):
        read_arrays(tmp_path)
    with pytest.raises(ArtifactNotFoundError, match="expected a data file, found none"):
        read_arrays(tmp_path / "nothing.npz")


# ---- CSV

def test_columns_of_a_csv_file_that_are_no_target_become_the_only_other_input(tmp_path):
    (tmp_path / "data.csv").write_text(CSV)
    is_x_and_y(as_loader(tmp_path / "data.csv", names=NAMES, dtypes=DTYPES))
    x, c = joined(as_loader(tmp_path / "data.csv", "c", names=NAMES, shuffle=False))
    assert x.shape == (10, 3)
    np.testing.assert_array_equal(c, X[:, 2])


@pytest.mark.parametrize("mark", ";\t|")
def test_other_delimiters_and_a_byte_order_mark_are_recognized(mark, tmp_path):
    (tmp_path / "data.csv").write_text("\ufeff" + CSV.replace(",", mark), encoding="utf-8")
    is_x_and_y(as_loader(tmp_path / "data.csv", names=NAMES, dtypes=DTYPES))


def test_cells_become_integers_floats_booleans_or_text_and_missing_ones_nan_or_none(tmp_path):
    (tmp_path / "data.csv").write_text('i,f,b,t,im,tm,e\n1,0.5,true,a,1,a,\n-2,1e3,False,"b, c",,,NA\n\n9223372036854775808,3,TRUE,1_000,3,nan,null\n')
    columns = read_csv(tmp_path / "data.csv")
    assert columns["f"].tolist() == [0.5, 1000.0, 3.0] and columns["b"].tolist() == [True, False, True]
    assert columns["t"].tolist() == ["a", "b, c", "1_000"] and columns["tm"].tolist() == ["a", None, None]
    assert columns["i"].dtype == np.float64, "an integer that int64 cannot hold is a float"
    np.testing.assert_array_equal(columns["im"], [1, np.nan, 3])
    assert np.isnan(columns["e"]).all()


WRONG_CSV = {
    "a row with a cell too many": ("a,labels\n1,2\n1,2,3\n", "expected 2 cells in line 3 of .*, got 3"),
    "no header": ("0.5,1\n2,0\n", "expected a header with the columns' names in the first line of .*, got numbers: 0.5, 1"),
    "a name twice": ("a,a\n1,2\n", "expected a header with different names"),
    "nothing": ("", "expected a header .* got an empty file"),
    "a header only": ("a,labels\n", "expected at least one row below the header"),
    "an open quote": ('a,labels\n"1,2\n', "expected a CSV file in UTF-8 in .*, got one that cannot be read"),
    "another encoding": (b"a,labels\n\xe4,1\n", "expected a CSV file in UTF-8 in .*, got one that cannot be read"),
}


@pytest.mark.parametrize("case", WRONG_CSV)
def test_a_csv_file_that_is_none_is_refused_in_words(case, tmp_path):
    text, message = WRONG_CSV[case]
    (tmp_path / "data.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidArgumentError, match=message):
        as_loader(tmp_path / "data.csv", names=NAMES)


def test_text_and_missing_numbers_in_columns_are_refused_with_the_way_out(tmp_path):
    (tmp_path / "data.csv").write_text("a,b,labels\n1,red,0\n2,blue,1\n")
    with pytest.raises(InputTypeError, match=r"expected a number in every row of column 'b', got text: use ortrain.data.tables.Table"):
        as_loader(tmp_path / "data.csv", names=NAMES, dtypes=DTYPES)
    (tmp_path / "data.csv").write_text("a,b,labels\n1,,0\n2,3,1\n")
    with pytest.raises(InvalidArgumentError, match=r"expected finite numbers in 'x', got nan in sample 0, position \[1\]"):
        as_loader(tmp_path / "data.csv", names=NAMES, dtypes=DTYPES)


def test_a_column_of_text_goes_to_a_string_input(tmp_path):
    (tmp_path / "data.csv").write_text("x,labels\nred,0\nblue,1\n")
    x, _ = joined(as_loader(tmp_path / "data.csv", names=NAMES, dtypes={"x": "string"}, shuffle=False))
    assert x.tolist() == ["red", "blue"]


# ---- frames and Arrow

def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "labels": Y})


def table():
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "labels": Y})


def test_a_pandas_frame_brings_columns():
    data = frame()
    is_x_and_y(as_loader(data, names=NAMES, dtypes=DTYPES))
    is_x_and_y(as_loader(data[["a", "b", "c"]], data["labels"], names=NAMES, dtypes=DTYPES))
    is_x_and_y(as_loader(data, "labels", names=NAMES, dtypes=DTYPES))


def test_nullable_and_categorical_columns_of_pandas_are_read():
    pandas = pytest.importorskip("pandas")
    data = pandas.DataFrame({"x": pandas.array([1, 2, 3], dtype="Int64"), "labels": pandas.array([True, False, True], dtype="boolean")})
    x, labels = joined(as_loader(data, names=NAMES, dtypes=DTYPES, shuffle=False))
    assert x.tolist() == [1, 2, 3] and labels.tolist() == [1, 0, 1]
    data["x"] = pandas.array([1, None, 3], dtype="Int64")
    with pytest.raises(InvalidArgumentError, match="got nan in sample 1"):
        as_loader(data, names=NAMES, dtypes=DTYPES)
    data["x"] = pandas.to_datetime(["2020-01-01"] * 3)
    with pytest.raises(InputTypeError, match="expected numbers or text in column 'x', got datetime64"):
        as_loader(data, names=NAMES, dtypes=DTYPES)


def test_arrow_tables_batches_and_columns_are_read():
    data = table()
    is_x_and_y(as_loader(data, names=NAMES, dtypes=DTYPES))
    is_x_and_y(as_loader(data.to_batches()[0], names=NAMES, dtypes=DTYPES))
    is_x_and_y(as_loader(X, data["labels"], names=NAMES, dtypes=DTYPES))
    pyarrow = pytest.importorskip("pyarrow")
    is_x_and_y(as_loader(pyarrow.concat_tables([data[:4], data[4:]]), names=NAMES, dtypes=DTYPES))


@pytest.mark.parametrize("fixed", [True, False])
def test_lists_of_one_length_become_an_axis(fixed):
    pyarrow = pytest.importorskip("pyarrow")
    kind = pyarrow.list_(pyarrow.float32(), 3) if fixed else pyarrow.list_(pyarrow.float32())
    lists = pyarrow.array(X.tolist(), kind)
    is_x_and_y(as_loader(pyarrow.table({"x": lists, "labels": Y}), names=NAMES, dtypes=DTYPES))
    x, _ = joined(as_loader(pyarrow.table({"x": lists, "labels": Y})[3:], names=NAMES, shuffle=False))
    np.testing.assert_array_equal(x, X[3:])
    with pytest.raises(InvalidArgumentError, match="expected lists of one length in column 'x'"):
        as_loader(pyarrow.table({"x": [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], "labels": [0, 1, 0]}), names=NAMES)


def test_a_record_batch_reader_is_read_once_in_batches_of_the_wanted_size():
    data = table()
    reader = data.to_reader(max_chunksize=3)
    loader = as_loader(reader, names=NAMES, dtypes=DTYPES, batch_size=4, steps_per_epoch=3)
    batches = list(loader.epoch(0))
    assert [len(batch[0]) for batch in batches] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([batch[0] for batch in batches]), X)
    with pytest.raises(InvalidArgumentError, match="expected steps_per_epoch for data that can be iterated once"):
        as_loader(data.to_reader(), names=NAMES)


# ---- Parquet, in blocks

@pytest.fixture
def parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    count = 1000
    columns = {"a": np.arange(count, dtype=np.float32), "b": -np.arange(count, dtype=np.float64), "labels": np.arange(count, dtype=np.int32)}
    write_table(pyarrow.table(columns), tmp_path / "data.parquet", row_group_size=130)
    return tmp_path / "data.parquet"


def labels_of(loader, epoch=0, first=0):
    x, labels = joined(loader, epoch, first)
    np.testing.assert_array_equal(x, np.stack([labels, -labels], axis=1))
    return labels.tolist()


@pytest.mark.parametrize("window", [1, 100, 65536])
def test_every_row_of_a_parquet_file_comes_once_per_epoch(parquet, monkeypatch, window):
    monkeypatch.setattr("ortrain.data.loader.WINDOW_ROWS", window)
    loader = as_loader(parquet, names=NAMES, dtypes=DTYPES, batch_size=32)
    assert (loader.samples, loader.batches_per_epoch) == (1000, 32) and "1000 rows in 8 blocks" in loader.describe()
    first, again, second = labels_of(loader, 0), labels_of(loader, 0), labels_of(loader, 1)
    assert sorted(first) == sorted(second) == list(range(1000))
    assert first == again and first != second and first != sorted(first)
    assert [len(batch[0]) for batch in loader.epoch(0)] == [32] * 31 + [8]
    assert labels_of(as_loader(parquet, names=NAMES, dtypes=DTYPES, shuffle=False)) == list(range(1000))


def test_a_resumed_epoch_of_a_parquet_file_does_not_read_the_row_groups_before(parquet, monkeypatch):
    monkeypatch.setattr("ortrain.data.loader.WINDOW_ROWS", 64)
    for shuffle in (True, False):
        loader = as_loader(parquet, names=NAMES, dtypes=DTYPES, batch_size=32, shuffle=shuffle, prefetch=0)
        whole = labels_of(loader, 5)
        for first in (0, 1, 2, 3, 17, 31):
            assert labels_of(loader, 5, first) == whole[first * 32 :]
        read, real = [], loader.source.read_block
        monkeypatch.setattr(loader.source, "read_block", lambda number, read=read, real=real: (read.append(number), real(number))[1])
        labels_of(loader, 5, 31)
        assert len(read) == 1
        monkeypatch.undo()
        monkeypatch.setattr("ortrain.data.loader.WINDOW_ROWS", 64)


def test_a_parquet_file_stops_early_and_drops_its_last_batch(parquet):
    loader = as_loader(parquet, names=NAMES, batch_size=32, drop_last=True)
    assert [len(batch[0]) for batch in loader.epoch(0)] == [32] * 31
    assert len(list(as_loader(parquet, names=NAMES, batch_size=32, steps_per_epoch=3).epoch(0))) == 3


def test_a_dataset_of_several_parquet_files_is_read_in_blocks(parquet):
    dataset = pytest.importorskip("pyarrow.dataset")
    (parquet.parent / "more.parquet").write_bytes(parquet.read_bytes())
    loader = as_loader(dataset.dataset([parquet, parquet.parent / "more.parquet"]), names=NAMES, dtypes=DTYPES, batch_size=64)
    assert loader.samples == 2000
    assert sorted(labels_of(loader)) == sorted([*range(1000), *range(1000)])
    with pytest.raises(InvalidArgumentError, match="expected a whole Arrow dataset, got one with a filter"):
        as_loader(dataset.dataset(parquet).filter(dataset.field("a") > 3), names=NAMES)


def test_a_parquet_file_with_an_array_of_targets_is_read_as_a_whole(parquet):
    targets = np.arange(1000)
    x, labels = joined(as_loader({"x": np.zeros((1000, 1))}, targets, names=NAMES, shuffle=False))
    assert x.shape == (1000, 1) and labels.tolist() == targets.tolist()
    x, labels = joined(as_loader(parquet, targets[::-1], names=NAMES, shuffle=False))
    assert x.shape == (1000, 2), "the file's own labels are not among the features"
    assert labels.tolist() == targets[::-1].tolist()


def test_a_file_that_is_no_parquet_file_is_refused_by_name(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "data.parquet").write_bytes(b"PAR0")
    with pytest.raises(InvalidArgumentError, match=r"expected a Parquet file in .*data.parquet"):
        as_loader(tmp_path / "data.parquet", names=NAMES)
    with pytest.raises(InvalidArgumentError, match=r"expected a Parquet file in .*data.parquet"):
        read_arrays(tmp_path / "data.parquet")


def test_without_pyarrow_the_error_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InvalidStateError, match=r"pip install 'ortrain\[tables\]'"):
        as_loader(tmp_path / "data.parquet", names=NAMES)
