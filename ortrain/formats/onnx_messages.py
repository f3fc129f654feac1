"""The messages of ONNX's file format (onnx/onnx-ml.proto), with the numbers and kinds of their fields.

tests/formats/test_onnx_messages.py compares them with the onnx package's own descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from ortrain.formats.protobuf import Message, packed, repeated, single

Bytes = bytes | memoryview


class AttributeType(IntEnum):
    """The kinds of attributes."""

    UNDEFINED, FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS, SPARSE_TENSOR, SPARSE_TENSORS, TYPE_PROTO, TYPE_PROTOS = range(15)


class AttributeProto(Message):
    name: str = single(1, "string")
    ref_attr_name: str = single(21, "string")
    doc_string: str = single(13, "string")
    type: int = single(20, "enum")
    f: float = single(2, "float")
    i: int = single(3, "int64")
    s: Bytes = single(4, "bytes")
    t: TensorProto = single(5, "TensorProto")
    g: GraphProto = single(6, "GraphProto")
    sparse_tensor: SparseTensorProto = single(22, "SparseTensorProto")
    tp: TypeProto = single(14, "TypeProto")
    floats: Sequence[float] = repeated(7, "float")
    ints: Sequence[int] = repeated(8, "int64")
    strings: Sequence[Bytes] = repeated(9, "bytes")
    tensors: Sequence[TensorProto] = repeated(10, "TensorProto")
    graphs: Sequence[GraphProto] = repeated(11, "GraphProto")
    sparse_tensors: Sequence[SparseTensorProto] = repeated(23, "SparseTensorProto")
    type_protos: Sequence[TypeProto] = repeated(15, "TypeProto")


class ValueInfoProto(Message):
    name: str = single(1, "string")
    type: TypeProto = single(2, "TypeProto")
    doc_string: str = single(3, "string")
    metadata_props: Sequence[StringStringEntryProto] = repeated(4, "StringStringEntryProto")


class NodeProto(Message):
    input: Sequence[str] = repeated(1, "string")
    output: Sequence[str] = repeated(2, "string")
    name: str = single(3, "string")
    op_type: str = single(4, "string")
    domain: str = single(7, "string")
    overload: str = single(8, "string")
    attribute: Sequence[AttributeProto] = repeated(5, "AttributeProto")
    doc_string: str = single(6, "string")
    metadata_props: Sequence[StringStringEntryProto] = repeated(9, "StringStringEntryProto")
    device_configurations: Sequence[NodeDeviceConfigurationProto] = repeated(10, "NodeDeviceConfigurationProto")


class IntIntListEntryProto(Message):
    key: int = single(1, "int64")
    value: Sequence[int] = repeated(2, "int64")


class NodeDeviceConfigurationProto(Message):
    configuration_id: str = single(1, "string")
    sharding_spec: Sequence[ShardingSpecProto] = repeated(2, "ShardingSpecProto")
    pipeline_stage: int = single(3, "int32")


class ShardingSpecProto(Message):
    tensor_name: str = single(1, "string")
    device: Sequence[int] = repeated(2, "int64")
    index_to_device_group_map: Sequence[IntIntListEntryProto] = repeated(3, "IntIntListEntryProto")
    sharded_dim: Sequence[ShardedDimProto] = repeated(4, "ShardedDimProto")


class ShardedDimProto(Message):
    axis: int = single(1, "int64")
    simple_sharding: Sequence[SimpleShardedDimProto] = repeated(2, "SimpleShardedDimProto")


class SimpleShardedDimProto(Message):
    dim_value: int = single(1, "int64", oneof="dim")
    dim_param: str = single(2, "string", oneof="dim")
    num_shards: int = single(3, "int64")


class TrainingInfoProto(Message):
    initialization: GraphProto = single(1, "GraphProto")
    algorithm: GraphProto = single(2, "GraphProto")
    initialization_binding: Sequence[StringStringEntryProto] = repeated(3, "StringStringEntryProto")
    update_binding: Sequence[StringStringEntryProto] = repeated(4, "StringStringEntryProto")


class ModelProto(Message):
    ir_version: int = single(1, "int64")
    opset_import: Sequence[OperatorSetIdProto] = repeated(8, "OperatorSetIdProto")
    producer_name: str = single(2, "string")
    producer_version: str = single(3, "string")
    domain: str = single(4, "string")
    model_version: int = single(5, "int64")
    doc_string: str = single(6, "string")
    graph: GraphProto = single(7, "GraphProto")
    metadata_props: Sequence[StringStringEntryProto] = repeated(14, "StringStringEntryProto")
    training_info: Sequence[TrainingInfoProto] = repeated(20, "TrainingInfoProto")
    functions: Sequence[FunctionProto] = repeated(25, "FunctionProto")
    configuration: Sequence[DeviceConfigurationProto] = repeated(26, "DeviceConfigurationProto")


class DeviceConfigurationProto(Message):
    name: str = single(1, "string")
    num_devices: int = single(2, "int32")
    device: Sequence[str] = repeated(3, "string")


class StringStringEntryProto(Message):
    key: str = single(1, "string")
    value: str = single(2, "string")


class TensorAnnotation(Message):
    tensor_name: str = single(1, "string")
    quant_parameter_tensor_names: Sequence[StringStringEntryProto] = repeated(2, "StringStringEntryProto")


class GraphProto(Message):
    node: Sequence[NodeProto] = repeated(1, "NodeProto")
    name: str = single(2, "string")
    initializer: Sequence[TensorProto] = repeated(5, "TensorProto")
    sparse_initializer: Sequence[SparseTensorProto] = repeated(15, "SparseTensorProto")
    doc_string: str = single(10, "string")
    input: Sequence[ValueInfoProto] = repeated(11, "ValueInfoProto")
    output: Sequence[ValueInfoProto] = repeated(12, "ValueInfoProto")
    value_info: Sequence[ValueInfoProto] = repeated(13, "ValueInfoProto")
    quantization_annotation: Sequence[TensorAnnotation] = repeated(14, "TensorAnnotation")
    metadata_props: Sequence[StringStringEntryProto] = repeated(16, "StringStringEntryProto")


class TensorProto(Message):
    class Segment(Message):
        begin: int = single(1, "int64")
        end: int = single(2, "int64")

    class DataLocation(IntEnum):
        DEFAULT, EXTERNAL = range(2)

    dims: Sequence[int] = repeated(1, "int64")
    data_type: int = single(2, "int32")
    segment: TensorProto.Segment = single(3, "TensorProto.Segment")
    float_data: np.ndarray = packed(4, "float")
    int32_data: np.ndarray = packed(5, "int32")
    string_data: Sequence[Bytes] = repeated(6, "bytes")
    int64_data: np.ndarray = packed(7, "int64")
    name: str = single(8, "string")
    doc_string: str = single(12, "string")
    raw_data: Bytes = single(9, "bytes")
    external_data: Sequence[StringStringEntryProto] = repeated(13, "StringStringEntryProto")
    data_location: int = single(14, "enum")
    double_data: np.ndarray = packed(10, "double")
    uint64_data: np.ndarray = packed(11, "uint64")
    metadata_props: Sequence[StringStringEntryProto] = repeated(16, "StringStringEntryProto")


class SparseTensorProto(Message):
    values: TensorProto = single(1, "TensorProto")
    indices: TensorProto = single(2, "TensorProto")
    dims: Sequence[int] = repeated(3, "int64")


class TensorShapeProto(Message):
    class Dimension(Message):
        dim_value: int = single(1, "int64", oneof="value")
        dim_param: str = single(2, "string", oneof="value")
        denotation: str = single(3, "string")

    dim: Sequence[TensorShapeProto.Dimension] = repeated(1, "TensorShapeProto.Dimension")


class TypeProto(Message):
    class Tensor(Message):
        elem_type: int = single(1, "int32")
        shape: TensorShapeProto = single(2, "TensorShapeProto")

    class Sequence(Message):
        elem_type: TypeProto = single(1, "TypeProto")

    class Map(Message):
        key_type: int = single(1, "int32")
        value_type: TypeProto = single(2, "TypeProto")

    class Optional(Message):
        elem_type: TypeProto = single(1, "TypeProto")

    class SparseTensor(Message):
        elem_type: int = single(1, "int32")
        shape: TensorShapeProto = single(2, "TensorShapeProto")

    class Opaque(Message):
        domain: str = single(1, "string")
        name: str = single(2, "string")

    tensor_type: TypeProto.Tensor = single(1, "TypeProto.Tensor", oneof="value")
    sequence_type: TypeProto.Sequence = single(4, "TypeProto.Sequence", oneof="value")
    map_type: TypeProto.Map = single(5, "TypeProto.Map", oneof="value")
    optional_type: TypeProto.Optional = single(9, "TypeProto.Optional", oneof="value")
    sparse_tensor_type: TypeProto.SparseTensor = single(8, "TypeProto.SparseTensor", oneof="value")
    opaque_type: TypeProto.Opaque = single(7, "TypeProto.Opaque", oneof="value")
    denotation: str = single(6, "string")


class OperatorSetIdProto(Message):
    domain: str = single(1, "string")
    version: int = single(2, "int64")


class FunctionProto(Message):
    name: str = single(1, "string")
    input: Sequence[str] = repeated(4, "string")
    output: Sequence[str] = repeated(5, "string")
    attribute: Sequence[str] = repeated(6, "string")
    attribute_proto: Sequence[AttributeProto] = repeated(11, "AttributeProto")
    node: Sequence[NodeProto] = repeated(7, "NodeProto")
    doc_string: str = single(8, "string")
    opset_import: Sequence[OperatorSetIdProto] = repeated(9, "OperatorSetIdProto")
    domain: str = single(10, "string")
    overload: str = single(13, "string")
    value_info: Sequence[ValueInfoProto] = repeated(12, "ValueInfoProto")
    metadata_props: Sequence[StringStringEntryProto] = repeated(14, "StringStringEntryProto")
