"""Reverse-mode differentiation: applies each record's gradient rule, and un-broadcasts and accumulates gradients in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortrain import dtypes
from ortrain.errors import InvalidModelError, MissingGradientError, UnreachableParameterError
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.ops.registry.decomposition import decompose
from ortrain.ops.registry.node_builder import GradientBuilder, GraphBuilder
from ortrain.ops.registry.record import OpRecord, apply_rule, canonical_domain, record_of
from ortrain.ops.registry.shape_inference import ShapeInference, infer, infer_graph


def add_gradient(model: Model, loss: str, wanted: Sequence[str]) -> dict[str, str]:
    """Append to the model's graph the nodes that compute d loss / d value for each wanted value.

    Returns value name -> name of its gradient. The seed is the initializer `<loss>_grad`, a scalar 1.
    Raises UnreachableParameterError when a wanted value does not reach the loss, MissingGradientError when an operator on the path has no gradient."""
    return BackwardPass(model, loss).run(wanted)


def values_reaching(model: Model, loss: str) -> set[str]:
    """Return the values from which a gradient path leads to the loss."""
    types = infer(model)
    reached = {loss}
    for node in reversed(with_straight_through(model.graph.nodes)):
        record = record_of(node)
        if record is None or not record.differentiable or not reached.intersection(node.outputs):
            continue
        stopped = record.stop_gradient | {3, 4} if node.op_type == "BatchNormalization" else record.stop_gradient
        reached.update(name for i, name in enumerate(node.inputs)
                       if i not in stopped and name in types and types[name].dtype in dtypes.DIFFERENTIABLE)
    return reached


def with_straight_through(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with rounding operators replaced by straight-through estimators."""
    op_types = {node.op_type for node in nodes}
    if "DequantizeLinear" in op_types:
        from ortrain.ops.quantization import fuse_quantize_pairs

        nodes = fuse_quantize_pairs(nodes)
    if "DynamicQuantizeLinear" in op_types:
        from ortrain.ops.integer import fuse_dynamic_products

        nodes = fuse_dynamic_products(nodes)
    return list(nodes)


def _is_differentiated_directly(record: OpRecord) -> bool:
    """Return whether an operator is differentiated without decomposition: it has a gradient rule, or no gradient
    flows through it."""
    return not record.differentiable or record.gradient is not None and not record.decompose_first


