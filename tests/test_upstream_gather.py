"""Upstream Gather: which operators it moves before, where it stops, and that results stay equal with less
computation."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.fusion import OPSETS, fuse
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.ops.registry.record import ORTRAIN
from ortrain.ops.registry.shape_inference import infer
from ortrain.runtime.inference_session import InferenceSession

N, ROWS, HEADS, SIZE = 3, 6, 2, 4
DIM = HEADS * SIZE


def model_of(nodes, outputs=("y",), rows=0, opset=17, **constants):
    """Return a model of x [N, ROWS, DIM] with weights `w` [DIM, DIM] and indices `pick` for the Gather."""
    rng = np.random.default_rng(3)
    arrays = {"w": rng.standard_normal((DIM, DIM)), "row": rng.standard_normal(DIM), "places": rng.standard_normal((ROWS, DIM)),
              "pick": np.asarray(rows, np.int64)} | constants
    initializers = {name: array if np.asarray(array).dtype == np.int64 else np.asarray(array, np.float32) for name, array in arrays.items()}
    graph = Graph(inputs=["x"], outputs=list(outputs), nodes=nodes, initializers=initializers, types={"x": TensorType("float32", (N, ROWS, DIM))})
    model = Model(graph, {"": opset, **OPSETS})
    graph.types |= infer(model)
    return model


def gather(value, axis=1):
    return Node("Gather", [value, "pick"], ["y"], attributes={"axis": axis})


def matmul(value, result="p"):
    return Node("MatMul", [value, "w"], [result])


def matmul_rows(model):
    """Return the number of rows of the first operand of each matrix multiplication."""
    types = infer(model)
    return [types[node.inputs[0]].shape[-2] for node in model.graph.nodes if node.op_type in ("MatMul", "Gemm")]


X = np.random.default_rng(4).standard_normal((N, ROWS, DIM)).astype(np.float32)

MOVED = {
    "matmul": [matmul("x"), gather("p")],
    "matmul, negative index": ([matmul("x"), gather("p")], -1),
    "matmul, three rows": ([matmul("x"), gather("p")], [4, 0, -1]),
    "bias and activation": [matmul("x"), Node("Add", ["row", "p"], ["a"]), Node("Tanh", ["a"], ["t"]), gather("t")],
    "addend with all rows": [matmul("x"), Node("Add", ["p", "places"], ["a"]), gather("a")],
    "residual": [matmul("x"), Node("Add", ["p", "x"], ["a"]), gather("a")],
    "limits and choice": [matmul("x"), Node("Clip", ["p", "low"], ["c"]), Node("Greater", ["c", "places"], ["g"]), Node("Where", ["g", "c", "x"], ["a"]),
                          gather("a")],
    "value multiplied by itself": [matmul("x"), Node("Mul", ["p", "p"], ["a"]), gather("a")],
    "layer normalization": [matmul("x"), Node("LayerNormalization", ["p", "row"], ["a"], attributes={"axis": -1}), gather("a")],
    "softmax over a later axis": [matmul("x"), Node("Softmax", ["p"], ["a"], attributes={"axis": 2}), gather("a")],
    "transpose": [matmul("x"), Node("Transpose", ["p"], ["a"], attributes={"perm": (1, 0, 2)}), gather("a", 0)],
    "reshape to heads": [matmul("x"), Node("Reshape", ["p", "heads"], ["a"]), gather("a")],
    "gemm": [Node("Reshape", ["x", "matrix"], ["m"]), Node("Gemm", ["m", "w", "row"], ["p"]), gather("p", 0)],
    "batch axis": [matmul("x"), gather("p", 0)],
}
CONSTANTS = {"low": np.array(-0.5), "heads": np.array([0, 0, HEADS, SIZE]), "matrix": np.array([-1, DIM])}


def test_gather_is_not_moved_before_softmax_over_trailing_axes():
    """Below opset 13 a Softmax without an axis normalizes over all axes from the second one on."""
    model = model_of([matmul("x"), Node("Softmax", ["p"], ["a"]), gather("a")], opset=11)
    expected = InferenceSession(model.copy()).run(None, {"x": X})[0]
    fuse(model.graph)
    np.testing.assert_allclose(InferenceSession(model).run(None, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", MOVED)
def test_gather_is_moved_upstream(case):
    nodes, rows = MOVED[case] if isinstance(MOVED[case], tuple) else (MOVED[case], 1)
    model = model_of(nodes, rows=rows, **CONSTANTS)
    expected = InferenceSession(model.copy()).run(None, {"x": X})[0]
    assert fuse(model.graph) == 1
    first = next(node.op_type for node in model.graph.nodes if node.op_type not in ("Constant", "Reshape"))
    assert first == "Gather" and matmul_rows(model) == [ROWS if case == "batch axis" else np.size(rows)]
    np.testing.assert_allclose(InferenceSession(model).run(None, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)


NOT_MOVED = {
    "all rows have another reader": ([matmul("x"), gather("p"), Node("ReduceSum", ["p"], ["s"])], ("y", "s")),
    "all rows are an output": ([matmul("x"), gather("p")], ("y", "p")),
    "no matmul becomes smaller": ([Node("Add", ["x", "places"], ["a"]), gather("a")], ("y",)),
    "softmax over the gathered axis": ([matmul("x"), Node("Softmax", ["p"], ["a"], attributes={"axis": 1}), gather("a")], ("y",)),
    "reshape splits the gathered axis": ([matmul("x"), Node("Reshape", ["p", "pairs"], ["a"]), gather("a")], ("y",)),
    "columns are gathered": ([matmul("x"), gather("p", 2)], ("y",)),
    "operator without rule": ([matmul("x"), Node("CumSum", ["p", "axis"], ["a"]), gather("a")], ("y",)),
}


@pytest.mark.parametrize("case", NOT_MOVED)
def test_gather_is_not_moved(case):
    nodes, outputs = NOT_MOVED[case]
    model = model_of(nodes, outputs, pairs=np.array([N, ROWS // 2, 2, DIM]), axis=np.array(1))
    assert fuse(model.graph) == 0 and [node.op_type for node in model.graph.nodes] == [node.op_type for node in nodes]


def test_gather_of_most_rows_is_not_moved():
    assert fuse(model_of([matmul("x"), gather("p")], rows=[0, 1, 2, 3]).graph) == 0


def test_gather_is_moved_for_unknown_number_of_rows():
    model = model_of([matmul("x"), Node("Reshape", ["p", "heads"], ["a"]), gather("a")], **CONSTANTS)
    model.graph.types |= {name: TensorType("float32", ("n", "rows", *model.graph.types[name].shape[2:])) for name in ("x", "p", "a")}
    assert fuse(model.graph) == 1
    np.testing.assert_allclose(InferenceSession(model).run(None, {"x": X})[0], (X @ model.graph.initializers["w"])[:, 0].reshape(N, HEADS, SIZE), rtol=1e-5,
                               atol=1e-6)


def test_only_queries_of_attention_are_gathered():
    model = model_of([matmul("x"), Node("Reshape", ["p", "heads"], ["h"]), Node("Attention", ["h", "h", "h"], ["a"], domain=ORTRAIN), gather("a")],
                     rows=2, **CONSTANTS)
    expected = InferenceSession(model.copy()).run(None, {"x": X})[0]
    assert fuse(model.graph) == 1 and matmul_rows(model) == [ROWS]
    queries, keys = (infer(model)[name].shape for name in next(node for node in model.graph.nodes if node.op_type == "Attention").inputs[:2])
    assert (queries, keys) == ((N, 1, HEADS, SIZE), (N, ROWS, HEADS, SIZE))
    np.testing.assert_allclose(InferenceSession(model).run(None, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)


# ---- a transformer layer with a classifier on one token


def classifier(masked):
    """Return (model, weights): x [n, ROWS, DIM] -> scores [n, 3]."""
    rng = np.random.default_rng(5)
    weights = {f"w{part}": rng.standard_normal((DIM, DIM)) * 0.4 for part in "qkvof"} | {"out": rng.standard_normal((DIM, 3))}
    constants = {"scale": SIZE ** -0.5, "mask": np.triu(np.full((ROWS, ROWS), -1e9), 2), "one": np.ones(DIM)}
    integers = {"heads": [0, 0, HEADS, SIZE], "joined": [0, 0, DIM], "pick": 1}
    nodes = []
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}3"]), helper.make_node("Reshape", [f"{part}3", "heads"], [f"{part}4"]),
                  helper.make_node("Transpose", [f"{part}4"], [part], perm=order)]
    nodes += [helper.make_node("MatMul", ["q", "k"], ["scores4"]), helper.make_node("Mul", ["scores4", "scale"], ["scaled"])]
    nodes += [helper.make_node("Add", ["scaled", "mask"], ["hidden"])] if masked else []
    nodes += [helper.make_node("Softmax", ["hidden" if masked else "scaled"], ["shares"], axis=-1), helper.make_node("MatMul", ["shares", "v"], ["mixed"]),
              helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]), helper.make_node("Reshape", ["back", "joined"], ["j"]),
              helper.make_node("MatMul", ["j", "wo"], ["o"]), helper.make_node("Add", ["x", "o"], ["r"]),
              helper.make_node("LayerNormalization", ["r", "one"], ["n"], axis=-1), helper.make_node("MatMul", ["n", "wf"], ["f"]),
              helper.make_node("Relu", ["f"], ["a"]), helper.make_node("Add", ["n", "a"], ["last"]),
              helper.make_node("Gather", ["last", "pick"], ["token"], axis=1), helper.make_node("MatMul", ["token", "out"], ["scores"])]
    initializers = [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in {**weights, **constants}.items()]
    initializers += [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in integers.items()]
    graph = helper.make_graph(nodes, "classifier", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", ROWS, DIM])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), list(weights)


def trained(model, weights):
    """Return (losses, gradients of the last step, floating-point operations of a step)."""
    losses, labels = [], np.array([0, 2, 1])
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=weights, learning_rate=0.01) as session:
        for _ in range(4):
            session.lazy_reset_grad()
            with session.profile() as profile:
                losses.append(float(session.train_step(X, labels)[0]))
            gradients = {name: session.state.gradients[name].copy() for name in weights}
            session.optimizer_step()
    return losses, gradients, sum(step.operations or 0 for step in profile.steps)


@pytest.mark.parametrize("masked", [False, True])
def test_classifier_on_one_token_trains_equally_with_fewer_operations(masked, monkeypatch):
    model, weights = classifier(masked)
    losses, gradients, operations = trained(model, weights)
    monkeypatch.setattr("ortrain.fusion.upstream_gather.find", lambda view: [])
    expected_losses, expected_gradients, all_operations = trained(model, weights)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name in weights:
        np.testing.assert_allclose(gradients[name], expected_gradients[name], rtol=1e-4, atol=1e-5 * np.abs(expected_gradients[name]).max(), err_msg=name)
    assert operations < 0.6 * all_operations
