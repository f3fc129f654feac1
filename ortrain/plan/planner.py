"""Specializes a graph to input shapes, lowers it to kernel calls and lays out their memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ortrain._core.builtin_kernels import KERNELS as BUILTIN_KERNELS
from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import kernels
from ortrain._core.loop import KERNELS as ITERATION_KERNELS
from ortrain._core.loop import Iteration
from ortrain._core.program import Program
from ortrain.dtypes import FLOATS, numpy_dtype
from ortrain.errors import IndexRangeError, InvalidModelError, MissingKernelError, ShapeInferenceError
from ortrain.ir import Dim, Graph, Model, NameSource, Node, TensorType
from ortrain.ops.loop import Form, Inside, look_inside, trips, unrolled
from ortrain.ops.registry.constants import ConstantValues, is_symbolic
from ortrain.ops.registry.cost_model import is_known
from ortrain.ops.registry.decomposition import decompose, named_as
from ortrain.ops.registry.node_builder import GraphBuilder, NodeBuilder
from ortrain.ops.registry.onnx_definitions import defined
from ortrain.ops.registry.record import Alias, Guard, KernelCall, LoweringContext, OpRecord, apply_rule, canonical_domain, record_of
from ortrain.ops.registry.shape_inference import Inference
from ortrain.ops.registry.subgraphs import has_graphs
from ortrain.ops.registry.optimizers import UPDATES
from ortrain.ops.training import ACCUMULATOR, UPDATED, WRITTEN
from ortrain.plan.data_dependence import PartitionRequired, InputValuesRequired, Unknowns
from ortrain.plan.deferred_gradients import DeferredGradients, ParameterUpdates, defer_gradients
from ortrain.plan.emission import Emission
from ortrain.plan.epilogue_fusion.dense import merge_dense
from ortrain.plan.epilogue_fusion.optimizer_update import merge_updates
from ortrain.plan.layout import lay_out
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.rematerialization import rematerialize
from ortrain.plan.scheduling import orders, update_early
from ortrain.plan.steps import Step

ELEMENT_TYPES = frozenset({"float32", "float64", "int32", "int64", "uint8", "int8", "bool"})
"""Those whose size every kernel knows; others are only for kernels that are listed for them. A kernel is looked up by the type of a node's first tensor."""
OF_MIXED_FLOATS = frozenset({"cast", "dropout", "dropout_grad", "gemm_update", "scale", *(algorithm.kernel for algorithm in UPDATES.values())})
"""Kernels that look at the type of every tensor; all others take floats to be of one."""
COMMIT = "Commit"
"""What stands for the steps that no node of the model asks for."""


