"""Operators that the old package's graph passes put between others: for mixed precision, joined buffers, packed batches, pipelines. Most have no kernel in
its wheels; they mean what its definitions say."""

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
    return g.op("Mul", value, g.scalar(float(g.attribute(name)), value))


def sum_decomposition(g: NodeBuilder) -> list[str]:
    first, *others = [scaled(g, value, name) for value, name in zip(g.inputs, SCALES, strict=False)]
    for other in others:
        first = g.op("Add", first, other)
    return [first]


def check_scales(c: InferenceContext, count: int) -> None:
    given = [name for name in SCALES if c.attribute(name) is not None]
    if count not in (2, 3) or given != list(SCALES[:count]):
        raise c.error(f"expected two or three values and a scale_i for each, got {count} values and {given}")


@operator("ScaledSum", domain=MICROSOFT, decompose=sum_decomposition)
def scaled_sum(c: InferenceContext) -> list[TensorType]:
    """y = the sum of scale_i x_i, of two or three tensors of one shape"""
    check_scales(c, len(c.node.inputs))
    if any(c.type(index) != c.type(0) for index in range(1, len(c.node.inputs))):
        raise c.error(f"expected tensors of one type, got {[c.type(index) for index in range(len(c.node.inputs))]}")
    return [c.type(0)]


@operator("BatchScale", domain=MICROSOFT, decompose=lambda g: [scaled(g, g.inputs[0], name) for name in SCALES[: len(g.outputs)]])
def batch_scale(c: InferenceContext) -> list[TensorType]:
    """y_i = scale_i x, two or three of them"""
    check_scales(c, len(c.node.outputs))
    return [c.type(0)] * len(c.node.outputs)


def cast_decomposition(g: NodeBuilder) -> list[str]:
    scale, *values = g.inputs
    found = []
    for value in values:
        factor = scale if g.type(scale).dtype == g.type(value).dtype else g.op("Cast", scale, to=NUMBERS[g.type(value).dtype])
        found.append(g.op("Cast", g.op("Mul", value, g.op("Reshape", factor, g.constant([]))), to=int(g.attribute("to"))))
    if not g.attribute("fuse_outputs", 0):
        return found
    flat = [g.op("Reshape", value, g.constant([-1])) for value in found]
    return [g.op("Concat", *flat, axis=0)]


@operator("MixedPrecisionScale", domain=MICROSOFT, decompose=cast_decomposition, stop_gradient=(0,))
def mixed_precision_scale(c: InferenceContext) -> list[TensorType]:
    """y_i = scale x_i in the type `to`; with fuse_outputs all of them side by side in one vector"""
    dtype = element_type(c)
    shapes = [c.shape(index) for index in range(1, len(c.node.inputs))]
    if c.attribute("fuse_outputs", 0):
        return [TensorType(dtype, (elements(shapes) or c.fresh("elements"),))]
    return [TensorType(dtype, shape) for shape in shapes]


def elements(shapes: Sequence[Shape]) -> int | None:
    """How many there are in tensors of these shapes; None when it is not known."""
    sizes = [size for shape in shapes for size in shape]
    return None if any(isinstance(size, str) for size in sizes) else sum(math.prod(map(int, shape)) for shape in shapes)


# ---- checks


def is_finite_decomposition(g: NodeBuilder, value: str) -> str:
    """|x| < infinity, which no NaN is."""
    return g.op("Less", g.op("Abs", value), g.scalar(np.inf, value))


def all_true(g: NodeBuilder, value: str) -> str:
    numbers = g.op("Cast", value, to=NUMBERS["int32"])
    return g.op("Cast", g.reduce("ReduceMin", numbers, list(range(g.rank(value))), keepdims=False), to=NUMBERS["bool"])


