"""The constant values of a graph. Arrays with symbolic sizes are created when they are read, which fixes the sizes to numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim


def is_symbolic(sizes: Sequence[Dim]) -> bool:
    """Whether some of the sizes are symbolic integers of a plan (SymbolicInt), which pass for ints in Python."""
    return any(isinstance(size, int) and not issubclass(type(size), int) for size in sizes)


def symbolic_min(a: int, b: int) -> int:
    """Return min(a, b); for symbolic sizes as a symbolic size, so that the plan holds whichever is smaller."""
    return cast(Any, a).smaller(b) if is_symbolic((a,)) else cast(Any, b).smaller(a) if is_symbolic((b,)) else min(a, b)


def symbolic_max(a: int, b: int, *more: int) -> int:
    """Return max(a, b, ...); for symbolic sizes as a symbolic size, so that the plan holds whichever is larger."""
    found = cast(Any, a).larger(b) if is_symbolic((a,)) else cast(Any, b).larger(a) if is_symbolic((b,)) else max(a, b)
    return symbolic_max(found, *more) if more else found


def at_least(size: int, limit: int) -> int:
    """Return 1 where a size is at least a positive limit, else 0; symbolic for a symbolic size."""
    return symbolic_min(1, size // limit)


def select_if(condition: int, yes: int, no: int) -> int:
    """Return `yes` where a condition is 1, `no` where it is 0."""
    return no + condition * (yes - no)


def is_one(size: Dim) -> bool:
    """Whether an axis is known to have one element, so that kernels can skip it; an axis of symbolic size is iterated even when it has one element."""
    return not is_symbolic((size,)) and size == 1


def is_broadcast(size: int, other: int) -> bool:
    """Whether an axis of one element is broadcast along another's; assumed where the other size is symbolic."""
    if is_symbolic((size,)):
        return not is_one(other) and size != other and size == 1
    return size == 1 and not is_one(other)


class Held:
    """The elements of an integer array that has not been read yet, in order."""

    __slots__ = ("dtype", "elements", "shape")

    def __init__(self, elements: Sequence[int], dtype: str, shape: tuple[int, ...]) -> None:
        self.elements, self.dtype, self.shape = tuple(elements), dtype, shape


class ConstantValues(dict[str, np.ndarray]):
    """Value name -> array."""

    def hold(self, name: str, elements: Sequence[int], dtype: str, shape: tuple[int, ...]) -> None:
        """Store integers of which some are symbolic."""
        super().__setitem__(name, Held(elements, dtype, shape))  # type: ignore[assignment]

    def held(self, name: str) -> tuple[int, ...] | None:
        """Return the elements of a value whose array has not been read yet, else None."""
        found: Any = super().get(name)
        return found.elements if isinstance(found, Held) else None

    def __getitem__(self, name: str) -> np.ndarray:
        found: Any = super().__getitem__(name)
        if isinstance(found, Held):
            self[name] = found = np.array([int(size) for size in found.elements], numpy_dtype(found.dtype)).reshape(found.shape)
        return found  # type: ignore[no-any-return]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401

    def __or__(self, other: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {name: self[name] for name in self} | dict(other)


class ConstantInputs(Sequence[np.ndarray | None]):
    """The values of a node's inputs, None for those that are not constant, read one by one."""

    def __init__(self, values: ConstantValues, names: Sequence[str]) -> None:
        self.known, self.names = values, names

    def has(self, index: int) -> bool:
        """Whether an input is given and constant, without reading it."""
        return index < len(self.names) and self.names[index] in self.known

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ConstantInputs(self.known, self.names[index])
        return self.known.get(self.names[index])
