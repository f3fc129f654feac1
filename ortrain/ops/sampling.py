"""Interpolated sampling of images: GridSample, AffineGrid and deformable convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.conv import same_float
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_gradient, check_shape, operator
from ortrain.ops.shape import constant_dims
from ortrain.ops.shared.windows import Windows, integers, windows_of

Gradients = Sequence[str | None]

MAX_PLANE = 2**31 - 1
"""Maximum number of elements of one channel, whose offsets are 32-bit integers in the kernels."""


def check_plane(c: LoweringContext, sizes: Sequence[int]) -> None:
    """Raise ShapeInferenceError for images that are too large for the kernels; the reference implementation then runs the node."""
    if math.prod(sizes) > MAX_PLANE:
        raise c.error(f"expected at most {MAX_PLANE} elements per channel, got {list(sizes)}")


# ---- GridSample


MODES = {"nearest": 0, "linear": 1, "bilinear": 1, "cubic": 2, "bicubic": 2}
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}


def grid_options(c: InferenceContext) -> tuple[int, int, int]:
    """Return (mode, padding_mode, align_corners) as numbers of the kernels."""
    mode, padding = str(c.attribute("mode", "linear")), str(c.attribute("padding_mode", "zeros"))
    if mode not in MODES or padding not in PADDINGS:
        raise c.error(f"expected a mode of {tuple(MODES)} and a padding_mode of {tuple(PADDINGS)}, got {mode!r} and {padding!r}")
    return MODES[mode], PADDINGS[padding], int(bool(c.attribute("align_corners", 0)))


def lower_grid(kernel: str, x: int) -> Any:
    """Return a lowering that packs images, channels, depth, height, width, positions per image, axes, mode, padding_mode, align_corners."""

    def lower(c: LoweringContext) -> KernelCall:
        dims, grid = c.dims(x), c.dims(x + 1)
        axes = len(dims) - 2
        if not 1 <= axes <= 3:
            raise c.error(f"expected x [n, c, …] with 1 to 3 spatial axes, got shape {list(dims)}")
        check_plane(c, dims[2:])
        positions = math.prod(grid[1:-1])
        if 0 in dims[2:] and positions:
            raise c.error(f"expected images with at least one pixel, got shape {list(dims)}")
        return KernelCall(kernel, (*dims[:2], *(1,) * (3 - axes), *dims[2:], positions, axes, *grid_options(c)))

    return lower


def grid_gradient(g: GradientBuilder) -> Gradients:
    wanted = [g.needs(0), g.needs(1)]
    dx, dgrid = g.ops("GridSampleGrad", g.dy, *g.inputs, outputs=wanted, domain=ORTRAIN, **g.node.attributes)
    return [dx or None, dgrid or None]


@operator("GridSample", lower=lower_grid("grid_sample", 0), gradient=grid_gradient)
def grid_sample(c: InferenceContext) -> list[TensorType]:
    """y[n, c, p] = x[n, c] interpolated at the coordinates grid[n, p] in [-1, 1], in the order (x, y, z) (Jaderberg et al., arXiv 1506.02025)"""
    x, grid = c.shape(0), c.shape(1)
    grid_options(c)
    if len(x) < 3 or len(grid) != len(x) or isinstance(grid[-1], int) and grid[-1] != len(x) - 2:
        raise c.error(f"expected x [n, c, sizes …] and a grid [n, positions …, {len(x) - 2}], got {list(x)} and {list(grid)}")
    if isinstance(x[0], int) and isinstance(grid[0], int) and x[0] != grid[0] or c.dtype(0) in ("float32", "float64") and c.dtype(1) != c.dtype(0):
        raise c.error(f"expected x and grid of the same batch size and dtype, got {c.dtype(0)}{list(x)} and {c.dtype(1)}{list(grid)}")
    return [TensorType(c.dtype(0), (x[0], x[1], *grid[1:-1]))]


@operator("GridSampleGrad", domain=ORTRAIN, lower=lower_grid("grid_sample_grad", 1))
def grid_sample_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dgrid) of (dY, x, grid), either optional; where the interpolation is not differentiable, dgrid is the derivative from the right"""
    check_gradient(c, grid_sample)
    return [c.type(1), c.type(2)]


