"""Element-wise operators: arithmetic, comparisons, selection and casts, with broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.dtypes import DIFFERENTIABLE, EXTENSIONS, HALVES, NAMES, NUMBERS, numpy_dtype
from ortrain.errors import MissingKernelError
from ortrain.ir import TensorType
from ortrain.ops.registry import onnx_definitions
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import (
    MICROSOFT,
    ORTRAIN,
    Alias,
    InferenceContext,
    KernelCall,
    Lowering,
    LoweringContext,
    broadcast_shapes,
    check_broadcasts,
    check_inputs,
    check_numbers,
    operator,
)
from ortrain.ops.shared.broadcasting import packed

Gradients = Sequence[str | None]


# ---- shared inference and lowering


def same_as_input(c: InferenceContext) -> list[TensorType]:
    """The output has the type of input 0."""
    return [c.type(0)]


def unary(kernel: str, *attributes: tuple[str, float]) -> Lowering:
    """Lowering of a kernel y = f(x) that may write y over x; attributes are (name, default) packed as floats."""

    def lower(c: LoweringContext) -> KernelCall:
        return KernelCall(kernel, floats=tuple(float(c.attribute(name, default)) for name, default in attributes), in_place={0: 0})

    return lower


def infer_broadcast(c: InferenceContext) -> list[TensorType]:
    """The NumPy broadcast of both inputs, which have one dtype."""
    if c.dtype(0) != c.dtype(1):
        raise c.error(f"expected inputs of one dtype, got {c.dtype(0)} and {c.dtype(1)}")
    return [TensorType(c.dtype(0), broadcast_shapes(c, c.shape(0), c.shape(1)))]


def infer_comparison(c: InferenceContext) -> list[TensorType]:
    """c = a (the operator's relation) b, as bool"""
    return [TensorType("bool", infer_broadcast(c)[0].shape)]


def binary(kernel: str, *attributes: tuple[str, float]) -> Lowering:
    """Lowering of a broadcasting kernel c = f(a, b), which may write c over an input of the full shape."""

    def lower(c: LoweringContext) -> KernelCall:
        dims = c.output_dims(0)
        in_place = next(({0: i} for i in (0, 1) if c.dims(i) == dims and c.dtype(i) == c.output_dtype(0)), {})
        floats = tuple(float(c.attribute(name, default)) for name, default in attributes)
        return KernelCall(kernel, packed(dims, c.dims(0), c.dims(1)), floats, in_place=in_place)

    return lower


def numpy_of(function: Callable[..., Any]) -> Callable[[InferenceContext], list[np.ndarray]]:
    """The evaluation of an operator whose NumPy meaning is one function of its inputs, keeping the dtype of input 0."""

    def evaluate(c: InferenceContext) -> list[np.ndarray]:
        values = [v for v in c.values if v is not None]
        return [np.asarray(function(*values)).astype(values[0].dtype, copy=False)]

    return evaluate


def numpy_bool(function: Callable[..., Any]) -> Callable[[InferenceContext], list[np.ndarray]]:
    def evaluate(c: InferenceContext) -> list[np.ndarray]:
        return [np.asarray(function(*c.values), np.bool_)]

    return evaluate


def integer_division(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Division as ONNX means it: integers truncate towards zero."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    quotient = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.asarray(np.sign(a) * np.sign(b) * quotient)


# ---- arithmetic


def add_gradient(g: GradientBuilder) -> Gradients:
    return [g.dy, g.dy]


@operator("Add", lower=binary("add"), gradient=add_gradient, evaluate=numpy_of(np.add))
def add(c: InferenceContext) -> list[TensorType]:
    """c = a + b"""
    return infer_broadcast(c)


def sub_gradient(g: GradientBuilder) -> Gradients:
    return [g.dy, g.op("Neg", g.dy) if g.needs(1) else None]


@operator("Sub", lower=binary("sub"), gradient=sub_gradient, evaluate=numpy_of(np.subtract))
def sub(c: InferenceContext) -> list[TensorType]:
    """c = a - b"""
    return infer_broadcast(c)


def mul_gradient(g: GradientBuilder) -> Gradients:
    a, b = g.inputs
    return [g.op("Mul", g.dy, b) if g.needs(0) else None, g.op("Mul", g.dy, a) if g.needs(1) else None]


@operator("Mul", lower=binary("mul"), gradient=mul_gradient, evaluate=numpy_of(np.multiply))
def mul(c: InferenceContext) -> list[TensorType]:
    """c = a b"""
    return infer_broadcast(c)


def div_gradient(g: GradientBuilder) -> Gradients:
    # plain operators rather than the old DivGrad: equal cost after fusion, and every runtime has them
    b = g.inputs[1]
    da = g.op("Div", g.dy, b) if g.needs(0) else None
    if not g.needs(1):
        return [da, None]
    return [da, g.op("Neg", g.op("Mul", da or g.op("Div", g.dy, b), g.outputs[0]))]


@operator("Div", lower=binary("div"), gradient=div_gradient, evaluate=numpy_of(integer_division))
def div(c: InferenceContext) -> list[TensorType]:
    """c = a / b (integers truncate towards zero)"""
    return infer_broadcast(c)


def div_grad_decomposition(g: NodeBuilder) -> list[str]:
    """dA = dY / B and dB = -dY A / B ** 2, each summed to its own shape."""
    dy, a, b = g.inputs
    da = g.op("Div", dy, b)
    db = g.op("Neg", g.op("Div", g.op("Mul", da, a), b)) if g.wants(1) else ""
    return [g.unbroadcast(da, a) if g.wants(0) else "", g.unbroadcast(db, b) if db else ""]


@operator("DivGrad", domain=MICROSOFT, differentiable=False, decompose=div_grad_decomposition)
def div_grad(c: InferenceContext) -> list[TensorType]:
    """dA = dY / B, dB = -dY A / B ** 2"""
    return [c.type(1), c.type(2)]


def pow_gradient(g: GradientBuilder) -> Gradients:
    x, e = g.inputs
    dx = de = None
    if g.needs(0):
        less = g.op("Sub", e, g.scalar(1.0, e))
        dx = g.op("Mul", g.dy, g.op("Mul", g.op("Pow", x, less), _like(g, e, x)))
    if g.needs(1):
        positive = g.op("Greater", x, g.scalar(0.0, x))
        safe = g.op("Where", positive, x, g.scalar(1.0, x))       # log of 1 is 0: no gradient where x <= 0
        de = g.op("Mul", g.dy, g.op("Mul", g.outputs[0], g.op("Log", safe)))
    return [dx, de]


def _like(g: GradientBuilder, value: str, like: str) -> str:
    """`value` in the dtype of `like`."""
    dtype = g.type(like).dtype
    return value if g.type(value).dtype == dtype else g.op("Cast", value, to=NUMBERS[dtype])


def power_of_one_dtype(g: NodeBuilder) -> list[str] | None:
    """With the exponent in the dtype of the base, where that is a float."""
    base, exponent = (g.type(name).dtype for name in g.inputs)
    return None if base == exponent or base not in DIFFERENTIABLE else [g.op("Pow", g.inputs[0], g.op("Cast", g.inputs[1], to=NUMBERS[base]))]


@operator("Pow", lower=binary("pow"), gradient=pow_gradient, evaluate=numpy_of(np.power), decompose=power_of_one_dtype, decompose_first=True)
def power(c: InferenceContext) -> list[TensorType]:
    """y = x ** e, in the dtype of x"""
    return [TensorType(c.dtype(0), broadcast_shapes(c, c.shape(0), c.shape(1)))]


def sum_gradient(g: GradientBuilder) -> Gradients:
    return [g.dy for _ in g.inputs]


def lower_sum(c: LoweringContext) -> KernelCall:
    dims = c.output_dims(0)
    ints = [v for i in range(len(c.node.inputs)) for v in packed(dims, dims, c.dims(i))]
    return KernelCall("sum", tuple(ints), in_place={0: 0} if c.dims(0) == dims else {})


@operator("Sum", lower=lower_sum, gradient=sum_gradient)
def variadic_sum(c: InferenceContext) -> list[TensorType]:
    """y = x0 + x1 + …, broadcast"""
    return [TensorType(c.dtype(0), broadcast_shapes(c, *(c.shape(i) for i in range(len(c.node.inputs)))))]


def variadic(op_type: str) -> Callable[[NodeBuilder], list[str] | None]:
    """op(op(x0, x1), x2) …: more than two inputs two at a time; one is the output."""

    def expand(g: NodeBuilder) -> list[str] | None:
        if len(g.inputs) == 2:
            return None
        result = g.inputs[0]
        for other in g.inputs[1:]:
            result = g.op(op_type, result, other)
        return [result]

    return expand


def extreme_gradient(kind: str) -> Callable[[GradientBuilder], Gradients]:
    """The gradient goes to the larger (or smaller) input; equals have half each."""

    def rule(g: GradientBuilder) -> Gradients:
        a, b = g.inputs
        return [g.op(kind, g.dy, *pair, domain=ORTRAIN) if g.needs(i) else None for i, pair in enumerate(((a, b), (b, a)))]

    return rule


def infer_extreme(c: InferenceContext) -> list[TensorType]:
    """y = the largest (or smallest) of the inputs, broadcast"""
    return list(variadic_sum(c))


def lower_extreme_gradient(kernel: str) -> Lowering:
    return lambda c: KernelCall(kernel, packed(c.output_dims(0), *(c.dims(i) for i in range(3))), in_place={0: 0})


def infer_extreme_gradient(c: InferenceContext) -> list[TensorType]:
    """da = dY where a is the extreme of (a, b), dY / 2 where they are equal, else 0"""
    for index in (1, 2):
        check_broadcasts(c, index, c.shape(0))
    return same_as_input(c)


def _extremes() -> None:
    functions: dict[str, Callable[..., Any]] = {"Max": np.maximum, "Min": np.minimum}
    for name, function in functions.items():
        operator(name, lower=binary(name.lower()), gradient=extreme_gradient(f"{name}Grad"), decompose=variadic(name), decompose_first=True,
                 evaluate=numpy_of(lambda *values, f=function: functools.reduce(f, values)))(infer_extreme)
        operator(f"{name}Grad", domain=ORTRAIN, lower=lower_extreme_gradient(f"{name.lower()}_grad"), differentiable=False)(infer_extreme_gradient)


_extremes()


def mean_decomposition(g: NodeBuilder) -> list[str]:
    total = g.op("Sum", *g.inputs)
    return [g.op("Div", total, g.scalar(float(len(g.inputs)), total))]


@operator("Mean", decompose=mean_decomposition)
def mean(c: InferenceContext) -> list[TensorType]:
    """y = (x0 + x1 + …) / n, broadcast"""
    return list(variadic_sum(c))


def mod_gradient(g: GradientBuilder) -> Gradients:
    a, b = g.inputs
    if not g.needs(1):
        return [g.dy, None]
    # a - b q: the rounded quotient q is a constant almost everywhere
    quotient = g.op("Div", g.op("Sub", a, g.outputs[0]), b)
    return [g.dy, g.op("Neg", g.op("Mul", g.dy, quotient))]


def evaluate_mod(c: InferenceContext) -> list[np.ndarray]:
    return [np.asarray((np.fmod if c.attribute("fmod", 0) else np.mod)(c.known(0), c.known(1)))]


def lower_mod(c: LoweringContext) -> KernelCall:
    return KernelCall("mod", packed(c.output_dims(0), c.dims(0), c.dims(1)), (float(c.attribute("fmod", 0)),))


@operator("Mod", lower=lower_mod, gradient=mod_gradient, evaluate=evaluate_mod)
def mod(c: InferenceContext) -> list[TensorType]:
    """c = a mod b, with the sign of b, or with that of a where fmod is set"""
    return infer_broadcast(c)


# ---- unary


def sqrt_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("Mul", g.dy, g.op("Div", g.scalar(0.5, g.inputs[0]), g.outputs[0]))]


@operator("Sqrt", lower=unary("sqrt"), gradient=sqrt_gradient, evaluate=numpy_of(np.sqrt))
def sqrt(c: InferenceContext) -> list[TensorType]:
    """y = x ** 0.5"""
    return same_as_input(c)


@operator("Neg", lower=unary("neg"), gradient=lambda g: [g.op("Neg", g.dy)], evaluate=numpy_of(np.negative))
def neg(c: InferenceContext) -> list[TensorType]:
    """y = -x"""
    return same_as_input(c)


@operator("Abs", lower=unary("abs"), gradient=lambda g: [g.op("Mul", g.dy, g.op("Sign", g.inputs[0]))], evaluate=numpy_of(np.abs))
def absolute(c: InferenceContext) -> list[TensorType]:
    """y = |x|, gradient 0 at 0"""
    return same_as_input(c)


@operator("Exp", lower=unary("exp"), gradient=lambda g: [g.op("Mul", g.dy, g.outputs[0])])
def exp(c: InferenceContext) -> list[TensorType]:
    """y = e ** x"""
    return same_as_input(c)


@operator("Log", lower=unary("log"), gradient=lambda g: [g.op("Div", g.dy, g.inputs[0])])
def log(c: InferenceContext) -> list[TensorType]:
    """y = ln x"""
    return same_as_input(c)


@operator("Sin", lower=unary("sin"), gradient=lambda g: [g.op("Mul", g.dy, g.op("Cos", g.inputs[0]))])
def sin(c: InferenceContext) -> list[TensorType]:
    """y = sin x"""
    return same_as_input(c)


@operator("Cos", lower=unary("cos"), gradient=lambda g: [g.op("Neg", g.op("Mul", g.dy, g.op("Sin", g.inputs[0])))])
def cos(c: InferenceContext) -> list[TensorType]:
    """y = cos x"""
    return same_as_input(c)


def reciprocal_gradient(g: GradientBuilder) -> Gradients:
    y = g.outputs[0]
    return [g.op("Mul", g.dy, g.op("Neg", g.op("Mul", y, y)))]


@operator("Reciprocal", lower=unary("reciprocal"), gradient=reciprocal_gradient)
def reciprocal(c: InferenceContext) -> list[TensorType]:
    """y = 1 / x"""
    return same_as_input(c)


def infer_piecewise_constant(c: InferenceContext) -> list[TensorType]:
    """y = the function of the operator's name, which has no gradient anywhere"""
    return same_as_input(c)


for _name, _kernel, _function in (("Sign", "sign", np.sign), ("Floor", "floor", np.floor), ("Ceil", "ceil", np.ceil), ("Round", "round", np.round)):
    operator(_name, lower=unary(_kernel), differentiable=False, evaluate=numpy_of(_function))(infer_piecewise_constant)


def erf_gradient(g: GradientBuilder) -> Gradients:
    x = g.inputs[0]
    bell = g.op("Exp", g.op("Neg", g.op("Mul", x, x)))
    return [g.op("Mul", g.dy, g.op("Mul", bell, g.scalar(2 / np.sqrt(np.pi), x)))]


@operator("Erf", lower=unary("erf"), gradient=erf_gradient)
def erf(c: InferenceContext) -> list[TensorType]:
    """y = erf x"""
    return same_as_input(c)


# ---- comparisons and logic: no gradient flows


def _comparisons() -> None:
    functions: dict[str, tuple[str, Callable[..., Any]]] = {
        "Equal": ("equal", np.equal), "Less": ("less", np.less), "LessOrEqual": ("less_or_equal", np.less_equal),
        "Greater": ("greater", np.greater), "GreaterOrEqual": ("greater_or_equal", np.greater_equal),
        "And": ("and", np.logical_and), "Or": ("or", np.logical_or), "Xor": ("xor", np.logical_xor),
    }
    for name, (kernel, function) in functions.items():
        operator(name, lower=binary(kernel), differentiable=False, evaluate=numpy_bool(function))(infer_comparison)


_comparisons()


@operator("Not", lower=unary("not"), differentiable=False, evaluate=numpy_bool(np.logical_not))
def logical_not(c: InferenceContext) -> list[TensorType]:
    """y = not x"""
    return same_as_input(c)


def infer_test(c: InferenceContext) -> list[TensorType]:
    """y = whether x is what the operator's name says"""
    return [TensorType("bool", c.type(0).shape)]


operator("IsNaN", lower=lambda c: KernelCall("is_nan"), differentiable=False)(infer_test)
operator("IsInf", lower=lambda c: KernelCall("is_inf", floats=(float(c.attribute("detect_negative", 1)), float(c.attribute("detect_positive", 1)))),
         differentiable=False)(infer_test)


# ---- selection and casts


def where_gradient(g: GradientBuilder) -> Gradients:
    condition, a, _ = g.inputs
    zero = g.scalar(0.0, a)
    return [None, g.op("Where", condition, g.dy, zero) if g.needs(1) else None, g.op("Where", condition, zero, g.dy) if g.needs(2) else None]


def lower_where(c: LoweringContext) -> KernelCall:
    return KernelCall("where", packed(c.output_dims(0), c.dims(0), c.dims(1), c.dims(2)))


@operator("Where", lower=lower_where, gradient=where_gradient, stop_gradient=(0,), evaluate=lambda c: [np.asarray(np.where(c.known(0), c.known(1), c.known(2)))])
def where(c: InferenceContext) -> list[TensorType]:
    """y = a where condition else b"""
    if c.dtype(0) != "bool" or c.dtype(1) != c.dtype(2):
        raise c.error(f"expected a bool condition and two inputs of one dtype, got {c.dtype(0)}, {c.dtype(1)} and {c.dtype(2)}")
    return [TensorType(c.dtype(1), broadcast_shapes(c, c.shape(0), c.shape(1), c.shape(2)))]


def cast_gradient(g: GradientBuilder) -> Gradients:
    source, target = g.type(g.inputs[0]).dtype, g.type(g.outputs[0]).dtype
    if source not in DIFFERENTIABLE or target not in DIFFERENTIABLE:
        return [None]
    return [g.dy if source == target else g.op("Cast", g.dy, to=NUMBERS[source])]


CASTS = frozenset({"float32", "float64", "int64", "int32", "uint8", "int8", "bool"})
"""Any of these from any other has a kernel; float32 and a half also."""


def lower_cast(c: LoweringContext) -> KernelCall | Alias:
    pair = {c.dtype(0), c.output_dtype(0)}
    if len(pair) == 1:
        return Alias()
    if pair <= CASTS or "float32" in pair and pair & HALVES:
        return KernelCall("cast")
    raise MissingKernelError(f"expected a kernel from {c.dtype(0)} to {c.output_dtype(0)}, found none (operator Cast, node {c.node.name!r})")


def evaluate_cast(c: InferenceContext) -> Sequence[np.ndarray]:
    name = NAMES[c.attribute("to")]
    # narrower types than halves saturate or not, as ONNX says
    return onnx_definitions.evaluate(c) if name in EXTENSIONS - HALVES else [np.asarray(c.values[0]).astype(numpy_dtype(name))]


def element_type(c: InferenceContext) -> str:
    """The dtype that attribute `to` names."""
    name = NAMES.get(c.attribute("to"))
    if name is None:
        raise c.error(f"expected a known element type in attribute to, got {c.attribute('to')}")
    return name


@operator("Cast", lower=lower_cast, gradient=cast_gradient, evaluate=evaluate_cast)
def cast(c: InferenceContext) -> list[TensorType]:
    """y = x in the dtype `to`"""
    return [TensorType(element_type(c), c.shape(0))]


# ---- the old package's training operators


def evaluate_scale(c: InferenceContext) -> list[np.ndarray]:
    x = c.known(0)
    factor = c.known(1).astype(x.dtype).reshape(())
    return [np.asarray(x / factor if c.attribute("scale_down", 0) else x * factor)]


def scale_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("Scale", g.dy, g.inputs[1], domain=MICROSOFT, scale_down=int(g.attribute("scale_down", 0)))]


@operator("Scale", domain=MICROSOFT, lower=lambda c: KernelCall("scale", (int(c.attribute("scale_down", 0)),), in_place={0: 0}),
          evaluate=evaluate_scale, gradient=scale_gradient, stop_gradient=(1,))
def scale(c: InferenceContext) -> list[TensorType]:
    """y = x s, or x / s with scale_down; s has one element, float or int64"""
    check_inputs(c, None, 1)
    check_numbers(c, 1)
    return same_as_input(c)
