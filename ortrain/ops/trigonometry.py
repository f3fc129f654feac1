"""Circular and hyperbolic functions and their inverses; Sin, Cos and Tanh are with the arithmetic and the activations."""

from __future__ import annotations

from collections.abc import Callable

from ortrain.ir import TensorType
from ortrain.ops.elementwise import same_as_input, unary
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import InferenceContext, operator

Slope = Callable[[GradientBuilder, str], str]
"""Given the name of x, names dY times the slope at x."""


def _one_plus(g: GradientBuilder, sign: str, value: str) -> str:
    """1 + value, or 1 - value."""
    return g.op(sign, g.scalar(1.0, value), value)


def tan_slope(g: GradientBuilder, x: str) -> str:
    y = g.outputs[0]
    return g.op("Mul", g.dy, _one_plus(g, "Add", g.op("Mul", y, y)))


def over_root(sign: str, negative: bool = False) -> Slope:
    """dY / sqrt(1 + x²) or dY / sqrt(1 - x²), or less than nothing."""

    def slope(g: GradientBuilder, x: str) -> str:
        found = g.op("Div", g.dy, g.op("Sqrt", _one_plus(g, sign, g.op("Mul", x, x))))
        return g.op("Neg", found) if negative else found

    return slope


def over_square(sign: str) -> Slope:
    """dY / (1 + x²) or dY / (1 - x²)."""
    return lambda g, x: g.op("Div", g.dy, _one_plus(g, sign, g.op("Mul", x, x)))


def acosh_slope(g: GradientBuilder, x: str) -> str:
    one = g.scalar(1.0, x)
    # two roots: their product keeps what x² - 1 loses near 1
    return g.op("Div", g.dy, g.op("Mul", g.op("Sqrt", g.op("Sub", x, one)), g.op("Sqrt", g.op("Add", x, one))))


def times(op_type: str) -> Slope:
    """dY times another function of x."""
    return lambda g, x: g.op("Mul", g.dy, g.op(op_type, x))


def _register(op_type: str, formula: str, slope: Slope) -> None:
    def infer(c: InferenceContext) -> list[TensorType]:
        return same_as_input(c)

    infer.__doc__ = formula
    operator(op_type, lower=unary(op_type.lower()), gradient=lambda g: [slope(g, g.inputs[0])])(infer)


_register("Tan", "y = tan x", tan_slope)
_register("Asin", "y = arcsin x, for x in [-1, 1]", over_root("Sub"))
_register("Acos", "y = arccos x, for x in [-1, 1]", over_root("Sub", negative=True))
_register("Atan", "y = arctan x", over_square("Add"))
_register("Sinh", "y = sinh x", times("Cosh"))
_register("Cosh", "y = cosh x", times("Sinh"))
_register("Asinh", "y = arsinh x", over_root("Add"))
_register("Acosh", "y = arcosh x, for x >= 1", acosh_slope)
_register("Atanh", "y = artanh x, for x in (-1, 1)", over_square("Sub"))
