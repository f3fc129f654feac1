"""Text inputs: operators that convert text to numbers run before the program."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain import errors
from ortrain.artifacts import LossType, OptimType

WORDS = np.array([["red"], ["blue"], ["green"], ["pink"]], object)
WEIGHT = np.array([[0.5, -1.0, 2.0]], np.float32)


def model(nodes, domain="ai.onnx.ml", shape=("n", 1)):
    graph = helper.make_graph([*nodes, helper.make_node("MatMul", ["numbers", "w"], ["y"])], "g",
                              [helper.make_tensor_value_info("words", TensorProto.STRING, list(shape))],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 2)], ir_version=8)


def start(proto):
    return ortrain.TrainingSession.from_model(proto, loss=LossType.MSELoss, optimizer=OptimType.SGD)


def check(proto, words, numbers):
    target = np.zeros((len(words), 3), np.float32)
    with start(proto) as session:
        np.testing.assert_allclose(session.predict(words)[0], numbers @ WEIGHT, rtol=1e-6)
        loss = session.train_step(words, target)[0]
        np.testing.assert_allclose(loss, np.mean((numbers @ WEIGHT) ** 2), rtol=1e-5)
        np.testing.assert_allclose(session.parameters["w"].grad, numbers.T @ (2 * (numbers @ WEIGHT) / target.size), rtol=1e-5)


def test_cast_parses_numbers():
    cast = model([helper.make_node("Cast", ["words"], ["numbers"], to=TensorProto.FLOAT)])
    check(cast, np.array([["1.5"], ["-2"], ["3e2"]], object), np.array([[1.5], [-2], [300]], np.float32))
    check(cast, np.array([["1.5"], ["-2"]]), np.array([[1.5], [-2]], np.float32))


def test_words_are_encoded_as_labels():
    nodes = [helper.make_node("LabelEncoder", ["words"], ["ids"], domain="ai.onnx.ml", keys_strings=["red", "green", "blue"], values_int64s=[1, 2, 3],
                              default_int64=9), helper.make_node("Cast", ["ids"], ["numbers"], to=TensorProto.FLOAT)]
    check(model(nodes), WORDS, np.array([[1], [3], [2], [9]], np.float32))


def test_cast_rejects_text_that_is_not_a_number():
    with start(model([helper.make_node("Cast", ["words"], ["numbers"], to=TensorProto.FLOAT)])) as session, pytest.raises(errors.InputTypeError, match="red"):
        session.eval_step(WORDS, np.zeros((4, 3), np.float32))


def test_numbers_are_rejected_for_text_inputs():
    with start(model([helper.make_node("Cast", ["words"], ["numbers"], to=TensorProto.FLOAT)])) as session, pytest.raises(errors.InputTypeError):
        session.eval_step(np.zeros((4, 1), np.float32), np.zeros((4, 3), np.float32))


def test_text_is_normalized_and_filtered():
    nodes = [helper.make_node("StringNormalizer", ["words"], ["clean"], case_change_action="LOWER", stopwords=["the"], is_case_sensitive=0),
             helper.make_node("LabelEncoder", ["clean"], ["ids"], domain="ai.onnx.ml", keys_strings=["red", "blue"], values_int64s=[1, 2], default_int64=9),
             helper.make_node("Cast", ["ids"], ["column"], to=TensorProto.FLOAT),
             helper.make_node("Unsqueeze", ["column", "last"], ["numbers"])]
    graph = model(nodes, shape=("words",))
    graph.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    with start(graph) as session:
        np.testing.assert_allclose(session.predict(np.array(["Red", "THE", "blue"], object))[0], np.array([[1], [2]], np.float32) @ WEIGHT)
        before = session.eval_step(np.array(["Red", "THE", "blue"], object), np.zeros((2, 3), np.float32))[0]
        session.train_step(np.array(["Red", "THE", "blue"], object), np.zeros((2, 3), np.float32))
        session.optimizer_step()
        assert session.eval_step(np.array(["Red", "blue"], object), np.zeros((2, 3), np.float32))[0] < before
