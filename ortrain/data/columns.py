"""Columns by name: CSV files, Parquet files, pyarrow tables and pandas frames.

A column of numbers is an integer, float or boolean array, with NaN where values are missing. A column of text is an object array, with None there."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ortrain.data.conversion import as_array
from ortrain.data.sources import Blocks, check_lengths
from ortrain.errors import ArgumentTypeError, InputTypeError, InvalidArgumentError, MissingPackageError

Columns = dict[str, np.ndarray]

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Cells of a CSV file, in lower case, that hold no value."""
PIECE_ROWS, PIECE_BYTES = 16384, 2 << 20
"""How much of a block is decoded at a time, at most, but 64 rows in any case."""
PROBE = 64
"""Rows that are read to learn the size of a row."""
Block = tuple[int, Callable[[list[str], int], Iterator[Any]]]
"""The number of rows of a block, and a function that yields its record batches, given the wanted columns and rows in a batch."""


def import_pyarrow() -> Any:
    """Return the package pyarrow. Raises MissingPackageError where it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackageError("expected pyarrow for Parquet files and Arrow tables: pip install 'ortrain[tables]'") from error
    return pyarrow


# ---- CSV

def read_csv(path: str | os.PathLike[str]) -> Columns:
    """Read a CSV file with a header line into columns; integers, floats and true/false are recognized where all cells of a column are such.

    Comma, semicolon, tab and | are recognized as delimiters by the header. Raises InvalidArgumentError, with the line, for rows that do not fit the header."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            first = file.readline()
            file.seek(0)
            lines = csv.reader(file, delimiter=_delimiter(first), strict=True)
            header = [name.strip() for name in next(lines, [])]
            _check_header(header, path)
            rows = []
            for row in lines:
                if len(row) != len(header):
                    if not row:
                        continue
                    raise InvalidArgumentError(f"expected {len(header)} cells in line {lines.line_num} of {os.fspath(path)!r}, got {len(row)}")
                rows.append(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"expected a CSV file in UTF-8 in {os.fspath(path)!r}, got one that cannot be read: {error}") from error
    if not rows:
        raise InvalidArgumentError(f"expected at least one row below the header of {os.fspath(path)!r}, got none")
    return {name: _typed(cells) for name, cells in zip(header, zip(*rows, strict=True), strict=True)}


def _delimiter(header: str) -> str:
    counts = Counter({mark: header.count(mark) for mark in ",;\t|"})
    return counts.most_common(1)[0][0]


