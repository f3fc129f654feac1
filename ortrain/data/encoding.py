"""How the columns of a table become numbers: fitted once, stored as JSON, applied again to other tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ortrain.data.columns import Columns
from ortrain.errors import InvalidArgumentError

Missing = Literal["mean", "median", "zero", "refuse"]
Task = Literal["classification", "regression"]
MISSING_RULES = ("mean", "median", "zero", "refuse")
MAX_INTEGER_CLASSES = 1000
"""Different integers in a target above which classes are not assumed."""


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of numbers: `fill` replaces missing values (None refuses them), then x becomes (x - mean) / std."""

    name: str
    fill: float | None
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class CategoryColumn:
    """A column of categories: values[i] becomes i + 1; 0 stands for values that are missing or were not there when the encoding was fitted."""

    name: str
    values: list[Any]
    refuse_missing: bool


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """The target: classes[i] becomes i (int64 [n]); without classes it is a number (float32 [n, 1])."""

    name: str
    classes: list[Any] | None


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded table. numbers: float32 [n, f], one_hot categories included; categories: int64 [n, c]; target: None where the table has none."""

    numbers: np.ndarray
    categories: np.ndarray
    target: np.ndarray | None


@dataclass(frozen=True, slots=True)
class TableEncoding:
    """The fitted encoding of a table's columns. one_hot: categories become columns of zeros and ones in the matrix of numbers."""

    numbers: list[NumberColumn]
    categories: list[CategoryColumn]
    target: TargetColumn | None
    one_hot: bool = False

    @property
    def classes(self) -> list[Any] | None:
        """The classes of the target in the order of their numbers; None for regression and without a target."""
        return None if self.target is None else self.target.classes

    @property
    def width(self) -> int:
        """The number of columns of the matrix of numbers."""
        return len(self.numbers) + (sum(len(column.values) for column in self.categories) if self.one_hot else 0)

    @property
    def category_counts(self) -> list[int]:
        """For each column of categories the number of codes, 0 included: the rows that an embedding needs."""
        return [len(column.values) + 1 for column in self.categories]

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding as a dictionary that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableEncoding:
        """Return the encoding that to_dict described. Raises InvalidArgumentError for a dictionary that is none."""
        try:
            target = values["target"]
            return cls([NumberColumn(**column) for column in values["numbers"]], [CategoryColumn(**column) for column in values["categories"]],
                       None if target is None else TargetColumn(**target), bool(values["one_hot"]))
        except (KeyError, TypeError) as error:
            raise InvalidArgumentError(f"expected the dictionary of a TableEncoding, got one without its entries: {error}") from error

    def apply(self, columns: Columns) -> Encoded:
        """Encode columns; a target column may be absent.

        Raises InvalidArgumentError when a feature is absent, a value is missing where that is refused, or a class is new."""
        wanted = [column.name for column in self.numbers] + [column.name for column in self.categories]
        absent = [name for name in wanted if name not in columns]
        if absent:
            raise InvalidArgumentError(f"expected the columns {wanted}, got {list(columns)}, without {absent}")
        count = len(next(iter(columns.values())))
        numbers = [_scaled(column, columns[column.name]) for column in self.numbers]
        codes = [category_codes(column, columns[column.name]) for column in self.categories]
        if self.one_hot:
            numbers += [(code == value).astype(np.float32) for column, code in zip(self.categories, codes, strict=True)
                        for value in range(1, len(column.values) + 1)]
        target = None if self.target is None or self.target.name not in columns else encode_target(self.target, columns[self.target.name])
        categories = np.stack(codes, axis=1) if codes and not self.one_hot else np.empty((count, 0), np.int64)
        return Encoded(np.stack(numbers, axis=1) if numbers else np.empty((count, 0), np.float32), categories, target)


# ---- applying

def _scaled(column: NumberColumn, values: np.ndarray) -> np.ndarray:
    numbers = _as_numbers(values, column.name)
    missing = np.isnan(numbers)
    if missing.any():
        if column.fill is None:
            raise InvalidArgumentError(f"expected a value in every row of column {column.name!r}, got none in row {int(np.argmax(missing))}: fill it, or "
                                       'give missing="mean", "median" or "zero"')
        numbers = np.where(missing, column.fill, numbers)
    scaled: np.ndarray = ((numbers - column.mean) / column.std).astype(np.float32)
    return scaled


def _as_numbers(values: np.ndarray, name: str) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"expected numbers in column {name!r}, got {'text' if values.dtype == object else list(values.shape)}")
    numbers = values.astype(np.float64)
    if np.isinf(numbers).any():
        raise InvalidArgumentError(f"expected finite numbers in column {name!r}, got infinity in row {int(np.argmax(np.isinf(numbers)))}")
    return numbers


def is_missing(values: np.ndarray) -> np.ndarray:
    """Return where a column has no value, bool [n]."""
    if values.dtype == object:
        return np.fromiter((value is None or value != value for value in values), bool, len(values))
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def as_values(values: np.ndarray) -> list[Any]:
    """Return a column as Python values that JSON can hold; whole floats, which integers become beside missing values, as integers."""
    whole = values.dtype.kind == "f" and bool((values[~np.isnan(values)] % 1 == 0).all())
    return [int(value) if whole and value == value else value for value in values.tolist()]


