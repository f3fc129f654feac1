"""Elementwise fusion: fused steps give the bits of the single steps, in fewer passes and no more memory."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

from ortrain import InferenceSession, SessionOptions, TrainingSession
from ortrain.artifacts import LossType, OptimType
from ortrain.formats.onnx_files import read_model
from ortrain.gradient import add_gradient
from ortrain.ops.registry.shape_inference import infer
from ortrain.plan.elementwise_fusion import fusing
from ortrain.plan.elementwise_fusion.axes import refine

MIN_ELEMENTS = fusing.MIN_ELEMENTS
HEADER = '<ir_version: 8, opset_import: ["" : 17]> '
UNARY = ("Neg", "Abs", "Sigmoid", "Tanh", "Relu", "Exp", "Sqrt", "Sign", "Erf", "Softplus", "Reciprocal", "Floor", "LeakyRelu", "HardSwish", "Softsign")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")
COMPARISONS = ("Less", "GreaterOrEqual", "Equal")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare")


@pytest.fixture(autouse=True, scope="module")
def fuse_small_steps():
    """Fuse steps of any size, so that small tests cover all that fusion does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusing, "MIN_ELEMENTS", 1)
        yield


def run(model, feeds, threads=1, **options):
    """Return the outputs of a model and the plan of the program that computed them."""
    session = InferenceSession(model.SerializeToString(), SessionOptions(intra_op_num_threads=threads, **options))
    outputs = session.run(None, feeds)
    (runner,) = session._runners.values()
    return outputs, runner.last.plan


def fused_steps(plan):
    return [step for step in plan.steps if step.call.kernel == "fused"]


def assert_same_bits(one, other):
    """Assert that arrays are equal bit by bit, except for the sign of NaN, which depends on an element's place in a vector."""
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = (np.where(np.isnan(x), np.nan, x).astype(x.dtype) if x.dtype.kind == "f" else x for x in (a, b))
        assert a.tobytes() == b.tobytes()


def assert_fused(text, feeds, steps=1):
    """Assert that a model runs as `steps` fused steps, with the same bits as unfused and on two threads; return the plan."""
    model = parser.parse_model(text)
    outputs, plan = run(model, feeds)
    assert_same_bits(outputs, run(model, feeds, enable_elementwise_fusion=False)[0])
    assert_same_bits(outputs, run(model, feeds, threads=2)[0])
    assert len(fused_steps(plan)) == steps, str(plan)
    return plan


