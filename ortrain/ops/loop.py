"""Loop and Scan. Here their nodes list, after the inputs that they have in files, the outer values that their bodies read. A plan makes a program of the body
and runs it again and again; the gradient of both is a Scan over the iterations, the last one first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain import dtypes
from ortrain.ir import Dim, Graph, Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import InferenceContext, normalize_axis, operator
from ortrain.ops.registry.shape_inference import Inference, common_type
from ortrain.ops.registry.subgraphs import captured, made, place, renamed

MAX_TRIPS = 1 << 14
"""Iterations after which a Loop is not counted on that goes by a condition: counting takes some 0.1 ms each."""


@dataclass(frozen=True)
class Form:
    """What is the same in Loop and Scan: states that go from iteration to iteration, inputs that are scanned, outputs that are collected."""

    node: Node
    body: Graph
    states: int
    scanned: int
    counts: bool
    """A Loop, whose body is told the number of the iteration and says whether to go on."""

    @classmethod
    def of(cls, node: Node) -> Form:
        body = node.graphs["body"]
        if node.op_type == "Loop":
            return cls(node, body, len(body.inputs) - 2, 0, True)
        scanned = int(node.attributes["num_scan_inputs"])
        return cls(node, body, len(body.inputs) - scanned, scanned, False)

    @property
    def first(self) -> int:
        """The position of the first state among the inputs of node and body."""
        return 2 if self.counts else 0

    @property
    def said(self) -> int:
        """The position of the first state among the outputs of the body."""
        return 1 if self.counts else 0

    @property
    def collected(self) -> int:
        """The number of collected outputs."""
        return len(self.body.outputs) - self.said - self.states

    @property
    def own(self) -> int:
        """The number of inputs before the captured ones."""
        return len(self.body.inputs)

    def backwards(self, which: str) -> list[int]:
        """For "input" or "output": 1 where slices come or go last first."""
        count = self.scanned if which == "input" else self.collected
        return list(self.node.attributes.get(f"scan_{which}_directions", ()) or [0] * count)

    def axes(self, which: str) -> list[int]:
        """For "input" or "output": the axes along which slices lie."""
        count = self.scanned if which == "input" else self.collected
        return list(self.node.attributes.get(f"scan_{which}_axes", ()) or [0] * count)

    @property
    def state_inputs(self) -> list[str]:
        """The body's names for the states at the start of an iteration."""
        return self.body.inputs[self.first : self.first + self.states]

    @property
    def slice_inputs(self) -> list[str]:
        """The body's names for slices of scanned inputs."""
        return self.body.inputs[self.first + self.states :]

    @property
    def state_outputs(self) -> list[str]:
        """The body's names for the states at the end of an iteration."""
        return self.body.outputs[self.said : self.said + self.states]

    @property
    def slice_outputs(self) -> list[str]:
        """The body's names for what is collected."""
        return self.body.outputs[self.said + self.states :]


# ---- types


@dataclass
class Inside:
    """What is known of a body: of the states over all iterations, and of its values."""

    states: list[TensorType]
    inputs: dict[str, TensorType]
    inference: Inference


def look_inside(c: InferenceContext, form: Form) -> Inside:
    """Infers the body until the types of the states hold for every iteration: each round turns at least one size or rank into an open one."""
    scope = c.scope
    assert scope is not None, "a Loop is inferred as part of a graph"
    states = [c.type(form.first + index) for index in range(form.states)]
    scanned = range(form.first + form.states, form.own)
    slices = [_slice(c, c.type(index), axis) for index, axis in zip(scanned, form.axes("input"), strict=True)]
    while True:
        counters = [TensorType("int64", ()), TensorType("bool", ())] if form.counts else []
        inputs = dict(zip(form.body.inputs, [*counters, *states, *slices], strict=True))
        found = Inference(scope.opsets, {**scope.types, **inputs}, scope.values | form.body.initializers, form.body.types)
        for node in form.body.nodes:
            found.visit(node)
        pairs = zip(states, form.state_outputs, strict=True)
        settled = [common_type(c, f"state {index}", f"state{index}", a, found.types[name]) for index, (a, name) in enumerate(pairs)]
        if settled == states:
            return Inside(states, inputs, found)
        states = settled


def _slice(c: InferenceContext, kind: TensorType, axis: int) -> TensorType:
    if kind.shape is None:
        return kind
    dims = list(kind.shape)
    del dims[normalize_axis(c, axis, len(dims))]
    return TensorType(kind.dtype, tuple(dims))


