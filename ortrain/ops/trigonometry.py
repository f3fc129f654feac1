"""Trigonometric and hyperbolic functions and their inverses, except Tanh (activation.py)."""

from __future__ import annotations

from collections.abc import Callable

from ortrain.ir import TensorType
from ortrain.ops.elementwise import same_as_input, unary
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import InferenceContext, operator

InputGradient = Callable[[GradientBuilder, str], str]
"""A function of the gradient builder and the name of x that returns the name of dx."""


def _one_plus_or_minus(g: GradientBuilder, sign: str, value: str) -> str:
    """Return 1 + value (sign "Add") or 1 - value (sign "Sub")."""
    return g.op(sign, g.scalar(1.0, value), value)


def tan_gradient(g: GradientBuilder, x: str) -> str:
    """dx = dY (1 + y²)"""
    y = g.outputs[0]
    return g.op("Mul", g.dy, _one_plus_or_minus(g, "Add", g.op("Mul", y, y)))


def reciprocal_sqrt_gradient(sign: str, negate: bool = False) -> InputGradient:
    """dx = dY / sqrt(1 + x²) (sign "Add") or dY / sqrt(1 - x²) (sign "Sub"), negated if `negate`"""

    def gradient(g: GradientBuilder, x: str) -> str:
        dx = g.op("Div", g.dy, g.op("Sqrt", _one_plus_or_minus(g, sign, g.op("Mul", x, x))))
        return g.op("Neg", dx) if negate else dx

    return gradient


def reciprocal_gradient(sign: str) -> InputGradient:
    """dx = dY / (1 + x²) (sign "Add") or dY / (1 - x²) (sign "Sub")"""
    return lambda g, x: g.op("Div", g.dy, _one_plus_or_minus(g, sign, g.op("Mul", x, x)))


def acosh_gradient(g: GradientBuilder, x: str) -> str:
    """dx = dY / (sqrt(x - 1) sqrt(x + 1))"""
    one = g.scalar(1.0, x)
    # the product of two roots keeps the digits that x² - 1 cancels near x = 1
    return g.op("Div", g.dy, g.op("Mul", g.op("Sqrt", g.op("Sub", x, one)), g.op("Sqrt", g.op("Add", x, one))))


def operator_gradient(op_type: str, negate: bool = False) -> InputGradient:
    """dx = dY op_type(x), negated if `negate`"""

    def gradient(g: GradientBuilder, x: str) -> str:
        dx = g.op("Mul", g.dy, g.op(op_type, x))
        return g.op("Neg", dx) if negate else dx

    return gradient


def _register(op_type: str, formula: str, gradient: InputGradient) -> None:
    def infer(c: InferenceContext) -> list[TensorType]:
        return same_as_input(c)

    infer.__doc__ = formula
    operator(op_type, lower=unary(op_type.lower()), gradient=lambda g: [gradient(g, g.inputs[0])])(infer)


_register("Sin", "y = sin x", operator_gradient("Cos"))
_register("Cos", "y = cos x", operator_gradient("Sin", negate=True))
_register("Tan", "y = tan x", tan_gradient)
_register("Asin", "y = arcsin x, for x in [-1, 1]", reciprocal_sqrt_gradient("Sub"))
_register("Acos", "y = arccos x, for x in [-1, 1]", reciprocal_sqrt_gradient("Sub", negate=True))
_register("Atan", "y = arctan x", reciprocal_gradient("Add"))
_register("Sinh", "y = sinh x", operator_gradient("Cosh"))
_register("Cosh", "y = cosh x", operator_gradient("Sinh"))
_register("Asinh", "y = arsinh x", reciprocal_sqrt_gradient("Add"))
_register("Acosh", "y = arcosh x, for x >= 1", acosh_gradient)
_register("Atanh", "y = artanh x, for x in (-1, 1)", reciprocal_gradient("Sub"))
