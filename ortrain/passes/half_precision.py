"""Half precision in float32: converts models of float16 or bfloat16 to float32 computation, and back.

The converted graph has the same nodes and value names, but every half-precision value is a float32 value, weights are
float32 copies, and a Cast between the two types is a Cast to float32, which costs nothing. User inputs keep their
types: a Cast separates a half-precision input from its consumers. The model's metadata stores the original type of
each float value, so that the conversion can be undone; weights are then rounded to nearest even."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ortrain.dtypes import BFLOAT16, FLOATS, HALVES, NAMES, NUMBERS, numpy_dtype
from ortrain.errors import InvalidModelError, InvalidStateError
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.loading.loader import all_names
from ortrain.ops.registry.record import canonical_domain
from ortrain.ops.registry.subgraphs import defined_values, rename_node_values, rename_values
from ortrain.packages import require_onnx

METADATA_KEY = "ortrain.float_types"
"""The metadata key of the original types: JSON, {"types": {type: [value names]}, "names": {name: original name}}."""

FLOAT32 = "float32"
STORED_KEY = "ortrain.stored_halves"
"""The metadata key of weights that stay in half precision to save memory, each read by a Cast to float32: a JSON list of names."""

TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that state the type of an operator's output as an ONNX type number."""
BIT_OPERATORS = frozenset({"BitCast"})
"""Operators that read the bits of a value, which change with its type: a model with one is not converted."""


def convert_to_float32(model: Model) -> None:
    """Convert a model with half-precision values to float32 computation, in place. Other models and converted ones
    stay unchanged."""
    graph, stored = model.graph, stored_halves(model)
    if METADATA_KEY in model.metadata or not any(_half_types(graph, stored)) or _requires_half_precision(graph):
        return
    names = NameSource(all_names(graph))
    original_names: dict[str, str] = {}
    _make_names_unique(graph, set(), names, original_names)
    types = _collect_float_types(graph, model.opsets, {})
    half_inputs = [name for name in graph.inputs if name in graph.types and graph.types[name].dtype in HALVES]
    _convert_graph(graph, {*half_inputs, *stored})
    float32_names = {name: names.unique(f"{name}_{FLOAT32}") for name in half_inputs}
    _rename_values(graph, float32_names)
    graph.nodes[:0] = [_cast(name, float32_name, FLOAT32) for name, float32_name in float32_names.items()]
    graph.types |= {float32_name: TensorType(FLOAT32, graph.types[name].shape) for name, float32_name in float32_names.items()}
    OriginalTypes(types | {float32_name: types[name] for name, float32_name in float32_names.items()}, original_names).write(model)


def stored_halves(model: Model) -> frozenset[str]:
    """Return the weights that stay in half precision to save memory."""
    try:
        names = json.loads(model.metadata.get(STORED_KEY, "[]"))
    except ValueError as error:
        raise InvalidModelError(f"expected a JSON list of names in the metadata {STORED_KEY!r}, got {model.metadata[STORED_KEY][:80]!r}") from error
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def store_halves(model: Model, names: Iterable[str]) -> None:
    """Record weights that stay in half precision to save memory. Each is read by a Cast to float32 alone."""
    model.metadata[STORED_KEY] = json.dumps(sorted({*stored_halves(model), *names}))


def take_in_bfloat16(model: Model, names: Collection[str]) -> Model:
    """Return a copy of a model that takes some of its float32 inputs in bfloat16, and casts them."""
    model = model.copy()
    graph = model.graph
    source = NameSource(all_names(graph))
    floats = {name: source.unique(f"{name}_{FLOAT32}") for name in graph.inputs if name in names}
    _rename_values(graph, floats)
    graph.types |= {name: replace(graph.types[name], dtype=BFLOAT16) for name in floats if name in graph.types}
    graph.nodes[:0] = [_cast(name, float32_name, FLOAT32) for name, float32_name in floats.items()]
    return model


def restore_output_types(model: Model, names: Iterable[str]) -> None:
    """Give the named values of a converted model their original types: they are computed in float32 and rounded at
    the end."""
    original, graph = OriginalTypes.of(model), model.graph
    already_half = {*graph.inputs, *_boundary_casts(graph, original)[1].values()}
    halves = [name for name in dict.fromkeys(names) if original.types.get(name) in HALVES and name not in already_half]
    if not halves:
        return
    name_source = NameSource(all_names(graph))
    sources = {name: name_source.unique(f"{name}_{FLOAT32}") for name in halves}
    _rename_values(graph, sources)
    for name, source in sources.items():
        graph.nodes.append(_cast(source, name, original.types[name]))
        if source in graph.types:
            graph.types[name] = TensorType(original.types[name], graph.types[source].shape)
        original.types[source] = original.types[name]
    original.write(model)


