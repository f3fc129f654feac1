"""Operators on shapes: views (Reshape, Squeeze …), moves (Transpose, Expand, Tile), shape arithmetic and constants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ortrain.dtypes import name_of
from ortrain.ir import Dim, Graph, Shape, TensorType
from ortrain.ops.registry.constants import is_one, is_broadcast
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import MICROSOFT, Alias, InferenceContext, KernelCall, LoweringContext, broadcast_shapes, distinct_axes, operator
from ortrain.ops.shared.strides import fresh_shape, is_whole_copy, length_of, pack_box, strides_of

Gradients = Sequence[str | None]


def view(c: LoweringContext) -> Alias:
    """Nothing moves."""
    return Alias(0)


def padded(g: GradientBuilder, gradient: str | None) -> Gradients:
    """The gradient of input 0, and none for the other inputs."""
    return [gradient, *[None] * (len(g.inputs) - 1)]


def reshape_gradient(g: GradientBuilder) -> Gradients:
    return padded(g, g.reshape_like(g.dy, g.inputs[0]))


def shape_value(g: GradientBuilder, value: str) -> str:
    """The shape of a value as int64: a constant when known, else a Shape node."""
    kind = g.type(value)
    return str(g.constant(kind.sizes) if kind.is_static else g.op("Shape", value))


def known_dims(c: InferenceContext, index: int) -> list[int] | None:
    """The elements of an integer input whose value is known, else None."""
    sizes = c.sizes(index)
    if sizes is not None:
        numbers = [size for size in sizes if isinstance(size, int)]
        return numbers if len(numbers) == len(sizes) else None
    value = c.value(index)
    return None if value is None else [int(v) for v in value.reshape(-1)]


def quotient(c: InferenceContext, dims: Shape, others: Sequence[Dim], unknown: Dim) -> Dim:
    """What -1 stands for: the elements of `dims` over those of the `others`; `unknown` if symbols hide it."""
    symbols = [d for d in dims if isinstance(d, str)]
    above = math.prod(d for d in dims if isinstance(d, int))
    below = math.prod(d for d in others if isinstance(d, int))
    for d in others:
        if isinstance(d, str):
            if d not in symbols:
                return unknown
            symbols.remove(d)
    if not symbols:
        if below == 0 or above % below:
            raise c.error(f"expected a number of elements that {list(others)} divides, got shape {list(dims)}")
        return above // below
    return symbols[0] if len(symbols) == 1 and above == below else unknown


def reshaped(c: InferenceContext, dims: Shape, target: Sequence[Dim], allowzero: bool) -> Shape:
    """The output shape of Reshape for a known target."""
    if sum(t == -1 for t in target) > 1 or any(isinstance(t, int) and t < -1 for t in target) or (allowzero and -1 in target and 0 in target):
        raise c.error(f"expected a target shape with at most one -1, got {list(target)}")
    copied = [i for i, t in enumerate(target) if t == 0 and not allowzero]
    if copied and copied[-1] >= len(dims):
        raise c.error(f"expected a 0 of the target only where the input has a dimension, got shape {list(dims)} for target {list(target)}")
    out: list[Dim] = [dims[i] if i in copied else t for i, t in enumerate(target)]
    if -1 in target:
        at = list(target).index(-1)
        others = out[:at] + out[at + 1:]
        out[at] = quotient(c, dims, others, fresh_shape(c, len(out))[at])
    elif all(isinstance(d, int) for d in (*dims, *out)) and math.prod(dims) != math.prod(out):
        raise c.error(f"expected a target with {math.prod(dims)} elements for shape {list(dims)}, got {list(target)}")
    return tuple(out)


def evaluate_reshape(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    shape = reshape(c)[0].shape
    assert shape is not None
    return [x.reshape([int(d) for d in shape])]


@operator("Reshape", lower=view, gradient=reshape_gradient, evaluate=evaluate_reshape, stop_gradient=(1,))
def reshape(c: InferenceContext) -> list[TensorType]:
    """y = x under another shape: 0 copies a dimension (unless allowzero), -1 is what is left"""
    kind = c.type(0)
    if c.dtype(1) != "int64":
        raise c.error(f"expected a target shape of int64, got {c.dtype(1)}")
    target = c.sizes(1)
    if target is None:
        rank = length_of(c, 1)
        return [TensorType(kind.dtype, None if rank is None else fresh_shape(c, rank))]
    if kind.shape is None:
        open_sizes = fresh_shape(c, len(target))
        return [TensorType(kind.dtype, tuple(t if isinstance(t, str) or t > 0 else f for t, f in zip(target, open_sizes, strict=True)))]
    return [TensorType(kind.dtype, reshaped(c, kind.shape, target, bool(c.attribute("allowzero", 0))))]


def product(c: InferenceContext, dims: Shape, label: str) -> Dim:
    """The product of dimensions: a number, the only symbol, or a fresh one."""
    symbols = [d for d in dims if isinstance(d, str)]
    number = math.prod(d for d in dims if isinstance(d, int))
    if not symbols or number == 0:
        return number
    return symbols[0] if len(symbols) == 1 and number == 1 else c.fresh(label)


def evaluate_flatten(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    shape = flatten(c)[0].shape
    assert shape is not None
    return [x.reshape([int(d) for d in shape])]


@operator("Flatten", lower=view, gradient=reshape_gradient, evaluate=evaluate_flatten)
def flatten(c: InferenceContext) -> list[TensorType]:
    """y = x as a matrix: the dimensions before `axis` by the others"""
    dims, axis = c.shape(0), c.attribute("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        raise c.error(f"expected an axis in [{-len(dims)}, {len(dims)}], got {axis}")
    axis = axis + len(dims) if axis < 0 else axis
    return [TensorType(c.dtype(0), (product(c, dims[:axis], "rows"), product(c, dims[axis:], "columns")))]


def axes_of(c: InferenceContext) -> list[int] | None:
    """The axes of Squeeze and Unsqueeze, by attribute before opset 13; None when unknown or absent."""
    if c.opset < 13:
        axes = c.attribute("axes")
        return None if axes is None else [int(a) for a in axes]
    return known_dims(c, 1)


def squeeze_gradient(g: GradientBuilder) -> Gradients:
    """Unsqueeze with the same axes; without axes the shape of x is needed."""
    if g.opset >= 13 and len(g.inputs) > 1 and g.inputs[1]:
        return [g.op("Unsqueeze", g.dy, g.inputs[1]), None]
    if g.opset < 13 and g.attribute("axes") is not None:
        return [g.op("Unsqueeze", g.dy, axes=tuple(g.attribute("axes")))]
    return reshape_gradient(g)


def evaluate_squeeze(c: InferenceContext) -> list[np.ndarray]:
    x, axes = c.value(0), axes_of(c)
    assert x is not None
    return [np.squeeze(x, None if axes is None else tuple(axes))]


@operator("Squeeze", lower=view, gradient=squeeze_gradient, evaluate=evaluate_squeeze, stop_gradient=(1,))
def squeeze(c: InferenceContext) -> list[TensorType]:
    """y = x without the given dimensions of size 1 (all of them when no axes are given)"""
    axes = axes_of(c)
    if axes is None and c.opset >= 13 and c.has(1):
        n = length_of(c, 1)
        return [TensorType(c.dtype(0), None if n is None else fresh_shape(c, len(c.shape(0)) - n))]
    dims = c.shape(0)
    # a symbol is taken for another size than 1: `input_shapes` says it where it is 1
    gone = [i for i, d in enumerate(dims) if d == 1] if axes is None else distinct_axes(c, axes, len(dims))
    if any(isinstance(dims[i], int) and dims[i] != 1 for i in gone):
        raise c.error(f"expected size 1 along axes {gone}, got shape {list(dims)}")
    return [TensorType(c.dtype(0), tuple(d for i, d in enumerate(dims) if i not in gone))]


def unsqueeze_gradient(g: GradientBuilder) -> Gradients:
    if g.opset >= 13:
        return [g.op("Squeeze", g.dy, g.inputs[1]), None]
    return [g.op("Squeeze", g.dy, axes=tuple(g.attribute("axes")))]


def evaluate_unsqueeze(c: InferenceContext) -> list[np.ndarray]:
    x, axes = c.value(0), axes_of(c)
    assert x is not None and axes is not None
    return [np.expand_dims(x, tuple(axes))]


@operator("Unsqueeze", lower=view, gradient=unsqueeze_gradient, evaluate=evaluate_unsqueeze, stop_gradient=(1,))
def unsqueeze(c: InferenceContext) -> list[TensorType]:
    """y = x with dimensions of size 1 put in, at the axes of y"""
    axes, dims = axes_of(c), c.shape(0)
    if axes is None:
        if c.opset < 13 or not c.has(1):
            raise c.error("expected axes, got none")
        n = length_of(c, 1)
        return [TensorType(c.dtype(0), None if n is None else fresh_shape(c, len(dims) + n))]
    at = distinct_axes(c, axes, len(dims) + len(axes))
    rest = iter(dims)
    return [TensorType(c.dtype(0), tuple(1 if i in at else next(rest) for i in range(len(dims) + len(at))))]


@operator("Identity", lower=view, gradient=lambda g: [g.op("Identity", g.dy)], evaluate=lambda c: [np.asarray(c.value(0))])
def identity(c: InferenceContext) -> list[TensorType]:
    """y = x"""
    return [c.type(0)]


def selected(c: InferenceContext) -> Shape:
    """The part of input 0's shape that Shape gives: [start, end)."""
    return c.shape(0)[slice(c.attribute("start", 0), c.attribute("end"))]


