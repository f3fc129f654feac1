"""Gradients that are summed while the backward pass goes on: the same sums, in the same order on all workers, and the same ends."""

import threading
import time

import numpy as np
import pytest

from ortrain import errors
from ortrain.distributed import OverlappedSynchronization
from ortrain.trainer import LambdaCallback
from tests.distributed.test_parallel_training import HELD_OUT, LABELS, SAMPLES, X, fit, trainer_of
from tests.distributed.threads import results, run

BUCKET = 1
"""Bytes: every parameter is a bucket."""


@pytest.mark.parametrize("how", [{}, {"accumulate": 3}, {"accumulate": 2, "accumulation": "sum", "clip_norm": 0.1}, {"metrics": ["f1"], "weight_average": 0.9}])
@pytest.mark.parametrize("size", [2, 3])
def test_sums_have_the_bits_of_those_after_the_pass(size, how):
    overlapped = results(size, lambda strategy: fit(strategy, 4, synchronization=OverlappedSynchronization(BUCKET), **how))
    plain = results(size, lambda strategy: fit(strategy, 4, **how))
    for mine, expected in zip(overlapped, plain, strict=True):
        assert mine[:2] == expected[:2]
        for name, array in expected[2].items():
            np.testing.assert_array_equal(mine[2][name], array, err_msg=name)


def test_a_worker_without_samples_takes_part():
    for data, batch_size in (((X[:17], LABELS[:17]), 4), ((X[:6], LABELS[:6]), 1), ((X[:1], LABELS[:1]), 1)):
        overlapped = results(4, lambda strategy: fit(strategy, batch_size, data=data, epochs=4, synchronization=OverlappedSynchronization(BUCKET)))
        assert [worker[:2] for worker in overlapped] == [worker[:2] for worker in results(4, lambda strategy: fit(strategy, batch_size, data=data, epochs=4))]


def test_sums_begin_before_the_pass_ends():
    """With a strategy that notes from which thread it is called, and while which train step runs."""
    def work(strategy):
        seen, main = [], threading.get_ident()

        class Watched(type(strategy)):
            def all_reduce(self, array):
                seen.append((threading.get_ident() != main, array.size))
                super().all_reduce(array)

        strategy.__class__ = Watched
        fit(strategy, 5, epochs=1, metrics=None, validation=None, synchronization=OverlappedSynchronization(BUCKET))
        return [size for beside, size in seen if beside]

    first, second = results(2, work)
    with trainer_of() as trainer:
        sizes = [array.size for array in trainer.session.state.trainable.values()]
    assert first == second and len(first) == 4 * (len(sizes) + 1), "expected every step but the first to sum its buckets beside the pass"


def test_parameters_that_are_unfrozen_are_summed_too():
    def thaw(trainer):
        trainer.session.freeze("hidden.*") if trainer.epoch == 0 else trainer.session.unfreeze("hidden.*")

    def work(strategy, synchronization):
        return fit(strategy, 4, epochs=3, synchronization=synchronization, more=[LambdaCallback(on_epoch_begin=thaw)])

    def fit(strategy, batch_size, *, epochs, synchronization, more):
        with trainer_of(strategy, callbacks=more, synchronization=synchronization) as trainer:
            trainer.fit(X, LABELS, epochs=epochs, batch_size=batch_size)
            return [record.loss for record in trainer.history]

    overlapped = results(2, lambda strategy: work(strategy, OverlappedSynchronization(BUCKET)))
    assert overlapped == results(2, lambda strategy: work(strategy, None))


def test_workers_whose_passes_have_other_orders_sum_the_same_buckets():
    def work(strategy):
        synchronization = OverlappedSynchronization(BUCKET)
        take, waiting = synchronization._take, []

        def late(bucket):                                   # rank 1 learns of its buckets in another order than rank 0
            waiting.append(bucket)
            if len(waiting) == 4:
                for one in reversed(waiting):
                    take(one)
                waiting.clear()

        if strategy.rank:
            synchronization._take = late
        return fit(strategy, 4, synchronization=synchronization)[:2]

    found = results(2, work)
    assert found[0] == found[1] == fit_plain()


def fit_plain():
    return results(2, lambda strategy: fit(strategy, 4))[0][:2]


# ---- failures


def failing(strategy, **how):
    with trainer_of(strategy, synchronization=OverlappedSynchronization(BUCKET), **how) as trainer:
        trainer.fit(X, LABELS, batch_size=5, epochs=2, validation=HELD_OUT)


def assert_all_fail(work, message, size=3):
    found = run(size, work)
    assert [type(error) for error in found] == [errors.WorkerFailedError] * size and all(message in str(error) for error in found), found


def test_a_worker_that_fails_between_steps_ends_all():
    def fail(trainer, record):
        if trainer.rank == 1 and record.step == 2:
            raise OSError("disk full")

    assert_all_fail(lambda strategy: failing(strategy, callbacks=[LambdaCallback(on_step_end=fail)]), "rank 1 of 3 failed: OSError: disk full")


def test_a_wrong_label_ends_all_before_any_sum():
    batches = [(X[start : start + 10], np.where(np.arange(10) + start == 27, 9, LABELS[start : start + 10])) for start in range(0, SAMPLES, 10)]

    def work(strategy):
        with trainer_of(strategy, synchronization=OverlappedSynchronization(BUCKET)) as trainer:
            trainer.fit(batches)

    assert_all_fail(work, "rank 1 of 2 failed: LabelRangeError", 2)


def test_a_worker_that_fails_after_its_sums_have_begun_ends_all():
    x = X.copy()
    x[30:35] = np.inf                                       # of the third step; the loss is looked at after the pass

    def work(strategy):
        with trainer_of(strategy, synchronization=OverlappedSynchronization(BUCKET)) as trainer, np.errstate(all="ignore"):
            trainer.fit(x, LABELS, batch_size=5, shuffle=False, check_finite=False)

    assert_all_fail(work, "rank 0 of 3 failed: InvalidStateError: expected finite data", 3)


def test_a_strategy_that_fails_in_the_thread_is_heard():
    def work(strategy):
        calls = []

        class Broken(type(strategy)):
            def all_reduce(self, array):
                calls.append(array)
                if threading.current_thread().name.startswith("ortrain-gradients") and len(calls) > 30:
                    self.meeting.barrier.abort()
                super().all_reduce(array)

        strategy.__class__ = Broken
        with trainer_of(strategy, synchronization=OverlappedSynchronization(BUCKET)) as trainer:
            trainer.fit(X, LABELS, batch_size=5, epochs=5)

    started = time.perf_counter()
    assert all(isinstance(error, threading.BrokenBarrierError) for error in run(2, work)) and time.perf_counter() - started < 30


def test_buckets_of_no_bytes_are_refused():
    with pytest.raises(errors.InvalidArgumentError, match="expected bucket_bytes >= 1, got 0"):
        OverlappedSynchronization(0)
