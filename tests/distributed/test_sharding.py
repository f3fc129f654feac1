"""An optimizer that workers divide: training is the same, no moment is kept twice, and checkpoints are whole."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortrain import SessionOptions, Trainer, TrainingSession, errors
from ortrain.distributed import OptimizerSharding
from ortrain.formats.checkpoint import read_checkpoint
from ortrain.runtime.segments import Segment, Sharding
from ortrain.runtime.state import GROUP
from ortrain.trainer import LambdaCallback
from ortrain.training.parameter_groups import ParameterGroup
from tests.distributed.test_parallel_training import HELD_OUT, LABELS, X, assert_like_one_process, fit, trainer_of, weights_of
from tests.distributed.threads import results, run
from tests.trainer.models import classifier

OPTIMIZERS = ["sgd", "rmsprop", "adamw", "lion", "lamb", "adafactor", "muon"]


class Plain:
    """The strategy of a thread, without what only some strategies have."""

    def __init__(self, strategy):
        self.rank, self.size, self.all_reduce, self.broadcast = strategy.rank, strategy.size, strategy.all_reduce, strategy.broadcast
        self.barrier = strategy.barrier


def sharded(strategy, *arguments, **settings):
    return fit(strategy, *arguments, synchronization=OptimizerSharding(), **settings)


def moments_of(session):
    return [array for segments in session.state.moments for array in (segment.array for segment in segments)]


# ---- equality


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", [lambda strategy: strategy, Plain], ids=["ranges", "plain"])
def test_training_has_the_bits_of_workers_with_whole_optimizers(optimizer, size, kind):
    how = {"optimizer": optimizer, "epochs": 1, "weight_average": 0.9}
    expected = results(size, lambda strategy: fit(strategy, 4, **how))[0]
    for losses, records, weights in results(size, lambda strategy: sharded(kind(strategy), 4, **how)):
        assert (losses, records) == expected[:2]
        for name, array in expected[2].items():
            np.testing.assert_array_equal(weights[name], array, err_msg=name)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_gradients_are_clipped_by_their_common_norm(optimizer):
    assert_like_one_process(3, 4, OptimizerSharding, optimizer=optimizer, clip_norm=0.1, clip_value=0.05, accumulate=2)


def test_parameter_groups_and_frozen_parameters_are_left_as_they_are():
    groups = [ParameterGroup("hidden.bias", frozen=True), ParameterGroup("head.*", learning_rate_scale=0.1, weight_decay=0.0)]
    assert_like_one_process(4, 4, OptimizerSharding, parameter_groups=groups)


def test_a_worker_without_samples_takes_part():
    assert_like_one_process(4, 4, OptimizerSharding, data=(X[:17], LABELS[:17]), accumulate=2)


# ---- what a worker keeps, and what is sent


@given(st.lists(st.lists(st.integers(0, 40), max_size=2).map(tuple), min_size=1, max_size=6), st.integers(1, 5), st.booleans())
def test_every_element_is_in_one_shard(shapes, size, whole_tensors):
    segment = Segment({str(number): shape for number, shape in enumerate(shapes)}, np.dtype(np.float32))
    for view in segment.views.values():
        view[...] = np.random.default_rng(view.size).random(view.shape)
    moments, found = segment.like(), 0
    for rank in range(size):
        shard, = Sharding([segment], rank, size, whole_tensors).shards([segment])
        found += shard.array.size
        assert not whole_tensors or all(segment.shapes[name] == shape for name, shape in shard.shapes.items())
        assert whole_tensors or shard.array.size <= segment.array.size / size + 16
        for name, view in shard.views.items():
            shard.part_of(name, moments.views[name], view)[...] = view
    assert found == segment.array.size
    np.testing.assert_array_equal(moments.array, segment.array)


@pytest.mark.parametrize("optimizer, tolerance", [("adamw", 16), ("adafactor", 96)])
def test_moments_are_divided(optimizer, tolerance):
    with trainer_of(optimizer=optimizer) as trainer:
        whole = sum(array.size for array in moments_of(trainer.session))

    def work(strategy):
        with trainer_of(strategy, optimizer=optimizer, synchronization=OptimizerSharding()) as trainer:
            before = sum(array.size for array in moments_of(trainer.session))
            trainer.fit(X, LABELS, batch_size=10)
            assert sum(array.size for array in moments_of(trainer.session)) == before
            return before

    for size in (2, 3):
        found = results(size, work)
        assert sum(found) == whole and max(found) <= whole / size + 2 * tolerance


def test_gradients_are_summed_by_shards():
    def work(strategy):
        sharded(strategy, 25, metrics=None, validation=None, epochs=1)
        return strategy.reduced, strategy.scattered

    with trainer_of() as trainer:
        elements = sum(segment.array.size for segment in trainer.session.state.trainable_segments)
    found = results(2, work)
    assert sum(scattered for _, scattered in found) == elements and all(reduced < elements for reduced, _ in found)


# ---- checkpoints


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_checkpoint_is_whole_and_any_number_of_workers_goes_on_from_it(optimizer, tmp_path):
    def train(folder, synchronization, epochs, resume=False):
        def work(strategy):
            how = {"strategy": strategy, "synchronization": synchronization(), "folder": folder, "seed": 5, "progress": False}
            if resume:
                del how["folder"]
                trainer = Trainer.from_artifacts(folder, resume=True, **how)
            else:
                trainer = trainer_of(optimizer=optimizer, **how)
            with trainer:
                trainer.fit(X, LABELS, batch_size=60 // 5 // strategy.size, epochs=epochs)
                return weights_of(trainer)

        return work

    expected = results(2, train(tmp_path / "straight", lambda: None, 4))[0]
    results(2, train(tmp_path / "run", OptimizerSharding, 2))
    results(2, train(tmp_path / "whole", lambda: None, 2))
    found, kept = (read_checkpoint(tmp_path / name / "checkpoint").optimizer_groups[GROUP] for name in ("run", "whole"))
    assert found.step == kept.step == 10
    for name, moments in kept.momentums.items():
        for moment, array in moments.items():
            np.testing.assert_array_equal(found.momentums[name][moment], array)
    for weights in results(2, train(tmp_path / "run", OptimizerSharding, 4, resume=True)):
        for name, array in expected.items():
            np.testing.assert_array_equal(weights[name], array)
    with TrainingSession.from_artifacts(tmp_path / "run") as session:
        assert session.state.optimizer_step == 20 and all(array.any() for array in moments_of(session))


def test_a_session_that_was_trained_before_keeps_its_moments():
    def train(strategy, synchronization):
        session = TrainingSession.from_model(classifier(), loss="cross-entropy", optimizer="adamw", learning_rate=0.01)
        session.train_step(X, LABELS)
        session.optimizer_step()
        session.lazy_reset_grad()
        with Trainer(session, strategy=strategy, synchronization=synchronization, progress=False) as trainer:
            trainer.fit(X, LABELS, batch_size=10)
            return weights_of(trainer)

    expected = results(2, lambda strategy: train(strategy, None))[0]
    for weights in results(2, lambda strategy: train(strategy, OptimizerSharding())):
        for name, array in expected.items():
            np.testing.assert_array_equal(weights[name], array)


# ---- failures and refusals


@pytest.mark.parametrize("where", ["on_gradients", "on_step_end", "on_epoch_end"])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_worker_that_fails_ends_all_with_its_rank(where, clip_norm, tmp_path):
    def fail(trainer, *_):
        if trainer.rank == 1:
            raise OSError("disk full")

    def work(strategy):
        with trainer_of(strategy, synchronization=OptimizerSharding(), clip_norm=clip_norm, folder=tmp_path / "run",
                        callbacks=[LambdaCallback(**{where: fail})]) as trainer:
            trainer.fit(X, LABELS, batch_size=5, validation=HELD_OUT)

    assert [str(error) for error in run(3, work)] == ["rank 1 of 3 failed: OSError: disk full"] * 3


def test_what_needs_all_moments_is_refused_for_a_shard(tmp_path):
    with trainer_of() as trainer:
        session = trainer.session
        session.shard_optimizer(1, 2, lambda value: 2 * value)
        for call in (session.moment_buffers, lambda: session.save_checkpoint(tmp_path / "checkpoint", include_optimizer_state=True),
                     lambda: pickle.dumps(session.state), lambda: trainer.find_learning_rate(X, LABELS),
                     lambda: TrainingSession(session.training_model, session.state)):
            with pytest.raises(errors.InvalidStateError, match="got a session that keeps those of shard 1 of 2 alone"):
                call()
        session.save_checkpoint(tmp_path / "checkpoint")
        session.train_step(X, LABELS)
        own = session.state.updated_gradient_segments[0].array.astype(np.float64)
        assert session.gradient_norm() == pytest.approx(np.sqrt(2 * (own**2).sum()))


def test_wrong_shards_are_refused():
    with trainer_of() as trainer, pytest.raises(errors.InvalidArgumentError, match="got rank 2 and size 2"):
        trainer.session.shard_optimizer(2, 2, float)
    options = SessionOptions(optimizer_in_backward=True)
    with trainer_of(options=options) as trainer, pytest.raises(errors.InvalidArgumentError, match="expected a session without optimizer_in_backward"):
        trainer.session.shard_optimizer(0, 2, float)
    with TrainingSession.from_model(classifier(), loss="cross-entropy") as session, pytest.raises(errors.InvalidStateError, match="the session has none"):
        session.shard_optimizer(0, 2, float)


def test_workers_that_would_exchange_differently_are_refused():
    def work(strategy):
        with trainer_of(strategy, synchronization=OptimizerSharding() if strategy.rank else None) as trainer:
            trainer.fit(X, LABELS)

    assert all("expected the same synchronization on every worker" in str(error) for error in run(2, work))


def test_another_optimizer_begins_with_moments_of_its_own_shards():
    with trainer_of() as trainer, trainer_of(optimizer="lamb") as other:
        trainer.session.shard_optimizer(0, 2, float)
        trainer.session.load_optimizer(other.session.optimizer_model)
        assert trainer.session.state.sharding.bounds != [] and not any(array.any() for array in moments_of(trainer.session))
        assert all(not shard.first[name] for shard in trainer.session.state.updated_segments for name in shard.first)
