"""Recurrent layers LSTM, GRU and RNN, their training forms (which save what the gradients read) and their gradient operators.

Nodes that ONNX Runtime training 1.19 can differentiate (forward direction, no sequence lengths, no peepholes) use its com.microsoft operators. All other
nodes use operators of the same names in the domain ortrain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim, Shape, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, Guard, InferenceContext, InferenceRule, KernelCall, LoweringContext, check_inputs, operator
from ortrain.ops.registry.sample_gradients import SampleGradient, SampleGradientBuilder
from ortrain.ops.shared.broadcasting import contiguous_strides
from ortrain.ops.shared.recurrent_samples import CELL, INITIAL, LENGTHS, PEEPHOLES, Run, layer_sample_gradients
from ortrain.ops.shared.recurrent_scan import ACTIVATIONS, layer_decomposition

Gradients = Sequence[str | None]
DIRECTIONS = {"forward": 0, "reverse": 1, "bidirectional": 2}
"""Attribute direction -> the kernels' number."""
Y_PERM, DY_PERM = "y_perm", "dy_perm"
"""Attributes of a layer and of its gradient operator: the order of the axes of y and of its gradient, like Transpose's perm of y [steps, directions, rows,
hidden]. No file contains them: ortrain.plan.recurrent_layouts sets them, where a layer's y would be transposed otherwise."""
UNCHANGED = (0, 1, 2, 3)
"""The order of y's axes without these attributes."""


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """The properties that distinguish LSTM, GRU and RNN.

    gates: gates per hidden unit. has_cell: whether there is a cell state. activations: the sets of activations that the kernels support, the default first.
    scratch, gradient_scratch: elements of scratch memory for (steps, rows, inputs, hidden, directions)."""

    name: str
    gates: int
    has_cell: bool
    activations: tuple[tuple[str, ...], ...]
    scratch: Callable[[int, int, int, int, int], int]
    gradient_scratch: Callable[[int, int, int, int, int], int]

    @property
    def states(self) -> int:
        """The number of outputs before the saved ones: y, y_h and, with a cell state, y_c."""
        return 3 if self.has_cell else 2

    @property
    def saved(self) -> tuple[int, ...]:
        """The widths, in multiples of hidden, of the values saved for the gradient: cell states, then gates."""
        return (1, self.gates) if self.has_cell else (self.gates,) if self.gates > 1 else ()


PANEL_PADDING = 16
"""Columns by which the panels of packed weights may exceed the matrix."""


def packed_weights_size(depth: int, columns: int) -> int:
    """Return the maximum number of elements of packed recurrent weights [depth, columns] (kernels/matmul/step_gemm.h)."""
    return depth * (columns + PANEL_PADDING)


LSTM = RecurrentLayer(
    "LSTM", 4, True, (("sigmoid", "tanh", "tanh"),),
    lambda s, n, i, h, d: 4 * h + d * packed_weights_size(h, 4 * h) + 2 * d * n * h,
    lambda s, n, i, h, d: d * s * n * 4 * h + 2 * d * n * h + d * packed_weights_size(4 * h, h) + (s * n + 4 * h) * (i + h))
GRU = RecurrentLayer(
    "GRU", 3, False, (("sigmoid", "tanh"),),
    lambda s, n, i, h, d: 3 * h + d * (packed_weights_size(h, 2 * h) + packed_weights_size(h, h)) + 4 * d * n * h,
    lambda s, n, i, h, d: 6 * d * s * n * h + 2 * d * n * h + d * (packed_weights_size(2 * h, h) + packed_weights_size(h, h)))
RNN = RecurrentLayer(
    "RNN", 1, False, (("tanh",), ("relu",)),
    lambda s, n, i, h, d: h + d * packed_weights_size(h, h) + d * n * h + d * s * n * h,
    lambda s, n, i, h, d: d * s * n * h + d * n * h + d * packed_weights_size(h, h) + (s * n + h) * (i + h))
LAYERS = {layer.name: layer for layer in (LSTM, GRU, RNN)}


# ---- properties of a node


def direction_of(c: InferenceContext) -> tuple[int, int]:
    """Return (number of the direction in DIRECTIONS, count of directions)."""
    name = c.attribute("direction", "forward")
    if name not in DIRECTIONS:
        raise c.error(f"expected a direction of {sorted(DIRECTIONS)}, got {name!r}")
    return DIRECTIONS[name], 2 if name == "bidirectional" else 1


