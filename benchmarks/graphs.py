"""Forward ONNX graphs, built layer by layer with the operators that torch exports and torch's default initialization."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class GraphBuilder:
    """A graph under construction. Layers take and return names of values; weights come from one seeded generator."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.trainable: list[str] = []
        self.frozen: list[str] = []
        self.train_weights = True
        """Whether parameters added from now on are trained. Batch normalization with frozen parameters uses its running statistics."""

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the name of the output."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], f"{op_type}_{len(self.nodes)}", **attributes))
        return output

    def constant(self, name: str, value: Any, dtype: str = "int64") -> str:
        """Add a constant such as a shape, an index or a factor, and return its name."""
        self.weights.setdefault(name, np.asarray(value, dtype))
        return name

    def parameter(self, name: str, value: np.ndarray) -> str:
        """Add a float32 parameter, trained or frozen according to train_weights, and return its name."""
        self.weights[name] = np.asarray(value, np.float32)
        (self.trainable if self.train_weights else self.frozen).append(name)
        return name

    def uniform(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        """Add a parameter with torch's default for linear and convolutional layers, uniform within ±1/sqrt(fan_in)."""
        bound = 1 / math.sqrt(fan_in)
        return self.parameter(name, self.rng.uniform(-bound, bound, shape))

    # ---- layers

    def linear(self, x: str, name: str, size_in: int, size_out: int) -> str:
        """Add a linear layer as one Gemm: x [n, in] -> [n, out]."""
        weight = self.uniform(f"{name}.weight", (size_out, size_in), size_in)
        return self.op("Gemm", x, weight, self.uniform(f"{name}.bias", (size_out,), size_in), transB=1)

    def dense(self, x: str, name: str, size_in: int, size_out: int, bias: bool = True) -> str:
        """Add a linear layer as MatMul and Add, as torch exports it for more than two dimensions: x [..., in] -> [..., out]."""
        y = self.op("MatMul", x, self.uniform(f"{name}.weight", (size_in, size_out), size_in))
        return self.op("Add", self.uniform(f"{name}.bias", (size_out,), size_in), y) if bias else y

    def conv(self, x: str, name: str, channels_in: int, channels_out: int, kernel: int, stride: int = 1, pad: int = 0, group: int = 1,
             bias: bool = False) -> str:
        """Add a convolution: x [n, in, h, w] -> [n, out, h', w']."""
        fan_in = channels_in // group * kernel * kernel
        inputs = [x, self.uniform(f"{name}.weight", (channels_out, channels_in // group, kernel, kernel), fan_in)]
        if bias:
            inputs.append(self.uniform(f"{name}.bias", (channels_out,), fan_in))
        return self.op("Conv", *inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, dilations=[1, 1], group=group)

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        """Add a batch normalization, which uses batch statistics unless train_weights is False."""
        inputs = [self.parameter(f"{name}.weight", np.ones(channels)), self.parameter(f"{name}.bias", np.zeros(channels))]
        for part, value in (("running_mean", np.zeros(channels)), ("running_var", np.ones(channels))):
            self.weights[f"{name}.{part}"] = value.astype(np.float32)
            self.frozen.append(f"{name}.{part}")
            inputs.append(f"{name}.{part}")
        return self.op("BatchNormalization", x, *inputs, epsilon=1e-5, momentum=0.9)

    def layer_norm(self, x: str, name: str, size: int) -> str:
        """Add a layer normalization over the last axis."""
        weight, bias = self.parameter(f"{name}.weight", np.ones(size)), self.parameter(f"{name}.bias", np.zeros(size))
        return self.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=1e-5)

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def relu6(self, x: str) -> str:
        return self.op("Clip", x, self.constant("zero", 0, "float32"), self.constant("six", 6, "float32"))

    def gelu(self, x: str) -> str:
        """Add GELU as torch exports it: x/2 · (1 + erf(x/√2))."""
        erf = self.op("Erf", self.op("Div", x, self.constant("sqrt_two", math.sqrt(2), "float32")))
        scaled = self.op("Mul", x, self.op("Add", erf, self.constant("one", 1, "float32")))
        return self.op("Mul", scaled, self.constant("half", 0.5, "float32"))

    def max_pool(self, x: str, kernel: int, stride: int, pad: int = 0) -> str:
        return self.op("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def global_pool(self, x: str) -> str:
        """Add a global average pooling: [n, c, h, w] -> [n, c]."""
        return self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)

    def model(self, name: str, input_shape: tuple[int, ...], input_dtype: str, output: str,
              output_shape: tuple[int, ...]) -> onnx.ModelProto:
        """Return the model, whose input and output have fixed shapes."""
        self.nodes.append(helper.make_node("Identity", [output], ["output"], "output_identity"))
        element_type = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}[input_dtype]
        graph = helper.make_graph(
            self.nodes, name, [helper.make_tensor_value_info("input", element_type, input_shape)],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, output_shape)],
            [numpy_helper.from_array(array, key) for key, array in self.weights.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
