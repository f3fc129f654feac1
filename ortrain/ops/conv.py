"""Convolution and its gradient, which ortrain.plan.layout replaces by channels-last ones (ops/channels_last.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from ortrain.ir import TensorType
from ortrain.ops.activation import fused_activation
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, operator
from ortrain.ops.registry.sample_gradients import ProductGradient, SampleGradient, SampleGradientBuilder
from ortrain.ops.shared.windows import Windows, explicit, integers, windows_of

ITEM_SIZE = {"float32": 4, "float64": 8}


# ---- inference


def conv_windows(c: InferenceContext, x: int, w: int) -> Windows:
    """Return the windows of a convolution. x, w: the indices of the inputs data and weight."""
    data, weight = c.shape(x), c.shape(w)
    if not 3 <= len(data) <= 5 or len(weight) != len(data):
        raise c.error(f"expected data and weight of the same rank, from 3 to 5, got shapes {list(data)} and {list(weight)}")
    kernel = c.attribute("kernel_shape")
    sizes = weight[2:]
    if kernel:
        kernel = integers(c, "kernel_shape", len(sizes), 1)
        if any(isinstance(s, int) and s != k for s, k in zip(sizes, kernel, strict=True)):
            raise c.error(f"expected kernel_shape {list(sizes)} of the weight, got {list(kernel)}")
    elif all(isinstance(s, int) for s in sizes):
        kernel = tuple(int(s) for s in sizes)
    else:
        raise c.error(f"expected kernel_shape or a weight of known size, got shape {list(weight)}")
    group = int(c.attribute("group", 1))
    channels, per_group, filters = data[1], weight[1], weight[0]
    if group < 1 or (isinstance(filters, int) and filters % group):
        raise c.error(f"expected a group that divides {filters} filters, got {group}")
    if isinstance(channels, int) and isinstance(per_group, int) and channels != per_group * group:
        raise c.error(f"expected {per_group * group} channels (weight {list(weight)}, group {group}), got {channels}")
    return windows_of(c, data[2:], kernel)


def same_float(c: InferenceContext, indices: Sequence[int]) -> str:
    """Return the dtype of the given inputs. Raises ShapeInferenceError unless all are float32 or all are float64."""
    kinds = [c.dtype(i) for i in indices]
    if kinds[0] not in ITEM_SIZE or len(set(kinds)) > 1:
        raise c.error(f"expected inputs of one dtype, float32 or float64, got {', '.join(kinds)}")
    return kinds[0]


def conv_gradient(g: GradientBuilder) -> list[str | None]:
    x, w = g.inputs[:2]
    biased = len(g.inputs) > 2 and bool(g.inputs[2])
    attributes = explicit_attributes(g)
    wanted = [g.needs(0), g.needs(1), biased and g.needs(2)]
    found = g.ops("ConvGrad", g.dy, x, w, outputs=wanted, domain=MICROSOFT, **attributes)
    return [name or None for name in found][: len(g.inputs)]


def explicit_attributes(g: GradientBuilder) -> dict[str, Any]:
    """Return the attributes of a Conv with the pads and the kernel that others stand for."""
    x, w = g.inputs[:2]
    c = InferenceContext(g.node, [g.type(x), g.type(w)], [None, None], g.opset)
    return explicit(g.node.attributes, conv_windows(c, 0, 1) if c.type(0).shape else None)


def conv_sample_gradients(g: SampleGradientBuilder) -> list[SampleGradient | None]:
    """The gradients of the filters, dy times the windows of x, positions being pixels, for each group by itself; and of the bias."""
    found: list[SampleGradient | None] = [None] * len(g.inputs)
    if g.needs(1):
        found[1] = filter_gradients(g, g.dy, g.inputs[0], explicit_attributes(g))
    if len(found) > 2 and g.needs(2):
        found[2] = g.whole(g.dy, g.inputs[2], axis=1)
    return found


def filter_gradients(g: SampleGradientBuilder, dy: str, x: str, attributes: Mapping[str, Any]) -> ProductGradient:
    """Return the gradients of filters, input 1 of the node, that convolve x, from the gradient of the result."""
    if g.needs(0) or g.positions[g.outputs[0]].axis:
        raise g.refusal("convolves weights")
    filters, channels, *kernel = (int(size) for size in g.shape(g.inputs[1]))
    group = int(g.attribute("group", 1))
    windows = g.op("Unfold", x, domain=ORTRAIN, **{name: value for name, value in attributes.items() if name in ("strides", "dilations", "pads", "auto_pad")},
                   kernel_shape=tuple(kernel))
    flat = g.op("Reshape", dy, g.constant([0, 0, -1]))
    if group > 1:
        windows, flat = (g.op("Reshape", value, g.op("Concat", g.op("Mul", g.count, g.constant([group])), g.constant([rows, -1]), axis=0))
                         for value, rows in ((windows, channels * prod(kernel)), (flat, filters // group)))
    return ProductGradient(flat, windows, positions_last=True, blocks=group)


# ---- records


@operator("Conv", planned_as="ChannelsLastConv", gradient=conv_gradient, sample_gradients=conv_sample_gradients)
def conv(c: InferenceContext) -> list[TensorType]:
    """y[n, k, o] = b[k] + sum over channels c of k's group and taps t of w[k, c, t] * x[n, c, o * stride + t * dilation - pad]"""
    windows = conv_windows(c, 0, 1)
    if c.has(2):
        bias, filters = c.shape(2), c.shape(1)[0]
        if len(bias) != 1 or (isinstance(bias[0], int) and isinstance(filters, int) and bias[0] != filters):
            raise c.error(f"expected a bias of shape [{filters}], got {list(bias)}")
    dtype = same_float(c, [0, 1, 2] if c.has(2) else [0, 1])
    return [TensorType(dtype, (c.shape(0)[0], c.shape(1)[0], *windows.output))]


def fused_conv_decomposition(g: NodeBuilder) -> list[str]:
    attributes = {name: value for name, value in g.node.attributes.items() if not name.startswith("activation")}
    y = g.op("Conv", *g.inputs[:3], **attributes)
    if g.has(3):
        y = g.op("Add", y, g.inputs[3])
    return [fused_activation(g, y, *map(float, g.attribute("activation_params", ())))]


@operator("FusedConv", domain=MICROSOFT, decompose=fused_conv_decomposition)
def fused_conv(c: InferenceContext) -> Sequence[TensorType]:
    """y = activation(Conv(x, w) + bias + z), found in models that ONNX Runtime optimized"""
    return conv(c)


@operator("ConvGrad", domain=MICROSOFT, planned_as="ChannelsLastConvGrad")
def conv_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dw, db) of (dy, x, w), the gradients of Conv; db[k] = sum over n and o of dy[n, k, o]"""
    windows = conv_windows(c, 1, 2)
    dtype = same_float(c, [0, 1, 2])
    dy, x, w = c.shape(0), c.shape(1), c.shape(2)
    wanted = (x[0], w[0], *windows.output)
    if len(dy) != len(wanted) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(dy, wanted, strict=True)):
        raise c.error(f"expected a gradient of shape {list(wanted)}, got {list(dy)}")
    return [c.type(1), c.type(2), TensorType(dtype, (w[0],))][: len(c.node.outputs)]
