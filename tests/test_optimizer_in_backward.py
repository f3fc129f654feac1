"""SessionOptions.optimizer_in_backward: train steps that update parameters on their way back do what an optimizer step after them does, in less memory."""

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
    """Parameters, running statistics, moments and the count of steps are the same to the bit."""
    assert one.state.optimizer_step == other.state.optimizer_step
    for part in ("trainable", "frozen"):
        for name, array in getattr(one.state, part).items():
            np.testing.assert_array_equal(array, getattr(other.state, part)[name], err_msg=name)
    for mine, theirs in zip(one.state.moments, other.state.moments, strict=True):
        wanted = {name: view for segment in theirs for name, view in segment.views.items()}
        for name, view in ((name, view) for segment in mine for name, view in segment.views.items()):
            np.testing.assert_array_equal(view, wanted[name], err_msg=name)


def pair(case, threads=1):
    """A session as it is by default, and one with the option; of the artifacts that the old package has made."""
    def session(in_backward):
        return ortrain.TrainingSession.from_artifacts(DATA / case, options=ortrain.SessionOptions(threads, optimizer_in_backward=in_backward))

    return session(False), session(True)


def programs_kernels(session):
    return [step.call.kernel for step in session._train_runner.last.plan.steps]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_models_end_with_the_bits_that_separate_steps_give(case, threads):
    plain, within = pair(case, threads)
    arrays = batch(case)
    assert steps(plain, arrays, 4) == steps(within, arrays, 4)
    assert_same(plain, within)
    assert within.output_names() == plain.output_names()
    assert len(within.train_step(*arrays)) == len(plain.train_step(*arrays)) == len(plain.output_names())
    for session in (plain, within):
        session.optimizer_step()
        session.lazy_reset_grad()
    few = [array[:2] for array in arrays]
    assert steps(plain, few, 2) == steps(within, few, 2)
    assert_same(plain, within)


def dense_layers(*sizes):
    """Layers of these sizes without activations, as a model of [n, sizes[0]]."""
    rng, nodes, weights = np.random.default_rng(5), [], []
    for i, shape in enumerate(zip(sizes, sizes[1:], strict=False)):
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]))
        weights.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 40, f"w{i}"))
    ends = [helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x0", sizes[0]), (f"x{len(sizes) - 1}", sizes[-1]))]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("optimizer", [OptimType.AdamW, OptimType.SGD])
def test_large_gradients_are_never_there_as_a_whole(optimizer):
    model, rng = dense_layers(16, 1500, 1600, 4), np.random.default_rng(6)
    arrays = [rng.standard_normal((8, 16)).astype(np.float32), rng.standard_normal((8, 4)).astype(np.float32)]
    sessions = [ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=optimizer, options=options)
                for options in (ortrain.SessionOptions(), ON)]
    plain, within = sessions
    plain.keep_gradients()
    losses = [steps(session, arrays, 3) for session in sessions]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert programs_kernels(within).count("gemm_update") == 1
    for name, array in plain.state.trainable.items():
        np.testing.assert_allclose(within.state.trainable[name], array, rtol=1e-5, atol=1e-6)
    largest = 1500 * 1600 * 4
    assert within._train_runner.last.arena_bytes < largest <= plain._train_runner.last.arena_bytes


def test_each_parameter_is_updated_once_all_others_have_read_it_and_before_the_backward_pass_goes_on():
    _, within = pair("cnn_bn")
    steps(within, batch("cnn_bn"), 1)
    plan = within._train_runner.last.plan.steps
    at = {step.inputs[UPDATED[step.node.op_type]]: number for number, step in enumerate(plan) if step.node.op_type in UPDATED}
    assert at.keys() == within.state.trainable.keys()
    for name, number in at.items():
        assert max(k for k, step in enumerate(plan) if k != number and name in step.inputs) < number
    kernels = programs_kernels(within)
    assert at["fc.weight"] < kernels.index("max_pool_grad") < at["bn.weight"] < kernels.index("channels_last_conv_grad") < at["conv.weight"]


def test_a_parameter_that_two_layers_share_is_updated_once_both_have_read_it():
    model = dense_layers(6, 6, 6, 3)
    for node in model.graph.node[:2]:
        node.input[1] = "w0"
    del model.graph.initializer[1]
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal((5, size)).astype(np.float32) for size in (6, 3)]
    plain, within = (ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, options=options)
                     for options in (ortrain.SessionOptions(), ON))
    assert steps(plain, arrays, 4) == steps(within, arrays, 4)
    assert_same(plain, within)


