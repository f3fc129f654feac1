"""Convolution, normalization and pooling on channels-last data, which plans substitute for the ONNX operators on [n, c, h, w] and [n, c, d, h, w].

No model file contains them: ortrain.plan.layout creates them. Data are [n, h, w, c], or [n, d, h, w, c] if they are three-dimensional, which is not repeated
below. Weights keep ONNX's layout [k, c / group, kh, kw]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, inf, prod

from ortrain.ir import Dim, Node, Shape, TensorType
from ortrain.ops.conv import ITEM_SIZE
from ortrain.ops.conv_transpose import gradient_windows
from ortrain.ops.registry.constants import symbolic_max, symbolic_min
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_gradient, check_inputs, check_shape, operator
from ortrain.ops.shared.conv_algorithms import (
    MAX_TAPS,
    SPREAD,
    Method,
    data_gradient_method,
    data_gradient_rows,
    data_scratch,
    forward_scratch,
    im2col_rows,
    is_supported,
    method_of,
    round_up,
    row_winograd_block,
    weight_gradient_algorithm,
    winograd_block,
)
from ortrain.ops.shared.conv_geometry import Geometry, geometry_of
from ortrain.ops.shared.windows import Windows, integers, output_size, windows_of

RANKS = (4, 5)
"""Numbers of axes of channels-last data."""

# ---- convolution


def data_shape(c: InferenceContext, x: int) -> Shape:
    """Return the shape [n, h, w, c] of a convolution's data, input x, which may be [n, c, h, w] in memory."""
    shape = c.shape(x)
    return (shape[0], *shape[2:], shape[1]) if c.attribute("reads_planes", 0) and len(shape) in RANKS else shape


def conv_windows(c: InferenceContext, x: int, w: int) -> Windows:
    """Return the windows of a convolution. x, w: the indices of the inputs data [n, h, w, c] and weight [k, c / group, kh, kw]."""
    data, weight = data_shape(c, x), c.shape(w)
    group = int(c.attribute("group", 1))
    if len(data) not in RANKS or len(weight) != len(data) or group < 1 or data[-1] != int(weight[1]) * group or int(weight[0]) % group:
        raise c.error(f"expected data [n, h, w, c] and weight [k, c / {group}, kh, kw], got {list(data)} and {list(weight)}")
    return windows_of(c, data[1:-1], [int(size) for size in weight[2:]])


def conv_geometry(c: LoweringContext, x: int, w: int) -> Geometry:
    data = TensorType(c.dtype(x), data_shape(c, x)).sizes
    return geometry_of(data, c.dims(w)[0], int(c.attribute("group", 1)), conv_windows(c, x, w))


def limits(c: InferenceContext) -> tuple[int, float, float]:
    """Return (1 if a clipping activation is fused into the node else 0, its lower limit, its upper limit)."""
    low, high = float(c.attribute("low", -inf)), float(c.attribute("high", inf))
    return int((low, high) != (-inf, inf)), low, high


def can_use_amx(c: LoweringContext) -> bool:
    return c.may_use_amx and c.dtype(0) == "float32"


def can_round(c: LoweringContext) -> bool:
    return c.takes_bfloat16 and c.dtype(0) == "float32"


def lower_conv(c: LoweringContext) -> KernelCall:
    v = conv_geometry(c, 0, 1)
    reads_planes, writes_planes = int(c.attribute("reads_planes", 0)), int(c.attribute("writes_planes", 0))
    planes = reads_planes or writes_planes
    method = Method.DIRECT if planes else method_of(v, bool(c.attribute("direct", 0)), can_use_amx(c), can_round(c))
    limited, low, high = limits(c)
    scratch = round_up(2 * v.filters, 16) + forward_scratch(v, method)
    return KernelCall("channels_last_conv", (*v.ints(), method, im2col_rows(v), limited, reads_planes, writes_planes),
                      (float(c.attribute("epsilon", 0.0)), low, high), scratch=scratch * ITEM_SIZE[c.dtype(0)])


def shape_only_inputs_of_gradient(c: LoweringContext) -> tuple[int, ...]:
    """Return the inputs of (dy, x, w) -> (dx, dw, db) of which the kernel reads no element: x without output dw, w without output dx."""
    return tuple(index for index, reader in ((1, 1), (2, 0)) if not c.has_output(reader))


