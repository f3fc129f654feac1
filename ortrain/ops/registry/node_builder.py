"""Builders that add nodes to a graph and keep its types known; gradient rules and decompositions use them."""

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
    """Collects nodes in `added`, under unique names and with inferred types.

    initializers, types: where new constants and the types of new values are recorded in addition to the inference, for graphs that will be saved."""

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
        """Add to the graph inside a node the nodes of its gradient. Only a backward pass implements this.

        inputs: types of the inner graph's inputs. seeds: value -> gradients that flow into it from outside.
        wanted: values whose gradients are needed, zeros where none flows. maybe: further values, None where no gradient flows.
        Returns the names of the gradients."""
        raise NotImplementedError

    def emit(self, node: Node) -> None:
        """Add a node and infer its types."""
        self.added.append(node)
        self.inference.visit(node)
        for name in node.outputs:
            if name:
                self.types[name] = self.inference.types[name]

    def add_initializer(self, name: str, array: np.ndarray) -> None:
        """Add a constant under this name."""
        self.initializers[name] = array
        self.inference.values[name] = array
        self.inference.types[name] = TensorType.of(array)

    def constant(self, array: np.ndarray, label: str = "constant") -> str:
        """Return the name of an initializer with that value; equal ones are shared."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.names.unique(f"gradient::{label}")
            self.add_initializer(self._constants[key], array)
        name = self._constants[key]
        self.inference.types.setdefault(name, TensorType.of(array))      # the constant may have been created for a graph inside a node
        return name

    def whole_numbers(self, numbers: Sequence[int], label: str = "constant") -> str:
        """Return the name of an int64 constant whose elements may be symbolic."""
        if not is_symbolic(numbers):
            return self.constant(np.array(numbers, np.int64), label)
        name = self.names.unique(f"gradient::{label}")
        self.inference.know(name, numbers, TensorType("int64", (len(numbers),)))
        return name

    def shape_of(self, value: str) -> str:
        """Return the name of the shape of a value as int64: a constant when known, else the output of a Shape node."""
        kind = self.inference.types[value]
        if kind.is_static:
            return self.whole_numbers(kind.sizes, "shape")
        output = self.names.unique(f"{value}_shape")
        self.emit(Node("Shape", [value], [output], self.names.unique(f"{value}_Grad/Shape")))
        return output

    def reduce_sum(self, value: str, axes: Sequence[int], keepdims: bool) -> str:
        """Add ReduceSum in the form of the model's opset."""
        output = self.names.unique(f"{value}_sum")
        name = self.names.unique(f"{value}_Grad/ReduceSum")
        if self.opset < 13:
            node = Node("ReduceSum", [value], [output], name, attributes={"axes": tuple(axes), "keepdims": int(keepdims)})
        else:
            node = Node("ReduceSum", [value, self.constant(np.array(axes, np.int64), "axes")], [output], name, attributes={"keepdims": int(keepdims)})
        self.emit(node)
        return output

    def unbroadcast(self, gradient: str, value: str) -> str:
        """Return the gradient summed over the axes along which `value` was broadcast."""
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
        """Sum over axes that are computed from the shapes, for symbols that cannot be proved equal; a plan folds the computation."""
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
        """Reshape `value` to the shape of `like` (constant when known)."""
        output = self.names.unique(f"{like}_grad_reshaped")
        shape = self.inference.types[like].shape
        # Reshape takes a size of 0 for "as in the input" unless allowzero is set
        attributes = {"allowzero": 1} if shape is not None and 0 in shape and self.opset >= 14 else {}
        self.emit(Node("Reshape", [value, self.shape_of(like)], [output], self.names.unique(f"{like}_Grad/Reshape"), attributes=attributes))
        self.inference.types[output] = self.types[output] = TensorType(self.inference.types[value].dtype, shape)
        return output


