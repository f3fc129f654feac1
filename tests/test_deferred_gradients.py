"""Deferred gradients: whatever runs between a train step and an optimizer step, results are bit-identical to kept
gradients."""

import gc

import numpy as np
import pytest

from ortrain import RunOptions, SessionOptions, TrainingSession, errors
from ortrain.artifacts import LossType, OptimType
from ortrain.onnxblock import optim
from ortrain.plan.deferred_gradients import MIN_BYTES, MIN_UNCOMPUTED_BYTES
from ortrain.runtime import runner
from ortrain.runtime.segments import aligned_zeros
from tests.test_optimizer_in_backward import dense_layers
from tests.test_rematerialization import BATCH, residual_blocks

RNG = np.random.default_rng(31)
UNCOMPUTED, LEFT_IN_ARENA = "w1", "w0"
"""Weights of `dense()`: one whose gradient is larger than its operands, and one whose gradient itself is left in the
arena."""


def dense():
    return dense_layers(96, 640, 512, 10)


def rows(count):
    return RNG.standard_normal((count, 96)).astype(np.float32), RNG.integers(0, 10, count)


def session_of(model, optimizer=OptimType.AdamW, **options):
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    names = [tensor.name for tensor in model.graph.initializer if tensor.name not in statistics]
    return TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=optimizer, requires_grad=names, options=SessionOptions(**options))


def pair(model, **options):
    """Return a session with default options and one that keeps all gradients from the start."""
    deferred, kept = session_of(model, **options), session_of(model, **options)
    kept.keep_gradients()
    return deferred, kept


def plan(session):
    return session._train_runner.last.plan


def deferred_parameters(session):
    return session._train_runner.last.deferred_names


def step(session, batch):
    loss = float(session.train_step(*batch)[0])
    session.optimizer_step()
    session.lazy_reset_grad()
    return loss


def assert_same(one, other):
    for part in ("trainable", "frozen"):
        for name, array in getattr(one.state, part).items():
            np.testing.assert_array_equal(array, getattr(other.state, part)[name], err_msg=name)


def has_pending_updates(session):
    return session.steps.pending is not None


def test_gradients_of_large_weights_are_not_computed():
    deferred = session_of(dense())
    step(deferred, rows(8))
    sizes = {name: array.nbytes for name, array in deferred.state.trainable.items()}
    assert sizes[LEFT_IN_ARENA] >= MIN_BYTES and sizes[UNCOMPUTED] >= MIN_UNCOMPUTED_BYTES
    assert deferred_parameters(deferred) == {LEFT_IN_ARENA, UNCOMPUTED}
    program = deferred._train_runner.last
    train_steps = plan(deferred).steps[: program.deferred_updates_start]
    shapes = [plan(deferred).types[name].shape for train_step in train_steps for name in train_step.outputs if name]
    assert deferred.state.trainable[LEFT_IN_ARENA].shape in shapes
    assert deferred.state.trainable[UNCOMPUTED].shape not in shapes
    assert program.retained_bytes < sizes[LEFT_IN_ARENA] + sizes[UNCOMPUTED]
    for name in deferred_parameters(deferred):
        assert not deferred._gradients[name].any(), "expected gradient buffers that were never written"


@pytest.mark.parametrize("optimizer", [OptimType.AdamW, OptimType.SGD])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("network", [dense, residual_blocks])
def test_training_is_identical_to_kept_gradients(network, threads, optimizer):
    deferred, kept = pair(network(), optimizer=optimizer, intra_op_num_threads=threads)
    batch = BATCH if network is residual_blocks else rows(8)
    assert [step(deferred, batch) for _ in range(4)] == [step(kept, batch) for _ in range(4)]
    assert has_pending_updates(deferred) and not has_pending_updates(kept)
    assert_same(deferred, kept)


