"""Elements put back to where windows took them from: Col2Im and MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, operator
from ortrain.ops.shape import constant_dims, first_input_gradient
from ortrain.ops.shared.strides import symbolic_shape
from ortrain.ops.shared.windows import integers, output_size

Gradients = Sequence[str | None]


# ---- Col2Im


def fold_sizes(c: InferenceContext) -> tuple[list[int], list[int], list[int]] | None:
    """(image sizes, block sizes, windows along each axis); None while they are not known."""
    image, block = constant_dims(c, 1), constant_dims(c, 2)
    if image is None or block is None:
        return None
    rank = len(image)
    if len(block) != rank or min((*image, *block), default=0) < 1:
        raise c.error(f"expected positive sizes of an image and of blocks, as many of both, got {image} and {block}")
    pads, strides, dilations = integers(c, "pads", 2 * rank, 0), integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1)
    counts = [output_size(image[i], block[i], strides[i], dilations[i], pads[i], pads[rank + i], False) for i in range(rank)]
    if min(counts) < 1:
        raise c.error(f"expected blocks that fit into the image, got {block} for {image}")
    return image, block, counts


def fold_indices(c: InferenceContext) -> np.ndarray:
    """Where in the flat image each element of each block lies, int64 [block elements, windows]; one past the image for what lies outside."""
    found = fold_sizes(c)
    if found is None:
        raise c.error("expected image_shape and block_shape that are known before running, got values that are computed")
    image, block, counts = found
    rank = len(image)
    pads, strides, dilations = integers(c, "pads", 2 * rank, 0), integers(c, "strides", rank, 1), integers(c, "dilations", rank, 1)
    flat, inside = np.zeros((math.prod(block), math.prod(counts)), np.int64), np.ones((math.prod(block), math.prod(counts)), bool)
    for axis, (within, start) in enumerate(zip(np.unravel_index(np.arange(math.prod(block)), block), np.unravel_index(np.arange(math.prod(counts)), counts),
                                               strict=True)):
        at = within[:, None] * dilations[axis] + start[None, :] * strides[axis] - pads[axis]
        inside &= (at >= 0) & (at < image[axis])
        flat = flat * image[axis] + at
    return np.where(inside, flat, math.prod(image))


def fold_gradient(g: GradientBuilder) -> Gradients:
    """The adjoint: every block takes its elements out of dY."""
    indices = fold_indices(g.context()).reshape(-1)
    image = g.op("Reshape", g.dy, g.constant([0, 0, -1]))
    if indices.max() == math.prod(constant_dims(g.context(), 1) or ()):
        image = g.op("Pad", image, g.constant([0, 0, 0, 0, 0, 1]))
    return first_input_gradient(g, g.reshape_like(g.op("Gather", image, g.constant(indices), axis=2), g.inputs[0]))


def fold_decomposition(g: NodeBuilder) -> list[str] | None:
    """Every element of the blocks is added where it belongs; an image has one element more, for what lies outside."""
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
    """y = images in which every block (a column of x [n, channels · block, windows]) is added where its window lies"""
    x, found = c.shape(0), fold_sizes(c)
    if len(x) != 3:
        raise c.error(f"expected x [n, channels · block elements, windows], got shape {list(x)}")
    if found is None:
        rank = next((size for index in (1, 2) for size in c.shape(index) if isinstance(size, int)), None)
        if rank is None:
            raise c.error("expected an image_shape of known length")
        return [TensorType(c.dtype(0), (x[0], *symbolic_shape(c, rank + 2)[1:]))]
    image, block, counts = found
    elements = math.prod(block)
    if isinstance(x[1], int) and x[1] % elements or isinstance(x[2], int) and x[2] != math.prod(counts):
        raise c.error(f"expected x [n, a multiple of {elements}, {math.prod(counts)}] for blocks {block} of the image {image}, got {list(x)}")
    return [TensorType(c.dtype(0), (x[0], x[1] // elements if isinstance(x[1], int) else c.new_symbol("channels"), *image))]


# ---- MaxUnpool


def unpooled(c: InferenceContext) -> list[Dim]:
    """The sizes that the windows span: those that the indices are meant for."""
    spatial, rank = c.shape(0)[2:], len(c.shape(0)) - 2
    kernel = tuple(int(size) for size in c.attribute("kernel_shape") or ())
    if rank < 1 or len(kernel) != rank:
        raise c.error(f"expected x of three axes at least and a kernel_shape for all but two, got shape {list(c.shape(0))} and {list(kernel)}")
    pads, strides = integers(c, "pads", 2 * rank, 0), integers(c, "strides", rank, 1)
    sizes: list[Dim] = []
    for axis, size in enumerate(spatial):
        sizes.append((size - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[rank + axis] if isinstance(size, int) else c.new_symbol(f"spatial{axis}"))
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise c.error(f"expected windows that span something, got output sizes {sizes}")
    return sizes


def unpool_gradient(g: GradientBuilder) -> Gradients:
    """dY from where each element went (each of several that went to one place gets all of it)."""
    dy = g.dy
    if g.has(2):
        sizes = unpooled(g.context())
        if any(isinstance(size, str) for size in sizes):
            raise g.error(f"expected sizes that are known where output_shape is given, got {sizes}")
        dy = cut(g, dy, [int(size) for size in sizes])
    return first_input_gradient(g, g.op("Gather", g.op("Reshape", dy, g.constant([-1])), g.inputs[1]))


def cut(g: NodeBuilder, value: str, sizes: Sequence[int]) -> str:
    """The first elements along all axes but two."""
    axes, starts = tuple(range(2, 2 + len(sizes))), (0,) * len(sizes)
    if g.opset < 10:
        return g.op("Slice", value, axes=axes, starts=starts, ends=tuple(sizes))
    return g.op("Slice", value, g.constant(starts), g.constant(sizes), g.constant(axes))


def unpool_decomposition(g: NodeBuilder) -> list[str] | None:
    """A scatter into flat zeros; within an output_shape, a border of zeros after it."""
    kind = g.type(g.inputs[0])
    if not kind.is_static:
        return None
    inner = [*kind.sizes[:2], *(int(size) for size in unpooled(g.context()))]
    flat = [g.op("Reshape", name, g.constant([kind.count])) for name in (g.inputs[1], g.inputs[0])]
    nothing = g.constant(np.zeros(math.prod(inner)), g.inputs[0])
    y = g.op("Reshape", g.op("ScatterElements" if g.opset >= 11 else "Scatter", nothing, *flat, axis=0), g.constant(inner))
    wanted = list(g.shape(g.outputs[0]))
    if wanted == inner:
        return [y]
    pads = [0] * len(inner) + [int(size) - have for size, have in zip(wanted, inner, strict=True)]
    return [g.op("Pad", y, pads=tuple(pads)) if g.opset < 11 else g.op("Pad", y, g.constant(pads))]


@operator("MaxUnpool", gradient=unpool_gradient, decompose=unpool_decomposition, stop_gradient=(1, 2))
def max_unpool(c: InferenceContext) -> list[TensorType]:
    """y = zeros with x where the indices of a MaxPool (into all of the windows' output, flat) say; the last of equals stays"""
    x, sizes = c.shape(0), unpooled(c)
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
        raise c.error(f"expected an output_shape of {least} or more, got {wanted}")
    return [TensorType(c.dtype(0), tuple(wanted))]
