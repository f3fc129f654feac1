"""The order of elements in a value that is transposed and reshaped, in terms of the value that it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ortrain.ir import Node
from ortrain.ops.registry.constants import surely_equal
from ortrain.ops.registry.record import canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.shared.broadcasting import contiguous_strides
from ortrain.plan.operator_kinds import RESHAPES


@dataclass(frozen=True)
class Factor:
    """A factor of a size of the source of a chain: its elements are `stride` apart there."""

    size: int
    stride: int


def split_to_sizes(factors: Sequence[Factor], sizes: Sequence[int]) -> list[list[Factor]] | None:
    """Return the factors of each axis of `sizes`, whose elements have the order of `factors`; None where the two do not divide each other.

    A symbolic size has a factor even if it is 1 now: a factor of one element changes no order."""
    axes: list[list[Factor]] = []
    waiting = [factor for factor in factors if not surely_equal(factor.size, 1)][::-1]
    for size in sizes:
        axis: list[Factor] = []
        while not surely_equal(size, 1):
            if not waiting:
                return None
            factor = waiting.pop()
            if size % factor.size == 0:
                axis.append(factor)
                size //= factor.size
            elif factor.size % size == 0:
                inner = factor.size // size
                axis.append(Factor(size, factor.stride * inner))
                waiting.append(Factor(inner, factor.stride))
                size = 1
            else:
                return None
        axes.append(axis)
    return axes


def merged(factors: Iterable[Factor]) -> list[Factor]:
    """Return the factors with those that follow each other in the source as one."""
    result: list[Factor] = []
    for factor in factors:
        if result and surely_equal(result[-1].stride, factor.size * factor.stride):
            result[-1] = Factor(result[-1].size * factor.size, factor.stride)
        else:
            result.append(factor)
    return result


def is_move(node: Node) -> bool:
    """Return whether a node changes the order of elements or the shape of its first input, and nothing else."""
    return node.op_type in RESHAPES | {"Transpose"} and canonical_domain(node.domain) == "" and bool(node.inputs)


def order_after(node: Node, factors: Sequence[Factor], sizes: Sequence[int]) -> list[Factor] | None:
    """Return the factors of the result of a node for which is_move holds; None where the sizes of its input do not divide them.

    factors, sizes: of the node's input."""
    axes = split_to_sizes(factors, sizes)
    if axes is None:
        return None
    order = node.attributes.get("perm") or range(len(sizes))[::-1] if node.op_type == "Transpose" else range(len(sizes))
    return merged(factor for axis in order for factor in axes[axis])


def exchange(node: Node, inference: ShapeInference) -> tuple[int, int, int] | None:
    """Return (axis, a, b) of a Gather that divides an axis into a rows of b columns and takes them column by column; None for other nodes."""
    indices = inference.values.get(node.inputs[1]) if node.op_type == "Gather" and canonical_domain(node.domain) == "" else None
    sizes = None if indices is None else static_sizes(inference, node.inputs[0])
    if indices is None or sizes is None or indices.ndim != 1 or indices.size < 4 or int(indices[0]) != 0:
        return None
    axis, count, columns = int(node.attributes.get("axis", 0)) % len(sizes), indices.size, int(indices[1])
    if not surely_equal(sizes[axis], count) or not 1 < columns < count or count % columns:
        return None
    return (axis, count // columns, columns) if (indices == np.arange(count).reshape(-1, columns).T.ravel()).all() else None


def order_after_exchange(exchanged: tuple[int, int, int], factors: Sequence[Factor], sizes: Sequence[int]) -> list[Factor] | None:
    """Return the factors of the result of a node of which `exchange` returns the given axis and sizes; None where those do not divide the factors.

    factors, sizes: of the node's input."""
    axis, rows, columns = exchanged
    order = list(range(len(sizes) + 1))
    order[axis], order[axis + 1] = axis + 1, axis
    return order_after(Node("Transpose", [""], [""], attributes={"perm": order}), factors, [*sizes[:axis], rows, columns, *sizes[axis + 1:]])


def transposed_order(sizes: Sequence[int], perm: Iterable[int]) -> list[Factor]:
    """Return the factors of what a Transpose gives of a value of these sizes."""
    strides = contiguous_strides(sizes)
    return merged(Factor(sizes[axis], strides[axis]) for axis in perm if not surely_equal(sizes[axis], 1))


def same_order(one: Sequence[Factor], other: Sequence[Factor]) -> bool:
    """Return whether factors are the same in every specialization of a plan."""
    return len(one) == len(other) and all(surely_equal(a.size, b.size) and surely_equal(a.stride, b.stride) for a, b in zip(one, other, strict=True))


def static_sizes(inference: ShapeInference, name: str) -> tuple[int, ...] | None:
    """Return the shape of a value; None where it is unknown or has no elements."""
    kind = inference.types.get(name)
    return kind.sizes if kind is not None and kind.is_static and kind.count > 0 else None
