"""Normalizations: batch and layer by kernels of their own, others said in other operators."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.registry.constants import symbolic_max
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_inputs, check_shape, normalize_axis, operator

Gradients = Sequence[str | None]


# ---- batch normalization


def check_channels(c: InferenceContext) -> None:
    """x [n, c, …], the other inputs [c]"""
    shape = c.shape(0)
    if len(shape) < 2:
        raise c.error(f"expected x of rank 2 or more, got {list(shape)}")
    for i in range(1, 5):
        vector = c.shape(i)
        if len(vector) != 1 or isinstance(vector[0], int) and isinstance(shape[1], int) and vector[0] != shape[1]:
            raise c.error(f"expected input {i} of shape [{shape[1]}], got {list(vector)}")


def spatial(c: LoweringContext, x: int = 0) -> tuple[int, int, int]:
    """(n, c, product of the rest)"""
    dims = c.dims(x)
    return dims[0], dims[1], math.prod(dims[2:])


def lower_batch_norm(c: LoweringContext) -> KernelCall:
    epsilon, momentum = float(c.attribute("epsilon", 1e-5)), float(c.attribute("momentum", 0.9))
    if c.attribute("training_mode", 0):
        return KernelCall("batch_norm_train", spatial(c), (epsilon, momentum))
    return KernelCall("batch_norm", spatial(c), (epsilon,), in_place={0: 0})


def batch_norm_gradient(g: GradientBuilder) -> Gradients:
    """In training mode as BatchNormInternal; in inference mode the statistics are constants."""
    if g.attribute("training_mode", 0):
        g.replace("BatchNormInternal", MICROSOFT, extra_outputs=5 - len(g.outputs))
        return internal_gradient(g)
    x, scale, _, mean, variance = g.inputs
    dy, rank = g.dy, g.rank(x)
    deviation = g.op("Sqrt", g.op("Add", variance, g.scalar(float(g.attribute("epsilon", 1e-5)), variance)))
    dx = g.op("Mul", dy, channels(g, g.op("Div", scale, deviation), rank)) if g.needs(0) else None
    axes = [axis for axis in range(rank) if axis != 1]
    dscale = None
    if g.needs(1):
        normal = g.op("Div", g.op("Sub", x, channels(g, mean, rank)), channels(g, deviation, rank))
        dscale = g.reduce_sum(g.op("Mul", dy, normal), axes, False)
    return [dx, dscale, g.reduce_sum(dy, axes, False) if g.needs(2) else None, None, None]


def channels(g: GradientBuilder, vector: str, rank: int) -> str:
    """[c] as [c, 1, …], which broadcasts against [n, c, …]"""
    return str(g.op("Reshape", vector, g.constant([-1] + [1] * (rank - 2))))


def batch_norm_decomposition(g: NodeBuilder) -> list[str] | None:
    """Outside training statistics come out as they went in: old exporters list them, and those of the batch after them."""
    if g.attribute("training_mode", 0) or not any(g.outputs[1:]):
        return None
    y = g.op("BatchNormalization", *g.inputs, **g.node.attributes)
    return [y, *(g.inputs[3], g.inputs[4]) * 2]


@operator("BatchNormalization", lower=lower_batch_norm, gradient=batch_norm_gradient, stop_gradient=(3, 4), decompose=batch_norm_decomposition, written=1)
def batch_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(var + epsilon) + bias; in training mode of the batch's own statistics (Ioffe and Szegedy, arXiv 1502.03167)"""
    check_channels(c)
    return [c.type(0), *(c.type(3), c.type(4)) * (1 if c.attribute("training_mode", 0) else 2)]


def internal_gradient(g: GradientBuilder) -> Gradients:
    x, scale = g.inputs[:2]
    wanted = [g.needs(0), g.needs(1), g.needs(2)]
    found = g.ops("BatchNormalizationGrad", g.dy, x, scale, g.output(3), g.output(4), outputs=[True, True, True], domain=MICROSOFT,
                  epsilon=float(g.attribute("epsilon", 1e-5)))
    return [*(name if want else None for name, want in zip(found, wanted, strict=True)), None, None]


@operator("BatchNormInternal", domain=MICROSOFT, gradient=internal_gradient, stop_gradient=(3, 4), written=1,
          lower=lambda c: KernelCall("batch_norm_train", spatial(c), (float(c.attribute("epsilon", 1e-5)), float(c.attribute("momentum", 0.9)))))
def batch_norm_internal(c: InferenceContext) -> list[TensorType]:
    """BatchNormalization on batch statistics; outputs (y, running mean, running variance, batch mean, 1 / sqrt(batch variance + epsilon))"""
    check_channels(c)
    return [c.type(0), c.type(3), c.type(4), c.type(3), c.type(3)]