class BackwardPass(GraphBuilder):
    """One backward pass over one graph."""

    def __init__(self, model: Model, loss: str) -> None:
        self.graph: Graph = model.graph
        super().__init__(infer_graph(self.graph, model.opsets), NameSource(self.graph.names()), model.opset, self.graph.initializers, self.graph.types)
        self.opsets = model.opsets
        self.loss = loss
        self.contributions: dict[str, list[str]] = {}
        """Value -> the gradients from its consumers, replaced by their sum once that is needed."""
        kind = self.inference.types.get(loss)
        if kind is None:
            raise InvalidModelError(f"expected the loss to be a value of the graph, got {loss!r}")
        if kind.shape is None or any(d != 1 for d in kind.shape):
            raise InvalidModelError(f"expected a loss with one element, got {loss!r} with shape {kind.shape}")

    def run(self, wanted: Sequence[str]) -> dict[str, str]:
        """Add the backward pass to the graph; return value name -> name of its gradient."""
        kind = self.inference.types[self.loss]
        seed = self.names.unique(f"{self.loss}_grad")
        self.add_initializer(seed, np.ones((), dtypes.numpy_dtype(kind.dtype)))
        self._differentiate({self.loss: [seed]}, wanted)
        gradients = {}
        for name in wanted:
            gradient = self.summed_gradient(name)
            if gradient is None:
                raise UnreachableParameterError(f"expected a path from {name!r} to the loss {self.loss!r} that carries a gradient, found none")
            gradients[name] = self._expanded_to(gradient, name)
        self.graph.nodes.extend(self.added)
        for node in self.graph.all_nodes():
            self.opsets.setdefault(canonical_domain(node.domain), 1)
        return gradients

    def _differentiate(self, seeds: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> None:
        """Visit the nodes in reverse order, starting from the given gradients."""
        forward = self._prepare(wanted)
        on_path = self._values_with_gradient(forward, wanted)
        self.contributions |= {value: list(gradients) for value, gradients in seeds.items()}
        for node in reversed(forward):
            self._visit(node, on_path)

    def _prepare(self, wanted: Sequence[str]) -> list[Node]:
        """Bring the forward part into operators that have gradient rules; return its nodes."""
        self.graph.nodes = with_straight_through(self.graph.nodes)
        self._decompose(self._values_with_gradient(self.graph.nodes, wanted))
        return list(self.graph.nodes)

    def inner_gradients(self, graph: Graph, inputs: Mapping[str, TensorType], seeds: Mapping[str, Sequence[str]], wanted: Sequence[str],
                        optional: Sequence[str] = ()) -> list[str | None]:
        """Differentiate a subgraph, adding the backward nodes to it.

        inputs: types of its inputs. seeds: value -> its gradients. Returns the gradients of `wanted`, zeros where no
        gradient flows, and of `optional`, None where no gradient flows."""
        inner = SubgraphBackwardPass(graph, inputs, self)
        inner._differentiate(seeds, [*wanted, *optional])
        gradients = [inner.full_gradient(name) if name in wanted or inner.summed_gradient(name) else None for name in (*wanted, *optional)]
        graph.nodes.extend(inner.added)
        return gradients

    def _decompose(self, on_path: set[str]) -> None:
        """Decompose the operators on the gradient path that have no rule of their own."""
        nodes: list[Node] = []
        for node in self.graph.nodes:
            record = record_of(node)
            assert record is not None
            is_decomposed = not _is_differentiated_directly(record) and not on_path.isdisjoint(node.outputs)
            nodes.extend((decompose(node, self, _is_differentiated_directly) if is_decomposed else None) or [node])
        self.graph.nodes = nodes

    def _values_with_gradient(self, nodes: Sequence[Node], wanted: Sequence[str]) -> set[str]:
        """Return the values through which gradients flow: those computed from a wanted value along differentiable inputs."""
        found = set(wanted)
        for node in nodes:
            record = record_of(node)
            assert record is not None
            if not record.differentiable:
                continue
            if any(name in found for i, name in enumerate(node.inputs) if i not in record.stop_gradient):
                for name in node.outputs:
                    if name and self._is_differentiable(name):
                        found.add(name)
        return found

    def _is_differentiable(self, name: str) -> bool:
        kind = self.inference.types.get(name)
        return kind is not None and kind.dtype in dtypes.DIFFERENTIABLE

    def _visit(self, node: Node, on_path: set[str]) -> None:
        """Apply the gradient rule of a node and record the contributions to its inputs' gradients."""
        dy = [self.summed_gradient(name) if name in on_path else None for name in node.outputs]
        if any(dy):
            self._differentiate_node(node, dy, self._inputs_on_path(node, on_path))

    def _inputs_on_path(self, node: Node, on_path: set[str]) -> frozenset[int]:
        """Return the inputs of a node to which gradients flow."""
        record = record_of(node)
        assert record is not None
        if not record.differentiable:
            return frozenset()
        return frozenset(i for i, name in enumerate(node.inputs) if name in on_path and i not in record.stop_gradient)

    def _differentiate_node(self, node: Node, dy: Sequence[str | None], needed: frozenset[int]) -> None:
        """Record the contributions of a node to the gradients of the needed inputs. dy: the gradients of its outputs."""
        record = record_of(node)
        assert record is not None
        if not record.differentiable:
            return
        if record.gradient is None and record.decompose is not None:
            raise MissingGradientError(f"expected known sizes and values of {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r}), whose gradient "
                                       "is that of its decomposition: specify them by input_shapes and input_values")
        if record.gradient is None:
            raise MissingGradientError(f"expected a gradient of {node.domain or 'ai.onnx'}::{node.op_type} (node {node.name!r}), which ortrain "
                                       "does not have yet")
        rule = GradientBuilder(self, node, dy, needed)
        for index, gradient in enumerate(apply_rule(node, record.gradient, rule)):
            if gradient is not None and rule.needs(index):
                self.contributions.setdefault(node.inputs[index], []).append(self.unbroadcast(gradient, node.inputs[index]))

    def summed_gradient(self, name: str) -> str | None:
        """Return the gradient of a value, summing its contributions once; None if there are none."""
        contributions = self.contributions.get(name)
        if not contributions:
            return None
        if len(contributions) > 1:
            output = self.names.unique(f"{name}_grad")
            self.emit(Node("Sum", list(contributions), [output], self.names.unique(f"AccumulateGrad_{name}_grad")))
            self.contributions[name] = [output]
        return self.contributions[name][0]

    def _expanded_to(self, gradient: str, value: str) -> str:
        """Return a gradient expanded to the shape of its value; the scalar seed, for example, may be smaller."""
        shape, value_shape = self.inference.types[gradient].shape, self.inference.types[value].shape
        if shape == value_shape or shape is None or value_shape is None or len(shape) > len(value_shape):
            return gradient
        output = self.names.unique(f"{value}_grad")
        self.emit(Node("Expand", [gradient, self.shape_of(value)], [output], self.names.unique(f"{value}_Grad/Expand")))
        return output


class SubgraphBackwardPass(BackwardPass):
    """A backward pass over a subgraph, which reads outer values and adds its constants to the outer graph."""

    def __init__(self, graph: Graph, inputs: Mapping[str, TensorType], outer: BackwardPass) -> None:
        self.graph = graph
        inference = ShapeInference(outer.opsets, {**outer.inference.types, **inputs}, outer.inference.values, graph.types)
        for node in graph.nodes:
            inference.visit(node)
        GraphBuilder.__init__(self, inference, outer.names, outer.opset, outer.initializers, graph.types)
        self._constants = outer._constants
        self.opsets = outer.opsets
        self.contributions = {}

    def full_gradient(self, name: str) -> str:
        """Return the gradient of a value with the value's shape, computed inside the subgraph; zeros if no gradient
        flows."""
        gradient = self.summed_gradient(name)
        if gradient is None:
            dtype = dtypes.numpy_dtype(self.inference.types[name].dtype)
            output = self.names.unique(f"{name}_grad")
            self.emit(Node("ConstantOfShape", [self.shape_of(name)], [output], self.names.unique(f"{name}_Grad/ConstantOfShape"),
                           attributes={"value": np.zeros(1, dtype)}))
            return output
        gradient = self._expanded_to(gradient, name)
        output = self.names.unique(f"{name}_grad")
        self.emit(Node("Identity", [gradient], [output], self.names.unique(f"{name}_Grad/Identity")))
        return output