def lower_conv_grad(c: LoweringContext) -> KernelCall:
    v = conv_geometry(c, 1, 2)
    method = method_of(v, bool(c.attribute("direct", 0)), can_use_amx(c), can_round(c))
    weight_method, slices, weight_scratch = weight_gradient_algorithm(v, method, can_use_amx(c), can_round(c))
    method = data_gradient_method(v, method)
    bias_blocks = symbolic_min(SPREAD, symbolic_max(1, v.pixels // 64))
    scratch = symbolic_max(data_scratch(v, method) if c.has_output(0) else 0, weight_scratch if c.has_output(1) else 0, bias_blocks * v.filters)
    block = winograd_block(v) if method == Method.WINOGRAD else row_winograd_block(v) if method == Method.WINOGRAD_1D else 0
    return KernelCall("channels_last_conv_grad", (*v.ints(), method, data_gradient_rows(v), weight_method, block, slices, bias_blocks),
                      scratch=scratch * ITEM_SIZE[c.dtype(0)], in_place={0: 3} if c.has(3) else {}, shape_only_inputs=shape_only_inputs_of_gradient(c))


@operator("ChannelsLastConv", domain=ORTRAIN, lower=lower_conv, takes_bfloat16=True)
def conv(c: InferenceContext) -> list[TensorType]:
    """y [n, oh, ow, k] = clip(norm(Conv(x [n, h, w, c], w) + bias), low, high); norm is an inference batch normalization by the optional inputs 3 to 6;
    attributes reads_planes and writes_planes: x is [n, c, h, w], and y [n, k, oh, ow]"""
    windows, filters = conv_windows(c, 0, 1), c.shape(1)[0]
    check_inputs(c, (filters,), *((2,) if c.has(2) else ()), *range(3, 7 if len(c.node.inputs) > 3 else 3))
    sizes = TensorType(c.dtype(0), data_shape(c, 0)).sizes
    if not is_supported(geometry_of(sizes, int(filters), int(c.attribute("group", 1)), windows)):
        raise c.error(f"expected sizes that the channels-last kernels support, got {list(c.shape(0))} and {list(c.shape(1))}")
    return [TensorType(c.dtype(0), (sizes[0], filters, *windows.output) if c.attribute("writes_planes", 0) else (sizes[0], *windows.output, filters))]


def infer_without_epilogue(c: InferenceContext) -> Sequence[TensorType]:
    """Return the output type of a ChannelsLastConv of inputs 0 and 1, data and weight, ignoring all further inputs."""
    c.node = replace(c.node, inputs=c.node.inputs[:2])
    return conv(c)


def can_accumulate_data_gradient(grad: Node, weight: TensorType) -> bool:
    """Return whether the GEMM that computes the data gradient of a convolution can add it to another gradient: for 1 x 1 kernels without groups or pads."""
    get = grad.attributes.get
    return set(weight.sizes[2:]) == {1} and int(get("group", 1)) == 1 and not any(get("pads", ())) and get("auto_pad", "NOTSET") in ("NOTSET", "VALID")


@operator("ChannelsLastConvGrad", domain=ORTRAIN, lower=lower_conv_grad, takes_bfloat16=True)
def conv_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dw, db) of (dy, x, w); with a 1 x 1 kernel, input 3 may be another gradient of x, which is added to dx"""
    check_gradient(c, infer_without_epilogue)
    if c.has(3) and (c.shape(3) != c.shape(1) or not can_accumulate_data_gradient(c.node, c.type(2))):
        raise c.error(f"expected a gradient of the shape of x, and a 1 x 1 convolution without groups or pads, to add to, got {list(c.shape(3))}")
    return [c.type(1), c.type(2), TensorType(c.dtype(2), (c.shape(2)[0],))][: len(c.node.outputs)]


def input_gradient_geometry(c: InferenceContext, dy: tuple[int, ...], dx: tuple[int, ...]) -> Geometry | None:
    """Return the geometry of the convolution whose data gradient a node computes from dy [n, oh, ow, k] and a weight, its input 2; dx: [n, h, w, c].

    None where more windows are given than fit into dx, or the sizes do not match."""
    group, weight = int(c.attribute("group", 1)), c.type(2).sizes
    if group < 1 or dy[-1] != weight[0] or dy[-1] % group or dx[-1] != weight[1] * group:
        return None
    windows = gradient_windows(c, weight[2:], dy[1:-1])
    return geometry_of(dx, dy[-1], group, windows) if all(have <= most for have, most in zip(dy[1:-1], fitting(windows, dx[1:-1]), strict=True)) else None


def fitting(windows: Windows, spatial: Sequence[int]) -> list[int]:
    """Return how many windows fit into each axis of the given sizes."""
    axes = zip(spatial, windows.kernel, windows.strides, windows.dilations, windows.begins, windows.ends, strict=True)
    return [output_size(size, kernel, stride, dilation, begin or 0, end or 0, False) for size, kernel, stride, dilation, begin, end in axes]


def lower_conv_input_grad(c: LoweringContext) -> KernelCall:
    dy, dx = c.dims(0), c.output_dims(0)
    v = input_gradient_geometry(c, dy, dx)
    assert v is not None
    all_windows = fitting(gradient_windows(c, c.dims(2)[2:], dy[1:-1]), dx[1:-1]) == list(dy[1:-1])     # Winograd's algorithms take that for granted
    method = data_gradient_method(v, method_of(v, bool(c.attribute("direct", 0)) or not all_windows, can_use_amx(c), can_round(c)))
    scratch = data_scratch(v, method) * ITEM_SIZE[c.dtype(0)]
    return KernelCall("channels_last_conv_grad", (*v.ints(), method, data_gradient_rows(v), 0, 0, 0, 0), scratch=scratch)


@operator("ChannelsLastConvInputGrad", domain=ORTRAIN, lower=lower_conv_input_grad, takes_bfloat16=True)
def conv_input_grad(c: InferenceContext) -> list[TensorType]:
    """dx [n, h, w, c] of (dy [n, oh, ow, k], absent, w): the data gradient of Conv; attribute output_shape: h and w"""
    dy, weight = c.type(0).sizes, c.type(2).sizes
    if len(dy) not in RANKS or len(weight) != len(dy):
        raise c.error(f"expected a gradient [n, h, w, k] and a weight [k, c / group, kh, kw], got {list(dy)} and {list(weight)}")
    dx = (dy[0], *integers(c, "output_shape", len(dy) - 2, 0), weight[1] * int(c.attribute("group", 1)))
    v = input_gradient_geometry(c, dy, dx)
    if v is None or not is_supported(v):
        raise c.error(f"expected sizes that the channels-last kernels support, got {list(dy)} and {list(weight)}")
    return [TensorType(c.dtype(0), dx)]


# ---- batch normalization

OPEN, CLOSED = 1, 2
"""Whether the gradient of a fused activation with limits flows at these: not for ReLU (open), but for Clip (closed); see channels_last/batch_norm.h."""
CURVES = {"": 0, "Swish": 3, "LeakyRelu": 4, "HardSwish": 5}
"""Attribute `activation` -> the number of the activation in channels_last/batch_norm.h. `alpha` is the attribute of Swish and LeakyRelu."""
MAX_LANES = 16
"""The lanes of the widest vector: so many channels, or channels of so many pixels, are computed at once."""
MIN_NORM_ROW = 128
"""Numbers of pixels side by side that a normalization computes as one row, about: rows of 16 took 0.28 ns per number, most of it for the loop over rows."""


def check_norm_inputs(c: InferenceContext, x: int, *vectors: int, alike: tuple[int, ...]) -> None:
    """Raise ShapeInferenceError unless the inputs have the shapes of a batch normalization.

    x: the index of x [n, h, w, c]. vectors: the indices of the inputs [c]. alike: those of inputs of the shape of x; all but input 0 are optional."""
    if len(c.shape(x)) not in RANKS:
        raise c.error(f"expected x [n, h, w, c], got {list(c.shape(x))}")
    check_inputs(c, c.shape(x)[-1:], *vectors)
    check_inputs(c, c.shape(x), *(index for index in alike if index == 0 or c.has(index)))


def norm_call(c: LoweringContext, kernel: str, x: int, in_place: dict[int, int]) -> KernelCall:
    """Return the call of a kernel that normalizes x [n, h, w, c], which is input number x."""
    dims = c.dims(x)
    return norm_call_of_pixels(c, kernel, prod(dims[:-1]), dims[-1], c.dtype(x), in_place)


def norm_call_of_pixels(c: LoweringContext, kernel: str, pixels: int, channels: int, dtype: str, in_place: dict[int, int]) -> KernelCall:
    """Return the call of a kernel of channels_last/batch_norm.h, which normalize x [pixels, channels]."""
    limited, low, high = limits(c)
    floats = (float(c.attribute("epsilon", 1e-5)), float(c.attribute("momentum", 0.9)), low, high, float(c.attribute("alpha", 0.0)))
    repeat = MAX_LANES // gcd(channels, MAX_LANES)
    repeat *= max(1, MIN_NORM_ROW // (repeat * channels))
    rows = -(-symbolic_max(64, -(-pixels // (2 * SPREAD))) // repeat) * repeat
    scratch = -(-pixels // rows) * 2 * channels * 8 + round_up(6 * repeat * channels * ITEM_SIZE[dtype], 8)
    activation = CURVES[str(c.attribute("activation", ""))] or ((CLOSED if c.attribute("closed", 0) else OPEN) if limited else 0)
    return KernelCall(kernel, (pixels, channels, rows, activation, repeat), floats, scratch=scratch, in_place=in_place)


def norm_in_place(c: LoweringContext) -> dict[int, int]:
    """Return the input that y may overwrite: the residual, or x without one."""
    return {0: 5 if len(c.node.inputs) > 5 and c.node.inputs[5] else 0}


def check_activation(c: InferenceContext, *forbidden: int) -> None:
    """Raise ShapeInferenceError for an unknown activation, or one beside limits or beside inputs that only a clipping activation may have."""
    activation = str(c.attribute("activation", ""))
    if activation not in CURVES:
        raise c.error(f"expected an activation of {', '.join(filter(None, CURVES))}, got {activation!r}")
    if activation and (limits(c)[0] or any(c.has(index) for index in forbidden)):
        raise c.error(f"expected {activation} without limits and further inputs")


def has_activation(c: InferenceContext) -> bool:
    return bool(limits(c)[0] or c.attribute("activation", ""))


def lower_norm(c: LoweringContext) -> KernelCall:
    return norm_call(c, "channels_last_norm_train" if c.attribute("training_mode", 0) else "channels_last_norm", 0, norm_in_place(c))


def lower_norm_grad(c: LoweringContext) -> KernelCall:
    keeps_dz = len(c.node.outputs) > 3 and c.node.outputs[3]
    return norm_call(c, "channels_last_norm_grad", 1, {3: 0, 0: 1} if keeps_dz else {0: 0})


def recompute_norm(node: Node, y: str) -> Node | None:
    """Return the node that recomputes y from x and the saved batch statistics, which the gradient reads as well; None in inference mode."""
    mean, inverse = node.outputs[3:5] if len(node.outputs) == 5 else ("", "")
    if not node.attributes.get("training_mode", 0) or not mean or not inverse:
        return None
    return Node("ChannelsLastBatchNormalizationRecompute", [*node.inputs[:3], mean, inverse, *node.inputs[5:]], [y], node.name, ORTRAIN, node.attributes)


@operator("ChannelsLastBatchNormalization", domain=ORTRAIN, lower=lower_norm, rematerialize=recompute_norm, required_outputs=1)
def batch_normalization(c: InferenceContext) -> list[TensorType]:
    """BatchNormInternal with y = clip(norm(x [n, h, w, c]) + residual, low, high), the residual (input 5) being optional, or activation(norm(x))"""
    check_norm_inputs(c, 0, 1, 2, 3, 4, alike=(5,))
    check_activation(c, 5)
    return [c.type(0), c.type(3), c.type(4), c.type(3), c.type(3)]


@operator("ChannelsLastBatchNormalizationRecompute", domain=ORTRAIN, lower=lambda c: norm_call(c, "channels_last_norm_again", 0, norm_in_place(c)),
          takes_rounded=(0, 5))
def batch_normalization_recompute(c: InferenceContext) -> list[TensorType]:
    """y of ChannelsLastBatchNormalization in training mode with the same bits, of (x, scale, bias, batch mean, 1 / standard deviation, residual)"""
    check_norm_inputs(c, 0, 1, 2, 3, 4, alike=(5,))
    check_activation(c, 5)
    return [c.type(0)]


@operator("ChannelsLastBatchNormalizationGrad", domain=ORTRAIN, lower=lower_norm_grad, takes_rounded=(1, 6))
def batch_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias, dz) of (dy, x, scale, batch mean, 1 / standard deviation, bias, y); dz is dy masked by the fused activation"""
    check_norm_inputs(c, 1, 2, 3, 4, *((5,) if c.has(5) or has_activation(c) and not c.has(6) else ()), alike=(0, 6))
    check_activation(c, 6)
    if c.has_output(3) and not (limits(c)[0] and c.has(6)):
        raise c.error("expected y and a fused activation for output dz, which equals dy without them, got none")
    return [c.type(1), c.type(2), c.type(2), c.type(0)][: len(c.node.outputs)]


# ---- group normalization


def check_group_norm(c: InferenceContext, x: int, *vectors: int) -> Shape:
    """Return the shape [n, groups] of the statistics of x [n, h, w, c], which is input number x.

    Raises ShapeInferenceError unless the groups divide the channels and the vectors are [c]."""
    shape, groups = c.shape(x), int(c.attribute("num_groups", 0))
    if len(shape) not in RANKS or groups < 1 or not isinstance(shape[-1], int) or shape[-1] < 1 or shape[-1] % groups:
        raise c.error(f"expected x [n, h, w, c] and num_groups that divide c, got {list(shape)} and {groups}")
    check_inputs(c, shape[-1:], *vectors)
    check_activation(c)
    return shape[0], groups


def group_norm_call(c: LoweringContext, kernel: str, x: int, in_place: dict[int, int]) -> KernelCall:
    """Return the call of a kernel of channels_last/group_norm.h, which normalize each image of x [n, h, w, c], input number x, by itself."""
    dims, groups = c.dims(x), int(c.attribute("num_groups"))
    image = norm_call_of_pixels(c, kernel, prod(dims[1:-1]), dims[-1], c.dtype(x), in_place)
    scratch = dims[0] * image.scratch + 2 * dims[0] * groups * ITEM_SIZE[c.dtype(x)]
    return replace(image, ints=(*image.ints, dims[0], groups), scratch=scratch)


def recompute_group_norm(node: Node, y: str) -> Node | None:
    """Return the node that recomputes y from x and the saved statistics; None where the node does not save them."""
    mean, inverse = [*node.outputs, "", ""][1:3]
    return Node("ChannelsLastGroupNormRecompute", [*node.inputs, mean, inverse], [y], node.name, ORTRAIN, node.attributes) if mean and inverse else None


@operator("ChannelsLastGroupNorm", domain=ORTRAIN, lower=lambda c: group_norm_call(c, "channels_last_group_norm", 0, {0: 0}),
          rematerialize=recompute_group_norm, required_outputs=1)
def group_norm(c: InferenceContext) -> list[TensorType]:
    """GroupNorm of x [n, h, w, c] with an activation: clip(norm(x), low, high), or activation(norm(x))"""
    statistics = TensorType(c.dtype(0), check_group_norm(c, 0, 1, 2))
    return [c.type(0), statistics, statistics]


@operator("ChannelsLastGroupNormRecompute", domain=ORTRAIN, lower=lambda c: group_norm_call(c, "channels_last_group_norm_again", 0, {0: 0}), takes_rounded=(0,))
def group_norm_recompute(c: InferenceContext) -> list[TensorType]:
    """y of ChannelsLastGroupNorm with the same bits, of (x, scale, bias, mean, 1 / standard deviation)"""
    check_inputs(c, check_group_norm(c, 0, 1, 2), 3, 4)
    return [c.type(0)]


@operator("ChannelsLastGroupNormGrad", domain=ORTRAIN, lower=lambda c: group_norm_call(c, "channels_last_group_norm_grad", 1, {0: 0}), takes_rounded=(1,))
def group_norm_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias) of (dy, x, scale, mean, 1 / standard deviation, bias), the bias only for an activation"""
    check_inputs(c, check_group_norm(c, 1, 2, *((5,) if c.has(5) or has_activation(c) else ())), 3, 4)
    check_inputs(c, c.shape(1), 0)
    return [c.type(1), c.type(2), c.type(2)]


# ---- pooling


def pool_windows(c: InferenceContext, spatial: Sequence[Dim]) -> Windows:
    return windows_of(c, spatial, integers(c, "kernel_shape", len(spatial), 1))


def lower_max_pool(c: LoweringContext) -> KernelCall:
    data = c.dims(0)
    return KernelCall("channels_last_max_pool", geometry_of(data, data[-1], 1, pool_windows(c, data[1:-1])).ints())


def lower_max_pool_grad(c: LoweringContext) -> KernelCall:
    data = c.output_dims(0)
    return KernelCall("channels_last_max_pool_grad", geometry_of(data, data[-1], 1, pool_windows(c, data[1:-1])).ints())


def pooled_shape(c: InferenceContext, data: Shape) -> Shape:
    """Return the shape of the pooled data. Raises ShapeInferenceError for windows that the kernels do not support."""
    if len(data) not in RANKS:
        raise c.error(f"expected x [n, h, w, c], got {list(data)}")
    windows = pool_windows(c, data[1:-1])
    if prod(windows.kernel) > MAX_TAPS:
        raise c.error(f"expected a kernel of at most {MAX_TAPS} taps, got {list(windows.kernel)}")
    if any(int(pad or 0) >= size for pads in (windows.begins, windows.ends) for pad, size in zip(pads, windows.kernel, strict=True)):
        raise c.error(f"expected pads smaller than the kernel {list(windows.kernel)}, got {list(windows.begins)} and {list(windows.ends)}")
    return (data[0], *windows.output, data[-1])


@operator("ChannelsLastMaxPool", domain=ORTRAIN, lower=lower_max_pool, required_outputs=1)
def max_pool(c: InferenceContext) -> list[TensorType]:
    """(y, tap) = MaxPool of x [n, h, w, c], and the number of the first element of each window that has the maximum"""
    shape = pooled_shape(c, c.shape(0))
    return [TensorType(c.dtype(0), shape), TensorType("int32", shape)][: len(c.node.outputs)]


@operator("ChannelsLastMaxPoolGrad", domain=ORTRAIN, lower=lower_max_pool_grad, stop_gradient=(1,))
def max_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dy, tap, y); attribute spatial: h and w of x; y is given if dx also has the mask of a ReLU before the pool"""
    dims = c.shape(0)
    data = (*dims[:1], *integers(c, "spatial", len(dims) - 2, 1), *dims[-1:])
    check_shape(c, "a gradient", dims, pooled_shape(c, data))
    check_inputs(c, dims, *((1, 2) if c.has(2) else (1,)))
    return [TensorType(c.dtype(0), data)]


