"""Recognizes what a user gives as data, and makes a source of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ortrain.data import columns as tabular
from ortrain.data.conversion import as_array, is_nested_numbers
from ortrain.data.files import kind_of, map_npy, read_npz
from ortrain.data.sources import (
    ArraySource,
    ColumnSource,
    RandomAccess,
    SampleSource,
    Source,
    Stream,
    in_order,
    length_of,
    rebatched,
)
from ortrain.errors import ArgumentTypeError, InvalidArgumentError

TARGET_NAMES = ("labels", "target", "targets", "label", "y")
"""Names of arrays and columns that are taken as the target where none has the name of the session's input."""
WEIGHT_NAME = "sample_weight"

Layout = dict[str, list[str] | str]
"""For each input the column that it is, or the columns that it is made of."""


def source_of(data: Any, targets: Any, names: Sequence[str], sample_weight: Any = None) -> Source:
    """Return a source of the inputs `names` from data of any kind that ortrain.data lists.

    Raises ArgumentTypeError for data of another kind, InvalidArgumentError where it does not fit the names or the lengths differ."""
    names = list(names)
    if not names or len(set(names)) != len(names):
        raise InvalidArgumentError(f"expected the names of the session's inputs, each once, got {names}")
    if isinstance(data, Source):
        return _fitting(data, names, targets, sample_weight)
    if hasattr(data, "as_source"):                              # ImageFolder, Table
        return _fitting(data.as_source(names), names, targets, sample_weight)
    weight = _weight_name(names) if sample_weight is not None else None
    unweighted = [name for name in names if name != weight]
    source = _whole(data, targets, unweighted) if weight is None else None
    if source is not None:
        return source
    arrays = _arrays(data, targets, unweighted)
    if weight is not None:
        arrays[weight] = as_array(sample_weight, weight)
    return ArraySource(names, [arrays[name] for name in names])


def _fitting(source: Source, names: list[str], targets: Any, sample_weight: Any) -> Source:
    if targets is not None or sample_weight is not None:
        raise InvalidArgumentError(f"expected targets and sample_weight to be None, since the data bring all inputs: {source.describe()}")
    if len(source.names) != len(names):
        raise InvalidArgumentError(f"expected data for the inputs {names}, got {source.names} ({source.describe()})")
    return source


def _weight_name(names: list[str]) -> str:
    """The input for sample weights: the one of that name, otherwise the last."""
    if len(names) < 2:
        raise InvalidArgumentError(f"expected a session with an input for sample_weight beside its data, got the inputs {names}")
    return WEIGHT_NAME if WEIGHT_NAME in names else names[-1]


# ---- data that are a source of their own

def _whole(data: Any, targets: Any, names: list[str]) -> Source | None:
    """The source of data that cannot be taken apart into arrays: folders, Parquet files, datasets, loaders, generators; None for anything else."""
    chosen = targets if isinstance(targets, str) or _is_list_of(targets, str) else None
    if isinstance(data, str | os.PathLike):
        kind = kind_of(data)
        if kind == "folder":
            from ortrain.data.images import ImageFolder

            return _fitting(ImageFolder(data).as_source(names), names, targets, None)
        if kind == ".parquet" and (targets is None or chosen is not None):
            found, blocks = tabular.parquet_blocks(data)
            return tabular.ArrowBlocks(layout_of(found, names, chosen, os.fspath(data)), blocks, f"Parquet file {os.fspath(data)!r}")
        return None
    if isinstance(data, Mapping) or hasattr(data, "__array__") or hasattr(data, "__dlpack__") or hasattr(data, "iloc") or hasattr(data, "toarray"):
        return None
    source: Source | None = _arrow_source(data, chosen, names) or _column_source(data, chosen, names)
    has_columns = source is not None
    source = source or _dataset(data, names) or _batches(data, names)
    if source is not None and targets is not None and not (has_columns and chosen is not None):
        raise InvalidArgumentError(f"expected targets=None, since the data bring inputs and targets together: {source.describe()}")
    return source


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(element, kind) for element in value)


def _arrow_source(data: Any, chosen: Any, names: list[str]) -> Source | None:
    """A pyarrow Dataset, or a RecordBatchReader, which can be read once."""
    if hasattr(data, "get_fragments") and hasattr(data, "schema"):
        found, blocks = tabular.dataset_blocks(data)
        return tabular.ArrowBlocks(layout_of(found, names, chosen, "the dataset"), blocks, "Arrow dataset")
    if hasattr(data, "read_next_batch") and hasattr(data, "schema"):
        layout = layout_of(list(data.schema.names), names, chosen, "the reader")
        pieces = (tabular.assembled(layout, reader_of(batch)) for batch in data)
        what = "record batches of a reader, which can be read once"
        return Stream(names, OneIterator(lambda size: rebatched(pieces, size)), once=True, length=None, what=what)
    return None