def activations_of(c: InferenceContext, layer: RecurrentLayer) -> tuple[str, ...]:
    """Return the activations of all directions in order, in lower case. Raises for unknown names or a wrong number of them."""
    _, directions = direction_of(c)
    given = c.attribute("activations")
    names = tuple(name.lower() for name in given) if given else layer.activations[0] * directions
    if len(names) != len(layer.activations[0]) * directions or not set(names) <= set(ACTIVATIONS):
        raise c.error(f"expected {len(layer.activations[0]) * directions} activations of {sorted(ACTIVATIONS)}, got {names}")
    return names


def kernel_activation(c: InferenceContext, layer: RecurrentLayer) -> int | None:
    """Return the index in layer.activations of the node's activations; None if the kernels do not support them, or for clip or coupled gates."""
    if c.attribute("clip") is not None or c.attribute("input_forget", 0):
        return None
    names, directions = activations_of(c, layer), direction_of(c)[1]
    return next((index for index, known in enumerate(layer.activations) if names == known * directions), None)


def check_kernel_support(c: InferenceContext, layer: RecurrentLayer) -> None:
    """Raise if the kernels do not support the node: its activations, clip, input_forget, or two directions in com.microsoft."""
    if c.node.domain == MICROSOFT and direction_of(c)[1] > 1:
        raise c.error(f"expected one direction, got {c.attribute('direction')!r}")
    if kernel_activation(c, layer) is None:
        raise c.error(f"expected the activations {layer.activations[0]} of {layer.name} and neither clip nor input_forget, got "
                      f"{ {name: c.attribute(name) for name in ('activations', 'clip', 'input_forget') if c.attribute(name)} }")


def layer_sizes(c: InferenceContext, layer: RecurrentLayer) -> tuple[Dim, Dim, Dim, int, int]:
    """Return (steps, rows, inputs, hidden, directions), where rows is the batch size. Raises if an input's shape does not fit them."""
    if len(c.shape(0)) != 3 or len(c.shape(1)) != 3 or len(c.shape(2)) != 3:
        raise c.error(f"expected x, W and R of rank 3, got {[list(c.shape(i)) for i in range(3)]}")
    steps, rows, inputs = c.shape(0)
    if c.attribute("layout", 0):
        steps, rows = rows, steps
    hidden, directions = c.shape(2)[2], direction_of(c)[1]
    if not isinstance(hidden, int):
        raise c.error(f"expected R with a known size, got {list(c.shape(2))}")
    state: tuple[Dim, ...] = (rows, directions, hidden) if c.attribute("layout", 0) else (directions, rows, hidden)
    expected: dict[int, tuple[Dim, ...]] = {
        1: (directions, layer.gates * hidden, inputs), 2: (directions, layer.gates * hidden, hidden), 3: (directions, 2 * layer.gates * hidden),
        LENGTHS: (rows,), INITIAL: state, **({CELL: state, PEEPHOLES: (directions, 3 * hidden)} if layer.has_cell else {})}
    for index, shape in expected.items():
        check_inputs(c, shape, *((index,) if c.has(index) else ()))
    if c.has(LENGTHS) and c.dtype(LENGTHS) != "int32":
        raise c.error(f"expected lengths of int32, got {c.dtype(LENGTHS)}")
    return steps, rows, inputs, hidden, directions


def output_perm(c: InferenceContext, name: str) -> tuple[int, ...]:
    """Return the order of axes of y (name: Y_PERM) or of its gradient (DY_PERM). Raises unless the hidden units come last."""
    perm = tuple(c.attribute(name) or UNCHANGED)
    if tuple(sorted(perm)) != UNCHANGED or perm[-1] != UNCHANGED[-1]:
        raise c.error(f"expected {name} to be an order of {UNCHANGED} that ends in {UNCHANGED[-1]}, got {perm}")
    return perm


def output_strides(c: InferenceContext, name: str, sizes: Sequence[int]) -> list[int]:
    """Return the distances of steps, directions and rows in y or its gradient. sizes: of y [steps, directions, rows, hidden]."""
    perm = output_perm(c, name)
    strides = contiguous_strides([sizes[axis] for axis in perm])
    return [strides[perm.index(axis)] for axis in UNCHANGED[:-1]]


