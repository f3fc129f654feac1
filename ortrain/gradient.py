"""The reverse sweep: asks each record for its gradient rule, un-broadcasts and accumulates once, for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain import dtypes
from ortrain.errors import InvalidModelError, MissingGradientError, UnreachableParameterError
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.ops.inference import Inference, infer_graph
from ortrain.ops.record import MICROSOFT, OpRecord, record_of


def add_gradient(model: Model, loss: str, wanted: Sequence[str]) -> dict[str, str]:
    """Appends to the model's graph the nodes that compute d loss / d value for each wanted value.

    Returns: value name -> name of its gradient. The seed is the initializer `<loss>_grad`, a scalar 1.
    Raises UnreachableParameterError when a wanted value does not reach the loss, MissingGradientError when an operator on the way has no gradient.
    """
    return Sweep(model, loss).run(wanted)


class Sweep:
    """One reverse pass over one graph."""

    def __init__(self, model: Model, loss: str) -> None:
        self.model = model
        self.graph: Graph = model.graph
        self.loss = loss
        self.names = NameSource(self.graph.names())
        self.inference: Inference = infer_graph(self.graph, model.opsets)
        self.added: list[Node] = []
        self.parts: dict[str, list[str]] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        kind = self.inference.types.get(loss)
        if kind is None:
            raise InvalidModelError(f"expected the loss to be a value of the graph, got {loss!r}")
        if kind.shape is None or any(d != 1 for d in kind.shape):
            raise InvalidModelError(f"expected a loss with one element, got {loss!r} with shape {kind.shape}")

    def run(self, wanted: Sequence[str]) -> dict[str, str]:
        forward = list(self.graph.nodes)
        depends = self._depends_on(forward, wanted)
        kind = self.inference.types[self.loss]
        seed = self.names.unique(f"{self.loss}_grad")
        self._add_initializer(seed, np.ones((), dtypes.numpy_dtype(kind.dtype)))
        self.parts[self.loss] = [seed]
        for node in reversed(forward):
            self._visit(node, depends)
        gradients = {}
        for name in wanted:
            gradient = self.total(name)
            if gradient is None:
                raise UnreachableParameterError(f"expected a path from {name!r} to the loss {self.loss!r} that carries a gradient, found none")
            gradients[name] = self._full_size(gradient, name)
        self.graph.nodes.extend(self.added)
        return gradients

    def _depends_on(self, nodes: Sequence[Node], wanted: Sequence[str]) -> set[str]:
        """The values through which a gradient has to flow: made from a wanted value, over edges that carry one."""
        depends = set(wanted)
        for node in nodes:
            record = record_of(node)
            assert record is not None
            if not record.differentiable:
                continue
            if any(name in depends for i, name in enumerate(node.inputs) if i not in record.stop):
                for name in node.outputs:
                    if name and self._carries(name):
                        depends.add(name)
        return depends

    def _carries(self, name: str) -> bool:
        kind = self.inference.types.get(name)
        return kind is not None and kind.dtype in dtypes.DIFFERENTIABLE

    def _visit(self, node: Node, depends: set[str]) -> None:
        if not any(name in depends for name in node.outputs):
            return
        dy = [self.total(name) if name in depends else None for name in node.outputs]
        if not any(dy):
            return
        record = record_of(node)
        assert record is not None
        if not record.differentiable:
            return
        if record.gradient is None:
            raise MissingGradientError(f"expected a gradient of {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r}), which ortrain "
                                       "does not have yet")
        rule = Rule(self, node, record, dy, depends)
        for index, gradient in enumerate(record.gradient(rule)):
            if gradient is not None and rule.needs(index):
                self.parts.setdefault(node.inputs[index], []).append(self.unbroadcast(gradient, node.inputs[index]))

    def total(self, name: str) -> str | None:
        """The gradient of a value: its parts, summed once."""
        parts = self.parts.get(name)
        if not parts:
            return None
        if len(parts) > 1:
            output = self.names.unique(f"{name}_grad")
            self.emit(Node("Sum", list(parts), [output], self.names.unique(f"AccumulateGrad_{name}_grad")))
            self.parts[name] = [output]
        return self.parts[name][0]

    def emit(self, node: Node) -> None:
        """Adds a node to the backward part and learns its types."""
        self.added.append(node)
        self.inference.visit(node)
        for name in node.outputs:
            if name:
                self.graph.types[name] = self.inference.types[name]

    def _full_size(self, gradient: str, value: str) -> str:
        """A gradient that still has a smaller shape than its value (the scalar seed, say) is expanded."""
        have, want = self.inference.types[gradient].shape, self.inference.types[value].shape
        if have == want or have is None or want is None or len(have) > len(want):
            return gradient
        output = self.names.unique(f"{value}_grad")
        self.emit(Node("Expand", [gradient, self.shape_of(value)], [output], self.names.unique(f"{value}_Grad/Expand")))
        return output

    def _add_initializer(self, name: str, array: np.ndarray) -> None:
        self.graph.initializers[name] = array
        self.inference.values[name] = array
        self.inference.types[name] = TensorType.of(array)

    def constant(self, array: np.ndarray, label: str = "constant") -> str:
        """The name of an initializer with that value; equal ones are shared."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.names.unique(f"gradient::{label}")
            self._add_initializer(self._constants[key], array)
        return self._constants[key]

    def shape_of(self, value: str) -> str:
        """The shape of a value as int64: a constant when known, else a Shape node."""
        kind = self.inference.types[value]
        if kind.is_static:
            assert kind.shape is not None
            return self.constant(np.array(kind.shape, np.int64), "shape")
        output = self.names.unique(f"{value}_shape")
        self.emit(Node("Shape", [value], [output], self.names.unique(f"{value}_Grad/Shape")))
        return output

    def reduce_sum(self, value: str, axes: Sequence[int], keepdims: bool) -> str:
        """ReduceSum in the form of the model's opset."""
        output = self.names.unique(f"{value}_sum")
        name = self.names.unique(f"{value}_Grad/ReduceSum")
        if self.model.opset < 13:
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
        return self._reshape(summed, value) if kept and extra else summed

    def _unbroadcast_at_run_time(self, gradient: str, value: str) -> str:
        """Symbols that cannot be shown equal: the axes are found when the shapes are known (a plan folds this)."""
        shapes = [self._dynamic_shape(value), self._dynamic_shape(gradient)]
        axes = [self.names.unique(f"{value}_axes"), self.names.unique(f"{value}_axes")]
        self.emit(Node("BroadcastGradientArgs", shapes, axes, self.names.unique(f"{value}_Grad/BroadcastGradientArgs"), MICROSOFT))
        summed = self.names.unique(f"{value}_sum")
        self.emit(Node("ReduceSumTraining", [gradient, axes[0]], [summed], self.names.unique(f"{value}_Grad/ReduceSum"), MICROSOFT,
                       {"keepdims": 1, "noop_with_empty_axes": 1}))
        output = self.names.unique(f"{value}_grad_reshaped")
        self.emit(Node("Reshape", [summed, shapes[0]], [output], self.names.unique(f"{value}_Grad/Reshape")))
        self.inference.types[output] = self.graph.types[output] = self.inference.types[value]
        return output

    def _dynamic_shape(self, value: str) -> str:
        return self.shape_of(value)

    def _reshape(self, value: str, like: str) -> str:
        output = self.names.unique(f"{like}_grad_reshaped")
        self.emit(Node("Reshape", [value, self.shape_of(like)], [output], self.names.unique(f"{like}_Grad/Reshape")))
        self.inference.types[output] = self.graph.types[output] = TensorType(self.inference.types[value].dtype, self.inference.types[like].shape)
        return output


