"""Operators that users register as Python callables: they train like any other operator, and errors in them name the operator."""

import textwrap

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain import artifacts, errors
from ortrain.artifacts import LossType, OptimType

DOMAIN = "my.company"
X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
TARGET = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)


def power(x, exponent):
    return np.sign(x) * np.abs(x) ** x.dtype.type(exponent)


def power_gradient(gradients, inputs, outputs, exponent):
    (x,) = inputs
    return gradients[0] * x.dtype.type(exponent) * np.abs(x) ** x.dtype.type(exponent - 1)


def split_off(x):
    return x[:, :1].copy(), x[:, 1:].copy()


def model(op_type="SignedPower", outputs=1, **attributes):
    """Return a model whose output y is the last output of a custom operator on x w."""
    rng = np.random.default_rng(2)
    names = ["y"] if outputs == 1 else ["first", "y"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(op_type, ["h"], names, domain=DOMAIN, name="mine", **attributes)]
    weight = numpy_helper.from_array(rng.standard_normal((4, 3 if outputs == 1 else 4)).astype(np.float32), "w")
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)], ir_version=8)


def start(proto, **options):
    """Return a training session with a mean squared error loss and stochastic gradient descent."""
    return ortrain.TrainingSession.from_model(proto, loss=LossType.MSELoss, optimizer=OptimType.SGD, **options)


def plain_model():
    """Return the equivalent of model(exponent=2.0) built from ONNX operators."""
    proto = model(exponent=2.0)
    del proto.graph.node[1]
    proto.graph.node.extend([helper.make_node("Abs", ["h"], ["a"]), helper.make_node("Mul", ["h", "a"], ["y"])])
    return proto


def test_a_model_with_a_custom_operator_trains():
    ortrain.register_operator(DOMAIN, "SignedPower", power, gradient=power_gradient)
    with start(model(exponent=2.0)) as session, start(plain_model()) as plain:
        for _ in range(3):
            np.testing.assert_allclose(session.train_step(X, TARGET), plain.train_step(X, TARGET), rtol=1e-6)
            np.testing.assert_allclose(session.parameters["w"].grad, plain.parameters["w"].grad, rtol=1e-5, atol=1e-6)
            for each in (session, plain):
                each.optimizer_step()
                each.lazy_reset_grad()
        np.testing.assert_allclose(session.predict(X)[0], plain.predict(X)[0], rtol=1e-5)


def test_several_outputs_have_the_types_that_infer_returns():
    def infer(inputs):
        (dtype, (rows, columns)), = inputs
        return [(dtype, (rows, 1)), (dtype, (rows, columns - 1))]

    def gradient(gradients, inputs, outputs):
        first, rest = gradients
        assert first is None
        return np.concatenate([np.zeros_like(outputs[0]), rest], axis=1)

    ortrain.register_operator(DOMAIN, "SplitOff", split_off, gradient=gradient, infer=infer)
    with start(model("SplitOff", 2)) as session:
        loss = session.train_step(X, TARGET)[0]
        w = session.parameters["w"].data.copy()
        y = (X @ w)[:, 1:]
        np.testing.assert_allclose(loss, np.mean((y - TARGET) ** 2), rtol=1e-5)
        expected = np.concatenate([np.zeros((4, 1)), X.T @ (2 * (y - TARGET) / y.size)], axis=1)
        np.testing.assert_allclose(session.parameters["w"].grad, expected, rtol=1e-4, atol=1e-6)


