"""Constant values of a graph, some of whose elements may be symbolic sizes, and arithmetic on sizes that keeps symbolic sizes symbolic.

A symbolic size (SymbolicInt in ortrain._core.symbolic) stands for an integer while a program template is planned. Converting it to a plain int ties the
template to its current value, and comparing it ties the template to the result of the comparison; the functions here avoid both where possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim


def is_symbolic(sizes: Sequence[Dim]) -> bool:
    """Return whether any of the sizes is a SymbolicInt, which isinstance(size, int) does not tell from a plain int."""
    return any(isinstance(size, int) and not issubclass(type(size), int) for size in sizes)


def symbolic_min(a: int, b: int) -> int:
    """Return min(a, b), as a symbolic size if either is symbolic: the template then holds for both outcomes."""
    return cast(Any, a).minimum(b) if is_symbolic((a,)) else cast(Any, b).minimum(a) if is_symbolic((b,)) else min(a, b)


def symbolic_max(a: int, b: int, *more: int) -> int:
    """Return max(a, b, ...), as a symbolic size if any is symbolic: the template then holds for all outcomes."""
    found = cast(Any, a).maximum(b) if is_symbolic((a,)) else cast(Any, b).maximum(a) if is_symbolic((b,)) else max(a, b)
    return symbolic_max(found, *more) if more else found


def at_least(size: int, limit: int) -> int:
    """Return 1 if size >= limit, else 0, for a size >= 0 and a limit > 0; the result is symbolic for a symbolic size."""
    return symbolic_min(1, size // limit)


def select_if(condition: int, yes: int, no: int) -> int:
    """Return `yes` if the condition is 1, `no` if it is 0; the condition may be symbolic, such as the result of at_least."""
    return no + condition * (yes - no)


def is_one(size: Dim) -> bool:
    """Return whether an axis has one element in every specialization, so that kernels can skip it; False for a symbolic size, even if it is 1 now."""
    return not is_symbolic((size,)) and size == 1


def is_same_size(a: Dim, b: Dim) -> bool:
    """Return whether two sizes are equal in every specialization; a comparison of two symbolic sizes ties the template to its result."""
    return a is b or is_symbolic((a,)) == is_symbolic((b,)) and a == b


def surely_equal(a: int, b: int) -> bool:
    """Return whether two sizes are equal in every specialization.

    It is for choices that are right, if not the best ones, where False is returned for equal sizes: symbolic sizes that happen to be equal now, or to be 1,
    count as different, so that the choice is the same whatever sizes a template is planned with."""
    if type(a) is int and type(b) is int:
        return a == b
    symbolic, other = (a, b) if is_symbolic((a,)) else (b, a)
    return bool(cast(Any, symbolic).surely_equals(other)) if is_symbolic((symbolic,)) else a == b


def is_broadcast(size: int, other: int) -> bool:
    """Return whether an axis of `size` elements is broadcast along one of `other` elements; a symbolic `other` is assumed not to be 1."""
    if is_symbolic((size,)):
        return not is_one(other) and size != other and size == 1
    return size == 1 and not is_one(other)


class SymbolicArray:
    """An integer array with symbolic elements, of which no NumPy array exists yet. elements: in row-major order."""

    __slots__ = ("dtype", "elements", "shape")

    def __init__(self, elements: Sequence[int], dtype: str, shape: tuple[int, ...]) -> None:
        self.elements, self.dtype, self.shape = tuple(elements), dtype, shape


class ConstantValues(dict[str, np.ndarray]):
    """Constant values by name: a dict of NumPy arrays that also stores integer arrays with symbolic elements.

    Reading such an entry as an array converts its elements to plain integers, for good: the template is then tied to their current values."""

    def set_symbolic(self, name: str, elements: Sequence[int], dtype: str, shape: tuple[int, ...]) -> None:
        """Store an integer array of which some elements are symbolic."""
        super().__setitem__(name, SymbolicArray(elements, dtype, shape))  # type: ignore[assignment]

    def symbolic_elements(self, name: str) -> tuple[int, ...] | None:
        """Return the elements of a symbolic array that has not been read as a NumPy array, None for any other value."""
        found: Any = super().get(name)
        return found.elements if isinstance(found, SymbolicArray) else None

    def __getitem__(self, name: str) -> np.ndarray:
        found: Any = super().__getitem__(name)
        if isinstance(found, SymbolicArray):
            self[name] = found = np.array([int(size) for size in found.elements], numpy_dtype(found.dtype)).reshape(found.shape)
        return found  # type: ignore[no-any-return]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401

    def __or__(self, other: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {name: self[name] for name in self} | dict(other)


class ConstantInputs(Sequence[np.ndarray | None]):
    """The values of a node's inputs, None where an input is not constant; symbolic arrays are converted one by one, as they are read."""

    def __init__(self, values: ConstantValues, names: Sequence[str]) -> None:
        self.values, self.names = values, names

    def has(self, index: int) -> bool:
        """Return whether an input is given and constant, without converting a symbolic array."""
        return index < len(self.names) and self.names[index] in self.values

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ConstantInputs(self.values, self.names[index])
        return self.values.get(self.names[index])