class NodeBuilder:
    """The builder that a rule for one node receives: the node, what is known of its values, and methods that add nodes."""

    suffix = "_Expanded"
    """Part of the names of added nodes, after the node's own name."""

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
        """Whether input `index` is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def optional(self, index: int) -> str:
        """Return the name of input `index`, "" where it is absent."""
        return self.node.inputs[index] if self.has(index) else ""

    def wants(self, index: int) -> bool:
        """Whether output `index` is used."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def context(self) -> InferenceContext:
        """Return the node's inference context."""
        return self.builder.inference.context(self.node)

    def error(self, message: str) -> ShapeInferenceError:
        """Return an error that names the node, as InferenceContext.error does."""
        return self.context().error(message)

    def type(self, value: str) -> TensorType:
        """Return what is known of a value's type."""
        return self.builder.inference.types[value]

    def noted_type(self, value: str) -> TensorType:
        """Return the type of a value as the model will declare it, with the model's own symbols."""
        return self.builder.types.get(value) or self.type(value)

    def value(self, value: str) -> np.ndarray | None:
        """Return a value that is constant, else None."""
        return self.builder.inference.values.get(value)

    def shape(self, value: str) -> Shape:
        """Return the shape of a value. Raises ShapeInferenceError when its rank is unknown."""
        shape = self.type(value).shape
        if shape is None:
            raise self.error(f"expected {value!r} with a known rank, got an unknown one")
        return shape

    def rank(self, value: str) -> int:
        """Return the number of dimensions of a value. Raises ShapeInferenceError when it is unknown."""
        return len(self.shape(value))

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node."""
        return self.node.attributes.get(name, default)

    def op(self, op_type: str, *inputs: str, domain: str = "", name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.ops(op_type, *inputs, outputs=[True], domain=domain, name=name, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, outputs: Sequence[bool], domain: str = "", name: str = "", **attributes: Any) -> list[str]:
        """Add a node with several outputs (False: absent, "" in the result) and return their names."""
        base = self.node.name or self.node.outputs[0]
        names = self.builder.names
        made = [names.unique(name or f"{base}{self.suffix}/{op_type}_output") if wanted else "" for wanted in outputs]
        self.builder.emit(Node(op_type, list(inputs), list(made), names.unique(f"{base}{self.suffix}/{op_type}"), domain, attributes))
        return made

    def constant(self, array: np.ndarray | Sequence[int], like: str | None = None) -> str:
        """Return the name of an initializer; ints become int64, or the dtype of `like`. Equal ones are shared."""
        if not isinstance(array, np.ndarray):
            if like is None:
                return self.builder.whole_numbers(array)
            array = np.array(array, np.int64)
        if like is not None:
            array = array.astype(dtypes.numpy_dtype(self.type(like).dtype))
        return self.builder.constant(array)

    def scalar(self, value: float, like: str) -> str:
        """Return the name of a 0-d constant with the dtype of `like`."""
        return self.constant(np.array(value, np.float64), like)

    def shape_of(self, value: str) -> str:
        """Return the name of the shape of a value as int64: a constant when known, else the output of a Shape node."""
        return self.builder.shape_of(value)

    def reduce_sum(self, value: str, axes: Sequence[int], keepdims: bool) -> str:
        """Add ReduceSum in the form of the model's opset (axes as an attribute below 13)."""
        return self.builder.reduce_sum(value, axes, keepdims)

    def reduce(self, op_type: str, value: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """Add a reduction in the form of the model's opset."""
        if op_type == "ReduceSum":
            return self.reduce_sum(value, axes, keepdims)
        if self.opset < 18:
            return self.op(op_type, value, axes=tuple(axes), keepdims=int(keepdims))
        return self.op(op_type, value, self.constant(list(axes)), keepdims=int(keepdims))

    def unsqueeze(self, value: str, axes: Sequence[int]) -> str:
        """Add Unsqueeze in the form of the model's opset."""
        return self._with_axes("Unsqueeze", value, axes)

    def squeeze(self, value: str, axes: Sequence[int]) -> str:
        """Add Squeeze in the form of the model's opset."""
        return self._with_axes("Squeeze", value, axes)

    def _with_axes(self, op_type: str, value: str, axes: Sequence[int]) -> str:
        return self.op(op_type, value, axes=tuple(axes)) if self.opset < 13 else self.op(op_type, value, self.constant(list(axes)))

    def reshape_like(self, value: str, like: str) -> str:
        """Reshape `value` to the shape of `like` (constant when known)."""
        return self.builder.reshape_like(value, like)

    def unbroadcast(self, gradient: str, value: str) -> str:
        """Return a gradient summed over the axes along which `value` was broadcast."""
        return self.builder.unbroadcast(gradient, value)


class GradientBuilder(NodeBuilder):
    """The builder that a gradient rule receives. The rule returns one gradient per input; the backward pass un-broadcasts and accumulates them."""

    suffix = "_Grad"

    def __init__(self, builder: GraphBuilder, node: Node, dy: Sequence[str | None], wanted: frozenset[int]) -> None:
        super().__init__(builder, node)
        self.gradients = dy
        """Names of the gradients of the outputs, None where there is none."""
        self._wanted = wanted

    @property
    def dy(self) -> str:
        """The gradient of output 0. Raises MissingGradientError when a gradient flows through another output, which the rule does not support."""
        first, *others = self.gradients
        if first is None or any(others):
            used = [name for name, gradient in zip(self.outputs, self.gradients, strict=True) if gradient]
            raise MissingGradientError(f"expected the loss to depend on output 0 of {self.node.op_type} alone, got it through {used} "
                                       f"(node {self.node.name!r})")
        return first

    def needs(self, index: int) -> bool:
        """Whether the gradient of input `index` is needed."""
        return index in self._wanted

    def output(self, index: int) -> str:
        """Return the name of the forward node's output `index`, adding the output if the node has none."""
        outputs = self.node.outputs
        while len(outputs) <= index:
            outputs.append("")
        if not outputs[index]:
            outputs[index] = self.builder.names.unique(f"{self.node.outputs[0]}_output{index}")
            self.builder.inference.visit(self.node)
            self.builder.types[outputs[index]] = self.type(outputs[index])
        return outputs[index]

    def replace(self, op_type: str, domain: str, extra_outputs: int = 0) -> None:
        """Turn the forward node into another operator (Concat -> ConcatTraining), with that many outputs appended."""
        self.node.op_type, self.node.domain = op_type, domain
        self.node.outputs.extend([""] * extra_outputs)
        for index in range(len(self.node.outputs) - extra_outputs, len(self.node.outputs)):
            self.output(index)
        self.builder.inference.visit(self.node)

    def declare(self, value: str, kind: TensorType) -> None:
        """Declare the type of an added value that cannot be inferred from its inputs."""
        self.builder.inference.types[value] = self.builder.types[value] = self.builder.inference.declared[value] = kind