def restore_half_precision(model: Model) -> Model:
    """Return a converted model with its original types and weights rounded to nearest even; any other model
    unchanged.

    Values without a recorded type, such as those of a loss, stay float32. Raises InvalidStateError for a weight that
    its original type cannot represent."""
    original = OriginalTypes.of(model)
    if not original.types:
        return model
    model = model.copy()
    graph = model.graph
    del model.metadata[METADATA_KEY]
    input_casts, output_casts = _boundary_casts(graph, original)
    graph.nodes = [node for node in graph.nodes if _boundary_kind(node, graph, original) is None]
    _rename_values(graph, input_casts | output_casts)
    types = {name: dtype for name, dtype in original.types.items() if name not in input_casts and name not in output_casts}
    graph.types = {name: kind for name, kind in graph.types.items() if name not in input_casts and name not in output_casts}
    graph.initializers = {name: round_to_half(name, array, types.get(name, "")) for name, array in graph.initializers.items()}
    _restore_graph(graph, types, NameSource(all_names(graph)))
    _rename_values(graph, original.renamed)
    return model


def float32_inputs(model: Model) -> dict[str, str]:
    """Return half-precision input -> the float32 value that a converted model uses for it."""
    return {name: float32_name for float32_name, name in _boundary_casts(model.graph, OriginalTypes.of(model))[0].items()}


def copy_original_type(model: Model, name: str, copy: str) -> None:
    """Record for a new value the original type of another one."""
    original = OriginalTypes.of(model)
    if name in original.types:
        original.types[copy] = original.types[name]
        original.write(model)


