"""TrainingSession created from a forward model: training, prediction, freezing, saving and resuming."""

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ortrain
from ortrain import errors, onnxblock
from ortrain.artifacts import LossType, OptimType
from ortrain.runtime.state import TrainingState

DATA = Path(__file__).parent / "data" / "ort_golden"


def start(case="mlp_ce", **options):
    return ortrain.TrainingSession.from_model(DATA / case / "forward.onnx", loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                                              learning_rate=0.01, **options)


def batch(case="mlp_ce", key="train0"):
    inputs = np.load(DATA / case / "inputs.npz")
    return [inputs[f"{key}.{name}"] for name in inputs["input_order"]]


def steps(session, arrays, count):
    losses = []
    for _ in range(count):
        losses.append(float(session.train_step(*arrays)[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


def test_every_weight_is_trained_by_default():
    with start() as session:
        assert [name for name, parameter in session.parameters if parameter.requires_grad] == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]
        losses = steps(session, batch(), 20)
    assert losses[-1] < losses[0] / 2


def test_running_statistics_are_updated_by_training_and_used_by_prediction():
    with start("cnn_bn") as session:
        x, labels = batch("cnn_bn")
        before = session.parameters["bn.running_mean"].data.copy()
        assert not session.parameters["bn.running_mean"].requires_grad
        first = session.predict(x)[0]
        session.train_step(x, labels)
        assert not np.array_equal(session.parameters["bn.running_mean"].data, before)
        assert not np.array_equal(session.predict(x)[0], first)


def test_prediction_equals_the_output_of_the_exported_model(tmp_path):
    with start("cnn_bn") as session:
        x, labels = batch("cnn_bn")
        steps(session, [x, labels], 3)
        session.export(tmp_path / "model.onnx")
        reference = ReferenceEvaluator(str(tmp_path / "model.onnx"))
        wanted = reference.run(None, {reference.input_names[0]: x})[0]
        np.testing.assert_allclose(session.predict(x)[0], wanted, rtol=1e-4, atol=1e-5)
        ours = ortrain.InferenceSession(tmp_path / "model.onnx")
        np.testing.assert_allclose(ours.run(None, {ours.get_inputs()[0].name: x})[0], wanted, rtol=1e-4, atol=1e-5)


def test_frozen_parameters_stay_constant_and_unfrozen_ones_are_trained():
    with start() as session:
        arrays, weight = batch(), session.parameters["fc1.weight"].data.copy()
        session.freeze("fc1.weight")
        steps(session, arrays, 2)
        np.testing.assert_array_equal(session.parameters["fc1.weight"].data, weight)
        assert not session.parameters["fc1.weight"].requires_grad
        session.unfreeze("fc1.weight")
        steps(session, arrays, 1)
        assert not np.array_equal(session.parameters["fc1.weight"].data, weight)
        with pytest.raises(errors.ParameterNotFoundError):
            session.freeze("nope")


def test_a_parameter_frozen_in_the_model_cannot_be_unfrozen():
    with start("cnn_bn") as session, pytest.raises(errors.InvalidArgumentError, match="frozen"):
        session.unfreeze("bn.running_mean")


def test_saved_artifacts_resume_exactly(tmp_path):
    with start() as session:
        steps(session, batch(), 3)
        session.save_artifacts(tmp_path)
        with ortrain.TrainingSession.from_artifacts(tmp_path) as resumed:
            resumed.learning_rate = session.learning_rate
            assert steps(resumed, batch(), 3) == steps(session, batch(), 3)


def test_inputs_may_be_named_and_of_any_array_type():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    class Other:
        """A value like onnxruntime's OrtValue."""

        def __init__(self, array):
            self.array = array

        def numpy(self):
            return self.array

        def data_type(self):
            return "tensor(float)"

    x, labels = batch()
    with start() as session:
        wanted = session.eval_step(x, labels)[0]
        for a, b in ((ortrain.OrtValue.ortvalue_from_numpy(x), labels), (Other(x), labels), (Foreign(x), labels),
                     (x, labels.astype(np.longlong)), (np.asfortranarray(x), labels), (x.tolist(), labels.tolist())):
            np.testing.assert_array_equal(session.eval_step(a, b)[0], wanted)
        np.testing.assert_array_equal(session.eval_step(labels=labels, x=x)[0], wanted)
        with pytest.raises(errors.InputNameError):
            session.eval_step(x, label=labels)


def test_a_short_last_batch_is_planned_once_more():
    x, labels = batch()
    with start() as session:
        whole = session.eval_step(x, labels)[0]
        short = session.eval_step(x[:1], labels[:1])[0]
        np.testing.assert_array_equal(session.eval_step(x, labels)[0], whole)
        np.testing.assert_array_equal(session.eval_step(x[:1], labels[:1])[0], short)


def test_a_closed_session_raises_a_named_error():
    session = start()
    session.close()
    with pytest.raises(errors.InvalidStateError, match="closed"):
        session.train_step(*batch())


def test_views_of_parameters_change_the_model():
    with start() as session:
        before = float(session.eval_step(*batch())[0])
        session.parameters["fc2.weight"].data[...] = 0
        session.parameters["fc2.bias"].data[...] = 0
        classes = session.parameters["fc2.bias"].data.size
        assert float(session.eval_step(*batch())[0]) == pytest.approx(np.log(classes), rel=1e-6) != before


def test_a_float64_model_trains_through_the_same_kernels():
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((4, 3)), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 4])],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", 3])], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with ortrain.TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, learning_rate=0.5) as session:
        x, labels = rng.standard_normal((16, 4)), rng.integers(0, 3, 16)
        losses = steps(session, [x, labels], 30)
        assert session.parameters["w"].data.dtype == np.float64 and losses[-1] < losses[0]