def evaluate_shape(c: InferenceContext) -> list[np.ndarray]:
    return [np.array(selected(c), np.int64)]


def write_evaluated(evaluate: Any) -> Any:
    """Lowering of an operator whose outputs follow from shapes alone: the integers themselves."""

    def lower(c: LoweringContext) -> KernelCall:
        return KernelCall("write_constant", ints=tuple(int(v) for array in evaluate(c) for v in array.reshape(-1)))

    return lower


@operator("Shape", lower=write_evaluated(evaluate_shape), evaluate=evaluate_shape, differentiable=False)
def shape_of(c: InferenceContext) -> list[TensorType]:
    """y = the dimensions of x from `start` to `end`, int64"""
    return [TensorType("int64", (len(selected(c)),))]


def evaluate_size(c: InferenceContext) -> list[np.ndarray]:
    return [np.array(math.prod(c.shape(0)), np.int64)]


@operator("Size", lower=write_evaluated(evaluate_size), evaluate=evaluate_size, differentiable=False)
def size(c: InferenceContext) -> list[TensorType]:
    """y = the number of elements of x, an int64 scalar"""
    c.type(0)
    return [TensorType("int64", ())]


CONSTANT_DTYPES = {"value_int": "int64", "value_ints": "int64", "value_float": "float32", "value_floats": "float32",
                   "value_string": "object", "value_strings": "object"}
