"""Pooling of regions of interest to images of equal size: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import ORTRAIN, Guard, InferenceContext, KernelCall, LoweringContext, check_gradient, check_shape, operator
from ortrain.ops.sampling import check_plane

TRANSFORMATIONS = ("output_half_pixel", "half_pixel")
MODES = {"avg": 0, "max": 1}


def check_images(c: LoweringContext, x: int) -> tuple[int, ...]:
    """Return the shape of the images. Raises ShapeInferenceError if they are empty or too large for the kernels."""
    dims = c.dims(x)
    check_plane(c, dims[2:])
    if 0 in dims[2:]:
        raise c.error(f"expected images with at least one pixel, got shape {list(dims)}")
    return dims


def align_options(c: InferenceContext) -> tuple[int, int, int]:
    """Return (sampling_ratio, half_pixel, mode) as numbers of the kernels; the default before opset 16 is output_half_pixel."""
    mode = str(c.attribute("mode", "avg")).lower()
    transformation = str(c.attribute("coordinate_transformation_mode", TRANSFORMATIONS[int(c.node.domain == ORTRAIN or c.opset >= 16)])).lower()
    if mode not in MODES or transformation not in TRANSFORMATIONS:
        raise c.error(f"expected a mode of {tuple(MODES)} and a coordinate_transformation_mode of {TRANSFORMATIONS}, got {mode!r} and {transformation!r}")
    ratio = int(c.attribute("sampling_ratio", 0))
    if ratio < 0:
        raise c.error(f"expected a sampling_ratio that is not negative, got {ratio}")
    return ratio, TRANSFORMATIONS.index(transformation), MODES[mode]


def lower_align(kernel: str, x: int) -> Any:
    """Return a lowering that packs images, channels, height, width, regions, output height and width, and align_options; floats: spatial scale."""

    def lower(c: LoweringContext) -> KernelCall:
        dims = check_images(c, x)
        ints = (*dims, c.dims(x + 1)[0], int(c.attribute("output_height", 1)), int(c.attribute("output_width", 1)), *align_options(c))
        return KernelCall(kernel, ints, (float(c.attribute("spatial_scale", 1.0)),), guards=(Guard(x + 2, 0, dims[0]),))

    return lower


def align_gradient(g: GradientBuilder) -> Sequence[str | None]:
    transformation = TRANSFORMATIONS[align_options(g.context())[1]]
    attributes: dict[str, Any] = {**g.node.attributes, "coordinate_transformation_mode": transformation}
    return [g.op("RoiAlignGrad", g.dy, *g.inputs, domain=ORTRAIN, **attributes), None, None]


@operator("RoiAlign", lower=lower_align("roi_align", 0), gradient=align_gradient, stop_gradient=(1, 2))
def roi_align(c: InferenceContext) -> list[TensorType]:
    """y[r] = mean (or max) per bin of region r of bilinearly interpolated samples (He et al., arXiv 1703.06870); no gradient flows to the regions"""
    x, regions = c.shape(0), c.shape(1)
    size = (int(c.attribute("output_height", 1)), int(c.attribute("output_width", 1)))
    align_options(c)
    if len(x) != 4 or min(size) < 1:
        raise c.error(f"expected x [n, c, h, w] and a positive output size, got shape {list(x)} and {list(size)}")
    check_shape(c, "regions", regions, (regions[0] if regions else 0, 4))
    check_shape(c, "image indices", c.shape(2), (regions[0],))
    if c.dtype(1) != c.dtype(0) or c.dtype(2) != "int64":
        raise c.error(f"expected regions of the dtype of x and int64 image indices, got {c.dtype(0)}, {c.dtype(1)} and {c.dtype(2)}")
    return [TensorType(c.dtype(0), (regions[0], x[1], *size))]


@operator("RoiAlignGrad", domain=ORTRAIN, lower=lower_align("roi_align_grad", 1))
def roi_align_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dY, x, regions, image indices): dY shared by the samples of each bin, or for max all of it to the first of the largest"""
    check_gradient(c, roi_align)
    return [c.type(1)]


def pooled_size(c: InferenceContext) -> tuple[int, int]:
    """Return the attribute pooled_shape. Raises ShapeInferenceError unless it has two positive sizes."""
    size = tuple(int(n) for n in c.attribute("pooled_shape") or ())
    if len(size) != 2 or min(size) < 1:
        raise c.error(f"expected a pooled_shape of two positive integers, got {list(size)}")
    return size[0], size[1]


def lower_pool(kernel: str, x: int) -> Any:
    """Return a lowering that packs images, channels, height, width, regions, output height and width; floats: spatial scale."""

    def lower(c: LoweringContext) -> KernelCall:
        dims = check_images(c, x)
        return KernelCall(kernel, (*dims, c.dims(x + 1)[0], *pooled_size(c)), (float(c.attribute("spatial_scale", 1.0)),))

    return lower


def pool_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return [g.op("MaxRoiPoolGrad", g.dy, *g.inputs, domain=ORTRAIN, **g.node.attributes), None]


@operator("MaxRoiPool", lower=lower_pool("max_roi_pool", 0), gradient=pool_gradient, stop_gradient=(1,))
def max_roi_pool(c: InferenceContext) -> list[TensorType]:
    """y[r] = the largest element of each bin of region r, [image, x1, y1, x2, y2] rounded to pixels; 0 for an empty bin (Girshick, arXiv 1504.08083)"""
    x, regions, size = c.shape(0), c.shape(1), pooled_size(c)
    if len(x) != 4:
        raise c.error(f"expected x [n, c, h, w], got shape {list(x)}")
    check_shape(c, "regions", regions, (regions[0] if regions else 0, 5))
    if c.dtype(1) != c.dtype(0):
        raise c.error(f"expected x and regions of the same dtype, got {c.dtype(0)} and {c.dtype(1)}")
    return [TensorType(c.dtype(0), (regions[0], x[1], *size))]


@operator("MaxRoiPoolGrad", domain=ORTRAIN, lower=lower_pool("max_roi_pool_grad", 1))
def max_roi_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dY, x, regions): dY flows to the first of the largest elements of each bin"""
    check_gradient(c, max_roi_pool)
    return [c.type(1)]
