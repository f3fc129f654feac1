"""ortrain reproduces the recorded runs of onnxruntime-training 1.15 to 1.19: losses, outputs, gradients, parameters, evaluation, export."""

import numpy as np
import pytest

from ortrain.api import CheckpointState, Module, Optimizer
from tests.recordings import VERSIONED_CASES, Recording, tensor_limit


def assert_close_tensor(actual, wanted):
    assert actual.shape == wanted.shape
    assert float(np.abs(actual - wanted).max(initial=0.0)) <= tensor_limit(wanted)


def check_parameters(recording, state, prefix):
    stored = {name.removeprefix(f"{prefix}."): array for name, array in recording.expected.items() if name.startswith(f"{prefix}.")}
    recording.check_parameters([(name, parameter.data) for name, parameter in state.parameters], stored)


@pytest.mark.parametrize(("version", "case"), VERSIONED_CASES)
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
                check_parameters(recording, state, "param1")
    np.testing.assert_allclose(losses, expected["loss"].ravel(), rtol=1e-5)
    check_parameters(recording, state, "param5")
    module.eval()
    after = outputs(module(*recording.batch("eval")))
    np.testing.assert_allclose(after[0].ravel(), expected["eval_after"].ravel(), rtol=1e-5)
    sizes = {"contiguous_all": False, "contiguous_trainable": True}
    for key, trainable_only in sizes.items():
        assert module.get_contiguous_parameters(trainable_only).numpy().shape == expected[key].shape
    module.export_model_for_inferencing(tmp_path / "inference.onnx", meta["inference_outputs"])
    assert (tmp_path / "inference.onnx").stat().st_size > 0


@pytest.mark.parametrize(("version", "case"), VERSIONED_CASES)
def test_a_checkpoint_with_optimizer_state_resumes_the_run(version, case):
    """The checkpoint saved at the end has the final state, and training continues from it as if it had not been interrupted."""
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
    check_parameters(recording, state, "param5")
    np.testing.assert_allclose(train(resumed, resumed_optimizer, steps), train(module, optimizer, steps), rtol=2e-4)
