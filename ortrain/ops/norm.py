"""Normalization operators: batch, layer and RMS normalization have kernels, the others are decompositions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Shape, TensorType
from ortrain.ops.channels_last import norm_call_of_pixels
from ortrain.ops.registry.constants import symbolic_max
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import (
    MICROSOFT,
    ORTRAIN,
    InferenceContext,
    KernelCall,
    LoweringContext,
    check_broadcasts,
    check_inputs,
    check_shape,
    normalize_axis,
    operator,
)
from ortrain.ops.registry.sample_gradients import SampleGradient, SampleGradientBuilder

Gradients = Sequence[str | None]


# ---- batch normalization


def check_channels(c: InferenceContext) -> None:
    """Raise unless x is [n, c, …] and scale, bias, mean and variance are [c]."""
    shape = c.shape(0)
    if len(shape) < 2:
        raise c.error(f"expected x of rank 2 or more, got {list(shape)}")
    for i in range(1, 5):
        vector = c.shape(i)
        if len(vector) != 1 or isinstance(vector[0], int) and isinstance(shape[1], int) and vector[0] != shape[1]:
            raise c.error(f"expected input {i} of shape [{shape[1]}], got {list(vector)}")


def batch_channels_spatial(c: LoweringContext, x: int = 0) -> tuple[int, int, int]:
    """Return (n, c, number of spatial positions) of input `x`."""
    dims = c.dims(x)
    return dims[0], dims[1], math.prod(dims[2:])


def batch_norm_call(c: LoweringContext, kernel: str, x: int = 0, in_place: dict[int, int] | None = None) -> KernelCall:
    """Return the call of a kernel that normalizes input `x`.

    x [n, c] with one spatial position is the same as x [pixels, c] in channels-last layout, whose kernels read whole rows: those of norm.h took 27 ns per
    element of [1024, 1024]."""
    n, channels, spatial = batch_channels_spatial(c, x)
    if spatial == 1:                                       # a template for other sizes does not apply to it
        return norm_call_of_pixels(c, CHANNELS_LAST_KERNELS[kernel], n, channels, c.dtype(x), in_place or {})
    return KernelCall(kernel, (n, channels, spatial), (float(c.attribute("epsilon", 1e-5)), float(c.attribute("momentum", 0.9))), in_place=in_place or {})


CHANNELS_LAST_KERNELS = {"batch_norm": "channels_last_norm", "batch_norm_train": "channels_last_norm_train", "batch_norm_grad": "channels_last_norm_grad"}


def lower_batch_norm(c: LoweringContext) -> KernelCall:
    return batch_norm_call(c, "batch_norm_train") if c.attribute("training_mode", 0) else batch_norm_call(c, "batch_norm", in_place={0: 0})


def batch_norm_gradient(g: GradientBuilder) -> Gradients:
    """Return dx, dscale and dbias.

    In training mode the node becomes BatchNormInternal, which saves the batch statistics. In inference mode the statistics are constants."""
    if g.attribute("training_mode", 0):
        g.replace("BatchNormInternal", MICROSOFT, extra_outputs=5 - len(g.outputs))
        return batch_norm_training_gradient(g)
    x, scale, _, mean, variance = g.inputs
    dy, rank = g.dy, g.rank(x)
    deviation = g.op("Sqrt", g.op("Add", variance, g.scalar(float(g.attribute("epsilon", 1e-5)), variance)))
    dx = g.op("Mul", dy, reshape_to_channels(g, g.op("Div", scale, deviation), rank)) if g.needs(0) else None
    if not (g.needs(1) or g.needs(2)):
        return [dx, None, None, None, None]
    needed = [False, g.needs(1), g.needs(2)]               # dx of the operator below is that of training mode
    _, dscale, dbias = g.ops("BatchNormalizationGrad", dy, x, scale, mean, g.op("Reciprocal", deviation), outputs=needed, domain=MICROSOFT)
    return [dx, dscale or None, dbias or None, None, None]


def reshape_to_channels(g: GradientBuilder, vector: str, rank: int) -> str:
    """Return a vector [c] reshaped to [c, 1, …], which broadcasts against [n, c, …] of this rank."""
    return str(g.op("Reshape", vector, g.constant([-1] + [1] * (rank - 2))))


def batch_norm_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return the input statistics as outputs 1 to 4 in inference mode, where exporters before opset 14 list running and saved statistics."""
    if g.attribute("training_mode", 0) or not any(g.outputs[1:]):
        return None
    y = g.op("BatchNormalization", *g.inputs, **g.node.attributes)
    return [y, *(g.inputs[3], g.inputs[4]) * 2]


