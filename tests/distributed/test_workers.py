"""What workers do together, and how all of them end when one fails."""

import numpy as np
import pytest

from ortrain import errors
from ortrain.distributed import SingleProcess
from ortrain.distributed.workers import FIGURES, Workers, strategy_of
from tests.distributed.threads import results, run


@pytest.mark.parametrize("size", [1, 2, 3])
def test_numbers_are_added_up(size):
    found = results(size, lambda strategy: Workers(strategy).sum(strategy.rank, *range(FIGURES - 1)))
    assert found == [[size * (size - 1) / 2, *(size * number for number in range(FIGURES - 1))]] * size


def test_workers_agree_on_the_reason_of_the_lowest_rank():
    reasons = [None, "", "late"]
    assert results(3, lambda strategy: Workers(strategy).agree(reasons[strategy.rank])) == ["", "", ""]
    assert results(3, lambda strategy: Workers(strategy).agree(None)) == [None] * 3
    assert Workers(SingleProcess()).agree("done") == "done"


def test_arrays_are_averaged_and_broadcast_in_place():
    def work(strategy):
        arrays = [np.full(5, strategy.rank, np.float32), np.full((2, 3), 10.0 * strategy.rank)]
        copies = [array + 1 for array in arrays]
        Workers(strategy).average(arrays)
        Workers(strategy).broadcast(copies)
        return [(float(array.min()), float(array.max())) for array in (*arrays, *copies)]

    assert results(3, work) == [[(1, 1), (10, 10), (1, 1), (1, 1)]] * 3


def test_arrays_of_any_number_and_shape_are_gathered_in_the_order_of_ranks():
    def work(strategy):
        mine = [np.arange(number + 1, dtype=dtype) for number, dtype in enumerate([np.float32, np.int64, bool][: strategy.rank])]
        return [(array.dtype.name, array.tolist()) for array in Workers(strategy).gather_arrays(mine)]

    assert results(3, work) == [[("float32", [0.0]), ("float32", [0.0]), ("int64", [0, 1])]] * 3


def test_what_is_not_the_same_is_named():
    def work(strategy):
        Workers(strategy).check_same(seed=3, number_of_samples=10 + strategy.rank // 2)

    for rank, error in enumerate(run(3, work)):
        assert isinstance(error, errors.InvalidArgumentError)
        assert f"expected the same number of samples on every worker, got others on rank 2 than on rank 0 (here, on rank {rank}: 1" in str(error)
    assert results(3, lambda strategy: Workers(strategy).check_same(seed=3)) == [None] * 3


@pytest.mark.parametrize("what", [
    lambda workers: workers.sum(1.0), lambda workers: workers.agree(None), lambda workers: workers.average([np.zeros(2)]),
    lambda workers: workers.broadcast([np.zeros(2)]), lambda workers: workers.check_same(seed=0), lambda workers: workers.gather_arrays([np.zeros(2)]),
    lambda workers: None])
def test_a_failure_of_one_worker_ends_all_whatever_they_do(what):
    def work(strategy):
        workers = Workers(strategy)
        with workers.together():
            if strategy.rank == 1:
                raise ValueError("no such file")
            what(workers)

    found = run(3, work)
    assert [(type(error), str(error)) for error in found] == [(errors.WorkerFailedError, "rank 1 of 3 failed: ValueError: no such file")] * 3
    assert isinstance(found[1].__cause__, ValueError)


def test_where_all_workers_fail_each_has_its_own_error():
    def work(strategy):
        workers = Workers(strategy)
        with workers.together(), workers.together():
            raise ValueError(f"wrong on {strategy.rank}")

    assert [(type(error), str(error)) for error in run(2, work)] == [(ValueError, "wrong on 0"), (ValueError, "wrong on 1")]


def test_workers_can_go_on_after_a_failure():
    def work(strategy):
        workers = Workers(strategy)
        with pytest.raises(errors.WorkerFailedError), workers.together(), workers.together():
            if strategy.rank == 0:
                raise ValueError("once")
            workers.sum(1.0)
        with workers.together():
            return workers.sum(1.0)

    assert results(2, work) == [[2.0]] * 2


def test_a_single_process_needs_no_strategy():
    workers = Workers(strategy_of(None))
    assert (workers.rank, workers.size, workers.are_several) == (0, 1, False)
    array = np.arange(3.0)
    workers.average([array])
    workers.broadcast([array])
    workers.strategy.barrier()
    assert array.tolist() == [0, 1, 2] and workers.sum(2.5) == [2.5] and workers.gather(b"a") == [b"a"]
    with pytest.raises(KeyError), workers.together():
        raise KeyError


def test_what_is_no_strategy_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="expected a strategy out of mpi, got 'mpo'"):
        strategy_of("mpo")
    with pytest.raises(errors.InvalidArgumentError, match=r"expected ortrain\.distributed\.Ray\(workers=\.\.\.\), which needs to know how many"):
        strategy_of("ray")
    with pytest.raises(errors.ArgumentTypeError, match="got a int without rank, size, all_reduce, broadcast, barrier"):
        strategy_of(4)
    strategy = SingleProcess()
    strategy.rank = 1
    with pytest.raises(errors.InvalidArgumentError, match="got rank 1 and size 1"):
        Workers(strategy_of(strategy))
