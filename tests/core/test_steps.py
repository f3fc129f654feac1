"""Repeated steps: sessions shared by threads, and equal results on the fast path and the slow path."""

import os
import sys
import sysconfig
import threading
import weakref

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain._core.engine import EngineHandle
from ortrain._core.session_lock import Lock
from ortrain.errors import LabelRangeError
from ortrain.runtime import runner
from ortrain.runtime.options import RunOptions
from tests.test_session import batch, start


def run_together(work, count, seconds):
    """Run `work` on `count` threads at once and assert that all end within a time limit."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)


def test_the_session_lock_is_exclusive_and_reentrant():
    lock, inside, most, turns = Lock(EngineHandle()), [], [], []

    def work():
        for _ in range(50):
            with lock, lock:
                inside.append(1)
                turns.append(threading.get_ident())
                threading.Event().wait(1e-5)                    # releases the GIL
                most.append(len(inside))
                inside.pop()

    run_together(work, 4, 60)
    assert len(turns) == 200
    assert max(most) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_held_by_another_thread_is_free_in_a_forked_child():
    lock, held, done = Lock(EngineHandle()), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        with lock:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join(60)
    assert status == 0


def test_threads_that_share_a_session_lose_no_step():
    session, arrays = start(), batch()

    def work():
        for _ in range(200):
            session.train_step(*arrays)
            session.optimizer_step()

    run_together(work, 3, 120)
    assert session.train_steps == 600
    assert session.state.optimizer_step == 600


def test_a_reset_waits_for_a_step_of_another_thread():
    session, was_reset = start(), threading.Event()

    def work():
        session.lazy_reset_grad()
        was_reset.set()

    thread = threading.Thread(target=work)
    with session.steps.lock:
        thread.start()
        assert not was_reset.wait(0.05)
    thread.join(60)
    assert was_reset.is_set()


def test_threads_that_share_an_inference_session_get_their_own_results():
    weights = [np.random.default_rng(k).standard_normal((256, 256)).astype(np.float32) / 16 for k in range(3)]
    nodes = [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(3)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 256])],
                              [helper.make_tensor_value_info("x3", TensorProto.FLOAT, ["n", 256])],
                              [numpy_helper.from_array(weight, f"w{k}") for k, weight in enumerate(weights)])
    session = ortrain.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    rows, correct = iter((64, 70, 300)), []

    def work():
        x = np.random.default_rng(9).standard_normal((next(rows), 256)).astype(np.float32)
        expected = x @ weights[0] @ weights[1] @ weights[2]
        results = (session.run(None, {"x0": x})[0] for _ in range(150))
        correct.extend(np.allclose(result, expected, rtol=1e-3, atol=1e-3) for result in results)

    run_together(work, 3, 120)
    assert correct == [True] * 450


def train(slow_path):
    session, arrays = start(), batch()
    options = {"run_options": RunOptions()} if slow_path else {}
    losses = []
    for k in range(12):
        losses.append(session.train_step(*arrays, **options)[0])
        if k % 3 == 2:
            session.optimizer_step(**options)
            session.lazy_reset_grad()
        if k == 5:
            session.freeze(next(iter(session.state.trainable)))
        if k == 8:
            session.learning_rate = 0.1
    return losses, session.to_buffer(), session.train_steps


def test_fast_path_and_slow_path_are_bitwise_equal():
    (losses, parameters, count), (expected_losses, expected, expected_count) = train(False), train(True)
    assert losses == expected_losses
    np.testing.assert_array_equal(parameters, expected)
    assert count == expected_count


def test_a_step_rejected_on_the_fast_path_changes_nothing():
    session, (x, labels) = start(), batch()
    session.train_step(x, labels)
    gradients = {name: array.copy() for name, array in session.state.gradients.items()}
    with pytest.raises(LabelRangeError, match="got 1000"):
        session.train_step(x, np.full_like(labels, 1000))
    assert session.gradients_valid
    assert session.train_steps == 1
    for name, array in session.state.gradients.items():
        np.testing.assert_array_equal(array, gradients[name])


def test_growing_the_arena_keeps_other_programs_correct():
    session, (x, labels) = start(), batch()
    first = session.train_step(x, labels)[0]
    session.lazy_reset_grad()
    session.eval_step(np.concatenate([x] * 50), np.concatenate([labels] * 50))
    assert session.train_step(x, labels)[0] == first


def test_only_the_largest_arena_is_kept(monkeypatch):
    monkeypatch.setattr(runner, "MIN_ARENA", 0)
    session, (x, labels) = start(), batch()
    arenas = []
    for times in (1, 10, 100):
        session.train_step(np.concatenate([x] * times), np.concatenate([labels] * times))
        arenas.append(weakref.ref(session._handle.arena))
    assert [arena() is None for arena in arenas] == [True, True, False]
    session.close()
    assert arenas[-1]() is None


def test_a_closed_session_does_not_take_the_fast_path():
    session, arrays = start(), batch()
    session.train_step(*arrays)
    session.optimizer_step()
    session.close()
    for call in (lambda: session.train_step(*arrays), session.optimizer_step):
        with pytest.raises(ortrain.errors.InvalidStateError):
            call()


def trained_parameters(results, index):
    """Train a session for some steps, and store its parameters in results[index]."""
    session, arrays = start(), batch()
    for _ in range(100):
        session.train_step(*arrays)
        session.optimizer_step()
    results[index] = np.concatenate([segment.array for segment in session.state.trainable_segments])


def test_sessions_in_several_threads_train_with_the_bits_of_one():
    results = [None] * 5
    trained_parameters(results, 0)
    threads = [threading.Thread(target=trained_parameters, args=(results, index)) for index in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for found in results[1:]:
        np.testing.assert_array_equal(results[0], found)


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a Python without a GIL")
def test_a_python_without_a_gil_keeps_it_disabled():
    assert not sys._is_gil_enabled()
