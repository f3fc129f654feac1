"""Shape inference: the types of all values of a graph, and the values of those that are constant.

One inference serves two purposes. Where a graph is built or differentiated, dynamic dimensions are symbols (str). Where it is planned, all input shapes are
known, as integers or as symbolic sizes, and shape arithmetic is folded away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ortrain.dtypes import DIFFERENTIABLE, FLOATS, HALVES, SMALL_INTEGERS
from ortrain.errors import MissingKernelError, ShapeInferenceError
from ortrain.ir import Dim, Graph, Model, Node, Shape, TensorType
from ortrain.ops.registry.attributes import check_attributes
from ortrain.ops.registry.constants import ConstantInputs, ConstantValues, is_symbolic
from ortrain.ops.registry.record import InferenceContext, OpRecord, apply_rule, canonical_domain, record_of
from ortrain.ops.registry.symbolic_values import propagate_sizes
from ortrain.ops.registry.type_constraints import check_type_constraints
from ortrain.ops.registry.unsupported import unsupported_reason

SHAPE_ONLY = frozenset({"Shape", "Size", "ConcatTraining"})
"""Operators that are folded as soon as the shapes of their inputs are known: they do not read the values."""

MAX_UNPACKED_ELEMENTS = 1 << 10
"""Limit for floats that are computed from integers of 8 bits or fewer or from half precision, which is how weights are stored to save memory."""
MAX_FOLDED_ELEMENTS = 1 << 16
"""Element count up to which an output is folded: enough for shape arithmetic and small masks, too small for activations."""

MAX_ELEMENTS = 1 << 40
"""Element count beyond which a shape is refused: 2**40 float32 elements are 4 TiB."""


class ShapeInference:
    """The types of one graph's values and the arrays of its constants, extended node by node with `visit`.

    opsets: version of each imported domain. types: types of the graph's inputs, by name; the inference adds those of all other values.
    values: constants by name, extended by those that are folded; a ConstantValues where sizes may be symbolic.
    declared: the types that the graph itself declares, possibly with symbols; where a declared symbol meets a known size, the inference uses that size
    for the symbol in later declared types."""

    def __init__(self, opsets: dict[str, int], types: dict[str, TensorType], values: dict[str, np.ndarray],
                 declared: dict[str, TensorType] | None = None) -> None:
        self.opsets = opsets
        self.types = types
        self.values = values
        self.declared = declared or {}
        self.sizes: dict[str, tuple[Dim, ...]] = {}
        """The elements of small integer tensors, symbols included, by value name; see ortrain.ops.registry.symbolic_values."""
        self.reference_outputs: set[str] = set()
        """Outputs of nodes that ONNX accepts and their records refuse; only ONNX's reference implementation can run these nodes."""
        self.symbols: dict[str, int] = {}
        """Symbol of a declared type -> the size it stands for."""
        for name, array in values.items():
            self.types.setdefault(name, TensorType.of(array))
        for name, kind in types.items():
            self._bind_symbols(name, kind)

    def _bind_symbols(self, name: str, kind: TensorType) -> None:
        """Record which sizes the symbols of a value's declared type stand for."""
        declared = self.declared.get(name)
        if declared is not None and declared.shape is not None and kind.shape is not None:
            for symbol, size in zip(declared.shape, kind.shape, strict=False):
                if isinstance(symbol, str) and isinstance(size, int):
                    self.symbols.setdefault(symbol, size)

    def _declared_type(self, name: str) -> TensorType | None:
        """Return a value's declared type with known sizes in place of symbols, None where the graph declares none."""
        kind = self.declared.get(name)
        if kind is None or kind.shape is None or kind.is_static:
            return kind
        return TensorType(kind.dtype, tuple(self.symbols.get(d, d) if isinstance(d, str) else d for d in kind.shape), kind.sequence, kind.optional)

    def opset_of(self, node: Node) -> int:
        """Return the version of a node's domain that the model imports."""
        return opset_of(node, self.opsets)

    def context(self, node: Node) -> InferenceContext:
        """Return the inference context of a node whose input types have been inferred."""
        types = [self.types.get(name) if name else None for name in node.inputs]
        values: Sequence[np.ndarray | None] = (ConstantInputs(self.values, list(node.inputs)) if isinstance(self.values, ConstantValues)
                                               else [self.values.get(name) if name else None for name in node.inputs])
        context = InferenceContext(node, types, values, self.opset_of(node))
        context.inference = self
        context.declared = [self._declared_type(name) for name in node.outputs]
        return context

    def visit(self, node: Node) -> OpRecord:
        """Infer the types of a node's outputs, and their values where the inputs are constant; return the node's record.

        Raises MissingKernelError for an operator without a record, InvalidModelError or ShapeInferenceError for a node that does not fit its operator."""
        record = record_of(node)
        if record is None:
            raise MissingKernelError(
                f"expected an operator that ortrain knows, got {node.domain or 'ai.onnx'}::{node.op_type}{unsupported_reason(node)} (node {node.name!r})")
        context = self.context(node)
        try:
            check_attributes(node, record)
            outputs = apply_rule(node, record.infer, context)
            _check_outputs(context, outputs)
            check_type_constraints(context, record)
        except ShapeInferenceError:
            by_reference = _infer_by_onnx(context) if canonical_domain(node.domain) == "" and not node.graphs and _may_exceed_record(context) else None
            if by_reference is None:
                raise
            outputs = by_reference
            self.reference_outputs.update(node.outputs)
        for name, kind in zip(node.outputs, outputs, strict=False):
            if name:
                _check_sizes(context, kind)
                self.types[name] = kind
                self._bind_symbols(name, kind)
        if self._reads_symbolic_sizes(node, context):
            self._propagate_sizes(node, context, outputs)    # before folding, which would convert symbolic sizes to plain integers
        self._fold(node, record, context, outputs)
        self._propagate_sizes(node, context, outputs)
        return record

    def _propagate_sizes(self, node: Node, context: InferenceContext, outputs: Sequence[TensorType]) -> None:
        """Record the elements of a node's first output if the node computes with sizes; an output without symbols becomes a constant."""
        name, kind = node.outputs[0] if node.outputs else "", outputs[0] if outputs else None
        if not name or name in self.values or kind is None or kind.dtype not in ("int64", "int32") or not kind.is_static or len(kind.sizes) > 1:
            return
        found = apply_rule(context.node, propagate_sizes, context)
        if found is None or len(found) != kind.count:
            return
        self.sizes[name] = found
        numbers = [size for size in found if isinstance(size, int)]
        if len(numbers) == len(found):
            self.set_integers(name, numbers, kind)

    def set_integers(self, name: str, numbers: Sequence[int], kind: TensorType) -> None:
        """Record an integer constant of type `kind` by its elements, which may be symbolic sizes."""
        self.types[name], self.sizes[name] = kind, tuple(numbers)
        if isinstance(self.values, ConstantValues) and is_symbolic(numbers):
            self.values.set_symbolic(name, numbers, kind.dtype, kind.sizes)
        else:
            self.values[name] = np.array(numbers, kind.dtype).reshape(kind.sizes)

    def _reads_symbolic_sizes(self, node: Node, context: InferenceContext) -> bool:
        """Return whether a node computes with symbolic sizes, from symbolic constants or from the shapes of its inputs."""
        if isinstance(self.values, ConstantValues) and any(self.values.symbolic_elements(name) is not None for name in node.inputs):
            return True
        return node.op_type in SHAPE_ONLY and any(kind is not None and is_symbolic(kind.shape or ()) for kind in context.types)

    def _fold(self, node: Node, record: OpRecord, context: InferenceContext, outputs: Sequence[TensorType]) -> None:
        """Compute a node's outputs in NumPy if its inputs are constant and its outputs small."""
        is_folded = all(not name or name in self.values for name in node.outputs)
        if record.evaluate is None or record.random or is_folded or any(not kind.is_static or kind.sequence or kind.optional for kind in outputs):
            return
        if node.op_type in SHAPE_ONLY:
            is_constant = all(kind is not None and kind.is_static for kind in context.types)
        else:
            is_constant = all(not name or name in self.values for name in node.inputs)
        to_floats = any(kind.dtype in FLOATS for kind in outputs)
        if to_floats and self._reads_symbolic_sizes(node, context):        # computed in each run, for any size
            return
        is_unpacked = to_floats and any(kind is not None and kind.dtype in SMALL_INTEGERS | HALVES for kind in context.types)
        most = MAX_UNPACKED_ELEMENTS if is_unpacked else MAX_FOLDED_ELEMENTS
        if not is_constant or any(is_symbolic(kind.sizes) or kind.count > most for kind in outputs):
            return
        for name, array in zip(node.outputs, apply_rule(node, record.evaluate, context), strict=False):
            if name and array is not None:
                self.values[name] = np.ascontiguousarray(array).reshape(np.shape(array))


