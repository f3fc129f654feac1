"""Convolution, batch normalization and pooling on data [n, h, w, c]: what a plan puts in place of ONNX's, whose data is [n, c, h, w].

No model has these operators: ortrain.plan.layout makes them where every size is known, with weights as ONNX has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any

from ortrain.ir import Node, Shape, TensorType
from ortrain.ops.conv import shape_only_inputs_of_gradient
from ortrain.ops.registry.constants import symbolic_max, symbolic_min
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_gradient, check_inputs, check_shape, operator
from ortrain.ops.shared.conv_algorithms import (
    MIN_CHANNELS,
    SPREAD,
    Geometry,
    Method,
    data_rows,
    data_scratch,
    fits,
    forward_scratch,
    geometry_of,
    method_of,
    row_images,
    rows_at_a_time,
    up,
    weight_way,
    winograd_block,
)
from ortrain.ops.shared.windows import Windows, integers, windows_of

ITEM_SIZE = {"float32": 4, "float64": 8}


# Convolution


def conv_windows(c: InferenceContext, x: int, w: int) -> Windows:
    """The windows of a convolution whose data [n, h, w, c] and weight [k, c / group, kh, kw] are inputs x and w."""
    data, weight = c.shape(x), c.shape(w)
    group = int(c.attribute("group", 1))
    if len(data) != 4 or len(weight) != 4 or group < 1 or data[3] != int(weight[1]) * group or int(weight[0]) % group:
        raise c.error(f"expected data [n, h, w, c] and weight [k, c / {group}, kh, kw], got {list(data)} and {list(weight)}")
    return windows_of(c, data[1:3], [int(size) for size in weight[2:]])


def conv_geometry(c: LoweringContext, x: int, w: int) -> Geometry:
    return geometry_of(c.dims(x), c.dims(w)[0], int(c.attribute("group", 1)), conv_windows(c, x, w))


def limits(c: InferenceContext) -> tuple[int, float, float]:
    """(whether outputs are limited, the limits)."""
    low, high = float(c.attribute("low", -inf)), float(c.attribute("high", inf))
    return int((low, high) != (-inf, inf)), low, high


def has_tiles(c: LoweringContext) -> bool:
    return c.may_use_amx and c.dtype(0) == "float32"


def conv_lower(c: LoweringContext) -> KernelCall:
    v = conv_geometry(c, 0, 1)
    method = method_of(v, bool(c.attribute("direct", 0)), has_tiles(c))
    limited, low, high = limits(c)
    scratch = up(2 * v.filters, 16) + forward_scratch(v, method)
    return KernelCall("channels_last_conv", (*v.ints(), method, rows_at_a_time(v), limited), (float(c.attribute("epsilon", 0.0)), low, high),
                      scratch=scratch * ITEM_SIZE[c.dtype(0)])


def conv_grad_lower(c: LoweringContext) -> KernelCall:
    v = conv_geometry(c, 1, 2)
    method = method_of(v, bool(c.attribute("direct", 0)), has_tiles(c))
    weight_method, slices, weight_scratch = weight_way(v, method, has_tiles(c))
    method = Method.IM2COL if method == Method.DIRECT else method
    bias_blocks = symbolic_min(SPREAD, symbolic_max(1, v.pixels // 64))
    scratch = symbolic_max(data_scratch(v, method) if c.has_output(0) else 0, weight_scratch if c.has_output(1) else 0, bias_blocks * v.filters)
    block = winograd_block(v) if method == Method.WINOGRAD else row_images(v) if method == Method.WINOGRAD_1D else 0
    return KernelCall("channels_last_conv_grad", (*v.ints(), method, data_rows(v), weight_method, block, slices, bias_blocks),
                      scratch=scratch * ITEM_SIZE[c.dtype(0)], in_place={0: 3} if c.has(3) else {}, shape_only_inputs=shape_only_inputs_of_gradient(c))


@operator("ChannelsLastConv", domain=ORTRAIN, lower=conv_lower)
def conv(c: InferenceContext) -> list[TensorType]:
    """y [n, oh, ow, k] = Conv of x [n, h, w, c], w and bias; then of frozen statistics scale (y - mean) / sqrt(var + epsilon) + shift; then limited"""
    windows, filters = conv_windows(c, 0, 1), c.shape(1)[0]
    check_inputs(c, (filters,), *((2,) if c.has(2) else ()), *range(3, 7 if len(c.node.inputs) > 3 else 3))
    if not fits(geometry_of(c.type(0).sizes, int(filters), int(c.attribute("group", 1)), windows)):
        raise c.error(f"expected sizes that the ways of a convolution take, got {list(c.shape(0))} and {list(c.shape(1))}")
    return [TensorType(c.dtype(0), (c.shape(0)[0], *windows.output, filters))]


def conv_of_two(c: InferenceContext) -> Sequence[TensorType]:
    """ChannelsLastConv of data and weight alone, whatever is behind them."""
    c.node = replace(c.node, inputs=c.node.inputs[:2])
    return conv(c)


def adds_in_product(grad: Node, weight: TensorType) -> bool:
    """Whether the gradient of a convolution can be added to another one by the product that computes it."""
    get = grad.attributes.get
    return weight.sizes[2:] == (1, 1) and int(get("group", 1)) == 1 and not any(get("pads", ())) and get("auto_pad", "NOTSET") in ("NOTSET", "VALID")


@operator("ChannelsLastConvGrad", domain=ORTRAIN, lower=conv_grad_lower)
def conv_grad(c: InferenceContext) -> list[TensorType]:
    """dx, dw, db of (dy, x, w); with input 3 and w of [k, c, 1, 1] dx + input 3"""
    check_gradient(c, conv_of_two)
    if c.has(3) and (c.shape(3) != c.shape(1) or not adds_in_product(c.node, c.type(2))):
        raise c.error(f"expected a gradient of x of a 1 x 1 convolution to add to, got {list(c.shape(3))}")
    return [c.type(1), c.type(2), TensorType(c.dtype(2), (c.shape(2)[0],))][: len(c.node.outputs)]


# Batch normalization

OPEN, CLOSED = 1, 2
"""Whether the limits themselves let a gradient through: ReLU's do not, Clip's do (channels_last/batch_norm.h)."""


def check_normalized(c: InferenceContext, x: int, *vectors: int, alike: tuple[int, ...]) -> None:
    """Refuses what is no x, vectors with a number for each channel, and inputs of x's shape, of which only input 0 has to be there."""
    if len(c.shape(x)) != 4:
        raise c.error(f"expected x [n, h, w, c], got {list(c.shape(x))}")
    check_inputs(c, c.shape(x)[3:], *vectors)
    check_inputs(c, c.shape(x), *(index for index in alike if index == 0 or c.has(index)))


