"""generate_artifacts: the same interface and checkpoint as the old package's, every parameter, nothing written when something is wrong."""


import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession, errors, onnxblock
from ortrain.artifacts import LossType, OptimType, build_artifacts, generate_artifacts, generation
from ortrain.formats.checkpoint import read_checkpoint
from ortrain.formats.onnx_files import to_proto
from ortrain.loading.loader import load_model
from tests.recordings import CASES, DATA, NEWEST, Recording

MLP = DATA / "mlp_ce" / "forward.onnx"
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def interface(values):
    result = []
    for value in values:
        sequence = value.type.HasField("sequence_type")
        tensor = value.type.sequence_type.elem_type.tensor_type if sequence else value.type.tensor_type
        result.append((value.name, tensor.elem_type, sequence, [d.dim_value or d.dim_param for d in tensor.shape.dim]))
    return result


def without_loss_name(entries, loss):
    return [("loss" if name == loss else name, *rest) for name, *rest in entries]


@pytest.mark.parametrize("case", CASES)
def test_artifacts_have_the_interface_of_the_recorded_ones(case, tmp_path):
    folder = DATA / case
    Recording(NEWEST, case).make_artifacts(tmp_path, nominal_checkpoint=True)
    forward = onnx.load(folder / "forward.onnx")
    for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"):
        made, recorded = onnx.load(tmp_path / name), onnx.load(folder / name)
        assert interface(made.graph.input) == interface(recorded.graph.input)
        assert without_loss_name(interface(made.graph.output), made.graph.output[0].name) == without_loss_name(
            interface(recorded.graph.output), recorded.graph.output[0].name)
        assert made.ir_version == forward.ir_version
        assert {o.domain: o.version for o in made.opset_import} == {o.domain: o.version for o in recorded.opset_import}
        if case not in ("mlp_bce", "custom_loss_onnxblock", "clip_grad_norm"):
            assert name == "optimizer_model.onnx" or made.graph.output[0].name == recorded.graph.output[0].name
        if not any(node.op_type == "MaxPoolGrad" for node in made.graph.node):
            onnx.checker.check_model(made, full_check=name != "training_model.onnx")
    for name in ("checkpoint", "nominal_checkpoint"):
        made, recorded = read_checkpoint(tmp_path / name), read_checkpoint(folder / name)
        assert made.nominal == recorded.nominal and made.version == recorded.version
        for mine, theirs in ((made.trainable, recorded.trainable), (made.frozen, recorded.frozen)):
            assert list(mine) == list(theirs)
            for key in mine:
                np.testing.assert_array_equal(mine[key], theirs[key])


def test_accumulators_are_as_recorded(tmp_path):
    recorded = onnx.load(DATA / "cnn_bn" / "training_model.onnx").graph
    generate_artifacts(str(DATA / "cnn_bn" / "forward.onnx"), None, None, LossType.CrossEntropyLoss, OptimType.AdamW, tmp_path)
    made = onnx.load(tmp_path / "training_model.onnx").graph

    def accumulators(graph):
        return [(n.name, n.domain, n.input[0], n.input[2], list(n.output)) for n in graph.node if n.op_type == "InPlaceAccumulatorV2"]

    assert accumulators(made) == accumulators(recorded)
    norm = next(n for n in made.node if n.op_type == "BatchNormInternal")
    assert len(norm.output) == 5 and all(norm.output) and norm.domain == "com.microsoft"
    attributes = {a.name: helper.get_attribute_value(a) for a in norm.attribute}
    assert attributes == pytest.approx({"momentum": 0.9, "epsilon": 1e-5, "training_mode": 1})
    seed = next(i for i in made.initializer if i.name == made.output[0].name + "_grad")
    assert list(seed.dims) == [] and numpy_helper.to_array(seed) == 1
    typed = {v.name: v for v in made.value_info}
    pool = next(n for n in made.node if n.op_type == "MaxPoolGrad")
    assert [d.dim_value for d in typed[pool.output[0]].type.tensor_type.shape.dim][1:] == [4, 8, 8]
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert list(checkpoint.frozen) == ["bn.running_mean", "bn.running_var"]
    assert list(checkpoint.trainable) == ["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"]


# ---- small models


