"""onnxblock: what blocks build means what it says, and the drop-in names behave as they did."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ortrain import errors, onnxblock
from ortrain.onnxblock import blocks, loss, optim

FLOAT = TensorProto.FLOAT


def linear_model(shape=("n", 3), opset=17):
    rng = np.random.default_rng(1)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "/fc")], "g", [helper.make_tensor_value_info("x", FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in (("w", (4, 3)), ("b", (3,)))])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def scores_model(dims, opset=17, dtype=FLOAT):
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", dtype, dims)],
                              [helper.make_tensor_value_info("y", dtype, dims)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


class Forward(onnxblock.ForwardBlock):
    """Any function of names as a forward block."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, *names):
        return self.function(*names)


class Training(onnxblock.TrainingBlock):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def build(self, *names):
        return self.block(*names)


def evaluate(block, feeds, dims=("n", 3), opset=17, dtype=FLOAT):
    made = scores_model(dims, opset, dtype)
    forward = Forward(block)
    with onnxblock.base(made):
        forward("y")
    return ReferenceEvaluator(forward.to_model_proto()).run(None, feeds)


def bce(z, t, weight=1.0, pos_weight=1.0):
    z, t = np.float64(z), np.float64(t)
    log_sigmoid = -np.logaddexp(0, -z)
    return (-(pos_weight * t * log_sigmoid + (1 - t) * (log_sigmoid - z)) * weight).mean()


def test_element_losses():
    rng = np.random.default_rng(0)
    y, t = rng.standard_normal((2, 5, 3)).astype(np.float32)
    for reduction, reduce in (("mean", np.mean), ("sum", np.sum)):
        np.testing.assert_allclose(evaluate(loss.MSELoss(reduction), {"x": y, "target": t})[0], reduce((y - t) ** 2), rtol=1e-5)
        np.testing.assert_allclose(evaluate(loss.L1Loss(reduction), {"x": y, "target": t})[0], reduce(np.abs(y - t)), rtol=1e-5)
    np.testing.assert_allclose(evaluate(loss.MSELoss("none"), {"x": y, "target": t})[0], (y - t) ** 2, rtol=1e-5)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_binary_cross_entropy_is_stable(opset):
    z = np.array([[-300, -1, 0], [0.5, 3, 200]], np.float32)
    t = np.array([[1, 0, 1], [0.3, 1, 0]], np.float32)
    weight, pos_weight = np.array([1, 2, 0.5], np.float32), np.array([3, 0.2, 1], np.float32)
    feeds = {"x": z, "target": t}
    np.testing.assert_allclose(evaluate(loss.BCEWithLogitsLoss(), feeds, opset=opset)[0], bce(z, t), rtol=1e-6)
    weighted = loss.BCEWithLogitsLoss(weight, "mean", pos_weight)
    np.testing.assert_allclose(evaluate(weighted, feeds, opset=opset)[0], bce(z, t, weight, pos_weight), rtol=1e-6)


def test_cross_entropy_with_weights_and_ignored_labels():
    rng = np.random.default_rng(0)
    scores, labels = rng.standard_normal((5, 3)).astype(np.float32), np.array([0, 2, 1, 1, 0])
    log_prob = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    picked, weight = -log_prob[np.arange(5), labels], np.array([1, 3, 0.5], np.float32)
    feeds = {"x": scores, "labels": labels}
    np.testing.assert_allclose(evaluate(loss.CrossEntropyLoss(), feeds)[0], picked.mean(), rtol=1e-5)
    np.testing.assert_allclose(evaluate(loss.CrossEntropyLoss(weight), feeds)[0], (picked * weight[labels]).sum() / weight[labels].sum(), rtol=1e-5)
    np.testing.assert_allclose(evaluate(loss.CrossEntropyLoss(ignore_index=1), feeds)[0], picked[labels != 1].mean(), rtol=1e-5)


def test_labels_drop_the_class_axis():
    for dims, wanted in ((["n", 3], ["n"]), (["n", 3, 7, 8], ["n", 7, 8])):
        made = scores_model(dims)
        with onnxblock.base(made):
            loss.CrossEntropyLoss()("y", labels_name="l")
        labels = made.graph.input[-1]
        assert labels.name == "l" and labels.type.tensor_type.elem_type == TensorProto.INT64
        assert [d.dim_value or d.dim_param for d in labels.type.tensor_type.shape.dim] == wanted


def test_an_existing_target_is_reused():
    made = scores_model(["n", 3])
    made.graph.input.append(helper.make_tensor_value_info("target", FLOAT, ["n", 3]))
    with onnxblock.base(made):
        loss.MSELoss()("y")
    assert [i.name for i in made.graph.input] == ["x", "target"]


