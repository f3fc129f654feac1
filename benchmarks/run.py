"""Comparison of runtimes: fresh processes that take turns, medians, and ratios to the best peer.

    python -m benchmarks [--workloads mlp-mnist ...] [--runtimes ortrain torch-eager ...] [--threads 1 2] [--rounds 3] [--instruction-set avx2] [--record NAME]
                         [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import documents, tables
from benchmarks.measure import BFLOAT16, FLOAT32, PRECISIONS
from benchmarks.peers.environments import OURS, OURS_IN_FLOAT32, RESTRICTIONS, RUNTIMES, NotInstalled, Runtime, python_for
from benchmarks.turns import Command, Contender, Result, take_turns
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
UNSET_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE")
"""Environment variables that some environments set. The first two halve the speed of SciPy's BLAS; with the last one Python compiles ortrain's sources at every
start, which an installed package never requires."""
FIGURES = ("median_ms", "min_ms", "p90_ms", "cold_start_s", "peak_rss_mb", "growth_mb", "loaded_growth_mb", "first_loss")

Cell = tuple[str, str, int, tuple[str, ...]]
"""Workload, runtime, threads, and the options of the runtime."""


def command_of(python: str, runtime: Runtime, workload: str, folder: Path, isa_variables: Mapping[str, str], *options: str) -> Command:
    """Return the command that runs a runtime on a workload. isa_variables: environment variables that restrict its instruction set."""
    environment = {name: value for name, value in os.environ.items() if name not in UNSET_VARIABLES} | dict(isa_variables)
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT)}
    return Command([python, "-m", runtime.module, workload, str(folder), *options], environment, str(ROOT))


def run_process(python: str, runtime: Runtime, workload: str, folder: Path, limit: float, isa_variables: Mapping[str, str], *options: str) -> Result:
    """Run a runtime on a workload in a fresh process and return its figures, or the reason why there are none.

    limit: seconds after which the process is stopped."""
    with Contender(command_of(python, runtime, workload, folder, isa_variables, *options), limit) as process:
        return process.finish()


def find_runtimes(names: list[str], folder: Path, restricted_to: str | None, precision: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return (runtime -> its Python, runtime -> why it is left out), creating environments in the folder where needed.

    restricted_to: key of RESTRICTIONS; None for the instructions that each runtime chooses. precision: one of PRECISIONS."""
    pythons, missing = {}, {}
    for name in names:
        try:
            if restricted_to and not RUNTIMES[name].can_restrict_isa:
                raise NotInstalled("it has no switch that restricts its instruction set")
            if precision == BFLOAT16 and not RUNTIMES[name].has_bfloat16:
                raise NotInstalled("its benchmark does not train in bfloat16")
            pythons[name] = python_for(RUNTIMES[name], folder)
        except NotInstalled as error:
            missing[name] = str(error)
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
    return pythons, missing


def prepare(workload: str, pythons: dict[str, str], folder: Path, limit: float, isa_variables: Mapping[str, str]) -> dict[str, Result]:
    """Let each runtime write the files that it trains from. ortrain comes first, because it writes the model and the batches."""
    own_result = run_process(sys.executable, RUNTIMES[OURS], workload, folder, limit, isa_variables, "--prepare")
    return {name: own_result if RUNTIMES[name].module == RUNTIMES[OURS].module
            else run_process(python, RUNTIMES[name], workload, folder, limit, isa_variables, "--prepare") for name, python in pythons.items()}


def measure(options: argparse.Namespace, pythons: dict[str, str], cache: Path) -> dict[Cell, list[Result]]:
    """Measure every cell once per round, those of a workload and a number of threads in turns; a cell that failed is not run again."""
    runs: dict[Cell, list[Result]] = {}
    isa_variables = RESTRICTIONS[options.instruction_set] if options.instruction_set else {}
    for workload in options.workloads:
        prepared = prepare(workload, pythons, cache / workload, options.limit, isa_variables)
        for number in range(options.rounds):
            for threads in options.threads:
                cells = [(workload, name, threads, choice) for name in pythons for choice in RUNTIMES[name].option_sets(workload)]
                for cell in cells:
                    if prepared[cell[1]]["status"] != "ok":
                        runs[cell] = [prepared[cell[1]]]
                runnable = [cell for cell in cells if all(result["status"] == "ok" for result in runs.get(cell, []))]
                commands = [command_of(pythons[name], RUNTIMES[name], workload, cache / workload, isa_variables, "--take-turns", "--threads", str(threads),
                                       "--seconds", str(options.seconds), "--precision", options.precision,
                                       *(["--pin"] if options.pin and threads == 2 and RUNTIMES[name].pin else []), *choice)
                            for _, name, _, choice in runnable]
                for cell, result in zip(runnable, take_turns(commands, options.seconds, options.limit), strict=True):
                    runs.setdefault(cell, []).append(result)
                    print(f"round {number + 1}: {workload}, {threads} threads, {' '.join((cell[1], *cell[3]))}: {tables.describe(result)}",
                          file=sys.stderr, flush=True)
    return runs


