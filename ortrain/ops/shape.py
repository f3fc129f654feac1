"""Shape operators: views (Reshape, Squeeze …), data movement (Transpose, Expand, Tile), shape arithmetic and constants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ortrain.dtypes import name_of
from ortrain.ir import Dim, Graph, Shape, TensorType
from ortrain.ops.registry.constants import is_broadcast, is_one
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import MICROSOFT, Alias, InferenceContext, KernelCall, LoweringContext, broadcast_shapes, normalize_axes, operator
from ortrain.ops.shared.broadcasting import contiguous_strides
from ortrain.ops.shared.strides import is_full_copy, length_of, pack_strided_copy, symbolic_shape

Gradients = Sequence[str | None]


def lower_view(c: LoweringContext) -> Alias:
    """Lower an operator that only changes the shape: the output aliases input 0."""
    return Alias(0)


def first_input_gradient(g: GradientBuilder, gradient: str | None) -> Gradients:
    """Return the gradient of input 0 and None for every other input."""
    return [gradient, *[None] * (len(g.inputs) - 1)]


def reshape_gradient(g: GradientBuilder) -> Gradients:
    return first_input_gradient(g, g.reshape_like(g.dy, g.inputs[0]))


def shape_value(g: GradientBuilder, value: str) -> str:
    """Return the shape of a value as int64: a constant when static, else the output of a Shape node."""
    kind = g.type(value)
    return str(g.constant(kind.sizes) if kind.is_static else g.op("Shape", value))


def constant_dims(c: InferenceContext, index: int) -> list[int] | None:
    """Return the elements of an integer input that is constant, else None."""
    sizes = c.sizes(index)
    if sizes is not None:
        numbers = [size for size in sizes if isinstance(size, int)]
        return numbers if len(numbers) == len(sizes) else None
    value = c.value(index)
    return None if value is None else [int(v) for v in value.reshape(-1)]


def inferred_dim(c: InferenceContext, dims: Shape, others: Sequence[Dim], unknown: Dim) -> Dim:
    """Return the dimension that -1 stands for in a Reshape of `dims`.

    others: the other dimensions of the target. unknown: the result where symbolic dimensions leave it open."""
    symbols = [d for d in dims if isinstance(d, str)]
    numerator = math.prod(d for d in dims if isinstance(d, int))
    denominator = math.prod(d for d in others if isinstance(d, int))
    for d in others:
        if isinstance(d, str):
            if d not in symbols:
                return unknown
            symbols.remove(d)
    if not symbols:
        if denominator == 0 or numerator % denominator:
            raise c.error(f"expected a number of elements that {list(others)} divides, got shape {list(dims)}")
        return numerator // denominator
    return symbols[0] if len(symbols) == 1 and numerator == denominator else unknown


def reshape_output_shape(c: InferenceContext, dims: Shape, target: Sequence[Dim], allowzero: bool) -> Shape:
    """Return the output shape of a Reshape of `dims` to a known target."""
    if sum(t == -1 for t in target) > 1 or any(isinstance(t, int) and t < -1 for t in target) or (allowzero and -1 in target and 0 in target):
        raise c.error(f"expected a target shape with at most one -1, got {list(target)}")
    copied = [i for i, t in enumerate(target) if t == 0 and not allowzero]
    if copied and copied[-1] >= len(dims):
        raise c.error(f"expected a 0 of the target only where the input has a dimension, got shape {list(dims)} for target {list(target)}")
    out: list[Dim] = [dims[i] if i in copied else t for i, t in enumerate(target)]
    if -1 in target:
        axis = list(target).index(-1)
        others = out[:axis] + out[axis + 1:]
        out[axis] = inferred_dim(c, dims, others, symbolic_shape(c, len(out))[axis])
    elif all(isinstance(d, int) for d in (*dims, *out)) and math.prod(dims) != math.prod(out):
        raise c.error(f"expected a target with {math.prod(dims)} elements for shape {list(dims)}, got {list(target)}")
    return tuple(out)


def evaluate_reshape(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    shape = reshape(c)[0].shape
    assert shape is not None
    return [x.reshape([int(d) for d in shape])]


@operator("Reshape", lower=lower_view, gradient=reshape_gradient, evaluate=evaluate_reshape, stop_gradient=(1,))
def reshape(c: InferenceContext) -> list[TensorType]:
    """y = x with another shape; in the target, 0 copies the dimension of x (unless `allowzero` is set) and -1 is inferred from the others"""
    kind = c.type(0)
    if c.dtype(1) != "int64":
        raise c.error(f"expected a target shape of int64, got {c.dtype(1)}")
    target = c.sizes(1)
    if target is None:
        rank = length_of(c, 1)
        return [TensorType(kind.dtype, None if rank is None else symbolic_shape(c, rank))]
    if kind.shape is None:
        open_sizes = symbolic_shape(c, len(target))
        return [TensorType(kind.dtype, tuple(t if isinstance(t, str) or t > 0 else f for t, f in zip(target, open_sizes, strict=True)))]
    return [TensorType(kind.dtype, reshape_output_shape(c, kind.shape, target, bool(c.attribute("allowzero", 0))))]


def dim_product(c: InferenceContext, dims: Shape, label: str) -> Dim:
    """Return the product of dimensions: a number, the only symbol if the numbers' product is 1, or a new symbol."""
    symbols = [d for d in dims if isinstance(d, str)]
    number = math.prod(d for d in dims if isinstance(d, int))
    if not symbols or number == 0:
        return number
    return symbols[0] if len(symbols) == 1 and number == 1 else c.new_symbol(label)


