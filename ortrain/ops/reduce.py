"""Reductions over axes: sums, means, extremes, norms, products and their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.constants import is_one, is_symbolic
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import (
    MICROSOFT,
    ORTRAIN,
    Alias,
    Decomposition,
    InferenceContext,
    KernelCall,
    LoweringContext,
    check_inputs,
    normalize_axes,
    operator,
)

Gradients = Sequence[str | None]
SUM_CHUNK = 16384
"""Elements per partial sum of a reduction to one value. It determines the bits of the result, so it must not depend on the number of threads."""


def axes_of(c: InferenceContext) -> tuple[int, ...] | None:
    """Return the reduced axes, sorted; None when they are an input that is not constant."""
    rank = len(c.shape(0))
    axes = c.attribute("axes")
    if c.has(1):
        value = c.value(1)
        if value is None:
            return None
        axes = tuple(int(v) for v in value.ravel())
    if not axes:
        return () if c.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(normalize_axes(c, axes, rank)))


def infer_reduction(c: InferenceContext) -> list[TensorType]:
    """y = x reduced over `axes` (default: all) by the operation that the operator names; the axes remain with size 1 if `keepdims` is set"""
    keepdims = bool(c.attribute("keepdims", 1))
    reduces_all = not c.attribute("axes") and not c.has(1) and not c.attribute("noop_with_empty_axes", 0)
    if c.type(0).shape is None and reduces_all and not keepdims:
        return [TensorType(c.dtype(0), ())]
    shape, axes = c.shape(0), axes_of(c)
    if axes is None:
        return [TensorType(c.dtype(0), tuple(c.new_symbol(f"reduced{i}") for i in range(len(shape))) if keepdims else None)]
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape) if keepdims or axis not in axes)
    return [TensorType(c.dtype(0), kept)]


def group_axes(dims: Sequence[int], axes: Sequence[int]) -> list[tuple[int, bool]]:
    """Return the axes as (size, is reduced) groups of adjacent axes that are all reduced or all kept, without axes of size 1.

    A symbolic size may turn out to be 1 when a program template is specialized. Such an axis stays as the first group or where it is reduced. A kept
    one after the first group would separate two reduced groups, which changes the order of additions, so there it is compared with 1, which guards it."""
    groups: list[tuple[int, bool]] = []
    for size, reduced in merge_groups((size, axis in axes) for axis, size in enumerate(dims) if is_symbolic((size,)) or size != 1):
        if size != 1 if groups and not reduced else not is_one(size):
            groups.append((size, reduced))
    return merge_groups(groups) or [(1, False)]


def merge_groups(groups: Iterable[tuple[int, bool]]) -> list[tuple[int, bool]]:
    """Return the groups with adjacent ones of the same kind merged."""
    return [(math.prod(size for size, _ in adjacent), reduced) for reduced, adjacent in itertools.groupby(groups, key=lambda group: group[1])]


def lower_reduction(kernel: str) -> Callable[[LoweringContext], KernelCall | Alias]:
    """Return a lowering that packs: number of outputs, elements per output, number of kept groups, their sizes and strides, number of reduced groups,
    their sizes and strides.

    A reduction of one element per output is an alias (except for squares), so the bias gradient of a batch of one copies nothing."""

    def lower(c: LoweringContext) -> KernelCall | Alias:
        axes = axes_of(c)
        if axes is None:
            raise c.error("expected constant axes, got computed ones")
        return reduction_call(kernel, c.dims(0), axes)

    return lower


def reduction_call(kernel: str, dims: Sequence[int], axes: Sequence[int]) -> KernelCall | Alias:
    """Return the reduction of a tensor over axes by a kernel of `_core/kernels/reduction/reduce.h`, as in lower_reduction."""
    kept: list[tuple[int, int]] = []
    reduced: list[tuple[int, int]] = []
    stride = 1
    for size, is_reduced in reversed(group_axes(dims, axes)):
        (reduced if is_reduced else kept).insert(0, (size, stride))
        stride *= size
    count = math.prod([size for size, _ in reduced])
    outputs = math.prod([size for size, _ in kept])
    if is_one(count) and kernel != "reduce_sum_square":
        return Alias()
    scratch = 8 * (-(-count // SUM_CHUNK) + 1) if len(kept) < 2 else 0       # read for a single output; the only kept axis may be a batch of one
    ints = [len(kept), *(s for s, _ in kept), *(t for _, t in kept), len(reduced), *(s for s, _ in reduced), *(t for _, t in reduced)]
    return KernelCall(kernel, (outputs, count, *ints), scratch=scratch)


def expand_like(g: GradientBuilder, dy: str) -> str:
    """Return dY, or any value of the output's shape, expanded to the shape of x."""
    x = g.inputs[0]
    shape, axes = g.shape(x), axes_of(g.context())
    if not g.attribute("keepdims", 1) and axes is None:
        raise g.error("expected constant axes where a gradient is taken and the reduced axes vanish, got computed ones")
    if not g.attribute("keepdims", 1) and axes is not None and len(axes) < len(shape):
        dy = g.unsqueeze(dy, axes)
    target = g.constant([int(d) for d in shape]) if g.type(x).is_static else g.op("Shape", x)
    return str(g.op("Expand", dy, target))


