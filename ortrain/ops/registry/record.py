"""Operator records: everything ortrain knows about one operator, and the table of all records.

An operator is added by decorating its shape inference with `operator`, which enters an OpRecord into REGISTRY:

    def lower_neg(c: LoweringContext) -> KernelCall:
        return KernelCall("neg", in_place={0: 0})

    @operator("Neg", lower=lower_neg, gradient=lambda g: [g.op("Neg", g.dy)])
    def neg(c: InferenceContext) -> list[TensorType]:
        "y = -x"
        return [c.type(0)]

The rules of a record run at different times and receive different arguments:

- infer(InferenceContext) whenever a node is added to a graph or planned; dimensions may be symbols;
- evaluate(InferenceContext) right after infer, for nodes whose inputs are constant;
- gradient(GradientBuilder) while a graph is differentiated;
- decompose(NodeBuilder) before differentiation, for operators without a gradient rule, and while planning;
- lower(LoweringContext) while planning, when all sizes are integers.

The two builders are in ortrain.ops.registry.node_builder."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ortrain.errors import OrtrainError, ShapeInferenceError
from ortrain.ir import Dim, Node, Shape, TensorType
from ortrain.ops.registry.constants import ConstantInputs, is_one
from ortrain.ops.registry.operator_modules import OPERATOR_MODULES

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's contrib and training operators."""
ORTRAIN = "ortrain"
"""The domain of training operators that neither ONNX nor onnxruntime-training defines."""
DOMAINS = ("", MICROSOFT, ORTRAIN)


