"""Recurrent layers that the kernels have no form of (other activations, a clip, coupled gates): one product for the inputs of all steps, then a Scan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortrain import dtypes
from ortrain.ir import Graph, Node
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT
from ortrain.ops.registry.subgraphs import captured


@dataclass
class Body:
    """The nodes of one step. Constants are those of the graph around it."""

    g: NodeBuilder
    like: str
    """A value of the layer's dtype."""
    nodes: list[Node] = field(default_factory=list)

    def name(self, label: str) -> str:
        return self.g.builder.names.unique(f"{self.g.node.name or self.g.node.outputs[0]}/{label}")

    def ops(self, op_type: str, *inputs: str, count: int, domain: str = "", **attributes: Any) -> list[str]:
        made = [self.name(op_type) for _ in range(count)]
        self.nodes.append(Node(op_type, list(inputs), list(made), self.name(op_type), domain, attributes))
        return made

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(op_type, *inputs, count=1, **attributes)[0]

    def number(self, value: float) -> str:
        return self.g.scalar(value, self.like)

    def parts(self, value: str, count: int, size: int) -> list[str]:
        """Equal parts of the columns, in the form of every opset."""
        return self.ops("SplitTraining", value, self.g.constant([size] * count), count=count, domain=MICROSOFT, axis=1)


# ---- activations

Activation = Callable[[Body, str], str]


def plain(op_type: str) -> Callable[[dict[str, float]], Activation]:
    """An activation that is an operator of ONNX, whose attributes go by the same names."""
    return lambda options: lambda body, x: body.op(op_type, x, **options)


def affine(options: dict[str, float]) -> Activation:
    return lambda body, x: body.op("Add", body.op("Mul", x, body.number(options["alpha"])), body.number(options["beta"]))


def scaled_tanh(options: dict[str, float]) -> Activation:
    return lambda body, x: body.op("Mul", body.op("Tanh", body.op("Mul", x, body.number(options["beta"]))), body.number(options["alpha"]))


ACTIVATIONS: dict[str, tuple[Callable[[dict[str, float]], Activation], dict[str, float]]] = {
    "relu": (plain("Relu"), {}), "tanh": (plain("Tanh"), {}), "sigmoid": (plain("Sigmoid"), {}), "softsign": (plain("Softsign"), {}),
    "softplus": (plain("Softplus"), {}), "leakyrelu": (plain("LeakyRelu"), {"alpha": 0.01}), "thresholdedrelu": (plain("ThresholdedRelu"), {"alpha": 1.0}),
    "elu": (plain("Elu"), {"alpha": 1.0}), "hardsigmoid": (plain("HardSigmoid"), {"alpha": 0.2, "beta": 0.5}), "affine": (affine, {"alpha": 1.0, "beta": 0.0}),
    "scaledtanh": (scaled_tanh, {"alpha": 1.0, "beta": 1.0}),
}
"""Name in lower case -> (its steps, its options and what they are when left out)."""


def activations_of(g: NodeBuilder, names: tuple[str, ...]) -> list[Activation]:
    """The activations of all directions in turn. Those that take an alpha or a beta take the next one of the lists, or their own when these are used up."""
    given = {"alpha": list(g.attribute("activation_alpha", ())), "beta": list(g.attribute("activation_beta", ()))}
    found = []
    for name in names:
        make, options = ACTIVATIONS[name]
        found.append(make({option: float(given[option].pop(0)) if given[option] else value for option, value in options.items()}))
    return found


# ---- cells: (body, the step's share of the inputs, states, activations, direction) -> states after the step


@dataclass
class Cell:
    """What the step of one direction reads beside its states."""

    g: NodeBuilder
    hidden: int
    functions: list[Activation]
    recurrent: str
    """R transposed: [hidden, gates hidden]."""
    bias: str
    """Of the recurrent half, [gates hidden], where it cannot be added beforehand; else ""."""
    peepholes: list[str]
    """Of the input, output and forget gates, [hidden] each; none of them, or all."""

    def limited(self, body: Body, value: str) -> str:
        limit = self.g.attribute("clip")
        if limit is None:
            return value
        return body.op("Min", body.op("Max", value, body.number(-float(limit))), body.number(float(limit)))

    def gate(self, body: Body, which: int, *summands: str) -> str:
        """An activation of a sum, cut off at the clip."""
        total, *others = summands
        for other in others:
            total = body.op("Add", total, other)
        return self.functions[which](body, self.limited(body, total))

    def seen(self, body: Body, which: int, state: str) -> list[str]:
        """What a gate sees of the cell state."""
        return [body.op("Mul", state, self.peepholes[which])] if self.peepholes else []


