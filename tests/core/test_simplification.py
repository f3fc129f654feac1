"""Plans are simplified: copies, first powers and negations that change nothing are not computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

from ortrain import InferenceSession, SessionOptions, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.plan import rewriting

HEADER = '<ir_version: 8, opset_import: ["" : 17]> '


def run(model, feeds, **options):
    """Return the outputs of a model, and the kernels and operators of the steps that computed them."""
    session = InferenceSession(model.SerializeToString(), SessionOptions(intra_op_num_threads=1, enable_elementwise_fusion=False, **options))
    outputs = session.run(None, feeds)
    (runner,) = session._runners.values()
    return outputs, [step.node.op_type for step in runner.last.plan.steps]


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operators_of(text, feeds, monkeypatch):
    """Assert that a model gives the values that it gives unsimplified, and return the operators of its plan."""
    model = parser.parse_model(HEADER + text)
    outputs, found = run(model, feeds)
    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "simplify", lambda nodes, builder, kept: list(nodes))
        expected, _ = run(model, feeds)
    for output, value in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, value)
    return found


X, ROW = values(4, 5), values(4, 1, seed=1)


def test_operators_that_broadcast_read_the_source_of_an_expand(monkeypatch):
    text = "g (float[n,5] x, float[n,1] r) => (float[n,5] y) { s = Shape(x) e = Expand(r, s) a = Mul(x, e) y = Sub(e, a) }"
    assert operators_of(text, {"x": X, "r": ROW}, monkeypatch) == ["Mul", "Sub"]


def test_an_expand_that_gives_the_result_its_shape_is_computed(monkeypatch):
    text = "g (float[4,1] r, float s) => (float[4,5] y) <int64[2] shape={4,5}> { e = Expand(r, shape) y = Mul(e, s) }"
    assert operators_of(text, {"r": ROW, "s": np.float32(2)}, monkeypatch) == ["Expand", "Mul"]


@pytest.mark.parametrize("use", ["e = Expand(r, s) y = Mul(x, e)", "f = Expand(r, s) y = Mul(x, f) e = Relu(f)"])
def test_an_expand_that_others_read_is_computed(use, monkeypatch):
    text = f"g (float[n,5] x, float[n,1] r) => (float[n,5] y, float[n,5] e) {{ s = Shape(x) {use} }}"
    assert "Expand" in operators_of(text, {"x": X, "r": ROW}, monkeypatch)


def test_a_first_power_is_its_base(monkeypatch):
    text = "g (float[n,5] x) => (float[n,5] y) <float one={1.0}> { p = Pow(x, one) y = Mul(p, x) }"
    assert operators_of(text, {"x": X}, monkeypatch) == ["Mul"]


def test_a_first_power_that_is_an_output_or_has_another_shape_is_computed(monkeypatch):
    text = """g (float[4,5] x) => (float[4,5] p, float[3,4,5] q) <float one={1.0}, float[3,1,1] ones={1.0, 1.0, 1.0}> {
        p = Pow(x, one) r = Pow(x, ones) q = Neg(r) }"""
    assert operators_of(text, {"x": X}, monkeypatch) == ["Pow", "Pow", "Neg"]


def test_a_sum_is_negated_instead_of_its_addends(monkeypatch):
    text = "g (float[n,5] x) => (float[n,1] y) <int64[1] last={-1}> { a = Neg(x) y = ReduceSum(a, last) }"
    assert operators_of(text, {"x": X}, monkeypatch) == ["ReduceSum", "Neg"]


def test_addends_whose_negations_others_read_are_negated(monkeypatch):
    text = "g (float[n,5] x) => (float[n,1] y, float[n,5] z) <int64[1] last={-1}> { a = Neg(x) y = ReduceSum(a, last) z = Relu(a) }"
    assert sorted(operators_of(text, {"x": X}, monkeypatch)) == ["Neg", "ReduceSum", "Relu"]


def test_the_gradient_of_a_mean_is_not_expanded():
    text = HEADER + """g (float[n,5] x) => (float[n,5] y) {
        h = Mul(x, w) m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) y = Div(d, v) }"""
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(values(5, seed=2), "w"))
    session = TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, requires_grad=["w"])
    session.train_step(X, values(4, 5, seed=3))
    found = [step.node.op_type for step in session._train_runner.last.plan.steps]
    assert found.count("Expand") <= 1 and "Div" in found                # what is left gives a sum of gradients its shape


@st.composite
def graphs(draw):
    """Return a graph of expansions, powers, negations, sums and arithmetic on values [4, 5], [4, 1] and [5]."""
    shapes = {"x": (4, 5), "r": (4, 1), "c": (5,)}
    nodes = []
    for index in range(draw(st.integers(2, 9))):
        name, output = draw(st.sampled_from(list(shapes))), f"v{index}"
        kind = draw(st.sampled_from(["Expand", "Pow", "Neg", "ReduceSum", "Add", "Mul", "Sub"]))
        if kind == "Expand":
            inputs, shapes[output] = [name, "full"], (4, 5)
        elif kind == "Pow":
            inputs, shapes[output] = [name, draw(st.sampled_from(["one", "two"]))], shapes[name]
        elif kind == "Neg":
            inputs, shapes[output] = [name], shapes[name]
        elif kind == "ReduceSum":
            inputs, shapes[output] = [name, "last"], (*shapes[name][:-1], 1)
        else:
            other = draw(st.sampled_from(list(shapes)))
            inputs, shapes[output] = [name, other], np.broadcast_shapes(shapes[name], shapes[other])
        nodes.append(helper.make_node(kind, inputs, [output]))
    read = {name for node in nodes for name in node.input}
    outputs = [name for name in shapes if name.startswith("v") and (name not in read or draw(st.integers(0, 3)) == 0)]
    constants = {"one": np.float32(1), "two": np.float32(2), "full": np.array([4, 5]), "last": np.array([-1])}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in ("x", "r", "c")],
                              [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
                              [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_simplified_graphs_have_the_values_of_the_graphs(model):
    feeds = {"x": X, "r": ROW, "c": values(5, seed=4)}
    outputs, found = run(model, feeds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "simplify", lambda nodes, builder, kept: list(nodes))
        expected, unsimplified = run(model, feeds)
    assert len(found) <= len(unsimplified)
    for output, value in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, value)
