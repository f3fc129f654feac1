"""Loop and Scan: a recurrent layer written in all forms of both, with gradients compared with central differences in float64."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ortrain
from ortrain import errors
from ortrain.artifacts import OptimType
from ortrain.loading.loader import load_model

DOUBLE, INT64, BOOL = TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL
STEPS, BATCH, WIDTH, STATE = 5, 2, 3, 4
rng = np.random.default_rng(1)
H0, X = rng.standard_normal((BATCH, STATE)), rng.standard_normal((STEPS, BATCH, WIDTH))
WEIGHT = 0.5 * rng.standard_normal((WIDTH + STATE, STATE))
PART = rng.standard_normal((BATCH, STATE))


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def cell(source):
    """Return the nodes of h2 = tanh([h, x_t] weight), with h2 also as the collected output y."""
    return [*source, helper.make_node("Concat", ["h", "xt"], ["both"], axis=1), helper.make_node("MatMul", ["both", "weight"], ["m"]),
            helper.make_node("Tanh", ["m"], ["h2"]), helper.make_node("Identity", ["h2"], ["y"])]


def model(nodes, inputs, constants=(), output="last"):
    """Return a model whose loss, mean(sum(collected) + output · part), depends on all collected values and the last state."""
    tail = [helper.make_node("ReduceSum", ["all"], ["total"], keepdims=0), helper.make_node("Mul", [output, "part"], ["weighed"]),
            helper.make_node("Add", ["weighed", "total"], ["sum"]), helper.make_node("ReduceMean", ["sum"], ["loss"], keepdims=0)]
    initializers = {"weight": WEIGHT, "part": PART, **dict(constants)}
    graph = helper.make_graph([*nodes, *tail], "g", [value(*i) for i in inputs], [value("loss", DOUBLE, [])],
                              [numpy_helper.from_array(array, name) for name, array in initializers.items()])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(proto, full_check=True)
    return proto


INPUTS = (("h0", DOUBLE, ["batch", STATE]), ("x", DOUBLE, ["steps", "batch", WIDTH]))


def scan(read=0, write=0, axis=0):
    body = helper.make_graph(cell([]), "body", [value("h", DOUBLE, ["batch", STATE]), value("xt", DOUBLE, ["batch", WIDTH])],
                             [value("h2", DOUBLE, ["batch", STATE]), value("y", DOUBLE, ["batch", STATE])])
    more = {"scan_input_axes": [1], "scan_output_axes": [-1]} if axis else {}
    node = helper.make_node("Scan", ["h0", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_directions=[read],
                            scan_output_directions=[write], **more)
    inputs = (INPUTS[0], ("x", DOUBLE, ["batch", "steps", WIDTH])) if axis else INPUTS
    return model([node], inputs)


def loop(condition="through"):
    condition_nodes = {"through": [helper.make_node("Identity", ["going"], ["on"])],
                       "true": [helper.make_node("Constant", [], ["on"], value=numpy_helper.from_array(np.array(True)))],
                       "counter": [helper.make_node("Add", ["count", "one"], ["count2"]), helper.make_node("Less", ["count2", "steps"], ["on"])]}[condition]
    counts = condition == "counter"
    states = [value("count", INT64, [])] if counts else []
    body = helper.make_graph([*cell([helper.make_node("Gather", ["x", "number"], ["xt"], axis=0)]), *condition_nodes], "body",
                             [value("number", INT64, []), value("going", BOOL, []), *states, value("h", DOUBLE, ["batch", STATE])],
                             [value("on", BOOL, []), *([value("count2", INT64, [])] if counts else []), value("h2", DOUBLE, ["batch", STATE]),
                              value("y", DOUBLE, ["batch", STATE])])
    node = helper.make_node("Loop", ["" if counts else "steps", "", *(["zero"] if counts else []), "h0"],
                            [*(["counted"] if counts else []), "last", "all"], body=body)
    length = [helper.make_node("Shape", ["x"], ["sizes"]), helper.make_node("Gather", ["sizes", "zero"], ["steps"], axis=0)]
    return model([*length, node], INPUTS, {"zero": np.array(0), "one": np.array(1)})


def loop_with_growing_state():
    """Return the nodes of a Loop whose state grows by one row in every iteration, so that no program fits all iterations."""
    nodes = [helper.make_node("Gather", ["x", "number"], ["xt"], axis=0), helper.make_node("Concat", ["rows", "xt"], ["rows2"], axis=0),
             helper.make_node("Identity", ["going"], ["on"])]
    body = helper.make_graph(nodes, "body", [value("number", INT64, []), value("going", BOOL, []), value("rows", DOUBLE, ["n", WIDTH])],
                             [value("on", BOOL, []), value("rows2", DOUBLE, ["m", WIDTH])])
    return [helper.make_node("Shape", ["x"], ["sizes"]), helper.make_node("Gather", ["sizes", "zero"], ["steps"], axis=0),
            helper.make_node("Reshape", ["x", "flat"], ["rows0"]), helper.make_node("Loop", ["steps", "", "rows0"], ["rows9"], body=body)]


FORMS = {"Scan": scan(), "Scan read backwards": scan(read=1), "Scan written backwards": scan(write=1), "Scan both backwards": scan(1, 1),
         "Scan along other axes": scan(axis=1), "Loop": loop(), "Loop whose condition is true": loop("true"), "Loop that counts": loop("counter")}


def arrays(name):
    return {"h0": H0, "x": X.transpose(1, 0, 2).copy() if name.endswith("axes") else X}


def expected(name, x=X):
    """Return the loss of a form. It depends on the order in which slices are read, not on that in which they are collected."""
    h, total = H0, 0.0
    for xt in x[::-1] if "read backwards" in name or "both" in name else x:
        h = np.tanh(np.concatenate([h, xt], 1) @ WEIGHT)
        total += h.sum()
    return (h * PART + total).mean()


@pytest.mark.parametrize("name", FORMS)
def test_forward_is_the_recurrence(name):
    got = ortrain.InferenceSession(FORMS[name].SerializeToString()).run(None, arrays(name))
    np.testing.assert_allclose(got[0], expected(name), rtol=1e-13)


def test_scan_output_directions_set_the_order_of_slices():
    for write in (0, 1):
        proto = scan(write=write)
        proto.graph.output.append(value("all", DOUBLE, ["steps", "batch", STATE]))
        got = ortrain.InferenceSession(proto.SerializeToString()).run(["all", "last"], {"h0": H0, "x": X})
        np.testing.assert_array_equal(got[0][0 if write else -1], got[1])
        assert not np.array_equal(got[0][-1 if write else 0], got[1])


@pytest.mark.parametrize("name", FORMS)
def test_gradients_match_central_differences(name):
    given = arrays(name)
    with ortrain.TrainingSession.from_model(FORMS[name], optimizer=OptimType.SGD, requires_grad=["weight"]) as session:
        weight = session.state.trainable["weight"]
        session.train_step(*given.values())
        gradients = {"weight": session.state.gradients["weight"].copy(), **session.input_gradients(*given.values())}
        for target, array in (("weight", weight), *given.items()):
            direction = np.random.default_rng(5).standard_normal(array.shape)
            losses = []
            for sign in (1, -1):
                array += sign * 1e-6 * direction
                losses.append(float(session.eval_step(*given.values())[0]))
                array -= sign * 1e-6 * direction
            expected_value = (losses[0] - losses[1]) / 2e-6
            assert abs(expected_value) > 1e-3
            np.testing.assert_allclose((gradients[target] * direction).sum(), expected_value, rtol=1e-7, err_msg=target)


def test_a_new_length_compiles_a_new_program():
    with ortrain.TrainingSession.from_model(FORMS["Loop that counts"], optimizer=OptimType.SGD, requires_grad=["weight"]) as session:
        for steps in (1, 3, 7):
            x = np.resize(X, (steps, BATCH, WIDTH))
            np.testing.assert_allclose(session.train_step(H0, x)[0], expected("Loop that counts", x), rtol=1e-13)


def test_a_loop_without_iterations_returns_its_initial_states():
    nodes = FORMS["Loop"].graph.node
    graph = helper.make_graph([nodes[2], helper.make_node("Mul", ["last", "part"], ["y"])], "g", [value(*i) for i in (*INPUTS, ("steps", INT64, []))],
                              [value("y", DOUBLE, ["batch", STATE])],
                              [numpy_helper.from_array(array, name) for name, array in (("weight", WEIGHT), ("part", PART))])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    got = ortrain.InferenceSession(proto.SerializeToString()).run(None, {"h0": H0, "x": X, "steps": np.array(0)})
    np.testing.assert_array_equal(got[0], H0 * PART)


def test_sizes_that_change_between_iterations_unroll_the_loop():
    tail = [helper.make_node("Mul", ["rows9", "rows9"], ["squares"]), helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0)]
    graph = helper.make_graph([*loop_with_growing_state(), *tail], "g", [value("x", DOUBLE, ["steps", "batch", WIDTH])], [value("loss", DOUBLE, [])],
                              [numpy_helper.from_array(np.array(0), "zero"), numpy_helper.from_array(np.array([-1, WIDTH]), "flat")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    got = ortrain.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(got[0], (X**2).mean())


def test_initializers_of_a_body_are_parameters():
    source = FORMS["Scan"]
    proto = onnx.ModelProto()
    proto.CopyFrom(source)
    (node,) = (node for node in proto.graph.node if node.op_type == "Scan")
    (body,) = (attribute.g for attribute in node.attribute if attribute.name == "body")
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "weight")
    body.initializer.append(weight)
    proto.graph.initializer.remove(weight)
    assert "weight" in load_model(proto).graph.initializers
    with ortrain.TrainingSession.from_model(proto, optimizer=OptimType.SGD) as session:
        session.train_step(H0, X)
        assert "weight" in session.state.trainable and np.abs(session.state.gradients["weight"]).min() > 0


def test_an_index_out_of_range_inside_a_body_is_refused():
    nodes = FORMS["Loop"].graph.node
    graph = helper.make_graph([nodes[2]], "g", [value(*i) for i in (*INPUTS, ("steps", INT64, []))], [value("last", DOUBLE, ["batch", STATE])],
                              [numpy_helper.from_array(WEIGHT, "weight")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    got = ortrain.InferenceSession(proto.SerializeToString())
    with pytest.raises(ortrain.errors.IndexRangeError, match="Gather"):
        got.run(None, {"h0": H0, "x": X, "steps": np.array(STEPS + 1)})


# ---- contents of bodies


def parse_model(inputs, text, **weights):
    """Return a model of loss = weight · sum(y) in float64, where the text (onnx.parser syntax) computes y; the trainable weight is 1."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => (double loss) '
                                    f'{{ {text} sum = ReduceSum <keepdims = 0> (y) loss = Mul(sum, weight) }}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in {"weight": 1.0, "true": True, **weights}.items())
    return proto


