"""Operator records: the shape inference, gradient rule and lowering of one operator each, and the table of all records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ortrain.errors import OrtrainError, ShapeInferenceError
from ortrain.ir import Dim, Node, Shape, TensorType
from ortrain.ops.registry.constants import ConstantInputs, is_one

MICROSOFT = "com.microsoft"
ORTRAIN = "ortrain"
"""The domain of training operators that neither ONNX nor onnxruntime-training has."""
DOMAINS = ("", MICROSOFT, ORTRAIN)


class InferenceContext:
    """What an inference function knows of its node: input types, attributes, and the values of constant inputs."""

    def __init__(self, node: Node, types: Sequence[TensorType | None], values: Sequence[np.ndarray | None], opset: int) -> None:
        self.node = node
        self.types = types
        self.values = values
        self.opset = opset
        """Version of the operator's domain."""
        self.scope: Any = None
        """The Inference of the graph that contains the node, for operators with graphs inside."""
        self.declared: Sequence[TensorType | None] = [None] * len(node.outputs)
        """The types that the graph declares for the outputs; pool gradients need them because their inputs do not determine them."""

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def wants(self, index: int) -> bool:
        """Whether output `index` is used."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def type(self, index: int) -> TensorType:
        """Return the type of input `index`. Raises ShapeInferenceError when it is absent or unknown."""
        kind = self.types[index] if index < len(self.types) else None
        if kind is None:
            raise self.error(f"expected input {index}, got none")
        return kind

    def shape(self, index: int) -> Shape:
        """Return the shape of input `index`. Raises ShapeInferenceError when its rank is unknown."""
        shape = self.type(index).shape
        if shape is None:
            raise self.error(f"expected input {index} with a known rank, got an unknown one")
        return shape

    def dtype(self, index: int) -> str:
        return self.type(index).dtype

    def is_constant(self, index: int) -> bool:
        """Whether input `index` is constant; unlike value(), this keeps symbolic sizes symbolic."""
        if isinstance(self.values, ConstantInputs):
            return self.values.has(index)
        return self.value(index) is not None

    def value(self, index: int) -> np.ndarray | None:
        """Return the value of input `index` if it is constant, else None."""
        return self.values[index] if index < len(self.values) else None

    def sizes(self, index: int) -> tuple[Dim, ...] | None:
        """Return the elements of an integer input with at most one axis, symbols included; None when they are unknown."""
        followed: dict[str, tuple[Dim, ...]] = self.scope.sizes if self.scope is not None else {}
        found = followed.get(self.node.inputs[index]) if self.has(index) else None
        value = self.value(index) if found is None else None
        return tuple(int(size) for size in value.reshape(-1)) if value is not None and value.dtype.kind in "iu" else found

    def known(self, index: int) -> np.ndarray:
        """Return the value of input `index`, which must be constant."""
        value = self.values[index]
        assert value is not None
        return value

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def error(self, message: str) -> ShapeInferenceError:
        """Return an error that names the node; use as `raise c.error("expected ..., got ...")`."""
        return ShapeInferenceError(f"{message} (operator {self.node.op_type}, node {self.node.name!r}, outputs {self.node.outputs})")

    def fresh(self, label: str) -> str:
        """Return a new symbol for a dimension that is unknown until run time, unique per node output and label."""
        return f"{self.node.outputs[0]}.{label}"


@dataclass(frozen=True, slots=True)
class Guard:
    """A check of user data before anything is written: every element of input `input` lies in [low, high) or equals `ignored`."""

    input: int
    low: int
    high: int
    ignored: int | None = None
    label: bool = False
    """Whether the indices are class labels: LabelRangeError instead of IndexRangeError."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """How a node runs: the name of a kernel in _core/kernels, its packed attributes and its requirements."""

    kernel: str
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    scratch: int = 0
    """Bytes of scratch memory."""
    in_place: dict[int, int] = field(default_factory=dict)
    """Output index -> input index whose memory the output may reuse, if count and dtype agree and the input has no later reader."""
    unread: tuple[int, ...] = ()
    """Inputs whose values the kernel does not read; only their shapes matter, so their memory may have been reused."""
    guards: tuple[Guard, ...] = ()
    function: Callable[..., Sequence[Any]] | None = None
    """For the kernel "python": called with arrays (None: absent), returns one array per output, None where it is unused."""


@dataclass(frozen=True, slots=True)
class Alias:
    """The node moves no data: output 0 is the memory of input `input` with another shape."""

    input: int = 0


class LoweringContext(InferenceContext):
    """An InferenceContext in which every size is known, with the types of the outputs."""

    def __init__(self, node: Node, types: Sequence[TensorType | None], values: Sequence[np.ndarray | None], opset: int,
                 outputs: Sequence[TensorType | None]) -> None:
        super().__init__(node, types, values, opset)
        self.outputs = outputs
        self.tiles = False
        """Whether kernels may use the processor's AMX tiles."""

    def dims(self, index: int) -> tuple[int, ...]:
        """Return the shape of input `index` as numbers."""
        return self.shape(index)  # type: ignore[return-value]

    def output_dtype(self, index: int) -> str:
        """Return the dtype of output `index`."""
        kind = self.outputs[index]
        assert kind is not None
        return kind.dtype

    def output_dims(self, index: int) -> tuple[int, ...]:
        """Return the shape of output `index` as numbers."""
        kind = self.outputs[index]
        assert kind is not None and kind.shape is not None
        return kind.sizes


