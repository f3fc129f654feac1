"""Activation functions and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortrain.ir import TensorType
from ortrain.ops.elementwise import binary, infer_broadcast, same_as_input, ternary, unary
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import (
    MICROSOFT,
    ORTRAIN,
    Decomposition,
    ElementwiseLowering,
    GradientRule,
    InferenceContext,
    KernelCall,
    LoweringContext,
    check_broadcasts,
    check_inputs,
    operator,
)

Gradients = Sequence[str | None]


def relu_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("ReluGrad", g.dy, g.outputs[0], domain=MICROSOFT)]


@operator("Relu", lower=unary("relu"), gradient=relu_gradient, takes_rounded=(0,))
def relu(c: InferenceContext) -> list[TensorType]:
    """y = max(x, 0)"""
    return same_as_input(c)


def leaky_relu_gradient(g: GradientBuilder) -> Gradients:
    # of x, not of y as in ONNX Runtime training 1.19: the sign of y does not tell the branch where alpha is negative
    return [g.op("LeakyReluGrad", g.dy, g.inputs[0], domain=MICROSOFT, alpha=float(g.attribute("alpha", 0.01)))]


@operator("LeakyRelu", lower=unary("leaky_relu", ("alpha", 0.01)), gradient=leaky_relu_gradient, takes_rounded=(0,))
def leaky_relu(c: InferenceContext) -> list[TensorType]:
    """y = x where x > 0 else alpha x"""
    return same_as_input(c)


@operator("Sigmoid", lower=unary("sigmoid"), gradient=lambda g: [g.op("SigmoidGrad", g.dy, g.outputs[0], domain=MICROSOFT)], takes_rounded=(0,))
def sigmoid(c: InferenceContext) -> list[TensorType]:
    """y = 1 / (1 + e ** -x)"""
    return same_as_input(c)


@operator("Tanh", lower=unary("tanh"), gradient=lambda g: [g.op("TanhGrad", g.dy, g.outputs[0], domain=MICROSOFT)], takes_rounded=(0,))
def tanh(c: InferenceContext) -> list[TensorType]:
    """y = tanh x"""
    return same_as_input(c)


def gelu_gradient(g: GradientBuilder) -> Gradients:
    gradient_op = "FastGeluGrad" if g.attribute("approximate", "none") == "tanh" else "GeluGrad"
    return [g.op(gradient_op, g.dy, g.inputs[0], domain=MICROSOFT)]


@ElementwiseLowering
def lower_gelu(c: LoweringContext) -> KernelCall:
    return KernelCall("fast_gelu" if c.attribute("approximate", "none") == "tanh" else "gelu", in_place={0: 0})


@operator("Gelu", lower=lower_gelu, gradient=gelu_gradient, takes_rounded=(0,))
def gelu(c: InferenceContext) -> list[TensorType]:
    """y = x (1 + erf(x / sqrt 2)) / 2, or its tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415)"""
    return same_as_input(c)


@operator("Gelu", domain=MICROSOFT, lower=unary("gelu"), gradient=gelu_gradient, takes_rounded=(0,))
def microsoft_gelu(c: InferenceContext) -> list[TensorType]:
    """y = x (1 + erf(x / sqrt 2)) / 2"""
    return same_as_input(c)


def bias_gelu_gradient(gradient_op: str) -> GradientRule:
    """Return the gradient rule of gelu(x + bias): dx, which gradient.py also sums to the bias's shape.

    gradient_op: GeluGrad or FastGeluGrad."""

    def rule(g: GradientBuilder) -> Gradients:
        if not g.has(1):
            return [g.op(gradient_op, g.dy, g.inputs[0], domain=MICROSOFT)]
        dx = g.op("Bias" + gradient_op + "_dX", g.dy, *g.inputs, domain=MICROSOFT)
        return [dx, dx]

    return rule


def bias_gelu_decomposition(op_type: str) -> Decomposition:
    """Return the decomposition into op_type(x + bias), which applies where the node has a bias."""
    return lambda g: [g.op(op_type, g.op("Add", *g.inputs), domain=MICROSOFT)] if g.has(1) else None


def infer_bias_gelu(c: InferenceContext) -> list[TensorType]:
    """Return the type of x broadcast with the bias [n], which is optional."""
    if not c.has(1):
        return same_as_input(c)
    if len(c.shape(1)) != 1:
        raise c.error(f"expected a bias with one axis, got {list(c.shape(1))}")
    return infer_broadcast(c)


@operator("FastGelu", domain=MICROSOFT, lower=unary("fast_gelu"), gradient=bias_gelu_gradient("FastGeluGrad"), decompose=bias_gelu_decomposition("FastGelu"),
          takes_rounded=(0,))
def fast_gelu(c: InferenceContext) -> list[TensorType]:
    """y = z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z ** 3))) / 2 for z = x + bias, or z = x without a bias"""
    return infer_bias_gelu(c)


@operator("BiasGelu", domain=MICROSOFT, gradient=bias_gelu_gradient("GeluGrad"), decompose=bias_gelu_decomposition("Gelu"))
def bias_gelu(c: InferenceContext) -> list[TensorType]:
    """y = gelu(x + bias), the bias [n] along the last axis"""
    return infer_bias_gelu(c)


def bias_gelu_grad_decomposition(gradient_op: str) -> Decomposition:
    """Return the decomposition into gradient_op(dY, x + bias)."""
    return lambda g: [g.op(gradient_op, g.inputs[0], g.op("Add", g.inputs[1], g.inputs[2]), domain=MICROSOFT)]


for _gradient_op in ("GeluGrad", "FastGeluGrad"):
    operator(f"Bias{_gradient_op}_dX", domain=MICROSOFT, decompose=bias_gelu_grad_decomposition(_gradient_op), differentiable=False)(same_as_input)


def quick_gelu_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("QuickGeluGrad", g.dy, g.inputs[0], domain=MICROSOFT, alpha=float(g.attribute("alpha", 1.702)))]


@operator("QuickGelu", domain=MICROSOFT, lower=unary("quick_gelu", ("alpha", 1.702)), gradient=quick_gelu_gradient, takes_rounded=(0,))
def quick_gelu(c: InferenceContext) -> list[TensorType]:
    """y = x sigmoid(alpha x)"""
    return same_as_input(c)


# ---- activations whose gradient is one kernel of (dY, x), an operator in the domain ortrain


def _register_with_gradient(op_type: str, kernel: str, formula: str, *attributes: tuple[str, float]) -> None:
    """Register y = f(x) and its gradient operator, `op_type`Grad with kernel `kernel`_grad.

    formula: the operator's summary. attributes: (name, default) of float attributes."""

    def gradient(g: GradientBuilder) -> Gradients:
        values: dict[str, Any] = {name: float(g.attribute(name, default)) for name, default in attributes}
        return [g.op(f"{op_type}Grad", g.dy, g.inputs[0], domain=ORTRAIN, **values)]

    def infer(c: InferenceContext) -> list[TensorType]:
        return same_as_input(c)

    def infer_gradient(c: InferenceContext) -> list[TensorType]:
        return infer_broadcast(c)

    infer.__doc__, infer_gradient.__doc__ = formula, f"dx = dY f'(x) of (dY, x), for f = {op_type}"
    operator(op_type, lower=unary(kernel, *attributes), gradient=gradient, takes_rounded=(0,))(infer)
    operator(f"{op_type}Grad", domain=ORTRAIN, lower=binary(f"{kernel}_grad", *attributes), takes_rounded=(1,))(infer_gradient)


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""Defaults of Selu's attributes, as ONNX gives them: float32 numbers."""

