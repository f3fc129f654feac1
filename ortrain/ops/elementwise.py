"""Element-wise operators with NumPy broadcasting: arithmetic, unary functions, comparisons, logic, Where and Cast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.dtypes import DIFFERENTIABLE, EXTENSIONS, HALVES, NAMES, NUMBERS, numpy_dtype
from ortrain.errors import MissingKernelError
from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import (
    MICROSOFT,
    ORTRAIN,
    Alias,
    ElementwiseLowering,
    InferenceContext,
    KernelCall,
    Lowering,
    LoweringContext,
    broadcast_shapes,
    check_broadcasts,
    check_inputs,
    check_scalars,
    operator,
)
from ortrain.ops.shared.broadcasting import pack_broadcast

Gradients = Sequence[str | None]


# ---- shared inference and lowering


def same_as_input(c: InferenceContext) -> list[TensorType]:
    """Return the type of input 0 as the type of the only output."""
    return [c.type(0)]


def unary(kernel: str, *attributes: tuple[str, float]) -> Lowering:
    """Return the lowering of a kernel y = f(x) that may run in place.

    attributes: (name, default) of float attributes, packed in this order."""

    @ElementwiseLowering
    def lower(c: LoweringContext) -> KernelCall:
        return KernelCall(kernel, floats=tuple(float(c.attribute(name, default)) for name, default in attributes), in_place={0: 0})

    return lower


def infer_broadcast(c: InferenceContext) -> list[TensorType]:
    """Return the NumPy broadcast of both inputs, which must have the same dtype."""
    if c.dtype(0) != c.dtype(1):
        raise c.error(f"expected inputs of one dtype, got {c.dtype(0)} and {c.dtype(1)}")
    return [TensorType(c.dtype(0), broadcast_shapes(c, c.shape(0), c.shape(1)))]


def infer_comparison(c: InferenceContext) -> list[TensorType]:
    """c = a op b as bool, op being the comparison or logical function that the operator names"""
    return [TensorType("bool", infer_broadcast(c)[0].shape)]


def binary(kernel: str, *attributes: tuple[str, float]) -> Lowering:
    """Return the lowering of a broadcasting kernel c = f(a, b), which may run in place on an input of the output's shape.

    attributes: (name, default) of float attributes, packed in this order."""

    @ElementwiseLowering
    def lower(c: LoweringContext) -> KernelCall:
        dims = c.output_dims(0)
        in_place = next(({0: i} for i in (0, 1) if c.dims(i) == dims and c.dtype(i) == c.output_dtype(0)), {})
        floats = tuple(float(c.attribute(name, default)) for name, default in attributes)
        return KernelCall(kernel, pack_broadcast(dims, c.dims(0), c.dims(1)), floats, in_place=in_place, is_broadcast=True)

    return lower


def ternary(kernel: str) -> Lowering:
    """Return the lowering of a broadcasting kernel d = f(a, b, c) that may write d over a; d has the shape of a."""
    return ElementwiseLowering(lambda c: KernelCall(kernel, pack_broadcast(c.output_dims(0), *(c.dims(i) for i in range(3))), in_place={0: 0},
                                                    is_broadcast=True))


def numpy_of(function: Callable[..., Any]) -> Callable[[InferenceContext], list[np.ndarray]]:
    """Return the constant folding of an operator that is one NumPy function of its inputs; the result has the dtype of input 0."""

    def evaluate(c: InferenceContext) -> list[np.ndarray]:
        values = [v for v in c.values if v is not None]
        return [np.asarray(function(*values)).astype(values[0].dtype, copy=False)]

    return evaluate


def numpy_bool(function: Callable[..., Any]) -> Callable[[InferenceContext], list[np.ndarray]]:
    """Return the constant folding of an operator that is one NumPy predicate of its inputs."""

    def evaluate(c: InferenceContext) -> list[np.ndarray]:
        return [np.asarray(function(*c.values), np.bool_)]

    return evaluate


def integer_division(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b as ONNX defines it: integer quotients truncate towards zero; x / 0 is 0 for integers."""
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


