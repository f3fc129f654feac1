"""on_gradients_ready: buckets of gradients are complete when the callback is given them, and the rest of the step neither reads nor writes them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import SessionOptions, TrainingSession, errors
from tests.test_deferred_gradients import dense, rows, session_of
from tests.test_rematerialization import BATCH, residual_blocks
from tests.test_session import DATA, batch
from tests.training.test_flat_buffers import normalized_session


def shared():
    """x [n, 6] + p + q, whose gradients are one value, times w [6, 3]."""
    rng = np.random.default_rng(1)
    weights = {"p": rng.standard_normal((1, 6)), "q": rng.standard_normal((1, 6)), "w": rng.standard_normal((6, 3))}
    nodes = [helper.make_node("Add", ["p", "q"], ["sum"]), helper.make_node("Add", ["x0", "sum"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    graph = helper.make_graph(nodes, "shared", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 6])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
                              [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def golden(name, **options):
    return TrainingSession.from_artifacts(DATA / name, options=SessionOptions(**options))


RNG = np.random.default_rng(0)
NETWORKS = {
    "dense": (lambda: session_of(dense()), rows(8)),
    "residual blocks": (lambda: session_of(residual_blocks()), BATCH),
    "batch normalization": (normalized_session, (RNG.standard_normal((8, 20)).astype(np.float32), RNG.integers(0, 5, 8))),
    "one gradient of two": (lambda: session_of(shared()), (RNG.standard_normal((5, 6)).astype(np.float32), RNG.integers(0, 3, 5))),
    "one step at a time on two threads": (lambda: session_of(dense(), intra_op_num_threads=2), rows(64)),
} | {name: (lambda name=name: golden(name), tuple(batch(name))) for name in ("transformer", "cnn_bn", "mlp_bce")}


def gradients_of(session):
    return {name: array.copy() for name, array in session.state.gradients.items() if name not in session.state.masked}


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 12, 1 << 30])
@pytest.mark.parametrize("network", NETWORKS)
def test_buckets_are_complete_and_not_needed_any_more(network, bucket_bytes):
    make, data = NETWORKS[network]
    seen = {}

    def take(bucket):
        for name in bucket.offsets:
            assert name not in seen
            seen[name] = bucket.view(name).copy()
        bucket.array.fill(7)                                # whoever reads the gradient later computes something else

    with make() as session, make() as plain:
        plain.keep_gradients()
        session.on_gradients_ready(take, bucket_bytes)
        for step in range(3):
            seen.clear()
            losses = [float(each.train_step(*data)[0]) for each in (plain, session)]
            expected = gradients_of(plain)
            assert losses[0] == losses[1] and seen.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(seen[name], array, err_msg=f"{name} in step {step}")
                assert (session.state.gradients[name] == 7).all(), name
                session.state.gradients[name][...] = array
            for each in (plain, session):
                each.optimizer_step()
                each.lazy_reset_grad()


@pytest.mark.parametrize("network", ["dense", "transformer"])
def test_accumulated_gradients_are_given_too(network):
    make, data = NETWORKS[network]
    with make() as session, make() as plain:
        plain.keep_gradients()
        doubled = {}
        session.on_gradients_ready(lambda bucket: doubled.update({name: 2 * bucket.view(name) for name in bucket.offsets}), 1)
        for each in (plain, session):
            each.train_step(*data)
            each.train_step(*data)
        for name, array in gradients_of(plain).items():
            np.testing.assert_array_equal(session.state.gradients[name], array)
            np.testing.assert_array_equal(doubled[name], 2 * array)


def test_buckets_come_in_the_order_of_the_backward_pass_before_its_end():
    order, runs = [], []
    with session_of(dense()) as session:
        layers = [name for name in session.state.order if name in session.state.trainable]
        session.on_gradients_ready(lambda bucket: (order.extend(bucket.offsets), runs.append(session._handle.n_runs)), 1)
        session.train_step(*rows(8))
        assert [name for name in order if name in ("w0", "w1", "w2")] == ["w2", "w1", "w0"] and set(order) == set(layers)
        assert runs == sorted(runs) and runs[0] < runs[-1], "expected steps of the pass between the first bucket and the last"


def test_frozen_parameters_are_left_out_and_a_callback_can_be_taken_away():
    seen = []
    with session_of(dense()) as session:
        session.on_gradients_ready(lambda bucket: seen.extend(bucket.offsets))
        session.freeze("w1")
        session.train_step(*rows(8))
        assert sorted(seen) == sorted(set(session.state.trainable) - {"w1"})
        session.on_gradients_ready(None)
        session.optimizer_step()
        session.lazy_reset_grad()
        session.train_step(*rows(8))
        assert len(seen) == len(session.state.trainable) - 1


def test_buckets_are_neighbours_of_the_size_that_is_wanted():
    with session_of(dense()) as session:
        whole, = session.gradient_buffers()
        buckets = []
        session.on_gradients_ready(buckets.append, 1 << 20)
        session.train_step(*rows(8))
        assert sum(len(bucket.array) for bucket in buckets) == len(whole.array)
        assert sum(bucket.array.nbytes < 1 << 20 for bucket in buckets) <= 1
        assert all(np.shares_memory(bucket.array, whole.array) for bucket in buckets)


@pytest.mark.parametrize("error", [ValueError("mine"), errors.WorkerFailedError("rank 1 failed"), KeyboardInterrupt()])
def test_what_a_callback_raises_ends_the_step(error):
    def refuse(bucket):
        raise error

    with session_of(dense()) as session, session_of(dense()) as plain:
        session.on_gradients_ready(refuse)
        with pytest.raises(type(error)):
            session.train_step(*rows(8))
        assert not session.gradients_valid
        with pytest.raises(errors.InvalidStateError, match="expected valid gradients"):
            session.optimizer_step()
        session.lazy_reset_grad()
        session.on_gradients_ready(lambda bucket: None)
        data = rows(8)
        assert float(session.train_step(*data)[0]) == float(plain.train_step(*data)[0])


def test_a_callback_cannot_use_the_session():
    data = rows(8)
    with session_of(dense()) as session:
        session.on_gradients_ready(lambda bucket: session.eval_step(*data))
        with pytest.raises(errors.InvalidStateError, match="expected no call of a session by an operator in Python or a callback for gradients"):
            session.train_step(*data)


def test_errors_of_a_batch_are_as_without_a_callback():
    x, labels = rows(8)
    with session_of(dense()) as session:
        session.on_gradients_ready(lambda bucket: None)
        with pytest.raises(errors.LabelRangeError):
            session.train_step(x, labels + 10)
        with pytest.raises(errors.InputShapeError):
            session.train_step(x[:, :5], labels)
        session.train_step(x, labels)
        session.optimizer_step()


def test_settings_that_are_wrong_are_refused():
    with session_of(dense()) as session, pytest.raises(errors.InvalidArgumentError, match="expected bucket_bytes >= 1, got 0"):
        session.on_gradients_ready(print, 0)
    with session_of(dense(), optimizer_in_backward=True) as session, pytest.raises(errors.InvalidStateError, match="optimizer_in_backward"):
        session.on_gradients_ready(print)