def _check_outputs(context: InferenceContext, kinds: Sequence[TensorType]) -> None:
    """Raise ShapeInferenceError for a node with more outputs than its operator has."""
    if any(context.node.outputs[len(kinds):]):
        raise context.error(f"expected {len(kinds)} outputs at most, got {len(context.node.outputs)}")


def _check_sizes(context: InferenceContext, kind: TensorType) -> None:
    """Raise ShapeInferenceError for a negative size or too many elements, which a constant shape or repeat count in the model may request."""
    sizes = [size for size in kind.shape or () if isinstance(size, int)]
    if any(size < 0 for size in sizes) or prod(sizes) > MAX_ELEMENTS:
        raise context.error(f"expected sizes that are not negative, of {MAX_ELEMENTS} elements at most, got {list(kind.shape or ())}")


def _may_exceed_record(context: InferenceContext) -> bool:
    """Return whether a valid node may be refused by its record: an input has an unknown rank, or an element type that no kernel computes."""
    kinds = [kind for kind in context.types if kind is not None]
    return any(kind.shape is None for kind in kinds) or bool(kinds) and kinds[0].dtype not in DIFFERENTIABLE


def _infer_by_onnx(context: InferenceContext) -> Sequence[TensorType] | None:
    """Return the output types according to ONNX's shape inference, None where ONNX does not define the operator."""
    from ortrain.ops.registry import onnx_definitions

    return None if onnx_definitions.fallback_record(context.node) is None else onnx_definitions.infer(context)


