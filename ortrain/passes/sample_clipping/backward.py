"""The backward pass that clips the gradient of each sample: first gradients by values with samples, then their norms, then gradients by weights.

One pass is enough: gradients by weights are sums over samples, each of which is multiplied by what clips it. Source: Z. Bu and others, Differentially Private
Optimization on Large Model at Small Cost (2023), who call it book-keeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ortrain.dtypes import NUMBERS
from ortrain.errors import MissingGradientError, PerSampleGradientError
from ortrain.gradient import BackwardPass
from ortrain.ir import Model, Node
from ortrain.ops.linear import fused_matmul_node
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import apply_rule, canonical_domain, record_of
from ortrain.ops.registry.sample_gradients import LookupGradient, ProductsGradient, SampleGradient, SampleGradientBuilder, WholeGradient
from ortrain.passes.sample_clipping.following import follow_samples
from ortrain.passes.sample_clipping.norms import Use, squared_norms

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose"})
"""Operators that change the shape of a weight and keep the norm of its gradient."""
PARTS = frozenset({"Slice", "Split"})
"""Operators that take parts of a weight, none twice."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A node with samples that reads weights."""

    node: Node
    gradients: Sequence[str | None]
    """Those of its outputs."""
    weights: Mapping[int, SampleGradient]
    """Input -> the form of its gradients by single samples."""