def all_finite_decomposition(g: NodeBuilder) -> list[str]:
    found = ""
    for value in g.inputs:
        good = is_finite_decomposition(g, value)
        if g.attribute("isinf_only", 0):
            good = g.op("Or", good, g.op("Not", g.op("Equal", value, value)))
        if g.attribute("isnan_only", 0):
            good = g.op("Equal", value, value)
        whole = all_true(g, good)
        found = g.op("And", found, whole) if found else whole
    return [found]


@operator("IsFinite", domain=MICROSOFT, decompose=lambda g: [is_finite_decomposition(g, g.inputs[0])], differentiable=False)
def is_finite(c: InferenceContext) -> list[TensorType]:
    """True where x is neither infinite nor NaN"""
    return [TensorType("bool", c.type(0).shape)]


@operator("IsAllFinite", domain=MICROSOFT, decompose=all_finite_decomposition, differentiable=False)
def is_all_finite(c: InferenceContext) -> list[TensorType]:
    """True when no element of any input is infinite or NaN (with isinf_only or isnan_only: the one of these)"""
    if c.attribute("isinf_only", 0) and c.attribute("isnan_only", 0):
        raise c.error("expected at most one of isinf_only and isnan_only, got both")
    return [TensorType("bool", ())]


@operator("All", domain=MICROSOFT, decompose=lambda g: [all_true(g, g.inputs[0])], differentiable=False)
def all_elements(c: InferenceContext) -> list[TensorType]:
    """True when all elements are"""
    return [TensorType("bool", ())]


# ---- order


@operator("Group", domain=MICROSOFT, decompose=lambda g: [g.constant(np.array([True]))], differentiable=False)
def group(c: InferenceContext) -> list[TensorType]:
    """True, when all inputs are there: [1], as the old kernel gives it"""
    return [TensorType("bool", (1,))]


@operator("PassThrough", domain=MICROSOFT, decompose=lambda g: [g.op("Identity", value) for value in g.inputs])
def pass_through(c: InferenceContext) -> list[TensorType]:
    """The inputs, when all of them are there"""
    return [c.type(index) for index in range(len(c.node.inputs))]


@operator("RecordEvent", domain=MICROSOFT, decompose=lambda g: [g.op("Identity", value) for value in g.inputs[1:]], stop_gradient=(0,))
@operator("WaitEvent", domain=MICROSOFT, decompose=lambda g: [g.op("Identity", value) for value in g.inputs[1:]], stop_gradient=(0,))
def event(c: InferenceContext) -> list[TensorType]:
    """The inputs after the first, an event of a pipeline, that a program of one order need not wait for"""
    return [c.type(index) for index in range(1, len(c.node.inputs))]


# ---- joined buffers and packed batches


def views(g: NodeBuilder) -> list[str]:
    sizes = [g.op("Reshape", g.op("ReduceProd", shape, keepdims=0), g.constant([1])) for shape in g.inputs[1:]]
    flat = g.op("Reshape", g.inputs[0], g.constant([-1]))
    parts = g.ops("SplitTraining", flat, g.op("Concat", *sizes, axis=0), outputs=[True] * len(sizes), domain=MICROSOFT, axis=0)
    return [g.op("Reshape", part, shape) for part, shape in zip(parts, g.inputs[1:], strict=True)]


@operator("View", domain=MICROSOFT, decompose=views, stop_gradient=tuple(range(1, 1025)))
def view(c: InferenceContext) -> list[TensorType]:
    """The elements of x, in their order, as tensors of the shapes that the other inputs say"""
    shapes = []
    for index in range(1, len(c.node.inputs)):
        (rank,) = c.shape(index)
        if not isinstance(rank, int):
            raise c.error(f"expected shapes of known lengths, got {c.shape(index)}")
        shapes.append(c.sizes(index) or tuple(c.fresh(f"view{index}.{axis}") for axis in range(rank)))
    have, want = elements([c.shape(0)]), elements(shapes)
    if have is not None and want is not None and have != want:
        raise c.error(f"expected shapes of {have} elements together, got {list(map(list, shapes))}")
    return [TensorType(c.dtype(0), shape) for shape in shapes]


