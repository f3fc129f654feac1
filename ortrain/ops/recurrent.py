"""Recurrent layers: LSTM, GRU and RNN, the forms that keep what their gradients read, and the gradients.

What the old package has kernels for (one direction, no lengths, no peepholes) is written as its com.microsoft operators; everything else has the same
operators in the domain `ortrain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim, Shape, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, Guard, Inference, InferenceContext, KernelCall, LoweringContext, check_inputs, operator
from ortrain.ops.shared.recurrent_scan import ACTIVATIONS, layer_decomposition

Gradients = Sequence[str | None]
OWN = "ortrain"
DIRECTIONS = {"forward": 0, "reverse": 1, "bidirectional": 2}
LENGTHS, INITIAL, CELL, PEEPHOLES = 4, 5, 6, 7


@dataclass(frozen=True, slots=True)
class Layer:
    """What distinguishes the three: gates per unit, whether there is a cell state, default activations, and the sums of scratch space.

    scratch, gradient_scratch: elements, from (steps, rows, inputs, hidden, directions)."""

    name: str
    gates: int
    cell: bool
    activations: tuple[tuple[str, ...], ...]
    scratch: Callable[[int, int, int, int, int], int]
    gradient_scratch: Callable[[int, int, int, int, int], int]

    @property
    def states(self) -> int:
        """Outputs before those that are saved for the gradient: y, h and, with a cell, c."""
        return 3 if self.cell else 2

    @property
    def saved(self) -> tuple[int, ...]:
        """Widths, in units of hidden, of what is saved: the cell states, the gates."""
        return (1, self.gates) if self.cell else (self.gates,) if self.gates > 1 else ()


PANEL_PADDING = 16


def panels(depth: int, columns: int) -> int:
    """Elements of the panels of recurrent weights [depth, columns] at most (recurrent/step_gemm.h)."""
    return depth * (columns + PANEL_PADDING)


LSTM = Layer("LSTM", 4, True, (("sigmoid", "tanh", "tanh"),), lambda s, n, i, h, d: 4 * h + d * panels(h, 4 * h) + 2 * d * n * h,
             lambda s, n, i, h, d: d * s * n * 4 * h + 2 * d * n * h + d * panels(4 * h, h) + (s * n + 4 * h) * (i + h))
GRU = Layer("GRU", 3, False, (("sigmoid", "tanh"),), lambda s, n, i, h, d: 3 * h + d * (panels(h, 2 * h) + panels(h, h)) + 4 * d * n * h,
            lambda s, n, i, h, d: 6 * d * s * n * h + 2 * d * n * h + d * (panels(2 * h, h) + panels(h, h)))
RNN = Layer("RNN", 1, False, (("tanh",), ("relu",)), lambda s, n, i, h, d: h + d * panels(h, h) + d * n * h + d * s * n * h,
            lambda s, n, i, h, d: d * s * n * h + d * n * h + d * panels(h, h) + (s * n + h) * (i + h))


LAYERS = {layer.name: layer for layer in (LSTM, GRU, RNN)}


# ---- what a node says


def direction_of(c: InferenceContext) -> tuple[int, int]:
    """(kind of direction, number of directions)"""
    name = c.attribute("direction", "forward")
    if name not in DIRECTIONS:
        raise c.error(f"expected a direction of {sorted(DIRECTIONS)}, got {name!r}")
    return DIRECTIONS[name], 2 if name == "bidirectional" else 1


def activations_of(c: InferenceContext, layer: Layer) -> tuple[str, ...]:
    """The activations of all directions in turn, in lower case; refused when ONNX has none of the name, or their number is another."""
    _, directions = direction_of(c)
    given = c.attribute("activations")
    names = tuple(name.lower() for name in given) if given else layer.activations[0] * directions
    if len(names) != len(layer.activations[0]) * directions or not set(names) <= set(ACTIVATIONS):
        raise c.error(f"expected {len(layer.activations[0]) * directions} activations of {sorted(ACTIVATIONS)}, got {names}")
    return names


def activation_of(c: InferenceContext, layer: Layer) -> int | None:
    """Which of the layer's sets of activations, as the kernels know them, is asked for; None for another one, a clip or coupled gates."""
    if c.attribute("clip") is not None or c.attribute("input_forget", 0):
        return None
    names, directions = activations_of(c, layer), direction_of(c)[1]
    return next((index for index, known in enumerate(layer.activations) if names == known * directions), None)


