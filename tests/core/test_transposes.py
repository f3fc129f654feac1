"""Chains of transposes and reshapes become one copy, or none, with the same values."""

import itertools

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.plan import plan_program

SHUFFLE = [("Transpose", (0, 3, 1, 2)), ("Reshape", (2, 2, 4, 3, 5)), ("Transpose", (0, 2, 1, 3, 4)), ("Reshape", (2, 8, 3, 5)), ("Transpose", (0, 2, 3, 1))]
TO_IMAGE = [("Transpose", (0, 3, 1, 2)), ("Reshape", (2, 8, 2, 2, 3, 4)), ("Transpose", (0, 1, 4, 2, 5, 3)), ("Reshape", (2, 8, 6, 8)),
            ("Transpose", (0, 2, 3, 1))]
FROM_IMAGE = [("Transpose", (0, 3, 1, 2)), ("Reshape", (2, 8, 3, 2, 4, 2)), ("Transpose", (0, 3, 5, 1, 2, 4)), ("Reshape", (2, 32, 3, 4)),
              ("Gather", (1, np.arange(32).reshape(4, 8).T.ravel())), ("Transpose", (0, 2, 3, 1))]
CASES = {
    "channels that become blocks of pixels": ((2, 3, 4, 32), TO_IMAGE, 1),
    "blocks of pixels that become channels, which a Gather reorders": ((2, 6, 8, 8), FROM_IMAGE, 1),
    "a Gather that reorders an axis in the middle": ((4, 6, 5), [("Transpose", (1, 0, 2)), ("Gather", (-3, [0, 2, 4, 1, 3, 5])), ("Transpose", (1, 0, 2))], 1),
    "channels that are shuffled between two layouts": ((2, 3, 5, 8), SHUFFLE, 1),
    "a change of layout that a transpose takes back": ((2, 3, 5, 8), [("Transpose", (0, 3, 1, 2)), ("Reshape", (2, 8, 15)), ("Transpose", (0, 2, 1))], 0),
    "windows that are divided into heads": ((4, 8, 8), [("Reshape", (4, 2, 4, 2, 4)), ("Transpose", (0, 1, 3, 2, 4)), ("Reshape", (4, 4, 16)),
                                                        ("Transpose", (0, 2, 1))], 1),
    "axes that are divided in the middle": ((8, 12), [("Transpose", (1, 0)), ("Reshape", (3, 32)), ("Transpose", (1, 0)), ("Reshape", (96,))], 1),
    "single elements that would be scattered": ((4, 6), [("Transpose", (1, 0)), ("Reshape", (3, 8)), ("Transpose", (1, 0))], 2),
    "a reshape that divides no axis": ((4, 9), [("Transpose", (1, 0)), ("Reshape", (6, 6)), ("Transpose", (1, 0))], 2),
    "axes of one element": ((1, 5, 1, 7), [("Transpose", (2, 3, 0, 1)), ("Reshape", (7, 1, 5)), ("Transpose", (1, 2, 0))], 0),
}


