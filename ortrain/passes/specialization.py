"""Specialization: fixes the shapes or values of model inputs and folds what depends on them, such as the branches of
an If."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from types import EllipsisType
from typing import Any

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Dim, Model, NameSource, Node, TensorType
from ortrain.loading.loader import all_names
from ortrain.ops.control_flow import taken_branch
from ortrain.ops.registry.decomposition import rename_results
from ortrain.ops.registry.node_builder import GraphBuilder, NodeBuilder
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.registry.subgraphs import inline_graph

InputShapes = Mapping[str, Sequence[Dim | EllipsisType]]
"""Input name -> its sizes: numbers, symbols, and at most one ... for the sizes that the model declares in between."""


def specialize(model: Model, input_shapes: InputShapes, input_values: Mapping[str, Any]) -> None:
    """Give model inputs the given shapes, or turn them into constants of the given values; replace Ifs with known
    conditions by the branch. A symbol for an axis that the model fixes opens that axis as a batch
    (ortrain.passes.open_batch). Changes the model in place.

    Raises InvalidArgumentError for a name that is not an input, a shape or value that does not fit, or a batch that
    cannot be opened."""
    graph = model.graph
    for name in (*input_shapes, *input_values):
        if name not in graph.inputs:
            raise InvalidArgumentError(f"expected the names of inputs {graph.inputs}, got {name!r}")
    for name, value in input_values.items():
        graph.initializers[name] = _value(name, graph.types[name], value)
        graph.inputs.remove(name)
    sizes: dict[str, Dim] = {}
    opened: dict[str, dict[str, int]] = {}
    for name, shape in input_shapes.items():
        graph.types[name] = _with_shape(name, graph.types[name], shape, sizes, opened)
    # drop the types of intermediate values: they were declared for any size
    graph.types = {name: _with_sizes(graph.types[name], sizes) for name in graph.inputs if name in graph.types}
    _inline_branches(model)
    if opened:
        from ortrain.passes.open_batch import open_batch

        for symbol, axes in opened.items():
            open_batch(model, axes, symbol)


def _value(name: str, kind: TensorType, value: Any) -> np.ndarray:
    array = np.asarray(value, numpy_dtype(kind.dtype))
    if kind.shape is not None and len(kind.shape) != array.ndim:
        raise InvalidArgumentError(f"expected a value of {len(kind.shape)} dimensions for input {name!r}, got {array.ndim}")
    return array


def _with_shape(name: str, kind: TensorType, shape: Sequence[Dim | EllipsisType], sizes: dict[str, Dim],
                opened: dict[str, dict[str, int]]) -> TensorType:
    """Return the type of an input with a new shape of numbers and symbols; record the sizes of its declared symbols
    in `sizes`, and in `opened`, by symbol and input, the fixed axes that are to become dynamic."""
    wanted = _without_ellipsis(name, kind, shape)
    declared = kind.shape if kind.shape is not None else tuple(f"{name}.{axis}" for axis in range(len(wanted)))
    if len(declared) != len(wanted):
        raise InvalidArgumentError(f"expected {len(declared)} sizes for input {name!r}, got {list(shape)}")
    new_shape = [_size(name, size) for size in wanted]
    for axis, (declared_dim, new_dim) in enumerate(zip(declared, new_shape, strict=True)):
        if isinstance(declared_dim, int) and isinstance(new_dim, str):
            new_shape[axis] = declared_dim
            if opened.setdefault(new_dim, {}).setdefault(name, axis) != axis:
                raise InvalidArgumentError(f"expected one batch axis per input, got {new_dim!r} twice in {list(shape)} for input {name!r}")
            continue
        known = declared_dim if isinstance(declared_dim, int) else sizes.setdefault(declared_dim, new_dim)
        if known != new_dim:
            raise InvalidArgumentError(f"expected size {known} along axis {axis} of input {name!r}, got {new_dim}")
    return TensorType(kind.dtype, tuple(new_shape))


def _size(name: str, size: Any) -> Dim:
    """Return a size as a number or a symbol. Raises InvalidArgumentError for anything else."""
    if isinstance(size, str) and size:
        return size
    try:
        number = index(size)
    except TypeError as error:
        raise InvalidArgumentError(f"expected a size or a symbol in the shape of input {name!r}, got {size!r}") from error
    if number < 0:
        raise InvalidArgumentError(f"expected sizes of at least 0 for input {name!r}, got {number} (a symbol such as 'batch' leaves a size open)")
    return number


def _without_ellipsis(name: str, kind: TensorType, shape: Sequence[Dim | EllipsisType]) -> list[Dim]:
    """Return a shape with the declared sizes in place of an ellipsis."""
    given = list(shape)
    if ... not in given:
        return [size for size in given if not isinstance(size, EllipsisType)]
    place, missing = given.index(...), len(kind.shape or ()) - len(given) + 1
    if kind.shape is None or given.count(...) > 1 or missing < 0:
        raise InvalidArgumentError(f"expected a shape with at most one ... for an input of known rank, got {given} for input {name!r}")
    given[place : place + 1] = kind.shape[place : place + missing]
    return [size for size in given if not isinstance(size, EllipsisType)]


def _with_sizes(kind: TensorType, sizes: Mapping[str, Dim]) -> TensorType:
    if kind.shape is None:
        return kind
    return TensorType(kind.dtype, tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in kind.shape), kind.sequence)


def _inline_branches(model: Model) -> None:
    """Replace every If whose condition is known by its branch, and remove dead nodes."""
    graph = model.graph
    inference = ShapeInference(model.opsets, dict(graph.types), dict(graph.initializers))
    builder = GraphBuilder(inference, NameSource(all_names(graph)), model.opset, graph.initializers, graph.types)
    graph.nodes = [inlined for node in graph.nodes for inlined in _inlined(node, builder)]
    graph.nodes = graph.ancestors(graph.outputs)
    used = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in used}
    graph.types = {name: inference.types[name] for name in (*graph.inputs, *graph.outputs) if name in inference.types}


def _inlined(node: Node, builder: GraphBuilder) -> list[Node]:
    """Return the node, or the nodes of the branch that it takes."""
    builder.inference.visit(node)
    branch = taken_branch(builder.inference.values.get(node.inputs[0]), node) if node.op_type == "If" else None
    if branch is None:
        return [node]
    builder.added = []
    results = inline_graph(NodeBuilder(builder, node), branch)
    inlined_nodes = list(rename_results(builder.added, node, results, builder))
    return [inlined for inlined_node in inlined_nodes for inlined in _inlined(inlined_node, builder)]
