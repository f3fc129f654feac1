"""What workers exchange, and when."""

import numpy as np
import pytest

from ortrain import Trainer, errors
from ortrain.data import as_loader
from ortrain.distributed import DiLoCo, LocalSGD
from ortrain.trainer import LambdaCallback
from tests.distributed.test_parallel_training import HELD_OUT, LABELS, X, fit, trainer_of, weights_of
from tests.distributed.threads import results, run

BATCH, EPOCHS = 5, 2
WORKERS = 2


def parameters_of(session):
    return [segment.array for segment in session.state.trainable_segments]


def reference(every, outer_step, **settings):
    """Train WORKERS sessions one after the other, with `outer_step(parameters before, mean of parameters after)` every so many steps and after each epoch;
    return the final parameters."""
    trainers = [trainer_of(**settings) for _ in range(WORKERS)]
    sessions = [trainer.session for trainer in trainers]
    loaders = [as_loader(X, LABELS, names=["x", "labels"], batch_size=BATCH, seed=5).shard(rank, WORKERS) for rank in range(WORKERS)]
    before = [array.copy() for array in parameters_of(sessions[0])]
    step = 0
    for epoch in range(EPOCHS):
        batches = list(zip(*(loader.epoch(epoch) for loader in loaders), strict=True))
        for number, parts in enumerate(batches, 1):
            for session, part in zip(sessions, parts, strict=True):
                session.train_step(*part)
                session.optimizer_step()
                session.lazy_reset_grad()
            step += 1
            if step % every == 0 or number == len(batches):
                means = [sum(arrays) / WORKERS for arrays in zip(*map(parameters_of, sessions), strict=True)]
                before = outer_step(before, means)
                for session in sessions:
                    for array, value in zip(parameters_of(session), before, strict=True):
                        array[...] = value
    for trainer in trainers:
        trainer.close()
    return before


def trained(synchronization, **settings):
    """Return the parameters of all workers, which are the same, of a trainer with a synchronization of its own in each."""
    def work(strategy):
        with trainer_of(strategy, synchronization=synchronization(), **settings) as trainer:
            trainer.fit(X, LABELS, batch_size=BATCH, epochs=EPOCHS, validation=HELD_OUT)
            return [array.copy() for array in parameters_of(trainer.session)]

    found = results(WORKERS, work)
    for arrays in found:
        assert all((array == first).all() for array, first in zip(arrays, found[0], strict=True))
    return found[0]


