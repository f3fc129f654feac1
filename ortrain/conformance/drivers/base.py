"""The base class of drivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

WARNING = 2
"""The logging level of environments that a case does not specify."""


class NotOffered(Exception):
    """The language has no such operation; the specification states why. Or a package is missing that it needs and that a device need not have."""


class Failure(Exception):
    """A failed call, as its language reports it.

    name: ortrain's name of the error. code: ONNX Runtime's number. message: the text. shown: what a program in the language sees."""

    def __init__(self, name: str, code: int, message: str, shown: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name, self.code, self.message, self.shown = name, code, message, shown


class Driver:
    """Runs operations of the specification through one facade, with one method per operation: `training_session.train_step` is
    `training_session__train_step`.

    A method takes the object that the operation is called on, if any, and the operation's parameters by name. Tensors are arrays, other objects are
    the facade's own. The method makes the calls that a program in the language would make."""

    language = ""
    shown = ""
    """A regular expression that matches an error as a program in the language sees it."""

    def operations(self) -> list[str]:
        """Return the ids of the operations that the facade offers."""
        return sorted(name.replace("__", ".") for name in dir(self) if "__" in name.strip("_"))

    def call(self, operation: str, target: Any, arguments: dict[str, Any]) -> Any:
        """Return the result of an operation. Raises NotOffered, or Failure when the facade refuses or fails."""
        if operation not in self.operations():
            raise NotOffered(operation)
        method = getattr(self, operation.replace(".", "__"))
        return self.guarded(lambda: method(**arguments) if target is None else method(target, **arguments))

    def guarded(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call; the language's failure becomes a Failure."""
        raise NotImplementedError


def scaled_by(factor: float | None) -> Callable[[np.ndarray], None] | None:
    """Return what a case does with the elements of each bucket of gradients, None for nothing."""
    return None if factor is None else lambda elements: np.multiply(elements, np.float32(factor), out=elements)


def failure_of(error: BaseException, shown: str) -> Failure:
    """Return the failure for an error of ortrain."""
    return Failure(type(error).__name__, getattr(type(error), "code", 1), str(error), shown)
