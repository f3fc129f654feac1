"""Graphs whose weights are also available in the layout of the same torch module, and the layers that benchmarks.graphs lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from benchmarks.graphs import OPSET, GraphBuilder
from benchmarks.measure import CROSS_ENTROPY

CLASSES = 10

LSTM_GATES, GRU_GATES = (0, 3, 1, 2), (1, 0, 2)
"""Positions of ONNX's gates (i, o, f, c and z, r, h) among torch's (i, f, g, o and r, z, n)."""


class NetworkBuilder(GraphBuilder):
    """A graph under construction beside the state of a torch module: every parameter has the name that it has in the module."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.torch_state: dict[str, np.ndarray] = {}
        """Name in the torch module -> value in torch's layout."""
        self.input_shape: tuple[int, ...] = ()
        self.vocabulary = 0

    def input(self, shape: tuple[int, ...], vocabulary: int = 0) -> str:
        """Declare the only input, float32, or int64 numbers below `vocabulary`; return its name."""
        self.input_shape, self.vocabulary = shape, vocabulary
        return "input"

    def parameter(self, name: str, value: np.ndarray) -> str:
        self.torch_state[name] = np.asarray(value, np.float32)
        return super().parameter(name, value)

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        y = super().batch_norm(x, name, channels)
        self.torch_state |= {f"{name}.{part}": self.weights[f"{name}.{part}"] for part in ("running_mean", "running_var")}
        return y

    def normal(self, name: str, shape: tuple[int, ...], scale: float = 1.0) -> str:
        """Add a normally distributed parameter."""
        return self.parameter(name, scale * self.rng.standard_normal(shape))

    def dense(self, x: str, name: str, size_in: int, size_out: int, bias: bool = True) -> str:
        y = super().dense(x, name, size_in, size_out, bias)
        self.torch_state[f"{name}.weight"] = np.ascontiguousarray(self.torch_state[f"{name}.weight"].T)
        return y

    def outputs(self, count: int, op_type: str, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with several outputs and return their names."""
        first = self.op(op_type, *inputs, **attributes)
        self.nodes[-1].output.extend(f"{first}_{i}" for i in range(1, count))
        return list(self.nodes[-1].output)

    # ---- shapes

    def integers(self, *values: int) -> str:
        """Add a constant vector of integers such as a shape or axes."""
        return self.constant("integers_" + "_".join(map(str, values)), list(values))

    def scalar(self, value: float) -> str:
        """Add a float32 constant without dimensions."""
        return self.constant(f"scalar_{value:g}", value, "float32")

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.integers(*shape))

    def transpose(self, x: str, *order: int) -> str:
        return self.op("Transpose", x, perm=list(order))

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """Add x[..., start:stop:step, ...] on one axis."""
        return self.op("Slice", x, *map(self.integers, (start, stop, axis, step)))

    def split(self, x: str, axis: int, *sizes: int) -> list[str]:
        return self.outputs(len(sizes), "Split", x, self.integers(*sizes), axis=axis)

    def index(self, x: str, axis: int, position: int) -> str:
        """Add x[..., position, ...] on one axis, which disappears."""
        return self.op("Gather", x, self.constant(f"index_{position}", position), axis=axis)

    def concat(self, axis: int, *parts: str) -> str:
        return self.op("Concat", *parts, axis=axis)

    def mean(self, x: str, *axes: int, keepdims: int = 0) -> str:
        return self.op("ReduceMean", x, axes=list(axes), keepdims=keepdims)

    def sum(self, x: str, axis: int, keepdims: int = 0) -> str:
        return self.op("ReduceSum", x, self.integers(axis), keepdims=keepdims)

    # ---- layers

    def embedding(self, ids: str, name: str, count: int, size: int) -> str:
        """Add rows of a table: ids [...] -> [..., size]."""
        return self.op("Gather", self.normal(f"{name}.weight", (count, size)), ids, axis=0)

    def conv1d(self, x: str, name: str, channels_in: int, channels_out: int, kernel: int, dilation: int = 1, pad: int = 0) -> str:
        """Add a convolution with bias: x [n, in, t] -> [n, out, t']."""
        fan_in = channels_in * kernel
        weight = self.uniform(f"{name}.weight", (channels_out, channels_in, kernel), fan_in)
        return self.op("Conv", x, weight, self.uniform(f"{name}.bias", (channels_out,), fan_in), kernel_shape=[kernel], strides=[1], pads=[pad] * 2,
                       dilations=[dilation], group=1)

    def conv_transpose(self, x: str, name: str, channels_in: int, channels_out: int, kernel: int, stride: int, pad: int) -> str:
        """Add a transposed convolution with bias: x [n, in, h, w] -> [n, out, h', w']."""
        fan_in = channels_out * kernel * kernel
        weight = self.uniform(f"{name}.weight", (channels_in, channels_out, kernel, kernel), fan_in)
        return self.op("ConvTranspose", x, weight, self.uniform(f"{name}.bias", (channels_out,), fan_in), kernel_shape=[kernel] * 2, strides=[stride] * 2,
                       pads=[pad] * 4, dilations=[1, 1], group=1)

    def resize(self, x: str, factor: int, linear: bool = False) -> str:
        """Add an enlargement [n, c, h, w] -> [n, c, h · factor, w · factor], nearest or bilinear, as torch exports it."""
        scales = self.constant(f"scales_{factor}", [1, 1, factor, factor], "float32")
        if linear:
            return self.op("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
        return self.op("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")

    def recurrent(self, op_type: str, x: str, name: str, size: int, hidden: int, initial: str = "", layer: int = 0, bidirectional: bool = False,
                  ) -> tuple[str, str]:
        """Add one layer of nn.LSTM or nn.GRU: x [t, n, size] -> (states [t, directions, n, hidden], last states [directions, n, hidden])."""
        order = np.array(LSTM_GATES if op_type == "LSTM" else GRU_GATES)
        stacked: dict[str, list[np.ndarray]] = {"W": [], "R": [], "B": []}
        for suffix in ("", "_reverse") if bidirectional else ("",):
            biases = []
            for part, shape in (("weight_ih", (size,)), ("weight_hh", (hidden,)), ("bias_ih", ()), ("bias_hh", ())):
                drawn = self.rng.uniform(-1, 1, (len(order) * hidden, *shape)).astype(np.float32) / np.float32(hidden ** 0.5)
                self.torch_state[f"{name}.{part}_l{layer}{suffix}"] = drawn
                gates = drawn.reshape(len(order), hidden, *shape)[order].reshape(drawn.shape)
                (biases if not shape else stacked["W" if part == "weight_ih" else "R"]).append(gates)
            stacked["B"].append(np.concatenate(biases))
        inputs = [super(NetworkBuilder, self).parameter(f"{name}.{part}{layer}", np.stack(arrays)) for part, arrays in stacked.items()]
        settings = {"linear_before_reset": 1} if op_type == "GRU" else {}
        states, last = self.outputs(2, op_type, x, *inputs, *(["", initial] if initial else []), hidden_size=hidden,
                                    direction="bidirectional" if bidirectional else "forward", **settings)
        return states, last

    def finish(self, name: str, output: str) -> onnx.ModelProto:
        """Return the model; the shape of its output is inferred."""
        self.nodes.append(helper.make_node("Identity", [output], ["output"], "output_identity"))
        kind = TensorProto.INT64 if self.vocabulary else TensorProto.FLOAT
        graph = helper.make_graph(self.nodes, name, [helper.make_tensor_value_info("input", kind, self.input_shape)],
                                  [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(array, key) for key, array in self.weights.items()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        graph.output[0].CopyFrom(inferred.graph.output[0])
        del model.graph.output[:]
        model.graph.output.append(inferred.graph.output[0])
        return model


@dataclass(frozen=True)
class MadeNetwork:
    """A forward model, its weights under the names and in the layout of the torch module, and what its batches consist of."""

    model: onnx.ModelProto
    trained: list[str]
    frozen: list[str]
    torch_state: dict[str, np.ndarray]
    input_shape: tuple[int, ...]
    vocabulary: int
    output_shape: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """A network of one kind.

    build: adds the layers, called with a NetworkBuilder and the sizes; returns the output.
    sizes: of the benchmark. tiny: sizes that a test trains in milliseconds.
    loss: CROSS_ENTROPY of an output [n, classes, ...] and labels [n, ...], or MEAN_SQUARED_ERROR of an output and targets of its shape."""

    kind: str
    build: Callable[..., str]
    sizes: Mapping[str, int]
    tiny: Mapping[str, int]
    loss: str = CROSS_ENTROPY

    def make(self, name: str, tiny: bool = False) -> MadeNetwork:
        """Return the network, the same in every call."""
        g = NetworkBuilder(seed=0)
        model = g.finish(name, self.build(g, **(self.tiny if tiny else self.sizes)))
        shape = tuple(axis.dim_value for axis in model.graph.output[0].type.tensor_type.shape.dim)
        return MadeNetwork(model, g.trainable, g.frozen, g.torch_state, g.input_shape, g.vocabulary, shape)

    def batches(self, made: MadeNetwork, count: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return `count` batches (input, labels or targets), the same in every call."""
        rng = np.random.default_rng(1234)

        def draw() -> np.ndarray:
            return rng.integers(0, made.vocabulary, made.input_shape) if made.vocabulary else rng.standard_normal(made.input_shape).astype(np.float32)

        def answers() -> np.ndarray:
            if self.loss == CROSS_ENTROPY:
                return rng.integers(0, made.output_shape[1], (made.output_shape[0], *made.output_shape[2:]))
            return rng.random(made.output_shape, np.float32)

        return [(draw(), answers()) for _ in range(count)]
