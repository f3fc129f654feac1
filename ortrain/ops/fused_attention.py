"""Scaled dot-product attention as one operator of the domain ortrain.

No file contains it: ortrain.fusion creates it from the MatMul, Softmax and Transpose nodes that exporters write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import prod

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim, Shape, TensorType
from ortrain.ops.registry.constants import surely_equal, symbolic_max, symbolic_min
from ortrain.ops.registry.heads import ORDERS, ROWS_FIRST, by_rows
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_broadcasts, check_inputs, operator
from ortrain.ops.shared.broadcasting import broadcast_strides, contiguous_strides

QUERY_BLOCK, CAUSAL_QUERY_BLOCK = 128, 64
"""Query rows whose scores are computed at a time. Smaller blocks skip more of the scores that a causal mask hides, but pack the keys more often."""
MAX_LANES = 16
"""Maximum number of work items at a time, each of which has scratch memory for the scores of a block."""
MASKED_OUT = -1e8
"""Mask values at or below this hide a score: added to a score of realistic size, they make its exponential exactly 0 in float32 and float64."""


BLOCK = 8
"""Where a kernel's integers have the number of query rows of a block."""


def head_strides(shape: Sequence[int], heads_first: int) -> tuple[int, int, int]:
    """Return the distances in elements between images, heads and rows."""
    image, first, second, _ = contiguous_strides(shape)
    return (image, first, second) if heads_first else (image, second, first)


def lower_attention(c: LoweringContext, q: int, mask: int, by_head: bool) -> KernelCall:
    """Pack the attributes that kernels/attention/attention.h documents.

    q, mask: the indices of the inputs q and mask. by_head: one work item per head of keys (the backward pass, which has two blocks of scores) instead of one
    per block of query rows."""
    orders = tuple(c.attribute(ORDERS, ROWS_FIRST))
    shapes = [c.dims(q + i) for i in range(3)]
    (n, rows, heads, size), (_, keys, shared, _), (_, _, _, width) = map(by_rows, shapes, orders[:3])
    strides = [head_strides(shape, order) for shape, order in zip((*shapes, by_rows((n, rows, heads, width), orders[3])), orders, strict=True)]
    call = _packed_call(c, mask, by_head, (n, heads, shared, rows, keys, size, width), strides)
    if not by_head:
        return call
    in_place = {0: q}
    if surely_equal(rows, call.ints[BLOCK]) and surely_equal(heads, shared):       # the values and the result have been read
        takes_result = orders[1] == orders[3] and all(map(surely_equal, c.dims(q + 1), c.dims(q + 4)))
        in_place |= {2: q + 2} | ({1: q + 4} if takes_result else {})
    return replace(call, in_place=in_place)


def lower_packed_attention(c: LoweringContext, qkv: int, by_head: bool) -> KernelCall:
    """Pack the attributes as lower_attention() does. qkv: the index of the input with q, k and v, which the mask follows."""
    n, keys, _, heads, size = c.dims(qkv)
    rows = int(c.attribute("query_rows", 0)) or keys
    packed = (3 * keys * heads * size, size, 3 * heads * size)
    strides = [packed, packed, packed, head_strides((n, rows, heads, size), 0)]
    call = _packed_call(c, qkv + 1, by_head, (n, heads, heads, rows, keys, size, size), strides, (1, int(c.attribute("first_query", 0))))
    return replace(call, in_place={0: qkv}) if by_head and surely_equal(rows, call.ints[BLOCK]) else call