@operator("BatchNormalization", lower=lower_batch_norm, gradient=batch_norm_gradient, stop_gradient=(3, 4), required_outputs=1,
          decompose=batch_norm_decomposition)
def batch_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(var + epsilon) + bias per channel; in training mode with the batch's statistics (Ioffe, Szegedy, arXiv 1502.03167)"""
    check_channels(c)
    return [c.type(0), *(c.type(3), c.type(4)) * (1 if c.attribute("training_mode", 0) else 2)]


def batch_norm_training_gradient(g: GradientBuilder) -> Gradients:
    """Return the outputs of BatchNormalizationGrad, which reads the saved batch statistics."""
    x, scale = g.inputs[:2]
    needed = [g.needs(0), g.needs(1), g.needs(2)]
    gradients = g.ops("BatchNormalizationGrad", g.dy, x, scale, g.output(3), g.output(4), outputs=[True, True, True], domain=MICROSOFT,
                      epsilon=float(g.attribute("epsilon", 1e-5)))
    return [*(name if is_needed else None for name, is_needed in zip(gradients, needed, strict=True)), None, None]


@operator("BatchNormInternal", domain=MICROSOFT, gradient=batch_norm_training_gradient, stop_gradient=(3, 4), required_outputs=1,
          lower=lambda c: batch_norm_call(c, "batch_norm_train"))
def batch_norm_internal(c: InferenceContext) -> list[TensorType]:
    """BatchNormalization in training mode: (y, running mean, running variance, batch mean, 1 / sqrt(batch variance + epsilon))"""
    check_channels(c)
    return [c.type(0), c.type(3), c.type(4), c.type(3), c.type(3)]


@operator("BatchNormalizationGrad", domain=MICROSOFT, lower=lambda c: batch_norm_call(c, "batch_norm_grad", 1), takes_rounded=(1,))
def batch_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias) of (dY, x, scale, batch mean, 1 / sqrt(batch variance + epsilon))"""
    check_inputs(c, c.shape(1), 0)
    check_inputs(c, c.shape(1)[1:2], 2, 3, 4)
    return [c.type(1), c.type(2), c.type(2)]


# ---- layer normalization


def outer_and_inner_count(c: LoweringContext, x: int) -> tuple[int, int]:
    """Return the number of rows that are normalized and the number of elements per row of input `x`."""
    dims = c.dims(x)
    axis = normalize_axis(c, c.attribute("axis", -1), len(dims))
    return math.prod(dims[:axis]), math.prod(dims[axis:])


def lower_row_norm(kernel: str) -> Callable[[LoweringContext], KernelCall]:
    """Return the lowering of a normalization of rows."""
    return lambda c: KernelCall(kernel, outer_and_inner_count(c, 0), (float(c.attribute("epsilon", 1e-5)),), in_place={0: 0})


def layer_norm_gradient(g: GradientBuilder) -> Gradients:
    has_bias = len(g.inputs) > 2 and bool(g.inputs[2])
    dx, dscale, dbias = g.ops("LayerNormalizationGrad", g.dy, g.inputs[0], g.inputs[1], g.output(1), g.output(2), outputs=[True, True, True],
                              domain=MICROSOFT, axis=int(g.attribute("axis", -1)))
    return [dx, dscale, dbias if has_bias else None]


def normalized_sample_gradients(g: SampleGradientBuilder) -> list[SampleGradient | None]:
    """The gradients of the scale and the bias of a normalization of each sample by itself: sums of dy times the normalized x, and of dy.

    The node itself normalizes, with a scale of 1 and a bias of 0. Those of GroupNorm belong to the channels, axis 1 of x."""
    x, *weights = g.inputs
    neutral = [g.constant(np.full([int(size) for size in g.shape(name)], value), x) for name, value in zip(weights, (1, 0), strict=False) if name]
    axis = 1 if g.node.op_type == "GroupNorm" else None
    found: list[SampleGradient | None] = [None] * len(g.inputs)
    if g.needs(1):
        found[1] = g.whole(g.op("Mul", g.dy, g.op(g.node.op_type, x, *neutral, domain=g.node.domain, **g.node.attributes)), weights[0], axis)
    if len(found) > 2 and g.needs(2):
        found[2] = g.whole(g.dy, weights[1], axis)
    return found


@operator("LayerNormalization", gradient=layer_norm_gradient, required_outputs=1, lower=lower_row_norm("layer_norm"),
          takes_rounded=(0,), sample_gradients=normalized_sample_gradients)
def layer_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(var + epsilon) + bias over the axes from `axis` on, mean, 1 / sqrt(var + epsilon) (Ba et al., arXiv 1607.06450)"""
    shape = c.shape(0)
    axis = normalize_axis(c, c.attribute("axis", -1), len(shape))
    check_inputs(c, shape[axis:], *((1, 2) if c.has(2) else (1,)))
    reduced = TensorType(c.dtype(0), (*shape[:axis], *(1 for _ in shape[axis:])))
    return [c.type(0), reduced, reduced]