# ---- AffineGrid


def affine_decomposition(g: NodeBuilder) -> list[str] | None:
    """Multiply the coordinates of the untransformed grid by theta; None for unknown sizes. ONNX's function body would need control flow."""
    sizes, theta, align = constant_dims(g.context(), 1), g.inputs[0], bool(g.attribute("align_corners", 0))
    if sizes is None or align and 1 in sizes[2:]:
        return None
    axes = [np.linspace(-1, 1, n) if align else (2 * np.arange(n) + 1) / n - 1 for n in sizes[2:]]
    places = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(sizes[2:])], -1).reshape(-1, len(axes) + 1)
    grid = g.op("MatMul", g.constant(places, theta), g.op("Transpose", theta, perm=(0, 2, 1)))
    return [g.op("Reshape", grid, g.constant([0, *sizes[2:], len(axes)]))]


@operator("AffineGrid", decompose=affine_decomposition, stop_gradient=(1,))
def affine_grid(c: InferenceContext) -> list[TensorType]:
    """y[n, p] = theta[n] (p, 1) for the coordinates p in [-1, 1] of the pixels of images of the given size, in the order (x, y, z)"""
    theta, sizes = c.shape(0), constant_dims(c, 1)
    if len(theta) != 3 or theta[1] not in (2, 3) or theta[2] != theta[1] + 1:
        raise c.error(f"expected theta [n, 2, 3] or [n, 3, 4], got shape {list(theta)}")
    spatial = tuple(sizes[2:]) if sizes is not None else tuple(c.new_symbol(f"size{axis}") for axis in range(theta[1]))
    if len(spatial) != theta[1]:
        raise c.error(f"expected a size [n, c, …] with {theta[1]} spatial sizes, got {sizes}")
    if sizes is not None:
        check_shape(c, "theta", theta, (sizes[0], *theta[1:]))
        if min(sizes) < 1:
            raise c.error(f"expected positive sizes, got {sizes}")
    return [TensorType(c.dtype(0), (theta[0], *spatial, theta[1]))]


# ---- deformable convolution: im2col with moved taps (DeformableColumns), then a 1 x 1 convolution


def deformable_windows(c: InferenceContext, x: int, kernel: Sequence[int]) -> Windows:
    """Return the windows over the last two axes of input `x`."""
    shape = c.shape(x)
    if len(shape) != 4 or len(kernel) != 2:
        raise c.error(f"expected x [n, c, h, w] and a kernel of two sizes, got shape {list(shape)} and kernel {list(kernel)}")
    return windows_of(c, shape[2:], kernel)


def kernel_of(c: InferenceContext) -> tuple[int, ...]:
    """Return the kernel shape, from the weight or else from the attribute. Raises ShapeInferenceError if it is unknown or they differ."""
    given = tuple(int(size) for size in c.attribute("kernel_shape") or ())
    found = c.shape(1)[2:]
    if any(isinstance(size, str) for size in found):
        found = given
    if not found or given and given != found:
        raise c.error(f"expected a known kernel_shape that agrees with the weight, got kernel_shape {list(given)} and weight {list(c.shape(1))}")
    return tuple(int(size) for size in found)


def check_offsets(c: InferenceContext, windows: Windows, x: int, offset: int, mask: int) -> None:
    """Raise ShapeInferenceError for offsets or a mask that do not fit x. x, offset, mask: indices of inputs; the mask is optional."""
    shape, groups, taps = c.shape(x), int(c.attribute("offset_group", 1)), windows.kernel[0] * windows.kernel[1]
    if groups < 1 or isinstance(shape[1], int) and shape[1] % groups:
        raise c.error(f"expected an offset_group that divides the channels {shape[1]}, got {groups}")
    check_shape(c, "offsets", c.shape(offset), (shape[0], groups * taps * 2, *windows.output))
    if c.has(mask):
        check_shape(c, "a mask", c.shape(mask), (shape[0], groups * taps, *windows.output))