def values(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- random graphs


@st.composite
def graphs(draw):
    """Return a random graph of elementwise operators and reductions over the last axis, with broadcasts and several outputs."""
    dtype = draw(st.sampled_from([TensorProto.FLOAT, TensorProto.DOUBLE]))
    rows, columns = draw(st.sampled_from([(64, 80), (7, 900), (1, 5000), (4100, 1), (300, 17)]))
    leading = draw(st.sampled_from([(), (3,)]))
    shapes = {"x": (*leading, rows, columns), "y": (*leading, rows, columns), "scalar": (), "row": (columns,), "column": (rows, 1), "corner": (1, 1)}
    full, per_row, nodes = ["x"], [], []

    def add(op, inputs, results, **attributes):
        results.append(f"v{len(nodes)}")
        nodes.append(helper.make_node(op, inputs, [results[-1]], **attributes))

    for _ in range(draw(st.integers(3, 14))):
        kind = draw(st.sampled_from(["unary", "binary", "binary", "broadcast", "where", "reduce", "of_rows", "softmax"]))
        a, b = draw(st.sampled_from([*full[-3:], *full])), draw(st.sampled_from(["y", *full]))
        if kind == "unary":
            add(draw(st.sampled_from(UNARY)), [a], full)
        elif kind == "binary":
            add(draw(st.sampled_from(BINARY)), [a, b], full)
        elif kind == "broadcast":
            other = draw(st.sampled_from(["scalar", "row", "column", "corner", *per_row]))
            pair = [a, other] if draw(st.booleans()) else [other, a]
            add(draw(st.sampled_from(BINARY[:6])), pair, full)
        elif kind == "where":
            condition = []
            add(draw(st.sampled_from(COMPARISONS)), [a, b], condition)
            add("Where", [condition[0], draw(st.sampled_from(full)), draw(st.sampled_from([*full, "row", "column"]))], full)
        elif kind == "reduce":
            op = draw(st.sampled_from(REDUCTIONS))
            if op == "ReduceSum":
                add(op, [a, "last_axis"], per_row)
            else:
                add(op, [a], per_row, axes=[-1])
        elif kind == "of_rows" and per_row:
            add(draw(st.sampled_from(UNARY)), [draw(st.sampled_from(per_row))], per_row)
        elif kind == "softmax":
            add(draw(st.sampled_from(["Softmax", "LogSoftmax"])), [a], full, axis=-1)
    read = {name for node in nodes for name in node.input}
    last = [name for name in (*full, *per_row) if name not in read or draw(st.integers(0, 5)) == 0 and name != "x"]
    inputs = [helper.make_tensor_value_info(name, dtype, ["n", *shape[1:]] if shape and name in "xy" and draw(st.booleans()) else shape)
              for name, shape in shapes.items()]
    axis = numpy_helper.from_array(np.array([-1]), "last_axis")
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info(name, dtype, None) for name in last or ["v0"]], [axis])
    numpy_dtype = helper.tensor_dtype_to_np_dtype(dtype)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), {
        name: values(*shape, dtype=numpy_dtype, seed=index) for index, (name, shape) in enumerate(shapes.items())}


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_random_chains_have_the_bits_of_their_single_steps_and_take_no_more_memory(model_and_feeds):
    model, feeds = model_and_feeds
    feeds = {value.name: feeds[value.name] for value in model.graph.input}
    with np.errstate(all="ignore"):
        single, unfused = run(model, feeds, enable_elementwise_fusion=False)
    fused, plan = run(model, feeds)
    assert_same_bits(fused, single)
    assert plan.arena_bytes <= unfused.arena_bytes
    assert_same_bits(run(model, feeds, threads=2)[0], single)


# ---- what is fused


def test_a_chain_is_one_step_and_its_values_take_no_memory():
    text = HEADER + "g (float[n] x, float[n] b) => (float[n] y) { a = Mul(x, x) c = Add(a, b) d = Sigmoid(c) e = Sub(d, x) y = Neg(e) }"
    plan = assert_fused(text, {"x": values(20000), "b": values(20000, seed=1)})
    assert plan.steps[0].node.op_type == "Mul+Add+Sigmoid+Sub+Neg"
    assert plan.arena_bytes < 2 * 4 * 20000


@pytest.mark.parametrize("shape", [(), (1,), (333,), (50, 1), (50, 333), (1, 1), (4, 1, 1), (4, 50, 1), (4, 1, 333)])
def test_operands_are_broadcast(shape):
    text = HEADER + f"g (float[4,50,333] x, float[{','.join(map(str, shape))}] b) => (float[4,50,333] y) {{ a = Mul(x, b) c = Exp(a) y = Sub(b, c) }}"
    assert_fused(text.replace("float[]", "float"), {"x": values(4, 50, 333), "b": values(*shape, seed=1)})


def test_values_that_others_read_are_further_outputs():
    text = HEADER + "g (float[n] x) => (float[n] a, float[n] y, float[n] m) { a = Exp(x) b = Neg(a) c = Tanh(b) y = Mul(c, a) m = Mul(b, x) }"
    plan = assert_fused(text, {"x": values(20000)})
    assert sorted(plan.steps[0].outputs) == ["a", "m", "y"]