class Rule:
    """What a gradient rule sees (the GradientContext of ortrain.ops.record)."""

    def __init__(self, sweep: Sweep, node: Node, record: OpRecord, dy: Sequence[str | None], depends: set[str]) -> None:
        self.sweep = sweep
        self.node = node
        self.record = record
        self.dy = dy
        self.depends = depends
        self.opset = sweep.model.opset

    @property
    def inputs(self) -> list[str]:
        return self.node.inputs

    @property
    def outputs(self) -> list[str]:
        return self.node.outputs

    def needs(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] in self.depends and index not in self.record.stop

    def type(self, value: str) -> TensorType:
        return self.sweep.inference.types[value]

    def value(self, value: str) -> np.ndarray | None:
        return self.sweep.inference.values.get(value)

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def op(self, op_type: str, *inputs: str, domain: str = "", name: str = "", **attributes: Any) -> str:
        return self.ops(op_type, *inputs, outputs=[True], domain=domain, name=name, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, outputs: Sequence[bool], domain: str = "", name: str = "", **attributes: Any) -> list[str]:
        base = self.node.name or self.node.outputs[0]
        node_name = self.sweep.names.unique(f"{base}_Grad/{op_type}")
        made = [self.sweep.names.unique(name or f"{base}_Grad/{op_type}_output") if wanted else "" for wanted in outputs]
        self.sweep.emit(Node(op_type, list(inputs), made, node_name, domain, attributes))
        return made

    def constant(self, array: np.ndarray | Sequence[int], like: str | None = None) -> str:
        if not isinstance(array, np.ndarray):
            array = np.array(array, np.int64)
        if like is not None:
            array = array.astype(dtypes.numpy_dtype(self.type(like).dtype))
        return self.sweep.constant(array)

    def scalar(self, value: float, like: str) -> str:
        return self.constant(np.array(value, np.float64), like)

    def output(self, index: int) -> str:
        outputs = self.node.outputs
        while len(outputs) <= index:
            outputs.append("")
        if not outputs[index]:
            outputs[index] = self.sweep.names.unique(f"{self.node.outputs[0]}_output{index}")
            self.sweep.inference.visit(self.node)
            self.sweep.graph.types[outputs[index]] = self.type(outputs[index])
        return outputs[index]

    def replace(self, op_type: str, domain: str, extra_outputs: int = 0) -> None:
        self.node.op_type, self.node.domain = op_type, domain
        self.node.outputs.extend([""] * extra_outputs)
        for index in range(len(self.node.outputs) - extra_outputs, len(self.node.outputs)):
            self.output(index)
        self.sweep.inference.visit(self.node)

    def reduce_sum(self, value: str, axes: Sequence[int], keepdims: bool) -> str:
        return self.sweep.reduce_sum(value, axes, keepdims)

    def reshape_like(self, value: str, like: str) -> str:
        return self.sweep._reshape(value, like)

    def declare(self, value: str, kind: TensorType) -> None:
        self.sweep.inference.types[value] = self.sweep.graph.types[value] = self.sweep.inference.declared[value] = kind