def saved_leading_dims(c: InferenceContext, steps: Dim) -> tuple[Dim, Dim]:
    """Return the first two dimensions of saved values: (steps, 1) in com.microsoft, whose form has one direction, else (directions, steps)."""
    directions = direction_of(c)[1]
    return (steps, 1) if c.node.domain == MICROSOFT else (directions, steps)


# ---- forward


def infer_layer(layer: RecurrentLayer, summary: str) -> InferenceRule:
    """Return the shape inference of a layer or of its training form, with `summary` as its docstring."""

    def infer(c: InferenceContext) -> list[TensorType]:
        steps, rows, _, hidden, directions = layer_sizes(c, layer)
        activations_of(c, layer)
        if c.node.op_type != layer.name:
            check_kernel_support(c, layer)
        batch_first = bool(c.attribute("layout", 0))
        y: tuple[Dim, ...] = (rows, steps, directions, hidden) if batch_first else (steps, directions, rows, hidden)
        y = tuple(y[axis] for axis in output_perm(c, Y_PERM))
        state: tuple[Dim, ...] = (rows, directions, hidden) if batch_first else (directions, rows, hidden)
        kinds = [y, *[state] * (layer.states - 1), *((*saved_leading_dims(c, steps), rows, width * hidden) for width in layer.saved)]
        return [TensorType(c.dtype(0), shape) for shape in kinds]

    infer.__doc__ = summary
    return infer


def lower_layer(layer: RecurrentLayer) -> Callable[[LoweringContext], KernelCall]:
    def lower(c: LoweringContext) -> KernelCall:
        steps, rows, inputs, hidden, directions = cast(tuple[int, ...], layer_sizes(c, layer))
        gates = 0 if layer.gates > 1 and c.has_output(layer.states + len(layer.saved) - 1) else directions * steps * rows * layer.gates * hidden
        space = layer.scratch(steps, rows, inputs, hidden, directions) + (gates if layer.gates > 1 else 0)
        guards = (Guard(LENGTHS, 0, steps + 1),) if c.has(LENGTHS) else ()
        y_strides = output_strides(c, Y_PERM, (steps, directions, rows, hidden))
        return KernelCall(layer.name.lower(), (steps, rows, inputs, hidden, directions, direction_of(c)[0], kernel_option(c, layer), *y_strides),
                          scratch=space * numpy_dtype(c.dtype(0)).itemsize, guards=guards)

    return lower


def kernel_option(c: InferenceContext, layer: RecurrentLayer) -> int:
    """Return the kernel's last attribute: linear_before_reset for a GRU, else the index of the activations (1: ReLU in an RNN)."""
    return int(c.attribute("linear_before_reset", 0)) if layer is GRU else kernel_activation(c, layer) or 0


