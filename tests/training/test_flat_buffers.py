"""Flat buffers: the session's own gradients, parameters, moments and running statistics, side by side in memory."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession, errors
from tests.test_session import DATA, batch
from tests.training.test_optimizers import BATCHES, session_of, train, wide

BUFFERS = ["gradient_buffers", "parameter_buffers", "moment_buffers", "running_statistics_buffers"]


def normalized():
    """x0 [n, 20] -> 5 scores through a batch normalization; a weight that is not trained is as large as its statistics."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.standard_normal((20, 30)) * 0.2, "scale": np.ones(30), "bias": np.zeros(30), "mean": np.zeros(30), "variance": np.ones(30),
               "offset": np.full(30, 0.5), "v": rng.standard_normal((30, 5)) * 0.2}
    nodes = [helper.make_node("MatMul", ["x0", "w"], ["h"]), helper.make_node("Add", ["h", "offset"], ["shifted"]),
             helper.make_node("BatchNormalization", ["shifted", "scale", "bias", "mean", "variance"], ["n"]), helper.make_node("MatMul", ["n", "v"], ["y"])]
    graph = helper.make_graph(nodes, "normalized", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 20])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
                              [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normalized_session():
    return TrainingSession.from_model(normalized(), loss="cross-entropy", optimizer="adamw", requires_grad=["w", "scale", "bias", "v"],
                                      frozen_params=["offset"])


def assert_holds(buffers, arrays):
    """Assert that buffers hold these arrays and nothing else, as views of the same memory."""
    found = {name: buffer.view(name) for buffer in buffers for name in buffer.offsets}
    assert found.keys() == arrays.keys()
    for name, view in found.items():
        np.testing.assert_array_equal(view, arrays[name], err_msg=name)
        assert np.shares_memory(view, arrays[name]), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_are_one_writable_array_of_the_session(dtype):
    model = wide()
    if dtype == np.float64:
        for tensor in model.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    with session_of("adamw", model) as session:
        session.train_step(BATCHES[0][0].astype(dtype), BATCHES[0][1])
        buffer, = session.gradient_buffers()
        assert buffer.array.dtype == dtype and buffer.array.ndim == 1 and buffer.array.flags.c_contiguous and buffer.array.flags.writeable
        assert_holds([buffer], session.state.gradients)
        assert sum(map(np.count_nonzero, session.state.gradients.values())) == np.count_nonzero(buffer.array) > 0, "expected padding of zeros"
        assert memoryview(buffer.array).format == {4: "f", 8: "d"}[buffer.array.itemsize]
        assert np.shares_memory(np.from_dlpack(buffer.array), buffer.array)


def test_the_optimizer_step_uses_what_is_written_into_the_buffers():
    with session_of("adamw", wide()) as session, session_of("adamw", wide()) as other:
        for x, labels in BATCHES:
            session.train_step(x, labels)
            for buffer in session.gradient_buffers():
                buffer.array *= 0.25
            session.optimizer_step()
            session.lazy_reset_grad()
        other.gradient_scale = 0.25
        train(other)
        for name, array in session.state.trainable.items():
            np.testing.assert_array_equal(array, other.state.trainable[name], err_msg=name)


def test_deferred_gradients_are_completed_and_kept_from_then_on():
    with session_of("adamw", wide()) as deferred, session_of("adamw", wide()) as kept:
        kept.keep_gradients()
        deferred.train_step(*BATCHES[0])
        kept.train_step(*BATCHES[0])
        assert deferred.steps.pending is not None
        buffers = deferred.gradient_buffers()
        assert_holds(buffers, deferred.state.gradients)
        for x, labels in BATCHES[1:]:
            for session in (deferred, kept):
                session.optimizer_step()
                session.lazy_reset_grad()
                session.train_step(x, labels)
            assert deferred.steps.pending is None
            for mine, theirs in zip(buffers, kept.gradient_buffers(), strict=True):
                np.testing.assert_array_equal(mine.array, theirs.array, err_msg="expected the same memory to show the gradients of later steps")


def test_frozen_parameters_are_left_out():
    with session_of("adamw", wide()) as session:
        whole, = session.gradient_buffers()
        session.freeze("w1")
        for buffers in (session.gradient_buffers(), session.parameter_buffers(), *session.moment_buffers().values()):
            assert [name for buffer in buffers for name in buffer.offsets] == [name for name in whole.offsets if name != "w1"]
        session.train_step(*BATCHES[0])
        arrays = session.state.gradients
        assert_holds(session.gradient_buffers(), {name: array for name, array in arrays.items() if name != "w1"})
        session.unfreeze("w1")
        assert_holds(session.gradient_buffers(), arrays)


def test_parameters_and_moments_have_the_layout_of_the_gradients():
    with session_of("adamw", wide()) as session:
        train(session)
        gradients, = session.gradient_buffers()
        parameters, = session.parameter_buffers()
        assert_holds([parameters], session.state.trainable)
        moments = session.moment_buffers()
        assert list(moments) == ["momentum0", "momentum1"]
        first, second = moments.values()
        for buffer in (parameters, *first, *second):
            assert (buffer.offsets, buffer.shapes, len(buffer.array)) == (gradients.offsets, gradients.shapes, len(gradients.array))
        assert (second[0].array >= 0).all() and second[0].array.any()
        session.state.moments[1][0].array[...] = 7
        assert (second[0].array == 7).all()


def test_a_moment_that_the_settings_leave_out_has_no_buffers():
    with session_of("rmsprop") as session, session_of("centered rmsprop") as centered:
        used = [[bool(buffers) for buffers in each.moment_buffers().values()] for each in (session, centered)]
        assert used == [[True, False, False], [True, True, False]]


def test_running_statistics_are_those_that_training_updates():
    with normalized_session() as session:
        buffers = session.running_statistics_buffers()
        before = [buffer.array.copy() for buffer in buffers]
        assert_holds(buffers, {name: session.state.frozen[name] for name in ("mean", "variance")})
        session.train_step(*BATCHES[0])
        assert all((buffer.array != old).any() for buffer, old in zip(buffers, before, strict=True))
        for buffer in buffers:
            buffer.array[...] = 1
        assert (session.state.frozen["mean"] == 1).all() and (session.state.frozen["offset"] == 0.5).all()


def test_running_statistics_of_artifacts_of_onnxruntime_training():
    with TrainingSession.from_artifacts(DATA / "cnn_bn") as session:
        before = {name: array.copy() for name, array in session.state.frozen.items()}
        session.train_step(*batch("cnn_bn"))
        changed = {name for name, array in session.state.frozen.items() if (array != before[name]).any()}
        assert changed and {name for buffer in session.running_statistics_buffers() for name in buffer.offsets} == changed


def test_there_are_no_statistics_without_batch_normalization():
    with session_of("adamw") as session:
        assert session.running_statistics_buffers() == []


def test_a_session_that_updates_in_the_backward_pass_has_no_gradients():
    with session_of("adamw", optimizer_in_backward=True) as session:
        with pytest.raises(errors.InvalidStateError, match="expected gradients to keep, got a session with optimizer_in_backward"):
            session.gradient_buffers()
        parameters, = session.parameter_buffers()
        assert_holds([parameters], session.state.trainable)


def test_gradients_of_a_failed_step_are_refused():
    with session_of("adamw") as session:
        session.steps.invalidate_gradients()
        with pytest.raises(errors.InvalidStateError, match="expected valid gradients"):
            session.gradient_buffers()


@pytest.mark.parametrize("method", BUFFERS)
def test_a_closed_session_has_no_buffers(method):
    session = session_of("adamw")
    session.close()
    with pytest.raises(errors.UseAfterRelease, match="expected an open session"):
        getattr(session, method)()


@pytest.mark.parametrize("method", BUFFERS)
def test_a_nominal_state_has_no_buffers(method):
    with session_of("adamw") as session:
        session.state.nominal = True
        with pytest.raises(errors.InvalidStateError, match="nominal state"):
            getattr(session, method)()


def test_a_name_that_a_buffer_does_not_hold_is_refused():
    with session_of("adamw") as session:
        buffer = session.gradient_buffers()[0]
        for method in (buffer.view, buffer.offset):
            with pytest.raises(errors.ParameterNotFoundError, match=r"expected a parameter of this buffer, one of .*, got 'nothing'"):
                method("nothing")
