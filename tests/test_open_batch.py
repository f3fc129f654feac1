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
    elif states == "Expand":                                                    # as torch.onnx.export writes them: a row for each sample, and an Expand
        size = b.op("Unsqueeze", b.op("Gather", b.op("Shape", x), b.constant(1)), b.constant([0]))
        target = b.op("Concat", b.constant([1]), size, b.constant([5]), axis=0)
        initial = [b.op("Expand", b.constant(np.full((1, batch, 5), 0.1, np.float32)), target) for _ in range(2)]
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
    y = b.op("Gemm", b.op("Squeeze", h, b.constant([1])), b.weight(8, 3), b.weight(3))
    return b.model([("ids", "int64", [batch, 4]), ("mask", "int64", [batch, 4])], y)


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
    "LSTM, states by Expand": lambda batch: lstm(batch, "Expand"),
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
    open_batch(forward, dict.fromkeys(forward.graph.inputs, 0))
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
        starts = range(0, len(next(iter(padded.values()))), fixed)
        parts = [results(model, {key: array[start : start + fixed] for key, array in padded.items()}) for start in starts]
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


def refused(build, inputs=(("x", "float32", [2, 4]),)):
    b = Builder()
    model = b.model(list(inputs), build(b))
    forward = load_model(model)
    before = to_proto(forward).SerializeToString()
    with pytest.raises(InvalidArgumentError) as caught:
        open_batch(forward, {name: 0 for name, _, _ in inputs})
    assert to_proto(forward).SerializeToString() == before, "a refused model stays as it was"
    return str(caught.value)


REFUSED = {
    "a mean over the samples": (lambda b: b.op("Sub", "x", b.op("ReduceMean", "x", axes=[0])), "ReduceMean node 'ReduceMean_0'", "reduces axis 0"),
    "a softmax over the samples": (lambda b: b.op("Softmax", "x", axis=0), "Softmax", "computes across axis 0"),
    "a sum over the samples in a product": (lambda b: b.op("MatMul", b.weight(3, 2), "x"), "MatMul", "sums over"),
    "products of samples with each other": (lambda b: b.op("MatMul", "x", b.op("Transpose", "x", perm=[1, 0])), "MatMul", "with each other"),
    "a constant with other rows for each sample": (lambda b: b.op("Add", "x", b.weight(2, 4)), "Add", "other values for every sample"),
    "the first sample alone": (lambda b: b.op("Gather", "x", b.constant(0), axis=0), "Gather", "selects samples by number"),
    "a slice of the samples": (lambda b: b.op("Slice", "x", b.constant([1]), b.constant([2]), b.constant([0])), "Slice", "slices axis 0"),
    "rows that belong to no sample": (lambda b: b.op("Reshape", b.op("Concat", "x", "x", "x", axis=1), b.constant([3, 8])), "Reshape", "no single axis"),
    "a concatenation of samples": (lambda b: b.op("Concat", "x", "x", axis=0), "Concat", "concatenates along axis 0"),
    "a division by the number of samples": (
        lambda b: b.op("Div", "x", b.op("Cast", b.op("Gather", b.op("Shape", "x"), b.constant([0])), to=1)), "Div", "the number of samples"),
    "an operator without a rule": (lambda b: b.op("Det", b.op("Reshape", "x", b.constant([2, 2, 2]))), "Det", "not known"),
    "an output without samples": (lambda b: b.op("Add", b.weight(2, 4), b.weight(4)), "outputs", "without a batch"),
    "samples of two inputs along different axes": (
        lambda b: b.op("Add", b.op("Reshape", "x", b.constant([2, 1, 4])), b.op("Reshape", "x", b.constant([1, 2, 4]))), "Add", "different axes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_mixes_samples_is_refused_with_the_node_and_the_reason(name):
    build, *texts = REFUSED[name]
    message = refused(build)
    assert all(text in message for text in texts), message


def test_a_number_of_samples_in_a_branch_is_refused():
    def build(b):
        branch = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "then", [], [helper.make_empty_tensor_value_info("r")])
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "else", [], [helper.make_empty_tensor_value_info("n")])
        return b.op("If", b.op("Greater", b.op("ReduceSum", b.weight(3), keepdims=0), b.constant(np.float32(0))), then_branch=branch, else_branch=other)

    assert "branches and loops" in refused(build)


def test_a_reshape_that_allows_two_positions_takes_the_one_that_the_rest_of_the_model_needs():
    b = Builder()
    h = b.op("Transpose", b.op("Reshape", "x", b.constant([1, 1, 6])), perm=[1, 0, 2])    # batch 1: either of the first two axes may be the batch
    h = b.op("Softmax", h, axis=1)                                                        # ... but not the one that is normalized
    model = b.model([("x", "float32", [1, 6])], b.op("Squeeze", b.op("Softmax", b.op("Reshape", h, b.constant([1, 1, 6])), axis=0), b.constant([0])))
    given = {"x": np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)}
    forward = load_model(model)
    open_batch(forward, {"x": 0})
    np.testing.assert_allclose(results(forward, given), np.ones((3, 6)) * results(model, {"x": given["x"][:1]}))


