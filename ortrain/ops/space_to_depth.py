"""Square blocks of an image moved between its channels and its axes: DepthToSpace and SpaceToDepth (Shi et al., arXiv 1609.05158)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import InferenceContext, operator

Rescaling = Callable[[InferenceContext, Dim, int, str], Dim]


def block_size(c: InferenceContext | NodeBuilder) -> int:
    """The attribute blocksize."""
    size = int(c.attribute("blocksize", 0))
    if size < 1:
        raise c.error(f"expected a positive blocksize, got {size}")
    return size


def depth_in_front(c: InferenceContext | NodeBuilder) -> bool:
    """Whether the channels' first axis counts the elements of a block (mode DCR) or the channels of the image (CRD)."""
    mode = str(c.attribute("mode", "DCR"))
    if mode not in ("DCR", "CRD"):
        raise c.error(f"expected the mode DCR or CRD, got {mode!r}")
    return mode == "DCR"


def image_shape(c: InferenceContext) -> tuple[Dim, ...]:
    shape = c.shape(0)
    if len(shape) != 4:
        raise c.error(f"expected an image [n, c, h, w], got shape {list(shape)}")
    return shape


def times(c: InferenceContext, size: Dim, factor: int, label: str) -> Dim:
    return size * factor if isinstance(size, int) else size if factor == 1 else c.fresh(label)


def over(c: InferenceContext, size: Dim, factor: int, label: str) -> Dim:
    if isinstance(size, int) and size % factor:
        raise c.error(f"expected a size that {factor} divides, got {size} in {list(c.shape(0))}")
    return size // factor if isinstance(size, int) else size if factor == 1 else c.fresh(label)


def rescaled(c: InferenceContext, of_channels: Rescaling, of_axes: Rescaling) -> list[TensorType]:
    """An image whose channels are block² times as many or as few, its axes block times as long or as short."""
    block = block_size(c)
    depth_in_front(c)
    n, channels, height, width = image_shape(c)
    return [TensorType(c.dtype(0), (n, of_channels(c, channels, block**2, "channels"), of_axes(c, height, block, "height"), of_axes(c, width, block, "width")))]


def depth_decomposition(g: NodeBuilder) -> list[str] | None:
    """The channels as [elements of a block, channels], or the other way round; then the elements of blocks beside their places."""
    block, kind = block_size(g), g.type(g.inputs[0])
    if not kind.is_static:
        return None
    n, channels, height, width = kind.sizes
    inner = channels // block**2
    if depth_in_front(g):
        parts, order = [n, block, block, inner, height, width], (0, 3, 4, 1, 5, 2)
    else:
        parts, order = [n, inner, block, block, height, width], (0, 1, 4, 2, 5, 3)
    moved = g.op("Transpose", g.op("Reshape", g.inputs[0], g.constant(parts)), perm=order)
    return [g.op("Reshape", moved, g.constant([n, inner, height * block, width * block]))]


def depth_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """What was moved is moved back, into channels in the order of mode DCR; for CRD they change places."""
    block, channels = block_size(g), g.shape(g.inputs[0])[1]
    dx = g.op("SpaceToDepth", g.dy, blocksize=block)
    if not depth_in_front(g):
        if not isinstance(channels, int):
            raise g.error("expected a number of channels that is known where a gradient is taken, got a symbol")
        order = np.arange(channels).reshape(block**2, -1).T.reshape(-1)
        dx = g.op("Gather", dx, g.constant(order), axis=1)
    g.declare(dx, g.type(g.inputs[0]))
    return [dx]


@operator("DepthToSpace", gradient=depth_gradient, decompose=depth_decomposition)
def depth_to_space(c: InferenceContext) -> list[TensorType]:
    """y [n, c / b², h b, w b] = x [n, c, h, w] with each b² channels as a block of b by b elements"""
    return rescaled(c, over, times)


def space_decomposition(g: NodeBuilder) -> list[str] | None:
    """The axes as [blocks, elements of a block]; then the elements before the channels, or after them."""
    block, kind = block_size(g), g.type(g.inputs[0])
    if not kind.is_static:
        return None
    n, channels, height, width = kind.sizes
    parts = g.op("Reshape", g.inputs[0], g.constant([n, channels, height // block, block, width // block, block]))
    moved = g.op("Transpose", parts, perm=(0, 3, 5, 1, 2, 4) if depth_in_front(g) else (0, 1, 3, 5, 2, 4))
    return [g.op("Reshape", moved, g.constant([n, channels * block**2, height // block, width // block]))]


def space_gradient(g: GradientBuilder) -> Sequence[str | None]:
    dx = g.op("DepthToSpace", g.dy, **g.node.attributes)
    g.declare(dx, g.type(g.inputs[0]))
    return [dx]


@operator("SpaceToDepth", gradient=space_gradient, decompose=space_decomposition)
def space_to_depth(c: InferenceContext) -> list[TensorType]:
    """y [n, c b², h / b, w / b] = x [n, c, h, w] with each block of b by b elements as b² channels"""
    return rescaled(c, times, over)