def check_parsed_model(proto, expected_value=None, **feeds):
    """Check the loss against the expected value (default: onnx's reference evaluator) and its gradient by x against central differences."""
    with ortrain.TrainingSession.from_model(proto, optimizer=OptimType.SGD, requires_grad=["weight"]) as session:
        expected_value = ReferenceEvaluator(proto).run(None, feeds)[0] if expected_value is None else expected_value
        np.testing.assert_allclose(session.eval_step(**feeds)[0], expected_value, rtol=1e-12)
        gradient, direction = session.input_gradients(**feeds, names=["x"])["x"], np.random.default_rng(1).standard_normal(feeds["x"].shape)
        high, low = (float(session.eval_step(**{**feeds, "x": feeds["x"] + h * direction})[0]) for h in (1e-6, -1e-6))
        np.testing.assert_allclose(float((gradient * direction).sum()), (high - low) / 2e-6, rtol=1e-7)


def test_an_if_in_a_body_may_depend_on_computed_values():
    body = """body = b (int64 k, bool c, double[n] s) => (bool c2, double[n] s1) {
                  q = ReduceSum <keepdims = 0> (s) p = Greater(q, limit)
                  s1 = If (p) <then_branch = t () => (double[n] r) { r = Mul(s, half) }, else_branch = e () => (double[n] r2) { d = Mul(x, x) r2 = Add(s, d) }>
                  c2 = Identity(c) }"""
    proto = parse_model("double[n] x", f"y = Loop <{body}> (count, true, x)", count=5, half=0.5, limit=2.0)
    check_parsed_model(proto, x=np.linspace(0.1, 0.6, 12))


