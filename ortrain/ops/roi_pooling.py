"""Regions of interest, each made an image of one size: RoiAlign and MaxRoiPool."""

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
    """The shape of the images; refused when they are empty or too large."""
    dims = c.dims(x)
    check_plane(c, dims[2:])
    if 0 in dims[2:]:
        raise c.error(f"expected images that are not empty, got shape {list(dims)}")
    return dims


def align_options(c: InferenceContext) -> tuple[int, int, int]:
    """sampling_ratio, half_pixel, mode as the kernels have them; opset 10 knows no half pixels."""
    mode = str(c.attribute("mode", "avg")).lower()
    transformation = str(c.attribute("coordinate_transformation_mode", TRANSFORMATIONS[int(c.node.domain == ORTRAIN or c.opset >= 16)])).lower()
    if mode not in MODES or transformation not in TRANSFORMATIONS:
        raise c.error(f"expected a mode of {tuple(MODES)} and a coordinate_transformation_mode of {TRANSFORMATIONS}, got {mode!r} and {transformation!r}")
    ratio = int(c.attribute("sampling_ratio", 0))
    if ratio < 0:
        raise c.error(f"expected a sampling_ratio that is not negative, got {ratio}")
    return ratio, TRANSFORMATIONS.index(transformation), MODES[mode]


def lower_align(kernel: str, x: int) -> Any:
    """Packs: images, channels, height, width, regions, output height, output width, sampling_ratio, half_pixel, mode; spatial scale."""

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
    """y[r] = region r of its image cut into bins: the mean (or, max, the largest weighted element) of samples between elements; no gradient for regions"""
    x, regions = c.shape(0), c.shape(1)
    size = (int(c.attribute("output_height", 1)), int(c.attribute("output_width", 1)))
    align_options(c)
    if len(x) != 4 or min(size) < 1:
        raise c.error(f"expected images of two axes and a positive output size, got shape {list(x)} and {list(size)}")
    check_shape(c, "regions", regions, (regions[0] if regions else 0, 4))
    check_shape(c, "one image per region", c.shape(2), (regions[0],))
    if c.dtype(1) != c.dtype(0) or c.dtype(2) != "int64":
        raise c.error(f"expected regions of x's dtype and images of int64, got {c.dtype(0)}, {c.dtype(1)} and {c.dtype(2)}")
    return [TensorType(c.dtype(0), (regions[0], x[1], *size))]


@operator("RoiAlignGrad", domain=ORTRAIN, lower=lower_align("roi_align_grad", 1))
def roi_align_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dY, x, regions, images): the mean's shares, or all of dY where the largest was (the first of equals)"""
    check_gradient(c, roi_align)
    return [c.type(1)]


def pooled_size(c: InferenceContext) -> tuple[int, int]:
    """The attribute pooled_shape."""
    size = tuple(int(n) for n in c.attribute("pooled_shape") or ())
    if len(size) != 2 or min(size) < 1:
        raise c.error(f"expected a pooled_shape of two positive integers, got {list(size)}")
    return size[0], size[1]


def lower_pool(kernel: str, x: int) -> Any:
    """Packs: images, channels, height, width, regions, output height, output width; spatial scale."""

    def lower(c: LoweringContext) -> KernelCall:
        dims = check_images(c, x)
        return KernelCall(kernel, (*dims, c.dims(x + 1)[0], *pooled_size(c)), (float(c.attribute("spatial_scale", 1.0)),))

    return lower


def pool_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return [g.op("MaxRoiPoolGrad", g.dy, *g.inputs, domain=ORTRAIN, **g.node.attributes), None]


@operator("MaxRoiPool", lower=lower_pool("max_roi_pool", 0), gradient=pool_gradient, stop_gradient=(1,))
def max_roi_pool(c: InferenceContext) -> list[TensorType]:
    """y[r] = the largest elements of the bins of region r, [image, x1, y1, x2, y2] in rounded elements; 0 in an empty bin"""
    x, regions, size = c.shape(0), c.shape(1), pooled_size(c)
    if len(x) != 4:
        raise c.error(f"expected images of two axes, got shape {list(x)}")
    check_shape(c, "regions", regions, (regions[0] if regions else 0, 5))
    if c.dtype(1) != c.dtype(0):
        raise c.error(f"expected x and regions of one dtype, got {c.dtype(0)} and {c.dtype(1)}")
    return [TensorType(c.dtype(0), (regions[0], x[1], *size))]


@operator("MaxRoiPoolGrad", domain=ORTRAIN, lower=lower_pool("max_roi_pool_grad", 1))
def max_roi_pool_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dY, x, regions): each dY to the element that was the largest of its bin (the first of equals)"""
    check_gradient(c, max_roi_pool)
    return [c.type(1)]
