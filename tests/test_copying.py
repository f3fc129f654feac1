"""Sessions and states can be pickled and copied; a copy continues with the same bits, and independently."""

import copy
import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.errors import InvalidStateError, UseAfterRelease
from ortrain.runtime.options import SessionOptions
from ortrain.runtime.state import TrainingState
from ortrain.training.schedules import LinearSchedule

RNG = np.random.default_rng(0)
X, LABELS = RNG.standard_normal((8, 4)).astype(np.float32), RNG.integers(0, 3, 8)


def model():
    """A classifier with Dropout, whose masks depend on the seed and on the number of train steps."""
    arrays = {"w": RNG.standard_normal((4, 16)).astype(np.float32), "v": RNG.standard_normal((16, 3)).astype(np.float32), "ratio": np.float32(0.5),
              "mode": np.array(True)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Dropout", ["h", "ratio", "mode"], ["d"]),
             helper.make_node("MatMul", ["d", "v"], ["scores"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
                              [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def start(optimizer=OptimType.AdamW, **options):
    return ortrain.TrainingSession.from_model(model(), loss=LossType.CrossEntropyLoss, optimizer=optimizer, learning_rate=0.02,
                                              options=SessionOptions(**options))


def train(session, steps):
    losses = []
    for _ in range(steps):
        losses.append(float(session.train_step(X, LABELS)[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


COPIES = {"pickle": lambda session: pickle.loads(pickle.dumps(session)), "deepcopy": copy.deepcopy, "copy": copy.copy}


@pytest.mark.parametrize("options", [{}, {"optimizer_in_backward": True, "intra_op_num_threads": 1}], ids=["default", "optimizer in backward"])
@pytest.mark.parametrize("optimizer", [OptimType.AdamW, OptimType.SGD])
@pytest.mark.parametrize("way", COPIES)
def test_a_copied_session_continues_with_the_same_bits_and_on_its_own(way, optimizer, options):
    with start(optimizer, **options) as session:
        train(session, 3)
        session.properties["epoch"] = 3
        session.freeze("w")
        with COPIES[way](session) as twin:
            assert twin.learning_rate == session.learning_rate and twin.train_steps == session.train_steps and twin.options == session.options
            assert twin.properties == {"epoch": 3} and twin.state.masked == {"w"} and twin.state.optimizer_step == session.state.optimizer_step
            expected = train(session, 3)
            assert train(twin, 3) == expected
            np.testing.assert_array_equal(twin.to_buffer(), session.to_buffer())
            np.testing.assert_array_equal(twin.predict(X)[0], session.predict(X)[0])


def test_a_copied_session_keeps_its_schedule():
    with start() as session:
        session.register_schedule(LinearSchedule(2, 10, 0.1))
        train(session, 1)
        with copy.deepcopy(session) as twin:
            for each in (session, twin):
                train(each, 2)
                each.schedule_step()
            assert twin.learning_rate == session.learning_rate > 0


def test_a_session_with_gradients_is_refused_with_the_way_out():
    with start() as session:
        session.train_step(X, LABELS)
        with pytest.raises(InvalidStateError, match="lazy_reset_grad"):
            copy.deepcopy(session)
    with pytest.raises(UseAfterRelease, match="closed"):
        pickle.dumps(session)


@pytest.mark.parametrize("way", COPIES)
def test_a_copied_state_has_its_own_parameters(way):
    with start() as session:
        train(session, 2)
        state = COPIES[way](session.state)
        before = session.state.trainable["w"].copy()
        state.trainable["w"][...] = 0
        np.testing.assert_array_equal(session.state.trainable["w"], before)
        assert state.optimizer_step == 2 and isinstance(state, TrainingState)


@pytest.mark.parametrize("way", COPIES)
def test_the_objects_of_the_python_api_can_be_copied_together(way, tmp_path):
    onnx.save(model(), tmp_path / "model.onnx")
    generate_artifacts(tmp_path / "model.onnx", loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    parts = state, module, Optimizer(tmp_path / "optimizer_model.onnx", module)
    twins = pickle.loads(pickle.dumps(parts)) if way == "pickle" else copy.deepcopy(parts)
    results = []
    for state, module, optimizer in (parts, twins):
        for _ in range(2):
            module.train()
            module(X, LABELS)
            optimizer.step()
            module.lazy_reset_grad()
        results.append(np.array(state.parameters["w"].data))
    np.testing.assert_array_equal(*results)