def reader_of(batch: Any) -> Callable[[str], np.ndarray]:
    """Return the function that reads one column of a record batch."""
    return lambda name: tabular.arrow_column(batch.column(name), name)


def _column_source(data: Any, chosen: Any, names: list[str]) -> Source | None:
    """A Hugging Face dataset: with rows by number, or iterable."""
    if not hasattr(data, "column_names") or hasattr(data, "to_pydict") or isinstance(data, Mapping):
        return None
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        layout = layout_of(list(data.column_names), names, chosen, "the dataset", single=True)
        return ColumnSource(names, data, [str(layout[name]) for name in names])
    if callable(getattr(data, "iter", None)):
        columns = {name: name for name in names} if data.column_names is None else layout_of(list(data.column_names), names, chosen, "the dataset", single=True)

        def batches(size: int) -> Iterator[Any]:
            return ([batch[columns[name]] for name in names] for batch in data.iter(batch_size=size))

        return Stream(names, batches, once=False, length=None, what=f"rows of {type(data).__name__}, in its order")
    return None


def _batches(data: Any, names: list[str]) -> Stream | None:
    """Iterables of batches: lists of tuples or mappings, torch DataLoaders, Keras' PyDataset, generators."""
    def stream(start: Callable[[], Iterator[Any]], length: int | None, what: str) -> Stream:
        return Stream(names, lambda size: (in_order(batch, names, "a batch") for batch in start()), once=False, length=length, what=what)

    if isinstance(data, list | tuple):
        return stream(lambda: iter(data), len(data), f"a list of {len(data)} batches") if _is_list_of_batches(data) else None
    what = f"batches of {type(data).__name__}"
    if hasattr(data, "on_epoch_end") and hasattr(data, "__getitem__"):
        return stream(lambda: (data[number] for number in range(len(data))), len(data), what)
    if not hasattr(data, "__iter__") or isinstance(data, range):
        return None
    if hasattr(data, "__next__"):
        return Stream(names, OneIterator(lambda size: (in_order(batch, names, "a batch") for batch in data)), once=True, length=None, what=what)
    return stream(lambda: iter(data), length_of(data), what)


def _is_list_of_batches(data: Any) -> bool:
    """Whether this is a list of mappings, or of tuples with something in them that is not a single number."""
    if not isinstance(data, list) or not data:
        return False
    first = data[0]
    return isinstance(first, Mapping) or isinstance(first, tuple) and any(isinstance(part, list | tuple) or not is_nested_numbers(part) for part in first)


def _is_sample(values: Any) -> bool:
    """Whether a tuple or mapping has a single number or text in it, as samples have and batches do not."""
    parts = values.values() if isinstance(values, Mapping) else values
    return any(_is_sample(part) if isinstance(part, tuple | Mapping) else np.ndim(part) == 0 if isinstance(part, np.ndarray | np.generic)
               else isinstance(part, bool | int | float | str) or getattr(part, "shape", None) == () for part in parts)


class OneIterator:
    """Makes an iterator at the first call, which every epoch continues."""

    def __init__(self, start: Callable[[int], Iterator[Any]]) -> None:
        self._start = start
        self._iterator: Iterator[Any] | None = None

    def __call__(self, size: int) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = self._start(size)
        return self._iterator


def _dataset(data: Any, names: list[str]) -> RandomAccess | None:
    """Samples by number: a torch Dataset, or a list of tuples or mappings that are samples."""
    if isinstance(data, list | tuple):
        return SampleSource(names, data) if _is_list_of_batches(data) and _is_sample(data[0]) else None
    if isinstance(data, range) or hasattr(data, "on_epoch_end") or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return None
    return SampleSource(names, data)


# ---- data that are arrays

def _arrays(data: Any, targets: Any, names: list[str]) -> dict[str, np.ndarray]:
    """The arrays of all names."""
    table = _table(data)
    if table is not None and (targets is None or isinstance(targets, str) or _is_list_of(targets, str)):
        found, read, where = table
        layout = layout_of(found, names, targets, where)
        return dict(zip(names, tabular.assembled(layout, read), strict=True))
    if targets is None:
        return _named(data, names, "data")
    count = min(_count(targets), len(names))
    split = len(names) - count
    if table is not None:
        found, read, where = table
        layout = layout_of([*found, *names[split:]], names, names[split:], where)
        inputs = dict(zip(names[:split], tabular.assembled({name: layout[name] for name in names[:split]}, read), strict=True))
    else:
        inputs = _named(data, names[:split], "data")
    return inputs | _named(targets, names[split:], "targets")


