"""The thread that prepares batches: it is bounded, passes exceptions on, and ends."""

import gc
import threading
import time
import traceback

import numpy as np
import pytest

from ortrain.data import as_loader
from ortrain.data.prefetch import PrefetchIterator
from tests.waiting import DEADLINE, until


def batch(number):
    return [np.array([number])]


def is_over(iterator_thread):
    return not iterator_thread.is_alive()


def endless(log):
    number = 0
    try:
        while True:
            log.append(number)
            yield batch(number)
            number += 1
    finally:
        log.append("closed")


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_at_most_depth_batches_are_prepared_ahead(depth):
    log = []
    iterator = PrefetchIterator(endless(log), depth, at_once=True)
    until(lambda: len(log) == depth)
    time.sleep(0.05)
    assert len(log) == depth
    for taken in range(1, 3 * depth + 1):
        next(iterator)
        until(lambda: len(log) >= taken + (depth + 1) // 2)
        time.sleep(0.01)
        assert len(log) <= taken + depth
    iterator.close()


def test_batches_keep_their_order_and_the_iteration_ends_once_and_for_all():
    iterator = PrefetchIterator(iter([batch(number) for number in range(100)]), 3, at_once=True)
    assert [int(item[0][0]) for item in iterator] == list(range(100))
    assert list(iterator) == []
    until(lambda: is_over(iterator.channel.thread))


def test_an_exception_keeps_its_type_and_the_lines_that_raised_it():
    def failing():
        yield batch(0)
        raise ZeroDivisionError("in the source")

    iterator = PrefetchIterator(failing(), 4, at_once=True)
    next(iterator)
    with pytest.raises(ZeroDivisionError, match="in the source") as caught:
        next(iterator)
    assert any(frame.name == "failing" for frame in traceback.extract_tb(caught.value.__traceback__))
    assert list(iterator) == []
    until(lambda: is_over(iterator.channel.thread))


@pytest.mark.parametrize("taken", [0, 1, 5])
@pytest.mark.parametrize("how", ["closed", "collected"])
def test_the_thread_ends_and_closes_the_source_when_the_iterator_is_closed_or_collected(how, taken):
    log = []
    iterator = PrefetchIterator(endless(log), 2, at_once=True)
    for _ in range(taken):
        next(iterator)
    thread = iterator.channel.thread
    if how == "closed":
        iterator.close()
    del iterator
    gc.collect()
    until(lambda: is_over(thread))
    assert log[-1] in ("closed", 0)          # a generator that was never started has nothing to close


def sleeping(log, seconds):
    for number in range(20):
        log.append(threading.current_thread().name)
        time.sleep(seconds)
        yield batch(number)


def test_a_thread_is_started_only_where_preparing_a_batch_takes_long(monkeypatch):
    for seconds, worthwhile, expected in ((0.0, 10.0, 20), (0.002, 0.0005, 2)):
        monkeypatch.setattr("ortrain.data.prefetch.WORTHWHILE", worthwhile)
        log = []
        assert [int(item[0][0]) for item in PrefetchIterator(sleeping(log, seconds), 2)] == list(range(20))
        assert log.count("ortrain-prefetch") == 20 - expected and log[expected:] == ["ortrain-prefetch"] * (20 - expected)


@pytest.mark.parametrize("worthwhile", [0.0, 10.0])
def test_an_exception_ends_the_iteration_with_and_without_a_thread(monkeypatch, worthwhile):
    def failing():
        for number in range(5):
            yield batch(number)
        raise ZeroDivisionError

    monkeypatch.setattr("ortrain.data.prefetch.WORTHWHILE", worthwhile)
    iterator = PrefetchIterator(failing(), 2)
    for _ in range(5):
        next(iterator)
    for error in (ZeroDivisionError, StopIteration):
        with pytest.raises(error):
            next(iterator)


def test_leaving_a_loop_early_ends_the_thread_and_the_next_epoch_starts_anew(monkeypatch):
    before = threading.active_count()
    data = [(np.full((2, 1), number, np.float32), np.full(2, number)) for number in range(50)]
    monkeypatch.setattr("ortrain.data.prefetch.WORTHWHILE", 0.0)
    loader = as_loader(data, names=["x", "y"], prefetch=2)
    for _ in range(10):
        for taken in loader.epoch(0):
            assert taken[1][0] < 6
            if taken[1][0] == 5:
                break
    del taken
    until(lambda: threading.active_count() <= before)


def test_closing_does_not_wait_for_a_source_that_hangs():
    release = threading.Event()

    def hanging():
        yield batch(0)
        release.wait(DEADLINE)
        yield batch(1)

    iterator = PrefetchIterator(hanging(), 2, at_once=True)
    next(iterator)
    started = time.monotonic()
    iterator.close()
    assert time.monotonic() - started < DEADLINE / 2
    release.set()
    until(lambda: is_over(iterator.channel.thread))


def test_the_batches_of_a_loader_with_a_thread_equal_those_without(monkeypatch):
    x, y = np.random.default_rng(0).random((40, 40000), np.float32), np.arange(40)
    loaders = [as_loader(x, y, names=["x", "y"], batch_size=7, prefetch=prefetch) for prefetch in (0, 2)]
    monkeypatch.setattr("ortrain.data.loader.CHEAP_BATCH", 0)
    monkeypatch.setattr("ortrain.data.prefetch.WORTHWHILE", 0.0)
    assert "up to 2 prepared ahead" in loaders[1].describe()
    for plain, ahead in zip(*(loader.epoch(4) for loader in loaders), strict=True):
        np.testing.assert_array_equal(plain[0], ahead[0])
        np.testing.assert_array_equal(plain[1], ahead[1])
