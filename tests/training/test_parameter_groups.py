"""Parameter groups: learning rates, weight decay and freezing by name, in every way of updating, and in checkpoints."""

import json

import numpy as np
import pytest

import ortrain
from ortrain import ParameterGroup, TrainingSession, errors
from ortrain.onnxblock import optim
from ortrain.runtime.state import TrainingState
from ortrain.training.parameter_groups import PROPERTY, discriminative_groups, no_decay_groups
from tests.test_optimizer_in_backward import assert_same
from tests.trainer.models import classifier, samples
from tests.training.test_optimizers import BATCHES, session_of, small, train, wide

GROUPS = [ParameterGroup("w0", learning_rate_scale=0.5, weight_decay=0.1), ParameterGroup(["w?"], learning_rate_scale=2.0)]


def weights(session):
    return {name: array.copy() for name, array in session.state.trainable.items()}


def test_parameters_are_updated_with_the_settings_of_their_group():
    """Each parameter ends as in a session that uses its settings for all."""
    with session_of(optim.AdamW(weight_decay=0.01)) as grouped, session_of(optim.AdamW(weight_decay=0.1), rate=0.0015) as first, \
            session_of(optim.AdamW(weight_decay=0.01), rate=0.006) as second:
        grouped.set_parameter_groups(GROUPS)
        for session in (grouped, first, second):
            train(session, BATCHES[:1])
        np.testing.assert_array_equal(grouped.state.trainable["w0"], first.state.trainable["w0"])
        np.testing.assert_array_equal(grouped.state.trainable["w1"], second.state.trainable["w1"])
        assert grouped.learning_rate == 0.003


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "adafactor", "muon", "sgd with momentum"])
def test_every_way_of_updating_uses_the_groups(optimizer):
    with session_of(optimizer, wide()) as kept, session_of(optimizer, wide()) as deferred, session_of(optimizer, wide()) as plain:
        for session in (kept, deferred):
            session.set_parameter_groups([*GROUPS, ParameterGroup("w*", frozen=True)])
            session.keep_gradients() if session is kept else None
        for session in (kept, deferred, plain):
            train(session)
        assert deferred._train_runner.last.deferred_names
        assert_same(kept, deferred)
        assert not np.array_equal(kept.state.trainable["w0"], plain.state.trainable["w0"])
    with session_of(optimizer) as separate, session_of(optimizer, optimizer_in_backward=True) as fused:
        for session in (separate, fused):
            session.set_parameter_groups(GROUPS)
            train(session)
        assert_same(separate, fused)


def test_the_first_matching_group_wins_and_other_parameters_are_updated_as_before():
    with session_of("adamw") as session, session_of("adamw") as plain:
        session.set_parameter_groups([ParameterGroup("w0", learning_rate_scale=0.0), ParameterGroup(["w0", "*0"], learning_rate_scale=5.0)])
        before = weights(session)
        train(session, BATCHES[:1])
        train(plain, BATCHES[:1])
        np.testing.assert_array_equal(session.state.trainable["w0"], before["w0"])
        np.testing.assert_array_equal(session.state.trainable["w1"], plain.state.trainable["w1"])


def test_a_frozen_group_keeps_its_values_until_the_groups_change():
    with session_of("adamw") as session:
        session.freeze("w1")
        session.set_parameter_groups([ParameterGroup("w0", frozen=True)])
        before = weights(session)
        train(session)
        assert all(np.array_equal(before[name], array) for name, array in session.state.trainable.items())
        session.set_parameter_groups([])
        train(session)
        assert not np.array_equal(before["w0"], session.state.trainable["w0"]) and np.array_equal(before["w1"], session.state.trainable["w1"])


def test_changing_groups_between_steps_changes_later_steps_only():
    with session_of("adamw") as session, session_of("adamw") as other:
        for each in (session, other):
            train(each, BATCHES[:2])
        session.set_parameter_groups(GROUPS)
        session.set_parameter_groups([])
        for each in (session, other):
            train(each, BATCHES[2:])
        assert_same(session, other)


def test_groups_survive_in_a_checkpoint(tmp_path):
    with session_of("adamw") as whole, session_of("adamw") as first:
        for session in (whole, first):
            session.set_parameter_groups([*GROUPS[:1], ParameterGroup("w1", frozen=True)])
        train(whole)
        train(first, BATCHES[:2])
        first.save_artifacts(tmp_path)
    with TrainingSession(tmp_path / "training_model.onnx", TrainingState.load(tmp_path / "checkpoint")) as second:
        second.load_optimizer(tmp_path / "optimizer_model.onnx")
        assert second.parameter_groups == whole.parameter_groups and second.state.masked == {"w1"}
    with TrainingSession.from_artifacts(tmp_path) as second:
        assert second.parameter_groups == whole.parameter_groups and second.state.masked == {"w1"}
        second.learning_rate = 0.003
        train(second, BATCHES[2:])
        assert_same(whole, second)


