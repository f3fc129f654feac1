"""Scales of weights that are stored as small integers can be trained."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain.artifacts import LossType, OptimType


def test_the_gradient_of_a_scale_is_the_sum_over_what_it_scales():
    weight = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    scale, zero = np.array([0.5, 0.25, 2.0, 1.0], np.float32), np.array([1, 0, -1, 2], np.int8)
    nodes = [helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], axis=0), helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
                              [numpy_helper.from_array(array, name) for name, array in (("q", weight), ("scale", scale), ("zero", zero))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x, target = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)[0], np.zeros((5, 4), np.float32)
    with ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD) as session:
        session.train_step(x, target)
        shifted = weight.astype(np.float32) - zero[:, None]
        y = x @ (shifted * scale[:, None]).T
        wanted = ((2 * y / y.size).T @ x * shifted).sum(1)
        np.testing.assert_allclose(session.state.gradients["scale"], wanted, rtol=1e-5)


def test_training_goes_straight_through_a_pair_of_quantise_and_dequantise():
    rng = np.random.default_rng(3)
    weight, x, target = rng.uniform(-1, 1, (4, 3)).astype(np.float32), rng.standard_normal((5, 3)).astype(np.float32), np.zeros((5, 4), np.float32)
    weight[0] = [50, -50, 0.3]                            # cut off, cut off, inside
    scale, zero = np.array([0.3, 0.01, 0.02, 0.03], np.float32), np.array([0, 1, 0, -1], np.int8)
    nodes = [helper.make_node("QuantizeLinear", ["weight", "scale", "zero"], ["q"], axis=0),
             helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], axis=0),
             helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
                              [numpy_helper.from_array(array, name) for name, array in (("weight", weight), ("scale", scale), ("zero", zero))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD) as session:
        assert set(session.state.trainable) == {"weight", "scale"}
        loss = float(session.train_step(x, target)[0])
        ratio = weight / scale[:, None]
        stored = np.rint(ratio) + zero[:, None]
        inside = (stored >= -128) & (stored <= 127)
        assert not inside[0, :2].any() and inside[0, 2]
        values = np.clip(stored, -128, 127) - zero[:, None]
        y = x @ (values * scale[:, None]).T
        assert abs(loss - (y**2).mean()) < 1e-4 * loss
        dw = (2 * y / y.size).T @ x
        np.testing.assert_allclose(session.state.gradients["weight"], np.where(inside, dw, 0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(session.state.gradients["scale"], (dw * (values - np.where(inside, ratio, 0))).sum(1), rtol=1e-3, atol=1e-4)
        session.optimizer_step()
        assert session.eval_step(x, target)[0] != loss
