"""Pad in all its modes: constant, edge, reflect and wrap."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortrain.ir import Shape, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, Alias, InferenceContext, KernelCall, LoweringContext, check_scalars, check_shape, normalize_axis, operator
from ortrain.ops.shape import Gradients, constant_dims, first_input_gradient
from ortrain.ops.shared.broadcasting import contiguous_strides
from ortrain.ops.shared.strides import pack_strided_copy, symbolic_shape

PAD_MODES = ("constant", "edge", "reflect", "wrap")


def pads_of(c: InferenceContext, index: int = 1) -> list[tuple[int, int]] | None:
    """Return (before, after) of each axis, None when unknown. The pads are an attribute (before opset 11) or input `index`."""
    rank = len(c.shape(0))
    given = c.attribute("pads")
    pads = constant_dims(c, index) if given is None else [int(p) for p in given]
    axes = constant_dims(c, index + 2) if c.has(index + 2) else list(range(rank))
    if pads is None or axes is None:
        return None
    if len(pads) != 2 * len(axes):
        raise c.error(f"expected {2 * len(axes)} pads, got {pads}")
    pads_per_axis = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pads_per_axis[normalize_axis(c, axis, rank)] = (pads[i], pads[len(axes) + i])
    return pads_per_axis


def pad_mode(c: InferenceContext | NodeBuilder) -> str:
    """Return the attribute mode. Raises if it is none of PAD_MODES."""
    mode = str(c.attribute("mode", "constant"))
    if mode not in PAD_MODES:
        raise c.error(f"expected a mode of {PAD_MODES}, got {mode!r}")
    return mode


def pad_gradient(g: GradientBuilder) -> Gradients:
    """Return Pad of dY with the negated pads, which removes the border; in the modes that repeat elements PadGrad, which adds up dY of all copies."""
    if pad_mode(g) != "constant":
        return first_input_gradient(g, g.op("PadGrad", g.dy, *g.inputs, domain=ORTRAIN, **g.node.attributes))
    if g.opset < 11:
        dx = g.op("Pad", g.dy, pads=tuple(-p for p in g.attribute("pads")))
    else:
        pads = g.value(g.inputs[1])
        negative = g.op("Neg", g.inputs[1]) if pads is None else g.constant(-pads)
        dx = g.op("Pad", g.dy, negative, *(["", g.inputs[3]] if g.has(3) else []))
    g.declare(dx, g.type(g.inputs[0]))
    return first_input_gradient(g, dx)


def pack_pads(dims: Sequence[int], out: Sequence[int], pads: Sequence[tuple[int, int]], mode: str) -> tuple[int, ...]:
    """Pack (mode, elements of a position of the line, number of axes, (size, size in y, before) of each) for the kernels of Pad.

    The last padded axis is the line, a position of which is all elements of the unpadded axes after it. Unpadded axes side by side become one; there are two
    axes at least."""
    last = max((axis for axis, pair in enumerate(pads) if pair != (0, 0)), default=len(dims) - 1)
    axes: list[tuple[int, int, int]] = []
    was_padded = True
    for size, padded_size, pair in zip(dims[:last + 1], out, pads, strict=False):
        if pair == (0, 0) and not was_padded:
            axes[-1] = (axes[-1][0] * size, axes[-1][1] * size, 0)
        else:
            axes.append((size, padded_size, pair[0]))
        was_padded = pair != (0, 0)
    if len(axes) == 1:
        axes.insert(0, (1, 1, 0))
    return (PAD_MODES.index(mode), math.prod(dims[last + 1:]), len(axes), *(value for axis in axes for value in axis))


def padded_shape(c: InferenceContext, dims: Shape, pads: Sequence[tuple[int, int]], unknown: Shape) -> Shape:
    """Return the shape of y, with sizes of `unknown` where a padded axis has a symbol. Raises if one would be negative."""
    out = tuple(d + before + after if isinstance(d, int) else d if before + after == 0 else symbol
                for d, (before, after), symbol in zip(dims, pads, unknown, strict=True))
    if any(isinstance(d, int) and d < 0 for d in out):
        raise c.error(f"expected pads that leave no negative size, got {pads} for shape {list(dims)}")
    return out


def check_repeated(c: InferenceContext, dims: Sequence[int], pads: Sequence[tuple[int, int]]) -> None:
    """Raise if an axis that is padded has no element to repeat."""
    if any(size < 1 for size, pair in zip(dims, pads, strict=True) if pair != (0, 0)):
        raise c.error(f"expected elements to repeat along the axes that are padded, got shape {list(dims)} and pads {list(pads)}")


def lower_pad_grad(c: LoweringContext) -> KernelCall:
    pads = pads_of(c, 2)
    if pads is None:
        raise c.error(f"expected pads that are known before running, got {c.node.inputs[2:]}")
    check_repeated(c, c.dims(1), pads)
    return KernelCall("pad_grad", pack_pads(c.dims(1), c.dims(0), pads, pad_mode(c)), shape_only_inputs=(1,))


@operator("PadGrad", domain=ORTRAIN, lower=lower_pad_grad)
def pad_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dY summed over the copies of each element of x, of (dY, inputs of Pad) in the modes edge, reflect and wrap"""
    pads = pads_of(c, 2)
    if pads is not None:
        check_shape(c, "dy", c.shape(0), padded_shape(c, c.shape(1), pads, c.shape(0)))
    return [c.type(1)]


