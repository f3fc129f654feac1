"""Subnormal numbers: matrix multiplications, gradients and optimizers flush them to zero on every thread, other kernels keep them."""

import platform

import numpy as np
import pytest
from onnx import helper

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import flushes_subnormals, kernels
from ortrain._core.optimizer_update import BoundKernel, OptimizerUpdate, Progress
from ortrain.runtime.inference_session import InferenceSession
from ortrain.runtime.options import SessionOptions

SUBNORMAL = np.float32(1e-39)
pytestmark = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"), reason="x86 and ARM have this mode")


def outputs(op_types, x, other, threads=1):
    """Return the outputs of one node per operator type, each computed from x and other."""
    nodes = [helper.make_node(op_type, ["x", "other"], [op_type]) for op_type in op_types]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(name, 1, array.shape) for name, array in (("x", x), ("other", other))],
                              [helper.make_tensor_value_info(op_type, 1, None) for op_type in op_types])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    session = InferenceSession(model, SessionOptions(intra_op_num_threads=threads))
    return session.run(None, {"x": x, "other": other})


def test_matmul_flushes_subnormals_and_elementwise_operators_keep_them():
    x, other = np.full((4, 4), SUBNORMAL), np.eye(4, dtype=np.float32)
    before, product, after = outputs(["Mul", "MatMul", "Sub"], x, other)
    np.testing.assert_array_equal(before, x * other)
    np.testing.assert_array_equal(product, 0)
    np.testing.assert_array_equal(after, x - other)


def test_the_calling_thread_keeps_its_float_mode():
    outputs(["MatMul"], np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
    assert SUBNORMAL * np.float32(1) != 0
    assert np.full(40, SUBNORMAL).sum() != 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_worker_threads_adopt_the_float_mode_of_the_caller(threads):
    x, other = np.full((400, 400), SUBNORMAL), np.full((400, 400), 2, np.float32)
    for _ in range(3):
        before, product, kept = outputs(["Mul", "MatMul", "Div"], x, other, threads)
        np.testing.assert_array_equal(before, x * 2)
        np.testing.assert_array_equal(product, 0)
        np.testing.assert_array_equal(kept, x / 2)


def test_gradient_kernels_flush_subnormals():
    assert all(flushes_subnormals(kernel) for kernel in ("conv_grad_depthwise", "gelu_grad", "loss_and_gradient", "gemm"))
    assert not any(flushes_subnormals(kernel) for kernel in ("log", "div", "softmax", "cast"))


def test_decayed_optimizer_moments_become_zero():
    weights, gradients, first, second = (np.full(40_000, value, np.float32) for value in (1, 0, 1.18e-38, 1.18e-38))
    progress = Progress()
    call = BoundKernel(EngineHandle(2), kernels()["adamw", "float32"], [weights, gradients, progress.rows[0], None, first, second], (), (1, 0),
                       (0.9, 0.99, 1e-8, 0.0))
    OptimizerUpdate([call], progress).run(0.001, 1000)
    np.testing.assert_array_equal(first, 0)
    np.testing.assert_array_equal(second, 0)
    np.testing.assert_array_equal(weights, 1)