def evaluate_flatten(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    shape = flatten(c)[0].shape
    assert shape is not None
    return [x.reshape([int(d) for d in shape])]


@operator("Flatten", lower=lower_view, gradient=reshape_gradient, evaluate=evaluate_flatten)
def flatten(c: InferenceContext) -> list[TensorType]:
    """y = x as a matrix: rows are the dimensions before `axis`, columns the others"""
    dims, axis = c.shape(0), c.attribute("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        raise c.error(f"expected an axis in [{-len(dims)}, {len(dims)}], got {axis}")
    axis = axis + len(dims) if axis < 0 else axis
    return [TensorType(c.dtype(0), (dim_product(c, dims[:axis], "rows"), dim_product(c, dims[axis:], "columns")))]


def axes_of(c: InferenceContext) -> list[int] | None:
    """Return the axes of Squeeze or Unsqueeze, an attribute before opset 13 and an input since; None when unknown or absent."""
    if c.opset < 13:
        axes = c.attribute("axes")
        return None if axes is None else [int(a) for a in axes]
    return constant_dims(c, 1)


def squeeze_gradient(g: GradientBuilder) -> Gradients:
    """Return Unsqueeze of dY with the same axes, or a Reshape to the shape of x where the node has no axes."""
    if g.opset >= 13 and len(g.inputs) > 1 and g.inputs[1]:
        return [g.op("Unsqueeze", g.dy, g.inputs[1]), None]
    if g.opset < 13 and g.attribute("axes") is not None:
        return [g.op("Unsqueeze", g.dy, axes=tuple(g.attribute("axes")))]
    return reshape_gradient(g)


def evaluate_squeeze(c: InferenceContext) -> list[np.ndarray]:
    x, axes = c.value(0), axes_of(c)
    assert x is not None
    return [np.squeeze(x, None if axes is None else tuple(axes))]


@operator("Squeeze", lower=lower_view, gradient=squeeze_gradient, evaluate=evaluate_squeeze, stop_gradient=(1,))
def squeeze(c: InferenceContext) -> list[TensorType]:
    """y = x without the given axes of size 1, or without all axes of size 1 if none are given"""
    axes = axes_of(c)
    if axes is None and c.opset >= 13 and c.has(1):
        n = length_of(c, 1)
        return [TensorType(c.dtype(0), None if n is None else symbolic_shape(c, len(c.shape(0)) - n))]
    dims = c.shape(0)
    # a symbolic dimension counts as not 1; a user can declare it as 1 through `input_shapes`
    removed = [i for i, d in enumerate(dims) if d == 1] if axes is None else normalize_axes(c, axes, len(dims))
    if any(isinstance(dims[i], int) and dims[i] != 1 for i in removed):
        raise c.error(f"expected size 1 along axes {removed}, got shape {list(dims)}")
    return [TensorType(c.dtype(0), tuple(d for i, d in enumerate(dims) if i not in removed))]


def unsqueeze_gradient(g: GradientBuilder) -> Gradients:
    if g.opset >= 13:
        return [g.op("Squeeze", g.dy, g.inputs[1]), None]
    return [g.op("Squeeze", g.dy, axes=tuple(g.attribute("axes")))]


def evaluate_unsqueeze(c: InferenceContext) -> list[np.ndarray]:
    x, axes = c.value(0), axes_of(c)
    assert x is not None and axes is not None
    return [np.expand_dims(x, tuple(axes))]


@operator("Unsqueeze", lower=lower_view, gradient=unsqueeze_gradient, evaluate=evaluate_unsqueeze, stop_gradient=(1,))
def unsqueeze(c: InferenceContext) -> list[TensorType]:
    """y = x with axes of size 1 inserted, `axes` being positions in y"""
    axes, dims = axes_of(c), c.shape(0)
    if axes is None:
        if c.opset < 13 or not c.has(1):
            raise c.error("expected axes, got none")
        n = length_of(c, 1)
        return [TensorType(c.dtype(0), None if n is None else symbolic_shape(c, len(dims) + n))]
    inserted = normalize_axes(c, axes, len(dims) + len(axes))
    rest = iter(dims)
    return [TensorType(c.dtype(0), tuple(1 if i in inserted else next(rest) for i in range(len(dims) + len(inserted))))]


@operator("Identity", lower=lower_view, gradient=lambda g: [g.op("Identity", g.dy)], evaluate=lambda c: [np.asarray(c.value(0))])
def identity(c: InferenceContext) -> list[TensorType]:
    """y = x"""
    return [c.type(0)]


def selected_dims(c: InferenceContext) -> Shape:
    """Return the dimensions [start, end) of input 0, as the attributes of Shape select them."""
    return c.shape(0)[slice(c.attribute("start", 0), c.attribute("end"))]


def evaluate_shape(c: InferenceContext) -> list[np.ndarray]:
    return [np.array(selected_dims(c), np.int64)]


def lower_as_constant(evaluate: Any) -> Any:
    """Return the lowering of an operator whose integer outputs depend on input shapes only: a kernel that writes them as constants."""

    def lower(c: LoweringContext) -> KernelCall:
        return KernelCall("write_constant", ints=tuple(int(v) for array in evaluate(c) for v in array.reshape(-1)))

    return lower


@operator("Shape", lower=lower_as_constant(evaluate_shape), evaluate=evaluate_shape, differentiable=False)
def shape_of(c: InferenceContext) -> list[TensorType]:
    """y = the dimensions [start, end) of x, int64"""
    return [TensorType("int64", (len(selected_dims(c)),))]


def evaluate_size(c: InferenceContext) -> list[np.ndarray]:
    return [np.array(math.prod(c.shape(0)), np.int64)]


@operator("Size", lower=lower_as_constant(evaluate_size), evaluate=evaluate_size, differentiable=False)
def size(c: InferenceContext) -> list[TensorType]:
    """y = the number of elements of x, an int64 scalar"""
    c.type(0)
    return [TensorType("int64", ())]


CONSTANT_DTYPES = {"value_int": "int64", "value_ints": "int64", "value_float": "float32", "value_floats": "float32",
                   "value_string": "object", "value_strings": "object"}
"""Dtypes of the values that the attributes of Constant other than `value` hold."""


def evaluate_constant(c: InferenceContext) -> list[np.ndarray]:
    value = c.attribute("value")
    if value is not None:
        return [np.asarray(value)]
    for name, dtype in CONSTANT_DTYPES.items():
        if c.attribute(name) is not None:
            return [np.array(c.attribute(name), dtype)]
    raise c.error(f"expected an attribute value or one of {list(CONSTANT_DTYPES)}, got {sorted(c.node.attributes)}")


def lower_constant(c: LoweringContext) -> KernelCall:
    elements = evaluate_constant(c)[0].reshape(-1).tolist()
    if c.outputs[0] is not None and c.outputs[0].dtype.startswith("float"):
        return KernelCall("write_constant", floats=tuple(elements))
    return KernelCall("write_constant", ints=tuple(map(int, elements)))


@operator("Constant", lower=lower_constant, evaluate=evaluate_constant, differentiable=False)
def constant(c: InferenceContext) -> list[TensorType]:
    """y = the tensor of the attribute"""
    return [TensorType.of(evaluate_constant(c)[0])]


def fill_value(c: InferenceContext) -> np.ndarray:
    """Return the value of ConstantOfShape as an array [1]; 0 as float32 if the attribute is absent."""
    value = np.asarray(c.attribute("value", np.zeros(1, np.float32)))
    if value.size != 1:
        raise c.error(f"expected a value with one element, got {value.size}")
    return value.reshape(1)


def evaluate_constant_of_shape(c: InferenceContext) -> list[np.ndarray]:
    value = fill_value(c)
    return [np.full(constant_dims(c, 0) or (), value[0], value.dtype)]


def lower_constant_of_shape(c: LoweringContext) -> KernelCall:
    value = fill_value(c)[0]
    if value.dtype.kind == "f":
        return KernelCall("fill_constant", floats=(float(value),))
    return KernelCall("fill_constant", ints=(int(value),))


@operator("ConstantOfShape", lower=lower_constant_of_shape, evaluate=evaluate_constant_of_shape, differentiable=False)
def constant_of_shape(c: InferenceContext) -> list[TensorType]:
    """y = a tensor of the given shape filled with `value` (default: float32 0)"""
    dims, dtype = c.sizes(0), name_of(fill_value(c).dtype)
    if dims is not None:
        if any(isinstance(d, int) and d < 0 for d in dims):
            raise c.error(f"expected a shape without negative sizes, got {list(dims)}")
        return [TensorType(dtype, dims)]
    rank = length_of(c, 0)
    return [TensorType(dtype, None if rank is None else symbolic_shape(c, rank))]


def range_count(c: InferenceContext) -> int | None:
    """Return the number of elements of Range, max(ceil((limit - start) / delta), 0), or None if an input is not constant."""
    if any(not c.is_constant(i) for i in range(3)):
        return None
    start, limit, delta = (c.values[i].item() for i in range(3))  # type: ignore[union-attr]
    if delta == 0:
        raise c.error("expected a delta that is not 0, got 0")
    count = (limit - start) / delta
    if not math.isfinite(count):
        raise c.error(f"expected finite limits, got {start}, {limit} and {delta}")
    return max(int(math.ceil(count)), 0)


def evaluate_range(c: InferenceContext) -> list[np.ndarray]:
    start, _, delta = (np.asarray(v).reshape(()) for v in c.values)
    return [(start + np.arange(range_count(c) or 0).astype(start.dtype) * delta).astype(start.dtype)]


@operator("Range", lower="range_values", evaluate=evaluate_range, differentiable=False)
def range_(c: InferenceContext) -> list[TensorType]:
    """y[i] = start + i delta, up to but excluding `limit`"""
    count = range_count(c)
    return [TensorType(c.dtype(0), symbolic_shape(c, 1) if count is None else (count,))]


def lower_expand(c: LoweringContext) -> KernelCall | Alias:
    source, out = c.dims(0), c.output_dims(0)
    dims = (1,) * (len(out) - len(source)) + source
    strides = [0 if is_broadcast(d, want) else s for d, want, s in zip(dims, out, contiguous_strides(dims), strict=True)]
    ints = pack_strided_copy(out, contiguous_strides(out), strides)
    return Alias(0) if is_full_copy(ints) or (0 in dims and dims == out) else KernelCall("strided_copy", ints)


def evaluate_expand(c: InferenceContext) -> list[np.ndarray]:
    x, target = c.value(0), constant_dims(c, 1)
    assert x is not None and target is not None
    return [np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(target))).copy()]


