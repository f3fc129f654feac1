"""The gradient of a maximum or minimum is one kernel, with the shares that the definition gives to equal elements."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType

CASES = {
    "maxima of the last axis": ("ReduceMax", (2,), True), "minima of an axis between others": ("ReduceMin", (1,), True),
    "maxima of two adjacent axes": ("ReduceMax", (1, 2), True), "maxima of axes around another": ("ReduceMax", (0, 2), False),
}


def kernels_and_gradient(op_type, axes, x):
    """Return the kernels of a train step on the sum of squares of the extremes of a parameter of x's value, and its gradient."""
    nodes = [helper.make_node(op_type, ["w"], ["extreme"], axes=list(axes), keepdims=0), helper.make_node("ReduceSum", ["extreme"], ["total"], keepdims=0),
             helper.make_node("Mul", ["total", "x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [4])],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [4])], [numpy_helper.from_array(x, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD, requires_grad=["w"]) as session:
        session.learning_rate = 1.0
        session.train_step(np.full(4, 1.0), np.full(4, x_total(op_type, axes, x) - 0.5))
        session.optimizer_step()
        return [step.call.kernel for step in session._train_runner.last.plan.steps], x - session.state.array("w")


def x_total(op_type, axes, x):
    return (np.max if op_type == "ReduceMax" else np.min)(x, axes).sum()


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_an_extreme_is_shared_by_the_elements_that_equal_it(name):
    op_type, axes, is_fused = CASES[name]
    x = np.random.default_rng(5).integers(0, 3, (3, 4, 5)).astype(float)
    kernels, gradient = kernels_and_gradient(op_type, axes, x)
    mask = x == (np.max if op_type == "ReduceMax" else np.min)(x, axes, keepdims=True)
    np.testing.assert_allclose(gradient, mask / mask.sum(axes, keepdims=True), rtol=1e-12)      # the derivative of (total - label)² by the total is 1
    assert ("extreme_shares" in kernels) == is_fused
    assert ("equal" in kernels) != is_fused
