"""Groups: pieces that can run in one pass, and the iteration space that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortrain.plan.elementwise_fusion.axes import Sizes, broadcast_axes, refine, without_ones
from ortrain.plan.elementwise_fusion.pieces import Form, Operand, Piece

MAX_ROW = 1 << 14
"""Maximum number of elements of a row: 64 KiB of float32 stay in the second cache."""
MAX_PIECES = 32
"""Equal to FUSED_MAX_CALLS in fused.h."""


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces in the order in which they run, and their iteration space.

    pieces: each with the index of the step that it comes from. axes: the axes of the space. cut: number of axes
    before those of a row; 0 while the group has no rows. over_rows: output of a piece -> whether it has one element
    per row instead of one per element of the space."""

    pieces: tuple[tuple[int, Piece], ...]
    axes: Sizes
    cut: int
    over_rows: dict[str, bool]

    @classmethod
    def of(cls, index: int, pieces: Sequence[Piece]) -> Group | None:
        """Return the group of the pieces of one step; None for pieces over a single element, or over rows that are
        too long."""
        first, *others = pieces
        axes = without_ones(first.dims)
        group: Group | None = cls((), axes, 0, {}) if axes else None
        if group is not None and first.row_axes:
            group = group._with_rows(len(axes) - len(without_ones(first.dims[-first.row_axes :])))
        if group is None:
            return None
        group = group._appended(index, first, first.form == Form.REDUCTION)
        for piece in others:
            group = group.with_piece(index, piece) if group is not None else None
        return group

    def with_piece(self, index: int, piece: Piece) -> Group | None:
        """Return the group with a piece that reads values of the group; None if it cannot run in the same pass."""
        inner = [operand for operand in piece.inputs if operand.value in self.over_rows]
        if len(self.pieces) == MAX_PIECES or not without_ones(piece.dims):
            return None
        over_rows = False
        if piece.row_axes:
            found = self._over(piece.dims, False, True) if not any(self.over_rows[operand.value] for operand in inner) else None
            placed = found[0]._with_rows(sum(found[1][: len(found[1]) - len(without_ones(piece.dims[-piece.row_axes :]))])) if found is not None else None
        else:
            placed, over_rows = self._for_elementwise(piece.dims, inner)
        if placed is None or not all(placed._reads(operand, piece.dims, over_rows) for operand in inner):
            return None
        return placed._appended(index, piece, over_rows or piece.form == Form.REDUCTION)

    def merged(self, other: Group) -> Group | None:
        """Return both groups as one; None if their pieces cannot run in one pass."""
        if other.cut and not self.cut:
            return other.merged(self)
        pieces = tuple(sorted((*self.pieces, *other.pieces), key=lambda entry: entry[0]))
        if len(pieces) > MAX_PIECES:
            return None
        found = refine(self.axes, other.axes, False)
        if found is not None:
            cut = sum(found.left[: self.cut])
            fits = not other.cut or cut == sum(found.right[: other.cut])
            return Group(pieces, found.axes, cut, self.over_rows | other.over_rows) if fits else None
        rows = refine(self.axes[: self.cut], other.axes, False) if self.cut and not other.cut else None
        if rows is None:
            return None
        return Group(pieces, (*rows.axes, *self.axes[self.cut :]), len(rows.axes), self.over_rows | dict.fromkeys(other.over_rows, True))

    # ---- placing pieces in the space

    def _appended(self, index: int, piece: Piece, over_rows: bool) -> Group:
        return replace(self, pieces=(*self.pieces, (index, piece)), over_rows=self.over_rows | {piece.output: over_rows})

    def _with_rows(self, cut: int) -> Group | None:
        """Return the group with rows of the axes from `cut` on; None if it has other rows or they are too long."""
        if self.cut:
            return self if self.cut == cut else None
        return replace(self, cut=cut) if cut and math.prod(self.axes[cut:]) <= MAX_ROW else None

    def _over(self, dims: Sizes, over_rows: bool, equal_counts: bool) -> tuple[Group, Sizes] | None:
        """Return the group with its axes, or those before the rows, split such that the axes of `dims` are made up of
        them, and the number of axes that each axis of `dims` was split into."""
        found = refine(self.axes[: self.cut] if over_rows else self.axes, without_ones(dims), equal_counts)
        if found is None:
            return None
        if over_rows:
            return replace(self, axes=(*found.axes, *self.axes[self.cut :]), cut=len(found.axes)), found.right
        return replace(self, axes=found.axes, cut=sum(found.left[: self.cut])), found.right

    def _for_elementwise(self, dims: Sizes, inner: Sequence[Operand]) -> tuple[Group | None, bool]:
        """Return the group with axes for an elementwise piece, and whether the piece runs over rows."""
        of_rows = [self.over_rows[operand.value] for operand in inner]
        is_exact = [not any(broadcast_axes(operand.shape, dims)) for operand in inner]
        if all(of_rows) and all(is_exact):
            found = self._over(dims, True, True)
            return (found[0] if found is not None else None), True
        if all(of_rows):
            found = self._over(dims, False, False)
        elif all(exact for exact, rows in zip(is_exact, of_rows, strict=True) if not rows):
            found = self._over(dims, False, True)
        else:
            return self._as_rows_of(dims, inner), False
        return (found[0] if found is not None else None), False

    def _as_rows_of(self, dims: Sizes, inner: Sequence[Operand]) -> Group | None:
        """Return the group as the rows of a larger space, along whose last axes all its values are broadcast."""
        flags = [broadcast_axes(operand.shape, dims) for operand in inner]
        kept = flags[0].index(True)
        if self.cut or not kept or not all(flags[0][kept:]) or any(other != flags[0] for other in flags):
            return None
        sizes = without_ones(dims)
        found = refine(self.axes, sizes[:kept], True)
        if found is None:
            return None
        larger = Group(self.pieces, (*found.axes, *sizes[kept:]), 0, dict.fromkeys(self.over_rows, True))
        return larger._with_rows(len(found.axes))

    def _reads(self, operand: Operand, dims: Sizes, over_rows: bool) -> bool:
        """Return whether a piece over `dims` reads a value of the group in the place where it runs itself."""
        flags = broadcast_axes(operand.shape, dims)
        if over_rows or not self.over_rows[operand.value]:
            return self.over_rows[operand.value] == over_rows and not any(flags)
        found = refine(self.axes, without_ones(dims), True)
        position = 0
        for is_broadcast, count in zip(flags, found.right if found is not None else (), strict=True):
            if (position + count > self.cut) if not is_broadcast else (position < self.cut):
                return False
            position += count
        return True
