"""Gradients of recurrent layers by single samples: products, over the steps, of the gradients of the gates and of what the weights multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN
from ortrain.ops.registry.sample_gradients import ProductGradient, ProductsGradient, SampleGradient, SampleGradientBuilder, WholeGradient

WEIGHTS, RECURRENT_WEIGHTS, BIASES, LENGTHS, INITIAL, CELL, PEEPHOLES = 1, 2, 3, 4, 5, 6, 7
"""Indices of the inputs W, R, B, sequence_lens, initial_h, initial_c and P."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a layer has computed.

    y: [steps, directions, rows, hidden]. cells, gates: saved cell states and gates after their activations, "" where the layer saves none:
    [directions, steps, rows, size] in the domain ortrain, [steps, 1, rows, size] in com.microsoft. gate_gradients: of the gates before their activations,
    [steps, rows, directions * gates * hidden]."""

    y: str
    cells: str
    gates: str
    gate_gradients: str


def layer_sample_gradients(g: SampleGradientBuilder, kind: str, run: Run) -> list[SampleGradient | None]:
    """Return the gradients of W, R, B and P of a layer. kind: "LSTM", "GRU" or "RNN".

    Raises PerSampleGradientError for weights that are initial states, and for sequences of several lengths that are read backwards from an initial state."""
    if g.needs(INITIAL) or g.needs(CELL):
        raise g.refusal("has an initial state for each sample among its weights")
    parts = [_Direction(g, kind, run, index) for index in range(int(g.shape(g.inputs[RECURRENT_WEIGHTS])[0]))]
    found: list[SampleGradient | None] = [None] * len(g.inputs)
    if g.needs(WEIGHTS):
        x = g.samples_first(g.inputs[0])
        found[WEIGHTS] = ProductsGradient(tuple(ProductGradient(part.gates, x) for part in parts))
    if g.needs(RECURRENT_WEIGHTS):
        found[RECURRENT_WEIGHTS] = ProductsGradient(tuple(product for part in parts for product in part.recurrent_products()))
    if g.needs(BIASES):
        found[BIASES] = _sums(g, [value for part in parts for value in (part.gates, part.recurrent_gates())])
    if g.needs(PEEPHOLES):
        found[PEEPHOLES] = _sums(g, [value for part in parts for value in part.peephole_products()])
    return found


def _sums(g: SampleGradientBuilder, values: Sequence[str]) -> WholeGradient:
    """Return the sums over the steps of values [n, steps, size], side by side."""
    return WholeGradient(g.op("Concat", *(g.reduce_sum(value, (1,), keepdims=False) for value in values), axis=1))


class _Direction:
    """One direction of a layer. Values are [n, steps, size]; gates: the gradients of its gates before their activations."""

    def __init__(self, g: SampleGradientBuilder, kind: str, run: Run, index: int) -> None:
        self.g, self.kind, self.run, self.index = g, kind, run, index
        self.directions, rows, self.hidden = (int(size) for size in g.shape(g.inputs[RECURRENT_WEIGHTS]))
        every = g.samples_first(run.gate_gradients, g.inputs[0])
        self.gates = every if self.directions == 1 else self._split(every, [rows] * self.directions)[index]
        self._previous: dict[str, str] = {}

    def recurrent_products(self) -> list[ProductGradient]:
        """Return the gradients of R: products of gates and states, those of a GRU's candidate with the state after the reset."""
        state = self._before(self.run.y, INITIAL)
        if self.kind != "GRU" or self.g.attribute("linear_before_reset", 0):
            return [ProductGradient(self.recurrent_gates(), state)]
        gates, candidate = self._split(self.gates, [2 * self.hidden, self.hidden])
        return [ProductGradient(gates, state), ProductGradient(candidate, self.g.op("Mul", self._reset(), state))]

    def recurrent_gates(self) -> str:
        """Return the gradients of h_previous R^T: those of the gates, but for the candidate of a GRU that multiplies it by the reset gate."""
        if self.kind != "GRU" or not self.g.attribute("linear_before_reset", 0):
            return self.gates
        gates, candidate = self._split(self.gates, [2 * self.hidden, self.hidden])
        return self.g.op("Concat", gates, self.g.op("Mul", self._reset(), candidate), axis=2)

    def peephole_products(self) -> list[str]:
        """Return the gradients of the peepholes of the gates i, o and f at each step."""
        of_input, of_output, of_forget, _ = self._split(self.gates, [self.hidden] * 4)
        before, after = self._before(self.run.cells, CELL), self._of_direction(self.run.cells)
        return [self.g.op("Mul", gate, cell) for gate, cell in ((of_input, before), (of_output, after), (of_forget, before))]

    # ---- parts of values

    def _split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Return parts of the last axis."""
        return self.g.ops("SplitTraining", value, self.g.constant(list(sizes)), outputs=[True] * len(sizes), domain=MICROSOFT, axis=2)

    def _reset(self) -> str:
        """Return the reset gate of a GRU."""
        return self._split(self._of_direction(self.run.gates), [self.hidden] * 3)[1]

    def _of_direction(self, value: str) -> str:
        """Return this direction of y or of a saved value; both have rows along axis 2."""
        axis = 1 if value != self.run.y and self.g.node.domain == ORTRAIN else 2
        return self.g.op("Gather", self.g.samples_first(value, self.run.y), self.g.constant(np.array(self.index)), axis=axis)

    def _before(self, value: str, initial: int) -> str:
        """Return the states before each step. value: those after it. initial: the index of the input that is the first one."""
        if value not in self._previous:
            self._previous[value] = self._shifted(self._of_direction(value), initial)
        return self._previous[value]

    def _shifted(self, states: str, initial: int) -> str:
        g = self.g
        is_reverse = self.index == 1 or g.attribute("direction", "forward") == "reverse"
        if is_reverse and g.has(LENGTHS) and g.has(initial):
            raise g.refusal("reads sequences of several lengths backwards from an initial state")
        if g.has(initial):
            first = g.op("Gather", g.samples_first(g.inputs[initial]), g.constant([self.index]), axis=1)
        else:
            zero = np.zeros(1, numpy_dtype(g.type(states).dtype))
            first = g.op("ConstantOfShape", g.op("Concat", g.count, g.constant([1, self.hidden]), axis=0), value=zero)
        joined = g.op("Concat", *((states, first) if is_reverse else (first, states)), axis=1)
        end = np.iinfo(np.int64).max
        bounds = (g.constant([1]), g.constant([end])) if is_reverse else (g.constant([0]), g.constant([-1]))
        return g.op("Slice", joined, *bounds, g.constant([1]))
