"""Fusion of group normalization as exporters write it before opset 21.

The pattern is a normalization of the groups with a scale of 1 and a bias of 0, then a product and a sum with values of shape [c, 1, 1], one per channel. The
groups are normalized by GroupNormalization, whose scale and bias belong to groups there, or by InstanceNormalization of x reshaped to [n, groups, -1], whose
result is reshaped back. Training models have GroupNorm in its place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

import numpy as np

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Node
from ortrain.ops.norm import has_own_kernel
from ortrain.ops.registry.record import ORTRAIN


def find(view: GraphView) -> Iterator[tuple[Node, list[Node]]]:
    """Yield (last node, the nodes that replace it, of which the last is a GroupNorm)."""
    for node in chain(view.nodes("InstanceNormalization"), view.nodes("GroupNorm", ORTRAIN)):
        before, after = view.producer(node.inputs[0], "Reshape"), view.sole_consumer(node.outputs[0], "Reshape")
        groups = _divided_into(view, before) if before is not None else 0
        if before is not None and after is not None and node.attributes.get("num_groups", groups) == groups:
            yield from _match(view, node, before.inputs[0], after, groups)
    for node in view.nodes("GroupNormalization"):
        yield from _match(view, node, node.inputs[0], node, int(node.attributes.get("num_groups", 0)))


def _divided_into(view: GraphView, reshape: Node) -> int:
    """Return the number of groups if a Reshape is from [n, c, …] to [n, groups, -1], else 0."""
    shape, divided = view.shape(reshape.inputs[0]), view.shape(reshape.outputs[0])
    if shape is None or divided is None or len(divided) != 3 or not has_own_kernel(shape) or not isinstance(divided[1], int) or divided[1] < 1:
        return 0
    size = math.prod(size for size in shape[1:] if isinstance(size, int)) // divided[1]
    return divided[1] if divided[0] == shape[0] or divided[2] == size else 0


def _match(view: GraphView, norm: Node, x: str, normalized: Node, groups: int) -> Iterator[tuple[Node, list[Node]]]:
    """Yield the match around a normalization of `groups` groups of x, whose result is the output of `normalized`, shaped as x."""
    shape, result, dtype = view.shape(x), view.shape(normalized.outputs[0]), view.dtype(x)
    if shape is None or result is None or groups < 1 or dtype not in ("float32", "float64") or not has_own_kernel(shape) or result[1:] != shape[1:]:
        return
    channels = math.prod(size for size in shape[1:2] if isinstance(size, int))
    if channels % groups or not all(_is_neutral(view, name, value, groups) for name, value in zip(norm.inputs[1:], (1, 0), strict=True)):
        return
    nodes: list[Node] = []
    last, vectors = normalized, []
    for op_type, value in ("Mul", 1), ("Add", 0):
        last, operand = _by_channel(view, last, op_type, channels, len(shape))
        vectors.append(_vector(view, nodes, operand, channels) if operand else _constant(view, nodes, np.full(channels, value, dtype)))
    attributes = {"num_groups": groups, "epsilon": float(norm.attributes.get("epsilon", 1e-5))}
    nodes.append(Node("GroupNorm", [x, *vectors], [last.outputs[0]], last.name, ORTRAIN, attributes))
    yield last, nodes


def _is_neutral(view: GraphView, name: str, value: int, groups: int) -> bool:
    """Return whether a vector [groups] is a constant that only has this value."""
    array = view.constant(name)
    return array is not None and not view.needs_gradient(name) and array.shape == (groups,) and bool(np.all(array == value))


def _by_channel(view: GraphView, node: Node, op_type: str, channels: int, rank: int) -> tuple[Node, str]:
    """Return (consumer, operand) if the only consumer of a node's output combines it with one value per channel, else (node, "")."""
    consumer, ones = view.sole_consumer(node.outputs[0], op_type), (1,) * (rank - 2)
    for value, other in view.operands(consumer) if consumer is not None else ():
        if consumer is not None and value == node.outputs[0] and view.shape(other) in ((channels, *ones), (1, channels, *ones)):
            return consumer, other
    return node, ""


def _vector(view: GraphView, nodes: list[Node], value: str, channels: int) -> str:
    """Return a value of shape [c, 1, 1] as [c]: what was unsqueezed, or a Reshape that is added to the nodes."""
    source = view.producer(value, "Unsqueeze", "Reshape")
    if source is not None and view.shape(source.inputs[0]) == (channels,):
        return source.inputs[0]
    vector = view.unique_name(f"{value}::channels")
    nodes.append(Node("Reshape", [value, _constant(view, nodes, np.array([channels]))], [vector]))
    return vector


def _constant(view: GraphView, nodes: list[Node], value: np.ndarray) -> str:
    name = view.unique_name("group_norm")
    nodes.append(Node("Constant", [], [name], attributes={"value": value}))
    return name