@operator("Expand", lower=lower_expand, gradient=lambda g: first_input_gradient(g, g.op("Identity", g.dy)), evaluate=evaluate_expand, stop_gradient=(1,))
def expand(c: InferenceContext) -> list[TensorType]:
    """y = x broadcast with the given shape by NumPy's rules, so that a size 1 of the shape keeps the size of x"""
    dims, target = c.shape(0), c.sizes(1)
    if target is not None:
        return [TensorType(c.dtype(0), broadcast_shapes(c, dims, target))]
    rank = length_of(c, 1)
    return [TensorType(c.dtype(0), None if rank is None else symbolic_shape(c, max(rank, len(dims))))]


def permutation(c: InferenceContext, rank: int) -> tuple[int, ...]:
    """Return the attribute perm of Transpose, by default the reversed axes."""
    perm = tuple(int(p) for p in c.attribute("perm") or range(rank - 1, -1, -1))
    if sorted(perm) != list(range(rank)):
        raise c.error(f"expected a permutation of {rank} axes, got {list(perm)}")
    return perm


def transpose_gradient(g: GradientBuilder) -> Gradients:
    perm = g.attribute("perm")
    return [g.op("Transpose", g.dy, perm=tuple(int(p) for p in np.argsort(perm)))] if perm else [g.op("Transpose", g.dy)]