Inference = Callable[[InferenceContext], Sequence[TensorType]]
GradientRule = Callable[[Any], Sequence[str | None]]
"""Given a GradientBuilder, returns the name of each input's gradient (None for none). It never un-broadcasts or accumulates: the backward pass does."""
Lowering = Callable[[LoweringContext], KernelCall | Alias]
Decomposition = Callable[[Any], Sequence[str] | None]
"""Given a NodeBuilder, returns the names of the values that replace the node's outputs, or None when the node is not decomposed."""
Rematerialize = Callable[[Node, str], Node | None]
"""Given a node and a new name, returns a node that computes the first output again under that name, with the same bits and in one pass over memory, from
the node's inputs and its small outputs; None where that is impossible."""
Evaluation = Callable[[InferenceContext], Sequence[np.ndarray]]


@dataclass(frozen=True, slots=True)
class OpRecord:
    """All that ortrain knows of one operator.

    With gradient None, differentiable True means that the gradient is not implemented yet, False that none flows."""

    op_type: str
    domain: str
    infer: Inference
    lower: Lowering | None
    gradient: GradientRule | None = None
    differentiable: bool = True
    evaluate: Evaluation | None = None
    """The operator in NumPy, for constant folding while planning: gets the input values, returns the outputs."""
    stop_gradient: frozenset[int] = frozenset()
    """Inputs that no gradient flows to (indices, shapes, limits)."""
    decompose: Decomposition | None = None
    """The node in terms of other operators."""
    decompose_first: bool = False
    """True when the gradient rule applies only to nodes that are not decomposed; others are decomposed before differentiation."""
    random: bool = False
    """True when two runs may differ; such nodes are never folded or merged."""
    written: int = 0
    """How many leading outputs the kernel always writes, used or not; it checks whether the others are present."""
    is_custom: bool = False
    """True for an operator that the user registered, and for its gradient: nothing is known of its inputs and attributes."""
    summary: str = ""
    rematerialize: Rematerialize | None = None
    """How the first output is computed a second time in the backward pass (ortrain.plan.rematerialization)."""


REGISTRY: dict[tuple[str, str], OpRecord] = {}
"""(domain, operator) -> record."""


def operator(
    op_type: str,
    *,
    domain: str = "",
    lower: Lowering | str | None = None,
    gradient: GradientRule | None = None,
    differentiable: bool = True,
    evaluate: Evaluation | None = None,
    stop_gradient: Sequence[int] = (),
    decompose: Decomposition | None = None,
    decompose_first: bool = False,
    rematerialize: Rematerialize | None = None,
    random: bool = False,
    written: int = 0,
    is_custom: bool = False,
) -> Callable[[Inference], Inference]:
    """Decorate an inference function into the record of `op_type`.

    lower: a lowering function, or the name of a kernel that needs no attributes. The first line of the function's docstring becomes the operator's
    summary. The other parameters are the fields of OpRecord."""

    def register(infer: Inference) -> Inference:
        key = (domain, op_type)
        assert key not in REGISTRY, f"two records for {key}"
        how = (lambda c, kernel=lower: KernelCall(kernel)) if isinstance(lower, str) else lower
        REGISTRY[key] = OpRecord(op_type, domain, infer, how, gradient, differentiable, evaluate, frozenset(stop_gradient), decompose, decompose_first, random, written,
                                 is_custom, summary=(infer.__doc__ or "").strip(), rematerialize=rematerialize)
        return infer

    return register


FALLBACK: list[Callable[[str, str], OpRecord | None]] = []
"""Sources of records that the table does not have: (domain, operator) -> record or None."""


