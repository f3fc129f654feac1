"""Profiles of sessions: time, floating-point operations and bytes of every step of their programs, and the memory of these."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import kernels
from ortrain._core.optimizer_update import BoundKernel
from ortrain._core.program import Program
from ortrain.dtypes import BFLOAT16
from ortrain.errors import InvalidStateError
from ortrain.formats.atomic_files import replace_file
from ortrain.ops.registry.cost_model import KERNEL_COSTS, memory_traffic
from ortrain.plan.steps import NARROW

OPTIMIZER = "optimizer"


@dataclass(slots=True)
class StepProfile:
    """One step of a program, over all its runs."""

    program: int
    """Programs are numbered in the order in which they first ran; each is one shape of one model."""
    position: int
    kernel: str
    operator: str
    node: str
    operations: int | None
    """Floating-point operations of one run, None where the cost model does not know them."""
    bytes: int
    """Bytes of one run, every input and output counted once."""
    runs: int = 0
    seconds: float = 0.0
    """Time of all runs."""

    @property
    def rate(self) -> float | None:
        """Floating-point operations per second."""
        return None if self.operations is None or not self.seconds else self.operations * self.runs / self.seconds

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes * self.runs / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Event:
    """One run of one step: start and duration in nanoseconds."""

    step: StepProfile
    start: int
    duration: int


@dataclass(slots=True)
class ProgramMemory:
    """The memory of a program's activations and working space."""

    program: int
    arena_bytes: int
    kept_in_bfloat16: dict[str, int]
    """Activation that is rounded to bfloat16 and kept so for the backward pass -> its bytes."""

    def __str__(self) -> str:
        kept = f", in which {len(self.kept_in_bfloat16)} activations take {sum(self.kept_in_bfloat16.values()) / 1e6:.1f} MB as bfloat16"
        return f"program {self.program}: an arena of {self.arena_bytes / 1e6:.1f} MB{kept if self.kept_in_bfloat16 else ''}"


