"""Recurrent layers write y, and read its gradient, in the order of axes in which the rest of a network has them, with the same gradients."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import InferenceSession, TrainingSession, register_operator
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import recurrent_layouts, transposed_gathers

STEPS, WORDS, SIZE, HIDDEN = 5, 9, 6, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def node(op_type, inputs, *outputs, **attributes):
    return helper.make_node(op_type, inputs, list(outputs), **attributes)


def layer(op_type, x, name, directions=1, initial=False, outputs=1):
    """Return a layer that computes {name}_y and, with two outputs, {name}_h. initial: whether it starts from the value "state"."""
    direction = "bidirectional" if directions == 2 else "forward"
    return node(op_type, [x, f"{name}_w{directions}", f"{name}_r{directions}", "", "", *(["state"] if initial else [])],
                *(f"{name}_{output}" for output in ("y", "h")[:outputs]), hidden_size=HIDDEN, direction=direction)


TOKENS = [node("Gather", ["table", "x"], "rows"), node("Transpose", ["rows"], "by_step", perm=[1, 0, 2])]
LAST = [node("Transpose", ["t"], "s", perm=[1, 0, 2])]
"""The steps of t, batch first."""


def beside_each_other(name, to):
    """Return a layer's directions beside each other: [steps, rows, 2 * hidden]."""
    return [node("Transpose", [f"{name}_y"], f"{name}_turned", perm=[0, 2, 1, 3]), node("Reshape", [f"{name}_turned", "joined"], to)]


def cases(op_type):
    """Return networks from tokens x to scores s [rows, steps, width]: (nodes, copies that are left)."""
    return {
        "batch first": ([*TOKENS, layer(op_type, "by_step", "a"), node("Squeeze", ["a_y", "one"], "t"), *LAST], 0),
        "two directions": ([*TOKENS, layer(op_type, "by_step", "a", 2), *beside_each_other("a", "t"), *LAST], 0),
        "directions alone": ([*TOKENS, layer(op_type, "by_step", "a", 2), *beside_each_other("a", "t"), node("Tanh", ["t"], "u"),
                              node("ReduceSum", ["u", "zero"], "s")], 0),
        "two layers": ([*TOKENS, layer(op_type, "by_step", "a", 2), *beside_each_other("a", "between"), layer(op_type, "between", "b", 2),
                        *beside_each_other("b", "t"), *LAST], 0),
        "a last state": ([*TOKENS, layer(op_type, "by_step", "a", outputs=2), node("Squeeze", ["a_y", "one"], "t"),
                          node("Transpose", ["t"], "turned", perm=[1, 0, 2]), node("Squeeze", ["a_h", "zero"], "h"), node("Unsqueeze", ["h", "one"], "last"),
                          node("Mul", ["turned", "last"], "s")], 0),
        "an encoder whose last state a decoder starts from": (
            [*TOKENS, layer(op_type, "by_step", "a", outputs=2), node("Identity", ["a_h"], "state"), layer(op_type, "by_step", "b", initial=True),
             node("Squeeze", ["b_y", "one"], "t"), *LAST], 0),
        "y that is read as it is, too": ([*TOKENS, layer(op_type, "by_step", "a"), node("Squeeze", ["a_y", "one"], "t"),
                                          node("Transpose", ["t"], "turned", perm=[1, 0, 2]), node("ReduceSum", ["t", "zero"], "sum", keepdims=0),
                                          node("Unsqueeze", ["sum", "one"], "sums"), node("Mul", ["turned", "sums"], "s")], 2),
        "hidden units before steps": ([*TOKENS, layer(op_type, "by_step", "a"), node("Squeeze", ["a_y", "one"], "t"),
                                       node("Transpose", ["t"], "s", perm=[1, 2, 0])], 2),
    }


