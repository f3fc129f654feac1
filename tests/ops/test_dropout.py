"""Masks of Dropout: rate, scaling, and dependence on seed and node."""

import numpy as np
import onnx
import pytest
from onnx import helper

import ortrain.backend
from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain.errors import ShapeInferenceError


def run_dropout(n, ratio, seed=1, stream=7, workers=1, dtype="float32"):
    """Return (y, mask) of n ones."""
    y, mask = np.zeros(n, dtype), np.zeros(n, bool)
    inputs = [np.ones(n, dtype), np.array(ratio, np.float32), np.array(True)]
    assert call_kernel(kernels()["dropout", dtype], inputs, [y, mask], (stream,), (), 0, EngineHandle(workers, seed)) == 0
    return y, mask


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_elements_are_kept_at_the_given_rate_and_scaled(ratio):
    y, mask = run_dropout(200_000, ratio)
    assert mask.mean() == pytest.approx(1 - ratio, abs=0.005)
    np.testing.assert_allclose(y, np.where(mask, np.float32(1 / (1 - ratio)), 0), rtol=1e-6)


def test_neighbors_and_streams_are_independent():
    masks = [run_dropout(200_000, 0.5, seed, stream)[1] * 2.0 - 1 for seed, stream in [(1, 7), (1, 8), (2, 7)]]
    pairs = [(a, b) for i, a in enumerate(masks) for b in masks[:i]] + [(masks[0][lag:], masks[0][:-lag]) for lag in (1, 2, 16, 256, 32768)]
    assert max(abs(float((a * b).mean())) for a, b in pairs) < 0.012


def test_a_mask_depends_on_the_seed_and_not_on_threads_dtype_or_length():
    mask = run_dropout(100_001, 0.3)[1]
    for other in (run_dropout(100_001, 0.3, workers=4), run_dropout(100_001, 0.3, dtype="float64")):
        np.testing.assert_array_equal(other[1], mask)
    np.testing.assert_array_equal(run_dropout(1000, 0.3)[1], mask[:1000])
    assert (run_dropout(100_001, 0.3, seed=2)[1] != mask).any()


def test_a_ratio_of_one_drops_everything():
    y, _ = run_dropout(1000, 1.0)
    assert not y.any()


def make_model(nodes, outputs, opset=17) -> onnx.ModelProto:
    ratio, mode = (onnx.numpy_helper.from_array(np.array(value), name) for value, name in ((np.float32(0.4), "ratio"), (True, "mode")))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 50])],
                              [onnx.ValueInfoProto(name=name) for name in outputs], [ratio, mode])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=8)


def test_bitmask_dropout_grad_reads_the_mask_of_bitmask_dropout():
    """BitmaskDropoutGrad of ones equals BitmaskDropout of ones."""
    nodes = [helper.make_node("BitmaskDropout", ["x", "ratio", "mode"], ["y", "bits"], domain="com.microsoft"),
             helper.make_node("BitmaskDropoutGrad", ["x", "bits", "ratio", "mode"], ["dx"], domain="com.microsoft")]
    y, bits, dx = ortrain.backend.run_model(make_model(nodes, ["y", "bits", "dx"]), [np.ones((7, 50), np.float32)])
    np.testing.assert_array_equal(y, dx)
    assert (bits.dtype, bits.shape) == (np.uint32, (11,)) and 0.3 < (y == 0).mean() < 0.5


def test_bias_softmax_dropout_also_returns_the_softmax():
    nodes = [helper.make_node("BiasSoftmaxDropout", ["x", "x", "ratio"], ["y", "mask", "s"], domain="com.microsoft", is_inner_broadcast=1)]
    y, mask, s = ortrain.backend.run_model(make_model(nodes, ["y", "mask", "s"]), [np.ones((7, 50), np.float32)])
    np.testing.assert_allclose(s, 0.02, rtol=1e-6)
    np.testing.assert_allclose(y, np.where(mask, s / np.float32(0.6), 0), rtol=1e-6)
    assert 0.3 < (~mask).mean() < 0.5


@pytest.mark.parametrize(("op_type", "inputs"), [("BitmaskDropout", ["x"]), ("BiasSoftmaxDropout", ["x", "x", "ratio"])])
def test_opsets_without_a_ratio_input_are_refused(op_type, inputs):
    node = helper.make_node(op_type, inputs, ["y"], domain="com.microsoft")
    with pytest.raises(ShapeInferenceError, match="opset 12 or newer"):
        ortrain.backend.run_model(make_model([node], ["y"], opset=11), [np.ones((7, 50), np.float32)])
