"""Pieces: the kernel calls that a fused step is assembled from, as they are found in single steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ortrain._core.kernel_table import flushes_subnormals, kernels
from ortrain.ops.registry.constants import is_one, is_same_size
from ortrain.ops.registry.record import record_of
from ortrain.plan.elementwise_fusion.axes import Sizes
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Step

REDUCTIONS = frozenset({"reduce_sum", "reduce_mean", "reduce_sum_square", "reduce_max", "reduce_min"})
"""Kernels that reduce axes; their ints begin with the number of outputs, the elements per output and the number of
groups of kept axes (ortrain.ops.reduce.lower_reduction)."""
ROW_KERNELS = frozenset({"softmax", "log_softmax", "softmax_grad", "log_softmax_grad"})
"""Kernels that compute rows from rows; their ints are the products of the sizes before, along and after the axis."""
MAX_INPUTS = 3


class Form(IntEnum):
    """How a kernel receives the shape of a block; equal to the constants FORM_* in fused.h."""

    FLAT = 0
    """By its number of elements: every operand has the shape of the output, or is one number."""
    BROADCAST = 1
    """By the ints of pack_broadcast."""
    REDUCTION = 2
    """By the ints of a reduction over the last axes."""
    ROWS = 3
    """As rows of the last axis."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A value as a piece reads it. value: the name that owns the memory. shape: the shape under which it is read."""

    value: str
    shape: Sizes


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel call.

    dims: the shape over which the kernel runs, that of its first input for a reduction. row_axes: number of axes at
    the end of `dims` that are reduced, or computed together. number: an int that the kernel reads."""

    form: Form
    address: int
    flushes: bool
    inputs: tuple[Operand, ...]
    output: str
    dims: Sizes
    row_axes: int = 0
    floats: tuple[float, ...] = ()
    number: int = 0


class Pieces:
    """Finds the pieces of steps. lifetimes: of the plan."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        self.types = lifetimes.types

    def of(self, step: Step) -> tuple[Piece, ...]:
        """Return the pieces of a step; none if it cannot be part of a fused step."""
        call = step.call
        if step.guard is not None or call.function is not None or step.iteration is not None or call.guards or len(step.outputs) != 1:
            return ()
        if call.kernel in REDUCTIONS:
            return self._reduction(step)
        if call.kernel in ROW_KERNELS:
            return self._rows(step)
        record = record_of(step.node)
        if record is None or not record.elementwise or record.is_custom:
            return ()
        dims = self.types[step.outputs[0]].sizes
        if call.kernel == "sum":
            return self._sum(step, dims)
        if call.is_broadcast:
            return (self._piece(step, Form.BROADCAST, tuple(map(self.operand, step.inputs)), dims),) if len(step.inputs) <= MAX_INPUTS else ()
        # further inputs of flat kernels are single numbers; kernels without ints have packed them as floats
        names = step.inputs if call.ints else step.inputs[:1]
        return (self._piece(step, Form.FLAT, tuple(map(self.operand, names)), dims),)

    def operand(self, name: str) -> Operand:
        """Return a value as a step reads it."""
        return Operand(self.lifetimes.unaliased(name), self.types[name].sizes)

    @staticmethod
    def _piece(step: Step, form: Form, inputs: tuple[Operand, ...], dims: Sizes, row_axes: int = 0) -> Piece:
        call = step.call
        number = call.ints[0] if form == Form.FLAT and call.ints else 0
        return Piece(form, step.address, flushes_subnormals(call.kernel), inputs, step.outputs[0], dims, row_axes, tuple(map(float, call.floats)), number)

    def _sum(self, step: Step, dims: Sizes) -> tuple[Piece, ...]:
        """Return the additions of a sum of several inputs; the kernel adds them in this order as well."""
        first, *others = map(self.operand, step.inputs)
        address = kernels()["add", self.types[step.outputs[0]].dtype]
        if not others:
            return ()
        found = []
        for index, other in enumerate(others):
            output = step.outputs[0] if index == len(others) - 1 else f"{step.outputs[0]}::sum{index}"
            self.types.setdefault(output, self.types[step.outputs[0]])
            found.append(Piece(Form.BROADCAST, address, False, (first, other), output, dims))
            first = Operand(output, dims)
        return tuple(found)

    def _reduction(self, step: Step) -> tuple[Piece, ...]:
        """Return the piece of a reduction over the last axes; none for other reductions."""
        source = self.operand(step.inputs[0])
        _, count, n_kept, *groups = step.call.ints
        n_reduced, *reduced = groups[2 * n_kept :]
        if n_kept != 1 or n_reduced != 1 or reduced[1] != 1:
            return ()
        row_axes = self._trailing_axes(source.shape, count)
        return (self._piece(step, Form.REDUCTION, (source,), source.shape, row_axes),) if row_axes else ()

    def _rows(self, step: Step) -> tuple[Piece, ...]:
        """Return the piece of a kernel along the last axis."""
        _, size, inner = step.call.ints
        dims = self.types[step.outputs[0]].sizes
        row_axes = self._trailing_axes(dims, size) if is_one(inner) else 0
        return (self._piece(step, Form.ROWS, tuple(map(self.operand, step.inputs)), dims, row_axes),) if row_axes else ()

    @staticmethod
    def _trailing_axes(shape: Sizes, count: int) -> int:
        """Return how many axes at the end of a shape have `count` elements together; 0 if no number has."""
        product = 1
        for number, size in enumerate(reversed(shape), 1):
            product = product * size
            if is_same_size(product, count):
                return number if number < len(shape) else 0
        return 0
