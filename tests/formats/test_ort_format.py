"""Models in the ORT format (.ort) are read like any other: they train to the recorded numbers, and broken ones are refused with a named error."""

from pathlib import Path

import numpy as np
import pytest

from ortrain.api import CheckpointState, Module, Optimizer
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
