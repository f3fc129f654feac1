"""Partitioned runs, for models with data-dependent sizes (NonZero, a Loop that stops on a computed condition) and for
values that programs do not hold (text, sequences, optionals).

A program computes the inputs of such a node, the node runs eagerly, and the rest of the model is planned for its
actual outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.errors import InputTypeError, OperatorFailedError, OrtrainError
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.ops.loop import LoopSignature
from ortrain.ops.registry.onnx_definitions import reference_function
from ortrain.ops.registry.record import REGISTRY, InferenceContext, canonical_domain
from ortrain.ops.registry.shape_inference import opset_of
from ortrain.ops.registry.subgraphs import captured_values, is_control_flow
from ortrain.plan import PartitionRequired

Value = Any
"""An array; a list of arrays for a sequence; None for an absent optional."""

Values = Mapping[str, Value]
Flag = np.ndarray | None
"""The flag of RunOptions that terminates a run; None without RunOptions."""

EagerNode = Callable[[Values, Flag], list[Value]]
"""A node that runs between programs: a function of all values available (by name) and the termination flag that
returns the node's outputs."""


class PartitionRunner(Protocol):
    """A runner of a part of a model (see ortrain.runtime.runner.Runner)."""

    inputs: list[str]
    outputs: list[str]

    def compute(self, given: Values, terminate: Flag) -> list[Value]: ...


class RunnerFactory(Protocol):
    """Creates a PartitionRunner.

    inputs, outputs: of the model part, in order. known: inputs whose values the program is specialized to. last:
    whether the part ends the run."""

    def __call__(self, model: Model, inputs: Sequence[str], outputs: Sequence[str], known: Sequence[str] = (), last: bool = False) -> Any: ...


@dataclass(slots=True)
class Partition:
    """The part of a run before the rest of a model: a program, then an eager node, or either alone.

    program: the first runner, None if the node's inputs are available without it. eager: the node, None if only
    values were required. eager_outputs: the names of its outputs. rest: the runner of the remaining model."""

    program: PartitionRunner | None
    eager: EagerNode | None
    eager_outputs: list[str]
    rest: Any

    @classmethod
    def of(cls, model: Model, inputs: Sequence[str], outputs: Sequence[str], commits: Sequence[str], constants: Values, required: PartitionRequired,
           make: RunnerFactory) -> Partition:
        """Partition a model where planning required it.

        commits: values that receive running statistics at the end. constants: values of initializers and parameters."""
        graph, node = model.graph, required.node
        # with any other node, planning would require the same partition again
        assert node is None or any(other is node for other in graph.nodes), "expected the partition to end at a node of the graph"
        producers = graph.producers()
        targets = [name for name in (required.values if node is None else node.inputs) if name in producers]
        before = graph.ancestors(targets)
        before_ids = {id(other) for other in before}
        after = [other for other in graph.nodes if id(other) not in before_ids and other is not node]
        read = {name for other in after for name in other.inputs} | {*outputs, *commits}
        boundary = [name for other in before for name in other.outputs if name and (name in read or name in targets)]
        eager_outputs = [] if node is None else [name for name in node.outputs if name]
        program_inputs = _inputs_read(inputs, before, boundary)
        rest_inputs = [name for name in dict.fromkeys([*inputs, *boundary, *eager_outputs]) if name in read]
        program = make(_submodel(model, before, program_inputs, boundary, graph.types), program_inputs, boundary) if before else None
        known = [name for name in required.values if name in read]
        rest = make(_submodel(model, after, rest_inputs, outputs, graph.types), rest_inputs, outputs, known, last=True)
        eager = None if node is None else eager_node(node, model, constants, required.kinds, make)
        return cls(program, eager, eager_outputs, rest)

    def run(self, given: Values, terminate: Flag) -> dict[str, Value]:
        """Return the inputs of the rest, computed from the inputs of the whole. Raises TerminatedError when the flag
        is set."""
        values = dict(given)
        if self.program is not None:
            values |= zip(self.program.outputs, self.program.compute({name: given[name] for name in self.program.inputs}, terminate), strict=True)
        if self.eager is not None:
            values |= zip(self.eager_outputs, self.eager(values, terminate), strict=True)
        return {name: values[name] for name in self.rest.inputs}


def _inputs_read(inputs: Iterable[str], nodes: Iterable[Node], outputs: Iterable[str]) -> list[str]:
    """Return those of the inputs that the nodes read or that are outputs."""
    read = {name for node in nodes for name in node.inputs} | set(outputs)
    return [name for name in inputs if name in read]


def _submodel(model: Model, nodes: list[Node], inputs: Sequence[str], outputs: Sequence[str], types: dict[str, TensorType]) -> Model:
    graph = Graph(model.graph.name, list(inputs), list(outputs), nodes, model.graph.initializers, types)
    return Model(graph, model.opsets, model.ir_version, model.producer)


