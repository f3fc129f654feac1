"""Assertions of onnxruntime-training's own tests of its Python, C and C++ APIs, under the same test names."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain import SessionOptions, artifacts, onnxblock
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from ortrain.training.schedules import LinearSchedule
from ortrain.training.session import TrainingSession

BATCH = 64
NAMES = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
EXAMPLE = np.random.default_rng(7)
X = EXAMPLE.standard_normal((BATCH, 784)).astype(np.float32)
LABELS = EXAMPLE.integers(0, 10, BATCH)


def simple_net():
    """784-500-10 with ReLU: the model of onnxruntime-training's tests."""
    rng = np.random.default_rng(1)

    def uniform(*shape):
        bound = 1 / math.sqrt(shape[-1])
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    weights = {"fc1.weight": uniform(500, 784), "fc1.bias": uniform(500), "fc2.weight": uniform(10, 500), "fc2.bias": uniform(10)}
    nodes = [helper.make_node("Gemm", ["input-0", "fc1.weight", "fc1.bias"], ["h"], transB=1), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("Gemm", ["r", "fc2.weight", "fc2.bias"], ["output-0"], transB=1)]
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("input-0", TensorProto.FLOAT, ["batch", 784])],
                              [helper.make_tensor_value_info("output-0", TensorProto.FLOAT, ["batch", 10])],
                              [numpy_helper.from_array(array, name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), weights


def scores_of(weights, x):
    return np.maximum(x @ weights["fc1.weight"].T + weights["fc1.bias"], 0) @ weights["fc2.weight"].T + weights["fc2.bias"]


def cross_entropy(scores, labels):
    shifted = scores - scores.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]))


def make(folder, requires_grad=tuple(NAMES), optimizer=artifacts.OptimType.AdamW, **options):
    """Return (module, optimizer, state, initial weights) for artifacts in a folder."""
    model, weights = simple_net()
    artifacts.generate_artifacts(model, requires_grad=list(requires_grad), frozen_params=[n for n in NAMES if n not in requires_grad],
                                 loss=artifacts.LossType.CrossEntropyLoss, optimizer=optimizer, artifact_directory=str(folder), **options)
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    return module, Optimizer(str(folder / "optimizer_model.onnx"), module), state, weights


# ---- the Python bindings


def test_train_step(tmp_path):
    module, _, _, weights = make(tmp_path)
    module.train()
    assert float(module(X, LABELS)) == pytest.approx(cross_entropy(scores_of(weights, X), LABELS), rel=1e-5)


def test_eval_step(tmp_path):
    module, _, _, _ = make(tmp_path)
    module.eval()
    assert module(X, LABELS) is not None


@pytest.mark.parametrize("kind", [artifacts.OptimType.SGD, artifacts.OptimType.AdamW])
def test_optimizer_step(kind, tmp_path):
    module, optimizer, _, _ = make(tmp_path, optimizer=kind)
    module.train()
    module(X, LABELS)
    old = module.get_contiguous_parameters().numpy().copy()
    optimizer.step()
    assert not np.array_equal(old, module.get_contiguous_parameters().numpy())


def test_get_and_set_lr(tmp_path):
    _, optimizer, _, _ = make(tmp_path)
    assert optimizer.get_learning_rate() == pytest.approx(0.001)
    optimizer.set_learning_rate(0.5)
    assert optimizer.get_learning_rate() == pytest.approx(0.5)


def test_scheduler_step(tmp_path):
    _, optimizer, _, _ = make(tmp_path)
    scheduler = LinearLRScheduler(optimizer, 1, 2, 0.2)
    assert optimizer.get_learning_rate() == 0
    optimizer.step()
    scheduler.step()
    assert optimizer.get_learning_rate() == pytest.approx(0.2)


def test_training_module_checkpoint(tmp_path):
    module, optimizer, state, _ = make(tmp_path)
    module(X, LABELS)
    optimizer.step()
    old = module.get_contiguous_parameters().numpy()
    CheckpointState.save_checkpoint(state, str(tmp_path / "saved"))
    again = Module(str(tmp_path / "training_model.onnx"), CheckpointState.load_checkpoint(str(tmp_path / "saved")))
    np.testing.assert_array_equal(again.get_contiguous_parameters().numpy(), old)


