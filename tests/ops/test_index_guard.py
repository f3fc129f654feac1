"""The guard of indices and labels accepts exactly those in its range, wherever they stand and however far outside they are."""

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.ops.registry.record import KernelCall
from ortrain.plan import plan_program
from tests.ops.harness import arena_for, run_call

SIZE = 5
ROW = 9001
"""Indices in each run: more than two blocks of the guard, and no multiple of a vector."""


def gather_program(dtype):
    """Return a program of Gather of ROW indices into SIZE numbers."""
    kinds = {"x": TensorType("float32", (SIZE,)), "index": TensorType(dtype, (ROW,))}
    graph = Graph(inputs=list(kinds), nodes=[Node("Gather", ["x", "index"], ["y"])], outputs=["y"])
    graph.types.update(kinds)
    program = plan_program(Model(graph, {"": 17}, ir_version=8), kinds, {}, ["y"], EngineHandle(1))
    program.bind_arena(arena_for(program))
    return program


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_are_refused_outside_of_their_range_only(dtype):
    program, x = gather_program(dtype), np.arange(SIZE, dtype=np.float32)
    limits = np.iinfo(dtype)
    inside = {-SIZE: 0, -1: SIZE - 1, 0: 0, SIZE - 1: SIZE - 1}
    outside = (-SIZE - 1, SIZE, limits.min, limits.min + SIZE, limits.max, limits.max - SIZE, *(2**k for k in range(3, limits.bits - 1)))
    for at in (0, 3, 4096, ROW - 1):
        index = np.full(ROW, 2, dtype)
        for value, read in inside.items():
            index[at] = value
            assert program.try_run((x, index))[0][at] == read
        for value in outside:
            index[at] = value
            with pytest.raises(RuntimeError):
                program.try_run((x, index))
            assert program.failed_status == 1                       # STATUS_INDEX_OUT_OF_RANGE of kernel.h


@pytest.mark.parametrize("ignored", [-100, 3])
def test_an_ignored_label_is_accepted_inside_and_outside_of_the_range(ignored):
    call = KernelCall("check_range", (0, SIZE, 1, ignored))
    for at in (0, 4095, ROW - 1):
        labels = np.full(ROW, ignored)
        run_call(call, [labels], [np.zeros(1)], 1)
        labels[at] = SIZE
        with pytest.raises(AssertionError):
            run_call(call, [labels], [np.zeros(1)], 1)


ELEMENTS = {
    "one row": ((SIZE,), (ROW,), 0), "long rows": ((2, SIZE), (2, 20000), 1), "short rows": ((6000, SIZE), (6000, 3), 1),
    "columns": ((SIZE, 5000), (4, 5000), 0), "few columns": ((SIZE, 3), (2000, 3), 0), "a middle axis": ((7, SIZE, 30), (7, 50, 30), 1),
}
"""Shapes of data and indices, and the axis; the indices of data are more than one work item."""


def elements_program(op_type, name, dtype, nodes=(), outputs=("y",), **attributes):
    """Return a program of an operator with an index for each element, after other nodes, and its arrays by name."""
    shape, chosen, axis = ELEMENTS[name]
    rng = np.random.default_rng(7)
    arrays = {"x": rng.standard_normal(shape).astype(np.float32), "index": rng.integers(-SIZE, SIZE, chosen).astype(dtype)}
    if op_type == "ScatterElements":
        arrays["updates"] = rng.standard_normal(chosen).astype(np.float32)
    kinds = {key: TensorType.of(array) for key, array in arrays.items()}
    node = Node(op_type, list(arrays), ["y"], attributes={"axis": axis, **attributes})
    graph = Graph(inputs=list(kinds), nodes=[*nodes, node], outputs=list(outputs))
    graph.types.update(kinds)
    program = plan_program(Model(graph, {"": 18}, ir_version=8), kinds, {}, list(outputs), EngineHandle(2))
    program.bind_arena(arena_for(program))
    return program, arrays, axis


def kernels_of(program):
    return [step.call.kernel for step in program.plan.steps]


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("op_type", "attributes"), [("GatherElements", {}), ("ScatterElements", {}), ("ScatterElements", {"reduction": "max"})],
                         ids=["gather", "scatter", "maximum"])
def test_kernels_with_an_index_for_each_element_refuse_indices_themselves(op_type, attributes, dtype, name):
    program, arrays, axis = elements_program(op_type, name, dtype, **attributes)
    assert "check_range" not in kernels_of(program)
    (y,), index = program.try_run(tuple(arrays.values())), arrays["index"]
    if op_type == "GatherElements":
        np.testing.assert_array_equal(y, np.take_along_axis(arrays["x"], index % SIZE, axis))
    for at in (0, 1, index.size // 2, index.size - 1):
        for value in (SIZE, -SIZE - 1, np.iinfo(dtype).max, np.iinfo(dtype).min):
            kept, index.flat[at] = index.flat[at], value
            with pytest.raises(RuntimeError):
                program.try_run(tuple(arrays.values()))
            assert program.failed_status == 1
            index.flat[at] = kept
    np.testing.assert_array_equal(program.try_run(tuple(arrays.values()))[0], y)


@pytest.mark.parametrize("node", [Node("Gather", ["x", "index"], ["z"]), Node("Cast", ["index"], ["z"], attributes={"to": 1}),
                                  Node("RandomUniformLike", ["x"], ["z"])], ids=lambda node: node.op_type)
def test_a_guard_remains_where_something_reads_the_indices_first_or_outlives_the_run(node):
    z = node.outputs[0]
    program, _, _ = elements_program("GatherElements", "one row", "int64", [node], [z, "y"])
    assert "check_range" in kernels_of(program)
