"""Col2Im (fold) and MaxUnpool, which write the elements of windows to the positions in an image that they were read from, and Unfold, which reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, operator
from ortrain.ops.shape import constant_dims, first_input_gradient
from ortrain.ops.shared.strides import symbolic_shape
from ortrain.ops.shared.windows import Windows, integers, output_size, windows_of

Gradients = Sequence[str | None]


# ---- Col2Im


def fold_sizes(c: InferenceContext) -> tuple[list[int], list[int], list[int]] | None:
    """Return (image sizes, block sizes, number of blocks along each axis) of a Col2Im, None while they are unknown."""
    image, block = constant_dims(c, 1), constant_dims(c, 2)
    if image is None or block is None:
        return None
    rank = len(image)
    if len(block) != rank or min((*image, *block), default=0) < 1:
        raise c.error(f"expected as many positive block sizes as image sizes, got {image} and {block}")
    pads, strides, dilations = integers(c, "pads", 2 * rank, 0), integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1)
    counts = [output_size(image[i], block[i], strides[i], dilations[i], pads[i], pads[rank + i], False) for i in range(rank)]
    if min(counts) < 1:
        raise c.error(f"expected blocks that fit into the image, got {block} for {image}")
    return image, block, counts


def fold_indices(c: InferenceContext) -> np.ndarray:
    """Return the position in the flat image of each element of each block, int64 [block elements, blocks].

    Elements in the pads have the position behind the last element of the image."""
    found = fold_sizes(c)
    if found is None:
        raise c.error("expected image_shape and block_shape that are known before running, got values that are computed")
    return block_indices(c, *found, integers(c, "pads", 2 * len(found[0]), 0))


def block_indices(c: InferenceContext, image: Sequence[int], block: Sequence[int], counts: Sequence[int], pads: Sequence[int]) -> np.ndarray:
    """Return what fold_indices does for sizes of the image and of blocks, numbers of blocks along each axis, and pads."""
    rank = len(image)
    strides, dilations = integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1)
    flat, inside = np.zeros((math.prod(block), math.prod(counts)), np.int64), np.ones((math.prod(block), math.prod(counts)), bool)
    for axis, (within, start) in enumerate(zip(np.unravel_index(np.arange(math.prod(block)), block), np.unravel_index(np.arange(math.prod(counts)), counts),
                                               strict=True)):
        at = within[:, None] * dilations[axis] + start[None, :] * strides[axis] - pads[axis]
        inside &= (at >= 0) & (at < image[axis])
        flat = flat * image[axis] + at
    return np.where(inside, flat, math.prod(image))


def fold_gradient(g: GradientBuilder) -> Gradients:
    """Return dY gathered at the positions of the block elements (im2col)."""
    return first_input_gradient(g, g.reshape_like(gather_blocks(g, g.dy, fold_indices(g.context())), g.inputs[0]))


def gather_blocks(g: NodeBuilder, images: str, indices: np.ndarray) -> str:
    """Return the elements of an image's channels at indices of fold_indices, those of each block together: [n, channels, block elements · blocks]."""
    flat = g.op("Reshape", images, g.constant([0, 0, -1]))
    sizes = [size for size in g.shape(images)[2:] if isinstance(size, int)]
    if indices.max() == math.prod(sizes):
        flat = g.op("Pad", flat, pads=(0, 0, 0, 0, 0, 1)) if g.opset < 11 else g.op("Pad", flat, g.constant([0, 0, 0, 0, 0, 1]))
    return g.op("Gather", flat, g.constant(indices.reshape(-1)), axis=2)


