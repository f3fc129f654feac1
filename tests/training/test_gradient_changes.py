"""Clipping, scaling and the norm of gradients, without an artifact for it."""

import numpy as np
import pytest

from ortrain import errors
from ortrain.onnxblock import optim
from tests.test_optimizer_in_backward import assert_same
from tests.training.test_optimizers import BATCHES, session_of, train, wide


def norm_of(session):
    return float(np.sqrt(sum((array.astype(float) ** 2).sum() for name, array in session.state.gradients.items() if name not in session.state.masked)))


def test_clipping_by_the_norm_equals_clipping_in_the_optimizer_model():
    with session_of(optim.AdamW(clip_grad=optim.ClipGradNorm(0.05)), wide()) as in_model, session_of("adamw", wide()) as session:
        session.clip_norm = 0.05
        train(in_model)
        train(session)
        assert_same(in_model, session)
        assert session.last_gradient_norm == in_model.last_gradient_norm > 0.05


def test_the_norm_of_the_gradients_is_that_of_the_train_step():
    with session_of("adamw", wide()) as session:
        session.train_step(*BATCHES[0])
        assert session.gradient_norm() == pytest.approx(norm_of(session), rel=1e-6) and session.gradient_norm() > 0
        session.freeze("w1")
        whole = session.gradient_norm()
        session.unfreeze("w1")
        assert whole < session.gradient_norm()


def test_clipping_limits_the_norm_and_each_value():
    with session_of("sgd", rate=1.0) as session:
        session.clip_norm = 0.01
        before = {name: array.copy() for name, array in session.state.trainable.items()}
        train(session, BATCHES[:1])
        change = np.concatenate([(array - before[name]).ravel() for name, array in session.state.trainable.items()])
        assert np.linalg.norm(change) == pytest.approx(0.01, rel=1e-3)
        session.clip_norm, session.clip_value = None, 1e-4
        before = {name: array.copy() for name, array in session.state.trainable.items()}
        train(session, BATCHES[:1])
        change = np.concatenate([(array - before[name]).ravel() for name, array in session.state.trainable.items()])
        assert abs(change).max() == pytest.approx(1e-4, rel=1e-2)


def test_accumulated_micro_batches_train_like_one_large_batch():
    x, labels = BATCHES[0]
    with session_of("adamw") as whole, session_of("adamw") as parts:
        parts.gradient_scale = 1 / 3
        for _ in range(4):
            train(whole, BATCHES[:1])
            for start in range(0, 24, 8):
                parts.train_step(x[start : start + 8], labels[start : start + 8])
            parts.optimizer_step()
            parts.lazy_reset_grad()
        for name, array in whole.state.trainable.items():
            np.testing.assert_allclose(parts.state.trainable[name], array, rtol=1e-4, atol=1e-5)


def test_scaling_comes_before_clipping():
    with session_of("sgd", rate=1.0) as session:
        session.train_step(*BATCHES[0])
        norm = session.gradient_norm()
        session.gradient_scale, session.clip_norm = 0.5, norm
        session.optimizer_step()
        assert session.last_gradient_norm == pytest.approx(norm / 2, rel=1e-6)


@pytest.mark.parametrize("setting, value", [("clip_norm", 0.05), ("clip_value", 1e-3), ("gradient_scale", 0.5)])
def test_a_setting_made_after_a_train_step_counts_for_its_deferred_gradients(setting, value):
    with session_of("adamw", wide()) as late, session_of("adamw", wide()) as early:
        train(late, BATCHES[:2])
        train(early, BATCHES[:2])
        late.train_step(*BATCHES[2])
        assert late.steps.pending is not None
        setattr(late, setting, value)
        late.optimizer_step()
        setattr(early, setting, value)
        early.train_step(*BATCHES[2])
        early.optimizer_step()
        assert_same(late, early)
        setattr(late, setting, 1.0 if setting == "gradient_scale" else None)
        late.lazy_reset_grad()
        train(late)


def test_settings_do_not_survive_by_the_fast_path():
    with session_of("sgd", rate=1.0) as session, session_of("sgd", rate=1.0) as other:
        for each in (session, other):
            train(each, BATCHES[:2])
        session.gradient_scale = 0.25
        before = {name: array.copy() for name, array in session.state.trainable.items()}
        for each in (session, other):
            train(each, BATCHES[2:3])
        for name, array in session.state.trainable.items():
            np.testing.assert_allclose(array - before[name], (other.state.trainable[name] - before[name]) / 4, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("setting", ["clip_norm", "clip_value", "gradient_scale"])
def test_limits_that_make_no_sense_are_refused(setting):
    with session_of("adamw") as session:
        before = getattr(session, setting)
        for value in (0, -1.0, float("nan"), float("inf")):
            with pytest.raises(errors.InvalidArgumentError, match=setting):
                setattr(session, setting, value)
        for value in ("1", True, [1.0]):
            with pytest.raises(errors.ArgumentTypeError, match=setting):
                setattr(session, setting, value)
        assert getattr(session, setting) == before
    with session_of("adamw", optimizer_in_backward=True) as session, pytest.raises(errors.InvalidArgumentError, match="optimizer_in_backward"):
        setattr(session, setting, 0.5)


def test_without_gradients_there_is_no_norm():
    with session_of("adamw", optimizer_in_backward=True) as session, pytest.raises(errors.InvalidStateError, match="optimizer_in_backward"):
        session.gradient_norm()
