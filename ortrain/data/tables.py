"""Tables with columns of numbers and categories, as matrices for a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ortrain.data.columns import Columns, all_columns
from ortrain.data.encoding import Encoded, Missing, TableEncoding, Task, category_codes, fit
from ortrain.data.files import kind_of
from ortrain.data.sources import ArraySource
from ortrain.errors import InvalidArgumentError

__all__ = ["Table", "TableEncoding", "encode"]


class Table:
    """The columns of a table, encoded; in memory as a whole.

    data: the path of a .csv or .parquet file, a pandas frame, a pyarrow table, or a mapping of columns. target: the target's column, None for none.
    features: the columns to be used, in this order; None for all but the target. categorical: "auto" takes columns of text as categories, a list takes its
    columns, numbers included. missing: missing numbers become the column's "mean" or "median" or "zero", or are refused ("refuse"); missing categories
    have the code 0 unless refused, and so have those that `encoding` does not know. standardize: numbers get mean 0 and standard deviation 1.
    task: "auto" means classification for text, booleans and integers, regression for floats. one_hot: categories become columns of zeros and ones
    beside the numbers.
    encoding: a fitted encoding to apply instead, for validation, test and prediction; every other argument after `data` is then ignored.

    Parquet and Arrow tables need pyarrow. Raises ArtifactNotFoundError when there is no file; InvalidArgumentError for a file that cannot be read, for
    columns that are absent, for missing values that are refused and, with `encoding`, for new classes."""

    def __init__(self, data: Any, target: str | None = None, features: Sequence[str] | None = None, categorical: Literal["auto"] | Sequence[str] = "auto",
                 missing: Missing = "mean", standardize: bool = True, *, task: Literal["auto"] | Task = "auto", one_hot: bool = False,
                 encoding: TableEncoding | None = None) -> None:
        self._columns = _read(data)
        self.encoding = fit(self._columns, target, features, categorical, missing, standardize, task, one_hot) if encoding is None else encoding
        """How columns become numbers; to_dict and from_dict of it store it with a model."""
        self._encoded = self.encoding.apply(self._columns)

    @property
    def numbers(self) -> np.ndarray:
        """The numbers, float32 [n, f]; with one_hot the categories as well."""
        return self._encoded.numbers

    @property
    def categories(self) -> np.ndarray:
        """The codes of the categories, int64 [n, c]; no columns with one_hot."""
        return self._encoded.categories

    @property
    def target(self) -> np.ndarray | None:
        """The numbers of the classes, int64 [n], or for regression numbers, float32 [n, 1]; None without a target column."""
        return self._encoded.target

    @property
    def classes(self) -> list[Any] | None:
        """The classes of the target in the order of their numbers; None for regression and without a target."""
        return self.encoding.classes

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def arrays(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return arrays for the inputs of a model, by name. An input with the name of a column of categories is its codes, int64 [n]; the others are, in
        order, the numbers, the categories and the target, as far as the table has them.

        Raises InvalidArgumentError when names and parts of the table do not match."""
        columns = {column.name: column for column in self.encoding.categories if column.name in names}
        found = {name: category_codes(column, self._columns[name]) for name, column in columns.items()}
        parts = {"numbers": self.numbers, "categories": self.categories, "target": self.target}
        # columns taken by name are not taken again as a matrix
        present = {name: part for name, part in parts.items() if part is not None and part.shape[-1:] != (0,) and not (name == "categories" and columns)}
        others = [name for name in names if name not in found]
        if len(others) != len(present):
            raise InvalidArgumentError(f"expected as many inputs as the table has parts, {', '.join(present)}, got {others or 'none'}"
                                       + (": one_hot=True adds categories to the numbers" if "categories" in present else ""))
        arrays = found | dict(zip(others, present.values(), strict=True))
        return {name: arrays[name] for name in names}

    def as_source(self, names: Sequence[str]) -> ArraySource:
        """Return the source of the inputs `names`; see `arrays`."""
        return ArraySource(names, list(self.arrays(names).values()))

    def __repr__(self) -> str:
        target = self.encoding.target
        return (f"Table({len(self)} rows, {len(self.encoding.numbers)} columns of numbers, {len(self.encoding.categories)} of categories, "
                f"target {None if target is None else target.name!r})")


def encode(data: Any, encoding: TableEncoding) -> Encoded:
    """Encode a table, which may lack the target, by a fitted encoding: what prediction needs. Raises the errors of Table."""
    return encoding.apply(_read(data))


def _read(data: Any) -> Columns:
    if isinstance(data, str | os.PathLike) and kind_of(data) not in (".csv", ".parquet"):
        raise InvalidArgumentError(f"expected a table in a .csv or .parquet file, got {os.fspath(data)!r}")
    if isinstance(data, Mapping) and not all(isinstance(name, str) for name in data):
        raise InvalidArgumentError(f"expected columns by name, got the keys {list(data)}")
    return all_columns(data)