def _packed_call(c: LoweringContext, mask: int, by_head: bool, sizes: Sequence[int], strides: Sequence[Sequence[int]],
                 packed: tuple[int, int] = (0, 0)) -> KernelCall:
    """Return the call for sizes, strides, and whether operands are packed and their first query, as they stand in the kernel's integers."""
    n, heads, shared, rows, keys, size, _ = sizes
    causal = c.has(mask) and rows == keys and is_causal_mask(c.value(mask), rows)
    mask_strides = broadcast_strides(c.dims(mask), (n, heads, rows, keys)) if c.has(mask) else [0] * 4
    block = symbolic_min(rows, CAUSAL_QUERY_BLOCK if causal else QUERY_BLOCK)
    units = n * shared if by_head else n * heads * -(-rows // max(block, 1))
    lanes = symbolic_max(1, symbolic_min(MAX_LANES, units))
    elements = lanes * block * (2 * keys if by_head else keys + 1)       # products and their gradients, or exponentials and the inverse of their sum
    if packed[0] and by_head:
        elements += lanes * keys * size                                  # dk of a head, until dq has been computed from k
    ints = (*sizes, int(causal), block, lanes, *mask_strides, *chain.from_iterable(strides), *packed)
    return KernelCall("attention_grad" if by_head else "attention", ints, (float(c.attribute("scale", 1.0)),),
                      scratch=elements * numpy_dtype(c.dtype(0)).itemsize)


def is_causal_mask(mask: np.ndarray | None, rows: int) -> bool:
    """Return whether a mask is constant and hides from every query row all later keys. rows: number of queries and of keys."""
    if mask is None or mask.ndim < 2 or mask.shape[-2:] != (rows, rows) or prod(mask.shape) != rows * rows:
        return False
    later = mask.reshape(rows, rows)[np.triu_indices(rows, 1)]
    return bool(later.size) and bool((later <= MASKED_OUT).all())


def attention_gradient(g: GradientBuilder) -> Sequence[str | None]:
    q, k, v = g.inputs[:3]
    mask = g.inputs[3] if g.has(3) else ""
    orders = {ORDERS: g.attribute(ORDERS)} if g.attribute(ORDERS) else {}
    gradients = g.ops("AttentionGrad", g.dy, q, k, v, mask, g.outputs[0], g.output(1), outputs=[True] * 3, domain=ORTRAIN,
                      scale=float(g.attribute("scale", 1.0)), **orders)
    return [*(name if g.needs(i) else None for i, name in enumerate(gradients)), *([None] if g.has(3) else [])]


def check_operands(c: InferenceContext, first: int) -> tuple[Shape, Shape]:
    """Return the shapes of the result and of its log-sum-exp. Raises if q, k and v, which are the inputs from `first` on, or the mask after them, do not fit
    each other."""
    shapes, orders = [c.shape(first + i) for i in range(3)], tuple(c.attribute(ORDERS, ROWS_FIRST))
    if len(orders) != 4 or any(order not in (0, 1) for order in orders) or any(len(shape) != 4 for shape in shapes):
        raise c.error("expected q, k and v of four axes, and 0 or 1 for the order of each and of y, "
                      f"got {[list(shape) for shape in shapes]} and {list(orders)}")
    q, k, v = map(by_rows, shapes, orders[:3])
    if any(_differ(q[i], k[i]) for i in (0, 3)) or any(_differ(k[i], v[i]) for i in range(3)) or not _shares(q[2], k[2]):
        raise c.error("expected q [n, rows, heads, size], k [n, keys, shared, size] and v [n, keys, shared, width] with a multiple of the shared heads, "
                      f"got {list(q)}, {list(k)} and {list(v)}")
    if c.has(first + 3):
        check_broadcasts(c, first + 3, (q[0], q[2], q[1], k[1]))
    return by_rows((*q[:3], v[3]), orders[3]), (q[0], q[2], q[1])


def _differ(a: Dim, b: Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def _shares(heads: Dim, shared: Dim) -> bool:
    """Return whether heads of queries are a multiple of those of keys, as far as they are known."""
    return not (isinstance(heads, int) and isinstance(shared, int)) or heads == shared or shared > 0 and heads % shared == 0


@operator("Attention", domain=ORTRAIN, lower=lambda c: lower_attention(c, 0, 3, False), gradient=attention_gradient, stop_gradient=(3,), required_outputs=1,
          takes_bfloat16=True, takes_rounded=(0, 1, 2))
def attention(c: InferenceContext) -> list[TensorType]:
    """y = softmax(scale q kᵀ + mask) v per sample and head, and the log-sum-exp of the scores; q [n, rows, heads, size], k and v [n, keys, shared, …]"""
    return [TensorType(c.dtype(0), shape) for shape in check_operands(c, 0)]


@operator("AttentionGrad", domain=ORTRAIN, lower=lambda c: lower_attention(c, 1, 4, True), differentiable=False, required_outputs=3,
          takes_bfloat16=True, takes_rounded=(1, 2, 3, 5))
def attention_grad(c: InferenceContext) -> list[TensorType]:
    """(dq, dk, dv) of (dY, q, k, v, mask, y, log-sum-exp of the scores)"""
    y, log_sums = check_operands(c, 1)
    check_inputs(c, y, 0, 5)
    check_inputs(c, log_sums, 6)
    return [TensorType(c.dtype(0), c.shape(i)) for i in (1, 2, 3)]


def packed_attention_gradient(g: GradientBuilder) -> Sequence[str | None]:
    mask = g.inputs[1] if g.has(1) else ""
    dqkv = g.op("PackedAttentionGrad", g.dy, g.inputs[0], mask, g.outputs[0], g.output(1), domain=ORTRAIN, scale=float(g.attribute("scale", 1.0)),
                query_rows=int(g.attribute("query_rows", 0)), first_query=int(g.attribute("first_query", 0)))
    return [dqkv, *([None] if g.has(1) else [])]


def check_packed(c: InferenceContext, first: int) -> tuple[Shape, Dim]:
    """Return the shape of input `first`, which has q, k and v, and the number of queries. Raises if the shape or the attributes are none, or if the mask after
    the input does not fit."""
    shape = c.shape(first)
    if len(shape) != 5 or shape[2] != 3:
        raise c.error(f"expected queries, keys and values [n, rows, 3, heads, size], got {list(shape)}")
    count, start = int(c.attribute("query_rows", 0)), int(c.attribute("first_query", 0))
    if count < 0 or start < 0 or (start and not count) or count and isinstance(shape[1], int) and start + count > shape[1]:
        raise c.error(f"expected queries within {shape[1]} rows, got {count} from row {start} on")
    queries = count or shape[1]
    if c.has(first + 1):
        check_broadcasts(c, first + 1, (shape[0], shape[3], queries, shape[1]))
    return shape, queries


@operator("PackedAttention", domain=ORTRAIN, lower=lambda c: lower_packed_attention(c, 0, False), gradient=packed_attention_gradient,
          stop_gradient=(1,), required_outputs=1, takes_bfloat16=True, takes_rounded=(0,))
def packed_attention(c: InferenceContext) -> list[TensorType]:
    """y and log-sum-exp as Attention of q, k and v, which are one input [n, rows, 3, heads, size]; of q only `query_rows` from `first_query` on, if given"""
    (n, _, _, heads, size), queries = check_packed(c, 0)
    return [TensorType(c.dtype(0), (n, queries, heads, size)), TensorType(c.dtype(0), (n, heads, queries))]


@operator("PackedAttentionGrad", domain=ORTRAIN, lower=lambda c: lower_packed_attention(c, 1, True), differentiable=False, required_outputs=1,
          takes_bfloat16=True, takes_rounded=(1, 3))
def packed_attention_grad(c: InferenceContext) -> list[TensorType]:
    """dqkv of (dY, qkv, mask, y, log-sum-exp of the scores)"""
    shape, queries = check_packed(c, 1)
    n, _, _, heads, size = shape
    check_inputs(c, (n, queries, heads, size), 0, 3)
    check_inputs(c, (n, heads, queries), 4)
    return [TensorType(c.dtype(0), shape)]