# ---- eager nodes


def eager_node(node: Node, model: Model, constants: Values, kinds: Sequence[TensorType | None], make: RunnerFactory) -> EagerNode:
    """Return the function that runs a node eagerly. Raises MissingKernelError for an operator that only programs can
    run.

    kinds: the inferred types of the outputs, None for an unknown one."""
    if node.op_type == "If" and is_control_flow(node):
        return EagerIf(node, model, constants, make)
    if node.op_type == "SequenceMap" and is_control_flow(node):
        return EagerSequenceMap(node, model, constants, make)
    if is_control_flow(node):
        return EagerLoop(node, model, constants, make)
    return _eager_operator(node, model, constants, kinds)


def _eager_operator(node: Node, model: Model, constants: Values, kinds: Sequence[TensorType | None]) -> EagerNode:
    """Return the function for a node without subgraphs: its record's evaluation, or ONNX's reference implementation."""
    opset = opset_of(node, model.opsets)
    record = REGISTRY.get((canonical_domain(node.domain), node.op_type))
    # Identity may receive a sequence or optional, which only the reference implementation accepts
    evaluate = record.evaluate if record is not None and node.op_type != "Identity" else None
    reference = None if evaluate is not None else reference_function(node, opset)

    def run(available: Values, _: Flag) -> list[Value]:
        operands = [_value_of(name, available, constants) for name in node.inputs]
        try:
            if reference is not None:
                results: Sequence[Any] = reference(*operands)
            else:
                assert evaluate is not None
                types = [None if value is None else TensorType.of(value) for value in operands]
                results = evaluate(InferenceContext(node, types, operands, opset))
        except OrtrainError:
            raise
        except Exception as error:  # reference implementations raise arbitrary exceptions
            has_text = any(isinstance(value, np.ndarray) and value.dtype.kind in "OUS" for value in operands)
            error_type = InputTypeError if has_text and isinstance(error, ValueError) else OperatorFailedError
            raise error_type(f"expected values that {node.op_type} can read, got others: {error} (node {node.name!r})") from error
        pairs = zip(node.outputs, results, kinds, strict=False)
        return [_normalized(value, kind) for name, value, kind in pairs if name]

    return run


def _value_of(name: str, available: Values, constants: Values) -> Value:
    """Return an available value or a constant; None for an absent input."""
    return None if not name else available[name] if name in available else constants[name]


def _normalized(value: Value, kind: TensorType | None) -> Value:
    """Return a result in the form that programs accept: contiguous and of the inferred type."""
    if value is None or kind is not None and kind.optional and not isinstance(value, np.ndarray | list | tuple):
        return value
    if isinstance(value, list | tuple):
        return [_normalized(item, None) for item in value]
    dtype = None if kind is None or kind.dtype == "string" else numpy_dtype(kind.dtype)
    array = np.asarray(value, dtype)
    if array.dtype.kind in "US":
        array = array.astype(object)
    return np.ascontiguousarray(array).reshape(array.shape)


class EagerIf:
    """An eager If, whose branches are models of their own."""

    def __init__(self, node: Node, model: Model, constants: Values, make: RunnerFactory) -> None:
        self.node, self.constants = node, constants
        captured = [name for name in node.inputs[1:] if name]
        self.branches = [_subgraph_runner(model, node.graphs[branch], captured, constants, make) for branch in ("then_branch", "else_branch")]

    def __call__(self, available: Values, terminate: Flag) -> list[Value]:
        condition = _value_of(self.node.inputs[0], available, self.constants)
        branch = self.branches[0 if bool(np.asarray(condition).reshape(-1)[0]) else 1]
        results = branch.compute({name: _value_of(name, available, self.constants) for name in branch.inputs}, terminate)
        return [value for name, value in zip(self.node.outputs, results, strict=True) if name]


