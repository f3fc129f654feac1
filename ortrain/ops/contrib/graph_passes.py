"""Operators that graph transformations of ONNX Runtime training insert: mixed precision, flat buffers, packed batches, pipeline parallelism.

The wheels of onnxruntime-training 1.19 have no kernel for most of them; they are implemented by their operator schemas."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Shape, TensorType
from ortrain.ops.elementwise import element_type
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, check_shape, operator

# ---- scales

SCALES = ("scale_0", "scale_1", "scale_2")


def scaled(g: NodeBuilder, value: str, name: str) -> str:
    """Return a value times the node's attribute `name`."""
    return g.op("Mul", value, g.scalar(float(g.attribute(name)), value))


def sum_decomposition(g: NodeBuilder) -> list[str]:
    total, *others = [scaled(g, value, name) for value, name in zip(g.inputs, SCALES, strict=False)]
    for other in others:
        total = g.op("Add", total, other)
    return [total]


def check_scales(c: InferenceContext, count: int) -> None:
    """Raise ShapeInferenceError unless the node has exactly the scales of `count` values, two or three."""
    given = [name for name in SCALES if c.attribute(name) is not None]
    if count not in (2, 3) or given != list(SCALES[:count]):
        raise c.error(f"expected two or three values and a scale_i for each, got {count} values and {given}")


@operator("ScaledSum", domain=MICROSOFT, decompose=sum_decomposition)
def scaled_sum(c: InferenceContext) -> list[TensorType]:
    """y = sum of scale_i x_i over two or three tensors of the same type"""
    check_scales(c, len(c.node.inputs))
    if any(c.type(index) != c.type(0) for index in range(1, len(c.node.inputs))):
        raise c.error(f"expected tensors of one type, got {[c.type(index) for index in range(len(c.node.inputs))]}")
    return [c.type(0)]


@operator("BatchScale", domain=MICROSOFT, decompose=lambda g: [scaled(g, g.inputs[0], name) for name in SCALES[: len(g.outputs)]])
def batch_scale(c: InferenceContext) -> list[TensorType]:
    """y_i = scale_i x, for two or three outputs"""
    check_scales(c, len(c.node.outputs))
    return [c.type(0)] * len(c.node.outputs)


def cast_decomposition(g: NodeBuilder) -> list[str]:
    scale, *values = g.inputs
    results = []
    for value in values:
        factor = scale if g.type(scale).dtype == g.type(value).dtype else g.op("Cast", scale, to=NUMBERS[g.type(value).dtype])
        results.append(g.op("Cast", g.op("Mul", value, g.op("Reshape", factor, g.constant([]))), to=int(g.attribute("to"))))
    if not g.attribute("fuse_outputs", 0):
        return results
    flat = [g.op("Reshape", value, g.constant([-1])) for value in results]
    return [g.op("Concat", *flat, axis=0)]


@operator("MixedPrecisionScale", domain=MICROSOFT, decompose=cast_decomposition, stop_gradient=(0,))
def mixed_precision_scale(c: InferenceContext) -> list[TensorType]:
    """y_i = scale x_i cast to the type `to`; with fuse_outputs one vector, the concatenation of all y_i"""
    dtype = element_type(c)
    shapes = [c.shape(index) for index in range(1, len(c.node.inputs))]
    if c.attribute("fuse_outputs", 0):
        return [TensorType(dtype, (element_count(shapes) or c.new_symbol("elements"),))]
    return [TensorType(dtype, shape) for shape in shapes]


def element_count(shapes: Sequence[Shape]) -> int | None:
    """Return the number of elements of tensors of these shapes together, None where a size is a symbol."""
    sizes = [size for shape in shapes for size in shape]
    return None if any(isinstance(size, str) for size in sizes) else sum(math.prod(map(int, shape)) for shape in shapes)


# ---- checks


def is_finite_decomposition(g: NodeBuilder, value: str) -> str:
    """Return |x| < infinity, which is false for NaN."""
    return g.op("Less", g.op("Abs", value), g.scalar(np.inf, value))


def all_true(g: NodeBuilder, value: str) -> str:
    """Return whether all elements of a bool tensor are true, as a 0-d bool."""
    numbers = g.op("Cast", value, to=NUMBERS["int32"])
    return g.op("Cast", g.reduce("ReduceMin", numbers, list(range(g.rank(value))), keepdims=False), to=NUMBERS["bool"])