def test_a_custom_operator_of_com_microsoft_accepts_inputs_of_different_types():
    def gradient(gradients, inputs, outputs):
        dx = np.zeros_like(inputs[0])
        dx[:, inputs[1]] = gradients[0]
        return dx, None

    ortrain.register_operator("com.microsoft", "PickColumns", lambda x, columns: x[:, columns], gradient=gradient,
                              infer=lambda inputs: [(inputs[0][0], (inputs[0][1][0], *inputs[1][1]))])
    proto = plain_model()
    columns = numpy_helper.from_array(np.array([2, 0, 1]), "columns")
    proto.graph.initializer.append(columns)
    proto.graph.node[2].output[0] = "z"
    proto.graph.node.append(helper.make_node("PickColumns", ["z", "columns"], ["y"], domain="com.microsoft"))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with start(proto) as session, start(plain_model()) as plain:
        np.testing.assert_allclose(session.train_step(X, TARGET[:, [2, 0, 1]]), plain.train_step(X, TARGET), rtol=1e-6)     # a sum in another order
        np.testing.assert_array_equal(session.parameters["w"].grad, plain.parameters["w"].grad)


def test_artifacts_load_custom_operators_from_a_python_file(tmp_path):
    library = tmp_path / "operators.py"
    library.write_text(textwrap.dedent(f"""
        import numpy as np
        import ortrain

        def gradient(gradients, inputs, outputs, factor):
            return gradients[0] * np.float32(factor)

        ortrain.register_operator({DOMAIN!r}, "Scaled", lambda x, factor: x * np.float32(factor), gradient=gradient)
    """))
    artifacts.generate_artifacts(model("Scaled", factor=0.5), loss=LossType.MSELoss, optimizer=OptimType.AdamW, requires_grad=["w"],
                                 artifact_directory=tmp_path, custom_op_library=library)
    options = ortrain.SessionOptions()
    options.register_custom_ops_library(library)
    with ortrain.TrainingSession.from_artifacts(tmp_path, options=options) as session:
        first = session.train_step(X, TARGET)[0]
        session.optimizer_step()
        assert session.eval_step(X, TARGET)[0] < first


