"""float16 and bfloat16 models train with float32 copies of their weights and are exported in their original types."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ortrain
from ortrain import errors, onnxblock
from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.cli import main
from ortrain.dtypes import numpy_dtype
from ortrain.loading.loader import load_model
from ortrain.passes.half_precision import METADATA_KEY, OriginalTypes, convert_to_float32, restore_half_precision
from ortrain.runtime.state import TrainingState
from tests import half_models
from tests.half_models import in_half, with_constant_nodes, with_float_io, with_float_operators, with_half_weights

MODELS = {make.__name__: make for make in (half_models.mlp, half_models.conv, half_models.lstm, half_models.branches, half_models.scan)}
FORMS = {
    "float16": in_half,
    "float16 with float32 inputs and outputs": with_float_io,
    "float16 except MatMul": lambda model: with_float_operators(model, "MatMul"),
    "float16 except Conv": lambda model: with_float_operators(model, "Conv"),
    "float16 weights only": lambda model: with_half_weights(model, ["w1", "kernel", "W", "left", "w"]),
    "float16 weights only, in Constant nodes": lambda model: with_half_weights(model, ["w1", "kernel", "left", "w", "out"], as_nodes=True),
    "float16 with Constant nodes": with_constant_nodes,
    "bfloat16": lambda model: in_half(model, "bfloat16"),
}
TARGET = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)


@pytest.fixture(params=[f"{model}, {form}" for model in MODELS for form in FORMS])
def half_model(request):
    """Return a model of each kind in each form."""
    model, form = request.param.split(", ", 1)
    if form == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return FORMS[form](MODELS[model]())


def feeds_of(model, as_float32=False):
    """Return arrays for the model's inputs, in the model's types, or in float32 with `as_float32`."""
    random, feeds = np.random.default_rng(3), {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        x = random.standard_normal([dim.dim_value or 4 for dim in tensor.shape.dim]).astype(np.float16).astype(np.float32)
        kind = numpy_dtype(load_model(model).graph.types[value.name].dtype)
        feeds[value.name] = np.array(True) if kind.kind == "b" else x if as_float32 else x.astype(kind)
    return feeds


def start(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, **options):
    return ortrain.TrainingSession.from_model(model, loss=loss, optimizer=optimizer, learning_rate=1e-2, **options)


def step(session, feeds, target=TARGET):
    """Run a train step and an optimizer step; return the loss."""
    loss = session.train_step(**feeds, target=target)[0]
    session.optimizer_step()
    session.lazy_reset_grad()
    return loss


def description(graph):
    """Return a graph and its subgraphs as text."""
    inner = [description(value) for node in graph.nodes for value in node.graphs.values()]
    types = [str(graph.types[name]) for name in (*graph.inputs, *graph.outputs) if name in graph.types]
    return [str(graph), [f"{array.dtype}{array.shape}" for array in graph.initializers.values()], types, inner]


def equal_except_weights(one, other):
    """Return whether two models have the same nodes, names and types."""
    one, other = load_model(one), load_model(other)
    for model in (one, other):
        model.graph.initializers = dict(sorted(model.graph.initializers.items()))
    return description(one.graph) == description(other.graph) and one.opsets == other.opsets


# ---- training


def test_training_lowers_the_loss(half_model):
    feeds = feeds_of(half_model)
    with start(half_model) as session:
        losses = [step(session, feeds) for _ in range(8)]
        assert {array.dtype for array in session.state.trainable.values()} == {np.dtype(np.float32)}
    assert losses[0].dtype == np.float32 and losses[-1] < losses[0]


def test_exported_model_differs_in_weights_only(half_model, tmp_path):
    feeds = feeds_of(half_model)
    with start(half_model) as session:
        step(session, feeds)
        session.export(tmp_path / "trained.onnx")
        trained = {name: array.copy() for name, array in session.state.trainable.items()}
    exported = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(exported, full_check=True)
    assert equal_except_weights(exported, half_model) and not exported.metadata_props
    before, after = load_model(half_model).graph.initializers, load_model(exported).graph.initializers
    for name, array in trained.items():
        np.testing.assert_array_equal(after[name], array.astype(before[name].dtype))
    assert any(not np.array_equal(after[name], before[name]) for name in trained)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_those_of_the_float32_model(name):
    float32_model, half = MODELS[name](), in_half(MODELS[name]())
    gradients = []
    for model in (float32_model, half):
        with start(model) as session:
            loss = session.train_step(**feeds_of(model), target=TARGET)[0]
            gradients.append((float(loss), {key: array.copy() for key, array in session.state.gradients.items()}))
    (loss, wanted), (half_loss, got) = gradients
    assert half_loss == loss and got.keys() == wanted.keys() and all(np.array_equal(got[key], wanted[key]) for key in wanted)


def test_updates_below_half_precision_accumulate():
    model = in_half(half_models.mlp())
    with start(model) as session:
        session.learning_rate = 1e-5                                # for weights around 0.4, where float16 has a spacing of 2.4e-4
        before = session.inference_model().graph.initializers["w1"].copy()
        step(session, feeds_of(model))
        once = session.inference_model().graph.initializers["w1"]
        for _ in range(60):
            step(session, feeds_of(model))
        often = session.inference_model().graph.initializers["w1"]
    assert (once == before).mean() > 0.8 and (often == before).mean() < 0.3


def test_gradients_of_inputs_are_float32():
    float32_model, half = half_models.conv(), in_half(half_models.conv())
    with start(float32_model) as float32_session, start(half) as half_session:
        expected = float32_session.input_gradients(**feeds_of(float32_model), target=TARGET)
        actual = half_session.input_gradients(**feeds_of(half), target=TARGET)
        named = half_session.input_gradients(**feeds_of(half), target=TARGET, names=["x"])
    assert list(actual) == list(expected) == ["x", "target"] and list(named) == ["x"] and actual["x"].dtype == np.float32
    np.testing.assert_array_equal(actual["x"], expected["x"])


def test_inputs_and_outputs_have_the_types_of_the_model():
    model = in_half(half_models.mlp())
    with start(model, additional_output_names=["y", "r"]) as session:
        outputs = session.train_step(**feeds_of(model), target=TARGET)
        assert [array.dtype for array in outputs] == [np.float32, np.float16, np.float16]
        assert [array.dtype for array in session.eval_step(**feeds_of(model), target=TARGET)] == [np.float32, np.float16, np.float16]
        assert session.predict(**feeds_of(model))[0].dtype == np.float16
        assert session.predict(**feeds_of(model), output_names=["h"])[0].dtype == np.float16
        with pytest.raises(errors.InputTypeError, match="float16"):
            session.train_step(feeds_of(model, as_float32=True)["x"], TARGET)
        with pytest.raises(errors.InputTypeError, match="float32"):
            session.train_step(feeds_of(model)["x"], TARGET.astype(np.float16))


def test_loss_output_of_the_model_is_float32():
    model = in_half(half_models.mlp())
    model.graph.node.append(helper.make_node("ReduceSumSquare", ["y"], ["loss"], keepdims=0))
    model.graph.output.insert(0, helper.make_tensor_value_info("loss", TensorProto.FLOAT16, []))
    with start(model, loss=None) as session:
        first = session.train_step(**feeds_of(model))[0]
        assert first.dtype == np.float32
        session.optimizer_step()
        session.lazy_reset_grad()
        assert session.train_step(**feeds_of(model))[0] < first


# ---- files


@pytest.mark.parametrize("name", MODELS)
def test_artifacts_on_disk_export_original_types(name, tmp_path):
    model = in_half(MODELS[name]())
    model.metadata_props.add(key="author", value="somebody")
    feeds = feeds_of(model)
    generate_artifacts(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path, additional_output_names=["y"])
    for file in ("training_model.onnx", "eval_model.onnx"):
        onnx.checker.check_model(tmp_path / file, full_check=file == "eval_model.onnx")
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        step(session, feeds)
        session.save_checkpoint(tmp_path / "trained")
        wanted = session.predict(**feeds)[0]
        rounded = {key: array.astype(np.float16) for key, array in session.state.trainable.items()}
    main(["export", str(tmp_path), str(tmp_path / "trained.onnx"), "--checkpoint", str(tmp_path / "trained")])
    exported = onnx.load(tmp_path / "trained.onnx")
    assert equal_except_weights(exported, model)
    assert {entry.key: entry.value for entry in exported.metadata_props} == {"author": "somebody"}
    initializers = load_model(exported).graph.initializers
    assert all(np.array_equal(initializers[key], array) for key, array in rounded.items())
    got = ReferenceEvaluator(exported).run(None, feeds)[0]
    assert got.dtype == np.float16 and np.abs(got - wanted.astype(float)).max() < 4e-3 * max(1, np.abs(wanted).max())


def test_artifacts_in_ort_format_export_original_types(tmp_path):
    model = in_half(half_models.mlp())
    generate_artifacts(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path, ort_format=True)
    state = TrainingState.load(tmp_path / "checkpoint")
    with ortrain.TrainingSession(tmp_path / "training_model.ort", state, tmp_path / "eval_model.ort", tmp_path / "optimizer_model.ort") as session:
        step(session, feeds_of(model))
        session.export(tmp_path / "trained.onnx", ["y"])
    before, after = load_model(model).graph, load_model(tmp_path / "trained.onnx").graph
    assert {name: array.dtype for name, array in after.initializers.items()} == {name: array.dtype for name, array in before.initializers.items()}
    assert [str(node) for node in after.nodes] == [str(node) for node in before.nodes]


def test_specialized_model_is_exported_specialized(tmp_path):
    model = in_half(half_models.branches())
    with start(model, input_values={"flag": np.array(False)}, input_shapes={"x": [4, 6]}) as session:
        losses = [step(session, {"x": feeds_of(model)["x"]}) for _ in range(3)]
        session.export(tmp_path / "trained.onnx")
    exported = load_model(tmp_path / "trained.onnx").graph
    assert losses[2] < losses[0] and [node.op_type for node in exported.nodes] == ["MatMul", "Tanh"]
    assert exported.types["x"].dtype == exported.types["y"].dtype == "float16"
    assert {name: str(array.dtype) for name, array in exported.initializers.items()} == {"right": "float16"}


def test_additional_output_keeps_its_name_inside_an_export(tmp_path):
    model = in_half(half_models.mlp())
    with start(model, additional_output_names=["r"]) as session:
        assert [node.outputs for node in session.inference_model(["y"]).graph.nodes] == [["h"], ["r"], ["m"], ["y"]]


def test_exported_loss_is_float32(tmp_path):
    model = in_half(half_models.mlp())
    with start(model) as session:
        loss = session.output_names()[0]
        session.export(tmp_path / "loss.onnx", [loss, "y"])
        wanted = session.eval_step(**feeds_of(model), target=TARGET)[0]
    exported = onnx.load(tmp_path / "loss.onnx")
    onnx.checker.check_model(exported, full_check=True)
    got, y = ReferenceEvaluator(exported).run(None, {**feeds_of(model), "target": TARGET})
    assert got.dtype == np.float32 and y.dtype == np.float16 and float(got) == pytest.approx(float(wanted.reshape(-1)[0]), rel=1e-2)


def test_checkpoint_has_float32_copies_and_resumes_training(tmp_path):
    model = in_half(half_models.lstm())
    feeds = feeds_of(model)
    generate_artifacts(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path)
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        step(session, feeds)
        session.save_checkpoint(tmp_path / "saved", include_optimizer_state=True)
        wanted = [step(session, feeds) for _ in range(3)]
        copies = session.to_buffer()
    with ortrain.TrainingSession.from_artifacts(tmp_path, checkpoint=tmp_path / "saved") as session:
        assert [step(session, feeds) for _ in range(3)] == wanted
        np.testing.assert_array_equal(session.to_buffer(), copies)


def test_checkpoint_is_loaded_into_a_half_precision_model(tmp_path):
    model = in_half(half_models.mlp())
    with start(model) as session:
        step(session, feeds_of(model))
        session.save_checkpoint(tmp_path / "saved")
        wanted = session.inference_model().graph.initializers
    onnxblock.load_checkpoint_to_model(tmp_path / "saved", model)
    got = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert all(got[name].dtype == np.float16 and np.array_equal(got[name], array) for name, array in wanted.items())


def test_training_blocks_accept_half_precision_models():
    class Training(onnxblock.TrainingBlock):
        def __init__(self):
            super().__init__()
            self.loss = onnxblock.loss.MSELoss()

        def build(self, name):
            return self.loss(name)

    model = in_half(half_models.mlp())
    block = Training()
    block.requires_grad("w1")
    with onnxblock.base(model):
        block(*[output.name for output in model.graph.output])
    training, _ = block.to_model_proto()
    (w1,), _ = block.parameters()
    assert w1.data_type == TensorProto.FLOAT
    kinds = {value.name: value.type.tensor_type.elem_type for value in training.graph.input}
    assert kinds["w1"] == TensorProto.FLOAT and kinds["x"] == kinds["target"] == TensorProto.FLOAT16


# ---- conversion to float32 and back


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_restoring_undoes_conversion(name, form):
    if form == "bfloat16":
        pytest.importorskip("ml_dtypes")
    model = load_model(FORMS[form](MODELS[name]()))
    converted = model.copy()
    convert_to_float32(converted)
    converted_twice = converted.copy()
    convert_to_float32(converted_twice)
    assert str(converted_twice.graph) == str(converted.graph)
    assert not {"float16", "bfloat16"} & {str(array.dtype) for array in converted.graph.initializers.values()}
    restored = restore_half_precision(converted)
    assert description(restored.graph) == description(model.graph)
    assert all(np.array_equal(restored.graph.initializers[key], array) for key, array in model.graph.initializers.items())


def test_type_attributes_are_restored():
    """ConstantOfShape, EyeLike and Cast state types in attributes."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=numpy_helper.from_array(np.ones(1, np.float16))),
        helper.make_node("ConstantOfShape", ["shape"], ["wide_ones"], value=numpy_helper.from_array(np.ones(1, np.float32))),
        helper.make_node("EyeLike", ["ones"], ["eye"], dtype=TensorProto.FLOAT16), helper.make_node("EyeLike", ["ones"], ["wide_eye"], dtype=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide_eye"], ["cast"], to=TensorProto.FLOAT16), helper.make_node("Cast", ["wide_ones"], ["number"], to=TensorProto.INT64),
        helper.make_node("Cast", ["number"], ["counted"], to=TensorProto.FLOAT16),
        helper.make_node("Sum", ["ones", "eye", "cast", "counted"], ["y"]),
    ]
    proto = half_models.model_of(nodes, {}, {"y": (TensorProto.FLOAT16, [3, 3])}, {"shape": np.array([3, 3])})
    model = load_model(proto)
    converted = model.copy()
    convert_to_float32(converted)
    assert [node.attributes.get("to") for node in converted.graph.nodes if node.op_type == "Cast"] == [1, 7, 1]
    assert {name: kind for name, kind in OriginalTypes.of(converted).types.items() if kind == "float32"}.keys() == {"wide_ones", "wide_eye"}
    assert description(restore_half_precision(converted).graph) == description(model.graph)
    np.testing.assert_array_equal(ortrain.InferenceSession(proto).run(None, {})[0], np.eye(3, dtype=np.float16) * 2 + 2)


