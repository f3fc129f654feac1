"""Layer normalization, GELU by tanh and SiLU in single operators: found as exporters write them, left alone where they are nearly so, equal in value."""

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
CONSTANTS = {"two": 2, "three": 3, "one": 1, "half": 0.5, "epsilon": 1e-3, "cubic": 0.044715, "factor": math.sqrt(2 / math.pi),
             "scale": rng.standard_normal(6), "bias": rng.standard_normal(6), "plane": rng.standard_normal((4, 6)), "single": [1.5]}


def model_of(nodes, outputs=("y",), opset=13, **constants):
    arrays = {name: np.asarray(value, np.float32) for name, value in CONSTANTS.items()} | constants
    graph = Graph(inputs=["x"], outputs=list(outputs), nodes=nodes, initializers=arrays, types={"x": TensorType("float32", SHAPE)})
    model = Model(graph, {"": opset, **OPSETS})
    graph.types |= infer(model)
    return model


def layer_norm(axes=(-1,), squared="Pow", scale="scale", bias="bias", square_axes=None, keepdims=1):
    """(x - mean) / sqrt(mean of squares + epsilon), times a scale, plus a bias."""
    def mean(value, out, over):
        return Node("ReduceMean", [value], [out], attributes={"axes": tuple(over), "keepdims": keepdims})

    return [mean("x", "m", axes), Node("Sub", ["x", "m"], ["d"]), Node(squared, ["d", "two" if squared == "Pow" else "d"], ["s"]),
            mean("s", "v", square_axes or axes), Node("Add", ["v", "epsilon"], ["e"]), Node("Sqrt", ["e"], ["r"]), Node("Div", ["d", "r"], ["n"]),
            Node("Mul", ["n", scale], ["t" if bias else "y"]), *([Node("Add", [bias, "t"], ["y"])] if bias else [])]


def tanh_gelu(cube="Pow", cubic="cubic", half_first=True):
    """x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))"""
    cubes = [Node("Pow", ["x", "three"], ["c"])] if cube == "Pow" else [Node("Mul", ["x", "x"], ["q"]), Node("Mul", ["q", "x"], ["c"])]
    end = ([Node("Mul", ["x", "half"], ["h"]), Node("Mul", ["h", "p"], ["y"])] if half_first
           else [Node("Mul", ["x", "p"], ["h"]), Node("Mul", ["h", "half"], ["y"])])
    return [*cubes, Node("Mul", [cubic, "c"], ["f"]), Node("Add", ["x", "f"], ["a"]), Node("Mul", ["a", "factor"], ["b"]), Node("Tanh", ["b"], ["t"]),
            Node("Add", ["t", "one"], ["p"]), *end]


FOUND = {
    "layer normalization": (layer_norm(), "LayerNormalization"),
    "by a product": (layer_norm(squared="Mul"), "LayerNormalization"),
    "counted from the front": (layer_norm(axes=(2,)), "LayerNormalization"),
    "of two axes": (layer_norm(axes=(2, 1), scale="plane", bias="plane"), "LayerNormalization"),
    "without a bias": (layer_norm(bias=""), "LayerNormalization"),
    "gelu by tanh": (tanh_gelu(), "FastGelu"),
    "gelu by products": (tanh_gelu(cube="Mul", half_first=False), "FastGelu"),
    "silu": ([Node("Sigmoid", ["x"], ["s"]), Node("Mul", ["x", "s"], ["y"])], "Swish"),
    "silu, the other way round": ([Node("Sigmoid", ["x"], ["s"]), Node("Mul", ["s", "x"], ["y"])], "Swish"),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_pattern_becomes_one_operator_of_the_same_value(case):
    nodes, op_type = FOUND[case]
    model = model_of(nodes)
    expected = InferenceSession(model.copy()).run(None, {"x": X})[0]
    assert fuse(model.graph) == 1 and [node.op_type for node in model.graph.nodes] == [op_type]
    np.testing.assert_allclose(InferenceSession(model).run(None, {"x": X})[0], expected, rtol=2e-5, atol=1e-6)


def test_axes_that_are_an_input_are_read_too():
    nodes = layer_norm()
    for node in nodes:
        if node.op_type == "ReduceMean":
            node.inputs, node.attributes = [*node.inputs, "axes"], {"keepdims": 1}
    model = model_of(nodes, opset=18, axes=np.array([-1]))
    assert fuse(model.graph) == 1


def test_a_shift_that_is_no_bias_stays_behind_the_normalization():
    model = model_of(layer_norm(bias="plane"))
    assert fuse(model.graph) == 1 and [node.op_type for node in model.graph.nodes] == ["LayerNormalization", "Add"]


ALONE = {
    "of an axis in the middle": (layer_norm(axes=(1,)), ("y",)),
    "of different axes": (layer_norm(square_axes=(1, 2)), ("y",)),
    "scaled by a number": (layer_norm(scale="single"), ("y",)),
    "whose deviation is an output": (layer_norm(), ("y", "r")),
    "whose difference is read elsewhere": ([*layer_norm(), Node("Neg", ["d"], ["z"])], ("y", "z")),
    "gelu with another factor": (tanh_gelu(cubic="half"), ("y",)),
    "gelu whose tanh is an output": (tanh_gelu(), ("y", "t")),
    "gelu whose cube is an output": (tanh_gelu(), ("y", "c")),
    "a gate by another value": ([Node("Neg", ["x"], ["o"]), Node("Sigmoid", ["x"], ["s"]), Node("Mul", ["o", "s"], ["y"])], ("y",)),
    "silu whose gate is an output": ([Node("Sigmoid", ["x"], ["s"]), Node("Mul", ["x", "s"], ["y"])], ("y", "s")),
}


@pytest.mark.parametrize("case", ALONE)
def test_what_is_nearly_a_pattern_is_left_alone(case):
    nodes, outputs = ALONE[case]
    assert fuse(model_of(nodes, outputs).graph) == 0


def trained():
    """The losses and parameters of a network with all three, and the kernels that ran."""
    generator = np.random.default_rng(2)
    weights = {"w": (6, 6), "scale": (6,), "bias": (6,), "out": (6, 3)}
    nodes = [Node("MatMul", ["x0", "w"], ["x"])]
    for index, part in enumerate((layer_norm(), tanh_gelu(), FOUND["silu"][0])):
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
    losses, how = [], {"loss": LossType.CrossEntropyLoss, "optimizer": OptimType.AdamW, "requires_grad": list(weights), "learning_rate": 0.01}
    with TrainingSession.from_model(model, **how) as session:
        for _ in range(4):
            with session.profile() as profile:
                losses.append(float(session.train_step(generator.standard_normal((5, 6)).astype(np.float32), generator.integers(0, 3, 5))[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
        return losses, session.to_buffer(), {step.kernel for step in profile.steps}


def test_a_network_trains_the_same_with_the_patterns_fused(monkeypatch):
    losses, parameters, kernels = trained()
    monkeypatch.setattr("ortrain.training.session.fused_training_model", lambda model: model)
    expected, plain, single = trained()
    assert {"layer_norm_grad", "fast_gelu_grad", "quick_gelu_grad"} <= kernels and not {"layer_norm", "fast_gelu", "quick_gelu"} & single
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(parameters, plain, atol=3e-4)
