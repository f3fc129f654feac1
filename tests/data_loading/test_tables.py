"""Tables: which columns become numbers, categories and targets, and that a stored encoding gives the same numbers for other rows."""

import json

import numpy as np
import pytest

from ortrain.data import as_loader
from ortrain.data.tables import Table, TableEncoding, encode
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidStateError

COLUMNS = {"age": [20.0, 40.0, None, 60.0], "rooms": [1, 2, 3, 4], "city": ["Rome", None, "Bern", "Rome"], "sold": ["yes", "no", "no", "yes"]}
CSV = "age,rooms,city,sold\n20,1,Rome,yes\n40,2,,no\n,3,Bern,no\n60,4,Rome,yes\n"


@pytest.fixture
def csv(tmp_path):
    (tmp_path / "data.csv").write_text(CSV)
    return tmp_path / "data.csv"


def in_every_form(tmp_path, csv):
    """The same table from each kind of source that is installed."""
    yield COLUMNS
    yield csv
    try:
        import pyarrow
        from pyarrow.parquet import write_table
    except ImportError:
        return
    table = pyarrow.table(COLUMNS)
    write_table(table, tmp_path / "data.parquet")
    yield from (table, tmp_path / "data.parquet", table.set_column(2, "city", table["city"].dictionary_encode()))
    try:
        import pandas
    except ImportError:
        return
    frame = pandas.DataFrame(COLUMNS)
    yield from (frame, frame.astype({"city": "category"}), frame.convert_dtypes())


def test_a_table_is_the_same_from_a_file_a_frame_and_a_mapping(tmp_path, csv):
    for data in in_every_form(tmp_path, csv):
        table = Table(data, "sold", standardize=False)
        np.testing.assert_array_equal(table.numbers, np.array([[20, 1], [40, 2], [40, 3], [60, 4]], np.float32))
        np.testing.assert_array_equal(table.categories, [[2], [0], [1], [2]])
        np.testing.assert_array_equal(table.target, [1, 0, 0, 1])
        assert (table.numbers.dtype, table.categories.dtype, table.target.dtype) == (np.float32, np.int64, np.int64)
        assert table.classes == ["no", "yes"] and len(table) == 4


@pytest.mark.parametrize(("missing", "fill"), [("mean", 40.0), ("median", 40.0), ("zero", 0.0)])
def test_missing_numbers_are_filled_by_the_rule(missing, fill):
    table = Table(COLUMNS | {"age": [10.0, None, 100.0, 10.0]} if missing != "zero" else COLUMNS, "sold", missing=missing, standardize=False)
    expected = {"mean": [10, 40, 100, 10], "median": [10, 10, 100, 10], "zero": [20, 40, fill, 60]}[missing]
    assert table.numbers[:, 0].tolist() == expected


def test_missing_values_are_refused_where_that_is_wanted_with_column_and_row():
    with pytest.raises(InvalidArgumentError, match=r"expected a value in every row of column 'age', got none in row 2: fill it, or give missing="):
        Table(COLUMNS, "sold", missing="refuse")
    with pytest.raises(InvalidArgumentError, match=r"expected a value in every row of column 'city', got none in row 1"):
        Table(COLUMNS, "sold", features=["city"], missing="refuse")
    with pytest.raises(InvalidArgumentError, match=r"expected a target in every row, got none in row 1 of column 'city'"):
        Table(COLUMNS, "city")


def test_standardized_numbers_have_mean_zero_and_deviation_one_and_constants_stay_finite():
    random = np.random.default_rng(0)
    table = Table({"a": random.normal(1e6, 50, 1000), "b": np.full(1000, 7.0), "y": np.arange(1000) % 2}, "y")
    np.testing.assert_allclose(table.numbers[:, 0].mean(), 0, atol=1e-4)
    np.testing.assert_allclose(table.numbers[:, 0].std(), 1, rtol=1e-4)
    assert (table.numbers[:, 1] == 0).all()


def test_a_stored_encoding_gives_the_same_numbers_and_knows_what_is_new(csv):
    table = Table(csv, "sold")
    stored = json.loads(json.dumps(table.encoding.to_dict()))
    encoding = TableEncoding.from_dict(stored)
    assert encoding == table.encoding
    again = Table(csv, encoding=encoding)
    np.testing.assert_array_equal(again.numbers, table.numbers)
    np.testing.assert_array_equal(again.target, table.target)
    encoded = encode({"age": [40.0], "city": ["Oslo"], "rooms": [2.5], "other": ["?"]}, encoding)
    np.testing.assert_array_equal(encoded.numbers, [[0, 0]])
    assert encoded.categories.tolist() == [[0]] and encoded.target is None
    with pytest.raises(InvalidArgumentError, match=r"expected the columns \['age', 'rooms', 'city'\], got \['age'\], without \['rooms', 'city'\]"):
        encode({"age": [40.0]}, encoding)
    with pytest.raises(InvalidArgumentError, match=r"expected one of the classes \['no', 'yes'\] in column 'sold', got 'maybe' in row 3"):
        Table(COLUMNS | {"sold": ["yes", "no", "no", "maybe"]}, encoding=encoding)
    with pytest.raises(InvalidArgumentError, match=r"expected numbers in column 'rooms', got text"):
        encode(COLUMNS | {"rooms": ["one", "two", "three", "four"]}, encoding)


