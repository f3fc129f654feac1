"""The clients."""

import numpy as np
from flwr.app import Context

from federated_digits.task import make_session, part
from ortrain.federated import client_app


def data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    return part(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]), float(context.run_config["skew"]))


app = client_app(make_session, data, validation=0.2)
