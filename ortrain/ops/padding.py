"""Pad in all its modes: constant, edge, reflect and wrap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.ir import Dim, Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, Alias, InferenceContext, KernelCall, LoweringContext, check_scalars, normalize_axis, operator
from ortrain.ops.shape import Gradients, constant_dims, first_input_gradient
from ortrain.ops.shared.broadcasting import contiguous_strides
from ortrain.ops.shared.strides import pack_strided_copy, symbolic_shape

PAD_MODES = ("constant", "edge", "reflect", "wrap")


def pads_of(c: InferenceContext) -> list[tuple[int, int]] | None:
    """Return (before, after) of each axis, None when unknown. The pads are an attribute before opset 11 and an input since."""
    rank = len(c.shape(0))
    pads = [int(p) for p in c.attribute("pads")] if c.opset < 11 else constant_dims(c, 1)
    axes = constant_dims(c, 3) if c.has(3) else list(range(rank))
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


def border_indices(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Return the source index along an axis of `size` for each element of the padded axis."""
    positions = np.arange(-before, size + after)
    if mode == "edge":
        return np.clip(positions, 0, size - 1)
    if mode == "wrap":
        return positions % size
    period = max(1, 2 * (size - 1))                      # reflect: 0 1 2 1 0 1 …
    positions = np.abs(positions) % period
    return np.where(positions < size, positions, period - positions)


def border_sources(c: InferenceContext, dims: Sequence[int]) -> list[tuple[int, np.ndarray]] | None:
    """Return (axis, source indices) of each axis with pads, for the modes that repeat elements of x of shape `dims`; None when the pads are unknown."""
    pads, mode = pads_of(c), pad_mode(c)
    if pads is None:
        return None
    padded_axes = [(axis, size, *pair) for axis, (pair, size) in enumerate(zip(pads, dims, strict=True)) if pair != (0, 0)]
    if any(size < 1 for _, size, _, _ in padded_axes):
        raise c.error(f"expected elements to repeat along the axes that are padded, got shape {list(dims)} and pads {pads}")
    return [(axis, border_indices(size, before, after, mode).astype(np.int64)) for axis, size, before, after in padded_axes]


def pad_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return one Gather per padded axis in the modes edge, reflect and wrap."""
    kind, y = g.type(g.inputs[0]), g.inputs[0]
    sources = border_sources(g.context(), kind.sizes) if pad_mode(g) != "constant" and kind.is_static else None
    if sources is None:
        return None
    for axis, indices in sources:
        y = g.op("Gather", y, g.constant(indices), axis=axis)
    return [y]


def pad_grad_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return the GatherGrads of the Gathers of pad_decomposition, the last one first."""
    dy, x = g.inputs[:2]
    c, kind = g.context(), g.type(x)
    node = Node("Pad", c.node.inputs[1:], c.node.outputs, c.node.name, "", c.node.attributes)
    sources = border_sources(InferenceContext(node, c.types[1:], c.values[1:], g.opset), kind.sizes) if kind.is_static else None
    if sources is None:
        raise g.error(f"expected a shape and pads that are known before running, got {kind.shape}")
    for axis, indices in reversed(sources):
        shape = list(g.shape(dy))
        shape[axis] = kind.sizes[axis]
        dy = g.op("GatherGrad", g.constant([int(size) for size in shape]), g.constant(indices), dy, domain=MICROSOFT, axis=axis)
    return [dy]


@operator("PadGrad", domain=ORTRAIN, decompose=pad_grad_decomposition)
def pad_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dY summed over the copies of each element of x, of (dY, inputs of Pad) in the modes edge, reflect and wrap"""
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
    pads, dims, out = pads_of(c), c.dims(0), c.output_dims(0)
    if pad_mode(c) != "constant":
        raise c.error("expected pads that are known before running and axes with elements to repeat, got others")
    if pads is None:
        return lower_computed_pad(c)
    strides, to_strides = contiguous_strides(dims), contiguous_strides(out)
    sizes = [max(0, min(n - max(0, -before), m - max(0, before))) for n, m, (before, _) in zip(dims, out, pads, strict=True)]
    from_at = sum(max(0, -before) * s for (before, _), s in zip(pads, strides, strict=True))
    to_at = sum(max(0, before) * s for (before, _), s in zip(pads, to_strides, strict=True))
    ints = pack_strided_copy(sizes, to_strides, strides, to_at, from_at)
    if tuple(sizes) == out:
        return Alias(0) if out == dims else KernelCall("strided_copy", ints)
    return KernelCall("strided_pad", ints, floats=(float(c.attribute("value", 0.0)) if c.opset < 11 else 0.0,))


@operator("Pad", lower=lower_pad, gradient=pad_gradient, stop_gradient=(1, 2, 3), decompose=pad_decomposition)
def pad(c: InferenceContext) -> list[TensorType]:
    """y = x with a border of a constant or (modes edge, reflect, wrap) of elements of x; negative pads remove elements"""
    check_scalars(c, 2)
    dims, pads = c.shape(0), pads_of(c)
    unknown = symbolic_shape(c, len(dims))
    if pads is None:
        return [TensorType(c.dtype(0), unknown)]
    out: list[Dim] = []
    for d, (before, after), symbol in zip(dims, pads, unknown, strict=True):
        out.append(d + before + after if isinstance(d, int) else d if before + after == 0 else symbol)
    if any(isinstance(d, int) and d < 0 for d in out):
        raise c.error(f"expected pads that leave no negative size, got {pads} for shape {list(dims)}")
    return [TensorType(c.dtype(0), tuple(out))]