def test_subgraphs_may_use_a_name_for_different_float_types():
    def branch(name, kind):
        nodes = [helper.make_node("Cast", ["x"], ["value"], to=kind), helper.make_node("Cast", ["value"], ["result"], to=TensorProto.FLOAT16)]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info("result", TensorProto.FLOAT16, [2])])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("then", TensorProto.FLOAT16), else_branch=branch("else", TensorProto.DOUBLE))
    proto = half_models.model_of([node], {"x": (TensorProto.FLOAT16, [2]), "flag": (TensorProto.BOOL, [])}, {"y": (TensorProto.FLOAT16, [2])}, {})
    model = load_model(proto)
    convert_to_float32(model)
    graphs = restore_half_precision(model).graph.nodes[0].graphs
    assert [[node.attributes["to"] for node in graph.nodes] for graph in (graphs["then_branch"], graphs["else_branch"])] == [[10, 10], [11, 10]]
    assert [node.outputs for graph in graphs.values() for node in graph.nodes] == [["value"], ["result"]] * 2


def test_model_with_bit_cast_is_not_converted():
    node = helper.make_node("BitCast", ["x"], ["y"], to=TensorProto.INT16)
    proto = half_models.model_of([node], {"x": (TensorProto.FLOAT16, [2])}, {"y": (TensorProto.INT16, [2])}, {}, opset=26)
    x = np.array([1, -2], np.float16)
    np.testing.assert_array_equal(ortrain.InferenceSession(proto).run(None, {"x": x})[0], x.view(np.int16))