def test_two_chains_that_meet_are_one_step():
    text = HEADER + "g (float[n] x, float[n] z) => (float[n] y) { a = Exp(x) b = Neg(a) c = Tanh(z) d = Abs(c) y = Mul(b, d) }"
    assert_fused(text, {"x": values(20000), "z": values(20000, seed=1)})


def test_a_chain_does_not_surround_a_step_that_depends_on_it():
    text = HEADER + "g (float[64,64] x) => (float[64,64] y) { a = Exp(x) b = Neg(a) m = MatMul(b, x) y = Add(m, b) }"
    plan = assert_fused(text, {"x": values(64, 64)})
    assert [step.node.op_type for step in plan.steps] == ["Exp+Neg", "MatMul", "Add"]


def test_booleans_and_casts_are_parts_of_chains():
    text = HEADER + """g (float[n] x, float limit) => (float[n] y) {
        a = Abs(x) b = Less(a, limit) c = Not(b) d = Cast<to=1>(c) e = Cast<to=11>(x) f = Cast<to=1>(e) g = Where(b, x, d) y = Add(g, f) }"""
    assert_fused(text, {"x": values(20000), "limit": np.float32(0.5)})


def test_root_mean_square_normalization_is_one_step():
    text = HEADER + """g (float[n,s,96] x, float[96] scale) => (float[n,s,96] y) <float two={2.0}, float eps={1e-6}> {
        a = Pow(x, two) m = ReduceMean<axes=[-1]>(a) b = Add(m, eps) c = Sqrt(b) d = Reciprocal(c) e = Mul(x, d) y = Mul(e, scale) }"""
    assert_fused(text, {"x": values(8, 16, 96), "scale": values(96, seed=1)})


def test_softmax_along_the_last_axis_is_part_of_a_chain():
    text = HEADER + """g (float[n,4,32,50] x, float[32,50] mask, float scale) => (float[n,4,32,50] y) {
        a = Mul(x, scale) b = Add(a, mask) c = Softmax(b) y = Mul(c, c) }"""
    assert_fused(text, {"x": values(2, 4, 32, 50), "mask": values(32, 50, seed=1), "scale": np.float32(0.1)})


def test_a_gate_per_channel_is_computed_with_the_values_it_scales():
    text = HEADER + """g (float[n,32,14,14] x, float[n,32] z) => (float[n,32,14,14] y) <int64[2] axes={2,3}> {
        a = Sigmoid(z) b = Unsqueeze(a, axes) c = Mul(x, b) y = HardSwish(c) }"""
    assert_fused(text, {"x": values(2, 32, 14, 14), "z": values(2, 32, seed=1)})


def test_group_normalization_as_exporters_write_it_runs_like_the_operator():
    exported = HEADER + f"""g (float[n,32,14,14] x, float[32,1,1] w, float[32,1,1] b) => (float[n,32,14,14] y)
        <int64[3] groups={{0,8,-1}}, float[8] ones={{{','.join(['1.0'] * 8)}}}, float[8] zeros={{{','.join(['0.0'] * 8)}}}> {{
        r = Reshape(x, groups) z = InstanceNormalization(r, ones, zeros) s = Shape(x) v = Reshape(z, s) m = Mul(v, w) a = Add(m, b) y = Relu(a) }}"""
    feeds = {"x": values(2, 32, 14, 14), "w": values(32, 1, 1, seed=1), "b": values(32, 1, 1, seed=2)}
    plan = assert_fused(exported, feeds)
    assert [step.node.op_type for step in plan.steps] == ["GroupNorm", "Mul+Add+Relu"]


@pytest.mark.parametrize("axis", [1, 2])
def test_a_normalization_over_inner_axes_is_fused_with_what_follows(axis):
    """A normalization that no kernel computes, here over the last axes with the variance of n - 1 elements."""
    axes = list(range(axis, 3))
    text = HEADER + f"""g (float[n,8,50] x) => (float[n,8,50] y) <float less={{{50 * 8 ** (2 - axis) - 1}.0}}> {{
        m = ReduceMean<axes={axes}>(x) d = Sub(x, m) q = ReduceSumSquare<axes={axes}>(d) v = Div(q, less) r = Sqrt(v) e = Div(d, r) y = HardSwish(e) }}"""
    assert_fused(text, {"x": values(6, 8, 50)})


