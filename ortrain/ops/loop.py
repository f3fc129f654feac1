"""Loop and Scan, and their gradient.

In this intermediate representation, Loop and Scan nodes list the outer values that their bodies capture as additional inputs, after those that ONNX
defines. A plan compiles the body once and runs it for every iteration. The gradient of both operators is a Scan over the iterations in reverse order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain import dtypes
from ortrain.ir import Dim, Graph, Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import InferenceContext, normalize_axis, operator
from ortrain.ops.registry.shape_inference import ShapeInference, union_type
from ortrain.ops.registry.subgraphs import captured_values, defined_values, inline_graph, rename_values

MAX_EVALUATED_ITERATIONS = 1 << 14
"""Iterations after which planning stops to evaluate the condition of a Loop to find its iteration count: each costs about 0.1 ms."""


@dataclass(frozen=True)
class LoopSignature:
    """The common interface of Loop and Scan: states carried between iterations, scanned inputs, collected outputs."""

    node: Node
    body: Graph
    state_count: int
    scan_input_count: int
    is_loop: bool
    """True for a Loop, whose body has the iteration number and the condition as its first inputs and the next condition as its first output."""

    @classmethod
    def of(cls, node: Node) -> LoopSignature:
        """Return the signature of a Loop or Scan node."""
        body = node.graphs["body"]
        if node.op_type == "Loop":
            return cls(node, body, len(body.inputs) - 2, 0, True)
        scan_input_count = int(node.attributes["num_scan_inputs"])
        return cls(node, body, len(body.inputs) - scan_input_count, scan_input_count, False)

    @property
    def first_state_input(self) -> int:
        """The index of the first state among the inputs of the node and of the body."""
        return 2 if self.is_loop else 0

    @property
    def first_scan_input(self) -> int:
        """The index of the first scanned input among the inputs of the node and of the body."""
        return self.first_state_input + self.state_count

    @property
    def first_state_output(self) -> int:
        """The index of the first state among the outputs of the body."""
        return 1 if self.is_loop else 0

    @property
    def scan_output_count(self) -> int:
        """The number of collected outputs."""
        return len(self.body.outputs) - self.first_state_output - self.state_count

    @property
    def input_count(self) -> int:
        """The number of inputs of the node before the captured values."""
        return len(self.body.inputs)

    def directions(self, which: str) -> list[int]:
        """Return for each scanned input (which = "input") or collected output ("output") 1 if its slices are in reverse order, else 0."""
        count = self.scan_input_count if which == "input" else self.scan_output_count
        return list(self.node.attributes.get(f"scan_{which}_directions", ()) or [0] * count)

    def axes(self, which: str) -> list[int]:
        """Return for each scanned input (which = "input") or collected output ("output") the axis of the iterations."""
        count = self.scan_input_count if which == "input" else self.scan_output_count
        return list(self.node.attributes.get(f"scan_{which}_axes", ()) or [0] * count)

    @property
    def state_inputs(self) -> list[str]:
        """The body's names of the states at the start of an iteration."""
        return self.body.inputs[self.first_state_input : self.first_scan_input]

    @property
    def slice_inputs(self) -> list[str]:
        """The body's names of the slices of scanned inputs."""
        return self.body.inputs[self.first_scan_input :]

    @property
    def state_outputs(self) -> list[str]:
        """The body's names of the states at the end of an iteration."""
        return self.body.outputs[self.first_state_output : self.first_state_output + self.state_count]

    @property
    def slice_outputs(self) -> list[str]:
        """The body's names of the slices of collected outputs."""
        return self.body.outputs[self.first_state_output + self.state_count :]


# ---- types


@dataclass
class BodyInference:
    """The result of shape inference in a body: types that hold in every iteration."""

    state_types: list[TensorType]
    input_types: dict[str, TensorType]
    """Types of the body's inputs, by name."""
    inference: ShapeInference


