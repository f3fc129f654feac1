"""Partitioned runs of models with data-dependent sizes and with values that programs do not hold, forward and
backward."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ortrain
from ortrain import InferenceSession, errors
from ortrain.artifacts import OptimType
from ortrain.loading.loader import load_model

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.array([[1, -2, 3], [-4, 5, 6], [7, 8, -9], [0.5, -0.25, 2]], np.float32)
W = np.array([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5]], np.float32)


def value(name, shape, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs, outputs, **attributes)


def model(nodes, inputs, outputs, opset=18, **weights):
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def check_forward(proto, *feeds):
    """Run the model on several feeds in one session and compare each result with the reference evaluator."""
    session = InferenceSession(proto)
    for feed in feeds:
        names = [argument.name for argument in session.get_inputs()]
        actual, expected = session.run(None, dict(zip(names, feed, strict=True))), ReferenceEvaluator(proto).run(None, dict(zip(names, feed, strict=True)))
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            for left, right in zip(a if isinstance(a, list) else [a], b if isinstance(b, list) else [b], strict=True):
                assert left.shape == right.shape and left.dtype == right.dtype
                np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


def check_gradient(proto, *feeds, weight="w"):
    """Compare the gradient of the first output, the loss, along a random direction of a weight with finite
    differences."""
    session = ortrain.TrainingSession.from_model(proto, optimizer=OptimType.SGD, requires_grad=[weight])
    for feed in feeds:
        session.lazy_reset_grad()
        session.train_step(*feed)
        parameter = session.parameters[weight]
        start, gradient = parameter.data.copy(), parameter.grad.copy()
        direction = np.random.default_rng(0).standard_normal(start.shape)
        step = 1e-3
        losses = []
        for sign in (1, -1):
            parameter.data = (start + sign * step * direction).astype(start.dtype)
            losses.append(float(session.eval_step(*feed)[0]))
        parameter.data = start
        np.testing.assert_allclose(np.sum(gradient * direction), (losses[0] - losses[1]) / (2 * step), rtol=2e-3, atol=1e-3)


# ---- data-dependent sizes


def positive_rows():
    """Return a model that selects the rows of x w with a positive first element; the loss is their mean square."""
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Gather", ["y", "zero"], ["first"], axis=1), node("Greater", ["first", "nothing"], ["keep"]),
             node("NonZero", ["keep"], ["where"]), node("Squeeze", ["where", "axis"], ["rows"]), node("Gather", ["y", "rows"], ["kept"], axis=0),
             node("Mul", ["kept", "kept"], ["square"]), node("ReduceMean", ["square"], ["loss"], keepdims=0)]
    return model(nodes, [value("x", ["n", 3])], [value("loss", []), value("kept", ["m", 2])], w=W, zero=np.array(0), nothing=np.float32(0), axis=np.array([0]))


def test_rows_are_selected_by_computed_values():
    check_forward(positive_rows(), [X], [X[::-1].copy()], [X[1:]], [X[:1]], [X])


def test_gradients_flow_through_selected_rows():
    check_gradient(positive_rows(), [X], [X[1:]], [X])


def test_partitioned_train_step_accumulates_and_resets():
    session = ortrain.TrainingSession.from_model(positive_rows(), optimizer=OptimType.SGD, requires_grad=["w"])
    session.train_step(X)
    once = session.parameters["w"].grad.copy()
    session.train_step(X)
    np.testing.assert_allclose(session.parameters["w"].grad, 2 * once, rtol=1e-6)
    session.lazy_reset_grad()
    session.train_step(X[1:])
    session.lazy_reset_grad()
    session.train_step(X)
    np.testing.assert_array_equal(session.parameters["w"].grad, once)


def test_partitioned_run_writes_into_given_arrays():
    session = ortrain.TrainingSession.from_model(positive_rows(), optimizer=OptimType.SGD, requires_grad=["w"])
    target = np.zeros((), np.float32)
    session.train_step(X, out=[target, None])
    assert target == session.eval_step(X)[0]
    with pytest.raises(errors.OutputShapeError):
        session.train_step(X, out=[np.zeros(3, np.float32), None])


@pytest.mark.parametrize("op_type", ["Compress", "Unique"])
def test_operators_with_data_dependent_output_sizes(op_type):
    if op_type == "Compress":
        nodes = [node("Greater", ["x", "nothing"], ["keep"]), node("Compress", ["x", "flat"], ["y"]), node("Reshape", ["keep", "all"], ["flat"])]
        nodes = [nodes[0], nodes[2], nodes[1], node("Exp", ["y"], ["z"])]
    else:
        nodes = [node("Round", ["x"], ["whole"]), node("Unique", ["whole"], ["y", "", "", "counts"]), node("Exp", ["y"], ["z"])]
    proto = model(nodes, [value("x", ["a", "b"])], [value("z", ["m"])], nothing=np.float32(0), all=np.array([-1]))
    check_forward(proto, [X], [-X], [X[:2]])


def test_gradients_flow_through_compress():
    nodes = [node("Greater", ["flags", "nothing"], ["keep"]), node("MatMul", ["x", "w"], ["y"]), node("Compress", ["y", "keep"], ["kept"], axis=0),
             node("Mul", ["kept", "kept"], ["square"]), node("ReduceSum", ["square"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("flags", [4]), value("x", [4, 3])], [value("loss", []), value("kept", ["m", 2])], w=W, nothing=np.float32(0))
    flags = np.array([1, -1, 2, 3], np.float32)
    check_forward(proto, [flags, X], [-flags, X])
    check_gradient(proto, [flags, X / 4], [-flags, X / 4])


def test_range_with_computed_limit():
    """The largest element of the input decides the size of the output."""
    nodes = [node("Cast", ["x"], ["whole"], to=INT), node("ReduceMax", ["whole"], ["most"], keepdims=0), node("Range", ["zero", "most", "one"], ["steps"]),
             node("Cast", ["steps"], ["y"], to=FLOAT), node("Mul", ["y", "w"], ["z"]), node("ReduceSum", ["z"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("x", ["a", "b"])], [value("loss", []), value("z", ["m"])], w=np.array([2], np.float32), zero=np.array(0), one=np.array(1))
    check_forward(proto, [X], [X[1:2]], [X])
    check_gradient(proto, [X], [X[1:2]])


def test_gradients_flow_through_non_max_suppression():
    nodes = [node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["chosen"]),
             node("Gather", ["chosen", "last"], ["numbers"], axis=1), node("Squeeze", ["numbers", "one_axis"], ["rows"]),
             node("Gather", ["boxes", "rows"], ["kept"], axis=1), node("MatMul", ["kept", "w"], ["y"]), node("Mul", ["y", "y"], ["square"]),
             node("ReduceSum", ["square"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("boxes", [1, "n", 4]), value("scores", [1, 1, "n"])], [value("loss", []), value("y", [1, "m", 2])], most=np.array([3]),
                  overlap=np.array([0.5], np.float32), last=np.array([2]), one_axis=np.array([1]), w=np.arange(8, dtype=np.float32).reshape(4, 2) / 4)
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3], [5, 5, 6, 7]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7, 0.6]]], np.float32)
    check_forward(proto, [boxes, scores], [boxes[:, 1:], scores[:, :, 1:]])
    check_gradient(proto, [boxes, scores])


# ---- data-dependent control flow


def test_if_on_a_computed_condition():
    def branch(op_type):
        return helper.make_graph([node(op_type, ["y"], [f"{op_type}_out"])], op_type, [], [value(f"{op_type}_out", ["n", 2])])

    nodes = [node("MatMul", ["x", "w"], ["y"]), node("ReduceSum", ["y"], ["sum"], keepdims=0), node("Greater", ["sum", "nothing"], ["positive"]),
             node("If", ["positive"], ["z"], then_branch=branch("Tanh"), else_branch=branch("Exp")), node("ReduceSum", ["z"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("x", ["n", 3])], [value("loss", []), value("z", ["n", 2])], w=W, nothing=np.float32(0))
    check_forward(proto, [X], [-X], [X])
    check_gradient(proto, [X / 8], [-X / 8])


def doubling(collects):
    """Return a model that doubles y until its largest element is above 10. collects: also stack the values of all
    iterations."""
    inner = [node("Mul", ["state", "w"], ["next"]), node("ReduceMax", ["next"], ["largest"], keepdims=0), node("Less", ["largest", "ten"], ["on"])]
    outputs = [value("on", [], BOOL), value("next", ["n", 3])]
    if collects:
        inner.append(node("Identity", ["next"], ["slice"]))
        outputs.append(value("slice", ["n", 3]))
    body = helper.make_graph(inner, "body", [value("k", [], INT), value("go", [], BOOL), value("state", ["n", 3])], outputs)
    loop_outputs = ["y", "all"] if collects else ["y"]
    nodes = [node("Loop", ["", "true", "x"], loop_outputs, body=body), node("ReduceSum", [loop_outputs[-1]], ["loss"], keepdims=0)]
    return model(nodes, [value("x", ["n", 3])], [value("loss", []), value("y", ["n", 3])], w=np.array([2], np.float32), ten=np.float32(10), true=np.array(True))


@pytest.mark.parametrize("collects", [False, True])
def test_loop_stops_on_a_computed_condition(collects):
    check_forward(doubling(collects), [X[3:]], [X], [X[3:] / 8])


@pytest.mark.parametrize("collects", [False, True])
def test_gradients_flow_through_a_loop_with_a_computed_condition(collects):
    check_gradient(doubling(collects), [X[3:]], [X[3:] / 8])


# ---- sequences and optionals


def test_sequences_are_built_indexed_and_concatenated():
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"]), node("SequenceConstruct", ["a", "b", "x"], ["s"]),
             node("SequenceErase", ["s", "place"], ["t"]), node("SequenceLength", ["t"], ["length"]), node("SequenceAt", ["t", "place"], ["c"]),
             node("ConcatFromSequence", ["t"], ["d"], axis=1), node("Exp", ["d"], ["e"])]
    proto = model(nodes, [value("x", ["n", 3])], [value("length", [], INT), value("c", ["n", 3]), value("e", ["n", 6])], place=np.array(1))
    check_forward(proto, [X], [X[:2]])


def test_sequences_as_inputs_and_outputs():
    kind = helper.make_tensor_sequence_value_info
    proto = model([node("SequenceInsert", ["s", "x"], ["t"])], [kind("s", FLOAT, None), value("x", ["n", 3])], [kind("t", FLOAT, None)])
    check_forward(proto, [[X, X[:1]], X], [[], X])
    with pytest.raises(errors.InputTypeError, match="list of arrays"):
        InferenceSession(proto).run(None, {"s": X, "x": X})
    with pytest.raises(errors.InputTypeError, match="element 1"):
        InferenceSession(proto).run(None, {"s": [X, X.astype(np.float64)], "x": X})


@pytest.mark.parametrize("opset", [11, 18])
def test_gradients_flow_through_sequences_with_known_elements(opset):
    """Chunks of a matrix product are taken out of a sequence, put into another in different order, and stacked."""
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("SplitToSequence", ["y", "sizes"], ["s"], axis=1), node("SequenceAt", ["s", "second"], ["b"]),
             node("SequenceAt", ["s", "last"], ["c"]),
             node("SplitToSequence", ["x", "one"], ["columns"], axis=1), node("SequenceAt", ["columns", "second"], ["d"]),
             node("SplitToSequence", ["b"], ["rows"], axis=0, keepdims=0), node("SequenceAt", ["rows", "second"], ["row"]),
             node("Mul", ["b", "row"], ["scaled"]),
             node("SequenceEmpty", [], ["none"]), node("SequenceInsert", ["none", "c"], ["t1"]), node("Identity", ["t1"], ["t2"]),
             node("SequenceInsert", ["t2", "scaled", "zero"], ["t"]), node("SequenceLength", ["t"], ["two"]), node("Cast", ["two"], ["scale"], to=FLOAT),
             node("ConcatFromSequence", ["t"], ["stack"], axis=0, new_axis=1), node("Mul", ["stack", "d"], ["z"]), node("Div", ["z", "scale"], ["half"]),
             node("Mul", ["half", "half"], ["square"]), node("ReduceSum", ["square"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("x", ["n", 3])], [value("loss", []), value("stack", [2, "n", 2])], opset, sizes=np.array([2, 2]), one=np.array(1),
                  zero=np.array(0), second=np.array(1), last=np.array(-2), w=np.concatenate([W, W[::-1] / 2], 1))
    assert not {n.op_type for n in load_model(proto).graph.nodes} & {"SplitToSequence", "SequenceInsert", "SequenceConstruct", "SequenceAt"}
    if opset == 18:
        check_forward(proto, [X[:, :3]])
    check_gradient(proto, [X / 4])


def squares(*more):
    """Return a SequenceMap over (element - shift) w / 2 and its square. more: its further inputs, one per further
    body input."""
    steps = [node("Sub", ["e", "shift"], ["d"]), node("Mul", ["d", "half"], ["h"]), node("Mul", ["h", "w"], ["y"]), node("Mul", ["y", "y"], ["z"])]
    inputs = [value("e", ["n", 2]), value("shift", ["n", 2]), value("w", [1, 2])][: len(more) + 1]
    body = helper.make_graph(steps, "body", inputs, [value("y", ["n", 2]), value("z", ["n", 2])], [numpy_helper.from_array(np.float32(0.5), "half")])
    return node("SequenceMap", ["s", *more], ["ys", "zs"], body=body)


@pytest.mark.parametrize("more", ["shared", "t"])
def test_gradients_flow_through_sequence_map(more):
    """The second input is one tensor for all elements, or a sequence too; the body reads an outer weight."""
    nodes = [node("SplitToSequence", ["x", "sizes"], ["s"], axis=1), node("SequenceAt", ["s", "second"], ["shared"]),
             node("SequenceConstruct", ["shared", "shared"], ["t"]), squares(more), node("SequenceAt", ["ys", "second"], ["y"]),
             node("ConcatFromSequence", ["zs"], ["z"], axis=1), node("ReduceSum", ["z"], ["total"], keepdims=0), node("ReduceSum", ["y"], ["of_y"], keepdims=0),
             node("Add", ["total", "of_y"], ["loss"])]
    proto = model(nodes, [value("x", ["n", 4])], [value("loss", []), value("z", ["n", 4])], 18, sizes=np.array([2, 2]), second=np.array(1), w=W[:1, :2])
    assert not {n.op_type for n in load_model(proto).graph.nodes} & {"SequenceMap", "SplitToSequence", "SequenceAt", "SequenceConstruct"}
    check_gradient(proto, [np.concatenate([X, X[:, :1]], 1) / 4])


def test_sequence_map_runs_its_body_per_element():
    nodes = [node("SequenceConstruct", ["x", "y"], ["s"]), squares("x", "w"), node("SequenceLength", ["zs"], ["length"]),
             node("ConcatFromSequence", ["zs"], ["z"], axis=1)]
    inputs, outputs = [value("x", ["n", 2]), value("y", ["n", 2])], [value("length", [], INT), value("z", ["n", 4])]
    check_forward(model(nodes, inputs, outputs, 18, w=W[:1, :2]), [X[:, :2], X[:, 1:3]])


def test_sequence_map_over_an_empty_sequence():
    nodes = [node("SequenceEmpty", [], ["s"]), squares("x", "w"), node("SequenceLength", ["zs"], ["length"])]
    session = InferenceSession(model(nodes, [value("x", ["n", 2])], [value("length", [], INT)], 18, w=W[:1, :2]))
    assert session.run(None, {"x": X[:, :2]})[0] == 0


def test_sequence_map_over_unknown_elements_is_eager():
    proto = model([squares("x", "w")], [helper.make_tensor_sequence_value_info("s", FLOAT, None), value("x", ["n", 2])],
                  [helper.make_tensor_sequence_value_info("zs", FLOAT, None)], 18, w=W[:1, :2])
    check_forward(proto, [[X[:, :2], X[:, 2:4]], X[:, :2]])


def test_sequence_map_over_different_lengths_is_rejected():
    nodes = [node("SequenceConstruct", ["x"], ["s"]), node("SequenceConstruct", ["x", "x"], ["t"]), squares("t"),
             node("ConcatFromSequence", ["zs"], ["z"], axis=1)]
    with pytest.raises(errors.InvalidModelError, match=r"one length, got \[1, 2\]"):
        load_model(model(nodes, [value("x", ["n", 2])], [value("z", ["n", "m"])], 18, w=W[:1, :2]))


def test_gradients_flow_through_a_present_optional():
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Optional", ["y"], ["maybe"]), node("OptionalHasElement", ["maybe"], ["there"]),
             node("OptionalGetElement", ["maybe"], ["z"]), node("Where", ["there", "z", "nothing"], ["kept"]), node("Mul", ["kept", "kept"], ["square"]),
             node("ReduceSum", ["square"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("x", ["n", 3])], [value("loss", [])], w=W, nothing=np.float32(0))
    check_gradient(proto, [X / 4])


def test_failing_eager_node_is_named():
    proto = model([node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceAt", ["s", "place"], ["y"], name="pick")],
                  [value("x", ["n", 3]), value("place", [], INT)], [value("y", ["n", 3])])
    with pytest.raises(errors.OperatorFailedError, match="pick"):
        InferenceSession(proto).run(None, {"x": X, "place": np.array(5)})


# ---- terminated runs


def stops_before(proto, *feed):
    """Return the name of the node before which a run terminates whose flag is set from the start."""
    session, options = InferenceSession(proto), ortrain.RunOptions()
    feeds = dict(zip([argument.name for argument in session.get_inputs()], feed, strict=True))
    session.run(None, feeds)
    options.terminate = True
    with pytest.raises(errors.TerminatedError) as refusal:
        session.run(None, feeds, options)
    return str(refusal.value).split("before node ")[1].split("'")[1]


def test_run_is_terminated_in_its_first_partition():
    proto = positive_rows()
    for number, node_proto in enumerate(proto.graph.node):
        node_proto.name = f"node {number}"
    assert stops_before(proto, X) == "node 0"


def test_run_is_terminated_inside_an_eager_loop():
    body = helper.make_graph([node("Concat", ["s", "s"], ["s2"], axis=0, name="inside"), node("ReduceSum", ["s2"], ["total"], keepdims=0),
                              node("Less", ["total", "limit"], ["on"])], "b", [value("k", [], INT), value("c", [], BOOL), value("s", ["n", 3])],
                             [value("on", [], BOOL), value("s2", ["m", 3])])
    loop = node("Loop", ["", "true", "x"], ["y"], body=body)
    assert stops_before(model([loop], [value("x", ["n", 3])], [value("y", ["m", 3])], true=np.array(True), limit=np.float32(200)), X) == "inside"


# ---- invalid models and inputs


@pytest.mark.parametrize("nodes", [
    [node("SplitToSequence", ["x"], ["s"]), node("SequenceAt", ["s", "four"], ["y"])],
    [node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceAt", ["s", "four"], ["y"])],
    [node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceInsert", ["s", "x", "four"], ["t"]), node("ConcatFromSequence", ["t"], ["y"], axis=0)],
    [node("SplitToSequence", ["x", "zero"], ["s"]), node("SequenceAt", ["s", "zero"], ["y"])],
])
def test_sequence_positions_out_of_range_are_rejected(nodes):
    with pytest.raises(errors.OrtrainError):
        InferenceSession(model(nodes, [value("x", ["n", 3])], [value("y", None)], four=np.array(4), zero=np.array(0))).run(None, {"x": X})


@pytest.mark.parametrize("ratio", [1.0, -0.5, np.nan])
def test_dropout_ratio_out_of_range_is_rejected(ratio):
    with pytest.raises(errors.ShapeInferenceError, match="ratio"):
        InferenceSession(model([node("Dropout", ["x", "ratio", "yes"], ["y"])], [value("x", ["n", 3])], [value("y", None)],
                               ratio=np.float32(ratio), yes=np.array(True))).run(None, {"x": X})


def test_unsupported_types_are_rejected_by_operator_name():
    double = TensorProto.DOUBLE
    inputs = [value("x", ["n", 2, 3, 4], double), value("cos", ["n", 3, 2], double), value("sin", ["n", 3, 2], double)]
    session = InferenceSession(model([node("RotaryEmbedding", ["x", "cos", "sin"], ["y"])], inputs, [value("y", None, double)], opset=23))
    with pytest.raises(errors.ShapeInferenceError, match="RotaryEmbedding"):
        session.run(None, {"x": np.ones((1, 2, 3, 4)), "cos": np.ones((1, 3, 2)), "sin": np.ones((1, 3, 2))})
