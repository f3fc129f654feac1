"""Rounds of Flower's secure aggregation, for tests in one process and in its simulation engine."""

from __future__ import annotations

import os
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"                  # read when Flower is imported

from flwr.app import ArrayRecord, Context
from flwr.common import ndarrays_to_parameters
from flwr.server import History, LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid

MAX_WEIGHT = 50.0
STEP = 2 * 8.0 / 4194304
"""What separates two numbers of a client after quantization, with the defaults of SecAggPlusWorkflow."""


def secure_rounds(grid: Grid, context: Context, initial: ArrayRecord, nodes: int, number: int, config: dict[str, Any]) -> tuple[ArrayRecord, History]:
    """Run rounds with all nodes; return the arrays, and the history with the losses. config: the settings that clients get."""
    strategy = FedAvg(min_fit_clients=nodes, min_evaluate_clients=nodes, min_available_clients=nodes,
                      initial_parameters=ndarrays_to_parameters([array.numpy() for array in initial.values()]),
                      on_fit_config_fn=lambda server_round: config | {"server-round": server_round})
    server = LegacyContext(context, ServerConfig(num_rounds=number), strategy)
    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=MAX_WEIGHT)
    DefaultWorkflow(fit_workflow=workflow)(grid, server)
    return ArrayRecord(dict(zip(initial, server.state["parameters"].values(), strict=True))), server.history
