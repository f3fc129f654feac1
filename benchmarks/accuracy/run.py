"""Networks trained to convergence in float32 and in bfloat16, with several seeds: how far held-out losses and gradients differ.

    python -m benchmarks accuracy [--tasks digits ...] [--seeds 5] [--record NAME]

Both precisions start from the same weights and take the same batches. Of each training, the loss and a metric of held-out samples are recorded after every
epoch; of each task, the cosines between the gradients in bfloat16 and in float32, by layer, at the first weights and at those at the end of training in
bfloat16, and which products take bfloat16 operands. `pip install "ortrain[accuracy]"` installs what the data come from. All tasks take half an hour on one
thread of a processor with AVX512-BF16; others compute the same products more slowly."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ortrain
from benchmarks import documents, run
from benchmarks.accuracy.picture import PICTURE, draw
from benchmarks.accuracy.tables import accuracy_table, gradients_table
from benchmarks.accuracy.tasks import TASKS
from benchmarks.accuracy.training import run_task
from ortrain._core.engine import multiplies_bfloat16

LEVELS = 5
"""Levels of nested results that are broken into lines: results, tasks, a task, its runs, and those of a precision."""


def describe_run() -> dict[str, Any]:
    """Return what is recorded beside the tasks: trainings on another processor can have other bits."""
    machine = run.describe_machine(None, "float32")
    return {"chip": machine["processor"], "instruction_set": machine["instruction set"], "multiplies_bfloat16": multiplies_bfloat16()}


def versions_of_data(names: Sequence[str]) -> dict[str, str]:
    """Return the packages that the data of tasks ship in, with their versions. Raises SystemExit where one is not installed."""
    found = {}
    for name in names:
        package = TASKS[name].package
        try:
            found[name] = f"{package} {version(package)}"
        except PackageNotFoundError:
            raise SystemExit(f"expected {package}, in which the data of {name!r} ship: pip install 'ortrain[accuracy]'") from None
    return found


def load(path: Path) -> dict[str, Any]:
    """Return earlier recorded results, to which tasks are added. Raises SystemExit where they are of another machine."""
    described = describe_run()
    if not path.exists():
        return described | {"tasks": {}}
    recorded = dict(json.loads(path.read_text(encoding="utf-8")))
    if {key: recorded.get(key) for key in described} != described:
        raise SystemExit(f"expected results of this machine, {described}, in {path}: give --record another name")
    return recorded


def save(path: Path, results: dict[str, Any]) -> None:
    """Write results, one training a line, so that differences stay readable. Numbers have six digits."""
    def shorten(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shorten(item) for key, item in value.items()}
        if isinstance(value, list):
            return [shorten(item) for item in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    def lines(value: Any, depth: int, indent: str = "") -> str:
        if depth == 0 or not isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False)
        pairs = [(f"{json.dumps(key)}: ", item) for key, item in value.items()] if isinstance(value, dict) else [("", item) for item in value]
        items = [key + lines(item, depth - 1, indent + " ") for key, item in pairs]
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        return f"{opening}\n{indent} " + f",\n{indent} ".join(items) + f"\n{indent}{closing}"

    path.write_text(lines(shorten(results), LEVELS) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="NAME", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="fewer epochs than a task has, for a trial")
    parser.add_argument("--record", metavar="NAME", help="after each task, also write benchmarks/results/NAME.json, which keeps other tasks that it has, "
                                                         "and docs/accuracy.svg")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.epochs is not None and options.epochs < 1:
        parser.error("expected at least one seed and one epoch")
    versions = versions_of_data(options.tasks)
    path = documents.RESULTS / f"{options.record}.json" if options.record else None
    results = load(path) if path else describe_run() | {"tasks": {}}
    for name in options.tasks:
        task = replace(TASKS[name], epochs=options.epochs or TASKS[name].epochs)
        found = run_task(task, options.seeds, lambda line, name=name: print(f"{name}, {line}", file=sys.stderr, flush=True))   # type: ignore[misc]
        found |= {"data": versions[name], "ortrain": ortrain.__version__, "date": date.today().isoformat()}
        results["tasks"] = {other: found if other == name else results["tasks"][other] for other in TASKS if other == name or other in results["tasks"]}
        if path:
            save(path, results)
            results = load(path)
            draw(results, PICTURE)
    print(f"{results['chip']}, {results['instruction_set']}\n\n{accuracy_table(results)}\n{gradients_table(results)}")
