"""A model that was exported for a fixed number of samples is opened to any number where each sample is computed on its own, and refused where not."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.errors import InputShapeError, InvalidArgumentError
from ortrain.formats.onnx_files import to_proto
from ortrain.loading.loader import load_model
from ortrain.passes.open_batch import fixed_batch, open_batch
from ortrain.passes.specialization import specialize
from ortrain.runtime.inference_session import InferenceSession

BATCH = 5


class Builder:
    """A forward model, node by node."""

    def __init__(self, opset=17):
        self.opset = opset
        self.nodes = []
        self.initializers = []
        self.rng = np.random.default_rng(0)

    def weight(self, *shape, scale=0.3):
        return self.constant((scale * self.rng.standard_normal(shape)).astype(np.float32))

    def constant(self, value):
        array = np.asarray(value)
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array.astype(np.int64) if array.dtype == np.int_ else array, name))
        return name

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"{kind}_{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def model(self, inputs, *outputs):
        types = [helper.make_tensor_value_info(name, TensorProto.INT64 if kind == "int64" else TensorProto.FLOAT, shape) for name, kind, shape in inputs]
        graph = helper.make_graph(self.nodes, "g", types, [helper.make_empty_tensor_value_info(name) for name in outputs], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def lenet(batch=1, target=None, opset=17):
    b = Builder(opset)
    h = b.op("MaxPool", b.op("Relu", b.op("Conv", "image", b.weight(4, 1, 3, 3), b.weight(4), pads=[1, 1, 1, 1])), kernel_shape=[2, 2], strides=[2, 2])
    h = b.op("Reshape", h, b.constant(target or [batch, 64]))
    return b.model([("image", "float32", [batch, 1, 8, 8])], b.op("Gemm", h, b.weight(10, 64), b.weight(10), transB=1))


def attention(b, x, batch, tokens, heads, size):
    """The layers of a transformer block with the sizes written out as constants, as torch.onnx.export does for fixed shapes."""
    width = heads * size

    def project():
        h = b.op("Add", b.op("MatMul", x, b.weight(width, width)), b.weight(width))
        return b.op("Reshape", h, b.constant([batch, tokens, heads, size]))

    q, k, v = (b.op("Transpose", project(), perm=order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = b.op("Softmax", b.op("Mul", b.op("MatMul", q, k), b.constant(np.float32(size**-0.5))), axis=-1)
    mixed = b.op("Reshape", b.op("Transpose", b.op("MatMul", scores, v), perm=[0, 2, 1, 3]), b.constant([batch, tokens, width]))
    x = b.op("Add", x, b.op("MatMul", mixed, b.weight(width, width)))
    return b.op("LayerNormalization", x, b.weight(width), b.weight(width), axis=-1)


def vision_transformer(batch=1, is_folded=False):
    b = Builder()
    patches = b.op("Conv", "image", b.weight(12, 3, 4, 4), b.weight(12), kernel_shape=[4, 4], strides=[4, 4])
    patches = b.op("Transpose", b.op("Reshape", patches, b.constant([batch, 12, 4])), perm=[0, 2, 1])
    token = np.repeat(b.rng.standard_normal((1, 1, 12)).astype(np.float32), batch if is_folded else 1, 0)
    token = b.constant(token) if is_folded else b.op("Expand", b.constant(token), b.constant([batch, 1, 12]))
    x = b.op("Add", b.op("Concat", token, patches, axis=1), b.weight(1, 5, 12))
    x = attention(b, attention(b, x, batch, 5, 3, 4), batch, 5, 3, 4)
    h = b.op("Gather", x, b.constant(0), axis=1)
    return b.model([("image", "float32", [batch, 3, 8, 8])], b.op("Gemm", h, b.weight(12, 7), b.weight(7)))


def sequence_first_attention(batch=1):
    """torch.nn.MultiheadAttention with the sequence first: heads are merged with the batch, [tokens, batch * heads, size]."""
    b = Builder()
    x = b.op("Transpose", "x", perm=[1, 0, 2])

    def project():
        h = b.op("Reshape", b.op("MatMul", x, b.weight(8, 8)), b.constant([6, batch * 2, 4]))
        return b.op("Transpose", h, perm=[1, 0, 2])

    q, k, v = project(), project(), project()
    scores = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    mixed = b.op("Transpose", b.op("MatMul", scores, v), perm=[1, 0, 2])
    h = b.op("Gemm", b.op("Reshape", mixed, b.constant([6 * batch, 8])), b.weight(8, 8), b.weight(8))
    h = b.op("Transpose", b.op("Reshape", h, b.constant([6, batch, 8])), perm=[1, 0, 2])
    return b.model([("x", "float32", [batch, 6, 8])], b.op("ReduceMean", h, axes=[1], keepdims=0))


def window_attention(batch=1):
    """Windows of a Swin transformer: [batch, 4, 4, 6] becomes [batch * 4 windows, 4, 6], with one bias for each window."""
    b = Builder()
    h = b.op("Transpose", b.op("Reshape", "x", b.constant([batch, 2, 2, 2, 2, 6])), perm=[0, 1, 3, 2, 4, 5])
    h = b.op("Reshape", h, b.constant([batch * 4, 4, 6]))
    scores = b.op("MatMul", h, b.op("Transpose", h, perm=[0, 2, 1]))
    scores = b.op("Add", b.op("Reshape", scores, b.constant([batch, 4, 4, 4])), b.weight(1, 4, 4, 4))
    scores = b.op("Softmax", b.op("Reshape", scores, b.constant([batch * 4, 4, 4])), axis=-1)
    h = b.op("MatMul", scores, h)
    h = b.op("Transpose", b.op("Reshape", h, b.constant([batch, 2, 2, 2, 2, 6])), perm=[0, 1, 3, 2, 4, 5])
    h = b.op("Reshape", h, b.constant([batch, 4, 4, 6]))
    return b.model([("x", "float32", [batch, 4, 4, 6])], b.op("ReduceMean", h, axes=[1, 2], keepdims=0))


def lstm(batch=1, states="initializer", kind="LSTM"):
    b = Builder()
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    x = b.op("Transpose", "x", perm=[1, 0, 2])
    if states == "initializer":
        initial = [b.constant(np.zeros((1, batch, 5), np.float32)) for _ in range(2)]
    else:
        initial = [b.op("ConstantOfShape", b.constant([1, batch, 5])) for _ in range(2)]
    given = [x, b.weight(1, gates * 5, 3), b.weight(1, gates * 5, 5), b.weight(1, 2 * gates * 5), "", initial[0], *([initial[1]] if kind == "LSTM" else [])]
    y = b.op(kind, *given, outputs=2, hidden_size=5)[0]
    h = b.op("Transpose", b.op("Squeeze", y, b.constant([1])), perm=[1, 0, 2])
    h = b.op("Gather", h, b.constant(-1), axis=1)
    return b.model([("x", "float32", [batch, 7, 3])], b.op("Gemm", h, b.weight(5, 4), b.weight(4)))


def batch_norm_net(batch=1):
    b = Builder()
    h = b.op("Conv", "image", b.weight(6, 3, 3, 3), kernel_shape=[3, 3])
    h = b.op("Relu", b.op("BatchNormalization", h, b.weight(6), b.weight(6), b.weight(6), b.constant(np.full(6, 0.5, np.float32))))
    h = b.op("Resize", h, "", "", b.constant([batch, 6, 8, 8]), mode="nearest")
    h = b.op("Flatten", b.op("GlobalAveragePool", h))
    return b.model([("image", "float32", [batch, 3, 6, 6])], b.op("Gemm", h, b.weight(6, 4), b.weight(4)))


def bert(batch=1):
    b = Builder()
    x = b.op("Add", b.op("Gather", b.weight(11, 8), "ids", axis=0), b.op("Gather", b.weight(6, 8), b.constant([[0, 1, 2, 3]]), axis=0))
    mask = b.op("Sub", b.constant(np.float32(1)), b.op("Cast", b.op("Reshape", "mask", b.constant([batch, 1, 1, 4])), to=1))
    q = b.op("Transpose", b.op("Reshape", b.op("MatMul", x, b.weight(8, 8)), b.constant([batch, 4, 2, 4])), perm=[0, 2, 1, 3])
    scores = b.op("Add", b.op("MatMul", q, b.op("Transpose", q, perm=[0, 1, 3, 2])), b.op("Mul", mask, b.constant(np.float32(-50))))
    h = b.op("MatMul", b.op("Softmax", scores, axis=-1), q)
    h = b.op("Reshape", b.op("Transpose", h, perm=[0, 2, 1, 3]), b.constant([batch, 4, 8]))
    h = b.op("Slice", h, b.constant([0, 0]), b.constant([batch, 1]), b.constant([0, 1]))
    return b.model([("ids", "int64", [batch, 4]), ("mask", "int64", [batch, 4])], b.op("Gemm", b.op("Squeeze", h, b.constant([1])), b.weight(8, 3), b.weight(3)))


def shape_arithmetic(batch=1):
    """Sizes computed from Shape: an Expand and a ConstantOfShape follow the batch without a change."""
    b = Builder()
    size = b.op("Gather", b.op("Shape", "x"), b.constant([0]), axis=0)
    token = b.op("Expand", b.weight(1, 1, 4), b.op("Concat", size, b.constant([1, 4]), axis=0))
    zeros = b.op("ConstantOfShape", b.op("Concat", size, b.constant([1, 4]), axis=0))
    h = b.op("Concat", token, "x", zeros, axis=1)
    h = b.op("Reshape", h, b.op("Concat", size, b.constant([-1]), axis=0))
    return b.model([("x", "float32", [batch, 3, 4])], b.op("MatMul", h, b.weight(20, 2)))


def einsum(batch=1):
    b = Builder()
    h = b.op("Einsum", "x", b.weight(4, 2, 3), equation="btc,chd->bhtd")
    return b.model([("x", "float32", [batch, 5, 4])], b.op("Reshape", h, b.constant([batch, 30])))


MODELS = {
    "LeNet, Reshape(batch, 64)": lenet,
    "LeNet, Reshape(-1, 64)": lambda batch: lenet(batch, [-1, 64]),
    "LeNet, Reshape(batch, -1)": lambda batch: lenet(batch, [batch, -1]),
    "vision transformer, Expand of the class token": vision_transformer,
    "vision transformer, class token folded for the batch": lambda batch: vision_transformer(batch, is_folded=True),
    "attention with the sequence first": sequence_first_attention,
    "attention in windows": window_attention,
    "LSTM, states as initializers": lstm,
    "LSTM, states by ConstantOfShape": lambda batch: lstm(batch, "ConstantOfShape"),
    "GRU": lambda batch: lstm(batch, kind="GRU"),
    "RNN": lambda batch: lstm(batch, kind="RNN"),
    "batch normalization and Resize": batch_norm_net,
    "BERT": bert,
    "shape arithmetic": shape_arithmetic,
    "Einsum": einsum,
}


def samples(model, count):
    rng = np.random.default_rng(1)
    found = {}
    for value in model.graph.input:
        shape = [count, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])]
        is_integer = value.type.tensor_type.elem_type == TensorProto.INT64
        found[value.name] = rng.integers(0, 2, shape) if is_integer else rng.standard_normal(shape).astype(np.float32)
    return found


def opened(model):
    forward = load_model(model)
    open_batch(forward, {name: 0 for name in forward.graph.inputs})
    return forward


def results(model, given):
    return InferenceSession(to_proto(model) if not isinstance(model, onnx.ModelProto) else model).run(None, given)[0]


@pytest.mark.parametrize("fixed", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_an_opened_model_computes_each_sample_as_the_original_does(name, fixed):
    model = MODELS[name](batch=fixed)
    for count in (1, 2, 6, BATCH):
        given = samples(model, count)
        padded = {key: np.concatenate([array, array[: -count % fixed]]) for key, array in given.items()}
        parts = [results(model, {key: array[start : start + fixed] for key, array in padded.items()}) for start in range(0, len(padded[next(iter(padded))]), fixed)]
        np.testing.assert_allclose(results(opened(model), given), np.concatenate(parts)[:count], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_an_opened_model_declares_the_batch_at_inputs_and_outputs(name):
    forward = opened(MODELS[name](batch=2))
    assert all(forward.graph.types[value].shape[0] == "batch" for value in (*forward.graph.inputs, *forward.graph.outputs))
    onnx.checker.check_model(to_proto(forward))


@pytest.mark.parametrize("name", MODELS)
def test_an_opened_model_trains_with_batches_of_several_sizes(name):
    model = MODELS[name](batch=1)
    shapes = {value.name: ["batch", ...] for value in model.graph.input}
    classes = results(model, samples(model, 1)).shape[1]
    with ortrain.TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, input_shapes=shapes) as session:
        session.learning_rate = 0.02
        losses = []
        for step in range(12):
            count = (BATCH, 3)[step % 2]
            losses.append(session.train_step(*samples(model, count).values(), np.arange(count) % classes)[0])
            session.optimizer_step()
            session.lazy_reset_grad()
        assert losses[-2] < losses[0]