def _check_header(header: Sequence[str], path: str | os.PathLike[str]) -> None:
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if not header or repeated:
        raise InvalidArgumentError(f"expected a header with different names in the first line of {os.fspath(path)!r}, got {list(header) or 'an empty file'}")
    if len(header) > 1 and all(_is_number(name) for name in header):
        raise InvalidArgumentError(f"expected a header with the columns' names in the first line of {os.fspath(path)!r}, got numbers: {', '.join(header)}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _typed(cells: Sequence[str]) -> np.ndarray:
    """The cells of a column as integers, floats, booleans or text, whichever is the first that fits all of them."""
    numbers = _numbers_of(cells)
    if numbers is not None:                                 # the usual case, without a look at every cell
        return numbers
    text = [cell.strip() for cell in cells]
    missing = np.array([cell.lower() in MISSING for cell in text])
    known = [cell for cell, absent in zip(text, missing, strict=True) if not absent]
    values = _numbers_of(known) if missing.any() else None
    if values is None:
        values = _booleans(known)
    if values is None:
        objects = np.empty(len(text), object)
        objects[:] = [None if absent else cell for cell, absent in zip(text, missing, strict=True)]
        return objects
    if not missing.any():
        return values
    filled = np.full(len(text), np.nan)
    filled[~missing] = values
    return filled


def _numbers_of(cells: Sequence[str]) -> np.ndarray | None:
    """The cells as int64 or float64, None where one is no number. Python reads 1_000 as a number, which is text in a table."""
    if "_" in "".join(cells):
        return None
    for kind, dtype in ((int, np.int64), (float, np.float64)):
        try:
            return np.array(list(map(kind, cells)), dtype)
        except (ValueError, OverflowError):
            continue
    return None


def _booleans(cells: Sequence[str]) -> np.ndarray | None:
    lowered = [cell.lower() for cell in cells]
    return np.array([cell == "true" for cell in lowered]) if lowered and set(lowered) <= {"true", "false"} else None


# ---- frames and tables

def columns_reader(value: Any) -> tuple[list[str], Callable[[str], np.ndarray]] | None:
    """Return (column names, reader of one column) of a pandas frame or a pyarrow table or record batch; None for anything else."""
    if hasattr(value, "iloc") and hasattr(value, "columns"):
        return [str(name) for name in value.columns], lambda name: pandas_column(value[_label(value.columns, name)], name)
    if hasattr(value, "column_names") and hasattr(value, "schema") and hasattr(value, "to_pydict"):
        return list(value.column_names), lambda name: arrow_column(value.column(name), name)
    if hasattr(value, "schema") and hasattr(value, "to_pydict"):
        return list(value.schema.names), lambda name: arrow_column(value.column(name), name)
    return None


def _label(labels: Sequence[Any], name: str) -> Any:
    return next(label for label in labels if str(label) == name)


def pandas_column(series: Any, name: str) -> np.ndarray:
    """Return a pandas column as an array; see the module."""
    kind = series.dtype.kind
    if kind in "biuf":
        absent = bool(series.isna().any())
        return np.asarray(series.to_numpy(dtype="float64", na_value=np.nan) if absent and kind != "f" else series.to_numpy(dtype=_plain(series.dtype)))
    if kind in "mMc":
        raise InputTypeError(f"expected numbers or text in column {name!r}, got {series.dtype}: turn dates into numbers first")
    missing = series.isna().to_numpy()
    objects = series.to_numpy(dtype=object)
    return _objects([None if absent else value for value, absent in zip(objects, missing, strict=True)], name)


def _plain(dtype: Any) -> np.dtype:
    """The NumPy dtype of a pandas dtype, which may be one of its own, such as Int64."""
    plain: np.dtype = np.dtype(getattr(dtype, "numpy_dtype", dtype))
    return plain


def arrow_column(column: Any, name: str) -> np.ndarray:
    """Return a pyarrow column as an array; see the module. Lists of one length become further axes."""
    types = import_pyarrow().types
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_decimal(kind):
        column = column.cast("float64")
    elif types.is_boolean(kind) and column.null_count:
        column = column.cast("uint8")
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _arrow_lists(column, name)
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_null(kind):
        return _objects(column.to_pylist(), name)
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise InputTypeError(f"expected numbers, text or lists of numbers in column {name!r}, got {kind}")
    # a chunked array has to_numpy without zero_copy_only in older versions
    return np.asarray(column.to_numpy(zero_copy_only=False) if not hasattr(column, "chunks") else column.to_numpy())


def _arrow_lists(column: Any, name: str) -> np.ndarray:
    if column.null_count:
        raise InvalidArgumentError(f"expected column {name!r} without missing lists, got {column.null_count}")
    pieces = column.chunks if hasattr(column, "chunks") else [column]
    arrays = []
    for piece in pieces:
        inner = arrow_column(piece.flatten(), name)
        length = len(inner) // max(1, len(piece))
        # lists of one length give the same number of elements in every row
        if len(piece) and (len(inner) != length * len(piece) or any(len(row) != length for row in _list_lengths(piece))):
            raise InvalidArgumentError(f"expected lists of one length in column {name!r}, got different ones")
        arrays.append(inner.reshape(len(piece), length, *inner.shape[1:]))
    return np.concatenate(arrays) if len(arrays) != 1 else arrays[0]


def _list_lengths(piece: Any) -> Iterator[range]:
    if not hasattr(piece, "offsets"):                       # lists of a fixed size
        return
    offsets = piece.offsets.to_numpy()
    for length in set(np.diff(offsets).tolist()):
        yield range(length)


def _objects(values: Sequence[Any], name: str) -> np.ndarray:
    objects = np.empty(len(values), object)
    objects[:] = values
    known = [value for value in values if value is not None]
    if known and not any(isinstance(value, str | bytes) for value in known):
        if all(isinstance(value, bool | int | float | np.generic) for value in known):
            return np.array([np.nan if value is None else value for value in values])
        return as_array(objects, name)
    return objects


def all_columns(value: Any) -> Columns:
    """Read all columns of a path to a CSV or Parquet file, a frame, a table or a mapping of columns.

    Raises ArgumentTypeError for anything else and InvalidArgumentError for columns of different length."""
    if isinstance(value, str | os.PathLike):
        if os.fspath(value).lower().endswith(".csv"):
            return read_csv(value)
        value = open_parquet(value).read()
    if isinstance(value, Mapping):
        columns = {str(name): _plain_column(column, str(name)) for name, column in value.items()}
    else:
        reader = columns_reader(value)
        if reader is None:
            raise ArgumentTypeError(f"expected a path, a frame, a table or a mapping of columns, got {type(value).__name__}")
        columns = {name: reader[1](name) for name in reader[0]}
    if not columns:
        raise InvalidArgumentError("expected at least one column, got none")
    check_lengths(list(columns), list(columns.values()))
    return columns


def _plain_column(value: Any, name: str) -> np.ndarray:
    if isinstance(value, list | tuple):
        known = [element for element in value if element is not None]
        if known and all(isinstance(element, str) for element in known) or len(known) < len(value):
            return _objects(value, name)
    array = as_array(value, name) if not isinstance(value, np.ndarray) or value.dtype != object else _objects(value.tolist(), name)
    return array.astype(object) if array.dtype.kind in "US" else array


# ---- Parquet and datasets, read a piece at a time

def open_parquet(path: str | os.PathLike[str]) -> Any:
    """Return the ParquetFile of a path, which reads no more than it is asked for.

    Raises MissingPackageError where pyarrow is not installed, InvalidArgumentError for a file that is no Parquet file."""
    arrow = import_pyarrow()
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path, memory_map=False, pre_buffer=False, buffer_size=1 << 20)
    except (arrow.ArrowException, OSError) as error:
        raise InvalidArgumentError(f"expected a Parquet file in {os.fspath(path)!r}, got one that cannot be read: {error}") from error