"""Attributes of Constant beside `value`."""


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


def filling(c: InferenceContext) -> np.ndarray:
    """The one element that ConstantOfShape repeats."""
    value = np.asarray(c.attribute("value", np.zeros(1, np.float32)))
    if value.size != 1:
        raise c.error(f"expected a value with one element, got {value.size}")
    return value.reshape(1)


def evaluate_constant_of_shape(c: InferenceContext) -> list[np.ndarray]:
    value = filling(c)
    return [np.full(known_dims(c, 0) or (), value[0], value.dtype)]


def lower_constant_of_shape(c: LoweringContext) -> KernelCall:
    value = filling(c)[0]
    if value.dtype.kind == "f":
        return KernelCall("fill_constant", floats=(float(value),))
    return KernelCall("fill_constant", ints=(int(value),))


@operator("ConstantOfShape", lower=lower_constant_of_shape, evaluate=evaluate_constant_of_shape, differentiable=False)
def constant_of_shape(c: InferenceContext) -> list[TensorType]:
    """y = one element (0 if no value is given) in the shape that the input says"""
    dims, dtype = c.sizes(0), name_of(filling(c).dtype)
    if dims is not None:
        if any(isinstance(d, int) and d < 0 for d in dims):
            raise c.error(f"expected a shape without negative sizes, got {list(dims)}")
        return [TensorType(dtype, dims)]
    rank = length_of(c, 0)
    return [TensorType(dtype, None if rank is None else fresh_shape(c, rank))]