@dataclass(slots=True)
class Profile:
    """What a session ran while it was profiled. `with session.profile() as profile:` collects it; it is complete after the block."""

    steps: list[StepProfile] = field(default_factory=list)
    memory: list[ProgramMemory] = field(default_factory=list)
    """Of each program, in the order in which they first ran."""
    events: list[Event] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The time spent in steps."""
        return sum(step.seconds for step in self.steps)

    def by_kernel(self) -> list[StepProfile]:
        """Return the steps merged by kernel, slowest first; operations and bytes are means over the runs."""
        groups: dict[str, list[StepProfile]] = {}
        for step in self.steps:
            groups.setdefault(step.kernel, []).append(step)
        merged: list[StepProfile] = []
        for kernel, steps in groups.items():
            runs = sum(step.runs for step in steps)
            counted = [step.operations * step.runs for step in steps if step.operations is not None]
            total = sum(counted) // max(runs, 1) if len(counted) == len(steps) else None
            operators = ", ".join(dict.fromkeys(step.operator for step in steps))
            merged.append(StepProfile(steps[0].program, len(merged), kernel, operators, f"{len(steps)} nodes", total,
                                      sum(step.bytes * step.runs for step in steps) // max(runs, 1), runs, sum(step.seconds for step in steps)))
        return sorted(merged, key=lambda step: -step.seconds)

    def table(self, by: str = "step", most: int | None = None) -> str:
        """Format a table, slowest rows first. by: "step" or "kernel". most: the maximum number of rows.

        Raises ValueError for another `by`."""
        if by not in ("step", "kernel"):
            raise ValueError(f"expected by to be 'step' or 'kernel', got {by!r}")
        chosen = self.by_kernel() if by == "kernel" else sorted(self.steps, key=lambda step: -step.seconds)
        total = self.seconds or 1.0
        rows = [("kernel", "operator", "node", "runs", "us per run", "share", "GFLOP/s", "GB/s")]
        rows += [(step.kernel, _short(step.operator), _short(step.node), str(step.runs), f"{step.seconds / max(step.runs, 1) * 1e6:.1f}",
                  f"{step.seconds / total:.1%}", "-" if step.rate is None else f"{step.rate * 1e-9:.1f}", f"{step.bandwidth * 1e-9:.1f}")
                 for step in chosen[:most]]
        return "\n".join([*_aligned(rows, left=3), f"{len(self.steps)} steps, {self.seconds * 1e3:.3f} ms"])

    def __str__(self) -> str:
        return self.table()

    def chrome_trace(self) -> dict[str, Any]:
        """Return the events in Chrome's trace format, for chrome://tracing, Perfetto or speedscope."""
        begin = min((event.start for event in self.events), default=0)
        return {"displayTimeUnit": "ms", "traceEvents": [
            {"name": event.step.node or event.step.operator, "cat": event.step.kernel, "ph": "X", "ts": (event.start - begin) / 1e3,
             "dur": event.duration / 1e3, "pid": os.getpid(), "tid": 0,
             "args": {"operator": event.step.operator, "program": event.step.program, "step": event.step.position, "bytes": event.step.bytes,
                      "flop": event.step.operations}} for event in self.events]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Chrome trace as JSON to a file, which is replaced atomically."""
        replace_file(path, json.dumps(self.chrome_trace()).encode())


class Profiling:
    """The context in which a session's steps are measured; it costs nothing outside.

    Raises InvalidStateError when the engine is being profiled already."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._profile = Profile()

    def __enter__(self) -> Profile:
        if self._handle.recording is not None:
            raise InvalidStateError("expected a session that is not being profiled, this one is")
        self._handle.recording = []
        return self._profile

    def __exit__(self, *_: object) -> None:
        runs, self._handle.recording = self._handle.recording or [], None
        _gather(self._profile, runs)


def _gather(profile: Profile, runs: Iterable[tuple[Program | BoundKernel, np.ndarray]]) -> None:
    """Add the recorded timestamps of runs to a profile; programs are distinguished by identity."""
    known: dict[int, list[StepProfile]] = {}
    for source, timestamps in runs:
        steps = known.get(id(source))
        if steps is None:
            steps = known[id(source)] = _steps_of(source, len(known))
            profile.steps.extend(steps)
            if isinstance(source, Program):
                profile.memory.append(_memory_of(source, len(known) - 1))
        for step, start, end in zip(steps, timestamps[:-1].tolist(), timestamps[1:].tolist(), strict=True):
            if start and end:                          # 0: the step was not reached
                step.runs += 1
                step.seconds += (end - start) * 1e-9
                profile.events.append(Event(step, start, end - start))
    profile.steps = [step for step in profile.steps if step.runs]          # without deferred gradients that were never materialized


def _steps_of(source: Program | BoundKernel, number: int) -> list[StepProfile]:
    """Return the steps of program `number`, or the single step of an optimizer update."""
    if isinstance(source, BoundKernel):
        kernel = kernels().name_of(source.address) or "?"
        weights = source.operands[0]
        size = 0 if weights is None else weights.size
        cost = KERNEL_COSTS.get(kernel)
        # every operand is read, and all but the gradient are written
        large = [array.nbytes for array in source.operands if array is not None and array.size == size]
        moved = sum(large) * 2 - large[min(1, len(large) - 1)]
        return [StepProfile(number, 0, kernel, OPTIMIZER, f"{size} parameters", None if cost is None else cost * size, moved)]
    found = []
    types = source.plan.types
    for position, step in enumerate(source.plan.steps):
        found.append(StepProfile(number, position, step.call.kernel, step.node.op_type, step.node.name or next(filter(None, step.outputs), ""),
                                 step.operations(types), step.traffic(types)))
    return found


def _memory_of(program: Program, number: int) -> ProgramMemory:
    """Return the memory of program `number`."""
    plan = program.plan
    narrow = [name for step in plan.steps for name in step.outputs if NARROW in name and name in plan.types and plan.types[name].dtype == BFLOAT16]
    return ProgramMemory(number, program.arena_bytes, {name.partition(NARROW)[0]: memory_traffic([plan.types[name]]) for name in narrow})


def _short(text: str, longest: int = 40) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _aligned(rows: Sequence[tuple[str, ...]], left: int) -> list[str]:
    """Align columns to equal widths: the first `left` to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    place: list[Callable[[str, int], str]] = [str.ljust if i < left else str.rjust for i in range(len(widths))]
    return ["  ".join(put(cell, width) for put, cell, width in zip(place, row, widths, strict=True)).rstrip() for row in rows]
