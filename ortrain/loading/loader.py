"""The one way in for models: read, check, inline functions, turn Constant nodes into initializers, restore the order of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ortrain.errors import InvalidModelError
from ortrain.formats.onnx_files import proto_of, read_model, to_proto
from ortrain.ir import Graph, Model, NameSource, Node
from ortrain.loading.sequences import resolve_sequences
from ortrain.ops.registry.record import canonical_domain, record_of
from ortrain.ops.registry.subgraphs import CONTROL, captured, has_graphs, renamed

OLDEST_OPSET = 7
OLDEST_IR = 4
"""From IR version 4 on, an initializer need not be a graph input."""

ModelSource = Any
"""A path, the bytes of a model, an onnx.ModelProto or an ortrain.ir.Model."""


def as_model(source: ModelSource) -> Model:
    """As load_model, but an ir.Model is loaded already and only copied."""
    return source.copy() if isinstance(source, Model) else load_model(source)


def load_model(source: ModelSource) -> Model:
    """A checked model from a path, bytes, an onnx.ModelProto or an ir.Model (copied).

    Raises ArtifactNotFoundError when the file is not there, InvalidModelError when it is no valid model or its opset is not supported."""
    return load_with_constants(source)[0]


def load_with_constants(source: ModelSource, opset_version: int | None = None) -> tuple[Model, frozenset[str]]:
    """As load_model; also tells which initializers were Constant nodes before. opset_version: the model is converted to it first."""
    model = source.copy() if isinstance(source, Model) else _inlined(read_model(source), source)
    if opset_version is not None and opset_version != model.opset:
        model = _converted(model, opset_version)
    model.ir_version = max(model.ir_version, OLDEST_IR)
    _check_opset(model)
    constants = _lift_constants(model.graph) | _open_graphs(model.graph, NameSource(all_names(model.graph)))
    check_graph(model.graph)
    resolve_sequences(model.graph, model.opset, NameSource(all_names(model.graph)))
    return model, constants


def _converted(model: Model, opset_version: int) -> Model:
    """The model in another opset, as onnx's version converter has it. Raises InvalidModelError when it cannot."""
    import onnx.version_converter

    try:
        return read_model(onnx.version_converter.convert_version(to_proto(model), opset_version))
    except (RuntimeError, ValueError, TypeError, onnx.checker.ValidationError) as error:
        raise InvalidModelError(f"expected a model that can be converted from opset {model.opset} to {opset_version}: {error}") from error


def _inlined(model: Model, source: Any) -> Model:
    """The model with model-local functions replaced by their bodies. The IR has no functions: if need be, the proto is looked at again."""
    if all(record_of(node) is not None for node in model.graph.nodes):
        return model
    import onnx.inliner

    proto = proto_of(source)
    return read_model(onnx.inliner.inline_local_functions(proto)) if proto.functions else model


def _check_opset(model: Model) -> None:
    if not any(canonical_domain(node.domain) == "" for node in model.graph.nodes):
        return
    if "" not in model.opsets:
        raise InvalidModelError(f"expected an opset import of the default domain, got those of {sorted(model.opsets)}")
    import onnx.defs

    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= model.opset <= newest:
        raise InvalidModelError(f"expected opset {OLDEST_OPSET} to {newest}, got {model.opset} (onnx.version_converter may convert the model)")


# ---- constants


def _lift_constants(graph: Graph) -> frozenset[str]:
    """Moves the values of Constant nodes into the graph's initializers; returns their names."""
    lifted = []
    kept: list[Node] = []
    for node in graph.nodes:
        array = _constant_of(node)
        if array is None:
            kept.append(node)
            continue
        name = node.outputs[0]
        if name in graph.initializers:
            raise InvalidModelError(f"expected every value to be made once, got initializer {name!r} from Constant node {node.name!r} too")
        if name in graph.outputs:
            # a graph output stays the output of a node
            name = NameSource(graph.names()).unique(f"{name}_constant")
            kept.append(Node("Identity", [name], list(node.outputs), node.name))
        graph.initializers[name] = array
        graph.types.pop(name, None)
        lifted.append(name)
    graph.nodes = kept
    return frozenset(lifted)


def _constant_of(node: Node) -> np.ndarray | None:
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
    """Every name in a graph and in the graphs inside it."""
    inside = (value for node in graph.nodes for value in node.attributes.values() if isinstance(value, Graph))
    return graph.names().union(*map(all_names, inside))


