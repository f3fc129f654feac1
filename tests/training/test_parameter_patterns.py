"""Patterns and "head" wherever parameters are named, and flat buffers of parameters."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ortrain import SessionOptions, TrainingSession, errors
from ortrain.artifacts import LossType, build_artifacts, generate_artifacts
from ortrain.ir.globs import expand, matching
from ortrain.loading.loader import load_model
from ortrain.passes.head import head_parameters
from ortrain.runtime.state import TrainingState
from tests.test_optimizer_in_backward import assert_same
from tests.test_session import DATA
from tests.training.test_optimizers import BATCHES, session_of, small, train


def network(pooled=True):
    """Return a convolution and two dense layers, of which the second is a MatMul and an Add; the first weight's name looks like a pattern."""
    rng = np.random.default_rng(3)
    nodes = [helper.make_node("Conv", ["x", "body.conv[0].weight", "body.conv[0].bias"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    nodes += [helper.make_node("GlobalAveragePool", ["b"], ["p"]), helper.make_node("Reshape", ["p", "shape"], ["c"])] if pooled \
        else [helper.make_node("ReduceMean", ["b"], ["c"], axes=[2, 3], keepdims=0)]
    nodes += [helper.make_node("Gemm", ["c", "fc1.weight", "fc1.bias"], ["d"], transB=1), helper.make_node("MatMul", ["d", "fc2.weight"], ["e"]),
              helper.make_node("Add", ["e", "fc2.bias"], ["y"])]
    shapes = {"body.conv[0].weight": (6, 3, 3, 3), "body.conv[0].bias": (6,), "fc1.weight": (5, 6), "fc1.bias": (5,), "fc2.weight": (5, 4), "fc2.bias": (4,)}
    weights = [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name) for name, shape in shapes.items()]
    weights.append(numpy_helper.from_array(np.array([-1, 6], np.int64), "shape"))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 3, 8, 8])], [helper.make_tensor_value_info("y", 1, ["n", 4])],
                              weights if pooled else weights[:-1])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NAMES = ["body.conv[0].weight", "body.conv[0].bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
BEHIND_POOLING, LAST_DENSE = NAMES[2:], NAMES[4:]


def trained_by(model=None, **arguments):
    return list(build_artifacts(model or network(), loss=LossType.CrossEntropyLoss, optimizer="adamw", **arguments).checkpoint.trainable)


def test_patterns_stand_for_the_names_that_they_match_in_order_and_once():
    assert expand(["*bias", "fc1*"], NAMES, "names") == ["body.conv[0].bias", "fc1.bias", "fc2.bias", "fc1.weight"]
    assert expand("fc?.weight", NAMES, "names") == ["fc1.weight", "fc2.weight"]
    assert matching("FC*", NAMES) == []


def test_a_name_with_brackets_stands_for_itself():
    assert matching("body.conv[0].weight", NAMES) == ["body.conv[0].weight"]
    assert matching("body.conv[[]0].*", NAMES) == NAMES[:2]


def test_a_pattern_that_matches_nothing_is_refused_with_close_names():
    with pytest.raises(errors.ParameterNotFoundError, match=r"Parameter fc1.wieght not found.*'fc1.weight'"):
        expand("fc1.wieght", NAMES, "names")
    with pytest.raises(errors.ArgumentTypeError):
        expand([3], NAMES, "names")


def test_artifacts_train_what_patterns_match(tmp_path):
    assert trained_by(requires_grad=["fc*"]) == BEHIND_POOLING
    assert trained_by(requires_grad=["*"]) == trained_by() == NAMES
    assert trained_by(requires_grad=["fc2.bias", "body.conv[0].weight"]) == ["body.conv[0].weight", "fc2.bias"]
    generate_artifacts(network(), loss=LossType.CrossEntropyLoss, optimizer="sgd", requires_grad=["*.bias"], artifact_directory=tmp_path)
    with TrainingSession.from_artifacts(tmp_path) as session:
        assert set(session.state.trainable) == {name for name in NAMES if name.endswith("bias")}


def test_frozen_patterns_are_exempt_from_trained_patterns():
    made = build_artifacts(network(), loss=LossType.CrossEntropyLoss, optimizer="adamw", requires_grad=["*"], frozen_params=["body.*"])
    assert list(made.checkpoint.trainable) == BEHIND_POOLING and list(made.checkpoint.frozen) == NAMES[:2]
    assert trained_by(frozen_params=["fc*"]) == NAMES[:2]


def test_a_name_that_is_trained_and_matched_by_a_frozen_pattern_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="cannot be frozen and require gradient"):
        trained_by(requires_grad=["fc1.bias"], frozen_params=["fc1.*"])


