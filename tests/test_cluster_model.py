"""The model of many workers and clients: its formulas beside simulations of single messages and of random times, and its tables."""

import heapq

import numpy as np
import pytest

from benchmarks import documents
from benchmarks.cluster.model import Clients, Network, Step, local, overlapped, ring, round_time, slowest, summed, tree, waiting
from benchmarks.cluster.tables import CLIENTS, NETWORKS, WORKERS, efficiency

NETWORK = Network.of(10, 50)
STEP = Step(seconds=0.1, backward=0.6, variation=0.02, size=40e6)
FEDERATION = Clients(step_seconds=0.01, steps=30, size=1e6)


def ring_by_messages(size, workers, network):
    """Return when the last message of a ring all-reduce arrives, message by message: each worker sends on what it has received."""
    ready = [0.0] * workers
    for _ in range(2 * (workers - 1)):
        arrivals = [start + network.latency + size / workers / network.bandwidth for start in ready]
        ready = [max(ready[rank], arrivals[rank - 1]) for rank in range(workers)]
    return max(ready)


def halving_by_messages(size, workers, network):
    """Return when recursive halving and then doubling ends: partners exchange a half, a quarter, ... of the array, and the same parts back."""
    time, part = 0.0, size
    parts = []
    while workers > 1:
        part, workers = part / 2, workers // 2
        parts.append(part)
    for part in (*parts, *reversed(parts)):
        time += network.latency + part / network.bandwidth
    return time


def buckets_by_events(step, workers, network, buckets):
    """Return when a step ends whose buckets become ready evenly over the backward pass and are summed one after the other."""
    begin = step.seconds * (1 - step.backward)
    ready = [begin + step.seconds * step.backward * (number + 1) / buckets for number in range(buckets)]
    heapq.heapify(ready)
    free = 0.0
    while ready:
        free = max(free, heapq.heappop(ready)) + tree(step.size / buckets, workers, network)
    return max(free, step.seconds)


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_all_reduces_take_as_long_as_their_messages(workers):
    assert ring(40e6, workers, NETWORK) == pytest.approx(ring_by_messages(40e6, workers, NETWORK))
    assert tree(40e6, workers, NETWORK) == pytest.approx(halving_by_messages(40e6, workers, NETWORK))


@pytest.mark.parametrize("gigabits", [1, 3, 10])
def test_overlapped_sums_take_as_long_as_their_buckets(gigabits):
    network, step = Network.of(gigabits, 50), Step(0.1, 0.6, 0.0, 40e6)
    best = min(buckets_by_events(step, 8, network, buckets) for buckets in range(1, 39))
    assert overlapped(step, 8, network, tree) == pytest.approx(best, rel=1e-9)


def test_waiting_is_that_for_the_slowest_of_random_steps():
    random = np.random.default_rng(0)
    for workers in (8, 256):
        assert slowest(workers) == pytest.approx(random.standard_normal((4000, workers)).max(1).mean(), rel=0.02)
    sums = random.normal(STEP.seconds, STEP.seconds * STEP.variation, (4000, 64, 10)).sum(2).max(1).mean()
    assert 10 * (STEP.seconds + waiting(STEP, 64, 10)) == pytest.approx(sums, rel=1e-3)


def test_steps_are_ordered_as_they_must_be():
    for workers in WORKERS:
        plain = summed(STEP, workers, NETWORK, tree)
        assert STEP.seconds < local(STEP, workers, NETWORK, tree, 100) < local(STEP, workers, NETWORK, tree, 10) < plain
        assert STEP.seconds < overlapped(STEP, workers, NETWORK, tree) < plain <= summed(STEP, workers, NETWORK, ring)


def test_rounds_wait_for_an_order_statistic_of_random_clients():
    random = np.random.default_rng(1)
    for count in (10, 100):
        answering = round(count * (1 - FEDERATION.dropout))
        times = np.sort(FEDERATION.median * np.exp(FEDERATION.spread * random.standard_normal((4000, answering))), axis=1)
        for share in (0.5, 0.9, 1.0):
            rank = min(int(np.ceil(share * count)), answering)
            assert FEDERATION.answered(share, count) == pytest.approx(np.median(times[:, rank - 1]), rel=0.05)


def test_a_server_is_what_many_clients_wait_for():
    times = [round_time(FEDERATION, count, 0.9, 1e9 / 8, 1e-10) for count in CLIENTS]
    assert times[0] == FEDERATION.answered(0.9, CLIENTS[0]) and times[-1] == pytest.approx(1.9e5 * 1e6 / (1e9 / 8) + 9, rel=1e-9)
    assert times == sorted(times)


def test_processors_that_workers_share_count_once():
    assert efficiency(alone=10, together=20, workers=4, cpus=2) == 1 and efficiency(10, 12.5, 2, 2) == 0.8


def test_recorded_steps_make_all_tables():
    results = documents.load("cluster-amd-epyc-zen4")
    for kind, render in documents.TABLES.items():
        if kind.startswith(("workers of", "clients of")):
            rows = render(results).splitlines()
            assert len(rows) == 2 + (len(NETWORKS) * len(WORKERS) if kind.startswith("workers") else len(CLIENTS))