def failing_at_second_call(function):
    """Return a wrapper of a function that raises ZeroDivisionError when it is called for the second time."""
    calls = []

    def fragile(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise ZeroDivisionError("by the user")
        return function(*arguments)

    return fragile


def test_an_operator_cannot_use_the_session_that_runs_it():
    """A nested call would overwrite or free the arena, the programs and the deferred gradients that are in use."""
    calls = []

    def meddling(x, exponent):
        for call in calls:
            with pytest.raises(errors.InvalidStateError, match="operator in Python"):
                call()
        return power(x, exponent)

    ortrain.register_operator(DOMAIN, "Meddling", meddling, gradient=power_gradient)
    many = np.concatenate([X] * 100), np.concatenate([TARGET] * 100)
    with start(model("Meddling", exponent=2.0)) as session, start(plain_model()) as plain:
        for each in (session, plain):
            each.train_step(X, TARGET)
            each.optimizer_step()
        calls += [lambda: session.train_step(X, TARGET), lambda: session.train_step(*many), lambda: session.eval_step(*many), lambda: session.predict(X),
                  lambda: session.parameters["w"].grad, session.optimizer_step, session.close]
        for _ in range(3):
            np.testing.assert_allclose(session.train_step(X, TARGET), plain.train_step(X, TARGET), rtol=1e-6)
            for each in (session, plain):
                each.optimizer_step()
                each.lazy_reset_grad()
        np.testing.assert_allclose(session.parameters["w"].data, plain.parameters["w"].data, rtol=1e-5, atol=1e-6)


def test_an_operator_cannot_use_the_inference_session_that_runs_it():
    def meddling(x, exponent):
        with pytest.raises(errors.InvalidStateError, match="operator in Python"):
            session.run(None, {"x": np.concatenate([X] * 100)})
        return power(x, exponent)

    ortrain.register_operator(DOMAIN, "MeddlingInference", meddling)
    session = ortrain.InferenceSession(model("MeddlingInference", exponent=2.0).SerializeToString())
    actual, expected = (each.run(None, {"x": X})[0] for each in (session, ortrain.InferenceSession(plain_model().SerializeToString())))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_an_error_in_an_operator_names_it_and_leaves_the_gradients_unchanged():
    ortrain.register_operator(DOMAIN, "Fragile", failing_at_second_call(lambda x: x), gradient=lambda gradients, inputs, outputs: gradients[0])
    with start(model("Fragile")) as session:
        session.train_step(X, TARGET)
        before = session.parameters["w"].grad.copy()
        with pytest.raises(errors.OperatorFailedError, match=r"Fragile.*ZeroDivisionError: by the user.*'mine'") as caught:
            session.train_step(X, TARGET)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        np.testing.assert_array_equal(session.parameters["w"].grad, before)
        session.optimizer_step()


def test_gradients_must_be_reset_after_an_error_in_the_backward_pass():
    """The gradient of the bias, which follows the operator, has been written before the operator's gradient fails."""
    ortrain.register_operator(DOMAIN, "FragileGradient", lambda x: x, gradient=failing_at_second_call(lambda gradients, inputs, outputs: gradients[0]))
    proto = model("FragileGradient")
    proto.graph.node[1].output[0] = "inner"
    proto.graph.node.append(helper.make_node("Add", ["inner", "bias"], ["y"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "bias"))
    with start(proto) as session:
        session.train_step(X, TARGET)
        with pytest.raises(errors.OperatorFailedError, match=r"CustomGradient.*by the user"):
            session.train_step(X, TARGET)
        with pytest.raises(errors.InvalidStateError, match="lazy_reset_grad"):
            session.optimizer_step()
        session.lazy_reset_grad()
        session.train_step(X, TARGET)
        session.optimizer_step()


def test_an_operator_may_reset_the_gradients_of_the_session_that_runs_it():
    resets = []

    def resetting(x):
        for reset in resets:
            reset()
        return x

    ortrain.register_operator(DOMAIN, "Resets", resetting, gradient=lambda gradients, inputs, outputs: gradients[0])
    with start(model("Resets")) as session:
        session.train_step(X, TARGET)
        first = session.parameters["w"].grad.copy()
        resets.append(session.lazy_reset_grad)
        session.train_step(X, TARGET)                       # adds to the gradients, while the next step is told to overwrite them
        np.testing.assert_allclose(session.parameters["w"].grad, 2 * first, rtol=1e-6)
        session.train_step(X, TARGET)
        np.testing.assert_array_equal(session.parameters["w"].grad, first)


def test_an_operator_that_returns_another_shape_than_inferred_is_named():
    ortrain.register_operator(DOMAIN, "Shrinks", lambda x: x[:1], gradient=power_gradient)
    with start(model("Shrinks")) as session, pytest.raises(errors.OperatorFailedError, match="expected output 0"):
        session.train_step(X, TARGET)


def test_no_gradient_flows_through_an_operator_registered_without_one():
    ortrain.register_operator(DOMAIN, "Rounded", np.round)
    with pytest.raises((errors.UnreachableParameterError, errors.InvalidArgumentError)):
        start(model("Rounded"))


@pytest.mark.parametrize(("domain", "op_type"), [("", "Relu"), ("", "Anything"), ("ortrain", "Mine"), ("com.microsoft", "Gelu")])
def test_names_that_ortrain_uses_are_refused(domain, op_type):
    with pytest.raises(errors.InvalidArgumentError):
        ortrain.register_operator(domain, op_type, np.abs)


def test_a_forward_function_that_is_not_callable_is_refused():
    with pytest.raises(errors.ArgumentTypeError):
        ortrain.register_operator(DOMAIN, "Mine", "abs")


def test_a_shared_library_is_refused_with_a_hint_at_register_operator(tmp_path):
    (tmp_path / "operators.so").write_bytes(b"\x7fELF")
    with pytest.raises(errors.InvalidArgumentError, match="register_operator"):
        ortrain.SessionOptions().register_custom_ops_library(tmp_path / "operators.so")
