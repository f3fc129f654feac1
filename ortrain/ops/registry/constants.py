"""The constants of a graph, among them shapes whose sizes are symbolic: arrays of these are made when somebody reads them, which binds the sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim


def is_symbolic(sizes: Sequence[Dim]) -> bool:
    """Whether some of the sizes follow from symbols of a plan (SymbolicInt): these say to be ints, and are none."""
    return any(isinstance(size, int) and not issubclass(type(size), int) for size in sizes)


def smaller(a: int, b: int) -> int:
    """min(a, b); of symbolic sizes it is left open which it is."""
    return cast(Any, a).smaller(b) if is_symbolic((a,)) else cast(Any, b).smaller(a) if is_symbolic((b,)) else min(a, b)


def larger(a: int, b: int, *more: int) -> int:
    """max(a, b, ...); of symbolic sizes it is left open which it is."""
    found = cast(Any, a).larger(b) if is_symbolic((a,)) else cast(Any, b).larger(a) if is_symbolic((b,)) else max(a, b)
    return larger(found, *more) if more else found


def reaches(size: int, limit: int) -> int:
    """1 where a size reaches a limit above 0, else 0; of a symbolic size it is left open."""
    return smaller(1, size // limit)


def either(condition: int, yes: int, no: int) -> int:
    """One number where a condition is 1, another where it is 0."""
    return no + condition * (yes - no)


def is_single(size: Dim) -> bool:
    """Whether an axis is known to have one element, which need not be walked: where its size is open, one is walked as many are."""
    return not is_symbolic((size,)) and size == 1


def is_spread(size: int, other: int) -> bool:
    """Whether an axis of one element is read again and again along another's; where that may turn out to have one element too, it may be."""
    if is_symbolic((size,)):
        return not is_single(other) and size != other and size == 1
    return size == 1 and not is_single(other)


class Held:
    """What stands for an array of integers until it is read: its elements, in order."""

    __slots__ = ("dtype", "elements", "shape")

    def __init__(self, elements: Sequence[int], dtype: str, shape: tuple[int, ...]) -> None:
        self.elements, self.dtype, self.shape = tuple(elements), dtype, shape


class KnownValues(dict[str, np.ndarray]):
    """Value -> its array."""

    def hold(self, name: str, elements: Sequence[int], dtype: str, shape: tuple[int, ...]) -> None:
        """Takes integers of which some are symbolic."""
        super().__setitem__(name, Held(elements, dtype, shape))  # type: ignore[assignment]

    def held(self, name: str) -> tuple[int, ...] | None:
        """The elements of a value whose array nobody has read yet."""
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


class KnownInputs(Sequence[np.ndarray | None]):
    """The values of a node's inputs, None for those that are not known, read one by one."""

    def __init__(self, values: KnownValues, names: Sequence[str]) -> None:
        self.known, self.names = values, names

    def has(self, index: int) -> bool:
        """Whether an input is there and known: nothing is read."""
        return index < len(self.names) and self.names[index] in self.known

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return KnownInputs(self.known, self.names[index])
        return self.known.get(self.names[index])
