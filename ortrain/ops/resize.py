"""Resize and Upsample as one ResampleAxis per resized axis; the gradient applies their adjoints in reverse order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.ir import Dim, Node, TensorType
from ortrain.ops.elementwise import same_as_input
from ortrain.ops.registry.constants import is_same_size
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_shape, normalize_axis, operator
from ortrain.ops.shared.interpolation import COORDINATES, MODES, ROUNDING, Axis, Interpolation, table

Gradients = Sequence[str | None]


def interpolation_of(c: InferenceContext) -> Interpolation:
    """Return the interpolation that a node requests; Upsample and Resize before opset 11 have fewer attributes. Raises for unknown modes."""
    mode = str(c.attribute("mode", "nearest"))
    mode = "linear" if mode == "bilinear" else mode
    if c.node.op_type == "Upsample" or c.node.op_type == "Resize" and c.opset < 11:
        found = Interpolation(mode, "asymmetric", "floor")
    else:
        found = Interpolation(mode, str(c.attribute("coordinate_transformation_mode", "half_pixel")), str(c.attribute("nearest_mode", "round_prefer_floor")),
                              float(c.attribute("cubic_coeff_a", -0.75)), bool(c.attribute("exclude_outside", 0)), bool(c.attribute("antialias", 0)))
    if found.mode not in MODES or found.coordinates not in COORDINATES or found.nearest not in ROUNDING:
        raise c.error(f"expected a mode of {MODES}, coordinates of {COORDINATES} and a nearest_mode of {tuple(ROUNDING)}, got {found}")
    return found


def _numbers(c: InferenceContext, index: int) -> np.ndarray | None:
    """Return the elements of an input, None if it is absent, empty or not constant."""
    value = c.value(index)
    return None if value is None or value.size == 0 else value.reshape(-1)


def _scales(c: InferenceContext) -> np.ndarray | None:
    """Return the scales, None if they are unknown.

    Models specify them in float32. They are rounded to it for any dtype of x, so that the same coordinates are halfway between two elements."""
    given = c.attribute("scales")
    found = np.asarray(given) if given is not None else _numbers(c, 1 if c.node.op_type == "Upsample" or c.opset < 11 else 2)
    return None if found is None else found.astype(np.float32).astype(np.float64)


def resized_axes(c: InferenceContext, shape: Sequence[Dim]) -> list[tuple[int, float | None, int | None]] | None:
    """Return (axis, scale, size) of each resized axis, of which scale or size is None where the other one is given; None while both are unknown."""
    axes = c.attribute("axes")
    axes = [normalize_axis(c, int(axis), len(shape)) for axis in axes] if axes else list(range(len(shape)))
    scales, sizes = _scales(c), _numbers(c, 3) if c.node.op_type == "Resize" and c.opset >= 11 else None
    for given in (scales, sizes):
        if given is not None and len(given) != len(axes):
            raise c.error(f"expected one scale or size per axis of {axes}, got {given.tolist()}")
    if scales is not None:
        if not (np.isfinite(scales) & (scales > 0)).all():
            raise c.error(f"expected positive scales, got {scales.tolist()}")
        return [(axis, float(scale), None) for axis, scale in zip(axes, scales, strict=True)]
    if sizes is None:
        return None
    wanted = {axis: int(size) for axis, size in zip(axes, sizes, strict=True)}
    policy = str(c.attribute("keep_aspect_ratio_policy", "stretch"))
    if policy == "stretch":
        return [(axis, None, size) for axis, size in wanted.items()]
    known = {axis: size for axis, size in ((axis, shape[axis]) for axis in wanted) if isinstance(size, int)}
    if len(known) < len(wanted):
        return None
    ratio = (min if policy == "not_larger" else max)(wanted[axis] / size for axis, size in known.items())
    return [(axis, ratio, int(ratio * size + 0.5)) for axis, size in known.items()]


@operator("Resize", gradient=lambda g: resize_gradient(g), decompose=lambda g: resize_decomposition(g), stop_gradient=(1, 2, 3))
def resize(c: InferenceContext) -> list[TensorType]:
    """y = x resized along its axes by nearest, linear or cubic interpolation"""
    shape = c.shape(0)
    interpolation_of(c)
    axes = resized_axes(c, shape)
    if axes is None:
        return [TensorType(c.dtype(0), tuple(c.new_symbol(f"size{axis}") for axis in range(len(shape))))]
    sizes: list[Dim] = list(shape)
    for axis, scale, size in axes:
        have = shape[axis]
        if size is None and scale != 1:
            assert scale is not None
            sizes[axis] = int(np.floor(have * scale)) if isinstance(have, int) else c.new_symbol(f"size{axis}")
        elif size is not None:
            sizes[axis] = size
    return [TensorType(c.dtype(0), tuple(sizes))]


operator("Upsample", gradient=lambda g: resize_gradient(g), decompose=lambda g: resize_decomposition(g), stop_gradient=(1,))(resize)


def resize_gradient(g: GradientBuilder) -> Gradients:
    attributes: dict[str, Any] = {**g.node.attributes, "operator": g.node.op_type}
    return [g.op("ResizeGrad", g.dy, *g.inputs, domain=ORTRAIN, **attributes), *[None] * (len(g.inputs) - 1)]


# ---- one interpolation per axis


def resampled_axes(c: InferenceContext, shape: Sequence[int]) -> list[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]]:
    """Return (axis, resized size, indices, weights, elements outside of the region) of each axis that changes; see interpolation.table."""
    axes = resized_axes(c, shape)
    if axes is None:
        raise c.error("expected scales or sizes that are known before running, got computed ones")
    how, roi = interpolation_of(c), _numbers(c, 1) if c.node.op_type == "Resize" and c.opset >= 11 else None
    if roi is None and how.coordinates == "tf_crop_and_resize":
        raise c.error("expected a region that is known before running, got a computed one")
    found = []
    for number, (axis, scale, size) in enumerate(axes):
        window = (float(roi[number]), float(roi[number + len(axes)])) if roi is not None and how.coordinates == "tf_crop_and_resize" else (0.0, 1.0)
        if window == (0.0, 1.0) and scale in (None, 1) and (size is None or is_same_size(size, shape[axis])):
            continue
        resized = int(np.floor(shape[axis] * scale)) if size is None and scale is not None else size
        assert resized is not None
        factor = scale if scale is not None else resized / shape[axis]
        found.append((axis, resized, *table(Axis(shape[axis], resized, factor, window), how)))
    return found


def resize_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return one ResampleAxis per axis that changes; None for symbolic sizes and for elements that are not float32 or float64."""
    kind = g.type(g.inputs[0])
    if not kind.is_static or kind.dtype not in ("float32", "float64") or resized_axes(g.context(), kind.sizes) is None:
        return None
    x, outside, result = g.inputs[0], np.zeros([1] * len(kind.sizes), bool), list(kind.sizes)
    for axis, size, indices, weights, out in resampled_axes(g.context(), kind.sizes):
        x = g.op("ResampleAxis", x, domain=ORTRAIN, axis=axis, size=size, indices=indices, weights=weights)
        result[axis] = size
        outside = outside | out.reshape([-1 if i == axis else 1 for i in range(len(result))])
    if outside.any():
        value = float(g.attribute("extrapolation_value", 0.0))
        x = g.op("Add", x, g.constant(np.broadcast_to(outside, result) * value, x))
    return [x]


