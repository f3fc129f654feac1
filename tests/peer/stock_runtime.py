"""Comparison with onnxruntime: exported models have the same outputs there, and its OrtValues are accepted as inputs. Run by `make peer` only."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import ortrain
from ortrain.artifacts import LossType, OptimType

DATA = Path(__file__).parents[1] / "data" / "ort_golden"


@pytest.mark.parametrize("case", ["mlp_ce", "cnn", "cnn_bn", "transformer"])
def test_an_exported_model_predicts_the_same_in_onnxruntime(case, tmp_path):
    inputs = np.load(DATA / case / "inputs.npz")
    arrays = [inputs[f"train0.{name}"] for name in inputs["input_order"]]
    with ortrain.TrainingSession.from_model(DATA / case / "forward.onnx", loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW) as session:
        for _ in range(3):
            session.train_step(*arrays)
            session.optimizer_step()
            session.lazy_reset_grad()
        session.export(tmp_path / "model.onnx")
        stock = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
        feed = {value.name: array for value, array in zip(stock.get_inputs(), arrays, strict=False)}
        wanted = stock.run(None, feed)[0]
        np.testing.assert_allclose(session.predict(*feed.values())[0], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_an_ort_value_of_onnxruntime_is_an_input():
    inputs = np.load(DATA / "mlp_ce" / "inputs.npz")
    x, labels = (inputs[f"train0.{name}"] for name in inputs["input_order"])
    with ortrain.TrainingSession.from_model(DATA / "mlp_ce" / "forward.onnx", loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW) as session:
        wanted = session.eval_step(x, labels)[0]
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in (x, labels)]
        np.testing.assert_array_equal(session.eval_step(*values)[0], wanted)