def round_to_half(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 weights rounded to nearest even in half precision `dtype`; other weights, or for another dtype,
    unchanged.

    Raises InvalidStateError for a finite weight that becomes infinite."""
    if dtype not in HALVES or array.dtype != np.float32:
        return array
    with np.errstate(over="ignore"):
        result = array.astype(numpy_dtype(dtype))
    if np.isinf(result).sum() > np.isinf(array).sum():
        raise InvalidStateError(f"expected weights that {dtype} can hold, got {np.abs(array[np.isfinite(array)]).max():g} in {name!r}")
    return result


# ---- original types in the metadata


@dataclass(slots=True)
class OriginalTypes:
    """The types and names that a converted model had before conversion."""

    types: dict[str, str] = field(default_factory=dict)
    """Float value of the forward model -> its original type. Values of a loss that was added later have none."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Value of a subgraph that was renamed to be unique in the model -> its original name."""

    @classmethod
    def of(cls, model: Model) -> OriginalTypes:
        """Read the original types from a model's metadata; empty for a model that was not converted.

        Raises InvalidModelError if the metadata is malformed."""
        text = model.metadata.get(METADATA_KEY)
        if text is None:
            return cls()
        try:
            found = json.loads(text)
            original = cls({name: kind for kind, names in found["types"].items() for name in names}, dict(found["names"]))
            is_valid = set(found["types"]) <= FLOATS and all(isinstance(name, str) for name in (*original.types, *original.renamed, *original.renamed.values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise InvalidModelError(f"expected the original float types as JSON in the metadata {METADATA_KEY!r}, got {text[:80]!r}")
        return original

    def write(self, model: Model) -> None:
        """Store the original types in a model's metadata."""
        types: dict[str, list[str]] = {}
        for name, kind in self.types.items():
            types.setdefault(kind, []).append(name)
        model.metadata[METADATA_KEY] = json.dumps({"types": types, "names": self.renamed}, ensure_ascii=False)


# ---- float types of values


def _collect_float_types(graph: Graph, opsets: Mapping[str, int], found: dict[str, str]) -> dict[str, str]:
    """Return value name -> float type for a graph and its subgraphs, inferred from the ONNX operator schemas.

    found: the types known so far. Shape inference cannot be used here: its records have no half-precision types."""
    found |= {name: kind.dtype for name, kind in graph.types.items() if kind.dtype in FLOATS}
    found |= {name: array.dtype.name for name, array in graph.initializers.items() if array.dtype.name in FLOATS}
    for node in graph.nodes:
        kinds = _subgraph_output_types(node, opsets, found) if node.graphs else _schema_output_types(node, opsets, found)
        for name, kind in zip(node.outputs, kinds, strict=False):
            if kind in FLOATS:
                found[name] = kind
    return {name: kind for name, kind in found.items() if name}


def _subgraph_output_types(node: Node, opsets: Mapping[str, int], found: dict[str, str]) -> list[str]:
    """Return the types of the outputs of an If, Loop or Scan."""
    outer_inputs, skipped = node.own_inputs, 0
    for inner in node.graphs.values():
        skipped = len(inner.outputs) - len(node.outputs)                 # the first output of a Loop's body is its condition
        if node.op_type != "If":
            found |= {inner_name: found[outer_name] for inner_name, outer_name in zip(inner.inputs, outer_inputs, strict=False) if outer_name in found}
        _collect_float_types(inner, opsets, found)
    return [found.get(name, "") for name in inner.outputs[skipped:]]


def _schema_output_types(node: Node, opsets: Mapping[str, int], found: Mapping[str, str]) -> list[str]:
    """Return the types of the outputs of a node without subgraphs.

    For an operator that ONNX does not define this is the type of the first float input."""
    definitions = require_onnx("the types of operators in a model of half precision", "onnx.defs")
    stated = [kind for _, kind in _type_attributes(node)]
    inputs = [found.get(name, "") for name in node.inputs]
    domain = canonical_domain(node.domain)
    if not definitions.has(node.op_type, opsets.get(domain, 1), domain):
        return [next(filter(None, inputs), "")] * len(node.outputs)
    schema = definitions.get_schema(node.op_type, opsets.get(domain, 1), domain)

    def formal(parameters: Sequence[Any], index: int) -> str:
        return parameters[min(index, len(parameters) - 1)].type_str if parameters else ""

    type_variables = {formal(schema.inputs, index): kind for index, kind in reversed(list(enumerate(inputs))) if kind}
    kinds = [type_variables.get(formal(schema.outputs, index), "") for index in range(len(node.outputs))]
    return [*stated[:1], *kinds[len(stated[:1]) :]]


# ---- graphs


def _half_types(graph: Graph, ignored: Collection[str] = ()) -> Iterator[str]:
    """Yield the half-precision types that occur in a graph and its subgraphs. ignored: values of the graph whose types do not count."""
    yield from (kind.dtype for name, kind in graph.types.items() if kind.dtype in HALVES and name not in ignored)
    yield from (array.dtype.name for name, array in graph.initializers.items() if array.dtype.name in HALVES and name not in ignored)
    for node in graph.nodes:
        yield from (stated for _, stated in _type_attributes(node) if stated in HALVES)
        for inner in node.graphs.values():
            yield from _half_types(inner)


def _requires_half_precision(graph: Graph) -> bool:
    """Return whether float32 cannot replace half precision: bits are read, or half-precision inputs or outputs are
    not tensors."""
    boundary_types = (graph.types[name] for name in (*graph.inputs, *graph.outputs) if name in graph.types)
    return any(kind.dtype in HALVES and kind != TensorType(kind.dtype, kind.shape) for kind in boundary_types) or _reads_bits(graph)


def _reads_bits(graph: Graph) -> bool:
    return any(node.op_type in BIT_OPERATORS and canonical_domain(node.domain) == "" or any(map(_reads_bits, node.graphs.values())) for node in graph.nodes)


def _type_attributes(node: Node) -> list[tuple[str, str]]:
    """Return (attribute, type) for the attributes that state the type of the first output, as a type number or by a
    tensor value."""
    if canonical_domain(node.domain) != "":
        return []
    numbers = [(name, NAMES.get(node.attributes[name], "")) for name in TYPE_ATTRIBUTES if isinstance(node.attributes.get(name), int)]
    return [*numbers, *((name, value.dtype.name) for name, value in node.attributes.items() if isinstance(value, np.ndarray))]


def _set_type_attribute(node: Node, name: str, dtype: str) -> None:
    value = node.attributes[name]
    node.attributes[name] = value.astype(numpy_dtype(dtype)) if isinstance(value, np.ndarray) else NUMBERS[dtype]


def _make_names_unique(graph: Graph, seen: set[str], names: NameSource, original_names: dict[str, str]) -> None:
    """Replace subgraphs by copies in which no value has a name that occurred before; add new name -> old name to
    `original_names`."""
    seen.update(graph.inputs, defined_values(graph))
    for node in graph.nodes:
        for key, inner in node.graphs.items():
            new_names = {name: names.unique(name) for name in dict.fromkeys([*inner.inputs, *defined_values(inner)]) if name in seen}
            original_names |= {new: old for old, new in new_names.items()}
            node.attributes[key] = inner = rename_values(inner, new_names)
            _make_names_unique(inner, seen, names, original_names)


def _convert_graph(graph: Graph, unchanged: Collection[str] = ()) -> None:
    """Convert a graph and its subgraphs, except the inputs and weights that stay unchanged."""
    graph.types = {name: replace(kind, dtype=FLOAT32) if kind.dtype in HALVES and name not in unchanged else kind for name, kind in graph.types.items()}
    graph.initializers = {name: array.astype(FLOAT32) if array.dtype.name in HALVES and name not in unchanged else array
                          for name, array in graph.initializers.items()}
    for node in graph.nodes:
        for name, stated in _type_attributes(node):
            if stated in HALVES:
                _set_type_attribute(node, name, FLOAT32)
        for inner in node.graphs.values():
            _convert_graph(inner)


def _restore_graph(graph: Graph, original: Mapping[str, str], names: NameSource) -> None:
    """Restore the types of a graph whose weights are restored already. Nodes without a recorded type continue in
    float32."""
    float32_names: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        kind = graph.types.get(node.outputs[0])
        if kind is not None and kind.dtype in FLOATS and node.outputs[0] not in original:
            for name in node.inputs:
                if original.get(name) in HALVES and name not in float32_names:
                    float32_names[name] = names.unique(f"{name}_{FLOAT32}")
                    nodes.append(_cast(name, float32_names[name], FLOAT32))
            node = rename_node_values(node, float32_names)
        nodes.append(node)
        for name, stated in _type_attributes(node):
            if stated == FLOAT32:
                _set_type_attribute(node, name, original.get(node.outputs[0], FLOAT32))
        for key, inner in node.graphs.items():
            node.attributes[key] = inner = inner.copy()
            _restore_graph(inner, original, names)
    graph.nodes = nodes
    graph.types = {name: replace(kind, dtype=original.get(name, FLOAT32)) if kind.dtype == FLOAT32 else kind for name, kind in graph.types.items()}


def _rename_values(graph: Graph, names: Mapping[str, str]) -> None:
    """Rename values in the nodes of a graph and its subgraphs; graph inputs and outputs keep their names."""
    graph.nodes = [rename_node_values(node, names) for node in graph.nodes]
    graph.types |= {new: graph.types[old] for old, new in names.items() if old in graph.types}


# ---- Casts at the boundary


def _cast(source: str, target: str, dtype: str) -> Node:
    return Node("Cast", [source], [target], f"{target}/Cast", attributes={"to": NUMBERS[dtype]})


def _boundary_casts(graph: Graph, original: OriginalTypes) -> tuple[dict[str, str], dict[str, str]]:
    """Return (float32 value -> half-precision input it is cast from, float32 value -> half-precision value it is
    rounded to)."""
    casts: dict[str, dict[str, str]] = {"input": {}, "output": {}}
    for node in graph.nodes:
        kind = _boundary_kind(node, graph, original)
        if kind == "input":
            casts[kind][node.outputs[0]] = node.inputs[0]
        elif kind == "output":
            casts[kind][node.inputs[0]] = node.outputs[0]
    return casts["input"], casts["output"]


def _boundary_kind(node: Node, graph: Graph, original: OriginalTypes) -> str | None:
    """Return "input" or "output" for a Cast that conversion added after an input or before an output, None for other
    nodes.

    Both of its values have the same original type."""
    if node.op_type != "Cast" or canonical_domain(node.domain) != "":
        return None
    (source, target), kind = (node.inputs[0], node.outputs[0]), original.types.get(node.inputs[0])
    if kind not in HALVES or original.types.get(target) != kind:
        return None
    if source in graph.inputs and source in graph.types and graph.types[source].dtype == kind:
        return "input"
    return "output" if NAMES.get(node.attributes.get("to", 0)) == kind else None
