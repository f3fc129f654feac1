"""The training loop: every sample once per epoch, honest figures, and resumed runs that equal uninterrupted ones to the bit."""

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession, set_seed
from ortrain.artifacts import LossType, OptimType
from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.runtime.state import TrainingState
from ortrain.trainer import EpochRecord, Trainer, right_answers, save_learning_curve

FEATURES, CLASSES, SAMPLES = 6, 3, 50


def classifier(dropout: float = 0.0) -> onnx.ModelProto:
    """x [n, 6] -> scores [n, 3] through one hidden layer."""
    rng = np.random.default_rng(7)
    weights = {"w1": rng.standard_normal((FEATURES, 16)) * 0.4, "b1": np.zeros(16),
               "w2": rng.standard_normal((16, CLASSES)) * 0.4, "b2": np.zeros(CLASSES)}
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    nodes = [helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
    if dropout:
        initializers += [numpy_helper.from_array(np.float32(dropout), "ratio"), numpy_helper.from_array(np.bool_(True), "training")]
        nodes.append(helper.make_node("Dropout", ["r", "ratio", "training"], ["d"]))
    nodes.append(helper.make_node("Gemm", ["d" if dropout else "r", "w2", "b2"], ["scores"]))
    graph = helper.make_graph(nodes, "classifier", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def new_session(dropout: float = 0.0) -> TrainingSession:
    set_seed(3)
    weights = ["w1", "b1", "w2", "b2"]
    return TrainingSession.from_model(classifier(dropout), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=weights,
                                      additional_output_names=["scores"], learning_rate=0.02)


def reopened(session: TrainingSession, checkpoint) -> TrainingSession:
    """A fresh session on a checkpoint, with the models of another one."""
    set_seed(3)
    fresh = TrainingSession(session.training_model, TrainingState.load(checkpoint), session.eval_model, session.optimizer_model)
    fresh.learning_rate = 0.02
    return fresh


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    return x, (x @ rng.standard_normal((FEATURES, CLASSES))).argmax(1)


def weights_of(session):
    return {name: parameter.data.copy() for name, parameter in session.parameters}


def figures(history):
    """The records without the time they took."""
    return [(r.epoch, r.step, r.loss, r.accuracy, r.validation_loss, r.validation_accuracy, r.learning_rate) for r in history]


def test_training_learns_and_records_every_epoch(data):
    with new_session() as session:
        history = Trainer(session, progress=False).fit(*data, 25, 16, validation=data)
    assert [r.epoch for r in history] == list(range(1, 26))
    assert history[-1].step == 25 * 4, "50 samples in batches of 16: the last one is short"
    assert history[-1].validation_loss < 0.5 * history[0].loss
    assert history[-1].validation_accuracy > 0.9
    assert all(r.seconds >= 0 for r in history)


def test_every_sample_is_seen_once_an_epoch_in_an_order_of_its_own(data, monkeypatch):
    with new_session() as session:
        seen = []
        monkeypatch.setattr(session, "train_step", lambda x, y: seen.append(x.copy()) or [np.float32(1)])
        monkeypatch.setattr(session, "optimizer_step", lambda: None)
        Trainer(session, progress=False, seed=5).fit(*data, 2, 16)
    assert [len(x) for x in seen] == [16, 16, 16, 2] * 2
    first, second = np.concatenate(seen[:4]), np.concatenate(seen[4:])
    assert not np.array_equal(first, second)
    for epoch in (first, second):
        np.testing.assert_array_equal(np.sort(epoch, axis=0), np.sort(data[0], axis=0))


def test_evaluation_does_not_depend_on_the_batch_size(data):
    with new_session() as session:
        trainer = Trainer(session, progress=False)
        whole, pieces = trainer.evaluate(*data, batch_size=SAMPLES), trainer.evaluate(*data, batch_size=7)
        loss = session.eval_step(*data)[0]
    assert whole.loss == pytest.approx(float(loss), rel=1e-6) and pieces.loss == pytest.approx(whole.loss, rel=1e-5)
    assert pieces.accuracy == whole.accuracy


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("linear_schedule", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(data, tmp_path, dropout, linear_schedule):
    how = {"progress": False, "seed": 11, "linear_schedule": linear_schedule, "warmup_steps": 3}
    with new_session(dropout) as session:
        straight = Trainer(session, **how).fit(*data, 5, 16, validation=data)
        expected = weights_of(session)
    with new_session(dropout) as session:
        # a callback ends training as a crash would: the schedule still spans five epochs
        Trainer(session, checkpoint=tmp_path / "c", **how).fit(*data, 5, 16, validation=data, callbacks=[lambda _, r: r.epoch == 2])
        with reopened(session, tmp_path / "c") as fresh:
            trainer = Trainer(fresh, resume=True, **how)
            assert (trainer.epoch, trainer.step) == (2, 8)
            resumed = trainer.fit(*data, 5, 16, validation=data)
            found = weights_of(fresh)
    assert figures(resumed) == figures(straight)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_the_checkpoint_says_how_far_training_came(data, tmp_path):
    with new_session() as session:
        trainer = Trainer(session, checkpoint=tmp_path / "c", progress=False)
        trainer.fit(*data, 3, 16)
    properties = TrainingState.load(tmp_path / "c").properties
    assert (properties["epoch"], properties["step"], properties["seed"]) == (3, 12, 0)
    assert properties["best_loss"] == pytest.approx(trainer.best_loss, rel=1e-6)
    assert trainer.best_loss == min(r.loss for r in trainer.history)
    assert [p.name for p in tmp_path.iterdir()] == ["c"], "no temporary files are left"


def test_data_may_be_named(data):
    x, y = data
    with new_session() as session, new_session() as other:
        named = Trainer(session, progress=False).fit({"x": x}, {"labels": y}, 1)
        assert figures(named) == figures(Trainer(other, progress=False).fit([x], [y], 1))


def test_a_linear_schedule_ends_near_zero(data):
    with new_session() as session:
        history = Trainer(session, progress=False, linear_schedule=True, warmup_steps=2).fit(*data, 2, 25)
    assert [r.learning_rate for r in history] == pytest.approx([0.01, 0.01])


def test_what_does_not_fit_is_refused(data):
    x, y = data
    with new_session() as session:
        trainer = Trainer(session, progress=False)
        before = weights_of(session)
        unfit = [(x, y[:-1], 1), (x[:0], y[:0], 1), (x, y, 0), (x, y, 1, 0), ([x, x], y, 1), ({"y": x}, y, 1), (x, np.int64(1), 1)]
        for arguments in unfit:
            with pytest.raises(InvalidArgumentError, match="expected"):
                trainer.fit(*arguments)
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            trainer.evaluate(x, y, 0)
        with pytest.raises(InvalidArgumentError, match="seed"):
            Trainer(session, seed=-1)
        with pytest.raises(InvalidStateError, match="a Trainer wrote"):
            Trainer(session, resume=True)
        for name, array in weights_of(session).items():
            np.testing.assert_array_equal(array, before[name])


def test_a_run_is_resumed_with_its_own_seed_only(data, tmp_path):
    with new_session() as session:
        Trainer(session, checkpoint=tmp_path / "c", progress=False, seed=1).fit(*data, 1)
        with reopened(session, tmp_path / "c") as fresh, pytest.raises(InvalidArgumentError, match="expected the seed 1"):
            Trainer(fresh, resume=True, seed=2)


def test_a_loss_that_is_not_finite_ends_training_and_keeps_the_checkpoint(data, tmp_path):
    x, y = data
    with new_session() as session:
        trainer = Trainer(session, checkpoint=tmp_path / "c", progress=False)
        trainer.fit(x, y, 1)
        session.parameters["b2"].data[0] = np.nan
        good, weights = (tmp_path / "c").read_bytes(), weights_of(session)
        with pytest.raises(InvalidStateError, match="finite loss"):
            trainer.fit(x, y, 2)
        assert (tmp_path / "c").read_bytes() == good
        for name, array in weights_of(session).items():
            np.testing.assert_array_equal(array, weights[name])


def test_plain_lines_without_tqdm(data, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with new_session() as session:
        Trainer(session).fit(*data, 2, validation=data)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch 1", "epoch 2"]
    assert all("accuracy" in line and "validation loss" in line for line in lines)


def test_a_bar_with_tqdm(data, capsys):
    pytest.importorskip("tqdm")
    with new_session() as session:
        Trainer(session).fit(*data, 1)
    assert "epoch 1/1: 100%" in capsys.readouterr().err


def record(epoch: int, accuracy: float | None = None) -> EpochRecord:
    return EpochRecord(epoch, epoch, 1 / epoch, accuracy, None, None, 0.1, 1.0)


@pytest.mark.parametrize("accuracy", [None, 0.5])
def test_a_learning_curve_is_a_picture(accuracy, tmp_path):
    pytest.importorskip("matplotlib")
    assert save_learning_curve([record(1, accuracy), record(2, accuracy)], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_no_learning_curve_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not save_learning_curve([record(1)], tmp_path / "curve.png")
    assert not list(tmp_path.iterdir())


def test_accuracy_is_counted_over_every_label():
    scores = np.zeros((2, 3, 4), np.float32)
    scores[:, 1] = 1
    labels = np.array([[1, 1, 0, 2], [1, 1, 1, 1]])
    assert right_answers([np.zeros(2), scores], labels) == (6, 8)
    assert right_answers([scores], labels.astype(np.float32)) is None
    assert right_answers([np.zeros((2, 3))], labels) is None
