"""Reading and writing ONNX models: files and onnx.ModelProto <-> ortrain.ir.

Files are read and written without the onnx package. An onnx.ModelProto is read as well, since its attributes are those of this package's messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.dtypes import NAMES, NUMBERS
from ortrain.errors import ArtifactNotFoundError, InvalidModelError
from ortrain.formats.atomic_files import replace_files
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
from ortrain.formats.onnx_tensors import ExternalData, from_array, to_array
from ortrain.formats.ort_format import is_ort_model, parse_ort_model
from ortrain.formats.protobuf import serialize
from ortrain.formats.protobuf_reader import Fail, parse, parse_file
from ortrain.ir import Attribute, Dim, Graph, Model, Node, TensorType
from ortrain.packages import require_onnx

if TYPE_CHECKING:
    import onnx

MAX_INLINE = 2**31 - 2**24
"""Bytes: protobuf refuses messages of 2 GiB, and the graph itself needs some."""
MAX_SPARSE = 2**30
"""Bytes of a sparse initializer added dense; the size of the file does not bound it."""

_UNNAMED = re.compile(r"unk__\d+")
"""Symbols for dimensions without a name."""


def read_model(source: Any) -> Model:
    """Read a model from a path or bytes (ONNX or the ORT format), or from an onnx.ModelProto.

    Model-local functions are omitted; ortrain.loading.loader inlines them.
    Raises ArtifactNotFoundError when the file does not exist, InvalidModelError when it is not an ONNX model."""
    return _model(read_message(source), _name_of(source), folder_of(source))


def folder_of(source: Any) -> Path | None:
    """Return the folder of a source of a model, in which its external data are; None for one that is not a path."""
    return Path(source).parent if isinstance(source, str | os.PathLike) else None


def read_message(source: Any) -> Any:
    """Read a source of read_model as a ModelProto without the external data of its tensors; an onnx.ModelProto is returned as it is. Raises as read_model."""
    if isinstance(source, ModelProto) or _is_of_onnx(source):
        return source
    where = _name_of(source)

    def fail(what: str) -> InvalidModelError:
        return InvalidModelError(f"expected an ONNX model in {where}: expected {what}")

    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        return parse_ort_model(data, where) if is_ort_model(data) else parse(ModelProto, data, fail)
    if not isinstance(source, str | os.PathLike):
        raise InvalidModelError(f"Please pass in either a path, bytes or an ONNX ModelProto for the model: got {type(source).__name__}")
    return _read_file(Path(source), where, fail)


def _read_file(path: Path, where: str, fail: Fail) -> ModelProto:
    try:
        with path.open("rb") as file:
            head = file.read(8)
            return parse_ort_model(head + file.read(), where) if is_ort_model(head) else parse_file(ModelProto, file, fail)
    except InvalidModelError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ArtifactNotFoundError(f"expected a model file, found none that can be read at {str(path)!r}: {error}") from error


def _name_of(source: Any) -> str:
    """Return what errors call a source of a model."""
    if isinstance(source, bytes | bytearray | memoryview):
        return "the given bytes"
    return str(source) if isinstance(source, str | os.PathLike) else "the given ModelProto"


def _is_of_onnx(source: Any) -> bool:
    """Return whether a source is a ModelProto of the onnx package, which whoever made it has imported: while another thread imports it, none is."""
    message = getattr(sys.modules.get("onnx"), "ModelProto", None)
    return message is not None and isinstance(source, message)


def _model(proto: Any, where: str, folder: Path | None) -> Model:
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(f"expected an ONNX model with a graph and opset imports in {where}, got none")
    opsets = {"" if o.domain == "ai.onnx" else _utf8(o.domain, "the domain of an opset import"): o.version for o in proto.opset_import}
    reader = _Reader(folder, set(_symbols(proto.graph)))
    metadata = {_utf8(entry.key, "a key of the metadata"): _utf8(entry.value, f"the metadata {entry.key!r}") for entry in proto.metadata_props}
    return Model(reader.graph(proto.graph), opsets, proto.ir_version, _utf8(proto.producer_name, "the producer's name"), metadata)


def _utf8(text: str | bytes, what: str) -> str:
    """Return a text of the model, which is bytes where it is not UTF-8. Raises InvalidModelError for those."""
    if not isinstance(text, str):
        raise InvalidModelError(f"expected text in UTF-8 as {what}, got {text!r}")
    return text


def _symbols(graph: Any) -> Iterator[str]:
    """Yield the names of dimensions in a graph and its subgraphs."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
        yield from (dim.dim_param for dim in kind.tensor_type.shape.dim if dim.dim_param)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _symbols(inner)