def test_reading_gradients_materializes_them_from_then_on():
    deferred, kept = pair(dense())
    batch = rows(8)
    step(deferred, batch), step(kept, batch)
    deferred.train_step(*batch), kept.train_step(*batch)
    seen = {name: deferred.parameters[name].grad for name in deferred.state.trainable}
    for name, gradient in seen.items():
        assert gradient.any()
        np.testing.assert_array_equal(gradient, kept.parameters[name].grad)
    assert not has_pending_updates(deferred)
    deferred.optimizer_step(), kept.optimizer_step()
    deferred.lazy_reset_grad(), kept.lazy_reset_grad()
    other = rows(8)
    deferred.train_step(*other), kept.train_step(*other)
    for name, gradient in seen.items():
        np.testing.assert_array_equal(gradient, kept.parameters[name].grad, err_msg="expected the view to show the gradients of later steps")
    deferred.optimizer_step(), kept.optimizer_step()
    assert_same(deferred, kept)


def walk(session, moves):
    """Make the given calls to a session; return the values that they return."""
    results, row = [], np.arange(96, dtype=np.float32) / 96
    batches = {count: (np.full((count, 96), 0.25, np.float32) * row, np.arange(count) % 10) for count in (3, 8, 200)}
    for move in moves:
        if move.startswith("train "):
            results.append(float(session.train_step(*batches[int(move.split()[1])])[0]))
        elif move.startswith("eval "):
            results.append(float(session.eval_step(*batches[int(move.split()[1])])[0]))
        elif move == "refused":
            with pytest.raises(errors.LabelRangeError):
                session.train_step(batches[8][0], np.full(8, 10))
        elif move == "optimizer":
            session.optimizer_step()
        elif move == "reset":
            session.lazy_reset_grad()
        elif move == "freeze":
            session.freeze(UNCOMPUTED)
        elif move == "unfreeze":
            session.unfreeze(UNCOMPUTED)
        elif move == "rate":
            session.learning_rate = 3 * session.learning_rate
        elif move == "write":
            session.parameters[UNCOMPUTED].data = 0.5 * session.parameters[UNCOMPUTED].data
        elif move == "predict":
            results.append(float(session.predict(batches[200][0])[0].sum()))
        elif move == "input gradients":
            results.append(float(sum(array.sum() for array in session.input_gradients(*batches[8]).values())))
    return results


TRAINING = ["train 3", "train 8", "train 8", "train 200", "refused", "optimizer", "optimizer", "reset", "reset"]
BETWEEN = ["eval 3", "eval 200", "freeze", "unfreeze", "rate", "write", "predict", "input gradients"]


@pytest.mark.parametrize("seed", range(12))
def test_random_sequences_of_calls_give_identical_results(seed):
    """Odd seeds reset after each optimizer step, as training loops do, so that gradients stay deferred throughout."""
    choice = np.random.default_rng(seed)
    moves = ["train 8", "optimizer", "reset"]
    while len(moves) < 60:
        move = str(choice.choice([*BETWEEN, *TRAINING]))
        if seed % 2 == 0:
            moves.append(move)
        elif move.startswith("train"):
            moves += [move, *map(str, choice.choice(BETWEEN, choice.integers(3))), "optimizer", "reset"]
        elif move in BETWEEN or move == "refused":
            moves.append(move)
    deferred, kept = pair(dense())
    assert walk(deferred, moves) == walk(kept, moves)
    assert has_pending_updates(deferred) == bool(seed % 2)
    assert_same(deferred, kept)
    for name, gradient in deferred.state.gradients.items():
        np.testing.assert_array_equal(gradient, kept.state.gradients[name], err_msg=name)


def test_repeated_optimizer_step_uses_the_same_gradients():
    deferred, kept = pair(dense())
    moves = ["train 8", "optimizer", "reset", "eval 200", "optimizer", "write", "optimizer"]
    assert walk(deferred, moves) == walk(kept, moves)
    assert has_pending_updates(deferred)
    assert_same(deferred, kept)


class Stopping(RunOptions):
    """Run options that terminate a call in its first step, but not before."""

    terminate = False

    def __init__(self):
        super().__init__()
        self.terminate_flag[0] = 1


def test_train_step_terminated_before_its_first_write_keeps_previous_gradients():
    deferred, kept = pair(dense())
    batch = rows(8)
    for session in (deferred, kept):
        step(session, batch)
        with pytest.raises(errors.TerminatedError):
            session.train_step(*batch, run_options=Stopping())
        session.optimizer_step()
    assert has_pending_updates(deferred)
    assert_same(deferred, kept)


