"""Rules of operators: along which axis the samples of the outputs lie, given those of the inputs.

A rule raises NotSeparable where an operator mixes samples, or where nothing proves that it does not. It returns one position for all outputs, or a list
with one per output; None stands for an output that is the same for all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ortrain.ir import Node
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN
from ortrain.passes.open_batch.batch_axis import BatchAxis, NodeView, NotSeparable
from ortrain.passes.open_batch.reshaping import RESHAPING

Positions = BatchAxis | None | Sequence[BatchAxis | None]
Rule = Callable[[NodeView], Positions]

INT64_MAX = np.iinfo(np.int64).max

ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil",
    "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal",
    "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Where", "Xor")
MICROSOFT_ELEMENTWISE = ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")


def elementwise(v: NodeView) -> BatchAxis:
    rank = len(v.output_shape())
    return _broadcast(v, [index for index in range(len(v.node.inputs)) if v.has(index)], rank)


def _broadcast(v: NodeView, indices: Iterable[int], rank: int) -> BatchAxis:
    """Return the samples' position in the broadcast of some inputs, which has `rank` axes, and make the inputs without samples fit it."""
    inputs = list(indices)
    found = {axis.at(axis.axis + rank - v.rank(index)) for index in inputs if (axis := v.axes[index]) is not None}
    if len(found) != 1:
        raise NotSeparable("the samples of its inputs lie along different axes")
    where = found.pop()
    for index in inputs:
        if v.axes[index] is None:
            v.broadcast(index, where, rank)
    return where


def first_input(v: NodeView) -> BatchAxis:
    """The rule of operators that work element by element on input 0 under parameters shared by all samples."""
    v.need_unbatched(*range(1, len(v.node.inputs)))
    return v.batched(0)


def batch_first(v: NodeView) -> BatchAxis:
    """The rule of convolutions, pooling and channel normalizations, which treat the rows of axis 0 apart."""
    where = first_input(v)
    if where.axis != 0:
        raise NotSeparable(f"it computes across axis {where.axis}, along which the samples lie")
    return where


def _apart_from(where: BatchAxis, axes: Iterable[int], what: str = "computes across") -> BatchAxis:
    if where.axis in axes:
        raise NotSeparable(f"it {what} axis {where.axis}, along which the samples lie")
    return where


def softmax(v: NodeView) -> BatchAxis:
    rank = v.rank(0)
    axis = v.attribute("axis", -1 if v.opset >= 13 else 1) % rank
    return _apart_from(first_input(v), [axis] if v.opset >= 13 else range(axis, rank))


def along_axis(default: int) -> Rule:
    """Return the rule of an operator that computes along the axis of its attribute and leaves the others alone."""

    def rule(v: NodeView) -> BatchAxis:
        return _apart_from(first_input(v), [v.attribute("axis", default) % v.rank(0)])

    return rule


def layer_normalization(v: NodeView) -> Positions:
    rank = v.rank(0)
    return _apart_from(first_input(v), range(v.attribute("axis", -1) % rank, rank))


def skip_layer_normalization(v: NodeView) -> Positions:
    v.need_unbatched(*range(2, len(v.node.inputs)))
    where = _broadcast(v, (0, 1), v.rank(0))
    return [_apart_from(where, [v.rank(0) - 1]), None, None, where]


def cumulative(v: NodeView) -> BatchAxis:
    axes = v.integers(1, "axis") or [0]
    return _apart_from(first_input(v), [axes[0] % v.rank(0)])