def test_a_run_is_terminated_by_its_options():
    x, labels = batch()
    options = ortrain.RunOptions()
    with start() as session:
        before = session.train_step(x, labels, run_options=options)
        options.terminate = True
        for call in (session.train_step, session.eval_step):
            with pytest.raises(errors.TerminatedError):
                call(x, labels, run_options=options)
        session.lazy_reset_grad()
        np.testing.assert_array_equal(session.train_step(x, labels)[0], before[0])


def test_a_program_stops_at_its_next_step_and_gradients_must_then_be_reset():
    """The flag is set by another thread while the step runs; the gradients that it has written so far are not used."""
    x, labels = (np.concatenate([a] * 4000) for a in batch())
    options = ortrain.RunOptions()
    stopped = 0
    with start() as session:
        session.train_step(x, labels)
        for delay in np.geomspace(1e-4, 3e-2, 12):
            timer = threading.Timer(delay, lambda: setattr(options, "terminate", True))
            timer.start()
            try:
                for _ in range(100):
                    session.train_step(x, labels, run_options=options)
            except errors.TerminatedError:
                stopped += 1
            timer.join()
            options.terminate = False
            if not session.gradients_valid:
                with pytest.raises(errors.InvalidStateError, match="lazy_reset_grad"):
                    session.optimizer_step()
                session.train_step(x, labels)            # adding to them does not mend them
                with pytest.raises(errors.InvalidStateError, match="lazy_reset_grad"):
                    session.optimizer_step()
            session.lazy_reset_grad()
            session.train_step(x, labels)
            session.optimizer_step()
    assert stopped


def test_a_constant_index_out_of_range_is_refused_before_anything_runs():
    model = helper.make_model(helper.make_graph(
        [helper.make_node("Gather", ["x", "index"], ["picked"], axis=1), helper.make_node("Mul", ["picked", "w"], ["y"]),
         helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)], "g", [helper.make_tensor_value_info("x", 1, ["n", 3])],
        [helper.make_tensor_value_info("loss", 1, [])], [numpy_helper.from_array(np.array([0, 7]), "index"),
                                                         numpy_helper.from_array(np.ones(2, np.float32), "w")]), opset_imports=[helper.make_opsetid("", 17)])
    with ortrain.TrainingSession.from_model(model, optimizer=OptimType.SGD) as session, pytest.raises(errors.IndexRangeError, match="7"):
        session.train_step(np.ones((2, 3), np.float32))


def test_an_index_that_a_kernel_refuses_is_named_and_leaves_gradients_as_they_were():
    nodes = [helper.make_node("Mul", ["x", "w"], ["scaled"]), helper.make_node("GatherElements", ["scaled", "index"], ["picked"], axis=1),
             helper.make_node("ReduceSum", ["picked"], ["loss"], keepdims=0)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 3]), helper.make_tensor_value_info("index", 7, ["n", 2])],
                              [helper.make_tensor_value_info("loss", 1, [])], [numpy_helper.from_array(np.ones(3, np.float32), "w")])
    model, x = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), np.float32([[1, 2, 3], [4, 5, 6]])
    with ortrain.TrainingSession.from_model(model, optimizer=OptimType.SGD) as session:
        session.train_step(x, np.array([[0, 1], [-1, -1]]))
        assert "check_range" not in [step.call.kernel for step in session._train_runner.last.plan.steps]
        for _ in range(2):                              # the first is rejected on the fast path
            with pytest.raises(errors.IndexRangeError, match=r"'index' in \[-3, 3\), got 7 .*GatherElements"):
                session.train_step(x, np.array([[0, 1], [2, 7]]))
        assert session.gradients_valid
        np.testing.assert_array_equal(session.state.gradients["w"], [1, 2, 12])
        session.optimizer_step()


