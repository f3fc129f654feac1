"""Programs in C and C++ against the library: training, inference, misuse, threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.runtime.inference_session import InferenceSession
from ortrain.runtime.options import SessionOptions
from ortrain.runtime.state import TrainingState
from ortrain.training.schedules import LinearSchedule
from ortrain.training.session import TrainingSession
from tests.documents import models
from tests.native.conftest import ARTIFACTS
from tests.native.published import needs_published

BATCH = 32


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder with the artifacts of a network for handwritten digits and the images and labels."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    (images / 16).astype(np.float32).tofile(folder / "images.bin")
    labels.astype(np.int64).tofile(folder / "labels.bin")
    models.perceptron(str(folder / "forward.onnx"), [64, 32, 10], "pixels", "logits", ["fc1", "fc2"])
    names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    generate_artifacts(str(folder / "forward.onnx"), requires_grad=names, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                       artifact_directory=str(folder), additional_output_names=None)
    return folder


@pytest.fixture(scope="module")
def expected(digits):
    """What the programs should have computed: the flat parameters, the eval loss, the learning rate."""
    images = np.fromfile(digits / "images.bin", np.float32).reshape(-1, 64)
    labels = np.fromfile(digits / "labels.bin", np.int64)
    state = TrainingState.load(digits / "checkpoint")
    with TrainingSession(digits / "training_model.onnx", state, digits / "eval_model.onnx", digits / "optimizer_model.onnx",
                         options=SessionOptions(intra_op_num_threads=1)) as session:
        session.register_schedule(LinearSchedule(10, 100, float(np.float32(0.01))))
        for start in range(0, len(labels) - BATCH + 1, BATCH):
            session.train_step(images[start : start + BATCH], labels[start : start + BATCH])
            session.optimizer_step()
            session.schedule_step()
            session.lazy_reset_grad()
        return session.to_buffer(), float(session.eval_step(images, labels)[0]), session.learning_rate


def check_training(digits: Path, out: Path, printed: str, expected) -> None:
    """Compare what a program has printed and written with the Python API's results."""
    parameters, loss, rate = expected
    assert np.fromfile(out / "parameters.bin", np.float32).tobytes() == parameters.tobytes()
    assert [float(word) for word in printed.split()] == [pytest.approx(loss, rel=1e-7), pytest.approx(rate, rel=1e-7)]
    saved = TrainingState.load(out / "trained.checkpoint")
    assert saved.properties == {"epoch": 1, "name": "digits"} and saved.groups
    images, labels = np.fromfile(digits / "images.bin", np.float32).reshape(-1, 64), np.fromfile(digits / "labels.bin", np.int64)
    (logits,) = InferenceSession(out / "trained.onnx").run(["logits"], {"pixels": images})
    assert np.mean(logits.argmax(1) == labels) > 0.8


@pytest.mark.parametrize("published", [False, pytest.param(True, marks=needs_published)], ids=["own header", "published header"])
def test_a_program_in_c_trains_the_digits_to_the_bits_of_the_python_api(build, run, sanitized, digits, expected, tmp_path, published):
    program = build("train_digits.c", published, sanitized)
    printed = run(program, digits, digits / "images.bin", digits / "labels.bin", tmp_path)
    check_training(digits, tmp_path, printed, expected)


@needs_published
def test_a_program_in_cpp_trains_the_digits_through_the_published_headers(build, run, digits, expected, tmp_path):
    program = build("train_digits.cpp", published=True)
    printed = run(program, digits, digits / "images.bin", digits / "labels.bin", tmp_path)
    check_training(digits, tmp_path, printed, expected)


def test_what_a_c_program_saved_can_be_trained_on_in_python(build, run, digits, tmp_path):
    program = build("train_digits.c")
    run(program, digits, digits / "images.bin", digits / "labels.bin", tmp_path)
    state = TrainingState.load(tmp_path / "trained.checkpoint")
    with TrainingSession(digits / "training_model.onnx", state, None, digits / "optimizer_model.onnx") as session:
        session.train_step(np.zeros((2, 64), np.float32), np.array([1, 2]))
        session.optimizer_step()
    assert state.optimizer_step == 1797 // BATCH + 1


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
