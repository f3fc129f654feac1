"""Models whose sizes the data decide, and values that no program holds: they run in partitions, forward and backward."""

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
    """Runs the model on several feeds in one session; each result is the reference evaluator's."""
    session = InferenceSession(proto)
    for feed in feeds:
        names = [argument.name for argument in session.get_inputs()]
        got, wanted = session.run(None, dict(zip(names, feed, strict=True))), ReferenceEvaluator(proto).run(None, dict(zip(names, feed, strict=True)))
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            for left, right in zip(a if isinstance(a, list) else [a], b if isinstance(b, list) else [b], strict=True):
                assert left.shape == right.shape and left.dtype == right.dtype
                np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


def check_gradient(proto, *feeds, weight="w"):
    """The gradient of the model's first output, which is the loss, along a random direction of a weight: against differences of evaluations."""
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


# ---- sizes that the data decide


def positive_rows():
    """The rows of x w whose first element is positive, by NonZero and Gather; their mean square is the loss."""
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Gather", ["y", "zero"], ["first"], axis=1), node("Greater", ["first", "nothing"], ["keep"]),
             node("NonZero", ["keep"], ["where"]), node("Squeeze", ["where", "axis"], ["rows"]), node("Gather", ["y", "rows"], ["kept"], axis=0),
             node("Mul", ["kept", "kept"], ["square"]), node("ReduceMean", ["square"], ["loss"], keepdims=0)]
    return model(nodes, [value("x", ["n", 3])], [value("loss", []), value("kept", ["m", 2])], w=W, zero=np.array(0), nothing=np.float32(0), axis=np.array([0]))


def test_rows_are_chosen_by_what_was_computed():
    check_forward(positive_rows(), [X], [X[::-1].copy()], [X[1:]], [X[:1]], [X])


def test_gradients_flow_through_rows_that_were_chosen():
    check_gradient(positive_rows(), [X], [X[1:]], [X])


def test_a_step_with_stages_accumulates_and_resets_like_any_other():
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


def test_outputs_go_into_the_callers_arrays_after_stages():
    session = ortrain.TrainingSession.from_model(positive_rows(), optimizer=OptimType.SGD, requires_grad=["w"])
    target = np.zeros((), np.float32)
    session.train_step(X, out=[target, None])
    assert target == session.eval_step(X)[0]
    with pytest.raises(errors.OutputShapeError):
        session.train_step(X, out=[np.zeros(3, np.float32), None])


@pytest.mark.parametrize("op_type", ["Compress", "Unique"])
def test_operators_with_sizes_of_their_own(op_type):
    if op_type == "Compress":
        nodes = [node("Greater", ["x", "nothing"], ["keep"]), node("Compress", ["x", "flat"], ["y"]), node("Reshape", ["keep", "all"], ["flat"])]
        nodes = [nodes[0], nodes[2], nodes[1], node("Exp", ["y"], ["z"])]
    else:
        nodes = [node("Round", ["x"], ["whole"]), node("Unique", ["whole"], ["y", "", "", "counts"]), node("Exp", ["y"], ["z"])]
    proto = model(nodes, [value("x", ["a", "b"])], [value("z", ["m"])], nothing=np.float32(0), all=np.array([-1]))
    check_forward(proto, [X], [-X], [X[:2]])