class EagerLoop:
    """An eager Loop or Scan, for bodies that no single program fits in all iterations. The body is a model of its
    own."""

    def __init__(self, node: Node, model: Model, constants: Values, make: RunnerFactory) -> None:
        self.node, self.constants = node, constants
        self.signature = LoopSignature.of(node)
        self.body = _subgraph_runner(model, node.graphs["body"], captured_values([node.graphs["body"]]), constants, make)

    def __call__(self, available: Values, terminate: Flag) -> list[Value]:
        signature = self.signature
        operands = [_value_of(name, available, self.constants) for name in self.node.inputs[: signature.input_count]]
        captured = {name: _value_of(name, available, self.constants) for name in self.body.inputs if name not in signature.body.inputs}
        states = operands[signature.first_state_input : signature.first_scan_input]
        scanned = self._scan_inputs(operands[signature.first_scan_input :])
        scan_outputs: list[list[Value]] = [[] for _ in range(signature.scan_output_count)]
        for iteration in self._iterations(operands, scanned):
            iteration_slices = (slices[iteration] for slices in scanned)
            body_inputs = dict(zip(signature.state_inputs, states, strict=True)) | dict(zip(signature.slice_inputs, iteration_slices, strict=True)) | captured
            if signature.is_loop:
                body_inputs |= {signature.body.inputs[0]: np.array(iteration, np.int64), signature.body.inputs[1]: np.array(True)}
            results = self.body.compute({name: body_inputs[name] for name in self.body.inputs}, terminate)
            states = results[signature.first_state_output : signature.first_state_output + signature.state_count]
            for collected, output in zip(scan_outputs, results[signature.first_state_output + signature.state_count :], strict=True):
                collected.append(output)
            if signature.is_loop and not bool(np.asarray(results[0]).reshape(-1)[0]):
                break
        outputs = [*states, *self._stacked_outputs(scan_outputs)]
        return [value for name, value in zip(self.node.outputs, outputs, strict=False) if name]

    def _scan_inputs(self, inputs: Sequence[Value]) -> list[np.ndarray]:
        """Return the scanned inputs with the slices along the first axis, in the order of iterations."""
        moved = [np.moveaxis(array, axis, 0) for array, axis in zip(inputs, self.signature.axes("input"), strict=True)]
        slices = [array[::-1] if reverse else array for array, reverse in zip(moved, self.signature.directions("input"), strict=True)]
        return [np.ascontiguousarray(array) for array in slices]

    def _iterations(self, operands: Sequence[Value], scanned: Sequence[np.ndarray]) -> range:
        """Return the range of iterations, limited by the trip count but not by the condition that the body computes."""
        if not self.signature.is_loop:
            return range(len(scanned[0]))
        limit, condition = operands[:2]
        if condition is not None and not bool(np.asarray(condition).reshape(-1)[0]):
            return range(0)
        return range(2**62 if limit is None else max(0, int(np.asarray(limit).reshape(-1)[0])))

    def _stacked_outputs(self, slices: Sequence[list[Value]]) -> list[np.ndarray]:
        """Return the scan outputs, stacked from their slices of all iterations."""
        signature, outputs = self.signature, []
        for name, collected, reverse, axis in zip(signature.slice_outputs, slices, signature.directions("output"), signature.axes("output"), strict=True):
            if not collected:
                kind = signature.body.types.get(name, TensorType("float32", ()))
                sizes = [d if isinstance(d, int) else 0 for d in kind.shape or ()]
                outputs.append(np.stack([np.zeros(sizes, numpy_dtype(kind.dtype))], axis).take([], axis))
                continue
            if len({item.shape for item in collected}) > 1:
                raise OperatorFailedError(f"expected collected slices of one shape for {name!r}, got {sorted({item.shape for item in collected})} "
                                          f"(operator {self.node.op_type}, node {self.node.name!r})")
            outputs.append(np.ascontiguousarray(np.stack(collected[::-1] if reverse else collected, axis)))
        return outputs


class EagerSequenceMap:
    """An eager SequenceMap, whose body is a model of its own that runs once per element."""

    def __init__(self, node: Node, model: Model, constants: Values, make: RunnerFactory) -> None:
        self.node, self.constants = node, constants
        graph = node.graphs["body"]
        self.body_inputs = graph.inputs
        self.body = _subgraph_runner(model, graph, captured_values([graph]), constants, make)

    def __call__(self, available: Values, terminate: Flag) -> list[Value]:
        operands = {name: _value_of(source, available, self.constants) for name, source in zip(self.body_inputs, self.node.inputs, strict=False)}
        captured = {name: _value_of(name, available, self.constants) for name in self.body.inputs if name not in operands}
        mapped = [name for name, value in operands.items() if isinstance(value, list)]
        results = []
        for elements in zip(*(operands[name] for name in mapped), strict=True):
            body_values = {**operands, **captured, **dict(zip(mapped, elements, strict=True))}
            results.append(self.body.compute({name: body_values[name] for name in self.body.inputs}, terminate))
        columns = zip(*results, strict=True) if results else [()] * len(self.node.outputs)
        return [list(column) for name, column in zip(self.node.outputs, columns, strict=True) if name]


def _subgraph_runner(model: Model, graph: Graph, outer: Sequence[str], constants: Values, make: RunnerFactory) -> Any:
    """Create a runner for a subgraph. The outer values that it reads are its further inputs, unless they are
    constants."""
    read = set(captured_values([graph]))
    inputs = [*graph.inputs, *(name for name in outer if name in read and name not in constants)]
    submodel = _submodel(model, graph.nodes, inputs, graph.outputs, model.graph.types | graph.types)
    submodel.graph.initializers = model.graph.initializers | graph.initializers
    return make(submodel, inputs, graph.outputs)
