"""Options under their former names: they warn, and set or read the option that replaced them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Renamed:
    """The option that replaced a former one.

    inverted: the former option was true where the new one is false."""

    to: str
    inverted: bool = False

    def convert(self, value: Any) -> Any:
        """Convert a value between the former option and the new one; both directions are the same."""
        return not value if self.inverted else value


def warn(former: str, renamed: Renamed, stacklevel: int) -> None:
    """Emit the DeprecationWarning of a former option."""
    opposite = ", its opposite," if renamed.inverted else ""
    warnings.warn(f"the option {former} was renamed: use {renamed.to}{opposite} instead; {former} will be removed in 0.2", DeprecationWarning,
                  stacklevel=stacklevel)


def _alias(former: str, renamed: Renamed) -> property:
    def read(self: Any) -> Any:
        warn(former, renamed, 3)
        return renamed.convert(getattr(self, renamed.to))

    def write(self: Any, value: Any) -> None:
        warn(former, renamed, 3)
        setattr(self, renamed.to, renamed.convert(value))

    return property(read, write, doc=f"Deprecated alias of {renamed.to}.")


def accepts_former_names(former_names: dict[str, Renamed]) -> Callable[[type[T]], type[T]]:
    """Decorate a dataclass so that its constructor and its attributes accept former names of its fields."""

    def decorate(cls: type[T]) -> type[T]:
        construct: Callable[..., None] = cls.__init__

        @functools.wraps(construct)
        def __init__(self: T, *args: Any, **options: Any) -> None:
            for former in former_names.keys() & options.keys():
                renamed = former_names[former]
                warn(former, renamed, 3)
                options[renamed.to] = renamed.convert(options.pop(former))
            construct(self, *args, **options)

        setattr(cls, "__init__", __init__)  # noqa: B010  mypy refuses an assignment to a type's __init__
        for former, renamed in former_names.items():
            setattr(cls, former, _alias(former, renamed))
        return cls

    return decorate