@operator("Mul", lower=binary("mul"), gradient=mul_gradient, evaluate=numpy_of(np.multiply), takes_rounded=(0, 1))
def mul(c: InferenceContext) -> list[TensorType]:
    """c = a b"""
    return infer_broadcast(c)


def div_gradient(g: GradientBuilder) -> Gradients:
    # standard operators rather than com.microsoft's DivGrad: the cost is the same after fusion, and every runtime has them
    b = g.inputs[1]
    da = g.op("Div", g.dy, b) if g.needs(0) else None
    if not g.needs(1):
        return [da, None]
    return [da, g.op("Neg", g.op("Mul", da or g.op("Div", g.dy, b), g.outputs[0]))]


@operator("Div", lower=binary("div"), gradient=div_gradient, evaluate=numpy_of(integer_division), takes_rounded=(0, 1))
def div(c: InferenceContext) -> list[TensorType]:
    """c = a / b (integers truncate towards zero)"""
    return infer_broadcast(c)


def div_grad_decomposition(g: NodeBuilder) -> list[str]:
    """dA = dY / B and dB = -dY A / B ** 2, each summed over its broadcast axes."""
    dy, a, b = g.inputs
    da = g.op("Div", dy, b)
    db = g.op("Neg", g.op("Div", g.op("Mul", da, a), b)) if g.has_output(1) else ""
    return [g.unbroadcast(da, a) if g.has_output(0) else "", g.unbroadcast(db, b) if db else ""]


@operator("DivGrad", domain=MICROSOFT, differentiable=False, decompose=div_grad_decomposition)
def div_grad(c: InferenceContext) -> list[TensorType]:
    """dA = dY / B, dB = -dY A / B ** 2"""
    return [c.type(1), c.type(2)]


def pow_gradient(g: GradientBuilder) -> Gradients:
    x, e = g.inputs
    dx = de = None
    if g.needs(0):
        exponent_minus_one = g.op("Sub", e, g.scalar(1.0, e))
        dx = g.op("Mul", g.dy, g.op("Mul", g.op("Pow", x, exponent_minus_one), _cast_like(g, e, x)))
    if g.needs(1):
        positive = g.op("Greater", x, g.scalar(0.0, x))
        safe_base = g.op("Where", positive, x, g.scalar(1.0, x))       # ln 1 = 0: no gradient where x <= 0
        de = g.op("Mul", g.dy, g.op("Mul", g.outputs[0], g.op("Log", safe_base)))
    return [dx, de]


def _cast_like(g: GradientBuilder, value: str, like: str) -> str:
    """Return `value` cast to the dtype of `like`."""
    dtype = g.type(like).dtype
    return value if g.type(value).dtype == dtype else g.op("Cast", value, to=NUMBERS[dtype])


def pow_decomposition(g: NodeBuilder) -> list[str] | None:
    """Cast the exponent to the dtype of a floating-point base."""
    base, exponent = (g.type(name).dtype for name in g.inputs)
    return None if base == exponent or base not in DIFFERENTIABLE else [g.op("Pow", g.inputs[0], g.op("Cast", g.inputs[1], to=NUMBERS[base]))]


@operator("Pow", lower=binary("pow"), gradient=pow_gradient, evaluate=numpy_of(np.power), decompose=pow_decomposition, decompose_first=True)
def power(c: InferenceContext) -> list[TensorType]:
    """y = x ** e, in the dtype of x"""
    return [TensorType(c.dtype(0), broadcast_shapes(c, c.shape(0), c.shape(1)))]


def sum_gradient(g: GradientBuilder) -> Gradients:
    return [g.dy for _ in g.inputs]


@ElementwiseLowering
def lower_sum(c: LoweringContext) -> KernelCall:
    dims = c.output_dims(0)
    ints = [v for i in range(len(c.node.inputs)) for v in pack_broadcast(dims, dims, c.dims(i))]
    return KernelCall("sum", tuple(ints), in_place={0: 0} if c.dims(0) == dims else {})