def test_rows_that_a_computed_condition_keeps_are_trained():
    nodes = [node("Greater", ["flags", "nothing"], ["keep"]), node("MatMul", ["x", "w"], ["y"]), node("Compress", ["y", "keep"], ["kept"], axis=0),
             node("Mul", ["kept", "kept"], ["square"]), node("ReduceSum", ["square"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("flags", [4]), value("x", [4, 3])], [value("loss", []), value("kept", ["m", 2])], w=W, nothing=np.float32(0))
    flags = np.array([1, -1, 2, 3], np.float32)
    check_forward(proto, [flags, X], [-flags, X])
    check_gradient(proto, [flags, X / 4], [-flags, X / 4])


def test_a_reshape_to_computed_sizes():
    """The longest length decides how far the rows are cut."""
    nodes = [node("Cast", ["x"], ["whole"], to=INT), node("ReduceMax", ["whole"], ["most"], keepdims=0), node("Range", ["zero", "most", "one"], ["steps"]),
             node("Cast", ["steps"], ["y"], to=FLOAT), node("Mul", ["y", "w"], ["z"]), node("ReduceSum", ["z"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("x", ["a", "b"])], [value("loss", []), value("z", ["m"])], w=np.array([2], np.float32), zero=np.array(0), one=np.array(1))
    check_forward(proto, [X], [X[1:2]], [X])
    check_gradient(proto, [X], [X[1:2]])


def test_boxes_that_overlap_are_dropped_and_the_rest_trained():
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


# ---- control that the data decide


def test_a_condition_that_was_computed_takes_its_branch():
    def branch(op_type):
        return helper.make_graph([node(op_type, ["y"], [f"{op_type}_out"])], op_type, [], [value(f"{op_type}_out", ["n", 2])])

    nodes = [node("MatMul", ["x", "w"], ["y"]), node("ReduceSum", ["y"], ["sum"], keepdims=0), node("Greater", ["sum", "nothing"], ["positive"]),
             node("If", ["positive"], ["z"], then_branch=branch("Tanh"), else_branch=branch("Exp")), node("ReduceSum", ["z"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("x", ["n", 3])], [value("loss", []), value("z", ["n", 2])], w=W, nothing=np.float32(0))
    check_forward(proto, [X], [-X], [X])
    check_gradient(proto, [X / 8], [-X / 8])


def doubling(collects):
    """Doubles y until its largest element is above 10."""
    inner = [node("Mul", ["state", "w"], ["next"]), node("ReduceMax", ["next"], ["largest"], keepdims=0), node("Less", ["largest", "ten"], ["on"])]
    outputs = [value("on", [], BOOL), value("next", ["n", 3])]
    if collects:
        inner.append(node("Identity", ["next"], ["slice"]))
        outputs.append(value("slice", ["n", 3]))
    body = helper.make_graph(inner, "body", [value("k", [], INT), value("go", [], BOOL), value("state", ["n", 3])], outputs)
    made = ["y", "all"] if collects else ["y"]
    nodes = [node("Loop", ["", "true", "x"], made, body=body), node("ReduceSum", [made[-1]], ["loss"], keepdims=0)]
    return model(nodes, [value("x", ["n", 3])], [value("loss", []), value("y", ["n", 3])], w=np.array([2], np.float32), ten=np.float32(10), true=np.array(True))


@pytest.mark.parametrize("collects", [False, True])
def test_a_loop_that_stops_on_what_it_computed(collects):
    check_forward(doubling(collects), [X[3:]], [X], [X[3:] / 8])


@pytest.mark.parametrize("collects", [False, True])
def test_gradients_flow_through_a_loop_that_stops_on_what_it_computed(collects):
    check_gradient(doubling(collects), [X[3:]], [X[3:] / 8])


# ---- values that no program holds


def test_sequences_are_built_indexed_and_joined():
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"]), node("SequenceConstruct", ["a", "b", "x"], ["s"]),
             node("SequenceErase", ["s", "place"], ["t"]), node("SequenceLength", ["t"], ["length"]), node("SequenceAt", ["t", "place"], ["c"]),
             node("ConcatFromSequence", ["t"], ["d"], axis=1), node("Exp", ["d"], ["e"])]
    proto = model(nodes, [value("x", ["n", 3])], [value("length", [], INT), value("c", ["n", 3]), value("e", ["n", 6])], place=np.array(1))
    check_forward(proto, [X], [X[:2]])


def test_sequences_go_in_and_out():
    kind = helper.make_tensor_sequence_value_info
    proto = model([node("SequenceInsert", ["s", "x"], ["t"])], [kind("s", FLOAT, None), value("x", ["n", 3])], [kind("t", FLOAT, None)])
    check_forward(proto, [[X, X[:1]], X], [[], X])
    with pytest.raises(errors.InputTypeError, match="list of arrays"):
        InferenceSession(proto).run(None, {"s": X, "x": X})
    with pytest.raises(errors.InputTypeError, match="element 1"):
        InferenceSession(proto).run(None, {"s": [X, X.astype(np.float64)], "x": X})


@pytest.mark.parametrize("opset", [11, 18])
def test_gradients_flow_through_sequences_whose_elements_are_known(opset):
    """Chunks of a product, some taken out, some put back in another order, stacked."""
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
    """A body: (element - shift) w / 2, and its square; `more` of its inputs are elements or tensors of all, w perhaps not among them."""
    steps = [node("Sub", ["e", "shift"], ["d"]), node("Mul", ["d", "half"], ["h"]), node("Mul", ["h", "w"], ["y"]), node("Mul", ["y", "y"], ["z"])]
    inputs = [value("e", ["n", 2]), value("shift", ["n", 2]), value("w", [1, 2])][: len(more) + 1]
    body = helper.make_graph(steps, "body", inputs, [value("y", ["n", 2]), value("z", ["n", 2])], [numpy_helper.from_array(np.float32(0.5), "half")])
    return node("SequenceMap", ["s", *more], ["ys", "zs"], body=body)


@pytest.mark.parametrize("more", ["shared", "t"])
def test_gradients_flow_through_a_body_for_every_element(more):
    """The second input goes to all elements as it is, or is a sequence too; the body reads an outer weight."""
    nodes = [node("SplitToSequence", ["x", "sizes"], ["s"], axis=1), node("SequenceAt", ["s", "second"], ["shared"]),
             node("SequenceConstruct", ["shared", "shared"], ["t"]), squares(more), node("SequenceAt", ["ys", "second"], ["y"]),
             node("ConcatFromSequence", ["zs"], ["z"], axis=1), node("ReduceSum", ["z"], ["total"], keepdims=0), node("ReduceSum", ["y"], ["of_y"], keepdims=0),
             node("Add", ["total", "of_y"], ["loss"])]
    proto = model(nodes, [value("x", ["n", 4])], [value("loss", []), value("z", ["n", 4])], 18, sizes=np.array([2, 2]), second=np.array(1), w=W[:1, :2])
    assert not {n.op_type for n in load_model(proto).graph.nodes} & {"SequenceMap", "SplitToSequence", "SequenceAt", "SequenceConstruct"}
    check_gradient(proto, [np.concatenate([X, X[:, :1]], 1) / 4])


def test_a_body_is_computed_for_every_element():
    nodes = [node("SequenceConstruct", ["x", "y"], ["s"]), squares("x", "w"), node("SequenceLength", ["zs"], ["length"]),
             node("ConcatFromSequence", ["zs"], ["z"], axis=1)]
    inputs, outputs = [value("x", ["n", 2]), value("y", ["n", 2])], [value("length", [], INT), value("z", ["n", 4])]
    check_forward(model(nodes, inputs, outputs, 18, w=W[:1, :2]), [X[:, :2], X[:, 1:3]])


def test_a_body_for_no_element_leaves_an_empty_sequence():
    nodes = [node("SequenceEmpty", [], ["s"]), squares("x", "w"), node("SequenceLength", ["zs"], ["length"])]
    session = InferenceSession(model(nodes, [value("x", ["n", 2])], [value("length", [], INT)], 18, w=W[:1, :2]))
    assert session.run(None, {"x": X[:, :2]})[0] == 0


def test_a_body_for_elements_that_are_not_known_runs_between_programs():
    proto = model([squares("x", "w")], [helper.make_tensor_sequence_value_info("s", FLOAT, None), value("x", ["n", 2])],
                  [helper.make_tensor_sequence_value_info("zs", FLOAT, None)], 18, w=W[:1, :2])
    check_forward(proto, [[X[:, :2], X[:, 2:4]], X[:, :2]])


def test_sequences_of_other_lengths_are_refused():
    nodes = [node("SequenceConstruct", ["x"], ["s"]), node("SequenceConstruct", ["x", "x"], ["t"]), squares("t"),
             node("ConcatFromSequence", ["zs"], ["z"], axis=1)]
    with pytest.raises(errors.InvalidModelError, match=r"one length, got \[1, 2\]"):
        load_model(model(nodes, [value("x", ["n", 2])], [value("z", ["n", "m"])], 18, w=W[:1, :2]))


def test_gradients_flow_through_an_optional_that_is_there():
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Optional", ["y"], ["maybe"]), node("OptionalHasElement", ["maybe"], ["there"]),
             node("OptionalGetElement", ["maybe"], ["z"]), node("Where", ["there", "z", "nothing"], ["kept"]), node("Mul", ["kept", "kept"], ["square"]),
             node("ReduceSum", ["square"], ["loss"], keepdims=0)]
    proto = model(nodes, [value("x", ["n", 3])], [value("loss", [])], w=W, nothing=np.float32(0))
    check_gradient(proto, [X / 4])


def test_a_failure_outside_of_programs_names_the_node():
    proto = model([node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceAt", ["s", "place"], ["y"], name="pick")],
                  [value("x", ["n", 3]), value("place", [], INT)], [value("y", ["n", 3])])
    with pytest.raises(errors.OperatorFailedError, match="pick"):
        InferenceSession(proto).run(None, {"x": X, "place": np.array(5)})


# ---- runs that are ended


def stops_before(proto, *feed):
    """The name of the node before which a run stops that is to end from the start."""
    session, options = InferenceSession(proto), ortrain.RunOptions()
    feeds = dict(zip([argument.name for argument in session.get_inputs()], feed, strict=True))
    session.run(None, feeds)
    options.terminate = True
    with pytest.raises(errors.TerminatedError) as refusal:
        session.run(None, feeds, options)
    return str(refusal.value).split("before node ")[1].split("'")[1]


def test_a_run_is_ended_in_its_first_stage():
    proto = positive_rows()
    for number, each in enumerate(proto.graph.node):
        each.name = f"node {number}"
    assert stops_before(proto, X) == "node 0"


def test_a_run_is_ended_inside_a_loop_between_programs():
    body = helper.make_graph([node("Concat", ["s", "s"], ["s2"], axis=0, name="inside"), node("ReduceSum", ["s2"], ["total"], keepdims=0),
                              node("Less", ["total", "limit"], ["on"])], "b", [value("k", [], INT), value("c", [], BOOL), value("s", ["n", 3])],
                             [value("on", [], BOOL), value("s2", ["m", 3])])
    loop = node("Loop", ["", "true", "x"], ["y"], body=body)
    assert stops_before(model([loop], [value("x", ["n", 3])], [value("y", ["m", 3])], true=np.array(True), limit=np.float32(200)), X) == "inside"


# ---- what is not there


@pytest.mark.parametrize("nodes", [
    [node("SplitToSequence", ["x"], ["s"]), node("SequenceAt", ["s", "four"], ["y"])],
    [node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceAt", ["s", "four"], ["y"])],
    [node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceInsert", ["s", "x", "four"], ["t"]), node("ConcatFromSequence", ["t"], ["y"], axis=0)],
    [node("SplitToSequence", ["x", "zero"], ["s"]), node("SequenceAt", ["s", "zero"], ["y"])],
])
def test_elements_that_are_not_there_are_refused(nodes):
    with pytest.raises(errors.OrtrainError):
        InferenceSession(model(nodes, [value("x", ["n", 3])], [value("y", None)], four=np.array(4), zero=np.array(0))).run(None, {"x": X})


@pytest.mark.parametrize("ratio", [1.0, -0.5, np.nan])
def test_a_dropout_that_keeps_nothing_or_more_than_all_is_refused(ratio):
    with pytest.raises(errors.ShapeInferenceError, match="ratio"):
        InferenceSession(model([node("Dropout", ["x", "ratio", "yes"], ["y"])], [value("x", ["n", 3])], [value("y", None)],
                               ratio=np.float32(ratio), yes=np.array(True))).run(None, {"x": X})


def test_types_that_onnx_does_not_have_are_refused_by_name():
    double = TensorProto.DOUBLE
    inputs = [value("x", ["n", 2, 3, 4], double), value("cos", ["n", 3, 2], double), value("sin", ["n", 3, 2], double)]
    session = InferenceSession(model([node("RotaryEmbedding", ["x", "cos", "sin"], ["y"])], inputs, [value("y", None, double)], opset=23))
    with pytest.raises(errors.ShapeInferenceError, match="RotaryEmbedding"):
        session.run(None, {"x": np.ones((1, 2, 3, 4)), "cos": np.ones((1, 3, 2)), "sin": np.ones((1, 3, 2))})
