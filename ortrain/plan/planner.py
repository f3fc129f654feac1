"""The planner: specializes a graph to the types of its inputs, lowers it to kernel calls and lays out their memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain._core.builtin_kernels import KERNELS as BUILTIN_KERNELS
from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import kernels
from ortrain._core.program import Program
from ortrain.dtypes import FLOATS, numpy_dtype
from ortrain.errors import IndexRangeError, InvalidModelError, MissingKernelError, ShapeInferenceError
from ortrain.ir import Dim, Graph, Model, NameSource, Node, TensorType
from ortrain.ops.registry.constants import ConstantValues, is_symbolic
from ortrain.ops.registry.cost_model import has_cost
from ortrain.ops.registry.decomposition import decompose, rename_results
from ortrain.ops.registry.node_builder import GraphBuilder, NodeBuilder
from ortrain.ops.registry.optimizers import UPDATES
from ortrain.ops.registry.record import ORTRAIN, Alias, Guard, KernelCall, LoweringContext, OpRecord, apply_rule, record_of
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.registry.subgraphs import is_control_flow
from ortrain.ops.training import ACCUMULATOR, UPDATED, WRITTEN
from ortrain.plan.data_dependence import InputValuesRequired, OpenSizes, PartitionRequired
from ortrain.plan.deferred_gradients import DeferredGradients, ParameterUpdates, defer_gradients
from ortrain.plan.elementwise_fusion import fuse_elementwise
from ortrain.plan.emission import Emission, may_read_rounded, takes_bfloat16
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.rematerialization import rematerialize
from ortrain.plan.rewriting import rewrite
from ortrain.plan.scheduling import candidate_orders, update_early
from ortrain.plan.steps import Step

if TYPE_CHECKING:
    from ortrain._core.loop import LoopBody
    from ortrain.ops.loop import BodyInference, LoopSignature

ELEMENT_TYPES = frozenset({"float32", "float64", "int32", "int64", "uint8", "int8", "bool"})
"""Types that every kernel supports or only needs the size of; other types require a kernel listed for them. A kernel
is looked up by the type of a node's first tensor."""
MIXED_FLOAT_KERNELS = frozenset({"cast", "dequantized_gemm", "dropout", "dropout_grad", "gemm_update", "scale",
                                 *(algorithm.kernel for algorithm in UPDATES.values())})
"""Kernels that check the type of every tensor. All others require the float operands of a node to have one type."""
CLEARLY_LOWER = 0.99
"""The share of the first order's peak that another order must stay below to be tried. Of thirty-six networks, only resnet50 has an order with a lower peak, by
0.3 %, and trying it takes 30 % of the plan's time."""
COMMIT = "Commit"
"""Operator name of steps that no node of the model corresponds to: copies of running statistics at the end of a run."""