def _stack(c: InferenceContext, kind: TensorType, axis: int, length: Dim) -> TensorType:
    if kind.shape is None:
        return kind
    dims = list(kind.shape)
    dims.insert(normalize_axis(c, axis, len(dims) + 1), length)
    return TensorType(kind.dtype, tuple(dims))


def trips(c: InferenceContext, form: Form, inside: Inside) -> Dim | None:
    """The number of iterations; a symbol, or None for a Loop of which it is not known."""
    if not form.counts:
        return _length(c, form)
    limit, condition = c.value(0), c.value(1)
    if condition is not None and not bool(condition.reshape(-1)[0]):
        return 0
    if c.has(0) and limit is None or c.has(1) and condition is None:
        return None
    most = None if limit is None else max(0, int(limit.reshape(-1)[0]))
    return most if most is not None and _goes_on(form, inside) else _counted(c, form, most)


def _length(c: InferenceContext, form: Form) -> Dim:
    """The number of slices of the scanned inputs, which have to agree."""
    sizes = [c.shape(index)[axis] for index, axis in enumerate(form.axes("input"), form.states)]
    numbers = {size for size in sizes if isinstance(size, int)}
    if len(numbers) > 1:
        raise c.error(f"expected scanned inputs of one length, got {sizes}")
    return numbers.pop() if numbers else sizes[0]


def _goes_on(form: Form, inside: Inside) -> bool:
    """True for a body whose condition is true, or the one it was given."""
    name, makers = form.body.outputs[0], form.body.producers()
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].inputs[0]
    known = inside.inference.values.get(name)
    return name == form.body.inputs[1] or known is not None and bool(known.reshape(-1)[0])


def _counted(c: InferenceContext, form: Form, most: int | None) -> int | None:
    """The iterations of a Loop whose condition hangs on counters alone: they are counted through. None where it hangs on more, or goes on for long."""
    scope, body = c.scope, form.body
    wanted = {body.outputs[0]}
    followed: dict[str, str] = {}                         # the body's name for a state at the start -> the one at the end
    while True:
        nodes = body.ancestors(wanted)
        read = {name for node in nodes for name in node.inputs} | wanted
        ends = {a: b for a, b in zip(form.state_inputs, form.state_outputs, strict=True) if a in read}
        if ends == followed:
            break
        followed = ends
        wanted |= set(ends.values())
    values = {name: c.value(form.first + index) for index, name in enumerate(form.state_inputs) if name in followed}
    if any(value is None for value in values.values()) or any(node.graphs for node in nodes):
        return None
    for k in range(MAX_TRIPS if most is None else min(most, MAX_TRIPS)):
        known = {body.inputs[0]: np.array(k), body.inputs[1]: np.array(True), **values}
        found = Inference(scope.opsets, {}, scope.values | body.initializers | known)
        for node in nodes:
            if any(name and name not in found.values for name in node.inputs):
                return None
            found.visit(node)
        if body.outputs[0] not in found.values or any(name not in found.values for name in followed.values()):
            return None
        if not bool(found.values[body.outputs[0]].reshape(-1)[0]):
            return k + 1
        values = {start: found.values[end] for start, end in followed.items()}
    return most if most is not None and most <= MAX_TRIPS else None


def infer_iteration(c: InferenceContext) -> list[TensorType]:
    """The last states; what was collected"""
    form = Form.of(c.node)
    inside = look_inside(c, form)
    count = trips(c, form, inside)
    length = c.fresh("iterations") if count is None else count
    kinds = [inside.inference.types[name] for name in form.slice_outputs]
    for kind in kinds:
        if kind.sequence:
            raise c.error("expected collected outputs to be tensors, got a sequence")
    return [*inside.states, *(_stack(c, kind, axis, length) for kind, axis in zip(kinds, form.axes("output"), strict=True))]


# ---- in other nodes


def scan_decomposition(g: NodeBuilder) -> list[str] | None:
    """A Scan along other axes is a Scan along the first one between Transposes."""
    form = Form.of(g.node)
    axes = [form.axes(which) for which in ("input", "output")]
    if not any(axes[0]) and not any(axes[1]):
        return None
    attributes = {name: value for name, value in g.node.attributes.items() if name not in ("scan_input_axes", "scan_output_axes")}
    inputs = list(g.inputs)
    for index, axis in enumerate(axes[0], form.states):
        if axis:
            order = list(range(g.rank(inputs[index])))
            order.insert(0, order.pop(axis))
            inputs[index] = g.op("Transpose", inputs[index], perm=tuple(order))
    found = g.ops("Scan", *inputs, outputs=[bool(name) for name in g.outputs], **attributes)
    for index, axis in enumerate(axes[1], form.states):
        if axis and index < len(found) and found[index]:
            order = list(range(1, g.rank(found[index])))
            order.insert(axis if axis >= 0 else len(order) + 1 + axis, 0)
            found[index] = g.op("Transpose", found[index], perm=tuple(order))
    return found