def test_terminated_train_step_invalidates_overwritten_gradients():
    deferred = session_of(dense())
    step(deferred, rows(8))
    before = {name: array.copy() for name, array in deferred.state.trainable.items()}
    deferred._train_runner.last.first_clobbering_step = 0                # as if the step where it is terminated had overwritten them
    with pytest.raises(errors.TerminatedError):
        deferred.train_step(*rows(8), run_options=Stopping())
    with pytest.raises(errors.InvalidStateError, match="expected valid gradients"):
        deferred.optimizer_step()
    for name, array in before.items():
        np.testing.assert_array_equal(array, deferred.state.trainable[name])
    deferred.lazy_reset_grad()
    step(deferred, rows(8))
    assert has_pending_updates(deferred)


def test_out_of_memory_keeps_deferred_gradients(monkeypatch):
    deferred, kept = pair(dense())
    few, many = rows(8), rows(4000)
    for session in (deferred, kept):
        step(session, few)
        session.train_step(*few)
        size = session._handle.arena.size

        def scarce(count, dtype, most=size):
            if count * dtype.itemsize > most:
                raise MemoryError
            return aligned_zeros(count, dtype)

        monkeypatch.setattr(runner, "aligned_zeros", scarce)
        with pytest.raises(MemoryError):
            session.eval_step(*many)
        session.lazy_reset_grad()
        with pytest.raises(MemoryError):
            session.train_step(*many)
        monkeypatch.undo()
        session.optimizer_step()
        session.lazy_reset_grad()
        step(session, few)
    assert has_pending_updates(deferred)
    assert_same(deferred, kept)


