"""Reading and writing ONNX models: round trips preserve models, and invalid files raise named errors."""

import random
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain.errors import ArtifactNotFoundError, InvalidModelError
from ortrain.formats import atomic_files, onnx_files
from ortrain.formats.onnx_files import read_model, to_proto, write_model
from ortrain.ir import Graph, Model, TensorType

GOLDEN = Path(__file__).parents[1] / "data" / "ort_golden"
FILES = sorted(GOLDEN.rglob("*.onnx"))


def assert_same_value(a, b):
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, Graph):
        assert_same_graph(a, b)
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same_value(left, right)
    else:
        assert a == b
        assert type(a) is type(b)


def assert_same_graph(a: Graph, b: Graph) -> None:
    assert (a.name, a.inputs, a.outputs, a.types) == (b.name, b.inputs, b.outputs, b.types)
    assert list(a.initializers) == list(b.initializers)
    for name, array in a.initializers.items():
        assert_same_value(array, b.initializers[name])
    for left, right in zip(a.nodes, b.nodes, strict=True):
        assert (left.op_type, left.domain, left.name, left.inputs, left.outputs) == (right.op_type, right.domain, right.name, right.inputs, right.outputs)
        assert list(left.attributes) == list(right.attributes)
        for name, value in left.attributes.items():
            assert_same_value(value, right.attributes[name])


def assert_same(a: Model, b: Model) -> None:
    assert (a.opsets, a.ir_version, a.producer) == (b.opsets, b.ir_version, b.producer)
    assert_same_graph(a.graph, b.graph)


def proto_of(nodes=(), inputs=(), outputs=(), initializers=(), **more) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], **more)


def floats(name: str, shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_recorded_model_survives_the_round_trip(path, tmp_path):
    model = read_model(path)
    write_model(model, tmp_path / "model.onnx")
    assert_same(read_model(str(tmp_path / "model.onnx")), model)
    original, again = onnx.load(path), to_proto(model)
    for node in original.graph.node:
        node.ClearField("doc_string")
        if not node.domain:
            # onnxruntime-training writes the empty domain explicitly in some nodes
            node.ClearField("domain")
    assert list(again.graph.node) == list(original.graph.node)


def test_every_kind_of_source_is_read_as_the_same_model():
    path = FILES[0]
    model = read_model(path)
    for source in (str(path), path.read_bytes(), bytearray(path.read_bytes()), onnx.load(path)):
        assert_same(read_model(source), model)


def test_a_file_is_read_while_another_thread_imports_onnx(monkeypatch):
    model = read_model(FILES[0])
    monkeypatch.setitem(sys.modules, "onnx", ModuleType("onnx"))              # as it is at the start of its import
    assert_same(read_model(FILES[0]), model)


def test_inputs_types_and_opsets_are_read():
    proto = proto_of(
        [helper.make_node("Add", ["x", "w"], ["y"], domain="ai.onnx")],
        [floats("x", ["batch", None, 3]), floats("w", [3]), helper.make_tensor_sequence_value_info("s", TensorProto.INT64, ["batch"]), floats("r", None)],
        [floats("y", ["batch", "unk__0", 3])],
        [numpy_helper.from_array(np.ones(3, np.float32), "w")],
    )
    proto.opset_import[0].domain = "ai.onnx"
    model = read_model(proto)
    assert model.opsets == {"": 17}
    assert model.graph.nodes[0].domain == ""
    assert model.graph.inputs == ["x", "s", "r"]
    assert model.graph.types["s"] == TensorType("int64", ("batch",), sequence=True)
    assert model.graph.types["r"] == TensorType("float32", None)
    assert "w" not in model.graph.types
    # the dimension without a name does not become equal to the one that is called unk__0
    assert model.graph.types["x"].shape == ("batch", "unk__1", 3)
    assert to_proto(model).graph.input[0].type.tensor_type.shape.dim[1].WhichOneof("value") is None


def test_every_kind_of_attribute_survives():
    inner = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "inner", [], [floats("z", [2])])
    array = np.arange(4, dtype=np.float64).reshape(2, 2)
    proto = proto_of([helper.make_node("Op", ["x", ""], ["y"], name="n", domain="d", i=1, f=0.5, s="text", b=b"\xff", t=numpy_helper.from_array(array),
                                       ints=[1, 2], floats=[1.0, 2.0], strings=["a", "b"], g=inner)], [floats("x", [2])], [floats("y", [2])])
    model = read_model(proto)
    node = model.graph.nodes[0]
    assert node.inputs == ["x", ""]
    got = node.attributes
    assert {k: got[k] for k in ("i", "f", "s", "b", "ints", "floats", "strings")} == {
        "i": 1, "f": 0.5, "s": "text", "b": b"\xff", "ints": (1, 2), "floats": (1.0, 2.0), "strings": ("a", "b")}
    np.testing.assert_array_equal(got["t"], array)
    assert got["g"].nodes[0].op_type == "Identity"
    assert_same(read_model(to_proto(model)), model)


@pytest.mark.parametrize("array", [
    np.array(3.0, np.float32), np.zeros((2, 0), np.int64), np.array([True, False]), np.array([1.5], np.float16), np.array([["a", "é"]], object),
    np.array([1 + 2j], np.complex64), np.arange(3, dtype=np.uint8),
], ids=lambda a: f"{a.dtype}{a.shape}")
def test_every_dtype_survives(array):
    model = Model(Graph(initializers={"w": array}), {"": 17})
    assert_same_value(read_model(to_proto(model)).graph.initializers["w"], array)


