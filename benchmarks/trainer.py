"""What ortrain.Trainer adds to a step: a fit beside a bare loop over the same batches, in turns.

    python -m benchmarks trainer [--threads 1] [--rounds 15] [--shuffled]

The bare loop calls train_step, optimizer_step and lazy_reset_grad on batches that were made before or, with --shuffled, gathers shuffled rows for each.
The fit trains three epochs on the same samples, which it checks once and shuffles in every epoch, with the progress off; `accuracy` computes a metric of
every training batch as well. Times are medians of CPU time over the rounds, in microseconds a step."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.workloads import Workload, lenet, mlp

STEPS = {"mlp 16-32-32-4, batch 8": (Workload(mlp(16, 32, 32, 4), (8, 16), 4, 8), 1000),
         "mlp 784-500-10, batch 16": (Workload(mlp(784, 500, 10), (16, 784), 10, 16), 200),
         "mlp 64-800-800-10, batch 64": (Workload(mlp(64, 800, 800, 10), (64, 64), 10, 64), 100),
         "lenet 28 x 28, batch 16": (Workload(lenet, (16, 1, 28, 28), 10, 16), 100),
         "mlp 784-500-10, batch 128": (Workload(mlp(784, 500, 10), (128, 784), 10, 128), 100)}
"""Name -> (workload, steps of an epoch): steps of a few microseconds, of a fifth of a millisecond, and of some milliseconds with few and with many data."""
EPOCHS = 3
"""Epochs of a fit, and of the bare loop beside it."""


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds a step of the bare loop, of a fit, and of a fit with accuracy."""

    name: str
    bare: float
    fit: float
    accuracy: float

    def __str__(self) -> str:
        return f"{self.name:<28}{self.bare:10.1f}{self.added(self.fit)}{self.added(self.accuracy)}"

    def added(self, fit: float) -> str:
        """What a fit adds, in microseconds and in percent of the bare loop's step."""
        return f"{fit - self.bare:+10.1f} us {100 * (fit / self.bare - 1):+6.1f} %"


def bare_loop(workload: Workload, threads: int, x: np.ndarray, y: np.ndarray, shuffled: bool) -> Callable[[], object]:
    """Return a function that trains EPOCHS epochs by the session's own methods."""
    from ortrain import SessionOptions, TrainingSession

    model, _, _ = workload.make("trainer")
    session = TrainingSession.from_model(model, loss="cross-entropy", optimizer="adamw", options=SessionOptions(intra_op_num_threads=threads))
    size = workload.batches(1)[0][0].shape[0]
    starts = range(0, len(x), size)
    batches = [(x[start : start + size], y[start : start + size]) for start in starts]
    order = np.random.default_rng(0).permutation(len(x))

    def epochs() -> None:
        gathered = ((x[order[start : start + size]], y[order[start : start + size]]) for _ in range(EPOCHS) for start in starts)
        for batch in gathered if shuffled else batches * EPOCHS:
            session.train_step(*batch)
            session.optimizer_step()
            session.lazy_reset_grad()

    return epochs


def fit(workload: Workload, threads: int, x: np.ndarray, y: np.ndarray, metrics: Sequence[str]) -> Callable[[], object]:
    """Return a function that trains EPOCHS more epochs by a trainer."""
    from ortrain import SessionOptions, Trainer

    model, _, _ = workload.make("trainer")
    trainer = Trainer.from_model(model, loss="cross-entropy", optimizer="adamw", options=SessionOptions(intra_op_num_threads=threads), progress=False,
                                 metrics=metrics)
    size = workload.batches(1)[0][0].shape[0]
    return lambda: trainer.fit(x, y, epochs=trainer.epoch + EPOCHS, batch_size=size)


def measure(name: str, threads: int, rounds: int, shuffled: bool = False) -> Row:
    """Time the three loops in turns."""
    workload, steps = STEPS[name]
    pairs = workload.batches(1)[0]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps * len(pairs[0]), *pairs[0].shape[1:])).astype(np.float32)
    y = rng.integers(0, workload.classes, len(x)).astype(np.int64)
    loops: list[Callable[[], object]] = [bare_loop(workload, threads, x, y, shuffled),
                                         fit(workload, threads, x, y, []), fit(workload, threads, x, y, ["accuracy"])]
    times: list[list[float]] = [[] for _ in loops]
    for number in range(rounds + 1):
        for loop, found in zip(loops, times, strict=True):
            start = time.process_time()
            loop()
            if number:                                       # the first round plans
                found.append((time.process_time() - start) / (steps * EPOCHS) * 1e6)
    return Row(name, *map(median, times))


def main(arguments: list[str]) -> None:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks trainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shuffled", action="store_true", help="let the bare loop gather shuffled rows too")
    options = parser.parse_args(arguments)
    print(f"{'':<28}{'bare, us':>10}{'trainer adds':>22}{'with accuracy':>22}")
    for name in STEPS:
        print(measure(name, options.threads, options.rounds, options.shuffled), flush=True)
