"""The model loader: every model passes through it.

It reads and checks the model, inlines functions, turns Constant nodes into initializers, replaces sequences by
tensors and restores the topological order of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ortrain.errors import InvalidModelError
from ortrain.formats.onnx_files import as_proto, folder_of, read_message, read_model, to_proto
from ortrain.ir import Graph, Model, NameSource, Node
from ortrain.loading.sequences import resolve_sequences
from ortrain.ops.registry.record import canonical_domain, record_of
from ortrain.ops.registry.subgraphs import GRAPH_ATTRIBUTES, captured_values, is_control_flow, rename_values
from ortrain.packages import require_onnx

OLDEST_OPSET, NEWEST_OPSET = 7, 28
"""The versions of ONNX's operators that the records know."""
OLDEST_IR = 4
"""The first IR version in which an initializer need not be a graph input."""

ModelSource = Any
"""A path, the bytes of a model, an onnx.ModelProto or an ortrain.ir.Model."""


def as_model(source: ModelSource) -> Model:
    """Load a model; an ir.Model counts as loaded and is only copied."""
    return source.copy() if isinstance(source, Model) else load_model(source)


def load_model(source: ModelSource) -> Model:
    """Return a checked model from a path, bytes, an onnx.ModelProto or an ir.Model (copied).

    Raises ArtifactNotFoundError if the file does not exist, InvalidModelError if the model is invalid or its opset is
    not supported."""
    return load_with_constants(source)[0]


def load_with_constants(source: ModelSource, opset_version: int | None = None) -> tuple[Model, frozenset[str]]:
    """Load a model as load_model does; also return the names of the initializers that were Constant nodes.

    opset_version: convert the model to this opset first; None to keep its own."""
    model = source.copy() if isinstance(source, Model) else _inline_functions(read_model(source), source)
    if opset_version is not None and opset_version != model.opset:
        model = _convert_opset(model, opset_version)
    model.ir_version = max(model.ir_version, OLDEST_IR)
    _check_opset(model)
    constants = _lift_constants(model.graph) | _lift_subgraph_constants(model.graph, NameSource(all_names(model.graph)))
    check_graph(model.graph)
    _check_inputs(model.graph)
    resolve_sequences(model.graph, model.opset, NameSource(all_names(model.graph)))
    return model, constants


def _convert_opset(model: Model, opset_version: int) -> Model:
    """Return the model converted by onnx.version_converter. Raises InvalidModelError if that fails."""
    converter = require_onnx(f"the conversion from opset {model.opset} to {opset_version}", "onnx.version_converter")
    checker = require_onnx("the errors of the conversion", "onnx.checker")
    try:
        return read_model(converter.convert_version(to_proto(model), opset_version))
    except (RuntimeError, ValueError, TypeError, checker.ValidationError) as error:
        raise InvalidModelError(f"expected a model that can be converted from opset {model.opset} to {opset_version}: {error}") from error


def _inline_functions(model: Model, source: Any) -> Model:
    """Return the model with calls of model-local functions replaced by their bodies.

    The IR has no functions, so the source is read again if a node is not a known operator."""
    if all(record_of(node) is not None for node in model.graph.nodes):
        return model
    message = read_message(source)
    if not message.functions:
        return model
    inliner = require_onnx(f"the functions of a model, such as {message.functions[0].name!r}", "onnx.inliner")
    try:
        inlined = inliner.inline_local_functions(as_proto(message, folder_of(source)))
    except Exception as error:                                 # pybind11 turns C++ exceptions into several Python types
        raise InvalidModelError(f"expected functions that can be inlined: {error}") from error
    return read_model(inlined)


def _check_opset(model: Model) -> None:
    if not any(canonical_domain(node.domain) == "" for node in model.graph.nodes):
        return
    if "" not in model.opsets:
        raise InvalidModelError(f"expected an opset import of the default domain, got those of {sorted(model.opsets)}")
    if not OLDEST_OPSET <= model.opset <= NEWEST_OPSET:
        raise InvalidModelError(f"expected opset {OLDEST_OPSET} to {NEWEST_OPSET}, got {model.opset} (onnx.version_converter may convert the model)")


# ---- constants


def _lift_constants(graph: Graph) -> frozenset[str]:
    """Turn the Constant nodes of a graph into initializers; return their names."""
    lifted = []
    kept: list[Node] = []
    for node in graph.nodes:
        array = _constant_value(node)
        if array is None:
            kept.append(node)
            continue
        name = node.outputs[0]
        if name in graph.initializers:
            raise InvalidModelError(f"expected every value to be assigned once, got initializer {name!r} assigned again by Constant node {node.name!r}")
        if name in graph.outputs:
            # a graph output must remain the output of a node
            name = NameSource(graph.names()).unique(f"{name}_constant")
            kept.append(Node("Identity", [name], list(node.outputs), node.name))
        graph.initializers[name] = array
        graph.types.pop(name, None)
        lifted.append(name)
    graph.nodes = kept
    return frozenset(lifted)


def _constant_value(node: Node) -> np.ndarray | None:
    """Return the value of a Constant node, None for other nodes."""
    if node.op_type != "Constant" or canonical_domain(node.domain) != "":
        return None
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
              "value_string": object, "value_strings": object}
    for name, value in node.attributes.items():
        if name == "value":
            return np.asarray(value)
        if name in dtypes:
            return np.array(value, dtypes[name])
    raise InvalidModelError(f"expected a Constant node with a dense value, got attributes {sorted(node.attributes)} (node {node.name!r})")


def all_names(graph: Graph) -> set[str]:
    """Return every name in a graph and its subgraphs."""
    subgraphs = (value for node in graph.nodes for value in node.attributes.values() if isinstance(value, Graph))
    return graph.names().union(*map(all_names, subgraphs))


