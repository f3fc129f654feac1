"""If: the branch that a condition takes, in forward and backward; conditions that inputs, sizes and constants decide."""

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
    """scores = x w where the condition holds, else tanh(x v) 2; the weight v lies inside its branch."""
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
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def by_input(**options):
    return model([helper.make_node("Identity", ["which"], ["condition"]), helper.make_node("Not", ["which"], ["outer"])],
                 [helper.make_tensor_value_info("which", TensorProto.BOOL, [])], **options)


def start(source, **options):
    return ortrain.TrainingSession.from_model(source, loss=LossType.MSELoss, optimizer=OptimType.SGD, requires_grad=["w", "v"], **options)


def expected(which):
    """(loss, dw, dv)"""
    z = X @ W if which else 2 * np.tanh(X @ V)
    y = np.maximum(z, 0)
    dz = np.where(z > 0, 2 * (y - TARGET) / y.size, 0)
    none = np.zeros_like(W)
    return float(((y - TARGET) ** 2).mean()), X.T @ dz if which else none, none if which else X.T @ (dz * 2 * (1 - (z / 2) ** 2))


def assert_gradients(session, which):
    _, dw, dv = expected(which)
    np.testing.assert_allclose(session.state.gradients["w"], dw, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(session.state.gradients["v"], dv, rtol=1e-4, atol=1e-6)


def test_an_input_chooses_the_branch_step_by_step():
    with start(by_input()) as session:
        for which in (True, False, True):
            session.lazy_reset_grad()
            loss = session.train_step(X, np.array(which), TARGET)[0]
            assert float(loss) == pytest.approx(expected(which)[0], rel=1e-5)
            assert_gradients(session, which)
            assert float(session.eval_step(X, np.array(which), TARGET)[0]) == pytest.approx(expected(which)[0], rel=1e-5)


def test_an_if_inside_an_if():
    source = by_input(nested=True)
    with start(source) as session:
        session.train_step(X, np.array(True), TARGET)     # not which is false: the inner If, whose condition holds
        assert_gradients(session, True)
        session.lazy_reset_grad()
        session.train_step(X, np.array(False), TARGET)    # not which is true: x w
        assert_gradients(session, True)


def test_a_size_chooses_the_branch():
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "zero"], ["rows"]),
             helper.make_node("Greater", ["rows", "three"], ["condition"])]
    source = model(nodes, [], constants=[numpy_helper.from_array(np.array(0), "zero"), numpy_helper.from_array(np.array(3), "three")])
    with start(source) as session:
        session.train_step(X, TARGET)
        assert_gradients(session, True)
    session = ortrain.InferenceSession(source)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.maximum(X @ W, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(session.run(None, {"x": X[:2]})[0], np.maximum(2 * np.tanh(X[:2] @ V), 0), rtol=1e-5, atol=1e-6)


def test_artifacts_with_an_if_are_onnx_and_train(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(by_input(), path)
    generate_artifacts(path, requires_grad=["w", "v"], loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
    artifact = onnx.load(tmp_path / "training_model.onnx")
    assert all(len(node.input) == 1 for node in artifact.graph.node if node.op_type == "If")
    with ortrain.TrainingSession.from_artifacts(tmp_path) as session:
        session.train_step(X, np.array(False), TARGET)
        assert_gradients(session, False)


def test_a_known_value_settles_the_branch():
    with ortrain.TrainingSession.from_model(by_input(), loss=LossType.MSELoss, optimizer=OptimType.SGD, input_values={"which": False},
                                            input_shapes={"x": (5, 3)}) as session:
        assert session.input_names() == ["x", "target"] and not [node for node in session.training_model.graph.nodes if node.op_type == "If"]
        assert list(session.state.trainable) == ["v"]
        session.train_step(X, TARGET)
        np.testing.assert_allclose(session.state.gradients["v"], expected(False)[2], rtol=1e-4, atol=1e-6)


def test_some_sizes_may_stay_open():
    with start(by_input(), input_shapes={"x": ("rows", 3)}) as session:
        for rows in (5, 2):
            session.train_step(X[:rows], np.array(True), TARGET[:rows])
    with pytest.raises(errors.InvalidArgumentError, match="expected size 3"):
        start(by_input(), input_shapes={"x": (5, "columns")})


@pytest.mark.parametrize("options", [{"input_values": {"nothing": 1}}, {"input_shapes": {"nothing": (1,)}}, {"input_shapes": {"x": (5, 4)}},
                                     {"input_shapes": {"x": (5,)}}, {"input_values": {"which": [True, False]}}])
def test_sizes_and_values_that_do_not_fit_are_refused(options):
    with pytest.raises(errors.InvalidArgumentError, match="expected"):
        start(by_input(), **options)


def test_a_size_that_is_known_beside_open_ones_settles_a_branch():
    """What exporters write for squeeze(1): the size is looked up in a shape whose other sizes are symbols."""
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
    found = infer(loaded)
    assert found["z"].shape == ("n", 3) and found["out"].shape == ("n", 2)


def test_reshapes_keep_the_symbols_of_sizes_that_were_looked_up():
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Slice", ["shape", "zero", "one"], ["batch"]),
             helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0), helper.make_node("Reshape", ["x", "target"], ["y"]),
             helper.make_node("Add", ["batch", "one"], ["more"]), helper.make_node("ConstantOfShape", ["more"], ["zeros"])]
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in (("zero", [0]), ("one", [1]), ("rest", [2, -1]))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
                              [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "zeros")], constants)
    found = infer(load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)))
    assert found["y"].shape == ("n", 2, 3)
    assert len(found["zeros"].shape) == 1 and found["zeros"].shape != ("n",)