def record_of(node: Node) -> OpRecord | None:
    """Return the record of a node's operator, or None."""
    key = canonical_domain(node.domain), node.op_type
    found = REGISTRY.get(key)
    return found if found is not None else next((record for source in FALLBACK if (record := source(*key)) is not None), None)


Result = TypeVar("Result")


def apply_rule(node: Node, rule: Callable[..., Result], *arguments: Any) -> Result:
    """Apply a rule of a record to a node; turn Python errors caused by malformed attributes or inputs into ShapeInferenceError."""
    try:
        return rule(*arguments)
    except OrtrainError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ShapeInferenceError(f"expected inputs and attributes that {node.op_type} can have, got {node}: {type(error).__name__}: {error} "
                                  f"(node {node.name!r})") from error


def canonical_domain(domain: str) -> str:
    """Return the domain's canonical name: "ai.onnx" is the default domain ""."""
    return "" if domain == "ai.onnx" else domain


def broadcast_shapes(c: InferenceContext, *shapes: Shape) -> Shape:
    """Return the NumPy broadcast of shapes whose dimensions may be symbols. Two different symbols broadcast to a new one, since either may be 1."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    out: list[Dim] = []
    for axis in range(rank):
        sizes = [s[axis] for s in padded if not is_one(s[axis])]
        numbers = [d for d in sizes if isinstance(d, int)]
        if any(d != numbers[0] for d in numbers):
            sizes = [d for d in sizes if d != 1]             # a symbolic size may be 1 at run time
            numbers = [d for d in sizes if isinstance(d, int)]
        if any(d != numbers[0] for d in numbers):
            raise c.error(f"expected shapes that broadcast, got {list(map(list, shapes))}")
        out.append(numbers[0] if numbers else sizes[0] if len(set(sizes)) == 1 else c.fresh(f"broadcast{axis}") if sizes else 1)
    return tuple(out)


def check_shape(c: InferenceContext, what: str, got: Sequence[Dim], wanted: Sequence[Dim]) -> None:
    """Raise ShapeInferenceError when a shape is known to differ from the expected one; symbols match anything."""
    if len(got) != len(wanted) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(got, wanted, strict=True)):
        raise c.error(f"expected {what} of shape {list(wanted)}, got {list(got)}")


def check_inputs(c: InferenceContext, shape: Sequence[Dim] | None, *indices: int) -> None:
    """Raise ShapeInferenceError for inputs that are absent or known to have another shape (None: any shape)."""
    for index in indices:
        have = c.type(index).shape
        if shape is not None and have is not None:
            check_shape(c, f"input {index}", have, shape)


def check_numbers(c: InferenceContext, *indices: int) -> None:
    """Raise ShapeInferenceError for given inputs that are known not to have exactly one element, whatever their rank."""
    for index in indices:
        if c.has(index) and any(isinstance(size, int) and size != 1 for size in c.type(index).shape or ()):
            raise c.error(f"expected one number as input {index}, got {list(c.shape(index))}")


def check_broadcasts(c: InferenceContext, index: int, target: Shape) -> None:
    """Raise ShapeInferenceError when an input is known not to broadcast to a shape."""
    have = c.shape(index)
    pairs = zip(have, target[len(target) - len(have):], strict=True) if len(have) <= len(target) else [(0, 1)]
    if any(isinstance(a, int) and isinstance(b, int) and not is_one(a) and a not in (b, 1) for a, b in pairs):
        raise c.error(f"expected input {index} to broadcast to {list(target)}, got {list(have)}")


def check_gradient(c: InferenceContext, infer: Inference) -> None:
    """Raise ShapeInferenceError when a gradient (input 0) is known not to have the shape that the forward operator gives for the inputs behind it."""
    of_operator = InferenceContext(replace(c.node, inputs=c.node.inputs[1:]), c.types[1:], c.values[1:], c.opset)
    of_operator.scope = c.scope
    shape = infer(of_operator)[0].shape
    if shape is not None:
        check_shape(c, "a gradient", c.shape(0), shape)


def normalize_axis(c: InferenceContext, axis: int, rank: int) -> int:
    """Return a non-negative axis. Raises ShapeInferenceError when it is outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise c.error(f"expected an axis in [{-rank}, {rank}), got {axis}")
    return axis % rank


def distinct_axes(c: InferenceContext, axes: Sequence[int], rank: int) -> list[int]:
    """Return non-negative axes. Raises ShapeInferenceError when one appears twice."""
    found = [normalize_axis(c, axis, rank) for axis in axes]
    if len(set(found)) != len(found):
        raise c.error(f"expected distinct axes, got {list(axes)}")
    return found