@operator("BatchNormalizationGrad", domain=MICROSOFT, lower=lambda c: KernelCall("batch_norm_grad", spatial(c, 1)))
def batch_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias) of (dy, x, scale, batch mean, 1 / deviation)"""
    check_inputs(c, c.shape(1), 0)
    check_inputs(c, c.shape(1)[1:2], 2, 3, 4)
    return [c.type(1), c.type(2), c.type(2)]


# ---- layer normalization


def rows_and_size(c: LoweringContext, x: int) -> tuple[int, int]:
    dims = c.dims(x)
    axis = normalize_axis(c, c.attribute("axis", -1), len(dims))
    return math.prod(dims[:axis]), math.prod(dims[axis:])


def layer_norm_gradient(g: GradientBuilder) -> Gradients:
    has_bias = len(g.inputs) > 2 and bool(g.inputs[2])
    found = g.ops("LayerNormalizationGrad", g.dy, g.inputs[0], g.inputs[1], g.output(1), g.output(2), outputs=[True, True, True],
                  domain=MICROSOFT, axis=int(g.attribute("axis", -1)))
    return [found[0], found[1], found[2] if has_bias else None]


@operator("LayerNormalization", gradient=layer_norm_gradient, written=1,
          lower=lambda c: KernelCall("layer_norm", rows_and_size(c, 0), (float(c.attribute("epsilon", 1e-5)),), in_place={0: 0}))
def layer_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(var + epsilon) + bias over the axes from `axis` on; then mean and 1 / deviation (Ba et al., arXiv 1607.06450)"""
    shape = c.shape(0)
    axis = normalize_axis(c, c.attribute("axis", -1), len(shape))
    check_inputs(c, shape[axis:], *((1, 2) if c.has(2) else (1,)))
    reduced = TensorType(c.dtype(0), (*shape[:axis], *(1 for _ in shape[axis:])))
    return [c.type(0), reduced, reduced]


def skip_and_normalize(g: NodeBuilder) -> list[str]:
    """LayerNormalization of input + skip (+ bias); the sum is output 3."""
    total = g.op("Add", g.inputs[0], g.inputs[1])
    if g.has(4):
        total = g.op("Add", total, g.inputs[4])
    beta = [g.inputs[3]] if g.has(3) else []
    found = g.ops("LayerNormalization", total, g.inputs[2], *beta, outputs=[True, g.wants(1), g.wants(2)], axis=-1,
                  epsilon=float(g.attribute("epsilon", 1e-12)))
    return [*found, total]


@operator("SkipLayerNormalization", domain=MICROSOFT, decompose=skip_and_normalize)
def skip_layer_normalization(c: InferenceContext) -> list[TensorType]:
    """LayerNormalization of x + skip (+ bias), as optimized models have it"""
    reduced = TensorType(c.dtype(0), (*c.shape(0)[:-1], 1))
    return [c.type(0), reduced, reduced, c.type(0)]


MAX_BLOCKS = 16
"""Partial sums of dscale and dbias; fixed, so that the bits do not depend on the threads."""