def test_averaging_after_every_step_of_plain_sgd_is_averaging_gradients():
    for mine, other in zip(trained(lambda: LocalSGD(1), optimizer="sgd"), trained(lambda: None, optimizer="sgd"), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_workers_of_local_sgd_average_parameters_every_so_many_steps(optimizer):
    for mine, expected in zip(trained(lambda: LocalSGD(3), optimizer=optimizer), reference(3, lambda before, means: means, optimizer=optimizer), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-7)


def test_diloco_takes_outer_steps_with_nesterov_momentum():
    velocity = [0.0] * 9

    def outer_step(before, means):
        after = []
        for number, (old, mean) in enumerate(zip(before, means, strict=True)):
            change = old - mean
            velocity[number] = 0.8 * velocity[number] + change
            after.append((old - 0.6 * (change + 0.8 * velocity[number])).astype(np.float32))
        return after

    expected = reference(2, outer_step)
    for mine, array in zip(trained(lambda: DiLoCo(2, learning_rate=0.6, momentum=0.8)), expected, strict=True):
        np.testing.assert_allclose(mine, array, rtol=1e-4, atol=1e-6)
    for mine, array in zip(trained(lambda: DiLoCo(2, learning_rate=1, momentum=0)), reference(2, lambda before, means: means), strict=True):
        np.testing.assert_allclose(mine, array, rtol=1e-5, atol=1e-6)


def test_workers_that_train_by_themselves_communicate_rarely():
    def reduced(every):
        def work(strategy):
            fit(strategy, 1, epochs=1, validation=None, metrics=None, synchronization=LocalSGD(every))
            return strategy.reduced

        return results(WORKERS, work)[0]

    with trainer_of() as trainer:
        elements = sum(array.size for array in parameters_of(trainer.session))
    assert reduced(1) - reduced(5) >= 20 * elements and reduced(5) - reduced(25) >= 4 * elements


def test_the_losses_are_those_of_all_workers():
    def work(strategy):
        losses, records, _ = fit(strategy, BATCH, synchronization=LocalSGD(2), learning_rate=0.0, epochs=1)
        return losses, records

    found = results(WORKERS, work)
    assert found[0][1] == found[1][1]
    single = fit(None, BATCH * WORKERS, learning_rate=0.0, epochs=1)
    assert found[0][1][0][2] == pytest.approx(single[1][0][2], rel=1e-6)
    assert found[0][0][1::2] == pytest.approx(single[0][1::2], rel=1e-6) and found[0][0][0] != found[1][0][0]


def test_a_worker_without_samples_takes_part():
    def work(strategy):
        _, records, weights = fit(strategy, 2, data=(X[:9], LABELS[:9]), synchronization=LocalSGD(2), accumulate=2)
        return records, {name: array.tolist() for name, array in weights.items()}

    found = results(4, work)
    assert all(worker == found[0] for worker in found)


def test_a_failure_is_noticed_when_workers_meet():
    def fail(trainer, record):
        if trainer.rank == 1 and record.step == 1:
            raise OSError("disk full")

    def work(strategy):
        with trainer_of(strategy, synchronization=LocalSGD(3), callbacks=[LambdaCallback(on_step_end=fail)]) as trainer:
            trainer.fit(X, LABELS, batch_size=BATCH, epochs=EPOCHS)

    assert [str(error) for error in run(WORKERS, work)] == ["rank 1 of 2 failed: OSError: disk full"] * 2


def test_a_resumed_run_has_the_outer_momentum(tmp_path):
    """With plain SGD, whose workers have no moments of their own."""
    def work(strategy):
        how = {"optimizer": "sgd", "learning_rate": 0.1}
        with trainer_of(strategy, synchronization=DiLoCo(3), **how) as straight:
            straight.fit(X, LABELS, batch_size=BATCH, epochs=4)
            expected = weights_of(straight)
        with trainer_of(strategy, synchronization=DiLoCo(3), folder=tmp_path / "run", **how) as trainer:
            trainer.fit(X, LABELS, batch_size=BATCH, epochs=1)
            trainer.fit(X, LABELS, batch_size=BATCH, epochs=2)
        strategy.barrier()
        with Trainer.from_artifacts(tmp_path / "run", resume=True, strategy=strategy, synchronization=DiLoCo(3), seed=5, progress=False) as trainer:
            trainer.fit(X, LABELS, batch_size=BATCH, epochs=4)
            return expected, weights_of(trainer)

    for expected, found in results(WORKERS, work):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("make, error, message", [
    (lambda: LocalSGD(0), errors.InvalidArgumentError, "expected every >= 1, got 0"),
    (lambda: LocalSGD(2.0), errors.ArgumentTypeError, "expected a whole number as every"),
    (lambda: DiLoCo(momentum=1), errors.InvalidArgumentError, r"expected a momentum in \[0, 1\), got 1"),
    (lambda: DiLoCo(learning_rate=0), errors.InvalidArgumentError, "expected a finite learning_rate > 0, got 0"),
    (lambda: trainer_of(synchronization="diloco"), errors.InvalidArgumentError, "expected an ortrain.distributed.Synchronization as synchronization"),
    (lambda: trainer_of(synchronization=LocalSGD(), weight_average=0.9), errors.InvalidArgumentError, "expected no weight_average with workers that take"),
])
def test_settings_that_are_wrong_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
