"""Epilogue fusion of dense layers and losses: what is fused, what is not, and that training results stay the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.ir import Node, TensorType
from ortrain.ops.registry.record import MICROSOFT
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan import rewriting
from ortrain.plan.epilogue_fusion.dense import fuse_dense

ROWS, DEPTH, COLUMNS = 6, 8, 5
SHAPES = {"x": (ROWS, DEPTH), "deep": (2, 3, DEPTH), "w": (DEPTH, COLUMNS), "wt": (COLUMNS, DEPTH), "b": (COLUMNS,), "one": (1,), "full": (ROWS, COLUMNS),
          "stack": (2, DEPTH, COLUMNS)}


def fused_nodes(*nodes, outputs=("y",), **values):
    """Return the nodes after fusion."""
    types = {name: TensorType("float32", shape) for name, shape in SHAPES.items()} | {"t": TensorType("int64", (ROWS,))}
    inference = ShapeInference({"": 17, MICROSOFT: 1}, types, {name: np.asarray(value, np.float32) for name, value in values.items()})
    for node in nodes:
        inference.visit(node)
    return fuse_dense(nodes, inference, outputs)


def matmul(x="x", w="w", out="p", kind="MatMul", extra=(), **attributes):
    return Node(kind, [x, w, *extra], [out], attributes=attributes)


def relu(value):
    return Node("Relu", [value], ["y"])


def add(first, second, out="y"):
    return Node("Add", [first, second], [out])


@pytest.mark.parametrize("nodes, inputs, attributes", [
    ([matmul(), add("p", "b")], ["x", "w", "b"], (0, 0)),
    ([matmul(), add("b", "p")], ["x", "w", "b"], (0, 0)),
    ([matmul("deep"), add("b", "p", "s"), relu("s")], ["deep", "w", "b"], (0, 1)),
    ([matmul(), relu("p")], ["x", "w", ""], (0, 1)),
    ([matmul(kind="Gemm", w="wt", transB=1, extra=["b"]), relu("p")], ["x", "wt", "b"], (1, 1)),
    ([matmul(kind="Gemm"), add("p", "b")], ["x", "w", "b"], (0, 0)),
])
def test_bias_and_relu_are_fused_into_a_matmul(nodes, inputs, attributes):
    node, = fused_nodes(*nodes)
    assert node.op_type == "Dense" and node.inputs == inputs and node.outputs == ["y"] and (node.attributes["transB"], node.attributes["relu"]) == attributes


@pytest.mark.parametrize("nodes, outputs", [
    ([matmul(), add("p", "full")], ["y"]),
    ([matmul(), add("p", "one")], ["y"]),
    ([matmul(), add("p", "b")], ["y", "p"]),
    ([matmul(), relu("p"), Node("Neg", ["p"], ["z"])], ["y", "z"]),
    ([matmul("deep", "stack"), add("p", "b")], ["y"]),
    ([matmul(kind="Gemm", extra=["b"], alpha=0.5), relu("p")], ["y"]),
    ([matmul(kind="Gemm", extra=["full"]), relu("p")], ["y"]),
    ([matmul(out="y", kind="Gemm", extra=["b"])], ["y"]),
    ([matmul(), add("p", "p")], ["y"]),
])
def test_other_nodes_are_not_fused(nodes, outputs):
    assert fused_nodes(*nodes, outputs=outputs) == nodes


def loss(reduction="mean", dloss="ones", weight=()):
    return [Node("SoftmaxCrossEntropyLoss", ["full", "t", *weight], ["l", "logs"], attributes={"reduction": reduction}),
            Node("SoftmaxCrossEntropyLossGrad", [dloss, "logs", "t", *weight], ["y"], domain=MICROSOFT, attributes={"reduction": reduction})]


@pytest.mark.parametrize("weight", [[], ["b"]])
def test_a_loss_is_fused_with_its_gradient(weight):
    node, = fused_nodes(*loss("sum", weight=weight), outputs=["l", "y"], ones=2.0)
    assert (node.op_type, node.inputs, node.outputs, node.attributes["dloss"]) == ("LossAndGradient", ["full", "t", *weight], ["l", "y"], 2.0)


@pytest.mark.parametrize("nodes, outputs", [(loss(), ["l", "y", "logs"]), (loss(dloss="one"), ["l", "y"]), (loss("none", "ones"), ["l", "y"])])
def test_a_loss_is_not_fused_when_its_intermediate_values_are_needed(nodes, outputs):
    assert fused_nodes(*nodes, outputs=outputs, ones=np.ones(ROWS if nodes[0].attributes["reduction"] == "none" else ())) == nodes


def test_a_loss_is_fused_only_with_its_own_gradient():
    """Not fused: a Gather that reads the labels, and gradients with another reduction or ignore_index."""
    forward, backward = loss()
    gathered = [Node("Gather", ["full", "t"], ["logs"]), backward]
    assert fused_nodes(*gathered, ones=1.0) == gathered
    for changed in ({"reduction": "sum"}, {"reduction": "mean", "ignore_index": 2}):
        nodes = [forward, Node("SoftmaxCrossEntropyLossGrad", backward.inputs, ["y"], domain=MICROSOFT, attributes=changed)]
        assert fused_nodes(*nodes, outputs=("l", "y"), ones=1.0) == nodes


def network():
    """Return a model x [n, 2, 8] -> scores [2 n, 3] of MatMul, Add, Gemm and Relu, and the names of its weights."""
    rng = np.random.default_rng(0)
    weights = {"w1": (8, 24), "b1": (24,), "w2": (24, 16), "w3": (3, 16), "b3": (3,)}
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["p1"]), helper.make_node("Add", ["b1", "p1"], ["s1"]), helper.make_node("Relu", ["s1"], ["a1"]),
             helper.make_node("MatMul", ["a1", "w2"], ["p2"]), helper.make_node("Relu", ["p2"], ["a2"]),
             helper.make_node("Flatten", ["a2"], ["flat"], axis=2), helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"], transB=1)]
    initializers = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items()]
    graph = helper.make_graph(nodes, "network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 8])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 3])], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model, list(weights)


def trained():
    """Train for 5 steps; return losses, parameters and the names of the kernels."""
    model, weights = network()
    rng, losses = np.random.default_rng(1), []
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=weights, learning_rate=0.01) as session:
        for _ in range(5):
            with session.profile() as profile:
                losses.append(float(session.train_step(rng.standard_normal((7, 2, 8)).astype(np.float32), rng.integers(0, 3, 14))[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
        return losses, session.to_buffer(), {step.kernel for step in profile.steps}


def test_a_network_trains_equally_with_fewer_kernels(monkeypatch):
    losses, parameters, kernels = trained()
    monkeypatch.setattr(rewriting, "fuse_dense", lambda nodes, inference, wanted: nodes)
    expected, unfused, unfused_kernels = trained()
    separate = {"add", "relu", "softmax_cross_entropy_loss", "softmax_cross_entropy_loss_grad"}
    assert separate <= unfused_kernels and not separate & kernels and "loss_and_gradient" in kernels
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(parameters, unfused, atol=1e-4)
