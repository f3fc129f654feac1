"""The checkpoint file: files of onnxruntime-training are read and rewritten byte for byte, and invalid bytes raise named errors."""

import os
import random
import struct
from pathlib import Path

import flatbuffers
import numpy as np
import pytest

from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidCheckpointError, OrtrainError
from ortrain.formats import atomic_files
from ortrain.formats.checkpoint import _Writer, parse_checkpoint, read_checkpoint, serialize_checkpoint, write_checkpoint
from ortrain.formats.checkpoint_contents import Checkpoint, OptimizerGroup

GOLDEN = Path(__file__).parents[1] / "data" / "ort_golden"
FILES = sorted(p for p in GOLDEN.rglob("*checkpoint*") if p.suffix != ".data")


def external_of(path: Path) -> bytes | None:
    beside = Path(f"{path}.data")
    return beside.read_bytes() if beside.exists() else None


def assert_equal(a: Checkpoint, b: Checkpoint) -> None:
    assert (a.properties, a.nominal, a.version, a.external) == (b.properties, b.nominal, b.version, b.external)
    assert list(a.optimizer_groups) == list(b.optimizer_groups)
    tables = [(a.trainable, b.trainable), (a.frozen, b.frozen)]
    for name, group in a.optimizer_groups.items():
        other = b.optimizer_groups[name]
        assert (group.step, group.initial_learning_rate, list(group.momentums)) == (other.step, other.initial_learning_rate, list(other.momentums))
        tables += [(state, other.momentums[parameter]) for parameter, state in group.momentums.items()]
    for left, right in tables:
        assert list(left) == list(right)
        for name, array in left.items():
            assert array.dtype == right[name].dtype
            assert array.shape == right[name].shape
            np.testing.assert_array_equal(array, right[name])


def small(**changes) -> Checkpoint:
    moments = {"w": {"momentum0": np.ones((1, 2), np.float32)}}
    fields = {"trainable": {"w": np.array([[1, 2]], np.float32)}, "frozen": {"n": np.array(3, np.int64)}, "properties": {"a": 1, "b": 0.5, "c": "é"},
              "optimizer_groups": {"group0": OptimizerGroup(7, 0.5, moments)}}
    return Checkpoint(**(fields | changes))


def round_trip(checkpoint: Checkpoint) -> Checkpoint:
    data, external = serialize_checkpoint(checkpoint, checkpoint.version)
    return parse_checkpoint(data, None if external is None else lambda: external)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_a_file_of_onnxruntime_training_survives_the_round_trip_byte_for_byte(path):
    checkpoint = read_checkpoint(path)
    data, external = serialize_checkpoint(checkpoint, checkpoint.version)
    assert data == path.read_bytes()
    assert external == external_of(path)


def test_a_recorded_file_has_the_expected_contents():
    after = read_checkpoint(GOLDEN / "mlp_ce" / "checkpoint_after")
    assert after.properties == {"best_loss": 0.5, "epoch": 5, "tag": "golden"}
    group = after.optimizer_groups["group0"]
    assert group.step > 0
    assert list(group.momentums) == list(after.trainable) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]
    assert all(list(state) == ["momentum0", "momentum1"] for state in group.momentums.values())
    expected = np.load(GOLDEN / "mlp_ce" / "expected.npz")
    final = [key for key in expected.files if key.endswith("fc1.weight")]
    assert final
    assert after.trainable["fc1.weight"].shape == expected[final[0]].shape


def test_a_nominal_file_has_names_and_dtypes_only():
    nominal = read_checkpoint(GOLDEN / "mlp_ce" / "nominal_checkpoint")
    assert nominal.nominal
    assert {name: (a.shape, a.dtype) for name, a in nominal.trainable.items()}["fc1.weight"] == ((), np.float32)


DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_every_dtype_and_shape_survives(dtype, shape, external):
    array = (np.arange(int(np.prod(shape))) % 2).reshape(shape).astype(dtype)
    checkpoint = small(trainable={"first": np.ones(1, np.int8), "w": array}, external=external)
    assert_equal(round_trip(checkpoint), checkpoint)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_survive(name):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    checkpoint = small(frozen={"f": np.array([0.5, -2], dtype)})
    assert_equal(round_trip(checkpoint), checkpoint)


@pytest.mark.parametrize("external", [False, True])
def test_strings_and_odd_names_survive(external):
    names = ["a/b::c", "", "ünï {x} %s", "\U0001f600"]
    frozen = {name: np.array([["x", ""], ["é", "\n"]], object) for name in names}
    checkpoint = small(frozen=frozen, properties={name: name for name in sorted(names)}, external=external)
    assert_equal(round_trip(checkpoint), checkpoint)


