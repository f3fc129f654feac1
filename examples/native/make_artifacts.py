"""Writes what the programs read: `make_artifacts.py FOLDER` makes artifacts of a classifier of handwritten digits, images.bin (float32 [n, 64]) and
labels.bin (int64 [n])."""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortrain.artifacts import LossType, OptimType, generate_artifacts


def forward_model() -> onnx.ModelProto:
    """Return a network with one hidden layer, from "pixels" [batch, 64] to "logits" [batch, 10]."""
    random = np.random.default_rng(0)
    weights = {"fc1.weight": random.standard_normal((64, 32)) / 8, "fc1.bias": np.zeros(32),
               "fc2.weight": random.standard_normal((32, 10)) / 32**0.5, "fc2.bias": np.zeros(10)}
    nodes = [helper.make_node("Gemm", ["pixels", "fc1.weight", "fc1.bias"], ["hidden"]), helper.make_node("Relu", ["hidden"], ["activated"]),
             helper.make_node("Gemm", ["activated", "fc2.weight", "fc2.bias"], ["logits"])]
    graph = helper.make_graph(nodes, "digits", [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 64])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
                              [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_artifacts(folder: str | Path) -> None:
    """Write artifacts and data into a folder, which is created."""
    from sklearn.datasets import load_digits

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    model = forward_model()
    generate_artifacts(model, requires_grad=[tensor.name for tensor in model.graph.initializer], loss=LossType.CrossEntropyLoss,
                       optimizer=OptimType.AdamW, artifact_directory=path)
    images, labels = load_digits(return_X_y=True)
    (images / 16).astype(np.float32).tofile(path / "images.bin")
    labels.astype(np.int64).tofile(path / "labels.bin")


if __name__ == "__main__":
    write_artifacts(sys.argv[1])
