"""A simulation by Flower's own engine, which runs clients in processes of Ray: `python -m tests.federated.program NODES ROUNDS [secure]`. Prints one line of
JSON, the losses after each round. "secure": by secure aggregation."""

from __future__ import annotations

import json
import os
import sys

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"                  # read when Flower is imported

from flwr.app import ConfigRecord, Context
from flwr.client.mod import secaggplus_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from ortrain import SessionOptions, TrainingSession
from ortrain.federated import LimitedGrid, client_app, initial_arrays
from tests.federated.secure_rounds import secure_rounds
from tests.trainer.models import classifier, samples

X, LABELS = samples()
PROCESSES = 2


def make_session() -> TrainingSession:
    print(f"a session in process {os.getpid()}", file=sys.stderr, flush=True)
    return TrainingSession.from_model(classifier(), loss="cross-entropy", optimizer="sgd", learning_rate=0.2, options=SessionOptions(intra_op_num_threads=1))


def data(context: Context) -> object:
    """Every so-many-th sample."""
    node, nodes = context.node_config["partition-id"], context.node_config["num-partitions"]
    return X[node::nodes], LABELS[node::nodes]


def average(grid: Grid, context: Context, nodes: int, rounds: int) -> list[float]:
    """Train by federated averaging; return the losses."""
    strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
    result = strategy.start(LimitedGrid(grid, PROCESSES), initial_arrays(make_session()), num_rounds=rounds, train_config=ConfigRecord({"batch-size": 5}))
    return [metrics["loss"] for metrics in result.evaluate_metrics_clientapp.values()]


def average_securely(grid: Grid, context: Context, nodes: int, rounds: int) -> list[float]:
    """Train by secure aggregation; return the losses."""
    _, history = secure_rounds(grid, context, initial_arrays(make_session()), nodes, rounds, {"batch-size": 5})
    return [loss for _, loss in history.losses_distributed]


def main(nodes: int, rounds: int, secure: bool = False) -> None:
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        print(json.dumps((average_securely if secure else average)(grid, context, nodes, rounds)), flush=True)

    run_simulation(server, client_app(make_session, data, data, mods=[secaggplus_mod] if secure else []), nodes,
                   backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": PROCESSES}})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), "secure" in sys.argv[3:])
