"""Scripts written for onnxruntime-training run unchanged with `python -m ortrain run` or `import ortrain.drop_in`."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data" / "ort_golden"

SCRIPT = """
import sys

import numpy as np
import onnx
import onnxruntime
import onnxruntime.training.api as orttraining
import onnxruntime.training.onnxblock as onnxblock
from onnxruntime import InferenceSession, OrtValue, SessionOptions
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue as Inner
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from onnxruntime.training.onnxblock.loss.loss import MSELoss

forward, data, folder = sys.argv[1:]
assert Inner is OrtValue is C.OrtValue and orttraining.Module is Module
assert onnxruntime.__version__ == "1.19.2" and onnxruntime.get_available_providers() == ["CPUExecutionProvider"]


class Loss(onnxblock.Block):
    def __init__(self):
        super().__init__()
        self.loss = onnxblock.loss.CrossEntropyLoss()

    def build(self, logits):
        return self.loss(logits)


model = onnx.load(forward)
names = [i.name for i in model.graph.initializer]
artifacts.generate_artifacts(model, requires_grad=names, loss=Loss(), optimizer=artifacts.OptimType.AdamW, artifact_directory=folder)
state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
options = SessionOptions()
options.intra_op_num_threads = 1
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx", device="cpu", session_options=options)
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
scheduler = LinearLRScheduler(optimizer, 1, 20, 0.05)
inputs = np.load(data)
x, labels = (inputs[f"train0.{name}"] for name in inputs["input_order"])
losses = []
for _ in range(10):
    module.train()
    losses.append(float(module(x, labels)))
    optimizer.step()
    scheduler.step()
    module.lazy_reset_grad()
state.properties["loss"] = losses[-1]
CheckpointState.save_checkpoint(state, f"{folder}/after", include_optimizer_state=True)
module.export_model_for_inferencing(f"{folder}/trained.onnx", [model.graph.output[0].name])
session = InferenceSession(f"{folder}/trained.onnx", providers=["CPUExecutionProvider"])
scores = session.run(None, {session.get_inputs()[0].name: x})[0]
value = module(OrtValue.ortvalue_from_numpy(x), OrtValue.ortvalue_from_numpy(labels))
assert isinstance(value, OrtValue)
try:
    module(x[:, :3], labels)
except RuntimeError as error:
    print("refused:", type(error).__name__)
assert losses[-1] < losses[0], losses
print("accuracy", (scores.argmax(1) == labels).mean(), "of", __name__)
"""


def run(*arguments, cwd):
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, env=environment, check=False)


def test_a_script_runs_unchanged(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("-m", "ortrain", "run", "script.py", DATA / "mlp_ce" / "forward.onnx", DATA / "mlp_ce" / "inputs.npz", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "of __main__" in done.stdout and "refused: InputShapeError" in done.stdout


def test_a_module_runs_too(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "job.py").write_text("import sys, onnxruntime.training.api\nprint(sys.argv[1:], __name__)")
    done = run("-m", "ortrain", "run", "-m", "package.job", "--epochs", "3", cwd=tmp_path)
    assert done.stdout == "['--epochs', '3'] __main__\n", done.stderr


def test_a_program_may_import_the_drop_in_replacement_itself(tmp_path):
    (tmp_path / "program.py").write_text("import ortrain.drop_in\n" + SCRIPT)
    done = run("program.py", DATA / "mlp_ce" / "forward.onnx", DATA / "mlp_ce" / "inputs.npz", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_exception_of_the_script_is_shown_as_python_shows_it(tmp_path):
    (tmp_path / "script.py").write_text("def f():\n    raise ValueError('mine')\nf()\n")
    done = run("-m", "ortrain", "run", "script.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n  File") and "runpy" not in done.stderr
    assert done.stderr.endswith("ValueError: mine\n")


@pytest.mark.parametrize(("line", "message"), [("import onnxruntime.quantization", "onnxruntime is replaced by ortrain"),
                                               ("from onnxruntime import ORTTrainer", "ORTTrainer")])
def test_names_without_counterpart_in_ortrain_are_reported(line, message, tmp_path):
    (tmp_path / "script.py").write_text(line)
    done = run("-m", "ortrain", "run", "script.py", cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


def test_a_real_package_that_was_imported_is_not_replaced(tmp_path):
    (tmp_path / "onnxruntime.py").write_text("")
    done = run("-c", textwrap.dedent("""
        import onnxruntime
        try:
            import ortrain.drop_in
        except RuntimeError as error:
            print(type(error).__name__)
    """), cwd=tmp_path)
    assert done.stdout == "InvalidStateError\n", done.stderr