def category_codes(column: CategoryColumn, values: np.ndarray) -> np.ndarray:
    """Return the codes of a column, int64 [n]; 0 for values that are missing or unknown."""
    missing = is_missing(values)
    if column.refuse_missing and missing.any():
        raise InvalidArgumentError(f"expected a value in every row of column {column.name!r}, got none in row {int(np.argmax(missing))}")
    codes = {value: code for code, value in enumerate(column.values, 1)}
    return np.fromiter((codes.get(value, 0) for value in as_values(values)), np.int64, len(values))


def encode_target(column: TargetColumn, values: np.ndarray) -> np.ndarray:
    """Return the target: classes as int64 [n], numbers as float32 [n, 1]. Raises InvalidArgumentError for missing values and unknown classes."""
    missing = is_missing(values)
    if missing.any():
        raise InvalidArgumentError(f"expected a target in every row, got none in row {int(np.argmax(missing))} of column {column.name!r}")
    if column.classes is None:
        return _as_numbers(values, column.name).astype(np.float32)[:, None]
    numbers = {value: number for number, value in enumerate(column.classes)}
    known = [numbers.get(value, -1) for value in as_values(values)]
    if -1 in known:
        row = known.index(-1)
        raise InvalidArgumentError(f"expected one of the classes {column.classes} in column {column.name!r}, got {values[row]!r} in row {row}")
    return np.array(known, np.int64)


# ---- fitting

def fit(columns: Columns, target: str | None, features: Sequence[str] | None, categorical: Literal["auto"] | Sequence[str], missing: Missing,
        standardize: bool, task: Literal["auto"] | Task, one_hot: bool) -> TableEncoding:
    """Fit an encoding; see ortrain.data.tables.Table."""
    if missing not in MISSING_RULES or task not in ("auto", "classification", "regression"):
        raise InvalidArgumentError(f"expected missing as one of {', '.join(MISSING_RULES)} and task as auto, classification or regression, got {missing!r} "
                                   f"and {task!r}")
    names = [name for name in columns if name != target] if features is None else list(features)
    chosen = [] if isinstance(categorical, str) else list(categorical)
    if isinstance(categorical, str) and categorical != "auto":
        raise InvalidArgumentError(f"expected categorical as \"auto\" or a list of columns, got {categorical!r}")
    absent = [name for name in [*names, *chosen, *([] if target is None else [target])] if name not in columns]
    if absent or not names or target in names or len(set(names)) != len(names):
        raise InvalidArgumentError(f"expected features among the columns {list(columns)}, each once and other than the target {target!r}, got {names}"
                                   + (f", without {absent}" if absent else ""))
    text = {name for name in names if columns[name].dtype == object}
    categories = [name for name in names if name in chosen or categorical == "auto" and name in text]
    left = sorted(text - set(categories))
    if left:
        raise InvalidArgumentError(f"expected text columns among categorical={chosen}, got {left} outside")
    return TableEncoding([_fit_number(name, columns[name], missing, standardize) for name in names if name not in categories],
                         [CategoryColumn(name, distinct(columns[name], name), missing == "refuse") for name in categories],
                         None if target is None else _fit_target(target, columns[target], task), one_hot)


def _fit_number(name: str, values: np.ndarray, missing: Missing, standardize: bool) -> NumberColumn:
    numbers = _as_numbers(values, name)
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        raise InvalidArgumentError(f"expected at least one value in column {name!r}, got none: leave it out of the features")
    fill = None if missing == "refuse" else 0.0 if missing == "zero" else float(np.median(known) if missing == "median" else known.mean())
    filled = known if fill is None else np.where(np.isnan(numbers), fill, numbers)
    deviation = float(filled.std())
    return NumberColumn(name, fill, float(filled.mean()) if standardize else 0.0, deviation if standardize and deviation > 0 else 1.0)


def distinct(values: np.ndarray, name: str) -> list[Any]:
    """Return the values of a column, each once, sorted."""
    known = {value for value, absent in zip(as_values(values), is_missing(values), strict=True) if not absent}
    try:
        return sorted(known)
    except TypeError as error:
        raise InvalidArgumentError(f"expected values of one type in column {name!r}, got {sorted({type(value).__name__ for value in known})}") from error


def _fit_target(name: str, values: np.ndarray, task: Literal["auto"] | Task) -> TargetColumn:
    if task == "auto":
        task = "regression" if values.dtype.kind == "f" and not is_missing(values).any() else "classification"
    if task == "regression":
        column = TargetColumn(name, None)
    else:
        column = TargetColumn(name, distinct(values, name))
        if values.dtype.kind in "iu" and len(column.classes or ()) > MAX_INTEGER_CLASSES:
            raise InvalidArgumentError(f"expected at most {MAX_INTEGER_CLASSES} different integers as classes in column {name!r}, got "
                                       f'{len(column.classes or ())}: give task="regression"')
    encode_target(column, values)                           # missing values are refused
    return column