@operator("Sum", lower=lower_sum, gradient=sum_gradient)
def variadic_sum(c: InferenceContext) -> list[TensorType]:
    """y = x0 + x1 + …, with broadcasting"""
    return [TensorType(c.dtype(0), broadcast_shapes(c, *(c.shape(i) for i in range(len(c.node.inputs)))))]


def variadic_decomposition(op_type: str) -> Callable[[NodeBuilder], list[str] | None]:
    """Return the decomposition into binary operators, op(op(x0, x1), x2) …; a single input is the output."""

    def decomposition(g: NodeBuilder) -> list[str] | None:
        if len(g.inputs) == 2:
            return None
        result = g.inputs[0]
        for operand in g.inputs[1:]:
            result = g.op(op_type, result, operand)
        return [result]

    return decomposition


def extreme_gradient(gradient_op: str) -> Callable[[GradientBuilder], Gradients]:
    """Return the gradient rule of Max or Min: dY flows to the larger (smaller) input, half of it to each where they are equal."""

    def rule(g: GradientBuilder) -> Gradients:
        a, b = g.inputs
        return [g.op(gradient_op, g.dy, *pair, domain=ORTRAIN) if g.needs(i) else None for i, pair in enumerate(((a, b), (b, a)))]

    return rule


def infer_extreme(c: InferenceContext) -> list[TensorType]:
    """y = max(x0, x1, …) or min(x0, x1, …), with broadcasting"""
    return list(variadic_sum(c))


def infer_extreme_gradient(c: InferenceContext) -> list[TensorType]:
    """da = dY where a is the extreme of (a, b), dY / 2 where a = b, else 0, of (dY, a, b)"""
    for index in (1, 2):
        check_broadcasts(c, index, c.shape(0))
    return same_as_input(c)


def _register_extremes() -> None:
    functions: dict[str, Callable[..., Any]] = {"Max": np.maximum, "Min": np.minimum}
    for name, function in functions.items():
        operator(name, lower=binary(name.lower()), gradient=extreme_gradient(f"{name}Grad"), decompose=variadic_decomposition(name), decompose_first=True,
                 evaluate=numpy_of(lambda *values, f=function: functools.reduce(f, values)))(infer_extreme)
        operator(f"{name}Grad", domain=ORTRAIN, lower=ternary(f"{name.lower()}_grad"), differentiable=False)(infer_extreme_gradient)


_register_extremes()


def mean_decomposition(g: NodeBuilder) -> list[str]:
    total = g.op("Sum", *g.inputs)
    return [g.op("Div", total, g.scalar(float(len(g.inputs)), total))]


@operator("Mean", decompose=mean_decomposition)
def mean(c: InferenceContext) -> list[TensorType]:
    """y = (x0 + x1 + …) / n of n inputs, with broadcasting"""
    return list(variadic_sum(c))


def mod_gradient(g: GradientBuilder) -> Gradients:
    a, b = g.inputs
    if not g.needs(1):
        return [g.dy, None]
    # y = a - b q, whose rounded quotient q is constant almost everywhere
    quotient = g.op("Div", g.op("Sub", a, g.outputs[0]), b)
    return [g.dy, g.op("Neg", g.op("Mul", g.dy, quotient))]


def evaluate_mod(c: InferenceContext) -> list[np.ndarray]:
    return [np.asarray((np.fmod if c.attribute("fmod", 0) else np.mod)(c.constant_value(0), c.constant_value(1)))]


@ElementwiseLowering
def lower_mod(c: LoweringContext) -> KernelCall:
    return KernelCall("mod", pack_broadcast(c.output_dims(0), c.dims(0), c.dims(1)), (float(c.attribute("fmod", 0)),), is_broadcast=True)


@operator("Mod", lower=lower_mod, gradient=mod_gradient, evaluate=evaluate_mod)
def mod(c: InferenceContext) -> list[TensorType]:
    """c = a mod b with the sign of b, or with the sign of a if `fmod` is set"""
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
    """y = |x|; the gradient at 0 is 0"""
    return same_as_input(c)


