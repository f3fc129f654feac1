"""Decomposition of LSTM, GRU and RNN into a Scan, for attributes that the kernels do not implement: other activations, `clip`, `input_forget`.

One matrix multiplication projects the inputs of all steps; the Scan then runs one cell per step. A bidirectional layer is two Scans.

Shapes: x [steps, rows, features], W [directions, gates hidden, features], R [directions, gates hidden, hidden], y [steps, directions, rows, hidden]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortrain import dtypes
from ortrain.ir import Graph, Node
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT
from ortrain.ops.registry.subgraphs import captured_values


@dataclass
class StepBody:
    """Builder of the Scan body, which computes one step. Constants belong to the enclosing graph; the body captures them."""

    g: NodeBuilder
    like: str
    """A value with the layer's dtype."""
    nodes: list[Node] = field(default_factory=list)

    def unique_name(self, label: str) -> str:
        """Return a unique name for a value or node of the body."""
        return self.g.builder.names.unique(f"{self.g.node.name or self.g.node.outputs[0]}/{label}")

    def ops(self, op_type: str, *inputs: str, count: int, domain: str = "", **attributes: Any) -> list[str]:
        """Add a node with `count` outputs and return their names."""
        outputs = [self.unique_name(op_type) for _ in range(count)]
        self.nodes.append(Node(op_type, list(inputs), list(outputs), self.unique_name(op_type), domain, attributes))
        return outputs

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return its name."""
        return self.ops(op_type, *inputs, count=1, **attributes)[0]

    def scalar(self, value: float) -> str:
        """Return the name of a 0-d constant with the layer's dtype."""
        return self.g.scalar(value, self.like)

    def split(self, value: str, count: int, size: int) -> list[str]:
        """Split the columns of a matrix into `count` parts of `size` columns; SplitTraining has the same form in every opset."""
        return self.ops("SplitTraining", value, self.g.constant([size] * count), count=count, domain=MICROSOFT, axis=1)


# ---- activations

Activation = Callable[[StepBody, str], str]
"""Adds the nodes of y = f(x) to the body: (body, x) -> y."""


def onnx_activation(op_type: str) -> Callable[[dict[str, float]], Activation]:
    """Return the factory of an activation that is one operator of ONNX, with alpha and beta as attributes of the same names."""
    return lambda options: lambda body, x: body.op(op_type, x, **options)


def affine(options: dict[str, float]) -> Activation:
    """Return y = alpha x + beta."""
    return lambda body, x: body.op("Add", body.op("Mul", x, body.scalar(options["alpha"])), body.scalar(options["beta"]))


def scaled_tanh(options: dict[str, float]) -> Activation:
    """Return y = alpha tanh(beta x)."""
    return lambda body, x: body.op("Mul", body.op("Tanh", body.op("Mul", x, body.scalar(options["beta"]))), body.scalar(options["alpha"]))


ACTIVATIONS: dict[str, tuple[Callable[[dict[str, float]], Activation], dict[str, float]]] = {
    "relu": (onnx_activation("Relu"), {}), "tanh": (onnx_activation("Tanh"), {}), "sigmoid": (onnx_activation("Sigmoid"), {}),
    "softsign": (onnx_activation("Softsign"), {}), "softplus": (onnx_activation("Softplus"), {}),
    "leakyrelu": (onnx_activation("LeakyRelu"), {"alpha": 0.01}), "thresholdedrelu": (onnx_activation("ThresholdedRelu"), {"alpha": 1.0}),
    "elu": (onnx_activation("Elu"), {"alpha": 1.0}), "hardsigmoid": (onnx_activation("HardSigmoid"), {"alpha": 0.2, "beta": 0.5}),
    "affine": (affine, {"alpha": 1.0, "beta": 0.0}), "scaledtanh": (scaled_tanh, {"alpha": 1.0, "beta": 1.0}),
}
"""Name in lower case -> (factory that takes the options, options with their defaults)."""


def activations_of(g: NodeBuilder, names: tuple[str, ...]) -> list[Activation]:
    """Return the activations of all directions in turn.

    The attributes activation_alpha and activation_beta list values for those activations that have such an option, in order; once a list is used up, the
    defaults apply."""
    given = {"alpha": list(g.attribute("activation_alpha", ())), "beta": list(g.attribute("activation_beta", ()))}
    found = []
    for name in names:
        make, options = ACTIVATIONS[name]
        found.append(make({option: float(given[option].pop(0)) if given[option] else default for option, default in options.items()}))
    return found


# ---- cells: (cell, body, projected inputs of the step, states before it) -> states after it, the hidden state first