def all_finite_decomposition(g: NodeBuilder) -> list[str]:
    result = ""
    for value in g.inputs:
        valid = is_finite_decomposition(g, value)
        if g.attribute("isinf_only", 0):
            valid = g.op("Or", valid, g.op("Not", g.op("Equal", value, value)))
        if g.attribute("isnan_only", 0):
            valid = g.op("Equal", value, value)
        all_valid = all_true(g, valid)
        result = g.op("And", result, all_valid) if result else all_valid
    return [result]


@operator("IsFinite", domain=MICROSOFT, decompose=lambda g: [is_finite_decomposition(g, g.inputs[0])], differentiable=False)
def is_finite(c: InferenceContext) -> list[TensorType]:
    """y = whether x is neither infinite nor NaN, per element"""
    return [TensorType("bool", c.type(0).shape)]


@operator("IsAllFinite", domain=MICROSOFT, decompose=all_finite_decomposition, differentiable=False)
def is_all_finite(c: InferenceContext) -> list[TensorType]:
    """y = whether no element of any input is infinite or NaN; isinf_only and isnan_only check for only one of the two"""
    if c.attribute("isinf_only", 0) and c.attribute("isnan_only", 0):
        raise c.error("expected at most one of isinf_only and isnan_only, got both")
    return [TensorType("bool", ())]


@operator("All", domain=MICROSOFT, decompose=lambda g: [all_true(g, g.inputs[0])], differentiable=False)
def all_elements(c: InferenceContext) -> list[TensorType]:
    """y = whether all elements of x are true"""
    return [TensorType("bool", ())]


# ---- execution order


@operator("Group", domain=MICROSOFT, decompose=lambda g: [g.constant(np.array([True]))], differentiable=False)
def group(c: InferenceContext) -> list[TensorType]:
    """y = [true], once all inputs are computed; the kernel of onnxruntime-training returns the shape [1]"""
    return [TensorType("bool", (1,))]


@operator("PassThrough", domain=MICROSOFT, decompose=lambda g: [g.op("Identity", value) for value in g.inputs])
def pass_through(c: InferenceContext) -> list[TensorType]:
    """y_i = x_i, once all inputs are computed"""
    return [c.type(index) for index in range(len(c.node.inputs))]


@operator("RecordEvent", domain=MICROSOFT, decompose=lambda g: [g.op("Identity", value) for value in g.inputs[1:]], stop_gradient=(0,))
@operator("WaitEvent", domain=MICROSOFT, decompose=lambda g: [g.op("Identity", value) for value in g.inputs[1:]], stop_gradient=(0,))
def event(c: InferenceContext) -> list[TensorType]:
    """y_i = x_i of the inputs after the first, a pipeline event; a program runs its steps in order and need not wait for events"""
    return [c.type(index) for index in range(1, len(c.node.inputs))]


# ---- flat buffers and packed batches


def view_decomposition(g: NodeBuilder) -> list[str]:
    sizes = [g.op("Reshape", g.op("ReduceProd", shape, keepdims=0), g.constant([1])) for shape in g.inputs[1:]]
    flat = g.op("Reshape", g.inputs[0], g.constant([-1]))
    parts = g.ops("SplitTraining", flat, g.op("Concat", *sizes, axis=0), outputs=[True] * len(sizes), domain=MICROSOFT, axis=0)
    return [g.op("Reshape", part, shape) for part, shape in zip(parts, g.inputs[1:], strict=True)]


@operator("View", domain=MICROSOFT, decompose=view_decomposition, stop_gradient=tuple(range(1, 1025)))
def view(c: InferenceContext) -> list[TensorType]:
    """y_i = consecutive elements of x, as tensors of the shapes given by the other inputs"""
    shapes = []
    for index in range(1, len(c.node.inputs)):
        (rank,) = c.shape(index)
        if not isinstance(rank, int):
            raise c.error(f"expected shapes of known lengths, got {c.shape(index)}")
        shapes.append(c.sizes(index) or tuple(c.new_symbol(f"view{index}.{axis}") for axis in range(rank)))
    given, requested = element_count([c.shape(0)]), element_count(shapes)
    if given is not None and requested is not None and given != requested:
        raise c.error(f"expected shapes of {given} elements together, got {list(map(list, shapes))}")
    return [TensorType(c.dtype(0), shape) for shape in shapes]


