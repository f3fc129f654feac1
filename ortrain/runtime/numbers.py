"""Checks of numbers that users pass: learning rates, limits and factors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ortrain.errors import ArgumentTypeError, InvalidArgumentError, ParameterTypeError


def check_number(value: Any, what: str, *, positive: bool = False, type_error: type[TypeError] = ArgumentTypeError) -> float:
    """Return a number as a float.

    what: names it in errors. Raises `type_error` for what is no number, InvalidArgumentError unless it is finite and at least 0, or above 0 if `positive`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise type_error(f"expected a number as {what}, got {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number) or number < 0 or positive and number == 0:
        raise InvalidArgumentError(f"expected a finite {what} {'> 0' if positive else '>= 0'}, got {number:g}")
    return number


def check_count(value: Any, what: str, least: int = 0) -> int:
    """Return a whole number. Raises ArgumentTypeError for what is none, InvalidArgumentError for one below `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(f"expected a whole number as {what}, got {type(value).__name__}")
    if value < least:
        raise InvalidArgumentError(f"expected {what} >= {least}, got {value}")
    return int(value)


def check_learning_rate(value: Any) -> float:
    """Return a learning rate as a float. Raises ParameterTypeError for what is no number, InvalidArgumentError for one that is negative or not finite."""
    return check_number(value, "learning rate", type_error=ParameterTypeError)
