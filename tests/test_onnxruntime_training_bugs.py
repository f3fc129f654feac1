"""Cases in which onnxruntime-training 1.19.2 fails, crashes or computes wrong results, and ortrain does not: one test for each.

The gradients of the operators are tested in tests/ops/samples; here whole models are used as by a user: artifacts, session, gradients against central
differences, evaluation, export."""

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain import errors, onnxblock
from ortrain.api import CheckpointState, Module
from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.formats.checkpoint import read_checkpoint

FLOAT = TensorProto.DOUBLE          # so that central differences are sharp
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def own_numbers():
    """Seed the random numbers, so that tests do not depend on each other."""
    global RNG
    RNG = np.random.default_rng(1)


def draw(*shape):
    return RNG.uniform(0.3, 1.2, shape) * RNG.choice([-1.0, 1.0], shape)


def model(nodes, weights, x, y, opset=17, ir_version=8):
    """Return a model from "x" to "y" of these shapes, whose first axis is dynamic."""
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", FLOAT, ["n", *x[1:]])],
                              [helper.make_tensor_value_info("y", FLOAT, ["n", *y[1:]])], [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=ir_version)


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def check_gradients(proto, x, target, names, loss=LossType.MSELoss):
    """Assert that the gradient along a random direction of each named weight agrees with central differences."""
    with ortrain.TrainingSession.from_model(proto, loss=loss, optimizer=OptimType.SGD, requires_grad=names) as session:
        session.train_step(x, target)
        for name in names:
            parameter = session.parameters[name]
            direction = np.random.default_rng(3).standard_normal(parameter.data.shape)
            analytic, start, ends = float((parameter.grad * direction).sum()), parameter.data.copy(), []
            for step in (1e-5, -1e-5):
                parameter.data = start + step * direction
                ends.append(float(session.eval_step(x, target)[0]))
            parameter.data = start
            assert analytic == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-7), name


