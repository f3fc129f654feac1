"""ONNX Runtime's own model format (`.ort` files): a FlatBuffer with the identifier ORTM, read into an onnx.ModelProto.

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

import onnx
from onnx import AttributeProto, TensorProto

from ortrain.errors import InvalidModelError
from ortrain.formats.flatbuffer import Buffer, Table

IDENTIFIER = b"ORTM"
MAX_DEPTH = 16
"""Maximum nesting of graphs in attributes, and of types in types."""
DIMENSION_SIZE, DIMENSION_NAME = 1, 2
TENSOR_TYPE, SEQUENCE_TYPE, MAP_TYPE = 1, 2, 3


def is_ort_model(data: bytes) -> bool:
    """Return whether the bytes are an `.ort` file."""
    return data[4:8] == IDENTIFIER


def parse_ort_model(data: bytes, where: str) -> onnx.ModelProto:
    """Read the model in an `.ort` file's bytes. Raises InvalidModelError when they are malformed."""
    buffer = Buffer(data, InvalidModelError, f"expected an ORT-format model in {where}")
    root = Table(buffer, buffer.uint32(0))
    source = root.table(1)
    graph = source.table(7) if source is not None else None
    if source is None or graph is None:
        raise buffer.fail("a model with a graph")
    model = onnx.ModelProto(ir_version=int(source.number(0, "<q")), producer_name=source.text_or(2), domain=source.text_or(4))
    for table in source.tables(1):
        model.opset_import.add(domain=table.text_or(0), version=int(table.number(1, "<q")))
    for table in source.tables(9):
        model.metadata_props.add(key=table.text_or(0), value=table.text_or(1))
    _fill_graph(model.graph, graph, 0)
    return model


def _fill_graph(graph: onnx.GraphProto, table: Table, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise table.buffer.fail(f"graphs nested at most {MAX_DEPTH} deep")
    kinds = {info.text(0): info.table(2) for info in table.tables(1)}
    graph.name = "graph"
    for tensor in table.tables(0):
        _fill_tensor(graph.initializer.add(), tensor)
    for node in table.tables(2):
        _fill_node(graph.node.add(), node, depth)
    inputs, outputs = table.texts(5), table.texts(6)
    made = {*inputs, *outputs}
    for values, names in ((graph.input, inputs), (graph.output, outputs), (graph.value_info, [name for name in kinds if name and name not in made])):
        for name in names:
            kind = kinds.get(name)
            if kind is not None or values is not graph.value_info:
                value = values.add(name=name)
                if kind is not None:
                    _fill_type(value.type, kind, 0)
    if table.tables(7):
        raise table.buffer.fail("no sparse initializers")


def _fill_node(node: onnx.NodeProto, table: Table, depth: int) -> None:
    node.name, node.domain, node.op_type = table.text_or(0), table.text_or(2), table.text(5)
    node.input.extend(table.texts(8))
    node.output.extend(table.texts(9))
    for attribute in table.tables(10):
        _fill_attribute(node.attribute.add(), attribute, depth)


def _fill_attribute(attribute: AttributeProto, table: Table, depth: int) -> None:
    attribute.name = table.text(0)
    kind = int(table.number(2, "<i"))
    a = AttributeProto
    if kind in a.AttributeType.values():
        attribute.type = kind  # type: ignore[assignment]
    if kind == a.FLOAT:
        attribute.f = table.number(3, "<f")
    elif kind == a.INT:
        attribute.i = int(table.number(4, "<q"))
    elif kind == a.STRING:
        attribute.s = table.text_or(5).encode()
    elif kind == a.FLOATS:
        attribute.floats.extend(table.numbers(8, "f"))
    elif kind == a.INTS:
        attribute.ints.extend(table.numbers(9, "q"))
    elif kind == a.STRINGS:
        attribute.strings.extend(text.encode() for text in table.texts(10))
    elif kind in (a.TENSOR, a.TENSORS):
        for target, source in zip([attribute.t] if kind == a.TENSOR else [attribute.tensors.add() for _ in table.tables(11)],
                                  [_present(table, 6)] if kind == a.TENSOR else table.tables(11), strict=True):
            _fill_tensor(target, source)
    elif kind == a.GRAPH:
        _fill_graph(attribute.g, _present(table, 7), depth + 1)
    elif kind == a.GRAPHS:
        for graph in table.tables(12):
            _fill_graph(attribute.graphs.add(), graph, depth + 1)
    else:
        raise table.buffer.fail(f"an attribute of a known type for {attribute.name!r}, not {kind},")


def _present(table: Table, index: int) -> Table:
    found = table.table(index)
    if found is None:
        raise table.buffer.fail(f"field {index} in the table at byte {table.at}")
    return found


def _fill_tensor(tensor: TensorProto, table: Table) -> None:
    tensor.name, tensor.data_type = table.text_or(0), int(table.number(3, "<i"))
    tensor.dims.extend(table.numbers(2, "q"))
    if int(table.number(6, "<q", -1)) >= 0:
        raise table.buffer.fail(f"tensor {tensor.name!r} with its data inside the file, not in another,")
    if tensor.data_type == TensorProto.STRING:
        tensor.string_data.extend(text.encode() for text in table.texts(5))
        return
    at = table.target(4)
    tensor.raw_data = b"" if at is None else bytes(table.buffer.bytes(at))


def _fill_type(kind: onnx.TypeProto, table: Table, depth: int) -> None:
    which, value = int(table.number(1, "<B")), table.table(2)
    if value is None or depth > MAX_DEPTH:
        return
    if which == TENSOR_TYPE:
        kind.tensor_type.elem_type = int(value.number(0, "<i"))
        shape = value.table(1)
        if shape is not None:
            kind.tensor_type.shape.SetInParent()
            for dimension in shape.tables(0):
                _fill_dimension(kind.tensor_type.shape.dim.add(), dimension.table(0))
    elif which == SEQUENCE_TYPE:
        kind.sequence_type.SetInParent()
        element = value.table(0)
        if element is not None:
            _fill_type(kind.sequence_type.elem_type, element, depth + 1)
    elif which == MAP_TYPE:
        kind.map_type.key_type = int(value.number(0, "<i"))
        element = value.table(1)
        if element is not None:
            _fill_type(kind.map_type.value_type, element, depth + 1)


def _fill_dimension(dimension: onnx.TensorShapeProto.Dimension, value: Table | None) -> None:
    if value is None:
        return
    which = int(value.number(0, "<b"))
    if which == DIMENSION_SIZE:
        dimension.dim_value = int(value.number(1, "<q"))
    elif which == DIMENSION_NAME:
        dimension.dim_param = value.text_or(2)