@pytest.mark.parametrize("kind", [artifacts.OptimType.SGD, artifacts.OptimType.AdamW])
@pytest.mark.parametrize("trainable_only", [True, False])
def test_copy_buffer_to_parameters(trainable_only, kind, tmp_path):
    module, optimizer, _, _ = make(tmp_path, requires_grad=["fc1.weight", "fc2.bias"], optimizer=kind)
    old = module.get_contiguous_parameters(trainable_only)
    for _ in range(2):
        module(X, LABELS)
        optimizer.step()
        module.lazy_reset_grad()
    assert not np.array_equal(module.get_contiguous_parameters(trainable_only).numpy(), old.numpy())
    module.copy_buffer_to_parameters(old, trainable_only)
    np.testing.assert_array_equal(module.get_contiguous_parameters(trainable_only).numpy(), old.numpy())


def test_export_model_for_inferencing(tmp_path):
    module, _, _, _ = make(tmp_path)
    (tmp_path / "eval_model.onnx").unlink()               # the loaded model is what is exported
    module.export_model_for_inferencing(str(tmp_path / "inference.onnx"), ["output-0"])
    model = onnx.load(tmp_path / "inference.onnx")
    assert [i.name for i in model.graph.input] == ["input-0"] and [o.name for o in model.graph.output] == ["output-0"]


def test_cuda_execution_provider(tmp_path):
    make(tmp_path)
    with pytest.raises(RuntimeError, match="Unsupported device type"):
        Module(str(tmp_path / "training_model.onnx"), CheckpointState.load_checkpoint(str(tmp_path / "checkpoint")), device="cuda")


@pytest.mark.parametrize("value", [0, 7, -3, 2**40, 0.5, -1.25, 1e-20, "", "text", "ünïcode"])
def test_add_get_property(value, tmp_path):
    _, _, state, _ = make(tmp_path)
    assert "property" not in state.properties and len(state.properties) == 0
    state.properties["property"] = value
    CheckpointState.save_checkpoint(state, str(tmp_path / "saved"))
    for each in (state, CheckpointState.load_checkpoint(str(tmp_path / "saved"))):
        assert "property" in each.properties and len(each.properties) == 1
        stored = each.properties["property"]
        assert type(stored) is type(value)
        assert stored == (pytest.approx(np.float32(value)) if isinstance(value, float) else value)


def test_get_input_output_names(tmp_path):
    module, _, _, _ = make(tmp_path)
    training = onnx.load(tmp_path / "training_model.onnx").graph
    assert module.input_names() == [i.name for i in training.input][:2] == ["input-0", "labels"]
    assert module.output_names() == [o.name for o in training.output][:1]
    module.eval()
    assert module.output_names() == [o.name for o in onnx.load(tmp_path / "eval_model.onnx").graph.output]


@pytest.mark.parametrize("training", [True, False])
def test_steps_with_ort_values(training, tmp_path):
    module, _, _, weights = make(tmp_path)
    module.train(training)
    value = module(ortrain.OrtValue.ortvalue_from_numpy(X), ortrain.OrtValue.ortvalue_from_numpy(LABELS))
    assert isinstance(value, ortrain.OrtValue)
    assert float(value.numpy()) == pytest.approx(cross_entropy(scores_of(weights, X), LABELS), rel=1e-5)


def test_get_and_set_parameter_values(tmp_path):
    trained = ["fc1.weight", "fc1.bias"]
    module, _, state, weights = make(tmp_path, requires_grad=trained)
    assert len(state.parameters) == 4
    for name, parameter in state.parameters:
        assert name in NAMES and parameter.name == name
        np.testing.assert_array_equal(parameter.data, weights[name])
        assert parameter.requires_grad == (name in trained)
        assert (parameter.grad is None) == (name not in trained)
        assert name not in trained or not parameter.grad.any()
    module(X, LABELS)
    for name, parameter in state.parameters:
        assert (parameter.grad is not None and bool(parameter.grad.any())) == (name in trained)
    state.parameters["fc1.weight"] = np.ones_like(weights["fc1.weight"])
    np.testing.assert_array_equal(state.parameters["fc1.weight"].data, 1)
    state.parameters["fc1.bias"].data = np.zeros(500, np.float32)
    module.lazy_reset_grad()
    changed = weights | {"fc1.weight": np.ones((500, 784), np.float32), "fc1.bias": np.zeros(500, np.float32)}
    assert float(module(X, LABELS)) == pytest.approx(cross_entropy(scores_of(changed, X), LABELS), rel=1e-4)
    with pytest.raises(KeyError):
        state.parameters["nope"]