_register_with_gradient("Elu", "elu", "y = x where x >= 0 else alpha (e ** x - 1)", ("alpha", 1.0))
_register_with_gradient("Celu", "celu", "y = x where x >= 0 else alpha (e ** (x / alpha) - 1)", ("alpha", 1.0))
_register_with_gradient("Selu", "selu", "y = gamma x where x > 0 else gamma alpha (e ** x - 1)", ("alpha", SELU_ALPHA), ("gamma", SELU_GAMMA))
_register_with_gradient("Softplus", "softplus", "y = ln(1 + e ** x)")
_register_with_gradient("Softsign", "softsign", "y = x / (1 + |x|)")
_register_with_gradient("Mish", "mish", "y = x tanh(ln(1 + e ** x))")
_register_with_gradient("HardSigmoid", "hard_sigmoid", "y = min(max(alpha x + beta, 0), 1)", ("alpha", 0.2), ("beta", 0.5))
_register_with_gradient("HardSwish", "hard_swish", "y = x min(max(x / 6 + 1 / 2, 0), 1)")
_register_with_gradient("ThresholdedRelu", "thresholded_relu", "y = x where x > alpha else 0", ("alpha", 1.0))
_register_with_gradient("Shrink", "shrink", "y = x + bias where x < -lambd, x - bias where x > lambd, else 0", ("lambd", 0.5), ("bias", 0.0))


def swish_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("QuickGeluGrad", g.dy, g.inputs[0], domain=MICROSOFT, alpha=float(g.attribute("alpha", 1.0)))]


@operator("Swish", lower=unary("quick_gelu", ("alpha", 1.0)), gradient=swish_gradient, takes_rounded=(0,))
def swish(c: InferenceContext) -> list[TensorType]:
    """y = x sigmoid(alpha x)"""
    return same_as_input(c)


