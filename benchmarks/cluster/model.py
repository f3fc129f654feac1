"""How long steps of workers and rounds of clients take, from measured times and stated networks. docs/how-to/scale.md explains the model.

Times are in seconds, sizes in bytes, bandwidths in bytes per second. Nothing is random: what waits for the slowest waits for an expected order statistic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, log2
from statistics import NormalDist

BUCKET_BYTES = 1 << 20
"""The least size of a bucket of gradients that is summed beside the backward pass."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network in which every machine sends and receives at its full bandwidth at the same time."""

    bandwidth: float
    latency: float

    @classmethod
    def of(cls, gigabits: float, microseconds: float) -> Network:
        """Return a network from gigabits per second and microseconds."""
        return cls(gigabits * 1e9 / 8, microseconds * 1e-6)


def ring(size: float, workers: int, network: Network) -> float:
    """Return the time of a ring all-reduce: two rounds through the ring, each with one part of the array for every worker."""
    return 2 * (workers - 1) * (network.latency + size / workers / network.bandwidth)


def tree(size: float, workers: int, network: Network) -> float:
    """Return the time of an all-reduce by recursive halving and doubling (R. Rabenseifner, 2004)."""
    return 2 * (ceil(log2(workers)) * network.latency + size * (workers - 1) / workers / network.bandwidth)


AllReduce = Callable[[float, int, Network], float]


@dataclass(frozen=True, slots=True)
class Step:
    """A measured step of one worker."""

    seconds: float
    backward: float
    """The share of the step in which gradients are completed."""
    variation: float
    """Standard deviation of the time of a step over its mean."""
    size: float
    """Of the gradients."""


def waiting(step: Step, workers: int, steps: int = 1) -> float:
    """Return the expected delay by the slowest worker, per step, where workers wait for each other after so many steps."""
    return step.seconds * step.variation * slowest(workers) / steps**0.5


def summed(step: Step, workers: int, network: Network, all_reduce: AllReduce) -> float:
    """Return the time of a step whose gradients are summed after the backward pass."""
    return step.seconds + waiting(step, workers) + all_reduce(step.size, workers, network)


def overlapped(step: Step, workers: int, network: Network, all_reduce: AllReduce) -> float:
    """Return the time of a step whose gradients are summed beside the backward pass, in as many buckets as are best.

    The first sum begins with the first bucket that is complete; the last one is never hidden."""
    def exposed(buckets: int) -> float:
        one = all_reduce(step.size / buckets, workers, network)
        return max(one, buckets * one - step.backward * step.seconds * (1 - 1 / buckets))

    return step.seconds + waiting(step, workers) + min(exposed(buckets) for buckets in range(1, max(1, int(step.size / BUCKET_BYTES)) + 1))


def local(step: Step, workers: int, network: Network, all_reduce: AllReduce, every: int) -> float:
    """Return the time of a step where parameters are averaged every so many steps (LocalSGD and DiLoCo)."""
    return step.seconds + waiting(step, workers, every) + all_reduce(step.size, workers, network) / every


def slowest(count: int) -> float:
    """Return the expected maximum of so many standard normal numbers (G. Blom, 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


# ---- federated rounds


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of a federation.

    Times of clients, for computing and for their links alike, are log-normal around the median."""

    step_seconds: float
    """Of the median client."""
    steps: int
    size: float
    """Of the model, which goes down and up in every round."""
    down: float = 100e6 / 8
    up: float = 20e6 / 8
    latency: float = 0.02
    spread: float = 0.6
    """Standard deviation of the logarithm of a client's time."""
    dropout: float = 0.05
    """The share of clients that never answer."""

    @property
    def median(self) -> float:
        """The time of the median client from the request of the server to its answer."""
        return self.steps * self.step_seconds + self.size / self.down + self.size / self.up + 2 * self.latency

    def answered(self, share: float, count: int) -> float:
        """Return the expected time after which a share of so many clients have answered, or all that do if these are fewer."""
        answering = max(1, round(count * (1 - self.dropout)))
        rank = min(ceil(share * count), answering)
        return self.median * exp(self.spread * NormalDist().inv_cdf((rank - 0.375) / (answering + 0.25)))


def round_time(clients: Clients, count: int, share: float, bandwidth: float, aggregation: float) -> float:
    """Return the time of a round that ends when a share of the clients has answered.

    bandwidth: of the server's network. aggregation: seconds in which the server adds up a byte. Both go on while clients compute, so that the longer of the two
    counts."""
    answers = min(ceil(share * count), max(1, round(count * (1 - clients.dropout))))
    server = (count + answers) * clients.size / bandwidth + answers * clients.size * aggregation
    return max(clients.answered(share, count), server)
