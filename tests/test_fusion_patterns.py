"""Fusion of layer normalization, tanh GELU and SiLU: exporter forms are fused, near misses are not, and values stay
equal."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.fusion import OPSETS, fuse
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.ops.registry.shape_inference import infer
from ortrain.runtime.inference_session import InferenceSession

SHAPE = (3, 4, 6)
rng = np.random.default_rng(8)
X = rng.standard_normal(SHAPE).astype(np.float32)
CONSTANTS = {"two": 2, "three": 3, "one": 1, "half": 0.5, "minus_half": -0.5, "epsilon": 1e-3, "cubic": 0.044715, "factor": math.sqrt(2 / math.pi),
             "scale": rng.standard_normal(6), "bias": rng.standard_normal(6), "plane": rng.standard_normal((4, 6)), "single": [1.5]}


def model_of(nodes, outputs=("y",), opset=13, **constants):
    arrays = {name: np.asarray(value, np.float32) for name, value in CONSTANTS.items()} | constants
    graph = Graph(inputs=["x"], outputs=list(outputs), nodes=nodes, initializers=arrays, types={"x": TensorType("float32", SHAPE)})
    model = Model(graph, {"": opset, **OPSETS})
    graph.types |= infer(model)
    return model


DIVISIONS = {
    "Div": [Node("Sqrt", ["e"], ["r"]), Node("Div", ["d", "r"], ["n"])],
    "Reciprocal": [Node("Sqrt", ["e"], ["r"]), Node("Reciprocal", ["r"], ["i"]), Node("Mul", ["d", "i"], ["n"])],
    "one over root": [Node("Sqrt", ["e"], ["r"]), Node("Div", ["one", "r"], ["i"]), Node("Mul", ["i", "d"], ["n"])],
    "inverse root": [Node("Pow", ["e", "minus_half"], ["i"]), Node("Mul", ["d", "i"], ["n"])],
}
"""Ways in which exporters divide d by the root of e."""


def layer_norm(axes=(-1,), squared="Pow", scale="scale", bias="bias", square_axes=None, keepdims=1, division="Div"):
    """Return the nodes of (x - mean) / sqrt(mean of squares + epsilon), times a scale, plus a bias."""
    def mean(value, out, over_axes):
        return Node("ReduceMean", [value], [out], attributes={"axes": tuple(over_axes), "keepdims": keepdims})

    return [mean("x", "m", axes), Node("Sub", ["x", "m"], ["d"]), Node(squared, ["d", "two" if squared == "Pow" else "d"], ["s"]),
            mean("s", "v", square_axes or axes), Node("Add", ["v", "epsilon"], ["e"]), *DIVISIONS[division],
            Node("Mul", ["n", scale], ["t" if bias else "y"]), *([Node("Add", [bias, "t"], ["y"])] if bias else [])]


def rms_norm(division="Div", squared="Pow", scale_first=False, axes=(-1,), other="x"):
    """Return the nodes of x / sqrt(mean of squares + epsilon), times a scale. other: what is divided by the root."""
    divided = [Node(node.op_type, [other if name == "d" else name for name in node.inputs], node.outputs) for node in DIVISIONS[division]]
    return [Node(squared, ["x", "two" if squared == "Pow" else "x"], ["s"]), Node("ReduceMean", ["s"], ["v"], attributes={"axes": axes}),
            Node("Add", ["v", "epsilon"], ["e"]), *divided,
            Node("Mul", ["scale", "n"] if scale_first else ["n", "scale"], ["y"])]


def tanh_gelu(cube="Pow", cubic="cubic", half_first=True):
    """Return the nodes of x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    cubes = [Node("Pow", ["x", "three"], ["c"])] if cube == "Pow" else [Node("Mul", ["x", "x"], ["q"]), Node("Mul", ["q", "x"], ["c"])]
    end = ([Node("Mul", ["x", "half"], ["h"]), Node("Mul", ["h", "p"], ["y"])] if half_first
           else [Node("Mul", ["x", "p"], ["h"]), Node("Mul", ["h", "half"], ["y"])])
    return [*cubes, Node("Mul", [cubic, "c"], ["f"]), Node("Add", ["x", "f"], ["a"]), Node("Mul", ["a", "factor"], ["b"]), Node("Tanh", ["b"], ["t"]),
            Node("Add", ["t", "one"], ["p"]), *end]


