"""Times and lower bounds of ortrain's programs of one operator: the forward pass, and the forward pass with the gradient."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.operators.case import Case, aligned, output_gradient
from ortrain._core.engine import EngineHandle
from ortrain._core.program import Program
from ortrain.errors import InvalidArgumentError, MissingGradientError
from ortrain.fusion import fuse
from ortrain.gradient import BackwardPass
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.ops.registry.shape_inference import infer
from ortrain.passes.fused_training import expand_attention
from ortrain.plan import plan_program
from ortrain.runtime.segments import aligned_zeros

MIN_RUNS = 3
FACTORS = 2
"""Factors of a product: its gradient has as many products for each of them as the forward pass."""


@dataclass
class Work:
    """What a program has to do at least: bytes that it reads and writes, products, and evaluations of transcendental functions."""

    bytes: int = 0
    products: int = 0
    transcendentals: int = 0


@dataclass
class Prepared:
    """A planned program and the arrays to run it with.

    arena: of its own, so that several programs can run in turns. computed: whether the program computes the gradient of each differentiated input, which may
    be the incoming gradient itself instead."""

    program: Program
    arena: np.ndarray
    values: tuple[np.ndarray, ...]
    handle: EngineHandle
    work: Work
    computed: list[bool]

    @property
    def kernels(self) -> list[str]:
        """The kernel of each step."""
        return [step.call.kernel for step in self.program.plan.steps]

    def best_times(self, seconds: float) -> list[float]:
        """Return the times of the steps of the fastest run within so many seconds.

        All runs have the same arrays as outputs, as steps of a network use the same memory again."""
        self.program.bind_arena(self.arena)               # again, because a program that was planned since may have moved the engine's buffers
        out: list[np.ndarray] | None = None
        best, runs, until = [float("inf")], 0, time.perf_counter() + seconds
        while runs < MIN_RUNS or time.perf_counter() < until:
            self.handle.recording = []
            out = self.program.try_run(self.values, out=out)
            if out is None:
                raise InvalidArgumentError("expected inputs of the types that the program was planned for")
            if runs == 0:
                out = [aligned(result) for result in out]
            (_, timestamps), = self.handle.recording
            steps = [(end - start) * 1e-9 for start, end in itertools.pairwise(timestamps.tolist())]
            best = min(best, steps, key=sum)
            runs += 1
        self.handle.recording = None
        return best

    def best_time(self, seconds: float) -> float:
        """Return the time of the fastest run within so many seconds."""
        return sum(self.best_times(seconds))


def node_and_model(case: Case, arrays: list[np.ndarray | None]) -> tuple[Node, Model]:
    """Return the case's node, and a model that consists of it or of the nodes that a session replaces it by."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(arrays)]
    node = Node(case.operator, names, [f"y{i}" for i in range(case.outputs)], "node", case.domain,
                {key: tuple(value) if isinstance(value, list) else value for key, value in case.attributes.items()})
    graph = Graph(inputs=[], nodes=[node], outputs=list(node.outputs))
    for i, (name, x) in enumerate(zip(names, arrays, strict=True)):
        if x is None:
            continue
        if case.is_constant(i):
            graph.initializers[name] = x
        else:
            graph.inputs.append(name)
            graph.types[name] = TensorType.of(x)
    model = Model(graph, {"": case.opset, "com.microsoft": 1}, ir_version=8)
    expand_attention(model)                                 # as sessions do
    fuse(graph)
    return node, model


def add_backward(model: Model, node: Node, wanted: list[str]) -> list[str]:
    """Add the nodes of the gradient, which starts from the input `dy0` of the graph; return the values that are the gradients of the wanted ones."""
    graph = model.graph
    graph.inputs.append("dy0")
    graph.types["dy0"] = infer(model)[node.outputs[0]]
    scalar = Node("ReduceSum", [node.outputs[0]], ["loss"], attributes={"keepdims": 0})
    graph.nodes.append(scalar)                              # the backward pass starts from a value with one element; nothing computes it
    backward = BackwardPass(model, "loss")
    backward.graph.nodes = [other for other in graph.nodes if other is not scalar]
    backward._differentiate({node.outputs[0]: ["dy0"]}, wanted)
    gradients = [backward.summed_gradient(name) for name in wanted]
    if None in gradients:
        raise MissingGradientError(f"no gradient flows to {wanted}")
    backward.graph.nodes.extend(backward.added)
    copied = {other.outputs[0]: other.inputs[0] for other in backward.added if other.op_type == "Identity"}
    return [copied.get(name, name) for name in gradients if name]


def plan(model: Model, values: dict[str, np.ndarray], outputs: list[str], handle: EngineHandle) -> tuple[Program, tuple[np.ndarray, ...]]:
    """Return the program that computes these outputs, and its arguments."""
    given = tuple(np.ascontiguousarray(values[name]).reshape(values[name].shape) for name in model.graph.inputs)
    program = plan_program(model, {name: TensorType.of(x) for name, x in zip(model.graph.inputs, given, strict=True)}, {}, outputs, handle)
    return program, given


def prepare(case: Case, backward: bool, handle: EngineHandle) -> Prepared | None:
    """Plan a case; with `backward` its gradient too, None if it has none."""
    arrays = case.arrays()
    node, model = node_and_model(case, arrays)
    values = {name: x for name, x in zip(node.inputs, arrays, strict=True) if x is not None}
    outputs = [node.outputs[0]]
    differentiated = case.differentiated(arrays)
    if backward and not differentiated:
        return None
    types = infer(model)
    wanted = [node.inputs[i] for i in differentiated]
    forward_count = len(model.graph.nodes)
    gradients: list[str] = []
    if backward:
        values["dy0"] = output_gradient(types[node.outputs[0]].sizes)
        gradients = add_backward(model, node, wanted)
    computed = [name not in model.graph.inputs for name in gradients]
    program, given = plan(model, values, list(dict.fromkeys([*outputs, *itertools.compress(gradients, computed)])), handle)
    work = required_work(case, node, model, program.plan.types, list(itertools.compress(wanted, computed)), forward_count)
    return Prepared(program, aligned_zeros(program.arena_bytes, np.dtype(np.uint8)), given, handle, work, computed)


def size_in_bytes(kind: TensorType) -> int:
    """Return the bytes of a tensor of static shape."""
    return kind.count * np.dtype(kind.dtype).itemsize


def required_work(case: Case, node: Node, model: Model, types: dict[str, TensorType], wanted: list[str], forward_count: int) -> Work:
    """Return what must be done at least: every input and output is read or written once, and again by the gradient if that reads it.

    A gradient reads those of the operator's inputs and outputs that its nodes use for more than their shape. wanted: inputs whose gradients are computed."""
    tensors = [name for name in (*node.inputs, node.outputs[0]) if name]
    work = Work(sum(size_in_bytes(types[name]) for name in tensors), case.products, case.transcendentals[0])
    if wanted:
        backward_nodes = model.graph.nodes[forward_count:]
        read = {name for other in backward_nodes if other.op_type not in ("Shape", "Size") for name in other.inputs} & set(tensors)
        work.bytes += sum(size_in_bytes(types[name]) for name in (*read, *wanted, node.outputs[0]))
        work.products += case.products * min(len(wanted), FACTORS)
        work.transcendentals += case.transcendentals[1]
    return work