def test_a_computed_index_out_of_range_is_refused_before_gradients_are_written():
    nodes = [helper.make_node("Cast", ["tokens"], ["index"], to=7), helper.make_node("Gather", ["w", "index"], ["picked"]),
             helper.make_node("ReduceMean", ["picked"], ["loss"], keepdims=0)]
    kinds = [helper.make_tensor_value_info("tokens", 1, ["n"]), helper.make_tensor_value_info("loss", 1, [])]
    graph = helper.make_graph(nodes, "g", kinds[:1], kinds[1:], [numpy_helper.from_array(np.ones((4, 2), np.float32), "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with ortrain.TrainingSession.from_model(model, optimizer=OptimType.SGD) as session:
        session.train_step(np.float32([0, 1]))
        for _ in range(2):                              # the first is rejected on the fast path
            with pytest.raises(errors.IndexRangeError, match="Gather"):
                session.train_step(np.float32([0, 4]))
        assert session.gradients_valid
        np.testing.assert_array_equal(session.state.gradients["w"], [[0.25, 0.25], [0.25, 0.25], [0, 0], [0, 0]])
        session.optimizer_step()


class TwiceClipped(onnxblock.ForwardBlock):
    """A user-defined optimizer: AdamW without bias correction after two gradient clippings."""

    def build(self, parameters):
        graph = onnxblock.model_accessor.current_model().graph
        graph.input.extend([helper.make_tensor_value_info("learning_rate", 1, [1]), helper.make_tensor_value_info("step", 7, [1])])
        sequences = ["params", "gradients", "first_order_moments", "second_order_moments"]
        graph.input.extend(helper.make_tensor_sequence_value_info(name, 1, None) for name in sequences)
        clipped = onnxblock.optim.ClipGradNorm(0.5)(onnxblock.optim.ClipGradNorm(2.0)("gradients"))
        inputs = ["learning_rate", "step", "params", clipped, *sequences[2:]]
        graph.node.append(helper.make_node("AdamWOptimizer", inputs, ["done"], "update", domain="com.microsoft",
                                           adam_mode=1, correct_bias=0, alpha=0.8, beta=0.99, epsilon=1e-4, weight_decay=0.1))
        graph.output.append(helper.make_tensor_value_info("done", 9, [1]))
        return "done"


def test_a_user_defined_optimizer_follows_its_model():
    x, labels = batch()
    with ortrain.TrainingSession.from_model(DATA / "mlp_ce" / "forward.onnx", loss=LossType.CrossEntropyLoss, optimizer=TwiceClipped(),
                                            learning_rate=0.02) as session:
        session.train_step(x, labels)
        old = {name: (p.data.astype(np.float64), p.grad.astype(np.float64)) for name, p in session.parameters}
        norm = np.sqrt(sum((g**2).sum() for _, g in old.values()))
        factor = min(1, 2.0 / (norm + 1e-6))
        factor *= min(1, 0.5 / (norm * factor + 1e-6))
        session.optimizer_step()
        for name, parameter in session.parameters:
            w, g = old[name][0], old[name][1] * factor
            w = w - 0.02 * (0.2 * g) / (np.sqrt(0.01 * g * g) + 1e-4)
            np.testing.assert_allclose(parameter.data, w - 0.02 * 0.1 * w, rtol=1e-4, atol=1e-6)


def test_an_optimizer_model_with_other_nodes_is_refused():
    model = onnx.load(DATA / "mlp_ce" / "optimizer_model.onnx")
    model.graph.node.insert(0, helper.make_node("Identity", ["gradients"], ["same"]))
    model.graph.node[1].input[3] = "same"
    with start() as session, pytest.raises(errors.MissingKernelError, match="InplaceClipGradNorm"):
        session.load_optimizer(model)


def test_outputs_are_written_into_preallocated_arrays():
    x, labels = batch()
    with start(additional_output_names=["output"]) as session, start(additional_output_names=["output"]) as other:
        for step in ("eval_step", "train_step"):
            wanted = getattr(other, step)(x, labels)
            loss, scores = np.full((), 9, np.float32), ortrain.OrtValue.ortvalue_from_numpy(np.zeros((len(x), 4), np.float32))
            given = getattr(session, step)(x, labels, out=[loss, scores])
            assert given[0] is loss and given[1] is scores.numpy()
            for mine, theirs in zip(given, wanted, strict=True):
                np.testing.assert_array_equal(mine, theirs)
            fresh = getattr(session, step)(x, labels, out=[None, scores])[0]
            assert fresh is not loss


@pytest.mark.parametrize(("out", "message"), [
    ([np.zeros((), np.float32)], "expected 2 outputs"), ([None, np.zeros((3, 4), np.float32)], "'output'"), ([np.zeros(()), None], "float32"),
    ([None, np.zeros((4, 4), np.float32).T[::-1]], "C-contiguous"), ([np.zeros(1, np.float32), None], "float32"), ([0.5, None], "got float")])
def test_arrays_that_do_not_fit_the_outputs_are_refused_before_anything_runs(out, message):
    x, labels = batch()
    with start(additional_output_names=["output"]) as session:
        session.train_step(x[:4], labels[:4])
        before = session.parameters["fc1.weight"].grad.copy()
        with pytest.raises(errors.OutputShapeError, match=message):
            session.train_step(x[:4], labels[:4], out=out)
        np.testing.assert_array_equal(session.parameters["fc1.weight"].grad, before)
        assert session.gradients_valid


def test_a_checkpoint_survives_serialization_to_bytes():
    with start() as session:
        steps(session, batch(), 3)
        session.properties["epoch"] = 4
        data = session.state.to_bytes(include_optimizer_state=True)
        again = TrainingState.from_bytes(data)
        with ortrain.TrainingSession(session.training_model, again, session.eval_model, session.optimizer_model) as resumed:
            resumed.learning_rate = session.learning_rate
            assert again.properties == {"epoch": 4}
            assert steps(resumed, batch(), 3) == steps(session, batch(), 3)
    with pytest.raises(errors.InvalidCheckpointError):
        TrainingState.from_bytes(data[:-40])


@pytest.mark.parametrize("between", ["another batch size", "OrtValues", "strided arrays"])
def test_gradients_accumulate_over_steps_with_different_arguments(between):
    """Regression test: a program that was bound to its memory again dropped the second step's gradients."""
    x, labels = batch()
    with start() as session:
        session.train_step(x, labels)
        once = {name: gradient.copy() for name, gradient in session.state.gradients.items()}
        if between == "OrtValues":
            session.train_step(ortrain.OrtValue(x), ortrain.OrtValue(labels))
        elif between == "strided arrays":
            session.train_step(np.repeat(x, 2, axis=1)[:, ::2], labels)
        else:
            session.train_step(x[: len(x) // 2], labels[: len(x) // 2])
            session.train_step(x[len(x) // 2 :], labels[len(x) // 2 :])
        times = 3 if between == "another batch size" else 2      # the mean of each half counts as much as the mean of all
        for name, gradient in once.items():
            np.testing.assert_allclose(session.state.gradients[name], times * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["cross-entropy", "focal", "mse", LossType.BCEWithLogitsLoss])
def test_the_loss_of_a_session_from_a_model_has_a_readable_name(loss):
    with ortrain.TrainingSession.from_model(DATA / "mlp_mse" / "forward.onnx", loss=loss, optimizer="adamw") as session:
        assert session.output_names()[0] == session.output_names(training=False)[0] == "loss"
        assert "onnx::" not in session._repr_html_()


def test_the_representation_of_artifacts_shows_the_loss_by_a_readable_name(tmp_path):
    ortrain.artifacts.generate_artifacts(DATA / "mlp_ce" / "forward.onnx", loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                                         artifact_directory=tmp_path)
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        assert session.output_names() == ["onnx::loss::2"], "the name that onnxruntime-training gives it"
        assert "onnx::" not in session._repr_html_() and "loss" in session._repr_html_()


def test_the_loss_has_another_name_where_the_model_has_a_value_of_that_name():
    model = onnx.load(DATA / "mlp_ce" / "forward.onnx")
    output = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["loss" if name == output else name for name in node.output]
    model.graph.output[0].name = "loss"
    with ortrain.TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer="adamw", additional_output_names=["loss"]) as session:
        assert session.output_names() == ["loss_0", "loss"]
        assert session.predict(*batch()[:1])[0].shape == session.train_step(*batch())[1].shape


def test_parameters_and_properties_have_the_methods_of_a_dict():
    with start() as session:
        parameters = session.parameters
        names = parameters.names()
        assert parameters.keys() == names and [name for name, _ in parameters.items()] == names and [p.name for p in parameters.values()] == names
        assert {name: p.data.shape for name, p in dict(parameters).items()} == {name: p.data.shape for name, p in parameters}
        assert parameters.get(names[0]).name == names[0] and parameters.get("no such") is None
        assert len(parameters) == len(names) and names[0] in parameters
        state = ortrain.api.CheckpointState(session.state)
        state.properties["epoch"], state.properties["name"] = 3, "run"
        properties = state.properties
        assert (properties.keys(), properties.values(), properties.items()) == (["epoch", "name"], [3, "run"], [("epoch", 3), ("name", "run")])
        assert dict(properties) == {"epoch": 3, "name": "run"} and properties.get("no such", 1) == 1