def keep_axes(g: GradientBuilder, dy: str) -> str:
    """Return dY, or any value of the output's shape, with the reduced axes as size 1, so that it broadcasts against x."""
    if g.attribute("keepdims", 1):
        return dy
    axes = axes_of(g.context())
    if axes is None:
        raise g.error("expected constant axes where a gradient is taken and the reduced axes vanish, got computed ones")
    return str(g.unsqueeze(dy, axes)) if axes else dy


def sum_gradient(g: GradientBuilder) -> Gradients:
    return [expand_like(g, g.dy)]


def mean_gradient(g: GradientBuilder) -> Gradients:
    x, dy = g.inputs[0], g.dy
    shape, axes = g.shape(x), axes_of(g.context())
    sizes = [shape[axis] for axis in axes] if axes is not None else ["?"]
    if all(isinstance(size, int) for size in sizes):
        count = g.constant(np.array([math.prod(int(size) for size in sizes)], np.int64))
    else:
        count = g.op("Div", g.op("Size", x), g.op("Size", dy))
    return [expand_like(g, g.op("Scale", dy, count, domain=MICROSOFT, scale_down=1))]


def extreme_gradient(g: GradientBuilder) -> Gradients:
    """Return dY in equal shares for all elements that equal the extreme."""
    x, axes = g.inputs[0], axes_of(g.context())
    if axes is None:
        raise g.error("expected constant axes, got computed ones")
    mask = g.op("Cast", g.op("Equal", x, keep_axes(g, g.outputs[0])), to=1 if g.type(x).dtype == "float32" else 11)
    total = g.reduce_sum(mask, axes, True) if axes else mask
    return [g.op("Mul", mask, g.op("Div", keep_axes(g, g.dy), total))]


def sum_square_gradient(g: GradientBuilder) -> Gradients:
    x = g.inputs[0]
    return [g.op("Mul", keep_axes(g, g.op("Mul", g.dy, g.scalar(2.0, x))), x)]


def l1_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("Mul", keep_axes(g, g.dy), g.op("Sign", g.inputs[0]))]


def l2_gradient(g: GradientBuilder) -> Gradients:
    """Return dY x / y, and 0 where the norm y is 0."""
    y = g.outputs[0]
    zero = g.scalar(0.0, y)
    ratio = g.op("Where", g.op("Equal", y, zero), zero, g.op("Div", g.dy, y))
    return [g.op("Mul", keep_axes(g, ratio), g.inputs[0])]


def reduction_decomposition(before: str, reduction: str, after: str = "") -> Decomposition:
    """Return the decomposition into after(reduction(before(x))) over the node's axes, with the reduction in the form of the model's opset.

    before, after: unary operators, "" for none."""

    def expand(g: NodeBuilder) -> list[str]:
        x = g.op(before, g.inputs[0]) if before else g.inputs[0]
        axes = axes_of(g.context())
        if axes is None:
            raise g.error("expected constant axes, got computed ones")
        attributes: dict[str, Any] = {"keepdims": int(g.attribute("keepdims", 1))}
        axes_are_input = g.opset >= (13 if reduction == "ReduceSum" else 18)
        if not axes:
            y = x if reduction == "ReduceSum" else g.op("Mul", x, x)
        elif axes_are_input:
            y = g.op(reduction, x, g.constant(list(axes)), **attributes)
        else:
            y = g.op(reduction, x, axes=axes, **attributes)
        return [g.op(after, y) if after else y]

    return expand


