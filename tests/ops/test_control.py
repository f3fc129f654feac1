"""If: forward and backward pass of the selected branch, with conditions that depend on inputs, dimensions and constants."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain import errors
from ortrain.artifacts import LossType, OptimType, generate_artifacts
from ortrain.loading.loader import load_model
from ortrain.ops.registry.shape_inference import infer

rng = np.random.default_rng(9)
W, V = rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal((3, 4)).astype(np.float32)
X, TARGET = rng.standard_normal((5, 3)).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32)


def branch(name, nodes, output, constants=()):
    values = [numpy_helper.from_array(array, key) for key, array in constants]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], values)


def model(condition_nodes, inputs, nested=False, constants=()):
    """Return a model of scores = relu(x w if the condition is true, else 2 tanh(x v)), where v is an initializer of its branch.

    nested: put this If into the else branch of another one, whose condition is `outer`."""
    first = branch("then", [helper.make_node("MatMul", ["x", "w"], ["a"])], "a")
    second = branch("else", [helper.make_node("MatMul", ["x", "v"], ["b0"]), helper.make_node("Tanh", ["b0"], ["b1"]),
                             helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2))),
                             helper.make_node("Mul", ["b1", "two"], ["b"])], "b", [("v", V)])
    if nested:
        inner = helper.make_node("If", ["condition"], ["n"], then_branch=first, else_branch=second)
        second = branch("outer_else", [inner], "n")
        first = branch("outer_then", [helper.make_node("Identity", ["x"], ["never"]), helper.make_node("MatMul", ["never", "w"], ["m"])], "m")
    node = helper.make_node("If", ["outer" if nested else "condition"], ["chosen"], then_branch=first, else_branch=second)
    graph = helper.make_graph([*condition_nodes, node, helper.make_node("Relu", ["chosen"], ["scores"])], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]), *inputs],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 4])], [numpy_helper.from_array(W, "w"), *constants])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(proto)
    return proto


def model_with_condition_input(**options):
    return model([helper.make_node("Identity", ["which"], ["condition"]), helper.make_node("Not", ["which"], ["outer"])],
                 [helper.make_tensor_value_info("which", TensorProto.BOOL, [])], **options)


def start_session(source, **options):
    return ortrain.TrainingSession.from_model(source, loss=LossType.MSELoss, optimizer=OptimType.SGD, requires_grad=["w", "v"], **options)


def expected(which):
    """Return (loss, dw, dv)."""
    z = X @ W if which else 2 * np.tanh(X @ V)
    y = np.maximum(z, 0)
    dz = np.where(z > 0, 2 * (y - TARGET) / y.size, 0)
    none = np.zeros_like(W)
    return float(((y - TARGET) ** 2).mean()), X.T @ dz if which else none, none if which else X.T @ (dz * 2 * (1 - (z / 2) ** 2))


def assert_gradients(session, which):
    _, dw, dv = expected(which)
    np.testing.assert_allclose(session.state.gradients["w"], dw, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(session.state.gradients["v"], dv, rtol=1e-4, atol=1e-6)


def test_a_condition_input_selects_the_branch_in_each_step():
    with start_session(model_with_condition_input()) as session:
        for which in (True, False, True):
            session.lazy_reset_grad()
            loss = session.train_step(X, np.array(which), TARGET)[0]
            assert float(loss) == pytest.approx(expected(which)[0], rel=1e-5)
            assert_gradients(session, which)
            assert float(session.eval_step(X, np.array(which), TARGET)[0]) == pytest.approx(expected(which)[0], rel=1e-5)


def test_nested_if():
    source = model_with_condition_input(nested=True)
    with start_session(source) as session:
        session.train_step(X, np.array(True), TARGET)     # outer = not which is false: the inner If, whose condition is true
        assert_gradients(session, True)
        session.lazy_reset_grad()
        session.train_step(X, np.array(False), TARGET)    # outer is true: x w
        assert_gradients(session, True)


def test_a_condition_on_a_dimension_selects_the_branch():
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "zero"], ["rows"]),
             helper.make_node("Greater", ["rows", "three"], ["condition"])]
    source = model(nodes, [], constants=[numpy_helper.from_array(np.array(0), "zero"), numpy_helper.from_array(np.array(3), "three")])
    with start_session(source) as session:
        session.train_step(X, TARGET)
        assert_gradients(session, True)
    session = ortrain.InferenceSession(source)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.maximum(X @ W, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(session.run(None, {"x": X[:2]})[0], np.maximum(2 * np.tanh(X[:2] @ V), 0), rtol=1e-5, atol=1e-6)


def test_artifacts_with_an_if_are_valid_onnx_and_train(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model_with_condition_input(), path)
    generate_artifacts(path, requires_grad=["w", "v"], loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
    artifact = onnx.load(tmp_path / "training_model.onnx")
    assert all(len(node.input) == 1 for node in artifact.graph.node if node.op_type == "If")
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        session.train_step(X, np.array(False), TARGET)
        assert_gradients(session, False)


def test_a_fixed_input_value_removes_the_if():
    with ortrain.TrainingSession.from_model(model_with_condition_input(), loss=LossType.MSELoss, optimizer=OptimType.SGD, input_values={"which": False},
                                            input_shapes={"x": (5, 3)}) as session:
        assert session.input_names() == ["x", "target"] and not [node for node in session.training_model.graph.nodes if node.op_type == "If"]
        assert list(session.state.trainable) == ["v"]
        session.train_step(X, TARGET)
        np.testing.assert_allclose(session.state.gradients["v"], expected(False)[2], rtol=1e-4, atol=1e-6)


def test_input_shapes_may_be_partly_symbolic():
    with start_session(model_with_condition_input(), input_shapes={"x": ("rows", 3)}) as session:
        for rows in (5, 2):
            session.train_step(X[:rows], np.array(True), TARGET[:rows])
    with pytest.raises(errors.InvalidArgumentError, match="If node 'chosen' prevents the proof"):
        start_session(model_with_condition_input(), input_shapes={"x": (5, "columns")})


@pytest.mark.parametrize("options", [{"input_values": {"nothing": 1}}, {"input_shapes": {"nothing": (1,)}}, {"input_shapes": {"x": (5, 4)}},
                                     {"input_shapes": {"x": (5,)}}, {"input_values": {"which": [True, False]}}])
def test_input_shapes_and_values_that_do_not_fit_are_refused(options):
    with pytest.raises(errors.InvalidArgumentError, match="expected"):
        start_session(model_with_condition_input(), **options)


def test_a_known_dimension_among_symbolic_ones_decides_a_condition():
    """Exporters write squeeze(1) as an If whose condition reads one dimension of a shape, whose others are symbolic."""
    squeeze = branch("then", [helper.make_node("Squeeze", ["y", "one"], ["a"])], "a")
    keep = branch("else", [helper.make_node("Identity", ["y"], ["b"])], "b")
    nodes = [helper.make_node("Unsqueeze", ["x", "one"], ["y"]), helper.make_node("Shape", ["y"], ["shape"]),
             helper.make_node("Gather", ["shape", "one"], ["size"]),
             helper.make_node("Equal", ["size", "one"], ["is_one"]), helper.make_node("If", ["is_one"], ["z"], then_branch=squeeze, else_branch=keep),
             helper.make_node("MatMul", ["z", "w"], ["out"])]
    weights = [numpy_helper.from_array(np.ones((3, 2), np.float32), "w"), numpy_helper.from_array(np.array([1]), "one")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
                              [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 2])], weights)
    loaded = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    types = infer(loaded)
    assert types["z"].shape == ("n", 3) and types["out"].shape == ("n", 2)


def test_reshape_keeps_symbols_read_from_a_shape():
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Slice", ["shape", "zero", "one"], ["batch"]),
             helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0), helper.make_node("Reshape", ["x", "target"], ["y"]),
             helper.make_node("Add", ["batch", "one"], ["more"]), helper.make_node("ConstantOfShape", ["more"], ["zeros"])]
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in (("zero", [0]), ("one", [1]), ("rest", [2, -1]))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
                              [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "zeros")], constants)
    types = infer(load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))
    assert types["y"].shape == ("n", 2, 3)
    assert len(types["zeros"].shape) == 1 and types["zeros"].shape != ("n",)
