"""The squared norms of a parameter's gradients by single samples, from those of all nodes that read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.errors import PerSampleGradientError
from ortrain.ops.ghost_norm import sum_of_squares
from ortrain.ops.linear import fused_matmul_node
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import ORTRAIN
from ortrain.ops.registry.sample_gradients import LookupGradient, ProductGradient, ProductsGradient, SampleGradient, WholeGradient


@dataclass(frozen=True, slots=True)
class Use:
    """The gradients of a parameter by one of the nodes that read it."""

    gradient: SampleGradient
    is_transposed: bool = False
    """Whether the node reads the transposed parameter, a matrix."""
    is_reshaped: bool = False
    """Whether it reads the parameter in another shape."""
    is_part: bool = False
    """Whether it reads a part of the parameter."""


def squared_norms(g: NodeBuilder, uses: Sequence[Use], shape: Sequence[int], name: str, count: str) -> str:
    """Return the squared norms of a parameter's gradients by each sample, [n].

    uses: all of them; the gradients of several are added before they are squared. shape, name: of the parameter. count: the number of samples, int64 [1].
    Raises PerSampleGradientError for several uses of which one reads a part, or the transposed parameter in another shape."""
    if len(uses) > 1 and any(use.is_part or use.is_transposed and use.is_reshaped for use in uses):
        raise PerSampleGradientError(f"expected one node to read the parameter {name!r}, of which several read parts or other shapes: freeze it")
    gradient = uses[0].gradient if len(uses) == 1 else _sum(g, uses, shape, count)
    if isinstance(gradient, ProductGradient):
        return g.op("GhostNorm", gradient.left, gradient.right, domain=ORTRAIN, positions_last=int(gradient.positions_last), blocks=gradient.blocks)
    if isinstance(gradient, ProductsGradient):
        squares = [g.op("GhostNorm", product.left, product.right, domain=ORTRAIN) for product in gradient.products]
        return squares[0] if len(squares) == 1 else g.op("Sum", *squares)
    if isinstance(gradient, WholeGradient):
        return sum_of_squares(g, gradient.values, (1,))
    rows = fused_matmul_node(g, gradient.rows, gradient.rows, 0, 1, 1.0)
    equal = g.op("Equal", g.unsqueeze(gradient.indices, [2]), g.unsqueeze(gradient.indices, [1]))
    return g.reduce_sum(g.op("Mul", rows, g.op("Cast", equal, to=NUMBERS[g.type(rows).dtype])), (1, 2), keepdims=False)


def _sum(g: NodeBuilder, uses: Sequence[Use], shape: Sequence[int], count: str) -> SampleGradient:
    """Return the sum of gradients. Products, which lookups are too, stay factors side by side along the positions; others are computed."""
    gradients = [use.gradient for use in uses if not use.is_reshaped]
    lookups = [use.gradient for use in uses if isinstance(use.gradient, LookupGradient) and not use.is_transposed]
    if len(lookups) == len(gradients) == len(uses):
        return LookupGradient(_side_by_side(g, [one.indices for one in lookups]), _side_by_side(g, [one.rows for one in lookups]), lookups[0].size)
    if len(gradients) == len(uses) and all(map(_is_plain_product, gradients)):
        factors = [_factors(g, use) for use in uses]
        return ProductGradient(_side_by_side(g, [left for left, _ in factors]), _side_by_side(g, [right for _, right in factors]))
    size = prod(shape)
    return WholeGradient(g.op("Sum", *(_whole(g, use, size, count) for use in uses)))


def _is_plain_product(gradient: SampleGradient) -> bool:
    return isinstance(gradient, LookupGradient) or isinstance(gradient, ProductGradient) and not gradient.positions_last and gradient.blocks == 1


def _factors(g: NodeBuilder, use: Use) -> tuple[str, str]:
    """Return the factors of a product in the order of the parameter's axes."""
    gradient = use.gradient
    if isinstance(gradient, LookupGradient):
        values = g.constant(np.array([0, 1]), gradient.rows)
        left, right = g.op("OneHot", gradient.indices, g.constant([gradient.size]), values, axis=-1), gradient.rows
    else:
        assert isinstance(gradient, ProductGradient)
        left, right = gradient.left, gradient.right
    return (right, left) if use.is_transposed else (left, right)


def _whole(g: NodeBuilder, use: Use, size: int, count: str) -> str:
    """Return gradients one after the other, [n, size]."""
    gradient = use.gradient
    if isinstance(gradient, WholeGradient):
        return gradient.values
    if isinstance(gradient, ProductsGradient):
        parts = [g.op("Flatten", fused_matmul_node(g, product.left, product.right, 1, 0, 1.0), axis=1) for product in gradient.products]
        return parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=1)
    last = int(isinstance(gradient, ProductGradient) and gradient.positions_last)
    product = fused_matmul_node(g, *_factors(g, use), 1 - last, last, 1.0)
    return g.op("Reshape", product, g.op("Concat", count, g.constant([size]), axis=0))


def _side_by_side(g: NodeBuilder, values: Sequence[str]) -> str:
    return g.op("Concat", *values, axis=1)