def infer_body(c: InferenceContext, signature: LoopSignature) -> BodyInference:
    """Infer the body repeatedly until the types of the states no longer change from the start to the end of an iteration.

    This terminates: each round replaces at least one known size or rank of a state by an unknown one."""
    outer = c.inference
    assert outer is not None, "a Loop is inferred as part of a graph"
    states = [c.type(signature.first_state_input + index) for index in range(signature.state_count)]
    scan_inputs = range(signature.first_scan_input, signature.input_count)
    slices = [_slice_type(c, c.type(index), axis) for index, axis in zip(scan_inputs, signature.axes("input"), strict=True)]
    while True:
        counters = [TensorType("int64", ()), TensorType("bool", ())] if signature.is_loop else []
        inputs = dict(zip(signature.body.inputs, [*counters, *states, *slices], strict=True))
        inference = ShapeInference(outer.opsets, {**outer.types, **inputs}, outer.values | signature.body.initializers, signature.body.types)
        for node in signature.body.nodes:
            inference.visit(node)
        pairs = zip(states, signature.state_outputs, strict=True)
        merged = [union_type(c, f"state {index}", f"state{index}", a, inference.types[name]) for index, (a, name) in enumerate(pairs)]
        if merged == states:
            return BodyInference(states, inputs, inference)
        states = merged


def _slice_type(c: InferenceContext, kind: TensorType, axis: int) -> TensorType:
    """Return the type of one slice of a scanned input."""
    if kind.shape is None:
        return kind
    dims = list(kind.shape)
    del dims[normalize_axis(c, axis, len(dims))]
    return TensorType(kind.dtype, tuple(dims))


def _stacked_type(c: InferenceContext, kind: TensorType, axis: int, length: Dim) -> TensorType:
    """Return the type of a collected output whose slices have type `kind`."""
    if kind.shape is None:
        return kind
    dims = list(kind.shape)
    dims.insert(normalize_axis(c, axis, len(dims) + 1), length)
    return TensorType(kind.dtype, tuple(dims))


def iteration_count(c: InferenceContext, signature: LoopSignature, inferred: BodyInference) -> Dim | None:
    """Return the number of iterations: a number, a symbol, or None for a Loop where it is unknown."""
    if not signature.is_loop:
        return _scan_length(c, signature)
    limit, condition = c.value(0), c.value(1)
    if condition is not None and not bool(condition.reshape(-1)[0]):
        return 0
    if c.has(0) and limit is None or c.has(1) and condition is None:
        return None
    max_count = None if limit is None else max(0, int(limit.reshape(-1)[0]))
    if max_count is not None and _condition_stays_true(signature, inferred):
        return max_count
    return _evaluated_iteration_count(c, signature, max_count)


def _scan_length(c: InferenceContext, signature: LoopSignature) -> Dim:
    """Return the number of slices of the scanned inputs. Raises if known lengths differ."""
    sizes = [c.shape(index)[axis] for index, axis in enumerate(signature.axes("input"), signature.state_count)]
    numbers = {size for size in sizes if isinstance(size, int)}
    if len(numbers) > 1:
        raise c.error(f"expected scanned inputs of one length, got {sizes}")
    return numbers.pop() if numbers else sizes[0]


def _condition_stays_true(signature: LoopSignature, inferred: BodyInference) -> bool:
    """Return whether the body's condition output is constant and true, or the condition input itself."""
    name, producers = signature.body.outputs[0], signature.body.producers()
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].inputs[0]
    constant = inferred.inference.values.get(name)
    return name == signature.body.inputs[1] or constant is not None and bool(constant.reshape(-1)[0])


def _evaluated_iteration_count(c: InferenceContext, signature: LoopSignature, max_count: int | None) -> int | None:
    """Return the iterations of a Loop whose condition depends only on constants, counters and states that do, by evaluating the condition.

    None where it depends on other values, or is still true after MAX_EVALUATED_ITERATIONS."""
    outer, body = c.inference, signature.body
    needed = {body.outputs[0]}
    followed: dict[str, str] = {}                         # states that the condition depends on: name at the start -> name at the end
    while True:
        nodes = body.ancestors(needed)
        read = {name for node in nodes for name in node.inputs} | needed
        ends = {a: b for a, b in zip(signature.state_inputs, signature.state_outputs, strict=True) if a in read}
        if ends == followed:
            break
        followed = ends
        needed |= set(ends.values())
    values = {name: c.value(signature.first_state_input + index) for index, name in enumerate(signature.state_inputs) if name in followed}
    if any(value is None for value in values.values()) or any(node.graphs for node in nodes):
        return None
    for k in range(MAX_EVALUATED_ITERATIONS if max_count is None else min(max_count, MAX_EVALUATED_ITERATIONS)):
        inputs = {body.inputs[0]: np.array(k, np.int64), body.inputs[1]: np.array(True), **values}
        inference = ShapeInference(outer.opsets, {}, outer.values | body.initializers | inputs)
        for node in nodes:
            if any(name and name not in inference.values for name in node.inputs):
                return None
            inference.visit(node)
        if body.outputs[0] not in inference.values or any(name not in inference.values for name in followed.values()):
            return None
        if not bool(inference.values[body.outputs[0]].reshape(-1)[0]):
            return k + 1
        values = {start: inference.values[end] for start, end in followed.items()}
    return max_count if max_count is not None and max_count <= MAX_EVALUATED_ITERATIONS else None


