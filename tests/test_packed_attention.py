"""Attention whose queries, keys and values come from one dense layer reads them there, in the forms that exporters write, and trains as unfused nodes do."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.networks import NETWORKS
from ortrain import SessionOptions, TrainingSession
from ortrain.artifacts import LossType, OptimType
from tests.test_rematerialization import assert_same_bits, operators

N, ROWS, HEADS, SIZE, CLASSES = 3, 10, 2, 8, 4
WIDTH = HEADS * SIZE


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs, outputs if isinstance(outputs, list) else [outputs], **attributes)


STACKED = [node("Reshape", ["p", "stacked"], "r"), node("Transpose", ["r"], "t", perm=[2, 0, 3, 1, 4])]
KEYS = [node("Transpose", ["k"], "kt", perm=[0, 1, 3, 2])]
FORMS = {
    "indices of stacked heads": [*STACKED, *(node("Gather", ["t", f"i{i}"], name, axis=0) for i, name in enumerate("qkv")), *KEYS],
    "unbound stacked heads": [*STACKED, node("Split", ["t", "ones"], ["q1", "k1", "v1"], axis=0),
                              *(node("Squeeze", [f"{name}1", "first"], name) for name in "qkv"), *KEYS],
    "split columns": [node("Split", ["p", "thirds"], ["q3", "k3", "v3"], axis=2), *(node("Reshape", [f"{name}3", "heads"], f"{name}4") for name in "qkv"),
                      node("Transpose", ["q4"], "q", perm=[0, 2, 1, 3]), node("Transpose", ["k4"], "kt", perm=[0, 2, 3, 1]),
                      node("Transpose", ["v4"], "v", perm=[0, 2, 1, 3])],
}
"""From queries, keys and values p [n, rows, 3 width] to q, the transposed keys kt, and v."""
OTHERS = {
    "keys before queries": [*STACKED, *(node("Gather", ["t", f"i{i}"], name, axis=0) for i, name in enumerate("kqv")), *KEYS],
    "columns that are read elsewhere": [*FORMS["split columns"], node("ReduceMax", ["v3"], "m", axes=[1, 2], keepdims=0)],
}


def model_of(form, causal=False, tokens=None, rows=ROWS):
    """Return a classifier of attention with a dense layer of queries, keys and values before it, and the names of its weights. tokens: the rows of the result
    whose mean is classified, or the one that is; None for all. rows: the number of rows, or its name."""
    rng = np.random.default_rng(2)
    weights = {"w": rng.standard_normal((WIDTH, 3 * WIDTH)) / 2, "b": rng.standard_normal(3 * WIDTH) / 5, "out": rng.standard_normal((WIDTH, CLASSES))}
    scores = [node("MatMul", ["q", "kt"], "products"), node("Mul", ["products", "scale"], "scaled")]
    scores += [node("Add", ["scaled", "mask"], "masked")] if causal else []
    nodes = [node("MatMul", ["x", "w"], "xw"), node("Add", ["xw", "b"], "p"), *form, *scores, node("Softmax", ["masked" if causal else "scaled"], "s", axis=-1),
             node("MatMul", ["s", "v"], "mixed"), node("Transpose", ["mixed"], "y4", perm=[0, 2, 1, 3]), node("Reshape", ["y4", "joined"], "y"),
             *([] if tokens is None else [node("Gather", ["y", "tokens"], "chosen", axis=1)]),
             node("MatMul", ["chosen" if isinstance(tokens, int) else "mean", "out"], "logits")]
    if not isinstance(tokens, int):
        nodes.insert(-1, node("ReduceMean", ["y" if tokens is None else "chosen"], "mean", axes=[1], keepdims=0))
    if any("m" in made.output for made in form):
        nodes += [node("Unsqueeze", ["m", "last"], "column"), node("Add", ["logits", "column"], "result")]
    else:
        nodes.append(node("Identity", ["logits"], "result"))
    integers = {"stacked": [0, 0, 3, HEADS, SIZE], "heads": [0, 0, HEADS, SIZE], "joined": [0, 0, WIDTH], "ones": [1, 1, 1], "thirds": [WIDTH] * 3,
                "first": [0], "last": [1]}
    initializers = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in
                    (weights | {"scale": SIZE ** -0.5, "mask": np.triu(np.full((ROWS, ROWS), -1e9), 1)}).items()]
    initializers += [numpy_helper.from_array(np.array(values, np.int64), name) for name, values in integers.items()]
    initializers += [numpy_helper.from_array(np.array(i, np.int64), f"i{i}") for i in range(3)]
    initializers.append(numpy_helper.from_array(np.array(tokens or 0, np.int64), "tokens"))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", rows, WIDTH])],
                              [helper.make_tensor_value_info("result", TensorProto.FLOAT, ["n", CLASSES])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), list(weights)


def trained(form, causal=False, tokens=None, rows=ROWS, **options):
    """Return (losses, session) after three steps."""
    model, weights = model_of(form, causal, tokens, rows)
    session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=weights, learning_rate=0.1,
                                         options=SessionOptions(**options))
    rng, losses = np.random.default_rng(3), []
    for _ in range(3):
        losses.append(session.train_step(rng.standard_normal((N, ROWS, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, N))[0])
        session.optimizer_step()
        session.lazy_reset_grad()
    return losses, session


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("form", FORMS)
def test_packed_heads_are_read_where_they_are_and_train_as_unfused_ones(form, causal, monkeypatch):
    losses, session = trained(FORMS[form], causal)
    names = operators(session)
    assert names.count("PackedAttention") == names.count("PackedAttentionGrad") == 1
    assert not {"Gather", "Split", "Transpose", "Concat", "StridedMatMul", "Softmax"} & set(names)
    monkeypatch.setattr("ortrain.training.binding.fused_training_model", lambda model: model)
    expected, separate = trained(FORMS[form], causal)
    assert "Softmax" in operators(separate)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(session.to_buffer(), separate.to_buffer(), atol=1e-5)


@pytest.mark.parametrize("tokens", [0, 4, -1, [2, 3, 4], [-2, -1]], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_queries_of_adjacent_tokens_are_read_where_they_are(form, tokens, monkeypatch):
    losses, session = trained(FORMS[form], True, tokens)
    names = operators(session)
    assert names.count("PackedAttention") == names.count("PackedAttentionGrad") == 1
    assert not {"Split", "Transpose", "Concat", "Softmax"} & set(names) and names.count("Gather") <= 1             # of the mask's row
    monkeypatch.setattr("ortrain.training.binding.fused_training_model", lambda model: model)
    expected, separate = trained(FORMS[form], True, tokens)
    assert "Softmax" in operators(separate)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(session.to_buffer(), separate.to_buffer(), atol=1e-5)


@pytest.mark.parametrize(("tokens", "rows"), [([0, 2], ROWS), ([-1, 0], ROWS), ([3, 2], ROWS), (0, "rows"), ([0, 1], "rows")], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_queries_of_other_tokens_or_of_an_unknown_number_are_copied(form, tokens, rows, monkeypatch):
    losses, session = trained(FORMS[form], tokens=tokens, rows=rows)
    assert "Attention" in operators(session) and "PackedAttention" not in operators(session)
    monkeypatch.setattr("ortrain.training.binding.fused_training_model", lambda model: model)
    expected, _ = trained(FORMS[form], tokens=tokens, rows=rows)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize("form", OTHERS)
def test_other_parts_are_copied_and_train_as_unfused_ones(form, monkeypatch):
    losses, session = trained(OTHERS[form])
    assert "Attention" in operators(session) and "PackedAttention" not in operators(session)
    monkeypatch.setattr("ortrain.training.binding.fused_training_model", lambda model: model)
    expected, separate = trained(OTHERS[form])
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(session.to_buffer(), separate.to_buffer(), atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_packed_attention_has_the_same_bits_for_any_number_of_threads(precision):
    one, three = (trained(FORMS["split columns"], intra_op_num_threads=threads, precision=precision)[1] for threads in (1, 3))
    assert_same_bits(one, three)


def test_a_vision_transformer_whose_last_layer_computes_one_token_copies_no_heads():
    made = NETWORKS["vit"].make("vit", tiny=True)
    with TrainingSession.from_model(made.model, loss=LossType.CrossEntropyLoss, requires_grad=made.trained, frozen_params=made.frozen) as session:
        session.train_step(*NETWORKS["vit"].batches(made, 1)[0])
        names = operators(session)
    assert "PackedAttention" in names and not {"Attention", "Split", "Concat"} & set(names[names.index("PackedAttention"):])