def test_double_models_get_double_constants():
    x = np.array([[1.0, -2.0, 0.25]])
    got = evaluate(lambda y: loss.BCEWithLogitsLoss()(y), {"x": x, "target": x * 0}, dtype=TensorProto.DOUBLE)[0]
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, bce(x, 0), rtol=1e-12)


ELEMENTWISE = {
    "Add": (lambda y: blocks.Add()(y, y), lambda x: x + x),
    "Sub": (lambda y: blocks.Sub()(y, blocks.Constant(2.0)()), lambda x: x - 2),
    "Mul": (lambda y: blocks.Mul()(y, y), lambda x: x * x),
    "Div": (lambda y: blocks.Div()(y, blocks.Constant(4.0)()), lambda x: x / 4),
    "Pow": (blocks.Pow(3.0), lambda x: x**3),
    "Sigmoid": (blocks.Sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
    "Log": (blocks.Log(), np.log),
    "Neg": (blocks.Neg(), np.negative),
    "Abs": (blocks.Abs(), np.abs),
    "ReduceMean": (blocks.ReduceMean(), lambda x: x.mean(keepdims=True)),
    "ReduceSum": (blocks.ReduceSum(keepdims=False), lambda x: x.sum()),
    "Clip": (blocks.Clip(0.5, 1.0), lambda x: x.clip(0.5, 1.0)),
    "Clip from above": (blocks.Clip(clip_max=1.0), lambda x: x.clip(None, 1.0)),
    "Cast": (blocks.Cast(TensorProto.INT32), lambda x: x.astype(np.int32)),
    "PassThrough": (blocks.PassThrough(), lambda x: x),
}


@pytest.mark.parametrize("name", list(ELEMENTWISE))
def test_blocks(name):
    block, oracle = ELEMENTWISE[name]
    x = np.random.default_rng(0).uniform(0.1, 2, (4, 3)).astype(np.float32)
    got = evaluate(block, {"x": x})[0]
    np.testing.assert_allclose(got, oracle(x), rtol=1e-6)
    assert got.shape == np.shape(oracle(x))


def test_a_model_from_nothing():
    with onnxblock.empty_base(opset_version=17) as accessor:
        accessor.model.graph.input.append(helper.make_tensor_value_info("x", FLOAT, ["n", 4]))
        forward = Forward(lambda x: blocks.Linear(4, 2)(x))
        forward("x")
    made = forward.to_model_proto()
    assert made is accessor.model and made.producer_name == "orttraining" and made.graph.name == "graph"
    assert {o.domain: o.version for o in made.opset_import} == {"com.microsoft": 1, "": 17}
    assert ReferenceEvaluator(made).run(None, {"x": np.ones((3, 4), np.float32)})[0].shape == (3, 2)


def test_label_encoder_sequences_and_norms_compose():
    made = scores_model(["n", 3])
    with onnxblock.base(made):
        encoded = blocks.LabelEncoder(keys_floats=[1.0, 2.0], values_floats=[3.0, 4.0])("y")
        norm, sequence = blocks.ReduceAllL2()("y", encoded), blocks.SequenceConstruct()("y", encoded)
        Forward(blocks.PassThrough())(norm, sequence)
    assert [o.name for o in made.graph.output] == [norm, sequence]
    assert made.graph.output[1].type.HasField("sequence_type")


def test_input_like():
    made = scores_model(["n", 3])
    with onnxblock.base(made):
        assert blocks.InputLike("y")("other") == "other"
        generated = blocks.InputLike("y")()
        with pytest.raises(LookupError, match="zzz"):
            blocks.InputLike("zzz")("b")
    assert [i.name for i in made.graph.input] == ["x", "other", generated]
    assert made.graph.input[1].type == made.graph.output[0].type


# ---- training


def test_requires_grad_decides_the_outputs():
    for names, frozen in ((["w", "b"], []), (["w"], ["b"]), (["x", "b"], [])):
        block = Training(loss.MSELoss())
        block.requires_grad("w", False)
        block.requires_grad("w")
        for name in names:
            block.requires_grad(name)
        for name in frozen:
            block.requires_grad(name, False)
        if "w" not in names:
            block.requires_grad("w", False)
        with onnxblock.base(linear_model()):
            block("y")
        training, evaluated = block.to_model_proto()
        assert [o.name for o in training.graph.output][1:] == [f"{name}_grad.accumulation.out" for name in names]
        trainable, fixed = block.parameters()
        assert [t.name for t in trainable] == [name for name in names if name != "x"]
        assert {t.name for t in fixed} == {"w", "b"} - set(names)
        assert [i.name for i in evaluated.graph.input] == ["x", "target", "w", "b"]


def test_checkpoints_go_back_into_models(tmp_path):
    block = Training(loss.MSELoss())
    block.requires_grad("w")
    block.requires_grad("b", False)
    source = linear_model()
    with onnxblock.base(onnx.ModelProto.FromString(source.SerializeToString())):
        block("y")
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "c")
    target = linear_model()
    for tensor in target.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    onnxblock.load_checkpoint_to_model(tmp_path / "c", target)
    for mine, theirs in zip(target.graph.initializer, source.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(mine), numpy_helper.to_array(theirs))
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "nominal", nominal_checkpoint=True)
    with pytest.raises(errors.InvalidStateError, match="nominal"):
        onnxblock.load_checkpoint_to_model(tmp_path / "nominal", target)
    onnxblock.save_checkpoint(([], []), tmp_path / "empty")
    with pytest.raises(errors.InvalidArgumentError):
        onnxblock.save_checkpoint(None, tmp_path / "none")


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.float64, np.bool_])
def test_parameters_of_other_types_survive(dtype, tmp_path):
    onnxblock.save_checkpoint(([], [numpy_helper.from_array(np.array([0, 1], dtype), "p")]), tmp_path / "c")
    made = linear_model()
    made.graph.initializer.append(numpy_helper.from_array(np.zeros(2, dtype), "p"))
    onnxblock.load_checkpoint_to_model(tmp_path / "c", made)
    np.testing.assert_array_equal(numpy_helper.to_array(made.graph.initializer[-1]), np.array([0, 1], dtype))