class InferenceContext:
    """One node as shape inference sees it: attributes, input types, and the values of constant inputs.

    node: the node itself. types: the type of each input, None where the input is absent or its type is unknown; a dimension is an int or, where it is
    unknown until run time, a symbol (str). values: the array of each constant input, None for other inputs. opset: version of the node's domain."""

    def __init__(self, node: Node, types: Sequence[TensorType | None], values: Sequence[np.ndarray | None], opset: int) -> None:
        self.node = node
        self.types = types
        self.values = values
        self.opset = opset
        self.inference: Any = None
        """The ShapeInference of the graph that contains the node; control flow infers its subgraphs with it. None for a node outside a graph."""
        self.declared: Sequence[TensorType | None] = [None] * len(node.outputs)
        """The output types that the graph declares, None where it declares none. Gradients of pooling need them: their inputs do not determine dx."""

    def has(self, index: int) -> bool:
        """Return whether input `index` is given; an optional input may be missing or named ""."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def has_output(self, index: int) -> bool:
        """Return whether the node has output `index`; an optional output may be missing or named ""."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def type(self, index: int) -> TensorType:
        """Return the type of input `index`. Raises ShapeInferenceError when the input is absent or its type is unknown."""
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
        """Return the name of the element type of input `index`."""
        return self.type(index).dtype

    def is_constant(self, index: int) -> bool:
        """Return whether input `index` is constant, without creating its array: value() would fix the symbolic sizes among its elements."""
        if isinstance(self.values, ConstantInputs):
            return self.values.has(index)
        return self.value(index) is not None

    def value(self, index: int) -> np.ndarray | None:
        """Return the array of input `index`, None where the input is not constant."""
        return self.values[index] if index < len(self.values) else None

    def constant_value(self, index: int) -> np.ndarray:
        """Return the array of input `index`, which must be constant, as all inputs of a node are while it is folded."""
        value = self.values[index]
        assert value is not None
        return value

    def sizes(self, index: int) -> tuple[Dim, ...] | None:
        """Return the elements of an integer input with at most one axis, such as a shape; a symbol stands for an element known only at run time.

        None where the elements are unknown."""
        propagated: dict[str, tuple[Dim, ...]] = self.inference.sizes if self.inference is not None else {}
        found = propagated.get(self.node.inputs[index]) if self.has(index) else None
        value = self.value(index) if found is None else None
        return tuple(int(size) for size in value.reshape(-1)) if value is not None and value.dtype.kind in "iu" else found

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, `default` where the node does not set it."""
        return self.node.attributes.get(name, default)

    def error(self, message: str) -> ShapeInferenceError:
        """Return an error whose message also names the node: `raise c.error("expected ..., got ...")`."""
        return ShapeInferenceError(f"{message} (operator {self.node.op_type}, node {self.node.name!r}, outputs {self.node.outputs})")

    def new_symbol(self, label: str) -> str:
        """Return a symbol for a dimension of the outputs that is unknown until run time; `label` distinguishes the symbols of one node."""
        return f"{self.node.outputs[0]}.{label}"


@dataclass(frozen=True, slots=True)
class Guard:
    """A check of user data such as labels and indices, which a program runs before it writes anything.

    Every element x of input `input` must satisfy low <= x < high or equal `ignored`. Otherwise the run fails with IndexRangeError, or with
    LabelRangeError if `is_label` is set. A constant input is checked once, while planning."""

    input: int
    low: int
    high: int
    ignored: int | None = None
    """A value that is accepted although it lies outside the range, such as ignore_index; None: no such value."""
    is_label: bool = False
    """Whether the elements are class labels rather than indices."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """The lowered form of a node: a kernel by name, the attributes packed for it, and what the plan has to provide and may exploit."""

    kernel: str
    """Name in a kernel table of ortrain/_core/kernels, or "python" for `function`. The dtype of the first input selects the variant."""
    ints: tuple[int, ...] = ()
    """Integer attributes, sizes and strides, in the order that the kernel reads them."""
    floats: tuple[float, ...] = ()
    """Floating-point attributes, in the order that the kernel reads them."""
    scratch: int = 0
    """Bytes of scratch memory, uninitialized, that the kernel may use during the call."""
    in_place: dict[int, int] = field(default_factory=dict)
    """Output index -> index of an input whose memory the kernel may overwrite with that output.

    The plan uses it only if both have the same element count and dtype and nothing reads the input later."""
    shape_only_inputs: tuple[int, ...] = ()
    """Inputs of which the kernel reads no element: the call does not keep their memory alive."""
    guards: tuple[Guard, ...] = ()
    """Checks that must pass before the call."""
    function: Callable[..., Sequence[Any]] | None = None
    """For the kernel "python": called with one array per input (None where absent), returns one array per output (None where unused)."""
    is_broadcast: bool = False
    """Whether the kernel reads its inputs with broadcasting, and `ints` are those of pack_broadcast for output 0 and all inputs."""
    checks_indices: bool = False
    """Whether the kernel itself checks what `guards` say, each index before it is used, where the last of `ints` is 1 instead of 0."""


@dataclass(frozen=True, slots=True)
class Alias:
    """The lowered form of a node that moves no data: output 0 is the memory of input `input`, read with another shape."""

    input: int = 0


class LoweringContext(InferenceContext):
    """An InferenceContext in which no dimension is a symbol, with the types of the outputs.

    A size may be a SymbolicInt of a program template; it behaves like an int, but a comparison of it becomes a condition of the template
    (symbolic_min, symbolic_max and select_if in ortrain.ops.registry.constants avoid that).

    outputs: the type of each output, None where the output is absent."""

    def __init__(self, node: Node, types: Sequence[TensorType | None], values: Sequence[np.ndarray | None], opset: int,
                 outputs: Sequence[TensorType | None]) -> None:
        super().__init__(node, types, values, opset)
        self.outputs = outputs
        self.may_use_amx = False
        """Whether kernels may compute float32 matrix multiplications on the processor's AMX tiles."""
        self.takes_bfloat16 = False
        """Whether the kernel of the node may round operands of matrix multiplications to bfloat16."""

    def dims(self, index: int) -> tuple[int, ...]:
        """Return the shape of input `index` as integers."""
        return self.shape(index)  # type: ignore[return-value]

    def output_dtype(self, index: int) -> str:
        """Return the name of the element type of output `index`, which the node must have."""
        kind = self.outputs[index]
        assert kind is not None
        return kind.dtype

    def output_dims(self, index: int) -> tuple[int, ...]:
        """Return the shape of output `index`, which the node must have, as integers."""
        kind = self.outputs[index]
        assert kind is not None and kind.shape is not None
        return kind.sizes


