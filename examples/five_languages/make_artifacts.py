"""The artifacts and the data of the five programs: a network with one hidden layer, and points of two half moons."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ortrain.artifacts import LossType, OptimType, generate_artifacts

STEPS = 60
FILES = ("checkpoint", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx")


def artifacts_in(folder: str | Path) -> list[str]:
    """Write the artifacts and return the paths of the checkpoint and of the training, eval and optimizer model."""
    random = np.random.default_rng(0)
    weights = {"fc1.weight": random.standard_normal((2, 16)), "fc1.bias": np.zeros(16), "fc2.weight": random.standard_normal((16, 2)), "fc2.bias": np.zeros(2)}
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["hidden"]),
        helper.make_node("Tanh", ["hidden"], ["activated"]),
        helper.make_node("Gemm", ["activated", "fc2.weight", "fc2.bias"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes, "moons", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    generate_artifacts(model, requires_grad=list(weights), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, artifact_directory=folder)
    return [str(Path(folder) / name) for name in FILES]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return points (float32 [200, 2]) and labels (int64 [200])."""
    random = np.random.default_rng(1)
    angles = np.linspace(0, np.pi, 100)
    upper = np.stack([np.cos(angles), np.sin(angles)], 1)
    points = np.concatenate([upper, [1.0, 0.5] - upper]) + 0.1 * random.standard_normal((200, 2))
    return points.astype(np.float32), np.repeat([0, 1], 100)
