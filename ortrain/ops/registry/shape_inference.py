"""Shape inference: the types of all values of a graph, with symbols in artifacts and with numbers or symbolic sizes in plans; constants are folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ortrain.dtypes import DIFFERENTIABLE
from ortrain.errors import MissingKernelError, ShapeInferenceError
from ortrain.ir import Dim, Graph, Model, Node, Shape, TensorType
from ortrain.ops.registry import onnx_definitions
from ortrain.ops.registry.attributes import check_attributes
from ortrain.ops.registry.constants import ConstantInputs, ConstantValues, is_symbolic
from ortrain.ops.registry.record import InferenceContext, OpRecord, apply_rule, canonical_domain, record_of
from ortrain.ops.registry.symbolic_values import follow
from ortrain.ops.registry.type_constraints import check_type_constraints
from ortrain.ops.registry.unsupported import reason_of

SHAPE_ONLY = frozenset({"Shape", "Size", "ConcatTraining"})
"""Operators whose evaluation needs only types."""

FOLD_LIMIT = 1 << 16
"""Most elements of a folded constant: shape arithmetic and small masks, not activations."""


MAX_ELEMENTS = 1 << 40
"""Elements of a tensor beyond which a shape is an error, since no memory could hold it."""


class Inference:
    """What is known of the values of one graph: types, and the arrays of constants."""

    def __init__(self, opsets: dict[str, int], types: dict[str, TensorType], values: dict[str, np.ndarray],
                 declared: dict[str, TensorType] | None = None) -> None:
        self.opsets = opsets
        self.types = types
        self.values = values
        self.declared = declared or {}
        self.sizes: dict[str, tuple[Dim, ...]] = {}
        """The elements of small integer tensors that are known except for symbols."""
        self.foreign: set[str] = set()
        """Outputs of nodes that ONNX allows and ortrain's records do not; only ONNX's reference implementation runs these."""
        self.symbols: dict[str, int] = {}
        """The sizes that symbols of declared types have."""
        for name, array in values.items():
            self.types.setdefault(name, TensorType.of(array))
        for name, kind in types.items():
            self._learn(name, kind)

    def _learn(self, name: str, kind: TensorType) -> None:
        """Record the sizes of the symbols in a value's declared type."""
        declared = self.declared.get(name)
        if declared is not None and declared.shape is not None and kind.shape is not None:
            for symbol, size in zip(declared.shape, kind.shape, strict=False):
                if isinstance(symbol, str) and isinstance(size, int):
                    self.symbols.setdefault(symbol, size)

    def _declared_type(self, name: str) -> TensorType | None:
        kind = self.declared.get(name)
        if kind is None or kind.shape is None or kind.is_static:
            return kind
        return TensorType(kind.dtype, tuple(self.symbols.get(d, d) if isinstance(d, str) else d for d in kind.shape), kind.sequence, kind.optional)

    def opset_of(self, node: Node) -> int:
        """Return the version of the node's domain that the model imports."""
        return opset_of(node, self.opsets)

    def context(self, node: Node) -> InferenceContext:
        """Return the inference context of a node whose inputs have been visited."""
        types = [self.types.get(name) if name else None for name in node.inputs]
        values: Sequence[np.ndarray | None] = (ConstantInputs(self.values, list(node.inputs)) if isinstance(self.values, ConstantValues)
                                               else [self.values.get(name) if name else None for name in node.inputs])
        context = InferenceContext(node, types, values, self.opset_of(node))
        context.scope = self
        context.declared = [self._declared_type(name) for name in node.outputs]
        return context

    def visit(self, node: Node) -> OpRecord:
        """Infer the node's output types, and their values where its inputs are constant."""
        record = record_of(node)
        if record is None:
            raise MissingKernelError(
                f"expected an operator that ortrain knows, got {node.domain or 'ai.onnx'}::{node.op_type}{reason_of(node)} (node {node.name!r})")
        context = self.context(node)
        try:
            check_attributes(node, record)
            outputs = apply_rule(node, record.infer, context)
            _check_outputs(context, outputs)
            check_type_constraints(context, record)
        except ShapeInferenceError:
            by_onnx = _by_onnx(context) if canonical_domain(node.domain) == "" and not node.graphs and _is_unusual(context) else None
            if by_onnx is None:
                raise
            outputs = by_onnx
            self.foreign.update(node.outputs)
        for name, kind in zip(node.outputs, outputs, strict=False):
            if name:
                _check_sizes(context, kind)
                self.types[name] = kind
                self._learn(name, kind)
        if self._follows_symbols(node, context):
            self._follow_sizes(node, context, outputs)
        self._fold(node, record, context, outputs)
        self._follow_sizes(node, context, outputs)
        return record

    def _follow_sizes(self, node: Node, context: InferenceContext, outputs: Sequence[TensorType]) -> None:
        """Record the result of shape arithmetic on symbols; a result without symbols becomes a constant."""
        name, kind = node.outputs[0] if node.outputs else "", outputs[0] if outputs else None
        if not name or name in self.values or kind is None or kind.dtype not in ("int64", "int32") or not kind.is_static or len(kind.sizes) > 1:
            return
        found = apply_rule(context.node, follow, context)
        if found is None or len(found) != kind.count:
            return
        self.sizes[name] = found
        numbers = [size for size in found if isinstance(size, int)]
        if len(numbers) == len(found):
            self.know(name, numbers, kind)

    def know(self, name: str, numbers: Sequence[int], kind: TensorType) -> None:
        """Record an integer constant, which may be symbolic."""
        self.types[name], self.sizes[name] = kind, tuple(numbers)
        if isinstance(self.values, ConstantValues) and is_symbolic(numbers):
            self.values.hold(name, numbers, kind.dtype, kind.sizes)
        else:
            self.values[name] = np.array(numbers, kind.dtype).reshape(kind.sizes)

    def _follows_symbols(self, node: Node, context: InferenceContext) -> bool:
        """Whether shape arithmetic involves symbolic sizes, so that it must be propagated instead of evaluated in NumPy."""
        return isinstance(self.values, ConstantValues) and any(self.values.held(name) is not None for name in node.inputs) or node.op_type in SHAPE_ONLY and any(
            kind is not None and is_symbolic(kind.shape or ()) for kind in context.types)

    def _fold(self, node: Node, record: OpRecord, context: InferenceContext, outputs: Sequence[TensorType]) -> None:
        followed = all(not name or name in self.values for name in node.outputs)
        if record.evaluate is None or record.random or followed or any(not kind.is_static or kind.sequence or kind.optional for kind in outputs):
            return
        if node.op_type in SHAPE_ONLY:
            known = all(kind is not None and kind.is_static for kind in context.types)
        else:
            known = all(not name or name in self.values for name in node.inputs)
        if not known or any(kind.count > FOLD_LIMIT for kind in outputs):
            return
        for name, array in zip(node.outputs, apply_rule(node, record.evaluate, context), strict=False):
            if name and array is not None:
                self.values[name] = np.ascontiguousarray(array).reshape(np.shape(array))