def norm_call(c: LoweringContext, kernel: str, x: int, in_place: dict[int, int]) -> KernelCall:
    dims = c.dims(x)
    pixels, channels = prod(dims[:3]), dims[3]
    rows = symbolic_max(64, -(-pixels // (2 * SPREAD)))
    limited, low, high = limits(c)
    floats = (float(c.attribute("epsilon", 1e-5)), float(c.attribute("momentum", 0.9)), low, high)
    scratch = -(-pixels // rows) * 2 * channels * 8 + 5 * channels * ITEM_SIZE[c.dtype(x)]
    return KernelCall(kernel, (pixels, channels, rows, (CLOSED if c.attribute("closed", 0) else OPEN) if limited else 0), floats, scratch=scratch,
                      in_place=in_place)


def over_residual(c: LoweringContext) -> dict[int, int]:
    """y may be written over the residual, or over x where there is none."""
    return {0: 5 if len(c.node.inputs) > 5 and c.node.inputs[5] else 0}


def norm_lower(c: LoweringContext) -> KernelCall:
    return norm_call(c, "channels_last_norm_train" if c.attribute("training_mode", 0) else "channels_last_norm", 0, over_residual(c))


def norm_grad_lower(c: LoweringContext) -> KernelCall:
    keeps_dz = len(c.node.outputs) > 3 and c.node.outputs[3]
    return norm_call(c, "channels_last_norm_grad", 1, {3: 0, 0: 1} if keeps_dz else {0: 0})


def norm_again(node: Node, y: str) -> Node | None:
    """y from x and the batch's statistics, which the gradient needs as well."""
    mean, inverse = node.outputs[3:5] if len(node.outputs) == 5 else ("", "")
    if not node.attributes.get("training_mode", 0) or not mean or not inverse:
        return None
    return Node("ChannelsLastBatchNormalizationAgain", [*node.inputs[:3], mean, inverse, *node.inputs[5:]], [y], node.name, ORTRAIN, node.attributes)


@operator("ChannelsLastBatchNormalization", domain=ORTRAIN, lower=norm_lower, rematerialize=norm_again, required_outputs=1)
def batch_normalization(c: InferenceContext) -> list[TensorType]:
    """BatchNormInternal of x [n, h, w, c], then a residual (input 5) added, then limited to [low, high]"""
    check_normalized(c, 0, 1, 2, 3, 4, alike=(5,))
    return [c.type(0), c.type(3), c.type(4), c.type(3), c.type(3)]


@operator("ChannelsLastBatchNormalizationAgain", domain=ORTRAIN, lower=lambda c: norm_call(c, "channels_last_norm_again", 0, over_residual(c)))
def batch_normalization_again(c: InferenceContext) -> list[TensorType]:
    """The y of a training BatchNormInternal again, of (x, scale, bias, mean, 1 / deviation, residual): the same bits"""
    check_normalized(c, 0, 1, 2, 3, 4, alike=(5,))
    return [c.type(0)]


@operator("ChannelsLastBatchNormalizationGrad", domain=ORTRAIN, lower=norm_grad_lower)
def batch_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias, dz) of (dy, x, scale, mean, 1 / deviation, bias, y); dz is dy behind the limits: of y where it is given, else of what x gives"""
    check_normalized(c, 1, 2, 3, 4, *((5,) if c.has(5) or limits(c)[0] and not c.has(6) else ()), alike=(0, 6))
    if c.has_output(3) and not (limits(c)[0] and c.has(6)):
        raise c.error("expected y and limits where dz is asked for, which is dy where there are none, got none")
    return [c.type(1), c.type(2), c.type(2), c.type(0)][: len(c.node.outputs)]


# Pooling


def pool_windows(c: InferenceContext, spatial: Any) -> Windows:
    return windows_of(c, spatial, integers(c, "kernel_shape", 2, 1))


def max_pool_lower(c: LoweringContext) -> KernelCall:
    data = c.dims(0)
    return KernelCall("channels_last_max_pool", geometry_of(data, data[3], 1, pool_windows(c, data[1:3])).ints())


def max_pool_grad_lower(c: LoweringContext) -> KernelCall:
    data = c.output_dims(0)
    return KernelCall("channels_last_max_pool_grad", geometry_of(data, data[3], 1, pool_windows(c, data[1:3])).ints())


def pooled(c: InferenceContext, data: Shape) -> Shape:
    if len(data) != 4 or int(data[3]) < MIN_CHANNELS:
        raise c.error(f"expected x [n, h, w, c] of {MIN_CHANNELS} channels at least, got {list(data)}")
    windows = pool_windows(c, data[1:3])
    if any(int(pad or 0) >= size for pads in (windows.begins, windows.ends) for pad, size in zip(pads, windows.kernel, strict=True)):
        raise c.error(f"expected pads smaller than the kernel {list(windows.kernel)}, got {list(windows.begins)} and {list(windows.ends)}")
    return (data[0], *windows.output, data[3])


@operator("ChannelsLastMaxPool", domain=ORTRAIN, lower=max_pool_lower, required_outputs=1)
def max_pool(c: InferenceContext) -> list[TensorType]:
    """MaxPool of x [n, h, w, c]; then the number of the tap that won (the first of equals)"""
    shape = pooled(c, c.shape(0))
    return [TensorType(c.dtype(0), shape), TensorType("int32", shape)][: len(c.node.outputs)]


@operator("ChannelsLastMaxPoolGrad", domain=ORTRAIN, lower=max_pool_grad_lower, stop_gradient=(1,))
def max_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dy, winning taps, y where a ReLU stands before the pool and dx is the gradient before it); attribute spatial: h and w of x"""
    height, width = integers(c, "spatial", 2, 1)
    dims = c.shape(0)
    check_shape(c, "a gradient", dims, pooled(c, (*dims[:1], height, width, *dims[3:])))
    check_inputs(c, dims, *((1, 2) if c.has(2) else (1,)))
    return [TensorType(c.dtype(0), (dims[0], height, width, dims[3]))]