@dataclass
class Cell:
    """Parameters of one direction of a layer that its step reads besides the states."""

    g: NodeBuilder
    hidden: int
    functions: list[Activation]
    recurrent: str
    """R transposed: [hidden, gates hidden]."""
    bias: str
    """Recurrent bias of the new gate, [hidden], for a GRU with linear_before_reset; "" otherwise: all other biases are added to the projected inputs."""
    peepholes: list[str]
    """Peephole weights of the input, output and forget gate, [hidden] each; empty without peepholes."""

    def clip(self, body: StepBody, value: str) -> str:
        """Clip a value to [-clip, clip] if the layer has that attribute."""
        limit = self.g.attribute("clip")
        if limit is None:
            return value
        return body.op("Min", body.op("Max", value, body.scalar(-float(limit))), body.scalar(float(limit)))

    def gate(self, body: StepBody, function: int, *summands: str) -> str:
        """Return activation number `function` of the clipped sum of `summands`."""
        total, *others = summands
        for other in others:
            total = body.op("Add", total, other)
        return self.functions[function](body, self.clip(body, total))

    def peephole(self, body: StepBody, index: int, state: str) -> list[str]:
        """Return the cell state times peephole weight `index` as a summand of a gate; an empty list without peepholes."""
        return [body.op("Mul", state, self.peepholes[index])] if self.peepholes else []


def lstm_cell(cell: Cell, body: StepBody, inputs: str, states: list[str]) -> list[str]:
    """Add one step of an LSTM, with gates in ONNX's order i, o, f, c; states are (h, c)."""
    h, c = states
    gates = body.op("Add", inputs, body.op("MatMul", h, cell.recurrent))
    i, o, f, candidate = body.split(gates, 4, cell.hidden)
    i = cell.gate(body, 0, i, *cell.peephole(body, 0, c))
    f = body.op("Sub", body.scalar(1.0), i) if cell.g.attribute("input_forget", 0) else cell.gate(body, 0, f, *cell.peephole(body, 2, c))
    c = body.op("Add", body.op("Mul", f, c), body.op("Mul", i, cell.gate(body, 1, candidate)))
    return [body.op("Mul", cell.gate(body, 0, o, *cell.peephole(body, 1, c)), cell.functions[2](body, c)), c]


def gru_cell(cell: Cell, body: StepBody, inputs: str, states: list[str]) -> list[str]:
    """Add one step of a GRU, with gates in ONNX's order z, r, h."""
    (h,) = states
    xz, xr, xh = body.split(inputs, 3, cell.hidden)
    gate_weights, candidate_weights = cell.g.ops("SplitTraining", cell.recurrent, cell.g.constant([2 * cell.hidden, cell.hidden]), outputs=[True, True],
                                                 domain=MICROSOFT, axis=1)
    hz, hr = body.split(body.op("MatMul", h, gate_weights), 2, cell.hidden)
    z, reset = cell.gate(body, 0, xz, hz), cell.gate(body, 0, xr, hr)
    if cell.g.attribute("linear_before_reset", 0):
        projected = body.op("MatMul", h, candidate_weights)
        projected = body.op("Mul", reset, body.op("Add", projected, cell.bias) if cell.bias else projected)
    else:
        projected = body.op("MatMul", body.op("Mul", reset, h), candidate_weights)
    candidate = cell.gate(body, 1, xh, projected)
    return [body.op("Add", body.op("Mul", body.op("Sub", body.scalar(1.0), z), candidate), body.op("Mul", z, h))]


def rnn_cell(cell: Cell, body: StepBody, inputs: str, states: list[str]) -> list[str]:
    """Add one step of a simple RNN."""
    (h,) = states
    return [cell.gate(body, 0, inputs, body.op("MatMul", h, cell.recurrent))]


CELLS = {"LSTM": (lstm_cell, 4, 2, 3), "GRU": (gru_cell, 3, 1, 2), "RNN": (rnn_cell, 1, 1, 1)}
"""op_type -> (cell, number of gates, number of states, number of activations)."""


# ---- the layer


def layer_decomposition(g: NodeBuilder, names: tuple[str, ...]) -> list[str]:
    """Return (y, final states …) of a layer with layout 0. names: the activations of all directions in turn, in lower case."""
    if g.opset < 9:
        raise g.error(f"expected opset 9 or newer for a recurrent layer with these attributes, got {g.opset}")
    _, _, state_count, function_count = CELLS[g.node.op_type]
    functions = activations_of(g, names)
    direction = g.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    results = [scan_direction(g, index, functions[index * function_count : (index + 1) * function_count], direction == "reverse" or index == 1)
               for index in range(directions)]
    y, *states = (g.op("Concat", *parts, axis=axis) if directions == 2 else parts[0]
                  for parts, axis in zip(zip(*results, strict=True), (1, 0, 0), strict=False))
    return [y, *states][: 1 + state_count]


def select_direction(g: NodeBuilder, value: str, index: int) -> str:
    """Return the part of a parameter or initial state that belongs to one direction, without the axis of directions."""
    return g.op("Gather", value, g.constant(np.array(index, np.int64)), axis=0)


