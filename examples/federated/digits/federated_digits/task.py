"""The model, and the data of each client."""

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

from ortrain import SessionOptions, TrainingSession

PIXELS, HIDDEN, CLASSES = 64, 64, 10
HELD_OUT = 360
"""Digits that no client has."""


def model() -> onnx.ModelProto:
    """pixels [n, 64] -> scores [n, 10], through one hidden layer."""
    rng = np.random.default_rng(0)
    weights = {"hidden.weight": rng.standard_normal((PIXELS, HIDDEN)) * (2 / PIXELS) ** 0.5, "hidden.bias": np.zeros(HIDDEN),
               "head.weight": rng.standard_normal((HIDDEN, CLASSES)) * (1 / HIDDEN) ** 0.5, "head.bias": np.zeros(CLASSES)}
    nodes = [helper.make_node("Gemm", ["pixels", "hidden.weight", "hidden.bias"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("Gemm", ["r", "head.weight", "head.bias"], ["scores"])]
    graph = helper.make_graph(nodes, "digits", [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", PIXELS])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
                              [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_session() -> TrainingSession:
    """Return a session with one thread: a simulation has as many processes as processors."""
    return TrainingSession.from_model(model(), loss="cross-entropy", optimizer="sgd", additional_output_names=["scores"],
                                      options=SessionOptions(intra_op_num_threads=1))


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels [n, 64] from 0 to 1 and labels [n], in random order."""
    x, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return (x[order] / 16).astype(np.float32), labels[order]


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits for the server."""
    x, labels = digits()
    return x[:HELD_OUT], labels[:HELD_OUT]


def part(number: int, clients: int, skew: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of a client. skew: the concentration of the distribution by which they are divided."""
    x, labels = (array[HELD_OUT:] for array in digits())
    rng = np.random.default_rng(clients)
    shares = rng.dirichlet(np.full(clients, skew), CLASSES)
    owners = np.array([rng.choice(clients, p=shares[label]) for label in labels])
    owners[: 10 * clients] = np.arange(10 * clients) % clients      # so that each has some
    return x[owners == number], labels[owners == number]
