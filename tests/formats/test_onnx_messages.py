"""The reader and writer of ONNX's file format agree with the onnx package: on its descriptors, on random messages, and on damaged ones."""

import io
import random
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.onnx_ml_pb2 import DESCRIPTOR

from ortrain.formats import onnx_messages, protobuf_reader
from ortrain.formats.onnx_messages import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto
from ortrain.formats.protobuf import PACKED, REPEATED, Message, encoded_varint, serialize
from ortrain.formats.protobuf_reader import parse, parse_file

GOLDEN = Path(__file__).parents[1] / "data" / "ort_golden"
FILES = sorted(GOLDEN.rglob("*.onnx"))
KINDS = ("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message", "bytes", "uint32", "enum")
"""The kinds of fields by their numbers in descriptors."""


class Malformed(ValueError):
    """What the reader raises in these tests."""


def read(kind: type[Message], data: bytes) -> Message:
    return parse(kind, data, Malformed)


def read_from_file(kind: type[Message], data: bytes, folder: Path) -> Message:
    (folder / "message").write_bytes(data)
    with (folder / "message").open("rb") as file:
        return parse_file(kind, file, Malformed)


def written(message: Message) -> bytes:
    return b"".join(serialize(message))


def descriptors(found=None):
    """Return qualified name -> descriptor of all messages of the onnx package."""
    named = {}
    for descriptor in (DESCRIPTOR.message_types_by_name if found is None else found.nested_types_by_name).values():
        named[descriptor.full_name.removeprefix("onnx.")] = descriptor
        named |= descriptors(descriptor)
    return named


# ---- the table of messages


def test_every_message_and_field_is_that_of_the_onnx_package():
    theirs = {}
    for name, descriptor in descriptors().items():
        theirs[name] = {field.name: (field.number, field.message_type.full_name.removeprefix("onnx.") if field.message_type else KINDS[field.type],
                                     "packed" if field.is_packed else "repeated" if field.is_repeated else "single",
                                     field.containing_oneof.name if field.containing_oneof else "") for field in descriptor.fields}
    ours = {name: {field.name: (field.number, field.kind, field.label, field.oneof) for field in kind.fields.values()}
            for name, kind in Message.classes.items() if kind.__module__ == onnx_messages.__name__}
    assert ours == theirs


def test_every_kind_of_attribute_and_of_location_has_the_number_of_the_onnx_package():
    assert {kind.name: kind.value for kind in onnx_messages.AttributeType} == dict(onnx.AttributeProto.AttributeType.items())
    assert {kind.name: kind.value for kind in onnx_messages.TensorProto.DataLocation} == dict(TensorProto.DataLocation.items())


# ---- valid messages


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_file_is_written_as_the_onnx_package_writes_it(path):
    data = path.read_bytes()
    assert written(read(ModelProto, data)) == onnx.ModelProto.FromString(data).SerializeToString(deterministic=True)


@st.composite
def messages(draw, descriptor, depth=0):
    """Draw a message of the onnx package with any of its fields."""
    message = getattr(onnx.onnx_ml_pb2, descriptor.name)() if descriptor.containing_type is None else instance(descriptor)
    for field in descriptor.fields:
        if draw(st.integers(0, 2 + depth)):
            continue
        values = draw(st.lists(values_of(field, depth), min_size=0 if field.is_repeated else 1, max_size=3 if field.is_repeated else 1))
        if field.message_type:
            for value in values:
                (getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)).CopyFrom(value)
        elif field.is_repeated:
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, values[0])
    return message


def instance(descriptor):
    """Return an empty message of a class inside another."""
    found = onnx.onnx_ml_pb2
    for name in descriptor.full_name.removeprefix("onnx.").split("."):
        found = getattr(found, name)
    return found()