def _lift_subgraph_constants(graph: Graph, names: NameSource) -> frozenset[str]:
    """Move the constants of subgraphs into the graph, and append the outer values that subgraphs read to the inputs
    of their nodes.

    Returns the names of those that were Constant nodes."""
    lifted: set[str] = set()
    for node in graph.nodes:
        if not is_control_flow(node):
            continue
        for name in GRAPH_ATTRIBUTES[node.op_type]:
            inner = node.attributes.get(name)
            if not isinstance(inner, Graph):
                raise InvalidModelError(f"expected the graph {name} in {node.op_type} node {node.name!r}")
            inner_constants = _lift_constants(inner) | _lift_subgraph_constants(inner, names)
            # initializers of different graphs may share a name
            used_names = graph.names()
            new_names = {weight: names.unique(weight) if weight in used_names else weight for weight in inner.initializers}
            graph.initializers |= {new_names[weight]: array for weight, array in inner.initializers.items()}
            lifted |= {new_names[weight] for weight in inner_constants}
            inner = rename_values(inner, new_names)
            inner.initializers = {}
            node.attributes[name] = inner
        _check_subgraph_signature(node)
        count = 1 if node.op_type == "If" else len(node.graphs["body"].inputs)
        own_inputs = [*node.inputs, *[""] * (count - len(node.inputs))][:count]
        node.inputs = [*own_inputs, *captured_values(node.graphs.values())]
    return frozenset(lifted)


def _check_subgraph_signature(node: Node) -> None:
    """Raise InvalidModelError if the inputs and outputs of a node's subgraphs do not match its operator."""
    for name, graph in node.graphs.items():
        n_inputs, n_outputs = len(graph.inputs), len(graph.outputs)
        is_match = n_outputs == len(node.outputs)
        if node.op_type == "Loop":
            is_match = n_inputs >= 2 and n_outputs >= max(n_inputs - 1, len(node.outputs) + 1)
        elif node.op_type == "Scan":
            scanned = node.attributes.get("num_scan_inputs", 0)
            is_match = 0 < scanned <= n_inputs and n_outputs >= max(n_inputs - scanned, len(node.outputs))
            counts = {"input": scanned, "output": n_outputs - n_inputs + scanned}
            is_match = is_match and all(len(node.attributes.get(f"scan_{which}_{what}") or range(count)) == count
                                for which, count in counts.items() for what in ("axes", "directions"))
        if not is_match:
            raise InvalidModelError(f"expected the graph {name} to have the inputs and outputs that its {node.op_type} requires, got {graph.inputs} and "
                                    f"{graph.outputs} (node {node.name!r}, outputs {node.outputs})")


# ---- checks


def check_graph(graph: Graph) -> None:
    """Check single assignment and undefined values, and restore the topological order of nodes. Raises
    InvalidModelError."""
    names = [*graph.inputs, *graph.initializers, *(output for node in graph.nodes for output in node.outputs if output)]
    defined = set(names)
    if len(defined) != len(names):
        seen: set[str] = set()
        duplicate = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidModelError(f"expected every value to be assigned once, got {duplicate!r} assigned twice")
    for node in graph.nodes:
        for name in read_values(node):
            if name not in defined:
                raise InvalidModelError(f"expected input {name!r} of {node.op_type} node {node.name!r} to be a value of the graph")
    for name in graph.outputs:
        if name not in defined:
            raise InvalidModelError(f"expected graph output {name!r} to be a value of the graph, got an undefined name")
    _restore_order(graph)


def _check_inputs(graph: Graph) -> None:
    """Raise InvalidModelError for an input of the model without a type."""
    for name in graph.inputs:
        if name not in graph.types:
            raise InvalidModelError(f"expected a tensor type of a known element type for graph input {name!r}, got none")


def read_values(node: Node) -> Iterator[str]:
    """Yield the values that a node reads: its inputs and the outer values that its subgraphs read."""
    yield from (name for name in node.inputs if name)
    for value in node.attributes.values():
        for graph in value if isinstance(value, tuple) else (value,):
            if isinstance(graph, Graph):
                yield from _captured(graph)


def _captured(graph: Graph) -> Iterator[str]:
    """Yield the outer values that a subgraph reads."""
    inner = {*graph.inputs, *graph.initializers, *(output for node in graph.nodes for output in node.outputs)}
    for node in graph.nodes:
        yield from (name for name in read_values(node) if name not in inner)
    yield from (name for name in graph.outputs if name not in inner)


def _restore_order(graph: Graph) -> None:
    available = {*graph.inputs, *graph.initializers}
    if _is_ordered(graph, set(available)):
        return
    waiting: dict[str, list[int]] = {}
    n_undefined = []
    for index, node in enumerate(graph.nodes):
        undefined = set(read_values(node)) - available
        n_undefined.append(len(undefined))
        for name in undefined:
            waiting.setdefault(name, []).append(index)
    ready = [index for index, count in enumerate(n_undefined) if count == 0]
    ordered = []
    for index in ready:
        node = graph.nodes[index]
        ordered.append(node)
        for name in node.outputs:
            for reader in waiting.pop(name, ()):
                n_undefined[reader] -= 1
                if n_undefined[reader] == 0:
                    ready.append(reader)
    if len(ordered) < len(graph.nodes):
        stuck = next(node for index, node in enumerate(graph.nodes) if n_undefined[index])
        raise InvalidModelError(f"expected a graph without cycles, got one through {stuck.op_type} node {stuck.name!r}")
    graph.nodes = ordered


def _is_ordered(graph: Graph, available: set[str]) -> bool:
    for node in graph.nodes:
        if any(name not in available for name in read_values(node)):
            return False
        available.update(node.outputs)
    return True