def test_views_and_foreign_byte_order_are_written_as_values():
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    got = round_trip(small(trainable={"t": base.T, "s": base[:, ::2], "b": base.astype(">f4")})).trainable
    np.testing.assert_array_equal(got["t"], base.T)
    np.testing.assert_array_equal(got["s"], base[:, ::2])
    np.testing.assert_array_equal(got["b"], base)
    assert got["b"].dtype == np.float32


def test_version_1_never_has_external_data():
    data, external = serialize_checkpoint(small(external=True), version=1)
    assert external is None
    assert parse_checkpoint(data).version == 1


@pytest.mark.parametrize("changes, error", [
    ({"frozen": {"w": np.zeros(1, np.float32)}}, InvalidCheckpointError),
    ({"properties": {"p": 2**63}}, InvalidArgumentError),
    ({"properties": {"p": 1e300}}, InvalidArgumentError),
    ({"properties": {"p": "\udc80"}}, InvalidArgumentError),
    ({"frozen": {"d": np.zeros(1, "datetime64[s]")}}, InvalidArgumentError),
])
def test_values_that_the_format_cannot_represent_are_refused(changes, error):
    with pytest.raises(error):
        serialize_checkpoint(small(**changes))


# ---- hostile files


def parse_any(data: bytes, external: bytes | None = None) -> None:
    """Parse bytes, which must give a valid checkpoint or the named error."""
    try:
        checkpoint = parse_checkpoint(data, None if external is None else lambda: external)
    except InvalidCheckpointError:
        return
    size = sum(a.nbytes for a in (*checkpoint.trainable.values(), *checkpoint.frozen.values()) if a.dtype != object)
    assert size <= 4 * len(data) + len(external or b"")


