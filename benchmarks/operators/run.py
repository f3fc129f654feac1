"""Times of operators over their lower bounds and beside PyTorch's, those farthest from their bounds first.

    python -m benchmarks operators [--only Softmax Resize ...] [--threads 1 2] [--seconds 0.2] [--no-peer] [--steps] [--record NAME]

A row is one operator at one size, without or with its gradient. `over bound` is its time over a lower bound from rates that are measured here
(benchmarks/operators/roofline.py); `over PyTorch` its time over that of PyTorch's eager operator in a process of its own, in turns with ours: `view` where
PyTorch's gradient is a view of the incoming one, and ours is written. Both runtimes have their shortest time of many, because other processes disturb single
ones."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import asdict, dataclass
from datetime import date
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS
from benchmarks.operators.case import Case
from benchmarks.operators.cases import select
from benchmarks.operators.engine import prepare
from benchmarks.operators.peer import PeerTime, TorchOperators
from benchmarks.operators.roofline import Roofline
from benchmarks.operators.tables import PASS_TITLES
from benchmarks.run import ROOT, instruction_set, processor_name
from benchmarks.tables import geometric_mean
from ortrain._core.engine import EngineHandle
from ortrain.errors import MissingGradientError, MissingKernelError, ShapeInferenceError

TURNS = 4
"""Times that a case changes between the runtimes, because the rate of a shared machine drifts: products ran at 61 or 85 GFLOP/s, seconds apart."""


@dataclass
class Row:
    """An operator at one size. seconds and bound: per run; peer: PyTorch's time, None without a peer. slowest: the kernel that takes longest.

    view: whether PyTorch returns a view of the incoming gradient where ours is computed, so that the times are those of different work."""

    name: str
    part: str
    elements: int
    seconds: float
    bound: float
    slowest: str
    peer: float | None = None
    view: bool = False

    @property
    def over_bound(self) -> float:
        """Time over the lower bound."""
        return self.seconds / self.bound

    @property
    def over_peer(self) -> float | None:
        """Time over PyTorch's for the same work."""
        return self.seconds / self.peer if self.peer and not self.view else None

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        def per_element(seconds: float | None) -> str:
            return "-" if seconds is None else f"{seconds * 1e9 / self.elements:.3f}"

        ratio = "view" if self.view else "-" if self.over_peer is None else f"{self.over_peer:.2f}"
        return [self.name + PASS_TITLES[self.part], f"{self.seconds * 1e6:.1f}", per_element(self.seconds), per_element(self.bound), f"{self.over_bound:.2f}",
                per_element(self.peer), ratio, self.slowest]


HEADER = ["operator", "µs", "ns per element", "bound", "over bound", "PyTorch", "over PyTorch", "slowest kernel"]


def measure_case(case: Case, handle: EngineHandle, roofline: Roofline, torch: TorchOperators, seconds: float, show_steps: bool) -> list[Row]:
    """Return the rows of a case: the forward pass, and with the gradient where there is one."""
    elements = max(prod(x.shape) for x in case.arrays() if x is not None)
    parts = {part: prepared for part in PASS_TITLES if (prepared := prepare(case, part == "both", handle)) is not None}
    steps: dict[str, list[float]] = {}
    peers: dict[str, PeerTime] = {}
    for _, part in itertools.product(range(TURNS), parts):
        steps[part] = min(steps.get(part, [float("inf")]), parts[part].best_times(seconds / TURNS), key=sum)
        theirs = torch.best_time(case.name, part, seconds / TURNS) if case.peer is not None else None
        if theirs is not None:
            peers[part] = min(peers.get(part, theirs), theirs, key=lambda found: found.seconds)
    rows = []
    for part, prepared in parts.items():
        by_kernel: dict[str, float] = {}
        for kernel, duration in zip(prepared.kernels, steps[part], strict=True):
            by_kernel[kernel] = by_kernel.get(kernel, 0.0) + duration
            if show_steps:
                print(f"  {case.name}{PASS_TITLES[part]}: {kernel} {duration * 1e6:.1f} µs", file=sys.stderr)
        slowest = max(by_kernel, key=by_kernel.__getitem__, default="")
        peer = peers.get(part)
        view = peer is not None and any(computed and view for computed, view in zip(prepared.computed, peer.views, strict=False))
        rows.append(Row(case.name, part, elements, sum(steps[part]), roofline.bound(prepared.work), slowest, peer and peer.seconds, view))
    return rows