def summarize(runs: dict[Cell, list[Result]]) -> tables.Summary:
    """Return workload -> threads -> runtime -> medians over the rounds, with the options that were fastest."""
    summary: tables.Summary = {}
    for (workload, name, threads, choice), results in runs.items():
        succeeded = [result for result in results if result["status"] == "ok"]
        if succeeded:
            known = {key: [result[key] for result in succeeded if result[key] is not None] for key in FIGURES}
            row: Result = {"status": "ok", "version": succeeded[0]["version"], "options": list(choice), "rounds": len(succeeded)} | {
                key: median(values) if values else None for key, values in known.items()}
        else:
            row = results[-1]
        by_runtime = summary.setdefault(workload, {}).setdefault(str(threads), {})
        best = by_runtime.get(name)
        if best is None or row["status"] == "ok" and (best["status"] != "ok" or row["median_ms"] < best["median_ms"]):
            by_runtime[name] = row
    return summary


def processor_name() -> str:
    """Return the name of the processor, or of its architecture if the system does not provide the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.processor() or platform.machine()


def instruction_set(restricted_to: str | None) -> str:
    """Return the instruction set of the kernels that ortrain uses here."""
    if restricted_to:
        return f"{restricted_to} for every runtime"
    from ortrain._core.kernel_table import instruction_set as selected

    return selected()


def describe_machine(restricted_to: str | None, precision: str) -> dict[str, Any]:
    """Return what reports say about this machine, and the precision where it is not float32."""
    described = {"processor": processor_name(), "cpus": os.cpu_count(), "instruction set": instruction_set(restricted_to), "python": platform.python_version()}
    return described if precision == FLOAT32 else described | {"precision": precision}


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add the option --precision."""
    parser.add_argument("--precision", choices=PRECISIONS, default=FLOAT32, help="of matrix multiplications; PyTorch's bfloat16 is autocast")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, metavar="NAME", help=", ".join(RUNTIMES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of the timed steps of each process, in turns of a quarter of a second")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a process is stopped")
    parser.add_argument("--pin", action="store_true", help="with two threads: pin each to a CPU of its own")
    parser.add_argument("--instruction-set", choices=RESTRICTIONS, help="restrict every runtime to these instructions")
    add_precision(parser)
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-bench", help="folder for the environments of the peers")
    parser.add_argument("--record", metavar="NAME", help="also write benchmarks/results/NAME.json, from which the tables of the documents are rendered")
    parser.add_argument("--out", type=Path, help="write the JSON to this file instead of standard output")
    options = parser.parse_args(arguments)
    options.runtimes = options.runtimes or [name for name in RUNTIMES if name != OURS_IN_FLOAT32 or options.precision != FLOAT32]
    pythons, missing = find_runtimes(options.runtimes, options.environments, options.instruction_set, options.precision)
    with tempfile.TemporaryDirectory(prefix="ortrain_bench_") as cache:
        runs = measure(options, pythons, Path(cache))
    machine = describe_machine(options.instruction_set, options.precision)
    summary = summarize(runs)
    print(tables.report(summary, machine, missing, options.rounds))
    if options.record:
        documents.record(documents.RESULTS / f"{options.record}.json", machine, options.rounds, summary)
    text = json.dumps({"machine": machine, "seconds": options.seconds, "rounds": options.rounds, "left_out": missing, "summary": summary,
                       "runs": [{"workload": w, "runtime": r, "threads": t, "options": list(o), "results": results}
                                for (w, r, t, o), results in runs.items()]}, indent=1)
    if options.out is None:
        print(f"\n{text}")
    else:
        options.out.write_text(text + "\n")