def _open_graphs(graph: Graph, names: NameSource) -> frozenset[str]:
    """Moves the constants of the graphs inside nodes into the graph, as weights like others, and has the nodes list what those graphs read."""
    lifted: set[str] = set()
    for node in graph.nodes:
        if not has_graphs(node):
            continue
        for name in CONTROL[node.op_type]:
            inner = node.attributes.get(name)
            if not isinstance(inner, Graph):
                raise InvalidModelError(f"expected the graph {name} in {node.op_type} node {node.name!r}")
            inside = _lift_constants(inner) | _open_graphs(inner, names)
            # names need not differ from one graph to the next
            taken = graph.names()
            outside = {weight: names.unique(weight) if weight in taken else weight for weight in inner.initializers}
            graph.initializers |= {outside[weight]: array for weight, array in inner.initializers.items()}
            lifted |= {outside[weight] for weight in inside}
            inner = renamed(inner, outside)
            inner.initializers = {}
            node.attributes[name] = inner
        _check_form(node)
        count = 1 if node.op_type == "If" else len(node.graphs["body"].inputs)
        own = [*node.inputs, *[""] * (count - len(node.inputs))][:count]
        node.inputs = [*own, *captured(node.graphs.values())]
    return frozenset(lifted)


def _check_form(node: Node) -> None:
    """Refuses a graph inside a node whose inputs and outputs are not those that the node asks for."""
    for name, graph in node.graphs.items():
        taken, given = len(graph.inputs), len(graph.outputs)
        fits = given == len(node.outputs)
        if node.op_type == "Loop":
            fits = taken >= 2 and given >= max(taken - 1, len(node.outputs) + 1)
        elif node.op_type == "Scan":
            scanned = node.attributes.get("num_scan_inputs", 0)
            fits = 0 < scanned <= taken and given >= max(taken - scanned, len(node.outputs))
            counts = {"input": scanned, "output": given - taken + scanned}
            fits = fits and all(len(node.attributes.get(f"scan_{which}_{what}") or range(count)) == count
                                for which, count in counts.items() for what in ("axes", "directions"))
        if not fits:
            raise InvalidModelError(f"expected the graph {name} to have the inputs and outputs that its {node.op_type} asks for, got {graph.inputs} and "
                                    f"{graph.outputs} (node {node.name!r}, outputs {node.outputs})")


# ---- checks


def check_graph(graph: Graph) -> None:
    """Single assignment, no undefined value, nodes in a topological order (restored when it is not one). Raises InvalidModelError."""
    made = [*graph.inputs, *graph.initializers, *(output for node in graph.nodes for output in node.outputs if output)]
    defined = set(made)
    if len(defined) != len(made):
        seen: set[str] = set()
        twice = next(name for name in made if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidModelError(f"expected every value to be made once, got {twice!r} made twice")
    for node in graph.nodes:
        for name in reads(node):
            if name not in defined:
                raise InvalidModelError(f"expected input {name!r} of {node.op_type} node {node.name!r} to be a value of the graph")
    for name in graph.outputs:
        if name not in defined:
            raise InvalidModelError(f"expected graph output {name!r} to be a value of the graph, it is none")
    _restore_order(graph)


def reads(node: Node) -> Iterator[str]:
    """The values a node reads: its inputs and what its subgraphs take from outside."""
    yield from (name for name in node.inputs if name)
    for value in node.attributes.values():
        for graph in value if isinstance(value, tuple) else (value,):
            if isinstance(graph, Graph):
                yield from _captured(graph)


def _captured(graph: Graph) -> Iterator[str]:
    inner = {*graph.inputs, *graph.initializers, *(output for node in graph.nodes for output in node.outputs)}
    for node in graph.nodes:
        yield from (name for name in reads(node) if name not in inner)
    yield from (name for name in graph.outputs if name not in inner)


def _restore_order(graph: Graph) -> None:
    available = {*graph.inputs, *graph.initializers}
    if _is_ordered(graph, set(available)):
        return
    waiting: dict[str, list[int]] = {}
    missing = []
    for index, node in enumerate(graph.nodes):
        needs = set(reads(node)) - available
        missing.append(len(needs))
        for name in needs:
            waiting.setdefault(name, []).append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    ordered = []
    for index in ready:
        node = graph.nodes[index]
        ordered.append(node)
        for name in node.outputs:
            for reader in waiting.pop(name, ()):
                missing[reader] -= 1
                if missing[reader] == 0:
                    ready.append(reader)
    if len(ordered) < len(graph.nodes):
        stuck = next(node for index, node in enumerate(graph.nodes) if missing[index])
        raise InvalidModelError(f"expected a graph without cycles, got one through {stuck.op_type} node {stuck.name!r}")
    graph.nodes = ordered


def _is_ordered(graph: Graph, available: set[str]) -> bool:
    for node in graph.nodes:
        if any(name not in available for name in reads(node)):
            return False
        available.update(node.outputs)
    return True