InferenceRule = Callable[[InferenceContext], Sequence[TensorType]]
"""Returns the type of each output. Raises ShapeInferenceError for inputs and attributes that the operator does not accept."""
GradientRule = Callable[[Any], Sequence[str | None]]
"""Given a GradientBuilder, adds the nodes of the gradient and returns the gradient of each input by name, None where there is none.

A gradient may have the broadcast shape of an output: the backward pass sums it to the input's shape, and accumulates the gradients of several readers."""
SampleGradientRule = Callable[[Any], Sequence[Any]]
"""Given a SampleGradientBuilder, returns the form of each input's gradients by single samples, None where none is wanted (sample_gradients.py)."""
Lowering = Callable[[LoweringContext], KernelCall | Alias]
"""Returns the kernel call that computes the node."""


@dataclass(frozen=True, slots=True)
class ElementwiseLowering:
    """The lowering of an operator that computes each element of its outputs from the elements of its inputs in the same place, with broadcasting.

    Layout conversion, promotion to 2-D and upstream Gather recognize elementwise operators by this class. Also a decorator of lowering functions."""

    lower: Lowering

    def __call__(self, c: LoweringContext) -> KernelCall | Alias:
        return self.lower(c)


Decomposition = Callable[[Any], Sequence[str] | None]
"""Given a NodeBuilder, adds the nodes that replace the node and returns the names of their results, one per output; None keeps the node as it is."""
Rematerialize = Callable[[Node, str], Node | None]
"""Given a node and a new value name, returns a node that computes the first output again under that name, None where that is impossible.

The node reads the original's inputs and small outputs, makes one pass over memory and gives the same bits."""
Evaluation = Callable[[InferenceContext], Sequence[np.ndarray]]
"""Computes the outputs from the values of the inputs, in NumPy."""


@dataclass(frozen=True, slots=True)
class OpRecord:
    """All that ortrain knows of one operator.

    An operator without `lower` runs through `decompose` or `planned_as`. With `gradient` None, an operator that has `decompose` is differentiated through its
    decomposition; for any other, `differentiable` tells whether the gradient is missing (True) or zero by nature (False)."""

    op_type: str
    domain: str
    """Canonical domain: "" for ONNX's own operators, otherwise MICROSOFT, ORTRAIN or a user's domain."""
    infer: InferenceRule
    lower: Lowering | None
    gradient: GradientRule | None = None
    differentiable: bool = True
    """Whether gradients flow through the operator at all."""
    evaluate: Evaluation | None = None
    """The operator in NumPy, for constant folding; None: its nodes are never folded."""
    stop_gradient: frozenset[int] = frozenset()
    """Inputs that no gradient flows to, such as indices, shapes and limits."""
    decompose: Decomposition | None = None
    decompose_first: bool = False
    """Whether decomposable nodes are decomposed before differentiation even though there is a gradient rule, which then covers only the others."""
    random: bool = False
    """Whether two runs may differ; such nodes are never folded or merged."""
    required_outputs: int = 0
    """Number of leading outputs that the kernel writes in any case; the plan provides memory for those that the node does not have.

    The kernel itself checks which of the remaining outputs are present."""
    is_custom: bool = False
    """Whether a user registered the operator, or it is the gradient of such an operator; its inputs and attributes are not checked."""
    summary: str = ""
    """The formula of the operator: the docstring of its inference function."""
    rematerialize: Rematerialize | None = None
    """Cheaper form of the first output for rematerialization (ortrain.plan.rematerialization); None: the same node runs again."""
    takes_bfloat16: bool = False
    """Whether its matrix multiplications take bfloat16 operands in sessions of that precision (SessionOptions.precision); they are added in float32."""
    takes_rounded: frozenset[int] | None = None
    """Inputs that may be activations which such sessions kept in bfloat16 until the backward pass (ortrain.plan.narrow_activations), as its results are then
    off by little more than the inputs. None: all inputs if it takes bfloat16 operands, else none."""
    sample_gradients: SampleGradientRule | None = None
    """The gradients of its weights by single samples, for differential privacy. None: those of weights that broadcast follow from the gradient rule, others
    are not known."""
    planned_as: str = ""
    """The operator of domain ORTRAIN by which ortrain.plan.layout replaces every node of this one, whose kernel runs it; "" if there is none."""

    def may_read_rounded(self, index: int) -> bool:
        """Return whether input `index` may be an activation that was kept in bfloat16."""
        return self.takes_bfloat16 if self.takes_rounded is None else index in self.takes_rounded

    @property
    def elementwise(self) -> bool:
        """Whether each element of the outputs depends only on the elements of the inputs in the same place, with broadcasting."""
        return isinstance(self.lower, ElementwiseLowering)


