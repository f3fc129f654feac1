"""Gradients that a train step leaves until somebody needs them: whatever comes before the optimizer step, the bits are those of gradients that are there."""

import gc

import numpy as np
import pytest

from ortrain import RunOptions, SessionOptions, TrainingSession, errors
from ortrain.artifacts import LossType, OptimType
from ortrain.onnxblock import optim
from ortrain.plan.deferred_gradients import MIN_BYTES, MIN_COMPUTED
from ortrain.runtime import runner
from ortrain.runtime.state import aligned_zeros
from tests.test_optimizer_in_backward import dense_layers
from tests.test_rematerialization import BATCH, residual_blocks

RNG = np.random.default_rng(31)
COMPUTED, HELD = "w1", "w0"
"""Of `dense()`: a weight matrix whose gradient takes more than what it is computed of, and one whose gradient itself is left."""


def dense():
    return dense_layers(96, 640, 512, 10)


def rows(count):
    return RNG.standard_normal((count, 96)).astype(np.float32), RNG.integers(0, 10, count)


def session_of(model, optimizer=OptimType.AdamW, **options):
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    names = [tensor.name for tensor in model.graph.initializer if tensor.name not in statistics]
    return TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=optimizer, requires_grad=names, options=SessionOptions(**options))


def pair(model, **options):
    """A session as it is by default, and one that holds all gradients from the start."""
    deferred, held = session_of(model, **options), session_of(model, **options)
    held.keep_gradients()
    return deferred, held


def plan(session):
    return session._train_runner.last.plan


def deferred_names(session):
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


def is_pending(session):
    return session.steps.pending is not None


def test_large_weights_leave_what_their_gradients_are_computed_of_and_others_the_gradients():
    deferred = session_of(dense())
    step(deferred, rows(8))
    sizes = {name: array.nbytes for name, array in deferred.state.trainable.items()}
    assert sizes[HELD] >= MIN_BYTES and sizes[COMPUTED] >= MIN_COMPUTED
    assert deferred_names(deferred) == {HELD, COMPUTED}
    program = deferred._train_runner.last
    now = plan(deferred).steps[: program.deferred_updates]
    shapes = [plan(deferred).types[name].shape for made in now for name in made.outputs if name]
    assert deferred.state.trainable[HELD].shape in shapes
    assert deferred.state.trainable[COMPUTED].shape not in shapes
    assert program.held_bytes < sizes[HELD] + sizes[COMPUTED]
    assert all(not gradient.any() for name, gradient in deferred._gradients.items() if name in deferred_names(deferred)), "memory that nobody has written to"


@pytest.mark.parametrize("optimizer", [OptimType.AdamW, OptimType.SGD])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("network", [dense, residual_blocks])
def test_training_gives_the_bits_of_gradients_that_are_held(network, threads, optimizer):
    deferred, held = pair(network(), optimizer=optimizer, intra_op_num_threads=threads)
    batch = BATCH if network is residual_blocks else rows(8)
    assert [step(deferred, batch) for _ in range(4)] == [step(held, batch) for _ in range(4)]
    assert is_pending(deferred) and not is_pending(held)
    assert_same(deferred, held)


def test_gradients_are_there_for_who_reads_them_and_from_then_on():
    deferred, held = pair(dense())
    batch = rows(8)
    step(deferred, batch), step(held, batch)
    deferred.train_step(*batch), held.train_step(*batch)
    seen = {name: deferred.parameters[name].grad for name in deferred.state.trainable}
    for name, gradient in seen.items():
        assert gradient.any()
        np.testing.assert_array_equal(gradient, held.parameters[name].grad)
    assert not is_pending(deferred)
    deferred.optimizer_step(), held.optimizer_step()
    deferred.lazy_reset_grad(), held.lazy_reset_grad()
    other = rows(8)
    deferred.train_step(*other), held.train_step(*other)
    for name, gradient in seen.items():
        np.testing.assert_array_equal(gradient, held.parameters[name].grad, err_msg="a view shows the gradients of later steps too")
    deferred.optimizer_step(), held.optimizer_step()
    assert_same(deferred, held)