def prelu_gradient(g: GradientBuilder) -> Gradients:
    dx = g.op("PReluGrad", g.dy, *g.inputs, domain=ORTRAIN) if g.needs(0) else None
    return [dx, g.op("PReluSlopeGrad", g.dy, g.inputs[0], domain=ORTRAIN) if g.needs(1) else None]


@operator("PRelu", lower=binary("prelu"), gradient=prelu_gradient)
def prelu(c: InferenceContext) -> list[TensorType]:
    """y = x where x >= 0 else slope x, the slope broadcast to the shape of x"""
    result = infer_broadcast(c)
    if result[0].is_static and c.type(0).is_static and result[0].shape != c.shape(0):
        raise c.error(f"expected a slope that broadcasts to {list(c.shape(0))}, got {list(c.shape(1))}")
    return [c.type(0)]


@operator("PReluGrad", domain=ORTRAIN, lower=ternary("prelu_grad"), takes_rounded=(1,))
def prelu_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dY where x >= 0 else slope dY, of (dY, x, slope)"""
    check_inputs(c, c.shape(0), 1)
    check_broadcasts(c, 2, c.shape(0))
    return same_as_input(c)


@operator("PReluSlopeGrad", domain=ORTRAIN, lower=binary("prelu_slope_grad"), takes_rounded=(1,))
def prelu_slope_grad(c: InferenceContext) -> list[TensorType]:
    """dslope = dY x where x < 0 else 0, of (dY, x), not yet summed to the slope's shape"""
    return infer_broadcast(c)


def fused_activation(g: NodeBuilder, y: str, *parameters: float) -> str:
    """Return the activation that a fused operator's attribute `activation` names, applied to y; y itself without one.

    parameters: the activation's alpha (LeakyRelu) or its limits (Clip)."""
    name = g.attribute("activation", "")
    if not name:
        return y
    if name == "LeakyRelu":
        return g.op(name, y, alpha=float(parameters[0]) if parameters else 0.01)
    if name == "Clip" and len(parameters) == 2:
        return g.op(name, y, g.scalar(parameters[0], y), g.scalar(parameters[1], y))
    if name in ("Relu", "Sigmoid", "Tanh"):
        return g.op(name, y)
    raise g.error(f"expected an activation of Relu, LeakyRelu, Sigmoid, Tanh or Clip, got {name!r}")


for _name, _kernel, _attributes in (
    ("ReluGrad", "relu_grad", ()), ("SigmoidGrad", "sigmoid_grad", ()), ("TanhGrad", "tanh_grad", ()), ("GeluGrad", "gelu_grad", ()),
    ("FastGeluGrad", "fast_gelu_grad", ()), ("LeakyReluGrad", "leaky_relu_grad", (("alpha", 0.01),)),
    ("QuickGeluGrad", "quick_gelu_grad", (("alpha", 1.702),)),
):
    operator(_name, domain=MICROSOFT, lower=binary(_kernel, *_attributes), takes_rounded=(1,))(infer_broadcast)


def clip_limits(c: LoweringContext) -> tuple[float, float]:
    """Return the (lower, upper) limits of a Clip, from inputs or (before opset 11) attributes; infinite where absent.

    Where the lower limit is above the upper one, the upper one applies."""
    low, high = c.attribute("min", float("-inf")), c.attribute("max", float("inf"))
    for index in (1, 2):
        if c.has(index):
            value = c.value(index)
            if value is None:
                raise c.error(f"expected constant limits, got a computed one as input {index}")
            low, high = (float(value), high) if index == 1 else (low, float(value))
    return min(low, high), high


def clip_gradient(g: GradientBuilder) -> Gradients:
    x = g.inputs[0]
    within_limits = []
    names = [*g.inputs, "", ""]
    for index, attribute, compare in ((1, "min", "Less"), (2, "max", "Greater")):
        limit = names[index] or (g.scalar(g.attribute(attribute), x) if g.attribute(attribute) is not None else "")
        if limit:
            within_limits.append(g.op("Not", g.op(compare, x, limit)))
    if not within_limits:
        return [g.dy]
    mask = within_limits[0] if len(within_limits) == 1 else g.op("And", *within_limits)
    return [g.op("Where", mask, g.dy, g.scalar(0.0, x))]


@ElementwiseLowering
def lower_clip(c: LoweringContext) -> KernelCall:
    return KernelCall("clip", floats=clip_limits(c), in_place={0: 0})


@operator("Clip", lower=lower_clip, gradient=clip_gradient, stop_gradient=(1, 2))
def clip(c: InferenceContext) -> list[TensorType]:
    """y = min(max(x, low), high); the gradient at the limits is dY"""
    return same_as_input(c)