def recurrent_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return a Scan for a layer that the kernels do not support; for layout 1 the same layer in layout 0 between Transposes."""
    layer = LAYERS[g.node.op_type]
    if g.attribute("layout", 0):
        return batch_first_decomposition(g)
    return layer_decomposition(g, activations_of(g.context(), layer)) if kernel_activation(g.context(), layer) is None else None


def batch_first_decomposition(g: NodeBuilder) -> list[str]:
    """Return a layer with layout 1 (batch first) as one with layout 0 (time first) between Transposes."""
    names = list(g.inputs)
    for index in (0, INITIAL, CELL):
        if g.has(index):
            names[index] = g.op("Transpose", names[index], perm=(1, 0, 2))
    attributes = {name: value for name, value in g.node.attributes.items() if name != "layout"}
    outputs = g.ops(g.node.op_type, *names, outputs=[bool(name) for name in g.outputs], domain=g.node.domain, **attributes)
    perms = [(2, 0, 1, 3), (1, 0, 2), (1, 0, 2)]
    return [g.op("Transpose", name, perm=perm) if name else "" for name, perm in zip(outputs, perms, strict=False)]


# ---- gradients


def has_microsoft_form(g: GradientBuilder) -> bool:
    """Return whether ONNX Runtime training 1.19 has operators of com.microsoft for the node and its gradient."""
    return g.attribute("direction", "forward") == "forward" and not g.has(LENGTHS) and not g.has(PEEPHOLES)


def replace_with_training_form(g: GradientBuilder, layer: RecurrentLayer) -> tuple[str, list[str]]:
    """Replace the forward node by its training form, if it is not one yet; return the domain of the gradient operator and all outputs of the node."""
    if not layer.saved:
        return ORTRAIN, [g.output(0)] + [""] * (layer.states - 1)
    if g.node.op_type != layer.name:
        return g.node.domain, [g.output(0), *g.outputs[1:]]
    domain = MICROSOFT if has_microsoft_form(g) else ORTRAIN
    g.node.inputs.extend([""] * ((CELL if not layer.has_cell else PEEPHOLES) - len(g.node.inputs)))
    g.node.outputs.extend([""] * (layer.states - len(g.node.outputs)))
    g.replace(f"{layer.name}Training", domain, extra_outputs=len(layer.saved))
    return domain, [g.output(0), *g.outputs[1:]]


def output_gradients(g: GradientBuilder, layer: RecurrentLayer) -> list[str]:
    """Return the gradients of y, y_h and, with a cell state, y_c; "" for none."""
    gradients = [name or "" for name in g.gradients][: layer.states]
    return gradients + [""] * (layer.states - len(gradients))


def needed_inputs(g: GradientBuilder, *indices: int) -> list[bool]:
    return [g.needs(index) for index in indices]


def attributes_without_layout(g: GradientBuilder) -> dict[str, Any]:
    return {name: value for name, value in g.node.attributes.items() if name != "layout"}


def gradient_node(g: GradientBuilder, layer: RecurrentLayer, outputs: Sequence[bool]) -> list[str]:
    """Append the gradient operator of a layer, with the outputs that are wanted of those of GradientOperator; the node takes its training form.

    An RNN has none: its gradient reads no saved values but y."""
    dy = output_gradients(g, layer)
    domain, results = replace_with_training_form(g, layer)
    inputs = [*g.inputs, *[""] * (8 - len(g.inputs))]
    peepholes = [inputs[PEEPHOLES]] if layer.has_cell and inputs[PEEPHOLES] else []
    return g.ops(f"{layer.name}Grad", *inputs[:3], *(inputs[3:4] if layer is GRU else []), inputs[LENGTHS], inputs[INITIAL],
                 *(inputs[CELL : CELL + 1] if layer.has_cell else []), results[0], *results[layer.states :], *dy, *peepholes, domain=domain, outputs=outputs,
                 **attributes_without_layout(g))


def layer_gradient(layer: RecurrentLayer) -> Callable[[GradientBuilder], Gradients]:
    def gradient(g: GradientBuilder) -> Gradients:
        needed = needed_inputs(g, 0, 1, 2, 3, INITIAL, *((CELL, PEEPHOLES) if layer.has_cell else ()))
        dx, dw, dr, db, *others = (name or None for name in gradient_node(g, layer, needed))
        return [dx, dw, dr, db, None, *others][: len(g.inputs)]

    return gradient


def layer_sample_gradient(layer: RecurrentLayer) -> Callable[[SampleGradientBuilder], list[SampleGradient | None]]:
    def sample_gradients(g: SampleGradientBuilder) -> list[SampleGradient | None]:
        wanted = [False] * (7 if layer.has_cell else 5) + [True]
        gate_gradients = gradient_node(g, layer, wanted)[-1]
        saved = g.outputs[layer.states :] if layer.saved else []
        return layer_sample_gradients(g, layer.name, Run(g.outputs[0], saved[0] if layer.has_cell else "", saved[-1] if saved else "", gate_gradients))

    return sample_gradients


@dataclass(frozen=True, slots=True)
class GradientOperator:
    """The gradient operator of a layer: (x, W, R, …) -> (dx, dW, dR, dB, dh0, with a cell state dc0 and dP, and the gradients of the gates before their
    activations [steps, rows, directions * gates * hidden])."""

    layer: RecurrentLayer

    def infer(self, c: InferenceContext) -> list[TensorType]:
        x, w, r = c.type(0), c.type(1), c.type(2)
        check_kernel_support(c, self.layer)
        if len(c.shape(0)) != 3 or len(c.shape(2)) != 3:
            raise c.error(f"expected x and R of rank 3, got {list(c.shape(0))} and {list(c.shape(2))}")
        rows, hidden, directions = c.shape(0)[1], c.shape(2)[2], c.shape(2)[0]
        if isinstance(hidden, str):
            raise c.error(f"expected R with a known size, got {list(c.shape(2))}")
        self.check(c, c.shape(0), hidden)
        state = TensorType(x.dtype, (directions, rows, hidden))
        outputs = [x, w, r, TensorType(x.dtype, (directions, 2 * self.layer.gates * hidden)), state]
        gates = TensorType(x.dtype, (c.shape(0)[0], rows, direction_of(c)[1] * self.layer.gates * hidden))
        return [*outputs, *([state, TensorType(x.dtype, (directions, 3 * hidden))] if self.layer.has_cell else []), gates]

    def check(self, c: InferenceContext, shape: Shape, hidden: int) -> None:
        """Raise if an input's shape does not fit x [steps, rows, inputs] = `shape` and the hidden size."""
        steps, rows, inputs = shape
        gates, directions = self.layer.gates * hidden, direction_of(c)[1]
        y, state = (steps, directions, rows, hidden), (directions, rows, hidden)
        y_shape, dy_shape = (tuple(y[axis] for axis in output_perm(c, name)) for name in (Y_PERM, DY_PERM))
        layer_inputs: list[Shape] = [
            shape, (directions, gates, inputs), (directions, gates, hidden), *([(directions, 2 * gates)] if self.layer is GRU else []), (rows,), state,
            *([state] if self.layer.has_cell else [])]
        saved: list[Shape] = [y_shape, *((*saved_leading_dims(c, steps), rows, width * hidden) for width in self.layer.saved)]
        gradients: list[Shape] = [dy_shape, state, *([state, (directions, 3 * hidden)] if self.layer.has_cell else [])]
        for index, sizes in enumerate((*layer_inputs, *saved, *gradients)):
            if c.has(index) or index in (1, 2) or 0 <= index - len(layer_inputs) < len(saved):
                check_inputs(c, sizes, index)

    def lower(self, c: LoweringContext) -> KernelCall:
        steps, rows, inputs = c.dims(0)
        directions, hidden = c.dims(2)[0], c.dims(2)[2]
        space = self.layer.gradient_scratch(steps, rows, inputs, hidden, directions)
        strides = (stride for name in (Y_PERM, DY_PERM) for stride in output_strides(c, name, (steps, directions, rows, hidden)))
        sizes = (steps, rows, inputs, hidden, directions, direction_of(c)[0], kernel_option(c, self.layer))
        return KernelCall(f"{self.layer.name.lower()}_grad", (*sizes, *strides),
                          scratch=space * numpy_dtype(c.dtype(0)).itemsize)