def walk(session, moves):
    """What a program may do with a session in any order; what it sees."""
    seen, batches = [], {count: (np.full((count, 96), 0.25, np.float32) * np.arange(96, dtype=np.float32) / 96, np.arange(count) % 10) for count in (3, 8, 200)}
    for move in moves:
        if move.startswith("train "):
            seen.append(float(session.train_step(*batches[int(move.split()[1])])[0]))
        elif move.startswith("eval "):
            seen.append(float(session.eval_step(*batches[int(move.split()[1])])[0]))
        elif move == "refused":
            with pytest.raises(errors.LabelRangeError):
                session.train_step(batches[8][0], np.full(8, 10))
        elif move == "optimizer":
            session.optimizer_step()
        elif move == "reset":
            session.lazy_reset_grad()
        elif move == "freeze":
            session.freeze(COMPUTED)
        elif move == "unfreeze":
            session.unfreeze(COMPUTED)
        elif move == "rate":
            session.learning_rate = 3 * session.learning_rate
        elif move == "write":
            session.parameters[COMPUTED].data = 0.5 * session.parameters[COMPUTED].data
        elif move == "predict":
            seen.append(float(session.predict(batches[200][0])[0].sum()))
        elif move == "input gradients":
            seen.append(float(sum(array.sum() for array in session.input_gradients(*batches[8]).values())))
    return seen


TRAINING = ["train 3", "train 8", "train 8", "train 200", "refused", "optimizer", "optimizer", "reset", "reset"]
BETWEEN = ["eval 3", "eval 200", "freeze", "unfreeze", "rate", "write", "predict", "input gradients"]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_between_a_train_step_and_an_optimizer_step_the_bits_are_the_same(seed):
    """Half of the walks reset after each optimizer step, as training loops do, so that gradients stay deferred throughout."""
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
    deferred, held = pair(dense())
    assert walk(deferred, moves) == walk(held, moves)
    assert is_pending(deferred) == bool(seed % 2)
    assert_same(deferred, held)
    for name, gradient in deferred.state.gradients.items():
        np.testing.assert_array_equal(gradient, held.state.gradients[name], err_msg=name)


def test_an_optimizer_step_without_a_train_step_since_takes_the_same_gradients_again():
    deferred, held = pair(dense())
    moves = ["train 8", "optimizer", "reset", "eval 200", "optimizer", "write", "optimizer"]
    assert walk(deferred, moves) == walk(held, moves)
    assert is_pending(deferred)
    assert_same(deferred, held)


class Stopping(RunOptions):
    """Stops a call in its first step, not before."""

    terminate = False

    def __init__(self):
        super().__init__()
        self.terminate_flag[0] = 1


def test_a_train_step_that_is_stopped_before_it_writes_leaves_the_gradients_of_the_one_before():
    deferred, held = pair(dense())
    batch = rows(8)
    for session in (deferred, held):
        step(session, batch)
        with pytest.raises(errors.TerminatedError):
            session.train_step(*batch, run_options=Stopping())
        session.optimizer_step()
    assert is_pending(deferred)
    assert_same(deferred, held)


def test_gradients_that_a_stopped_train_step_has_written_over_are_not_taken_for_valid():
    deferred = session_of(dense())
    step(deferred, rows(8))
    before = {name: array.copy() for name, array in deferred.state.trainable.items()}
    deferred._train_runner.last.first_lost = 0                # as if the step at which it is stopped had written there
    with pytest.raises(errors.TerminatedError):
        deferred.train_step(*rows(8), run_options=Stopping())
    with pytest.raises(errors.InvalidStateError, match="expected valid gradients"):
        deferred.optimizer_step()
    for name, array in before.items():
        np.testing.assert_array_equal(array, deferred.state.trainable[name])
    deferred.lazy_reset_grad()
    step(deferred, rows(8))
    assert is_pending(deferred)


def test_a_batch_for_which_there_is_no_memory_leaves_alone_what_was_left(monkeypatch):
    deferred, held = pair(dense())
    few, many = rows(8), rows(4000)
    for session in (deferred, held):
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
    assert is_pending(deferred)
    assert_same(deferred, held)


def test_gradients_are_not_taken_for_valid_after_an_interrupted_train_step(monkeypatch):
    session, batch, (x, labels) = session_of(dense()), rows(8), rows(8)
    other = np.asfortranarray(x), labels                  # takes the long way
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


def test_an_evaluation_leaves_alone_what_more_rows_have_left():
    deferred, held = pair(dense())
    seen = []
    for session in (deferred, held):
        rng = np.random.default_rng(5)
        for count in (8, 9, 30):
            x, labels = rng.standard_normal((count, 96)).astype(np.float32), rng.integers(0, 10, count)
            session.train_step(x, labels)
            seen.append(is_pending(session))
            session.eval_step(x[:5], labels[:5])
            session.optimizer_step()
            session.lazy_reset_grad()
    assert seen[1:3] == [True, True] and not any(seen[3:])
    assert_same(deferred, held)