def _table(data: Any) -> tuple[list[str], Callable[[str], np.ndarray], str] | None:
    """(column names, reader of a column, words for errors) of an .npz or .csv file, a frame or an Arrow table; None for anything else."""
    if isinstance(data, str | os.PathLike):
        kind, where = kind_of(data), os.fspath(data)
        if kind in (".npz", ".csv", ".parquet"):
            arrays = read_npz(data) if kind == ".npz" else tabular.all_columns(data)
            return list(arrays), arrays.__getitem__, where
        return None
    reader = None if isinstance(data, Mapping) else tabular.columns_reader(data)
    return None if reader is None else (*reader, type(data).__name__)


def _count(values: Any) -> int:
    """How many inputs the values are for."""
    if isinstance(values, Mapping):
        return len(values)
    return len(values) if _is_sequence_of_arrays(values) else 1


def _is_sequence_of_arrays(values: Any) -> bool:
    return isinstance(values, list | tuple) and bool(values) and not all(is_nested_numbers(value) for value in values)


def _named(values: Any, names: list[str], what: str) -> dict[str, np.ndarray]:
    """One array, a sequence of arrays in the order of names, nested (inputs, targets), or a mapping by name; each may be a path to an .npy file."""
    if isinstance(values, Mapping):
        if set(values) != set(names):
            raise InvalidArgumentError(f"expected {what} named {names}, got {sorted(map(str, values))}")
        return {name: _array(values[name], name) for name in names}
    if _is_sequence_of_arrays(values) or isinstance(values, tuple) and len(values) == len(names) > 1 or _is_paths(values):
        if len(names) == 1 and isinstance(values, tuple) and len(values) == 2:
            raise InvalidArgumentError(f"expected {what} for {names[0]!r} alone, got a pair (inputs, targets)")
        if isinstance(values, tuple) and len(values) == 2 and (len(names) != 2 or isinstance(values[0], tuple | Mapping)):
            split = len(names) - _count(values[1])
            return _named(values[0], names[:split], "inputs") | _named(values[1], names[split:], "targets")
        if len(values) != len(names):
            raise InvalidArgumentError(f"expected {what} for {names}, got {len(values)} arrays")
        return {name: _array(value, name) for name, value in zip(names, values, strict=True)}
    if len(names) != 1:
        raise InvalidArgumentError(f"expected {what} for {names}, got one {type(values).__name__}: give a sequence, a mapping, or targets")
    return {names[0]: _array(values, names[0])}


def _is_paths(value: Any) -> bool:
    return _is_list_of(value, str) and all(element.endswith(".npy") for element in value) or _is_list_of(value, os.PathLike)


def _array(value: Any, name: str) -> np.ndarray:
    if isinstance(value, str | os.PathLike):
        kind = kind_of(value)
        if kind != ".npy":
            raise InvalidArgumentError(f"expected an array or the path of an .npy file for {name!r}, got {os.fspath(value)!r}")
        return map_npy(value)
    if hasattr(value, "iloc"):
        reader = tabular.columns_reader(value)
        if reader is None:
            return tabular.pandas_column(value, name)
        return np.stack([reader[1](column) for column in reader[0]], axis=1)
    if hasattr(value, "type") and hasattr(value, "null_count"):
        return tabular.arrow_column(value, name)
    if isinstance(value, Iterator):
        raise ArgumentTypeError(f"expected an array for {name!r}, got the one-shot {type(value).__name__}: give an iterator of whole batches as data")
    return as_array(value, name)


# ---- columns to inputs

def layout_of(found: Sequence[str], names: list[str], targets: Any, where: str, single: bool = False) -> Layout:
    """Assign columns to inputs. An input takes the column of its name. A target without one takes the column that `targets` names, otherwise a column with
    one of TARGET_NAMES, otherwise the only column left. One other input without a column takes all columns left, side by side (unless `single`).

    where: words for errors. Raises InvalidArgumentError when columns are missing or left over."""
    chosen = [] if targets is None else [targets] if isinstance(targets, str) else list(targets)
    for name in chosen:
        if name not in found:
            raise InvalidArgumentError(f"expected a column {name!r} as target in {where}, got {list(found)}")
    layout: Layout = {}
    if chosen:
        layout |= zip(names[len(names) - len(chosen) :], chosen, strict=True)
    layout |= {name: name for name in names if name in found and name not in layout}
    left = [column for column in found if column not in layout.values()]
    if names[-1] not in layout:
        likely = [column for column in TARGET_NAMES if column in left] or (left if len(left) == 1 else [])
        if likely:
            layout[names[-1]] = likely[0]
            left.remove(likely[0])
    missing = [name for name in names if name not in layout]
    if len(missing) == 1 and missing[0] != names[-1] and left:
        layout[missing[0]] = left[0] if single and len(left) == 1 else left
        missing = [missing[0]] if single and len(left) > 1 else []
    if missing:
        raise InvalidArgumentError(f"expected columns for the inputs {names} in {where}, got {list(found)}, none for {missing}: "
                                   "rename columns, or name the target column as targets")
    return {name: layout[name] for name in names}
