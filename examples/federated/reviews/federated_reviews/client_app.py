"""The clients."""

from typing import Any

from flwr.app import Context

from federated_reviews.task import make_session, part
from ortrain.federated import client_app


def data(context: Context) -> Any:
    config = context.node_config
    return part(int(config["partition-id"]), int(config["num-partitions"]), int(context.run_config["reviews"]))


app = client_app(make_session, data)