def scan_direction(g: NodeBuilder, index: int, functions: list[Activation], reverse: bool) -> list[str]:
    """Return (y [steps, 1, rows, hidden], final states [1, rows, hidden] …) of one direction. reverse: whether it runs from the last step to the first."""
    step, gates, state_count, _ = CELLS[g.node.op_type]
    hidden = int(g.shape(g.inputs[2])[2])
    weights, recurrent = (g.op("Transpose", select_direction(g, name, index), perm=(1, 0)) for name in g.inputs[1:3])
    inputs, recurrent_bias = g.op("MatMul", g.inputs[0], weights), ""
    if g.has(3):
        input_bias, recurrent_bias = split_biases(g, select_direction(g, g.inputs[3], index), gates, hidden)
        inputs = g.op("Add", inputs, input_bias)
    peepholes = g.ops("SplitTraining", select_direction(g, g.inputs[7], index), g.constant([hidden] * 3), outputs=[True] * 3, domain=MICROSOFT,
                      axis=0) if g.has(7) and state_count == 2 else []
    body = StepBody(g, inputs)
    states = [body.unique_name("state") for _ in range(state_count)]
    step_inputs = body.unique_name("part")
    new_states = step(Cell(g, hidden, functions, recurrent, recurrent_bias, peepholes), body, step_inputs, states)
    scanned, slices, y = [inputs], [step_inputs], new_states[0]
    if g.has(4):
        # beyond the end of a sequence y is zero and the states stay as they are
        scanned, slices = [*scanned, sequence_mask(g)], [*slices, body.unique_name("within")]
        y = body.op("Where", slices[1], new_states[0], body.scalar(0.0))
        new_states = [body.op("Where", slices[1], new, old) for new, old in zip(new_states, states, strict=True)]
    outputs = [body.op("Identity", value) for value in (*new_states, y)]
    graph = Graph("body", [*states, *slices], outputs, body.nodes)
    initial = [select_direction(g, g.inputs[number], index) if g.has(number) else zero_state(g, hidden) for number in range(5, 5 + state_count)]
    attributes: dict[str, Any] = {"body": graph, "num_scan_inputs": len(scanned), "scan_input_directions": (int(reverse),) * len(scanned),
                                  "scan_output_directions": (int(reverse),)}
    *final_states, collected = g.ops("Scan", *initial, *scanned, *captured_values([graph]), outputs=[True] * (state_count + 1), **attributes)
    return [g.unsqueeze(collected, [1]), *(g.unsqueeze(name, [0]) for name in final_states)]


def split_biases(g: NodeBuilder, biases: str, gates: int, hidden: int) -> tuple[str, str]:
    """Return (the bias [gates hidden] to add to the projected inputs, the recurrent bias to add in each step or "").

    biases: input and recurrent biases of one direction, [2 gates hidden]. Their sum can be added beforehand, except for the new gate of a GRU with
    linear_before_reset, whose recurrent bias is multiplied by the reset gate."""
    is_separate = g.node.op_type == "GRU" and bool(g.attribute("linear_before_reset", 0))
    summed = (gates - 1 if is_separate else gates) * hidden
    sizes = g.constant([gates * hidden, summed, gates * hidden - summed])
    input_bias, recurrent_bias, step_bias = g.ops("SplitTraining", biases, sizes, outputs=[True] * 3, domain=MICROSOFT, axis=0)
    if not is_separate:
        return g.op("Add", input_bias, recurrent_bias), ""
    zeros = g.op("ConstantOfShape", g.constant([hidden]), value=np.zeros(1, dtypes.numpy_dtype(g.type(biases).dtype)))
    return g.op("Add", input_bias, g.op("Concat", recurrent_bias, zeros, axis=0)), step_bias


def sequence_mask(g: NodeBuilder) -> str:
    """Return a bool tensor [steps, rows, 1], true where a step lies within the sequence length of its row."""
    steps = g.shape(g.inputs[0])[0]
    if isinstance(steps, int):
        times = g.constant(np.arange(steps, dtype=np.int32))
    elif g.opset >= 11:
        count = g.op("Gather", g.shape_of(g.inputs[0]), g.constant(np.array(0, np.int64)))
        times = g.op("Cast", g.op("Range", g.constant(np.array(0)), count, g.constant(np.array(1))), to=dtypes.NUMBERS["int32"])
    else:
        raise g.error(f"expected opset 11 or newer for sequence lengths with a dynamic number of steps, got {g.opset}")
    return g.unsqueeze(g.op("Less", g.unsqueeze(times, [1]), g.inputs[4]), [2])


def zero_state(g: NodeBuilder, hidden: int) -> str:
    """Return zeros of shape [rows, hidden] as an initial state."""
    rows = g.op("Gather", g.shape_of(g.inputs[0]), g.constant([1]))
    shape = g.op("Concat", rows, g.constant([hidden]), axis=0)
    return g.op("ConstantOfShape", shape, value=np.zeros(1, dtypes.numpy_dtype(g.type(g.inputs[0]).dtype)))
