"""Steps of workers on a simulated network: how much time summing gradients takes, and how much of it the backward pass hides.

    mpiexec -n 2 python -m benchmarks parallel [--gigabits 1 2.5 10] [--latency 50]

Every worker has one thread. After each all-reduce it sleeps for as long as a ring all-reduce takes on the given network, less the time that the real one took.
An MPI library that polls while it waits needs a processor of its own for that: Open MPI yields it with OMPI_MCA_mpi_yield_when_idle=1."""

from __future__ import annotations

import argparse
import time

import numpy as np

from ortrain import SessionOptions, Trainer
from ortrain.distributed import MPI, OverlappedSynchronization, Synchronization
from tests.test_optimizer_in_backward import dense_layers

SIZES, BATCH, SAMPLES = (512, 1024, 1024, 1024, 10), 256, 2048
WARM_UP, EPOCHS = 1, 6


class SimulatedNetwork(MPI):
    """MPI with the bandwidth, in bytes per second, and the latency, in seconds, of a slower network."""

    bandwidth, latency = 0.0, 0.0

    def all_reduce(self, array: np.ndarray) -> None:
        started = time.perf_counter()
        super().all_reduce(array)
        transfer = self.latency + 2 * array.nbytes * (self.size - 1) / self.size / self.bandwidth
        time.sleep(max(0.0, transfer - (time.perf_counter() - started)))


def milliseconds(strategy: SimulatedNetwork, synchronization: Synchronization) -> float:
    """Return the median time of a step."""
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((SAMPLES, SIZES[0])).astype(np.float32), random.integers(0, SIZES[-1], SAMPLES)
    with Trainer.from_model(dense_layers(*SIZES), loss="cross-entropy", strategy=strategy, synchronization=synchronization, progress=False, metrics=None,
                            options=SessionOptions(intra_op_num_threads=1)) as trainer:
        history = trainer.fit(x, labels, batch_size=BATCH, epochs=WARM_UP + EPOCHS)
        return float(1e3 * np.median([record.seconds for record in history[WARM_UP:]]) / (trainer.step / len(history)))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks parallel", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabits", type=float, nargs="+", default=[1, 2.5, 10], help="bandwidths, in gigabits per second")
    parser.add_argument("--latency", type=float, default=50, help="microseconds")
    options = parser.parse_args(arguments)
    network = SimulatedNetwork()
    network.latency = options.latency * 1e-6
    if network.rank == 0:
        print(f"{network.size} workers, {sum(a * b for a, b in zip(SIZES, SIZES[1:], strict=False)) * 4 / 1e6:.1f} MB of gradients, {BATCH} samples a worker")
    for gigabits in options.gigabits:
        network.bandwidth = gigabits * 1e9 / 8
        after, beside = milliseconds(network, Synchronization()), milliseconds(network, OverlappedSynchronization())
        if network.rank == 0:
            print(f"{gigabits:g} Gbit/s: {after:.1f} ms a step with sums after the backward pass, {beside:.1f} ms with sums beside it", flush=True)
