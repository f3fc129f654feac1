"""SessionOptions.optimizer_in_backward: updates in the backward pass match separate optimizer steps, in less memory."""

import threading

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ortrain
from ortrain import errors
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.artifacts import LossType, OptimType
from ortrain.onnxblock import optim
from ortrain.ops.training import UPDATED
from ortrain.runtime.state import TrainingState
from tests.test_custom_operators import DOMAIN, TARGET, X
from tests.test_custom_operators import model as custom_model
from tests.test_session import DATA, batch, steps

CASES = sorted(path.parent.name for path in DATA.glob("*/forward.onnx") if path.parent.name not in ("clip_grad_norm", "custom_loss_onnxblock"))
assert len(CASES) == 10
ON = ortrain.SessionOptions(optimizer_in_backward=True)


def assert_same(one, other):
    """Assert that parameters, running statistics, moments and step counts are bit-identical."""
    assert one.state.optimizer_step == other.state.optimizer_step
    for part in ("trainable", "frozen"):
        for name, array in getattr(one.state, part).items():
            np.testing.assert_array_equal(array, getattr(other.state, part)[name], err_msg=name)
    for segments, other_segments in zip(one.state.moments, other.state.moments, strict=True):
        expected = {name: view for segment in other_segments for name, view in segment.views.items()}
        for name, view in ((name, view) for segment in segments for name, view in segment.views.items()):
            np.testing.assert_array_equal(view, expected[name], err_msg=name)


def pair(case, threads=1):
    """Return a session without the option and one with it, on artifacts made by ONNX Runtime training 1.19."""
    def session(in_backward):
        return ortrain.TrainingSession.from_artifacts(DATA / case, options=ortrain.SessionOptions(threads, optimizer_in_backward=in_backward))

    return session(False), session(True)


def kernels_of(session):
    return [step.call.kernel for step in session._train_runner.last.plan.steps]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_results_are_identical_to_separate_steps(case, threads):
    separate, fused = pair(case, threads)
    arrays = batch(case)
    assert steps(separate, arrays, 4) == steps(fused, arrays, 4)
    assert_same(separate, fused)
    assert fused.output_names() == separate.output_names()
    assert len(fused.train_step(*arrays)) == len(separate.train_step(*arrays)) == len(separate.output_names())
    for session in (separate, fused):
        session.optimizer_step()
        session.lazy_reset_grad()
    few = [array[:2] for array in arrays]
    assert steps(separate, few, 2) == steps(fused, few, 2)
    assert_same(separate, fused)


def dense_layers(*sizes):
    """Return a model of layers of these sizes without activations, from x0 [n, sizes[0]]."""
    rng, nodes, weights = np.random.default_rng(5), [], []
    for i, shape in enumerate(zip(sizes, sizes[1:], strict=False)):
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]))
        weights.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 40, f"w{i}"))
    ends = [helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x0", sizes[0]), (f"x{len(sizes) - 1}", sizes[-1]))]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("optimizer", [OptimType.AdamW, OptimType.SGD])
def test_large_gradients_never_exist_as_a_whole(optimizer):
    model, rng = dense_layers(16, 1500, 1600, 4), np.random.default_rng(6)
    arrays = [rng.standard_normal((8, 16)).astype(np.float32), rng.standard_normal((8, 4)).astype(np.float32)]
    sessions = [ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=optimizer, options=options)
                for options in (ortrain.SessionOptions(), ON)]
    separate, fused = sessions
    separate.keep_gradients()
    losses = [steps(session, arrays, 3) for session in sessions]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert kernels_of(fused).count("gemm_update") == 1
    for name, array in separate.state.trainable.items():
        np.testing.assert_allclose(fused.state.trainable[name], array, rtol=1e-5, atol=1e-6)
    largest = 1500 * 1600 * 4
    assert fused._train_runner.last.arena_bytes < largest <= separate._train_runner.last.arena_bytes