class Registry(Mapping[tuple[str, str], OpRecord]):
    """The records: (domain, op_type) -> record.

    The module of an operator is imported when its record is first looked up; iterating imports all modules of operators."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], OpRecord] = {}
        """The records of the modules that were imported, and those of users."""

    def __getitem__(self, key: tuple[str, str]) -> OpRecord:
        found = self._records.get(key)
        if found is None:
            importlib.import_module(f"ortrain.ops.{MODULE_OF[key]}")
            found = self._records[key]
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._records or key in MODULE_OF

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for module in OPERATOR_MODULES:
            importlib.import_module(f"ortrain.ops.{module}")
        return iter(tuple(self._records))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def registered(self) -> frozenset[tuple[str, str]]:
        """Return the operators whose records exist already."""
        return frozenset(self._records)

    def add(self, record: OpRecord) -> None:
        """Enter a record; that of a user's operator replaces an earlier one of the same operator."""
        key = record.domain, record.op_type
        assert record.is_custom or key not in self._records, f"two records for {key}"
        self._records[key] = record


REGISTRY = Registry()
MODULE_OF = {(domain, op_type): module for module, names in OPERATOR_MODULES.items() for domain, _, op_type in (name.rpartition("::") for name in names)}
"""(domain, op_type) -> the module that registers the operator."""


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
    required_outputs: int = 0,
    is_custom: bool = False,
    takes_bfloat16: bool = False,
    takes_rounded: Sequence[int] | None = None,
    sample_gradients: SampleGradientRule | None = None,
    planned_as: str = "",
) -> Callable[[InferenceRule], InferenceRule]:
    """Return a decorator that registers an inference function as the record of `op_type`; the function itself is returned unchanged.

    The docstring of the function states the operator's formula and becomes the record's summary. lower: a lowering function, or the name of a kernel
    that needs no attributes. The other parameters are the fields of OpRecord."""

    def register(infer: InferenceRule) -> InferenceRule:
        lowering = (lambda c, kernel=lower: KernelCall(kernel)) if isinstance(lower, str) else lower
        REGISTRY.add(OpRecord(op_type, domain, infer, lowering, gradient, differentiable, evaluate, frozenset(stop_gradient), decompose, decompose_first,
                              random, required_outputs, is_custom, summary=(infer.__doc__ or "").strip().partition("\n\n")[0], rematerialize=rematerialize,
                              takes_bfloat16=takes_bfloat16, takes_rounded=None if takes_rounded is None else frozenset(takes_rounded),
                              sample_gradients=sample_gradients, planned_as=planned_as))
        return infer

    return register


RECORD_SOURCES: list[Callable[[str, str], OpRecord | None]] = []
"""Functions of (domain, op_type) that provide records for operators missing from REGISTRY, None for operators they do not know."""


def record_of(node: Node) -> OpRecord | None:
    """Return the record of a node's operator, from REGISTRY or else from RECORD_SOURCES; None for an unknown operator."""
    key = canonical_domain(node.domain), node.op_type
    found = REGISTRY.get(key)
    return found if found is not None else next((record for source in RECORD_SOURCES if (record := source(*key)) is not None), None)


Result = TypeVar("Result")


def apply_rule(node: Node, rule: Callable[..., Result], *arguments: Any) -> Result:
    """Return rule(*arguments), turning Python errors into ShapeInferenceError.

    Rules are written for well-formed nodes; malformed attributes and inputs make them fail with TypeError, IndexError and the like."""
    try:
        return rule(*arguments)
    except OrtrainError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ShapeInferenceError(f"expected inputs and attributes that {node.op_type} can have, got {node}: {type(error).__name__}: {error} "
                                  f"(node {node.name!r})") from error


def canonical_domain(domain: str) -> str:
    """Return the canonical name of a domain: "ai.onnx" is another name of the default domain ""."""
    return "" if domain == "ai.onnx" else domain