def range_count(c: InferenceContext) -> int | None:
    """The number of elements of Range, if its limits are known."""
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
    """y_i = start + i·delta, up to the limit (excluded)"""
    count = range_count(c)
    return [TensorType(c.dtype(0), fresh_shape(c, 1) if count is None else (count,))]


def lower_expand(c: LoweringContext) -> KernelCall | Alias:
    source, out = c.dims(0), c.output_dims(0)
    dims = (1,) * (len(out) - len(source)) + source
    strides = [0 if is_broadcast(d, want) else s for d, want, s in zip(dims, out, strides_of(dims), strict=True)]
    ints = pack_box(out, strides_of(out), strides)
    return Alias(0) if is_whole_copy(ints) or (0 in dims and dims == out) else KernelCall("strided_copy", ints)


def evaluate_expand(c: InferenceContext) -> list[np.ndarray]:
    x, target = c.value(0), known_dims(c, 1)
    assert x is not None and target is not None
    return [np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(target))).copy()]


@operator("Expand", lower=lower_expand, gradient=lambda g: padded(g, g.op("Identity", g.dy)), evaluate=evaluate_expand, stop_gradient=(1,))
def expand(c: InferenceContext) -> list[TensorType]:
    """y = x broadcast against a shape (both ways, as NumPy does)"""
    dims, target = c.shape(0), c.sizes(1)
    if target is not None:
        return [TensorType(c.dtype(0), broadcast_shapes(c, dims, target))]
    rank = length_of(c, 1)
    return [TensorType(c.dtype(0), None if rank is None else fresh_shape(c, max(rank, len(dims))))]


def permutation(c: InferenceContext, rank: int) -> tuple[int, ...]:
    """The perm of Transpose: reversed unless given."""
    perm = tuple(int(p) for p in c.attribute("perm") or range(rank - 1, -1, -1))
    if sorted(perm) != list(range(rank)):
        raise c.error(f"expected a permutation of {rank} axes, got {list(perm)}")
    return perm


def transpose_gradient(g: GradientBuilder) -> Gradients:
    perm = g.attribute("perm")
    return [g.op("Transpose", g.dy, perm=tuple(int(p) for p in np.argsort(perm)))] if perm else [g.op("Transpose", g.dy)]


def lower_transpose(c: LoweringContext) -> KernelCall | Alias:
    dims, out = c.dims(0), c.output_dims(0)
    strides = strides_of(dims)
    ints = pack_box(out, strides_of(out), [strides[p] for p in permutation(c, len(dims))])
    return Alias(0) if is_whole_copy(ints) else KernelCall("strided_copy", ints)