def _attribute_key(node: Node) -> tuple[Any, ...]:
    """The attributes as something that can be compared."""
    return tuple((name, (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else id(value) if isinstance(value, Graph) else value)
                 for name, value in sorted(node.attributes.items()))


def _label(node: Node) -> str:
    return next((name for name in node.outputs if name), node.name)


def plan_program(model: Model, inputs: Mapping[str, TensorType], fixed: Mapping[str, np.ndarray], outputs: Sequence[str],
                 handle: EngineHandle, commits: Mapping[str, np.ndarray] | None = None, known: Mapping[str, np.ndarray] | None = None,
                 states: Mapping[str, str] | None = None, objects: Collection[str] = (), deferred: ParameterUpdates | None = None) -> Program:
    """The program that computes `outputs` of a model for inputs of exactly these types.

    inputs: user inputs in the order of the call, with static shapes. fixed: values that live outside the program (parameters, gradient
    buffers, flags) and keep their address. commits: value name -> array that receives the value at the end of a run (running statistics).
    known: user inputs that are constants of this plan. states: output -> the input whose place it may be written to. objects: inputs that are text,
    sequences or optionals. deferred: what updates parameters whose gradients a run may leave until later, with its arrays in `fixed`. Accumulators and updates
    whose buffer or parameter is in `fixed` are always computed.

    Raises InputValuesRequired when more inputs have to be known, PartitionRequired when something has to run before, ShapeInferenceError, MissingKernelError or
    InvalidModelError."""
    return Planner(model, inputs, fixed, outputs, handle, commits or {}, known or {}, states or {}, objects, deferred).build()


class Planner:
    """The work of one planning."""

    def __init__(self, model: Model, inputs: Mapping[str, TensorType], fixed: Mapping[str, np.ndarray], outputs: Sequence[str],
                 handle: EngineHandle, commits: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray], states: Mapping[str, str],
                 objects: Collection[str], deferred: ParameterUpdates | None) -> None:
        self.updates, self.deferred = deferred, DeferredGradients()
        self.model, self.inputs, self.fixed, self.wanted, self.handle, self.commits = model, inputs, fixed, outputs, handle, commits
        types = dict(inputs) | {name: TensorType.of(array) for name, array in fixed.items()}
        values = {**model.graph.initializers, **known}
        symbolic = any(is_symbolic(kind.shape or ()) for kind in inputs.values())
        self.inference = Inference(model.opsets, types, ConstantValues(values) if symbolic else values, model.graph.types)
        self.builder = GraphBuilder(self.inference, NameSource(model.graph.names()), model.opset)
        self.unknowns = Unknowns(model.graph, inputs, objects, self.inference)
        self.lifetimes = Lifetimes(self.inference.types, self._is_outside, outputs, states)
        self.steps: list[Step] = []
        self._guarded: list[tuple[str, int, int, int | None]] = []
        self.iterations: dict[str, Iteration] = {}
        """What Loops and Scans run, by the name of their first output."""

    def build(self) -> Program:
        nodes, kept = self._distinct(self._needed(infer=True)), (*self.wanted, *self.commits)
        laid_out = lay_out(nodes, self.builder, kept, not self.handle.winograd)
        for node in merge_updates(merge_dense(laid_out, self.inference, kept), self.inference, kept):
            self._lower(node)
        self._add_commits()
        self._hoist_guards()
        self._hold_shortly()
        return Emission(self.deferred, self.lifetimes, self.inference, self.inputs, self.fixed, self.wanted, self.commits, self._has_effect,
                        self._accumulates).run(self.handle)

    # ---- which nodes run

    def _needed(self, infer: bool) -> list[Node]:
        """Nodes in order without those that are constants, or that nothing asks for."""
        nodes = self.model.graph.nodes
        graph_needs = self._live(nodes)
        live: list[Node] = []
        for node in nodes:
            if id(node) in graph_needs:
                self._visit(node)
                try:
                    pieces = self._pieces(node)
                except PartitionRequired as error:
                    if error.node is not None and id(error.node) not in graph_needs:     # a piece of the node
                        raise self.unknowns.outside(node, error) from error
                    raise
                self.unknowns.note(node, pieces)
                live.extend(piece for piece in pieces if not all(name in self.inference.values for name in piece.outputs if name))
        again = self._live(live)                 # folding has cut off what only shapes were needed of
        return [node for node in live if id(node) in again]

    def _visit(self, node: Node) -> None:
        if self.unknowns.reads_objects(node):
            self.unknowns.refuse_objects(node)
        try:
            self.inference.visit(node)
        except ShapeInferenceError as error:
            self.unknowns.ask(node, error)
            raise
        if self.unknowns.makes_objects(node):
            self.unknowns.refuse_objects(node)

    def _pieces(self, node: Node) -> list[Node]:
        """The nodes that stand for one; ONNX's own kernel has to do where they need to know what is computed."""
        try:
            pieces = decompose(node, self.builder) or [node]
            return [part for piece in pieces for part in (self._iteration_pieces(piece) if piece.op_type in ("Loop", "Scan") else [piece])]
        except ShapeInferenceError as error:
            self.unknowns.ask(node, error)
            record = record_of(node)
            if record is None or record.lower is None and defined(canonical_domain(node.domain), node.op_type) is None:
                raise
            return [node]

    def _iteration_pieces(self, node: Node) -> list[Node]:
        """A Loop or Scan whose body has a program; the nodes of all its iterations where it cannot have one for all."""
        original, node = node, node.copy()
        form = Form.of(node)
        context = self.inference.context(node)
        inside = look_inside(context, form)
        count = trips(context, form, inside)
        if all(kind.is_static for kind in inside.states):
            try:
                self.iterations[_label(node)] = self._iteration(form, inside, count)
                return [node]
            except (ShapeInferenceError, InvalidModelError) as error:
                if isinstance(error, InputValuesRequired | PartitionRequired):
                    raise
                if not isinstance(count, int):
                    raise
        if not isinstance(count, int):
            return [node]
        node = original.copy()
        builder = self.builder
        before, builder.added = builder.added, []
        try:
            results = unrolled(NodeBuilder(builder, node), count)
            made = list(named_as(builder.added, node, results, builder))
        finally:
            builder.added = before
        return [part for piece in made for part in self._pieces(piece)]

    def _iteration(self, form: Form, inside: Inside, count: Dim | None) -> Iteration:
        """The body's program, and how often it runs on what."""
        graph, values = form.body.copy(), self.inference.values
        outer = [name for name in dict.fromkeys(form.node.inputs[form.own :]) if name]
        graph.initializers |= {name: values[name] for name in outer if name in values}
        # of captured values only those that move are inputs of the body
        form.node.inputs[form.own :] = outer = [name for name in outer if name not in values and name not in self.fixed]
        inputs = inside.inputs | {name: self.inference.types[name] for name in outer}
        try:
            # a state's own place is free where nothing else is to come out of it
            outputs = form.body.outputs
            states = {end: start for start, end in zip(form.state_inputs, form.state_outputs, strict=True) if outputs.count(end) == 1}
            body = plan_program(Model(graph, self.model.opsets), inputs, self.fixed, graph.outputs, self.handle, states=states)
        except InputValuesRequired as error:
            self.unknowns.ask_for_inputs([name for name in error.names if name in outer], error)
            raise InvalidModelError(f"expected sizes that are the same in every iteration: {error}") from error
        except PartitionRequired as error:
            raise PartitionRequired(error, node=form.node) from error
        slices = [inside.inference.types[name] for name in (*form.slice_inputs, *form.slice_outputs)]
        state_sizes, pieces = ([kind.count * numpy_dtype(kind.dtype).itemsize for kind in kinds] for kinds in (inside.states, slices))
        return Iteration(body, form.counts, count if isinstance(count, int) else -1, state_sizes, pieces[: form.scanned], pieces[form.scanned :],
                         [*form.backwards("input"), *form.backwards("output")])

    def _distinct(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes without those that compute what an earlier one has computed: an If's gradient runs its branch forward again."""
        names: dict[str, str] = {}
        first: dict[tuple[Any, ...], Node] = {}
        kept = []
        keep = {*self.wanted, *self.commits}
        for node in nodes:
            record = record_of(node)
            if names:
                node = Node(node.op_type, [names.get(n, n) for n in node.inputs], node.outputs, node.name, node.domain, node.attributes)
            key = (node.domain, node.op_type, tuple(node.inputs), tuple(map(bool, node.outputs)), _attribute_key(node))
            twin = first.setdefault(key, node)
            if twin is node or record is None or record.random or self._has_effect(node) or keep.intersection(node.outputs):
                kept.append(node)
            else:
                names |= dict(zip(node.outputs, twin.outputs, strict=True))
        return kept

    def _live(self, nodes: Sequence[Node]) -> set[int]:
        wanted = {*self.wanted, *self.commits}
        live: set[int] = set()
        for node in reversed(nodes):
            if self._has_effect(node) or wanted.intersection(node.outputs):
                live.add(id(node))
                wanted.update(name for name in node.inputs if name not in self.inference.values)
        return live

    def _is_accumulation(self, node: Node) -> bool:
        return node.op_type == ACCUMULATOR and self._writes_over(node, 0)

    def _is_update(self, step: Step) -> bool:
        return step.guard is None and step.node.op_type in UPDATED

    def _has_effect(self, node: Node) -> bool:
        """Whether a node is there for what it writes over: a gradient or a parameter."""
        return self._is_accumulation(node) or node.op_type in UPDATED and self._writes_over(node, UPDATED[node.op_type])

    def _writes_over(self, node: Node, index: int) -> bool:
        return index < len(node.inputs) and node.inputs[index] in self.fixed

    # ---- lowering

    def _lower(self, node: Node) -> None:
        record = record_of(node)
        assert record is not None
        self._check_written(node)
        node = self._complete(node, record)
        context = self._context(node, record)
        iteration = self.iterations.get(_label(node)) if node.op_type in ("Loop", "Scan") else None
        if iteration is not None:
            call = KernelCall("iterate", (iteration.address,), scratch=iteration.scratch)
            self.steps.append(Step(node, call, list(node.inputs), list(node.outputs), None, ITERATION_KERNELS["iterate"], iteration=iteration))
            return
        try:
            how, address = self._how(node, record, context)
        except (ShapeInferenceError, MissingKernelError) as error:
            reference = defined(canonical_domain(node.domain), node.op_type)
            if reference is None or reference.lower is None:
                self.unknowns.ask(node, error)
                if has_graphs(node):                     # an If on what an iteration has computed, among the nodes of all iterations
                    raise self.unknowns.outside(node, error) from error
                raise
            how = reference.lower(context)
            address = BUILTIN_KERNELS["python"]
        if isinstance(how, Alias):
            self.lifetimes.alias[node.outputs[0]] = self.lifetimes.root(node.inputs[how.input])
            return
        for guard in how.guards:
            self._add_guard(node, guard)
        read = ["" if index in how.unread else name for index, name in enumerate(node.inputs)]
        self.steps.append(Step(node, how, read, list(node.outputs), None, address))

    def _complete(self, node: Node, record: OpRecord) -> Node:
        """The node with a name for each output that its kernel writes though nobody asks for it."""
        if all(node.outputs[: record.written]) and len(node.outputs) >= record.written:
            return node
        given = [*node.outputs, *[""] * (record.written - len(node.outputs))]
        fresh = [name or self.builder.names.unique(f"{node.name or node.op_type}::unused") for name in given[: record.written]]
        node = replace(node, outputs=fresh + given[record.written :])
        self.inference.visit(node)
        return node

    def _check_written(self, node: Node) -> None:
        """Refuses a node of a model that writes over what is not the session's, an input of the user's or a constant, or with what another one writes over."""
        for index in WRITTEN.get(node.op_type, ()):
            name = node.inputs[index] if index < len(node.inputs) else ""
            if name and self.lifetimes.unaliased(name) not in self.fixed:
                raise InvalidModelError(f"expected {node.op_type} to write over a parameter of the session, its moments or its gradient, got {name!r} "
                                        f"(node {node.name!r})")
        if node.op_type in UPDATES and self.lifetimes.unaliased(node.inputs[1]) in self.fixed:
            raise InvalidModelError(f"expected a gradient that is computed, got the parameter {node.inputs[1]!r} as that of {node.inputs[0]!r}: another update "
                                    f"may write over it first (node {node.name!r})")

    def _again(self, step: Step) -> Step | None:
        """The step that makes the first output of a step once more: a cheap one, where its record has it, or else the same step, where its cost is known."""
        record = record_of(step.node)
        node = record.rematerialize(step.node, self.builder.names.unique(f"{step.outputs[0]}::again")) if record is not None and record.rematerialize is not None else None
        if node is not None:
            self.inference.visit(node)
            self._lower(node)
            return self.steps.pop()
        if self._stays(step) or self._has_effect(step.node) or not is_known(step.node.op_type):
            return None
        names = {name: self.builder.names.unique(f"{name}::again") for name in filter(None, step.outputs)}
        self.inference.types |= {new: self.inference.types[name] for name, new in names.items()}
        outputs = [names.get(name, "") for name in step.outputs]
        node = Node(step.node.op_type, step.node.inputs, outputs, f"{step.node.name or step.node.op_type}::again", step.node.domain,
                    step.node.attributes)
        return replace(step, node=node, outputs=outputs)

    def _how(self, node: Node, record: OpRecord, context: LoweringContext) -> tuple[KernelCall | Alias, int]:
        """What the record asks for, and the address of its kernel."""
        if record.lower is None or not self.inference.foreign.isdisjoint(node.outputs):
            raise MissingKernelError(f"expected an operator with a kernel, got {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r})")
        how = apply_rule(node, record.lower, context)
        return how, 0 if isinstance(how, Alias) else self._address(node, how)

    def _add_guard(self, node: Node, guard: Guard) -> None:
        """A step that refuses indices out of range; constants are looked at now, and nothing is checked twice."""
        source = node.inputs[guard.input]
        known = self.inference.values.get(source)
        if known is not None:
            bad = known[(known < guard.low) | (known >= guard.high)]
            if guard.ignored is not None:
                bad = bad[bad != guard.ignored]
            if bad.size:
                raise IndexRangeError(f"expected every element of the constant {source!r} in [{guard.low}, {guard.high}), got {bad.ravel()[0]} "
                                      f"(operator {node.op_type}, node {node.name!r})")
            return
        key = (self.lifetimes.root(source), guard.low, guard.high, guard.ignored)
        if key not in self._guarded:
            self._guarded.append(key)
            call = KernelCall("check_range", (guard.low, guard.high, int(guard.ignored is not None), guard.ignored or 0))
            self.steps.append(Step(node, call, [source], [], guard, BUILTIN_KERNELS["check_range"]))

    def _context(self, node: Node, record: OpRecord) -> LoweringContext:
        seen = self.inference.context(node)
        outputs = [self.inference.types.get(name) if name else None for name in node.outputs]
        context = LoweringContext(node, seen.types, seen.values, seen.opset, outputs)
        context.declared, context.scope = seen.declared, seen.scope
        context.tiles = self.handle.amx
        for kind in (*seen.types, *outputs):
            if kind is not None and not kind.is_static:
                error = InvalidModelError(f"expected shapes that follow from the inputs, got {kind.shape} at {node}")
                self.unknowns.ask(node, error)
                raise error
        return context

    def _address(self, node: Node, call: KernelCall) -> int:
        if call.function is not None:
            return BUILTIN_KERNELS["python"]
        types = [self.inference.types[name].dtype for name in (*node.inputs, *node.outputs) if name in self.inference.types]
        table = kernels()
        for dtype in types:
            if (call.kernel, dtype) not in table and (dtype == types[0] or dtype not in ELEMENT_TYPES):
                raise MissingKernelError(f"expected a kernel {call.kernel!r} for {dtype}, found none (operator {node.op_type}, node {node.name!r})")
        floats = sorted(FLOATS.intersection(types))
        if len(floats) > 1 and call.kernel not in OF_MIXED_FLOATS:
            raise MissingKernelError(f"expected floats of one type, got {' and '.join(floats)} (operator {node.op_type}, node {node.name!r})")
        return table[call.kernel, types[0]]

    def _add_commits(self) -> None:
        """Copies at the very end: a step that fails leaves the running statistics as they were."""
        for value, target in self.commits.items():
            call = KernelCall("copy", (target.itemsize,))
            node = Node(COMMIT, [value], [], f"commit of {value}")
            self.steps.append(Step(node, call, [value], [f"{value}::committed"], None, BUILTIN_KERNELS["copy"]))

    def _hold_shortly(self) -> None:
        """Orders the steps, leaves gradients of large weights until later, and drops activations in between, so that few bytes are in use at once.

        Rematerialization takes most of the time of planning a deep network: for the usual order it is tried only where that holds less without it. That of resnet50
        holds 330.6 MB then, not 331.7, but with it 175, not 151."""
        first, *others = map(self._defer_gradients, orders(self.steps, self.lifetimes, self._accumulates, self._is_update, self._stays))
        tried = [first, *(deferred for deferred in others if self._peak(deferred) < self._peak(first))]
        for deferred in tried:
            self._rematerialize(deferred)
        self.deferred = first if len(tried) == 1 else min(tried, key=self._peak)
        self.lifetimes.held = self.deferred.held(self.lifetimes)

    def _defer_gradients(self, order: list[Step]) -> DeferredGradients:
        order = self._update_early(order)
        if self.updates is None:
            return DeferredGradients(order)
        return defer_gradients(order, self.lifetimes, self.inference, self.builder.names, self.updates, self._steps_of, self._accumulates, self._stays, self.inputs)

    def _rematerialize(self, deferred: DeferredGradients) -> None:
        self.lifetimes.held = deferred.held(self.lifetimes)
        apart = self.updates.arrays if self.updates is not None else {}
        others = sum(array.nbytes for name, array in self.fixed.items() if name not in apart)
        deferred.now = self._update_early(rematerialize(deferred.now, self.lifetimes, self._again, self.handle.rematerialization, others))     # which may read parameters

    def _peak(self, deferred: DeferredGradients) -> int:
        self.lifetimes.held = deferred.held(self.lifetimes)
        return self.lifetimes.peak(deferred.now)

    def _accumulates(self, step: Step) -> bool:
        return step.guard is None and self._is_accumulation(step.node)

    def _steps_of(self, node: Node) -> list[Step]:
        """A node's steps, which are not the plan's yet."""
        before, self.steps = self.steps, []
        self._lower(node)
        made, self.steps = self.steps, before
        return made

    def _update_early(self, steps: list[Step]) -> list[Step]:
        return update_early(steps, self.lifetimes, self._is_update, self._may_refuse)

    @staticmethod
    def _may_refuse(step: Step) -> bool:
        return step.guard is not None or step.call.function is not None or step.iteration is not None

    def _stays(self, step: Step) -> bool:
        """Whether something besides values decides when a step runs, or may."""
        if self._may_refuse(step) or self._is_update(step) or step.node.op_type == COMMIT:
            return True
        record = record_of(step.node)
        return record is None or record.random

    def _hoist_guards(self) -> None:
        """Checks of user inputs come before everything else, so that a refused call changes nothing."""
        def early(step: Step) -> bool:
            return step.guard is not None and self.lifetimes.root(step.inputs[0]) in self.inputs

        self.steps = [s for s in self.steps if early(s)] + [s for s in self.steps if not early(s)]

    # ---- memory

    def _is_outside(self, root: str) -> bool:
        return root in self.inputs or root in self.fixed or root in self.inference.values or root.endswith("::committed")
