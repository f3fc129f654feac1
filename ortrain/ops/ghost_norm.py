"""The squared norms of gradients by single samples that are products, without the gradients where that is cheaper (ghost norms)."""

from __future__ import annotations

from ortrain.ir import TensorType
from ortrain.ops.linear import common_dtype, fused_matmul_node
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, operator


def sum_of_squares(g: NodeBuilder, value: str, axes: tuple[int, ...], factor: str = "") -> str:
    """Return the sum over axes of the squares of a value, or of its products with another one."""
    return g.reduce_sum(g.op("Mul", value, factor or value), axes, keepdims=False)


def ghost_norm_decomposition(g: NodeBuilder) -> list[str]:
    """Choose by the number of multiplications: positions² (p + q) for sums over pairs of positions t, u of (x_t . x_u) (dy_t . dy_u), or positions p q for the
    gradients themselves. Times are equal where these numbers are, within a few percent: for 64, 128 and 50 x 500 at 32, 64 and 45 positions."""
    left, right = g.inputs
    last, blocks = int(g.attribute("positions_last", 0)), int(g.attribute("blocks", 1))
    of_left, of_right = g.shape(left)[1:], g.shape(right)[1:]
    positions, p, q = of_left[last], of_left[1 - last], of_right[1 - last]
    if positions == 1:
        norms = g.op("Mul", sum_of_squares(g, left, (1, 2)), sum_of_squares(g, right, (1, 2)))
    elif isinstance(positions, int) and isinstance(p, int) and isinstance(q, int) and positions * (p + q) < p * q:
        norms = sum_of_squares(g, fused_matmul_node(g, left, left, last, 1 - last, 1.0), (1, 2), fused_matmul_node(g, right, right, last, 1 - last, 1.0))
    else:
        norms = sum_of_squares(g, fused_matmul_node(g, left, right, 1 - last, last, 1.0), (1, 2))
    return [norms if blocks == 1 else g.reduce_sum(g.op("Reshape", norms, g.constant([-1, blocks])), (1,), keepdims=False)]


@operator("GhostNorm", domain=ORTRAIN, differentiable=False, decompose=ghost_norm_decomposition)
def ghost_norm(c: InferenceContext) -> list[TensorType]:
    """y [n] = the squared Frobenius norms of left_i^T right_i with left [n, positions, p] and right [n, positions, q]

    With `positions_last`, operands are [n, p, positions] and [n, q, positions]. With `blocks`, y adds up so many neighbouring products of a sample."""
    left, right = c.shape(0), c.shape(1)
    if len(left) != 3 or len(right) != 3:
        raise c.error(f"expected operands [n, positions, size], got {list(left)} and {list(right)}")
    blocks = int(c.attribute("blocks", 1))
    count = left[0] if blocks == 1 else left[0] // blocks if isinstance(left[0], int) else c.new_symbol("samples")
    return [TensorType(common_dtype(c), (count,))]