def test_rows_that_do_not_fit_in_the_cache_are_reduced_by_steps_of_their_own():
    text = HEADER + "g (float[n,20000] x) => (float[n,20000] y) { a = Exp(x) b = Neg(a) m = ReduceMean<axes=[-1]>(b) y = Sub(b, m) }"
    plan = assert_fused(text, {"x": values(3, 20000)})
    assert [step.node.op_type for step in plan.steps] == ["Exp+Neg", "ReduceMean", "Sub"]


def test_small_steps_are_left_alone(monkeypatch):
    monkeypatch.setattr(fusing, "MIN_ELEMENTS", MIN_ELEMENTS)
    chain = HEADER + "g (float[n] x) => (float[n] y) { a = Exp(x) b = Neg(a) y = Tanh(b) }"
    assert_fused(chain, {"x": values(MIN_ELEMENTS - 1)}, 0)
    assert_fused(chain, {"x": values(MIN_ELEMENTS)}, 1)
    rows = HEADER + "g (float[n,128] x) => (float[n,128] y) { a = Exp(x) b = ReduceMean<axes=[-1]>(a) y = Sub(a, b) }"
    assert_fused(rows, {"x": values(MIN_ELEMENTS // 128 - 1, 128)}, 0)
    assert_fused(rows, {"x": values(MIN_ELEMENTS // 128, 128)}, 1)


def test_steps_whose_fusion_saves_no_pass_are_left_alone():
    text = HEADER + "g (float[n,32,14,14] x, float[n,32,1,1] z) => (float[n,32,14,14] y) { a = Sigmoid(z) y = Mul(x, a) }"
    assert_fused(text, {"x": values(2, 32, 14, 14), "z": values(2, 32, 1, 1, seed=1)}, 0)


def test_operands_beyond_the_last_cache_are_fused_only_where_that_saves_two_of_three_passes(monkeypatch):
    monkeypatch.setattr(fusing, "CACHED_BYTES", 4 * 20000)
    feeds = {"x": values(20000), "z": values(20000, seed=1)}
    inputs = "(float[n] x, float[n] z)"
    assert_fused(HEADER + f"g {inputs} => (float[n] y, float[n] q) {{ d = Sub(x, z) q = Mul(d, d) y = Neg(d) }}", feeds, 0)
    assert_fused(HEADER + f"g {inputs} => (float[n] y) {{ d = Sub(x, z) q = Mul(d, d) a = Exp(q) y = Neg(a) }}", feeds, 0)
    assert_fused(HEADER + f"g {inputs} => (float[n] y) {{ d = Sub(x, z) q = Mul(d, d) a = Exp(q) b = Tanh(a) y = Neg(b) }}", feeds, 1)


def test_half_precision_is_widened_within_a_chain():
    text = HEADER + "g (float16[n] x) => (float16[n] y) { a = Cast<to=1>(x) b = Exp(a) c = Neg(b) y = Cast<to=10>(c) }"
    assert_fused(text, {"x": values(20000).astype(np.float16)})


def test_the_option_switches_fusion_off():
    model = parser.parse_model(HEADER + "g (float[n] x) => (float[n] y) { a = Exp(x) b = Neg(a) y = Tanh(b) }")
    options = SessionOptions()
    options.add_session_config_entry("ortrain.enable_elementwise_fusion", "0")
    assert options.enable_elementwise_fusion is False
    assert not fused_steps(run(model, {"x": values(20000)}, enable_elementwise_fusion=False)[1])
    assert fused_steps(run(model, {"x": values(20000)})[1])


def test_each_part_treats_subnormal_numbers_as_its_single_step_does():
    """Gradient kernels flush them to zero, others keep them."""
    header = HEADER.replace("]>", ', "com.microsoft" : 1]>')
    text = header + "g (float[n] x, float tiny) => (float[n] y, float[n] dx) { a = Mul(x, tiny) dx = com.microsoft.TanhGrad(a, x) y = Add(a, a) }"
    feeds = {"x": 1 + np.abs(values(20000)), "tiny": np.float32(1e-40)}
    assert_fused(text, feeds)
    (y, dx), _ = run(parser.parse_model(text), feeds)
    assert np.all(y > 0) and np.all(dx == 0)


# ---- training


def trained(text, weights, batch, steps=3, threads=1, **options):
    """Return a session after training steps, with gradients of the last one."""
    model = parser.parse_model(text)
    rng = np.random.default_rng(1)
    model.graph.initializer.extend(numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name) for name, shape in weights.items())
    session = TrainingSession.from_model(model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, requires_grad=list(weights),
                                         options=SessionOptions(intra_op_num_threads=threads, **options))
    losses = []
    for _ in range(steps):
        losses.append(session.train_step(*batch)[0])
        session.optimizer_step()
        session.lazy_reset_grad()
    return session, losses


GATED = HEADER + """g (float[n,32,128] x) => (float[n,32,128] o) <float eps={1e-6}, float two={2.0}, float one={1.0}> {
    a = Pow(x, two) d = ReduceMean<axes=[-1]>(a) e = Add(d, eps) f = Sqrt(e) r = Div(one, f) k = Mul(x, r) y = Mul(k, s)
    u = MatMul(y, w1) v = MatMul(y, w3) sg = Sigmoid(u) si = Mul(u, sg) gl = Mul(si, v) dn = MatMul(gl, w2) o = Add(dn, x) }"""
GATED_WEIGHTS = {"s": (128,), "w1": (128, 256), "w3": (128, 256), "w2": (256, 128)}
SQUEEZED = HEADER + """g (float[n,16,14,14] x) => (float[n,16,14,14] y) {
    a = Conv<kernel_shape=[1,1]>(x, w) p = GlobalAveragePool(a) b = Conv<kernel_shape=[1,1]>(p, w1)
    c = Relu(b) d = Conv<kernel_shape=[1,1]>(c, w2) e = Sigmoid(d) g = Mul(a, e) h = HardSwish(g) y = Conv<kernel_shape=[1,1]>(h, w4) }"""
SQUEEZED_WEIGHTS = {"w": (16, 16, 1, 1), "w1": (4, 16, 1, 1), "w2": (16, 4, 1, 1), "w4": (16, 16, 1, 1)}
GROUPED = '<ir_version: 8, opset_import: ["" : 21]> ' + """g (float[n,32,14,14] x) => (float[n,32,14,14] y) {
    a = Conv<kernel_shape=[1,1]>(x, w) b = GroupNormalization<num_groups=8>(a, s, t) c = Elu(b) d = HardSwish(c) y = Conv<kernel_shape=[1,1]>(d, w2) }"""
GROUPED_WEIGHTS = {"w": (32, 32, 1, 1), "s": (32,), "t": (32,), "w2": (32, 32, 1, 1)}
NORMALIZED = HEADER + """g (float[n,32,128] x) => (float[n,32,64] o) {
    u = MatMul(x, w1) m = ReduceMean<axes=[-1]>(u) d = Sub(u, m) q = ReduceSumSquare<axes=[-1]>(d) r = Sqrt(q) e = Div(d, r) f = Mul(e, s) h = Tanh(f)
    o = MatMul(h, w2) }"""
NORMALIZED_WEIGHTS = {"w1": (128, 128), "s": (128,), "w2": (128, 64)}
NETWORKS = {"gated": (GATED, GATED_WEIGHTS, (8, 32, 128)), "squeezed": (SQUEEZED, SQUEEZED_WEIGHTS, (8, 16, 14, 14)),
            "grouped": (GROUPED, GROUPED_WEIGHTS, (8, 32, 14, 14)), "normalized": (NORMALIZED, NORMALIZED_WEIGHTS, (8, 32, 128), (8, 32, 64))}


@pytest.mark.parametrize("options", [{}, {"optimizer_in_backward": True}, {"rematerialization": 0.0}, {"rematerialization": 0.5}, {"threads": 2}], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_training_has_the_same_bits_and_takes_no_more_memory(network, options):
    text, weights, shape, *target = NETWORKS[network]
    batch = values(*shape), values(*(target[0] if target else shape), seed=1)
    fused, losses = trained(text, weights, batch, **options)
    single, expected = trained(text, weights, batch, **options, enable_elementwise_fusion=False)
    assert_same_bits(losses, expected)
    for name, parameter in fused.state.trainable.items():
        np.testing.assert_array_equal(parameter, single.state.trainable[name], err_msg=name)
    program = fused._train_runner.last
    assert len(fused_steps(program.plan)) >= 2
    assert program.arena_bytes <= single._train_runner.last.arena_bytes


def test_programs_for_other_sizes_come_from_one_template():
    text, weights, (rows, *shape) = NETWORKS["gated"]
    first = values(rows, *shape), values(rows, *shape, seed=1)
    fused, _ = trained(text, weights, first, steps=1)
    single, _ = trained(text, weights, first, steps=1, enable_elementwise_fusion=False)
    for other in (12, 20, 9):
        batch = values(other, *shape, seed=2), values(other, *shape, seed=3)
        losses = [session.train_step(*batch)[0] for session in (fused, single)]
        assert_same_bits(losses[:1], losses[1:])
        program = fused._train_runner.last
        assert program.template is not None and len(fused_steps(program.plan)) >= 2
        for session in (fused, single):
            session.optimizer_step()
            session.lazy_reset_grad()
    for name, parameter in fused.state.trainable.items():
        np.testing.assert_array_equal(parameter, single.state.trainable[name], err_msg=name)


# ---- gradients in float64


DIFFERENTIATED = {
    "normalization over the last axis": """
        m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = ReduceSumSquare<axes=[-1]>(d) r = Sqrt(q) e = Div(d, r) f = Mul(e, s) y = Add(f, t)""",
    "capped softmax": "a = Mul(x, s) b = Tanh(a) c = Softmax(b) d = LogSoftmax(a) e = Sub(c, d) y = Mul(e, t)",
    "gated layer": "a = Mul(x, s) b = Sigmoid(a) c = Mul(a, b) d = Sub(x, t) y = Mul(c, d)",
    "normalization of powers": "a = Abs(x) b = Pow(a, three) m = ReduceSum<keepdims=1>(b, last) r = Pow(m, third) e = Div(x, r) f = Mul(e, s) y = Sub(f, t)",
    "chain with broadcasts": "a = Mul(x, s) b = Add(a, t) c = Softplus(b) d = Erf(c) e = Div(d, c) f = Exp(t) y = Max(e, f)",
}


@pytest.mark.parametrize("form", DIFFERENTIATED)
def test_gradients_of_fused_programs_agree_with_central_differences(form):
    shapes = {"x": (5, 6, 40), "s": (40,), "t": (6, 1)}
    model = read_model(parser.parse_model(HEADER + f"""g (double[5,6,40] x, double[40] s, double[6,1] t, double[5,6,40] w) => (double loss)
        <double three={{3.0}}, double third={{0.333}}, int64[1] last={{-1}}> {{ {DIFFERENTIATED[form]} z = Mul(y, w) loss = ReduceSum<keepdims=0>(z) }}"""))
    model.graph.types |= infer(model)
    gradients = add_gradient(model, "loss", list(shapes))
    model.graph.outputs += [gradients[name] for name in shapes]
    point = {name: values(*shape, dtype=np.float64, seed=index) for index, (name, shape) in enumerate(shapes.items())}
    direction = {name: values(*shape, dtype=np.float64, seed=7 + index) for index, (name, shape) in enumerate(shapes.items())}
    w = values(5, 6, 40, dtype=np.float64, seed=20)
    session = InferenceSession(model, SessionOptions(intra_op_num_threads=1))
    _, *found = session.run(None, point | {"w": w})
    (runner,) = session._runners.values()
    assert fused_steps(runner.last.plan)

    def loss(step):
        return float(session.run(["loss"], {name: point[name] + step * direction[name] for name in shapes} | {"w": w})[0])

    slope = sum(float(np.sum(gradient * direction[name])) for gradient, name in zip(found, shapes, strict=True))
    differences = [(loss(step) - loss(-step)) / (2 * step) for step in (1e-4, 1e-5, 1e-6)]
    assert min(abs(difference - slope) for difference in differences) < 1e-7 * max(1.0, abs(slope))


# ---- axes


def test_the_common_refinement_of_two_shapes():
    found = refine((2, 12, 5), (6, 20), True)
    assert found is not None
    assert (found.axes, found.left, found.right) == ((2, 3, 4, 5), (1, 2, 1), (2, 2))
    assert refine((4, 6), (6, 4), True) is None
    assert refine((4, 6), (2, 6), False) is None


def test_a_model_of_many_nodes_is_planned_in_time():
    nodes = " ".join(f"a{i} = Mul(x{i}, s) b{i} = Sigmoid(a{i}) c{i} = MatMul(b{i}, w) d{i} = Add(c{i}, x{i}) x{i + 1} = Tanh(d{i})" for i in range(110))
    model = parser.parse_model(HEADER + f"g (float[64,64] x0, float s, float[64,64] w) => (float[64,64] x110) {{ {nodes} }}")
    feeds = {"x0": values(64, 64), "s": np.float32(0.5), "w": values(64, 64, seed=1)}
    run(model, feeds)
    started = time.perf_counter()
    _, plan = run(model, feeds)
    elapsed = time.perf_counter() - started
    assert len(fused_steps(plan)) >= 100
    assert elapsed < 5                                                # 0.15 s on an idle processor


@pytest.mark.parametrize("activation", ["Clip(b, zero, six)", "Relu(b)"])
def test_the_gradient_of_an_average_after_a_normalization_and_an_activation_is_planned(activation):
    """The end of a MobileNet: the mask of the activation's gradient reads one value per channel, the gradient of the normalization all pixels."""
    zeros, ones = (",".join([number] * 32) for number in ("0.0", "1.0"))
    text = HEADER + f"""g (float[n,16,3,3] x) => (float[n,16,1,1] y)
        <float zero={{0}}, float six={{6}}, float[32] mean={{{zeros}}}, float[32] var={{{ones}}}> {{
        a = Conv<kernel_shape=[1,1]>(x, w) b, m, v = BatchNormalization<training_mode=1>(a, s, t, mean, var) c = {activation} p = GlobalAveragePool(c)
        y = Conv<kernel_shape=[1,1]>(p, w2) }}"""
    weights = {"w": (32, 16, 1, 1), "s": (32,), "t": (32,), "w2": (16, 32, 1, 1)}
    batch = values(4, 16, 3, 3), values(4, 16, 1, 1, seed=1)
    fused, losses = trained(text, weights, batch)
    _, expected = trained(text, weights, batch, enable_elementwise_fusion=False)
    assert_same_bits(losses, expected)
    kinds = [step.node.op_type for step in fused._train_runner.last.plan.steps]
    assert "ChannelsLastBatchNormalizationGrad" in kinds and not any("Where" in kind for kind in kinds)
