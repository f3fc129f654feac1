"""Print what a lower bound of a network's step on this machine consists of, and where its time goes, as one JSON line.

    python -m benchmarks.networks.floor NETWORK FOLDER [--threads N] [--seconds S]

The lower bound is the sum of three parts. Products: the operations of matrix multiplications, recurrent layers and convolutions over the best rate of a
large square multiplication or of any multiplication of the network; a convolution for which the plan chose Winograd's algorithm counts the operations of that
algorithm. Optimizer: the bytes of its updates. Memory: between two products, all operators count as one fused kernel that reads and writes once what it
exchanges with products, weights, inputs and outputs; copies count nothing. Bytes are divided by the bandwidth for a working set of the size of the network's
memory, which is that of a cache for a small network."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.floor import PRODUCTS, Machine, best_time
from ortrain._core.program import Program
from ortrain.ir import TensorType
from ortrain.ops.registry.cost_model import memory_traffic
from ortrain.ops.shared.conv_algorithms import Method
from ortrain.plan.steps import Step
from ortrain.runtime.options import SessionOptions
from ortrain.runtime.profiling import OPTIMIZER, Profile
from ortrain.training.session import TrainingSession

UPDATES = frozenset({"AdamWUpdate", "GemmUpdate", "InPlaceAccumulatorV2"})
COPY_KERNELS = frozenset({"strided_copy", "copy", "concat", "split", "gather", "check_range", "accumulate"})
"""Kernels that only move data, and the check of labels and indices. Gather is not unavoidable either: a product could read its rows."""
WINOGRAD_SAVINGS = {Method.WINOGRAD: 4.0, Method.WINOGRAD_1D: 2.5}
"""Direct operations over those of Winograd's algorithm: 16 outputs of 9 products from 36, and 4 outputs of 5 products from 8. With strides it saves less."""
STRIDED_WINOGRAD_SAVING = 144 / 81
SMALLEST_ARRAY, LARGEST_ARRAY = 1 << 12, 1 << 23
"""Elements of the arrays that measure bandwidth."""
TOP_KERNELS = 5
LARGE = 1 << 20
"""Operations of a multiplication whose rate is not distorted by the clock."""


def operations_of(step: Step, types: Mapping[str, TensorType]) -> float:
    """Return the operations that a product cannot do without, with Winograd's algorithm where the plan chose it."""
    count = float(step.operations(types) or 0)
    if step.call.kernel not in ("channels_last_conv", "channels_last_conv_grad"):
        return count
    strided = max(step.node.attributes.get("strides") or (1,)) > 1
    savings = {method: STRIDED_WINOGRAD_SAVING if strided and method == Method.WINOGRAD else saving for method, saving in WINOGRAD_SAVINGS.items()}
    if step.call.kernel == "channels_last_conv":
        return count / savings.get(step.call.ints[-3], 1.0)
    methods = [step.call.ints[position] for position, output in zip((-6, -4), step.node.outputs, strict=False) if output]
    return sum(count / len(methods) / savings.get(method, 1.0) for method in methods)


def exchanged_bytes(steps: Iterable[Step], types: Mapping[str, TensorType]) -> int:
    """Return the bytes that runs of operators between two products read from and write to everything else, each value once per run."""
    runs: list[list[Step]] = [[]]
    inside_of: dict[str, int] = {}
    for step in steps:
        if step.node.op_type in PRODUCTS:
            runs.append([])
        elif step.call.kernel not in COPY_KERNELS and step.node.op_type not in UPDATES:
            runs[-1].append(step)
    for position, run in enumerate(runs):
        inside_of |= {name: position for step in run for name in step.outputs if name}
    total = 0
    readers: dict[str, set[int]] = {}
    for position, run in enumerate(runs):
        for name in (name for step in run for name in step.inputs if name):
            readers.setdefault(name, set()).add(position)
    for name, positions in readers.items():
        total += memory_traffic([types[name]]) * len(positions - {inside_of.get(name, -1)}) if name in types else 0
    read_by_runs_only = {name for name, positions in readers.items() if positions == {inside_of.get(name, -1)}}
    return total + sum(memory_traffic([types[name]]) for name in inside_of.keys() - read_by_runs_only if name in types)


def bandwidth_for(size: int) -> float:
    """Return the bytes per second of an addition of two arrays whose operands and result take `size` bytes in total, within bounds."""
    elements = min(max(size // 12, SMALLEST_ARRAY), LARGEST_ARRAY)
    arrays = [np.full(elements, 0.5, np.float32) for _ in range(3)]
    repeat = max(1, (1 << 20) // elements)

    def work() -> None:
        for _ in range(repeat):
            np.add(arrays[0], arrays[1], out=arrays[2])

    return 12 * elements * repeat / best_time(work)


def shares(profile: Profile) -> dict[str, float]:
    """Return the share of each kernel, the largest first."""
    return {step.kernel: step.seconds / profile.seconds for step in profile.by_kernel()}


def measure_floor(session: TrainingSession, data: list[tuple[Any, Any]], seconds: float) -> dict[str, Any]:
    """Train a session on batches and return the operations and bytes of a step, the rates of this machine, and the shares of the kernels."""
    def step(number: int) -> None:
        session.train_step(*data[number % len(data)])
        session.optimizer_step()
        session.lazy_reset_grad()

    machine, handle = Machine(), session._handle
    machine.measure(handle)
    for number in range(measure.WARM_UP_STEPS):
        step(number)
    handle.recording = []
    step(0)
    # the train step and the optimizer step run two parts of one program where gradients are deferred
    programs, handle.recording = list(dict.fromkeys(source for source, _ in handle.recording if isinstance(source, Program))), None
    with session.profile() as profile:
        until, number = time.perf_counter() + seconds, 0
        while number < measure.WARM_UP_STEPS or time.perf_counter() < until:
            step(number)
            number += 1
    machine.measure(handle)
    achieved = [row.rate or 0.0 for row in profile.steps if row.kernel in ("gemm", "matmul") and (row.operations or 0) >= LARGE]
    updated = sum(row.bytes for row in profile.steps if row.operator == OPTIMIZER or row.operator in UPDATES - {"InPlaceAccumulatorV2"})
    footprint = sum(program.plan.arena_bytes for program in programs) + updated
    operations, exchanged = 0.0, 0
    for plan in (program.plan for program in programs):
        operations += sum(operations_of(row, plan.types) for row in plan.steps if row.node.op_type in PRODUCTS)
        exchanged += exchanged_bytes(plan.steps, plan.types)
    bandwidth = bandwidth_for(footprint)
    found = shares(profile)
    return {"status": "ok", "operations": operations, "rate": max(machine.rate, *achieved, 0.0), "optimizer_bytes": updated, "exchanged_bytes": exchanged,
            "bandwidth": bandwidth, "kernel_calls": len(profile.steps), "strided_copy": found.get("strided_copy", 0.0),
            "top": dict(list(found.items())[:TOP_KERNELS])}


def lower_bound_ms(found: Mapping[str, Any], best_rate: float) -> float:
    """Return the lower bound of a step in ms. found: what measure_floor returned. best_rate: the best operations per second of any measurement."""
    return 1e3 * (found["operations"] / best_rate + (found["optimizer_bytes"] + found["exchanged_bytes"]) / found["bandwidth"])


def main() -> None:
    options = measure.argument_parser(__doc__).parse_args()
    with TrainingSession.from_artifacts(options.folder, options=SessionOptions(intra_op_num_threads=options.threads)) as session:
        measure.print_result(measure_floor(session, measure.load_batches(options.folder), options.seconds))


if __name__ == "__main__":
    main()
