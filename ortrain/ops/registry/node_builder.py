"""Builders that add nodes to a graph and infer their types: what gradient rules and decompositions are written with.

A rule receives a NodeBuilder (decomposition) or GradientBuilder (gradient) for its node, by convention called `g`, and refers to values by name:

    def gelu_decomposition(g: NodeBuilder) -> list[str]:
        (x,) = g.inputs
        half = g.op("Mul", x, g.scalar(0.5, x))
        erf = g.op("Erf", g.op("Mul", x, g.scalar(0.5**0.5, x)))
        return [g.op("Mul", half, g.op("Add", erf, g.scalar(1.0, x)))]

Both builders work on one GraphBuilder, which collects the new nodes of the whole graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortrain import dtypes
from ortrain.errors import MissingGradientError, ShapeInferenceError
from ortrain.ir import Graph, NameSource, Node, Shape, TensorType
from ortrain.ops.registry.constants import is_symbolic
from ortrain.ops.registry.record import MICROSOFT, InferenceContext
from ortrain.ops.registry.shape_inference import ShapeInference


class GraphBuilder:
    """A list of new nodes of one graph, `added`, with the inference that knows the types of their values.

    inference: the inference of the graph, extended by every added node. names: source of unique names for nodes and values. opset: version of the default
    domain. initializers, types: where new constants and the types of new values are recorded besides the inference, for graphs that will be saved; None for
    graphs that will not."""

    def __init__(self, inference: ShapeInference, names: NameSource, opset: int, initializers: dict[str, np.ndarray] | None = None,
                 types: dict[str, TensorType] | None = None) -> None:
        self.inference = inference
        self.names = names
        self.opset = opset
        self.initializers = {} if initializers is None else initializers
        self.types = {} if types is None else types
        self.added: list[Node] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def inner_gradients(self, graph: Graph, inputs: Mapping[str, TensorType], seeds: Mapping[str, Sequence[str]], wanted: Sequence[str],
                        optional: Sequence[str] = ()) -> list[str | None]:
        """Append the gradient of a subgraph, such as the body of a Loop, to the subgraph; return the names of the gradients.

        Only the builder of a backward pass (ortrain.gradient) implements this. inputs: types of the subgraph's inputs. seeds: value -> gradients that flow
        into it from outside. wanted: values whose gradients are returned first, zeros where no gradient flows. optional: values whose gradients follow, None
        where no gradient flows."""
        raise NotImplementedError

    def emit(self, node: Node) -> None:
        """Add a node and infer the types of its outputs."""
        self.added.append(node)
        self.inference.visit(node)
        for name in node.outputs:
            if name:
                self.types[name] = self.inference.types[name]

    def add_initializer(self, name: str, array: np.ndarray) -> None:
        """Add a constant under a given name."""
        self.initializers[name] = array
        self.inference.values[name] = array
        self.inference.types[name] = TensorType.of(array)

    def constant(self, array: np.ndarray, label: str = "constant") -> str:
        """Return the name of a constant with the value of `array`; equal constants share one name. label: part of a new name."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.names.unique(f"gradient::{label}")
            self.add_initializer(self._constants[key], array)
        name = self._constants[key]
        self.inference.types.setdefault(name, TensorType.of(array))      # a constant shared with a subgraph has no type in this inference yet
        return name

    def integer_constant(self, numbers: Sequence[int], label: str = "constant") -> str:
        """Return the name of a one-dimensional int64 constant whose elements may be symbolic sizes."""
        if not is_symbolic(numbers):
            return self.constant(np.array(numbers, np.int64), label)
        name = self.names.unique(f"gradient::{label}")
        self.inference.set_integers(name, numbers, TensorType("int64", (len(numbers),)))
        return name

    def shape_of(self, value: str) -> str:
        """Return the name of a value's shape as int64: a constant if the shape is static, else the output of a new Shape node."""
        kind = self.inference.types[value]
        if kind.is_static:
            return self.integer_constant(kind.sizes, "shape")
        output = self.names.unique(f"{value}_shape")
        self.emit(Node("Shape", [value], [output], self.names.unique(f"{value}_Grad/Shape")))
        return output

    def reduce_sum(self, value: str, axes: Sequence[int], keepdims: bool) -> str:
        """Add ReduceSum in the form of the graph's opset (axes are an attribute before opset 13) and return its output."""
        output = self.names.unique(f"{value}_sum")
        name = self.names.unique(f"{value}_Grad/ReduceSum")
        if self.opset < 13:
            node = Node("ReduceSum", [value], [output], name, attributes={"axes": tuple(axes), "keepdims": int(keepdims)})
        else:
            node = Node("ReduceSum", [value, self.constant(np.array(axes, np.int64), "axes")], [output], name, attributes={"keepdims": int(keepdims)})
        self.emit(node)
        return output

    def unbroadcast(self, gradient: str, value: str) -> str:
        """Return `gradient`, which has a broadcast shape of `value`, summed to the shape of `value`.

        Where symbols leave open which axes were broadcast, the sum is over axes computed at run time."""
        shape, target = self.inference.types[gradient].shape, self.inference.types[value].shape
        if shape == target:
            return gradient
        if shape is None or target is None or len(shape) < len(target):
            return gradient if shape is not None and target is not None else self._unbroadcast_at_run_time(gradient, value)
        extra = len(shape) - len(target)
        pairs = list(zip(shape[extra:], target, strict=True))
        if any(size != wanted and isinstance(wanted, str) for size, wanted in pairs):
            return self._unbroadcast_at_run_time(gradient, value)
        axes = [*range(extra), *(extra + i for i, (size, wanted) in enumerate(pairs) if wanted == 1 and size != 1)]
        if not axes:
            return gradient
        keepdims = any(axis >= extra for axis in axes)
        summed = self.reduce_sum(gradient, axes, keepdims=keepdims)
        return self.reshape_like(summed, value) if keepdims and extra else summed

    def _unbroadcast_at_run_time(self, gradient: str, value: str) -> str:
        """Sum over axes that BroadcastGradientArgs computes from both shapes; planning folds them, as it knows the sizes."""
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
        """Reshape `value` to the shape of `like` and return the result."""
        output = self.names.unique(f"{like}_grad_reshaped")
        shape = self.inference.types[like].shape
        # without allowzero, a size of 0 means "copy the size from the input"
        attributes = {"allowzero": 1} if shape is not None and 0 in shape and self.opset >= 14 else {}
        self.emit(Node("Reshape", [value, self.shape_of(like)], [output], self.names.unique(f"{like}_Grad/Reshape"), attributes=attributes))
        self.inference.types[output] = self.types[output] = TensorType(self.inference.types[value].dtype, shape)
        return output