def test_interrupted_train_step_invalidates_gradients(monkeypatch):
    session, batch, (x, labels) = session_of(dense()), rows(8), rows(8)
    other = np.asfortranarray(x), labels                  # not C-contiguous, so the fast path is not taken
    step(session, batch)
    session.train_step(*batch)
    session.lazy_reset_grad()
    run = session._train_runner.run

    def interrupted(*arguments):
        run(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(session._train_runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.train_step(*other)
    monkeypatch.undo()
    with pytest.raises(errors.InvalidStateError, match="lazy_reset_grad"):
        session.optimizer_step()
    session.lazy_reset_grad()
    step(session, other)


def test_smaller_evaluation_keeps_deferred_gradients():
    deferred, kept = pair(dense())
    pending = []
    for session in (deferred, kept):
        rng = np.random.default_rng(5)
        for count in (8, 9, 30):
            x, labels = rng.standard_normal((count, 96)).astype(np.float32), rng.integers(0, 10, count)
            session.train_step(x, labels)
            pending.append(has_pending_updates(session))
            session.eval_step(x[:5], labels[:5])
            session.optimizer_step()
            session.lazy_reset_grad()
    assert pending[1:3] == [True, True] and not any(pending[3:])
    assert_same(deferred, kept)


def test_unreadable_input_keeps_deferred_gradients():
    class Unreadable:
        def __array__(self, *_, **__):
            raise ZeroDivisionError

    (deferred, kept), (x, labels) = pair(dense()), rows(8)
    for session in (deferred, kept):
        step(session, (x, labels))
        session.train_step(x, labels)
        session.lazy_reset_grad()
        with pytest.raises(ZeroDivisionError):
            session.train_step(Unreadable(), labels)
        session.optimizer_step()
    assert has_pending_updates(deferred)
    assert_same(deferred, kept)


def test_clipping_by_global_norm_does_not_defer_gradients():
    deferred = session_of(dense(), optimizer=optim.AdamW(clip_grad=optim.ClipGradNorm(1.0)))
    step(deferred, rows(8))
    assert not deferred_parameters(deferred) and not has_pending_updates(deferred)
    assert deferred._gradients[UNCOMPUTED].any()


def test_new_optimizer_uses_deferred_gradients():
    deferred, kept = pair(dense())
    replacement = session_of(dense(), optimizer=OptimType.SGD).optimizer_model
    batch = rows(8)
    for session in (deferred, kept):
        step(session, batch)
        session.train_step(*batch)
        session.load_optimizer(replacement)
        session.optimizer_step()
        session.lazy_reset_grad()
        step(session, batch)
    assert_same(deferred, kept)


def test_gradients_are_released_with_their_session():
    """Deferred gradients are in the arena of the session."""
    deferred = session_of(dense())
    step(deferred, rows(8))
    state = deferred.state
    deferred.close()
    assert state.gradients == {}
    deferred = session_of(dense())
    step(deferred, rows(8))
    state = deferred.state
    del deferred
    gc.collect()
    assert state.gradients == {}


def test_closing_a_session_keeps_gradients_of_another_session_on_its_state():
    first = session_of(dense())
    step(first, rows(8))
    second = TrainingSession(first.training_model, first.state, first.eval_model, first.optimizer_model)
    first.close()
    step(second, rows(8))
    step(second, rows(8))
    second.train_step(*rows(8))
    assert all(gradient.any() for gradient in second.state.gradients.values())


def test_other_programs_do_not_overwrite_retained_bytes():
    deferred = session_of(dense())
    step(deferred, rows(8))
    retained_bytes = deferred._train_runner.last.retained_bytes
    assert retained_bytes > 0
    kept = deferred._handle.arena[:retained_bytes].copy()
    deferred.eval_step(*rows(4000))
    assert deferred._handle.arena.size > retained_bytes + deferred._eval_runner.last.arena_bytes - 64
    np.testing.assert_array_equal(deferred._handle.arena[:retained_bytes], kept)
    deferred.predict(rows(5000)[0])
    np.testing.assert_array_equal(deferred._handle.arena[:retained_bytes], kept)


def test_deferred_steps_are_profiled():
    deferred = session_of(dense())
    step(deferred, rows(8))
    with deferred.profile() as profile:
        step(deferred, rows(8))
    program = deferred._train_runner.last
    positions = {row.position for row in profile.steps if row.operator != "optimizer"}
    assert positions == set(range(program.deferred_gradients_start))
    assert all(row.seconds < 10 for row in profile.steps)
    (gemm_update,) = (row for row in profile.steps if row.operator == "GemmUpdate")
    assert plan(deferred).steps[gemm_update.position].inputs[2] == UNCOMPUTED
    assert gemm_update.bytes >= 6 * deferred.state.trainable[UNCOMPUTED].nbytes, "expected weights and two moments to be read and written"
    (update,) = (row for row in profile.steps if row.operator == "AdamWUpdate")
    assert update.bytes >= 7 * deferred.state.trainable[plan(deferred).steps[update.position].inputs[0]].nbytes, "expected the gradient to be read as well"
    deferred.keep_gradients()
    with deferred.profile() as profile:
        step(deferred, rows(8))
    positions = {row.position for row in profile.steps if row.operator != "optimizer"}
    assert positions == {*range(program.deferred_updates_start), *range(program.deferred_gradients_start, len(plan(deferred).steps))}


def test_inputs_may_be_overwritten_after_the_train_step():
    """The optimizer step computes the gradient of the first layer from a copy of the batch."""
    model = dense_layers(1200, 300, 10)
    deferred, kept = pair(model)
    x, labels = RNG.standard_normal((4, 1200)).astype(np.float32), np.arange(4)
    for session in (deferred, kept):
        batch = x.copy()
        session.train_step(batch, labels)
        assert (batch == x).all()
        batch[...] = np.nan
        session.optimizer_step()
    assert "w0" in deferred_parameters(deferred) and has_pending_updates(deferred)
    assert_same(deferred, kept)


def test_sessions_without_an_optimizer_do_not_defer_gradients():
    session = TrainingSession.from_model(dense(), loss=LossType.CrossEntropyLoss, requires_grad=[LEFT_IN_ARENA, UNCOMPUTED])
    session.train_step(*rows(8))
    assert not deferred_parameters(session) and not has_pending_updates(session)
    assert session._gradients[UNCOMPUTED].any()
