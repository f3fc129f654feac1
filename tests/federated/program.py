"""A simulation by Flower's own engine, which runs clients in processes of Ray: `python -m tests.federated.program NODES ROUNDS`. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"                  # read when Flower is imported

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from ortrain import SessionOptions, TrainingSession
from ortrain.federated import client_app, initial_arrays
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


def main(nodes: int, rounds: int) -> None:
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
        result = strategy.start(grid, initial_arrays(make_session()), num_rounds=rounds, train_config=ConfigRecord({"batch-size": 5}))
        print(json.dumps([metrics["loss"] for metrics in result.evaluate_metrics_clientapp.values()]), flush=True)

    run_simulation(server, client_app(make_session, data, data), nodes,
                   backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": PROCESSES}})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
