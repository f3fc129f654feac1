"""ortrain's steps over the least that this machine could take for them: products at their best rate, all else at the speed of memory.

    python -m benchmarks.floor [--workloads mlp-wide ...] [--threads 1 2] [--steps 8]

The floor of a step is the sum of its products' operations over the best rate of a square product, of the bytes of updates over the bandwidth of memory
(two arrays read, one written), and of the bytes of all other operators, every input and output once, over the same. Rate and bandwidth are taken before and
after the workload in the same process, and the better ones count. Attention counts all products, also those that a causal mask makes empty."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import measure
from benchmarks.one import prepare
from benchmarks.workloads import WORKLOADS
from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain.runtime.options import SessionOptions
from ortrain.runtime.profiling import OPTIMIZER, StepProfile
from ortrain.training.session import TrainingSession

PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "Dense", "Attention", "AttentionGrad", "LSTMTraining", "LSTMGrad", "GemmUpdate", "ChannelsLastConv",
            "ChannelsLastConvGrad")
"""Operators whose time is that of matrix products; convolutions count as direct ones."""
UPDATES = (OPTIMIZER, "AdamWUpdate", "GemmUpdate")
"""The optimizer, and its part that spends late gradients."""
SQUARE, STREAM = 1024, 1 << 23
"""Rows of the square product; elements of an array that no cache holds."""
REPETITIONS = 5
OF_PRODUCTS = ("mlp-mnist", "mlp-wide", "bert-mini", "gpt-mini", "lstm", "resnet18-cifar", "resnet50-224")
"""What consists of them. The residual networks can be below their floors: Winograd's convolutions need fewer operations than they count."""


@dataclass
class Machine:
    """The best that was seen: operations of a product and bytes of a pass over memory, per second."""

    rate: float = 0.0
    bandwidth: float = 0.0

    def look_again(self, handle: EngineHandle) -> None:
        """Measures both once more, with a session's threads."""
        a, b, c = (np.full((SQUARE, SQUARE), 0.5, np.float32) for _ in range(3))
        shape = (SQUARE, SQUARE, SQUARE, 0, 0, 1, 1, 1, 0, 0)
        seconds = best(lambda: call_kernel(kernels()["matmul", "float32"], [a, b], [c], shape, (1.0,), handle=handle))
        self.rate = max(self.rate, 2 * SQUARE**3 / seconds)
        arrays = [np.full(STREAM, 0.5, np.float32) for _ in range(3)]
        seconds = best(lambda: np.add(arrays[0], arrays[1], out=arrays[2]))
        self.bandwidth = max(self.bandwidth, 3 * arrays[0].nbytes / seconds)

    def seconds(self, steps: list[StepProfile]) -> tuple[float, float, float]:
        """The floor of products, of updates and of all else."""
        products = sum(step.operations or 0 for step in steps if step.operator in PRODUCTS) / self.rate
        update = sum(step.bytes for step in steps if step.operator in UPDATES) / self.bandwidth
        return products, update, sum(step.bytes for step in steps if step.operator not in (*PRODUCTS, *UPDATES)) / self.bandwidth


def best(work: Callable[[], object]) -> float:
    """The least of a few times."""
    times = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def row(workload: str, folder: Path, threads: int, steps: int) -> str:
    """Trains a workload that was prepared in a folder, and says in a table's row how near it comes to its floor."""
    machine, handle, data, times = Machine(), EngineHandle(threads), measure.batches(folder), []
    machine.look_again(handle)
    with TrainingSession.from_artifacts(folder, options=SessionOptions(intra_op_num_threads=threads)) as session:

        def step(number: int) -> None:
            session.train_step(*data[number % len(data)])
            session.optimizer_step()
            session.lazy_reset_grad()

        for number in range(measure.WARM_UP_STEPS):
            step(number)
        for number in range(steps):
            started = time.perf_counter()
            step(number)
            times.append(time.perf_counter() - started)
        with session.profile() as profile:
            step(0)
    machine.look_again(handle)
    parts = machine.seconds(profile.steps)
    cells = [f"{seconds * 1e3:.2f}" for seconds in (median(times), sum(parts), *parts)]
    return f"| {workload} | {threads} | {machine.rate * 1e-9:.0f} | {machine.bandwidth * 1e-9:.0f} | {' | '.join(cells)} | {median(times) / sum(parts):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(OF_PRODUCTS), metavar="NAME",
                        help="default: " + ", ".join(OF_PRODUCTS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=8, help="steps that are timed")
    options = parser.parse_args()
    print("| workload | threads | GFLOP/s | GB/s | step, ms | floor | products | optimizer | all else | step over floor |\n|---|" + "---:|" * 9)
    with tempfile.TemporaryDirectory(prefix="ortrain_floor_") as folder:
        for workload in options.workloads:
            prepare(workload, Path(folder) / workload)
            for threads in options.threads:
                print(row(workload, Path(folder) / workload, threads, options.steps), flush=True)


if __name__ == "__main__":
    main()