def test_parameters_are_updated_right_after_their_last_reader():
    _, fused = pair("cnn_bn")
    steps(fused, batch("cnn_bn"), 1)
    plan = fused._train_runner.last.plan.steps
    updated_at = {step.inputs[UPDATED[step.node.op_type]]: index for index, step in enumerate(plan) if step.node.op_type in UPDATED}
    assert updated_at.keys() == fused.state.trainable.keys()
    for name, index in updated_at.items():
        assert max(reader for reader, step in enumerate(plan) if reader != index and name in step.inputs) < index
    kernels = kernels_of(fused)
    assert updated_at["fc.weight"] < kernels.index("channels_last_max_pool_grad") < updated_at["bn.weight"]
    assert updated_at["bn.weight"] < kernels.index("channels_last_conv_grad") < updated_at["conv.weight"]


def test_shared_parameter_is_updated_after_all_its_readers():
    model = dense_layers(6, 6, 6, 3)
    for node in model.graph.node[:2]:
        node.input[1] = "w0"
    del model.graph.initializer[1]
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal((5, size)).astype(np.float32) for size in (6, 3)]
    separate, fused = (ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, options=options)
                     for options in (ortrain.SessionOptions(), ON))
    assert steps(separate, arrays, 4) == steps(fused, arrays, 4)
    assert_same(separate, fused)


