"""Programs in C against the library: training, inference, misuse, threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain.runtime.state import TrainingState
from ortrain.training.session import TrainingSession
from tests.native.conftest import ARTIFACTS
from tests.native.languages import train_in_python
from tests.native.published import needs_published


@pytest.mark.parametrize("published", [False, pytest.param(True, marks=needs_published)], ids=["own header", "published header"])
def test_the_digits_program_in_c_has_no_error_of_memory_and_trains_to_the_bits_of_the_python_api(build, run, sanitized, artifacts, tmp_path, published):
    run(build("train_digits.c", published, sanitized), artifacts, artifacts / "checkpoint", tmp_path)
    expected = train_in_python(artifacts, artifacts / "checkpoint", tmp_path / "python")
    assert (tmp_path / "trained.checkpoint").read_bytes() == expected.checkpoint.read_bytes()


def test_parameters_are_copied_to_a_buffer_of_the_program_and_back(build, run, sanitized, tmp_path):
    run(build("buffers.c", folder=sanitized), ARTIFACTS, tmp_path)
    state = TrainingState.load(ARTIFACTS / "checkpoint")
    with TrainingSession(ARTIFACTS / "training_model.onnx", state):
        expected = state.to_buffer(False)
    assert np.fromfile(tmp_path / "before.bin", np.float32).tobytes() == expected.tobytes()
    assert np.fromfile(tmp_path / "after.bin", np.float32).tobytes() == (2 * expected).tobytes()
    saved = TrainingState.load(tmp_path / "changed.checkpoint")
    assert saved.properties["epoch"] == 1 and saved.properties["name"] == "digits"


@pytest.mark.parametrize("published", [False, pytest.param(True, marks=needs_published)], ids=["own header", "published header"])
def test_gradients_of_two_sessions_are_averaged_in_place(build, run, sanitized, published, tmp_path):
    run(build("flat_buffers.c", published, sanitized), ARTIFACTS, tmp_path)
    first, second, whole = (np.fromfile(tmp_path / f"{name}.bin", np.float32) for name in ("first", "second", "whole"))
    with TrainingSession(ARTIFACTS / "training_model.onnx", TrainingState.load(ARTIFACTS / "checkpoint")) as untrained:
        before = untrained.to_buffer(True)
    assert first.tobytes() == second.tobytes()
    np.testing.assert_allclose(first, whole, rtol=1e-5, atol=1e-6)
    assert np.abs(whole - before).min() > 1e-5, "expected every parameter to have been trained"


def test_steps_and_inference_copy_neither_inputs_nor_outputs_of_the_program(build, run):
    printed = run(build("copies.c", extra=["-rdynamic", "-fno-builtin"]), ARTIFACTS)
    assert printed == "training: 0 bytes of inputs, 0 of outputs\ninference: 0 bytes of inputs, 0 of outputs\n"


def test_every_misuse_that_can_be_seen_is_a_status(build, run, sanitized):
    assert run(build("misuse.c", folder=sanitized), ARTIFACTS) == "refused\n"


def write_models(folder: Path) -> list[Path]:
    """Write the three models of inference.c."""
    random = np.random.default_rng(0)
    weights = {"fc1.weight": random.standard_normal((3, 4)), "fc1.bias": np.zeros(4), "fc2.weight": random.standard_normal((4, 3)), "fc2.bias": np.zeros(3)}
    nodes = [helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("Gemm", ["b", "fc2.weight", "fc2.bias"], ["scores"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]), helper.make_tensor_value_info("fc2.bias", TensorProto.FLOAT, [3])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])]
    graph = helper.make_graph(nodes, "classifier", inputs, outputs, [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()])
    classifier = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests", model_version=5)
    helper.set_model_props(classifier, {"colour": "blue"})
    found = [classifier]
    for kind in (lambda name: helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]),
                 lambda name: helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)):
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [kind("x")], [kind("y")])
        found.append(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    paths = [folder / f"{number}.onnx" for number in range(len(found))]
    for model, path in zip(found, paths, strict=True):
        onnx.save(model, path)
    return paths


def test_a_program_in_c_infers_with_names_types_metadata_bindings_strings_and_sequences(build, run, sanitized, tmp_path):
    assert run(build("inference.c", folder=sanitized), *write_models(tmp_path)) == "inferred\n"


def test_the_library_leaves_signals_locale_and_floating_point_mode_alone_and_refuses_a_forked_child(build, run, sanitized):
    assert run(build("host.c", folder=sanitized), ARTIFACTS) == "untouched\n"


def test_ten_threads_with_a_session_each_get_the_same_bits_and_memory_stays_flat(build, run):
    loss, grown = run(build("threads.c", extra=["-O2"]), ARTIFACTS, 3000).split()
    assert 0 < float(loss) < 1
    assert int(grown) < 2 << 20


def test_closed_sessions_give_their_memory_back(build, run):
    assert int(run(build("sessions.c"), ARTIFACTS, ARTIFACTS / "forward.onnx", 300)) < 4 << 20
