"""ONNX models in and out: onnx.ModelProto and files <-> ortrain.ir."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from ortrain.dtypes import NAMES, NUMBERS, name_of
from ortrain.errors import ArtifactNotFoundError, InvalidModelError
from ortrain.formats.atomic import replace_file
from ortrain.ir import Attribute, Dim, Graph, Model, Node, TensorType

LARGEST_INLINE = 2**31 - 2**24
"""Bytes; protobuf refuses messages of 2 GiB, and the graph itself needs some."""

A = onnx.AttributeProto


def read_model(source: Any) -> Model:
    """A model from a path, bytes or an onnx.ModelProto.

    Raises ArtifactNotFoundError when the file is not there, InvalidModelError when it is no ONNX model."""
    if isinstance(source, onnx.ModelProto):
        return _model(source, None)
    if isinstance(source, bytes | bytearray | memoryview):
        return _model(_parse(bytes(source), "the given bytes"), None)
    if not isinstance(source, str | os.PathLike):
        raise InvalidModelError(f"Please pass in either a path, bytes or an ONNX ModelProto for the model: got {type(source).__name__}")
    path = Path(source)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactNotFoundError(f"expected a model file, found none that can be read at {str(path)!r}: {error.strerror}") from error
    return _model(_parse(data, str(path)), path.parent)


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise InvalidModelError(f"expected an ONNX model in {where}, got {len(data)} bytes that are none") from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(f"expected an ONNX model with a graph and opset imports in {where}, got none")
    return proto


def _model(proto: onnx.ModelProto, folder: Path | None) -> Model:
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    reader = _Reader(folder)
    return Model(reader.graph(proto.graph), opsets, proto.ir_version, proto.producer_name)


class _Reader:
    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.unknown = 0

    def graph(self, proto: onnx.GraphProto) -> Graph:
        initializers = {tensor.name: self.array(tensor) for tensor in proto.initializer}
        types = {v.name: kind for v in (*proto.input, *proto.output, *proto.value_info) if (kind := self.type(v.type)) is not None}
        return Graph(
            name=proto.name or "graph",
            inputs=[v.name for v in proto.input if v.name not in initializers],
            outputs=[v.name for v in proto.output],
            nodes=[self.node(n) for n in proto.node],
            initializers=initializers,
            types={name: kind for name, kind in types.items() if name not in initializers},
        )

    def node(self, proto: onnx.NodeProto) -> Node:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        return Node(proto.op_type, list(proto.input), list(proto.output), proto.name, domain, {a.name: self.attribute(a) for a in proto.attribute})

    def attribute(self, a: onnx.AttributeProto) -> Attribute:
        single = {A.INT: lambda: a.i, A.FLOAT: lambda: a.f, A.STRING: lambda: _text(a.s), A.TENSOR: lambda: self.array(a.t), A.GRAPH: lambda: self.graph(a.g)}
        several = {A.INTS: lambda: tuple(a.ints), A.FLOATS: lambda: tuple(a.floats), A.STRINGS: lambda: tuple(map(_text, a.strings)),
                   A.TENSORS: lambda: tuple(map(self.array, a.tensors)), A.GRAPHS: lambda: tuple(map(self.graph, a.graphs))}
        convert = (single | several).get(a.type)
        if convert is None:
            raise InvalidModelError(f"expected an attribute of a known kind, got kind {a.type} (attribute {a.name!r})")
        return convert()

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        try:
            if external_data_helper.uses_external_data(tensor):
                if self.folder is None:
                    raise InvalidModelError(f"expected a path for a model with external data (tensor {tensor.name!r}), got the model alone")
                external_data_helper.load_external_data_for_tensor(tensor, str(self.folder))
            array = numpy_helper.to_array(tensor)
        except InvalidModelError:
            raise
        except Exception as error:
            raise InvalidModelError(f"expected tensor {tensor.name!r} to hold {list(tensor.dims)} elements, got: {error}") from error
        return np.ascontiguousarray(array).reshape(array.shape)

    def type(self, proto: onnx.TypeProto) -> TensorType | None:
        sequence = proto.HasField("sequence_type")
        tensor = proto.sequence_type.elem_type.tensor_type if sequence else proto.tensor_type
        name = NAMES.get(tensor.elem_type)
        if name is None:
            return None
        shape = tuple(map(self.dim, tensor.shape.dim)) if tensor.HasField("shape") else None
        return TensorType(name, shape, sequence)

    def dim(self, proto: onnx.TensorShapeProto.Dimension) -> Dim:
        if proto.HasField("dim_value") and proto.dim_value >= 0:
            return int(proto.dim_value)
        if proto.dim_param:
            return str(proto.dim_param)
        self.unknown += 1
        return f"unk__{self.unknown - 1}"


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def to_proto(model: Model) -> onnx.ModelProto:
    """The model as an onnx.ModelProto."""
    proto = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer)
    for domain, version in model.opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    _write_graph(model.graph, proto.graph)
    return proto


def _write_graph(graph: Graph, proto: onnx.GraphProto) -> None:
    proto.name = graph.name
    proto.initializer.extend(_tensor(array, name) for name, array in graph.initializers.items())
    for node in graph.nodes:
        made = proto.node.add(op_type=node.op_type, name=node.name, domain=node.domain, input=node.inputs, output=node.outputs)
        made.attribute.extend(_attribute(name, value) for name, value in node.attributes.items())
    interface = {*graph.inputs, *graph.outputs}
    _write_values(graph, graph.inputs, proto.input)
    _write_values(graph, graph.outputs, proto.output)
    _write_values(graph, [name for name in graph.types if name not in interface and name not in graph.initializers], proto.value_info)


def _write_values(graph: Graph, names: Iterable[str], values: Any) -> None:
    for name in names:
        value = values.add(name=name)
        kind = graph.types.get(name)
        if kind is None:
            continue
        tensor = value.type.sequence_type.elem_type.tensor_type if kind.sequence else value.type.tensor_type
        tensor.elem_type = NUMBERS[kind.dtype]
        if kind.shape is not None:
            tensor.shape.SetInParent()
            for dim in kind.shape:
                if isinstance(dim, int):
                    tensor.shape.dim.add(dim_value=dim)
                elif dim.startswith("unk__"):
                    tensor.shape.dim.add()
                else:
                    tensor.shape.dim.add(dim_param=dim)


def _tensor(array: np.ndarray, name: str = "") -> onnx.TensorProto:
    if name_of(array.dtype) == "string":
        proto = onnx.TensorProto(dims=array.shape, data_type=onnx.TensorProto.STRING, name=name)
        proto.string_data.extend(v if isinstance(v, bytes) else str(v).encode() for v in array.ravel())
        return proto
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _attribute(name: str, value: Attribute) -> onnx.AttributeProto:
    proto = A(name=name)
    if isinstance(value, bool | int | np.integer):
        proto.type, proto.i = A.INT, int(value)
    elif isinstance(value, float | np.floating):
        proto.type, proto.f = A.FLOAT, float(value)
    elif isinstance(value, str | bytes):
        proto.type, proto.s = A.STRING, value.encode() if isinstance(value, str) else value
    elif isinstance(value, np.ndarray):
        proto.type = A.TENSOR
        proto.t.CopyFrom(_tensor(value))
    elif isinstance(value, Graph):
        proto.type = A.GRAPH
        _write_graph(value, proto.g)
    else:
        _list_attribute(proto, tuple(value))
    return proto


def _list_attribute(proto: onnx.AttributeProto, values: tuple[Any, ...]) -> None:
    if all(isinstance(v, int | np.integer) for v in values):
        proto.type = A.INTS
        proto.ints.extend(map(int, values))
    elif all(isinstance(v, int | float | np.number) for v in values):
        proto.type = A.FLOATS
        proto.floats.extend(map(float, values))
    elif all(isinstance(v, str | bytes) for v in values):
        proto.type = A.STRINGS
        proto.strings.extend(v.encode() if isinstance(v, str) else v for v in values)
    elif all(isinstance(v, np.ndarray) for v in values):
        proto.type = A.TENSORS
        proto.tensors.extend(map(_tensor, values))
    else:
        proto.type = A.GRAPHS
        for value in values:
            _write_graph(value, proto.graphs.add())


def write_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Writes a model file, whole or not at all; above 2 GB its tensors go to `<path>.data`."""
    target = Path(path)
    proto = to_proto(model)
    if sum(array.nbytes for array in model.graph.initializers.values() if array.dtype != object) > LARGEST_INLINE:
        external_data_helper.convert_model_to_external_data(proto, location=target.name + ".data")
        external_data_helper.write_external_data_tensors(proto, str(target.parent))
    replace_file(target, proto.SerializeToString())