def model(nodes, initializers, outputs=("y",), inputs=(("x", FLOAT, ["n", 4]),), opset=17, ir=8, shape=("n", 3)):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(*i) for i in inputs],
                              [helper.make_tensor_value_info(o, FLOAT, shape) for o in outputs],
                              [numpy_helper.from_array(np.asarray(a), n) for n, a in initializers.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def weight(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def linear(**more):
    return model([helper.make_node("Gemm", ["x", "w", "b"], ["y"], "/fc")], {"w": weight(4, 3), "b": weight(3)}, **more)


def test_every_kind_of_source_gives_the_same_files(tmp_path, monkeypatch):
    path = tmp_path / "forward.onnx"
    onnx.save(linear(), path)
    contents = set()
    for k, source in enumerate((path, str(path), path.read_bytes(), linear(), load_model(path))):
        folder = tmp_path / str(k)
        folder.mkdir()
        monkeypatch.chdir(folder)
        generate_artifacts(source, ["w"], loss=LossType.MSELoss, optimizer=OptimType.SGD, prefix="p_")
        files = ["p_checkpoint", "p_eval_model.onnx", "p_optimizer_model.onnx", "p_training_model.onnx"]
        assert sorted(p.name for p in folder.iterdir()) == files
        contents.add(tuple((folder / name).read_bytes() for name in files))
    assert len(contents) == 1


def test_no_optimizer_means_no_training_unless_names_are_given():
    for names in (None, []):
        made = build_artifacts(linear(), requires_grad=names, loss=LossType.MSELoss)
        assert made.optimizer is None and not made.checkpoint.trainable
        assert made.training.graph.inputs == ["x", "target", "lazy_reset_grad"] and len(made.training.graph.outputs) == 1
    made = build_artifacts(linear(), requires_grad=["b"], loss=LossType.MSELoss)
    assert list(made.checkpoint.trainable) == ["b"] and "w" in made.training.graph.initializers and "w" in made.eval.graph.initializers


def with_exponent(source):
    """The model with its first output squared, by a Pow with an exponent of one element."""
    squared = onnx.ModelProto.FromString(source.SerializeToString())
    name = squared.graph.output[0].name
    squared.graph.initializer.append(numpy_helper.from_array(np.array([2], np.float32), "exponent"))
    squared.graph.node.append(helper.make_node("Pow", [name, "exponent"], ["squared"]))
    squared.graph.output[0].name = "squared"
    return squared


def test_default_weights_are_the_float_tensors_that_reach_the_loss():
    nodes = [
        helper.make_node("Constant", [], ["cw"], value=numpy_helper.from_array(weight(4, 3))),
        helper.make_node("Constant", [], ["half"], value_float=0.5),
        helper.make_node("Constant", [], ["mask"], value_floats=[1.0, 0.0, 1.0]),
        helper.make_node("MatMul", ["x", "cw"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["hb"]),
        helper.make_node("Mul", ["hb", "half"], ["hh"]),
        helper.make_node("Mul", ["hh", "mask"], ["y"]),
        helper.make_node("Add", ["h", "unused"], ["z"]),
        helper.make_node("Mul", ["y", "scalar"], ["side"]),
    ]
    source = model(nodes, {"b": weight(3), "unused": weight(3), "scalar": np.float32(2)})
    made = build_artifacts(source, loss=LossType.MSELoss, optimizer=OptimType.AdamW)
    assert list(made.checkpoint.trainable) == ["b", "cw"]
    assert "exponent" not in build_artifacts(with_exponent(source), loss=LossType.MSELoss, optimizer=OptimType.AdamW).checkpoint.trainable
    named = build_artifacts(source, requires_grad=["mask"], frozen_params=["cw", "nope"], loss=LossType.MSELoss, optimizer=OptimType.AdamW)
    assert list(named.checkpoint.trainable) == ["mask"] and list(named.checkpoint.frozen) == ["cw"]
    assert named.training.graph.inputs == ["x", "target", "cw", "mask", "mask_grad.accumulation.buffer", "lazy_reset_grad"]
    assert named.eval.graph.inputs == ["x", "target", "cw", "mask"]


def test_inputs_may_require_gradients():
    made = build_artifacts(linear(), requires_grad=["x", "w"], loss=LossType.MSELoss, optimizer=OptimType.AdamW)
    graph = made.training.graph
    assert graph.inputs == ["x", "target", "w", "x_grad.accumulation.buffer", "w_grad.accumulation.buffer", "lazy_reset_grad"]
    assert graph.outputs[1:] == ["x_grad.accumulation.out", "w_grad.accumulation.out"]
    assert graph.types["x_grad.accumulation.buffer"].shape == ("n", 4)


def two_heads():
    nodes = [("Gemm", ["x", "w", "b"], ["h"]), ("Relu", ["h"], ["y"]), ("Neg", ["h"], ["z"])]
    return model([helper.make_node(*n) for n in nodes], {"w": weight(4, 3), "b": weight(3)}, outputs=("y", "z"))


def test_loss_inputs_and_additional_outputs():
    made = build_artifacts(two_heads(), requires_grad=["w"], loss=LossType.L1Loss, loss_input_names=["z"],
                           additional_output_names=["y", "h"])
    for part in (made.training, made.eval):
        assert part.graph.outputs[1:3] == ["y", "h"] and part.graph.types["h"].shape == ("n", 3)
    assert made.training.graph.outputs[3:] == ["w_grad.accumulation.out"]
    assert made.training.graph.nodes[-1].name == "GradientAccumulator3"


def test_without_a_loss_the_first_output_is_it():
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("ReduceMean", ["h"], ["y"], keepdims=0)]
    source = model(nodes, {"w": weight(4, 3)}, shape=())
    made = build_artifacts(source, optimizer=OptimType.SGD)
    assert made.training.graph.outputs == ["y", "w_grad.accumulation.out"]
    assert made.optimizer.graph.inputs == ["learning_rate", "step", "params", "gradients", "first_order_moments"]
    with pytest.raises(errors.InvalidModelError, match="one element"):
        build_artifacts(linear(), optimizer=OptimType.SGD)


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 21])
@pytest.mark.parametrize("loss", list(LossType))
def test_losses_build_for_every_opset(opset, loss):
    if loss == LossType.CrossEntropyLoss and opset == 11:
        with pytest.raises(errors.InvalidModelError):
            build_artifacts(linear(opset=11), loss=loss, optimizer=OptimType.AdamW)
        return
    made = build_artifacts(linear(opset=opset), loss=loss, optimizer=OptimType.AdamW)
    for part in (made.training, made.eval, made.optimizer):
        assert part.opset == opset and part.ir_version == 8
        onnx.checker.check_model(to_proto(part))


