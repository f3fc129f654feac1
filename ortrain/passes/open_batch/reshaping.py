"""Rules of operators that change shapes: Reshape and its relatives, Expand, Tile and ConstantOfShape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ortrain.ir import Shape
from ortrain.passes.open_batch.batch_axis import BatchAxis, NodeView, NotSeparable


def candidates(before: Shape, where: BatchAxis, after: Shape, batch: int) -> list[BatchAxis]:
    """Return the positions at which the samples may lie after a Reshape in row-major order.

    An axis of the result holds the samples if the elements before it divide those before the samples, and those behind it divide those behind."""
    symbols = {size: number for number, size in zip(_primes(), dict.fromkeys(size for size in (*before, *after) if isinstance(size, str)), strict=False)}
    sizes, result = ([symbols[size] if isinstance(size, str) else size for size in shape] for shape in (before, after))
    ahead, behind = prod(sizes[: where.axis]) * where.outer, where.inner * prod(sizes[where.axis + 1 :])
    found = []
    for axis, size in enumerate(result):
        first, last = prod(result[:axis]), prod(result[axis + 1 :])
        if first and last and ahead % first == 0 and behind % last == 0 and size == ahead // first * batch * (behind // last):
            found.append(BatchAxis(axis, ahead // first, behind // last))
    return found


def _primes() -> Sequence[int]:
    """Numbers that stand for dynamic sizes while elements are counted."""
    return (1000003, 1000033, 1000037, 1000039, 1000081, 1000099, 1000117, 1000121)


def reshape(v: NodeView) -> BatchAxis:
    v.need_unbatched(1)
    where, after, rewriter = v.batched(0), v.output_shape(), v.rewriter
    possible = candidates(v.shape(0), where, after, rewriter.batch)
    natural = _natural(v, possible)
    if v.node.op_type == "Flatten" or rewriter.computes_from_batch(v.node.inputs[1]) or rewriter.value_of(v.node.inputs[1]) is None:
        possible = [] if natural is None else [natural]

    def preference(place: BatchAxis) -> tuple[bool, ...]:
        return (not place.is_plain, place.axis != where.axis if place.is_plain else False, place != natural, place.axis == len(after) - 1, place.outer > 1)

    if not possible:
        raise NotSeparable(f"the samples of shape {list(v.shape(0))} along axis {where.axis} lie along no single axis of its result {list(after)}")
    chosen = rewriter.choose(v.node, sorted(possible, key=preference))
    if chosen != natural:
        _rewrite_target(v, where, after, chosen)
    return chosen


def _natural(v: NodeView, possible: Sequence[BatchAxis]) -> BatchAxis | None:
    """Return the position that the node gives the samples as it stands, None where it does not fit another number of samples."""
    opened, after = v.rewriter.open_shape(v.node), v.output_shape()
    if opened is None or len(opened) != len(after):
        return None
    changed = [axis for axis, (size, old) in enumerate(zip(opened, after, strict=True)) if size != old]
    return next((place for place in possible if [place.axis] == changed), None)


def _rewrite_target(v: NodeView, where: BatchAxis, after: Shape, chosen: BatchAxis) -> None:
    """Give a Reshape a target that has the samples at a position."""
    target = v.integers(1, "shape") or []
    is_copy = not v.attribute("allowzero", 0) and chosen == where
    entries: list[int | None] = []
    for axis, entry in enumerate(target):
        size = after[axis]
        if axis == chosen.axis:
            entries.append(0 if is_copy else None)
        elif entry == 0 and axis != where.axis:
            entries.append(0)
        else:
            entries.append(size if isinstance(size, int) else -1)
    if -1 in entries:
        name = v.rewriter.constant(np.array(entries, np.int64)) if None not in entries else v.rewriter.sizes(entries, chosen.size(1))
    else:
        name = v.rewriter.constant(np.array([-1 if entry is None else entry for entry in entries], np.int64))
    v.node.inputs[1] = name


def squeeze(v: NodeView) -> BatchAxis:
    v.need_unbatched(1)
    where, rank = v.batched(0), v.rank(0)
    axes = v.integers(1, "axes")
    removed = {axis % rank for axis in axes} if axes is not None else {axis for axis, size in enumerate(v.shape(0)) if size == 1}
    if where.axis in removed:
        raise NotSeparable(f"it removes axis {where.axis}, along which the samples lie")
    return where.at(where.axis - sum(axis < where.axis for axis in removed))


def unsqueeze(v: NodeView) -> BatchAxis:
    v.need_unbatched(1)
    axes, rank = v.integers(1, "axes") or [], len(v.output_shape())
    inserted = {axis % rank for axis in axes}
    where = v.batched(0)
    return where.at([axis for axis in range(rank) if axis not in inserted][where.axis])


def expand(v: NodeView) -> BatchAxis | None:
    after = v.output_shape()
    if v.axes[0] is None:
        _shrink_for_expand(v)
        return _from_sizes(v)
    v.need_unbatched(1)
    where = v.axes[0].at(v.axes[0].axis + len(after) - v.rank(0))
    if v.rewriter.computes_from_batch(v.node.inputs[1]):
        return where
    target = v.integers(1, "shape") or []
    axis = where.axis - len(after) + len(target)
    if axis >= 0 and target[axis] != 1:
        if target[axis] != where.size(v.rewriter.batch):
            raise NotSeparable(f"it repeats the samples along axis {where.axis}")
        target[axis] = 1
        v.node.inputs[1] = v.rewriter.constant(np.array(target, np.int64))
    return where


def _shrink_for_expand(v: NodeView) -> None:
    """Reduce a constant that was exported with a row for each sample, such as the initial states of an LSTM, to one row, which Expand can repeat."""
    target = v.node.inputs[1]
    sizes = v.rewriter.shape_of(target)[0]
    for element in v.rewriter.computed_elements(target):
        axis = element - int(sizes) + v.rank(0)
        if axis >= 0 and v.shape(0)[axis] == v.rewriter.batch:
            v.node.inputs[0] = v.rewriter.first_rows(v.node.inputs[0], axis, 1)


def tile(v: NodeView) -> BatchAxis | None:
    if v.axes[0] is None:
        return _from_sizes(v)
    v.need_unbatched(1)
    where = v.axes[0]
    if v.rewriter.computes_from_batch(v.node.inputs[1]) or (v.integers(1, "repeats") or [1] * v.rank(0))[where.axis] != 1:
        raise NotSeparable(f"it repeats the samples along axis {where.axis}")
    return where


def _from_sizes(v: NodeView) -> BatchAxis | None:
    """Return the position of the samples in a result that the number of samples repeats: rows 0, 1, ..., n - 1, 0, 1, ... along one axis."""
    opened, after = v.rewriter.open_shape(v.node), v.output_shape()
    if opened is None or len(opened) != len(after):
        raise NotSeparable("its result has another rank for another number of samples")
    changed = [axis for axis, (size, old) in enumerate(zip(opened, after, strict=True)) if size != old]
    if len(changed) > 1:
        raise NotSeparable("the number of samples enters more than one size of its result")
    if not changed:
        return None
    size = after[changed[0]]
    inner = size // v.rewriter.batch if isinstance(size, int) else 0
    return BatchAxis(changed[0], 1, inner)


RESHAPING: dict[str, Callable[[NodeView], BatchAxis | None]] = {
    "Reshape": reshape, "Flatten": reshape, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Expand": expand, "Tile": tile, "ConstantOfShape": _from_sizes,
}
"""op_type -> rule."""
