"""A small classifier and its data, for tests of the trainer."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES, CLASSES, SAMPLES = 6, 3, 50


def classifier(dropout: float = 0.0) -> onnx.ModelProto:
    """x [n, 6] -> scores [n, 3] through one hidden layer."""
    rng = np.random.default_rng(7)
    weights = {"hidden.weight": rng.standard_normal((FEATURES, 16)) * 0.4, "hidden.bias": np.zeros(16),
               "head.weight": rng.standard_normal((16, CLASSES)) * 0.4, "head.bias": np.zeros(CLASSES)}
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    nodes = [helper.make_node("Gemm", ["x", "hidden.weight", "hidden.bias"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
    if dropout:
        initializers += [numpy_helper.from_array(np.float32(dropout), "ratio"), numpy_helper.from_array(np.bool_(True), "training")]
        nodes.append(helper.make_node("Dropout", ["r", "ratio", "training"], ["d"]))
    nodes.append(helper.make_node("Gemm", ["d" if dropout else "r", "head.weight", "head.bias"], ["scores"]))
    graph = helper.make_graph(nodes, "classifier", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Return x float32 [50, 6] and the labels int64 [50] of a linear rule."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    return x, (x @ rng.standard_normal((FEATURES, CLASSES))).argmax(1)
