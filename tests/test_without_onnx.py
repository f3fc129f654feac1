"""A device that trains from artifacts has no onnx package: everything it does works, and what needs the package says so."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain import artifacts, onnxblock
from ortrain.conformance import cases as suite
from ortrain.conformance.drivers import LANGUAGES
from ortrain.errors import InvalidStateError, MissingKernelError, MissingPackageError
from ortrain.formats.onnx_files import read_model, to_proto
from ortrain.loading.loader import load_with_constants
from ortrain.ops.registry.onnx_definitions import onnx_record

ARTIFACTS = suite.ARTIFACTS / "classifier"
BLOCKED = "import sys; sys.modules['onnx'] = None\n"
INSTALL = r"pip install 'ortrain\[artifacts\]'"

CONFORMANCE = BLOCKED + """
import json
from ortrain.conformance import cases, runner
from ortrain.conformance.drivers import driver_for
from ortrain.conformance.service import Service
outcomes = runner.run_cases(Service(driver_for(sys.argv[1])), cases.load_cases())
print(json.dumps({name: [outcome.verdict, outcome.detail] for name, outcome in outcomes.items()}))
"""
TRAINER = BLOCKED + """
import numpy as np
from ortrain import Trainer
trainer = Trainer.from_artifacts(sys.argv[1], learning_rate=0.05)
random = np.random.default_rng(0)
x, labels = random.standard_normal((64, 3), dtype=np.float32), random.integers(0, 3, 64)
before = trainer.evaluate(x, labels)["loss"]
trainer.fit(x, labels, epochs=2, batch_size=16)
trainer.export(sys.argv[2])
print(before, trainer.evaluate(x, labels)["loss"])
"""
STEPS = """
import sys
import numpy as np
from ortrain.api import CheckpointState, Module, Optimizer
folder, inputs = sys.argv[1], np.load(sys.argv[2])
batch = [inputs[f"train0.{name}"] for name in inputs["input_order"]]
module = Module(f"{folder}/training_model.onnx", CheckpointState.load_checkpoint(f"{folder}/checkpoint"), f"{folder}/eval_model.onnx")
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
for _ in range(3):
    module.train()
    print(np.asarray(module(*batch)).tolist())
    optimizer.step()
    module.lazy_reset_grad()
module.eval()
print(np.asarray(module(*batch)).tolist())
"""
NATIVE = BLOCKED + """
from ortrain._native.sessions import Inference, Settings
import numpy as np
inference = Inference(Settings(), sys.argv[1])
print(inference.run(inference.inputs, [np.ones((2, 3), np.float32)], inference.outputs, None, None)[0].shape)
"""
IMPORTS = BLOCKED + """
import importlib
import ortrain
from ortrain.cli import COMMANDS, module_of
for name in ("capi", "csharp", "doctor", "drop_in", "objc", "swift", "_native.sessions", "conformance.runner", "report.page", "runs.folder"):
    importlib.import_module(f"ortrain.{name}")
for name in ortrain.__all__:
    getattr(ortrain, name)
for command in COMMANDS:
    module_of(command)