def _check_outputs(context: InferenceContext, kinds: Sequence[TensorType]) -> None:
    """Raise ShapeInferenceError for a node with more outputs than its operator has."""
    if any(context.node.outputs[len(kinds):]):
        raise context.error(f"expected {len(kinds)} outputs at most, got {len(context.node.outputs)}")


def _check_sizes(context: InferenceContext, kind: TensorType) -> None:
    """Raise ShapeInferenceError for an impossible output shape, which values that specify sizes may request of any operator."""
    sizes = [size for size in kind.shape or () if isinstance(size, int)]
    if any(size < 0 for size in sizes) or prod(sizes) > MAX_ELEMENTS:
        raise context.error(f"expected sizes that are not negative, of {MAX_ELEMENTS} elements at most, got {list(kind.shape or ())}")


def _is_unusual(context: InferenceContext) -> bool:
    """Whether a record may refuse what ONNX allows: an input of unknown rank, or of an element type without a kernel."""
    kinds = [kind for kind in context.types if kind is not None]
    return any(kind.shape is None for kind in kinds) or bool(kinds) and kinds[0].dtype not in DIFFERENTIABLE


def _by_onnx(context: InferenceContext) -> Sequence[TensorType] | None:
    """Infer types with ONNX's shape inference; None where ONNX does not define the operator."""
    return None if onnx_definitions.defined("", context.node.op_type) is None else onnx_definitions.infer(context)


def common_type(c: InferenceContext, what: str, label: str, first: TensorType, second: TensorType) -> TensorType:
    """Return what two types of one value have in common: of two branches, or of a state before and after an iteration. Raises ShapeInferenceError where
    they conflict."""
    if (first.dtype, first.sequence) != (second.dtype, second.sequence):
        raise c.error(f"expected {what} of one type, got {first.dtype} and {second.dtype}")
    shape: Shape | None = None
    if first.shape is not None and second.shape is not None and len(first.shape) == len(second.shape):
        shape = tuple(a if a == b else c.fresh(f"{label}.{axis}") for axis, (a, b) in enumerate(zip(first.shape, second.shape, strict=True)))
    return TensorType(first.dtype, shape, first.sequence, first.optional or second.optional)


def opset_of(node: Node, opsets: Mapping[str, int]) -> int:
    """Return the version of a node's domain among a model's imports."""
    domain = canonical_domain(node.domain)
    return opsets.get(domain, 17 if domain == "" else 1)


def infer(model: Model) -> dict[str, TensorType]:
    """Infer the types of all values of a model as far as they can be known; symbols are kept.

    Raises ShapeInferenceError where inputs do not fit an operator, MissingKernelError for an operator without a record."""
    return infer_graph(model.graph, model.opsets).types


def infer_graph(graph: Graph, opsets: dict[str, int]) -> Inference:
    """Infer the types of a whole graph from its inputs and initializers."""
    inputs = {name: graph.types[name] for name in graph.inputs if name in graph.types}
    found = Inference(opsets, inputs, dict(graph.initializers), graph.types)
    for node in graph.nodes:
        found.visit(node)
    return found