class _Reader:
    """Converts messages to the IR. folder: where external data is. symbols: names of dimensions that are in use."""

    def __init__(self, folder: Path | None, symbols: set[str]) -> None:
        self.folder = folder
        self.symbols = symbols
        self.unknown = 0

    def graph(self, proto: Any) -> Graph:
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

    def node(self, proto: Any) -> Node:
        def text(value: str | bytes, what: str) -> str:
            return value if isinstance(value, str) else _utf8(value, f"{what} of node {proto.name or list(proto.output)!r}")

        domain = "" if proto.domain == "ai.onnx" else text(proto.domain, "the domain")
        attributes = {text(a.name, "an attribute's name"): self.attribute(a) for a in proto.attribute}
        inputs, outputs = [text(name, "an input") for name in proto.input], [text(name, "an output") for name in proto.output]
        return Node(text(proto.op_type, "the operator"), inputs, outputs, text(proto.name, "the name"), domain, attributes)

    def attribute(self, a: Any) -> Attribute:
        kinds = AttributeType
        single = {kinds.INT: lambda: a.i, kinds.FLOAT: lambda: a.f, kinds.STRING: lambda: _text(a.s),
                  kinds.TENSOR: lambda: self.array(a.t), kinds.GRAPH: lambda: self.graph(a.g)}
        several = {kinds.INTS: lambda: tuple(a.ints), kinds.FLOATS: lambda: tuple(a.floats), kinds.STRINGS: lambda: tuple(map(_text, a.strings)),
                   kinds.TENSORS: lambda: tuple(map(self.array, a.tensors)), kinds.GRAPHS: lambda: tuple(map(self.graph, a.graphs))}
        convert = (single | several).get(a.type)
        if convert is None:
            raise InvalidModelError(f"expected an attribute of a known kind, got kind {a.type} (attribute {a.name!r})")
        return convert()

    def array(self, tensor: Any) -> np.ndarray:
        return to_array(tensor, self.folder)

    def dense(self, proto: Any) -> np.ndarray:
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

    def type(self, proto: Any) -> TensorType | None:
        optional = proto.HasField("optional_type")
        proto = proto.optional_type.elem_type if optional else proto
        sequence = proto.HasField("sequence_type")
        tensor = proto.sequence_type.elem_type.tensor_type if sequence else proto.tensor_type
        name = NAMES.get(tensor.elem_type)
        if name is None:
            return None
        shape = tuple(map(self.dim, tensor.shape.dim)) if tensor.HasField("shape") else None
        return TensorType(name, shape, sequence, optional)

    def dim(self, proto: Any) -> Dim:
        if proto.HasField("dim_value") and proto.dim_value >= 0:
            return int(proto.dim_value)
        if proto.dim_param and proto.dim_param != "?":    # "?" means unknown, not "the same as every other ?"
            return _utf8(proto.dim_param, "the name of a dimension")
        while (symbol := f"unk__{self.unknown}") in self.symbols:
            self.unknown += 1
        self.unknown += 1
        return symbol


def _text(value: bytes | memoryview) -> str | bytes:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return bytes(value)


# ---- writing


def write_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model file atomically; above 2 GB its tensors go to `<path>.data`."""
    target = Path(path)
    size = sum(array.nbytes for array in model.graph.initializers.values())
    external = ExternalData(f"{target.name}.data") if size > MAX_INLINE else None
    content = serialize(to_message(model, from_array if external is None else external.tensor))
    files: dict[str | os.PathLike[str], Sequence[bytes | memoryview]] = {}
    if external:
        files[target.with_name(external.location)] = external.chunks
    files[target] = content
    replace_files(files)


def to_proto(model: Model) -> onnx.ModelProto:
    """Convert a model to an onnx.ModelProto. Raises MissingPackageError where the onnx package is missing."""
    return as_proto(to_message(model))


def as_proto(message: Any, folder: Path | None = None) -> onnx.ModelProto:
    """Return a message of read_message as an onnx.ModelProto. folder: where the external data are that become part of it, None to leave them out.

    Raises MissingPackageError, InvalidModelError where there is no such data."""
    if _is_of_onnx(message):
        found: onnx.ModelProto = message
        return found
    proto: onnx.ModelProto = require_onnx("models as objects of onnx").ModelProto()
    proto.ParseFromString(b"".join(serialize(message)))
    if folder is not None:
        try:
            require_onnx("external data", "onnx.external_data_helper").load_external_data_for_model(proto, str(folder))
        except Exception as error:                             # the onnx package raises several types
            raise InvalidModelError(f"expected external data that can be read in {str(folder)!r}: {error}") from error
    return proto


def to_message(model: Model, store: Callable[[np.ndarray, str], TensorProto] = from_array) -> ModelProto:
    """Convert a model to a message of ONNX's file format. store: makes the tensors of its initializers from arrays and names."""
    return ModelProto(
        ir_version=model.ir_version, producer_name=model.producer, graph=_graph(model.graph, store),
        opset_import=[OperatorSetIdProto(domain=domain, version=version) for domain, version in model.opsets.items()],
        metadata_props=[StringStringEntryProto(key=key, value=value) for key, value in model.metadata.items()])


