"""Attention whose heads come before rows, and whose keys and values are repeated for groups of queries: what is fused, and that the values stay the same."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.fusion import fuse
from ortrain.ir import Graph, Node, TensorType

FLOAT = "float32"
N, HEADS, SHARED, ROWS, KEYS, SIZE = 2, 4, 2, 5, 7, 8
INTEGERS = {"axis": [2], "times": [N, SHARED, HEADS // SHARED, KEYS, SIZE], "joined": [N, HEADS, KEYS, SIZE]}


def operators(graph):
    return [node.op_type for node in graph.nodes]


def kernels_of(profile):
    return {step.kernel for step in profile.steps}


def attention(q, k, v):
    """Return the nodes of attention between values [n, heads, rows, size]."""
    return [Node("Transpose", [k], ["kt"], attributes={"perm": (0, 1, 3, 2)}), Node("MatMul", [q, "kt"], ["s"]), Node("Mul", ["s", "scale"], ["z"]),
            Node("Softmax", ["z"], ["p"], attributes={"axis": -1}), Node("MatMul", ["p", v], ["y"])]


def turned(name, heads="heads"):
    """Return the node that puts the rows of a value before its heads."""
    return Node("Transpose", [name], [f"{name}_{heads}"], attributes={"perm": (0, 2, 1, 3)})


def repeated(name):
    """Return the nodes that repeat each head, as PyTorch exports torch.repeat_interleave of heads."""
    return [Node("Unsqueeze", [name, "axis"], [f"{name}_5"]), Node("Expand", [f"{name}_5", "times"], [f"{name}_times"]),
            Node("Reshape", [f"{name}_times", "joined"], [f"{name}_repeated"])]


def graph_of(nodes, shapes, **constants):
    """Return a graph of inputs with the given shapes, whose other values have the types that a loaded model has."""
    repeats = {f"{name}{part}": shape for name in "kv" for part, shape in (("_times", INTEGERS["times"]), ("_repeated", INTEGERS["joined"]))}
    arrays = {"scale": np.float32(0.5)} | {name: np.array(value, np.int64) for name, value in (INTEGERS | constants).items()}
    return Graph(inputs=list(shapes), outputs=["y"], nodes=nodes, initializers=arrays,
                 types={name: TensorType(FLOAT, tuple(shape)) for name, shape in (repeats | shapes).items()})


def heads(count, rows, n=N):
    return n, count, rows, SIZE


OWN_KEYS = {"q": heads(HEADS, ROWS), "k": heads(HEADS, KEYS), "v": heads(HEADS, KEYS)}
SHARED_KEYS = OWN_KEYS | {"k": heads(SHARED, KEYS), "v": heads(SHARED, KEYS)}


def test_heads_before_rows_are_read_where_they_are():
    graph = graph_of(attention("q", "k", "v"), OWN_KEYS)
    assert fuse(graph) == 1 and operators(graph) == ["Attention"]
    assert graph.nodes[0].inputs == ["q", "k", "v"] and graph.nodes[0].attributes["heads_first"] == (1, 1, 1, 1)


def test_transposes_of_some_operands_are_not_needed():
    graph = graph_of([turned("q"), *attention("q_heads", "k", "v"), turned("y")], OWN_KEYS | {"q": (N, ROWS, HEADS, SIZE)})
    graph.outputs = ["y_heads"]
    assert fuse(graph) == 1 and operators(graph) == ["Attention"]
    assert graph.nodes[0].inputs == ["q", "k", "v"] and graph.nodes[0].attributes["heads_first"] == (0, 1, 1, 0)


def test_keys_that_are_repeated_for_groups_of_queries_are_read_once():
    graph = graph_of([*repeated("k"), *repeated("v"), *attention("q", "k_repeated", "v_repeated")], SHARED_KEYS)
    assert fuse(graph) == 1 and operators(graph) == ["Attention"] and graph.nodes[0].inputs == ["q", "k", "v"]


def gathered(index):
    """Return a graph of attention whose keys and values are gathered from shared heads."""
    gathers = [Node("Gather", [name, "index"], [f"{name}_repeated"], attributes={"axis": 1}) for name in "kv"]
    return graph_of([*gathers, *attention("q", "k_repeated", "v_repeated")], SHARED_KEYS, index=index)


def test_keys_that_are_repeated_by_gather_are_read_once():
    graph = gathered([0, 0, 1, 1])
    assert fuse(graph) == 1 and operators(graph) == ["Attention"] and graph.nodes[0].inputs == ["q", "k", "v"]


def test_keys_that_are_gathered_in_another_order_are_gathered_first():
    graph = gathered([0, 1, 0, 1])
    assert fuse(graph) == 1 and operators(graph) == ["Gather", "Gather", "Attention"] and graph.nodes[-1].inputs == ["q", "k_repeated", "v_repeated"]


def test_one_head_of_keys_serves_all_queries():
    graph = graph_of(attention("q", "k", "v"), OWN_KEYS | {"k": heads(1, KEYS), "v": heads(1, KEYS)})
    assert fuse(graph) == 1 and operators(graph) == ["Attention"]


@pytest.mark.parametrize("shapes", [
    {"k": heads(HEADS, KEYS, n=1), "v": heads(HEADS, KEYS, n=1)}, {"q": heads(1, ROWS)}, {"v": heads(1, KEYS)}, {"k": heads(1, KEYS)},
    {"q": ("n", HEADS, ROWS, SIZE)}, {"q": (N, "heads", ROWS, SIZE)}, {"q": (N, N, HEADS, ROWS, SIZE)}, {"q": (ROWS, SIZE)}])
def test_products_that_may_broadcast_samples_or_heads_are_not_fused(shapes):
    assert fuse(graph_of(attention("q", "k", "v"), OWN_KEYS | shapes)) == 0


@pytest.mark.parametrize("shape, is_fused", [((ROWS, KEYS), 1), ((N, 1, 1, KEYS), 1), ((HEADS, 1, 1), 1), ((3, 1, ROWS, KEYS), 0), ((ROWS, KEYS + 1), 0)])
def test_scores_that_a_mask_broadcasts_are_not_fused(shape, is_fused):
    *nodes, softmax, weighted = attention("q", "k", "v")
    softmax.inputs = ["masked"]
    graph = graph_of([*nodes, Node("Add", ["z", "mask"], ["masked"]), softmax, weighted], OWN_KEYS | {"mask": shape})
    assert fuse(graph) == is_fused


def decoder():
    """Return (model, weights): x [2, 5, 32] -> scores [2, 3], with shared keys whose heads are scaled before rows."""
    rng, width = np.random.default_rng(3), HEADS * SIZE
    weights = {"wq": (width, width), "wk": (width, SHARED * SIZE), "wv": (width, SHARED * SIZE), "out": (width * ROWS, 3)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in weights.items()}
    arrays |= {"scale": np.float32(SIZE ** -0.5), "mask": np.triu(np.full((ROWS, ROWS), -1e9, np.float32), 1), "turn": rng.random((ROWS, SIZE), np.float32)}
    integers = {"axis": [2], "times": [N, SHARED, HEADS // SHARED, ROWS, SIZE], "joined": [N, HEADS, ROWS, SIZE], "flat": [N, ROWS * width]}
    integers |= {f"shape_{part}": [0, 0, count, SIZE] for part, count in (("q", HEADS), ("k", SHARED), ("v", SHARED))}
    arrays |= {name: np.array(value, np.int64) for name, value in integers.items()}
    nodes = []
    for part in "qkv":
        nodes += [Node("MatMul", ["x", f"w{part}"], [f"{part}_flat"]), Node("Reshape", [f"{part}_flat", f"shape_{part}"], [f"{part}_rows"]),
                  Node("Transpose", [f"{part}_rows"], [f"{part}_plain"], attributes={"perm": (0, 2, 1, 3)}), Node("Mul", [f"{part}_plain", "turn"], [part])]
    nodes += [*repeated("k"), *repeated("v"), *attention("q", "k_repeated", "v_repeated")[:-2], Node("Add", ["z", "mask"], ["masked"]),
              Node("Softmax", ["masked"], ["p"], attributes={"axis": -1}), Node("MatMul", ["p", "v_repeated"], ["y"]), turned("y"),
              Node("Reshape", ["y_heads", "flat"], ["f"]), Node("MatMul", ["f", "out"], ["scores"])]
    graph = helper.make_graph([helper.make_node(n.op_type, n.inputs, n.outputs, **n.attributes) for n in nodes], "decoder",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [N, ROWS, width])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [N, 3])],
                              [numpy_helper.from_array(array, name) for name, array in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), list(weights)


def session_of(model, weights):
    return TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=weights, learning_rate=0.01)


def losses_of(session):
    rng, losses = np.random.default_rng(1), []
    for _ in range(4):
        losses.append(float(session.train_step(rng.standard_normal((N, ROWS, HEADS * SIZE)).astype(np.float32), np.array([0, 2]))[0]))
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses


def test_a_decoder_with_shared_keys_trains_as_it_does_unfused(monkeypatch):
    model, weights = decoder()
    with session_of(model, weights) as session:
        with session.profile() as profile:
            fused = losses_of(session)
        assert {"attention", "attention_grad"} <= kernels_of(profile) and "softmax" not in kernels_of(profile)
        parameters = session.to_buffer()
    monkeypatch.setattr("ortrain.training.binding.fused_training_model", lambda model: model)
    with session_of(model, weights) as session:
        with session.profile() as profile:
            np.testing.assert_allclose(fused, losses_of(session), rtol=1e-5)
        assert "attention" not in kernels_of(profile)
        np.testing.assert_allclose(parameters, session.to_buffer(), atol=3e-4)