@pytest.mark.parametrize("reshaped", [False, True])
def test_two_large_matrices_that_are_multiplied_read_each_other_before_either_is_updated(reshaped):
    """As factors of a weight have it: the gradient of each is a product with the other."""
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
    plain, within = (ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD, requires_grad=["a", "b"], learning_rate=10.0,
                                                        options=options) for options in (ortrain.SessionOptions(), ON))
    np.testing.assert_allclose(steps(plain, arrays, 3), steps(within, arrays, 3), rtol=1e-6)
    for name, array in plain.state.trainable.items():
        np.testing.assert_allclose(within.state.trainable[name], array, rtol=1e-5, atol=1e-7)


def test_models_whose_sizes_the_data_decide_train_so_too():
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Gather", ["places", "zero"], ["rows"]),
             helper.make_node("Gather", ["h", "rows"], ["chosen"]), helper.make_node("ReduceMean", ["chosen"], ["loss"], keepdims=0)]
    nodes.insert(0, helper.make_node("MatMul", ["x", "w"], ["h"]))
    weights = [numpy_helper.from_array(np.ones((3, 2), np.float32), "w"), numpy_helper.from_array(np.array(0), "zero")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 3])], [helper.make_tensor_value_info("loss", 1, [])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plain, within = (ortrain.TrainingSession.from_model(model, optimizer=OptimType.AdamW, options=options) for options in (ortrain.SessionOptions(), ON))
    x = np.array([[1, 0, 2], [0, 3, 0]], np.float32)
    assert steps(plain, [x], 3) == steps(within, [x], 3)
    assert_same(plain, within)


def test_frozen_parameters_stay_until_they_are_unfrozen():
    plain, within = pair("mlp_ce")
    for session in (plain, within):
        steps(session, batch(), 2)
        session.freeze("fc1.weight")
        steps(session, batch(), 2)
        session.unfreeze("fc1.weight")
        steps(session, batch(), 2)
    assert_same(plain, within)


def test_the_learning_rate_may_change_between_steps():
    plain, within = pair("mlp_ce")
    for session in (plain, within):
        for rate in (0.1, 0.01, 0.001):
            session.learning_rate = rate
            steps(session, batch(), 2)
    assert_same(plain, within)


def test_a_checkpoint_resumes_where_the_run_stood(tmp_path):
    _, within = pair("mlp_ce")
    steps(within, batch(), 3)
    within.train_step(*batch())
    within.save_checkpoint(tmp_path / "between", include_optimizer_state=True)      # the train step is whole, whatever ends it
    within.optimizer_step()
    within.lazy_reset_grad()
    resumed = ortrain.TrainingSession.from_artifacts(DATA / "mlp_ce", checkpoint=tmp_path / "between", options=ON)
    assert_same(within, resumed)
    assert steps(within, batch(), 2) == steps(resumed, batch(), 2)
    assert_same(within, resumed)


def test_facades_train_so_too():
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

    (_, wanted), (state, got) = train(ortrain.SessionOptions()), train(ON)
    np.testing.assert_array_equal(got, wanted)
    assert all(parameter.grad is None for _, parameter in state.parameters)


# ---- what is refused


def test_steps_out_of_order_are_refused_and_change_nothing():
    _, within = pair("mlp_ce")
    with pytest.raises(errors.InvalidStateError, match="train step before each optimizer step"):
        within.optimizer_step()
    within.train_step(*batch())
    before = within.to_buffer()
    for _ in range(2):                                          # the short way hands over to the long one
        with pytest.raises(errors.InvalidStateError, match="an optimizer step before"):
            within.train_step(*batch())
    within.optimizer_step()
    with pytest.raises(errors.InvalidStateError, match="train step before each optimizer step"):
        within.optimizer_step()
    with pytest.raises(errors.InvalidStateError, match="a reset of the gradients before"):
        within.train_step(*batch())
    np.testing.assert_array_equal(within.to_buffer(), before)
    assert within.state.optimizer_step == 1
    within.lazy_reset_grad()
    within.train_step(*batch())
    assert within.state.optimizer_step == 2


@pytest.mark.parametrize("change", [lambda s: setattr(s, "learning_rate", 0.5), lambda s: s.freeze("fc1.weight"), lambda s: s.unfreeze("fc1.weight")],
                         ids=["learning rate", "freeze", "unfreeze"])
def test_what_the_optimizer_step_would_heed_cannot_change_before_it(change):
    _, within = pair("mlp_ce")
    within.train_step(*batch())
    with pytest.raises(errors.InvalidStateError, match="before the train step or after the optimizer step"):
        change(within)
    within.optimizer_step()
    change(within)


def test_a_closed_session_says_so():
    _, within = pair("mlp_ce")
    within.train_step(*batch())
    within.close()
    for step in (within.optimizer_step, lambda: within.train_step(*batch())):
        with pytest.raises(errors.UseAfterRelease):
            step()


def test_an_optimizer_that_is_loaded_later_is_the_one_that_updates():
    plain, within = pair("mlp_ce")
    for session in (plain, within):
        steps(session, batch(), 2)
        session.load_optimizer(DATA / "mlp_sgd" / "optimizer_model.onnx")
        steps(session, batch(), 2)
    for name, array in plain.state.trainable.items():
        np.testing.assert_array_equal(within.state.trainable[name], array)


def test_clipping_needs_all_gradients_at_once():
    with pytest.raises(errors.InvalidArgumentError, match="clip"):
        ortrain.TrainingSession.from_model(DATA / "mlp_ce" / "forward.onnx", loss=LossType.CrossEntropyLoss, options=ON,
                                           optimizer=optim.AdamW(clip_grad=optim.ClipGradNorm(1.0)))


def test_a_refused_optimizer_leaves_the_one_that_there_is():
    plain, within = pair("mlp_ce")
    with pytest.raises(errors.InvalidArgumentError, match="clip"):
        within.load_optimizer(DATA / "clip_grad_norm" / "optimizer_model.onnx")
    within.train_step(*batch())
    with pytest.raises(errors.InvalidStateError, match="the optimizer to change"):
        within.load_optimizer(DATA / "mlp_sgd" / "optimizer_model.onnx")
    within.optimizer_step()
    within.lazy_reset_grad()
    assert steps(within, batch(), 2) == steps(plain, batch(), 3)[1:]
    assert_same(plain, within)


def test_a_gradient_that_is_a_parameter_is_refused():
    model = onnx.load(DATA / "mlp_ce" / "training_model.onnx")
    accumulator = next(node for node in model.graph.node if node.op_type == "InPlaceAccumulatorV2" and node.input[0].startswith("fc1.weight"))
    accumulator.input[1] = "fc1.weight"
    state = TrainingState.load(DATA / "mlp_ce" / "checkpoint")
    with (ortrain.TrainingSession(model, state, optimizer_model=DATA / "mlp_ce" / "optimizer_model.onnx", options=ON) as session,
          pytest.raises(errors.InvalidModelError, match=r"computed.*fc1\.weight")):
        session.train_step(*batch())


def test_a_session_without_optimizer_does_not_train():
    with (ortrain.TrainingSession.from_model(DATA / "mlp_ce" / "forward.onnx", loss=LossType.CrossEntropyLoss, options=ON) as session,
          pytest.raises(errors.InvalidStateError, match="optimizer model")):
        session.train_step(*batch())


def test_a_refused_batch_changes_nothing():
    plain, within = pair("cnn_bn")
    x, labels = batch("cnn_bn")
    for _ in range(2):
        for session in (plain, within):
            with pytest.raises(errors.LabelRangeError):
                session.train_step(x, labels + 1000)
    assert_same(plain, within)
    assert steps(plain, [x, labels], 2) == steps(within, [x, labels], 2)
    assert_same(plain, within)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_operator_of_the_users_that_fails_leaves_all_parameters_as_they_were(where):
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
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "scale"))      # its gradient comes before the operator's
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


def test_a_run_that_is_stopped_before_its_first_update_changes_nothing():
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


def test_a_run_is_never_stopped_between_two_updates():
    """From another thread, at whatever moment: a step is done as a whole or not at all."""
    plain, within = pair("mlp_ce")
    arrays = [np.concatenate([array] * 400) for array in batch()]
    taken = 0
    for delay in np.geomspace(1e-5, 1e-2, 40):
        options = ortrain.RunOptions()
        timer = threading.Timer(delay, setattr, (options, "terminate", True))
        timer.start()
        try:
            within.train_step(*arrays, run_options=options)
        except errors.TerminatedError:
            continue
        finally:
            timer.join()
        taken += 1
        within.optimizer_step()
        within.lazy_reset_grad()
    steps(plain, arrays, taken)
    assert_same(plain, within)


def test_the_updates_are_profiled_as_steps():
    _, within = pair("mlp_ce")
    with within.profile() as profile:
        steps(within, batch(), 1)
    updates = [step for step in profile.steps if step.kernel == "adamw"]
    assert {step.operator for step in updates} == {"AdamWUpdate"}
    assert sum(step.operations for step in updates) == 14 * sum(array.size for array in within.state.trainable.values())