def skip_layer_norm_decomposition(g: NodeBuilder) -> list[str]:
    """Return LayerNormalization(input + skip + bias) with its two statistics, and the sum as output 3; the bias is optional."""
    total = g.op("Add", g.inputs[0], g.inputs[1])
    if g.has(4):
        total = g.op("Add", total, g.inputs[4])
    beta = [g.inputs[3]] if g.has(3) else []
    outputs = g.ops("LayerNormalization", total, g.inputs[2], *beta, outputs=[True, g.has_output(1), g.has_output(2)], axis=-1,
                    epsilon=float(g.attribute("epsilon", 1e-12)))
    return [*outputs, total]


@operator("SkipLayerNormalization", domain=MICROSOFT, decompose=skip_layer_norm_decomposition)
def skip_layer_normalization(c: InferenceContext) -> list[TensorType]:
    """y = LayerNormalization(x + skip + bias), the bias optional; found in models that ONNX Runtime optimized"""
    reduced = TensorType(c.dtype(0), (*c.shape(0)[:-1], 1))
    return [c.type(0), reduced, reduced, c.type(0)]


MAX_BLOCKS = 16
"""Maximum number of partial sums of dscale and dbias. It does not depend on the number of threads, so neither do the bits of the result."""


def lower_row_norm_grad(kernel: str, parts: int) -> Callable[[LoweringContext], KernelCall]:
    """Return the lowering of the gradient of a normalization of rows; parts: number of parameters whose gradients it sums over the rows."""

    def lower(c: LoweringContext) -> KernelCall:
        rows, size = outer_and_inner_count(c, 1)
        block = symbolic_max(1, -(-rows // MAX_BLOCKS))
        return KernelCall(kernel, (rows, size, block), scratch=8 * parts * size * symbolic_max(1, -(-rows // block)), in_place={0: 0})

    return lower


@operator("LayerNormalizationGrad", domain=MICROSOFT, lower=lower_row_norm_grad("layer_norm_grad", 2), takes_rounded=(1,))
def layer_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias) of (dY, x, scale, mean, 1 / sqrt(var + epsilon))"""
    shape = c.shape(1)
    axis = normalize_axis(c, c.attribute("axis", -1), len(shape))
    check_inputs(c, shape, 0)
    check_inputs(c, shape[axis:], 2)
    check_inputs(c, (*shape[:axis], *(1 for _ in shape[axis:])), 3, 4)
    return [c.type(1), c.type(2), c.type(2)]


# ---- RMS normalization


def statistics_type(c: InferenceContext, x: int) -> TensorType:
    """Return the type of the statistics of input `x`, whose axes from the node's `axis` on have size 1."""
    shape = c.shape(x)
    axis = normalize_axis(c, c.attribute("axis", -1), len(shape))
    return TensorType(c.dtype(x), (*shape[:axis], *(1 for _ in shape[axis:])))


def rms_norm_gradient(g: GradientBuilder) -> Gradients:
    return g.ops("SimplifiedLayerNormalizationGrad", g.dy, g.inputs[0], g.inputs[1], g.output(1), outputs=[True, True], domain=MICROSOFT,
                 axis=int(g.attribute("axis", -1)))


@operator("SimplifiedLayerNormalization", gradient=rms_norm_gradient, required_outputs=1, lower=lower_row_norm("rms_norm"),
          takes_rounded=(0,), sample_gradients=normalized_sample_gradients)
def simplified_layer_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale x / rms, with rms = sqrt(mean of x² + epsilon); output 1: 1 / rms (Zhang and Sennrich, arXiv 1910.07467)

    ONNX Runtime puts the operator into ONNX's domain, although ONNX does not define it."""
    shape = c.shape(0)
    check_inputs(c, shape[normalize_axis(c, c.attribute("axis", -1), len(shape)) :], 1)
    return [c.type(0), statistics_type(c, 0)]


@operator("SimplifiedLayerNormalizationGrad", domain=MICROSOFT, lower=lower_row_norm_grad("rms_norm_grad", 1), takes_rounded=(1,))
def simplified_layer_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale) of (dY, x, scale, 1 / rms)"""
    shape, statistics = c.shape(1), statistics_type(c, 1)
    check_inputs(c, shape, 0)
    check_inputs(c, shape[normalize_axis(c, c.attribute("axis", -1), len(shape)) :], 2)
    check_inputs(c, statistics.shape or (), 3)
    return [c.type(1), c.type(2)]


def rms_normalization_decomposition(g: NodeBuilder) -> list[str]:
    """Return x / sqrt(mean of x² + epsilon) scale in operators that every runtime has, which ortrain.fusion.layer_norm replaces by one."""
    x, scale = g.inputs
    rank = g.rank(x)
    mean = g.reduce("ReduceMean", g.op("Mul", x, x), list(range(int(g.attribute("axis", -1)) % rank, rank)))
    normalized = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, g.scalar(float(g.attribute("epsilon", 1e-5)), x))))
    if g.type(scale).dtype != g.type(x).dtype:
        normalized = g.op("Cast", normalized, to=NUMBERS[g.type(scale).dtype])
    return [g.op("Mul", normalized, scale)]


@operator("RMSNormalization", decompose=rms_normalization_decomposition)
def rms_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale x / sqrt(mean of x² + epsilon) over the axes from `axis` on, in the dtype of the scale"""
    shape = c.shape(0)
    normalize_axis(c, c.attribute("axis", -1), len(shape))
    check_broadcasts(c, 1, shape)
    return [TensorType(c.dtype(1), shape)]


# ---- normalizations by decomposition


def standardize(g: NodeBuilder, x: str, axes: Sequence[int]) -> str:
    """Return (x - mean) / sqrt(variance + epsilon) with mean and variance over `axes`, epsilon from the node's attribute.

    Over the last axes it is a layer normalization without scale, whose kernels read x once per pass."""
    shape, epsilon = g.shape(x), float(g.attribute("epsilon", 1e-5))
    sizes = [size for size in (shape[axis] for axis in axes) if isinstance(size, int)]
    if list(axes) == list(range(len(shape) - len(sizes), len(shape))):
        return g.op("LayerNormalization", x, g.constant(np.ones(sizes), x), axis=len(shape) - len(sizes), epsilon=epsilon)
    deviation = g.op("Sub", x, g.reduce("ReduceMean", x, axes))
    variance = g.reduce("ReduceMean", g.op("Mul", deviation, deviation), axes)
    return g.op("Div", deviation, g.op("Sqrt", g.op("Add", variance, g.scalar(epsilon, variance))))


def scale_and_shift(g: NodeBuilder, normalized: str, shape: Sequence[int]) -> str:
    """Return scale normalized + bias, with scale and bias (inputs 1 and 2) reshaped to `shape`."""
    result = normalized
    for name, op_type, neutral in zip(g.inputs[1:], ("Mul", "Add"), (1, 0), strict=True):
        value = g.value(name)
        if value is None or not np.all(value == neutral):               # exporters write group normalization with a neutral instance normalization
            result = g.op(op_type, result, g.op("Reshape", name, g.constant(list(shape))))
    return result


MIN_PIXELS = 16
"""Pixels of a channel from which on a group is normalized by its own kernel, whose loops run along a channel."""


def groups_of(c: InferenceContext, x: int) -> tuple[Shape, int]:
    """Return the shape of input number x, [n, c, d, …], and the number of its groups. Raises unless they divide its channels."""
    shape, groups = c.shape(x), int(c.attribute("num_groups", 0))
    if len(shape) < 3 or groups < 1 or not isinstance(shape[1], int) or shape[1] % groups:
        raise c.error(f"expected x [n, c, d, …] and num_groups that divide c, got {list(shape)} and {groups}")
    return shape, groups


def group_norm_call(c: LoweringContext, kernel: str, x: int) -> KernelCall:
    """Return the call of a kernel of group_norm.h that normalizes input number x."""
    dims = c.dims(x)
    scratch = 8 * 2 * dims[0] * dims[1] if kernel == "group_norm_grad" else 0
    return KernelCall(kernel, (dims[0], dims[1], math.prod(dims[2:]), int(c.attribute("num_groups"))), (float(c.attribute("epsilon", 1e-5)),), scratch=scratch,
                      in_place={} if scratch else {0: 0})


def group_norm_gradient(g: GradientBuilder) -> Gradients:
    return g.ops("GroupNormGrad", g.dy, g.inputs[0], g.inputs[1], g.output(1), g.output(2), outputs=[True, True, True], domain=ORTRAIN,
                 num_groups=int(g.attribute("num_groups")))


@operator("GroupNorm", domain=ORTRAIN, gradient=group_norm_gradient, required_outputs=1, lower=lambda c: group_norm_call(c, "group_norm", 0),
          takes_rounded=(0,), sample_gradients=normalized_sample_gradients)
def group_norm(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(var + epsilon) + bias with scale and bias by channel, mean [n, groups], 1 / sqrt(var + epsilon) [n, groups]"""
    shape, groups = groups_of(c, 0)
    check_inputs(c, shape[1:2], 1, 2)
    statistics = TensorType(c.dtype(0), (shape[0], groups))
    return [c.type(0), statistics, statistics]


@operator("GroupNormGrad", domain=ORTRAIN, lower=lambda c: group_norm_call(c, "group_norm_grad", 1), takes_rounded=(1,))
def group_norm_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias) of (dy, x, scale, mean, 1 / sqrt(var + epsilon)), the gradient of GroupNorm with the same `num_groups`"""
    shape, groups = groups_of(c, 1)
    check_inputs(c, shape, 0)
    check_inputs(c, shape[1:2], 2)
    check_inputs(c, (shape[0], groups), 3, 4)
    return [c.type(1), c.type(2), c.type(2)]


def has_own_kernel(shape: Shape) -> bool:
    """Return whether groups of channels of x [n, c, …] are normalized by their own kernel: those of known size with many pixels."""
    sizes = [size for size in shape[1:] if isinstance(size, int)]
    return len(sizes) == len(shape) - 1 and math.prod(sizes[1:]) >= MIN_PIXELS


def instance_norm_decomposition(g: NodeBuilder) -> list[str]:
    x, rank = g.inputs[0], g.rank(g.inputs[0])
    if has_own_kernel(g.shape(x)):
        return [g.op("GroupNorm", *g.inputs, domain=ORTRAIN, num_groups=g.shape(x)[1], epsilon=float(g.attribute("epsilon", 1e-5)))]
    return [scale_and_shift(g, standardize(g, g.inputs[0], range(2, rank)), [1, -1, *[1] * (rank - 2)])]


@operator("InstanceNormalization", decompose=instance_norm_decomposition)
def instance_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(var + epsilon) + bias, mean and variance per image and channel (Ulyanov et al., arXiv 1607.08022)"""
    shape = c.shape(0)
    if len(shape) < 3 or any(len(c.shape(i)) != 1 for i in (1, 2)):
        raise c.error(f"expected x [n, c, …] and vectors, got {list(shape)}, {list(c.shape(1))} and {list(c.shape(2))}")
    return [c.type(0)]


def of_channels(g: NodeBuilder, name: str, groups: int, channels: int) -> str:
    """Return a vector [groups] with each value repeated for the channels of its group, [channels]."""
    repeated = g.op("Expand", g.op("Reshape", name, g.constant([groups, 1])), g.constant([groups, channels // groups]))
    return str(g.op("Reshape", repeated, g.constant([channels])))


def group_norm_decomposition(g: NodeBuilder) -> list[str]:
    """Standardize x reshaped to [n, groups, -1]; scale and bias apply per group before opset 21, per channel since."""
    x, groups, rank = g.inputs[0], int(g.attribute("num_groups")), g.rank(g.inputs[0])
    if has_own_kernel(g.shape(x)):
        vectors = g.inputs[1:] if g.opset >= 21 else [of_channels(g, name, groups, int(g.shape(x)[1])) for name in g.inputs[1:]]
        return [g.op("GroupNorm", x, *vectors, domain=ORTRAIN, num_groups=groups, epsilon=float(g.attribute("epsilon", 1e-5)))]
    normalized = standardize(g, g.op("Reshape", x, g.constant([0, groups, -1])), [2])
    if g.opset < 21:
        return [g.reshape_like(scale_and_shift(g, normalized, [1, -1, 1]), x)]
    return [scale_and_shift(g, g.reshape_like(normalized, x), [1, -1, *[1] * (rank - 2)])]


@operator("GroupNormalization", decompose=group_norm_decomposition)
def group_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(var + epsilon) + bias, mean and variance per image and group of channels (Wu and He, arXiv 1803.08494)"""
    shape, groups = c.shape(0), int(c.attribute("num_groups", 0))
    if len(shape) < 2 or groups < 1 or isinstance(shape[1], int) and shape[1] % groups:
        raise c.error(f"expected x [n, c, …] and num_groups that divide its channels, got {list(shape)} and {groups}")
    for i in (1, 2):
        check_shape(c, f"input {i}", c.shape(i), (groups if c.opset < 21 else shape[1],))
    return [c.type(0)]


SMALLEST_NORMS = {"float16": float(np.finfo(np.float16).smallest_subnormal), "float64": float(np.finfo(np.float64).tiny)}
"""By data type, the smallest norms whose reciprocals are finite, or that the type can hold: smaller ones count as 0. Other types have those of float32."""


def lp_norm_decomposition(g: NodeBuilder) -> list[str]:
    x, p = g.inputs[0], int(g.attribute("p", 2))
    if p not in (1, 2):
        raise g.error(f"expected p of 1 or 2, got {p}")
    norm = g.reduce(f"ReduceL{p}", x, [int(g.attribute("axis", -1))])
    smallest = SMALLEST_NORMS.get(g.type(x).dtype, float(np.finfo(np.float32).tiny))
    divisor = g.op("Where", g.op("Less", norm, g.scalar(smallest, x)), g.scalar(float("inf"), x), norm)
    return [g.op("Mul", x, g.op("Reciprocal", divisor))]             # one division per row: with one per element, rows take 1.3 times as long


@operator("LpNormalization", decompose=lp_norm_decomposition)
def lp_normalization(c: InferenceContext) -> list[TensorType]:
    """y = x / (p-norm of x along `axis`), 0 where the norm is 0; p is 1 or 2"""
    normalize_axis(c, int(c.attribute("axis", -1)), len(c.shape(0)))
    return [c.type(0)]


def local_response_decomposition(g: NodeBuilder) -> list[str]:
    """Sum the squares of neighboring channels by one ResampleAxis whose weights are 1 inside the window and 0 beyond the borders."""
    x, size = g.inputs[0], int(g.attribute("size"))
    channels = g.shape(x)[1]
    if not isinstance(channels, int):
        raise g.error("expected a number of channels that is known, got a symbol")
    before, after = min((size - 1) // 2, channels), min(size // 2, channels)         # a wider window holds no further channels
    window = np.arange(channels, dtype=np.int64)[:, None] + np.arange(-before, after + 1, dtype=np.int64)[None, :]
    is_inside = ((window >= 0) & (window < channels)).astype(np.float64)
    squares = g.op("ResampleAxis", g.op("Mul", x, x), domain=ORTRAIN, axis=1, size=channels, indices=np.clip(window, 0, channels - 1), weights=is_inside)
    scaled = g.op("Mul", squares, g.scalar(float(g.attribute("alpha", 1e-4)) / size, x))
    return [g.op("Div", x, g.op("Pow", g.op("Add", scaled, g.scalar(float(g.attribute("bias", 1.0)), x)), g.scalar(float(g.attribute("beta", 0.75)), x)))]


@operator("LRN", decompose=local_response_decomposition)
def local_response_normalization(c: InferenceContext) -> list[TensorType]:
    """y = x / (bias + alpha / size · (sum of x² over `size` neighboring channels)) ** beta"""
    if len(c.shape(0)) < 3 or int(c.attribute("size", 0)) < 1:
        raise c.error(f"expected x [n, c, …] and a positive size, got {list(c.shape(0))} and {c.attribute('size')}")
    return [c.type(0)]