def lstm_cell(cell: Cell, body: Body, inputs: str, states: list[str]) -> list[str]:
    h, c = states
    gates = body.op("Add", inputs, body.op("MatMul", h, cell.recurrent))
    i, o, f, u = body.parts(gates, 4, cell.hidden)
    i = cell.gate(body, 0, i, *cell.seen(body, 0, c))
    f = body.op("Sub", body.number(1.0), i) if cell.g.attribute("input_forget", 0) else cell.gate(body, 0, f, *cell.seen(body, 2, c))
    c = body.op("Add", body.op("Mul", f, c), body.op("Mul", i, cell.gate(body, 1, u)))
    return [body.op("Mul", cell.gate(body, 0, o, *cell.seen(body, 1, c)), cell.functions[2](body, c)), c]


def gru_cell(cell: Cell, body: Body, inputs: str, states: list[str]) -> list[str]:
    (h,) = states
    xz, xr, xh = body.parts(inputs, 3, cell.hidden)
    reset_weights, hidden_weights = cell.g.ops("SplitTraining", cell.recurrent, cell.g.constant([2 * cell.hidden, cell.hidden]), outputs=[True, True],
                                               domain=MICROSOFT, axis=1)
    hz, hr = body.parts(body.op("MatMul", h, reset_weights), 2, cell.hidden)
    z, reset = cell.gate(body, 0, xz, hz), cell.gate(body, 0, xr, hr)
    if cell.g.attribute("linear_before_reset", 0):
        product = body.op("MatMul", h, hidden_weights)
        product = body.op("Mul", reset, body.op("Add", product, cell.bias) if cell.bias else product)
    else:
        product = body.op("MatMul", body.op("Mul", reset, h), hidden_weights)
    u = cell.gate(body, 1, xh, product)
    return [body.op("Add", body.op("Mul", body.op("Sub", body.number(1.0), z), u), body.op("Mul", z, h))]


def rnn_cell(cell: Cell, body: Body, inputs: str, states: list[str]) -> list[str]:
    (h,) = states
    return [cell.gate(body, 0, inputs, body.op("MatMul", h, cell.recurrent))]


CELLS = {"LSTM": (lstm_cell, 4, 2, 3), "GRU": (gru_cell, 3, 1, 2), "RNN": (rnn_cell, 1, 1, 1)}
"""Operator -> (cell, gates, states, activations)."""


# ---- the layer


def layer_decomposition(g: NodeBuilder, names: tuple[str, ...]) -> list[str]:
    """The outputs of a layer whose layout is 0. names: its activations in lower case, of all directions in turn."""
    if g.opset < 9:
        raise g.error(f"expected opset 9 or newer for a recurrent layer with these attributes, got {g.opset}")
    _, _, state_count, function_count = CELLS[g.node.op_type]
    functions = activations_of(g, names)
    direction = g.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    found = [one_direction(g, index, functions[index * function_count : (index + 1) * function_count], direction == "reverse" or index == 1)
             for index in range(directions)]
    y, *states = (g.op("Concat", *parts, axis=axis) if directions == 2 else parts[0] for parts, axis in zip(zip(*found, strict=True), (1, 0, 0), strict=False))
    return [y, *states][: 1 + state_count]


def of_direction(g: NodeBuilder, value: str, index: int) -> str:
    return g.op("Gather", value, g.constant(np.array(index)), axis=0)


