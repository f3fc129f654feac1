"""Convolution and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ortrain.ir import TensorType
from ortrain.ops.activation import fused_activation
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, KernelCall, LoweringContext, operator
from ortrain.ops.shared.windows import Windows, explicit, integers, packed, windows_of

ITEM_SIZE = {"float32": 4, "float64": 8}
BUFFER = 1 << 16
"""Elements of a buffer of unfolded windows (im2col): it is read right after it is written, so it should fit into the L2 cache."""
COLUMNS = 128
"""Minimum number of columns of a GEMM; feature maps with fewer positions are processed several images at a time."""
LANES = 64
"""Maximum number of work items at a time, each of which has a buffer."""
SCRATCH = 32 << 20
"""Maximum number of bytes of the buffers of one phase."""
SPREAD = 16
"""Number of work items to aim at where there are too few images. It is constant, so that results do not depend on the number of threads."""
SMALL = 1 << 17
"""Number of multiplications below which several threads are slower than one."""


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
    c = InferenceContext(g.node, [g.type(x), g.type(w)], [None, None], g.opset)
    attributes: dict[str, Any] = explicit(g.node.attributes, conv_windows(c, 0, 1) if c.type(0).shape else None)
    wanted = [g.needs(0), g.needs(1), biased and g.needs(2)]
    found = g.ops("ConvGrad", g.dy, x, w, outputs=wanted, domain=MICROSOFT, **attributes)
    return [name or None for name in found][: len(g.inputs)]


# ---- lowering


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one convolution; ints() gives the first 24 integers that its kernels read."""

    images: int
    channels: int
    filters: int
    group: int
    windows: tuple[int, ...]
    item_size: int

    @property
    def taps(self) -> int:
        return prod(self.windows[6:9])

    @property
    def positions(self) -> int:
        return prod(self.windows[3:6])

    @property
    def pointwise(self) -> bool:
        """True if unfolding would only copy the data: kernel size 1, stride 1, no pads."""
        return self.windows[:3] == self.windows[3:6] and self.taps == 1 and set(self.windows[9:12]) == {1} and not any(self.windows[12:15])

    @property
    def depthwise(self) -> bool:
        return self.group == self.channels > 1

    @property
    def small(self) -> bool:
        return self.images * self.filters * self.positions * self.taps * (self.channels // self.group) < SMALL

    def ints(self) -> tuple[int, ...]:
        return (self.images, self.channels, self.filters, self.group, *self.windows, int(self.pointwise))


def geometry(c: LoweringContext, x: int, w: int) -> Geometry:
    data, weight = c.dims(x), c.dims(w)
    windows = packed(conv_windows(c, x, w), data[2:])
    return Geometry(data[0], data[1], weight[0], int(c.attribute("group", 1)), windows, ITEM_SIZE[c.dtype(x)])


@dataclass(frozen=True, slots=True)
class Phase:
    """How one of the three GEMMs of a convolution (forward, data gradient, weight gradient) is divided into work items.

    A tile is `tile` positions of `batch` images (all positions if batch > 1), a block is `block` input channels. `lanes` items run at a time, each with
    `buffer` elements of scratch memory; `slices` partial sums over images are added in order."""

    tile: int
    batch: int
    block: int
    slices: int
    lanes: int
    buffer: int

    def ints(self) -> tuple[int, ...]:
        return (self.tile, self.batch, self.block, self.slices, self.lanes, self.buffer)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def batch_of(v: Geometry, share: int) -> int:
    """Return the images per tile: several if one has few positions, but so few that at least `share` tiles remain."""
    if v.positions >= COLUMNS:
        return 1
    return max(1, min(ceil_div(COLUMNS, v.positions), v.images // share))


def tile_of(v: Geometry, rows: int, batch: int) -> int:
    """Return the positions per tile: equal tiles of a multiple of 32 positions whose unfolded windows, of `rows` elements each, fill about BUFFER elements."""
    if batch > 1:
        return v.positions
    tiles = ceil_div(v.positions, max(COLUMNS, BUFFER // max(rows, 1)))
    return min(v.positions, ceil_div(ceil_div(v.positions, tiles), 32) * 32)


def phase(v: Geometry, batch: int, block: int, items: int, slices: int = 1, tile: int | None = None) -> Phase:
    """Return a phase with its buffer and lanes. items: the number of work items. tile: positions per tile; None to choose it."""
    rows = block * v.taps
    size = tile or tile_of(v, rows, batch)
    columns = size * batch
    buffer = (0 if v.pointwise and batch == 1 else rows * columns) + (v.filters // v.group * columns if batch > 1 else 0)
    buffer = ceil_div(buffer, 16) * 16
    room = SCRATCH // (max(buffer, 1) * v.item_size)
    lanes = 1 if v.small else max(1, min(items, LANES, room))
    return Phase(size, batch, block, slices, lanes, buffer)


def forward_phase(v: Geometry) -> Phase:
    """Return the phase of the forward pass, with work items (images of a tile, group, tile)."""
    per_group = v.channels // v.group
    batch = batch_of(v, 8)
    tile = tile_of(v, per_group * v.taps, batch)
    return phase(v, batch, per_group, ceil_div(v.images, batch) * v.group * ceil_div(v.positions, tile), tile=tile)


def block_of(v: Geometry, items: int) -> int:
    """Return the channels per block, so that `items` times the number of blocks is about SPREAD, and GEMMs have at least 32 columns."""
    per_group = v.channels // v.group
    blocks = max(1, min(ceil_div(SPREAD, max(items, 1)), per_group * v.taps // 32))
    return max(1, ceil_div(per_group, min(blocks, max(per_group, 1))))


def data_phase(v: Geometry) -> Phase:
    """Return the phase of the data gradient, with work items (images of a tile, group, block of channels)."""
    batch = batch_of(v, 8)
    items = ceil_div(v.images, batch) * v.group
    block = block_of(v, items)
    return phase(v, batch, block, items * ceil_div(v.channels // v.group, block))


def weight_phase(v: Geometry) -> Phase:
    """Return the phase of the weight gradient, with work items (slice of images, group, block of channels)."""
    batch = batch_of(v, 1)
    block = block_of(v, v.group)
    items = v.group * ceil_div(v.channels // v.group, block)
    weight = v.filters * (v.channels // v.group) * v.taps
    slices = max(1, min(ceil_div(SPREAD, items), ceil_div(v.images, batch), SCRATCH // max(weight * v.item_size, 1)))
    return phase(v, batch, block, items * slices, slices)


def lower_conv(c: LoweringContext) -> KernelCall:
    v = geometry(c, 0, 1)
    if v.depthwise:
        return KernelCall("conv_depthwise", v.ints())
    forward = forward_phase(v)
    return KernelCall("conv", v.ints() + forward.ints(), scratch=forward.lanes * forward.buffer * v.item_size)


def depthwise_gradient_call(v: Geometry) -> KernelCall:
    """Return the kernel call for the gradients of a depthwise convolution."""
    buffer = v.taps * ceil_div(v.windows[5], 16) * 16 * v.item_size              # per channel one row of partial sums for each tap
    lanes = 1 if v.small else max(1, min(v.channels, LANES, SCRATCH // buffer))
    return KernelCall("conv_grad_depthwise", (*v.ints(), lanes), scratch=lanes * buffer)


def lower_conv_grad(c: LoweringContext) -> KernelCall:
    v = geometry(c, 1, 2)
    if v.depthwise:
        return replace(depthwise_gradient_call(v), shape_only_inputs=shape_only_inputs_of_gradient(c))
    data, weight = data_phase(v), weight_phase(v)
    partial = v.filters * (v.channels // v.group) * v.taps * weight.slices if weight.slices > 1 else 0
    scratch = max(data.lanes * data.buffer, weight.lanes * weight.buffer + partial)
    return KernelCall("conv_grad", v.ints() + data.ints() + weight.ints(), scratch=scratch * v.item_size, shape_only_inputs=shape_only_inputs_of_gradient(c))


def shape_only_inputs_of_gradient(c: LoweringContext) -> tuple[int, ...]:
    """Return the inputs of (dy, x, w) -> (dx, dw, db) of which the kernel reads no element: x without output dw, w without output dx."""
    return tuple(index for index, reader in ((1, 1), (2, 0)) if not c.has_output(reader))


# ---- records


@operator("Conv", lower=lower_conv, gradient=conv_gradient)
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


@operator("ConvGrad", domain=MICROSOFT, lower=lower_conv_grad)
def conv_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dw, db) of (dy, x, w), the gradients of Conv; db[k] = sum over n and o of dy[n, k, o]"""
    windows = conv_windows(c, 1, 2)
    dtype = same_float(c, [0, 1, 2])
    dy, x, w = c.shape(0), c.shape(1), c.shape(2)
    wanted = (x[0], w[0], *windows.output)
    if len(dy) != len(wanted) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(dy, wanted, strict=True)):
        raise c.error(f"expected a gradient of shape {list(wanted)}, got {list(dy)}")
    return [c.type(1), c.type(2), TensorType(dtype, (w[0],))][: len(c.node.outputs)]