class NodeBuilder:
    """The builder that a decomposition receives: its node, the types and constants of the graph's values, and methods that add nodes.

    Values are referred to by name; methods that add nodes return the names of the outputs."""

    suffix = "_Expanded"
    """Suffix of the node's name in the names of added nodes and values."""

    def __init__(self, builder: GraphBuilder, node: Node) -> None:
        self.builder = builder
        self.node = node
        self.opset = builder.opset
        """Version of the default domain."""

    @property
    def inputs(self) -> list[str]:
        """The names of the node's inputs, "" where absent."""
        return self.node.inputs

    @property
    def outputs(self) -> list[str]:
        """The names of the node's outputs, "" where absent."""
        return self.node.outputs

    def has(self, index: int) -> bool:
        """Return whether input `index` is given."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def optional(self, index: int) -> str:
        """Return the name of input `index`, "" where it is absent."""
        return self.node.inputs[index] if self.has(index) else ""

    def has_output(self, index: int) -> bool:
        """Return whether the node has output `index`."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def context(self) -> InferenceContext:
        """Return the node's inference context."""
        return self.builder.inference.context(self.node)

    def error(self, message: str) -> ShapeInferenceError:
        """Return an error whose message also names the node: `raise g.error("expected ..., got ...")`."""
        return self.context().error(message)

    def type(self, value: str) -> TensorType:
        """Return the type of a value; while planning, its sizes are known."""
        return self.builder.inference.types[value]

    def declared_type(self, value: str) -> TensorType:
        """Return the type that the graph being built declares for a value, or else the inferred type."""
        return self.builder.types.get(value) or self.type(value)

    def value(self, value: str) -> np.ndarray | None:
        """Return the array of a constant, None for a value that is not constant."""
        return self.builder.inference.values.get(value)

    def shape(self, value: str) -> Shape:
        """Return the shape of a value. Raises ShapeInferenceError when its rank is unknown."""
        shape = self.type(value).shape
        if shape is None:
            raise self.error(f"expected {value!r} with a known rank, got an unknown one")
        return shape

    def rank(self, value: str) -> int:
        """Return the rank of a value. Raises ShapeInferenceError when it is unknown."""
        return len(self.shape(value))

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, `default` where the node does not set it."""
        return self.node.attributes.get(name, default)

    def op(self, op_type: str, *inputs: str, domain: str = "", name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name.

        inputs: names, "" for an absent optional input. name: the output's name, made unique; "" derives it from the node's. attributes: of the new node."""
        return self.ops(op_type, *inputs, outputs=[True], domain=domain, name=name, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, outputs: Sequence[bool], domain: str = "", name: str = "", **attributes: Any) -> list[str]:
        """Add a node with several outputs and return their names. outputs: for each output whether it exists; "" is returned for those that do not."""
        base = self.node.name or self.node.outputs[0]
        names = self.builder.names
        results = [names.unique(name or f"{base}{self.suffix}/{op_type}_output") if exists else "" for exists in outputs]
        self.builder.emit(Node(op_type, list(inputs), list(results), names.unique(f"{base}{self.suffix}/{op_type}"), domain, attributes))
        return results

    def constant(self, array: np.ndarray | Sequence[int], like: str | None = None) -> str:
        """Return the name of a constant; equal constants share one name.

        array: an array, or integers for a one-dimensional int64 constant. like: a value whose dtype the constant gets; None keeps the array's."""
        if not isinstance(array, np.ndarray):
            if like is None:
                return self.builder.integer_constant(array)
            array = np.array(array, np.int64)
        if like is not None:
            array = array.astype(dtypes.numpy_dtype(self.type(like).dtype))
        return self.builder.constant(array)

    def scalar(self, value: float, like: str) -> str:
        """Return the name of a 0-d constant with the dtype of `like`."""
        return self.constant(np.array(value, np.float64), like)

    def shape_of(self, value: str) -> str:
        """Return the name of a value's shape as int64: a constant if the shape is static, else the output of a new Shape node."""
        return self.builder.shape_of(value)

    def reduce_sum(self, value: str, axes: Sequence[int], keepdims: bool) -> str:
        """Add ReduceSum in the form of the model's opset."""
        return self.builder.reduce_sum(value, axes, keepdims)

    def reduce(self, op_type: str, value: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """Add a reduction such as ReduceMean in the form of the model's opset."""
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
        """Reshape `value` to the shape of `like` and return the result."""
        return self.builder.reshape_like(value, like)

    def unbroadcast(self, gradient: str, value: str) -> str:
        """Return `gradient`, which has a broadcast shape of `value`, summed to the shape of `value`."""
        return self.builder.unbroadcast(gradient, value)


class GradientBuilder(NodeBuilder):
    """The builder that a gradient rule receives: a NodeBuilder with the gradients of the node's outputs.

    The rule returns the gradient of each input, None where there is none. A gradient may have the broadcast shape of an output: the backward pass sums it
    to the input's shape, and adds up the gradients of a value with several readers."""

    suffix = "_Grad"

    def __init__(self, builder: GraphBuilder, node: Node, output_gradients: Sequence[str | None], needed: frozenset[int]) -> None:
        super().__init__(builder, node)
        self.gradients = output_gradients
        """The gradient of each output by name, None where no gradient flows."""
        self._needed = needed

    @property
    def dy(self) -> str:
        """The gradient of output 0, for rules of operators whose other outputs carry no gradient.

        Raises MissingGradientError when a gradient flows through another output."""
        first, *others = self.gradients
        if first is None or any(others):
            used = [name for name, gradient in zip(self.outputs, self.gradients, strict=True) if gradient]
            raise MissingGradientError(f"expected the loss to depend on output 0 of {self.node.op_type} alone, got it through {used} "
                                       f"(node {self.node.name!r})")
        return first

    def needs(self, index: int) -> bool:
        """Return whether the gradient of input `index` is used; a rule may skip the nodes of one that is not."""
        return index in self._needed

    def output(self, index: int) -> str:
        """Return the name of the forward node's output `index`; an optional output that the node lacks is added to it."""
        outputs = self.node.outputs
        while len(outputs) <= index:
            outputs.append("")
        if not outputs[index]:
            outputs[index] = self.builder.names.unique(f"{self.node.outputs[0]}_output{index}")
            self.builder.inference.visit(self.node)
            self.builder.types[outputs[index]] = self.type(outputs[index])
        return outputs[index]

    def replace(self, op_type: str, domain: str, extra_outputs: int = 0) -> None:
        """Turn the forward node into another operator, such as Concat into ConcatTraining, and append `extra_outputs` outputs to it."""
        self.node.op_type, self.node.domain = op_type, domain
        self.node.outputs.extend([""] * extra_outputs)
        for index in range(len(self.node.outputs) - extra_outputs, len(self.node.outputs)):
            self.output(index)
        self.builder.inference.visit(self.node)

    def declare(self, value: str, kind: TensorType) -> None:
        """Declare the type of an added value that shape inference cannot derive from the inputs of its node."""
        self.builder.inference.types[value] = self.builder.types[value] = self.builder.inference.declared[value] = kind
