"""Growth of cost: steps of models of growing batch, depth and sequence length, and the time to plan for a new input shape.

    python -m benchmarks scaling [--threads 1] [--seconds 0.3] [--only batch ...]

Each row has the time of a step, that time per unit (sample, layer, token), GFLOP/s, and the time of planning for the shape, also in steps. Cost grows in
proportion to the work where GFLOP/s do not fall from row to row. `sizes` runs batches of different sizes in one session; a row has the additional time of
the first step of that size. `networks` does so with networks of other kinds, those whose graphs can have a dynamic number of rows."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.measure import CROSS_ENTROPY
from benchmarks.networks import NETWORKS
from benchmarks.networks.builder import MadeNetwork
from benchmarks.workloads import VOCABULARY, WORKLOADS, Workload, mlp, transformer

WIDTH = 128
SWEEPS: dict[str, tuple[str, dict[int, Workload]]] = {
    "batch": ("mlp-mnist by batch, per sample", {n: Workload(mlp(784, 500, 10), (n, 784), 10, n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}),
    "tiny": ("mlp-tiny by batch, per sample", {n: Workload(mlp(16, 32, 32, 4), (n, 16), 4, n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}),
    "depth": (f"dense layers of {WIDTH}, batch 32, by depth, per layer",
              {n: Workload(mlp(*[WIDTH] * n, 10), (32, WIDTH), 10, 32) for n in (4, 8, 16, 32, 64)}),
    "sequence": ("one transformer layer, batch 2, by sequence length, per token",
                 {n: Workload(transformer(False, 2, n, 1), (2, n), 4, 2, VOCABULARY) for n in (32, 64, 128, 256, 512, 1024)}),
    "plan": ("a new shape of each workload", dict(enumerate(WORKLOADS.values()))),
}
"""Name -> (title, size -> workload). The sizes of `plan` are positions in WORKLOADS."""


SIZE_WORKLOADS = {
    "mlp-tiny": Workload(mlp(16, 32, 32, 4), (1, 16), 4, 1), **{name: WORKLOADS[name] for name in ("cnn-lenet", "mobilenetv2-full")},
    **{f"{n} dense layers of {WIDTH}": Workload(mlp(*[WIDTH] * n, 10), (32, WIDTH), 10, 32) for n in (4, 16, 64)}}
ROW_COUNTS = (64, 1, 2, 3, 33, 128, 512, 600, 1300, 2000, 4096, 5000, 64)
"""Numbers of rows of a session's batches, in this order. Those that need more than MAX_ELEMENTS input elements are left out."""
MAX_ELEMENTS = 1 << 22
NETWORK_SIZES_TITLE = ("### additional time of the first step of a size, in steps, one session per network", "",
                       "| network | first size | one row | two rows | half | one more |", "|---|---:|---:|---:|---:|---:|")


def make_session(workload: Workload, threads: int) -> Any:
    """Return a session of a model with a dynamic number of rows, or with fixed shapes for a transformer, which has them in its Reshape nodes."""
    from ortrain import SessionOptions, TrainingSession
    from ortrain.artifacts import LossType, OptimType

    model, trained, frozen = workload.make("scaling")
    if not workload.vocabulary:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=trained, frozen_params=frozen,
                                      options=SessionOptions(intra_op_num_threads=threads))


def measure(workload: Workload, threads: int, seconds: float) -> tuple[float, float, int]:
    """Return (best time of a step in seconds, best of three times of planning in seconds, floating-point operations of a step)."""
    session, (batch,) = make_session(workload, threads), workload.batches(1)

    def step() -> None:
        session.train_step(*batch)
        session.optimizer_step()
        session.lazy_reset_grad()

    plan_times, best = [], float("inf")
    for _ in range(3):
        session._train_runner.forget()
        session.steps.invalidate()
        begin = time.perf_counter()
        session.train_step(*batch)
        plan_times.append(time.perf_counter() - begin)
        session.lazy_reset_grad()
    step()
    begin = time.perf_counter()
    step()
    repeat = max(1, int(2e-4 / (time.perf_counter() - begin)))           # at least 0.2 ms between two readings of the clock
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
    return best, max(min(plan_times) - best, 0.0), sum(row.operations or 0 for row in profile.steps)


def sweep_table(name: str, threads: int, seconds: float) -> Iterator[str]:
    """Yield the lines of the table of one sweep."""
    title, workloads = SWEEPS[name]
    yield f"### {title}, {threads} thread{'s' if threads > 1 else ''}"
    yield ""
    yield "| size | step, ms | per unit, µs | GFLOP/s | planning, ms | in steps |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for size, workload in workloads.items():
        step, plan, operations = measure(workload, threads, seconds)
        label, unit = (list(WORKLOADS)[size], "-") if name == "plan" else (str(size), f"{step / size * 1e6:.2f}")
        yield f"| {label} | {step * 1e3:.4f} | {unit} | {operations / step * 1e-9:.1f} | {plan * 1e3:.2f} | {plan / step:.1f} |"
    yield ""