@pytest.mark.parametrize("reshaped", [False, True])
def test_factors_of_a_weight_are_updated_after_both_gradients(reshaped):
    """The weight is a matrix product of two parameters, so that the gradient of each reads the other."""
    rng, wide, deep = np.random.default_rng(8), 2200, 1000
    shapes = {"a": (wide, deep), "b": (deep, wide)}
    weights = [numpy_helper.from_array((rng.standard_normal(shape) / 40).astype(np.float32), name) for name, shape in shapes.items()]
    nodes = [helper.make_node("MatMul", ["a", "c" if reshaped else "b"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    if reshaped:
        nodes.insert(0, helper.make_node("Reshape", ["b", "shape"], ["c"]))
        weights.append(numpy_helper.from_array(np.array([deep, wide]), "shape"))
    ends = [helper.make_tensor_value_info(name, 1, ["n", wide]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    arrays = [rng.standard_normal((4, wide)).astype(np.float32) for _ in range(2)]
    separate, fused = (ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD, requires_grad=["a", "b"], learning_rate=10.0,
                                                        options=options) for options in (ortrain.SessionOptions(), ON))
    np.testing.assert_allclose(steps(separate, arrays, 3), steps(fused, arrays, 3), rtol=1e-6)
    for name, array in separate.state.trainable.items():
        np.testing.assert_allclose(fused.state.trainable[name], array, rtol=1e-5, atol=1e-7)


def test_partitioned_models_are_supported():
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Gather", ["places", "zero"], ["rows"]),
             helper.make_node("Gather", ["h", "rows"], ["chosen"]), helper.make_node("ReduceMean", ["chosen"], ["loss"], keepdims=0)]
    nodes.insert(0, helper.make_node("MatMul", ["x", "w"], ["h"]))
    weights = [numpy_helper.from_array(np.ones((3, 2), np.float32), "w"), numpy_helper.from_array(np.array(0), "zero")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 3])], [helper.make_tensor_value_info("loss", 1, [])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    separate, fused = (ortrain.TrainingSession.from_model(model, optimizer=OptimType.AdamW, options=options) for options in (ortrain.SessionOptions(), ON))
    x = np.array([[1, 0, 2], [0, 3, 0]], np.float32)
    assert steps(separate, [x], 3) == steps(fused, [x], 3)
    assert_same(separate, fused)


def test_frozen_parameters_are_not_updated():
    separate, fused = pair("mlp_ce")
    for session in (separate, fused):
        steps(session, batch(), 2)
        session.freeze("fc1.weight")
        steps(session, batch(), 2)
        session.unfreeze("fc1.weight")
        steps(session, batch(), 2)
    assert_same(separate, fused)


def test_learning_rate_may_change_between_steps():
    separate, fused = pair("mlp_ce")
    for session in (separate, fused):
        for rate in (0.1, 0.01, 0.001):
            session.learning_rate = rate
            steps(session, batch(), 2)
    assert_same(separate, fused)


def test_checkpoint_resumes_between_train_and_optimizer_step(tmp_path):
    _, fused = pair("mlp_ce")
    steps(fused, batch(), 3)
    fused.train_step(*batch())
    fused.save_checkpoint(tmp_path / "between", include_optimizer_state=True)      # the train step already updated the parameters
    fused.optimizer_step()
    fused.lazy_reset_grad()
    resumed = ortrain.TrainingSession.from_artifacts(DATA / "mlp_ce", checkpoint=tmp_path / "between", options=ON)
    assert_same(fused, resumed)
    assert steps(fused, batch(), 2) == steps(resumed, batch(), 2)
    assert_same(fused, resumed)


def test_facades_support_the_option():
    def train(options):
        folder = DATA / "mlp_ce"
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", session_options=options)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        for _ in range(3):
            module.train()
            module(*batch())
            optimizer.step()
            module.lazy_reset_grad()
        return state, module.get_contiguous_parameters().numpy()

    (_, expected), (state, actual) = train(ortrain.SessionOptions()), train(ON)
    np.testing.assert_array_equal(actual, expected)
    assert all(parameter.grad is None for _, parameter in state.parameters)


# ---- rejected calls and failures


def test_steps_out_of_order_are_rejected_without_effect():
    _, fused = pair("mlp_ce")
    with pytest.raises(errors.InvalidStateError, match="train step before each optimizer step"):
        fused.optimizer_step()
    fused.train_step(*batch())
    before = fused.to_buffer()
    for _ in range(2):                                          # once on the fast path, once on the slow path
        with pytest.raises(errors.InvalidStateError, match="an optimizer step before"):
            fused.train_step(*batch())
    fused.optimizer_step()
    with pytest.raises(errors.InvalidStateError, match="train step before each optimizer step"):
        fused.optimizer_step()
    with pytest.raises(errors.InvalidStateError, match="a reset of the gradients before"):
        fused.train_step(*batch())
    np.testing.assert_array_equal(fused.to_buffer(), before)
    assert fused.state.optimizer_step == 1
    fused.lazy_reset_grad()
    fused.train_step(*batch())
    assert fused.state.optimizer_step == 2


@pytest.mark.parametrize("change", [lambda s: setattr(s, "learning_rate", 0.5), lambda s: s.freeze("fc1.weight"), lambda s: s.unfreeze("fc1.weight")],
                         ids=["learning rate", "freeze", "unfreeze"])
def test_optimizer_inputs_cannot_change_between_train_and_optimizer_step(change):
    _, fused = pair("mlp_ce")
    fused.train_step(*batch())
    with pytest.raises(errors.InvalidStateError, match="before the train step or after the optimizer step"):
        change(fused)
    fused.optimizer_step()
    change(fused)


def test_closed_session_raises():
    _, fused = pair("mlp_ce")
    fused.train_step(*batch())
    fused.close()
    for step in (fused.optimizer_step, lambda: fused.train_step(*batch())):
        with pytest.raises(errors.UseAfterRelease):
            step()


def test_optimizer_loaded_later_is_used():
    separate, fused = pair("mlp_ce")
    for session in (separate, fused):
        steps(session, batch(), 2)
        session.load_optimizer(DATA / "mlp_sgd" / "optimizer_model.onnx")
        steps(session, batch(), 2)
    for name, array in separate.state.trainable.items():
        np.testing.assert_array_equal(fused.state.trainable[name], array)


def test_gradient_clipping_is_rejected():
    with pytest.raises(errors.InvalidArgumentError, match="clip"):
        ortrain.TrainingSession.from_model(DATA / "mlp_ce" / "forward.onnx", loss=LossType.CrossEntropyLoss, options=ON,
                                           optimizer=optim.AdamW(clip_grad=optim.ClipGradNorm(1.0)))


def test_rejected_optimizer_keeps_the_current_one():
    separate, fused = pair("mlp_ce")
    with pytest.raises(errors.InvalidArgumentError, match="clip"):
        fused.load_optimizer(DATA / "clip_grad_norm" / "optimizer_model.onnx")
    fused.train_step(*batch())
    with pytest.raises(errors.InvalidStateError, match="the optimizer to change"):
        fused.load_optimizer(DATA / "mlp_sgd" / "optimizer_model.onnx")
    fused.optimizer_step()
    fused.lazy_reset_grad()
    assert steps(fused, batch(), 2) == steps(separate, batch(), 3)[1:]
    assert_same(separate, fused)


def test_gradient_that_is_a_parameter_is_rejected():
    model = onnx.load(DATA / "mlp_ce" / "training_model.onnx")
    accumulator = next(node for node in model.graph.node if node.op_type == "InPlaceAccumulatorV2" and node.input[0].startswith("fc1.weight"))
    accumulator.input[1] = "fc1.weight"
    state = TrainingState.load(DATA / "mlp_ce" / "checkpoint")
    with (ortrain.TrainingSession(model, state, optimizer_model=DATA / "mlp_ce" / "optimizer_model.onnx", options=ON) as session,
          pytest.raises(errors.InvalidModelError, match=r"computed.*fc1\.weight")):
        session.train_step(*batch())


def test_session_without_optimizer_does_not_train():
    with (ortrain.TrainingSession.from_model(DATA / "mlp_ce" / "forward.onnx", loss=LossType.CrossEntropyLoss, options=ON) as session,
          pytest.raises(errors.InvalidStateError, match="optimizer model")):
        session.train_step(*batch())


def test_rejected_batch_changes_nothing():
    separate, fused = pair("cnn_bn")
    x, labels = batch("cnn_bn")
    for _ in range(2):
        for session in (separate, fused):
            with pytest.raises(errors.LabelRangeError):
                session.train_step(x, labels + 1000)
    assert_same(separate, fused)
    assert steps(separate, [x, labels], 2) == steps(fused, [x, labels], 2)
    assert_same(separate, fused)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_failing_custom_operator_changes_no_parameter(where):
    calls = {"forward": 0, "backward": 0}

    def may_fail(place):
        calls[place] += 1
        if place == where and calls[place] == 2:
            raise ZeroDivisionError("by the user")

    def forward(x):
        may_fail("forward")
        return x * 2

    def backward(gradients, inputs, outputs):
        may_fail("backward")
        return gradients[0] * 2

    ortrain.register_operator(DOMAIN, "Fragile", forward, gradient=backward)
    model = custom_model("Fragile")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "scale"))      # its gradient is computed before the operator's
    model.graph.node[-1].output[0] = "z"
    model.graph.node.append(helper.make_node("Mul", ["z", "scale"], ["y"]))
    with ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD, options=ON) as session:
        steps(session, [X, TARGET], 1)
        before = session.to_buffer()
        with pytest.raises(errors.OperatorFailedError, match="by the user"):
            session.train_step(X, TARGET)
        np.testing.assert_array_equal(session.to_buffer(), before)
        assert session.state.optimizer_step == 1
        steps(session, [X, TARGET], 1)
        assert not np.array_equal(session.to_buffer(), before)


