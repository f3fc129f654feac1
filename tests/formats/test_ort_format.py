"""Models in the ORT format (.ort): they train to the recorded numbers, and invalid files raise a named error."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.artifacts import LossType, generate_artifacts
from ortrain.errors import InvalidModelError, OrtrainError
from ortrain.formats.onnx_files import read_model
from tests.recordings import NEWEST, Recording

FOLDER = Path(__file__).parents[1] / "data" / "ort_format"
CASES = sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("case", CASES)
def test_models_in_the_ort_format_train_to_the_recorded_numbers(case):
    recording = Recording(NEWEST, case)
    state = CheckpointState.load_checkpoint(recording.file("checkpoint"))
    module = Module(FOLDER / case / "training_model.ort", state, FOLDER / case / "eval_model.ort")
    optimizer = Optimizer((FOLDER / case / "optimizer_model.ort").read_bytes(), module)
    optimizer.set_learning_rate(recording.meta["learning_rate"])
    losses = []
    for k in range(recording.meta["train_steps"]):
        losses.append(float(np.ravel(module(*recording.batch(f"train{k}")))[0]))
        optimizer.step()
        module.lazy_reset_grad()
    np.testing.assert_allclose(losses, recording.expected["loss"].ravel(), rtol=1e-5)
    module.eval()
    np.testing.assert_allclose(np.ravel(module(*recording.batch("eval"))), recording.expected["eval_after"].ravel(), rtol=1e-5)


@pytest.mark.parametrize("name", ["training_model", "optimizer_model"])
def test_interface_and_opsets_are_those_of_the_onnx_file(name):
    ort, onnx = (read_model(path) for path in (FOLDER / "mlp_ce" / f"{name}.ort", Recording(NEWEST, "mlp_ce").file(f"{name}.onnx")))
    assert (ort.graph.inputs, ort.graph.outputs, ort.ir_version, ort.opset) == (onnx.graph.inputs, onnx.graph.outputs, onnx.ir_version, onnx.opset)
    for value in (*ort.graph.inputs, *ort.graph.outputs):
        mine, theirs = ort.graph.types[value], onnx.graph.types[value]
        assert (mine.dtype, mine.sequence) == (theirs.dtype, theirs.sequence)
        assert mine.sequence or mine.shape == theirs.shape
    for key, array in ort.graph.initializers.items():
        if key in onnx.graph.initializers:
            np.testing.assert_array_equal(array, onnx.graph.initializers[key])


@pytest.mark.parametrize("case", ["mlp_ce", "cnn_bn", "transformer", "clip_grad_norm", "mlp_sgd"])
def test_artifacts_are_written_in_the_ort_format_too(case, tmp_path):
    """Written models equal the .onnx files when they are read again; `make peer` checks that onnxruntime-training trains them."""
    Recording(NEWEST, case).make_artifacts(tmp_path, ort_format=True, prefix="p_")
    for kind in ("training", "eval", "optimizer"):
        ort, onnx = (read_model(tmp_path / f"p_{kind}_model.{suffix}") for suffix in ("ort", "onnx"))
        assert (ort.ir_version, ort.opsets, ort.graph.inputs, ort.graph.outputs) == (onnx.ir_version, onnx.opsets, onnx.graph.inputs, onnx.graph.outputs)
        assert list(map(str, ort.graph.nodes)) == list(map(str, onnx.graph.nodes))
        assert ort.graph.types == onnx.graph.types
        assert ort.graph.initializers.keys() == onnx.graph.initializers.keys()
        for name, array in ort.graph.initializers.items():
            np.testing.assert_array_equal(array, onnx.graph.initializers[name])
    operators = (tmp_path / "p_training_model.required_operators.config").read_text().splitlines()
    assert operators[:2] == ["# Generated from model/s:", "# - p_training_model.ort"] and operators[2].startswith("ai.onnx;")


def test_an_operator_that_only_ortrain_has_cannot_be_written(tmp_path):
    rng = np.random.default_rng(0)
    weights = {"W": (2, 12, 4), "R": (2, 12, 4)}
    graph = helper.make_graph([helper.make_node("GRU", ["x", "W", "R"], ["", "y"], hidden_size=4, direction="bidirectional")], "g",
                              [helper.make_tensor_value_info("x", 1, [3, 2, 4])], [helper.make_tensor_value_info("y", 1, [2, 2, 4])],
                              [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(InvalidModelError, match="ortrain::GRU"):
        generate_artifacts(model, ["W"], loss=LossType.MSELoss, artifact_directory=tmp_path, ort_format=True)
    assert not list(tmp_path.iterdir())


def test_a_truncated_file_is_refused():
    whole = (FOLDER / "mlp_ce" / "eval_model.ort").read_bytes()
    for length in range(8, len(whole), 29):
        with pytest.raises(InvalidModelError):
            read_model(whole[:length])


def test_a_file_with_a_wrong_byte_is_refused_or_read():
    whole = (FOLDER / "mlp_ce" / "training_model.ort").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(1500):
        broken = bytearray(whole)
        broken[rng.integers(8, len(whole))] = rng.integers(0, 256)
        try:
            read_model(bytes(broken))
        except OrtrainError:
            refused += 1
    assert refused > 50
