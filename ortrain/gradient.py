"""Reverse-mode differentiation: applies each record's gradient rule, and un-broadcasts and accumulates gradients in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortrain import dtypes
from ortrain.errors import InvalidModelError, MissingGradientError, UnreachableParameterError
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.ops.integer import through_products
from ortrain.ops.quantization import paired
from ortrain.ops.registry.decomposition import decompose
from ortrain.ops.registry.node_builder import GradientBuilder, GraphBuilder
from ortrain.ops.registry.record import OpRecord, apply_rule, canonical_domain, record_of
from ortrain.ops.registry.shape_inference import Inference, infer, infer_graph


def add_gradient(model: Model, loss: str, wanted: Sequence[str]) -> dict[str, str]:
    """Append to the model's graph the nodes that compute d loss / d value for each wanted value.

    Returns value name -> name of its gradient. The seed is the initializer `<loss>_grad`, a scalar 1.
    Raises UnreachableParameterError when a wanted value does not reach the loss, MissingGradientError when an operator on the path has no gradient."""
    return BackwardPass(model, loss).run(wanted)


def values_reaching(model: Model, loss: str) -> set[str]:
    """Return the values from which a gradient path leads to the loss."""
    types = infer(model)
    reached = {loss}
    for node in reversed(straight(model.graph.nodes)):
        record = record_of(node)
        if record is None or not record.differentiable or not reached.intersection(node.outputs):
            continue
        stopped = record.stop_gradient | {3, 4} if node.op_type == "BatchNormalization" else record.stop_gradient
        reached.update(name for i, name in enumerate(node.inputs)
                       if i not in stopped and name in types and types[name].dtype in dtypes.DIFFERENTIABLE)
    return reached


def straight(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with rounding operators replaced by straight-through estimators."""
    return through_products(paired(nodes))


def _whole(record: OpRecord) -> bool:
    """Whether an operator is differentiated without decomposition: it has a gradient rule, or no gradient flows through it."""
    return not record.differentiable or record.gradient is not None and not record.decompose_first