def recurrent(op_type, inputs, gates, directions, **attributes):
    """Return a layer of 5 units over x [3 steps, 2 rows, 4] whose output is the last state."""
    names = [name.replace("_", "") for name in inputs.split()]
    shapes = {"W": (directions, gates * 5, 4), "R": (directions, gates * 5, 5), "B": (directions, 2 * gates * 5), "P": (directions, 15),
              "h0": (directions, 2, 5), "c0": (directions, 2, 5)}
    layer = helper.make_node(op_type, names, ["", "y"], hidden_size=5, **attributes)
    graph = helper.make_graph([layer], "g", [helper.make_tensor_value_info("x", FLOAT, [3, 2, 4])],
                              [helper.make_tensor_value_info("y", FLOAT, [directions, 2, 5])],
                              [numpy_helper.from_array(draw(*shapes[name]) * 0.5, name) for name in names if name in shapes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


WEIGHTS = {"w": draw(4, 6)}
GRADIENTS = {
    "Conv with auto_pad": (model([node("Conv", "x k", "y", auto_pad="SAME_UPPER", strides=[2, 2])], {"k": draw(3, 2, 3, 3)}, (2, 2, 5, 6), (2, 3, 3, 3)), ["k"]),
    "AveragePool with auto_pad": (model([node("Conv", "x k", "h"), node("AveragePool", "h", "y", kernel_shape=[2, 2], auto_pad="SAME_LOWER")],
                                        {"k": draw(3, 2, 1, 1)}, (2, 2, 5, 5), (2, 3, 5, 5)), ["k"]),
    "MatMul with a vector": (model([node("MatMul", "x v", "y")], {"v": draw(4)}, (3, 4), (3,)), ["v"]),
    "MatMul of a vector with a batch": (model([node("MatMul", "x w", "h"), node("MatMul", "v h", "y")], {"w": draw(4, 5), "v": draw(2)}, (3, 2, 4), (3, 5)),
                                        ["w", "v"]),
    "Split with an unused output": (model([node("MatMul", "x w", "h"), node("Split", "h", "y unused", axis=1)], WEIGHTS, (3, 4), (3, 3), opset=13), ["w"]),
    "Where with broadcast operands": (model([node("MatMul", "x w", "h"), node("Greater", "h zero", "c"), node("Where", "c h b", "y")],
                                            {**WEIGHTS, "zero": np.zeros(()), "b": draw(6)}, (3, 4), (3, 6)), ["w", "b"]),
    "Pow with broadcast operands": (model([node("MatMul", "x w", "h"), node("Mul", "h h", "s"), node("Pow", "s e", "y")],
                                          {**WEIGHTS, "e": np.abs(draw(6)) + 1}, (3, 4), (3, 6)), ["w", "e"]),
    "ScatterElements with a reduction": (model([node("MatMul", "x w", "h"), node("Identity", "h", "data"),
                                                node("ScatterElements", "data i u", "y", axis=1, reduction="add")],
                                               {**WEIGHTS, "i": np.array([[0, 0], [3, 5], [1, 0]]), "u": draw(3, 2)}, (3, 4), (3, 6), opset=16), ["w", "u"]),
    "LeakyRelu with a negative alpha": (model([node("MatMul", "x w", "h"), node("LeakyRelu", "h", "y", alpha=-0.4)], WEIGHTS, (3, 4), (3, 6)), ["w"]),
    "Gelu in its tanh form": (model([node("MatMul", "x w", "h"), node("Gelu", "h", "y", approximate="tanh")], WEIGHTS, (3, 4), (3, 6), opset=20,
                                    ir_version=9), ["w"]),
    "Transpose without perm": (model([node("MatMul", "x w", "h"), node("Transpose", "h", "t"), node("Transpose", "t", "y")], WEIGHTS, (3, 4), (3, 6)), ["w"]),
    "LayerNormalization without its other outputs": (model([node("LayerNormalization", "x s b", "y")], {"s": draw(4), "b": draw(4)}, (3, 4), (3, 4)), ["s", "b"]),
    "LayerNormalization without a bias": (model([node("LayerNormalization", "x s", "y")], {"s": draw(4)}, (3, 4), (3, 4)), ["s"]),
    "Pad that reflects": (model([node("Conv", "x k", "h"), node("Pad", "h p", "y", mode="reflect")],
                                {"k": draw(3, 2, 1, 1), "p": np.array([0, 0, 1, 2, 0, 0, 2, 1])}, (2, 2, 4, 4), (2, 3, 7, 7)), ["k"]),
    "Pad with the edge": (model([node("Conv", "x k", "h"), node("Pad", "h p", "y", mode="edge")],
                                {"k": draw(3, 2, 1, 1), "p": np.array([0, 0, 1, 2, 0, 0, 2, 1])}, (2, 2, 4, 4), (2, 3, 7, 7)), ["k"]),
    "ReduceL2 without keepdims": (model([node("MatMul", "x w", "h"), node("ReduceL2", "h", "y", axes=[1], keepdims=0)], WEIGHTS, (3, 4), (3,), opset=13), ["w"]),
    "LSTM without its optional inputs": (recurrent("LSTM", "x W R", 4, 1), ["W", "R"]),
    "LSTM with peepholes": (recurrent("LSTM", "x W R B  h0 c0 P".replace("  ", " _ "), 4, 1), ["W", "R", "B", "P"]),
    "LSTM in reverse": (recurrent("LSTM", "x W R B", 4, 1, direction="reverse"), ["W", "R", "B"]),
    "GRU without its optional inputs": (recurrent("GRU", "x W R", 3, 1), ["W", "R"]),
    "GRU in both directions": (recurrent("GRU", "x W R B", 3, 2, direction="bidirectional"), ["W", "R", "B"]),
    "Sum": (model([node("MatMul", "x w", "h"), node("Sum", "h h b", "y")], {**WEIGHTS, "b": draw(6)}, (3, 4), (3, 6)), ["w", "b"]),
}


@pytest.mark.parametrize(("proto", "names"), GRADIENTS.values(), ids=GRADIENTS)
def test_gradient_is_right(proto, names):
    def shape(value):
        return [dim.dim_value or 3 for dim in value.type.tensor_type.shape.dim]

    check_gradients(proto, draw(*shape(proto.graph.input[0])), draw(*shape(proto.graph.output[0])), names)


# ---- losses and labels


def test_labels_out_of_range_are_refused():
    proto = model([node("MatMul", "x w", "y")], WEIGHTS, (3, 4), (3, 6))
    with ortrain.TrainingSession.from_model(proto, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD) as session:
        for label in (6, -2, 2**40):
            with pytest.raises(errors.LabelRangeError, match=str(label)):
                session.train_step(draw(3, 4), np.array([0, label, 1]))
        assert not session.parameters["w"].grad.any()


def test_binary_cross_entropy_of_large_logits_is_finite_and_right():
    proto = model([node("Mul", "x w", "y")], {"w": np.ones(1)}, (4, 1), (4, 1))
    x, t = np.array([[-200.0], [200.0], [90.0], [-3.0]]), np.array([[1.0], [0.0], [1.0], [0.0]])
    with ortrain.TrainingSession.from_model(proto, loss=LossType.BCEWithLogitsLoss, optimizer=OptimType.SGD) as session:
        loss = session.train_step(x, t)[0]
        assert float(loss) == pytest.approx((200 + 200 + 0 + np.log1p(np.exp(-3))) / 4, rel=1e-6)
        assert session.parameters["w"].grad[0] == pytest.approx((200 + 200 - 3 / (1 + np.exp(3))) / 4, rel=1e-5)


def cross_entropy(scores, labels, weight=None):
    shifted = scores - scores.max(-1, keepdims=True)
    log_prob = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    picked = -np.take_along_axis(log_prob, labels[..., None], -1)[..., 0]
    factors = np.ones_like(picked) if weight is None else weight[labels]
    return (picked * factors).sum() / factors.sum()


def test_classes_may_have_weights():
    proto = model([node("MatMul", "x w", "y")], WEIGHTS, (3, 4), (3, 6))
    weight = np.array([0.1, 2.0, 0.5, 1.0, 3.0, 0.7])
    x, labels = draw(5, 4), np.array([0, 1, 4, 4, 5])
    with ortrain.TrainingSession.from_model(proto, loss=onnxblock.loss.CrossEntropyLoss(weight=weight), optimizer=OptimType.SGD) as session:
        assert float(session.train_step(x, labels)[0]) == pytest.approx(cross_entropy(x @ WEIGHTS["w"], labels, weight), rel=1e-5)


def test_scores_of_a_sequence_take_labels_of_a_sequence():
    """Scores [n, s, c] with labels [n, s], which 1.19.2 declares but cannot run."""
    proto = model([node("MatMul", "x w", "y")], WEIGHTS, (2, 5, 4), (2, 5, 6))
    x, labels = draw(2, 5, 4), RNG.integers(0, 6, (2, 5))
    with ortrain.TrainingSession.from_model(proto, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD) as session:
        assert float(session.train_step(x, labels)[0]) == pytest.approx(cross_entropy(x @ WEIGHTS["w"], labels), rel=1e-5)
    check_gradients(proto, x, labels, ["w"], LossType.CrossEntropyLoss)


@pytest.mark.parametrize(("shape", "axis"), [((2, 6, 5), 1), ((2, 6, 3, 5), 1), ((2, 6, 3, 5), None), ((2, 3, 5, 6), -1), ((2, 3, 6, 5), 2)])
def test_the_class_axis_may_be_named(shape, axis):
    weights = {"s": draw(*shape[1:])}
    proto = model([node("Mul", "x s", "y")], weights, shape, shape)
    at = 1 if axis is None else axis % len(shape)
    x = draw(*shape)
    labels = RNG.integers(0, 6, [d for i, d in enumerate(shape) if i != at])
    for reduction in ("mean", "sum"):
        loss = onnxblock.loss.CrossEntropyLoss(class_axis=axis, reduction=reduction)
        with ortrain.TrainingSession.from_model(proto, loss=loss, optimizer=OptimType.SGD) as session:
            wanted = cross_entropy(np.moveaxis(x * weights["s"], at, -1), labels) * (labels.size if reduction == "sum" else 1)
            assert float(session.train_step(x, labels)[0]) == pytest.approx(wanted, rel=1e-5)


def test_cross_entropy_below_its_opset_suggests_a_remedy():
    proto = model([node("MatMul", "x w", "y")], WEIGHTS, (3, 4), (3, 6), opset=11)
    with pytest.raises(errors.InvalidModelError, match="opset_version=13"):
        ortrain.TrainingSession.from_model(proto, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD)


# ---- crashes


@pytest.fixture
def session():
    proto = model([node("MatMul", "x w", "y")], WEIGHTS, (3, 4), (3, 6))
    with ortrain.TrainingSession.from_model(proto, loss=LossType.MSELoss, optimizer=OptimType.AdamW) as made:
        yield made


def test_an_empty_batch_is_an_error(session):
    with pytest.raises(errors.EmptyBatchError):
        session.train_step(draw(0, 4), draw(0, 6))


def test_eval_without_an_eval_model_is_an_error(session, tmp_path):
    session.save_artifacts(tmp_path)
    module = Module(tmp_path / "training_model.onnx", CheckpointState.load_checkpoint(tmp_path / "checkpoint"))
    module.eval()
    with pytest.raises(errors.InvalidStateError, match="not initialized"):
        module(draw(3, 4), draw(3, 6))


def test_a_parameter_may_be_set_before_there_is_a_module(session, tmp_path):
    session.save_artifacts(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    state.parameters["w"].data = np.full((4, 6), 0.5)
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    x, target = draw(3, 4), draw(3, 6)
    assert float(module(x, target)) == pytest.approx(float(np.mean((x @ np.full((4, 6), 0.5) - target) ** 2)), rel=1e-5)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x07\x12" * 40])
def test_garbage_is_an_error(content, session, tmp_path):
    session.save_artifacts(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    for name in ("training_model.onnx", "eval_model.onnx"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        with pytest.raises(errors.OrtrainError):
            Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
        (tmp_path / name).write_bytes(whole)
    with pytest.raises(errors.InvalidModelError):
        Module(content, state)


# ---- batch normalization


def normalized(**statistics):
    mean = statistics.get("mean", draw(3))
    variance = statistics.get("variance", np.abs(draw(3)))
    weights = {"k": draw(3, 2, 1, 1), "s": draw(3), "b": draw(3), "m": mean, "v": variance}
    return model([node("Conv", "x k", "h"), node("BatchNormalization", "h s b m v", "y")], weights, (4, 2, 5, 5), (4, 3, 5, 5)), weights


def evaluated(proto, x):
    return onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]


def test_a_frozen_normalization_uses_and_keeps_its_running_statistics():
    """With frozen scale and bias, it normalizes with its running statistics in training too, and does not update them."""
    proto, weights = normalized()
    x, target = draw(4, 2, 5, 5), draw(4, 3, 5, 5)
    with ortrain.TrainingSession.from_model(proto, loss=LossType.MSELoss, optimizer=OptimType.SGD, requires_grad=["k"], frozen_params=["s", "b", "m", "v"]) as session:
        loss = float(session.train_step(x, target)[0])
        assert loss == pytest.approx(float(np.mean((evaluated(proto, x) - target) ** 2)), rel=1e-4)
        for name in "mv":
            np.testing.assert_array_equal(session.parameters[name].data, weights[name])
    check_gradients(proto, x, target, ["k"])


def test_running_statistics_that_are_listed_nowhere_are_saved_and_exported(tmp_path):
    proto, weights = normalized()
    x, target = draw(4, 2, 5, 5), draw(4, 3, 5, 5)
    generate_artifacts(proto, requires_grad=["k", "s", "b"], loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
    assert list(read_checkpoint(tmp_path / "checkpoint").frozen) == ["m", "v"]
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        session.train_step(x, target)
        moved = session.parameters["m"].data.copy()
        assert np.abs(moved - weights["m"]).max() > 1e-3
        session.export(tmp_path / "trained.onnx", ["y"])
    stored = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    np.testing.assert_array_equal(stored["m"], moved)


def test_the_former_behavior_of_running_statistics_is_an_option(tmp_path):
    proto, _ = normalized()
    generate_artifacts(proto, requires_grad=["k", "s", "b"], loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path,
                       save_running_statistics=False)
    assert not read_checkpoint(tmp_path / "checkpoint").frozen
    assert {"m", "v"} <= {i.name for i in onnx.load(tmp_path / "training_model.onnx").graph.initializer}


def test_one_initializer_for_mean_and_variance_becomes_two():
    proto, _ = normalized(mean=np.ones(3))
    proto.graph.node[1].input[4] = "m"
    del proto.graph.initializer[4]
    x, target = draw(4, 2, 5, 5), draw(4, 3, 5, 5)
    with ortrain.TrainingSession.from_model(proto, loss=LossType.MSELoss, optimizer=OptimType.SGD) as session:
        session.train_step(x, target)
        (mean, variance) = (p.data for name, p in session.parameters if not p.requires_grad)
        assert np.abs(mean - variance).max() > 1e-3
        assert np.isfinite(session.eval_step(x, target)[0])


def test_a_model_exported_in_training_mode_gives_an_eval_model_that_loads(tmp_path):
    proto, _ = normalized()
    norm = proto.graph.node[1]
    norm.attribute.append(helper.make_attribute("training_mode", 1))
    norm.output.extend(["m_out", "v_out"])
    generate_artifacts(proto, requires_grad=["k", "s", "b"], loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
    onnx.checker.check_model(onnx.load(tmp_path / "eval_model.onnx"), full_check=True)
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        assert np.isfinite(session.eval_step(draw(4, 2, 5, 5), draw(4, 3, 5, 5))[0])


# ---- optional outputs, versions


def test_dropout_without_a_mask_output_trains():
    weights = {**WEIGHTS, "ratio": np.array(0.5, np.float32), "training": np.array(True)}
    proto = model([node("MatMul", "x w", "h"), node("Dropout", "h ratio training", "y")], weights, (3, 4), (3, 6))
    with ortrain.TrainingSession.from_model(proto, loss=LossType.MSELoss, optimizer=OptimType.SGD, requires_grad=["w"]) as session:
        x = draw(3, 4)
        session.train_step(x, np.zeros((3, 6)))
        assert session.parameters["w"].grad.any()
        np.testing.assert_allclose(session.predict(x)[0], x @ WEIGHTS["w"], rtol=1e-5)


def test_a_loss_inside_the_model_needs_no_second_output():
    graph = helper.make_graph([node("MatMul", "x w", "h"), node("SoftmaxCrossEntropyLoss", "h labels", "loss")], "g",
                              [helper.make_tensor_value_info("x", FLOAT, ["n", 4]), helper.make_tensor_value_info("labels", TensorProto.INT64, ["n"])],
                              [helper.make_tensor_value_info("loss", FLOAT, [])], [numpy_helper.from_array(WEIGHTS["w"], "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    check_gradients(proto, draw(3, 4), np.array([0, 5, 2]), ["w"], loss=None)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 17, 18, 19, 20, 21, 22, 23, 24, 25])
def test_every_opset_trains(opset):
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("the installed onnx does not know it")
    weights = {"k": draw(3, 2, 3, 3), "w": draw(12, 5), "b": draw(5)}
    nodes = [node("Conv", "x k", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
             node("Flatten", "p", "f"), node("Gemm", "f w b", "g"), node("Softmax", "g", "y", axis=1)]
    proto = model(nodes, weights, (2, 2, 4, 4), (2, 5), opset=opset, ir_version=min(onnx.IR_VERSION, 10))
    check_gradients(proto, draw(2, 2, 4, 4), draw(2, 5), ["k", "w", "b"])


def test_ir_version_and_opset_are_kept_if_onnxruntime_training_reads_them_and_can_be_chosen(tmp_path):
    proto = model([node("MatMul", "x w", "y")], WEIGHTS, (3, 4), (3, 6), opset=17, ir_version=11)

    def versions(**options):
        generate_artifacts(proto, loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path, **options)
        made = [onnx.load(tmp_path / f"{name}_model.onnx") for name in ("training", "eval", "optimizer")]
        return {(m.ir_version, next(o.version for o in m.opset_import if o.domain == "")) for m in made}

    assert versions() == {(10, 17)}
    assert versions(ir_version=9) == {(9, 17)}
    assert versions(opset_version=20) == {(10, 20)}
    with pytest.raises(errors.InvalidArgumentError):
        versions(ir_version=2)