def lower_computed_pad(c: LoweringContext) -> KernelCall:
    """Lower a Pad whose pads are computed to NumPy. onnx's reference implementation rejects negative pads, which gradients have."""
    shape, rank = c.output_dims(0), len(c.dims(0))

    def run(x: np.ndarray, pads: np.ndarray, value: np.ndarray | None = None, axes: np.ndarray | None = None) -> list[np.ndarray]:
        before = np.zeros(rank, np.int64)
        before[slice(None) if axes is None else axes] = pads[: len(pads) // 2]
        y = np.full(shape, 0 if value is None else value.reshape(-1)[0], x.dtype)
        source, target = np.maximum(-before, 0), np.maximum(before, 0)
        sizes = np.maximum(0, np.minimum(np.array(x.shape) - source, np.array(shape) - target))
        y[tuple(map(slice, target, target + sizes))] = x[tuple(map(slice, source, source + sizes))]
        return [y]

    return KernelCall("python", function=run)


def lower_pad(c: LoweringContext) -> KernelCall | Alias:
    pads, mode, dims, out = pads_of(c), pad_mode(c), c.dims(0), c.output_dims(0)
    if pads is None:
        if mode != "constant":
            raise c.error("expected pads that are known before running in the modes that repeat elements, got others")
        return lower_computed_pad(c)
    if all(pair == (0, 0) for pair in pads):
        return Alias(0)
    if mode != "constant":
        check_repeated(c, dims, pads)
    if all(before <= 0 and after <= 0 for before, after in pads):
        strides = contiguous_strides(dims)
        from_at = sum(-before * stride for (before, _), stride in zip(pads, strides, strict=True))
        return KernelCall("strided_copy", pack_strided_copy(out, contiguous_strides(out), strides, 0, from_at))
    return KernelCall("pad", pack_pads(dims, out, pads, mode), floats=(float(c.attribute("value", 0.0)) if c.opset < 11 else 0.0,))


@operator("Pad", lower=lower_pad, gradient=pad_gradient, stop_gradient=(1, 2, 3))
def pad(c: InferenceContext) -> list[TensorType]:
    """y = x with a border of a constant or (modes edge, reflect, wrap) of elements of x; negative pads remove elements"""
    check_scalars(c, 2)
    dims, pads = c.shape(0), pads_of(c)
    unknown = symbolic_shape(c, len(dims))
    if pads is None:
        return [TensorType(c.dtype(0), unknown)]
    return [TensorType(c.dtype(0), padded_shape(c, dims, pads, unknown))]
