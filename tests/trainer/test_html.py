"""Models and sessions as HTML."""

from xml.etree import ElementTree

import numpy as np

from tests.trainer.fakes import new_session


def cells(html):
    return [[cell.text for cell in row] for row in ElementTree.fromstring(html).iter("tr")]


def test_a_session_shows_parameters_inputs_and_optimizer():
    with new_session(learning_rate=0.02) as session:
        session.freeze("body.bias")
        html = session._repr_html_()
    rows = cells(html)
    assert ["body.bias", "float32", "[16]", "16", "frozen for now"] in rows
    assert ["head.weight", "float32", "[16, 3]", "48", "trained"] in rows
    assert ["input", "x", "float32", "[n, 6]"] in rows and ["output", "scores", "float32", "[n, 3]"] in rows
    assert ["optimizer", "AdamWOptimizer, learning rate 0.02, 0 completed steps"] in rows
    assert ["parameters", "147 numbers in training, in 4 tensors in all"] in rows


def test_a_closed_session_and_one_without_optimizer_are_shown():
    session = new_session()
    session.close()
    assert ["eval model", "present"] in cells(session._repr_html_())


def test_a_model_shows_operators_and_initializers():
    with new_session() as session:
        session.train_step(np.ones((2, 6), np.float32), np.array([0, 1]))
        rows = cells(session.inference_model()._repr_html_())
    assert ["Gemm", "2"] in rows and ["Relu", "1"] in rows
    assert ["body.weight", "float32", "[6, 16]", "96"] in rows


def test_names_are_escaped():
    with new_session("<script>alert('&')</script>") as session:
        for html in (session._repr_html_(), session.inference_model()._repr_html_()):
            assert "<script" not in html
            assert any("<script>alert('&')</script>" in row for row in cells(html))
