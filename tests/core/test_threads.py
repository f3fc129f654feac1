"""Thread pool: results are bitwise equal for any number of threads, threads that wait leave processors to those that work, pools survive a fork, and closed
sessions release their threads."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import ortrain
from ortrain._core.engine import EngineHandle
from ortrain.artifacts import LossType, OptimType
from tests.waiting import until

DATA = Path(__file__).parents[1] / "data" / "ort_golden"


def start(model, options):
    return ortrain.TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, options=options)


def large_batch(case):
    """Return a batch that is large enough for several threads."""
    inputs = np.load(DATA / case / "inputs.npz")
    return [np.concatenate([inputs[f"train0.{name}"]] * 24) for name in inputs["input_order"]]


def train(case, threads, steps=4):
    options = ortrain.SessionOptions(intra_op_num_threads=threads)
    inputs = np.load(DATA / case / "inputs.npz")
    rng = np.random.default_rng(0)
    model = DATA / case / "forward.onnx"
    with start(model, options) as session:
        arrays = [inputs[f"train0.{name}"] for name in inputs["input_order"]]
        repeats = 24 if case != "transformer" else 1
        arrays = [np.concatenate([x] * repeats) for x in arrays]
        if arrays[0].dtype == np.float32:
            arrays[0] = arrays[0] + rng.standard_normal(arrays[0].shape).astype(np.float32)
        losses = []
        for _ in range(steps):
            losses.append(session.train_step(*arrays)[0])
            session.optimizer_step()
            session.lazy_reset_grad()
        return losses, {name: parameter.data.copy() for name, parameter in session.parameters}


@pytest.mark.parametrize("case", ["mlp_ce", "cnn", "cnn_bn", "transformer"])
def test_results_are_bitwise_equal_for_any_number_of_threads(case):
    losses, parameters = train(case, 1)
    for threads in (2, 3, 5):
        other_losses, other = train(case, threads)
        assert losses == other_losses
        for name, value in parameters.items():
            np.testing.assert_array_equal(value, other[name])


def thread_count():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()


@pytest.fixture
def one_processor():
    """Let the threads of this test, and those that they start, run on one processor only."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs threads that can be bound to a processor")
def test_threads_that_share_a_processor_sleep_while_they_wait(one_processor):
    assert not EngineHandle(workers=4).spins


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_threads_with_a_processor_each_spin_while_they_wait():
    assert EngineHandle(workers=2).spins


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_its_own_threads():
    options = ortrain.SessionOptions(intra_op_num_threads=3)
    with start(DATA / "cnn" / "forward.onnx", options) as session:
        arrays = large_batch("cnn")
        session.train_step(*arrays)
        expected = session.eval_step(*arrays)[0]
        child = os.fork()
        if child == 0:
            before = thread_count()
            is_same = session.eval_step(*arrays)[0] == expected
            os._exit(0 if is_same and thread_count() == before + 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_closing_a_session_releases_its_threads():
    train("cnn", 1, 1)
    before = thread_count()
    for _ in range(3):
        train("cnn", 4, 1)
    until(lambda: thread_count() <= before)                                 # Linux lists a thread for a moment after another has joined it
