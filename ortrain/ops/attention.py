"""Scaled dot-product attention as one operator, which no file has: fusion finds it in the products, softmax and transposes that exporters write."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim, Shape, TensorType
from ortrain.ops.registry.constants import symbolic_max, symbolic_min
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, check_broadcasts, check_inputs, operator
from ortrain.ops.shared.broadcasting import broadcast_strides

BLOCK, CAUSAL_BLOCK = 128, 64
"""Query rows whose scores are held at a time. Smaller blocks skip more of what a causal mask hides, and pack the keys more often."""
LANES = 16
"""Work items, each with scratch space for the scores of a block."""
HIDDEN = -1e8
"""A mask at most this much leaves exactly nothing of a score of any sensible size: its exponential is 0 in both float types."""


def lower_attention(c: LoweringContext, q: int, mask: int, buffers: int, by_head: bool) -> KernelCall:
    """Packs what attention/attention.h says. buffers: blocks of scores that a lane needs."""
    (n, rows, heads, size), (_, keys, _, _), (_, _, _, width) = (c.dims(q + i) for i in range(3))
    causal = c.has(mask) and rows == keys and hides_later_keys(c.value(mask), rows)
    steps = broadcast_strides(c.dims(mask), (n, heads, rows, keys)) if c.has(mask) else [0] * 4
    block = symbolic_min(rows, CAUSAL_BLOCK if causal else BLOCK)
    units = n * heads * (1 if by_head else -(-rows // max(block, 1)))
    lanes = symbolic_max(1, symbolic_min(LANES, units))
    scratch = lanes * buffers * block * keys * numpy_dtype(c.dtype(0)).itemsize
    kernel = "attention_grad" if by_head else "attention"
    return KernelCall(kernel, (n, heads, rows, keys, size, width, int(causal), block, lanes, *steps), (float(c.attribute("scale", 1.0)),), scratch=scratch)


def hides_later_keys(mask: np.ndarray | None, rows: int) -> bool:
    """True when a known mask hides from every row all keys after its own."""
    if mask is None or mask.ndim < 2 or mask.shape[-2:] != (rows, rows) or prod(mask.shape) != rows * rows:
        return False
    later = mask.reshape(rows, rows)[np.triu_indices(rows, 1)]
    return bool(later.size) and bool((later <= HIDDEN).all())


def attention_gradient(g: GradientBuilder) -> Sequence[str | None]:
    q, k, v = g.inputs[:3]
    mask = g.inputs[3] if g.has(3) else ""
    found = g.ops("AttentionGrad", g.dy, q, k, v, mask, g.outputs[0], g.output(1), outputs=[True] * 3, domain=ORTRAIN,
                  scale=float(g.attribute("scale", 1.0)))
    return [*(name if g.needs(i) else None for i, name in enumerate(found)), *([None] if g.has(3) else [])]


def check_heads(c: InferenceContext, first: int) -> tuple[Shape, Shape, Shape]:
    """The shapes of q, k and v, refused where they do not fit."""
    q, k, v = (c.shape(first + i) for i in range(3))

    def differ(a: Dim, b: Dim) -> bool:
        return isinstance(a, int) and isinstance(b, int) and a != b

    if any(len(shape) != 4 for shape in (q, k, v)) or any(differ(q[i], k[i]) for i in (0, 2, 3)) or any(differ(k[i], v[i]) for i in range(3)):
        raise c.error(f"expected q [n, rows, heads, size], k [n, keys, heads, size] and v [n, keys, heads, width], got {list(q)}, {list(k)} and {list(v)}")
    if c.has(first + 3):
        check_broadcasts(c, first + 3, (q[0], q[2], q[1], k[1]))
    return q, k, v


@operator("Attention", domain=ORTRAIN, lower=lambda c: lower_attention(c, 0, 3, 1, False), gradient=attention_gradient, stop_gradient=(3,), written=1)
def attention(c: InferenceContext) -> list[TensorType]:
    """y = softmax(scale q k' + mask) v for every image and head; q [n, rows, heads, size], k and v [n, keys, heads, …]; then log of the softmax's sums"""
    q, _, v = check_heads(c, 0)
    return [TensorType(c.dtype(0), (*q[:3], v[3])), TensorType(c.dtype(0), (q[0], q[2], q[1]))]


@operator("AttentionGrad", domain=ORTRAIN, lower=lambda c: lower_attention(c, 1, 4, 2, True), differentiable=False, written=3)
def attention_grad(c: InferenceContext) -> list[TensorType]:
    """(dq, dk, dv) of (dy, q, k, v, mask, y, log sums)"""
    q, k, v = check_heads(c, 1)
    check_inputs(c, (*q[:3], v[3]), 0, 5)
    check_inputs(c, (q[0], q[2], q[1]), 6)
    return [TensorType(c.dtype(0), shape) for shape in (q, k, v)]
