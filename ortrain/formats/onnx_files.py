"""Reading and writing ONNX models: onnx.ModelProto and files <-> ortrain.ir."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from ortrain.dtypes import NAMES, NUMBERS, name_of
from ortrain.errors import ArtifactNotFoundError, InvalidModelError
from ortrain.formats.atomic_files import replace_files
from ortrain.formats.ort_format import is_ort_model, parse_ort_model
from ortrain.ir import Attribute, Dim, Graph, Model, Node, TensorType

MAX_INLINE = 2**31 - 2**24
"""Bytes: protobuf refuses messages of 2 GiB, and the graph itself needs some."""

MIN_EXTERNAL_BYTES = 1024
"""Bytes: smaller tensors stay in the model file when the others go to the external data file."""
PAGE = 4096
"""Bytes: tensors in an external data file begin on a page, so that readers can map them."""
MAX_SPARSE = 2**30
"""Bytes of a sparse initializer added dense; the size of the file does not bound it."""

_UNNAMED = re.compile(r"unk__\d+")
"""Symbols for dimensions without a name."""

A = onnx.AttributeProto


def read_model(source: Any) -> Model:
    """Read a model from a path or bytes (ONNX or the ORT format), or from an onnx.ModelProto.

    Model-local functions are omitted; ortrain.loading.loader inlines them.
    Raises ArtifactNotFoundError when the file does not exist, InvalidModelError when it is not an ONNX model."""
    if isinstance(source, onnx.ModelProto):
        return _model(source, "the given ModelProto", None)
    if isinstance(source, bytes | bytearray | memoryview):
        where = "the given bytes"
        return _model(_parse(bytes(source), where), where, None)
    if not isinstance(source, str | os.PathLike):
        raise InvalidModelError(f"Please pass in either a path, bytes or an ONNX ModelProto for the model: got {type(source).__name__}")
    path = Path(source)
    return _model(_parse(_read(path), str(path)), str(path), path.parent)      # the bytes of the file are freed before arrays are made


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ArtifactNotFoundError(f"expected a model file, found none that can be read at {str(path)!r}: {error}") from error


def proto_of(source: Any) -> onnx.ModelProto:
    """Return the onnx.ModelProto of a source that read_model has read, external data included."""
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes(source), "the given bytes")
    proto = _parse(Path(source).read_bytes(), str(source))
    external_data_helper.load_external_data_for_model(proto, str(Path(source).parent))
    return proto


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    if is_ort_model(data):
        return parse_ort_model(data, where)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise InvalidModelError(f"expected an ONNX model in {where}, got {len(data)} bytes that cannot be parsed") from error
    return proto


def _model(proto: onnx.ModelProto, where: str, folder: Path | None) -> Model:
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(f"expected an ONNX model with a graph and opset imports in {where}, got none")
    opsets = {"" if o.domain == "ai.onnx" else _utf8(o.domain, "the domain of an opset import"): o.version for o in proto.opset_import}
    reader = _Reader(folder, set(_symbols(proto.graph)))
    metadata = {_utf8(entry.key, "a key of the metadata"): _utf8(entry.value, f"the metadata {entry.key!r}") for entry in proto.metadata_props}
    return Model(reader.graph(proto.graph), opsets, proto.ir_version, _utf8(proto.producer_name, "the producer's name"), metadata)


def _utf8(text: str | bytes, what: str) -> str:
    """Return a text of the model, which protobuf gives as bytes where it is not UTF-8. Raises InvalidModelError for those."""
    if not isinstance(text, str):
        raise InvalidModelError(f"expected text in UTF-8 as {what}, got {text!r}")
    return text


def _symbols(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of dimensions in a graph and its subgraphs."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
        yield from (dim.dim_param for dim in kind.tensor_type.shape.dim if dim.dim_param)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _symbols(inner)


class _Reader:
    """Converts protos to the IR. folder: where external data is. symbols: names of dimensions that are in use."""

    def __init__(self, folder: Path | None, symbols: set[str]) -> None:
        self.folder = folder
        self.symbols = symbols
        self.unknown = 0

    def graph(self, proto: onnx.GraphProto) -> Graph:
        initializers: dict[str, np.ndarray] = {}
        arrays = [(tensor.name, self.array(tensor)) for tensor in proto.initializer]
        for name, array in [*arrays, *((tensor.values.name, self.dense(tensor)) for tensor in proto.sparse_initializer)]:
            if name in initializers:
                raise InvalidModelError(f"expected every initializer once, got two named {name!r}")
            initializers[_utf8(name, "the name of an initializer")] = array
        values = (*proto.input, *proto.output, *proto.value_info)
        types = {_utf8(v.name, "the name of a value"): kind for v in values if (kind := self.type(v.type)) is not None}
        return Graph(
            name=_utf8(proto.name, "the name of a graph") or "graph",
            inputs=[_utf8(v.name, "the name of a graph input") for v in proto.input if v.name not in initializers],
            outputs=[_utf8(v.name, "the name of a graph output") for v in proto.output],
            nodes=[self.node(n) for n in proto.node],
            initializers=initializers,
            types={name: kind for name, kind in types.items() if name not in initializers},
        )

    def node(self, proto: onnx.NodeProto) -> Node:
        def text(value: str | bytes, what: str) -> str:
            return value if isinstance(value, str) else _utf8(value, f"{what} of node {proto.name or list(proto.output)!r}")

        domain = "" if proto.domain == "ai.onnx" else text(proto.domain, "the domain")
        attributes = {text(a.name, "an attribute's name"): self.attribute(a) for a in proto.attribute}
        inputs, outputs = [text(name, "an input") for name in proto.input], [text(name, "an output") for name in proto.output]
        return Node(text(proto.op_type, "the operator"), inputs, outputs, text(proto.name, "the name"), domain, attributes)

    def attribute(self, a: onnx.AttributeProto) -> Attribute:
        single = {A.INT: lambda: a.i, A.FLOAT: lambda: a.f, A.STRING: lambda: _text(a.s),
                  A.TENSOR: lambda: self.array(a.t), A.GRAPH: lambda: self.graph(a.g)}
        several = {A.INTS: lambda: tuple(a.ints), A.FLOATS: lambda: tuple(a.floats), A.STRINGS: lambda: tuple(map(_text, a.strings)),
                   A.TENSORS: lambda: tuple(map(self.array, a.tensors)), A.GRAPHS: lambda: tuple(map(self.graph, a.graphs))}
        convert = (single | several).get(a.type)
        if convert is None:
            raise InvalidModelError(f"expected an attribute of a known kind, got kind {a.type} (attribute {a.name!r})")
        return convert()

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        if any(dim < 0 for dim in tensor.dims):
            raise InvalidModelError(f"expected dimensions >= 0, got {list(tensor.dims)} (tensor {tensor.name!r})")
        try:
            if external_data_helper.uses_external_data(tensor):
                if self.folder is None:
                    raise InvalidModelError(f"expected a path for a model with external data (tensor {tensor.name!r}), got the model alone")
                external_data_helper.load_external_data_for_tensor(tensor, str(self.folder))
            array = numpy_helper.to_array(tensor)
            if tensor.data_type in NAMES and name_of(array.dtype) != NAMES[tensor.data_type]:
                raise InvalidModelError(f"expected ml_dtypes for {NAMES[tensor.data_type]}, which onnx installs from version 1.19 on (tensor {tensor.name!r})")
        except InvalidModelError:
            raise
        except Exception as error:
            raise InvalidModelError(f"expected tensor {tensor.name!r} to hold {list(tensor.dims)} elements, got: {error}") from error
        return np.ascontiguousarray(array).reshape(array.shape)

    def dense(self, proto: onnx.SparseTensorProto) -> np.ndarray:
        """Convert a sparse tensor to a dense array: values [n] at indices [n] into the flat tensor, or [n, rank]."""
        values, indices, dims = self.array(proto.values), self.array(proto.indices), tuple(proto.dims)
        name = proto.values.name
        if any(dim < 0 for dim in dims) or prod(dims) * values.itemsize > MAX_SPARSE:
            raise InvalidModelError(f"expected a sparse tensor of at most {MAX_SPARSE} bytes, got shape {list(dims)} (tensor {name!r})")
        if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in ((values.size,), (values.size, len(dims))):
            raise InvalidModelError(f"expected one int64 index per value, got {indices.dtype}{list(indices.shape)} "
                                    f"for values {list(values.shape)} (tensor {name!r})")
        result = np.zeros(dims, values.dtype)
        try:
            positions = np.ravel_multi_index(tuple(indices.T), dims) if indices.ndim == 2 else indices
            if (positions < 0).any():
                raise IndexError("an index is negative")
            result.reshape(-1)[positions] = values
        except (IndexError, ValueError) as error:
            raise InvalidModelError(f"expected indices inside {list(dims)}, got others (tensor {name!r}): {error}") from error
        return result

    def type(self, proto: onnx.TypeProto) -> TensorType | None:
        optional = proto.HasField("optional_type")
        proto = proto.optional_type.elem_type if optional else proto
        sequence = proto.HasField("sequence_type")
        tensor = proto.sequence_type.elem_type.tensor_type if sequence else proto.tensor_type
        name = NAMES.get(tensor.elem_type)
        if name is None:
            return None
        shape = tuple(map(self.dim, tensor.shape.dim)) if tensor.HasField("shape") else None
        return TensorType(name, shape, sequence, optional)

    def dim(self, proto: onnx.TensorShapeProto.Dimension) -> Dim:
        if proto.HasField("dim_value") and proto.dim_value >= 0:
            return int(proto.dim_value)
        if proto.dim_param and proto.dim_param != "?":    # "?" means unknown, not "the same as every other ?"
            return _utf8(proto.dim_param, "the name of a dimension")
        while (symbol := f"unk__{self.unknown}") in self.symbols:
            self.unknown += 1
        self.unknown += 1
        return symbol


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


class _ExternalData:
    """Collects the tensors of an external data file."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.size = 0
        self.chunks: list[bytes | memoryview] = []

    def tensor(self, array: np.ndarray, name: str) -> onnx.TensorProto:
        """Return a tensor whose data is in the file; small tensors and strings contain their data."""
        number = NUMBERS.get(name_of(array.dtype))
        if array.nbytes < MIN_EXTERNAL_BYTES or array.dtype.hasobject or number is None:
            return _tensor(array, name)
        gap = -self.size % PAGE
        self.chunks += [bytes(gap), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]
        proto = onnx.TensorProto(dims=array.shape, data_type=number, name=name, data_location=onnx.TensorProto.EXTERNAL)
        for key, value in (("location", self.location), ("offset", str(self.size + gap)), ("length", str(array.nbytes))):
            proto.external_data.add(key=key, value=value)
        self.size += gap + array.nbytes
        return proto


