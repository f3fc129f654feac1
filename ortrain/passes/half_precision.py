"""Half precision: a model of float16 or bfloat16 in a form that computes in float32, and back.

Widening keeps the graph: same nodes, same names, but every half is a float32, weights are float32 copies, and a Cast between the two is a Cast to float32,
which costs nothing. What a user feeds keeps its type: a Cast stands between an input of half precision and what reads it. OriginalTypes in the model's metadata
say which type each float value had, so that narrowing gives the first graph again, with weights round_to_half to nearest even."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ortrain.dtypes import FLOATS, HALVES, NAMES, NUMBERS, numpy_dtype
from ortrain.errors import InvalidModelError, InvalidStateError
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.loading.loader import all_names
from ortrain.ops.registry.record import canonical_domain
from ortrain.ops.registry.subgraphs import made, renamed, renamed_node

METADATA_KEY = "ortrain.float_types"
"""The key in the model's metadata: JSON, {"types": {type: [names of values]}, "names": {name: earlier name}}."""

WIDE = "float32"
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")
"""Where an operator says the type of its output by number."""
BITS = frozenset({"BitCast"})
"""Operators to which a wider value is another value: a model with one stays as it is."""


def convert_to_float32(model: Model) -> None:
    """Changes a model in which anything is of half precision so that it computes in float32; others, and those that are widened already, stay."""
    graph = model.graph
    if METADATA_KEY in model.metadata or not any(_halves(graph)) or _must_stay(graph):
        return
    names = NameSource(all_names(graph))
    again: dict[str, str] = {}
    _distinguish(graph, set(), names, again)
    types = _float_types(graph, model.opsets, {})
    outside = [name for name in graph.inputs if name in graph.types and graph.types[name].dtype in HALVES]
    _widen_graph(graph, outside)
    inside = {name: names.unique(f"{name}_{WIDE}") for name in outside}
    _rename(graph, inside)
    graph.nodes[:0] = [_cast(name, wide, WIDE) for name, wide in inside.items()]
    graph.types |= {wide: TensorType(WIDE, graph.types[name].shape) for name, wide in inside.items()}
    OriginalTypes(types | {wide: types[name] for name, wide in inside.items()}, again).write(model)


def restore_output_types(model: Model, names: Iterable[str]) -> None:
    """Gives the named values of a widened model the type that they had: what has been computed in float32 is round_to_half at the end."""
    notes, graph = OriginalTypes.of(model), model.graph
    there = {*graph.inputs, *_edges(graph, notes)[1].values()}
    halves = [name for name in dict.fromkeys(names) if notes.types.get(name) in HALVES and name not in there]
    if not halves:
        return
    sources = NameSource(all_names(graph))
    wide = {name: sources.unique(f"{name}_{WIDE}") for name in halves}
    _rename(graph, wide)
    for name, source in wide.items():
        graph.nodes.append(_cast(source, name, notes.types[name]))
        if source in graph.types:
            graph.types[name] = TensorType(notes.types[name], graph.types[source].shape)
        notes.types[source] = notes.types[name]
    notes.write(model)


def restore_half_precision(model: Model) -> Model:
    """A widened model with its own types again, weights round_to_half to nearest even; any other model as it is.

    Values that the notes do not know, such as those of a loss, stay float32. Raises InvalidStateError for a weight too large for its type."""
    notes = OriginalTypes.of(model)
    if not notes.types:
        return model
    model = model.copy()
    graph = model.graph
    del model.metadata[METADATA_KEY]
    inside, outside = _edges(graph, notes)
    graph.nodes = [node for node in graph.nodes if _edge(node, graph, notes) is None]
    _rename(graph, inside | outside)
    types = {name: dtype for name, dtype in notes.types.items() if name not in inside and name not in outside}
    graph.types = {name: kind for name, kind in graph.types.items() if name not in inside and name not in outside}
    graph.initializers = {name: round_to_half(name, array, types.get(name, "")) for name, array in graph.initializers.items()}
    _narrow_graph(graph, types, NameSource(all_names(graph)))
    _rename(graph, notes.names)
    return model


def float32_inputs(model: Model) -> dict[str, str]:
    """Input of half precision -> the float32 value that a widened model computes with."""
    return {name: wide for wide, name in _edges(model.graph, OriginalTypes.of(model))[0].items()}


def copy_original_type(model: Model, name: str, copy: str) -> None:
    """OriginalTypes that a new value has the type that another one had."""
    notes = OriginalTypes.of(model)
    if name in notes.types:
        notes.types[copy] = notes.types[name]
        notes.write(model)