def values_of(field, depth):
    if field.message_type:
        return messages(field.message_type, depth + 1) if depth < 4 else st.just(instance(field.message_type))
    if field.enum_type:
        return st.sampled_from([value.number for value in field.enum_type.values])
    sizes = {"int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1), "int32": (-(2**31), 2**31 - 1)}
    kind = KINDS[field.type]
    if kind in sizes:
        return st.integers(*sizes[kind])
    return {"float": st.floats(width=32), "double": st.floats(), "string": st.text(max_size=9), "bytes": st.binary(max_size=9)}[kind]


@settings(max_examples=300, deadline=None)
@given(messages(DESCRIPTOR.message_types_by_name["ModelProto"]) | messages(DESCRIPTOR.message_types_by_name["TensorProto"]))
def test_a_random_message_is_read_and_written_as_the_onnx_package_does(theirs):
    data = theirs.SerializeToString(deterministic=True)
    ours = read(Message.classes[type(theirs).__name__], data)
    assert_same(ours, theirs)
    assert written(ours) == data


def assert_same(ours: Message, theirs) -> None:
    """Compare a message with that of the onnx package, field by field."""
    for name, field in ours.fields.items():
        left, right = getattr(ours, name), getattr(theirs, name)
        if field.is_message and field.label == REPEATED:
            assert len(left) == len(right), name
            for a, b in zip(left, right, strict=True):
                assert_same(a, b)
        elif field.label == REPEATED or field.label == PACKED:
            np.testing.assert_array_equal([bytes(v) if isinstance(v, memoryview) else v for v in left], list(right), err_msg=name)
        else:
            assert ours.HasField(name) == theirs.HasField(name), name
            if field.is_message and ours.HasField(name):
                assert_same(left, right)
            elif not field.is_message:
                np.testing.assert_equal(bytes(left) if isinstance(left, memoryview) else left, right, err_msg=name)
    for oneof in {field.oneof for field in ours.fields.values()} - {""}:
        assert ours.WhichOneof(oneof) == theirs.WhichOneof(oneof)


@pytest.mark.parametrize("window", [16, 100, 1000])
def test_a_file_is_read_alike_through_windows_of_any_size(monkeypatch, tmp_path, window):
    monkeypatch.setattr(protobuf_reader, "WINDOW", window)
    for path in FILES[:12]:
        data = path.read_bytes()
        assert written(read_from_file(ModelProto, data, tmp_path)) == written(read(ModelProto, data))


def test_a_weight_of_a_file_has_memory_of_its_own(tmp_path):
    arrays = {name: np.full(2**19, number, np.float32) for number, name in enumerate("ab")}
    model = helper.make_model(helper.make_graph([], "g", [], [], [numpy_helper.from_array(array, name) for name, array in arrays.items()]))
    found = read_from_file(ModelProto, model.SerializeToString(), tmp_path).graph.initializer
    for tensor in found:
        np.testing.assert_array_equal(np.frombuffer(tensor.raw_data, np.float32), arrays[tensor.name])
        assert memoryview(tensor.raw_data.obj).nbytes == tensor.raw_data.nbytes
        assert tensor.raw_data.readonly


def test_numbers_that_repeat_are_read_packed_and_one_by_one():
    one_by_one = b"".join(b"\x20" + encoded_varint(number) for number in (1, 300, -5))           # int64_data is field 7; ints of attributes are 8
    attribute = read(AttributeProto, one_by_one.replace(b"\x20", b"\x40"))
    assert attribute.ints == [1, 300, -5]
    numbers = b"".join(map(encoded_varint, (1, 300, -5)))
    assert read(AttributeProto, b"\x42" + encoded_varint(len(numbers)) + numbers).ints == [1, 300, -5]
    tensor = read(onnx_messages.TensorProto, one_by_one.replace(b"\x20", b"\x38") + b"\x3a" + encoded_varint(len(numbers)) + numbers)
    assert tensor.int64_data.tolist() == [1, 300, -5] * 2
    assert read(onnx_messages.TensorProto, b"\x25" + struct.pack("<f", 0.5) + b"\x22\x04" + struct.pack("<f", 2)).float_data.tolist() == [0.5, 2]


def test_occurrences_of_a_single_message_are_merged_and_the_last_of_a_oneof_counts():
    first, second = (written(ModelProto(graph=GraphProto(node=[NodeProto(name=name)]))) for name in "ab")
    assert [node.name for node in read(ModelProto, first + second).graph.node] == ["a", "b"]
    tensor, sequence = TypeProto(tensor_type=TypeProto.Tensor(elem_type=1)), TypeProto(sequence_type=TypeProto.Sequence())
    assert read(TypeProto, written(tensor) + written(sequence)).WhichOneof("value") == "sequence_type"
    assert read(TypeProto, written(sequence) + written(tensor)).tensor_type.elem_type == 1


def test_a_field_of_a_later_version_is_skipped():
    later = b"".join(encoded_varint(1000 << 3 | wire_type) + content for wire_type, content in ((0, b"\x96\x01"), (1, bytes(8)), (2, b"\x02ab"), (5, bytes(4))))
    assert written(read(NodeProto, later + written(NodeProto(name="n")) + later)) == written(NodeProto(name="n"))


# ---- malformed messages


@pytest.mark.parametrize("data, what", [
    (b"\x0a", "a number"), (b"\x0a\x05abc", "ends inside its message"), (b"\x0a" + b"\xff" * 9 + b"\x01", "a number of at most 5 bytes"),
    (b"\x18" + b"\xff" * 10 + b"\x01", "NodeProto.name with wire type 2, not 0"), (b"\x08\x01", "NodeProto.input with wire type 2, not 0"),
    (b"\x00\x01", "the number and wire type"), (b"\x0b\x0c", "the number and wire type"), (b"\x0f", "the number and wire type"),
    (b"\xff" * 6, "a number of at most 5 bytes"), (b"\x2a\x03\x0a\x05abc", "ends inside its message"), (b"\x0a\xff\xff\xff\xff\x0f", "ends inside its message"),
    (b"\x2a\x03\x12\x00\x00", "AttributeProto.f with wire type 5, not 2"), (b"\x2a\x02\x15\x00", "ends inside its message"),
    (b"\x2a\x0b\x18" + b"\xff" * 9 + b"\x7f", "64 bits"),
    (b"\x2a\x03\x42\x01\x80", "numbers of at most 64 bits"), (b"\x2a\x03\x3a\x01\x80", "numbers of 4 bytes"),
], ids=repr)
def test_a_malformed_message_is_refused(data, what, tmp_path):
    with pytest.raises(Malformed, match=what):
        read(NodeProto, data)
    with pytest.raises(Malformed, match=what):
        read_from_file(NodeProto, data, tmp_path)


def test_messages_nest_as_deep_as_the_onnx_package_allows(tmp_path):
    data = b""
    for _ in range(200):
        try:
            read(TypeProto, data)
        except Malformed as error:
            assert "nested at most 100 deep" in str(error)
            break
        onnx.TypeProto.FromString(data)
        inner = b"\x0a" + encoded_varint(len(data)) + data
        data = b"\x22" + encoded_varint(len(inner)) + inner
    with pytest.raises(DecodeError):
        onnx.TypeProto.FromString(data)
    with pytest.raises(Malformed, match="deep"):
        read_from_file(TypeProto, data, tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_refused():
    class Shrinking(io.BufferedReader):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[: len(buffer) // 2])

    with FILES[0].open("rb", buffering=0) as raw, pytest.raises(Malformed, match="shrink"):
        parse_file(ModelProto, Shrinking(raw), Malformed)


STRICTER = ("with wire type", "the number and wire type", "of at most 64 bits")
"""What the reader refuses and protobuf accepts: known fields of another wire type, groups, and numbers that do not fit."""


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_refused_or_read_as_the_onnx_package_reads_it(seed, monkeypatch, tmp_path):
    monkeypatch.setattr(protobuf_reader, "WINDOW", 300)
    generator = random.Random(seed)
    for path in (GOLDEN / "mlp_ce" / "training_model.onnx", GOLDEN / "transformer" / "forward.onnx"):
        original = path.read_bytes()
        for _ in range(150):
            data = bytearray(original)
            for _ in range(generator.choice((1, 2, 8))):
                data[generator.randrange(len(data))] = generator.randrange(256)
            data = data[: generator.choice((len(data), generator.randrange(len(data))))]
            check_damaged(bytes(data), tmp_path)


def check_damaged(data: bytes, folder: Path) -> None:
    try:
        theirs = onnx.ModelProto.FromString(data)
    except Exception:
        theirs = None
    try:
        ours = read(ModelProto, data)
    except Malformed as error:
        assert theirs is None or any(reason in str(error) for reason in STRICTER), error
        with pytest.raises(Malformed):
            read_from_file(ModelProto, data, folder)
        return
    assert theirs is not None
    assert written(read_from_file(ModelProto, data, folder)) == written(ours)
    theirs.DiscardUnknownFields()
    again = onnx.ModelProto.FromString(written(ours))
    again.DiscardUnknownFields()
    assert again.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