class ArrowBlocks(Blocks):
    """Row groups of Parquet files, or fragments of a pyarrow Dataset. Only a piece of a block is in memory at a time.

    layout: for each input the columns that make it up."""

    def __init__(self, layout: Mapping[str, Sequence[str] | str], blocks: Sequence[Block], what: str) -> None:
        self.names, self._layout, self._blocks, self._what = list(layout), dict(layout), list(blocks), what
        self._columns = list(dict.fromkeys(name for part in layout.values() for name in ([part] if isinstance(part, str) else part)))
        self.rows = [count for count, _ in blocks]
        self.samples = sum(self.rows)
        if not self.samples:
            raise InvalidArgumentError(f"expected at least one row, got none in {what}")
        first = next(self._read(next(number for number, count in enumerate(self.rows) if count), PROBE))
        self._row_bytes = max(1, sum(array.nbytes for array in first) // len(first[0]))
        self._piece = min(PIECE_ROWS, max(PROBE, PIECE_BYTES // self._row_bytes))

    @property
    def row_bytes(self) -> int:
        return self._row_bytes

    def read_block(self, number: int) -> Iterator[list[np.ndarray]]:
        return self._read(number, self._piece)

    def _read(self, number: int, rows: int) -> Iterator[list[np.ndarray]]:
        for batch in self._blocks[number][1](self._columns, rows):
            if batch.num_rows:
                yield assembled(self._layout, lambda name: arrow_column(batch.column(batch.schema.get_field_index(name)), name))

    def describe(self) -> str:
        return f"{self._what}: {self.samples} rows in {len(self.rows)} blocks"


def assembled(layout: Mapping[str, Sequence[str] | str], read: Callable[[str], np.ndarray]) -> list[np.ndarray]:
    """Return the inputs: one column each, or several columns side by side as a matrix [rows, columns]."""
    return [read(part) if isinstance(part, str) else np.stack([_numbers(read(name), name) for name in part], axis=1) for part in layout.values()]


def _numbers(column: np.ndarray, name: str) -> np.ndarray:
    if column.dtype.kind not in "biuf" or column.ndim != 1:
        raise InputTypeError(f"expected a number in every row of column {name!r}, got {'text' if column.dtype == object else list(column.shape)}: "
                             "use ortrain.data.tables.Table, which encodes categories, or name the columns to be used")
    return column


def parquet_blocks(path: str | os.PathLike[str]) -> tuple[list[str], list[Block]]:
    """Return (column names, blocks) of a Parquet file. Raises the errors of open_parquet."""
    file = open_parquet(path)

    def block(number: int) -> Callable[[list[str], int], Iterator[Any]]:
        return lambda columns, rows: file.iter_batches(batch_size=rows, row_groups=[number], columns=columns, use_threads=False)

    return list(file.schema_arrow.names), [(file.metadata.row_group(number).num_rows, block(number)) for number in range(file.num_row_groups)]


def dataset_blocks(dataset: Any) -> tuple[list[str], list[Block]]:
    """Return (column names, blocks) of a pyarrow Dataset. Raises InvalidArgumentError for one with a filter or projection, whose parts cannot be had."""
    def block(fragment: Any) -> Callable[[list[str], int], Iterator[Any]]:
        return lambda columns, rows: fragment.to_batches(schema=dataset.schema, columns=columns, batch_size=rows, batch_readahead=1, use_threads=False)

    try:
        fragments = list(dataset.get_fragments())
    except ValueError as error:
        raise InvalidArgumentError(f"expected a whole Arrow dataset, got one with a filter or projection: {error}") from error
    blocks: list[Block] = []
    for fragment in fragments:
        if hasattr(fragment, "split_by_row_group"):
            # count_rows of such a part counts the rows of its whole file
            blocks += [(sum(group.num_rows for group in part.row_groups), block(part)) for part in fragment.split_by_row_group()]
        else:
            blocks.append((fragment.count_rows(), block(fragment)))
    return list(dataset.schema.names), blocks
