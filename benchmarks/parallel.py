"""Steps of workers: the efficiency of several beside one, the share of the time that summing gradients takes, the memory with a sharded optimizer, and, on a
simulated network, how much of the sums the backward pass hides.

    mpiexec -n 2 python -m benchmarks parallel [--gigabits 1 2.5 10] [--latency 50] [--record NAME]

Every worker has one thread. Efficiency is the time of a step of one worker, while the others wait, over that of a step of all workers, each with as many
samples. On a simulated network a worker sleeps after each all-reduce for as long as a ring all-reduce takes there, less the time that the real one took.
An MPI library that polls while it waits needs a processor of its own for that: Open MPI yields it with OMPI_MCA_mpi_yield_when_idle=1."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cluster.run import RESULTS
from benchmarks.cluster.run import measure as measure_workload
from benchmarks.cluster.tables import efficiency
from benchmarks.measure import memory_mb
from benchmarks.run import processor_name
from benchmarks.workloads import Workload, mlp
from ortrain import SessionOptions, Trainer
from ortrain.distributed import MPI, OptimizerSharding, OverlappedSynchronization, SingleProcess, Strategy, Synchronization

SIZES, BATCH, SAMPLES = (512, 1024, 1024, 1024, 10), 256, 2048
WIDTHS = 64, 256, 1024
"""Of the hidden layers of the networks whose efficiency is measured: gradients of 0.2 to 10 MB."""
SHARDED_SIZES = 512, 2048, 2048, 2048, 10
"""Of the network whose optimizer is sharded."""
WARM_UP, EPOCHS = 1, 6


class SimulatedNetwork(MPI):
    """MPI with the bandwidth, in bytes per second, and the latency, in seconds, of a slower network."""

    bandwidth, latency = float("inf"), 0.0
    seconds = 0.0
    """Spent in all_reduce()."""

    def all_reduce(self, array: np.ndarray) -> None:
        started = time.perf_counter()
        super().all_reduce(array)
        transfer = self.latency + 2 * array.nbytes * (self.size - 1) / self.size / self.bandwidth
        time.sleep(max(0.0, transfer - (time.perf_counter() - started)))
        self.seconds += time.perf_counter() - started


    def sleep_until_all_arrive(self) -> None:
        """A barrier that takes no processor time, which MPI's own do."""
        request = self._communicator.Ibarrier()
        while not request.Test():
            time.sleep(0.01)


class Step(NamedTuple):
    """What a step takes."""

    milliseconds: float
    """Median."""
    megabytes: float
    """Memory of the process at the end of training that is its own, without files and what workers share; NaN where the system does not tell."""


def measure(strategy: Strategy, synchronization: Synchronization, sizes: tuple[int, ...] = SIZES) -> Step:
    """Train; return what a step takes."""
    gc.collect()                                            # sessions of measurements before this one, whose memory would count
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((SAMPLES, sizes[0])).astype(np.float32), random.integers(0, sizes[-1], SAMPLES)
    model, _, _ = Workload(mlp(*sizes), (BATCH, sizes[0]), sizes[-1], BATCH).make("parallel")
    with Trainer.from_model(model, loss="cross-entropy", strategy=strategy, synchronization=synchronization, progress=False, metrics=None,
                            options=SessionOptions(intra_op_num_threads=1)) as trainer:
        history = trainer.fit(x, labels, batch_size=BATCH, epochs=WARM_UP + EPOCHS)
        ctypes.CDLL(None).malloc_trim(0)                    # of what sessions before this one have freed
        return Step(float(1e3 * np.median([record.seconds for record in history[WARM_UP:]]) / (trainer.step / len(history))), memory_mb("RssAnon") or math.nan)


def megabytes(sizes: tuple[int, ...]) -> float:
    """Return the size of the gradients of a network of dense layers."""
    return sum(a * b for a, b in zip(sizes, sizes[1:], strict=False)) * 4 / 1e6


