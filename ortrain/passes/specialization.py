"""A model for inputs of known sizes or values: what depends on them is settled, the branches of an If among it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Dim, Model, NameSource, Node, TensorType
from ortrain.loading.loader import all_names
from ortrain.ops.control_flow import chosen
from ortrain.ops.registry.decomposition import named_as
from ortrain.ops.registry.node_builder import GraphBuilder, NodeBuilder
from ortrain.ops.registry.shape_inference import Inference
from ortrain.ops.registry.subgraphs import place


def specialize(model: Model, input_shapes: Mapping[str, Sequence[Dim]], input_values: Mapping[str, Any]) -> None:
    """Changes the model: inputs get the given shapes, or become constants of the given values; Ifs whose condition is known then are replaced.

    Raises InvalidArgumentError for a name that is no input, or a shape or value that does not fit."""
    graph = model.graph
    for name in (*input_shapes, *input_values):
        if name not in graph.inputs:
            raise InvalidArgumentError(f"expected the names of inputs {graph.inputs}, got {name!r}")
    for name, value in input_values.items():
        graph.initializers[name] = _value(name, graph.types[name], value)
        graph.inputs.remove(name)
    sizes: dict[str, Dim] = {}
    for name, shape in input_shapes.items():
        graph.types[name] = _shaped(name, graph.types[name], shape, sizes)
    # what the file says of other values was said of any size
    graph.types = {name: _sized(graph.types[name], sizes) for name in graph.inputs if name in graph.types}
    _take_branches(model)


def _value(name: str, kind: TensorType, value: Any) -> np.ndarray:
    array = np.asarray(value, numpy_dtype(kind.dtype))
    if kind.shape is not None and len(kind.shape) != array.ndim:
        raise InvalidArgumentError(f"expected a value of {len(kind.shape)} dimensions for input {name!r}, got {array.ndim}")
    return array


def _shaped(name: str, kind: TensorType, shape: Sequence[Dim], sizes: dict[str, Dim]) -> TensorType:
    """The input's type with this shape, of numbers and symbols; notes the sizes of its symbols."""
    declared = kind.shape if kind.shape is not None else tuple(f"{name}.{axis}" for axis in range(len(shape)))
    if len(declared) != len(shape):
        raise InvalidArgumentError(f"expected {len(declared)} sizes for input {name!r}, got {list(shape)}")
    given: tuple[Dim, ...] = tuple(size if isinstance(size, str) else int(size) for size in shape)
    for axis, (want, have) in enumerate(zip(declared, given, strict=True)):
        known = want if isinstance(want, int) else sizes.setdefault(want, have)
        if known != have:
            raise InvalidArgumentError(f"expected size {known} along axis {axis} of input {name!r}, got {have}")
    return TensorType(kind.dtype, given)


def _sized(kind: TensorType, sizes: Mapping[str, Dim]) -> TensorType:
    if kind.shape is None:
        return kind
    return TensorType(kind.dtype, tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in kind.shape), kind.sequence)


def _take_branches(model: Model) -> None:
    """Puts the branch in the place of every If whose condition is known, and drops what nothing reads any more."""
    graph = model.graph
    inference = Inference(model.opsets, dict(graph.types), dict(graph.initializers))
    builder = GraphBuilder(inference, NameSource(all_names(graph)), model.opset, graph.initializers, graph.types)
    graph.nodes = [piece for node in graph.nodes for piece in _taken(node, builder)]
    graph.nodes = graph.ancestors(graph.outputs)
    used = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in used}
    graph.types = {name: inference.types[name] for name in (*graph.inputs, *graph.outputs) if name in inference.types}


def _taken(node: Node, builder: GraphBuilder) -> list[Node]:
    """The node, or the nodes of the branch that it takes."""
    builder.inference.visit(node)
    branch = chosen(builder.inference.values.get(node.inputs[0]), node) if node.op_type == "If" else None
    if branch is None:
        return [node]
    builder.added = []
    results = place(NodeBuilder(builder, node), branch)
    pieces = list(named_as(builder.added, node, results, builder))
    return [piece for made in pieces for piece in _taken(made, builder)]