def one_direction(g: NodeBuilder, index: int, functions: list[Activation], backwards: bool) -> list[str]:
    """(y [steps, 1, rows, hidden], states [1, rows, hidden] …)"""
    step, gates, state_count, _ = CELLS[g.node.op_type]
    hidden = int(g.shape(g.inputs[2])[2])
    weights, recurrent = (g.op("Transpose", of_direction(g, name, index), perm=(1, 0)) for name in g.inputs[1:3])
    inputs, rest = g.op("MatMul", g.inputs[0], weights), ""
    if g.has(3):
        summed, rest = biases(g, of_direction(g, g.inputs[3], index), gates, hidden)
        inputs = g.op("Add", inputs, summed)
    peepholes = g.ops("SplitTraining", of_direction(g, g.inputs[7], index), g.constant([hidden] * 3), outputs=[True] * 3, domain=MICROSOFT,
                      axis=0) if g.has(7) and state_count == 2 else []
    body = Body(g, inputs)
    states = [body.name("state") for _ in range(state_count)]
    part = body.name("part")
    after = step(Cell(g, hidden, functions, recurrent, rest, peepholes), body, part, states)
    scanned, slices, y = [inputs], [part], after[0]
    if g.has(4):
        scanned, slices = [*scanned, within_lengths(g)], [*slices, body.name("within")]
        y = body.op("Where", slices[1], after[0], body.number(0.0))
        after = [body.op("Where", slices[1], new, old) for new, old in zip(after, states, strict=True)]
    outputs = [body.op("Identity", value) for value in (*after, y)]
    graph = Graph("body", [*states, *slices], outputs, body.nodes)
    initial = [of_direction(g, g.inputs[number], index) if g.has(number) else zeros(g, hidden) for number in range(5, 5 + state_count)]
    attributes: dict[str, Any] = {"body": graph, "num_scan_inputs": len(scanned), "scan_input_directions": (int(backwards),) * len(scanned),
                                  "scan_output_directions": (int(backwards),)}
    *last, collected = g.ops("Scan", *initial, *scanned, *captured([graph]), outputs=[True] * (state_count + 1), **attributes)
    return [g.unsqueeze(collected, [1]), *(g.unsqueeze(name, [0]) for name in last)]


def biases(g: NodeBuilder, both: str, gates: int, hidden: int) -> tuple[str, str]:
    """(what is added to the inputs of all steps, the recurrent bias that a reset gate comes before or "")"""
    late = g.node.op_type == "GRU" and bool(g.attribute("linear_before_reset", 0))
    early = (gates - 1 if late else gates) * hidden
    sizes = g.constant([gates * hidden, early, gates * hidden - early])
    outer, inner, rest = g.ops("SplitTraining", both, sizes, outputs=[True] * 3, domain=MICROSOFT, axis=0)
    if not late:
        return g.op("Add", outer, inner), ""
    shared = g.op("ConstantOfShape", g.constant([hidden]), value=np.zeros(1, dtypes.numpy_dtype(g.type(both).dtype)))
    return g.op("Add", outer, g.op("Concat", inner, shared, axis=0)), rest


def within_lengths(g: NodeBuilder) -> str:
    """True [steps, rows, 1] for the steps that are part of a row."""
    steps = g.shape(g.inputs[0])[0]
    if isinstance(steps, int):
        times = g.constant(np.arange(steps, dtype=np.int32))
    elif g.opset >= 11:
        count = g.op("Gather", g.shape_of(g.inputs[0]), g.constant(np.array(0)))
        times = g.op("Cast", g.op("Range", g.constant(np.array(0)), count, g.constant(np.array(1))), to=dtypes.NUMBERS["int32"])
    else:
        raise g.error(f"expected opset 11 or newer for lengths of an open number of steps, got {g.opset}")
    return g.unsqueeze(g.op("Less", g.unsqueeze(times, [1]), g.inputs[4]), [2])


def zeros(g: NodeBuilder, hidden: int) -> str:
    """[rows, hidden]"""
    rows = g.op("Gather", g.shape_of(g.inputs[0]), g.constant([1]))
    shape = g.op("Concat", rows, g.constant([hidden]), axis=0)
    return g.op("ConstantOfShape", shape, value=np.zeros(1, dtypes.numpy_dtype(g.type(g.inputs[0]).dtype)))
