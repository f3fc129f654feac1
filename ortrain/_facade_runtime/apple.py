"""The parts of the Swift and Objective-C facades only: numbers of element types, and alloc()."""

from __future__ import annotations

from typing import Any, Self

from ortrain._facade_runtime.arguments import integer
from ortrain._facade_runtime.lifetime import EnvironmentHolder, SessionHolder, SessionOptionsHolder, StateHolder, ValueHolder
from ortrain.enums import AppleElementType, ElementType
from ortrain.errors import InvalidArgumentError


def onnx_element_type(element_type: Any) -> int:
    """Return ONNX's number for an element type of Swift and Objective-C. Raises InvalidArgumentError for an unknown number."""
    number = integer(element_type, "elementType")
    try:
        return int(ElementType[AppleElementType(number).name])
    except ValueError as error:
        raise InvalidArgumentError(f"expected an element type, got {number}") from error


def apple_element_type(element_type: int) -> int:
    """Return the number of an element type in Swift and Objective-C; 0 (undefined) where they have none."""
    name = ElementType(element_type).name
    return int(AppleElementType[name]) if name in AppleElementType.__members__ else int(AppleElementType.UNDEFINED)


class Allocated:
    """An Objective-C object, created with alloc() and usable after an init."""

    @classmethod
    def alloc(cls) -> Self:
        """Return an object that awaits its init."""
        return cls()


class AppleSession(Allocated, SessionHolder):
    """Holds a training session."""


class AppleState(Allocated, StateHolder):
    """Holds the state of a checkpoint."""


class AppleValue(Allocated, ValueHolder):
    """Holds a tensor."""


class AppleSessionOptions(Allocated, SessionOptionsHolder):
    """Holds session options."""


class AppleEnvironment(Allocated, EnvironmentHolder):
    """Holds an environment."""
