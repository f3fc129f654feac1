"""Assembly: the kernel call of a group, whose layout fused.h describes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ortrain.dtypes import NUMBERS, itemsize
from ortrain.ir import TensorType
from ortrain.ops.registry.constants import is_same_size
from ortrain.ops.registry.record import KernelCall
from ortrain.ops.shared.broadcasting import contiguous_strides, merge_axes
from ortrain.plan.elementwise_fusion.axes import Sizes, broadcast_axes, refine, strides_along, without_ones
from ortrain.plan.elementwise_fusion.group import Group
from ortrain.plan.elementwise_fusion.pieces import MAX_INPUTS, Form, Operand, Piece

CACHE_BYTES = 3 << 16
"""Maximum number of bytes of all operands of one block: a part of the second cache."""
MIN_BLOCK, MAX_BLOCK = 1024, 2048
"""Limits of the elements per block. In smaller blocks, which fit in the first cache, kernel calls of 15 ns take longer than
is won; a chain of 17 operators on 2^20 elements takes 1.72 ms with blocks of 512, 1.19 with 1024, 1.08 with 2048 and
1.15 with 4096."""
MAX_SLOTS = 24
"""Maximum number of slots: so many of the longest rows fit in a worker's workspace."""
MAX_OPERANDS, MAX_AXES = 128, 8
"""Equal to FUSED_MAX_OPERANDS and ORTRAIN_MAX_RANK."""


class Where(IntEnum):
    """Where an operand is; equal to the constants OPERAND_* in fused.h."""

    INPUT = 0
    OUTPUT = 1
    SLOT = 2


@dataclass(frozen=True, slots=True)
class Assembled:
    """The call of a fused step, and the values that it reads and computes.

    traffic: the bytes that the step reads and writes per element of its iteration space, of whole operands. single_traffic: those of the single steps."""

    call: KernelCall
    inputs: list[str]
    outputs: list[str]
    traffic: int
    single_traffic: int


@dataclass(slots=True)
class Use:
    """An operand of a piece: the value and the strides with which the piece reads or writes it.

    key: equal for equal uses; strides may be symbolic, and comparing them would restrict the program template."""

    value: str
    strides: list[int]
    key: tuple[str, object]


@dataclass(slots=True)
class Places:
    """Where the values of a group are."""

    inputs: list[str]
    outputs: list[str]
    slots: dict[str, int] = field(default_factory=dict)
    n_slots: int = 0

    def of(self, value: str) -> tuple[Where, int]:
        if value in self.slots:
            return Where.SLOT, self.slots[value]
        return (Where.OUTPUT, self.outputs.index(value)) if value in self.outputs else (Where.INPUT, self.inputs.index(value))


def assemble(group: Group, needed: Collection[str], types: Mapping[str, TensorType]) -> Assembled | None:
    """Return the call of a group; None if it exceeds a limit of the kernel. needed: values that others read."""
    pieces = _without_duplicates([piece for _, piece in group.pieces], needed)
    computed = [piece.output for piece in pieces]
    inputs = list(dict.fromkeys(operand.value for piece in pieces for operand in piece.inputs if operand.value not in group.over_rows))
    places = _with_slots(pieces, Places(inputs, [value for value in computed if value in needed]))
    uses = [_uses(group, piece) for piece in pieces]
    axes, cut, merged = _merged(group, [use.strides for piece_uses in uses for use in piece_uses])
    strides = iter(merged)
    table: dict[tuple[str, object], tuple[int, tuple[int, ...]]] = {}
    calls: list[int] = []
    floats: list[float] = []
    for piece, piece_uses in zip(pieces, uses, strict=True):
        numbers = []
        for use in piece_uses:
            dtype = types[use.value].dtype
            entry = (*places.of(use.value), NUMBERS[dtype], itemsize(dtype), *next(strides))
            numbers.append(table.setdefault(use.key, (len(table), entry))[0])
        calls += [piece.address, piece.form, group.over_rows[piece.output], piece.flushes, len(floats), piece.number, len(piece.inputs), *numbers,
                  *[0] * (MAX_INPUTS + 1 - len(numbers))]
        floats += piece.floats
    if places.n_slots > MAX_SLOTS or len(table) > MAX_OPERANDS or len(axes) > MAX_AXES:
        return None
    widths = {value: itemsize(types[value].dtype) for value in (*inputs, *group.over_rows)}
    widest = max(map(widths.__getitem__, computed))
    block = _block_elements(sum(widths[value] for value in (*inputs, *places.outputs)) + places.n_slots * widest)
    header = (len(axes), cut, block, len(table), len(pieces), widest, places.n_slots)
    ints = (*header, *axes, *(number for _, entry in table.values() for number in entry), *map(int, calls))
    call = KernelCall("fused", ints, tuple(floats), in_place=_in_place(group, pieces, places, types))
    return Assembled(call, inputs, places.outputs, *_traffic(group, places, widths))


def _traffic(group: Group, places: Places, widths: Mapping[str, int]) -> tuple[int, int]:
    """Return the bytes per element of whole operands that the fused step of a group reads and writes, and those of its single steps.

    widths: the bytes of an element of each value."""
    single, whole = 0, set()
    for _, piece in group.pieces:
        if piece.form == Form.REDUCTION or not group.over_rows[piece.output]:
            read = {operand.value for operand in piece.inputs if _is_whole(operand, piece)}
            single += sum(map(widths.__getitem__, read)) + (not group.over_rows[piece.output]) * widths[piece.output]
            whole |= read - group.over_rows.keys()
    written = (value for value in places.outputs if not group.over_rows[value])
    return sum(map(widths.__getitem__, (*whole, *written))), single