# ---- inference


def test_inference_is_close_to_the_reference_evaluator(half_model):
    feeds = feeds_of(half_model)
    got, wanted = ortrain.InferenceSession(half_model).run(None, feeds)[0], ReferenceEvaluator(half_model).run(None, feeds)[0]
    assert got.dtype == wanted.dtype
    rounding = 2.0**-8 if got.dtype.name == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=8 * rounding, atol=8 * rounding * float(np.abs(wanted).max()))


# ---- invalid models and checkpoints


def test_weight_out_of_range_is_not_exported(tmp_path):
    with start(in_half(half_models.mlp())) as session:
        session.parameters["w1"].data[0, 0] = 70000
        with pytest.raises(errors.InvalidStateError, match=r"expected weights that float16 can hold, got 70000 in 'w1'"):
            session.export(tmp_path / "no.onnx")
    assert not (tmp_path / "no.onnx").exists()


def test_training_model_with_half_precision_parameters_is_rejected(tmp_path):
    generate_artifacts(half_models.mlp(), loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path)
    training = in_half(onnx.load(tmp_path / "training_model.onnx"))
    with pytest.raises(errors.InvalidModelError, match="expected parameters of float32 or float64 in a training model, got float16 for 'w1'"):
        ortrain.TrainingSession(training, TrainingState.load(tmp_path / "checkpoint"))


