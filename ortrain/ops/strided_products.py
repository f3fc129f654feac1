"""Batched matrix multiplication of views: operands that are transposed, cut out of larger tensors or freed of axes are read where they lie.

No file contains it: ortrain.plan.strided_products creates it from multiplications and from the nodes before and after them that only copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ortrain.ir import Dim, Shape, TensorType
from ortrain.ops.linear import common_dtype, matmul_call, matmul_shape
from ortrain.ops.registry.constants import is_broadcast
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, operator
from ortrain.ops.shared.broadcasting import contiguous_strides

WHOLE = -1
"""Length of an axis of which all is read."""
NEW = -1
"""An axis of size 1 that the source does not have."""
SIDES = ("a", "b")


@dataclass(frozen=True)
class View:
    """A tensor that is read where it lies in its source.

    axes: for each axis of the view, the axis of the source or NEW. starts, lengths: for each axis of the source, the first index that is read and how many,
    or WHOLE. An axis of the source that is not in `axes` is read at its start only."""

    axes: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @staticmethod
    def of(rank: int) -> View:
        """Return the view of all of a tensor."""
        return View(tuple(range(rank)), (0,) * rank, (WHOLE,) * rank)

    @staticmethod
    def from_attributes(attributes: dict[str, Any], side: str) -> View:
        """Return the view of an operand of StridedMatMul. side: "a" or "b"."""
        return View(*(tuple(attributes[f"{side}_{part}"]) for part in ("axes", "starts", "lengths")))

    def attributes(self, side: str) -> dict[str, tuple[int, ...]]:
        """Return the attributes from which from_attributes makes this view."""
        return {f"{side}_axes": self.axes, f"{side}_starts": self.starts, f"{side}_lengths": self.lengths}

    def transposed(self, perm: Sequence[int]) -> View:
        """Return the view with its axes in another order."""
        return replace(self, axes=tuple(self.axes[axis] for axis in perm))

    def swapped(self) -> View:
        """Return the view with its last two axes exchanged."""
        return replace(self, axes=(*self.axes[:-2], self.axes[-1], self.axes[-2]))

    def narrowed(self, axis: int, start: int, length: int) -> View:
        """Return `length` elements of an axis of the view from `start` on, at least one."""
        source = self.axes[axis]
        if source == NEW:
            return self
        starts, lengths = list(self.starts), list(self.lengths)
        starts[source] += start
        lengths[source] = length
        return View(self.axes, tuple(starts), tuple(lengths))

    def without(self, dropped: Sequence[int]) -> View:
        """Return the view without some axes, whose size must be 1."""
        return replace(self, axes=tuple(axis for position, axis in enumerate(self.axes) if position not in dropped))

    def with_new(self, positions: Sequence[int]) -> View:
        """Return the view with axes of size 1 at these positions of the result, in ascending order."""
        axes = list(self.axes)
        for position in positions:
            axes.insert(position, NEW)
        return replace(self, axes=tuple(axes))

    def shape(self, source: Shape) -> Shape:
        """Return the shape of the view of a source of this shape."""
        return tuple(1 if axis == NEW else source[axis] if self.lengths[axis] == WHOLE else self.lengths[axis] for axis in self.axes)

    def is_readable_matrix(self) -> bool:
        """Return whether the rows or the columns of the view's matrices are contiguous, as a multiplication requires."""
        return len(self.axes) > 1 and len(self.starts) - 1 in self.axes[-2:]


def operand(c: InferenceContext, index: int) -> tuple[View, Shape]:
    """Return the view and the shape of an operand. Raises if the source does not have what is read of it."""
    view, source = View.from_attributes(c.node.attributes, SIDES[index]), c.shape(index)
    read = [axis for axis in view.axes if axis != NEW]
    if len(view.starts) != len(source) or len(view.lengths) != len(source) or len(set(read)) != len(read) or not set(read) <= set(range(len(source))):
        raise c.error(f"expected axes of a source of rank {len(source)}, got {list(view.axes)}, {list(view.starts)} and {list(view.lengths)}")
    for axis, (size, start, length) in enumerate(zip(source, view.starts, view.lengths, strict=True)):
        is_whole = start == 0 and length == WHOLE and (axis in read or size == 1)
        if not is_whole and not (isinstance(size, int) and start >= 0 and length > 0 and start + length <= size):
            raise c.error(f"expected {length} elements from {start} on along axis {axis}, got {list(source)}")
    return view, view.shape(source)


def strides_of(view: View, source: tuple[int, ...]) -> list[int]:
    """Return the stride of each axis of a view; that of a new axis is never used for more than one element."""
    strides = contiguous_strides(source)
    return [source[-1] if axis == NEW else strides[axis] for axis in view.axes]


def batch_strides(view: View, source: tuple[int, ...], batch: Sequence[int]) -> list[int]:
    """Return the strides of the axes before the last two: 0 along axes that are broadcast to the sizes in `batch`."""
    shape, strides = view.shape(source), strides_of(view, source)
    return [0 if is_broadcast(size, target) else stride for size, stride, target in zip(shape, strides, batch, strict=False)]  # type: ignore[arg-type]


def lower_strided_matmul(c: LoweringContext) -> KernelCall:
    """Pack as matmul_call does: the matrices of the views, and the result at the strides of the transposed output."""
    perm = c.attribute("perm")
    (a, a_shape), (b, _) = (operand(c, index) for index in range(2))
    output_strides = contiguous_strides(c.output_dims(0))
    result = [output_strides[perm.index(axis)] for axis in range(len(perm))]
    sizes = [c.output_dims(0)[perm.index(axis)] for axis in range(len(perm))]
    batch = sizes[:-2]
    offsets, leading, transposed = [], [], []
    for view, source in ((a, c.dims(0)), (b, c.dims(1))):
        strides = strides_of(view, source)
        offsets.append(sum(start * stride for start, stride in zip(view.starts, contiguous_strides(source), strict=True)))
        transposed.append(int(view.axes[-1] != len(source) - 1))
        leading.append(strides[-1] if transposed[-1] else strides[-2])
    return matmul_call((*sizes[-2:], cast(int, a_shape[-1])), transposed, [*leading, result[-2]], offsets, batch,
                       [batch_strides(a, c.dims(0), batch), batch_strides(b, c.dims(1), batch), result[:-2]], float(c.attribute("alpha", 1.0)))


@operator("StridedMatMul", domain=ORTRAIN, lower=lower_strided_matmul, differentiable=False, takes_bfloat16=True)
def strided_matmul(c: InferenceContext) -> list[TensorType]:
    """y = alpha transpose(view(a) @ view(b), perm) of views with equally many leading axes, whose rows or columns are contiguous"""
    (a, a_shape), (b, b_shape) = (operand(c, index) for index in range(2))
    perm = tuple(c.attribute("perm", ()))
    fits = len(a_shape) == len(b_shape) == len(perm) > 2 and sorted(perm) == list(range(len(perm))) and perm[-1] == len(perm) - 1
    if not fits or not a.is_readable_matrix() or not b.is_readable_matrix():
        raise c.error(f"expected views of one rank above 2 with contiguous rows or columns, and columns that stay last, got {list(a_shape)}, {list(b_shape)} "
                      f"and perm {list(perm)}")
    shape: tuple[Dim, ...] = matmul_shape(c, a_shape, b_shape)
    return [TensorType(common_dtype(c), tuple(shape[axis] for axis in perm))]
