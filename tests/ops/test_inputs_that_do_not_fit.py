"""A model may say of every operator's inputs, attributes and outputs what it likes: sizes that do not fit each other, inputs that are not there, attributes
that make no sense and outputs that it does not have are refused by name, or what is computed keeps to its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ortrain.errors import OrtrainError
from ortrain.ops.training import WRITTEN
from tests.ops.harness import cast, gaps_of, kept_apart, program_of
from tests.ops.test_kernels import all_samples

MAX_ELEMENTS = 1 << 22
GROWTHS = (lambda size: size + 1, lambda size: 40 * size, lambda size: 1)
CHANGES = (lambda number: number + 1, lambda number: -number - 1, lambda number: 3 * number + 5, lambda number: -(2**63), lambda number: 0)
OTHERS = ("text", 1.5, float("nan"), (), (1, 2), (-1,) * 8, ("text",), np.ones((2, 2), np.float32))
"""Values of attributes, one of each kind that files have."""
ELEMENTS = ("float64", "int64", "int32", "int8", "bool")
MARGIN = 4096
PATTERNS = (0x3F, 0xC1)
"""Bytes of numbers, and of negative ones, around all memory that a program has."""


def resized(sample, arrays) -> Iterator[list[np.ndarray | None]]:
    """The sample's arrays with one of them larger or smaller along one axis: what is an index is 0 then."""
    rng = np.random.default_rng(0)
    for i, x in enumerate(arrays):
        if x is None or i in sample.constants or i in WRITTEN.get(sample.op_type, ()):
            continue
        for axis, size in enumerate(x.shape):
            for growth in GROWTHS:
                shape = [*x.shape[:axis], growth(size), *x.shape[axis + 1:]]
                if shape != list(x.shape) and np.prod(shape) <= MAX_ELEMENTS:
                    other = (rng.standard_normal if x.dtype.kind == "f" else np.zeros)(shape).astype(x.dtype)
                    yield [other if j == i else y for j, y in enumerate(arrays)]


def surrounded(array: np.ndarray, pattern: int) -> np.ndarray:
    raw = np.full(array.nbytes + 2 * MARGIN, pattern, np.uint8)
    inner = raw[MARGIN : MARGIN + array.nbytes].view(array.dtype).reshape(array.shape)
    inner[...] = array
    return inner


def results(program, given, pattern: int) -> list[bytes] | None:
    """What a program gives, None where it refuses, with a pattern in all memory that it was not given; asserts that this is still there."""
    raw = np.full(program.arena_bytes + 64 + 2 * MARGIN, pattern, np.uint8)
    start = MARGIN + -(raw.ctypes.data + MARGIN) % 64
    arena = raw[start : start + program.arena_bytes]
    program.bind_arena(arena)
    try:
        found = [np.asarray(y).tobytes() for y in program.try_run(tuple(surrounded(x, pattern) for x in given))]
    except RuntimeError:
        found = None
    kept = [raw[:start], raw[start + program.arena_bytes :], *(arena[gap] for gap in gaps_of(program))]
    assert all((part == pattern).all() for part in kept), "wrote where nothing of its own is"
    return found


def check_harmless(program, given) -> None:
    first, second = (results(program, given, pattern) for pattern in PATTERNS)
    assert first == second, "read what nothing of its own is"


def check_refused_or_harmless(sample, arrays, outputs=None) -> None:
    try:
        with kept_apart():
            program, given = program_of(sample, arrays, 1, outputs=outputs)
    except OrtrainError:
        return
    check_harmless(program, given)


@pytest.mark.parametrize("sample", all_samples())
def test_sizes_that_do_not_fit_are_refused_or_do_no_harm(sample):
    for arrays in resized(sample, cast(sample, "float32")):
        check_refused_or_harmless(sample, arrays)


def without(arrays) -> Iterator[list[np.ndarray | None]]:
    """The sample's arrays without one of them, or without all from one on."""
    for i, x in enumerate(arrays):
        yield arrays[:i]
        if x is not None:
            yield [None if j == i else y for j, y in enumerate(arrays)]


@pytest.mark.parametrize("sample", all_samples())
def test_inputs_that_are_not_there_are_refused_or_do_no_harm(sample):
    for arrays in without(cast(sample, "float32")):
        check_refused_or_harmless(replace(sample, inputs=arrays, constants=tuple(index for index in sample.constants if index < len(arrays))), arrays)


def of_other_kinds(sample, arrays) -> Iterator[list[np.ndarray | None]]:
    """The sample's arrays with one of them empty, of another rank or of other elements."""
    for i, x in enumerate(arrays):
        if x is None or i in WRITTEN.get(sample.op_type, ()):
            continue
        others = [x[..., None], x[None], x.ravel(), np.zeros((0, *x.shape[1:]), x.dtype)]
        others += [np.zeros(x.shape, dtype) for dtype in ELEMENTS if x.dtype != dtype]
        yield from ([other if j == i else y for j, y in enumerate(arrays)] for other in others)


@pytest.mark.parametrize("sample", all_samples())
def test_ranks_and_elements_that_do_not_fit_are_refused_or_do_no_harm(sample):
    for arrays in of_other_kinds(sample, cast(sample, "float32")):
        check_refused_or_harmless(replace(sample, inputs=arrays), arrays)


def altered(attributes) -> Iterator[dict]:
    """The sample's attributes without one of them, or with one that has another value or is of another kind."""
    for name, value in attributes.items():
        yield {other: kept for other, kept in attributes.items() if other != name}
        numbers = value if isinstance(value, tuple) else (value,)
        if all(isinstance(number, int) for number in numbers):
            yield from (attributes | {name: tuple(map(change, numbers)) if isinstance(value, tuple) else change(value)} for change in CHANGES)
        yield from (attributes | {name: other} for other in OTHERS)


@pytest.mark.parametrize("sample", [sample for sample in all_samples() if sample.values[0].attributes])
def test_attributes_that_make_no_sense_are_refused_or_do_no_harm(sample):
    for attributes in altered(sample.attributes):
        check_refused_or_harmless(replace(sample, attributes=attributes), cast(sample, "float32"))


MAX_OUTPUTS = 8


def other_outputs(count: int) -> Iterator[list[str]]:
    """Fewer and more outputs than the sample's, all but one, and one alone."""
    for size in range(1, MAX_OUTPUTS):
        if size != count:
            yield [f"y{i}" for i in range(size)]
        for absent in range(size):
            if size >= count > 1:
                yield ["" if i == absent else f"y{i}" for i in range(size)]
        yield [""] * size + [f"y{size}"]


@pytest.mark.parametrize("sample", all_samples())
def test_outputs_that_are_not_asked_for_or_not_there_are_refused_or_do_no_harm(sample):
    for outputs in other_outputs(sample.outputs):
        check_refused_or_harmless(sample, cast(sample, "float32"), outputs)