def test_checkpoint_with_half_precision_parameters_is_rejected(tmp_path):
    model = in_half(half_models.mlp())
    generate_artifacts(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path)
    onnxblock.save_checkpoint((list(model.graph.initializer), []), tmp_path / "halves")
    with pytest.raises(errors.InvalidCheckpointError, match="expected parameter 'w1' with dtype float32, the checkpoint has float16"):
        ortrain.TrainingSession.from_artifacts(tmp_path, checkpoint=tmp_path / "halves")


@pytest.mark.parametrize("metadata", ["", "[]", "{", "{}", '{"types": {"int8": ["x"]}, "names": {}}', '{"types": {"float16": [1]}, "names": {}}',
                                   '{"types": {}, "names": {"a": 1}}'])
def test_malformed_metadata_is_rejected(metadata):
    model = load_model(half_models.mlp())
    model.metadata[METADATA_KEY] = metadata
    with pytest.raises(errors.InvalidModelError, match="expected the original float types as JSON in the metadata"):
        restore_half_precision(model)


def test_metadata_has_value_names_by_type():
    model = load_model(with_float_operators(half_models.mlp(), "MatMul"))
    convert_to_float32(model)
    metadata = json.loads(model.metadata[METADATA_KEY])
    assert set(metadata["types"]) == {"float16", "float32"} and set(metadata["types"]["float32"]) == {"r_wide", "w2", "m_wide"} and not metadata["names"]


