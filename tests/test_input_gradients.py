"""Gradients of inputs match central differences and leave the session unchanged."""

from pathlib import Path

import numpy as np
import pytest

import ortrain
from ortrain import errors

CASE = Path(__file__).parent / "data" / "ort_golden" / "mlp_ce"


@pytest.fixture
def session():
    with ortrain.TrainingSession.from_artifacts(CASE) as created:
        yield created


@pytest.fixture
def batch():
    inputs = np.load(CASE / "inputs.npz")
    return inputs["train0.x"], inputs["train0.labels"]


def test_input_gradient_matches_central_difference(session, batch):
    x, labels = batch
    gradients = session.input_gradients(x, labels)
    assert list(gradients) == ["x"] and gradients["x"].shape == x.shape
    direction = np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
    h = np.float32(1e-2)
    difference = (session.eval_step(x + h * direction, labels)[0] - session.eval_step(x - h * direction, labels)[0]) / (2 * h)
    assert float((gradients["x"] * direction).sum()) == pytest.approx(float(difference), rel=2e-3)
    assert np.array_equal(session.input_gradients(x, labels=labels, names=["x"])["x"], gradients["x"])


def test_input_gradients_leave_parameters_and_gradients_unchanged(session, batch):
    session.train_step(*batch)
    before = {name: (session.parameters[name].data.copy(), session.state.gradients[name].copy()) for name in session.state.trainable}
    session.input_gradients(*batch)
    for name, (value, gradient) in before.items():
        assert np.array_equal(session.parameters[name].data, value) and np.array_equal(session.state.gradients[name], gradient)


@pytest.mark.parametrize(("names", "error"), [(["nothing"], errors.InvalidArgumentError), (["fc1.weight"], errors.InvalidArgumentError),
                                             (["labels"], errors.UnreachableParameterError)])
def test_names_without_gradient_are_rejected(session, batch, names, error):
    with pytest.raises(error):
        session.input_gradients(*batch, names=names)