def average_call(c: LoweringContext, kernel: str, data: tuple[int, ...]) -> KernelCall:
    """Return the call of an average pool, or of its gradient, over data [n, h, w, c]."""
    windows = pool_windows(c, data[1:-1])
    counts_pads = bool(c.attribute("count_include_pad", 0)) or not any(windows.padded() or ())
    return KernelCall(kernel, (*geometry_of(data, data[-1], 1, windows).ints(), int(counts_pads)))


def averaged_shape(c: InferenceContext, data: Shape) -> Shape:
    """Return the shape of averages over data. Raises ShapeInferenceError for windows that may extend beyond the pads, whose divisors differ."""
    if c.attribute("ceil_mode", 0):
        raise c.error("expected ceil_mode 0, got 1")
    return pooled_shape(c, data)


@operator("ChannelsLastAveragePool", domain=ORTRAIN, lower=lambda c: average_call(c, "channels_last_average_pool", c.dims(0)))
def average_pool(c: InferenceContext) -> list[TensorType]:
    """AveragePool of x [n, h, w, c]"""
    return [TensorType(c.dtype(0), averaged_shape(c, c.shape(0)))]


@operator("ChannelsLastAveragePoolGrad", domain=ORTRAIN, lower=lambda c: average_call(c, "channels_last_average_pool_grad", c.output_dims(0)))
def average_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx of dy; attribute spatial: h and w of x"""
    dims = c.shape(0)
    data = (*dims[:1], *integers(c, "spatial", len(dims) - 2, 1), *dims[-1:])
    check_shape(c, "a gradient", dims, averaged_shape(c, data))
    return [TensorType(c.dtype(0), data)]