def _register() -> None:
    forward = {
        LSTM: "c[t] = f c[t-1] + i g, h[t] = o tanh(c[t]), gates i, o, f, g of x[t] and h[t-1] (Hochreiter and Schmidhuber, 1997)",
        GRU: "h[t] = (1 - z) g + z h[t-1], gates z, r and candidate g of x[t] and h[t-1] (Cho et al., arXiv 1406.1078)",
        RNN: "h[t] = f(x[t] Wᵀ + h[t-1] Rᵀ + b), f = tanh by default",
    }
    for layer, summary in forward.items():
        operator(layer.name, lower=lower_layer(layer), gradient=layer_gradient(layer), stop_gradient=(LENGTHS,), decompose=recurrent_decomposition,
                 decompose_first=True, takes_bfloat16=True, sample_gradients=layer_sample_gradient(layer))(infer_layer(layer, summary))
    for layer in forward:
        form = GradientOperator(layer)
        for domain in (MICROSOFT, ORTRAIN):
            if layer is RNN and domain == MICROSOFT:
                continue
            if layer.saved:
                summary = f"{layer.name} with additional outputs: the values that its gradient reads"
                operator(f"{layer.name}Training", domain=domain, lower=lower_layer(layer), differentiable=False, takes_bfloat16=True,
                         sample_gradients=layer_sample_gradient(layer))(infer_layer(layer, summary))
            operator(f"{layer.name}Grad", domain=domain, lower=form.lower, differentiable=False, takes_bfloat16=True)(with_summary(form.infer, layer))


def with_summary(infer: InferenceRule, layer: RecurrentLayer) -> InferenceRule:
    """Return the shape inference of a layer's gradient with its own docstring, which is the operator's summary."""

    def inference(c: InferenceContext) -> Sequence[TensorType]:
        return infer(c)

    inference.__doc__ = f"Gradients of the floating-point inputs of {layer.name}"
    return inference


_register()