def test_model_construction_with_nominal_checkpoint(tmp_path):
    make(tmp_path, nominal_checkpoint=True)
    state = CheckpointState.load_checkpoint(str(tmp_path / "nominal_checkpoint"))
    module = Module(str(tmp_path / "training_model.onnx"), state, str(tmp_path / "eval_model.onnx"))
    optimizer = Optimizer(str(tmp_path / "optimizer_model.onnx"), module)
    assert module.get_parameters_size() == 397510
    full = "Please load the model parameters first"
    one = "Please load .*the parameter states first"
    for call, message in ((lambda: state.parameters["fc1.weight"].data, one), (lambda: state.parameters.__setitem__("fc1.weight", np.zeros(3)), one),
                          (lambda: module(X, LABELS), full), (module.get_contiguous_parameters, full), (optimizer.step, full),
                          (lambda: module.eval()(X, LABELS), full),
                          (lambda: module.export_model_for_inferencing(str(tmp_path / "x.onnx"), ["output-0"]), full)):
        with pytest.raises(RuntimeError, match=message):
            call()


def test_train_with_nominal_checkpoint(tmp_path):
    module, optimizer, state, _ = make(tmp_path, nominal_checkpoint=True)
    nominal = CheckpointState.load_checkpoint(str(tmp_path / "nominal_checkpoint"))
    other = Module(str(tmp_path / "training_model.onnx"), nominal, str(tmp_path / "eval_model.onnx"))
    other_optimizer = Optimizer(str(tmp_path / "optimizer_model.onnx"), other)
    with pytest.raises(RuntimeError, match="trainable_only = false"):
        other.copy_buffer_to_parameters(module.get_contiguous_parameters(False), trainable_only=True)
    other.copy_buffer_to_parameters(module.get_contiguous_parameters(False), trainable_only=False)
    for _ in range(2):
        assert module(X, LABELS) == other(X, LABELS)
        optimizer.step()
        other_optimizer.step()
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.data, nominal.parameters[name].data)
    CheckpointState.save_checkpoint(nominal, str(tmp_path / "full"))
    assert CheckpointState.load_checkpoint(str(tmp_path / "full")).parameters["fc1.bias"].data.shape == (500,)


# ---- onnxblock


class WeightedAverage(onnxblock.TrainingBlock):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        self.w1, self.w2 = onnxblock.blocks.Constant(0.4), onnxblock.blocks.Constant(0.6)
        self.add, self.mul = onnxblock.blocks.Add(), onnxblock.blocks.Mul()

    def build(self, output):
        return self.add(self.mul(self.w1(), self.first(output)), self.mul(self.w2(), self.second(output, target_name="second")))


def test_weighted_average_model_composition():
    model, _ = simple_net()
    block = WeightedAverage(onnxblock.loss.MSELoss(), onnxblock.loss.L1Loss())
    for name in NAMES:
        block.requires_grad(name)
    with onnxblock.base(model):
        block("output-0")
    training, evaluation = block.to_model_proto()
    assert [i.name for i in training.graph.input][:3] == ["input-0", "target", "second"]
    assert [i.name for i in evaluation.graph.input][:3] == ["input-0", "target", "second"]
    assert len(block.parameters()[0]) == 4 and not block.parameters()[1]


def test_additional_output_names(tmp_path):
    model, _ = simple_net()
    artifacts.generate_artifacts(model, loss=artifacts.LossType.CrossEntropyLoss, additional_output_names=["output-0"], artifact_directory=str(tmp_path))
    for name in ("training", "eval"):
        assert [o.name for o in onnx.load(tmp_path / f"{name}_model.onnx").graph.output][1:] == ["output-0"]
    assert not (tmp_path / "optimizer_model.onnx").exists()