def test_a_loop_inside_a_loop_with_growing_state():
    inner = "body = i (int64 j, bool c, double[m] a) => (bool c2, double[m] a2) { a2 = Mul(a, half) c2 = Identity(c) }"
    outer = f"""body = b (int64 k, bool d, double[n] s) => (bool d2, double[m] s2) {{
                   s1 = Concat <axis = 0> (s, x) s2 = Loop <{inner}> (two, true, s1) d2 = Identity(d) }}"""
    proto = parse_model("double[n] x", f"y = Loop <{outer}> (three, true, x)", two=2, three=3, half=0.5)
    x = rng.standard_normal(4)
    np.testing.assert_allclose(ortrain.InferenceSession(proto).run(None, {"x": x})[0], ReferenceEvaluator(proto).run(None, {"x": x})[0])


def test_body_inputs_may_shadow_outer_names():
    inner = "body = i (int64 k, bool c, double[n] s) => (bool c3, double[n] s3) { j = Cast <to = 11> (k) a = Add(s, j) s3 = Mul(a, x) c3 = Identity(c) }"
    outer = f"""body = b (int64 k, bool c, double[n] s) => (bool c2, double[n] s2) {{
                   f = Cast <to = 11> (k) s1 = Mul(s, f) s2 = Loop <{inner}> (two, true, s1) c2 = Identity(c) }}"""
    x = rng.standard_normal(4)
    s = x
    for k in range(3):
        s = ((s * k + 0) * x + 1) * x
    # onnx's reference evaluator computes this wrongly, hence the expected value
    check_parsed_model(parse_model("double[n] x", f"y = Loop <{outer}> (three, true, x)", two=2, three=3), s.sum(), x=x)