def to_proto(model: Model) -> onnx.ModelProto:
    """Convert a model to an onnx.ModelProto."""
    return _proto(model, None)


def _proto(model: Model, external: _ExternalData | None) -> onnx.ModelProto:
    proto = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer)
    for domain, version in model.opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    for key, value in model.metadata.items():
        proto.metadata_props.add(key=key, value=value)
    _write_graph(model.graph, proto.graph, external)
    return proto


def _write_graph(graph: Graph, proto: onnx.GraphProto, external: _ExternalData | None = None) -> None:
    proto.name = graph.name
    store = external.tensor if external else _tensor
    proto.initializer.extend(store(array, name) for name, array in graph.initializers.items())
    for node in graph.nodes:
        added = proto.node.add(op_type=node.op_type, name=node.name, domain=node.domain or None, input=node.own_inputs, output=node.outputs)
        added.attribute.extend(_attribute(name, value) for name, value in node.attributes.items())
    interface = {*graph.inputs, *graph.outputs}
    _write_values(graph, graph.inputs, proto.input)
    _write_values(graph, graph.outputs, proto.output)
    _write_values(graph, [name for name in graph.types if name not in interface and name not in graph.initializers], proto.value_info)


def _write_values(graph: Graph, names: Iterable[str], values: Any) -> None:
    for name in names:
        value = values.add(name=name)
        kind = graph.types.get(name)
        if kind is None and name in graph.initializers:
            kind = TensorType.of(graph.initializers[name])
        if kind is None:
            continue
        outer = value.type.optional_type.elem_type if kind.optional else value.type
        tensor = outer.sequence_type.elem_type.tensor_type if kind.sequence else outer.tensor_type
        tensor.elem_type = NUMBERS[kind.dtype]
        if kind.shape is not None:
            tensor.shape.SetInParent()
            for dim in kind.shape:
                if isinstance(dim, int):
                    tensor.shape.dim.add(dim_value=dim)
                elif _UNNAMED.fullmatch(dim):
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
    """Write a model file atomically; above 2 GB its tensors go to `<path>.data`."""
    target = Path(path)
    size = sum(array.nbytes for array in model.graph.initializers.values())
    external = _ExternalData(f"{target.name}.data") if size > MAX_INLINE else None
    data = _proto(model, external).SerializeToString()
    files: dict[str | os.PathLike[str], Sequence[bytes | memoryview]] = {}
    if external:
        files[target.with_name(external.location)] = external.chunks
    files[target] = (data,)
    replace_files(files)
