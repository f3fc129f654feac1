"""Twenty-four networks, or ten others that nobody tuned, beside their peers and beside a lower bound of their steps.

    python -m benchmarks networks [--only vit ... | --held-out] [--runtimes ortrain torch-eager ...] [--threads 1 2] [--rounds 3] [--seconds 3] [--record NAME]

Every runtime trains the same network, ONNX graph or torch module, from the same weights on the same batches, in fresh processes that take turns;
times are medians. The first losses of all runtimes must agree. A network meets its target if its step takes at most 0.67 of the best peer's, or its fastest
step at most 1.10 of the lower bound of benchmarks.networks.floor, which has the best rates that this machine reaches."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import documents, run
from benchmarks.measure import BFLOAT16, FLOAT32
from benchmarks.networks import ALL, HELD_OUT, NETWORKS
from benchmarks.networks.floor import lower_bound_ms
from benchmarks.peers.environments import OURS, OURS_IN_FLOAT32, OWN, RESTRICTIONS, RUNTIMES, Runtime
from benchmarks.tables import format_number

PEERS = ("torch-eager", "torch-compile", "onnxruntime")
FLOOR = Runtime(None, "benchmarks.networks.floor")
FLOAT32_ONLY = {"status": "unsupported", "reason": "the lower bound is that of float32"}
LOSS_TOLERANCE = {FLOAT32: 1e-4, BFLOAT16: 1e-2}
"""Largest relative difference of first losses, by precision."""
TARGET_RATIO, TARGET_OVER_FLOOR = 0.67, 1.10


def network_rows(options: argparse.Namespace, name: str, pythons: dict[str, str], cache: Path) -> dict[str, Any]:
    """Measure one network and return, by number of threads, the times and first losses of the runtimes, and what the lower bound consists of."""
    settings = argparse.Namespace(**vars(options) | {"workloads": [name], "pin": False})
    summary = run.summarize(run.measure(settings, pythons, cache))[name]
    isa_variables = RESTRICTIONS[options.instruction_set] if options.instruction_set else {}
    rows: dict[str, Any] = {}
    for threads, by_runtime in summary.items():
        times, fastest, losses = ({runtime: result[key] for runtime, result in by_runtime.items() if result["status"] == "ok"}
                                  for key in ("median_ms", "min_ms", "first_loss"))
        floor = FLOAT32_ONLY if options.precision != FLOAT32 else run.run_process(
            sys.executable, FLOOR, name, cache / name, options.limit, isa_variables, "--threads", threads, "--seconds", str(options.seconds))
        rows[threads] = {
            "step_ms": times, "fastest_ms": fastest, "first_loss": losses, "floor": floor, "losses_agree": agree(losses, LOSS_TOLERANCE[options.precision]),
            "not_measured": {runtime: f"{result['status']}: {result['reason']}" for runtime, result in by_runtime.items() if result["status"] != "ok"}}
    return rows


def judge(found: dict[str, Any]) -> None:
    """Add to the rows of all networks the ratio to the best peer, the lower bound at the best rate of all rows, and whether the target is met."""
    rates: dict[str, float] = {}
    for threads, row in ((threads, row) for rows in found.values() for threads, row in rows.items()):
        rates[threads] = max(rates.get(threads, 0.0), row["floor"].get("rate", 0.0))
    for threads, row in ((threads, row) for rows in found.values() for threads, row in rows.items()):
        ours, best = row["step_ms"].get(OURS), min((time for runtime, time in row["step_ms"].items() if runtime not in OWN), default=None)
        row["floor_ms"] = lower_bound_ms(row["floor"], rates[threads]) if row["floor"]["status"] == "ok" else None
        row["ratio"] = ours / best if ours and best else None
        row["over_floor"] = row["fastest_ms"][OURS] / row["floor_ms"] if ours and row["floor_ms"] else None
        row["met"] = row["ratio"] is not None and row["ratio"] <= TARGET_RATIO or row["over_floor"] is not None and row["over_floor"] <= TARGET_OVER_FLOOR


def agree(losses: dict[str, float], tolerance: float) -> bool:
    """Return whether all losses equal that of ortrain up to a relative difference."""
    own = losses.get(OURS)
    return own is None or all(abs(loss - own) <= tolerance * max(abs(own), 1.0) for loss in losses.values())


def title(runtimes: list[str]) -> str:
    """Return the first two lines of the table."""
    columns = ["network", "threads", *(f"{name}, ms" for name in runtimes), "ratio", "floor, ms", "over floor", "met", "strided_copy", "slowest kernels"]
    return f"| {' | '.join(columns)} |\n|---" + "|---:" * (len(columns) - 2) + "|---|"


def table_row(name: str, threads: str, row: dict[str, Any], runtimes: list[str]) -> str:
    """Return a line of the table."""
    floor = row["floor"]
    known = floor["status"] == "ok"
    cells = [name, threads, *(format_number(row["step_ms"].get(runtime)) for runtime in runtimes),
             "-" if row["ratio"] is None else f"{row['ratio']:.2f}", format_number(row["floor_ms"]) if known else floor["status"],
             "-" if row["over_floor"] is None else f"{row['over_floor']:.2f}", "yes" if row["met"] else "no",
             f"{floor['strided_copy']:.0%}" if known else "-",
             ", ".join(f"{kernel} {share:.0%}" for kernel, share in floor["top"].items()) if known else floor["reason"]]
    return f"| {' | '.join(cells)} |"


def notes(name: str, rows: dict[str, Any]) -> list[str]:
    """Return why runtimes did not run a network, and whether the first losses differ."""
    lines = {f"- {name}, {runtime}, {reason}" for row in rows.values() for runtime, reason in row["not_measured"].items()}
    lines |= {f"- {name}: the first losses differ: {row['first_loss']}" for row in rows.values() if not row["losses_agree"]}
    return sorted(lines)


def record(path: Path, machine: dict[str, Any], rounds: int, found: dict[str, Any]) -> None:
    """Write what was measured, one network a line, so that differences stay readable. Numbers have five digits."""
    def shorten(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shorten(item) for key, item in value.items()}
        return float(f"{value:.5g}") if isinstance(value, float) else value

    lines = [f"{json.dumps(name)}: {json.dumps(shorten(rows))}" for name, rows in found.items()]
    head = json.dumps({"machine": machine, "rounds": rounds, "date": date.today().isoformat()})
    path.write_text(head[:-1] + ', "networks": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks networks", description=(__doc__ or "").partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", nargs="+", choices=ALL, default=list(NETWORKS), metavar="NAME", help=", ".join(ALL))
    chosen.add_argument("--held-out", dest="only", action="store_const", const=list(HELD_OUT), help=f"the last {len(HELD_OUT)} of these")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, metavar="NAME", help=", ".join((OURS, *PEERS)))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of the timed steps of each process, in turns of a quarter of a second")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a process is stopped")
    parser.add_argument("--instruction-set", choices=RESTRICTIONS, help="restrict every runtime to these instructions")
    run.add_precision(parser)
    parser.add_argument("--environments", type=Path, default=run.ROOT / ".venv-bench", help="folder for the environments of the peers")
    parser.add_argument("--record", metavar="NAME", help="also write benchmarks/results/networks-NAME.json, from which docs/benchmarks.md is rendered")
    options = parser.parse_args(arguments)
    options.runtimes = options.runtimes or [OURS, *([OURS_IN_FLOAT32] if options.precision != FLOAT32 else []), *PEERS]
    pythons, missing = run.find_runtimes(options.runtimes, options.environments, options.instruction_set, options.precision)
    machine = run.describe_machine(options.instruction_set, options.precision)
    found: dict[str, Any] = {}
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="ortrain_networks_") as cache:
            found[name] = network_rows(options, name, pythons, Path(cache))
        judge(found)
        for threads, row in found[name].items():
            print(table_row(name, threads, row, list(pythons)), file=sys.stderr, flush=True)
        if options.record:
            record(documents.RESULTS / f"networks-{options.record}.json", machine, options.rounds, found)
    print(f"{machine['processor']}, {machine['cpus']} CPUs, {machine['instruction set']}; medians of {options.rounds} rounds\n\n{title(list(pythons))}")
    for name, rows in found.items():
        print("\n".join(table_row(name, threads, row, list(pythons)) for threads, row in rows.items()))
    met = [row["met"] for rows in found.values() for row in rows.values()]
    remarks = [f"- {name} is left out: {reason}" for name, reason in missing.items()]
    remarks += [line for name, rows in found.items() for line in notes(name, rows)]
    print("\n".join(["", f"{sum(met)} of {len(met)} steps meet the target.", *remarks]))
