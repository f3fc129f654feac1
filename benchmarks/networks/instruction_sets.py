"""Steps of the twenty-four networks with the kernels of each instruction set, beside lower bounds and without peers.

    python -m benchmarks instruction-sets [--only vit ...] [--threads 1] [--rounds 1] [--seconds 0.7] [--record NAME]

Instruction sets take turns, network by network, so that a machine that drifts slows all of them down."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import documents, run
from benchmarks.measure import FLOAT32
from benchmarks.networks import NETWORKS
from benchmarks.networks.run import judge, network_rows, record
from benchmarks.networks.tables import NATIVE, instruction_sets_table
from benchmarks.peers.environments import OURS, RESTRICTIONS

INSTRUCTION_SETS: dict[str, str | None] = {NATIVE: None, **{name: name for name in RESTRICTIONS}}
"""Name -> key of RESTRICTIONS; None for what the processor has."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks instruction-sets", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.7, help="duration of the timed steps of each process")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a process is stopped")
    parser.add_argument("--record", metavar="NAME", help="also write benchmarks/results/instruction-sets-NAME.json, from which docs/benchmarks.md is rendered")
    options = parser.parse_args(arguments)
    machine = run.describe_machine(None, FLOAT32) | {"threads": options.threads}
    found: dict[str, dict[str, Any]] = {name: {} for name in INSTRUCTION_SETS}
    networks: dict[str, Any] = {}
    for network in options.only:
        for name, restriction in INSTRUCTION_SETS.items():
            settings = argparse.Namespace(**vars(options) | {"runtimes": [OURS], "threads": [options.threads], "instruction_set": restriction,
                                                             "precision": FLOAT32})
            with tempfile.TemporaryDirectory(prefix="ortrain_networks_") as cache:
                found[name][network] = network_rows(settings, network, {OURS: sys.executable}, Path(cache))
            judge(found[name])
        networks = {other: {name: _figures(rows[other]) for name, rows in found.items()} for other in found[NATIVE]}
        if options.record:
            record(documents.RESULTS / f"instruction-sets-{options.record}.json", machine, options.rounds, networks)
    print(instruction_sets_table({"machine": machine, "networks": networks}))


def _figures(by_threads: dict[str, Any]) -> dict[str, float]:
    """Return the step time and its ratio to the lower bound."""
    (row,) = by_threads.values()
    return {"step_ms": row["step_ms"][OURS], "over_floor": row["over_floor"]}
