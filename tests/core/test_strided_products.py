"""Products read heads, windows and parts of packed tensors where they lie, and write transposed results in place, with the same gradients."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import InferenceSession, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import rewriting, strided_products

BATCH, ROWS, HEADS, SIZE = 2, 6, 3, 4
WIDTH = HEADS * SIZE
COPIES = {"Transpose", "Split", "Slice", "Gather"}


def node(op_type, inputs, *outputs, **attributes):
    return helper.make_node(op_type, inputs, list(outputs), **attributes)


def heads_of(name, perm=(0, 2, 1, 3)):
    return [node("Reshape", [name, "heads"], f"{name}_split"), node("Transpose", [f"{name}_split"], f"{name}_heads", perm=list(perm))]


def attend(q, k, v, scores=()):
    """Softmax between two products, with other nodes between the first product and the softmax."""
    return [node("MatMul", [q, k], "scores"), *scores, node("Softmax", ["scaled" if scores else "scores"], "weights", axis=-1),
            node("MatMul", ["weights", v], "mixed"), node("Transpose", ["mixed"], "by_row", perm=[0, 2, 1, 3]), node("Reshape", ["by_row", "rows"], "s")]


PROJECTIONS = [node("MatMul", ["x", f"w{name}"], name) for name in "qkv"]
PACKED = [node("MatMul", ["x", "w"], "qkv"), node("Reshape", ["qkv", "packed"], "divided"), node("Transpose", ["divided"], "moved", perm=[2, 0, 3, 1, 4])]
SWAPPED_KEYS = node("Transpose", ["k1"], "kt", perm=[0, 1, 3, 2])
TRAINED_BIAS = [node("Add", ["scores", "bias"], "scaled")]
CASES = {
    "heads with a trained bias of the scores": [*PROJECTIONS, *heads_of("q"), *heads_of("k", (0, 2, 3, 1)), *heads_of("v"),
                                                *attend("q_heads", "k_heads", "v_heads", TRAINED_BIAS)],
    "packed heads, divided by Split": [*PACKED, node("Split", ["moved"], "q0", "k0", "v0", axis=0),
                                       *(node("Squeeze", [f"{name}0", "axis_0"], f"{name}1") for name in "qkv"), SWAPPED_KEYS,
                                       *attend("q1", "kt", "v1", TRAINED_BIAS)],
    "packed heads, divided by Gather": [*PACKED, *(node("Gather", ["moved", f"number_{i}"], f"{name}1", axis=0) for i, name in enumerate("qkv")), SWAPPED_KEYS,
                                        *attend("q1", "kt", "v1", TRAINED_BIAS)],
    "packed columns, divided by Slice": [node("MatMul", ["x", "w"], "qkv"), node("Reshape", ["qkv", "thirds"], "divided"),
                                         node("Transpose", ["divided"], "moved", perm=[0, 2, 1, 3]),
                                         *(node("Slice", ["moved", f"from_{i}", f"to_{i}", "axis_3"], f"{name}1") for i, name in enumerate("qkv")),
                                         SWAPPED_KEYS, *attend("q1", "kt", "v1", TRAINED_BIAS)],
    "a dense layer with transposed weights and a bias": [node("Transpose", ["wt"], "w_t", perm=[1, 0]), node("MatMul", ["x", "w_t"], "product"),
                                                         node("Add", ["product", "b"], "s")],
}
WEIGHTS = {"wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH), "wv": (WIDTH, WIDTH), "w": (WIDTH, 3 * WIDTH), "wt": (WIDTH, WIDTH), "b": (WIDTH,),
           "bias": (HEADS, ROWS, ROWS), "few": (SIZE, WIDTH)}


def model_of(body, batch):
    """Return a model from x [batch, ROWS, WIDTH] to the mean over rows of tanh(s), and the weights that it reads."""
    rng = np.random.default_rng(3)
    read = {name for step in body for name in step.input}
    weights = {name: rng.standard_normal(shape) / 2 for name, shape in WEIGHTS.items() if name in read}
    integers = {"heads": [0, ROWS, HEADS, SIZE], "packed": [0, ROWS, 3, HEADS, SIZE], "thirds": [0, ROWS, HEADS, 3 * SIZE], "rows": [0, ROWS, WIDTH],
                "axis_0": [0], "axis_2": [2], "axis_3": [3], "halves": [0, ROWS, 2, WIDTH // 2], "end": [WIDTH]}
    integers |= {f"from_{i}": [i * SIZE] for i in range(3)} | {f"to_{i}": [(i + 1) * SIZE] for i in range(3)}
    constants = {name: np.array(value) for name, value in integers.items()} | {f"number_{i}": np.array(i) for i in range(3)}
    nodes = [*body, node("Tanh", ["s"], "h"), node("ReduceMean", ["h"], "y", axes=[1], keepdims=0)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [batch, ROWS, WIDTH])],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [batch, WIDTH])],
                              [numpy_helper.from_array(array, name) for name, array in {**weights, **constants}.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), weights


def train(body, batch):
    """Return the loss, the gradients and the operators of a step."""
    model, weights = model_of(body, batch)
    rng = np.random.default_rng(4)
    x, labels = rng.standard_normal((BATCH, ROWS, WIDTH)), np.array([1, 3])
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=list(weights)) as session:
        session.learning_rate = 1.0
        loss = float(session.train_step(x, labels)[0])
        session.optimizer_step()
        gradients = {name: weights[name] - session.state.array(name) for name in weights}
        return loss, gradients, [step.node.op_type for step in session._train_runner.last.plan.steps]


@pytest.mark.parametrize("batch", [BATCH, "n"])
@pytest.mark.parametrize("name", CASES)
def test_products_read_and_write_views_with_the_same_gradients(name, batch, monkeypatch):
    loss, gradients, operators = train(CASES[name], batch)
    assert not COPIES.intersection(operators)
    monkeypatch.setattr(strided_products, "read_views_in_products", lambda nodes, *_: list(nodes))
    monkeypatch.setattr(rewriting, "fuse_products", lambda nodes, *_: list(nodes))
    expected_loss, expected, copying = train(CASES[name], batch)
    assert COPIES.intersection(copying)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    for weight, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[weight], rtol=1e-10, atol=1e-13)


def test_a_view_that_another_operator_reads_is_computed_and_read():
    body = [*PROJECTIONS, *heads_of("q"), *heads_of("k", (0, 2, 3, 1)), *heads_of("v"), node("Add", ["q_heads", "v_heads"], "sum"),
            *attend("q_heads", "k_heads", "v_heads")[:-1], node("Transpose", ["sum"], "sum_by_row", perm=[0, 2, 1, 3]),
            node("Add", ["by_row", "sum_by_row"], "both"), node("Reshape", ["both", "rows"], "s")]
    loss, _, operators = train(body, BATCH)
    assert "Transpose" in operators and np.isfinite(loss)


def test_an_operand_whose_rows_and_columns_are_both_apart_is_copied():
    """The last axis in memory is one of the batch, so that a multiplication would have to gather single elements."""
    body = [node("MatMul", ["x", "wq"], "q"), node("Reshape", ["q", "heads"], "q_split"), node("Transpose", ["q_split"], "left", perm=[0, 3, 1, 2]),
            node("Transpose", ["q_split"], "right", perm=[0, 3, 2, 1]), node("MatMul", ["left", "right"], "product"),
            node("ReduceMean", ["product"], "means", axes=[3], keepdims=0), node("Transpose", ["means"], "by_row", perm=[0, 2, 1]),
            node("MatMul", ["by_row", "few"], "s")]
    assert "Transpose" in train(body, BATCH)[2]


PARTS = {
    "Slice": [node("Slice", ["q", "from_0", "to_0", "axis_2"], "left"), node("Slice", ["q", "to_0", "end", "axis_2"], "right"), node("Exp", ["left"], "powers"),
              node("Concat", ["right", "powers"], "both", axis=2), node("Mul", ["both", "q"], "s")],
    "Gather": [node("Reshape", ["q", "halves"], "divided"), node("Gather", ["divided", "number_0"], "left", axis=2),
               node("Gather", ["divided", "number_1"], "right", axis=2), node("Exp", ["left"], "powers"), node("Mul", ["right", "powers"], "half"),
               node("Concat", ["half", "right"], "s", axis=2)],
}


@pytest.mark.parametrize("operator", PARTS)
def test_gradients_of_parts_that_cover_an_axis_are_joined(operator, monkeypatch):
    body = [node("MatMul", ["x", "wq"], "q"), *PARTS[operator]]
    _, gradients, operators = train(body, BATCH)
    assert f"{operator}Grad" not in operators
    monkeypatch.setattr(rewriting, "join_gradients", lambda nodes, *_: list(nodes))
    _, expected, filling = train(body, BATCH)
    assert f"{operator}Grad" in filling
    np.testing.assert_allclose(gradients["wq"], expected["wq"], rtol=1e-12)


@pytest.mark.parametrize(("heads", "copied"), [(256, True), (255, False)])
def test_rows_that_fall_into_the_same_sets_of_the_caches_are_copied(heads, copied):
    """The rows of a head are 4 · heads elements apart."""
    width = 4 * heads
    nodes = [node("Reshape", ["x", "heads"], "divided"), node("Transpose", ["divided"], "q", perm=[0, 2, 1, 3]), node("MatMul", ["q", "w"], "y")]
    values = {"heads": np.array([1, ROWS, heads, 4]), "w": np.ones((1, heads, 4, 2), np.float32)}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, ROWS, width])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, heads, ROWS, 2])],
                              [numpy_helper.from_array(array, name) for name, array in values.items()])
    session = InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = np.random.default_rng(1).standard_normal((1, ROWS, width)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x.reshape(1, ROWS, heads, 4).transpose(0, 2, 1, 3) @ values["w"], rtol=1e-5, atol=1e-5)
    operators = [step.node.op_type for step in next(iter(session._runners.values())).last.plan.steps]
    assert ("Transpose" in operators) == copied and ("StridedMatMul" in operators) != copied


def test_gradients_of_parts_that_overlap_are_added():
    body = [node("MatMul", ["x", "wq"], "q"), node("Slice", ["q", "from_0", "to_1", "axis_2"], "left"), node("Slice", ["q", "to_0", "end", "axis_2"], "right"),
            node("Exp", ["left"], "powers"), node("Concat", ["right", "powers"], "both", axis=2), node("ReduceMean", ["both"], "mean", axes=[2], keepdims=1),
            node("Mul", ["mean", "q"], "s")]
    assert train(body, BATCH)[2].count("SliceGrad") == 2