def union_type(c: InferenceContext, what: str, label: str, first: TensorType, second: TensorType) -> TensorType:
    """Return the type of a value that has either of two types: in two branches of an If, or before and after an iteration of a Loop.

    A size that differs becomes a new symbol of the node, an unequal rank an unknown shape. what: names the value in errors. label: names the symbols.
    Raises ShapeInferenceError for different element types."""
    if (first.dtype, first.sequence) != (second.dtype, second.sequence):
        raise c.error(f"expected {what} of one type, got {first.dtype} and {second.dtype}")
    shape: Shape | None = None
    if first.shape is not None and second.shape is not None and len(first.shape) == len(second.shape):
        shape = tuple(a if a == b else c.new_symbol(f"{label}.{axis}") for axis, (a, b) in enumerate(zip(first.shape, second.shape, strict=True)))
    return TensorType(first.dtype, shape, first.sequence, first.optional or second.optional)


def opset_of(node: Node, opsets: Mapping[str, int]) -> int:
    """Return the version of a node's domain among a model's imports; 17 for ONNX's own domain and 1 for others where the import is missing."""
    domain = canonical_domain(node.domain)
    return opsets.get(domain, 17 if domain == "" else 1)


def infer(model: Model) -> dict[str, TensorType]:
    """Return the types of all values of a model, by name; dynamic dimensions remain symbols.

    Raises ShapeInferenceError where inputs do not fit an operator, MissingKernelError for an operator without a record."""
    return infer_graph(model.graph, model.opsets).types


def infer_graph(graph: Graph, opsets: dict[str, int]) -> ShapeInference:
    """Return the inference of a whole graph, from its inputs and initializers."""
    inputs = {name: graph.types[name] for name in graph.inputs if name in graph.types}
    found = ShapeInference(opsets, inputs, dict(graph.initializers), graph.types)
    for node in graph.nodes:
        found.visit(node)
    return found
