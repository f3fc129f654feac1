"""A small convolutional classifier as a forward ONNX model: untrained weights, no loss, no gradients."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 10
STATISTICS = ["bn1.running_mean", "bn1.running_var", "bn2.running_mean", "bn2.running_var"]
"""Frozen parameters: training updates them, but not by gradients."""


def build_model(size: int, seed: int = 0) -> onnx.ModelProto:
    """Return a model of two blocks (convolution, normalization, ReLU, pooling) and two dense layers.

    Its input is image [batch, 1, size, size], its output logits [batch, 10]."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}

    def add_layer(name: str, *shape: int) -> None:
        # He et al. 2015: keeps the variance of activations through layers with ReLU
        weights[f"{name}.weight"] = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        weights[f"{name}.bias"] = np.zeros(shape[0])

    def add_normalization(name: str, channels: int) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(channels), np.zeros(channels)
        weights[f"{name}.running_mean"], weights[f"{name}.running_var"] = np.zeros(channels), np.ones(channels)

    nodes, value = [], "image"
    for block, (channels_in, channels_out) in enumerate([(1, 16), (16, 32)], start=1):
        add_layer(f"conv{block}", channels_out, channels_in, 3, 3)
        add_normalization(f"bn{block}", channels_out)
        parts = ["weight", "bias", "running_mean", "running_var"]
        nodes += [
            helper.make_node("Conv", [value, f"conv{block}.weight", f"conv{block}.bias"], [f"c{block}"], kernel_shape=[3, 3], pads=[1] * 4),
            helper.make_node("BatchNormalization", [f"c{block}", *(f"bn{block}.{part}" for part in parts)], [f"n{block}"]),
            helper.make_node("Relu", [f"n{block}"], [f"r{block}"]),
            helper.make_node("MaxPool", [f"r{block}"], [f"p{block}"], kernel_shape=[2, 2], strides=[2, 2]),
        ]
        value = f"p{block}"
    add_layer("fc1", 64, 32 * (size // 4) ** 2)
    add_layer("fc2", CLASSES, 64)
    nodes += [
        helper.make_node("Flatten", [value], ["features"]),
        helper.make_node("Gemm", ["features", "fc1.weight", "fc1.bias"], ["f1"], transB=1),
        helper.make_node("Relu", ["f1"], ["f2"]),
        helper.make_node("Gemm", ["f2", "fc2.weight", "fc2.bias"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes, "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def trainable_weights(model: onnx.ModelProto) -> list[str]:
    """Return the names of all weights except the running statistics."""
    return [tensor.name for tensor in model.graph.initializer if tensor.name not in STATISTICS]