def matmul(v: NodeView) -> BatchAxis:
    ranks, rank = (v.rank(0), v.rank(1)), len(v.output_shape())
    left, right = v.axes[0], v.axes[1]
    if left is not None and left.axis == ranks[0] - 1 or right is not None and right.axis == max(ranks[1] - 2, 0):
        raise NotSeparable("it sums over the axis along which the samples lie")
    is_row = left is not None and left.axis == ranks[0] - 2
    is_column = right is not None and right.axis == ranks[1] - 1
    if is_row and right is not None or is_column and left is not None:
        raise NotSeparable("it multiplies samples with each other")
    if left is not None and is_row:
        return left.at(rank - (1 if ranks[1] == 1 else 2))
    if right is not None and is_column:
        return right.at(rank - 1)
    # behind the leading axes, which broadcast, are two axes of a matrix; a vector has none of the leading ones
    leading = [index for index in (0, 1) if ranks[index] > 2]
    if len(leading) == 1:
        index = leading[0]
        return v.batched(index).at(v.batched(index).axis + rank - ranks[index] + (ranks[1 - index] == 1))
    return _broadcast(v, leading, rank)


def gemm(v: NodeView) -> BatchAxis:
    left, right = v.axes[0], v.axes[1]
    row, column = (1 if v.attribute("transA", 0) else 0), (0 if v.attribute("transB", 0) else 1)
    if left is not None and left.axis != row or right is not None and right.axis != column:
        raise NotSeparable("it sums over the axis along which the samples lie")
    if left is not None and right is not None or left is None and right is None:
        raise NotSeparable("it multiplies samples with each other" if left else "only its addend has samples")
    where = left.at(0) if left is not None else v.batched(1).at(1)
    if v.has(2):
        addend = v.axes[2]
        if addend is None:
            v.broadcast(2, where, 2)
        elif addend.at(addend.axis + 2 - v.rank(2)) != where:
            raise NotSeparable("the samples of its inputs lie along different axes")
    return where


def einsum(v: NodeView) -> BatchAxis:
    equation = v.attribute("equation", "")
    equation = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    if not arrow or "." in equation or len(terms) != len(v.node.inputs):
        raise NotSeparable(f"its equation {equation!r} is not explicit")
    found = {(term[axis.axis], axis.at(0)) for term, axis in zip(terms, v.axes, strict=True) if axis is not None}
    letter, where = found.pop()
    if found or letter not in result or any(term.count(letter) > 1 for term in (*terms, result)):
        raise NotSeparable("the samples of its inputs lie along different axes, or it sums over them")
    for index, term in enumerate(terms):
        if v.axes[index] is None and letter in term:
            v.share(index, where.at(term.index(letter)))
    return where.at(result.index(letter))


def concat(v: NodeView) -> BatchAxis:
    rank = len(v.output_shape())
    where = next(axis for axis in v.axes if axis is not None)
    _apart_from(where, [v.attribute("axis", 1 if v.opset < 4 else 0) % rank], "concatenates along")
    for index in range(len(v.node.inputs)):
        v.share(index, where)
    return where


def split(v: NodeView) -> BatchAxis:
    return _apart_from(first_input(v), [v.attribute("axis", 0) % v.rank(0)], "splits")


def slice_(v: NodeView) -> BatchAxis:
    where, rank = first_input(v), v.rank(0)
    starts, ends = v.integers(1, "starts") or [], v.integers(2, "ends") or []
    axes, steps = v.integers(3, "axes") or list(range(len(starts))), v.integers(4, "steps") or [1] * len(starts)
    size = where.size(v.rewriter.batch)
    for index, axis in enumerate(axes):
        if axis % rank != where.axis:
            continue
        if steps[index] != 1 or starts[index] not in (0, -size) or ends[index] < size:
            raise NotSeparable(f"it slices axis {where.axis}, along which the samples lie")
        starts[index], ends[index] = 0, INT64_MAX
        if v.opset >= 10:
            v.node.inputs[1], v.node.inputs[2] = (v.rewriter.constant(np.array(bounds, np.int64)) for bounds in (starts, ends))
            for optional in (3, 4):                        # axes and steps must have the same element type as starts
                if v.has(optional):
                    v.node.inputs[optional] = v.rewriter.constant(np.array(axes if optional == 3 else steps, np.int64))
        else:
            v.node.attributes |= {"starts": tuple(starts), "ends": tuple(ends)}
    return where