def run(shape, operators, read_too=()):
    """Return (kernels of the program of the operators, one after another, its outputs, the outputs by NumPy).

    read_too: numbers of the values that are outputs as well as the last one."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    nodes, constants, expected = [], {}, [x]
    for number, (op_type, argument) in enumerate(operators):
        inputs, attributes = [f"v{number}"], {}
        if op_type == "Transpose":
            attributes["perm"] = argument
            expected.append(expected[-1].transpose(argument))
        elif op_type == "Gather":
            axis, indices = argument
            inputs.append(f"indices{number}")
            attributes["axis"], constants[f"indices{number}"] = axis, np.array(indices)
            expected.append(expected[-1].take(indices, axis))
        else:
            constants[f"shape{number}"] = np.array(argument)
            inputs.append(f"shape{number}")
            expected.append(expected[-1].reshape(argument))
        nodes.append(Node(op_type, inputs, [f"v{number + 1}"], f"node{number}", "", attributes))
    outputs = [*(f"v{number}" for number in read_too), f"v{len(nodes)}"]
    graph = Graph(inputs=["v0"], nodes=nodes, outputs=outputs, initializers=constants, types={"v0": TensorType.of(x)})
    program = plan_program(Model(graph, {"": 17}, ir_version=8), {"v0": TensorType.of(x)}, {}, outputs, EngineHandle(1))
    raw = np.zeros(program.arena_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    program.bind_arena(raw[start:start + program.arena_bytes])
    return [step.call.kernel for step in program.plan.steps], program.try_run((x,)), [expected[int(name[1:])] for name in outputs]


@pytest.mark.parametrize("name", CASES)
def test_a_chain_of_transposes_is_copied_as_rarely_as_possible(name):
    shape, operators, copies = CASES[name]
    kernels, found, expected = run(shape, operators)
    np.testing.assert_array_equal(found[0], expected[0])
    assert kernels.count("strided_copy") == copies and "gather" not in kernels


@pytest.mark.parametrize("indices", [[0, 2, 4, 1, 5, 3], [1, 3, 5, 0, 2, 4], [0, 2, 4, 1], [0, 3, 0, 3, 0, 3], [0, 1, 2, 3, 4, 5], [0, 5, 4, 3, 2, 1]], ids=str)
def test_a_gather_in_an_order_that_is_no_transpose_stays(indices):
    kernels, found, expected = run((4, 6, 5), [("Transpose", (1, 0, 2)), ("Gather", (0, indices)), ("Transpose", (1, 0, 2))])
    np.testing.assert_array_equal(found[0], expected[0])
    assert "gather" in kernels


def test_a_gather_that_is_read_elsewhere_stays():
    kernels, found, expected = run((2, 6, 8, 8), FROM_IMAGE, read_too=(5,))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert "gather" in kernels


def test_a_transpose_that_is_read_elsewhere_stays():
    kernels, found, expected = run((2, 3, 5, 8), SHUFFLE, read_too=(1, 3))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert kernels.count("strided_copy") == 3


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_two_transposes_are_one(order):
    back = tuple(np.argsort(order))
    assert run((2, 3, 4), [("Transpose", order), ("Transpose", back)])[0].count("strided_copy") == 0
    kernels, found, expected = run((2, 3, 4), [("Transpose", order), ("Transpose", (2, 0, 1))])
    np.testing.assert_array_equal(found[0], expected[0])
    assert kernels.count("strided_copy") <= 1


def planned(nodes, inputs, outputs, constants, threads=1):
    """Return (kernels of the program, its outputs)."""
    types = {name: TensorType.of(x) for name, x in inputs.items()}
    graph = Graph(inputs=list(inputs), nodes=nodes, outputs=outputs, initializers=constants, types=types)
    program = plan_program(Model(graph, {"": 17}, ir_version=8), types, {}, outputs, EngineHandle(threads))
    raw = np.zeros(program.arena_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    program.bind_arena(raw[start:start + program.arena_bytes])
    return [step.call.kernel for step in program.plan.steps], [np.array(y) for y in program.try_run(tuple(inputs.values()))]


# shape of a part, number of parts, axis, shape in which the parts are axis 1 of 3 or 4, and the number of copies of its own
TURNS = {
    "pairs of channels of a pixel": ((3, 5, 7, 24), 2, 3, (3 * 5 * 7, 2, 24), 0),
    "pairs of many channels": ((2, 40, 50, 36), 2, -1, (4000, 2, 36), 0),
    "three channels of a pixel": ((3, 5, 7, 8), 3, 3, (105, 3, 8), 1),
    "planes of channels": ((2, 6, 5, 4), 3, 1, (2, 3, 6, 20), 0),
    "short planes": ((2, 6, 1, 3), 3, 1, (2, 3, 6, 3), 1),
    "parts of the first axis": ((6, 8), 4, 0, (1, 4, 6, 8), 0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TURNS)
def test_parts_that_take_turns_are_copied_once(name, dtype):
    """Concat and Transpose, and Transpose and Split, which are each other's gradients."""
    shape, count, axis, divided, copies = TURNS[name]
    parts = {f"x{i}": (np.arange(np.prod(shape)) * count + i).reshape(shape).astype(dtype) for i in range(count)}
    order = (0, 2, 1, 3)[: len(divided)]
    whole = np.concatenate(list(parts.values()), axis)
    mixed = np.ascontiguousarray(whole.reshape(divided).transpose(order)).reshape(whole.shape)
    turned = tuple(divided[axis] for axis in order)
    constants = {"divided": np.array(divided), "turned": np.array(turned), "whole": np.array(whole.shape)}
    forward = [Node("Concat", list(parts), ["c"], "c", "", {"axis": axis}), Node("Reshape", ["c", "divided"], ["d"], "d"),
               Node("Transpose", ["d"], ["t"], "t", "", {"perm": order}), Node("Reshape", ["t", "whole"], ["y"], "y")]
    backward = [Node("Reshape", ["y", "turned"], ["t"], "t"), Node("Transpose", ["t"], ["d"], "d", "", {"perm": order}),
                Node("Reshape", ["d", "whole"], ["c"], "c"), Node("Split", ["c"], list(parts), "s", "", {"axis": axis})]
    for threads in (1, 2):
        kernels, (found,) = planned(forward, parts, ["y"], constants, threads)
        np.testing.assert_array_equal(found, mixed)
        assert (kernels.count("concat"), kernels.count("strided_copy")) == (1, copies)
        kernels, found = planned(backward, {"y": mixed}, list(parts), constants, threads)
        for part, expected in zip(found, parts.values(), strict=True):
            np.testing.assert_array_equal(part, expected)
        assert (kernels.count("split"), kernels.count("strided_copy")) == (1, copies)