def lower_layer_norm_grad(c: LoweringContext) -> KernelCall:
    rows, size = rows_and_size(c, 1)
    block = symbolic_max(1, -(-rows // MAX_BLOCKS))
    return KernelCall("layer_norm_grad", (rows, size, block), scratch=8 * 2 * size * symbolic_max(1, -(-rows // block)))


@operator("LayerNormalizationGrad", domain=MICROSOFT, lower=lower_layer_norm_grad)
def layer_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias) of (dy, x, scale, mean, 1 / deviation)"""
    shape = c.shape(1)
    axis = normalize_axis(c, c.attribute("axis", -1), len(shape))
    check_inputs(c, shape, 0)
    check_inputs(c, shape[axis:], 2)
    check_inputs(c, (*shape[:axis], *(1 for _ in shape[axis:])), 3, 4)
    return [c.type(1), c.type(2), c.type(2)]


# ---- normalizations said in other operators


def standardized(g: NodeBuilder, x: str, axes: Sequence[int]) -> str:
    """(x - mean) / sqrt(variance + epsilon), mean and variance over some axes."""
    deviation = g.op("Sub", x, g.reduce("ReduceMean", x, axes))
    variance = g.reduce("ReduceMean", g.op("Mul", deviation, deviation), axes)
    return g.op("Div", deviation, g.op("Sqrt", g.op("Add", variance, g.scalar(float(g.attribute("epsilon", 1e-5)), variance))))


def scaled(g: NodeBuilder, normal: str, shape: Sequence[int]) -> str:
    """scale normal + bias, these reshaped."""
    scale, bias = (g.op("Reshape", name, g.constant(list(shape))) for name in g.inputs[1:])
    return g.op("Add", g.op("Mul", normal, scale), bias)


def instance_norm_decomposition(g: NodeBuilder) -> list[str]:
    rank = g.rank(g.inputs[0])
    return [scaled(g, standardized(g, g.inputs[0], range(2, rank)), [1, -1, *[1] * (rank - 2)])]


@operator("InstanceNormalization", decompose=instance_norm_decomposition)
def instance_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(variance + epsilon) + bias, mean and variance of each image and channel"""
    shape = c.shape(0)
    if len(shape) < 3 or any(len(c.shape(i)) != 1 for i in (1, 2)):
        raise c.error(f"expected x [n, c, …] and vectors, got {list(shape)}, {list(c.shape(1))} and {list(c.shape(2))}")
    return [c.type(0)]


def group_norm_decomposition(g: NodeBuilder) -> list[str]:
    """The channels of a group beside one another; below opset 21 they are scaled as they lie, together."""
    x, groups, rank = g.inputs[0], int(g.attribute("num_groups")), g.rank(g.inputs[0])
    normal = standardized(g, g.op("Reshape", x, g.constant([0, groups, -1])), [2])
    if g.opset < 21:
        return [g.reshape_like(scaled(g, normal, [1, -1, 1]), x)]
    return [scaled(g, g.reshape_like(normal, x), [1, -1, *[1] * (rank - 2)])]


@operator("GroupNormalization", decompose=group_norm_decomposition)
def group_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale (x - mean) / sqrt(variance + epsilon) + bias, mean and variance of each image and group of channels (Wu and He, arXiv 1803.08494);
    scale and bias of each channel, below opset 21 of each group"""
    shape, groups = c.shape(0), int(c.attribute("num_groups", 0))
    if len(shape) < 2 or groups < 1 or isinstance(shape[1], int) and shape[1] % groups:
        raise c.error(f"expected x [n, c, …] and num_groups that divide its channels, got {list(shape)} and {groups}")
    for i in (1, 2):
        check_shape(c, f"input {i}", c.shape(i), (groups if c.opset < 21 else shape[1],))
    return [c.type(0)]


def lp_norm_decomposition(g: NodeBuilder) -> list[str]:
    x, p = g.inputs[0], int(g.attribute("p", 2))
    if p not in (1, 2):
        raise g.error(f"expected p of 1 or 2, got {p}")
    norm = g.reduce(f"ReduceL{p}", x, [int(g.attribute("axis", -1))])
    zero = g.scalar(0.0, x)
    nothing = g.op("Equal", norm, zero)
    return [g.op("Where", nothing, zero, g.op("Div", x, g.op("Where", nothing, g.scalar(1.0, x), norm)))]


@operator("LpNormalization", decompose=lp_norm_decomposition)
def lp_normalization(c: InferenceContext) -> list[TensorType]:
    """y = x over its p-norm along an axis, 0 where the norm is 0"""
    normalize_axis(c, int(c.attribute("axis", -1)), len(c.shape(0)))
    return [c.type(0)]


def local_response_decomposition(g: NodeBuilder) -> list[str]:
    x, size = g.inputs[0], int(g.attribute("size"))
    channels_ = g.shape(x)[1]
    if not isinstance(channels_, int):
        raise g.error("expected a number of channels that is known, got a symbol")
    before, after = min((size - 1) // 2, channels_), min(size // 2, channels_)         # there is nothing beyond
    window = np.arange(channels_)[:, None] + np.arange(-before, after + 1)[None, :]
    inside = ((window >= 0) & (window < channels_)).astype(np.float64)
    squares = g.op("ResampleAxis", g.op("Mul", x, x), domain=ORTRAIN, axis=1, size=channels_, indices=np.clip(window, 0, channels_ - 1), weights=inside)
    share = g.op("Mul", squares, g.scalar(float(g.attribute("alpha", 1e-4)) / size, x))
    return [g.op("Div", x, g.op("Pow", g.op("Add", share, g.scalar(float(g.attribute("bias", 1.0)), x)), g.scalar(float(g.attribute("beta", 0.75)), x)))]


@operator("LRN", decompose=local_response_decomposition)
def local_response_normalization(c: InferenceContext) -> list[TensorType]:
    """y = x / (bias + alpha / size times the sum of squares over `size` neighboring channels) ** beta"""
    if len(c.shape(0)) < 3 or int(c.attribute("size", 0)) < 1:
        raise c.error(f"expected x [n, c, …] and a positive size, got {list(c.shape(0))} and {c.attribute('size')}")
    return [c.type(0)]
