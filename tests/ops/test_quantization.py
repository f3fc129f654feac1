"""Training of quantized models: scales are trained, and gradients pass quantization with the straight-through estimator."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain.artifacts import LossType, OptimType


def test_the_gradient_of_a_scale_is_summed_over_the_weights_that_it_scales():
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
        centered = weight.astype(np.float32) - zero[:, None]
        y = x @ (centered * scale[:, None]).T
        expected = ((2 * y / y.size).T @ x * centered).sum(1)
        np.testing.assert_allclose(session.state.gradients["scale"], expected, rtol=1e-5)


def test_gradients_pass_quantize_and_dequantize_where_nothing_is_clipped():
    rng = np.random.default_rng(3)
    weight, x, target = rng.uniform(-1, 1, (4, 3)).astype(np.float32), rng.standard_normal((5, 3)).astype(np.float32), np.zeros((5, 4), np.float32)
    weight[0] = [50, -50, 0.3]                            # clipped, clipped, within range
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
        levels = np.rint(ratio) + zero[:, None]
        in_range = (levels >= -128) & (levels <= 127)
        assert not in_range[0, :2].any() and in_range[0, 2]
        values = np.clip(levels, -128, 127) - zero[:, None]
        y = x @ (values * scale[:, None]).T
        assert abs(loss - (y**2).mean()) < 1e-4 * loss
        dw = (2 * y / y.size).T @ x
        np.testing.assert_allclose(session.state.gradients["weight"], np.where(in_range, dw, 0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(session.state.gradients["scale"], (dw * (values - np.where(in_range, ratio, 0))).sum(1), rtol=1e-3, atol=1e-4)
        session.optimizer_step()
        assert session.eval_step(x, target)[0] != loss


def dynamic_model(fused: bool, w, w_scale, w_zero):
    """Return a model of y = quantized(x u + b) w with dynamic quantization, and its weights.

    fused: whether it has the form of ONNX Runtime's optimizer, DynamicQuantizeMatMul, rather than that of its quantizer."""
    product = [helper.make_node("DynamicQuantizeMatMul", ["h", "w", "w_scale", "w_zero"], ["y"], domain="com.microsoft")] if fused else [
        helper.make_node("DynamicQuantizeLinear", ["h"], ["q", "s", "z"]), helper.make_node("MatMulInteger", ["q", "w", "z", "w_zero"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT), helper.make_node("Mul", ["s", "w_scale"], ["both"]),
        helper.make_node("Mul", ["f", "both"], ["y"])]
    nodes = [helper.make_node("Gemm", ["x", "u", "b"], ["h"]), *product]
    rng = np.random.default_rng(9)
    u, b = rng.standard_normal((3, 6)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    weights = {"u": u, "b": b, "w": w, "w_scale": w_scale, "w_zero": w_zero}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
                              [numpy_helper.from_array(array, name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=9), weights


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_pass_a_dynamically_quantized_matmul(fused):
    rng = np.random.default_rng(4)
    w, w_scale, w_zero = rng.integers(-127, 128, (6, 4)).astype(np.int8), rng.uniform(0.01, 0.02, 4).astype(np.float32), np.zeros(4, np.int8)
    model, weights = dynamic_model(fused, w, w_scale, w_zero)
    x, target = rng.standard_normal((5, 3)).astype(np.float32), np.zeros((5, 4), np.float32)
    with ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD) as session:
        assert set(session.state.trainable) == {"u", "b", "w_scale"}
        session.train_step(x, target)
        h = x @ weights["u"] + weights["b"]
        low, high = min(0, h.min()), max(0, h.max())
        step = (high - low) / 255
        zero = np.rint(-low / step)
        y = (np.clip(np.rint(h / step) + zero, 0, 255) - zero) @ w * step * w_scale
        dh = 2 * y / y.size @ (w * w_scale).T
        dequantized = (np.clip(np.rint(h / step) + zero, 0, 255) - zero) * step
        for name, expected in (("u", x.T @ dh), ("b", dh.sum(0)), ("w_scale", (2 * y / y.size * (dequantized @ w)).sum(0))):
            np.testing.assert_allclose(session.state.gradients[name], expected, rtol=1e-4, atol=1e-5)


def test_gradients_pass_a_dynamically_quantized_convolution():
    rng = np.random.default_rng(5)
    w, filters = rng.integers(-60, 61, (2, 3, 3, 3)).astype(np.int8), rng.standard_normal((3, 1, 1, 1)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "filters"], ["h"]), helper.make_node("DynamicQuantizeLinear", ["h"], ["q", "s", "z"]),
             helper.make_node("ConvInteger", ["q", "w", "z"], ["i"], auto_pad="SAME_UPPER"), helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
             helper.make_node("Mul", ["s", "w_scale"], ["both"]), helper.make_node("Mul", ["f", "both"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1, 4, 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2, 4, 4])],
                              [numpy_helper.from_array(array, name) for name, array in (("filters", filters), ("w", w), ("w_scale", np.float32([0.01])))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x, target = rng.standard_normal((2, 1, 4, 4)).astype(np.float32), np.zeros((2, 2, 4, 4), np.float32)
    with ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD) as session:
        y = session.predict(x)[0]
        session.train_step(x, target)
        dy = np.pad(2 * y / y.size, ((0, 0), (0, 0), (1, 1), (1, 1)))
        dh = sum(np.einsum("nkhw,kc->nchw", dy[:, :, 2 - i : 6 - i, 2 - j : 6 - j], w[:, :, i, j] * np.float32(0.01)) for i in range(3) for j in range(3))
        np.testing.assert_allclose(session.state.gradients["filters"].reshape(-1), (dh * x).sum((0, 2, 3)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("direction, directions", [("forward", 1), ("bidirectional", 2)])
def test_the_gradient_of_a_quantized_lstm_is_close_to_that_of_the_float_lstm(direction, directions):
    rng = np.random.default_rng(6)
    steps, features, size = 7, 5, 4
    w, r = (rng.integers(-60, 61, (directions, rows, 4 * size)).astype(np.int8) for rows in (features, size))
    b, u, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((directions, 8 * size), (features, features), (steps, 1, features)))
    scale, zero = np.full(directions, 0.01, np.float32), np.zeros(directions, np.int8)
    quantized = {"w": w, "r": r, "b": b, "scale": scale, "zero": zero, "u": u}
    floats = {"w": (w * scale[0]).transpose(0, 2, 1), "r": (r * scale[0]).transpose(0, 2, 1), "b": b, "u": u}
    target = np.zeros((steps, directions, 1, size), np.float32)
    gradients = []
    for weights, node in (
        (quantized, helper.make_node("DynamicQuantizeLSTM", ["h", "w", "r", "b", "", "", "", "", "scale", "zero", "scale", "zero"], ["y"],
                                     domain="com.microsoft", hidden_size=size, direction=direction)),
        (floats, helper.make_node("LSTM", ["h", "w", "r", "b"], ["y"], hidden_size=size, direction=direction)),
    ):
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "u"], ["h"]), node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, target.shape)],
                                  [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=9)
        with ortrain.TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.SGD) as session:
            session.train_step(x, target)
            gradients.append({name: session.state.gradients[name].copy() for name in ("u", "b")})
    for name in ("u", "b"):
        actual, expected = (found[name] for found in gradients)
        assert np.linalg.norm(actual - expected) < 0.02 * np.linalg.norm(expected)