# ---- float64


@pytest.mark.parametrize("optimizer", OptimType)
@pytest.mark.parametrize("name", MODELS)
def test_float64_model_trains_and_is_exported_in_float64(name, optimizer, tmp_path):
    model = in_half(MODELS[name](), "float64")
    feeds, target = feeds_of(model), TARGET.astype(np.float64)
    generate_artifacts(model, loss=LossType.MSELoss, optimizer=optimizer, artifact_directory=tmp_path, additional_output_names=["y"])
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        losses = [step(session, feeds, target) for _ in range(4)]
        assert losses[0].dtype == np.float64 and losses[-1] < losses[0]
        assert {array.dtype for array in session.state.trainable.values()} == {np.dtype(np.float64)}
        assert {segment.dtype for segments in session.state.moments for segment in segments} <= {np.dtype(np.float64)}
        session.save_checkpoint(tmp_path / "saved", include_optimizer_state=True)
        session.export(tmp_path / "trained.onnx")
        wanted, going_on = session.predict(**feeds)[0], step(session, feeds, target)
    with ortrain.TrainingSession.from_artifacts(tmp_path, checkpoint=tmp_path / "saved") as session:
        assert step(session, feeds, target) == going_on
    assert equal_except_weights(onnx.load(tmp_path / "trained.onnx"), model)
    np.testing.assert_array_equal(ortrain.InferenceSession(tmp_path / "trained.onnx").run(None, feeds)[0], wanted)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_a_float64_model_agree_with_central_differences(name):
    model = in_half(MODELS[name](), "float64")
    feeds, target = feeds_of(model), TARGET.astype(np.float64)
    with start(model) as session:
        session.train_step(**feeds, target=target)
        gradients = {key: array.copy() for key, array in session.state.gradients.items()}
        random = np.random.default_rng(5)
        for key, array in session.state.trainable.items():
            direction, start_value = random.standard_normal(array.shape), array.copy()
            values = []
            for sign in (1, -1):
                array[...] = start_value + sign * 1e-6 * direction
                session.lazy_reset_grad()
                values.append(float(session.train_step(**feeds, target=target)[0]))
            array[...] = start_value
            assert (gradients[key] * direction).sum() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5, abs=1e-8)


def test_to_buffer_rejects_float64_parameters():
    with start(in_half(half_models.mlp(), "float64")) as session, pytest.raises(errors.ParameterTypeError, match="expected parameters of float32"):
        session.to_buffer()