def test_bfloat16_survives():
    array = np.array([0.5, -2], pytest.importorskip("ml_dtypes").bfloat16)
    got = read_model(to_proto(Model(Graph(initializers={"w": array}), {"": 17}))).graph.initializers["w"]
    assert got.dtype.name == "bfloat16"
    np.testing.assert_array_equal(got.astype(np.float32), array.astype(np.float32))


# ---- sparse initializers


def sparse(values, indices, dims, name="w") -> onnx.ModelProto:
    proto = proto_of()
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(
        numpy_helper.from_array(np.array(values, np.float32), name), numpy_helper.from_array(np.array(indices, np.int64), "i"), dims))
    return proto


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_a_sparse_initializer_becomes_dense(indices):
    np.testing.assert_array_equal(read_model(sparse([7, 8], indices, [2, 3])).graph.initializers["w"], [[0, 7, 0], [0, 0, 8]])


@pytest.mark.parametrize("values, indices, dims", [
    ([7], [6], [2, 3]), ([7], [-1], [2, 3]), ([7], [[0, 3]], [2, 3]), ([7], [0, 1], [2, 3]), ([7], [[0]], [2, 3]), ([7], [0], [2**31, 2**31]), ([7], [0], [-1]),
])
def test_an_invalid_sparse_initializer_is_refused(values, indices, dims):
    with pytest.raises(InvalidModelError, match="expected"):
        read_model(sparse(values, indices, dims))


# ---- external data


@pytest.fixture
def large(monkeypatch) -> Model:
    """A model, with the limit of one file lowered so that it needs external data."""
    monkeypatch.setattr(onnx_files, "MAX_INLINE", 1000)
    arrays = {"a": np.arange(300, dtype=np.float32), "small": np.ones(3, np.int64), "b": np.arange(900, dtype=np.float64).reshape(30, 30).T,
              "text": np.array(["x"] * 300, object)}
    return Model(Graph(initializers=arrays), {"": 17})


def test_large_models_have_external_data(large, tmp_path):
    path = tmp_path / "m.onnx"
    for _ in range(2):
        # writing again does not make the data file grow
        write_model(large, path)
        assert (tmp_path / "m.onnx.data").stat().st_size == 4096 + 900 * 8
    assert_same(read_model(path), large)
    proto = onnx.load(path)
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[2]), large.graph.initializers["b"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    with pytest.raises(InvalidModelError, match="path"):
        read_model(path.read_bytes())
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(InvalidModelError, match="tensor 'a'"):
        read_model(path)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd"])
def test_external_data_stays_in_the_models_folder(tmp_path, location):
    (tmp_path / "secret").write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    tensor = TensorProto(dims=[4], data_type=TensorProto.FLOAT, name="w", data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    (folder / "m.onnx").write_bytes(proto_of(initializers=[tensor]).SerializeToString())
    with pytest.raises(InvalidModelError):
        read_model(folder / "m.onnx")


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_files_intact(large, tmp_path, monkeypatch, broken):
    write_model(large, tmp_path / "m.onnx")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files.os, broken, fail)
    large.graph.initializers["a"] = large.graph.initializers["a"] + 1
    with pytest.raises(OSError, match="No space"):
        write_model(large, tmp_path / "m.onnx")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


# ---- bad files


def test_missing_files_raise_a_named_error(tmp_path):
    for path in (tmp_path / "nothing.onnx", tmp_path, "a\0b"):
        with pytest.raises(ArtifactNotFoundError, match="expected a model file"):
            read_model(path)
    with pytest.raises(ArtifactNotFoundError, match="folder"):
        write_model(Model(Graph(), {"": 17}), tmp_path / "missing" / "m.onnx")


@pytest.mark.parametrize("source", [b"", b"\xff" * 40, b"not a model at all", onnx.ModelProto(), 5, None, ["a"]], ids=repr)
def test_sources_that_are_not_models_are_refused(source):
    with pytest.raises(InvalidModelError):
        read_model(source)


@pytest.mark.parametrize("tensor", [
    TensorProto(dims=[2**40], data_type=1, name="w", raw_data=bytes(4)), TensorProto(dims=[-1], data_type=1, name="w", raw_data=bytes(4)),
    TensorProto(dims=[3], data_type=1, name="w", raw_data=bytes(4)), TensorProto(dims=[3], data_type=1, name="w"),
    TensorProto(dims=[1], data_type=0, name="w", raw_data=bytes(4)), TensorProto(dims=[1], data_type=99, name="w", raw_data=bytes(4)),
    TensorProto(dims=[1], data_type=8, name="w", string_data=[b"\xff"]),
], ids=lambda t: f"{list(t.dims)}-{t.data_type}")
def test_a_tensor_that_does_not_fit_its_data_is_refused(tensor):
    with pytest.raises(InvalidModelError, match="tensor 'w'"):
        read_model(proto_of(initializers=[tensor]))


def test_duplicate_initializers_are_refused():
    tensor = numpy_helper.from_array(np.ones(1, np.float32), "w")
    with pytest.raises(InvalidModelError, match="two named 'w'"):
        read_model(proto_of(initializers=[tensor, tensor]))


def test_random_damage_is_refused_or_harmless():
    generator = random.Random(3)
    for name in ("mlp_ce/training_model.onnx", "transformer/forward.onnx"):
        original = (GOLDEN / name).read_bytes()
        for _ in range(300):
            data = bytearray(original)
            for _ in range(generator.choice((1, 2, 8))):
                data[generator.randrange(len(data))] = generator.randrange(256)
            try:
                read_model(bytes(data))
            except InvalidModelError:
                continue