def test_the_batch_may_lie_along_another_axis():
    b = Builder()
    y = b.op("LSTM", "x", b.weight(1, 20, 3), b.weight(1, 20, 5), b.weight(1, 40), hidden_size=5)
    model = b.model([("x", "float32", [7, 1, 3])], b.op("Reshape", y, b.constant([7, 1, 5])))
    forward = load_model(model)
    assert fixed_batch(forward) == {"x": 1}
    specialize(forward, {"x": [7, "batch", 3]}, {})
    x = np.random.default_rng(0).standard_normal((7, 3, 3)).astype(np.float32)
    expected = np.concatenate([results(model, {"x": x[:, [index]]}) for index in range(3)], axis=1)
    np.testing.assert_allclose(results(forward, {"x": x}), expected, rtol=1e-5, atol=1e-6)
    assert forward.graph.types[forward.graph.outputs[0]].shape == (7, "batch", 5)


def test_inputs_with_the_same_symbol_share_the_opened_batch():
    b = Builder()
    model = b.model([("x", "float32", [1, 4]), ("z", "float32", ["batch", 4])], b.op("Add", b.op("Reshape", "x", b.constant([1, 4])), "z"))
    forward = load_model(model)
    specialize(forward, {"x": ["batch", 4]}, {})
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(results(forward, {"x": x, "z": x}), 2 * x)


@pytest.mark.parametrize("opset", [9, 12, 13, 18])
def test_old_and_new_opsets_are_opened(opset):
    b = Builder(opset)
    h = b.op("Slice", "x", starts=[0, 1], ends=[1, 3], axes=[0, 1]) if opset < 10 else b.op("Slice", "x", b.constant([0, 1]), b.constant([1, 3]))
    h = b.op("Unsqueeze", h, axes=[1]) if opset < 13 else b.op("Unsqueeze", h, b.constant([1]))
    h = b.op("Softmax", b.op("Reshape", h, b.constant([1, 2])))
    model = b.model([("x", "float32", [1, 4])], b.op("Add", h, b.op("ReduceSum", h, axes=[1]) if opset < 13 else b.op("ReduceSum", h, b.constant([1]))))
    given = samples(model, 3)
    np.testing.assert_allclose(results(opened(model), given), np.concatenate([results(model, {"x": given["x"][[i]]}) for i in range(3)]), rtol=1e-5)


@pytest.mark.parametrize(("shape", "text"), [(["batch", 1, 8], "expected 4 sizes"), ([..., ...], "at most one ..."), (["n", "n", 8, 8], "one batch axis"),
                                             (["batch", 1, 1, 8, 8, ...], "at most one ..."),
                                             ([2, ...], "expected size 1 along axis 0"), ([-1, ...], "a symbol such as"),
                                             ([None, ...], "got None"), ([1.5, ...], "got 1.5"), (["", ...], "got ''")])
def test_a_shape_that_does_not_fit_the_input_is_refused(shape, text):
    with pytest.raises(InvalidArgumentError, match=text):
        specialize(load_model(lenet()), {"image": shape}, {})


def test_artifacts_of_an_opened_model_train_evaluate_and_export(tmp_path):
    generate_artifacts(lenet(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, artifact_directory=tmp_path, input_shapes={"image": ["batch", ...]})
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        for count in (BATCH, 2):
            image = samples(lenet(), count)["image"]
            session.train_step(image, np.arange(count))
            session.eval_step(image, np.arange(count))
        output = session.output_names(training=False)
        session.export(tmp_path / "trained.onnx", [lenet().graph.output[0].name])
    assert output and results(onnx.load(tmp_path / "trained.onnx"), {"image": image}).shape == (2, 10)


def test_the_error_for_another_batch_says_how_to_open_it():
    with ortrain.TrainingSession.from_model(lenet(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD) as session:
        with pytest.raises(InputShapeError, match=r"input_shapes=\{'image': \['batch', 1, 8, 8\]\}"):
            session.train_step(np.zeros((4, 1, 8, 8), np.float32), np.zeros(4, np.int64))
        with pytest.raises(InputShapeError) as caught:
            session.train_step(np.zeros((1, 1, 8, 9), np.float32), np.zeros(1, np.int64))
        assert "input_shapes" not in str(caught.value)


@pytest.mark.parametrize("axes", [{"nope": 0}, {"image": 4}, {"image": 2, "other": 0}])
def test_axes_that_are_no_fixed_batch_are_refused(axes):
    b = Builder()
    model = b.model([("image", "float32", [1, 1, 8, 8]), ("other", "float32", ["n", 2])], b.op("Relu", "image"))
    with pytest.raises(InvalidArgumentError):
        open_batch(load_model(model), axes)