def with_rest(g: NodeBuilder, sizes: str, value: str, start: int) -> str:
    """Sizes, and after them the dimensions of a value from the axis `start` on."""
    rest = list(range(start, g.rank(value)))
    return g.op("Concat", sizes, g.op("Gather", g.shape_of(value), g.constant(rest)), axis=0) if rest else sizes


def unpad(g: NodeBuilder) -> list[str]:
    value, indices = g.inputs
    rows = g.op("Reshape", value, with_rest(g, g.constant([-1]), value, 2))
    return [g.op("Gather", rows, indices, axis=0), g.op("Gather", g.shape_of(value), g.constant([0, 1]))]


def pad(g: NodeBuilder) -> list[str]:
    value, indices, dims = g.inputs
    rows = g.op("Reshape", g.op("ReduceProd", dims, keepdims=0), g.constant([1]))
    spread = g.op("GatherGrad", with_rest(g, rows, value, 1), indices, value, domain=MICROSOFT, axis=0)
    return [g.op("Reshape", spread, with_rest(g, dims, value, 1))]


def pad_gradient(g: GradientBuilder) -> list[str | None]:
    return [g.ops("FlattenAndUnpad", g.dy, g.inputs[1], outputs=[True, True], domain=MICROSOFT)[0], None, None]


@operator("FlattenAndUnpad", domain=MICROSOFT, decompose=unpad, stop_gradient=(1,))
def flatten_and_unpad(c: InferenceContext) -> list[TensorType]:
    """(the rows that indices pick of x [n, m, …] as [n m, …], [n, m])"""
    shape = c.shape(0)
    if len(shape) < 2 or len(c.shape(1)) != 1:
        raise c.error(f"expected x [n, m, …] and a vector of indices, got {list(shape)} and {list(c.shape(1))}")
    return [TensorType(c.dtype(0), (*c.shape(1), *shape[2:])), TensorType("int64", (2,))]


@operator("PadAndUnflatten", domain=MICROSOFT, decompose=pad, gradient=pad_gradient, stop_gradient=(1, 2))
def pad_and_unflatten(c: InferenceContext) -> list[TensorType]:
    """y [n, m, …] = the rows of x at their indices in [0, n m), zeros elsewhere; (n, m) is the third input"""
    shape = c.shape(0)
    if not shape or len(c.shape(1)) != 1 or c.shape(2) != (2,):
        raise c.error(f"expected x [k, …], indices [k] and [n, m], got {list(shape)}, {list(c.shape(1))} and {list(c.shape(2))}")
    check_shape(c, "indices", c.shape(1), shape[:1])
    outer = c.sizes(2) or (c.fresh("rows"), c.fresh("columns"))
    return [TensorType(c.dtype(0), (*outer, *shape[1:]))]


# ---- activations stored small


@operator("GistBinarizeEncoder", domain=MICROSOFT, decompose=lambda g: [g.op("Greater", g.inputs[0], g.scalar(0.0, g.inputs[0]))], differentiable=False)
def binarize(c: InferenceContext) -> list[TensorType]:
    """True where x > 0"""
    return [TensorType("bool", c.type(0).shape)]


@operator("GistPack16Encoder", domain=MICROSOFT, decompose=lambda g: [g.op("Cast", g.inputs[0], to=NUMBERS["float16"])])
def halve(c: InferenceContext) -> list[TensorType]:
    """x as float16"""
    return [TensorType("float16", c.type(0).shape)]


@operator("GistBinarizeDecoder", domain=MICROSOFT, decompose=lambda g: [g.op("Cast", g.inputs[0], to=int(g.attribute("to")))], differentiable=False)
@operator("GistPack16Decoder", domain=MICROSOFT, decompose=lambda g: [g.op("Cast", g.inputs[0], to=int(g.attribute("to")))])
def widen(c: InferenceContext) -> list[TensorType]:
    """What was stored small, in the type `to`"""
    return [TensorType(element_type(c), c.type(0).shape)]
