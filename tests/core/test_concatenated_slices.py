"""A Concat reads slices where they are: rolled images, merged patches and halves that change places are moved once. So are gradients of slices that cover a
value."""

import numpy as np
import onnx.parser
import pytest

from ortrain import SessionOptions, TrainingSession
from ortrain._core.engine import EngineHandle
from ortrain.artifacts import LossType, OptimType
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.plan import concatenated_slices, plan_program

rng = np.random.default_rng(8)
IMAGES = rng.standard_normal((3, 6, 8, 5)).astype(np.float32)
END = np.iinfo(np.int64).max


def run(nodes, outputs=("y",), **values):
    """Return (kernels of a program that reads x, its outputs). values: x, and constants."""
    x = values.pop("x", IMAGES)
    kind = TensorType.of(x)
    constants = {name: np.atleast_1d(np.asarray(value)) for name, value in values.items()}
    graph = Graph(inputs=["x"], nodes=nodes, outputs=list(outputs), initializers=constants, types={"x": kind})
    program = plan_program(Model(graph, {"": 17, "com.microsoft": 1}, ir_version=8), {"x": kind}, {}, list(outputs), EngineHandle(1))
    raw = np.zeros(program.arena_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    program.bind_arena(raw[start:start + program.arena_bytes])
    return [step.call.kernel for step in program.plan.steps], program.try_run((x,))


def sliced(source, result, axis, start, end, step=1):
    """Return (a Slice node along one axis, its constants)."""
    names = [f"{result}_{part}" for part in ("start", "end", "axis", "step")]
    return Node("Slice", [source, *names], [result]), dict(zip(names, (start, end, axis, step), strict=True))


def roll(source, result, axis, amount):
    (late, constants), (early, others) = sliced(source, f"{result}_late", axis, amount, END), sliced(source, f"{result}_early", axis, 0, amount)
    return [late, early, Node("Concat", [late.outputs[0], early.outputs[0]], [result], attributes={"axis": axis})], constants | others


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_rolled_value_is_moved_once(axis):
    nodes, constants = roll("x", "y", axis, 2)
    kernels, (y,) = run(nodes, **constants)
    np.testing.assert_array_equal(y, np.roll(IMAGES, -2, axis))
    assert kernels == ["strided_copies"]


def test_patches_that_are_merged_are_moved_once():
    nodes, constants, parts = [], {}, []
    for column in (0, 1):
        for row in (0, 1):
            first, values = sliced("x", f"rows{row}{column}", 1, row, END, 2)
            second, others = sliced(first.outputs[0], f"part{row}{column}", 2, column, END, 2)
            nodes, constants, parts = [*nodes, first, second], constants | values | others, [*parts, second.outputs[0]]
    kernels, (y,) = run([*nodes, Node("Concat", parts, ["y"], attributes={"axis": -1})], **constants)
    np.testing.assert_array_equal(y, np.concatenate([IMAGES[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], -1))
    assert kernels == ["strided_copies"]


def test_slices_of_slices_along_one_axis_are_read_from_the_slice():
    (first, constants), (second, others) = sliced("x", "first", 1, 1, END), sliced("first", "second", 1, 1, 3)
    kernels, (y,) = run([first, second, Node("Concat", ["second", "x"], ["y"], attributes={"axis": 1})], **constants, **others)
    np.testing.assert_array_equal(y, np.concatenate([IMAGES[:, 2:4], IMAGES], 1))
    assert kernels == ["strided_copy", "strided_copies"]


def test_parts_of_a_split_that_change_places_are_moved_once():
    nodes = [Node("Split", ["x", "lengths"], ["a", "b", "c"], attributes={"axis": 2}), Node("Concat", ["c", "a", "b"], ["y"], attributes={"axis": 2})]
    kernels, (y,) = run(nodes, lengths=[1, 4, 3])
    np.testing.assert_array_equal(y, IMAGES[:, :, [5, 6, 7, 0, 1, 2, 3, 4]])
    assert kernels == ["strided_copies"]


def test_a_split_that_others_read_is_computed():
    nodes = [Node("Split", ["x", "lengths"], ["a", "b"], attributes={"axis": 2}), Node("Concat", ["b", "a"], ["y"], attributes={"axis": 2}),
             Node("Neg", ["b"], ["z"])]
    kernels, (y, z) = run(nodes, ("y", "z"), lengths=[3, 5])
    np.testing.assert_array_equal(y, np.roll(IMAGES, -3, 2))
    np.testing.assert_array_equal(z, -IMAGES[:, :, 3:])
    assert "split" in kernels and "concat" in kernels and "strided_copies" not in kernels


def test_a_slice_that_others_read_is_computed():
    nodes, constants = roll("x", "y", 1, 2)
    kernels, (y, z) = run([*nodes, Node("Neg", ["y_late"], ["z"])], ("y", "z"), **constants)
    np.testing.assert_array_equal(y, np.roll(IMAGES, -2, 1))
    np.testing.assert_array_equal(z, -IMAGES[:, 2:])
    assert sorted(kernels) == ["neg", "strided_copies", "strided_copy"]


def test_a_slice_that_is_an_output_is_computed():
    nodes, constants = roll("x", "y", 1, 2)
    _, (y, late) = run(nodes, ("y", "y_late"), **constants)
    np.testing.assert_array_equal(y, np.roll(IMAGES, -2, 1))
    np.testing.assert_array_equal(late, IMAGES[:, 2:])


def taken_apart(cuts):
    """Return (nodes that take slices of x, change their signs and add them up where they were, constants). cuts: lists of (axis, start, end, step)."""
    nodes, constants, parts = [], {"shape": IMAGES.shape}, []
    for number, cut in enumerate(cuts):
        names = [f"cut{number}_{part}" for part in ("start", "end", "axis", "step")]
        axes, starts, ends, steps = zip(*cut, strict=True)
        constants |= dict(zip(names, (starts, ends, axes, steps), strict=True))
        nodes += [Node("Slice", ["x", *names], [f"slice{number}"]), Node("Neg", [f"slice{number}"], [f"negative{number}"]),
                  Node("SliceGrad", [f"negative{number}", "shape", *names], [f"filled{number}"], domain="com.microsoft")]
        parts.append(f"filled{number}")
    return [*nodes, Node("Sum", parts, ["y"])], constants


QUARTERS = [[(1, row, END, 2), (2, column, END, 2)] for column in (0, 1) for row in (0, 1)]


@pytest.mark.parametrize("cuts", [[[(3, 0, END, 2)], [(3, 1, END, 2)]], QUARTERS,
                                  [[(1, 0, 2, 1), (2, 0, END, 1)], [(1, 2, END, 1), (2, 0, END, 2)], [(1, 2, END, 1), (2, 1, END, 2)]]],
                         ids=["every second element", "quarters", "boxes of different sizes"])
def test_gradients_of_slices_that_cover_a_value_are_moved_once(cuts):
    nodes, constants = taken_apart(cuts)
    kernels, (y,) = run(nodes, **constants)
    np.testing.assert_array_equal(y, -IMAGES)
    assert kernels.count("strided_copies") == 1 and not {"strided_place", "place", "sum", "add"} & set(kernels)


@pytest.mark.parametrize(("cuts", "expected"), [
    (QUARTERS[:3], lambda x: -np.where((np.arange(6) % 2 == 1)[:, None, None] & (np.arange(8) % 2 == 1)[:, None], 0, x)),
    ([[(3, 0, END, 2)], [(3, 0, END, 1)]], lambda x: -x * (1 + (np.arange(5) % 2 == 0))),
    ([[(3, 0, END - i, 1)] for i in range(257)], lambda x: np.sum([-x] * 257, 0, np.float64)),
], ids=["a quarter is missing", "some elements are in two slices", "all elements are in 257 slices"])
def test_gradients_of_slices_that_do_not_have_each_element_once_are_added_up(cuts, expected):
    nodes, constants = taken_apart(cuts)
    x = np.round(8 * IMAGES)                                            # whole numbers, whose sums are exact
    kernels, (y,) = run(nodes, x=x, **constants)
    np.testing.assert_array_equal(y, expected(x))
    assert "strided_copies" not in kernels


def test_other_summands_are_added_to_joined_slices():
    nodes, constants = taken_apart(QUARTERS)
    kernels, (y,) = run([*nodes[:-1], Node("Sum", [*nodes[-1].inputs, "x"], ["y"])], **constants)
    np.testing.assert_array_equal(y, np.zeros_like(IMAGES))
    assert kernels.count("strided_copies") == 1


def test_gradients_of_slices_of_slices_are_moved_once():
    nodes, constants = [], {"whole": IMAGES.shape, "rows": (3, 3, 8, 5)}
    for column in (0, 1):
        for row in (0, 1):
            name = f"{row}{column}"
            (first, values), (second, others) = sliced("x", f"rows{name}", 1, row, END, 2), sliced(f"rows{name}", f"part{name}", 2, column, END, 2)
            nodes += [first, second, Node("SliceGrad", [second.outputs[0], "rows", *second.inputs[1:]], [f"g{name}"], domain="com.microsoft"),
                      Node("SliceGrad", [f"g{name}", "whole", *first.inputs[1:]], [f"h{name}"], domain="com.microsoft")]
            constants |= values | others
    kernels, (y,) = run([*nodes, Node("Sum", ["h00", "h10", "h01", "h11"], ["y"])], **constants)
    np.testing.assert_array_equal(y, IMAGES)
    assert kernels.count("strided_copies") == 1 and not {"strided_place", "place", "sum", "add"} & set(kernels)


SHIFTED = """
<ir_version: 8, opset_import: ["" : 17]>
shifted (float[N, 6, 5] x) => (float[N, 4] output)
{
    late = Slice (x, two, end, axis)
    early = Slice (x, zero, two, axis)
    rolled = Concat <axis = 1> (late, early)
    mixed = MatMul (rolled, W)
    back_late = Slice (mixed, four, end, axis)
    back_early = Slice (mixed, zero, four, axis)
    back = Concat <axis = 1> (back_late, back_early)
    output = ReduceMean <axes = [1], keepdims = 0> (back)
}
"""


def trained(batches, monkeypatch, in_place=True):
    """Return the losses and the weights after steps of batches of these sizes."""
    constants = {name: np.array([value]) for name, value in (("zero", 0), ("two", 2), ("four", 4), ("axis", 1), ("end", END))}
    weight, losses = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32), []
    model = onnx.parser.parse_model(SHIFTED)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in {"W": weight, **constants}.items())
    with monkeypatch.context() as patch:
        if not in_place:
            patch.setattr(concatenated_slices, "read_slices_in_place", lambda nodes, *_: list(nodes))
        with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, requires_grad=["W"],
                                        options=SessionOptions(intra_op_num_threads=1)) as session:
            for size in batches:
                data = np.random.default_rng(size)
                losses.append(float(session.train_step(data.standard_normal((size, 6, 5)).astype(np.float32), data.integers(0, 4, size))[0]))
                session.optimizer_step()
                session.lazy_reset_grad()
            with session.profile() as profile:
                session.train_step(np.zeros((3, 6, 5), np.float32), np.zeros(3, np.int64))
            assert ("strided_copies" in {step.kernel for step in profile.steps}) == in_place
            return losses, session.to_buffer().copy()


def test_a_network_that_rolls_its_data_trains_to_the_same_bits(monkeypatch):
    batches = (3, 3, 7, 1, 3)
    (losses, weights), (expected, expected_weights) = trained(batches, monkeypatch), trained(batches, monkeypatch, in_place=False)
    np.testing.assert_array_equal(losses, expected)
    np.testing.assert_array_equal(weights, expected_weights)