class BackwardPass(GraphBuilder):
    """One backward pass over one graph."""

    def __init__(self, model: Model, loss: str) -> None:
        self.graph: Graph = model.graph
        super().__init__(infer_graph(self.graph, model.opsets), NameSource(self.graph.names()), model.opset, self.graph.initializers, self.graph.types)
        self.opsets = model.opsets
        self.loss = loss
        self.parts: dict[str, list[str]] = {}
        kind = self.inference.types.get(loss)
        if kind is None:
            raise InvalidModelError(f"expected the loss to be a value of the graph, got {loss!r}")
        if kind.shape is None or any(d != 1 for d in kind.shape):
            raise InvalidModelError(f"expected a loss with one element, got {loss!r} with shape {kind.shape}")

    def run(self, wanted: Sequence[str]) -> dict[str, str]:
        kind = self.inference.types[self.loss]
        seed = self.names.unique(f"{self.loss}_grad")
        self.add_initializer(seed, np.ones((), dtypes.numpy_dtype(kind.dtype)))
        self._differentiate({self.loss: [seed]}, wanted)
        gradients = {}
        for name in wanted:
            gradient = self.total(name)
            if gradient is None:
                raise UnreachableParameterError(f"expected a path from {name!r} to the loss {self.loss!r} that carries a gradient, found none")
            gradients[name] = self._full_size(gradient, name)
        self.graph.nodes.extend(self.added)
        for node in self.graph.all_nodes():
            self.opsets.setdefault(canonical_domain(node.domain), 1)
        return gradients

    def _differentiate(self, seeds: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> None:
        """Visit the nodes in reverse order, starting from the given gradients."""
        self.graph.nodes = straight(self.graph.nodes)
        self._decompose(self._depends_on(self.graph.nodes, wanted))
        forward = list(self.graph.nodes)
        depends = self._depends_on(forward, wanted)
        self.parts |= {value: list(gradients) for value, gradients in seeds.items()}
        for node in reversed(forward):
            self._visit(node, depends)

    def inner_gradients(self, graph: Graph, inputs: Mapping[str, TensorType], seeds: Mapping[str, Sequence[str]], wanted: Sequence[str],
                        maybe: Sequence[str] = ()) -> list[str | None]:
        inner = SubgraphBackwardPass(graph, inputs, self)
        inner._differentiate(seeds, [*wanted, *maybe])
        gradients = [inner.whole(name) if name in wanted or inner.total(name) else None for name in (*wanted, *maybe)]
        graph.nodes.extend(inner.added)
        return gradients

    def _decompose(self, depends: set[str]) -> None:
        """Decompose the operators on the gradient path that have no rule of their own."""
        nodes: list[Node] = []
        for node in self.graph.nodes:
            record = record_of(node)
            assert record is not None
            replaced = not _whole(record) and not depends.isdisjoint(node.outputs)
            nodes.extend((decompose(node, self, _whole) if replaced else None) or [node])
        self.graph.nodes = nodes

    def _depends_on(self, nodes: Sequence[Node], wanted: Sequence[str]) -> set[str]:
        """Return the values through which gradients flow: those computed from a wanted value along differentiable inputs."""
        depends = set(wanted)
        for node in nodes:
            record = record_of(node)
            assert record is not None
            if not record.differentiable:
                continue
            if any(name in depends for i, name in enumerate(node.inputs) if i not in record.stop_gradient):
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
        if record.gradient is None and record.decompose is not None:
            raise MissingGradientError(f"expected sizes and values of {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r}) that are known before "
                                       "running, as its gradient is made of its parts: input_shapes and input_values say them")
        if record.gradient is None:
            raise MissingGradientError(f"expected a gradient of {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r}), which ortrain "
                                       "does not have yet")
        rule = GradientBuilder(self, node, dy, frozenset(i for i, name in enumerate(node.inputs) if name in depends and i not in record.stop_gradient))
        for index, gradient in enumerate(apply_rule(node, record.gradient, rule)):
            if gradient is not None and rule.needs(index):
                self.parts.setdefault(node.inputs[index], []).append(self.unbroadcast(gradient, node.inputs[index]))

    def total(self, name: str) -> str | None:
        """Return the gradient of a value, summing its contributions once."""
        parts = self.parts.get(name)
        if not parts:
            return None
        if len(parts) > 1:
            output = self.names.unique(f"{name}_grad")
            self.emit(Node("Sum", list(parts), [output], self.names.unique(f"AccumulateGrad_{name}_grad")))
            self.parts[name] = [output]
        return self.parts[name][0]

    def _full_size(self, gradient: str, value: str) -> str:
        """Expand a gradient whose shape is smaller than its value's, such as the scalar seed."""
        have, want = self.inference.types[gradient].shape, self.inference.types[value].shape
        if have == want or have is None or want is None or len(have) > len(want):
            return gradient
        output = self.names.unique(f"{value}_grad")
        self.emit(Node("Expand", [gradient, self.shape_of(value)], [output], self.names.unique(f"{value}_Grad/Expand")))
        return output


class SubgraphBackwardPass(BackwardPass):
    """A backward pass over a graph inside a node, which reads outer values and adds its constants to the outer graph."""

    def __init__(self, graph: Graph, inputs: Mapping[str, TensorType], outer: BackwardPass) -> None:
        self.graph = graph
        inference = Inference(outer.opsets, {**outer.inference.types, **inputs}, outer.inference.values, graph.types)
        for node in graph.nodes:
            inference.visit(node)
        GraphBuilder.__init__(self, inference, outer.names, outer.opset, outer.initializers, graph.types)
        self._constants = outer._constants
        self.opsets = outer.opsets
        self.parts = {}

    def whole(self, name: str) -> str:
        """Return the gradient of a value with the value's shape, computed inside the graph."""
        gradient = self.total(name)
        if gradient is None:
            dtype = dtypes.numpy_dtype(self.inference.types[name].dtype)
            output = self.names.unique(f"{name}_grad")
            self.emit(Node("ConstantOfShape", [self.shape_of(name)], [output], self.names.unique(f"{name}_Grad/ConstantOfShape"),
                           attributes={"value": np.zeros(1, dtype)}))
            return output
        gradient = self._full_size(gradient, name)
        output = self.names.unique(f"{name}_grad")
        self.emit(Node("Identity", [gradient], [output], self.names.unique(f"{name}_Grad/Identity")))
        return output
