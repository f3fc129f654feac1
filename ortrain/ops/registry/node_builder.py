"""Adding nodes to a graph whose types stay known: what gradient rules and expansions build with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortrain import dtypes
from ortrain.errors import MissingGradientError, ShapeInferenceError
from ortrain.ir import Graph, NameSource, Node, Shape, TensorType
from ortrain.ops.registry.constants import is_symbolic
from ortrain.ops.registry.record import MICROSOFT, InferenceContext
from ortrain.ops.registry.shape_inference import Inference


class GraphBuilder:
    """Collects nodes in `added`, with names that are unique and types inferred as they come.

    initializers and types: where new constants and the types of new values are noted beside the inference (a graph's, when it is to be saved)."""

    def __init__(self, inference: Inference, names: NameSource, opset: int, initializers: dict[str, np.ndarray] | None = None,
                 types: dict[str, TensorType] | None = None) -> None:
        self.inference = inference
        self.names = names
        self.opset = opset
        self.initializers = {} if initializers is None else initializers
        self.types = {} if types is None else types
        self.added: list[Node] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def inner_gradients(self, graph: Graph, inputs: Mapping[str, TensorType], seeds: Mapping[str, Sequence[str]], wanted: Sequence[str],
                        maybe: Sequence[str] = ()) -> list[str | None]:
        """Adds to a graph inside a node the nodes of its gradient: only who sweeps a graph backwards can.

        inputs: the types of the graph's own inputs. seeds: value -> gradients that flow into it from outside. wanted: the values whose gradients are asked
        for, zeros where none flows; maybe: more of them, None where none flows. Returns the names of the gradients."""
        raise NotImplementedError

    def emit(self, node: Node) -> None:
        """Adds a node and learns its types."""
        self.added.append(node)
        self.inference.visit(node)
        for name in node.outputs:
            if name:
                self.types[name] = self.inference.types[name]

    def add_initializer(self, name: str, array: np.ndarray) -> None:
        """Adds a constant under this name."""
        self.initializers[name] = array
        self.inference.values[name] = array
        self.inference.types[name] = TensorType.of(array)

    def constant(self, array: np.ndarray, label: str = "constant") -> str:
        """The name of an initializer with that value; equal ones are shared."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.names.unique(f"gradient::{label}")
            self.add_initializer(self._constants[key], array)
        name = self._constants[key]
        self.inference.types.setdefault(name, TensorType.of(array))      # it may have been made for a graph inside a node
        return name

    def whole_numbers(self, numbers: Sequence[int], label: str = "constant") -> str:
        """A constant of int64, whose elements may be symbolic."""
        if not is_symbolic(numbers):
            return self.constant(np.array(numbers, np.int64), label)
        name = self.names.unique(f"gradient::{label}")
        self.inference.know(name, numbers, TensorType("int64", (len(numbers),)))
        return name

    def shape_of(self, value: str) -> str:
        """The shape of a value as int64: a constant when known, else a Shape node."""
        kind = self.inference.types[value]
        if kind.is_static:
            return self.whole_numbers(kind.sizes, "shape")
        output = self.names.unique(f"{value}_shape")
        self.emit(Node("Shape", [value], [output], self.names.unique(f"{value}_Grad/Shape")))
        return output

    def reduce_sum(self, value: str, axes: Sequence[int], keepdims: bool) -> str:
        """ReduceSum in the form of the model's opset."""
        output = self.names.unique(f"{value}_sum")
        name = self.names.unique(f"{value}_Grad/ReduceSum")
        if self.opset < 13:
            node = Node("ReduceSum", [value], [output], name, attributes={"axes": tuple(axes), "keepdims": int(keepdims)})
        else:
            node = Node("ReduceSum", [value, self.constant(np.array(axes, np.int64), "axes")], [output], name, attributes={"keepdims": int(keepdims)})
        self.emit(node)
        return output

    def unbroadcast(self, gradient: str, value: str) -> str:
        """The gradient summed over the axes along which `value` was broadcast."""
        have, want = self.inference.types[gradient].shape, self.inference.types[value].shape
        if have == want:
            return gradient
        if have is None or want is None or len(have) < len(want):
            return gradient if have is not None and want is not None else self._unbroadcast_at_run_time(gradient, value)
        extra = len(have) - len(want)
        pairs = list(zip(have[extra:], want, strict=True))
        if any(h != w and isinstance(w, str) for h, w in pairs):
            return self._unbroadcast_at_run_time(gradient, value)
        axes = [*range(extra), *(extra + i for i, (h, w) in enumerate(pairs) if w == 1 and h != 1)]
        if not axes:
            return gradient
        kept = any(axis >= extra for axis in axes)
        summed = self.reduce_sum(gradient, axes, keepdims=kept)
        return self.reshape_like(summed, value) if kept and extra else summed

    def _unbroadcast_at_run_time(self, gradient: str, value: str) -> str:
        """Symbols that cannot be shown equal: the axes are found when the shapes are known (a plan folds this)."""
        shapes = [self.shape_of(value), self.shape_of(gradient)]
        axes = [self.names.unique(f"{value}_axes"), self.names.unique(f"{value}_axes")]
        self.emit(Node("BroadcastGradientArgs", shapes, axes, self.names.unique(f"{value}_Grad/BroadcastGradientArgs"), MICROSOFT))
        summed = self.names.unique(f"{value}_sum")
        self.emit(Node("ReduceSumTraining", [gradient, axes[0]], [summed], self.names.unique(f"{value}_Grad/ReduceSum"), MICROSOFT,
                       {"keepdims": 1, "noop_with_empty_axes": 1}))
        output = self.names.unique(f"{value}_grad_reshaped")
        self.emit(Node("Reshape", [summed, shapes[0]], [output], self.names.unique(f"{value}_Grad/Reshape")))
        self.inference.types[output] = self.types[output] = self.inference.types[value]
        return output

    def reshape_like(self, value: str, like: str) -> str:
        """Reshape of `value` to the shape of `like` (constant when known)."""
        output = self.names.unique(f"{like}_grad_reshaped")
        shape = self.inference.types[like].shape
        # a size of zero is a size here, not "as the input has it", which is what Reshape takes it for unless told
        attributes = {"allowzero": 1} if shape is not None and 0 in shape and self.opset >= 14 else {}
        self.emit(Node("Reshape", [value, self.shape_of(like)], [output], self.names.unique(f"{like}_Grad/Reshape"), attributes=attributes))
        self.inference.types[output] = self.types[output] = TensorType(self.inference.types[value].dtype, shape)
        return output


class NodeBuilder:
    """What a rule that rewrites one node is given: the node, what is known of its values, and ways to add others."""

    suffix = "_Expanded"
    """Marks the names of what is added, after the node's own."""

    def __init__(self, builder: GraphBuilder, node: Node) -> None:
        self.builder = builder
        self.node = node
        self.opset = builder.opset
        """Version of the default domain."""

    @property
    def inputs(self) -> list[str]:
        """Names of the node's inputs, "" where absent."""
        return self.node.inputs

    @property
    def outputs(self) -> list[str]:
        """Names of the node's outputs, "" where absent."""
        return self.node.outputs

    def has(self, index: int) -> bool:
        """True when input `index` is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def optional(self, index: int) -> str:
        """The name of input `index`, "" where it is absent."""
        return self.node.inputs[index] if self.has(index) else ""

    def wants(self, index: int) -> bool:
        """True when output `index` is asked for."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def context(self) -> InferenceContext:
        """The node as inference sees it."""
        return self.builder.inference.context(self.node)

    def error(self, message: str) -> ShapeInferenceError:
        """An error that says where, as InferenceContext.error."""
        return self.context().error(message)

    def type(self, value: str) -> TensorType:
        """What is known of a value's type."""
        return self.builder.inference.types[value]

    def noted_type(self, value: str) -> TensorType:
        """The type of a value as the model will say it: with the model's own symbols, whose sizes are known when its program is made."""
        return self.builder.types.get(value) or self.type(value)

    def value(self, value: str) -> np.ndarray | None:
        """A value that is a constant, else None."""
        return self.builder.inference.values.get(value)

    def shape(self, value: str) -> Shape:
        """The shape of a value; refused when its rank is unknown."""
        shape = self.type(value).shape
        if shape is None:
            raise self.error(f"expected {value!r} with a known rank, got an unknown one")
        return shape

    def rank(self, value: str) -> int:
        """The number of dimensions of a value; refused when unknown."""
        return len(self.shape(value))

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        return self.node.attributes.get(name, default)

    def op(self, op_type: str, *inputs: str, domain: str = "", name: str = "", **attributes: Any) -> str:
        """Adds a node with one output to the graph and returns the output's name."""
        return self.ops(op_type, *inputs, outputs=[True], domain=domain, name=name, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, outputs: Sequence[bool], domain: str = "", name: str = "", **attributes: Any) -> list[str]:
        """Adds a node with several outputs (False: absent, "" in the result)."""
        base = self.node.name or self.node.outputs[0]
        names = self.builder.names
        made = [names.unique(name or f"{base}{self.suffix}/{op_type}_output") if wanted else "" for wanted in outputs]
        self.builder.emit(Node(op_type, list(inputs), list(made), names.unique(f"{base}{self.suffix}/{op_type}"), domain, attributes))
        return made

    def constant(self, array: np.ndarray | Sequence[int], like: str | None = None) -> str:
        """Adds an initializer (ints as int64; with `like` cast to that value's dtype) and returns its name; equal ones are shared."""
        if not isinstance(array, np.ndarray):
            if like is None:
                return self.builder.whole_numbers(array)
            array = np.array(array, np.int64)
        if like is not None:
            array = array.astype(dtypes.numpy_dtype(self.type(like).dtype))
        return self.builder.constant(array)

    def scalar(self, value: float, like: str) -> str:
        """A 0-d constant with the dtype of `like`."""
        return self.constant(np.array(value, np.float64), like)

    def shape_of(self, value: str) -> str:
        """The shape of a value as int64: a constant when known, else a Shape node."""
        return self.builder.shape_of(value)

    def reduce_sum(self, value: str, axes: Sequence[int], keepdims: bool) -> str:
        """ReduceSum in the form of the model's opset (axes as attribute below 13)."""
        return self.builder.reduce_sum(value, axes, keepdims)

    def reduce(self, op_type: str, value: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """A reduction in the form of the model's opset."""
        if op_type == "ReduceSum":
            return self.reduce_sum(value, axes, keepdims)
        if self.opset < 18:
            return self.op(op_type, value, axes=tuple(axes), keepdims=int(keepdims))
        return self.op(op_type, value, self.constant(list(axes)), keepdims=int(keepdims))

    def unsqueeze(self, value: str, axes: Sequence[int]) -> str:
        """Unsqueeze in the form of the model's opset."""
        return self._with_axes("Unsqueeze", value, axes)

    def squeeze(self, value: str, axes: Sequence[int]) -> str:
        """Squeeze in the form of the model's opset."""
        return self._with_axes("Squeeze", value, axes)

    def _with_axes(self, op_type: str, value: str, axes: Sequence[int]) -> str:
        return self.op(op_type, value, axes=tuple(axes)) if self.opset < 13 else self.op(op_type, value, self.constant(list(axes)))

    def reshape_like(self, value: str, like: str) -> str:
        """Reshape of `value` to the shape of `like` (constant when known)."""
        return self.builder.reshape_like(value, like)

    def unbroadcast(self, gradient: str, value: str) -> str:
        """A gradient summed over the axes along which `value` was broadcast."""
        return self.builder.unbroadcast(gradient, value)


class GradientBuilder(NodeBuilder):
    """What a gradient rule is given. It returns one gradient per input; the sweep un-broadcasts and accumulates them."""

    suffix = "_Grad"

    def __init__(self, builder: GraphBuilder, node: Node, dy: Sequence[str | None], wanted: frozenset[int]) -> None:
        super().__init__(builder, node)
        self.gradients = dy
        """Name of the gradient of each output, None where there is none."""
        self._wanted = wanted

    @property
    def dy(self) -> str:
        """The gradient of output 0. Raises MissingGradientError when a gradient comes through another output, which the rule does not know."""
        first, *others = self.gradients
        if first is None or any(others):
            used = [name for name, gradient in zip(self.outputs, self.gradients, strict=True) if gradient]
            raise MissingGradientError(f"expected the loss to depend on output 0 of {self.node.op_type} alone, got it through {used} "
                                       f"(node {self.node.name!r})")
        return first

    def needs(self, index: int) -> bool:
        """True when the gradient of input `index` is wanted."""
        return index in self._wanted

    def output(self, index: int) -> str:
        """The name of the forward node's output `index`; the forward node gets the output if it had none."""
        outputs = self.node.outputs
        while len(outputs) <= index:
            outputs.append("")
        if not outputs[index]:
            outputs[index] = self.builder.names.unique(f"{self.node.outputs[0]}_output{index}")
            self.builder.inference.visit(self.node)
            self.builder.types[outputs[index]] = self.type(outputs[index])
        return outputs[index]

    def replace(self, op_type: str, domain: str, extra_outputs: int = 0) -> None:
        """Makes the forward node another operator (Concat -> ConcatTraining), with that many outputs appended."""
        self.node.op_type, self.node.domain = op_type, domain
        self.node.outputs.extend([""] * extra_outputs)
        for index in range(len(self.node.outputs) - extra_outputs, len(self.node.outputs)):
            self.output(index)
        self.builder.inference.visit(self.node)

    def declare(self, value: str, kind: TensorType) -> None:
        """States the type of a made value that cannot be inferred from its inputs."""
        self.builder.inference.types[value] = self.builder.types[value] = self.builder.inference.declared[value] = kind