FUSED = {
    "layer normalization": (layer_norm(), "LayerNormalization"),
    "layer normalization, square as Mul": (layer_norm(squared="Mul"), "LayerNormalization"),
    "layer normalization, non-negative axis": (layer_norm(axes=(2,)), "LayerNormalization"),
    "layer normalization, two axes": (layer_norm(axes=(2, 1), scale="plane", bias="plane"), "LayerNormalization"),
    "layer normalization, no bias": (layer_norm(bias=""), "LayerNormalization"),
    **{f"layer normalization, {division}": (layer_norm(squared="Mul", division=division), "LayerNormalization") for division in DIVISIONS},
    **{f"RMS normalization, {division}": (rms_norm(division), "SimplifiedLayerNormalization") for division in DIVISIONS},
    "RMS normalization, square as Mul": (rms_norm(squared="Mul", scale_first=True), "SimplifiedLayerNormalization"),
    "RMS normalization, as operator": ([Node("RMSNormalization", ["x", "scale"], ["y"])], "SimplifiedLayerNormalization"),
    "tanh gelu": (tanh_gelu(), "FastGelu"),
    "tanh gelu, cube as Mul": (tanh_gelu(cube="Mul", half_first=False), "FastGelu"),
    "silu": ([Node("Sigmoid", ["x"], ["s"]), Node("Mul", ["x", "s"], ["y"])], "Swish"),
    "silu, operands swapped": ([Node("Sigmoid", ["x"], ["s"]), Node("Mul", ["s", "x"], ["y"])], "Swish"),
}


@pytest.mark.parametrize("case", FUSED)
def test_pattern_becomes_one_operator_with_equal_values(case):
    nodes, op_type = FUSED[case]
    model = model_of(nodes)
    expected = InferenceSession(model.copy()).run(None, {"x": X})[0]
    assert fuse(model.graph) == 1 and [node.op_type for node in model.graph.nodes] == [op_type]
    np.testing.assert_allclose(InferenceSession(model).run(None, {"x": X})[0], expected, rtol=2e-5, atol=1e-6)


def test_axes_may_be_an_input():
    nodes = layer_norm()
    for node in nodes:
        if node.op_type == "ReduceMean":
            node.inputs, node.attributes = [*node.inputs, "axes"], {"keepdims": 1}
    model = model_of(nodes, opset=18, axes=np.array([-1]))
    assert fuse(model.graph) == 1


def test_addition_that_is_not_a_bias_is_kept():
    model = model_of(layer_norm(bias="plane"))
    assert fuse(model.graph) == 1 and [node.op_type for node in model.graph.nodes] == ["LayerNormalization", "Add"]


def test_layer_normalization_whose_difference_is_read_elsewhere_is_an_rms_normalization_of_the_difference():
    nodes = [*layer_norm(), Node("Neg", ["d"], ["z"])]
    model = model_of(nodes, ("y", "z"))
    expected = InferenceSession(model.copy()).run(None, {"x": X})
    assert fuse(model.graph) == 1 and "SimplifiedLayerNormalization" in [node.op_type for node in model.graph.nodes]
    for found, value in zip(InferenceSession(model).run(None, {"x": X}), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=2e-5, atol=1e-6)