def test_scanned_inputs_of_different_lengths_are_refused():
    body = "body = s (double a, double b) => (double p) { p = Mul(a, b) }"
    session = ortrain.InferenceSession(parse_model("double[n] x, double[m] z", f"y = Scan <num_scan_inputs = 2, {body}> (x, z)"))
    with pytest.raises(errors.ShapeInferenceError, match="one length"):
        session.run(None, {"x": np.ones(3), "z": np.ones(2)})


@pytest.mark.parametrize("node", [
    "y = Loop <body = b (int64 k) => (bool c) { c = Identity(true) }> (count, true, x)",
    "y = Loop <body = b (int64 k, bool c, double[n] s) => (bool c2) { c2 = Identity(c) }> (count, true, x)",
    "y = Scan <num_scan_inputs = 2, body = b (double s) => (double r) { r = Identity(s) }> (x)",
    "y = Scan <num_scan_inputs = 1, scan_input_axes = [0, 0], body = b (double s) => (double r) { r = Identity(s) }> (x)",
    "y, z = If (true) <then_branch = t () => (double[n] r) { r = Identity(x) }, else_branch = e () => (double[n] q) { q = Identity(x) }>",
])
def test_bodies_with_missing_inputs_or_outputs_are_refused(node):
    with pytest.raises(errors.InvalidModelError):
        load_model(parse_model("double[n] x", node, count=2))