def test_a_concatenation_that_is_read_elsewhere_stays():
    parts = {name: np.arange(24, dtype=np.float32).reshape(2, 12) + 100 * i for i, name in enumerate("ab")}
    nodes = [Node("Concat", ["a", "b"], ["c"], "c", "", {"axis": 1}), Node("Reshape", ["c", "s"], ["d"], "d"),
             Node("Transpose", ["d"], ["y"], "t", "", {"perm": (0, 2, 1)})]
    kernels, (whole, mixed) = planned(nodes, parts, ["c", "y"], {"s": np.array([2, 2, 12])})
    np.testing.assert_array_equal(whole, np.concatenate([parts["a"], parts["b"]], 1))
    np.testing.assert_array_equal(mixed, whole.reshape(2, 2, 12).transpose(0, 2, 1))
    assert kernels.count("concat") == kernels.count("strided_copy") == 1


SIDES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 50)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("rows", SIDES)
def test_planes_of_any_size_are_transposed(rows, dtype):
    """Blocks at the edges overlap others or are parts; the planes next to a plane show whether one writes beyond it."""
    for columns in SIDES:
        x = np.arange(5 * rows * columns).reshape(5, rows, columns).astype(dtype)
        found = planned([Node("Transpose", ["x"], ["y"], "t", "", {"perm": (0, 2, 1)})], {"x": x}, ["y"], {})[1][0]
        np.testing.assert_array_equal(found, x.transpose(0, 2, 1))


LARGE = {"planes that are prefetched": ((2, 96, 56 * 57), (0, 2, 1)), "more rows than are prefetched": ((1, 300, 1050), (0, 2, 1)),
         "pixels of two channels": ((2, 300, 301, 2), (0, 3, 1, 2)), "pixels of three channels": ((2, 300, 301, 3), (0, 3, 1, 2)),
         "few heads": ((64, 16, 3, 16), (0, 2, 1, 3)), "heads of few positions": ((64, 3, 16, 16), (0, 2, 1, 3)),
         "planes beyond the caches": ((3, 32, 150 * 151), (0, 2, 1)), "pixels beyond the caches": ((3, 150 * 160, 33), (0, 2, 1)),
         "matrices beyond the caches": ((5, 512, 1024), (0, 2, 1)), "columns beyond the caches": ((2, 1025 * 1024, 2), (0, 2, 1)),
         "wide heads": ((4, 128, 12, 64), (0, 2, 1, 3)), "windows": ((8, 8, 4, 8, 4, 5), (0, 1, 3, 2, 4, 5))}


@pytest.mark.parametrize("name", LARGE)
def test_copies_in_several_pieces_do_not_depend_on_the_number_of_threads(name):
    shape, order = LARGE[name]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for threads in (1, 2, 3):
        kernels, (found,) = planned([Node("Transpose", ["x"], ["y"], "t", "", {"perm": order})], {"x": x}, ["y"], {}, threads)
        np.testing.assert_array_equal(found, x.transpose(order))
        assert kernels == ["strided_copy"]