def infer_loop(c: InferenceContext) -> list[TensorType]:
    """(states after the last iteration, outputs collected from all iterations) of a body that runs for every iteration"""
    signature = LoopSignature.of(c.node)
    inferred = infer_body(c, signature)
    count = iteration_count(c, signature, inferred)
    length = c.new_symbol("iterations") if count is None else count
    kinds = [inferred.inference.types[name] for name in signature.slice_outputs]
    for kind in kinds:
        if kind.sequence:
            raise c.error("expected collected outputs to be tensors, got a sequence")
    return [*inferred.state_types, *(_stacked_type(c, kind, axis, length) for kind, axis in zip(kinds, signature.axes("output"), strict=True))]


# ---- decompositions


def scan_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return a Scan along the first axis between Transposes, for a Scan along other axes."""
    signature = LoopSignature.of(g.node)
    axes = [signature.axes(which) for which in ("input", "output")]
    if not any(axes[0]) and not any(axes[1]):
        return None
    attributes = {name: value for name, value in g.node.attributes.items() if name not in ("scan_input_axes", "scan_output_axes")}
    inputs = list(g.inputs)
    for index, axis in enumerate(axes[0], signature.state_count):
        if axis:
            order = list(range(g.rank(inputs[index])))
            order.insert(0, order.pop(axis))
            inputs[index] = g.op("Transpose", inputs[index], perm=tuple(order))
    outputs = g.ops("Scan", *inputs, outputs=[bool(name) for name in g.outputs], **attributes)
    for index, axis in enumerate(axes[1], signature.state_count):
        if axis and index < len(outputs) and outputs[index]:
            order = list(range(1, g.rank(outputs[index])))
            order.insert(axis if axis >= 0 else len(order) + 1 + axis, 0)
            outputs[index] = g.op("Transpose", outputs[index], perm=tuple(order))
    return outputs


def unroll(g: NodeBuilder, count: int) -> list[str]:
    """Return the outputs of a Loop or Scan unrolled into `count` copies of its body, for bodies whose sizes change between iterations."""
    signature = LoopSignature.of(g.node)
    states = list(g.inputs[signature.first_state_input : signature.first_scan_input])
    scan_inputs = g.inputs[signature.first_scan_input : signature.input_count]
    slices: list[list[str]] = [[] for _ in range(signature.scan_output_count)]
    for k in range(count):
        inputs = dict(zip(signature.state_inputs, states, strict=True))
        if signature.is_loop:
            inputs |= {signature.body.inputs[0]: g.constant(np.array(k, np.int64)), signature.body.inputs[1]: g.constant(np.array(True))}
        for name, source, reverse in zip(signature.slice_inputs, scan_inputs, signature.directions("input"), strict=True):
            inputs[name] = g.op("Gather", source, g.constant(np.array(count - 1 - k if reverse else k, np.int64)), axis=0)
        results = inline_graph(g, signature.body, inputs)[signature.first_state_output :]
        states = results[: signature.state_count]
        for index, name in enumerate(results[signature.state_count :]):
            slices[index].append(g.unsqueeze(name, [0]))
    collected = [g.op("Concat", *(names[::-1] if reverse else names), axis=0)
                 for names, reverse in zip(slices, signature.directions("output"), strict=True)]
    return [*states, *collected]


# ---- gradient


def loop_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """Return the outputs of a Scan over the iterations in reverse order.

    Each iteration recomputes its forward pass from the states at its start, then runs the backward pass. The states of this Scan are the gradients of the
    states and the accumulated gradients of captured values; its collected outputs are the gradients of scanned inputs."""
    return BackwardScan(g, LoopSignature.of(g.node)).build()


class BackwardScan:
    """Builder of the Scan that computes the gradient of a Loop or Scan."""

    def __init__(self, g: GradientBuilder, signature: LoopSignature) -> None:
        self.g, self.signature = g, signature
        self.inferred = infer_body(g.context(), signature)
        unique = g.builder.names.unique
        self.recomputed = {name: unique(f"{name}/again") for name in (*signature.body.inputs, *defined_values(signature.body))}
        """Name in the forward body -> name of the recomputed value in the backward body."""
        self.body = rename_values(signature.body, self.recomputed)
        self.body.inputs = []
        self.differentiable_states = [index for index, kind in enumerate(self.inferred.state_types) if kind.dtype in dtypes.DIFFERENTIABLE]
        """Indices of the states that have gradients."""
        self.states: list[tuple[str, str]] = []
        """(name in the backward body, initial value) of each state of the Scan."""
        self.scan_inputs: list[tuple[str, str, int]] = []
        """(name of the slice in the backward body, outer value, direction) of each scanned input of the Scan."""

    def build(self) -> Sequence[str | None]:
        """Add the Scan, and return the gradient of each input of the node, None for inputs without one."""
        g, signature, body = self.g, self.signature, self.body
        seeds = self._output_gradients()
        needed = [index for index in range(signature.first_state_input, len(g.inputs)) if g.needs(index)]
        scanned = [index for index in needed if signature.first_scan_input <= index < signature.input_count]
        captured = [index for index in needed if index >= signature.input_count]
        states = [self.recomputed[signature.state_inputs[index]] for index in self.differentiable_states]
        slices = [self.recomputed[signature.body.inputs[index]] for index in scanned]
        types = {self.recomputed[name]: kind for name, kind in self.inferred.input_types.items()}
        types |= {name: self._seed_types[name] for names in seeds.values() for name in names}
        gradients = g.builder.inner_gradients(body, types, seeds, [*states, *slices], [g.inputs[index] for index in captured])
        state_gradients, slice_gradients = gradients[: len(states)], gradients[len(states) : len(states) + len(slices)]
        captured_gradients = [(index, gradient) for index, gradient in zip(captured, gradients[len(states) + len(slices) :], strict=True) if gradient]
        sums = [self._accumulate(index, gradient) for index, gradient in captured_gradients]
        body.outputs = [name or "" for name in (*state_gradients, *sums, *slice_gradients)]
        body.nodes = body.ancestors(body.outputs)
        self._save_iteration_starts()
        results = self._emit([1 - signature.directions("input")[index - signature.first_scan_input] for index in scanned])
        state_indices = (signature.first_state_input + index for index in self.differentiable_states)
        gradient_of = dict(zip([*state_indices, *(index for index, _ in captured_gradients), *scanned], results, strict=True))
        return [gradient_of.get(index) for index in range(len(g.inputs))]

    def _output_gradients(self) -> dict[str, list[str]]:
        """Return the gradients of the body's outputs by name: a state of the Scan for each state, a slice of dY for each collected output."""
        g, signature = self.g, self.signature
        seeds: dict[str, list[str]] = {}
        self._seed_types: dict[str, TensorType] = {}
        for index in self.differentiable_states:
            name = g.builder.names.unique(f"{signature.state_outputs[index]}_grad")
            gradient = g.gradients[index] if index < len(g.gradients) else None
            self.states.append((name, gradient or self._zeros(g.inputs[signature.first_state_input + index])))
            self._seed_types[name] = self.inferred.state_types[index]
            seeds.setdefault(self._recomputed_name(signature.state_outputs[index]), []).append(name)
        for index, (value, reverse) in enumerate(zip(signature.slice_outputs, signature.directions("output"), strict=True)):
            gradient = g.gradients[signature.state_count + index] if signature.state_count + index < len(g.gradients) else None
            if gradient:
                name = g.builder.names.unique(f"{value}_grad")
                self.scan_inputs.append((name, gradient, 1 - reverse))
                self._seed_types[name] = self.inferred.inference.types[value]
                seeds.setdefault(self._recomputed_name(value), []).append(name)
        return seeds

    def _recomputed_name(self, name: str) -> str:
        return self.recomputed.get(name, name)

    def _zeros(self, like: str) -> str:
        dtype = dtypes.numpy_dtype(self.g.type(like).dtype)
        return self.g.op("ConstantOfShape", self.g.shape_of(like), value=np.zeros(1, dtype))

    def _accumulate(self, index: int, gradient: str) -> str:
        """Add a state that accumulates the gradient of captured input `index` over the iterations; return its name at the end of an iteration."""
        value, unique = self.g.inputs[index], self.g.builder.names.unique
        so_far, total = unique(f"{value}_grad_sum"), unique(f"{value}_grad_sum")
        self.states.append((so_far, self._zeros(value)))
        self.body.nodes.append(Node("Add", [so_far, gradient], [total], unique(f"{value}_Grad/Add")))
        return total

    def _save_iteration_starts(self) -> None:
        """Make the forward node collect what the recomputation reads at the start of an iteration, its number and states, and scan it with the inputs."""
        g, signature = self.g, self.signature
        read = {name for node in self.body.nodes for name in node.inputs} | set(self.body.outputs)
        forward = signature.body.copy()
        saved: list[tuple[str, str]] = []                  # (name in the backward body, name in the forward body)
        for name in signature.body.inputs[: signature.first_scan_input]:
            recomputed = self.recomputed[name]
            if signature.is_loop and name == signature.body.inputs[1]:
                if recomputed in read:
                    identity = g.builder.names.unique(f"{recomputed}/Identity")
                    self.body.nodes.insert(0, Node("Identity", [g.constant(np.array(True))], [recomputed], identity))
            elif recomputed in read:
                saved.append((recomputed, name))
        scan_inputs = g.inputs[signature.first_scan_input : signature.input_count]
        for name, source, reverse in zip(signature.slice_inputs, scan_inputs, signature.directions("input"), strict=True):
            if self.recomputed[name] in read or not self.scan_inputs:
                self.scan_inputs.append((self.recomputed[name], source, 1 - reverse))
        if not self.scan_inputs and not saved and signature.is_loop:          # a Scan needs a scanned input, which gives its length
            saved.append((self.recomputed[signature.body.inputs[0]], signature.body.inputs[0]))
        while len(g.node.outputs) < signature.state_count + signature.scan_output_count:
            g.node.outputs.append("")
        for recomputed, name in saved:
            slice_name = g.builder.names.unique(f"{name}/start")
            forward.nodes.append(Node("Identity", [name], [slice_name], g.builder.names.unique(f"{name}/start/Identity")))
            forward.outputs.append(slice_name)
            g.node.outputs.append(g.builder.names.unique(f"{g.node.name or g.node.op_type}/{name}"))
            self.scan_inputs.append((recomputed, g.node.outputs[-1], 1))
        if saved:
            attributes = dict(g.node.attributes) | {"body": forward}
            for key in ("scan_output_directions", "scan_output_axes"):
                if key in attributes:
                    attributes[key] = (*attributes[key], *[0] * len(saved))
            g.node.attributes = attributes
            g.builder.inference.visit(g.node)
            g.builder.types |= {name: g.type(name) for name in g.node.outputs if name}

    def _emit(self, output_directions: list[int]) -> list[str]:
        """Add the Scan node and return its outputs."""
        g, body = self.g, self.body
        body.inputs = [name for name, _ in self.states] + [name for name, _, _ in self.scan_inputs]
        inputs = [value for _, value in self.states] + [value for _, value, _ in self.scan_inputs]
        attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(self.scan_inputs),
                                      "scan_input_directions": tuple(direction for _, _, direction in self.scan_inputs),
                                      "scan_output_directions": (*output_directions,)}
        if not output_directions:
            del attributes["scan_output_directions"]
        return g.ops("Scan", *inputs, *captured_values([body]), outputs=[True] * len(body.outputs), **attributes)


operator("Loop", gradient=loop_gradient, stop_gradient=(0, 1))(infer_loop)
operator("Scan", gradient=loop_gradient, decompose=scan_decomposition, decompose_first=True)(infer_loop)
