"""ONNX Runtime's own model format (`.ort` files): a FlatBuffer with the identifier ORTM, read into the messages of ONNX's format.

Tables, with their fields in the order of the vtable's slots:
    session (format version, model, -, kernel type strings)
    model (IR version, opset imports, producer, producer version, domain, model version, doc string, graph, graph doc string, metadata)
    graph (initializers, value infos, nodes, largest node index, edges, inputs, outputs, sparse initializers, runtime optimizations)
    node (name, doc string, domain, since version, index, operator, kind, execution provider, inputs, outputs, attributes, input counts, implicit inputs)
    attribute (name, doc string, type, f, i, s, t, g, floats, ints, strings, tensors, graphs)
    tensor (name, doc string, dims, element type, raw data, strings, external data offset)
    value info (name, doc string, type); type (denotation, kind, value): tensor (element type, shape), sequence (type), map (key type, type)
    shape (dimensions); dimension (value, denotation); its value (kind: 1 a size, 2 a name; size; name); opset import (domain, version);
    entry of the metadata (key, value)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ortrain.dtypes import NUMBERS
from ortrain.errors import InvalidModelError
from ortrain.formats.flatbuffer import Buffer, Table
from ortrain.formats.onnx_messages import (
    AttributeProto,
    AttributeType,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    StringStringEntryProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
)

IDENTIFIER = b"ORTM"
MAX_DEPTH = 16
"""Maximum nesting of graphs in attributes, and of types in types."""
DIMENSION_SIZE, DIMENSION_NAME = 1, 2
TENSOR_TYPE, SEQUENCE_TYPE, MAP_TYPE = 1, 2, 3


def is_ort_model(data: bytes) -> bool:
    """Return whether the bytes are an `.ort` file."""
    return data[4:8] == IDENTIFIER


def parse_ort_model(data: bytes, where: str) -> ModelProto:
    """Read the model in an `.ort` file's bytes. Raises InvalidModelError when they are malformed."""
    buffer = Buffer(data, InvalidModelError, f"expected an ORT-format model in {where}")
    root = Table(buffer, buffer.uint32(0))
    source = root.table(1)
    graph = source.table(7) if source is not None else None
    if source is None or graph is None:
        raise buffer.fail("a model with a graph")
    return ModelProto(
        ir_version=int(source.number(0, "<q")), producer_name=source.text_or(2), domain=source.text_or(4), graph=_graph(graph, 0),
        opset_import=[OperatorSetIdProto(domain=table.text_or(0), version=int(table.number(1, "<q"))) for table in source.tables(1)],
        metadata_props=[StringStringEntryProto(key=table.text_or(0), value=table.text_or(1)) for table in source.tables(9)])


def _graph(table: Table, depth: int) -> GraphProto:
    if depth > MAX_DEPTH:
        raise table.buffer.fail(f"graphs nested at most {MAX_DEPTH} deep")
    kinds = {info.text(0): info.table(2) for info in table.tables(1)}
    inputs, outputs = table.texts(5), table.texts(6)
    interface = {*inputs, *outputs}

    def value(name: str) -> ValueInfoProto:
        kind = kinds.get(name)
        return ValueInfoProto(name=name, type=None if kind is None else _type(kind, 0))

    graph = GraphProto(
        name="graph", initializer=[_tensor(tensor) for tensor in table.tables(0)], node=[_node(node, depth) for node in table.tables(2)],
        input=list(map(value, inputs)), output=list(map(value, outputs)),
        value_info=[value(name) for name, kind in kinds.items() if name and name not in interface and kind is not None])
    if table.tables(7):
        raise table.buffer.fail("no sparse initializers")
    return graph


def _node(table: Table, depth: int) -> NodeProto:
    return NodeProto(name=table.text_or(0), domain=table.text_or(2), op_type=table.text(5), input=table.texts(8), output=table.texts(9),
                     attribute=[_attribute(attribute, depth) for attribute in table.tables(10)])


def _attribute(table: Table, depth: int) -> AttributeProto:
    name, kind = table.text(0), int(table.number(2, "<i"))
    kinds = AttributeType
    readers: dict[int, Callable[[], dict[str, Any]]] = {
        kinds.FLOAT: lambda: {"f": float(table.number(3, "<f"))}, kinds.INT: lambda: {"i": int(table.number(4, "<q"))},
        kinds.STRING: lambda: {"s": table.text_or(5).encode()}, kinds.TENSOR: lambda: {"t": _tensor(_present(table, 6))},
        kinds.GRAPH: lambda: {"g": _graph(_present(table, 7), depth + 1)}, kinds.FLOATS: lambda: {"floats": table.numbers(8, "f")},
        kinds.INTS: lambda: {"ints": table.numbers(9, "q")}, kinds.STRINGS: lambda: {"strings": [text.encode() for text in table.texts(10)]},
        kinds.TENSORS: lambda: {"tensors": [_tensor(tensor) for tensor in table.tables(11)]},
        kinds.GRAPHS: lambda: {"graphs": [_graph(graph, depth + 1) for graph in table.tables(12)]}}
    if kind not in readers:
        raise table.buffer.fail(f"an attribute of a known type for {name!r}, not {kind},")
    return AttributeProto(name=name, type=kind, **readers[kind]())


def _present(table: Table, index: int) -> Table:
    found = table.table(index)
    if found is None:
        raise table.buffer.fail(f"field {index} in the table at byte {table.at}")
    return found


def _tensor(table: Table) -> TensorProto:
    tensor = TensorProto(name=table.text_or(0), data_type=int(table.number(3, "<i")), dims=table.numbers(2, "q"))
    if int(table.number(6, "<q", -1)) >= 0:
        raise table.buffer.fail(f"tensor {tensor.name!r} with its data inside the file, not in another,")
    if tensor.data_type == NUMBERS["string"]:
        tensor.string_data = [text.encode() for text in table.texts(5)]
    else:
        at = table.target(4)
        tensor.raw_data = b"" if at is None else table.buffer.bytes(at)
    return tensor


def _type(table: Table, depth: int) -> TypeProto:
    which, value = int(table.number(1, "<B")), table.table(2)
    if value is None or depth > MAX_DEPTH:
        return TypeProto()
    if which == TENSOR_TYPE:
        shape = value.table(1)
        dims = None if shape is None else TensorShapeProto(dim=[_dimension(dimension.table(0)) for dimension in shape.tables(0)])
        return TypeProto(tensor_type=TypeProto.Tensor(elem_type=int(value.number(0, "<i")), shape=dims))
    element = value.table(0) if which == SEQUENCE_TYPE else value.table(1) if which == MAP_TYPE else None
    inner = None if element is None else _type(element, depth + 1)
    if which == SEQUENCE_TYPE:
        return TypeProto(sequence_type=TypeProto.Sequence(elem_type=inner))
    return TypeProto(map_type=TypeProto.Map(key_type=int(value.number(0, "<i")), value_type=inner)) if which == MAP_TYPE else TypeProto()


def _dimension(value: Table | None) -> TensorShapeProto.Dimension:
    which = 0 if value is None else int(value.number(0, "<b"))
    if value is not None and which == DIMENSION_SIZE:
        return TensorShapeProto.Dimension(dim_value=int(value.number(1, "<q")))
    return TensorShapeProto.Dimension(dim_param=value.text_or(2) if value is not None and which == DIMENSION_NAME else None)
