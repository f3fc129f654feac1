"""Whether cost grows as the work does: steps of models that grow in batch, depth and sequence, and the time to plan for a new shape.

    python -m benchmarks scaling [--threads 1] [--seconds 0.3] [--only batch ...]

A row has the time of a step, that time per unit (sample, layer, token), GFLOP/s, what planning for the shape took, and what the first step of another number of
rows costs more than its second: both also in steps. Cost grows as the work does where GFLOP/s do not fall from row to row."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.workloads import VOCABULARY, WORKLOADS, Workload, mlp, transformer

WIDTH = 128
SWEEPS: dict[str, tuple[str, dict[int, Workload]]] = {
    "batch": ("mlp-mnist by batch, per sample", {n: Workload(mlp(784, 500, 10), (n, 784), 10, n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}),
    "tiny": ("mlp-tiny by batch, per sample", {n: Workload(mlp(16, 32, 32, 4), (n, 16), 4, n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}),
    "depth": (f"dense layers of {WIDTH}, batch 32, by depth, per layer",
              {n: Workload(mlp(*[WIDTH] * n, 10), (32, WIDTH), 10, 32) for n in (4, 8, 16, 32, 64)}),
    "sequence": ("one transformer layer, batch 2, by sequence, per token",
                 {n: Workload(transformer(False, 2, n, 1), (2, n), 4, 2, VOCABULARY) for n in (32, 64, 128, 256, 512, 1024)}),
    "plan": ("a new shape of each workload", dict(enumerate(WORKLOADS.values()))),
}


OTHERS = 5
"""Numbers of rows that are new to a session, of which the best counts."""


def session_of(workload: Workload, threads: int) -> Any:
    """A session of a model that leaves the number of rows open, but for a transformer's, whose shapes are written into it."""
    from ortrain import SessionOptions, TrainingSession
    from ortrain.artifacts import LossType, OptimType

    model, trained, frozen = workload.make("scaling")
    if not workload.high:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=trained, frozen_params=frozen,
                                      options=SessionOptions(intra_op_num_threads=threads))


def first_of_others(session: Any, workload: Workload) -> float | None:
    """Seconds that the first train step of a new number of rows takes longer than the third, the best of some; None where there can be no other number."""
    if workload.high:
        return None
    found = []
    for other in range(1, OTHERS + 1):
        rows = workload.rows - other if workload.rows > OTHERS else workload.rows + other
        (batch,) = replace(workload, input=(rows, *workload.input[1:]), rows=rows).batches(1)
        taken = []
        for _ in range(3):
            begin = time.perf_counter()
            session.train_step(*batch)
            taken.append(time.perf_counter() - begin)
            session.optimizer_step()
            session.lazy_reset_grad()
        found.append(taken[0] - taken[2])
    return max(min(found), 0.0)


def measured(workload: Workload, threads: int, seconds: float) -> tuple[float, float, float | None, int]:
    """(seconds of a step, the best; seconds of planning, the best of three; those of another number of rows; floating-point operations of a step)"""
    session, (batch,) = session_of(workload, threads), workload.batches(1)

    def step() -> None:
        session.train_step(*batch)
        session.optimizer_step()
        session.lazy_reset_grad()

    plans, best = [], float("inf")
    for _ in range(3):
        session._train_runner.forget()
        session.steps.forget()
        begin = time.perf_counter()
        session.train_step(*batch)
        plans.append(time.perf_counter() - begin)
        session.lazy_reset_grad()
    step()
    begin = time.perf_counter()
    step()
    repeat = max(1, int(2e-4 / (time.perf_counter() - begin)))           # a clock's reading is nothing beside what it measures
    end = time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        for _ in range(repeat):
            step()
        now = time.perf_counter()
        best = min(best, (now - begin) / repeat)
        if now > end:
            break
    with session.profile() as profile:
        step()
    return best, max(min(plans) - best, 0.0), first_of_others(session, workload), sum(row.operations or 0 for row in profile.steps)


def table(name: str, threads: int, seconds: float) -> Iterator[str]:
    """One sweep as markdown."""
    title, rows = SWEEPS[name]
    yield f"### {title}, {threads} thread{'s' if threads > 1 else ''}"
    yield ""
    yield "| size | step, ms | per unit, µs | GFLOP/s | planning, ms | in steps | other rows, ms | in steps |"
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for size, workload in rows.items():
        step, plan, other, work = measured(workload, threads, seconds)
        label, unit = (list(WORKLOADS)[size], "-") if name == "plan" else (str(size), f"{step / size * 1e6:.2f}")
        first = "- | -" if other is None else f"{other * 1e3:.3f} | {other / step:.1f}"
        yield f"| {label} | {step * 1e3:.4f} | {unit} | {work / step * 1e-9:.1f} | {plan * 1e3:.2f} | {plan / step:.1f} | {first} |"
    yield ""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="time spent in timed steps, for each row")
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    options = parser.parse_args(arguments)
    for name in options.only:
        for line in table(name, options.threads, options.seconds):
            print(line, flush=True)
