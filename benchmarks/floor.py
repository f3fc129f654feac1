"""Step times over a lower bound for this machine: matrix multiplications at their best rate, everything else at the bandwidth of memory.

    python -m benchmarks.floor [--workloads mlp-wide ...] [--threads 1 2] [--steps 8]

The lower bound of a step is the sum of three parts: the floating-point operations of its matrix multiplications over the best rate of a large square one;
the bytes of optimizer updates over the bandwidth of memory (two arrays read, one written); and the bytes of all other operators, every input and output
counted once, over the same bandwidth. Rate and bandwidth are measured in the same process before and after the workload, and the better ones count.
Attention counts all of its multiplications, including those that a causal mask makes unnecessary."""

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
from ortrain.ops.linear import matmul_call
from ortrain.runtime.options import SessionOptions
from ortrain.runtime.profiling import OPTIMIZER, StepProfile
from ortrain.training.session import TrainingSession

PRODUCTS = frozenset({
    "MatMul", "Gemm", "FusedMatMul", "StridedMatMul", "Dense", "DequantizedDense", "GemmUpdate", "LinearCrossEntropy", "Attention", "AttentionGrad",
    "PackedAttention", "PackedAttentionGrad", "LSTM", "LSTMTraining", "LSTMGrad", "GRU", "GRUTraining", "GRUGrad", "RNN", "RNNGrad", "ChannelsLastConv",
    "ChannelsLastConvGrad", "ChannelsLastConvInputGrad", "PlanesConv", "PlanesConvGrad",
})
"""Operators that consist of matrix multiplications. Convolutions count the operations of the direct algorithm."""
UPDATE_OPERATORS = (OPTIMIZER, "AdamWUpdate", "GemmUpdate")
"""The optimizer, and operators that apply deferred gradients."""
SQUARE_SIZE = 1024
STREAM_ELEMENTS = 1 << 23
"""Elements of an array that fits into no cache."""
REPETITIONS = 5
DEFAULT_WORKLOADS = ("mlp-mnist", "mlp-wide", "bert-mini", "gpt-mini", "lstm", "resnet18-cifar", "resnet50-224")
"""Workloads that consist of matrix multiplications. Residual networks can take less than the bound, because Winograd's algorithm needs fewer operations than
the direct one."""


@dataclass
class Machine:
    """The best rate (floating-point operations per second) and bandwidth (bytes per second) measured so far."""

    rate: float = 0.0
    bandwidth: float = 0.0

    def measure(self, handle: EngineHandle) -> None:
        """Measure both once more: the rate with the threads of the handle, the bandwidth with one thread."""
        a, b, c = (np.full((SQUARE_SIZE, SQUARE_SIZE), 0.5, np.float32) for _ in range(3))
        square = matmul_call((SQUARE_SIZE,) * 3, (0, 0), (SQUARE_SIZE,) * 3, (0, 0), (), ((), (), ()), 1.0)
        seconds = best_time(lambda: call_kernel(kernels()["matmul", "float32"], [a, b], [c], square.ints, square.floats, handle=handle))
        self.rate = max(self.rate, 2 * SQUARE_SIZE**3 / seconds)
        arrays = [np.full(STREAM_ELEMENTS, 0.5, np.float32) for _ in range(3)]
        seconds = best_time(lambda: np.add(arrays[0], arrays[1], out=arrays[2]))
        self.bandwidth = max(self.bandwidth, 3 * arrays[0].nbytes / seconds)

    def lower_bounds(self, steps: list[StepProfile]) -> tuple[float, float, float]:
        """Return the lower bounds of matrix multiplications, of updates and of all other operators, in seconds."""
        matmul = sum(step.operations or 0 for step in steps if step.operator in PRODUCTS) / self.rate
        update = sum(step.bytes for step in steps if step.operator in UPDATE_OPERATORS) / self.bandwidth
        return matmul, update, sum(step.bytes for step in steps if step.operator not in (*PRODUCTS, *UPDATE_OPERATORS)) / self.bandwidth


def best_time(work: Callable[[], object]) -> float:
    """Return the shortest of a few times, in seconds."""
    times = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def table_row(workload: str, folder: Path, threads: int, steps: int) -> str:
    """Train a workload from its prepared folder and return its row of the table."""
    machine, handle, data, times = Machine(), EngineHandle(threads), measure.load_batches(folder), []
    machine.measure(handle)
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
    machine.measure(handle)
    bounds = machine.lower_bounds(profile.steps)
    cells = [f"{seconds * 1e3:.2f}" for seconds in (median(times), sum(bounds), *bounds)]
    return f"| {workload} | {threads} | {machine.rate * 1e-9:.0f} | {machine.bandwidth * 1e-9:.0f} | {' | '.join(cells)} | {median(times) / sum(bounds):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(DEFAULT_WORKLOADS), metavar="NAME",
                        help="default: " + ", ".join(DEFAULT_WORKLOADS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=8, help="number of timed steps")
    options = parser.parse_args()
    print("| workload | threads | GFLOP/s | GB/s | step, ms | lower bound, ms | matrix multiplications | optimizer | everything else | step over bound |")
    print("|---|" + "---:|" * 9)
    with tempfile.TemporaryDirectory(prefix="ortrain_floor_") as folder:
        for workload in options.workloads:
            prepare(workload, Path(folder) / workload)
            for threads in options.threads:
                print(table_row(workload, Path(folder) / workload, threads, options.steps), flush=True)


if __name__ == "__main__":
    main()