class ClippedBackwardPass(BackwardPass):
    """One backward pass over one graph, in which each sample's gradient by all wanted parameters together is clipped before the sum.

    parameters: the inputs of the graph that are none of the user's. limit: the input with the limit C of the norms, [1]. scale: the input with a factor of the
    sum, [1]. Gradients are scale times the sum over samples of g_i min(1, C / |g_i|), g_i being the gradient of the loss of sample i."""

    def __init__(self, model: Model, loss: str, parameters: Sequence[str], limit: str, scale: str) -> None:
        super().__init__(model, loss)
        self.model, self.parameters, self.limit, self.scale = model, parameters, limit, scale
        self._readers: list[Reader] = []

    def _differentiate(self, seeds: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> None:
        forward = self._prepare(wanted)
        self._samples = follow_samples(self._forward_model(forward), self.loss, self.parameters)
        self._producers = {name: node for node in forward for name in node.outputs}
        self._builder = self._builder_of("clipping")
        self._count = self._number_of_samples()
        on_path = self._values_with_gradient(forward, wanted)
        self.contributions |= {value: list(gradients) for value, gradients in seeds.items()}
        with_samples = [node for node in forward if any(self._has_samples(name) for name in node.outputs)]
        for node in reversed(with_samples):
            self._visit_with_samples(node, on_path)
        factors = self._clipping_factors(wanted)
        for reader in self._readers:
            self._add_clipped(reader, factors)
        for node in reversed([node for node in forward if not any(self._has_samples(name) for name in node.outputs)]):
            self._visit(node, on_path)

    def _builder_of(self, name: str) -> NodeBuilder:
        """Return a builder whose nodes bear a name."""
        return NodeBuilder(self, Node("", [], [name], name))

    def _forward_model(self, nodes: Sequence[Node]) -> Model:
        graph = replace(self.graph.copy(), nodes=[node.copy() for node in nodes], outputs=[self.loss])
        return replace(self.model.copy(), graph=graph)

    def _number_of_samples(self) -> str:
        g = self._builder
        return g.op("Gather", g.op("Shape", self._samples.batch_input), g.constant([0]), axis=0)

    def _has_samples(self, name: str) -> bool:
        return name in self._samples.positions or name in self._samples.totals

    # ---- gradients by values with samples

    def _visit_with_samples(self, node: Node, on_path: set[str]) -> None:
        """Differentiate a node by its inputs with samples, and note the weights that it reads."""
        dy = [self.summed_gradient(name) if name in on_path else None for name in node.outputs]
        needed = self._inputs_on_path(node, on_path) if any(dy) else frozenset()
        weights = frozenset(index for index in needed if not self._has_samples(node.inputs[index]))
        expanded = [gradient and self._expanded_to(gradient, name) for gradient, name in zip(dy, node.outputs, strict=True)]
        if needed - weights:
            self._differentiate_node(node, dy, needed - weights)
        if weights:
            expanded += [None] * (len(node.outputs) - len(expanded))        # a gradient rule may add outputs
            self._readers.append(Reader(node, expanded, self._sample_gradients(node, expanded, weights)))

    def _sample_gradients(self, node: Node, dy: Sequence[str | None], weights: frozenset[int]) -> dict[int, SampleGradient]:
        g = SampleGradientBuilder(self, node, dy, weights, self._samples.positions, self._count)
        record = record_of(node)
        assert record is not None
        if node.outputs[0] not in self._samples.positions:
            raise g.unknown()
        if record.sample_gradients is not None:
            found = apply_rule(node, record.sample_gradients, g)
            return {index: found[index] for index in sorted(weights)}
        if record.gradient is None:
            raise g.unknown()
        # that by a weight which broadcasts is a sum over the output's elements, of which whole() adds up those of each sample
        gradients = apply_rule(node, record.gradient, GradientBuilder(self, node, dy, weights))
        return {index: g.whole(value, node.inputs[index]) for index in sorted(weights) if (value := gradients[index]) is not None}

    # ---- norms

    def _clipping_factors(self, wanted: Sequence[str]) -> str:
        """Return what the gradient of each sample is multiplied by, [n]."""
        uses: dict[str, list[Use]] = {}
        for reader in self._readers:
            for index, gradient in reader.weights.items():
                parameter, use = self._traced(reader.node.inputs[index], Use(gradient))
                uses.setdefault(parameter, []).append(use)
        missing = [name for name in wanted if name not in uses]
        if missing:
            raise PerSampleGradientError(f"expected nodes with samples that read the parameters {missing}, got none: freeze them")
        g = self._builder
        squares = [squared_norms(self._builder_of(name), uses[name], self.inference.types[name].sizes, name, self._count) for name in wanted]
        total = squares[0] if len(squares) == 1 else g.op("Sum", *squares)
        norms = g.op("Sqrt", g.op("Relu", total))           # where positions cancel each other, rounding may leave less than zero
        limit, scale = (self._as_type_of(norms, value) for value in (self.limit, self.scale))
        if self._samples.is_mean:
            count = g.op("Cast", self._count, to=NUMBERS[g.type(norms).dtype])
            norms, scale = g.op("Mul", norms, count), g.op("Mul", scale, count)
        return g.op("Mul", g.op("Div", limit, g.op("Max", norms, limit)), scale)

    def _as_type_of(self, like: str, value: str) -> str:
        kind = self.inference.types[like].dtype
        return value if self.inference.types[value].dtype == kind else self._builder.op("Cast", value, to=NUMBERS[kind])

    def _traced(self, weight: str, use: Use) -> tuple[str, Use]:
        """Return the parameter of which a weight is a view, a part or looked up, and its gradients."""
        while weight in self._producers:
            node = self._producers[weight]
            shape = self.inference.types[weight].shape or ()
            if canonical_domain(node.domain) or node.op_type not in VIEWS | PARTS | {"Gather"}:
                raise PerSampleGradientError(f"expected weights as they are, but {node.op_type} node {node.name or weight!r} computes {weight!r} from "
                                             "parameters: freeze them")
            if node.op_type == "Gather":
                use = self._looked_up(node, use)
            elif node.op_type == "Transpose" and isinstance(use.gradient, WholeGradient) and self.inference.types[weight].is_static and not use.is_part:
                use = replace(use, gradient=self._transposed_back(node, use.gradient, self.inference.types[weight].sizes))
            elif node.op_type == "Transpose" and len(shape) == 2 and not isinstance(use.gradient, WholeGradient):
                use = replace(use, is_transposed=not use.is_transposed)
            elif node.op_type in PARTS or node.op_type == "Transpose":
                use = replace(use, is_part=True)            # not in the parameter's order any more
            elif node.op_type != "Identity":
                use = replace(use, is_reshaped=True)
            weight = node.inputs[0]
        return weight, use

    def _transposed_back(self, node: Node, gradient: WholeGradient, shape: Sequence[int]) -> WholeGradient:
        """Return the gradients by the input of a Transpose. shape: of its output."""
        g, order = self._builder, node.attributes.get("perm") or tuple(reversed(range(len(shape))))
        values = g.op("Reshape", gradient.values, g.constant([-1, *shape]))
        back = g.op("Transpose", values, perm=(0, *(1 + order.index(axis) for axis in range(len(shape)))))
        return WholeGradient(g.op("Reshape", back, g.op("Concat", self._count, g.constant([-1]), axis=0)))

    def _looked_up(self, node: Node, use: Use) -> Use:
        """Return the gradients of a table of which all samples read the same rows."""
        g, table = self._builder, self.inference.types[node.inputs[0]].shape or ()
        if node.attributes.get("axis", 0) or len(table) != 2 or not isinstance(use.gradient, WholeGradient) or use.is_part:
            raise PerSampleGradientError("expected weights that are looked up by rows, but Gather node "
                                         f"{node.name or node.outputs[0]!r} looks them up otherwise: freeze them")
        rows = g.op("Reshape", use.gradient.values, g.op("Concat", self._count, g.constant([-1, int(table[1])]), axis=0))
        positive = g.op("Mod", g.op("Reshape", g.op("Cast", node.inputs[1], to=NUMBERS["int64"]), g.constant([1, -1])), g.constant([int(table[0])]))
        indices = g.op("Expand", positive, g.op("Concat", self._count, g.constant([1]), axis=0))
        return Use(LookupGradient(indices, rows, int(table[0])))

    # ---- gradients by weights

    def _add_clipped(self, reader: Reader, factors: str) -> None:
        """Record the contributions of a node to the gradients of its weights, each sample multiplied by its factor."""
        products = frozenset(index for index, gradient in reader.weights.items() if not isinstance(gradient, WholeGradient | ProductsGradient))
        if products:
            weighted = [gradient and self._weighted(gradient, name, factors) for gradient, name in zip(reader.gradients, reader.node.outputs, strict=True)]
            self._differentiate_node(reader.node, weighted, products)
        for index, gradient in reader.weights.items():
            weight = reader.node.inputs[index]
            if isinstance(gradient, WholeGradient):
                row = self._builder.op("MatMul", self._builder.unsqueeze(factors, [0]), gradient.values)
                self.contributions.setdefault(weight, []).append(self.reshape_like(row, weight))
            elif isinstance(gradient, ProductsGradient):
                self.contributions.setdefault(weight, []).append(self.reshape_like(self._summed_products(gradient, factors), weight))

    def _summed_products(self, gradient: ProductsGradient, factors: str) -> str:
        """Return the sum over samples of products, each multiplied by the sample's factor."""
        g, column = self._builder, self._builder.unsqueeze(factors, [1, 2])

        def rows(value: str) -> str:
            return g.op("Reshape", value, g.constant([-1, int(g.shape(value)[-1])]))

        parts = [fused_matmul_node(g, rows(g.op("Mul", product.left, column)), rows(product.right), 1, 0, 1.0) for product in gradient.products]
        return parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=0)

    def _weighted(self, gradient: str, value: str, factors: str) -> str:
        """Return the gradient of a value with each sample multiplied by its factor."""
        g, place = self._builder, self._samples.positions[value]
        if place.outer == place.inner == 1:
            behind = g.rank(gradient) - 1 - place.axis
            column = g.op("Reshape", factors, g.constant([-1, *[1] * behind])) if behind else factors
            return g.op("Mul", gradient, column)
        if place.axis or place.outer != 1:
            raise MissingGradientError(f"expected the samples of {value!r} along one axis")
        rows = g.op("Reshape", gradient, g.op("Concat", self._count, g.constant([-1]), axis=0))
        return self.reshape_like(g.op("Mul", rows, g.unsqueeze(factors, [1])), value)


def clipped_gradients(model: Model, loss: str, wanted: Sequence[str], parameters: Sequence[str], limit: str, scale: str) -> dict[str, str]:
    """Append to a model's graph the nodes of a ClippedBackwardPass; return parameter -> name of its gradient.

    Raises PerSampleGradientError, which names the node that computes across samples or has weights whose gradients by single samples are not known, and the
    errors of ortrain.gradient.add_gradient."""
    return ClippedBackwardPass(model, loss, parameters, limit, scale).run(wanted)