def parameters():
    return list(linear_model().graph.initializer)


def test_optimizer_models():
    with onnxblock.empty_base():
        block = optim.AdamW(betas=(0.8, 0.99), eps=1e-7, weight_decay=0.05, clip_grad=optim.ClipGradNorm(2.5))
        block(parameters())
    graph = block.to_model_proto().graph
    assert [i.name for i in graph.input] == ["learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"]
    clip, adam = graph.node
    assert (clip.op_type, adam.op_type, adam.input[3]) == ("InplaceClipGradNorm", "AdamWOptimizer", clip.output[0])
    attributes = {a.name: helper.get_attribute_value(a) for a in adam.attribute}
    assert attributes == pytest.approx({"adam_mode": 1, "alpha": 0.8, "beta": 0.99, "correct_bias": 1, "epsilon": 1e-7, "weight_decay": 0.05})
    with onnxblock.empty_base() as accessor:
        optim.SGD()(parameters())
    assert [n.op_type for n in accessor.model.graph.node] == ["SGDOptimizerV2"] and len(accessor.model.graph.output) == 1


# ---- wrong usage


def test_wrong_usage_is_refused():
    with pytest.raises(errors.InvalidStateError, match="base"):
        blocks.Add()("a", "b")
    with pytest.raises(errors.InvalidArgumentError), onnxblock.base(None):
        pass
    with onnxblock.base(linear_model()):
        with pytest.raises(errors.InvalidStateError, match="Cannot create multiple"), onnxblock.empty_base():
            pass
        with pytest.raises(LookupError):
            loss.CrossEntropyLoss()("zzz")
        with pytest.raises(LookupError):
            loss.MSELoss()("zzz")
    for block, message in ((Training(loss.MSELoss()), "training and eval models"), (Forward(blocks.Neg()), "forward models")):
        with pytest.raises(errors.InvalidStateError, match=message):
            block.to_model_proto()
    with pytest.raises(errors.InvalidStateError, match="training model"):
        Training(loss.MSELoss()).parameters()
    with pytest.raises(errors.InvalidArgumentError, match="Reduction avg not supported"):
        loss.MSELoss("avg")
    with pytest.raises(TypeError):
        onnxblock.Block()
    with pytest.raises(errors.InvalidArgumentError), onnxblock.empty_base():
        optim.AdamW()([])
    with pytest.raises(errors.ArtifactNotFoundError), onnxblock.custom_op_library("nope.so"):
        pass


def test_libraries_of_operators_do_not_nest(tmp_path):
    (tmp_path / "operators.py").write_text("")
    with (onnxblock.custom_op_library(tmp_path / "operators.py"), pytest.raises(errors.InvalidStateError),
          onnxblock.custom_op_library(tmp_path / "operators.py")):
        pass


def test_an_invalid_graph_is_refused():
    made = linear_model()
    with onnxblock.base(made), pytest.raises(errors.InvalidModelError):
        blocks.Add()("y", "nope")