def log_sum_gradient(g: GradientBuilder) -> Gradients:
    """Return dY / sum(x), where the sum is e ** y."""
    return [expand_like(g, g.op("Div", g.dy, g.op("Exp", g.outputs[0])))]


def log_sum_exp_decomposition(g: NodeBuilder) -> list[str]:
    """Return ln(sum(e ** (x - max))) + max, which does not overflow; an infinite maximum is not subtracted, as that would give NaN."""
    x, axes = g.inputs[0], axes_of(g.context())
    if axes is None:
        raise g.error("expected constant axes, got computed ones")
    if not axes:
        return [g.op("Identity", x)]
    largest = g.reduce("ReduceMax", x, axes)
    infinite = g.scalar(float("inf"), x)
    finite = g.op("Less", g.op("Abs", largest), infinite)
    shift = g.op("Where", finite, largest, g.scalar(0.0, x))
    y = g.op("Add", g.op("Log", g.reduce_sum(g.op("Exp", g.op("Sub", x, shift)), axes, True)), shift)
    if g.attribute("keepdims", 1):
        return [y]
    return [g.squeeze(y, axes)]


def log_sum_exp_gradient(g: GradientBuilder) -> Gradients:
    """Return dY e ** (x - y), the softmax of x times dY."""
    x = g.inputs[0]
    return [g.op("Mul", keep_axes(g, g.dy), g.op("Exp", g.op("Sub", x, keep_axes(g, g.outputs[0]))))]


def product_gradient(g: GradientBuilder) -> Gradients:
    """Return dY times the product of all other elements, which is exact where elements are 0."""
    axes = axes_of(g.context())
    if axes is None:
        raise g.error("expected constant axes where a gradient is taken, got computed ones")
    if not axes:
        return [g.op("Identity", g.dy)]
    return [g.op("Mul", keep_axes(g, g.dy), g.op("ProductOfOthers", g.inputs[0], domain=ORTRAIN, axes=axes))]


def product_of_others_decomposition(g: NodeBuilder) -> list[str] | None:
    """Multiply the products along each axis of x reduced over the axes before it; None for a single axis, which is a kernel."""
    x, axes = g.inputs[0], normalize_axes(g.context(), g.attribute("axes"), g.rank(g.inputs[0]))
    if len(axes) == 1:
        return None
    result, reduced = "", x
    for axis in axes:
        others = g.op("ProductOfOthers", reduced, domain=ORTRAIN, axes=(axis,))
        result = g.op("Mul", result, others) if result else others
        reduced = g.reduce("ReduceProd", reduced, (axis,))
    return [result]


def lower_product_of_others(c: LoweringContext) -> KernelCall:
    dims = c.dims(0)
    (axis,) = normalize_axes(c, c.attribute("axes"), len(dims))
    return KernelCall("product_of_others", (math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1:]), 0, 0))


@operator("ProductOfOthers", domain=ORTRAIN, decompose=product_of_others_decomposition, lower=lower_product_of_others, differentiable=False)
def product_of_others(c: InferenceContext) -> list[TensorType]:
    """y = the product of x over `axes` without the element itself, in the shape of x"""
    normalize_axes(c, c.attribute("axes"), len(c.shape(0)))
    return [c.type(0)]


def is_one_block(dims: Sequence[Dim], axes: Sequence[int]) -> bool:
    """Return whether axes, which are sorted, are adjacent, not counting axes of size 1 between them."""
    return all(axis in axes or is_one(dims[axis]) for axis in range(axes[0], axes[-1] + 1))