@pytest.mark.parametrize("name", ["mlp_bce/checkpoint", "mlp_l1/checkpoint_after", "mlp_ce/nominal_checkpoint"])
def test_every_truncation_is_refused(name):
    data = (GOLDEN / name).read_bytes()
    for length in range(len(data)):
        parse_any(data[:length])
    with pytest.raises(InvalidCheckpointError):
        parse_checkpoint(data[: len(data) // 2])


def test_random_damage_is_refused_or_harmless():
    generator = random.Random(5)
    for name in ("mlp_ce/checkpoint_after", "mlp_ce/checkpoint_external", "frozen_params/nominal_checkpoint"):
        original, external = (GOLDEN / name).read_bytes(), external_of(GOLDEN / name)
        for _ in range(1500):
            data = bytearray(original)
            for _ in range(generator.choice((1, 1, 2, 8))):
                data[generator.randrange(len(data))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
            parse_any(bytes(data), external)


def test_every_changed_offset_is_refused_or_harmless():
    original = serialize_checkpoint(small())[0]
    for at in range(0, len(original) - 3, 2):
        for value in (0, 4, len(original) - 4, len(original), 0x7FFFFFFF, 0xFFFFFFFF, (-at) & 0xFFFFFFFF):
            data = bytearray(original)
            struct.pack_into("<I", data, at, value)
            parse_any(bytes(data))


@pytest.mark.parametrize("data", [b"", b"ODTC", b"\0\0\0\0ODTC", b"\x08\0\0\0ODTC", bytes(64), os.urandom(256), b"\xff\xff\xff\xffODTC" + bytes(40)])
def test_garbage_is_refused(data):
    with pytest.raises(InvalidCheckpointError, match="verification failed"):
        parse_checkpoint(data)


@pytest.mark.parametrize("version", [0, 3, -1, 2**31 - 1])
def test_another_version_is_refused(version):
    with pytest.raises(InvalidCheckpointError, match=f"Checkpoint version {version} is not supported"):
        parse_checkpoint(serialize_checkpoint(small(), version)[0])


def forged(fill) -> bytes:
    """Return a file with the (trainable tables, frozen tables, optimizer groups) that `fill(writer)` returns."""
    writer = _Writer(False)
    trainable, frozen, groups = fill(writer)
    module = writer.table(4, ("offset", 0, writer.vector(trainable)), ("offset", 1, writer.vector(frozen)))
    writer.builder.Finish(writer.table(4, ("int32", 0, 2), ("offset", 1, module), ("offset", 2, writer.vector(groups))), file_identifier=b"ODTC")
    return bytes(writer.builder.Output())


def tensor(writer: _Writer, name: str, dims: tuple[int, ...], raw: bytes, dtype: int = 1) -> int:
    text, shape, data = writer.text(name), writer.dims(dims), writer.builder.CreateByteVector(raw)
    return writer.table(7, ("offset", 0, text), ("offset", 2, shape), ("int32", 3, dtype), ("offset", 4, data))


@pytest.mark.parametrize("dims", [(2**62,), (2**31, 2**31), (-1,), (-1, -1), (3,), (1,) * 40, (0, 2**62, 2**62), (2**62, 2**62, 4)])
def test_dimensions_that_do_not_fit_the_data_are_refused(dims):
    with pytest.raises(InvalidCheckpointError):
        parse_checkpoint(forged(lambda w: ([tensor(w, "w", dims, bytes(4))], [], [])))


@pytest.mark.parametrize("dtype", [0, -1, 21, 2**31 - 1])
def test_an_unknown_element_type_is_refused(dtype):
    with pytest.raises(InvalidCheckpointError, match="element type"):
        parse_checkpoint(forged(lambda w: ([tensor(w, "w", (1,), bytes(4), dtype)], [], [])))


def test_duplicate_names_are_refused():
    with pytest.raises(InvalidCheckpointError, match="Duplicated tensor proto named w"):
        parse_checkpoint(forged(lambda w: ([tensor(w, "w", (1,), bytes(4)), tensor(w, "w", (1,), bytes(4))], [], [])))
    with pytest.raises(InvalidCheckpointError, match="Duplicated tensor proto named w"):
        parse_checkpoint(forged(lambda w: ([tensor(w, "w", (1,), bytes(4))], [tensor(w, "w", (1,), bytes(4))], [])))


def test_tables_that_share_contents_cannot_decode_to_a_huge_object():
    """40 groups x 40 states x one tensor of 64 KB would decode to 100 MB."""
    def fill(writer):
        moments = writer.vector([tensor(writer, "momentum0", (1 << 14,), bytes(1 << 16))])
        states = writer.vector([writer.table(2, ("offset", 0, writer.text(f"p{i}")), ("offset", 1, moments)) for i in range(40)])
        return [], [], [writer.table(4, ("offset", 0, writer.text(f"g{i}")), ("offset", 3, states)) for i in range(40)]

    with pytest.raises(InvalidCheckpointError, match="share"):
        parse_checkpoint(forged(fill))


def test_text_that_is_not_utf8_is_refused():
    data = serialize_checkpoint(small(properties={"name": "QQQQ"}))[0].replace(b"QQQQ", b"\xff\xfe\xfd\xfc")
    with pytest.raises(InvalidCheckpointError, match="UTF-8"):
        parse_checkpoint(data)


# ---- files


def test_missing_files_raise_a_named_error(tmp_path):
    with pytest.raises(ArtifactNotFoundError, match="nothing"):
        read_checkpoint(tmp_path / "nothing")
    with pytest.raises(ArtifactNotFoundError):
        read_checkpoint("a\0b")
    with pytest.raises(InvalidCheckpointError, match="folder"):
        read_checkpoint(tmp_path)
    with pytest.raises(ArtifactNotFoundError, match="folder"):
        write_checkpoint(small(), tmp_path / "missing" / "checkpoint")


def test_external_data_is_written_beside_the_file(tmp_path):
    path = tmp_path / "checkpoint"
    checkpoint = small(external=True)
    write_checkpoint(checkpoint, path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "checkpoint.data"]
    assert_equal(read_checkpoint(path), checkpoint)
    beside = Path(f"{path}.data")
    beside.write_bytes(beside.read_bytes()[:-1])
    with pytest.raises(InvalidCheckpointError, match="bytes"):
        read_checkpoint(path)
    beside.unlink()
    with pytest.raises(ArtifactNotFoundError, match="Failed to open checkpoint's external data file"):
        read_checkpoint(path)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
@pytest.mark.parametrize("external", [False, True])
def test_a_failed_save_leaves_the_old_file_intact(tmp_path, monkeypatch, broken, external):
    path = tmp_path / "checkpoint"
    write_checkpoint(small(external=external), path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files.os, broken, fail)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(small(trainable={"w": np.full((1, 2), 9, np.float32)}, external=external), path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.skipif(os.name == "nt", reason="file modes and links of POSIX")
def test_a_saved_file_has_the_usual_mode_and_keeps_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_checkpoint(small(), link)
    assert link.is_symlink()
    assert_equal(read_checkpoint(real), small())
    other = tmp_path / "other"
    other.touch()
    assert real.stat().st_mode == other.stat().st_mode


def test_errors_have_the_base_class():
    with pytest.raises(OrtrainError):
        parse_checkpoint(b"")


def test_flatbuffers_agrees_on_the_identifier():
    assert flatbuffers.util.BufferHasIdentifier(serialize_checkpoint(small())[0], 0, b"ODTC")