def pad(v: NodeView) -> BatchAxis:
    where = first_input(v)
    pads, axes = v.integers(1, "pads") or [], v.integers(3, "axes") or list(range(v.rank(0)))
    padded = {axis % v.rank(0) for index, axis in enumerate(axes) if pads[index] or pads[index + len(axes)]}
    return _apart_from(where, padded, "pads")


def transpose(v: NodeView) -> BatchAxis:
    where = v.batched(0)
    order = v.attribute("perm") or tuple(reversed(range(v.rank(0))))
    return where.at(list(order).index(where.axis))


def gather(v: NodeView) -> BatchAxis:
    data, indices, axis = v.axes[0], v.axes[1], v.attribute("axis", 0) % v.rank(0)
    if data is not None and indices is not None:
        raise NotSeparable("both the data and the indices have samples")
    if indices is not None:
        return indices.at(axis + indices.axis)
    where = _apart_from(v.batched(0), [axis], "selects samples by number along")
    return where if where.axis < axis else where.at(where.axis + v.rank(1) - 1)


def gather_elements(v: NodeView) -> BatchAxis:
    where = next(axis for axis in v.axes if axis is not None)
    _apart_from(where, [v.attribute("axis", 0) % v.rank(0)], "selects samples by number along")
    for index in (0, 1):
        v.share(index, where)
    return where


def reduce(v: NodeView) -> BatchAxis:
    where, rank = first_input(v), v.rank(0)
    axes = v.integers(1, "axes")
    if not axes and v.attribute("noop_with_empty_axes", 0):
        return where
    return _without(v, where, [axis % rank for axis in axes] if axes else list(range(rank)))


def arg_extreme(v: NodeView) -> BatchAxis:
    return _without(v, first_input(v), [v.attribute("axis", 0) % v.rank(0)])


def _without(v: NodeView, where: BatchAxis, axes: Sequence[int]) -> BatchAxis:
    """Return the samples' position after some axes were reduced."""
    _apart_from(where, axes, "reduces")
    return where if v.attribute("keepdims", 1) else where.at(where.axis - sum(axis < where.axis for axis in axes))


def recurrent(v: NodeView) -> Positions:
    """LSTM, GRU and RNN: batch and initial states along axis 1, or along axis 0 with layout 1."""
    is_batch_first = bool(v.attribute("layout", 0))
    where, axis = v.batched(0), 0 if is_batch_first else 1
    if where.axis != axis:
        raise NotSeparable(f"it computes across axis {where.axis}, along which the samples lie")
    v.need_unbatched(1, 2, 3, 7)
    for index, state_axis in ((4, 0), (5, axis), (6, axis)):
        if v.has(index):
            v.share(index, where.at(state_axis))
    return [where.at(0 if is_batch_first else 2), where, where]


def one_hot(v: NodeView) -> BatchAxis:
    where = first_input(v)
    inserted = v.attribute("axis", -1) % (v.rank(0) + 1)
    return where.at(where.axis + (inserted <= where.axis))


def trilu(v: NodeView) -> BatchAxis:
    return _apart_from(first_input(v), range(v.rank(0) - 2, v.rank(0)))


def resize(v: NodeView) -> BatchAxis:
    where, rank = first_input(v), v.rank(0)
    axes = [axis % rank for axis in v.attribute("axes") or range(rank)]
    if where.axis in axes and v.has(3):
        sizes = v.integers(3, "sizes") or []
        position, size = axes.index(where.axis), where.size(v.rewriter.batch)
        if sizes[position] != size or v.attribute("keep_aspect_ratio_policy", "stretch") not in ("stretch", b"stretch"):
            raise NotSeparable(f"it resizes axis {where.axis}, along which the samples lie")
        if not v.rewriter.computes_from_batch(v.node.inputs[3]):
            v.node.inputs[3] = v.rewriter.sizes([None if index == position else entry for index, entry in enumerate(sizes)], where.size(1))
    elif where.axis in axes:
        # Upsample and Resize 10 have the scales as input 1, later versions as input 2
        name = v.node.inputs[2 if v.has(2) else 1] if len(v.node.inputs) > 1 else ""
        scales = v.rewriter.value_of(name) if name else np.asarray(v.attribute("scales", ()))
        if scales is None or len(scales) != len(axes) or scales[axes.index(where.axis)] != 1:
            raise NotSeparable(f"it resizes axis {where.axis}, along which the samples lie")
    return where


