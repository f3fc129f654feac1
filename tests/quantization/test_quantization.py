"""A prepared model computes with int8's rounding, trains through it, and converts to int8 weights with the same results."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import InferenceSession, TrainingSession, quantization
from ortrain.artifacts import LossType, OptimType
from ortrain.errors import InvalidArgumentError
from ortrain.formats.onnx_files import to_proto
from ortrain.quantization.conversion import quantize
from ortrain.quantization.preparation import weight_scales

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((64, 2, 6, 6)).astype(np.float32)
LABELS = (IMAGES.mean(axis=(2, 3)) @ np.array([[1, -1, 0.5], [-1, 0.3, 1]])).argmax(1)


def network(opset: int = 17) -> onnx.ModelProto:
    """image [n, 2, 6, 6] -> scores [n, 3] through a convolution, a MatMul and a Gemm with transB."""
    rng = np.random.default_rng(4)
    weights = {"conv.weight": rng.standard_normal((4, 2, 3, 3)) * 0.3, "conv.bias": rng.standard_normal(4) * 0.1,
               "hidden.weight": rng.standard_normal((144, 8)) * 0.1, "head.weight": rng.standard_normal((3, 8)) * 0.4, "head.bias": np.zeros(3)}
    nodes = [helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"]),
             helper.make_node("Flatten", ["r"], ["f"]), helper.make_node("MatMul", ["f", "hidden.weight"], ["h"]), helper.make_node("Relu", ["h"], ["hr"]),
             helper.make_node("Gemm", ["hr", "head.weight", "head.bias"], ["scores"], transB=1)]
    graph = helper.make_graph(nodes, "network", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 2, 6, 6])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
                              [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def outputs(model) -> np.ndarray:
    proto = model if isinstance(model, onnx.ModelProto) else to_proto(model)
    return InferenceSession(proto.SerializeToString()).run(None, {"image": IMAGES})[0]


def trained(model, steps: int) -> TrainingSession:
    session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, learning_rate=0.02,
                                         requires_grad=["conv.weight", "conv.bias", "hidden.weight", "head.weight", "head.bias"])
    for _ in range(steps):
        session.train_step(IMAGES, LABELS)
        session.optimizer_step()
        session.lazy_reset_grad()
    return session


def test_a_prepared_model_differs_from_the_float_model_by_rounding_alone():
    difference = np.abs(outputs(quantization.prepare(network(), [IMAGES])) - outputs(network()))
    assert 0 < difference.max() < 0.05


def test_training_goes_through_the_rounding_and_lowers_the_loss():
    prepared = quantization.prepare(network(), [IMAGES])
    losses = [float(trained(prepared, steps).eval_step(IMAGES, LABELS)[0]) for steps in (0, 30)]
    assert losses[1] < 0.6 * losses[0]


def test_a_converted_model_has_int8_weights_and_the_outputs_of_the_prepared_one():
    exported = trained(quantization.prepare(network(), [IMAGES]), 10).inference_model()
    converted = quantization.convert(exported)
    kinds = {name: array.dtype.name for name, array in converted.graph.initializers.items() if array.size > 8}
    assert set(kinds.values()) == {"int8"} and len(kinds) == 3
    assert {array.dtype.name for name, array in converted.graph.initializers.items() if name.endswith("bias.quantized")} == {"int32"}
    # the rounding of a bias may move an activation to the next level, here and there
    level = float(exported.graph.initializers["hr.scale"]) * np.abs(exported.graph.initializers["head.weight"]).max()
    difference = np.abs(outputs(converted) - outputs(exported))
    assert difference.max() < 2 * level and np.median(difference) < 1e-4
    onnx.checker.check_model(to_proto(converted), full_check=True)


def test_scales_can_be_trained():
    prepared = quantization.prepare(network(), [IMAGES])
    session = TrainingSession.from_model(prepared, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=["hidden.weight", "f.scale"])
    session.train_step(IMAGES, LABELS)
    session.optimizer_step()
    assert session.parameters["f.scale"].data != prepared.graph.initializers["f.scale"]


def test_weights_round_to_the_nearest_even_multiple_of_their_channels_scale():
    weight = np.array([[0.5, 1.5, -127.0], [0.0, 0.0, 0.0]], np.float32)
    scales = weight_scales(weight, 0)
    np.testing.assert_array_equal(scales, np.array([1, 1], np.float32))
    np.testing.assert_array_equal(quantize(weight, scales, np.zeros(2, np.int8), 0), [[0, 2, -127], [0, 0, 0]])


def test_only_the_named_layers_are_quantized():
    prepared = quantization.prepare(network(), [IMAGES], targets="head*")
    assert [node.op_type for node in prepared.graph.nodes].count("QuantizeLinear") == 2


@pytest.mark.parametrize(("calibration", "text"), [([], "at least one batch"), ([np.full_like(IMAGES, np.inf)], "finite")])
def test_calibration_without_data_or_with_infinite_values_is_refused(calibration, text):
    with pytest.raises(InvalidArgumentError, match=text):
        quantization.prepare(network(), calibration)


def test_models_of_old_opsets_and_models_without_quantized_weights_are_refused():
    with pytest.raises(InvalidArgumentError, match="opset 13"):
        quantization.prepare(network(opset=12), [IMAGES])
    with pytest.raises(InvalidArgumentError, match="prepare"):
        quantization.convert(network())
