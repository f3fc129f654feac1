"""Whether cost grows as the work does: steps of models that grow in batch, depth and sequence, and the time to plan for a new shape.

    python -m benchmarks scaling [--threads 1] [--seconds 0.3] [--only batch ...]

A row has the time of a step, that time per unit (sample, layer, token), GFLOP/s, and what planning for the shape took, also in steps. Cost grows as the work
does where GFLOP/s do not fall from row to row. "sizes": one session meets numbers of rows one after another; what the first step of each costs more than
others."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import prod
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


SIZES = {"mlp-tiny": Workload(mlp(16, 32, 32, 4), (1, 16), 4, 1), **{name: WORKLOADS[name] for name in ("cnn-lenet", "mobilenetv2-full")},
         **{f"{n} dense layers of {WIDTH}": Workload(mlp(*[WIDTH] * n, 10), (32, WIDTH), 10, 32) for n in (4, 16, 64)}}
MET = (64, 1, 2, 3, 33, 128, 512, 600, 1300, 2000, 4096, 5000, 64)
"""Numbers of rows, in the order in which a session meets them …"""
MAX_ELEMENTS = 1 << 22
"""… as far as its input has no more elements."""


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


def measured(workload: Workload, threads: int, seconds: float) -> tuple[float, float, int]:
    """(seconds of a step, the best; seconds of planning, the best of three; floating-point operations of a step)"""
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
    return best, max(min(plans) - best, 0.0), sum(row.operations or 0 for row in profile.steps)


def table(name: str, threads: int, seconds: float) -> Iterator[str]:
    """One sweep as markdown."""
    title, rows = SWEEPS[name]
    yield f"### {title}, {threads} thread{'s' if threads > 1 else ''}"
    yield ""
    yield "| size | step, ms | per unit, µs | GFLOP/s | planning, ms | in steps |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for size, workload in rows.items():
        step, plan, work = measured(workload, threads, seconds)
        label, unit = (list(WORKLOADS)[size], "-") if name == "plan" else (str(size), f"{step / size * 1e6:.2f}")
        yield f"| {label} | {step * 1e3:.4f} | {unit} | {work / step * 1e-9:.1f} | {plan * 1e3:.2f} | {plan / step:.1f} |"
    yield ""


def met(name: str, threads: int) -> Iterator[str]:
    """One session that meets one number of rows after another, as markdown."""
    workload = SIZES[name]
    session = session_of(workload, threads)
    yield f"### {name}, rows met one after another, {threads} thread{'s' if threads > 1 else ''}"
    yield ""
    yield "| rows | step, ms | the first one more, ms | in steps | planned |"
    yield "|---:|---:|---:|---:|---|"
    for rows in (rows for rows in MET if rows * prod(workload.input[1:]) <= MAX_ELEMENTS):
        (batch,) = replace(workload, input=(rows, *workload.input[1:]), rows=rows).batches(1)
        families, trained, steps = len(session._train_runner._templates), [], []
        while len(steps) < 4 or len(steps) < 30 and sum(steps) < 0.1:
            begin = time.perf_counter()
            session.train_step(*batch)
            trained.append(time.perf_counter() - begin)
            session.optimizer_step()
            session.lazy_reset_grad()
            steps.append(time.perf_counter() - begin)
        step, more = min(steps), max(trained[0] - min(trained[1:]), 0.0)
        planned = len(session._train_runner._templates) > families
        yield f"| {rows} | {step * 1e3:.4f} | {more * 1e3:.3f} | {more / step:.1f} | {'yes' if planned else ''} |"
    yield ""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="time spent in timed steps, for each row")
    parser.add_argument("--only", nargs="+", choices=[*SWEEPS, "sizes"], default=[*SWEEPS, "sizes"])
    options = parser.parse_args(arguments)
    for name in options.only:
        lines = [met(network, options.threads) for network in SIZES] if name == "sizes" else [table(name, options.threads, options.seconds)]
        for line in chain.from_iterable(lines):
            print(line, flush=True)