def test_a_damaged_property_is_refused(tmp_path):
    with session_of("adamw") as session:
        session.save_artifacts(tmp_path)
    for text in ("[", '[{"names": 5}]', "3", json.dumps([{"names": ["w0"], "momentum": 1}])):
        state = TrainingState.load(tmp_path / "checkpoint")
        state.set_property(PROPERTY, text)
        with pytest.raises(errors.InvalidCheckpointError, match="expected parameter groups in the property"):
            TrainingSession(tmp_path / "training_model.onnx", state, None, tmp_path / "optimizer_model.onnx")


def test_a_pattern_without_a_match_is_refused_with_close_names():
    with session_of("adamw") as session:
        session.set_parameter_groups(GROUPS)
        with pytest.raises(errors.ParameterNotFoundError, match=r"Parameter w12 not found.*did you mean 'w1'"):
            session.set_parameter_groups([ParameterGroup("w12")])
        assert session.parameter_groups == GROUPS


def test_weight_decay_for_an_optimizer_without_one_is_refused():
    with session_of("sgd") as session, pytest.raises(errors.InvalidArgumentError, match="SGDOptimizerV2"):
        session.set_parameter_groups([ParameterGroup("w0", weight_decay=0.1)])


def test_loading_an_optimizer_without_weight_decay_keeps_the_old_one_while_a_group_needs_it():
    with session_of("adamw") as session, session_of("sgd") as other:
        session.set_parameter_groups(GROUPS)
        before = session.optimizer_model
        with pytest.raises(errors.InvalidArgumentError, match="SGDOptimizerV2"):
            session.load_optimizer(other.optimizer_model)
        assert session.optimizer_model is before and session.parameter_groups == GROUPS
        train(session)


@pytest.mark.parametrize("arguments, error", [
    ({"names": "w0", "learning_rate_scale": -1}, errors.InvalidArgumentError),
    ({"names": "w0", "learning_rate_scale": float("nan")}, errors.InvalidArgumentError),
    ({"names": "w0", "weight_decay": float("inf")}, errors.InvalidArgumentError), ({"names": []}, errors.ArgumentTypeError),
    ({"names": [3]}, errors.ArgumentTypeError), ({"names": "w0", "frozen": 1}, errors.ArgumentTypeError),
    ({"names": "w0", "weight_decay": "0"}, errors.ArgumentTypeError),
])
def test_invalid_groups_are_refused(arguments, error):
    with pytest.raises(error):
        ParameterGroup(**arguments)


def test_what_is_no_group_is_refused():
    with session_of("adamw") as session, pytest.raises(errors.ArgumentTypeError, match="ParameterGroup"):
        session.set_parameter_groups(["w0"])
    with TrainingSession.from_model(small(), loss=ortrain.artifacts.LossType.CrossEntropyLoss, requires_grad=["w0"]) as session, \
            pytest.raises(errors.InvalidStateError, match="optimizer"):
        session.set_parameter_groups(GROUPS)


def test_biases_and_normalizations_are_exempt_from_weight_decay_by_one_call():
    names = ["conv.weight", "conv.bias", "LayerNorm.weight", "norm1.weight", "head"]
    (group,) = no_decay_groups(names)
    assert group == ParameterGroup(("*bias", "*norm*", "*Norm*"), weight_decay=0.0)
    assert no_decay_groups(["w0"]) == []
    with session_of("adamw") as session:
        assert no_decay_groups(session, ["w1"]) == [ParameterGroup("w1", weight_decay=0.0)]


def test_discriminative_groups_let_learning_rates_fall_towards_the_input():
    with TrainingSession.from_model(classifier(), loss="cross-entropy", optimizer="sgd", learning_rate=0.1) as session:
        groups = discriminative_groups(session, factor=0.1, groups=2)
        assert [(group.names, group.learning_rate_scale) for group in groups] == [(("hidden.weight", "hidden.bias"), 0.1), (("head.weight", "head.bias"), 1.0)]
        session.set_parameter_groups(groups)
        before = {name: parameter.data.copy() for name, parameter in session.parameters}
        session.train_step(*samples())
        session.keep_gradients()
        gradients = {name: parameter.grad.copy() for name, parameter in session.parameters}
        session.optimizer_step()
        for name, rate in (("hidden.weight", 0.01), ("head.weight", 0.1)):
            np.testing.assert_allclose(session.parameters[name].data, before[name] - rate * gradients[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("wrong", [{"factor": 0}, {"factor": float("nan")}, {"groups": 0}, {"groups": True}])
def test_discriminative_groups_refuse_numbers_out_of_range(wrong):
    session = TrainingSession.from_model(classifier(), loss="cross-entropy", optimizer="sgd")
    with pytest.raises(errors.InvalidArgumentError, match="expected"):
        discriminative_groups(session, **wrong)
