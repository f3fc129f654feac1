"""Weights that are stored as int8 or in half precision compute what rounded float weights compute, in less memory, beside adapters that train."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from ortrain import InferenceSession, SessionOptions, TrainingSession, artifacts, lora, quantization
from ortrain.artifacts import LossType, OptimType
from ortrain.errors import InvalidArgumentError, InvalidModelError, InvalidStateError
from ortrain.formats.onnx_files import to_proto
from ortrain.ops.linear import STORED_BLOCK
from ortrain.passes.half_precision import STORED_KEY
from tests.quantization.test_quantization import IMAGES, network, outputs

LAYERS, WIDTH, CHANNELS = 8, 256, 96


def deep(layers: int = LAYERS, width: int = WIDTH) -> onnx.ModelProto:
    """x [n, width] -> y [n, width] through dense layers."""
    nodes = " ".join(f"m{i} = MatMul({f'h{i - 1}' if i else 'x'}, w{i}) {'y' if i == layers - 1 else f'h{i}'} = Relu(m{i})" for i in range(layers))
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, {width}] x) => (float[n, {width}] y) {{ {nodes} }}')
    rng = np.random.default_rng(0)
    for i in range(layers):
        model.graph.initializer.append(numpy_helper.from_array((rng.standard_normal((width, width)) / 16).astype(np.float32), f"w{i}"))
    return model


def convolutional() -> onnx.ModelProto:
    """x [1, CHANNELS, 5, 5] -> y of the same shape through LAYERS convolutions."""
    values = ["x", *(f"h{i}" for i in range(1, LAYERS)), "y"]
    nodes = " ".join(f"c{i} = Conv<pads = [1, 1, 1, 1]>({values[i]}, w{i}{', b0' if i == 0 else ''}) {values[i + 1]} = Relu(c{i})" for i in range(LAYERS))
    shape, rng = f"float[1, {CHANNELS}, 5, 5]", np.random.default_rng(0)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({shape} x) => ({shape} y) {{ {nodes} }}')
    for i in range(LAYERS):
        weight = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) / (3 * CHANNELS ** 0.5)
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), f"w{i}"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(CHANNELS, np.float32), "b0"))
    return model


def with_rounded_weights(model: onnx.ModelProto, stored) -> onnx.ModelProto:
    """Return the float model with the weights that the stored model computes."""
    rounded = onnx.ModelProto()
    rounded.CopyFrom(model)
    constants = stored.graph.initializers
    for node in stored.graph.nodes:
        if node.op_type == "DequantizeLinear":
            integers, scales = (constants[name] for name in node.inputs)
            shape = [-1 if axis == node.attributes["axis"] else 1 for axis in range(integers.ndim)]
            name = node.inputs[0].removesuffix("_quantized")
            target = next(tensor for tensor in rounded.graph.initializer if tensor.name == name)
            target.CopyFrom(numpy_helper.from_array((integers * scales.reshape(shape)).astype(np.float32), name))
        elif node.op_type == "Cast":
            name = node.inputs[0].rpartition("_")[0]
            target = next(tensor for tensor in rounded.graph.initializer if tensor.name == name)
            target.CopyFrom(numpy_helper.from_array(constants[node.inputs[0]].astype(np.float32), name))
    return rounded


def adapted_session(model, **options) -> TrainingSession:
    adapted = lora.add(model, targets="all-linear", rank=2)
    return TrainingSession.from_model(adapted, loss=LossType.MSELoss, optimizer=OptimType.AdamW, requires_grad=lora.parameters(adapted), learning_rate=1e-2,
                                      options=SessionOptions(**options))


def test_weights_become_int8_with_a_scale_for_each_output_channel():
    stored = quantization.quantize_weights(network())
    kinds = {name: (array.dtype.name, array.shape) for name, array in stored.graph.initializers.items() if not name.endswith("bias")}
    assert kinds == {"conv.weight_quantized": ("int8", (4, 2, 3, 3)), "conv.weight_scale": ("float32", (4,)), "hidden.weight_quantized": ("int8", (144, 8)),
                     "hidden.weight_scale": ("float32", (8,)), "head.weight_quantized": ("int8", (3, 8)), "head.weight_scale": ("float32", (3,))}
    onnx.checker.check_model(to_proto(stored), full_check=True)
    np.testing.assert_allclose(outputs(stored), outputs(with_rounded_weights(network(), stored)), rtol=1e-5, atol=1e-6)
    assert 0 < np.abs(outputs(stored) - outputs(network())).max() < 0.05


def test_targets_choose_the_layers():
    stored = quantization.quantize_weights(network(), targets="hidden*")
    assert [node.inputs[0] for node in stored.graph.nodes if node.op_type == "DequantizeLinear"] == ["hidden.weight_quantized"]
    assert stored.graph.initializers["head.weight"].dtype == np.float32


def test_a_weight_of_several_layers_is_stored_once_for_each_axis_of_channels():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x) => (float[n, 8] y) {
        a = MatMul(x, w) b = MatMul(a, w) c = Gemm<transB=1>(b, w) d = Relu(w) y = MatMul(c, d) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32), "w"))
    stored = quantization.quantize_weights(model)
    assert [node.op_type for node in stored.graph.nodes] == ["DequantizeLinear", "MatMul", "MatMul", "DequantizeLinear", "Gemm", "Relu", "MatMul"]
    assert [node.attributes["axis"] for node in stored.graph.nodes if node.op_type == "DequantizeLinear"] == [1, 0]
    assert "w" in stored.graph.initializers                       # Relu still reads it
    x = np.eye(8, dtype=np.float32)
    results = [InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0] for proto in (to_proto(stored), model)]
    np.testing.assert_allclose(*results, atol=0.05 * np.abs(results[1]).max())


def test_a_weight_that_a_branch_reads_stays():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x, bool c) => (float[n, 8] y) {
        a = MatMul(x, w) y = If(c) <then_branch = t () => (float[n, 8] p) { p = MatMul(a, w) }, else_branch = e () => (float[n, 8] q) { q = Identity(a) }> }""")
    model.graph.initializer.append(numpy_helper.from_array(np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32), "w"))
    proto = to_proto(quantization.quantize_weights(model))
    x = np.eye(8, dtype=np.float32)
    for taken in (True, False):
        feeds = {"x": x, "c": np.array(taken)}
        results = [InferenceSession(each.SerializeToString()).run(None, feeds)[0] for each in (proto, model)]
        np.testing.assert_allclose(*results, atol=0.05 * np.abs(results[1]).max())