def fold_decomposition(g: NodeBuilder) -> list[str] | None:
    """Add the block elements at their positions in an image with one additional element, which collects the elements in the pads."""
    kind, found = g.type(g.inputs[0]), fold_sizes(g.context())
    if not kind.is_static or found is None or kind.dtype not in ("float32", "float64"):
        return None
    image, block, _ = found
    n, channels = kind.sizes[0], kind.sizes[1] // math.prod(block)
    indices, size = fold_indices(g.context()).reshape(-1), math.prod(image)
    x = g.op("Reshape", g.inputs[0], g.constant([n, channels, len(indices)]))
    y = g.op("GatherGrad", g.constant([n, channels, size + 1]), g.constant(indices), x, domain=MICROSOFT, axis=2)
    y = g.op("Slice", y, g.constant([0]), g.constant([size]), g.constant([2]))
    return [g.op("Reshape", y, g.constant([n, channels, *image]))]


@operator("Col2Im", gradient=fold_gradient, decompose=fold_decomposition, stop_gradient=(1, 2))
def col2im(c: InferenceContext) -> list[TensorType]:
    """y [n, channels, image…] = the sum of the blocks, which are the columns of x [n, channels · block elements, blocks], at their positions in the image"""
    x, found = c.shape(0), fold_sizes(c)
    if len(x) != 3:
        raise c.error(f"expected x [n, channels · block elements, blocks], got shape {list(x)}")
    if found is None:
        rank = next((size for index in (1, 2) for size in c.shape(index) if isinstance(size, int)), None)
        if rank is None:
            raise c.error("expected an image_shape of known length, got one of unknown length")
        return [TensorType(c.dtype(0), (x[0], *symbolic_shape(c, rank + 2)[1:]))]
    image, block, counts = found
    elements = math.prod(block)
    if isinstance(x[1], int) and x[1] % elements or isinstance(x[2], int) and x[2] != math.prod(counts):
        raise c.error(f"expected x [n, a multiple of {elements}, {math.prod(counts)}] for blocks {block} of the image {image}, got {list(x)}")
    return [TensorType(c.dtype(0), (x[0], x[1] // elements if isinstance(x[1], int) else c.new_symbol("channels"), *image))]


# ---- Unfold


def unfold_windows(c: InferenceContext) -> Windows | None:
    """Return the windows of an Unfold, None while the sizes of the image are unknown."""
    image = c.shape(0)[2:]
    return windows_of(c, image, [int(size) for size in c.attribute("kernel_shape")]) if all(isinstance(size, int) for size in image) else None


def unfold_decomposition(g: NodeBuilder) -> list[str] | None:
    if unfold_windows(g.context()) is None:
        return None
    image = [int(size) for size in g.shape(g.inputs[0])[2:]]                # fixed, where they are symbolic sizes
    windows = windows_of(g.context(), image, [int(size) for size in g.attribute("kernel_shape")])
    indices = block_indices(g.context(), image, windows.kernel, [int(count) for count in windows.output], windows.padded() or ())
    if np.array_equal(indices, np.arange(indices.size)[None, :]):
        return [g.op("Reshape", g.inputs[0], g.constant([0, 0, -1]))]       # windows of one pixel
    return [g.op("Reshape", gather_blocks(g, g.inputs[0], indices), g.constant([0, -1, indices.shape[1]]))]


@operator("Unfold", domain=ORTRAIN, differentiable=False, decompose=unfold_decomposition)
def unfold(c: InferenceContext) -> list[TensorType]:
    """y [n, channels · block elements, blocks] = the windows of x [n, channels, image…], with the attributes of Conv, as columns; the inverse of Col2Im"""
    windows, (n, channels, *_) = unfold_windows(c), c.shape(0)
    block = math.prod(int(size) for size in c.attribute("kernel_shape"))
    rows = channels * block if isinstance(channels, int) else c.new_symbol("rows")
    blocks = [count for count in windows.output if isinstance(count, int)] if windows is not None else []
    return [TensorType(c.dtype(0), (n, rows, math.prod(blocks) if blocks else c.new_symbol("blocks")))]


# ---- MaxUnpool


def pooled_input_sizes(c: InferenceContext) -> list[Dim]:
    """Return the spatial sizes that the windows cover, to which the indices of the MaxPool refer."""
    spatial, rank = c.shape(0)[2:], len(c.shape(0)) - 2
    kernel = tuple(int(size) for size in c.attribute("kernel_shape") or ())
    if rank < 1 or len(kernel) != rank:
        raise c.error(f"expected x [n, c, …] of at least 3 axes and a kernel_shape for the spatial ones, got shape {list(c.shape(0))} and {list(kernel)}")
    pads, strides = integers(c, "pads", 2 * rank, 0), integers(c, "strides", rank, 1)
    sizes: list[Dim] = []
    for axis, size in enumerate(spatial):
        sizes.append((size - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[rank + axis] if isinstance(size, int) else c.new_symbol(f"spatial{axis}"))
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise c.error(f"expected windows that cover at least one element, got output sizes {sizes}")
    return sizes


def unpool_gradient(g: GradientBuilder) -> Gradients:
    """Return dY gathered at the indices; elements with the same index each get all of it."""
    dy = g.dy
    if g.has(2):
        sizes = pooled_input_sizes(g.context())
        if any(isinstance(size, str) for size in sizes):
            raise g.error(f"expected known sizes beside output_shape, got {sizes}")
        dy = crop(g, dy, [int(size) for size in sizes])
    return first_input_gradient(g, g.op("Gather", g.op("Reshape", dy, g.constant([-1])), g.inputs[1]))


def crop(g: NodeBuilder, value: str, sizes: Sequence[int]) -> str:
    """Return the first `sizes` elements along the spatial axes."""
    axes, starts = tuple(range(2, 2 + len(sizes))), (0,) * len(sizes)
    if g.opset < 10:
        return g.op("Slice", value, axes=axes, starts=starts, ends=tuple(sizes))
    return g.op("Slice", value, g.constant(starts), g.constant(sizes), g.constant(axes))


def unpool_decomposition(g: NodeBuilder) -> list[str] | None:
    """Scatter x into flat zeros at the indices, then pad with zeros at the end to the output_shape."""
    kind = g.type(g.inputs[0])
    if not kind.is_static:
        return None
    inner = [*kind.sizes[:2], *(int(size) for size in pooled_input_sizes(g.context()))]
    flat = [g.op("Reshape", name, g.constant([kind.count])) for name in (g.inputs[1], g.inputs[0])]
    zeros = g.constant(np.zeros(math.prod(inner)), g.inputs[0])
    y = g.op("Reshape", g.op("ScatterElements" if g.opset >= 11 else "Scatter", zeros, *flat, axis=0), g.constant(inner))
    wanted = list(g.shape(g.outputs[0]))
    if wanted == inner:
        return [y]
    pads = [0] * len(inner) + [int(size) - have for size, have in zip(wanted, inner, strict=True)]
    return [g.op("Pad", y, pads=tuple(pads)) if g.opset < 11 else g.op("Pad", y, g.constant(pads))]


@operator("MaxUnpool", gradient=unpool_gradient, decompose=unpool_decomposition, stop_gradient=(1, 2))
def max_unpool(c: InferenceContext) -> list[TensorType]:
    """y = zeros, y.flat[indices] = x, for the indices that a MaxPool returned; of several elements with the same index the last one is kept"""
    x, sizes = c.shape(0), pooled_input_sizes(c)
    if len(c.shape(1)) != len(x) or c.dtype(1) != "int64":
        raise c.error(f"expected int64 indices of x's shape {list(x)}, got {c.dtype(1)}{list(c.shape(1))}")
    if not c.has(2):
        return [TensorType(c.dtype(0), (*x[:2], *sizes))]
    wanted = constant_dims(c, 2)
    if wanted is None:
        return [TensorType(c.dtype(0), (*x[:2], *symbolic_shape(c, len(x))[2:]))]
    least = [*x[:2], *sizes]
    if len(wanted) != len(x) or any(isinstance(have, int) and (size < have or axis < 2 and size != have)
                                    for axis, (size, have) in enumerate(zip(wanted, least, strict=False))):
        raise c.error(f"expected an output_shape of at least {least}, got {wanted}")
    return [TensorType(c.dtype(0), tuple(wanted))]