def deformable_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return a 1 x 1 convolution of DeformableColumns, which has the taps of each channel as channels."""
    kernel, (filters, per_group) = kernel_of(g.context()), g.shape(g.inputs[1])[:2]
    if not isinstance(filters, int) or not isinstance(per_group, int) or g.type(g.inputs[0]).dtype not in ("float32", "float64"):
        return None
    attributes = {name: g.attribute(name) for name in ("strides", "pads", "dilations") if g.attribute(name)}
    columns = g.op("DeformableColumns", g.inputs[0], g.inputs[2], *([g.inputs[4]] if g.has(4) else []), domain=ORTRAIN, kernel_shape=kernel,
                   offset_group=int(g.attribute("offset_group", 1)), **attributes)
    weight = g.op("Reshape", g.inputs[1], g.constant([filters, per_group * kernel[0] * kernel[1], 1, 1]))
    bias = [g.inputs[3]] if g.has(3) else []
    return [g.op("Conv", columns, weight, *bias, kernel_shape=(1, 1), group=int(g.attribute("group", 1)))]


@operator("DeformConv", decompose=deformable_decomposition)
def deform_conv(c: InferenceContext) -> list[TensorType]:
    """y = Conv whose taps are moved by offsets, bilinearly interpolated and multiplied by an optional mask (Zhu et al., arXiv 1811.11168)"""
    x, weight, group = c.shape(0), c.shape(1), int(c.attribute("group", 1))
    windows = deformable_windows(c, 0, kernel_of(c))
    check_offsets(c, windows, 0, 2, 4)
    if group < 1 or isinstance(weight[0], int) and weight[0] % group:
        raise c.error(f"expected a group that divides the filters {weight[0]}, got {group}")
    if isinstance(x[1], int) and isinstance(weight[1], int) and weight[1] * group != x[1]:
        raise c.error(f"expected a weight of {x[1]} channels over {group} groups, got shape {list(weight)}")
    dtype = same_float(c, [0, 1, 2, *(i for i in (3, 4) if c.has(i))]) if c.dtype(0) in ("float32", "float64") else c.dtype(0)
    return [TensorType(dtype, (x[0], weight[0], *windows.output))]


def lower_columns(kernel: str, x: int) -> Any:
    """Return a lowering that packs images, channels, height, width, offset groups, and two each of: kernel, output, strides, dilations, begin pads."""

    def lower(c: LoweringContext) -> KernelCall:
        dims = c.dims(x)
        windows = deformable_windows(c, x, integers(c, "kernel_shape", 2, 1))
        check_plane(c, dims[2:])
        begins = [int(begin or 0) for begin in windows.begins]
        output = [int(size) for size in windows.output]
        return KernelCall(kernel, (*dims, int(c.attribute("offset_group", 1)), *windows.kernel, *output, *windows.strides, *windows.dilations, *begins))

    return lower


def columns_gradient(g: GradientBuilder) -> Gradients:
    wanted = [g.needs(index) for index in range(len(g.inputs))]
    gradients = g.ops("DeformableColumnsGrad", g.dy, *g.inputs, outputs=wanted, domain=ORTRAIN, **g.node.attributes)
    return [name or None for name in gradients]


@operator("DeformableColumns", domain=ORTRAIN, lower=lower_columns("deformable_columns", 0), gradient=columns_gradient)
def deformable_columns(c: InferenceContext) -> list[TensorType]:
    """y[n, c taps + t, o] = mask x[n, c] at the position of tap t of window o, moved by its offset (row, column); 0 outside of the image"""
    x = c.shape(0)
    windows = deformable_windows(c, 0, integers(c, "kernel_shape", 2, 1))
    check_offsets(c, windows, 0, 1, 2)
    taps = windows.kernel[0] * windows.kernel[1]
    return [TensorType(c.dtype(0), (x[0], x[1] * taps if isinstance(x[1], int) else c.new_symbol("channels"), *windows.output))]


@operator("DeformableColumnsGrad", domain=ORTRAIN, lower=lower_columns("deformable_columns_grad", 1))
def deformable_columns_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, doffset, dmask) of (dY, x, offset, mask), each optional"""
    check_gradient(c, deformable_columns)
    return [c.type(1), c.type(2), *([c.type(3)] if c.has(3) else [])]
