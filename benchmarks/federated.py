"""Many clients of a federation on one machine: rounds a minute and memory, in Flower's simulation engine.

    python -m benchmarks federated [--clients 1000] [--fraction 1] [--rounds 4] [--processes 2] [--messages 32]

Clients train the model of examples/federated/digits, each for one epoch on ten digits. The first round starts the processes and makes their sessions; rates are
those of the others. Memory is the proportional set size of all processes: Flower's server, Ray's own and those that clients run in. With --messages 0 all
messages of a round are sent at once, as Flower does without LimitedGrid. Needs ortrain[flower], flwr[simulation] and scikit-learn."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ortrain import TrainingSession
from ortrain.federated import LimitedGrid, client_app, initial_arrays

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "federated" / "digits"))
DIGITS = 10


def make_session(folder: Path) -> TrainingSession:
    """Return a session, and leave a file that counts it."""
    from federated_digits import task

    tempfile.mkstemp(prefix=f"{os.getpid()}-", dir=folder)
    return task.make_session()


def data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return ten digits, others for the next client."""
    from federated_digits import task

    x, labels = task.digits()
    places = (np.arange(DIGITS) + DIGITS * int(context.node_config["partition-id"])) % len(x)
    return x[places], labels[places]


def megabytes() -> float:
    """Return the proportional set size of this process and of those that it has started."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue                                        # it has ended
    return sum(map(_proportional_set_size, _descendants(os.getpid(), parents)))


def _descendants(process: int, parents: dict[int, int]) -> Iterator[int]:
    yield process
    for child, parent in parents.items():
        if parent == process:
            yield from _descendants(child, parents)


def _proportional_set_size(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e3


def simulate(options: argparse.Namespace, folder: Path) -> None:
    """Run the rounds and print the figures."""
    from flwr.app import ConfigRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    server, ends = ServerApp(), [time.perf_counter()]

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def note(number: int, arrays: ArrayRecord) -> None:
            ends.append(time.perf_counter())

        limited = LimitedGrid(grid, options.messages) if options.messages else grid
        strategy = FedAvg(fraction_train=options.fraction, fraction_evaluate=0.0)
        with make_session(folder) as session:
            strategy.start(limited, initial_arrays(session), options.rounds, train_config=ConfigRecord({"batch-size": DIGITS}), evaluate_fn=note)
        seconds = np.diff(ends)[1:]                         # without the start of the server
        total = megabytes()
        print(f"{options.clients} clients, {int(options.fraction * options.clients)} in a round: first round {seconds[0]:.1f} s, then "
              f"{60 / np.mean(seconds[1:]):.1f} rounds a minute; sessions: {len(list(folder.iterdir()))}; "
              f"{total:.0f} MB, {total / options.clients:.1f} MB a client", flush=True)

    run_simulation(server, client_app(functools.partial(make_session, folder), data), options.clients,
                   backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": options.processes}})


def main(arguments: list[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks federated")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the clients, in every round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--messages", type=int, default=32, help="that are out at a time; 0 for no limit")
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"              # read when Flower is imported
    with tempfile.TemporaryDirectory() as folder:
        simulate(parser.parse_args(arguments), Path(folder))