def unrolled(g: NodeBuilder, count: int) -> list[str]:
    """The nodes of all iterations: for a body whose sizes change from one to the next."""
    form = Form.of(g.node)
    states = list(g.inputs[form.first : form.first + form.states])
    backwards, collected = (form.backwards(which) for which in ("input", "output")), []
    reads_backwards, writes_backwards = backwards
    slices: list[list[str]] = [[] for _ in range(form.collected)]
    for k in range(count):
        given = dict(zip(form.state_inputs, states, strict=True))
        if form.counts:
            given |= {form.body.inputs[0]: g.constant(np.array(k)), form.body.inputs[1]: g.constant(np.array(True))}
        for name, source, reverse in zip(form.slice_inputs, g.inputs[form.first + form.states : form.own], reads_backwards, strict=True):
            given[name] = g.op("Gather", source, g.constant(np.array(count - 1 - k if reverse else k)), axis=0)
        results = place(g, form.body, given)[form.said :]
        states = results[: form.states]
        for index, name in enumerate(results[form.states :]):
            slices[index].append(g.unsqueeze(name, [0]))
    for names, reverse in zip(slices, writes_backwards, strict=True):
        collected.append(g.op("Concat", *(names[::-1] if reverse else names), axis=0))
    return [*states, *collected]


# ---- gradient


def iteration_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """A Scan over the iterations, the last one first. Each runs its iteration forward again, from the states that it started with, and then backward. Its
    states are the gradients of the states and the sums of the gradients of captured values; it collects the gradients of scanned inputs."""
    form = Form.of(g.node)
    return Backward(g, form).build()