def _hashable_attributes(node: Node) -> tuple[Any, ...]:
    """Return the attributes of a node in a form that can be hashed and compared; graphs compare by identity."""
    return tuple((name, (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else id(value) if isinstance(value, Graph) else value)
                 for name, value in sorted(node.attributes.items()))


def _first_output(node: Node) -> str:
    return next((name for name in node.outputs if name), node.name)


def plan_program(model: Model, inputs: Mapping[str, TensorType], fixed: Mapping[str, np.ndarray], outputs: Sequence[str],
                 handle: EngineHandle, commits: Mapping[str, np.ndarray] | None = None, known: Mapping[str, np.ndarray] | None = None,
                 states: Mapping[str, str] | None = None, objects: Collection[str] = (), deferred: ParameterUpdates | None = None) -> Program:
    """Plan the program that computes `outputs` of a model for inputs of exactly these types.

    inputs: types of the user inputs in the order of the call, with static shapes or symbolic sizes. fixed: arrays
    outside the program whose addresses do not change (parameters, gradient buffers, flags). commits: value name ->
    array that receives the value at the end of a run (running statistics). known: user inputs that are constants of
    this plan. states: output -> the input whose memory it may overwrite. objects: inputs that are text, sequences or
    optionals. deferred: updates of the parameters whose gradients may be deferred, with their arrays in `fixed`; None
    to defer none.

    Accumulations and updates whose gradient buffer or parameter is in `fixed` are always computed. Raises
    InputValuesRequired when more inputs must be known, PartitionRequired when a partition must run before,
    ShapeInferenceError, MissingKernelError or InvalidModelError."""
    return Planner(model, inputs, fixed, outputs, handle, commits or {}, known or {}, states or {}, objects, deferred).build()


class Planner:
    """Plans one program; parameters as in plan_program."""

    def __init__(self, model: Model, inputs: Mapping[str, TensorType], fixed: Mapping[str, np.ndarray], outputs: Sequence[str],
                 handle: EngineHandle, commits: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray], states: Mapping[str, str],
                 objects: Collection[str], deferred: ParameterUpdates | None) -> None:
        self.updates, self.deferred = deferred, DeferredGradients()
        self.model, self.inputs, self.fixed, self.outputs, self.handle, self.commits = model, inputs, fixed, outputs, handle, commits
        types = dict(inputs) | {name: TensorType.of(array) for name, array in fixed.items()}
        values = {**model.graph.initializers, **known}
        symbolic = any(is_symbolic(kind.shape or ()) for kind in inputs.values())
        self.inference = ShapeInference(model.opsets, types, ConstantValues(values) if symbolic else values, model.graph.types)
        self.builder = GraphBuilder(self.inference, NameSource(model.graph.names()), model.opset)
        self.open_sizes = OpenSizes(model.graph, inputs, objects, self.inference)
        self.lifetimes = Lifetimes(self.inference.types, self._is_outside, self.inputs, outputs, states)
        self.steps: list[Step] = []
        self._guarded_ranges: list[tuple[str, int, int, int | None]] = []
        self.recomputed: set[str] = set()
        """The values that rematerialization may compute."""
        self.iterations: dict[str, LoopBody] = {}
        """The bodies of Loops and Scans, by the name of the node's first output."""

    def build(self) -> Program:
        kept = *self.outputs, *self.commits
        for node in rewrite(self._without_duplicates(self._live_nodes()), self.builder, kept, not self.handle.winograd):
            self._lower(node)
        self._add_commits()
        self._hoist_guards()
        self._minimize_memory()
        return Emission(self.deferred, self.lifetimes, self.inference, self.inputs, self.fixed, self.outputs, self.commits, self._has_effect,
                        self._is_accumulation_step).run(self.handle)

    # ---- selecting nodes

    def _live_nodes(self) -> list[Node]:
        """Infer types, decompose and fold constants; return the nodes that are left and contribute to an output or
        effect, in order."""
        nodes = self.model.graph.nodes
        needed_in_graph = self._live_node_ids(nodes)
        expanded: list[Node] = []
        for node in nodes:
            if id(node) in needed_in_graph:
                self._visit(node)
                try:
                    replacements = self._expanded(node)
                except PartitionRequired as error:
                    if error.node is not None and id(error.node) not in needed_in_graph:     # from its decomposition
                        raise self.open_sizes.partition_at(node, error) from error
                    raise
                self.open_sizes.record(node, replacements)
                expanded += [replacement for replacement in replacements
                             if not all(name in self.inference.values for name in replacement.outputs if name)]
        # again after folding: nodes of which only shapes were needed are dead now
        needed = self._live_node_ids(expanded)
        return [node for node in expanded if id(node) in needed]

    def _visit(self, node: Node) -> None:
        """Infer the output types of a node; require a partition where it works on objects."""
        if self.open_sizes.reads_objects(node):
            self.open_sizes.require_partition_for_objects(node)
        try:
            self.inference.visit(node)
        except ShapeInferenceError as error:
            self.open_sizes.check_sizes(node, error)
            raise
        if self.open_sizes.produces_objects(node):
            self.open_sizes.require_partition_for_objects(node)

    def _expanded(self, node: Node) -> list[Node]:
        """Return the nodes to plan for a node: its decomposition, or the node itself if it has none.

        If decomposing requires data-dependent sizes but ONNX's reference implementation can run the node, the node is
        kept."""
        try:
            decomposition = decompose(node, self.builder) or [node]
            return [expanded for replacement in decomposition
                    for expanded in (self._expanded_loop(replacement) if replacement.op_type in ("Loop", "Scan") else [replacement])]
        except ShapeInferenceError as error:
            self.open_sizes.check_sizes(node, error)
            record = record_of(node)
            from ortrain.ops.registry.onnx_definitions import fallback_record

            if record is None or record.lower is None and fallback_record(node) is None:
                raise
            return [node]

    def _expanded_loop(self, node: Node) -> list[Node]:
        """Return a Loop or Scan as it is if one program fits its body in every iteration; otherwise the nodes of all
        its iterations."""
        from ortrain.ops.loop import LoopSignature, infer_body, iteration_count, unroll

        original, node = node, node.copy()
        signature = LoopSignature.of(node)
        context = self.inference.context(node)
        inferred = infer_body(context, signature)
        count = iteration_count(context, signature, inferred)
        if all(kind.is_static for kind in inferred.state_types):
            try:
                self.iterations[_first_output(node)] = self._plan_body(signature, inferred, count)
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
            results = unroll(NodeBuilder(builder, node), count)
            unrolled_nodes = list(rename_results(builder.added, node, results, builder))
        finally:
            builder.added = before
        return [expanded for unrolled_node in unrolled_nodes for expanded in self._expanded(unrolled_node)]

    def _plan_body(self, signature: LoopSignature, inferred: BodyInference, count: Dim | None) -> LoopBody:
        """Plan the body of a Loop or Scan; count: its number of iterations, None if unknown until it runs.

        The node's captured inputs are reduced to those that are neither constants nor fixed."""
        from ortrain._core.loop import LoopBody

        graph, values = signature.body.copy(), self.inference.values
        captured = [name for name in dict.fromkeys(signature.node.inputs[signature.input_count :]) if name]
        graph.initializers |= {name: values[name] for name in captured if name in values}
        # captured constants and parameters are part of the program; only activations are inputs of the body
        signature.node.inputs[signature.input_count :] = captured = [name for name in captured if name not in values and name not in self.fixed]
        inputs = inferred.input_types | {name: self.inference.types[name] for name in captured}
        try:
            # a state may be updated in place if the body returns it only once
            outputs = signature.body.outputs
            states = {output: state for state, output in zip(signature.state_inputs, signature.state_outputs, strict=True) if outputs.count(output) == 1}
            body = plan_program(Model(graph, self.model.opsets), inputs, self.fixed, graph.outputs, self.handle, states=states)
        except InputValuesRequired as error:
            self.open_sizes.require_values([name for name in error.names if name in captured], error)
            raise InvalidModelError(f"expected sizes that are the same in every iteration: {error}") from error
        except PartitionRequired as error:
            raise PartitionRequired(error, node=signature.node) from error
        slices = [inferred.inference.types[name] for name in (*signature.slice_inputs, *signature.slice_outputs)]
        state_sizes, slice_sizes = ([kind.count * numpy_dtype(kind.dtype).itemsize for kind in kinds] for kinds in (inferred.state_types, slices))
        scan_inputs = signature.scan_input_count
        return LoopBody(body, signature.is_loop, count if isinstance(count, int) else -1, state_sizes, slice_sizes[:scan_inputs], slice_sizes[scan_inputs:],
                        [*signature.directions("input"), *signature.directions("output")])

    def _without_duplicates(self, nodes: Sequence[Node]) -> list[Node]:
        """Eliminate common subexpressions: the gradient of an If, for example, computes its branch a second time."""
        replaced: dict[str, str] = {}
        first: dict[tuple[Any, ...], Node] = {}
        kept = []
        outputs = {*self.outputs, *self.commits}
        for node in nodes:
            record = record_of(node)
            if replaced:
                node = Node(node.op_type, [replaced.get(n, n) for n in node.inputs], node.outputs, node.name, node.domain, node.attributes)
            key = (node.domain, node.op_type, tuple(node.inputs), tuple(map(bool, node.outputs)), _hashable_attributes(node))
            twin = first.setdefault(key, node)
            if twin is node or record is None or record.random or self._has_effect(node) or outputs.intersection(node.outputs):
                kept.append(node)
            else:
                replaced |= dict(zip(node.outputs, twin.outputs, strict=True))
        return kept

    def _live_node_ids(self, nodes: Sequence[Node]) -> set[int]:
        """Return the ids of the nodes that contribute to an output, a commit or an effect."""
        wanted = {*self.outputs, *self.commits}
        live: set[int] = set()
        for node in reversed(nodes):
            if self._has_effect(node) or wanted.intersection(node.outputs):
                live.add(id(node))
                wanted.update(name for name in node.inputs if name not in self.inference.values)
        return live

    def _is_accumulation(self, node: Node) -> bool:
        return node.op_type == ACCUMULATOR and self._overwrites_fixed(node, 0)

    def _is_update(self, step: Step) -> bool:
        return step.guard is None and step.node.op_type in UPDATED

    def _has_effect(self, node: Node) -> bool:
        """Return whether a node writes to a gradient buffer or parameter."""
        return self._is_accumulation(node) or node.op_type in UPDATED and self._overwrites_fixed(node, UPDATED[node.op_type])

    def _overwrites_fixed(self, node: Node, index: int) -> bool:
        return index < len(node.inputs) and node.inputs[index] in self.fixed

    # ---- lowering

    def _lower(self, node: Node) -> None:
        """Append the steps of a node; a node that only reshapes becomes an alias."""
        record = record_of(node)
        assert record is not None
        self._check_write_targets(node)
        node = self._with_required_outputs(node, record)
        context = self._context(node)
        iteration = self.iterations.get(_first_output(node)) if node.op_type in ("Loop", "Scan") else None
        if iteration is not None:
            from ortrain._core.loop import KERNELS as ITERATION_KERNELS

            call = KernelCall("iterate", (iteration.address,), scratch=iteration.scratch)
            self.steps.append(Step(node, call, list(node.inputs), list(node.outputs), None, ITERATION_KERNELS["iterate"], iteration=iteration))
            return
        try:
            lowered, address = self._kernel_call(node, record, context)
        except (ShapeInferenceError, MissingKernelError) as error:
            from ortrain.ops.registry.onnx_definitions import fallback_record

            reference = fallback_record(node)
            if reference is None or reference.lower is None:
                self.open_sizes.check_sizes(node, error)
                if is_control_flow(node):                     # an If in an unrolled loop whose condition the loop computes
                    raise self.open_sizes.partition_at(node, error) from error
                raise
            lowered = reference.lower(context)
            address = BUILTIN_KERNELS["python"]
        if isinstance(lowered, Alias):
            self.lifetimes.alias[node.outputs[0]] = self.lifetimes.root(node.inputs[lowered.input])
            return
        for guard in lowered.guards:
            self._add_guard(node, guard)
        read = ["" if index in lowered.shape_only_inputs else name for index, name in enumerate(node.inputs)]
        self.steps.append(Step(node, lowered, read, list(node.outputs), None, address))

    def _with_required_outputs(self, node: Node, record: OpRecord) -> Node:
        """Name the absent outputs of a node that its kernel writes anyway."""
        if all(node.outputs[: record.required_outputs]) and len(node.outputs) >= record.required_outputs:
            return node
        outputs = [*node.outputs, *[""] * (record.required_outputs - len(node.outputs))]
        required = [name or self.builder.names.unique(f"{node.name or node.op_type}::unused") for name in outputs[: record.required_outputs]]
        node = replace(node, outputs=required + outputs[record.required_outputs :])
        self.inference.visit(node)
        return node

    def _check_write_targets(self, node: Node) -> None:
        """Raise InvalidModelError for a node that writes to a user input, a constant or an activation, or whose
        gradient is a parameter."""
        for index in WRITTEN.get(node.op_type, ()):
            name = node.inputs[index] if index < len(node.inputs) else ""
            if name and self.lifetimes.unaliased(name) not in self.fixed:
                raise InvalidModelError(f"expected {node.op_type} to overwrite a parameter of the session, its moments or its gradient, got {name!r} "
                                        f"(node {node.name!r})")
        if node.op_type in UPDATES and self.lifetimes.unaliased(node.inputs[1]) in self.fixed:
            raise InvalidModelError(f"expected a computed gradient of {node.inputs[0]!r}, got the parameter {node.inputs[1]!r}: another update may overwrite "
                                    f"it first (node {node.name!r})")

    def _recomputation(self, step: Step) -> Step | None:
        """Return a step that computes the first output of a step once more: its record's cheaper alternative if it
        has one, otherwise a copy of the step. None if the step must run once or its cost is unknown."""
        record = record_of(step.node)
        node = None
        if record is not None and record.rematerialize is not None:
            node = record.rematerialize(step.node, self.builder.names.unique(f"{step.outputs[0]}::recomputed"))
        if node is not None:
            self.recomputed.add(node.outputs[0])
            self.inference.visit(node)
            self._lower(node)
            return self.steps.pop()
        if self._is_pinned(step) or self._has_effect(step.node) or not has_cost(step.node.op_type):
            return None
        names = {name: self.builder.names.unique(f"{name}::recomputed") for name in filter(None, step.outputs)}
        self.recomputed.update(names.values())
        self.inference.types |= {new: self.inference.types[name] for name, new in names.items()}
        outputs = [names.get(name, "") for name in step.outputs]
        node = Node(step.node.op_type, step.node.inputs, outputs, f"{step.node.name or step.node.op_type}::recomputed", step.node.domain,
                    step.node.attributes)
        return replace(step, node=node, outputs=outputs)

    def _kernel_call(self, node: Node, record: OpRecord, context: LoweringContext) -> tuple[KernelCall | Alias, int]:
        """Lower a node by its record; return the result and the address of its kernel (0 for an alias)."""
        if record.lower is None or not self.inference.reference_outputs.isdisjoint(node.outputs):
            raise MissingKernelError(f"expected an operator with a kernel, got {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r})")
        lowered = apply_rule(node, record.lower, context)
        return lowered, 0 if isinstance(lowered, Alias) else self._address(node, lowered)

    def _add_guard(self, node: Node, guard: Guard) -> None:
        """Append a step that checks indices against their range, once per range; constants are checked now."""
        source = node.inputs[guard.input]
        known = self.inference.values.get(source)
        if known is not None:
            invalid = known[(known < guard.low) | (known >= guard.high)]
            if guard.ignored is not None:
                invalid = invalid[invalid != guard.ignored]
            if invalid.size:
                raise IndexRangeError(f"expected every element of the constant {source!r} in [{guard.low}, {guard.high}), got {invalid.ravel()[0]} "
                                      f"(operator {node.op_type}, node {node.name!r})")
            return
        root = self.lifetimes.root(source)
        if self.inference.types[root].count == self.inference.types[source].count:
            source = root                                                      # errors name the value that the user gave, not a reshaped one
        key = (root, guard.low, guard.high, guard.ignored)
        if key not in self._guarded_ranges:
            self._guarded_ranges.append(key)
            call = KernelCall("check_range", (guard.low, guard.high, int(guard.ignored is not None), guard.ignored or 0))
            self.steps.append(Step(node, call, [source], [], guard, kernels()["check_range", self.inference.types[source].dtype]))

    def _context(self, node: Node) -> LoweringContext:
        inferred = self.inference.context(node)
        outputs = [self.inference.types.get(name) if name else None for name in node.outputs]
        context = LoweringContext(node, inferred.types, inferred.values, inferred.opset, outputs)
        context.declared, context.inference = inferred.declared, inferred.inference
        context.may_use_amx = self.handle.amx
        context.takes_bfloat16 = self.handle.precision == "bfloat16" and takes_bfloat16(node, self.handle.float32_nodes)
        for kind in (*inferred.types, *outputs):
            if kind is not None and not kind.is_static:
                error = InvalidModelError(f"expected shapes that follow from the inputs, got {kind.shape} at {node}")
                self.open_sizes.check_sizes(node, error)
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
        if len(floats) > 1 and call.kernel not in MIXED_FLOAT_KERNELS:
            raise MissingKernelError(f"expected floats of one type, got {' and '.join(floats)} (operator {node.op_type}, node {node.name!r})")
        return table[call.kernel, types[0]]

    def _add_commits(self) -> None:
        """Append the copies of running statistics: they are last, so that a failing step leaves the statistics
        unchanged."""
        for value, target in self.commits.items():
            call = KernelCall("copy", (target.itemsize,))
            node = Node(COMMIT, [value], [], f"commit of {value}", ORTRAIN)
            self.steps.append(Step(node, call, [value], [f"{value}::committed"], None, BUILTIN_KERNELS["copy"]))

    def _minimize_memory(self) -> None:
        """Order the steps, defer gradients and rematerialize activations such that the peak memory is low.

        Rematerialization dominates the planning time of deep networks, so an order other than the first is only tried
        if its peak is clearly lower without rematerialization. The peak alone does not decide: the second order of resnet50
        has 330.6 MB instead of 331.7 MB without rematerialization, but 175 MB instead of 151 MB with it."""
        self.lifetimes.is_outside = cache(self._is_outside)        # all steps are lowered: from here on, no value moves out of the arena or into it
        first, *others = map(self._defer_gradients, candidate_orders(self.steps, self.lifetimes, self._is_accumulation_step, self._is_update, self._is_pinned))
        least = CLEARLY_LOWER * self._peak(first)
        tried = [first, *(deferred for deferred in others if self._peak(deferred) < least)]
        for deferred in tried:
            self._rematerialize(deferred)
        self.deferred = first if len(tried) == 1 else min(tried, key=self._peak)
        self.lifetimes.kept = self.deferred.values_kept(self.lifetimes)
        if self.handle.precision == "bfloat16":
            self._narrow_activations()
        if self.handle.elementwise_fusion:
            self._fuse_elementwise()
        if any(step.call.checks_indices for step in self.deferred.train_step):
            from ortrain.plan.kernel_guards import check_in_kernels

            self.deferred.train_step = check_in_kernels(self.deferred.train_step, self.lifetimes, self._has_lasting_effect, self._is_accumulation_step)

    def _fuse_elementwise(self) -> None:
        """Fuse elementwise steps of the train step.

        This comes last in order to see the recomputations: those of elementwise operators become parts of the steps
        that read them."""
        later = [name for step in (*self.deferred.updates, *self.deferred.gradients) for name in step.inputs if name]
        self.deferred.train_step = fuse_elementwise(self.deferred.train_step, self.lifetimes, self._writes_outside, self._may_refuse, later)

    def _writes_outside(self, step: Step) -> bool:
        return step.guard is None and (self._has_effect(step.node) or step.node.op_type in WRITTEN or step.node.op_type == COMMIT)

    def _has_lasting_effect(self, step: Step) -> bool:
        """Return whether a step does what outlives a run that is refused after it, such as drawing random numbers."""
        return step.guard is None and (self._is_pinned(step) or self._writes_outside(step))

    def _defer_gradients(self, order: list[Step]) -> DeferredGradients:
        order = self._update_early(order)
        if self.updates is None:
            return DeferredGradients(order)
        return defer_gradients(order, self.lifetimes, self.inference, self.builder.names, self.updates, self._lowered, self._is_accumulation_step,
                               self._is_pinned, self.inputs)

    def _rematerialize(self, deferred: DeferredGradients) -> None:
        self.lifetimes.kept = deferred.values_kept(self.lifetimes)
        steps = rematerialize(deferred.train_step, self.lifetimes, self._recomputation, self.handle.rematerialization, self._other_bytes())
        # once more, since recomputations may read parameters
        deferred.train_step = self._update_early(steps)

    def _narrow_activations(self) -> None:
        """Keep activations in bfloat16. This follows rematerialization, which decides what is kept."""
        from ortrain.plan.narrow_activations import NarrowActivations

        narrowing = NarrowActivations(self.deferred, self.lifetimes, self.recomputed, self.builder.names, self._lowered, self._may_read_rounded,
                                      self._other_bytes(), self.handle.elementwise_fusion)
        self.deferred = narrowing.run()
        self.lifetimes.kept = self.deferred.values_kept(self.lifetimes)

    def _may_read_rounded(self, step: Step, index: int) -> bool:
        return step.guard is None and may_read_rounded(step.node, index, self.handle.float32_nodes)

    def _other_bytes(self) -> int:
        """Return the bytes that the program uses besides the arena and the moments of its optimizer."""
        update_arrays = self.updates.arrays if self.updates is not None else {}
        return sum(array.nbytes for name, array in self.fixed.items() if name not in update_arrays)

    def _peak(self, deferred: DeferredGradients) -> int:
        self.lifetimes.kept = deferred.values_kept(self.lifetimes)
        return self.lifetimes.peak(deferred.train_step)

    def _is_accumulation_step(self, step: Step) -> bool:
        return step.guard is None and self._is_accumulation(step.node)

    def _lowered(self, node: Node) -> list[Step]:
        """Return the steps of a node without appending them to the plan."""
        planned, self.steps = self.steps, []
        self._lower(node)
        lowered, self.steps = self.steps, planned
        return lowered

    def _update_early(self, steps: list[Step]) -> list[Step]:
        return update_early(steps, self.lifetimes, self._is_update, self._may_refuse)

    @staticmethod
    def _may_refuse(step: Step) -> bool:
        return step.guard is not None or step.call.function is not None or step.iteration is not None

    def _is_pinned(self, step: Step) -> bool:
        """Return whether a step must not be moved or repeated for reasons other than data dependencies."""
        if self._may_refuse(step) or self._is_update(step) or step.node.op_type == COMMIT:
            return True
        record = record_of(step.node)
        return record is None or record.random

    def _hoist_guards(self) -> None:
        """Move guards of user inputs to the front, so that a refused run changes nothing."""
        def is_early(step: Step) -> bool:
            return step.guard is not None and self.lifetimes.root(step.inputs[0]) in self.inputs

        self.steps = [s for s in self.steps if is_early(s)] + [s for s in self.steps if not is_early(s)]

    # ---- memory

    def _is_outside(self, root: str) -> bool:
        return root in self.inputs or root in self.fixed or root in self.inference.values or root.endswith("::committed")