@operator("Exp", lower=unary("exp"), gradient=lambda g: [g.op("Mul", g.dy, g.outputs[0])])
def exp(c: InferenceContext) -> list[TensorType]:
    """y = e ** x"""
    return same_as_input(c)


@operator("Log", lower=unary("log"), gradient=lambda g: [g.op("Div", g.dy, g.inputs[0])])
def log(c: InferenceContext) -> list[TensorType]:
    """y = ln x"""
    return same_as_input(c)


def reciprocal_gradient(g: GradientBuilder) -> Gradients:
    y = g.outputs[0]
    return [g.op("Mul", g.dy, g.op("Neg", g.op("Mul", y, y)))]


@operator("Reciprocal", lower=unary("reciprocal"), gradient=reciprocal_gradient)
def reciprocal(c: InferenceContext) -> list[TensorType]:
    """y = 1 / x"""
    return same_as_input(c)


def infer_piecewise_constant(c: InferenceContext) -> list[TensorType]:
    """y = sign x, floor x, ceil x or round x (half to even); piecewise constant, so no gradient flows"""
    return same_as_input(c)


for _name, _kernel, _function in (("Sign", "sign", np.sign), ("Floor", "floor", np.floor), ("Ceil", "ceil", np.ceil), ("Round", "round", np.round)):
    operator(_name, lower=unary(_kernel), differentiable=False, evaluate=numpy_of(_function))(infer_piecewise_constant)


def erf_gradient(g: GradientBuilder) -> Gradients:
    x = g.inputs[0]
    gaussian = g.op("Exp", g.op("Neg", g.op("Mul", x, x)))
    return [g.op("Mul", g.dy, g.op("Mul", gaussian, g.scalar(2 / np.sqrt(np.pi), x)))]


@operator("Erf", lower=unary("erf"), gradient=erf_gradient)
def erf(c: InferenceContext) -> list[TensorType]:
    """y = erf x"""
    return same_as_input(c)


# ---- comparisons and logic: no gradient flows


def _register_comparisons() -> None:
    functions: dict[str, tuple[str, Callable[..., Any]]] = {
        "Equal": ("equal", np.equal), "Less": ("less", np.less), "LessOrEqual": ("less_or_equal", np.less_equal),
        "Greater": ("greater", np.greater), "GreaterOrEqual": ("greater_or_equal", np.greater_equal),
        "And": ("and", np.logical_and), "Or": ("or", np.logical_or), "Xor": ("xor", np.logical_xor),
    }
    for name, (kernel, function) in functions.items():
        operator(name, lower=binary(kernel), differentiable=False, evaluate=numpy_bool(function))(infer_comparison)


_register_comparisons()


@operator("Not", lower=unary("not"), differentiable=False, evaluate=numpy_bool(np.logical_not))
def logical_not(c: InferenceContext) -> list[TensorType]:
    """y = not x"""
    return same_as_input(c)


def infer_predicate(c: InferenceContext) -> list[TensorType]:
    """y = isnan(x), or isinf(x) restricted to the signs that the attributes select, as bool"""
    return [TensorType("bool", c.type(0).shape)]


operator("IsNaN", lower=ElementwiseLowering(lambda c: KernelCall("is_nan")), differentiable=False)(infer_predicate)
operator("IsInf", differentiable=False, lower=ElementwiseLowering(
    lambda c: KernelCall("is_inf", floats=(float(c.attribute("detect_negative", 1)), float(c.attribute("detect_positive", 1))))))(infer_predicate)


# ---- selection and casts


def where_gradient(g: GradientBuilder) -> Gradients:
    condition, a, _ = g.inputs
    zero = g.scalar(0.0, a)
    return [None, g.op("Where", condition, g.dy, zero) if g.needs(1) else None, g.op("Where", condition, zero, g.dy) if g.needs(2) else None]


