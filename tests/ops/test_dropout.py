"""Dropout's masks: kept at the right rate, scaled, the same for a seed, others for other seeds and nodes."""

import numpy as np
import onnx
import pytest
from onnx import helper

import ortrain.backend
from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain.errors import ShapeInferenceError


def drop(n, ratio, seed=1, stream=7, workers=1, dtype="float32"):
    """(y, mask) of ones."""
    y, mask = np.zeros(n, dtype), np.zeros(n, bool)
    inputs = [np.ones(n, dtype), np.array(ratio, np.float32), np.array(True)]
    assert call_kernel(kernels()["dropout", dtype], inputs, [y, mask], (stream,), (), 0, EngineHandle(workers, seed)) == 0
    return y, mask


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_elements_are_kept_at_the_given_rate_and_scaled(ratio):
    y, mask = drop(200_000, ratio)
    assert mask.mean() == pytest.approx(1 - ratio, abs=0.005)
    np.testing.assert_allclose(y, np.where(mask, np.float32(1 / (1 - ratio)), 0), rtol=1e-6)


def test_neighbors_and_streams_are_independent():
    masks = [drop(200_000, 0.5, seed, stream)[1] * 2.0 - 1 for seed, stream in [(1, 7), (1, 8), (2, 7)]]
    pairs = [(a, b) for i, a in enumerate(masks) for b in masks[:i]] + [(masks[0][lag:], masks[0][:-lag]) for lag in (1, 2, 16, 256, 32768)]
    assert max(abs(float((a * b).mean())) for a, b in pairs) < 0.012


def test_a_mask_depends_on_the_seed_and_not_on_threads_dtype_or_length():
    mask = drop(100_001, 0.3)[1]
    for other in (drop(100_001, 0.3, workers=4), drop(100_001, 0.3, dtype="float64")):
        np.testing.assert_array_equal(other[1], mask)
    np.testing.assert_array_equal(drop(1000, 0.3)[1], mask[:1000])
    assert (drop(100_001, 0.3, seed=2)[1] != mask).any()


def test_a_ratio_of_one_drops_everything():
    y, _ = drop(1000, 1.0)
    assert not y.any()


def model_of(nodes, outputs, opset=17) -> onnx.ModelProto:
    ratio, mode = (onnx.numpy_helper.from_array(np.array(value), name) for value, name in ((np.float32(0.4), "ratio"), (True, "mode")))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 50])],
                              [onnx.ValueInfoProto(name=name) for name in outputs], [ratio, mode])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=8)


def test_a_mask_of_bits_brings_back_what_was_dropped():
    """BitmaskDropoutGrad of ones is zero where BitmaskDropout of ones is."""
    nodes = [helper.make_node("BitmaskDropout", ["x", "ratio", "mode"], ["y", "bits"], domain="com.microsoft"),
             helper.make_node("BitmaskDropoutGrad", ["x", "bits", "ratio", "mode"], ["dx"], domain="com.microsoft")]
    y, bits, dx = ortrain.backend.run_model(model_of(nodes, ["y", "bits", "dx"]), [np.ones((7, 50), np.float32)])
    np.testing.assert_array_equal(y, dx)
    assert (bits.dtype, bits.shape) == (np.uint32, (11,)) and 0.3 < (y == 0).mean() < 0.5


def test_a_softmax_that_is_dropped_is_given_whole_too():
    nodes = [helper.make_node("BiasSoftmaxDropout", ["x", "x", "ratio"], ["y", "mask", "s"], domain="com.microsoft", is_inner_broadcast=1)]
    y, mask, s = ortrain.backend.run_model(model_of(nodes, ["y", "mask", "s"]), [np.ones((7, 50), np.float32)])
    np.testing.assert_allclose(s, 0.02, rtol=1e-6)
    np.testing.assert_allclose(y, np.where(mask, s / np.float32(0.6), 0), rtol=1e-6)
    assert 0.3 < (~mask).mean() < 0.5


@pytest.mark.parametrize(("op_type", "inputs"), [("BitmaskDropout", ["x"]), ("BiasSoftmaxDropout", ["x", "x", "ratio"])])
def test_models_before_dropout_took_a_ratio_as_an_input_are_refused(op_type, inputs):
    node = helper.make_node(op_type, inputs, ["y"], domain="com.microsoft")
    with pytest.raises(ShapeInferenceError, match="opset 12 or newer"):
        ortrain.backend.run_model(model_of([node], ["y"], opset=11), [np.ones((7, 50), np.float32)])