def lower_transpose(c: LoweringContext) -> KernelCall | Alias:
    dims, out = c.dims(0), c.output_dims(0)
    strides = contiguous_strides(dims)
    ints = pack_strided_copy(out, contiguous_strides(out), [strides[p] for p in permutation(c, len(dims))])
    return Alias(0) if is_full_copy(ints) else KernelCall("strided_copy", ints)


def evaluate_transpose(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    return [np.transpose(x, permutation(c, x.ndim))]


@operator("Transpose", lower=lower_transpose, gradient=transpose_gradient, evaluate=evaluate_transpose, takes_rounded=(0,))
def transpose(c: InferenceContext) -> list[TensorType]:
    """y = x with its axes in the order `perm` (default: reversed)"""
    dims = c.shape(0)
    return [TensorType(c.dtype(0), tuple(dims[p] for p in permutation(c, len(dims))))]


def reshape_size(dims: Sequence[Dim]) -> int:
    """Return the product of dimensions as a size in a Reshape target: -1 if one is a symbol."""
    sizes = [d for d in dims if isinstance(d, int)]
    return math.prod(sizes) if len(sizes) == len(dims) else -1


def sum_over_repeats(g: GradientBuilder, dims: Shape, repeats: Sequence[int]) -> str:
    """Return dy summed over constant repeats, one axis at a time as [before, repeats, rest].

    Summing over all axes at once would double the rank, beyond the maximum of the kernels. dims: the shape of x, with at most one symbol."""
    dy = g.dy
    tiled: list[Dim] = [d * r if isinstance(d, int) else d for d, r in zip(dims, repeats, strict=True)]
    for axis, (size, times) in enumerate(zip(dims, repeats, strict=True)):
        if times != 1:
            parts = g.op("Reshape", dy, g.constant([reshape_size(dims[:axis]), times, reshape_size([size, *tiled[axis + 1 :]])]))
            dy = g.reduce_sum(parts, [1], False)
    return g.op("Reshape", dy, g.constant([reshape_size([d]) for d in dims]))


def tile_gradient(g: GradientBuilder) -> Gradients:
    """Return dy summed over the repeats; where these are not constant, dy is reshaped to [repeats 0, size 0, repeats 1, size 1, …] for this."""
    dims, repeats = g.shape(g.inputs[0]), g.value(g.inputs[1])
    if 0 in dims:
        summed = g.reshape_like(g.dy, g.inputs[0])
    elif repeats is not None and sum(isinstance(d, str) for d in dims) <= 1 and 0 not in repeats:
        summed = sum_over_repeats(g, dims, repeats.tolist())
    else:
        column = g.constant([-1, 1])
        pairs = g.op("Concat", g.op("Reshape", g.inputs[1], column), g.op("Reshape", g.op("Shape", g.inputs[0]), column), axis=1)
        folded = g.op("Reshape", g.dy, g.op("Reshape", pairs, g.constant([-1])))
        summed = g.reduce_sum(folded, range(0, 2 * len(dims), 2), False)
    g.declare(summed, g.type(g.inputs[0]))
    return [summed, None]


def lower_tile(c: LoweringContext) -> KernelCall | Alias:
    dims, out = c.dims(0), c.output_dims(0)
    if dims == out:
        return Alias(0)
    to, source = contiguous_strides(out), contiguous_strides(dims)
    # each axis becomes two, the repeats with source stride 0 and the elements: (size, destination stride, source stride)
    box = [row for i, d in enumerate(dims) for row in ((out[i] // d if d else 0, to[i] * d, 0), (d, to[i], source[i]))]
    return KernelCall("strided_copy", pack_strided_copy([n for n, _, _ in box], [t for _, t, _ in box], [s for _, _, s in box]))


def evaluate_tile(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    return [np.tile(x, constant_dims(c, 1) or ())]


@operator("Tile", lower=lower_tile, gradient=tile_gradient, evaluate=evaluate_tile, stop_gradient=(1,))
def tile(c: InferenceContext) -> list[TensorType]:
    """y = x repeated along each axis, as numpy.tile"""
    dims, repeats = c.shape(0), constant_dims(c, 1)
    unknown = symbolic_shape(c, len(dims))
    if repeats is None:
        return [TensorType(c.dtype(0), unknown)]
    if len(repeats) != len(dims) or any(r < 0 for r in repeats):
        raise c.error(f"expected {len(dims)} repeats that are not negative, got {repeats}")
    return [TensorType(c.dtype(0), tuple(d if r == 1 else d * r if isinstance(d, int) else unknown[i]
                                         for i, (d, r) in enumerate(zip(dims, repeats, strict=True))))]


def evaluate_broadcast_gradient_args(c: InferenceContext) -> list[np.ndarray]:
    a, b = constant_dims(c, 0), constant_dims(c, 1)
    assert a is not None and b is not None
    rank = max(len(a), len(b))
    a_padding, b_padding = rank - len(a), rank - len(b)
    full_a, full_b = [1] * a_padding + a, [1] * b_padding + b
    if any(not is_one(x) and not is_one(y) and x != y and 1 not in (x, y) for x, y in zip(full_a, full_b, strict=True)):
        raise c.error(f"expected shapes that broadcast, got {a} and {b}")
    last_to_first = range(rank - 1, -1, -1)
    return [np.array([i for i in last_to_first if i < a_padding or is_broadcast(full_a[i], full_b[i])], np.int64),
            np.array([i for i in last_to_first if i < b_padding or is_broadcast(full_b[i], full_a[i])], np.int64)]


def exposes_broadcast_axes(graph: Graph, outputs: Iterable[str]) -> bool:
    """Return whether the axes that a BroadcastGradientArgs computes are used other than as the axes of a sum with keepdims.

    Such a sum gives the same result with and without an axis of size 1, so a program template may leave open whether a symbolic size is 1; any other use
    exposes the difference. outputs: the names of the graph's outputs."""
    nodes = list(graph.all_nodes())
    axes = {name for node in nodes if node.op_type == "BroadcastGradientArgs" for name in node.outputs}
    summed = [node for node in nodes if node.op_type in ("ReduceSum", "ReduceSumTraining") and node.attributes.get("keepdims", 1)
              and node.attributes.get("noop_with_empty_axes", 0)]
    read = {id(node): node.inputs for node in nodes} | {id(node): node.inputs[:1] + node.inputs[2:] for node in summed}
    inner = (name for node in nodes for graph in node.graphs.values() for name in graph.outputs)
    return not axes.isdisjoint([*outputs, *inner, *(name for inputs in read.values() for name in inputs)])


@operator("BroadcastGradientArgs", domain=MICROSOFT, lower=lower_as_constant(evaluate_broadcast_gradient_args),
          evaluate=evaluate_broadcast_gradient_args, differentiable=False)
def broadcast_gradient_args(c: InferenceContext) -> list[TensorType]:
    """(axes of A, axes of B), last to first, over which to sum a gradient of the broadcast shape to get shape A or shape B"""
    if not c.is_constant(0) or not c.is_constant(1):
        return [TensorType("int64", symbolic_shape(c, 1, 0)), TensorType("int64", symbolic_shape(c, 1, 1))]
    return [TensorType.of(axes) for axes in evaluate_broadcast_gradient_args(c)]