@ElementwiseLowering
def lower_where(c: LoweringContext) -> KernelCall:
    return KernelCall("where", pack_broadcast(c.output_dims(0), c.dims(0), c.dims(1), c.dims(2)), is_broadcast=True)


@operator("Where", lower=lower_where, gradient=where_gradient, stop_gradient=(0,),
          evaluate=lambda c: [np.asarray(np.where(c.constant_value(0), c.constant_value(1), c.constant_value(2)))])
def where(c: InferenceContext) -> list[TensorType]:
    """y = a where condition else b, with broadcasting"""
    if c.dtype(0) != "bool" or c.dtype(1) != c.dtype(2):
        raise c.error(f"expected a bool condition and two inputs of one dtype, got {c.dtype(0)}, {c.dtype(1)} and {c.dtype(2)}")
    return [TensorType(c.dtype(1), broadcast_shapes(c, c.shape(0), c.shape(1), c.shape(2)))]


def cast_gradient(g: GradientBuilder) -> Gradients:
    source, target = g.type(g.inputs[0]).dtype, g.type(g.outputs[0]).dtype
    if source not in DIFFERENTIABLE or target not in DIFFERENTIABLE:
        return [None]
    return [g.dy if source == target else g.op("Cast", g.dy, to=NUMBERS[source])]


CASTS = frozenset({"float32", "float64", "int64", "int32", "uint8", "int8", "bool"})
"""Dtypes between any two of which a Cast kernel exists; another exists between float32 and each half-precision type."""


@ElementwiseLowering
def lower_cast(c: LoweringContext) -> KernelCall | Alias:
    pair = {c.dtype(0), c.output_dtype(0)}
    if len(pair) == 1:
        return Alias()
    if pair <= CASTS or "float32" in pair and pair & HALVES:
        return KernelCall("cast")
    raise MissingKernelError(f"expected a kernel from {c.dtype(0)} to {c.output_dtype(0)}, found none (operator Cast, node {c.node.name!r})")


def evaluate_cast(c: InferenceContext) -> Sequence[np.ndarray]:
    name = NAMES[c.attribute("to")]
    if name in EXTENSIONS - HALVES:
        from ortrain.ops.registry import onnx_definitions

        return onnx_definitions.evaluate(c)             # saturates these narrow types or not, depending on an attribute
    return [np.asarray(c.values[0]).astype(numpy_dtype(name))]


def element_type(c: InferenceContext) -> str:
    """Return the dtype that attribute `to` names."""
    name = NAMES.get(c.attribute("to"))
    if name is None:
        raise c.error(f"expected a known element type in attribute to, got {c.attribute('to')}")
    return name


@operator("Cast", lower=lower_cast, gradient=cast_gradient, evaluate=evaluate_cast)
def cast(c: InferenceContext) -> list[TensorType]:
    """y = x converted to the dtype `to`"""
    return [TensorType(element_type(c), c.shape(0))]


# ---- training operators of com.microsoft


def evaluate_scale(c: InferenceContext) -> list[np.ndarray]:
    x = c.constant_value(0)
    factor = c.constant_value(1).astype(x.dtype).reshape(())
    return [np.asarray(x / factor if c.attribute("scale_down", 0) else x * factor)]


def scale_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("Scale", g.dy, g.inputs[1], domain=MICROSOFT, scale_down=int(g.attribute("scale_down", 0)))]


@ElementwiseLowering
def lower_scale(c: LoweringContext) -> KernelCall:
    return KernelCall("scale", (int(c.attribute("scale_down", 0)),), in_place={0: 0})


@operator("Scale", domain=MICROSOFT, lower=lower_scale, evaluate=evaluate_scale, gradient=scale_gradient, stop_gradient=(1,))
def scale(c: InferenceContext) -> list[TensorType]:
    """y = x s, or x / s if `scale_down` is set; s has one element, of a float type or int64"""
    check_inputs(c, None, 1)
    check_scalars(c, 1)
    return same_as_input(c)
