"""Small ONNX models for the code of documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: str, nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, tuple[int, list[Any]]], outputs: Mapping[str, list[Any]],
         weights: Mapping[str, np.ndarray]) -> None:
    """Write a model. inputs: name -> (element type, shape). outputs: name -> shape of a float output."""
    graph = helper.make_graph(
        list(nodes), "model", [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def weight(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Return a float32 weight whose layer keeps the variance of its input, for the layouts of Gemm with transB and of Conv."""
    fan_in = int(np.prod(shape[1:]))
    return (random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def dense(name: str, x: str, y: str) -> onnx.NodeProto:
    """Return a layer y = x weight^T + bias as PyTorch exports torch.nn.Linear."""
    return helper.make_node("Gemm", [x, f"{name}.weight", f"{name}.bias"], [y], f"/{name}/Gemm", transB=1)


def perceptron(path: str, sizes: Sequence[int], x: str, y: str, names: Sequence[str], batch: int | str = "batch") -> None:
    """Write dense layers of these sizes with ReLU between them, from an input [batch, sizes[0]]."""
    random = np.random.default_rng(0)
    nodes, weights, value = [], {}, x
    for number, name in enumerate(names):
        last = number == len(names) - 1
        result = y if last else f"{name}.output"
        nodes.append(dense(name, value, result))
        if not last:
            nodes.append(helper.make_node("Relu", [result], [f"{name}.relu"]))
        weights |= {f"{name}.weight": weight(random, sizes[number + 1], sizes[number]), f"{name}.bias": np.zeros(sizes[number + 1], np.float32)}
        value = f"{name}.relu"
    save(path, nodes, {x: (TensorProto.FLOAT, [batch, sizes[0]])}, {y: [batch, sizes[-1]]}, weights)


def convolutional(path: str, channels: int, size: int, classes: int, batch: int | str = "batch") -> None:
    """Write an image classifier: "image" [batch, channels, size, size] -> two convolutions, pooling, a dense layer -> "scores" [batch, classes]."""
    random = np.random.default_rng(0)
    weights = {"features.0.weight": weight(random, 8, channels, 3, 3), "features.0.bias": np.zeros(8, np.float32),
               "features.1.weight": weight(random, 16, 8, 3, 3), "features.1.bias": np.zeros(16, np.float32),
               "head.weight": weight(random, classes, 16 * (size // 2) ** 2), "head.bias": np.zeros(classes, np.float32)}
    nodes = [helper.make_node("Conv", ["image", "features.0.weight", "features.0.bias"], ["c0"], "/features.0/Conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["c0"], ["r0"]),
             helper.make_node("Conv", ["r0", "features.1.weight", "features.1.bias"], ["c1"], "/features.1/Conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["c1"], ["r1"]),
             helper.make_node("MaxPool", ["r1"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
             helper.make_node("Flatten", ["p"], ["features"]), dense("head", "features", "scores")]
    save(path, nodes, {"image": (TensorProto.FLOAT, [batch, channels, size, size])}, {"scores": [batch, classes]}, weights)


def encoder(path: str, vocabulary: int = 50, width: int = 32, layers: int = 2, classes: int = 4) -> None:
    """Write a text classifier with the names of a transformer: "tokens" int64 [batch, length] -> "scores" [batch, classes]."""
    random = np.random.default_rng(0)
    weights = {"embeddings.weight": random.standard_normal((vocabulary, width)).astype(np.float32)}
    nodes, value = [helper.make_node("Gather", ["embeddings.weight", "tokens"], ["embedded"])], "embedded"
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            name = f"{prefix}.attention.{part}"
            weights[f"{name}.weight"] = weight(random, width, width)
            nodes.append(helper.make_node("MatMul", [value, f"{name}.weight"], [f"{name}.y"], f"/{name.replace('.', '/')}/MatMul"))
        nodes += [helper.make_node("Transpose", [f"{prefix}.attention.key.y"], [f"{prefix}.k"], perm=[0, 2, 1]),
                  helper.make_node("MatMul", [f"{prefix}.attention.query.y", f"{prefix}.k"], [f"{prefix}.qk"]),
                  helper.make_node("Softmax", [f"{prefix}.qk"], [f"{prefix}.p"], axis=-1),
                  helper.make_node("MatMul", [f"{prefix}.p", f"{prefix}.attention.value.y"], [f"{prefix}.a"]),
                  helper.make_node("Add", [value, f"{prefix}.a"], [f"{prefix}.y"])]
        value = f"{prefix}.y"
    weights |= {"classifier.weight": weight(random, classes, width), "classifier.bias": np.zeros(classes, np.float32)}
    nodes += [helper.make_node("ReduceMean", [value], ["pooled"], axes=[1], keepdims=0), dense("classifier", "pooled", "scores")]
    save(path, nodes, {"tokens": (TensorProto.INT64, ["batch", "length"])}, {"scores": ["batch", classes]}, weights)