def attention(mask: int) -> Rule:
    """Queries, keys and values along axis 0, in the inputs before input `mask`; a mask for each sample or for all."""

    def rule(v: NodeView) -> BatchAxis:
        of_mask = v.axes[mask] if v.has(mask) else None
        if any(v.batched(index).axis for index in range(mask)) or of_mask is not None and of_mask.at(of_mask.axis + 4 - v.rank(mask)) != v.axes[0]:
            raise NotSeparable("the samples of its inputs lie along different axes")
        if v.has(mask) and of_mask is None:
            v.broadcast(mask, v.batched(0), 4)
        return v.batched(0)

    return rule


def same_for_all(v: NodeView) -> None:
    """Shape and Size: what they return does not depend on the samples; whether it depends on their number is followed by value."""


RULES: dict[tuple[str, str], Rule] = {
    **{("", name): elementwise for name in ELEMENTWISE},
    **{(MICROSOFT, name): elementwise for name in MICROSOFT_ELEMENTWISE},
    **{("", name): batch_first for name in (
        "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool",
        "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth")},
    **{("", name): softmax for name in ("Softmax", "LogSoftmax", "Hardmax")},
    **{("", name): reduce for name in (
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")},
    **{("", name): arg_extreme for name in ("ArgMax", "ArgMin")},
    **{("", name): recurrent for name in ("LSTM", "GRU", "RNN")},
    **{("", name): first_input for name in ("Dropout", "QuantizeLinear", "DequantizeLinear")},
    **{("", name): same_for_all for name in ("Shape", "Size")},
    **{("", name): layer_normalization for name in ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")},
    **{("", name): cumulative for name in ("CumSum", "CumProd")},
    **{("", name): rule for name, rule in RESHAPING.items()},
    ("", "LpNormalization"): along_axis(-1), ("", "TopK"): along_axis(-1), ("", "MatMul"): matmul, ("", "Gemm"): gemm,
    ("", "Einsum"): einsum, ("", "Concat"): concat, ("", "Split"): split, ("", "Slice"): slice_, ("", "Pad"): pad, ("", "Transpose"): transpose,
    ("", "Gather"): gather, ("", "GatherElements"): gather_elements, ("", "OneHot"): one_hot, ("", "Trilu"): trilu, ("", "Resize"): resize,
    ("", "Upsample"): resize, (ORTRAIN, "Attention"): attention(3), (ORTRAIN, "PackedAttention"): attention(1),
    (ORTRAIN, "GroupNorm"): batch_first, (MICROSOFT, "SkipLayerNormalization"): skip_layer_normalization,
}
"""(domain, op_type) -> rule."""

SIZE_INPUTS = {"Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Tile": (1,), "Resize": (3,), "Slice": (2,)}
"""Inputs that may depend on the number of samples because they only state sizes."""


def positions(v: NodeView) -> list[BatchAxis | None]:
    """Return the samples' position in each output of a node with samples. Raises NotSeparable."""
    node: Node = v.node
    rule = RULES.get((node.domain, node.op_type))
    if rule is None:
        raise NotSeparable("it is not known whether the operator computes each sample on its own")
    try:
        found = rule(v)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:     # rules are written for well-formed nodes
        raise NotSeparable(f"its inputs and attributes do not fit the operator ({type(error).__name__}: {error})") from error
    if found is None or isinstance(found, BatchAxis):
        return [found] * len(node.outputs)
    return list(found)[: len(node.outputs)]