def model_of(op_type, body, rows):
    """Return a model from tokens x [rows, STEPS] to the mean of s over its second axis, and its weights."""
    rng = np.random.default_rng(3)
    gates = GATES[op_type] * HIDDEN
    shapes = {"table": (WORDS, SIZE)}
    for directions in (1, 2):
        shapes |= {f"a_w{directions}": (directions, gates, SIZE), f"b_w{directions}": (directions, gates, SIZE if directions == 1 else 2 * HIDDEN)}
        shapes |= {f"{name}_r{directions}": (directions, gates, HIDDEN) for name in "ab"}
    read = {name for step in body for name in step.input}
    weights = {name: rng.standard_normal(shape) for name, shape in shapes.items() if name in read}
    constants = {"one": np.array([1]), "zero": np.array([0]), "joined": np.array([0, 0, 2 * HIDDEN])}
    nodes = [*body, node("ReduceMean", ["s"], "y", axes=[1], keepdims=0)] if body[-1].op_type != "ReduceSum" else [*body, node("Squeeze", ["s", "zero"], "y")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.INT64, [rows, STEPS])],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
                              [numpy_helper.from_array(array, name) for name, array in {**weights, **constants}.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), weights


def train(op_type, body, rows, sizes):
    """Return (losses, gradients, number of Transpose steps of floating-point values) of a step for each batch size."""
    model, weights = model_of(op_type, body, rows)
    rng = np.random.default_rng(4)
    losses, gradients = [], []
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=list(weights)) as session:
        session.learning_rate = 1.0
        for size in sizes:
            before = {name: session.state.array(name).copy() for name in weights}
            losses.append(float(session.train_step(rng.integers(0, WORDS, (size, STEPS)), rng.integers(0, HIDDEN, size))[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
            gradients.append({name: before[name] - session.state.array(name) for name in weights})
        plan = session._train_runner.last.plan
        copies = sum(step.node.op_type == "Transpose" and plan.types[step.node.outputs[0]].dtype == "float64" for step in plan.steps)
        return losses, gradients, copies


@pytest.mark.parametrize("name", cases("LSTM"))
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize(("rows", "sizes"), [(3, (3,)), ("n", (3, 5, 1))])
def test_layers_write_transposed_results_with_the_same_gradients(op_type, name, rows, sizes, monkeypatch):
    body, copies = cases(op_type)[name]
    losses, gradients, left = train(op_type, body, rows, sizes)
    assert left == copies
    monkeypatch.setattr(recurrent_layouts, "write_y_in_place", lambda nodes, *_: list(nodes))
    monkeypatch.setattr(transposed_gathers, "transpose_indices", lambda nodes, *_: list(nodes))
    expected_losses, expected, copying = train(op_type, body, rows, sizes)
    assert copying > copies
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
    for found, wanted in zip(gradients, expected, strict=True):
        for weight, gradient in found.items():
            np.testing.assert_allclose(gradient, wanted[weight], rtol=1e-9, atol=1e-13)


def test_an_operator_of_the_same_name_in_a_domain_of_its_own_is_left_alone():
    received = []

    def doubled(x, **attributes):
        received.append(attributes)
        return 2 * x

    register_operator("my.company", "LSTM", doubled, infer=lambda kinds, **_: kinds)
    nodes = [helper.make_node("LSTM", ["x"], ["y"], domain="my.company"), node("Transpose", ["y"], "z", perm=[2, 0, 1, 3]),
             node("Squeeze", ["x", "one"], "steps"), node("RNN", ["steps", "w", "w"], "states", hidden_size=4)]
    constants = [numpy_helper.from_array(np.array([1]), "one"), numpy_helper.from_array(np.ones((1, 4, 4), np.float32), "w")]
    shapes = {"x": [2, 1, 3, 4], "z": [3, 2, 1, 4], "states": [2, 1, 3, 4]}
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", kinds[:1], kinds[1:], constants), ir_version=8,
                              opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my.company", 1)])
    x = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4)
    np.testing.assert_array_equal(InferenceSession(model).run(None, {"x": x})[0], 2 * x.transpose(2, 0, 1, 3))
    assert received and not any(received)
