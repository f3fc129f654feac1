"""Rows that are gathered and then transposed are gathered in their final order, and their gradients are added up without a copy."""

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.plan import plan_program

rng = np.random.default_rng(5)
TABLE = rng.standard_normal((7, 5)).astype(np.float32)
WIDE = rng.standard_normal((7, 2, 6)).astype(np.float32)
SINGLE = rng.standard_normal(7).astype(np.float32)


def run(nodes, outputs, **values):
    """Return (operators that move elements in a program, each with the rank of what it reads, its outputs)."""
    constants = {name: value for name, value in values.items() if name == "shape"}
    inputs = {name: TensorType.of(value) for name, value in values.items() if name not in constants}
    graph = Graph(inputs=list(inputs), nodes=nodes, outputs=outputs, initializers=constants, types=inputs)
    program = plan_program(Model(graph, {"": 17, "com.microsoft": 1}, ir_version=8), inputs, {}, outputs, EngineHandle(1))
    raw = np.zeros(program.arena_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    program.bind_arena(raw[start:start + program.arena_bytes])
    moved = [(step.node.op_type, program.plan.types[step.node.inputs[0]].dtype) for step in program.plan.steps if step.call.kernel == "strided_copy"]
    return moved, program.try_run(tuple(values[name] for name in inputs))


def indices(*shape):
    return rng.integers(-7, 7, shape)


@pytest.mark.parametrize(("table", "chosen", "perm", "moved"), [
    (TABLE, indices(3, 4), (1, 0, 2), "int64"), (TABLE, indices(3, 4, 2), (2, 0, 1, 3), "int64"), (WIDE, indices(3, 4), (1, 0, 2, 3), "int64"),
    (WIDE, indices(3, 4), (1, 0, 3, 2), "float32"), (TABLE, indices(3, 4), (0, 2, 1), "float32"), (SINGLE, indices(3, 4), (1, 0), "float32"),
], ids=["matrix", "three axes", "rows of two axes", "rows that are turned", "columns first", "single elements"])
def test_indices_are_transposed_instead_of_rows_of_four_elements_and_more(table, chosen, perm, moved):
    nodes = [Node("Gather", ["table", "chosen"], ["rows"]), Node("Transpose", ["rows"], ["y"], attributes={"perm": perm})]
    moves, (y,) = run(nodes, ["y"], table=table, chosen=chosen)
    np.testing.assert_array_equal(y, table[chosen].transpose(perm))
    assert moves == [("Transpose", moved)]


def test_rows_that_are_read_in_their_first_order_too_are_copied():
    nodes = [Node("Gather", ["table", "chosen"], ["rows"]), Node("Transpose", ["rows"], ["y"], attributes={"perm": (1, 0, 2)}), Node("Neg", ["rows"], ["z"])]
    chosen = indices(3, 4)
    moves, (y, z) = run(nodes, ["y", "z"], table=TABLE, chosen=chosen)
    np.testing.assert_array_equal(y, TABLE[chosen].transpose(1, 0, 2))
    np.testing.assert_array_equal(z, -TABLE[chosen])
    assert moves == [("Transpose", "float32")]


@pytest.mark.parametrize(("shape", "perm"), [((4, 3), (1, 0, 2)), ((2, 4, 3), (1, 2, 0, 3))], ids=["two axes", "three axes"])
def test_the_gradient_of_a_table_reads_rows_in_the_order_in_which_they_are_computed(shape, perm):
    dy = rng.integers(-8, 8, (*shape, 5)).astype(np.float32)
    chosen = indices(*(shape[axis] for axis in perm[:-1]))
    nodes = [Node("Transpose", ["dy"], ["turned"], attributes={"perm": perm}),
             Node("GatherGrad", ["shape", "chosen", "turned"], ["dx"], domain="com.microsoft", attributes={"axis": 0})]
    moves, (dx,) = run(nodes, ["dx"], shape=np.array([7, 5]), chosen=chosen, dy=dy)
    expected = np.zeros((7, 5), np.float32)
    np.add.at(expected, chosen % 7, dy.transpose(perm))
    np.testing.assert_array_equal(dx, expected)
    assert moves == [("Transpose", "int64")]