def measure_cases(cases: dict[str, Case], threads: int, torch: TorchOperators, seconds: float, show_steps: bool) -> tuple[list[Row], dict[str, str], str]:
    """Return (rows, case -> why it could not be measured, the measured rates)."""
    handle, rows, failed = EngineHandle(threads), [], {}
    roofline = Roofline(handle)
    for name, case in cases.items():
        try:
            rows += measure_case(case, handle, roofline, torch, seconds, show_steps)
        except (MissingGradientError, MissingKernelError, ShapeInferenceError) as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return rows, failed, roofline.description()


def table(rows: list[Row]) -> str:
    """Return the table, sorted by the distance from the bound, and the geometric mean of the ratios to PyTorch."""
    lines = [f"| {' | '.join(HEADER)} |", "|---|" + "---:|" * (len(HEADER) - 2) + "---|"]
    lines += [f"| {' | '.join(row.cells())} |" for row in sorted(rows, key=lambda row: -row.over_bound)]
    ratios = [row.over_peer for row in rows if row.over_peer is not None]
    if ratios:
        lines.append(f"\n{len(ratios)} rows beside PyTorch: geometric mean {geometric_mean(ratios):.2f}, slower in {sum(ratio > 1 for ratio in ratios)}; "
                     f"{sum(row.view for row in rows)} whose gradient is a view in PyTorch")
    return "\n".join(lines)


def measure(cases: dict[str, Case], threads: int, options: argparse.Namespace) -> tuple[list[Row], str, str]:
    """Measure the cases, print their table, and return (rows, measured rates, version of PyTorch)."""
    compared = not options.no_peer and any(case.peer for case in cases.values())
    with TorchOperators(threads, options.environments if compared else None) as torch:
        rows, failed, rates = measure_cases(cases, threads, torch, options.seconds, options.steps)
    for name, reason in failed.items():
        print(f"{name} is left out: {reason}", file=sys.stderr)
    print(f"{processor_name()}, {instruction_set(None)}, {threads} thread{'s' if threads > 1 else ''}; {rates}\n\n{table(rows)}", flush=True)
    return rows, rates, torch.version


def record(path: Path, found: dict[str, tuple[list[Row], str, str]]) -> None:
    """Write what was measured, by number of threads, with four digits and one row a line, so that files stay small and differences readable."""
    def figure(seconds: float | None) -> float | None:
        return None if seconds is None else float(f"{seconds:.4g}")

    def recorded(row: Row) -> dict[str, Any]:
        fields = asdict(row) | {"seconds": figure(row.seconds), "bound": figure(row.bound), "peer": figure(row.peer)}
        return {key: value for key, value in fields.items() if key != "view" or value}

    threads = []
    for count, (rows, rates, _) in found.items():
        lines = [json.dumps(recorded(row)) for row in rows]
        threads.append(f'"{count}": {{"rates": {json.dumps(rates)}, "rows": [\n' + ",\n".join(lines) + "\n]}")
    head = {"chip": processor_name(), "instruction_set": instruction_set(None), "date": date.today().isoformat(),
            "PyTorch": next((version for _, _, version in found.values()), "")}
    path.write_text(json.dumps(head)[:-1] + ', "threads": {\n' + ",\n".join(threads) + "}}\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks operators", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose names contain one of these texts")
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--seconds", type=float, default=0.2, help="duration of the timed runs of each row")
    parser.add_argument("--no-peer", action="store_true", help="measure without PyTorch")
    parser.add_argument("--steps", action="store_true", help="also print the time of every kernel to standard error")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-bench", help="folder for the environment of PyTorch")
    parser.add_argument("--record", metavar="NAME", help="also write benchmarks/results/operators-NAME.json, from which docs/benchmarks.md is rendered")
    options = parser.parse_args(arguments)
    cases = select(options.only)
    if not cases:
        parser.error(f"expected --only to name a case, got {options.only}")
    found = {str(threads): measure(cases, threads, options) for threads in options.threads}
    if options.record:
        record(RESULTS / f"operators-{options.record}.json", found)