def _graph(graph: Graph, store: Callable[[np.ndarray, str], TensorProto] = from_array) -> GraphProto:
    interface = {*graph.inputs, *graph.outputs}
    return GraphProto(
        name=graph.name, initializer=[store(array, name) for name, array in graph.initializers.items()],
        node=[NodeProto(op_type=node.op_type, name=node.name, domain=node.domain or None, input=node.own_inputs, output=node.outputs,
                        attribute=[_attribute(name, value) for name, value in node.attributes.items()]) for node in graph.nodes],
        input=_values(graph, graph.inputs), output=_values(graph, graph.outputs),
        value_info=_values(graph, [name for name in graph.types if name not in interface and name not in graph.initializers]))


def _values(graph: Graph, names: Iterable[str]) -> list[ValueInfoProto]:
    kinds = {name: graph.types.get(name) or (TensorType.of(graph.initializers[name]) if name in graph.initializers else None) for name in names}
    return [ValueInfoProto(name=name, type=None if kind is None else _type(kind)) for name, kind in kinds.items()]


def _type(kind: TensorType) -> TypeProto:
    shape = None if kind.shape is None else TensorShapeProto(dim=[_dimension(dim) for dim in kind.shape])
    proto = TypeProto(tensor_type=TypeProto.Tensor(elem_type=NUMBERS[kind.dtype], shape=shape))
    if kind.sequence:
        proto = TypeProto(sequence_type=TypeProto.Sequence(elem_type=proto))
    return TypeProto(optional_type=TypeProto.Optional(elem_type=proto)) if kind.optional else proto


def _dimension(dim: Dim) -> TensorShapeProto.Dimension:
    if isinstance(dim, int):
        return TensorShapeProto.Dimension(dim_value=dim)
    return TensorShapeProto.Dimension(dim_param=None if _UNNAMED.fullmatch(dim) else dim)


def _attribute(name: str, value: Attribute) -> AttributeProto:
    kinds = AttributeType
    if isinstance(value, bool | int | np.integer):
        return AttributeProto(name=name, type=kinds.INT, i=int(value))
    if isinstance(value, float | np.floating):
        return AttributeProto(name=name, type=kinds.FLOAT, f=float(value))
    if isinstance(value, str | bytes):
        return AttributeProto(name=name, type=kinds.STRING, s=_encoded(value))
    if isinstance(value, np.ndarray):
        return AttributeProto(name=name, type=kinds.TENSOR, t=from_array(value))
    if isinstance(value, Graph):
        return AttributeProto(name=name, type=kinds.GRAPH, g=_graph(value))
    values = tuple(value)
    if all(isinstance(v, int | np.integer) for v in values):
        return AttributeProto(name=name, type=kinds.INTS, ints=list(map(int, values)))
    if all(isinstance(v, int | float | np.number) for v in values):
        return AttributeProto(name=name, type=kinds.FLOATS, floats=list(map(float, values)))
    if all(isinstance(v, str | bytes) for v in values):
        return AttributeProto(name=name, type=kinds.STRINGS, strings=list(map(_encoded, values)))
    if all(isinstance(v, np.ndarray) for v in values):
        return AttributeProto(name=name, type=kinds.TENSORS, tensors=list(map(from_array, values)))
    return AttributeProto(name=name, type=kinds.GRAPHS, graphs=list(map(_graph, values)))


def _encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