def lower_extreme_grad(c: LoweringContext) -> KernelCall:
    dims, axes = c.dims(1), sorted(normalize_axes(c, c.attribute("axes"), len(c.dims(1))))
    return KernelCall("extreme_shares", (math.prod(dims[:axes[0]]), math.prod(dims[axes[0]:axes[-1] + 1]), math.prod(dims[axes[-1] + 1:])))


@operator("ExtremeGrad", domain=ORTRAIN, lower=lower_extreme_grad, differentiable=False)
def extreme_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dy in equal shares for the elements of x that equal y, the gradient of an extreme y of x over adjacent `axes`, which keep size 1; of (dy, x, y)"""
    shape = c.shape(1)
    axes = normalize_axes(c, c.attribute("axes"), len(shape))
    check_inputs(c, tuple(1 if axis in axes else dim for axis, dim in enumerate(shape)), 0, 2)
    return [c.type(1)]


def reduce_all_l2_decomposition(g: NodeBuilder) -> list[str]:
    squares = [g.op("ReduceSumSquare", x, keepdims=0) for x in g.inputs]
    return [g.op("Sqrt", g.op("Sum", *squares))]


@operator("ReduceAllL2", domain=MICROSOFT, decompose=reduce_all_l2_decomposition)
def reduce_all_l2(c: InferenceContext) -> list[TensorType]:
    """y = sqrt(sum of x² over all elements of all inputs), a scalar"""
    return [TensorType(c.dtype(0), ())]


def _empty_extreme(dtype: np.dtype, minimum: bool) -> Any:
    """Return the minimum (or maximum) of an empty set: the largest (or smallest) value of the dtype."""
    if dtype == np.bool_:
        return minimum
    if dtype.kind == "f":
        return np.inf if minimum else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if minimum else limits.min


def numpy_reduction(function: Callable[..., Any]) -> Callable[[InferenceContext], list[np.ndarray]]:
    """Return the constant folding of a reduction that is one NumPy function."""

    def evaluate(c: InferenceContext) -> list[np.ndarray]:
        x = c.values[0]
        assert x is not None
        axes = axes_of(c)
        if axes == ():
            return [x]
        initial = {} if x.size or function not in (np.max, np.min) else {"initial": _empty_extreme(x.dtype, function is np.min)}
        return [np.asarray(function(x, axis=axes, keepdims=bool(c.attribute("keepdims", 1)), **initial)).astype(x.dtype, copy=False)]

    return evaluate


def _register() -> None:
    rows: list[tuple[str, str, Any, Callable[..., Any] | None]] = [
        ("ReduceSum", "reduce_sum", sum_gradient, np.sum),
        ("ReduceMean", "reduce_mean", mean_gradient, np.mean),
        ("ReduceMax", "reduce_max", extreme_gradient, np.max),
        ("ReduceMin", "reduce_min", extreme_gradient, np.min),
        ("ReduceProd", "reduce_prod", product_gradient, np.prod),
        ("ReduceSumSquare", "reduce_sum_square", sum_square_gradient, None),
    ]
    for name, kernel, gradient, function in rows:
        operator(name, lower=lower_reduction(kernel), gradient=gradient, stop_gradient=(1,),
                 evaluate=numpy_reduction(function) if function else None)(infer_reduction)
    operator("ReduceL1", gradient=l1_gradient, stop_gradient=(1,), decompose=reduction_decomposition("Abs", "ReduceSum"))(infer_reduction)
    operator("ReduceL2", gradient=l2_gradient, stop_gradient=(1,), decompose=reduction_decomposition("", "ReduceSumSquare", "Sqrt"))(infer_reduction)
    operator("ReduceLogSum", gradient=log_sum_gradient, stop_gradient=(1,), decompose=reduction_decomposition("", "ReduceSum", "Log"))(infer_reduction)
    operator("ReduceLogSumExp", gradient=log_sum_exp_gradient, stop_gradient=(1,), decompose=log_sum_exp_decomposition)(infer_reduction)
    operator("ReduceSumTraining", domain=MICROSOFT, lower=lower_reduction("reduce_sum"), gradient=sum_gradient, stop_gradient=(1,),
             evaluate=numpy_reduction(np.sum))(infer_reduction)


_register()
