"""Writer of the ORT format (`.ort`), as onnxruntime-training 1.19 reads it; the tables are described in ortrain.formats.ort_format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import flatbuffers

from ortrain.dtypes import NUMBERS
from ortrain.errors import InvalidModelError
from ortrain.formats.onnx_messages import (
    AttributeProto,
    AttributeType,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
)
from ortrain.formats.onnx_tensors import from_array, to_array
from ortrain.formats.ort_format import DIMENSION_NAME, DIMENSION_SIZE, IDENTIFIER, MAP_TYPE, SEQUENCE_TYPE, TENSOR_TYPE
from ortrain.formats.ort_kernel_types import argument_types
from ortrain.packages import require_onnx

FORMAT_VERSION = "6"
"""The version that 1.15 to 1.19 write."""
DEFAULT_DOMAIN_SINCE = {"MaxPoolGrad": 9, "AveragePoolGrad": 9}
"""Operators that onnxruntime-training has in the default domain, where ONNX has none of that name."""
ALIGNMENT_OF_DATA = 16
Offset = int
Field = tuple[int, Offset] | tuple[int, int | float, Callable[..., None]]
"""(slot, offset), or (slot, value, the builder's method that stores it)."""


def required_operators(model: ModelProto, name: str) -> str:
    """Return the list of operators that a reduced build of onnxruntime needs for a model (`.required_operators.config`)."""
    writer = _Writer(model)
    found: dict[tuple[str, int], set[str]] = {}
    for node in nodes_of(model.graph):
        found.setdefault((node.domain or "ai.onnx", writer.since(node)), set()).add(node.op_type)
    lines = [f"{domain};{since};{','.join(sorted(names))}" for (domain, since), names in sorted(found.items())]
    return "\n".join(["# Generated from model/s:", f"# - {name}", *lines, ""])


def serialize_ort_model(model: ModelProto) -> bytes:
    """Serialize a model as an `.ort` file. Raises InvalidModelError for what the format cannot hold."""
    return _Writer(model).write()


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield all nodes, those of subgraphs included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from nodes_of(inner)


def operator_id(key: tuple[str, str, int]) -> str:
    return ":".join(map(str, key))


def _value_of(tensor: TensorProto) -> ValueInfoProto:
    """Return the description of an initializer as a value."""
    shape = TensorShapeProto(dim=[TensorShapeProto.Dimension(dim_value=dim) for dim in tensor.dims])
    return ValueInfoProto(name=tensor.name, type=TypeProto(tensor_type=TypeProto.Tensor(elem_type=tensor.data_type, shape=shape)))


class _Writer:
    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.builder = flatbuffers.Builder(1 << 16)
        self.definitions = require_onnx("the versions of operators in the ORT format", "onnx.defs")
        self.opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}

    def write(self) -> bytes:
        b, model = self.builder, self.model
        graph = self.graph(model.graph)
        imports = self.vector([self.table(2, (0, self.text(o.domain)), (1, o.version, b.PrependInt64Slot)) for o in model.opset_import])
        notes = [self.table(2, (0, self.text(entry.key)), (1, self.text(entry.value))) for entry in model.metadata_props]
        metadata = self.vector(notes) if notes else 0
        made = self.table(10, (0, model.ir_version, b.PrependInt64Slot), (1, imports), (2, self.text(model.producer_name)), (3, self.text("")),
                          (4, self.text(model.domain)), (7, graph), (9, metadata))
        root = self.table(4, (0, self.text(FORMAT_VERSION)), (1, made), (3, self.kernel_types(model.graph)))
        b.Finish(root, file_identifier=IDENTIFIER)
        return bytes(b.Output())

    # ---- building

    def table(self, fields: int, *values: Field) -> Offset:
        """Add a table of (slot, offset) and (slot, value, method); values equal to 0 are omitted."""
        b = self.builder
        b.StartObject(fields)
        for slot, value, *how in values:
            if how:
                how[0](slot, value, 0)
            elif value:
                b.PrependUOffsetTRelativeSlot(slot, value, 0)
        return int(b.EndObject())

    def text(self, text: str | bytes | memoryview) -> Offset:
        return int(self.builder.CreateSharedString(text if isinstance(text, str) else str(text, "utf-8")))

    def vector(self, offsets: Sequence[Offset]) -> Offset:
        b = self.builder
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return int(b.EndVector())

    def texts(self, names: Iterable[str | bytes | memoryview]) -> Offset:
        return self.vector([self.text(name) for name in names])

    def numbers(self, values: Sequence[int | float], size: int, prepend: Callable[..., None]) -> Offset:
        b = self.builder
        b.StartVector(size, len(values), size)
        for value in reversed(values):
            prepend(value)
        return int(b.EndVector())

    # ---- tables

    def graph(self, graph: GraphProto) -> Offset:
        b = self.builder
        initializers = self.vector([self.tensor(tensor) for tensor in graph.initializer])
        values = self.vector([self.value_info(value) for value in self.all_values(graph)])
        nodes = self.vector([self.node(node, index) for index, node in enumerate(graph.node)])
        edges = self.edges(graph)
        inputs, outputs = self.texts(v.name for v in graph.input), self.texts(v.name for v in graph.output)
        return self.table(9, (0, initializers), (1, values), (2, nodes), (3, len(graph.node), b.PrependUint32Slot), (4, edges), (5, inputs), (6, outputs))

    def all_values(self, graph: GraphProto) -> list[ValueInfoProto]:
        """Yield every value of the graph with its type, initializers and absent ones ("") included."""
        found = {value.name: value for value in (*graph.input, *graph.output, *graph.value_info)}
        for tensor in graph.initializer:
            found.setdefault(tensor.name, _value_of(tensor))
        for node in graph.node:
            for name in (*node.input, *node.output):
                if name not in found:
                    if name:
                        raise InvalidModelError(f"expected every value to have a type in the ORT format, {name!r} has none")
                    found[name] = ValueInfoProto(name="")
        return list(found.values())

    def value_info(self, value: ValueInfoProto) -> Offset:
        kind = self.type(value.type) if value.type.WhichOneof("value") else 0
        return self.table(3, (0, self.text(value.name)), (1, self.text("")), (2, kind))

    def type(self, kind: TypeProto) -> Offset:
        b = self.builder
        which = kind.WhichOneof("value")
        if which == "tensor_type":
            shape = self.shape(kind.tensor_type.shape) if kind.tensor_type.HasField("shape") else 0
            code, value = TENSOR_TYPE, self.table(2, (0, kind.tensor_type.elem_type, b.PrependInt32Slot), (1, shape))
        elif which == "sequence_type":
            code, value = SEQUENCE_TYPE, self.table(1, (0, self.type(kind.sequence_type.elem_type)))
        elif which == "map_type":
            element = self.type(kind.map_type.value_type)
            code, value = MAP_TYPE, self.table(2, (0, kind.map_type.key_type, b.PrependInt32Slot), (1, element))
        else:
            raise InvalidModelError(f"expected tensors, sequences and maps in the ORT format, got {which}")
        return self.table(3, (0, self.text(kind.denotation)), (1, code, b.PrependUint8Slot), (2, value))

    def shape(self, shape: TensorShapeProto) -> Offset:
        return self.table(1, (0, self.vector([self.dimension(dim) for dim in shape.dim])))

    def dimension(self, dim: TensorShapeProto.Dimension) -> Offset:
        b = self.builder
        if dim.HasField("dim_value"):
            value = self.table(3, (0, DIMENSION_SIZE, b.PrependInt8Slot), (1, dim.dim_value, b.PrependInt64Slot))
        elif dim.dim_param:
            name = self.text(dim.dim_param)
            value = self.table(3, (0, DIMENSION_NAME, b.PrependInt8Slot), (2, name))
        else:
            value = self.table(3)
        return self.table(2, (0, value), (1, self.text("")))

    def tensor(self, tensor: TensorProto) -> Offset:
        b = self.builder
        strings = data = 0
        if tensor.data_type == NUMBERS["string"]:
            strings = self.texts(tensor.string_data)
        else:
            raw = tensor.raw_data if tensor.HasField("raw_data") else from_array(to_array(tensor, None)).raw_data
            b.StartVector(1, len(raw), ALIGNMENT_OF_DATA)
            b.head = b.Head() - len(raw)
            b.Bytes[b.Head() : b.Head() + len(raw)] = raw
            data = int(b.EndVector())
        dims = self.numbers(tensor.dims, 8, b.PrependInt64)
        return self.table(7, (0, self.text(tensor.name)), (1, self.text("")), (2, dims), (3, tensor.data_type, b.PrependInt32Slot), (4, data), (5, strings),
                          (6, -1, lambda slot, value, default: b.PrependInt64Slot(slot, value, -1)))

    def node(self, node: NodeProto, index: int) -> Offset:
        b = self.builder
        attributes = self.vector([self.attribute(attribute) for attribute in node.attribute])
        counts = self.numbers([1] * len(node.input), 4, b.PrependInt32)
        return self.table(13, (0, self.text(node.name)), (1, self.text("")), (2, self.text(node.domain)), (3, self.since(node), b.PrependInt32Slot),
                          (4, index, b.PrependUint32Slot), (5, self.text(node.op_type)), (7, self.text("")), (8, self.texts(node.input)),
                          (9, self.texts(node.output)), (10, attributes), (11, counts), (12, self.texts(())))

    def since(self, node: NodeProto) -> int:
        """Return the version in which the node's operator got the form that the model's opset selects."""
        if node.domain not in ("", "ai.onnx"):
            return 1
        try:
            return int(self.definitions.get_schema(node.op_type, self.opsets.get("", 1), "").since_version)
        except self.definitions.SchemaError:
            return DEFAULT_DOMAIN_SINCE.get(node.op_type, 1)

    def attribute(self, attribute: AttributeProto) -> Offset:
        b, a = self.builder, AttributeType
        kind = attribute.type
        makers: dict[int, Callable[[], Field]] = {
            a.FLOAT: lambda: (3, attribute.f, b.PrependFloat32Slot), a.INT: lambda: (4, attribute.i, b.PrependInt64Slot),
            a.STRING: lambda: (5, self.text(attribute.s)), a.TENSOR: lambda: (6, self.tensor(attribute.t)), a.GRAPH: lambda: (7, self.graph(attribute.g)),
            a.FLOATS: lambda: (8, self.numbers(attribute.floats, 4, b.PrependFloat32)), a.INTS: lambda: (9, self.numbers(attribute.ints, 8, b.PrependInt64)),
            a.STRINGS: lambda: (10, self.texts(attribute.strings)), a.TENSORS: lambda: (11, self.vector([self.tensor(t) for t in attribute.tensors])),
            a.GRAPHS: lambda: (12, self.vector([self.graph(g) for g in attribute.graphs]))}
        if kind not in makers:
            raise InvalidModelError(f"expected an attribute that the ORT format can hold, got {attribute.name!r} of type {kind}")
        value = makers[kind]()
        return self.table(13, (0, self.text(attribute.name)), (1, self.text("")), (2, kind, b.PrependInt32Slot), value)

    def kernel_types(self, graph: GraphProto) -> Offset:
        """Write, for every operator of the graph, which of its arguments share a type; sorted, for the reader uses binary search."""
        b = self.builder
        entries = []
        for domain, op_type, since in sorted({(n.domain if n.domain != "ai.onnx" else "", n.op_type, self.since(n)) for n in nodes_of(graph)}, key=operator_id):
            types = argument_types(op_type, domain, self.opsets.get(domain, 1))
            if types is None:
                raise InvalidModelError(f"expected operators that onnxruntime-training has, for the ORT format, got {domain}::{op_type}")
            rows = []
            for name, arguments in sorted(types.items()):
                places = self.vector([self.table(2, (0, side, b.PrependInt8Slot), (1, number, b.PrependUint32Slot)) for side, number in arguments])
                rows.append(self.table(2, (0, self.text(name)), (1, places)))
            entries.append(self.table(2, (0, self.text(operator_id((domain, op_type, since)))), (1, self.vector(rows))))
        return self.table(1, (0, self.vector(entries)))

    def edges(self, graph: GraphProto) -> Offset:
        """Return, per node, the nodes of its inputs and outputs, each edge with both argument numbers."""
        producers = {name: (index, k) for index, node in enumerate(graph.node) for k, name in enumerate(node.output) if name}
        into: list[list[tuple[int, int, int]]] = [[] for _ in graph.node]
        out: list[list[tuple[int, int, int]]] = [[] for _ in graph.node]
        for index, node in enumerate(graph.node):
            for k, name in enumerate(node.input):
                if name in producers:
                    source, argument = producers[name]
                    into[index].append((source, argument, k))
                    out[source].append((index, argument, k))
        return self.vector([self.table(3, (0, index, self.builder.PrependUint32Slot), (1, self.edge_ends(into[index])), (2, self.edge_ends(out[index])))
                            for index in range(len(graph.node))])

    def edge_ends(self, ends: Sequence[tuple[int, int, int]]) -> Offset:
        """Add a vector of structs (node, its argument, the other's argument)."""
        b = self.builder
        b.StartVector(12, len(ends), 4)
        for node, source, target in sorted(ends, reverse=True):
            b.Prep(4, 12)
            b.PrependInt32(target)
            b.PrependInt32(source)
            b.PrependUint32(node)
        return int(b.EndVector())