"""


def run(code: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(Path(ortrain.__file__).parents[1])})
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- what works


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_facade_trains_saves_loads_and_exports(language):
    outcomes = json.loads(run(CONFORMANCE, language))
    failed = {name: detail for name, (verdict, detail) in outcomes.items() if verdict == "failed"}
    assert failed.keys() == suite.known_failures().get(language, {}).keys(), failed
    makes_artifacts = {case.name for case in suite.load_cases() if any(call["call"] == "training.generate_artifacts" for call in case.calls)}
    assert makes_artifacts and all(outcomes[name][0] == "absent" for name in makes_artifacts)
    exported = [case.name for case in suite.load_cases()
                if any(call["call"] == "training_session.export_model_for_inferencing" and "error" not in call for call in case.calls)]
    assert exported and all(outcomes[name][0] == "passed" for name in exported)


def test_a_trainer_fits_evaluates_and_exports(tmp_path):
    folder = Path(shutil.copytree(ARTIFACTS, tmp_path / "run"))                # which receives the trainer's checkpoints
    before, after = map(float, run(TRAINER, folder, tmp_path / "trained.onnx").split())
    assert after < before
    onnx.checker.check_model(str(tmp_path / "trained.onnx"), full_check=True)


@pytest.mark.parametrize("network", ["cnn_bn", "transformer"])
def test_networks_train_with_the_losses_that_they_have_with_the_package(network):
    golden = Path(__file__).parent / "data" / "ort_golden" / network
    with_package, without = (run(code, golden, golden / "inputs.npz") for code in (STEPS, BLOCKED + STEPS))
    assert without == with_package and len(without.splitlines()) == 4


def test_the_native_library_runs_a_model():
    assert run(NATIVE, ARTIFACTS / "forward.onnx") == "(2, 3)\n"


def test_all_modules_that_do_not_make_artifacts_are_imported():
    run(IMPORTS)


def test_importing_the_api_imports_neither_onnx_nor_its_dependencies():
    loaded = run("import sys, ortrain.api\nprint(*sorted(sys.modules))").split()
    assert not {"onnx", "google.protobuf", "ml_dtypes"} & set(loaded)


# ---- what needs the package


@pytest.fixture
def without_onnx(monkeypatch):
    """Make the imports of onnx and its modules fail."""
    onnx_record.cache_clear()
    for name in list(sys.modules):
        if name.partition(".")[0] == "onnx":
            monkeypatch.setitem(sys.modules, name, None)
    yield
    onnx_record.cache_clear()


def model_of(*nodes, functions=(), opset=17, kind=TensorProto.FLOAT, domains=()) -> bytes:
    """Return a model y = nodes(x)."""
    ends = [helper.make_tensor_value_info(name, kind, [2, 3] if name == "x" else None) for name in "xy"]
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    weights = [numpy_helper.from_array(np.ones((3, 3), np.float32), "w")]
    graph = helper.make_graph(list(nodes), "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=imports, functions=list(functions)).SerializeToString()


MATMUL = model_of(helper.make_node("MatMul", ["x", "w"], ["y"]))
OPERATOR = model_of(helper.make_node("HannWindow", ["x"], ["y"]), kind=TensorProto.INT64)
FUNCTION = model_of(helper.make_node("Twice", ["x"], ["y"], domain="own"), domains=["own"], functions=[
    helper.make_function("own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)])])
NEEDS = [
    ("making artifacts", lambda folder: artifacts.generate_artifacts(MATMUL, ["w"], loss="mse", optimizer="adamw", artifact_directory=folder)),
    ("making artifacts", lambda _: ortrain.Trainer.from_model(MATMUL, loss="mse")),
    ("making artifacts", lambda _: onnxblock.empty_base().__enter__()),
    ("the functions of a model, such as 'Twice'", lambda _: ortrain.InferenceSession(FUNCTION)),
    ("the conversion from opset 17 to 18", lambda _: load_with_constants(MATMUL, 18)),
    ("operator HannWindow, of which ortrain has no record", lambda _: ortrain.InferenceSession(OPERATOR)),
    ("models as objects of onnx", lambda _: to_proto(read_model(MATMUL))),
]


@pytest.mark.parametrize("purpose, call", NEEDS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_error_says_what_needs_the_package_and_how_to_install_it(purpose, call, without_onnx, tmp_path):
    with pytest.raises(MissingPackageError, match=f"expected the package onnx for {purpose}") as caught:
        call(tmp_path)
    assert caught.match(INSTALL)
    assert isinstance(caught.value, ImportError) and isinstance(caught.value, InvalidStateError)
    assert list(tmp_path.iterdir()) == []


def test_the_onnx_backend_says_how_to_install_the_package():
    code = BLOCKED + "try:\n    import ortrain.backend\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    assert "MissingPackageError expected the package onnx for the ONNX Backend interface: pip install 'ortrain[artifacts]'" in run(code)


def test_an_operator_that_a_kernel_refuses_reports_the_refusal(without_onnx):
    square = model_of(helper.make_node("Det", ["x"], ["y"]), kind=TensorProto.INT32)
    with pytest.raises((MissingKernelError, ortrain.errors.ShapeInferenceError), match="Det"):
        ortrain.InferenceSession(square).run(None, {"x": np.ones((2, 3), np.int32)})