def check_compiled(c: InferenceContext, layer: Layer) -> None:
    """Refuses what the kernels have no form of."""
    if c.node.domain == MICROSOFT and direction_of(c)[1] > 1:
        raise c.error(f"expected one direction, got {c.attribute('direction')!r}")
    if activation_of(c, layer) is None:
        raise c.error(f"expected the activations {layer.activations[0]} of {layer.name} and neither clip nor input_forget, got "
                      f"{ {name: c.attribute(name) for name in ('activations', 'clip', 'input_forget') if c.attribute(name)} }")


def sizes_of(c: InferenceContext, layer: Layer) -> tuple[Dim, Dim, Dim, int, int]:
    """(steps, rows, inputs, hidden, directions), checked against all inputs"""
    if len(c.shape(0)) != 3 or len(c.shape(1)) != 3 or len(c.shape(2)) != 3:
        raise c.error(f"expected x, W and R of rank 3, got {[list(c.shape(i)) for i in range(3)]}")
    steps, rows, inputs = c.shape(0)
    if c.attribute("layout", 0):
        steps, rows = rows, steps
    hidden, directions = c.shape(2)[2], direction_of(c)[1]
    if not isinstance(hidden, int):
        raise c.error(f"expected R with a known size, got {list(c.shape(2))}")
    state: tuple[Dim, ...] = (rows, directions, hidden) if c.attribute("layout", 0) else (directions, rows, hidden)
    wanted: dict[int, tuple[Dim, ...]] = {
        1: (directions, layer.gates * hidden, inputs), 2: (directions, layer.gates * hidden, hidden), 3: (directions, 2 * layer.gates * hidden),
        LENGTHS: (rows,), INITIAL: state, **({CELL: state, PEEPHOLES: (directions, 3 * hidden)} if layer.cell else {})}
    for index, shape in wanted.items():
        check_inputs(c, shape, *((index,) if c.has(index) else ()))
    if c.has(LENGTHS) and c.dtype(LENGTHS) != "int32":
        raise c.error(f"expected lengths of int32, got {c.dtype(LENGTHS)}")
    return steps, rows, inputs, hidden, directions


def saved_first(c: InferenceContext, steps: Dim) -> tuple[Dim, Dim]:
    """The first two sizes of what is saved for the gradient: the old package's form is of one direction."""
    directions = direction_of(c)[1]
    return (steps, 1) if c.node.domain == MICROSOFT else (directions, steps)


# ---- forward


def infer_layer(layer: Layer, summary: str) -> Inference:
    def infer(c: InferenceContext) -> list[TensorType]:
        steps, rows, _, hidden, directions = sizes_of(c, layer)
        activations_of(c, layer)
        if c.node.op_type != layer.name:
            check_compiled(c, layer)
        batch_first = bool(c.attribute("layout", 0))
        y: tuple[Dim, ...] = (rows, steps, directions, hidden) if batch_first else (steps, directions, rows, hidden)
        state: tuple[Dim, ...] = (rows, directions, hidden) if batch_first else (directions, rows, hidden)
        kinds = [y, *[state] * (layer.states - 1), *((*saved_first(c, steps), rows, width * hidden) for width in layer.saved)]
        return [TensorType(c.dtype(0), shape) for shape in kinds]

    infer.__doc__ = summary
    return infer


def lower_layer(layer: Layer) -> Callable[[LoweringContext], KernelCall]:
    def lower(c: LoweringContext) -> KernelCall:
        steps, rows, inputs, hidden, directions = cast(tuple[int, ...], sizes_of(c, layer))
        gates = 0 if layer.gates > 1 and c.wants(layer.states + len(layer.saved) - 1) else directions * steps * rows * layer.gates * hidden
        space = layer.scratch(steps, rows, inputs, hidden, directions) + (gates if layer.gates > 1 else 0)
        guards = (Guard(LENGTHS, 0, steps + 1),) if c.has(LENGTHS) else ()
        return KernelCall(layer.name.lower(), (steps, rows, inputs, hidden, directions, direction_of(c)[0], option_of(c, layer)),
                          scratch=space * numpy_dtype(c.dtype(0)).itemsize, guards=guards)

    return lower


def option_of(c: InferenceContext, layer: Layer) -> int:
    """linear_before_reset of a GRU, relu of an RNN"""
    return int(c.attribute("linear_before_reset", 0)) if layer is GRU else activation_of(c, layer) or 0