def sizes_table(name: str, threads: int) -> Iterator[str]:
    """Yield the lines of the table of one session that trains on batches of different sizes."""
    workload = SIZE_WORKLOADS[name]
    session = make_session(workload, threads)
    yield f"### {name}, batches of different sizes in one session, {threads} thread{'s' if threads > 1 else ''}"
    yield ""
    yield "| rows | step, ms | additional time of the first step, ms | in steps | planned |"
    yield "|---:|---:|---:|---:|---|"
    for rows in (rows for rows in ROW_COUNTS if rows * prod(workload.input_shape[1:]) <= MAX_ELEMENTS):
        (batch,) = replace(workload, input_shape=(rows, *workload.input_shape[1:]), rows=rows).batches(1)
        additional, step, planned = first_step(session, batch)
        yield f"| {rows} | {step * 1e3:.4f} | {additional * 1e3:.3f} | {additional / step:.1f} | {'yes' if planned else ''} |"
    yield ""


def first_step(session: Any, batch: tuple[Any, ...]) -> tuple[float, float, bool]:
    """Return the additional time of the first step on batches of a size, the time of later ones, both in seconds, and whether a plan was made."""
    runner, train_times, step_times = session._train_runner, [], []
    programs = len(runner._templates) + len(runner._programs)
    while len(step_times) < 4 or len(step_times) < 30 and sum(step_times) < 0.1:
        begin = time.perf_counter()
        session.train_step(*batch)
        train_times.append(time.perf_counter() - begin)
        session.optimizer_step()
        session.lazy_reset_grad()
        step_times.append(time.perf_counter() - begin)
    return max(train_times[0] - min(train_times[1:]), 0.0), min(step_times), len(runner._templates) + len(runner._programs) > programs


def with_dynamic_rows(made: MadeNetwork) -> onnx.ModelProto:
    """Return a network's model with a dynamic number of rows: its inputs, outputs and Reshape nodes no longer say how many there are."""
    model, rows = made.model, made.input_shape[0]
    for value in (*model.graph.input, *model.graph.output):
        first = value.type.tensor_type.shape.dim[0]
        first.dim_param = "rows" if first.dim_value == rows else f"rows_{value.name}"
    del model.graph.value_info[:]
    for tensor in model.graph.initializer:
        targets = [node for node in model.graph.node if node.op_type == "Reshape" and node.input[1] == tensor.name]
        if targets and (shape := numpy_helper.to_array(tensor).tolist()) and shape[0] > 0 and shape[0] % rows == 0 and -1 not in shape:
            tensor.CopyFrom(numpy_helper.from_array(np.array([-1, *shape[1:]]), tensor.name))
    return model


def network_sizes_row(name: str, threads: int) -> str:
    """Return the line of a network that trains on batches of different sizes in one session."""
    from ortrain import SessionOptions, TrainingSession, errors
    from ortrain.artifacts import LossType, OptimType

    network = NETWORKS[name]
    made = network.make(name)
    planned_rows, cells = made.input_shape[0], []
    loss = LossType.CrossEntropyLoss if network.loss == CROSS_ENTROPY else LossType.MSELoss
    try:
        session: Any = TrainingSession.from_model(
            with_dynamic_rows(made), loss=loss, optimizer=OptimType.AdamW, requires_grad=made.trained, frozen_params=made.frozen,
            options=SessionOptions(intra_op_num_threads=threads))
        for rows in (planned_rows, 1, 2, planned_rows // 2 + 1, planned_rows + 1):
            sizes = [(shape[0] * rows // planned_rows, *shape[1:]) for shape in (made.input_shape, made.output_shape)]
            (batch,) = network.batches(replace(made, input_shape=sizes[0], output_shape=sizes[1]), 1)
            additional, step, planned = first_step(session, batch)
            cells.append(f"{rows}: {additional / step:.1f}{' (planned)' if planned else ''}")
    except errors.OrtrainError:
        cells = ["its graph names the number of rows", "", "", "", ""]
    return f"| {name} | {' | '.join(cells)} |"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="duration of the timed steps of each row")
    parser.add_argument("--only", nargs="+", choices=[*SWEEPS, "sizes", "networks"], default=[*SWEEPS, "sizes", "networks"])
    options = parser.parse_args(arguments)
    for name in options.only:
        lines: Iterator[str]
        if name == "sizes":
            lines = chain.from_iterable(sizes_table(workload, options.threads) for workload in SIZE_WORKLOADS)
        elif name == "networks":
            lines = chain(NETWORK_SIZES_TITLE, (network_sizes_row(network, options.threads) for network in NETWORKS))
        else:
            lines = sweep_table(name, options.threads, options.seconds)
        for line in lines:
            print(line, flush=True)
