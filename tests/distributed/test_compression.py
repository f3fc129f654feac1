"""Compressed gradients: what is not sent is not lost, and training goes on nearly as with whole gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortrain import errors
from ortrain.distributed import BFloat16Synchronization, TopKSynchronization
from ortrain.distributed.compression import bfloat16_of, float32_of
from ortrain.distributed.workers import Workers
from tests.distributed.test_parallel_training import fit, trainer_of
from tests.distributed.threads import results, run

KINDS = {"bfloat16": BFloat16Synchronization, "top tenth": lambda: TopKSynchronization(0.1), "one element": lambda: TopKSynchronization(1e-6)}


# ---- bfloat16


@given(st.lists(st.floats(width=32, allow_nan=False, allow_subnormal=False), min_size=1))
def test_numbers_are_rounded_to_the_nearest_of_eight_bits(numbers):
    values = np.array(numbers, np.float32)
    rounded = float32_of(bfloat16_of(values))
    with np.errstate(over="ignore"):
        steps = np.ldexp(1.0, np.frexp(values.astype(np.float64))[1] - 8)
    finite = np.isfinite(rounded)
    assert (np.abs(rounded[finite] - values[finite].astype(np.float64)) <= steps[finite] / 2).all()
    assert (np.abs(values[~finite]) > 3.38e38).all()
    np.testing.assert_array_equal(float32_of(bfloat16_of(rounded)), rounded)


def test_a_number_between_two_becomes_the_even_one():
    one, step = 1.0, 2.0**-7
    values = np.array([one, one + step / 2, one + 3 * step / 2, one + 0.51 * step, -one - step / 2, 0.0, np.inf, -np.inf, np.nan], np.float32)
    expected = [one, one, one + 2 * step, one + step, -one, 0.0, np.inf, -np.inf, np.nan]
    np.testing.assert_array_equal(float32_of(bfloat16_of(values)), np.array(expected, np.float32))


# ---- sums


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3])
def test_all_that_is_not_sent_is_added_to_later_gradients(kind, size):
    """The sums of all steps and what is left over are the gradients of all steps."""
    def work(strategy):
        random = np.random.default_rng(strategy.rank)
        sent, given, synchronization = 0.0, 0.0, KINDS[kind]()
        with trainer_of() as trainer:
            synchronization.start(trainer.session, Workers(strategy))
            buffer, = trainer.session.gradient_buffers()
            for _ in range(5):
                buffer.array[...] = random.standard_normal(buffer.array.size)
                given = given + 0.5 * buffer.array.astype(np.float64)
                synchronization.sum_gradients([buffer], 0.5)
                sent = sent + buffer.array.astype(np.float64)
        unsent, = synchronization._unsent.values()
        return sent, given, unsent.astype(np.float64)

    found = results(size, work)
    for sent, _, _ in found:
        np.testing.assert_array_equal(sent, found[0][0])
    total = found[0][0] + sum(unsent for _, _, unsent in found)
    expected = sum(given for _, given, _ in found)
    tolerance = 5 * size * 4 * 2.0**-8 if kind == "bfloat16" else 1e-5       # the rounded sum of each step has no feedback
    np.testing.assert_allclose(total, expected, atol=tolerance)
    if kind != "bfloat16":
        assert np.count_nonzero(found[0][0]) < found[0][0].size


def test_a_worker_without_samples_sends_what_it_has_left():
    def work(strategy):
        synchronization = TopKSynchronization(0.1)
        with trainer_of() as trainer:
            synchronization.start(trainer.session, Workers(strategy))
            buffer, = trainer.session.gradient_buffers()
            buffer.array[...] = np.arange(buffer.array.size)
            synchronization.sum_gradients([buffer], 1.0)
            buffer.array[...] = np.nan
            synchronization.sum_gradients([buffer], 0.0)
            return buffer.array.copy()

    for array in results(2, work):
        assert np.isfinite(array).all() and np.count_nonzero(array) == round(0.1 * array.size)


def test_a_gradient_that_is_not_finite_does_not_stay():
    def work(strategy):
        synchronization = BFloat16Synchronization()
        with trainer_of() as trainer, np.errstate(invalid="ignore"):
            synchronization.start(trainer.session, Workers(strategy))
            buffer, = trainer.session.gradient_buffers()
            for value in (np.inf, 1.0):
                buffer.array.fill(value)
                synchronization.sum_gradients([buffer], 1.0)
            return buffer.array.copy()

    for array in results(2, work):
        assert (array == 2).all()


@pytest.mark.parametrize("kind, limit", [("bfloat16", 0.01), ("top tenth", 0.15)])
def test_training_ends_near_that_with_whole_gradients(kind, limit):
    how = {"epochs": 12, "metrics": ["accuracy"]}
    compressed = results(2, lambda strategy: fit(strategy, 4, synchronization=KINDS[kind](), **how))
    whole = results(2, lambda strategy: fit(strategy, 4, **how))[0]
    first, last = whole[1][0][2]["loss"], whole[1][-1][2]["loss"]
    assert compressed[0][:2] == compressed[1][:2] and compressed[0][0] != whole[0]
    assert abs(compressed[0][1][-1][2]["loss"] - last) < limit * (first - last)


def test_bfloat16_sends_half_of_what_float32_would():
    def work(strategy):
        fit(strategy, 5, epochs=1, metrics=None, validation=None, synchronization=BFloat16Synchronization())
        return strategy.sent

    with trainer_of() as trainer:
        nbytes = sum(buffer.array.nbytes for buffer in trainer.session.gradient_buffers())
    # a ring all-reduce in float32 sends (size - 1) / size of the bytes to sum them, and as much for the sums
    assert results(4, work)[0] == pytest.approx(3 * 2 * nbytes * 3 / 4 / 2, rel=0.02), "expected three steps"


# ---- refusals


def test_a_strategy_that_cannot_gather_is_refused():
    class Plain:
        def __init__(self, strategy):
            self.rank, self.size, self.all_reduce, self.broadcast = strategy.rank, strategy.size, strategy.all_reduce, strategy.broadcast
            self.barrier = strategy.barrier

    found = run(2, lambda strategy: fit(Plain(strategy), 5, synchronization=BFloat16Synchronization()))
    assert all(isinstance(error, errors.InvalidArgumentError) and "expected a strategy with all_gather and all_to_all" in str(error) for error in found)
    assert results(2, lambda strategy: fit(Plain(strategy), 5, synchronization=TopKSynchronization())[0])


@pytest.mark.parametrize("share, error", [(0, errors.InvalidArgumentError), (1, errors.InvalidArgumentError), ("1%", errors.ArgumentTypeError)])
def test_shares_that_are_none_are_refused(share, error):
    with pytest.raises(error, match="share"):
        TopKSynchronization(share)
