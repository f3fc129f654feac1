"""The recorded runs of onnxruntime-training 1.16 to 1.19 come out of ortrain: losses, outputs, gradients, parameters, evaluation, export."""

import json
from pathlib import Path

import numpy as np
import pytest

from ortrain.api import CheckpointState, Module, Optimizer

DATA = Path(__file__).parent / "data" / "ort_golden"
OLDER = DATA.with_name("ort_golden_versions")
CASES = [("1.19.2", path.name) for path in sorted(DATA.iterdir())] + [(path.parent.name, path.name) for path in sorted(OLDER.glob("*/*"))]


def assert_close_tensor(actual, wanted, extra=0.0):
    """Within 1e-4 of the tensor's largest entry plus 1e-6 (design, "Numbers and trust")."""
    largest = float(np.abs(wanted).max()) if wanted.size else 0.0
    assert actual.shape == wanted.shape
    assert float(np.abs(actual - wanted).max(initial=0.0)) <= 1e-4 * largest + 1e-6 + extra


class Recording:
    """One case as one version of the old package recorded it; what is the same in 1.19.2 is stored there alone."""

    def __init__(self, version, case):
        self.folders = [OLDER / version / case, DATA / case]
        self.meta = json.loads(self.file("meta.json").read_text())
        assert self.meta["onnxruntime_training"] == version
        self.expected = np.load(self.file("expected.npz"))
        self.inputs = np.load(self.file("inputs.npz"))
        self.order = [str(name) for name in self.inputs["input_order"]]
        self.noisy = set(self.meta["params_with_rounding_noise_gradient"])

    def file(self, name):
        return next(folder / name for folder in self.folders if (folder / name).exists())

    def batch(self, key):
        return [self.inputs[f"{key}.{name}"] for name in self.order]

    def compare_parameters(self, state, prefix):
        slack = 0.03 * self.meta["learning_rate"]
        for name, parameter in state.parameters:
            if name not in self.noisy:
                assert_close_tensor(parameter.data, self.expected[f"{prefix}.{name}"], slack)


@pytest.mark.parametrize(("version", "case"), CASES)
def test_recorded_run_is_reproduced(version, case, tmp_path):
    recording = Recording(version, case)
    meta, expected = recording.meta, recording.expected
    state = CheckpointState.load_checkpoint(recording.file("checkpoint"))
    module = Module(recording.file("training_model.onnx"), state, recording.file("eval_model.onnx"))
    optimizer = Optimizer(recording.file("optimizer_model.onnx"), module)
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


@pytest.mark.parametrize(("version", "case"), CASES)
def test_a_checkpoint_with_optimizer_state_resumes_where_the_run_stood(version, case):
    """The checkpoint saved at the end holds what the run ended with, and training goes on from it as if it had never stopped."""
    recording = Recording(version, case)

    def start(checkpoint):
        state = CheckpointState.load_checkpoint(checkpoint)
        module = Module(recording.file("training_model.onnx"), state, recording.file("eval_model.onnx"))
        optimizer = Optimizer(recording.file("optimizer_model.onnx"), module)
        optimizer.set_learning_rate(recording.meta["learning_rate"])
        return state, module, optimizer

    def train(module, optimizer, steps):
        losses = []
        for k in range(steps):
            result = module(*recording.batch(f"train{k}"))
            losses.append(float(np.ravel(result[0] if isinstance(result, tuple) else result)[0]))
            if (k + 1) % recording.meta["train_steps_per_optimizer_step"] == 0:
                optimizer.step()
                module.lazy_reset_grad()
        return losses

    steps = recording.meta["train_steps"]
    _, module, optimizer = start(recording.file("checkpoint"))
    train(module, optimizer, steps)
    state, resumed, resumed_optimizer = start(recording.file("checkpoint_after"))
    recording.compare_parameters(state, "param5")
    np.testing.assert_allclose(train(resumed, resumed_optimizer, steps), train(module, optimizer, steps), rtol=2e-4)
