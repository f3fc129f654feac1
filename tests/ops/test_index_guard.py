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