def measure_steps(network: SimulatedNetwork) -> dict[str, dict[str, float]]:
    """Print and return the step of one worker, that of all, and the share of communication, by the size of the gradients."""
    found = {}
    for width in WIDTHS:
        sizes = SIZES[0], width, width, width, SIZES[-1]
        network.barrier()
        alone = measure(SingleProcess(), Synchronization(), sizes).milliseconds if network.rank == 0 else 0.0
        network.sleep_until_all_arrive()
        network.seconds, started = 0.0, time.perf_counter()
        together = measure(network, Synchronization(), sizes).milliseconds
        share = network.seconds / (time.perf_counter() - started)
        found[f"{megabytes(sizes):.1f}"] = {"alone_ms": alone, "together_ms": together, "in_sums": share}
        if network.rank == 0:
            print(f"{megabytes(sizes):.1f} MB of gradients: {alone:.2f} ms a step alone, {together:.2f} ms with {network.size} workers, efficiency "
                  f"{efficiency(alone, together, network.size, os.cpu_count() or 1):.0%}, of it in sums {share:.0%}", flush=True)
    return found


def measure_sharding(network: SimulatedNetwork) -> dict[str, Step]:
    """Print and return the time and the memory of a step with whole optimizers and with a sharded one."""
    whole, sharded = measure(network, Synchronization(), SHARDED_SIZES), measure(network, OptimizerSharding(), SHARDED_SIZES)
    if network.rank == 0:
        print(f"AdamW, {megabytes(SHARDED_SIZES):.1f} MB of gradients: {whole.milliseconds:.1f} ms a step and {whole.megabytes:.0f} MB a worker with whole "
              f"optimizers, {sharded.milliseconds:.1f} ms and {sharded.megabytes:.0f} MB with a sharded one", flush=True)
    return {"whole": whole, "sharded": sharded}


def measure_overlap(network: SimulatedNetwork, gigabits: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Print and return the milliseconds of a step with sums after and beside the backward pass, by the bandwidth of a simulated network."""
    if network.rank == 0:
        print(f"simulated networks, {megabytes(SIZES):.1f} MB of gradients")
    found = {}
    for bandwidth in gigabits:
        network.bandwidth = bandwidth * 1e9 / 8
        after, beside = (measure(network, synchronization).milliseconds for synchronization in (Synchronization(), OverlappedSynchronization()))
        found[f"{bandwidth:g}"] = after, beside
        if network.rank == 0:
            print(f"{bandwidth:g} Gbit/s: {after:.1f} ms a step with sums after the backward pass, {beside:.1f} ms with sums beside it", flush=True)
    return found


def record(path: Path, size: int, latency: float, run: dict[str, Any]) -> None:
    """Add what so many workers have measured to recorded results."""
    from mpi4py import MPI as mpi

    library, _ = mpi.get_vendor()
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": {}}
    results |= {"chip": processor_name(), "cpus": os.cpu_count(), "date": date.today().isoformat(), "latency_us": latency}
    results |= {"backward": measure_workload(Workload(mlp(*SIZES), (BATCH, SIZES[0]), SIZES[-1], BATCH), threads=1)["backward"]}
    results["runs"].setdefault(library, {})[str(size)] = run
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks parallel", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabits", type=float, nargs="+", default=[1, 2.5, 10], help="bandwidths, in gigabits per second")
    parser.add_argument("--latency", type=float, default=50, help="microseconds")
    parser.add_argument("--record", metavar="NAME", help="add what was measured to benchmarks/results/NAME.json")
    options = parser.parse_args(arguments)
    network = SimulatedNetwork()
    if network.rank == 0:
        print(f"{network.size} workers, {BATCH} samples a worker")
    run: dict[str, Any] = {"steps": measure_steps(network), "sharding": {name: step._asdict() for name, step in measure_sharding(network).items()}}
    network.latency = options.latency * 1e-6
    run["networks"] = measure_overlap(network, options.gigabits)
    if options.record and network.rank == 0:
        record(RESULTS / f"{options.record}.json", network.size, options.latency, run)
