"""Runs in partitions, for models whose sizes the data decide (NonZero, a Loop that stops on what it computed), and for values that no program holds (text,
sequences, optionals): a program computes what comes before such a node, the node runs by itself, and what is left is planned for what it gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.errors import InputTypeError, OperatorFailedError, OrtrainError
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.ops.loop import Form
from ortrain.ops.registry.onnx_definitions import reference_function
from ortrain.ops.registry.record import REGISTRY, InferenceContext, canonical_domain
from ortrain.ops.registry.shape_inference import opset_of
from ortrain.ops.registry.subgraphs import captured, has_graphs
from ortrain.plan import PartitionRequired

Value = Any
"""An array; a list of them for a sequence; None for an optional that is absent."""

Values = Mapping[str, Value]
Flag = np.ndarray | None
"""The flag of RunOptions that ends a run, wherever it is."""

Outside = Callable[[Values, Flag], list[Value]]
"""A node that runs outside of programs: all values that there are -> its outputs."""


class Running(Protocol):
    """What runs a model or a part of one: a Runner."""

    inputs: list[str]
    outputs: list[str]

    def compute(self, given: Values, terminate: Flag) -> list[Value]: ...


class Maker(Protocol):
    """Makes a Running for some outputs of a model: inputs in order, values that a plan has to know."""

    def __call__(self, model: Model, inputs: Sequence[str], outputs: Sequence[str], known: Sequence[str] = (), last: bool = False) -> Any: ...


@dataclass(slots=True)
class Partition:
    """What runs before the rest of a model: a program, then a node outside of programs, or either alone."""

    first: Running | None
    outside: Outside | None
    made: list[str]
    """What the node outside gives."""
    rest: Any

    @classmethod
    def of(cls, model: Model, inputs: Sequence[str], outputs: Sequence[str], commits: Sequence[str], constants: Values, cut: PartitionRequired, make: Maker) -> Partition:
        """Divides the run of a model where a plan asked for it."""
        graph, node = model.graph, cut.node
        assert node is None or any(piece is node for piece in graph.nodes), "a partition ends at a node of the graph: or it would be asked for again and again"
        made_by_nodes = graph.producers()
        targets = [name for name in (cut.values if node is None else node.inputs) if name in made_by_nodes]
        before = graph.ancestors(targets)
        gone = {id(piece) for piece in before}
        after = [piece for piece in graph.nodes if id(piece) not in gone and piece is not node]
        read = {name for piece in after for name in piece.inputs} | {*outputs, *commits}
        crossing = [name for piece in before for name in piece.outputs if name and (name in read or name in targets)]
        made = [] if node is None else [name for name in node.outputs if name]
        first_inputs = _read(inputs, before, crossing)
        rest_inputs = [name for name in dict.fromkeys([*inputs, *crossing, *made]) if name in read]
        first = make(_part(model, before, first_inputs, crossing, graph.types), first_inputs, crossing) if before else None
        rest = make(_part(model, after, rest_inputs, outputs, graph.types), rest_inputs, outputs, [name for name in cut.values if name in read], last=True)
        outside = None if node is None else outside_function(node, model, constants, cut.kinds, make)
        return cls(first, outside, made, rest)

    def run(self, given: Values, terminate: Flag) -> dict[str, Value]:
        """What the rest takes, for what the whole takes. Raises TerminatedError when the flag is set."""
        found = dict(given)
        if self.first is not None:
            found |= zip(self.first.outputs, self.first.compute({name: given[name] for name in self.first.inputs}, terminate), strict=True)
        if self.outside is not None:
            found |= zip(self.made, self.outside(found, terminate), strict=True)
        return {name: found[name] for name in self.rest.inputs}


def _read(inputs: Iterable[str], nodes: Iterable[Node], outputs: Iterable[str]) -> list[str]:
    read = {name for node in nodes for name in node.inputs} | set(outputs)
    return [name for name in inputs if name in read]


def _part(model: Model, nodes: list[Node], inputs: Sequence[str], outputs: Sequence[str], types: dict[str, TensorType]) -> Model:
    graph = Graph(model.graph.name, list(inputs), list(outputs), nodes, model.graph.initializers, types)
    return Model(graph, model.opsets, model.ir_version, model.producer)


# ---- nodes outside of programs


def outside_function(node: Node, model: Model, constants: Values, kinds: Sequence[TensorType | None], make: Maker) -> Outside:
    """A node as a function of values by name. Raises MissingKernelError for an operator that only programs have."""
    if node.op_type == "If" and has_graphs(node):
        return Branches(node, model, constants, make)
    if node.op_type == "SequenceMap" and has_graphs(node):
        return Elements(node, model, constants, make)
    if has_graphs(node):
        return Iterations(node, model, constants, make)
    return _plain(node, model, constants, kinds)


def _plain(node: Node, model: Model, constants: Values, kinds: Sequence[TensorType | None]) -> Outside:
    opset = opset_of(node, model.opsets)
    record = REGISTRY.get((canonical_domain(node.domain), node.op_type))
    evaluate = record.evaluate if record is not None and node.op_type != "Identity" else None       # which hands on whatever it is given
    reference = None if evaluate is not None else reference_function(node, opset)

    def run(found: Values, _: Flag) -> list[Value]:
        values = [_value(name, found, constants) for name in node.inputs]
        try:
            if reference is not None:
                results: Sequence[Any] = reference(*values)
            else:
                assert evaluate is not None
                types = [None if value is None else TensorType.of(value) for value in values]
                results = evaluate(InferenceContext(node, types, values, opset))
        except OrtrainError:
            raise
        except Exception as error:  # a reference implementation raises whatever it meets
            text = any(isinstance(value, np.ndarray) and value.dtype.kind in "OUS" for value in values)
            refuse = InputTypeError if text and isinstance(error, ValueError) else OperatorFailedError
            raise refuse(f"expected values that {node.op_type} can read, got others: {error} (node {node.name!r})") from error
        pairs = zip(node.outputs, results, kinds, strict=False)
        return [_clean(value, kind) for name, value, kind in pairs if name]

    return run


def _value(name: str, found: Values, constants: Values) -> Value:
    return None if not name else found[name] if name in found else constants[name]


def _clean(value: Value, kind: TensorType | None) -> Value:
    """A result in the form that programs take: contiguous, of the type that was inferred."""
    if value is None or kind is not None and kind.optional and not isinstance(value, np.ndarray | list | tuple):
        return value
    if isinstance(value, list | tuple):
        return [_clean(item, None) for item in value]
    dtype = None if kind is None or kind.dtype == "string" else numpy_dtype(kind.dtype)
    array = np.asarray(value, dtype)
    if array.dtype.kind in "US":
        array = array.astype(object)
    return np.ascontiguousarray(array).reshape(array.shape)


class Branches:
    """An If outside of programs: each branch is a model of its own."""

    def __init__(self, node: Node, model: Model, constants: Values, make: Maker) -> None:
        self.node, self.constants = node, constants
        names = [name for name in node.inputs[1:] if name]
        self.branches = [_inner(model, node.graphs[which], names, constants, make) for which in ("then_branch", "else_branch")]

    def __call__(self, found: Values, terminate: Flag) -> list[Value]:
        condition = _value(self.node.inputs[0], found, self.constants)
        branch = self.branches[0 if bool(np.asarray(condition).reshape(-1)[0]) else 1]
        results = branch.compute({name: _value(name, found, self.constants) for name in branch.inputs}, terminate)
        return [value for name, value in zip(self.node.outputs, results, strict=True) if name]


class Iterations:
    """A Loop or Scan outside of programs, for bodies that a program for all iterations does not fit: the body is a model of its own."""

    def __init__(self, node: Node, model: Model, constants: Values, make: Maker) -> None:
        self.node, self.constants = node, constants
        self.form = Form.of(node)
        self.body = _inner(model, node.graphs["body"], captured([node.graphs["body"]]), constants, make)

    def __call__(self, found: Values, terminate: Flag) -> list[Value]:
        form = self.form
        values = [_value(name, found, self.constants) for name in self.node.inputs[: form.own]]
        outer = {name: _value(name, found, self.constants) for name in self.body.inputs if name not in form.body.inputs}
        states = values[form.first : form.first + form.states]
        scanned = self._scanned(values[form.first + form.states :])
        pieces: list[list[Value]] = [[] for _ in range(form.collected)]
        for k in self._trips(values, scanned):
            given = dict(zip(form.state_inputs, states, strict=True)) | dict(zip(form.slice_inputs, (slices[k] for slices in scanned), strict=True)) | outer
            if form.counts:
                given |= {form.body.inputs[0]: np.array(k, np.int64), form.body.inputs[1]: np.array(True)}
            results = self.body.compute({name: given[name] for name in self.body.inputs}, terminate)
            states = results[form.said : form.said + form.states]
            for collected, piece in zip(pieces, results[form.said + form.states :], strict=True):
                collected.append(piece)
            if form.counts and not bool(np.asarray(results[0]).reshape(-1)[0]):
                break
        outputs = [*states, *self._stacked(pieces)]
        return [value for name, value in zip(self.node.outputs, outputs, strict=False) if name]

    def _scanned(self, inputs: Sequence[Value]) -> list[np.ndarray]:
        """The scanned inputs with the slices along the first axis, in the order in which they are taken."""
        moved = [np.moveaxis(array, axis, 0) for array, axis in zip(inputs, self.form.axes("input"), strict=True)]
        slices = [array[::-1] if reverse else array for array, reverse in zip(moved, self.form.backwards("input"), strict=True)]
        return [np.ascontiguousarray(array) for array in slices]

    def _trips(self, values: Sequence[Value], scanned: Sequence[np.ndarray]) -> range:
        if not self.form.counts:
            return range(len(scanned[0]))
        limit, condition = values[:2]
        if condition is not None and not bool(np.asarray(condition).reshape(-1)[0]):
            return range(0)
        return range(2**62 if limit is None else max(0, int(np.asarray(limit).reshape(-1)[0])))

    def _stacked(self, pieces: Sequence[list[Value]]) -> list[np.ndarray]:
        form, found = self.form, []
        for name, collected, reverse, axis in zip(form.slice_outputs, pieces, form.backwards("output"), form.axes("output"), strict=True):
            if not collected:
                kind = form.body.types.get(name, TensorType("float32", ()))
                sizes = [d if isinstance(d, int) else 0 for d in kind.shape or ()]
                found.append(np.stack([np.zeros(sizes, numpy_dtype(kind.dtype))], axis).take([], axis))
                continue
            if len({piece.shape for piece in collected}) > 1:
                raise OperatorFailedError(f"expected collected slices of one shape for {name!r}, got {sorted({piece.shape for piece in collected})} "
                                          f"(operator {self.node.op_type}, node {self.node.name!r})")
            found.append(np.ascontiguousarray(np.stack(collected[::-1] if reverse else collected, axis)))
        return found


class Elements:
    """A SequenceMap: its body, a model of its own, for every element."""

    def __init__(self, node: Node, model: Model, constants: Values, make: Maker) -> None:
        self.node, self.constants = node, constants
        graph = node.graphs["body"]
        self.given = graph.inputs
        self.body = _inner(model, graph, captured([graph]), constants, make)

    def __call__(self, found: Values, terminate: Flag) -> list[Value]:
        values = {name: _value(source, found, self.constants) for name, source in zip(self.given, self.node.inputs, strict=False)}
        outer = {name: _value(name, found, self.constants) for name in self.body.inputs if name not in values}
        mapped = [name for name, value in values.items() if isinstance(value, list)]
        results = []
        for elements in zip(*(values[name] for name in mapped), strict=True):
            given = {**values, **outer, **dict(zip(mapped, elements, strict=True))}
            results.append(self.body.compute({name: given[name] for name in self.body.inputs}, terminate))
        columns = zip(*results, strict=True) if results else [()] * len(self.node.outputs)
        return [list(column) for name, column in zip(self.node.outputs, columns, strict=True) if name]


def _inner(model: Model, graph: Graph, outer: Sequence[str], constants: Values, make: Maker) -> Any:
    """A graph inside a node as a model of its own: what it reads of outer values that move are inputs."""
    read = set(captured([graph]))
    inputs = [*graph.inputs, *(name for name in outer if name in read and name not in constants)]
    inner = _part(model, graph.nodes, inputs, graph.outputs, model.graph.types | graph.types)
    inner.graph.initializers = model.graph.initializers | graph.initializers
    return make(inner, inputs, graph.outputs)