def in_other_forms(g: NodeBuilder) -> list[str] | None:
    """What the kernels do not know as a Scan; layout 1 as layout 0 between Transposes."""
    layer = LAYERS[g.node.op_type]
    if g.attribute("layout", 0):
        return steps_first(g)
    return layer_decomposition(g, activations_of(g.context(), layer)) if activation_of(g.context(), layer) is None else None


def steps_first(g: NodeBuilder) -> list[str]:
    """layout 1 (rows first) by Transposes around layout 0."""
    names = list(g.inputs)
    for index in (0, INITIAL, CELL):
        if g.has(index):
            names[index] = g.op("Transpose", names[index], perm=(1, 0, 2))
    attributes = {name: value for name, value in g.node.attributes.items() if name != "layout"}
    found = g.ops(g.node.op_type, *names, outputs=[bool(name) for name in g.outputs], domain=g.node.domain, **attributes)
    perms = [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)]
    return [g.op("Transpose", name, perm=perm) if name else "" for name, perm in zip(found, perms, strict=False)]


# ---- gradients


def plain(g: GradientBuilder) -> bool:
    """True when the old package has kernels for the node and its gradient."""
    return g.attribute("direction", "forward") == "forward" and not g.has(LENGTHS) and not g.has(PEEPHOLES)


def saved_layer(g: GradientBuilder, layer: Layer) -> tuple[str, list[str]]:
    """Makes the forward node the form that saves what the gradient reads; returns its domain and all its outputs."""
    domain = MICROSOFT if plain(g) else OWN
    g.node.inputs.extend([""] * ((CELL if not layer.cell else PEEPHOLES) - len(g.node.inputs)))
    g.node.outputs.extend([""] * (layer.states - len(g.node.outputs)))
    g.replace(f"{layer.name}Training", domain, extra_outputs=len(layer.saved))
    return domain, [g.output(0), *g.outputs[1:]]


def output_gradients(g: GradientBuilder, layer: Layer) -> list[str]:
    """Of y, h and c, "" where there is none."""
    found = [name or "" for name in g.gradients][: layer.states]
    return found + [""] * (layer.states - len(found))


def wanted(g: GradientBuilder, *indices: int) -> list[bool]:
    return [g.needs(index) for index in indices]


def attributes_of(g: GradientBuilder) -> dict[str, Any]:
    return {name: value for name, value in g.node.attributes.items() if name != "layout"}


def lstm_gradient(g: GradientBuilder) -> Gradients:
    dy = output_gradients(g, LSTM)
    flags = wanted(g, 0, 1, 2, 3, INITIAL, CELL, PEEPHOLES)
    domain, outputs = saved_layer(g, LSTM)
    x, w, r, _, lengths, h0, c0 = g.inputs[:7]
    peepholes = [g.inputs[PEEPHOLES]] if g.has(PEEPHOLES) else []
    found = g.ops("LSTMGrad", x, w, r, lengths, h0, c0, outputs[0], outputs[3], outputs[4], *dy, *peepholes, domain=domain, outputs=flags,
                  **attributes_of(g))
    dx, dw, dr, db, dh0, dc0, dp = (name or None for name in found)
    return [dx, dw, dr, db, None, dh0, dc0, dp][: len(g.inputs)]


def gru_gradient(g: GradientBuilder) -> Gradients:
    dy = output_gradients(g, GRU)
    flags = wanted(g, 0, 1, 2, 3, INITIAL)
    domain, outputs = saved_layer(g, GRU)
    x, w, r, b, lengths, h0 = g.inputs[:6]
    found = g.ops("GRUGrad", x, w, r, b, lengths, h0, outputs[0], outputs[2], *dy, domain=domain, outputs=flags, **attributes_of(g))
    dx, dw, dr, db, dh0 = (name or None for name in found)
    return [dx, dw, dr, db, None, dh0][: len(g.inputs)]


def rnn_gradient(g: GradientBuilder) -> Gradients:
    """The forward node stays as it is: its gradient reads nothing but y."""
    names = [*g.inputs, *[""] * (6 - len(g.inputs))]
    dy = output_gradients(g, RNN)
    found = g.ops("RNNGrad", *names[:3], names[LENGTHS], names[INITIAL], g.output(0), *dy, domain=OWN, outputs=wanted(g, 0, 1, 2, 3, INITIAL),
                  **attributes_of(g))
    dx, dw, dr, db, dh0 = (name or None for name in found)
    return [dx, dw, dr, db, None, dh0][: len(g.inputs)]