def lower_resample(kernel: str) -> Any:
    """Return a lowering that packs outer, size of x, size of y, inner, taps and indices; floats: weights."""

    def lower(c: LoweringContext) -> KernelCall:
        axis, dims = int(c.attribute("axis")), c.dims(0)
        indices, weights = np.asarray(c.attribute("indices")), np.asarray(c.attribute("weights"))
        before = int(c.attribute("size")) if kernel == "resample_grad" else dims[axis]
        head = (math.prod(dims[:axis]), before, len(indices), math.prod(dims[axis + 1 :]), indices.shape[1])
        return KernelCall(kernel, (*head, *indices.ravel().tolist()), tuple(weights.ravel().tolist()))

    return lower


def _with_size(c: InferenceContext, before: int | None = None) -> list[TensorType]:
    """Return the type of input 0 with `size` elements along the axis.

    before: the size that the indices refer to; None for that of input 0."""
    shape, axis, size = list(c.shape(0)), int(c.attribute("axis")), int(c.attribute("size"))
    if not 0 <= axis < len(shape):
        raise c.error(f"expected an axis in [0, {len(shape)}), got {axis}")
    indices, weights = np.asarray(c.attribute("indices")), np.asarray(c.attribute("weights"))
    source, after = (shape[axis], size) if before is None else (before, shape[axis])
    fit = indices.ndim == 2 and indices.shape == weights.shape and (not isinstance(after, int) or len(indices) == after)
    if not fit or indices.size and (indices.min() < 0 or isinstance(source, int) and indices.max() >= source):
        raise c.error(f"expected weights and indices [{after}, taps] with indices below {source}, got {list(weights.shape)} and {list(indices.shape)}")
    shape[axis] = size
    return [TensorType(c.dtype(0), tuple(shape))]


def resample_gradient(g: GradientBuilder) -> Gradients:
    size = g.shape(g.inputs[0])[int(g.attribute("axis"))]
    return [g.op("ResampleAxisGrad", g.dy, domain=ORTRAIN, **{**g.node.attributes, "size": size})]


@operator("ResampleAxis", domain=ORTRAIN, lower=lower_resample("resample"), gradient=resample_gradient)
def resample_axis(c: InferenceContext) -> list[TensorType]:
    """y[…, j, …] = sum over k of weights[j, k] x[…, indices[j, k], …] along one axis"""
    return _with_size(c)


@operator("ResampleAxisGrad", domain=ORTRAIN, lower=lower_resample("resample_grad"))
def resample_axis_grad(c: InferenceContext) -> list[TensorType]:
    """dx of dY, the gradient of ResampleAxis; dx has `size` elements along the axis"""
    return _with_size(c, int(c.attribute("size")))


def resize_grad_decomposition(g: NodeBuilder) -> list[str]:
    """Return the adjoints of the ResampleAxis nodes of the forward operator, in reverse order."""
    dy, x = g.inputs[:2]
    kind = g.type(x)
    if not kind.is_static:
        raise g.error(f"expected a known shape, got {kind.shape}")
    c = g.context()
    of_resize = InferenceContext(c.node, c.types[1:], c.values[1:], g.opset)
    of_resize.node = Node(str(g.attribute("operator", "Resize")), c.node.inputs[1:], c.node.outputs, c.node.name, "", c.node.attributes)
    sizes, axes = list(kind.sizes), resampled_axes(of_resize, kind.sizes)
    resized = {axis: size for axis, size, *_ in axes}
    check_shape(c, "a gradient", c.shape(0), [resized.get(axis, size) for axis, size in enumerate(sizes)])
    for axis, _, indices, weights, _ in reversed(axes):
        dy = g.op("ResampleAxisGrad", dy, domain=ORTRAIN, axis=axis, size=sizes[axis], indices=indices, weights=weights)
    return [dy]


@operator("ResizeGrad", domain=ORTRAIN, decompose=resize_grad_decomposition)
def resize_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dY, inputs of Resize), the gradient of Resize or Upsample (attribute `operator`)"""
    return same_as_input(c) if c.types[1] is None else [c.type(1)]
