"""Overload resolution by argument names and types, for the languages that have it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ortrain.errors import ArgumentTypeError


class Overload:
    """One overload.

    call: takes the object and the arguments by name. kinds: parameter name -> expected class, `[class]` for a collection of its objects, with None
    added where the argument may be null."""

    def __init__(self, call: Callable[..., Any], **kinds: Any) -> None:
        self.call = call
        self.kinds = kinds

    def bind(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments by parameter name, None where they do not match this overload."""
        names = list(self.kinds)
        if len(arguments) + len(named) != len(names) or set(named) != set(names[len(arguments) :]):
            return None
        bound = dict(zip(names, arguments, strict=False)) | dict(named)
        return bound if all(fits(bound[name], kind) for name, kind in self.kinds.items()) else None

    def signature(self) -> str:
        """Return the overload as text."""
        return f"({', '.join(f'{name}: {_shown(kind)}' for name, kind in self.kinds.items())})"


def fits(value: Any, kind: Any) -> bool:
    """Return whether `value` matches a parameter of this kind."""
    if isinstance(kind, tuple):
        return any(value is None if one is None else fits(value, one) for one in kind)
    if isinstance(kind, list):
        return isinstance(value, Collection) and not isinstance(value, str | bytes) and all(isinstance(item, kind[0]) for item in value)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _shown(kind: Any) -> str:
    if isinstance(kind, tuple):
        return " | ".join("null" if one is None else _shown(one) for one in kind)
    return f"{kind[0].__name__}[]" if isinstance(kind, list) else str(kind.__name__)


def choose(name: str, target: Any, overloads: Sequence[Overload], arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Call the one overload that the arguments match. Raises ArgumentTypeError when none does, or more than one."""
    fitting = [(overload, bound) for overload in overloads if (bound := overload.bind(arguments, named)) is not None]
    if len(fitting) == 1:
        overload, bound = fitting[0]
        return overload.call(target, **bound)
    forms = "; ".join(overload.signature() for overload in overloads)
    if fitting:
        both = " and ".join(overload.signature() for overload, _ in fitting)
        raise ArgumentTypeError(f"expected arguments that fit one overload of {name}, an empty list fits {both}: put RunOptions first, which only one "
                                "of them takes")
    got = ", ".join([type(value).__name__ for value in arguments] + [f"{key}: {type(value).__name__}" for key, value in named.items()])
    raise ArgumentTypeError(f"expected arguments that fit an overload of {name}: {forms}; got ({got})")


def nothing(_: object) -> None:
    """Discard the result of a call, for an overload that returns nothing although the others return values."""