@dataclass(frozen=True, slots=True)
class GradientForm:
    """A layer's gradient operator: (x, W, R, …) -> (dx, dW, dR, dB, dh0, and with a cell dc0, dP)."""

    layer: Layer

    def infer(self, c: InferenceContext) -> list[TensorType]:
        x, w, r = c.type(0), c.type(1), c.type(2)
        check_compiled(c, self.layer)
        if len(c.shape(0)) != 3 or len(c.shape(2)) != 3:
            raise c.error(f"expected x and R of rank 3, got {list(c.shape(0))} and {list(c.shape(2))}")
        rows, hidden, directions = c.shape(0)[1], c.shape(2)[2], c.shape(2)[0]
        if isinstance(hidden, str):
            raise c.error(f"expected R with a known size, got {list(c.shape(2))}")
        self.check(c, c.shape(0), hidden)
        state = TensorType(x.dtype, (directions, rows, hidden))
        found = [x, w, r, TensorType(x.dtype, (directions, 2 * self.layer.gates * hidden)), state]
        return [*found, state, TensorType(x.dtype, (directions, 3 * hidden))] if self.layer.cell else found

    def check(self, c: InferenceContext, shape: Shape, hidden: int) -> None:
        """Refuses inputs that are known to be of other sizes than x and R say."""
        steps, rows, inputs = shape
        gates, directions = self.layer.gates * hidden, direction_of(c)[1]
        every, last = (steps, directions, rows), (directions, rows, hidden)
        of_layer: list[Shape] = [
            shape, (directions, gates, inputs), (directions, gates, hidden), *([(directions, 2 * gates)] if self.layer is GRU else []), (rows,), last,
            *([last] if self.layer.cell else [])]
        kept: list[Shape] = [(*every, hidden), *((*saved_first(c, steps), rows, width * hidden) for width in self.layer.saved)]
        gradients: list[Shape] = [(*every, hidden), last, *([last, (directions, 3 * hidden)] if self.layer.cell else [])]
        for index, sizes in enumerate((*of_layer, *kept, *gradients)):
            if c.has(index) or index in (1, 2) or 0 <= index - len(of_layer) < len(kept):
                check_inputs(c, sizes, index)

    def lower(self, c: LoweringContext) -> KernelCall:
        steps, rows, inputs = c.dims(0)
        directions, hidden = c.dims(2)[0], c.dims(2)[2]
        space = self.layer.gradient_scratch(steps, rows, inputs, hidden, directions)
        return KernelCall(f"{self.layer.name.lower()}_grad", (steps, rows, inputs, hidden, directions, direction_of(c)[0], option_of(c, self.layer)),
                          scratch=space * numpy_dtype(c.dtype(0)).itemsize)


def _register() -> None:
    forward = {
        LSTM: (lstm_gradient, "c = f c + i c~, h = o tanh(c), gates of x and the h before (Hochreiter and Schmidhuber, 1997)"),
        GRU: (gru_gradient, "h = (1 - z) h~ + z h, gates of x and the h before (Cho et al., arXiv 1406.1078)"),
        RNN: (rnn_gradient, "h = tanh(x W + h R + b), or relu"),
    }
    for layer, (gradient, summary) in forward.items():
        operator(layer.name, lower=lower_layer(layer), gradient=gradient, stop_gradient=(LENGTHS,), decompose=in_other_forms, decompose_first=True)(
            infer_layer(layer, summary))
    for layer in forward:
        form = GradientForm(layer)
        for domain in (MICROSOFT, OWN):
            if layer is RNN and domain == MICROSOFT:
                continue
            if layer.saved:
                operator(f"{layer.name}Training", domain=domain, lower=lower_layer(layer), differentiable=False)(
                    infer_layer(layer, f"{layer.name} with the values that its gradient reads"))
            operator(f"{layer.name}Grad", domain=domain, lower=form.lower, differentiable=False)(documented(form.infer, layer))


def documented(infer: Inference, layer: Layer) -> Inference:
    def inference(c: InferenceContext) -> Sequence[TensorType]:
        return infer(c)

    inference.__doc__ = f"Gradients of {layer.name}'s float inputs"
    return inference


_register()