def test_eval_model_has_no_training_mode_dropout(tmp_path):
    model, _ = simple_net()
    relu = model.graph.node[1]
    relu.output[0] = "before"
    model.graph.node.insert(2, helper.make_node("Dropout", ["before", "ratio", "mode"], ["r", "mask"]))
    model.graph.initializer.extend([numpy_helper.from_array(np.array(0.5, np.float32), "ratio"), numpy_helper.from_array(np.array(True), "mode")])
    artifacts.generate_artifacts(model, requires_grad=NAMES, loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=str(tmp_path))
    (dropout,) = [n for n in onnx.load(tmp_path / "eval_model.onnx").graph.node if n.op_type == "Dropout"]
    assert list(dropout.input) == ["before", "ratio"] or dropout.input[2] == ""


# ---- the C++ API


def test_module_parameters_size(tmp_path):
    module, _, _, _ = make(tmp_path)
    assert module.get_parameters_size() == 397510
    assert module.get_parameters_size(False) == 397510


def test_gradients_grow_with_each_train_step_until_they_are_reset(tmp_path):
    module, _, state, _ = make(tmp_path)
    module(X, LABELS)
    once = state.parameters["fc1.weight"].grad.copy()
    for k in (2, 3):
        module(X, LABELS)
        np.testing.assert_allclose(state.parameters["fc1.weight"].grad, k * once, rtol=1e-5, atol=1e-7)
    module.lazy_reset_grad()
    module(X, LABELS)
    np.testing.assert_allclose(state.parameters["fc1.weight"].grad, once, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("warmup", "total"), [(0, 100), (30, 100), (70, 100), (200, 100)])
def test_linear_schedule(warmup, total, tmp_path):
    """Warm-up from 0, then linear decay to 0, as documented, also when resumed from a checkpoint."""
    module, optimizer, state, _ = make(tmp_path)
    scheduler = LinearLRScheduler(optimizer, warmup, total, 1e-3)

    def rate(n):
        return 1e-3 * (n / warmup if n < warmup else max(0.0, (total - n) / max(1, total - warmup)))

    for n in range(120):
        assert optimizer.get_learning_rate() == pytest.approx(rate(n), abs=1e-9)
        if n == 50:
            CheckpointState.save_checkpoint(state, str(tmp_path / "half"), include_optimizer_state=True)
            state = CheckpointState.load_checkpoint(str(tmp_path / "half"))
            module = Module(str(tmp_path / "training_model.onnx"), state)
            optimizer = Optimizer(str(tmp_path / "optimizer_model.onnx"), module)
            scheduler = LinearLRScheduler(optimizer, warmup, total, 1e-3)
            assert optimizer.get_learning_rate() == pytest.approx(rate(n), abs=1e-9)
        optimizer.step()
        scheduler.step()


def test_a_rate_set_while_a_scheduler_is_there_holds_until_its_next_step(tmp_path):
    _, optimizer, _, _ = make(tmp_path)
    scheduler = LinearLRScheduler(optimizer, 0, 10, 0.1)
    optimizer.set_learning_rate(0.7)
    assert optimizer.get_learning_rate() == pytest.approx(0.7)
    optimizer.step()
    scheduler.step()
    assert optimizer.get_learning_rate() == pytest.approx(0.09)


def test_without_an_optimizer_model_everything_but_the_optimizer_works(tmp_path):
    make(tmp_path)
    (tmp_path / "optimizer_model.onnx").unlink()
    with TrainingSession.from_artifacts(tmp_path) as session:
        session.train_step(X, LABELS)
        session.eval_step(X, LABELS)
        for call in (session.optimizer_step, lambda: session.learning_rate, lambda: session.register_schedule(LinearSchedule(0, 10, 0.1)),
                     session.schedule_step):
            with pytest.raises(RuntimeError, match="optimizer"):
                call()


# ---- the C API


def test_sessions_start_from_bytes_and_refuse_the_wrong_combination(tmp_path):
    make(tmp_path)
    files = {name: (tmp_path / name).read_bytes() for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx")}
    state = CheckpointState.load_checkpoint(str(tmp_path / "checkpoint"))
    module = Module(files["training_model.onnx"], state, files["eval_model.onnx"], session_options=SessionOptions())
    Optimizer(files["optimizer_model.onnx"], module)
    with pytest.raises(RuntimeError):
        Optimizer(files["training_model.onnx"], module)
    with pytest.raises(RuntimeError):
        Module(files["eval_model.onnx"], CheckpointState.load_checkpoint(str(tmp_path / "checkpoint")))