def _without_duplicates(pieces: Sequence[Piece], needed: Collection[str]) -> list[Piece]:
    """Return the pieces without those that compute a value again, as recomputations do, unless others read both."""
    first: dict[tuple[object, ...], Piece] = {}
    renamed: dict[str, str] = {}
    kept: list[Piece] = []
    for piece in pieces:
        inputs = tuple(replace(operand, value=renamed.get(operand.value, operand.value)) for operand in piece.inputs)
        piece = replace(piece, inputs=inputs)
        twin = first.setdefault((piece.address, tuple(operand.value for operand in inputs), piece.floats, piece.number), piece)
        if twin is piece or piece.output in needed or not _has_equal_shapes(piece, twin):
            kept.append(piece)
        else:
            renamed[piece.output] = twin.output
    return kept


def _has_equal_shapes(piece: Piece, twin: Piece) -> bool:
    shapes = ((piece.dims, twin.dims), *((one.shape, other.shape) for one, other in zip(piece.inputs, twin.inputs, strict=True)))
    return all(len(one) == len(other) and all(map(is_same_size, one, other)) for one, other in shapes)


def _block_elements(bytes_per_element: int) -> int:
    return max(MIN_BLOCK, min(MAX_BLOCK, CACHE_BYTES // bytes_per_element // 64 * 64))


def _with_slots(pieces: Sequence[Piece], places: Places) -> Places:
    """Give a slot to every value that is neither an input nor an output, each from its computation to its last use."""
    last_use = {operand.value: index for index, piece in enumerate(pieces) for operand in piece.inputs}
    free: list[int] = []
    for index, piece in enumerate(pieces):
        if piece.output not in places.outputs:
            if not free:
                free.append(places.n_slots)
                places.n_slots += 1
            places.slots[piece.output] = free.pop()
        free += [places.slots[value] for value in {operand.value for operand in piece.inputs} if value in places.slots and last_use[value] == index]
        if piece.output in places.slots and piece.output not in last_use:
            free.append(places.slots[piece.output])
    return places


def _uses(group: Group, piece: Piece) -> list[Use]:
    """Return the output and the inputs of a piece with their strides along the axes of the group."""
    rows = [0] * (len(group.axes) - group.cut)
    whole = {True: [*contiguous_strides(group.axes[: group.cut]), *rows], False: contiguous_strides(group.axes)}
    over_rows = group.over_rows[piece.output] and piece.form != Form.REDUCTION

    def whole_use(value: str, of_rows: bool) -> Use:
        return Use(value, whole[of_rows], (value, of_rows))

    def external_use(operand: Operand) -> Use:
        if _is_whole(operand, piece):
            return whole_use(operand.value, over_rows)
        if not without_ones(operand.shape):
            return Use(operand.value, [0] * len(group.axes), (operand.value, None))
        refined = refine(group.axes[: group.cut] if over_rows else group.axes, without_ones(piece.dims), True)
        assert refined is not None
        strides = strides_along(operand.shape, piece.dims, refined.axes, refined.right)
        return Use(operand.value, strides + rows if over_rows else strides, (operand.value, object()))

    return [whole_use(piece.output, group.over_rows[piece.output]),
            *(whole_use(each.value, group.over_rows[each.value]) if each.value in group.over_rows else external_use(each) for each in piece.inputs)]


def _merged(group: Group, strides: Sequence[Sequence[int]]) -> tuple[Sizes, int, list[list[int]]]:
    """Return the axes with neighbors merged where all operands allow it, the number of axes before the rows, and the
    operands' strides along the merged axes."""
    dims, merged = merge_axes(group.axes[group.cut :], *(each[group.cut :] for each in strides))
    if not group.cut:
        return tuple(dims), 0, merged
    outer, merged_outer = merge_axes(group.axes[: group.cut], *(each[: group.cut] for each in strides))
    return (*outer, *dims), len(outer), [[*before, *after] for before, after in zip(merged_outer, merged, strict=True)]


def _in_place(group: Group, pieces: Sequence[Piece], places: Places, types: Mapping[str, TensorType]) -> dict[int, int]:
    """Return output -> an input that it may overwrite: one that is read in the same places only, and not after the
    output is computed."""
    readers: dict[str, list[int]] = {}
    exact: dict[str, bool] = {}
    for index, piece in enumerate(pieces):
        over_rows = group.over_rows[piece.output] and piece.form != Form.REDUCTION
        for operand in piece.inputs:
            if operand.value not in group.over_rows:
                readers.setdefault(operand.value, []).append(index)
                same = exact.get(operand.value, over_rows) == over_rows and _is_whole(operand, piece)
                exact[operand.value] = over_rows if same else not over_rows
                if not same:
                    readers[operand.value].append(len(pieces))      # never free
    found: dict[int, int] = {}
    for number, output in enumerate(places.outputs):
        computed = next(index for index, piece in enumerate(pieces) if piece.output == output)
        for source, value in enumerate(places.inputs):
            if (max(readers[value]) <= computed and exact[value] == group.over_rows[output] and source not in found.values()
                    and types[value].dtype == types[output].dtype):
                found[number] = source
                break
    return found


def _is_whole(operand: Operand, piece: Piece) -> bool:
    """Return whether a piece reads an operand without broadcasting it."""
    return not any(broadcast_axes(operand.shape, piece.dims))