def test_dropout_trains_and_rests():
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Dropout", ["h", "ratio", "training"], ["y"])]
    source = model(nodes, {"w": weight(4, 3), "ratio": np.float32(0.3), "training": np.array(True)})
    made = build_artifacts(source, requires_grad=["w"], loss=LossType.MSELoss)
    training = next(n for n in made.training.graph.nodes if n.op_type == "Dropout")
    evaluated = next(n for n in made.eval.graph.nodes if n.op_type == "Dropout")
    assert training.inputs == ["h", "ratio", "training"] and len(training.outputs) == 2 and training.outputs[1]
    assert evaluated.inputs == ["h", "ratio", ""]
    assert "training" not in made.eval.graph.initializers


def test_batch_normalization_exported_for_training():
    norm = helper.make_node("BatchNormalization", ["h", "s", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1)
    weights = {"w": weight(4, 3), "s": weight(3), "b": weight(3), "m": weight(3), "v": np.ones(3, np.float32)}
    source = model([helper.make_node("Gemm", ["x", "w"], ["h"]), norm], weights)
    made = build_artifacts(source, loss=LossType.MSELoss, optimizer=OptimType.AdamW)
    training = next(n for n in made.training.graph.nodes if n.op_type == "BatchNormInternal")
    evaluated = next(n for n in made.eval.graph.nodes if n.op_type == "BatchNormalization")
    assert training.outputs[:3] == ["y", "m2", "v2"] and len(training.outputs) == 5
    assert evaluated.outputs == ["y"] and evaluated.attributes["training_mode"] == 0
    assert list(made.checkpoint.frozen) == ["m", "v"] and list(made.checkpoint.trainable) == ["w", "s", "b"]
    onnx.checker.check_model(to_proto(made.eval), full_check=True)


def test_a_model_may_use_our_names():
    nodes = [helper.make_node("Gemm", ["x", "w"], ["lazy_reset_grad"]), helper.make_node("Neg", ["lazy_reset_grad"], ["w_grad"]),
             helper.make_node("Neg", ["w_grad"], ["y"])]
    made = build_artifacts(model(nodes, {"w": weight(4, 3)}), loss=LossType.MSELoss, optimizer=OptimType.AdamW)
    onnx.checker.check_model(to_proto(made.training))
    assert made.training.graph.inputs[-1] == "lazy_reset_grad"


def test_an_old_ir_version_keeps_its_constants():
    source = linear()
    source.ir_version = 3
    source.graph.input.extend(helper.make_tensor_value_info(i.name, i.data_type, list(i.dims)) for i in source.graph.initializer)
    made = build_artifacts(source, requires_grad=["w"], loss=LossType.MSELoss)
    onnx.checker.check_model(to_proto(made.training))


# ---- loading


def test_functions_are_inlined():
    body = [helper.make_node("Gemm", ["a", "c"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    function = helper.make_function("mine", "Layer", ["a", "c"], ["r"], body, opsets[:1])
    source = model([helper.make_node("Layer", ["x", "w"], ["y"], domain="mine")], {"w": weight(4, 3)})
    source.functions.append(function)
    source.opset_import.append(opsets[1])
    assert [n.op_type for n in load_model(source).graph.nodes] == ["Gemm", "Relu"]


def test_order_is_restored_and_nonsense_refused():
    nodes = [helper.make_node("Relu", ["h"], ["y"]), helper.make_node("Gemm", ["x", "w"], ["h"])]
    assert [n.op_type for n in load_model(model(nodes, {"w": weight(4, 3)})).graph.nodes] == ["Gemm", "Relu"]
    broken = {
        "cycle": [helper.make_node("Add", ["x", "y"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "value of the graph": [helper.make_node("Relu", ["nope"], ["y"])],
        "assigned twice": [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])],
        "graph output": [helper.make_node("Relu", ["x"], ["z"])],
    }
    for message, nodes in broken.items():
        with pytest.raises(errors.InvalidModelError, match=message):
            load_model(model(nodes, {}))
    for opset in (6, 99):
        with pytest.raises(errors.InvalidModelError, match="opset"):
            load_model(linear(opset=opset))


def test_a_constant_may_be_an_output():
    loaded = load_model(model([helper.make_node("Constant", [], ["y"], value_floats=[1.0])], {}, shape=[1]))
    assert loaded.graph.nodes[0].op_type == "Identity" and loaded.graph.outputs == ["y"]


# ---- wrong usage


REFUSALS = {
    "a model of another type": ({"model": 3}, errors.InvalidModelError, ValueError),
    "a missing file": ({"model": "nope.onnx"}, errors.ArtifactNotFoundError, FileNotFoundError),
    "an empty list with an optimizer": ({"requires_grad": []}, errors.InvalidArgumentError, ValueError),
    "an unknown weight": ({"requires_grad": ["nope"]}, errors.ParameterNotFoundError, KeyError),
    "a name in both": ({"requires_grad": ["fc1.bias"], "frozen_params": ["fc1.bias"]}, errors.InvalidArgumentError, ValueError),
    "a loss of another type": ({"loss": 3}, errors.ArgumentTypeError, TypeError),
    "an unknown name of a loss": ({"loss": "MSELoss"}, errors.InvalidArgumentError, ValueError),
    "a loss class": ({"loss": onnxblock.loss.MSELoss}, errors.ArgumentTypeError, TypeError),
    "an optimizer of another type": ({"optimizer": 0.001}, errors.ArgumentTypeError, TypeError),
    "an unknown optimizer": ({"optimizer": "AdamWW"}, errors.InvalidArgumentError, ValueError),
    "a missing folder": ({"artifact_directory": "nope"}, errors.ArtifactNotFoundError, FileNotFoundError),
    "additional outputs that are no list": ({"additional_output_names": "output"}, errors.ArgumentTypeError, TypeError),
    "an unknown additional output": ({"additional_output_names": ["zzz"]}, errors.OutputNotFoundError, LookupError),
    "an unknown loss input": ({"loss_input_names": ["zz"]}, errors.OutputNotFoundError, LookupError),
    "loss inputs that are no list": ({"loss_input_names": "output"}, errors.ArgumentTypeError, TypeError),
    "weights that are no list": ({"requires_grad": "fc1.bias"}, errors.ArgumentTypeError, TypeError),
    "a missing library": ({"custom_op_library": "nope.so"}, errors.ArtifactNotFoundError, FileNotFoundError),
    "an unknown keyword": ({"bogus": 1}, TypeError, TypeError),
    "a loss that is no scalar": ({"loss": None}, errors.InvalidModelError, ValueError),
    "a bad reduction in the loss": ({"loss": onnxblock.loss.L1Loss("none")}, errors.InvalidModelError, ValueError),
}


@pytest.mark.parametrize("usage", list(REFUSALS))
def test_wrong_usage_is_refused_and_writes_nothing(usage, tmp_path, monkeypatch):
    arguments, error, builtin = REFUSALS[usage]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        generate_artifacts(**{"model": MLP, "loss": LossType.CrossEntropyLoss, "optimizer": OptimType.AdamW, **arguments})
    assert isinstance(caught.value, builtin)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_loss_names_the_finding(tmp_path):
    with pytest.raises(errors.OrtrainError):
        build_artifacts(two_heads(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW)


@pytest.mark.parametrize("case", ["mlp_ce", "cnn_bn", "custom_loss_onnxblock"])
def test_weights_that_a_model_proto_cannot_hold_take_a_way_round_it(case, tmp_path, monkeypatch):
    """Above 2 GB blocks see stand-ins: what is written is the same."""
    recording = Recording(NEWEST, case)
    for folder, limits in (("inside", {}), ("outside", {"MAX_BYTES": 0, "HEAVY": 0})):
        (tmp_path / folder).mkdir()
        for name, value in limits.items():
            monkeypatch.setattr(generation, name, value)
        recording.make_artifacts(tmp_path / folder)
    for path in (tmp_path / "inside").iterdir():
        assert path.read_bytes() == (tmp_path / "outside" / path.name).read_bytes(), path.name



def test_a_target_has_the_rank_that_the_prediction_has_and_not_the_one_it_is_declared_with():
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Reshape", ["h", "parts"], ["y"])]
    source = model(nodes, {"w": weight(4, 4), "parts": np.array([0, 2, 2])}, shape=("n", "length"))
    made = build_artifacts(source, loss=LossType.MSELoss)
    assert len(made.training.graph.types["target"].shape) == 3


def test_a_pool_trains_where_the_model_has_a_name_of_its_own_for_a_size():
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"], strides=[2]), helper.make_node("AveragePool", ["h"], ["y"], kernel_shape=[2])]
    source = model(nodes, {"w": weight(2, 1, 3)}, inputs=(("x", FLOAT, ["n", 1, "time"]),), shape=("n", 2, "frames"))
    source.graph.value_info.append(helper.make_tensor_value_info("h", FLOAT, ["n", 2, "half of time"]))
    with TrainingSession.from_model(source, loss=LossType.MSELoss, optimizer=OptimType.SGD) as session:
        session.train_step(np.ones((1, 1, 12), np.float32), np.ones((1, 2, 4), np.float32))
        assert np.abs(session.state.gradients["w"]).min() > 0


def test_outputs_may_be_declared_without_a_shape_and_weights_may_be_outputs(tmp_path):
    """As converters of scikit-learn's pipelines write them: a Scaler, of which ONNX's inference says no shape, then a network."""
    nodes = [helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.5, 1.0], scale=[2.0, 3.0]), helper.make_node("MatMul", ["s", "w"], ["y"])]
    source = model(nodes, {"w": weight(2, 3)}, inputs=(("x", FLOAT, ["n", 2]),), shape=("n", 3))
    source.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    source.graph.output[0].type.tensor_type.ClearField("shape")
    source.graph.output.append(helper.make_tensor_value_info("w", FLOAT, None))
    with TrainingSession.from_model(source, loss=LossType.MSELoss, loss_input_names=["y"], optimizer=OptimType.SGD) as session:
        session.train_step(np.ones((4, 2), np.float32), np.ones((4, 3), np.float32))
        session.export(tmp_path / "trained.onnx", ["y", "w"])
    trained = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(trained)
    assert interface(trained.graph.output) == [("y", FLOAT, False, ["n", 3]), ("w", FLOAT, False, [2, 3])]


def test_a_loss_that_cannot_take_as_many_outputs_is_refused():
    model = onnx.load(MLP)
    hidden = [name for node in model.graph.node[:-1] for name in node.output]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in hidden[:3])
    with pytest.raises(errors.InvalidArgumentError, match="MSELoss can take"):
        build_artifacts(model, loss=LossType.MSELoss)
    build_artifacts(model, loss=LossType.MSELoss, loss_input_names=[model.graph.output[0].name])