def append_sizes(g: NodeBuilder, sizes: str, value: str, start: int) -> str:
    """Return a shape: `sizes` followed by the sizes of `value` from axis `start` on."""
    rest = list(range(start, g.rank(value)))
    return g.op("Concat", sizes, g.op("Gather", g.shape_of(value), g.constant(rest)), axis=0) if rest else sizes


def unpad_decomposition(g: NodeBuilder) -> list[str]:
    value, indices = g.inputs
    rows = g.op("Reshape", value, append_sizes(g, g.constant([-1]), value, 2))
    return [g.op("Gather", rows, indices, axis=0), g.op("Gather", g.shape_of(value), g.constant([0, 1]))]


def pad_decomposition(g: NodeBuilder) -> list[str]:
    value, indices, dims = g.inputs
    rows = g.op("Reshape", g.op("ReduceProd", dims, keepdims=0), g.constant([1]))
    padded = g.op("GatherGrad", append_sizes(g, rows, value, 1), indices, value, domain=MICROSOFT, axis=0)
    return [g.op("Reshape", padded, append_sizes(g, dims, value, 1))]


def pad_gradient(g: GradientBuilder) -> list[str | None]:
    return [g.ops("FlattenAndUnpad", g.dy, g.inputs[1], outputs=[True, True], domain=MICROSOFT)[0], None, None]


@operator("FlattenAndUnpad", domain=MICROSOFT, decompose=unpad_decomposition, stop_gradient=(1,))
def flatten_and_unpad(c: InferenceContext) -> list[TensorType]:
    """y = rows of x [n, m, …], flattened to [n m, …], at the indices; output 1: [n, m]"""
    shape = c.shape(0)
    if len(shape) < 2 or len(c.shape(1)) != 1:
        raise c.error(f"expected x [n, m, …] and a vector of indices, got {list(shape)} and {list(c.shape(1))}")
    return [TensorType(c.dtype(0), (*c.shape(1), *shape[2:])), TensorType("int64", (2,))]


@operator("PadAndUnflatten", domain=MICROSOFT, decompose=pad_decomposition, gradient=pad_gradient, stop_gradient=(1, 2))
def pad_and_unflatten(c: InferenceContext) -> list[TensorType]:
    """y [n, m, …] = rows of x at their indices in [0, n m), zeros elsewhere, of (x, indices, [n, m])"""
    shape = c.shape(0)
    if not shape or len(c.shape(1)) != 1 or c.shape(2) != (2,):
        raise c.error(f"expected x [k, …], indices [k] and [n, m], got {list(shape)}, {list(c.shape(1))} and {list(c.shape(2))}")
    check_shape(c, "indices", c.shape(1), shape[:1])
    outer = c.sizes(2) or (c.new_symbol("rows"), c.new_symbol("columns"))
    return [TensorType(c.dtype(0), (*outer, *shape[1:]))]


# ---- compressed activations


@operator("GistBinarizeEncoder", domain=MICROSOFT, decompose=lambda g: [g.op("Greater", g.inputs[0], g.scalar(0.0, g.inputs[0]))], differentiable=False)
def binarize(c: InferenceContext) -> list[TensorType]:
    """y = x > 0"""
    return [TensorType("bool", c.type(0).shape)]


@operator("GistPack16Encoder", domain=MICROSOFT, decompose=lambda g: [g.op("Cast", g.inputs[0], to=NUMBERS["float16"])])
def halve(c: InferenceContext) -> list[TensorType]:
    """y = x as float16"""
    return [TensorType("float16", c.type(0).shape)]


@operator("GistBinarizeDecoder", domain=MICROSOFT, decompose=lambda g: [g.op("Cast", g.inputs[0], to=int(g.attribute("to")))], differentiable=False)
@operator("GistPack16Decoder", domain=MICROSOFT, decompose=lambda g: [g.op("Cast", g.inputs[0], to=int(g.attribute("to")))])
def widen(c: InferenceContext) -> list[TensorType]:
    """y = x in the type `to`"""
    return [TensorType(element_type(c), c.type(0).shape)]
