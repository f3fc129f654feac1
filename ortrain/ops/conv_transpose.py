"""Transposed convolution, which computes the data gradient of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortrain.ir import Dim, TensorType
from ortrain.ops.conv import filter_gradients, same_float
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, check_shape, operator
from ortrain.ops.registry.sample_gradients import SampleGradient, SampleGradientBuilder
from ortrain.ops.shared.windows import Windows, auto_pad_of, integers


def transposed_windows(c: InferenceContext, x: int, w: int) -> Windows:
    """Return the windows of the convolution whose data gradient the node computes; their `output` has the spatial sizes of the node's own output.

    x, w: the indices of the inputs data and weight."""
    data, weight = c.shape(x), c.shape(w)
    if not 3 <= len(data) <= 5 or len(weight) != len(data):
        raise c.error(f"expected data and weight of the same rank, from 3 to 5, got shapes {list(data)} and {list(weight)}")
    rank = len(data) - 2
    kernel = tuple(int(v) for v in c.attribute("kernel_shape") or ()) or weight[2:]
    if not all(isinstance(size, int) for size in kernel) or len(kernel) != rank:
        raise c.error(f"expected kernel_shape or a weight of known size, got shape {list(weight)}")
    sizes = tuple(int(size) for size in kernel)
    strides, dilations = integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1)
    extra, pads = integers(c, "output_padding", rank, 0), integers(c, "pads", 2 * rank, 0)
    wanted = c.attribute("output_shape")
    wanted = tuple(int(v) for v in wanted)[-rank:] if wanted else None
    if wanted is not None and len(wanted) != rank:
        raise c.error(f"expected an output_shape of {rank} sizes, got {list(wanted)}")
    begins: list[int | None] = []
    ends: list[int | None] = []
    output: list[Dim] = []
    for axis in range(rank):
        begin, end, size = _axis(c, axis, data[2 + axis], (sizes[axis] - 1) * dilations[axis] + 1 + extra[axis], strides[axis],
                                 (pads[axis], pads[rank + axis]), None if wanted is None else wanted[axis])
        begins.append(begin)
        ends.append(end)
        output.append(size)
    return Windows(sizes, strides, dilations, tuple(begins), tuple(ends), tuple(output))


def _axis(c: InferenceContext, axis: int, size: Dim, reach: int, stride: int, pads: tuple[int, int],
          wanted: int | None) -> tuple[int | None, int | None, Dim]:
    """Return (begin pad, end pad, output size) of one axis; pads that depend on an unknown size are None."""
    auto_pad = auto_pad_of(c.node.attributes)
    same = auto_pad.startswith("SAME")
    if wanted is None and not same:
        begin, end = (0, 0) if auto_pad == "VALID" else pads
        found: Dim = stride * (size - 1) + reach - begin - end if isinstance(size, int) else c.new_symbol(f"spatial{axis}")
        if isinstance(found, int) and found < 1:
            raise c.error(f"expected pads that leave at least one element, got an output size of {found} along spatial axis {axis}")
        return begin, end, found
    if same and wanted is None:
        total: int | None = max(reach - stride, 0)
        found = size * stride if isinstance(size, int) else size if stride == 1 else c.new_symbol(f"spatial{axis}")
    else:
        assert wanted is not None
        total, found = max(stride * (size - 1) + reach - wanted, 0) if isinstance(size, int) else None, wanted
    if total is None:
        return None, None, found
    small = total // 2
    return (small, total - small, found) if auto_pad == "SAME_UPPER" else (total - small, small, found)


def convolution_attributes(g: NodeBuilder, x: int = 0, w: int = 1) -> dict[str, Any]:
    """Return the attributes of the convolution whose data gradient the node computes. x, w: the indices of the inputs data and weight."""
    windows = transposed_windows(g.context(), x, w)
    pads = windows.padded()
    if pads is None:
        raise g.error("expected known spatial sizes beside output_shape, got symbols")
    return {"kernel_shape": windows.kernel, "strides": windows.strides, "dilations": windows.dilations, "pads": pads, "group": int(g.attribute("group", 1))}


def transposed_gradient(g: GradientBuilder) -> Sequence[str | None]:
    x, w = g.inputs[:2]
    attributes = convolution_attributes(g)
    dx = g.op("Conv", g.dy, w, **attributes) if g.needs(0) else None
    dw = g.ops("ConvGrad", x, g.dy, w, outputs=[False, True], domain=MICROSOFT, **attributes)[1] if g.needs(1) else None
    db = g.reduce_sum(g.dy, [0, *range(2, g.rank(x))], keepdims=False) if g.has(2) and g.needs(2) else None
    return [dx, dw, db][: len(g.inputs)]


def transposed_sample_gradients(g: SampleGradientBuilder) -> list[SampleGradient | None]:
    """Those of the convolution whose data gradient the node computes, in which x and dy have changed places."""
    found: list[SampleGradient | None] = [None] * len(g.inputs)
    if any(g.attribute("output_padding") or ()) or g.attribute("output_shape"):
        raise g.refusal("has an output_padding or output_shape")
    if g.needs(1):
        found[1] = filter_gradients(g, g.inputs[0], g.dy, convolution_attributes(g))
    if len(found) > 2 and g.needs(2):
        found[2] = g.whole(g.dy, g.inputs[2], axis=1)
    return found


def conv_transpose_decomposition(g: NodeBuilder) -> list[str]:
    """Return ConvInputGrad, plus the bias if there is one."""
    windows = transposed_windows(g.context(), 0, 1)
    sizes = tuple(size for size in windows.output if isinstance(size, int))
    y = g.op("ConvInputGrad", g.inputs[0], "", g.inputs[1], domain=ORTRAIN, output_shape=sizes, **convolution_attributes(g))
    if not g.has(2):
        return [y]
    shape = g.constant([1, -1, *[1] * (g.rank(y) - 2)])
    return [g.op("Add", y, g.op("Reshape", g.inputs[2], shape))]


@operator("ConvTranspose", gradient=transposed_gradient, decompose=conv_transpose_decomposition, sample_gradients=transposed_sample_gradients)
def conv_transpose(c: InferenceContext) -> list[TensorType]:
    """y[n, k, o] = b[k] + sum over channels c and taps t with o = i stride + t dilation - pad of w[c, k, t] x[n, c, i]"""
    windows = transposed_windows(c, 0, 1)
    data, weight, group = c.shape(0), c.shape(1), int(c.attribute("group", 1))
    if isinstance(data[1], int) and isinstance(weight[0], int) and data[1] != weight[0] or group < 1:
        raise c.error(f"expected a weight of {data[1]} channels and a positive group, got weight {list(weight)} and group {group}")
    filters = weight[1] * group if isinstance(weight[1], int) else c.new_symbol("filters")
    dtype = same_float(c, [0, 1, 2] if c.has(2) else [0, 1])
    return [TensorType(dtype, (data[0], filters, *windows.output))]


def gradient_windows(c: InferenceContext, kernel: Sequence[Dim], output: Sequence[Dim]) -> Windows:
    """Return the windows of the convolution whose data gradient the node computes. output: the spatial sizes of dy."""
    rank = len(kernel)
    pads = integers(c, "pads", 2 * rank, 0)
    return Windows(tuple(int(size) for size in kernel), integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1), pads[:rank], pads[rank:],
                   tuple(output))


@operator("ConvInputGrad", domain=ORTRAIN, planned_as="ChannelsLastConvInputGrad")
def conv_input_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dy, absent, w): the data gradient of Conv; attribute output_shape: the spatial sizes of dx"""
    dy, weight = c.shape(0), c.shape(2)
    channels, rank, group = weight[1], len(dy) - 2, int(c.attribute("group", 1))
    if len(weight) != len(dy) or group < 1 or len(c.attribute("output_shape")) != rank or any(isinstance(n, str) for n in weight[2:]):
        raise c.error(f"expected a gradient and a weight of the same rank, and one output_shape per spatial axis, got {list(dy)} and {list(weight)}")
    check_shape(c, "a gradient", dy[:2], (dy[0], weight[0]))
    pads, strides, dilations = integers(c, "pads", 2 * rank, 0), integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1)
    for axis, size in enumerate(c.attribute("output_shape")):
        count = (size + pads[axis] + pads[rank + axis] - dilations[axis] * (int(weight[2 + axis]) - 1) - 1) // strides[axis] + 1
        have = dy[2 + axis]
        if isinstance(have, int) and have > count:
            raise c.error(f"expected at most {count} windows along axis {axis}, got {have}")
    return [TensorType(c.dtype(0), (c.shape(0)[0], channels * group if isinstance(channels, int) else c.new_symbol("channels"), *c.attribute("output_shape")))]