def test_artifacts_refuse_patterns_that_match_nothing():
    for arguments in ({"requires_grad": ["fc3*"]}, {"frozen_params": ["fc3*"]}):
        with pytest.raises(errors.ParameterNotFoundError, match=r"fc3\*"):
            trained_by(**arguments)


def test_the_head_is_what_comes_after_the_last_pooling_or_else_the_last_dense_layer():
    assert head_parameters(load_model(network()), NAMES) == BEHIND_POOLING
    assert head_parameters(load_model(network(pooled=False)), NAMES) == LAST_DENSE
    assert trained_by(requires_grad=["head"]) == BEHIND_POOLING
    assert trained_by(network(pooled=False), requires_grad=["head"]) == LAST_DENSE


def test_the_head_is_found_in_a_training_model_alone():
    for pooled, head in ((True, BEHIND_POOLING), (False, LAST_DENSE)):
        made = build_artifacts(network(pooled), loss=LossType.CrossEntropyLoss, optimizer="adamw")
        with TrainingSession(made.training, TrainingState(made.checkpoint)) as session:
            session.freeze("head")
            assert session.state.masked == set(head)


def test_a_model_without_a_head_is_refused():
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    values = [helper.make_tensor_value_info(name, 1, ["n", 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(np.ones(3, np.float32), "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(errors.InvalidArgumentError, match="to have a head"):
        trained_by(model, requires_grad=["head"])


def test_a_parameter_named_head_is_meant_before_the_word():
    model = small()
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "head"
    assert trained_by(model, requires_grad=["head"]) == ["head"]


def test_sessions_freeze_and_unfreeze_by_pattern():
    with TrainingSession.from_model(network(), loss=LossType.CrossEntropyLoss, optimizer="adamw") as session:
        session.freeze("body.*", "fc1.bias")
        assert session.state.masked == {*NAMES[:2], "fc1.bias"}
        session.unfreeze("*.bias")
        assert session.state.masked == {NAMES[0]}
        session.freeze("*")
        session.unfreeze("head")
        assert session.state.masked == set(NAMES[:2])
        for wrong in ("fc3*", "fc1"):
            with pytest.raises(errors.ParameterNotFoundError, match="did you mean"):
                session.freeze("fc1.weight", wrong)
        assert session.state.masked == set(NAMES[:2])


def test_a_buffer_comes_back_to_a_session_with_frozen_parameters():
    frozen = {"frozen_params": ["body.*"], "loss": LossType.CrossEntropyLoss, "optimizer": "adamw"}
    with TrainingSession.from_model(network(), **frozen) as session, TrainingSession.from_model(network(), **frozen) as other:
        for array in (*session.state.trainable.values(), *session.state.frozen.values()):
            array += 1
        other.from_buffer(session.to_buffer())
        assert_same(session, other)
        for array in session.state.trainable.values():
            array += 1
        other.from_buffer(session.to_buffer(trainable_only=True))
        assert_same(session, other)
        with pytest.raises(errors.ParameterShapeError, match=r"Expected:59 \(trainable\) or 227 \(all\), Actual:3"):
            other.from_buffer(np.zeros(3, np.float32))
        with pytest.raises(errors.ParameterShapeError):
            other.from_buffer(session.to_buffer(), trainable_only=True)


def test_masks_by_pattern_hold_in_training():
    with session_of("lion") as session:
        session.freeze("*0")
        before = session.state.trainable["w0"].copy()
        train(session, BATCHES[:2])
        np.testing.assert_array_equal(session.state.trainable["w0"], before)
    with TrainingSession.from_artifacts(DATA / "mlp_ce", options=SessionOptions(optimizer_in_backward=True)) as session:
        session.freeze("*")
        assert session.state.masked == set(session.state.trainable)