def test_rms_normalization_has_the_dtype_of_its_scale():
    model = model_of([Node("RMSNormalization", ["x", "wide"], ["y"])], opset=23, wide=np.linspace(0.5, 1.5, 6))
    expected = X / np.sqrt((X.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * model.graph.initializers["wide"]
    assert fuse(model.graph) == 0
    (found,) = InferenceSession(model).run(None, {"x": X})
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-6)


NOT_FUSED = {
    "layer normalization, inner axis": (layer_norm(axes=(1,)), ("y",)),
    "layer normalization, different axes": (layer_norm(square_axes=(1, 2)), ("y",)),
    "layer normalization, scalar scale": (layer_norm(scale="single"), ("y",)),
    "layer normalization, deviation is an output": (layer_norm(), ("y", "r")),
    "layer normalization, root has another reader": ([*layer_norm(), Node("Neg", ["r"], ["z"])], ("y", "z")),
    "RMS normalization, inner axis": (rms_norm(axes=(1,)), ("y",)),
    "RMS normalization, as operator with a broadcast scale": ([Node("RMSNormalization", ["x", "single"], ["y"])], ("y",)),
    "RMS normalization, square is an output": (rms_norm(), ("y", "s")),
    "RMS normalization, root of another value": ([Node("Neg", ["x"], ["o"]), *rms_norm(other="o")], ("y",)),
    "tanh gelu, other constant": (tanh_gelu(cubic="half"), ("y",)),
    "tanh gelu, tanh is an output": (tanh_gelu(), ("y", "t")),
    "tanh gelu, cube is an output": (tanh_gelu(), ("y", "c")),
    "silu, gate of another value": ([Node("Neg", ["x"], ["o"]), Node("Sigmoid", ["x"], ["s"]), Node("Mul", ["o", "s"], ["y"])], ("y",)),
    "silu, gate is an output": ([Node("Sigmoid", ["x"], ["s"]), Node("Mul", ["x", "s"], ["y"])], ("y", "s")),
}


@pytest.mark.parametrize("case", NOT_FUSED)
def test_near_miss_is_not_fused(case):
    nodes, outputs = NOT_FUSED[case]
    assert fuse(model_of(nodes, outputs).graph) == 0


def trained():
    """Train a network with all three patterns; return (losses, parameters, names of the kernels that ran)."""
    generator = np.random.default_rng(2)
    weights = {"w": (6, 6), "scale": (6,), "bias": (6,), "out": (6, 3)}
    nodes = [Node("MatMul", ["x0", "w"], ["x"])]
    for index, part in enumerate((layer_norm(), tanh_gelu(), FUSED["silu"][0])):
        names = {"x": f"x{index}" if index else "x", "y": f"x{index + 1}"} | {name: name for name in (*CONSTANTS, *weights)}
        nodes += [Node(n.op_type, [names.get(v, f"{index}{v}") for v in n.inputs], [names.get(v, f"{index}{v}") for v in n.outputs], attributes=n.attributes)
                  for n in part]
    nodes.append(Node("MatMul", ["x3", "out"], ["scores"]))
    arrays = CONSTANTS | {name: generator.standard_normal(shape) for name, shape in weights.items()}
    graph = helper.make_graph([helper.make_node(n.op_type, n.inputs, n.outputs, **n.attributes) for n in nodes], "network",
                              [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [5, 6])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [5, 3])],
                              [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in arrays.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    losses, options = [], {"loss": LossType.CrossEntropyLoss, "optimizer": OptimType.AdamW, "requires_grad": list(weights), "learning_rate": 0.01}
    with TrainingSession.from_model(model, **options) as session:
        for _ in range(4):
            with session.profile() as profile:
                losses.append(float(session.train_step(generator.standard_normal((5, 6)).astype(np.float32), generator.integers(0, 3, 5))[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
        return losses, session.to_buffer(), {step.kernel for step in profile.steps}


def test_fused_training_matches_unfused_training(monkeypatch):
    losses, parameters, kernels = trained()
    monkeypatch.setattr("ortrain.training.binding.fused_training_model", lambda model: model)
    expected_losses, expected_parameters, unfused_kernels = trained()
    assert {"layer_norm_grad", "fast_gelu_grad", "quick_gelu_grad"} <= kernels and not {"layer_norm", "fast_gelu", "quick_gelu"} & unfused_kernels
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(parameters, expected_parameters, atol=3e-4)