@pytest.mark.parametrize("wrong", [{}, {"numbers": [{"name": "a"}], "categories": [], "target": None, "one_hot": False}])
def test_a_dictionary_that_is_no_encoding_is_refused(wrong):
    with pytest.raises(InvalidArgumentError, match="expected the dictionary of a TableEncoding"):
        TableEncoding.from_dict(wrong)


def test_one_hot_puts_categories_beside_the_numbers():
    table = Table(COLUMNS, "sold", one_hot=True, standardize=False)
    np.testing.assert_array_equal(table.numbers[:, 2:], [[0, 1], [0, 0], [1, 0], [0, 1]])
    assert table.categories.shape == (4, 0) and table.numbers.shape[1] == table.encoding.width == 4


def test_listed_columns_are_categories_numbers_included():
    table = Table(COLUMNS, "sold", features=["rooms", "city"], categorical=["rooms", "city"])
    assert table.numbers.shape == (4, 0) and table.categories.tolist() == [[1, 2], [2, 0], [3, 1], [4, 2]]
    assert table.encoding.category_counts == [5, 3]
    with pytest.raises(InvalidArgumentError, match=r"expected text columns among categorical=\['rooms'\], got \['city'\] outside"):
        Table(COLUMNS, "sold", categorical=["rooms"])


def test_integer_categories_keep_their_codes_beside_missing_values():
    """In a frame, a missing value makes the integers of its column floats."""
    fitted = Table({"code": [7, 3], "y": [0, 1]}, "y", categorical=["code"])
    assert encode({"code": [7, None, 3]}, fitted.encoding).categories.tolist() == [[2], [0], [1]]


TARGETS = {"text": (["b", "a", "b"], [1, 0, 1]), "booleans": ([True, False, True], [1, 0, 1]), "integers": ([3, 1, 3], [1, 0, 1])}


@pytest.mark.parametrize("kind", TARGETS)
def test_text_booleans_and_integers_are_classes(kind):
    values, numbers = TARGETS[kind]
    table = Table({"x": [1.0, 2.0, 3.0], "y": values}, "y")
    assert table.target.tolist() == numbers and table.classes == sorted(set(values))
    json.dumps(table.encoding.to_dict())


def test_floats_and_on_demand_integers_are_a_column_of_numbers():
    for values, task in (([0.5, 1.5, 2.5], "auto"), ([1, 2, 3], "regression")):
        table = Table({"x": [1.0, 2.0, 3.0], "y": values}, "y", task=task)
        assert table.target.dtype == np.float32 and table.target.tolist() == [[value] for value in values] and table.classes is None
    with pytest.raises(InvalidArgumentError, match=r'expected at most 1000 different integers as classes in column \'y\', got 2000: give task="regression"'):
        Table({"x": np.zeros(2000), "y": np.arange(2000)}, "y")


def test_a_loader_over_a_table_takes_numbers_categories_and_target_in_this_order():
    table = Table(COLUMNS, "sold", standardize=False)
    numbers, categories, target = next(as_loader(table, names=["x", "codes", "labels"], shuffle=False).epoch(0))
    np.testing.assert_array_equal(numbers, table.numbers)
    np.testing.assert_array_equal(categories, table.categories)
    np.testing.assert_array_equal(target, table.target)
    city, numbers, target = next(as_loader(table, names=["city", "x", "labels"], shuffle=False).epoch(0))
    assert city.tolist() == [2, 0, 1, 2] and numbers.shape == (4, 2)
    with pytest.raises(InvalidArgumentError, match=r"parts, numbers, categories, target, got \['x', 'labels'\]: one_hot=True adds categories"):
        as_loader(table, names=["x", "labels"])


WRONG = {
    "an absent target": (dict(target="price"), r"expected features among the columns .* without \['price'\]"),
    "an absent feature": (dict(target="sold", features=["size"]), r"without \['size'\]"),
    "the target as a feature": (dict(target="sold", features=["age", "sold"]), r"other than the target 'sold'"),
    "an unknown rule": (dict(target="sold", missing="drop"), r"expected missing as one of mean, median, zero, refuse"),
    "an unknown task": (dict(target="sold", task="ranking"), r"task as auto, classification or regression"),
    "categories by a word": (dict(target="sold", categorical="all"), r'expected categorical as "auto" or a list of columns'),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_that_do_not_fit_the_table_are_refused(case):
    arguments, message = WRONG[case]
    with pytest.raises(InvalidArgumentError, match=message):
        Table(COLUMNS, **arguments)


def test_columns_of_different_length_empty_columns_and_infinity_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"as many samples in every input, got 4 in 'age' .* and 3 in 'sold'"):
        Table(COLUMNS | {"sold": ["yes", "no", "no"]}, "sold")
    with pytest.raises(InvalidArgumentError, match=r"expected at least one value in column 'a', got none"):
        Table({"a": [np.nan, np.nan], "y": [0, 1]}, "y")
    with pytest.raises(InvalidArgumentError, match=r"expected finite numbers in column 'a', got infinity in row 1"):
        Table({"a": [0.0, np.inf], "y": [0, 1]}, "y")
    with pytest.raises(ArtifactNotFoundError, match="expected a data file"):
        Table(tmp_path / "nothing.csv", "y")
    with pytest.raises(InvalidArgumentError, match=r"expected a table in a .csv or .parquet file"):
        Table(tmp_path, "y")


def test_a_csv_file_needs_no_pyarrow_and_a_parquet_file_names_the_extra(csv, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert len(Table(csv, "sold")) == 4
    (csv.parent / "data.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidStateError, match=r"pip install 'ortrain\[tables\]'"):
        Table(csv.parent / "data.parquet", "sold")
