"""Operator fusion: which patterns are fused, which are not, and that a fused session computes the same values."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import InferenceSession, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.formats.onnx_files import read_model
from ortrain.fusion import fuse
from ortrain.ir import Graph, Node, TensorType
from ortrain.loading.loader import load_model
from ortrain.passes.fused_training import fused_training_model

N, ROWS, HEADS, SIZE = 2, 5, 2, 4
DIM = HEADS * SIZE
FLOAT = "float32"


def graph_of(nodes, constants, outputs, inputs=("x",), types=None):
    """Return a graph over x [3, 4]."""
    return Graph(inputs=list(inputs), outputs=list(outputs), nodes=nodes, initializers={k: np.asarray(v, np.float32) for k, v in constants.items()},
                 types={"x": TensorType(FLOAT, (3, 4)), **(types or {})})


def operators(graph):
    return [node.op_type for node in graph.nodes]


GELU_CONSTANTS = {"root": math.sqrt(2), "inverse": math.sqrt(0.5), "one": 1, "half": 0.5}


def gelu_nodes(order="last", is_divided=True):
    """Return the nodes of x/2 (1 + erf(x/√2)), with the factor 1/2 last, on x, or on the sum."""
    nodes = [Node("Div", ["x", "root"], ["z"]) if is_divided else Node("Mul", ["inverse", "x"], ["z"]), Node("Erf", ["z"], ["e"]),
             Node("Add", ["one", "e"] if is_divided else ["e", "one"], ["s"])]
    return nodes + {"last": [Node("Mul", ["x", "s"], ["p"]), Node("Mul", ["p", "half"], ["y"])],
                    "on_x": [Node("Mul", ["half", "x"], ["h"]), Node("Mul", ["h", "s"], ["y"])],
                    "sum": [Node("Mul", ["s", "half"], ["h"]), Node("Mul", ["x", "h"], ["y"])]}[order]


@pytest.mark.parametrize("order", ["last", "on_x", "sum"])
@pytest.mark.parametrize("is_divided", [True, False])
def test_gelu_is_fused_for_any_order_of_factors(order, is_divided):
    graph = graph_of(gelu_nodes(order, is_divided), GELU_CONSTANTS, ["y"])
    assert fuse(graph) == 1 and operators(graph) == ["Gelu"] and (graph.nodes[0].inputs, graph.nodes[0].outputs) == (["x"], ["y"])


@pytest.mark.parametrize("constant, value", [("one", 1.1), ("half", 0.4), ("root", 1.5)])
def test_gelu_with_other_constants_is_not_fused(constant, value):
    graph = graph_of(gelu_nodes(), GELU_CONSTANTS | {constant: value}, ["y"])
    assert fuse(graph) == 0 and "Erf" in operators(graph)


def test_gelu_with_further_readers_is_not_fused():
    graph = graph_of(gelu_nodes(), GELU_CONSTANTS, ["y", "e"])
    assert fuse(graph) == 0


def attention_nodes(mask=True, scale="after", keys="one", softmax_axis=-1):
    """Return the nodes of attention over q, k and v [n, rows, heads, size]."""
    nodes = [Node("Transpose", ["q"], ["qt"], attributes={"perm": (0, 2, 1, 3)}), Node("Transpose", ["v"], ["vt"], attributes={"perm": (0, 2, 1, 3)})]
    if keys == "one":
        nodes.append(Node("Transpose", ["k"], ["kt"], attributes={"perm": (0, 2, 3, 1)}))
    else:
        nodes += [Node("Transpose", ["k"], ["k1"], attributes={"perm": (0, 2, 1, 3)}), Node("Transpose", ["k1"], ["kt"], attributes={"perm": (0, 1, 3, 2)})]
    left, right = "qt", "kt"
    if scale == "before":
        nodes += [Node("Mul", ["qt", "scale"], ["qs"]), Node("Mul", ["scale", "kt"], ["ks"])]
        left, right = "qs", "ks"
    nodes.append(Node("MatMul", [left, right], ["products"]))
    scores = "products"
    if scale == "after":
        nodes.append(Node("Div" if keys == "two" else "Mul", ["products", "scale"], ["scaled"]))
        scores = "scaled"
    if mask:
        nodes.append(Node("Add", [scores, "mask"], ["masked"]))
        scores = "masked"
    return [*nodes, Node("Softmax", [scores], ["p"], attributes={"axis": softmax_axis}), Node("MatMul", ["p", "vt"], ["mixed"]),
            Node("Transpose", ["mixed"], ["y"], attributes={"perm": (0, 2, 1, 3)})]


def attention_graph(nodes, outputs=("y",), **constants):
    arrays = {"mask": np.zeros((ROWS, ROWS)), "scale": 0.5} | constants
    types = {name: TensorType(FLOAT, (N, ROWS, HEADS, SIZE)) for name in "qkv"} | {"mask": TensorType(FLOAT, (ROWS, ROWS))}
    return graph_of(nodes, {k: v for k, v in arrays.items() if v is not None}, outputs, ["q", "k", "v", "mask"], types)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("keys", ["one", "two"])
@pytest.mark.parametrize("scale, factor", [("after", 0.5), ("before", 0.25), ("none", 1.0)])
def test_attention_is_fused_in_exporter_forms(mask, keys, scale, factor):
    graph = attention_graph(attention_nodes(mask, scale, keys))
    assert fuse(graph) == 1 and operators(graph) == ["Attention"]
    expected = 2.0 if scale == "after" and keys == "two" else factor            # this form divides by the scale
    assert graph.nodes[0].inputs == ["q", "k", "v", *(["mask"] if mask else [])] and graph.nodes[0].attributes["scale"] == pytest.approx(expected)


def test_attention_with_a_trained_mask_is_not_fused():
    graph = attention_graph(attention_nodes(), mask=None)
    assert fuse(graph, trained=["mask"]) == 0
    assert fuse(graph, trained=["q"]) == 1


def test_attention_with_weights_as_output_is_not_fused():
    assert fuse(attention_graph(attention_nodes(), outputs=("y", "p"))) == 0


def test_attention_with_softmax_over_another_axis_is_not_fused():
    assert fuse(attention_graph(attention_nodes(softmax_axis=2))) == 0


# ---- whole models


def transformer():
    """Return (model, weights): x [2, 5, 8] -> scores [2, 3], causal attention and GELU as an exporter writes them."""
    rng = np.random.default_rng(5)
    weights = {f"w{part}": rng.standard_normal((DIM, DIM)) * 0.4 for part in "qkvo"} | {"out": rng.standard_normal((ROWS * DIM, 3)) * 0.3}
    constants = GELU_CONSTANTS | {"scale": SIZE ** -0.5, "mask": np.triu(np.full((ROWS, ROWS), -1e9), 1)}
    shapes = {"heads": [N, ROWS, HEADS, SIZE], "joined": [N, ROWS, DIM], "flat": [N, ROWS * DIM]}
    nodes = []
    for part in "qkv":
        nodes += [helper.make_node("MatMul", ["x0", f"w{part}"], [f"{part}3"]), helper.make_node("Reshape", [f"{part}3", "heads"], [part])]
    nodes += [helper.make_node(n.op_type, n.inputs, n.outputs, **n.attributes) for n in attention_nodes()]
    nodes += [helper.make_node("Reshape", ["y", "joined"], ["j"]), helper.make_node("MatMul", ["j", "wo"], ["x"])]
    nodes += [helper.make_node(n.op_type, n.inputs, [o if o != "y" else "g" for o in n.outputs]) for n in
              [Node(n.op_type, n.inputs, ["gp" if o == "p" else o for o in n.outputs]) if n.outputs == ["p"] else
               Node(n.op_type, ["gp" if i == "p" else i for i in n.inputs], n.outputs) for n in gelu_nodes()]]
    nodes += [helper.make_node("Reshape", ["g", "flat"], ["f"]), helper.make_node("MatMul", ["f", "out"], ["scores"])]
    initializers = [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in {**weights, **constants}.items()]
    initializers += [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in shapes.items()]
    graph = helper.make_graph(nodes, "transformer", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [N, ROWS, DIM])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [N, 3])], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model, list(weights)


def session_of(model, weights):
    return TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=weights, learning_rate=0.01)


def losses_of(session, steps=4):
    rng = np.random.default_rng(1)
    losses = []
    for _ in range(steps):
        losses.append(float(session.train_step(rng.standard_normal((N, ROWS, DIM)).astype(np.float32), np.array([0, 2]))[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


def kernels_run(session):
    with session.profile() as profile:
        losses_of(session, 1)
    return {step.kernel for step in profile.steps}


def test_fused_training_matches_unfused_training(monkeypatch):
    model, weights = transformer()
    with session_of(model, weights) as session:
        assert {"attention", "attention_grad", "gelu", "gelu_grad"} <= kernels_run(session)
    with session_of(model, weights) as session:
        fused, parameters = losses_of(session), session.to_buffer()
    monkeypatch.setattr("ortrain.training.binding.fused_training_model", lambda model: model)
    with session_of(model, weights) as session:
        assert "attention" not in kernels_run(session)
    with session_of(model, weights) as session:
        np.testing.assert_allclose(fused, losses_of(session), rtol=1e-5)
        np.testing.assert_allclose(parameters, session.to_buffer(), atol=3e-4)


def test_artifacts_have_unfused_operators(tmp_path):
    model, weights = transformer()
    with session_of(model, weights) as session:
        session.save_artifacts(tmp_path)
        expected = losses_of(session)
    saved = read_model(str(tmp_path / "training_model.onnx"))
    assert not {"Attention", "AttentionGrad", "Gelu"}.intersection(operators(saved.graph)) and "ortrain" not in saved.opsets
    with TrainingSession.from_artifacts(tmp_path) as session:
        session.learning_rate = 0.01
        assert losses_of(session) == expected


def training_model():
    model, weights = transformer()
    with session_of(model, weights) as session:
        return session.training_model


def test_edited_backward_part_is_not_fused():
    model = training_model()
    assert fused_training_model(model) is not model
    accumulator = next(node for node in model.graph.nodes if node.op_type == "InPlaceAccumulatorV2")
    model.graph.nodes.insert(model.graph.nodes.index(accumulator), Node("Neg", [accumulator.inputs[1]], ["turned"], "turned"))
    accumulator.inputs[1] = "turned"
    assert fused_training_model(model) is model


def test_fusion_does_not_depend_on_value_names():
    model = training_model()
    forward = {name for node in model.graph.ancestors(model.graph.outputs[:1]) for name in node.outputs}
    renamed = {name for node in model.graph.nodes for name in node.outputs} - forward - set(model.graph.outputs)
    for node in model.graph.nodes:
        node.inputs = [f"other::{name}" if name in renamed else name for name in node.inputs]
        node.outputs = [f"other::{name}" if name in renamed else name for name in node.outputs]
    model.graph.types = {f"other::{name}" if name in renamed else name: kind for name, kind in model.graph.types.items()}
    assert fused_training_model(model) is not model


def test_forward_model_without_patterns_is_unchanged():
    model, _ = transformer()
    matmul_only = load_model(model)
    matmul_only.graph.nodes = [node for node in matmul_only.graph.nodes if node.op_type == "MatMul"][:1]
    matmul_only.graph.outputs = [matmul_only.graph.nodes[0].outputs[0]]
    before = operators(matmul_only.graph)
    assert fuse(matmul_only.graph) == 0 and operators(matmul_only.graph) == before


def test_inference_is_fused_unless_a_value_within_is_an_output():
    model, _ = transformer()
    x = np.random.default_rng(2).standard_normal((N, ROWS, DIM)).astype(np.float32)

    def scores_and_kernels(outputs):
        session = InferenceSession(model.SerializeToString())
        results = session.run(outputs, {"x0": x})
        (program,) = session._runners[tuple(outputs)]._programs.values()
        return results, {step.call.kernel for step in program.plan.steps}

    (scores,), kernels = scores_and_kernels(["scores"])
    assert {"attention", "gelu"} <= kernels
    model.graph.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, [N, HEADS, ROWS, ROWS]))
    (shares, same), kernels = scores_and_kernels(["p", "scores"])
    assert "attention" not in kernels and "gelu" in kernels
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(scores, same, rtol=1e-4, atol=1e-6)


def test_evaluation_is_fused_and_can_return_any_value():
    model, weights = transformer()
    x = np.random.default_rng(2).standard_normal((N, ROWS, DIM)).astype(np.float32)
    with session_of(model, weights) as session:
        with session.profile() as profile:
            scores = session.predict(x)[0]
        assert {"attention", "gelu"} <= {step.kernel for step in profile.steps}
        shares, same = session.predict(x, output_names=["p", "scores"])
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(scores, same, rtol=1e-4, atol=1e-6)