def evaluate_transpose(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    return [np.transpose(x, permutation(c, x.ndim))]


@operator("Transpose", lower=lower_transpose, gradient=transpose_gradient, evaluate=evaluate_transpose)
def transpose(c: InferenceContext) -> list[TensorType]:
    """y = x with its axes in the order perm (reversed by default)"""
    dims = c.shape(0)
    return [TensorType(c.dtype(0), tuple(dims[p] for p in permutation(c, len(dims))))]


def volume(dims: Sequence[Dim]) -> int:
    """The product of sizes as a Reshape takes it: -1 where one is a symbol."""
    sizes = [d for d in dims if isinstance(d, int)]
    return math.prod(sizes) if len(sizes) == len(dims) else -1


def sum_of_repeats(g: GradientBuilder, dims: Shape, repeats: Sequence[int]) -> str:
    """dy summed over the repeats of one axis after the other, as [before, repeats, the rest]: of all at once it had twice the axes, more than kernels take."""
    dy = g.dy
    tiled: list[Dim] = [d * r if isinstance(d, int) else d for d, r in zip(dims, repeats, strict=True)]
    for axis, (size, times) in enumerate(zip(dims, repeats, strict=True)):
        if times != 1:
            parts = g.op("Reshape", dy, g.constant([volume(dims[:axis]), times, volume([size, *tiled[axis + 1 :]])]))
            dy = g.reduce_sum(parts, [1], False)
    return g.op("Reshape", dy, g.constant([volume([d]) for d in dims]))


def tile_gradient(g: GradientBuilder) -> Gradients:
    """The sum of dy over the repeats; where these are computed, as [repeats 0, size 0, repeats 1, size 1, …]."""
    dims, repeats = g.shape(g.inputs[0]), g.value(g.inputs[1])
    if 0 in dims:
        summed = g.reshape_like(g.dy, g.inputs[0])
    elif repeats is not None and sum(isinstance(d, str) for d in dims) <= 1 and 0 not in repeats:
        summed = sum_of_repeats(g, dims, repeats.tolist())
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
    to, source = strides_of(out), strides_of(dims)
    box = [row for i, d in enumerate(dims) for row in ((out[i] // d if d else 0, to[i] * d, 0), (d, to[i], source[i]))]
    return KernelCall("strided_copy", pack_box([n for n, _, _ in box], [t for _, t, _ in box], [s for _, _, s in box]))


def evaluate_tile(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    return [np.tile(x, known_dims(c, 1) or ())]


@operator("Tile", lower=lower_tile, gradient=tile_gradient, evaluate=evaluate_tile, stop_gradient=(1,))
def tile(c: InferenceContext) -> list[TensorType]:
    """y = x repeated along each axis"""
    dims, repeats = c.shape(0), known_dims(c, 1)
    unknown = fresh_shape(c, len(dims))
    if repeats is None:
        return [TensorType(c.dtype(0), unknown)]
    if len(repeats) != len(dims) or any(r < 0 for r in repeats):
        raise c.error(f"expected {len(dims)} repeats that are not negative, got {repeats}")
    return [TensorType(c.dtype(0), tuple(d if r == 1 else d * r if isinstance(d, int) else unknown[i]
                                         for i, (d, r) in enumerate(zip(dims, repeats, strict=True))))]


def evaluate_broadcast_gradient_args(c: InferenceContext) -> list[np.ndarray]:
    a, b = known_dims(c, 0), known_dims(c, 1)
    assert a is not None and b is not None
    rank = max(len(a), len(b))
    a_from, b_from = rank - len(a), rank - len(b)
    full_a, full_b = [1] * a_from + a, [1] * b_from + b
    if any(not is_one(x) and not is_one(y) and x != y and 1 not in (x, y) for x, y in zip(full_a, full_b, strict=True)):
        raise c.error(f"expected shapes that broadcast, got {a} and {b}")
    backwards = range(rank - 1, -1, -1)
    return [np.array([i for i in backwards if i < a_from or is_broadcast(full_a[i], full_b[i])], np.int64),
            np.array([i for i in backwards if i < b_from or is_broadcast(full_b[i], full_a[i])], np.int64)]


def shows_spread_axes(graph: Graph, outputs: Iterable[str]) -> bool:
    """Whether more than sums, to which an axis of one element is as none, reads which axes a BroadcastGradientArgs has found."""
    nodes = list(graph.all_nodes())
    axes = {name for node in nodes if node.op_type == "BroadcastGradientArgs" for name in node.outputs}
    summed = [node for node in nodes if node.op_type in ("ReduceSum", "ReduceSumTraining") and node.attributes.get("keepdims", 1)
              and node.attributes.get("noop_with_empty_axes", 0)]
    read = {id(node): node.inputs for node in nodes} | {id(node): node.inputs[:1] + node.inputs[2:] for node in summed}
    inner = (name for node in nodes for graph in node.graphs.values() for name in graph.outputs)
    return not axes.isdisjoint([*outputs, *inner, *(name for inputs in read.values() for name in inputs)])


@operator("BroadcastGradientArgs", domain=MICROSOFT, lower=write_evaluated(evaluate_broadcast_gradient_args),
          evaluate=evaluate_broadcast_gradient_args, differentiable=False)
def broadcast_gradient_args(c: InferenceContext) -> list[TensorType]:
    """(axes of A, axes of B) over which a gradient of the broadcast shape is summed to come back to shape A or B, last to first"""
    if not c.is_constant(0) or not c.is_constant(1):
        return [TensorType("int64", fresh_shape(c, 1, 0)), TensorType("int64", fresh_shape(c, 1, 1))]
    return [TensorType.of(axes) for axes in evaluate_broadcast_gradient_args(c)]