def test_an_input_that_cannot_be_read_leaves_alone_what_was_left():
    class Unreadable:
        def __array__(self, *_, **__):
            raise ZeroDivisionError

    (deferred, held), (x, labels) = pair(dense()), rows(8)
    for session in (deferred, held):
        step(session, (x, labels))
        session.train_step(x, labels)
        session.lazy_reset_grad()
        with pytest.raises(ZeroDivisionError):
            session.train_step(Unreadable(), labels)
        session.optimizer_step()
    assert is_pending(deferred)
    assert_same(deferred, held)


def test_an_optimizer_that_clips_by_the_common_norm_has_all_gradients():
    deferred = session_of(dense(), optimizer=optim.AdamW(clip_grad=optim.ClipGradNorm(1.0)))
    step(deferred, rows(8))
    assert not deferred_names(deferred) and not is_pending(deferred)
    assert deferred._gradients[COMPUTED].any()


def test_a_new_optimizer_finds_the_gradients_that_were_left():
    deferred, held = pair(dense())
    replacement = session_of(dense(), optimizer=OptimType.SGD).optimizer_model
    batch = rows(8)
    for session in (deferred, held):
        step(session, batch)
        session.train_step(*batch)
        session.load_optimizer(replacement)
        session.optimizer_step()
        session.lazy_reset_grad()
        step(session, batch)
    assert_same(deferred, held)


def test_gradients_are_gone_with_their_session():
    """The memory in which they were left was the session's."""
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


def test_a_session_that_is_closed_leaves_alone_the_gradients_of_another_one_on_its_state():
    first = session_of(dense())
    step(first, rows(8))
    second = TrainingSession(first.training_model, first.state, first.eval_model, first.optimizer_model)
    first.close()
    step(second, rows(8))
    step(second, rows(8))
    second.train_step(*rows(8))
    assert all(gradient.any() for gradient in second.state.gradients.values())


def test_programs_of_other_shapes_and_of_evaluation_leave_alone_what_was_left():
    deferred = session_of(dense())
    step(deferred, rows(8))
    held_bytes = deferred._train_runner.last.held_bytes
    assert held_bytes > 0
    kept = deferred._handle.arena[:held_bytes].copy()
    deferred.eval_step(*rows(4000))
    assert deferred._handle.arena.size > held_bytes + deferred._eval_runner.last.arena_bytes - 64
    np.testing.assert_array_equal(deferred._handle.arena[:held_bytes], kept)
    deferred.predict(rows(5000)[0])
    np.testing.assert_array_equal(deferred._handle.arena[:held_bytes], kept)


def test_late_steps_are_part_of_a_profile():
    deferred = session_of(dense())
    step(deferred, rows(8))
    with deferred.profile() as profile:
        step(deferred, rows(8))
    program = deferred._train_runner.last
    ran = {each.position for each in profile.steps if each.operator != "optimizer"}
    assert ran == set(range(program.deferred_gradients))
    assert all(each.seconds < 10 for each in profile.steps)
    (computed,) = (each for each in profile.steps if each.operator == "GemmUpdate")
    assert plan(deferred).steps[computed.position].inputs[2] == COMPUTED
    assert computed.bytes >= 6 * deferred.state.trainable[COMPUTED].nbytes, "weights and two moments are read and written"
    (spent,) = (each for each in profile.steps if each.operator == "AdamWUpdate")
    assert spent.bytes >= 7 * deferred.state.trainable[plan(deferred).steps[spent.position].inputs[0]].nbytes, "and the gradient is read"
    deferred.keep_gradients()
    with deferred.profile() as profile:
        step(deferred, rows(8))
    ran = {each.position for each in profile.steps if each.operator != "optimizer"}
    assert ran == {*range(program.deferred_updates), *range(program.deferred_gradients, len(plan(deferred).steps))}


def test_inputs_may_be_written_over_after_the_train_step():
    """The gradient of the first layer is computed of the batch when the optimizer step asks for it."""
    model = dense_layers(1200, 300, 10)
    deferred, held = pair(model)
    x, labels = RNG.standard_normal((4, 1200)).astype(np.float32), np.arange(4)
    for session in (deferred, held):
        given = x.copy()
        session.train_step(given, labels)
        assert (given == x).all()
        given[...] = np.nan
        session.optimizer_step()
    assert "w0" in deferred_names(deferred) and is_pending(deferred)
    assert_same(deferred, held)


def test_sessions_without_an_optimizer_hold_their_gradients():
    session = TrainingSession.from_model(dense(), loss=LossType.CrossEntropyLoss, requires_grad=[HELD, COMPUTED])
    session.train_step(*rows(8))
    assert not deferred_names(session) and not is_pending(session)
    assert session._gradients[COMPUTED].any()
