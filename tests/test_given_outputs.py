"""Outputs in arrays of the caller: steps compute there where nothing else can see it, and results are those of new arrays wherever the array lies."""

from __future__ import annotations

import numpy as np
import pytest

import ortrain
from ortrain import errors
from tests.test_session import batch, start

ROWS = 8
SCORES = 1


def train(session, values, scores=None) -> np.ndarray:
    """Return the scores of a train step as bytes, computed in the given array."""
    return session.train_step(*values, out=[None, scores])[SCORES].tobytes()


@pytest.fixture
def values():
    x, labels = batch()
    return np.tile(x, (ROWS, 1))[:ROWS], np.tile(labels, ROWS)[:ROWS]


@pytest.fixture
def session():
    with start(additional_output_names=["output"]) as session:
        yield session


@pytest.fixture
def expected(values):
    with start(additional_output_names=["output"]) as other:
        return [train(other, values) for _ in range(3)]


def scores_in(memory: np.ndarray) -> np.ndarray:
    """Return an array of scores at the start of some memory."""
    return memory.reshape(-1)[: ROWS * 4].reshape(ROWS, 4)


def test_arrays_may_change_from_step_to_step(session, values, expected):
    arrays = [np.zeros((ROWS, 4), np.float32), None, np.zeros((ROWS, 4), np.float32)]
    assert [train(session, values, array) for array in arrays] == expected
    assert arrays[0].tobytes() == arrays[2].tobytes() == expected[0]          # later steps do not write to the array of an earlier one


@pytest.mark.parametrize("part", ["data", "grad"])
def test_a_parameter_may_lie_in_the_array_of_an_output(session, values, part, name="fc2.weight"):
    with start(additional_output_names=["output"]) as other:
        for each in (session, other):
            train(each, values)
        expected = train(other, values), {key: parameter.grad.copy() for key, parameter in other.parameters.items()}
        assert train(session, values, scores_in(getattr(session.parameters[name], part))) == expected[0]
        for key, parameter in session.parameters.items():
            if (key, part) != (name, "grad"):
                np.testing.assert_array_equal(parameter.grad, expected[1][key])


def test_an_input_may_lie_in_the_array_of_an_output(session, values, expected):
    train(session, values)
    gradients = {key: parameter.grad.copy() for key, parameter in session.parameters.items()}
    memory = np.zeros(values[0].size + 64, np.float32)
    x = memory[16 : 16 + values[0].size].reshape(values[0].shape)
    for shift in (0, 16, 24):
        x[...] = values[0]
        session.lazy_reset_grad()
        assert train(session, (x, values[1]), scores_in(memory[shift:])) == expected[0]
        for key, parameter in session.parameters.items():
            np.testing.assert_array_equal(parameter.grad, gradients[key])


def test_arrays_of_two_outputs_may_overlap(session, values, expected):
    memory = np.zeros((ROWS, 4), np.float32)
    loss, scores = session.train_step(*values, out=[memory.reshape(-1)[:1].reshape(()), memory])
    assert loss == scores[0, 0] and scores.tobytes() == expected[0]           # the last output is written last


def test_refused_labels_leave_the_array_as_it_was(session, values):
    array = np.full((ROWS, 4), 7, np.float32)
    train(session, values)
    with pytest.raises(errors.LabelRangeError):
        train(session, (values[0], values[1] + 100), array)
    assert (array == 7).all()


def test_a_new_size_computes_in_the_array_of_its_rows(session, values):
    with start(additional_output_names=["output"]) as other:
        for rows in (8, 6, 7, 8):
            given = tuple(x[:rows] for x in values)
            assert train(session, given, np.zeros((rows, 4), np.float32)) == train(other, given)


def test_inference_computes_in_the_array_and_leaves_it_afterwards(tmp_path, session, values):
    session.export(tmp_path / "model.onnx", ["output"])
    inference = ortrain.InferenceSession(tmp_path / "model.onnx")
    name = inference.get_inputs()[0].name
    expected = inference.run(None, {name: values[0]})[0]
    array = np.zeros_like(expected)
    assert inference.run(None, {name: values[0]}, out=[array])[0] is array
    np.testing.assert_array_equal(array, expected)
    kept = array.copy()
    inference.run(None, {name: values[0] * 2})
    np.testing.assert_array_equal(array, kept)
