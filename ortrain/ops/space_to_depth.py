"""DepthToSpace and SpaceToDepth: b x b blocks of pixels rearranged to and from channels (sub-pixel convolution, Shi et al., arXiv 1609.05158)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import InferenceContext, operator

DimRescaling = Callable[[InferenceContext, Dim, int, str], Dim]


def block_size(c: InferenceContext | NodeBuilder) -> int:
    """Return the attribute blocksize. Raises unless it is positive."""
    size = int(c.attribute("blocksize", 0))
    if size < 1:
        raise c.error(f"expected a positive blocksize, got {size}")
    return size


def is_depth_first(c: InferenceContext | NodeBuilder) -> bool:
    """Return whether the attribute mode is DCR (channels split as [block elements, image channels]) rather than CRD ([image channels, block elements])."""
    mode = str(c.attribute("mode", "DCR"))
    if mode not in ("DCR", "CRD"):
        raise c.error(f"expected the mode DCR or CRD, got {mode!r}")
    return mode == "DCR"


def image_shape(c: InferenceContext) -> tuple[Dim, ...]:
    """Return the shape [n, c, h, w] of input 0. Raises if its rank is not 4."""
    shape = c.shape(0)
    if len(shape) != 4:
        raise c.error(f"expected an image [n, c, h, w], got shape {list(shape)}")
    return shape


def scale_up(c: InferenceContext, size: Dim, factor: int, label: str) -> Dim:
    """Return size * factor, or a new symbol with this label for a symbolic size."""
    return size * factor if isinstance(size, int) else size if factor == 1 else c.new_symbol(label)


def scale_down(c: InferenceContext, size: Dim, factor: int, label: str) -> Dim:
    """Return size / factor, or a new symbol with this label for a symbolic size. Raises if the factor does not divide the size."""
    if isinstance(size, int) and size % factor:
        raise c.error(f"expected a size that {factor} divides, got {size} in {list(c.shape(0))}")
    return size // factor if isinstance(size, int) else size if factor == 1 else c.new_symbol(label)


def infer_rescaled(c: InferenceContext, channel_rescaling: DimRescaling, axis_rescaling: DimRescaling) -> list[TensorType]:
    """Return the type of the image with its channels rescaled by b² and its height and width by b."""
    block = block_size(c)
    is_depth_first(c)         # checks the mode
    n, channels, height, width = image_shape(c)
    out = (n, channel_rescaling(c, channels, block**2, "channels"), axis_rescaling(c, height, block, "height"), axis_rescaling(c, width, block, "width"))
    return [TensorType(c.dtype(0), out)]


def depth_to_space_decomposition(g: NodeBuilder) -> list[str] | None:
    """Split the channels into block rows, block columns and image channels, and transpose the block axes next to height and width."""
    block, kind = block_size(g), g.type(g.inputs[0])
    if not kind.is_static:
        return None
    n, channels, height, width = kind.sizes
    inner = channels // block**2
    if is_depth_first(g):
        parts, order = [n, block, block, inner, height, width], (0, 3, 4, 1, 5, 2)
    else:
        parts, order = [n, inner, block, block, height, width], (0, 1, 4, 2, 5, 3)
    moved = g.op("Transpose", g.op("Reshape", g.inputs[0], g.constant(parts)), perm=order)
    return [g.op("Reshape", moved, g.constant([n, inner, height * block, width * block]))]


def depth_to_space_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """Return SpaceToDepth of dY, which has the channel order of mode DCR; for CRD a Gather reorders the channels."""
    block, channels = block_size(g), g.shape(g.inputs[0])[1]
    dx = g.op("SpaceToDepth", g.dy, blocksize=block)
    if not is_depth_first(g):
        if not isinstance(channels, int):
            raise g.error("expected a number of channels that is known where a gradient is taken, got a symbol")
        order = np.arange(channels, dtype=np.int64).reshape(block**2, -1).T.reshape(-1)
        dx = g.op("Gather", dx, g.constant(order), axis=1)
    g.declare(dx, g.type(g.inputs[0]))
    return [dx]


@operator("DepthToSpace", gradient=depth_to_space_gradient, decompose=depth_to_space_decomposition)
def depth_to_space(c: InferenceContext) -> list[TensorType]:
    """y [n, c / b², h b, w b] = x [n, c, h, w] with every b² channels rearranged into a block of b x b pixels"""
    return infer_rescaled(c, scale_down, scale_up)


def space_to_depth_decomposition(g: NodeBuilder) -> list[str] | None:
    """Split height and width into blocks and block elements, and transpose the block elements before (DCR) or after (CRD) the channels."""
    block, kind = block_size(g), g.type(g.inputs[0])
    if not kind.is_static:
        return None
    n, channels, height, width = kind.sizes
    parts = g.op("Reshape", g.inputs[0], g.constant([n, channels, height // block, block, width // block, block]))
    moved = g.op("Transpose", parts, perm=(0, 3, 5, 1, 2, 4) if is_depth_first(g) else (0, 1, 3, 5, 2, 4))
    return [g.op("Reshape", moved, g.constant([n, channels * block**2, height // block, width // block]))]


def space_to_depth_gradient(g: GradientBuilder) -> Sequence[str | None]:
    dx = g.op("DepthToSpace", g.dy, **g.node.attributes)
    g.declare(dx, g.type(g.inputs[0]))
    return [dx]


@operator("SpaceToDepth", gradient=space_to_depth_gradient, decompose=space_to_depth_decomposition)
def space_to_depth(c: InferenceContext) -> list[TensorType]:
    """y [n, c b², h / b, w / b] = x [n, c, h, w] with every block of b x b pixels rearranged into b² channels"""
    return infer_rescaled(c, scale_up, scale_down)