class Backward:
    """The making of one such Scan."""

    def __init__(self, g: GradientBuilder, form: Form) -> None:
        self.g, self.form = g, form
        self.inside = look_inside(g.context(), form)
        unique = g.builder.names.unique
        self.again = {name: unique(f"{name}/again") for name in (*form.body.inputs, *made(form.body))}
        self.body = renamed(form.body, self.again)
        self.body.inputs = []
        self.flowing = [index for index, kind in enumerate(self.inside.states) if kind.dtype in dtypes.DIFFERENTIABLE]
        """The states that have gradients."""
        self.states: list[tuple[str, str]] = []
        """(name in the body, initial value)"""
        self.scanned: list[tuple[str, str, int]] = []
        """(name in the body, outer value, last first?)"""

    def build(self) -> Sequence[str | None]:
        g, form, body = self.g, self.form, self.body
        seeds = self._seeds()
        wanted = [index for index in range(form.first, len(g.inputs)) if g.needs(index)]
        scanned = [index for index in wanted if form.first + form.states <= index < form.own]
        outer = [index for index in wanted if index >= form.own]
        states = [self.again[form.state_inputs[index]] for index in self.flowing]
        slices = [self.again[form.body.inputs[index]] for index in scanned]
        types = {self.again[name]: kind for name, kind in self.inside.inputs.items()}
        types |= {name: self._seed_type(name) for names in seeds.values() for name in names}
        found = g.builder.inner_gradients(body, types, seeds, [*states, *slices], [g.inputs[index] for index in outer])
        state_gradients, slice_gradients = found[: len(states)], found[len(states) : len(states) + len(slices)]
        sums = [self._summed(index, gradient) for index, gradient in zip(outer, found[len(states) + len(slices) :], strict=True) if gradient]
        summed = [index for index, gradient in zip(outer, found[len(states) + len(slices) :], strict=True) if gradient]
        body.outputs = [name or "" for name in (*state_gradients, *sums, *slice_gradients)]
        body.nodes = body.ancestors(body.outputs)
        self._keep()
        results = self._emit([1 - form.backwards("input")[index - form.first - form.states] for index in scanned])
        made_of = dict(zip([*(form.first + index for index in self.flowing), *summed, *scanned], results, strict=True))
        return [made_of.get(index) for index in range(len(g.inputs))]

    def _seeds(self) -> dict[str, list[str]]:
        """The gradients that flow into the body's outputs: those of its states, which the Scan hands on, and slices of those of what was collected."""
        g, form = self.g, self.form
        seeds: dict[str, list[str]] = {}
        self._seed_types: dict[str, TensorType] = {}
        for index in self.flowing:
            name = g.builder.names.unique(f"{form.state_outputs[index]}_grad")
            gradient = g.gradients[index] if index < len(g.gradients) else None
            self.states.append((name, gradient or self._zeros(g.inputs[form.first + index])))
            self._seed_types[name] = self.inside.states[index]
            seeds.setdefault(self._again(form.state_outputs[index]), []).append(name)
        for index, (value, reverse) in enumerate(zip(form.slice_outputs, form.backwards("output"), strict=True)):
            gradient = g.gradients[form.states + index] if form.states + index < len(g.gradients) else None
            if gradient:
                name = g.builder.names.unique(f"{value}_grad")
                self.scanned.append((name, gradient, 1 - reverse))
                self._seed_types[name] = self.inside.inference.types[value]
                seeds.setdefault(self._again(value), []).append(name)
        return seeds

    def _again(self, name: str) -> str:
        return self.again.get(name, name)

    def _seed_type(self, name: str) -> TensorType:
        return self._seed_types[name]

    def _zeros(self, like: str) -> str:
        dtype = dtypes.numpy_dtype(self.g.type(like).dtype)
        return self.g.op("ConstantOfShape", self.g.shape_of(like), value=np.zeros(1, dtype))

    def _summed(self, index: int, gradient: str) -> str:
        """The gradient of a captured value, added to that of the iterations before."""
        value, unique = self.g.inputs[index], self.g.builder.names.unique
        so_far, total = unique(f"{value}_grad_sum"), unique(f"{value}_grad_sum")
        self.states.append((so_far, self._zeros(value)))
        self.body.nodes.append(Node("Add", [so_far, gradient], [total], unique(f"{value}_Grad/Add")))
        return total

    def _keep(self) -> None:
        """What the iterations read of their beginnings: states and the number of the iteration are collected on the way forward."""
        g, form = self.g, self.form
        read = {name for node in self.body.nodes for name in node.inputs} | set(self.body.outputs)
        forward = form.body.copy()
        kept: list[tuple[str, str]] = []                  # (name in the body, the forward body's own name)
        for name in form.body.inputs[: form.first + form.states]:
            again = self.again[name]
            if form.counts and name == form.body.inputs[1]:
                if again in read:
                    self.body.nodes.insert(0, Node("Identity", [g.constant(np.array(True))], [again], g.builder.names.unique(f"{again}/Identity")))
            elif again in read:
                kept.append((again, name))
        for name, source, reverse in zip(form.slice_inputs, g.inputs[form.first + form.states : form.own], form.backwards("input"), strict=True):
            if self.again[name] in read or not self.scanned:
                self.scanned.append((self.again[name], source, 1 - reverse))
        if not self.scanned and not kept and form.counts:
            kept.append((self.again[form.body.inputs[0]], form.body.inputs[0]))
        while len(g.node.outputs) < form.states + form.collected:
            g.node.outputs.append("")
        for again, name in kept:
            slice_name = g.builder.names.unique(f"{name}/start")
            forward.nodes.append(Node("Identity", [name], [slice_name], g.builder.names.unique(f"{name}/start/Identity")))
            forward.outputs.append(slice_name)
            g.node.outputs.append(g.builder.names.unique(f"{g.node.name or g.node.op_type}/{name}"))
            self.scanned.append((again, g.node.outputs[-1], 1))
        if kept:
            attributes = dict(g.node.attributes) | {"body": forward}
            for key in ("scan_output_directions", "scan_output_axes"):
                if key in attributes:
                    attributes[key] = (*attributes[key], *[0] * len(kept))
            g.node.attributes = attributes
            g.builder.inference.visit(g.node)
            g.builder.types |= {name: g.type(name) for name in g.node.outputs if name}

    def _emit(self, directions: list[int]) -> list[str]:
        g, body = self.g, self.body
        body.inputs = [name for name, _ in self.states] + [name for name, _, _ in self.scanned]
        inputs = [value for _, value in self.states] + [value for _, value, _ in self.scanned]
        attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(self.scanned), "scan_input_directions": tuple(last for _, _, last in self.scanned),
                      "scan_output_directions": (*directions,)}
        if not directions:
            del attributes["scan_output_directions"]
        return g.ops("Scan", *inputs, *captured([body]), outputs=[True] * len(body.outputs), **attributes)


operator("Loop", gradient=iteration_gradient, stop_gradient=(0, 1))(infer_iteration)
operator("Scan", gradient=iteration_gradient, decompose=scan_decomposition, decompose_first=True)(infer_iteration)
