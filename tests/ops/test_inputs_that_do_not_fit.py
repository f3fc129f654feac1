"""Malformed models do no harm: every operator refuses inconsistent sizes, missing inputs, invalid attributes and unknown outputs, or stays within its memory.

Each test varies one property of each sample. A variant that is not refused runs between guard bytes, which must neither be written nor affect the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ortrain.errors import OrtrainError
from ortrain.ops.training import WRITTEN
from tests.ops.harness import MARGIN, cast, program_of, redzone_ranges, redzones, run_between_guards
from tests.ops.test_kernels import all_samples

MAX_ELEMENTS = 1 << 22
RESIZINGS = (lambda size: size + 1, lambda size: 40 * size, lambda size: 1)
NUMBER_CHANGES = (lambda number: number + 1, lambda number: -number - 1, lambda number: 3 * number + 5, lambda number: -(2**63), lambda number: 0)
OTHER_VALUES = ("text", 1.5, float("nan"), (), (1, 2), (-1,) * 8, ("text",), np.ones((2, 2), np.float32))
"""Attribute values of every kind that model files can hold."""
DTYPES = ("float64", "int64", "int32", "int8", "bool")
PATTERNS = (0x3F, 0xC1)
"""Guard bytes, which read as floats are positive and negative numbers; a result that depends on them has read them."""


def resized(sample, arrays) -> Iterator[list[np.ndarray | None]]:
    """Yield the sample's arrays with one of them larger or smaller along one axis; resized integer arrays are 0, which is a valid index."""
    rng = np.random.default_rng(0)
    for i, x in enumerate(arrays):
        if x is None or i in sample.constants or i in WRITTEN.get(sample.op_type, ()):
            continue
        for axis, size in enumerate(x.shape):
            for resize in RESIZINGS:
                shape = [*x.shape[:axis], resize(size), *x.shape[axis + 1:]]
                if shape != list(x.shape) and np.prod(shape) <= MAX_ELEMENTS:
                    other = (rng.standard_normal if x.dtype.kind == "f" else np.zeros)(shape).astype(x.dtype)
                    yield [other if j == i else y for j, y in enumerate(arrays)]


def with_margins(array: np.ndarray, pattern: int) -> np.ndarray:
    """Return a copy of an array between guard bytes of `pattern`."""
    raw = np.full(array.nbytes + 2 * MARGIN, pattern, np.uint8)
    inner = raw[MARGIN : MARGIN + array.nbytes].view(array.dtype).reshape(array.shape)
    inner[...] = array
    return inner


def run_surrounded(program, given, pattern: int) -> list[bytes] | None:
    """Return the outputs of a program as bytes, None where it refuses its inputs.

    All memory around and between the program's blocks, inputs and outputs holds `pattern`; asserts that the program leaves it unchanged."""
    raw = np.full(program.arena_bytes + 64 + 2 * MARGIN, pattern, np.uint8)
    start = MARGIN + -(raw.ctypes.data + MARGIN) % 64
    arena = raw[start : start + program.arena_bytes]
    program.bind_arena(arena)
    surrounded = tuple(with_margins(x, pattern) for x in given)
    try:
        results = run_between_guards(program, surrounded, program.try_run(surrounded), pattern)
    except RuntimeError:
        results = None
    guards = [raw[:start], raw[start + program.arena_bytes :], *(arena[zone] for zone in redzone_ranges(program))]
    assert all((part == pattern).all() for part in guards), "wrote outside its memory"
    return results


def check_harmless(program, given) -> None:
    first, second = (run_surrounded(program, given, pattern) for pattern in PATTERNS)
    assert first == second, "read outside its memory"


def check_refused_or_harmless(sample, arrays, outputs=None) -> None:
    try:
        with redzones():
            program, given = program_of(sample, arrays, 1, outputs=outputs)
    except OrtrainError:
        return
    check_harmless(program, given)


@pytest.mark.parametrize("sample", all_samples())
def test_inconsistent_sizes_are_refused_or_harmless(sample):
    for arrays in resized(sample, cast(sample, "float32")):
        check_refused_or_harmless(sample, arrays)


def without_inputs(arrays) -> Iterator[list[np.ndarray | None]]:
    """Yield the sample's arrays without one of them, and without one and all that follow it."""
    for i, x in enumerate(arrays):
        yield arrays[:i]
        if x is not None:
            yield [None if j == i else y for j, y in enumerate(arrays)]


@pytest.mark.parametrize("sample", all_samples())
def test_missing_inputs_are_refused_or_harmless(sample):
    for arrays in without_inputs(cast(sample, "float32")):
        check_refused_or_harmless(replace(sample, inputs=arrays, constants=tuple(index for index in sample.constants if index < len(arrays))), arrays)


def with_other_types(sample, arrays) -> Iterator[list[np.ndarray | None]]:
    """Yield the sample's arrays with one of them empty, of another rank or of another dtype."""
    for i, x in enumerate(arrays):
        if x is None or i in WRITTEN.get(sample.op_type, ()):
            continue
        others = [x[..., None], x[None], x.ravel(), np.zeros((0, *x.shape[1:]), x.dtype)]
        others += [np.zeros(x.shape, dtype) for dtype in DTYPES if x.dtype != dtype]
        yield from ([other if j == i else y for j, y in enumerate(arrays)] for other in others)


@pytest.mark.parametrize("sample", all_samples())
def test_wrong_ranks_and_dtypes_are_refused_or_harmless(sample):
    for arrays in with_other_types(sample, cast(sample, "float32")):
        check_refused_or_harmless(replace(sample, inputs=arrays), arrays)


def alter_attributes(attributes) -> Iterator[dict]:
    """Yield the sample's attributes without one of them, and with one that has another value or kind."""
    for name, value in attributes.items():
        yield {other: unchanged for other, unchanged in attributes.items() if other != name}
        numbers = value if isinstance(value, tuple) else (value,)
        if all(isinstance(number, int) for number in numbers):
            yield from (attributes | {name: tuple(map(change, numbers)) if isinstance(value, tuple) else change(value)} for change in NUMBER_CHANGES)
        yield from (attributes | {name: other} for other in OTHER_VALUES)


@pytest.mark.parametrize("sample", [sample for sample in all_samples() if sample.values[0].attributes])
def test_invalid_attributes_are_refused_or_harmless(sample):
    for attributes in alter_attributes(sample.attributes):
        check_refused_or_harmless(replace(sample, attributes=attributes), cast(sample, "float32"))


MAX_OUTPUTS = 8


def other_outputs(count: int) -> Iterator[list[str]]:
    """Yield names of fewer and of more outputs than the sample has, of all outputs but one, and of one output alone."""
    for size in range(1, MAX_OUTPUTS):
        if size != count:
            yield [f"y{i}" for i in range(size)]
        for absent in range(size):
            if size >= count > 1:
                yield ["" if i == absent else f"y{i}" for i in range(size)]
        yield [""] * size + [f"y{size}"]


@pytest.mark.parametrize("sample", all_samples())
def test_absent_and_surplus_outputs_are_refused_or_harmless(sample):
    for outputs in other_outputs(sample.outputs):
        check_refused_or_harmless(sample, cast(sample, "float32"), outputs)