@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16"])
def test_adapters_train_on_stored_weights(dtype):
    session = adapted_session(quantization.quantize_weights(deep(2, 64), dtype=dtype))
    x = np.random.default_rng(2).standard_normal((32, 64)).astype(np.float32)
    losses = []
    for _ in range(40):
        losses.append(float(session.train_step(x, np.ones_like(x))[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    assert losses[-1] < 0.5 * losses[0]
    exported = session.inference_model()
    assert [array.dtype.name for array in exported.graph.initializers.values() if array.shape == (64, 64)] == [dtype] * 2
    np.testing.assert_allclose(session.predict(x)[0], InferenceSession(to_proto(exported).SerializeToString()).run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_in_half_precision_are_rounded_to_nearest_and_stay_so(dtype, tmp_path):
    stored = quantization.quantize_weights(network(), dtype=dtype)
    proto = to_proto(stored)
    onnx.checker.check_model(proto, full_check=True)
    rounded = network()
    for tensor in rounded.graph.initializer:
        if tensor.name.endswith("weight"):
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(stored.graph.initializers[f"{name}_{dtype}"].astype(np.float32), name))
            np.testing.assert_allclose(numpy_helper.to_array(tensor), numpy_helper.to_array(next(t for t in network().graph.initializer if t.name == name)),
                                       rtol=2**-8 if dtype == "bfloat16" else 2**-11, atol=1e-7)
    np.testing.assert_array_equal(outputs(proto), outputs(rounded))
    artifacts.generate_artifacts(proto, requires_grad=["conv.bias", "head.bias"], loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                                 artifact_directory=tmp_path)
    held = [array.dtype.name for path in ("training_model.onnx", "eval_model.onnx") for array in
            map(numpy_helper.to_array, onnx.load(tmp_path / path).graph.initializer) if array.size > 16]
    assert held == [dtype] * 6
    with TrainingSession.from_artifacts(tmp_path) as session:
        assert np.isfinite(session.train_step(IMAGES, np.zeros(64, np.int64))[0])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16"])
def test_one_block_of_a_weight_of_dense_layers_is_in_memory_as_floats(dtype, precision):
    """Products read what is stored, forward and backward: with the results of float layers of the same weights, and no need to compute floats again."""
    layers, width, batch = 4, 640, (np.random.default_rng(3).standard_normal((16, 640)).astype(np.float32),) * 2
    stored = quantization.quantize_weights(deep(layers, width), dtype=dtype)
    arenas, losses = [], []
    for model, share in ((with_rounded_weights(deep(layers, width), stored), 0.07), (stored, 0.07), (stored, 0.0)):
        session = adapted_session(model, rematerialization=share, precision=precision)
        losses.append(float(session.train_step(*batch)[0]))
        session.optimizer_step()
        losses.append(float(session.train_step(*batch)[0]))
        session._train_runner.run(batch)
        arenas.append(session._train_runner.last.arena_bytes)
    assert max(arenas[1:]) <= arenas[0] + 4 * STORED_BLOCK < arenas[0] + 4 * width * width
    assert losses[2:4] == losses[4:]
    np.testing.assert_allclose(losses[2:4], losses[:2], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_the_floats_of_few_weights_of_convolutions_are_in_memory_at_a_time(dtype):
    """Also where the nodes that compute them come first: they move to the layers, and are computed once more for the backward pass."""
    weight_bytes, batch = 4 * 9 * CHANNELS ** 2, (np.ones((1, CHANNELS, 5, 5), np.float32),) * 2
    stored = quantization.quantize_weights(convolutional(), dtype=dtype)
    stored.graph.nodes.sort(key=lambda node: node.op_type not in ("DequantizeLinear", "Cast"))
    arenas, losses = [], []
    for model, share in ((convolutional(), 0.07), (stored, 0.07), (stored, 0.0)):
        session = TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, requires_grad=["b0"],
                                             options=SessionOptions(rematerialization=share))
        losses.append(session.train_step(*batch)[0].tobytes())
        session._train_runner.run(batch)
        arenas.append(session._train_runner.last.arena_bytes)
    assert arenas[1] < arenas[0] + 4 * weight_bytes < arenas[2]
    assert losses[1] == losses[2]


@pytest.mark.parametrize(("model", "targets", "message"), [
    (lambda: network(opset=12), "*", "opset 13 or newer"), (network, "nothing*", "nothing"),
    (lambda: quantization.quantize_weights(network()), "*", "got none to quantize"),
    (lambda: quantization.quantize_weights(network(), dtype="float16"), "*", "got none to quantize")])
def test_models_without_weights_to_store_are_refused(model, targets, message):
    with pytest.raises(InvalidArgumentError, match=message):
        quantization.quantize_weights(model(), targets=targets)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"expected dtype to be one of \['int8', 'float16', 'bfloat16'\], got 'int4'"):
        quantization.quantize_weights(network(), dtype="int4")


def test_weights_that_float16_cannot_hold_are_refused():
    model = network()
    weight = numpy_helper.to_array(model.graph.initializer[2]) * 1e7
    model.graph.initializer[2].CopyFrom(numpy_helper.from_array(weight, "hidden.weight"))
    with pytest.raises(InvalidStateError, match="expected weights that float16 can hold"):
        quantization.quantize_weights(model, dtype="float16")


def test_metadata_of_stored_weights_that_are_no_names_are_refused():
    proto = to_proto(quantization.quantize_weights(network(), dtype="float16"))
    next(entry for entry in proto.metadata_props if entry.key == STORED_KEY).value = "{"
    with pytest.raises(InvalidModelError, match="expected a JSON list of names in the metadata"):
        InferenceSession(proto.SerializeToString())


def test_weights_that_are_not_finite_are_refused():
    model = network()
    weight = numpy_helper.to_array(model.graph.initializer[2]).copy()
    weight[3, 1] = np.inf
    model.graph.initializer[2].CopyFrom(numpy_helper.from_array(weight, "hidden.weight"))
    with pytest.raises(InvalidArgumentError, match=r"finite weights, got inf in 'hidden\.weight'"):
        quantization.quantize_weights(model)


def test_inference_of_a_stored_model_equals_that_of_the_exported_one():
    session = TrainingSession.from_model(quantization.quantize_weights(network()), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                                         requires_grad=["conv.bias", "head.bias"])
    np.testing.assert_allclose(session.predict(IMAGES)[0], outputs(session.inference_model()), rtol=1e-5, atol=1e-6)