def test_run_terminated_before_its_first_update_changes_nothing():
    options = ortrain.RunOptions()

    def forward(x):
        options.terminate = True
        return x * 2

    ortrain.register_operator(DOMAIN, "Stopping", forward, gradient=lambda gradients, inputs, outputs: gradients[0] * 2)
    with ortrain.TrainingSession.from_model(custom_model("Stopping"), loss=LossType.MSELoss, optimizer=OptimType.SGD, options=ON) as session:
        before = session.to_buffer()
        with pytest.raises(errors.TerminatedError):
            session.train_step(X, TARGET, run_options=options)
        np.testing.assert_array_equal(session.to_buffer(), before)
        assert session.state.optimizer_step == 0


def test_run_is_never_terminated_between_updates():
    """A run terminated by another thread at any moment does all updates or none."""
    separate, fused = pair("mlp_ce")
    arrays = [np.concatenate([array] * 400) for array in batch()]
    completed = 0
    for delay in np.geomspace(1e-5, 1e-2, 40):
        options = ortrain.RunOptions()
        timer = threading.Timer(delay, setattr, (options, "terminate", True))
        timer.start()
        try:
            fused.train_step(*arrays, run_options=options)
        except errors.TerminatedError:
            continue
        finally:
            timer.join()
        completed += 1
        fused.optimizer_step()
        fused.lazy_reset_grad()
    steps(separate, arrays, completed)
    assert_same(separate, fused)


def test_updates_are_profiled_as_steps():
    _, fused = pair("mlp_ce")
    with fused.profile() as profile:
        steps(fused, batch(), 1)
    updates = [step for step in profile.steps if step.kernel == "adamw"]
    assert {step.operator for step in updates} == {"AdamWUpdate"}
    assert sum(step.operations for step in updates) == 14 * sum(array.size for array in fused.state.trainable.values())
