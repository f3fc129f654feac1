"""Transposes and factors beside batched matrix multiplications become a part of them, with the same values and gradients."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType

SHAPE, SIZE = (2, 4, 3), 3


def node(op_type, inputs, output, **attributes):
    return helper.make_node(op_type, inputs, [output], **attributes)


def swap(x):
    return np.swapaxes(x, 1, 2)


CASES = {
    "a transposed operand and a divided result": (
        [node("Transpose", ["k"], "t", perm=[0, 2, 1]), node("MatMul", ["q", "t"], "p"), node("Div", ["p", "two"], "s")],
        lambda q, k: q @ swap(k) / 2),
    "a multiplied operand, transposed": (
        [node("Mul", ["two", "k"], "m"), node("Transpose", ["m"], "t", perm=[0, 2, 1]), node("MatMul", ["q", "t"], "s")],
        lambda q, k: q @ swap(2 * k)),
    "both operands from one transpose": (
        [node("Transpose", ["k"], "t", perm=[0, 2, 1]), node("MatMul", ["q", "t"], "p"), node("MatMul", ["p", "k"], "u"), node("MatMul", ["u", "t"], "s")],
        lambda q, k: q @ swap(k) @ k @ swap(k)),
    "a transposed and multiplied result": (
        [node("Transpose", ["q"], "t", perm=[0, 2, 1]), node("MatMul", ["k", "t"], "p"), node("Transpose", ["p"], "r", perm=[0, 2, 1]),
         node("Mul", ["r", "two"], "s")],
        lambda q, k: 2 * swap(k @ swap(q))),
    "an operand times itself": (
        [node("Mul", ["q", "two"], "m"), node("Add", ["m", "k"], "a"), node("Transpose", ["a"], "t", perm=[0, 2, 1]), node("MatMul", ["a", "t"], "s")],
        lambda q, k: (2 * q + k) @ swap(2 * q + k)),
}


def model_of(body):
    """Return (model from x to the mean over rows of "s" [2, 4, 4], computed from q = x · wq and k = x · wk; its weights)."""
    rng = np.random.default_rng(3)
    weights = {"wq": rng.standard_normal((SIZE, SIZE)), "wk": rng.standard_normal((SIZE, SIZE))}
    nodes = [node("MatMul", ["x", "wq"], "q"), node("MatMul", ["x", "wk"], "k"), *body, node("Tanh", ["s"], "h"),
             node("ReduceMean", ["h"], "y", axes=[1], keepdims=0)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, SHAPE)],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [2, 4])],
                              [numpy_helper.from_array(array, name) for name, array in (weights | {"two": np.array(2.0)}).items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), weights


@pytest.mark.parametrize("name", CASES)
def test_a_batched_product_takes_transposes_and_factors_and_keeps_its_gradient(name):
    body, scores_of = CASES[name]
    model, weights = model_of(body)
    rng = np.random.default_rng(4)
    x, labels = rng.standard_normal(SHAPE), np.array([1, 3])

    def loss_of(values):
        y = np.tanh(scores_of(x @ values["wq"], x @ values["wk"])).mean(1)
        return float(np.mean(np.log(np.exp(y).sum(1)) - y[np.arange(2), labels]))

    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=list(weights)) as session:
        session.learning_rate = 1.0
        assert session.train_step(x, labels)[0] == pytest.approx(loss_of(weights), rel=1e-12)
        session.optimizer_step()
        gradients = {key: weights[key] - session.state.array(key) for key in weights}
        operators = [step.node.op_type for step in session._train_runner.last.plan.steps]
    assert "FusedMatMul" in operators and "Div" not in operators
    assert operators.count("Transpose") == (1 if name == "both operands from one transpose" else 0)         # of the sum of two gradients
    for key in weights:
        direction, step = rng.standard_normal(weights[key].shape), 1e-6
        moved = [loss_of(weights | {key: weights[key] + sign * step * direction}) for sign in (1, -1)]
        assert float(np.vdot(gradients[key], direction)) == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-6, abs=1e-9)


def test_a_transpose_that_other_operators_read_stays():
    body = [node("Transpose", ["k"], "t", perm=[0, 2, 1]), node("MatMul", ["q", "t"], "p"), node("ReduceSum", ["t", "axes"], "r", keepdims=1),
            node("Add", ["p", "r"], "s")]
    model, _ = model_of(body)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss) as session:
        session.eval_step(np.ones(SHAPE), np.array([0, 1]))
        assert "Transpose" in [step.node.op_type for step in session._eval_runner.last.plan.steps]
