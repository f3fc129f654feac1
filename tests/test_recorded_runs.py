"""The recorded runs of onnxruntime-training 1.19.2 come out of ortrain: losses, outputs, gradients, parameters, evaluation, export."""

import json
from pathlib import Path

import numpy as np
import pytest

from ortrain.api import CheckpointState, Module, Optimizer

DATA = Path(__file__).parent / "data" / "ort_golden"
CASES = sorted(path.name for path in DATA.iterdir())


def assert_close_tensor(actual, wanted, extra=0.0):
    """Within 1e-4 of the tensor's largest entry plus 1e-6 (design, "Numbers and trust")."""
    largest = float(np.abs(wanted).max()) if wanted.size else 0.0
    assert actual.shape == wanted.shape
    assert float(np.abs(actual - wanted).max(initial=0.0)) <= 1e-4 * largest + 1e-6 + extra


class Recording:
    def __init__(self, case):
        self.folder = DATA / case
        self.meta = json.loads((self.folder / "meta.json").read_text())
        self.expected = np.load(self.folder / "expected.npz")
        self.inputs = np.load(self.folder / "inputs.npz")
        self.order = [str(name) for name in self.inputs["input_order"]]
        self.noisy = set(self.meta["params_with_rounding_noise_gradient"])

    def batch(self, key):
        return [self.inputs[f"{key}.{name}"] for name in self.order]

    def compare_parameters(self, state, prefix):
        slack = 0.03 * self.meta["learning_rate"]
        for name, parameter in state.parameters:
            if name not in self.noisy:
                assert_close_tensor(parameter.data, self.expected[f"{prefix}.{name}"], slack)


@pytest.mark.parametrize("case", CASES)
def test_recorded_run_is_reproduced(case, tmp_path):
    recording = Recording(case)
    meta, expected = recording.meta, recording.expected
    state = CheckpointState.load_checkpoint(recording.folder / "checkpoint")
    module = Module(recording.folder / "training_model.onnx", state, recording.folder / "eval_model.onnx")
    optimizer = Optimizer(recording.folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(meta["learning_rate"])

    def outputs(results):
        return list(results) if isinstance(results, tuple) else [results]

    module.eval()
    before = outputs(module(*recording.batch("eval")))
    np.testing.assert_allclose(before[0].ravel(), expected["eval_before"].ravel(), rtol=1e-5)
    losses, per_update, updates = [], meta["train_steps_per_optimizer_step"], 0
    for k in range(meta["train_steps"]):
        module.train()
        got = outputs(module(*recording.batch(f"train{k}")))
        losses.append(float(got[0].ravel()[0]))
        for j in range(1, len(got)):
            assert_close_tensor(got[j], expected[f"train{k}.output{j}"])
        if (k + 1) % per_update == 0:
            if updates == 0:
                for name, parameter in state.parameters:
                    if f"grad1.{name}" in expected:
                        assert_close_tensor(parameter.grad, expected[f"grad1.{name}"])
            optimizer.step()
            module.lazy_reset_grad()
            updates += 1
            if updates == 1:
                recording.compare_parameters(state, "param1")
    np.testing.assert_allclose(losses, expected["loss"].ravel(), rtol=1e-5)
    recording.compare_parameters(state, "param5")
    module.eval()
    after = outputs(module(*recording.batch("eval")))
    np.testing.assert_allclose(after[0].ravel(), expected["eval_after"].ravel(), rtol=1e-5)
    sizes = {"contiguous_all": False, "contiguous_trainable": True}
    for key, trainable_only in sizes.items():
        assert module.get_contiguous_parameters(trainable_only).numpy().shape == expected[key].shape
    module.export_model_for_inferencing(tmp_path / "inference.onnx", meta["inference_outputs"])
    assert (tmp_path / "inference.onnx").stat().st_size > 0
