"""Small models for the tests of adapters."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS, WIDTH, CLASSES = 11, 8, 3


def _model(nodes, inputs, weights, opset=17, extra=()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "network", inputs, [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
                              [numpy_helper.from_array(array, name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *extra], ir_version=8)


def network() -> onnx.ModelProto:
    """ids [n, 4] -> scores [n, 3] through an embedding, a MatMul whose weight has an exporter's generic name, and a Gemm with transB."""
    rng = np.random.default_rng(3)
    weights = {"embedding.weight": rng.standard_normal((WORDS, WIDTH)), "onnx::MatMul_7": rng.standard_normal((WIDTH, WIDTH)) * 0.4,
               "head.weight": rng.standard_normal((CLASSES, WIDTH)) * 0.4, "head.bias": np.zeros(CLASSES)}
    nodes = [helper.make_node("Gather", ["embedding.weight", "ids"], ["e"], name="/embedding/Gather"),
             helper.make_node("MatMul", ["e", "onnx::MatMul_7"], ["q"], name="/block/attention/query/MatMul"),
             helper.make_node("Tanh", ["q"], ["t"]), helper.make_node("ReduceMean", ["t"], ["m"], axes=[1], keepdims=0),
             helper.make_node("Gemm", ["m", "head.weight", "head.bias"], ["scores"], transB=1, alpha=0.5, name="/head/Gemm")]
    return _model(nodes, [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 4])], {k: v.astype(np.float32) for k, v in weights.items()})


def images() -> onnx.ModelProto:
    """image [n, 2, 6, 6] -> scores [n, 3] through a strided convolution, a depthwise one and a dense layer."""
    rng = np.random.default_rng(4)
    weights = {"conv.weight": rng.standard_normal((4, 2, 3, 3)) * 0.3, "depthwise.weight": rng.standard_normal((4, 1, 3, 3)) * 0.3,
               "head.weight": rng.standard_normal((4, CLASSES)) * 0.4}
    nodes = [helper.make_node("Conv", ["image", "conv.weight"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]), helper.make_node("Relu", ["c"], ["r"]),
             helper.make_node("Conv", ["r", "depthwise.weight"], ["d"], group=4), helper.make_node("GlobalAveragePool", ["d"], ["p"]),
             helper.make_node("Flatten", ["p"], ["f"]), helper.make_node("MatMul", ["f", "head.weight"], ["scores"])]
    return _model(nodes, [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 2, 6, 6])], {k: v.astype(np.float32) for k, v in weights.items()})


def quantized() -> onnx.ModelProto:
    """x [n, 32] -> scores [n, 3] through a MatMulNBits and a MatMul whose int8 weight is dequantized."""
    rng = np.random.default_rng(5)
    weights = {"first.weight_Q4": rng.integers(0, 256, (16, 1, 16), np.uint8), "first.scales": np.full((16,), 0.05, np.float32),
               "head.weight_quantized": rng.integers(-100, 100, (16, CLASSES), np.int8), "head.scale": np.float32(0.01)}
    nodes = [helper.make_node("MatMulNBits", ["x", "first.weight_Q4", "first.scales"], ["h"], domain="com.microsoft", K=32, N=16, bits=4, block_size=32),
             helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("DequantizeLinear", ["head.weight_quantized", "head.scale"], ["w"]),
             helper.make_node("MatMul", ["t", "w"], ["scores"])]
    return _model(nodes, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])], weights, extra=[helper.make_opsetid("com.microsoft", 1)])