def round_to_half(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 weights in the half precision that they had, round_to_half to nearest even; others as they are. Raises InvalidStateError for one too large."""
    if dtype not in HALVES or array.dtype != np.float32:
        return array
    with np.errstate(over="ignore"):
        found = array.astype(numpy_dtype(dtype))
    if np.isinf(found).sum() > np.isinf(array).sum():
        raise InvalidStateError(f"expected weights that {dtype} can hold, got {np.abs(array[np.isfinite(array)]).max():g} in {name!r}")
    return found


# ---- notes


@dataclass(slots=True)
class OriginalTypes:
    """What a widened model was before."""

    types: dict[str, str] = field(default_factory=dict)
    """The values of the forward model with float types -> those types; a loss that is put on it later has none here."""
    names: dict[str, str] = field(default_factory=dict)
    """Names that values of graphs inside were given, for notes to tell them apart -> those that they had."""

    @classmethod
    def of(cls, model: Model) -> OriginalTypes:
        """The notes in a model's metadata; none for a model that is as it was. Raises InvalidModelError for something else in their place."""
        text = model.metadata.get(METADATA_KEY)
        if text is None:
            return cls()
        try:
            found = json.loads(text)
            notes = cls({name: kind for kind, names in found["types"].items() for name in names}, dict(found["names"]))
            fine = set(found["types"]) <= FLOATS and all(isinstance(name, str) for name in (*notes.types, *notes.names, *notes.names.values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            fine = False
        if not fine:
            raise InvalidModelError(f"expected notes on float types in the metadata {METADATA_KEY!r}, got {text[:80]!r}")
        return notes

    def write(self, model: Model) -> None:
        """Puts the notes into a model's metadata."""
        types: dict[str, list[str]] = {}
        for name, kind in self.types.items():
            types.setdefault(kind, []).append(name)
        model.metadata[METADATA_KEY] = json.dumps({"types": types, "names": self.names}, ensure_ascii=False)


# ---- what type each value has


def _float_types(graph: Graph, opsets: Mapping[str, int], found: dict[str, str]) -> dict[str, str]:
    """Value name -> float type, in a graph and those inside it, as ONNX's definitions of the operators say from the types of their inputs.

    found: what is known already. Inference of shapes is no help here: kernels, and so records, have no halves."""
    found |= {name: kind.dtype for name, kind in graph.types.items() if kind.dtype in FLOATS}
    found |= {name: array.dtype.name for name, array in graph.initializers.items() if array.dtype.name in FLOATS}
    for node in graph.nodes:
        kinds = _from_graphs(node, opsets, found) if node.graphs else _from_schema(node, opsets, found)
        for name, kind in zip(node.outputs, kinds, strict=False):
            if kind in FLOATS:
                found[name] = kind
    return {name: kind for name, kind in found.items() if name}


def _from_graphs(node: Node, opsets: Mapping[str, int], found: dict[str, str]) -> list[str]:
    """The types of the outputs of an If, Loop or Scan."""
    own, skipped = node.own_inputs, 0
    for inner in node.graphs.values():
        skipped = len(inner.outputs) - len(node.outputs)                 # a Loop's body says first whether it goes on
        if node.op_type != "If":
            found |= {inside: found[outside] for inside, outside in zip(inner.inputs, own, strict=False) if outside in found}
        _float_types(inner, opsets, found)
    return [found.get(name, "") for name in inner.outputs[skipped:]]


def _from_schema(node: Node, opsets: Mapping[str, int], found: Mapping[str, str]) -> list[str]:
    """The types of the outputs of any other node; those of operators that ONNX does not define are that of the first float that they read."""
    import onnx.defs

    said = [kind for _, kind in _said_types(node)]
    inputs = [found.get(name, "") for name in node.inputs]
    domain = canonical_domain(node.domain)
    if not onnx.defs.has(node.op_type, opsets.get(domain, 1), domain):
        return [next(filter(None, inputs), "")] * len(node.outputs)
    schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)

    def formal(parameters: Sequence[Any], index: int) -> str:
        return parameters[min(index, len(parameters) - 1)].type_str if parameters else ""

    bound = {formal(schema.inputs, index): kind for index, kind in reversed(list(enumerate(inputs))) if kind}
    kinds = [bound.get(formal(schema.outputs, index), "") for index in range(len(node.outputs))]
    return [*said[:1], *kinds[len(said[:1]) :]]


# ---- graphs


def _halves(graph: Graph) -> Iterator[str]:
    """The halves that a graph and those inside it name."""
    yield from (kind.dtype for kind in graph.types.values() if kind.dtype in HALVES)
    yield from (array.dtype.name for array in graph.initializers.values() if array.dtype.name in HALVES)
    for node in graph.nodes:
        yield from (said for _, said in _said_types(node) if said in HALVES)
        for inner in node.graphs.values():
            yield from _halves(inner)


def _must_stay(graph: Graph) -> bool:
    """Is there anything that float32 cannot stand for: bits, or halves that come in or go out as anything else than tensors?"""
    ends = (graph.types[name] for name in (*graph.inputs, *graph.outputs) if name in graph.types)
    return any(kind.dtype in HALVES and kind != TensorType(kind.dtype, kind.shape) for kind in ends) or _reads_bits(graph)


def _reads_bits(graph: Graph) -> bool:
    return any(node.op_type in BITS and canonical_domain(node.domain) == "" or any(map(_reads_bits, node.graphs.values())) for node in graph.nodes)


def _said_types(node: Node) -> list[tuple[str, str]]:
    """The attributes that say the type of the first output, by number or as a tensor of it, and that type."""
    if canonical_domain(node.domain) != "":
        return []
    numbers = [(name, NAMES.get(node.attributes[name], "")) for name in TYPE_ATTRIBUTES if isinstance(node.attributes.get(name), int)]
    return [*numbers, *((name, value.dtype.name) for name, value in node.attributes.items() if isinstance(value, np.ndarray))]


def _say_type(node: Node, name: str, dtype: str) -> None:
    value = node.attributes[name]
    node.attributes[name] = value.astype(numpy_dtype(dtype)) if isinstance(value, np.ndarray) else NUMBERS[dtype]


def _distinguish(graph: Graph, seen: set[str], names: NameSource, again: dict[str, str]) -> None:
    """Puts copies in the place of the graphs inside, with a name of its own for every value: new ones are added to `again`, with the old ones."""
    seen.update(graph.inputs, made(graph))
    for node in graph.nodes:
        for key, inner in node.graphs.items():
            taken = {name: names.unique(name) for name in dict.fromkeys([*inner.inputs, *made(inner)]) if name in seen}
            again |= {new: old for old, new in taken.items()}
            node.attributes[key] = inner = renamed(inner, taken)
            _distinguish(inner, seen, names, again)


def _widen_graph(graph: Graph, outside: Collection[str] = ()) -> None:
    graph.types = {name: replace(kind, dtype=WIDE) if kind.dtype in HALVES and name not in outside else kind for name, kind in graph.types.items()}
    graph.initializers = {name: array.astype(WIDE) if array.dtype.name in HALVES else array for name, array in graph.initializers.items()}
    for node in graph.nodes:
        for name, said in _said_types(node):
            if said in HALVES:
                _say_type(node, name, WIDE)
        for inner in node.graphs.values():
            _widen_graph(inner)


def _narrow_graph(graph: Graph, notes: Mapping[str, str], names: NameSource) -> None:
    """Narrows a graph whose weights are restore_half_precision; nodes that the notes do not know go on in float32."""
    wide: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        kind = graph.types.get(node.outputs[0])
        if kind is not None and kind.dtype in FLOATS and node.outputs[0] not in notes:
            for name in node.inputs:
                if notes.get(name) in HALVES and name not in wide:
                    wide[name] = names.unique(f"{name}_{WIDE}")
                    nodes.append(_cast(name, wide[name], WIDE))
            node = renamed_node(node, wide)
        nodes.append(node)
        for name, said in _said_types(node):
            if said == WIDE:
                _say_type(node, name, notes.get(node.outputs[0], WIDE))
        for key, inner in node.graphs.items():
            node.attributes[key] = inner = inner.copy()
            _narrow_graph(inner, notes, names)
    graph.nodes = nodes
    graph.types = {name: replace(kind, dtype=notes.get(name, WIDE)) if kind.dtype == WIDE else kind for name, kind in graph.types.items()}


def _rename(graph: Graph, names: Mapping[str, str]) -> None:
    """Other names for values in the nodes of a graph, those of graphs inside included; inputs and outputs keep theirs."""
    graph.nodes = [renamed_node(node, names) for node in graph.nodes]
    graph.types |= {new: graph.types[old] for old, new in names.items() if old in graph.types}


# ---- the Casts at the float32_inputs


def _cast(source: str, target: str, dtype: str) -> Node:
    return Node("Cast", [source], [target], f"{target}/Cast", attributes={"to": NUMBERS[dtype]})


def _edges(graph: Graph, notes: OriginalTypes) -> tuple[dict[str, str], dict[str, str]]:
    """(float32 value -> the input of half precision that it comes from, float32 value -> the half that it is round_to_half to at the end)"""
    ends: dict[str, dict[str, str]] = {"inside": {}, "outside": {}}
    for node in graph.nodes:
        end = _edge(node, graph, notes)
        if end == "inside":
            ends[end][node.outputs[0]] = node.inputs[0]
        elif end == "outside":
            ends[end][node.inputs[0]] = node.outputs[0]
    return ends["inside"], ends["outside"]


def _edge(node: Node, graph: Graph, notes: OriginalTypes) -> str | None:
    """Is the node a Cast at an edge of a widened graph, where a half comes inside or goes outside? Both its ends had the same type before."""
    if node.op_type != "Cast" or canonical_domain(node.domain) != "":
        return None
    (source, target), kind = (node.inputs[0], node.outputs[0]), notes.types.get(node.inputs[0])
    if kind not in HALVES or notes.types.get(target) != kind:
        return None
    if source in graph.inputs and source in graph.types and graph.types[source].dtype == kind:
        return "inside"
    return "outside" if NAMES.get(node.attributes.get("to", 0)) == kind else None