def broadcast_shapes(c: InferenceContext, *shapes: Shape) -> Shape:
    """Return the NumPy broadcast of shapes that may contain symbols.

    Two different symbols broadcast to a new symbol, since either may be 1. Raises ShapeInferenceError for sizes that do not broadcast."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    out: list[Dim] = []
    for axis in range(rank):
        sizes = [s[axis] for s in padded if not is_one(s[axis])]
        numbers = [d for d in sizes if isinstance(d, int)]
        if any(d != numbers[0] for d in numbers):
            sizes = [d for d in sizes if d != 1]             # a SymbolicInt may be 1, which is_one does not tell
            numbers = [d for d in sizes if isinstance(d, int)]
        if any(d != numbers[0] for d in numbers):
            raise c.error(f"expected shapes that broadcast, got {list(map(list, shapes))}")
        out.append(numbers[0] if numbers else sizes[0] if len(set(sizes)) == 1 else c.new_symbol(f"broadcast{axis}") if sizes else 1)
    return tuple(out)


def check_shape(c: InferenceContext, what: str, got: Sequence[Dim], wanted: Sequence[Dim]) -> None:
    """Raise ShapeInferenceError unless shape `got` equals `wanted`; a symbol matches any size. what: names the tensor in the message."""
    if len(got) != len(wanted) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(got, wanted, strict=True)):
        raise c.error(f"expected {what} of shape {list(wanted)}, got {list(got)}")


def check_inputs(c: InferenceContext, shape: Sequence[Dim] | None, *indices: int) -> None:
    """Raise ShapeInferenceError for inputs that are absent or whose known shape is not `shape` (None: any shape)."""
    for index in indices:
        actual = c.type(index).shape
        if shape is not None and actual is not None:
            check_shape(c, f"input {index}", actual, shape)


def check_scalars(c: InferenceContext, *indices: int) -> None:
    """Raise ShapeInferenceError for given inputs known to have more or fewer elements than one; their rank is arbitrary."""
    for index in indices:
        if c.has(index) and any(isinstance(size, int) and size != 1 for size in c.type(index).shape or ()):
            raise c.error(f"expected one number as input {index}, got {list(c.shape(index))}")


def check_broadcasts(c: InferenceContext, index: int, target: Shape) -> None:
    """Raise ShapeInferenceError when the shape of input `index` is known not to broadcast to `target`."""
    shape = c.shape(index)
    pairs = zip(shape, target[len(target) - len(shape):], strict=True) if len(shape) <= len(target) else [(0, 1)]
    if any(isinstance(a, int) and isinstance(b, int) and not is_one(a) and a not in (b, 1) for a, b in pairs):
        raise c.error(f"expected input {index} to broadcast to {list(target)}, got {list(shape)}")


def check_gradient(c: InferenceContext, infer: InferenceRule) -> None:
    """Raise ShapeInferenceError when input 0, an output gradient, does not have the output shape that `infer` gives for the remaining inputs.

    infer: the inference of the forward operator, whose inputs are the gradient node's inputs 1, 2, …"""
    forward = InferenceContext(replace(c.node, inputs=c.node.inputs[1:]), c.types[1:], c.values[1:], c.opset)
    forward.inference = c.inference
    shape = infer(forward)[0].shape
    if shape is not None:
        check_shape(c, "a gradient", c.shape(0), shape)


def normalize_axis(c: InferenceContext, axis: int, rank: int) -> int:
    """Return an axis counted from the front. Raises ShapeInferenceError when it is outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise c.error(f"expected an axis in [{-rank}, {rank}), got {axis}")
    return axis % rank


def normalize_axes(c: InferenceContext, axes: Sequence[int], rank: int) -> list[int]:
    """Return axes counted from the front, in the given order. Raises ShapeInferenceError when one is out of range or appears twice."""
    found = [normalize_axis(c, axis, rank) for axis in axes]
    if len(set(found)) != len(found):
        raise c.error(f"expected distinct axes, got {list(axes)}")
    return found


def is_elementwise(node: Node) -> bool:
    """Return whether a node's operator is elementwise by its record (OpRecord.elementwise); False for an unknown operator."""
    record = record_of(node)
    return record is not None and record.elementwise
