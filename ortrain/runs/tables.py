"""Preprocessing of tables, whose columns are encoded, and of arrays and columns that are taken as they are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ortrain.data.columns import Columns, all_columns
from ortrain.data.encoding import encode_target
from ortrain.data.files import kind_of, read_npz
from ortrain.data.recognition import TARGET_NAMES
from ortrain.data.splitting import choose
from ortrain.data.tables import Table, TableEncoding
from ortrain.errors import InvalidArgumentError
from ortrain.runs.preprocessing import DataOptions, ModelInputs, Preprocessing


@dataclass(frozen=True, slots=True)
class ArrayPreprocessing(Preprocessing):
    """Arrays of an .npz file, or columns, that are the model's inputs as they are. target: the target's array; None for the one that names suggest."""

    kind: ClassVar[str] = "arrays"
    target: str | None = None

    def labelled(self, path: str | os.PathLike[str], names: Sequence[str], augment: bool = False) -> tuple[Any, Any]:
        return os.fspath(path), self.target

    def unlabelled(self, path: str | os.PathLike[str], names: Sequence[str]) -> Any:
        arrays = read_npz(path) if kind_of(path) == ".npz" else all_columns(path)
        found = {name: arrays[name] for name in names if name in arrays}
        others = [name for name in arrays if name not in found and name != self.target and name not in TARGET_NAMES]
        missing = [name for name in names if name not in found]
        if len(missing) == 1 and others and all(arrays[name].ndim == 1 for name in others):
            found[missing[0]] = np.stack([arrays[name] for name in others], axis=1)
        elif missing:
            raise InvalidArgumentError(f"expected arrays or columns for the inputs {list(names)} in {os.fspath(path)!r}, got {list(arrays)}, none for "
                                       f"{missing}")
        return {name: found[name] for name in names}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target}

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> ArrayPreprocessing:
        """Return the preprocessing that to_dict described."""
        return cls(**values)


@dataclass(frozen=True, slots=True)
class TablePreprocessing(Preprocessing):
    """Columns of a .csv or .parquet file, encoded as ortrain.data.tables.Table does."""

    kind: ClassVar[str] = "table"
    encoding: TableEncoding

    @property
    def classes(self) -> list[Any] | None:  # type: ignore[override]
        return self.encoding.classes

    @classmethod
    def fit(cls, path: str | os.PathLike[str], inputs: ModelInputs, options: DataOptions, share: float, seed: int) -> Preprocessing:
        """Return the preprocessing of a table. Its numbers are those of the rows that training gets when a share of all rows is held out.

        Columns that have the names of all inputs and hold no text are taken as they are. Raises the errors of Table, and InvalidArgumentError when the
        encoded columns are not as many as the model's input takes."""
        columns = all_columns(path)
        target = find_target(columns, options.target, inputs)
        if _are_the_inputs(columns, inputs, target, options):
            return ArrayPreprocessing(target)
        float_input = len(inputs.forward) == 1 and inputs.types[inputs.forward[0]].dtype.startswith("float")
        arguments: dict[str, Any] = {
            "features": options.features, "categorical": "auto" if options.categorical is None else list(options.categorical), "missing": options.missing,
            "standardize": options.standardize, "one_hot": float_input, "task": _task(inputs)}
        whole = Table(columns, target, **arguments).encoding
        encoding = whole
        if share:
            assert whole.target is not None
            labels = encode_target(whole.target, columns[target]) if whole.classes is not None else None
            rows, _ = choose(len(columns[target]), share, seed, labels)
            encoding = replace(Table({name: column[rows] for name, column in columns.items()}, target, **arguments).encoding, target=whole.target)
        if float_input:
            _check_width(encoding, inputs)
        return cls(encoding)

    def labelled(self, path: str | os.PathLike[str], names: Sequence[str], augment: bool = False) -> tuple[Any, Any]:
        return Table(path, encoding=self.encoding), None

    def unlabelled(self, path: str | os.PathLike[str], names: Sequence[str]) -> Table:
        target = None if self.encoding.target is None else self.encoding.target.name
        return Table({name: column for name, column in all_columns(path).items() if name != target}, encoding=self.encoding)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "encoding": self.encoding.to_dict()}

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> TablePreprocessing:
        """Return the preprocessing that to_dict described."""
        return cls(TableEncoding.from_dict(values["encoding"]))


def find_target(columns: Columns, named: str | None, inputs: ModelInputs) -> str:
    """Return the target's column: the named one, or one with the name of the model's target or of TARGET_NAMES. Raises InvalidArgumentError without one."""
    known = [named] if named is not None else [name for name in (*inputs.targets, *TARGET_NAMES) if name in columns and name not in inputs.forward]
    if not known or known[0] not in columns:
        wanted = f"a column {named!r} as target" if named is not None else "a target: a column named labels, or --target NAME"
        raise InvalidArgumentError(f"expected {wanted}, got the columns {list(columns)}")
    return str(known[0])


def _are_the_inputs(columns: Columns, inputs: ModelInputs, target: str, options: DataOptions) -> bool:
    if options.features is not None or options.categorical is not None or not set(inputs.forward) <= set(columns):
        return False
    return all(columns[name].dtype != object for name in (*inputs.forward, target))


def _task(inputs: ModelInputs) -> str:
    """Classes where the model's target is an integer, numbers where it is a float."""
    kind = inputs.types.get(inputs.targets[0])
    return "auto" if kind is None else "regression" if kind.dtype.startswith("float") else "classification"


def _check_width(encoding: TableEncoding, inputs: ModelInputs) -> None:
    name = inputs.forward[0]
    shape = inputs.types[name].shape
    width = shape[1] if shape is not None and len(shape) == 2 else None
    if isinstance(width, int) and width != encoding.width:
        numbers = [column.name for column in encoding.numbers]
        categories = [f"{column.name} ({len(column.values)} values)" for column in encoding.categories]
        raise InvalidArgumentError(f"expected {width} columns for the input {name!r}, got {encoding.width}: {', '.join([*numbers, *categories])}; choose with "
                                   "--features")
