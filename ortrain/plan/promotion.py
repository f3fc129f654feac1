"""Promotion of 1-D convolutional regions to 2-D, so that the channels-last kernels for images compute them too.

A value of shape [n, c, length] becomes [n, c, 1, length], which is the same memory: the Reshape at the edges of a region is an alias. Convolutions, pools and
normalizations get a leading spatial axis of size 1; elementwise operators between them follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ortrain.ir import Node, TensorType
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain, is_elementwise

SPATIAL = {"kernel_shape": 1, "strides": 1, "dilations": 1}
"""Attributes with one number per spatial axis, and the number of the new axis."""


def promote_to_2d(nodes: Sequence[Node], builder: GraphBuilder, wanted: Iterable[str]) -> list[Node]:
    """Return the nodes with 1-D convolutional regions in two dimensions; the values in `wanted` keep their names and shapes."""
    promotion = Promotion(builder)
    if not any(node.op_type == "Conv" and promotion.rank(node.inputs[0]) == 3 for node in nodes):
        return list(nodes)
    return promotion.run(nodes, wanted)


class Promotion:
    """One pass over the nodes of a plan."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.inference = builder.inference
        self.promoted: dict[str, str] = {}
        """Value -> its name in two dimensions."""
        self.missing: set[str] = set()
        """Values that exist in two dimensions only so far."""
        self.made: list[Node] = []
        self.rules: dict[str, Callable[[Node], bool]] = {
            "Conv": self.window, "MaxPool": self.window, "AveragePool": self.window, "ConvGrad": self.conv_grad, "MaxPoolGrad": self.pool_grad,
            "AveragePoolGrad": self.pool_grad, "BatchNormalization": self.norm, "BatchNormInternal": self.norm, "BatchNormalizationGrad": self.norm_grad}

    def run(self, nodes: Sequence[Node], wanted: Iterable[str]) -> list[Node]:
        """Return the nodes of the plan with promoted regions."""
        for node in nodes:
            rule = self.rules.get(node.op_type, self.elementwise if is_elementwise(node) else None)
            known = canonical_domain(node.domain) in ("", MICROSOFT, ORTRAIN) and not node.graphs and self.is_one_dimensional(node)
            if rule is None or not known or not rule(node):
                for name in node.inputs:
                    self.restore(name)
                self.made.append(node)
        for name in wanted:
            self.restore(name)
        return self.made

    def rank(self, name: str) -> int:
        """Return the rank of a value whose shape is known, else -1."""
        kind = self.inference.types.get(name) if name else None
        return len(kind.sizes) if kind is not None and kind.is_static else -1

    def emit(self, op_type: str, inputs: list[str], outputs: list[str], like: Node, domain: str, **attributes: object) -> None:
        node = Node(op_type, inputs, outputs, like.name, domain, attributes)
        self.inference.visit(node)
        self.made.append(node)

    def reshape(self, source: str, target: str, dims: Sequence[int]) -> None:
        self.emit("Reshape", [source, self.builder.integer_constant(list(dims), "shape")], [target], Node("Reshape", [], [], target), "")

    def of(self, name: str) -> str:
        """Return the value in two dimensions, reshaping it where it is not a result of the region."""
        if name not in self.promoted:
            self.promoted[name] = self.builder.names.unique(f"{name}::2d")
            first, second, length = self.inference.types[name].sizes
            self.reshape(name, self.promoted[name], (first, second, 1, length))
        return self.promoted[name]

    def result(self, name: str) -> str:
        """Return the name in two dimensions of an output of the region."""
        if not name:
            return ""
        self.promoted[name] = self.builder.names.unique(f"{name}::2d")
        self.missing.add(name)
        return self.promoted[name]

    def restore(self, name: str) -> None:
        """Reshape a value back to its own shape if it exists in two dimensions only."""
        if name in self.missing:
            self.missing.discard(name)
            self.reshape(self.promoted[name], name, self.inference.types[name].sizes)

    @staticmethod
    def is_one_dimensional(node: Node) -> bool:
        """Whether the attributes of windows, where a node has them, are for one spatial axis; shape inference accepts some malformed ones."""
        counts = dict.fromkeys(SPATIAL, 1) | {"pads": 2}
        return all(len(node.attributes[name]) == count for name, count in counts.items() if isinstance(node.attributes.get(name), tuple))

    @staticmethod
    def attributes(node: Node) -> dict[str, object]:
        """Return the attributes of a node with windows, with the new axis first."""
        found = dict(node.attributes)
        for name, fill in SPATIAL.items():
            if name in found:
                found[name] = (fill, *found[name])
        if "pads" in found:
            begin, end = found["pads"]
            found["pads"] = (0, begin, 0, end)
        return found

    # ---- operators

    def window(self, node: Node) -> bool:
        """Conv and pools."""
        if self.rank(node.inputs[0]) != 3 or node.op_type != "Conv" and node.inputs[0] not in self.missing:
            return False
        weights = [self.of(name) for name in node.inputs[1:2]]
        self.emit(node.op_type, [self.of(node.inputs[0]), *weights, *node.inputs[2:]], [self.result(name) for name in node.outputs], node, node.domain,
                  **self.attributes(node))
        return True

    def conv_grad(self, node: Node) -> bool:
        dy, x, w = node.inputs
        if self.rank(x) != 3:
            return False
        dx, dw, *db = [*node.outputs, "", ""][: max(2, len(node.outputs))]
        self.emit("ConvGrad", [self.of(dy), self.of(x), self.of(w)], [self.result(dx), self.result(dw), *db], node, node.domain, **self.attributes(node))
        return True

    def pool_grad(self, node: Node) -> bool:
        """The gradient of a pool, whose own output type tells the size of the pool's input."""
        if self.rank(node.inputs[0]) != 3 or not any(name in self.promoted for name in node.inputs):
            return False
        self.inference.visit(node)
        kind, name = self.inference.types[node.outputs[0]], self.result(node.outputs[0])
        first, second, length = kind.sizes
        self.inference.declared[name] = TensorType(kind.dtype, (first, second, 1, length))
        self.emit(node.op_type, [self.of(each) for each in node.inputs], [name], node, node.domain, **self.attributes(node))
        return True

    def norm(self, node: Node) -> bool:
        if self.rank(node.inputs[0]) != 3 or node.inputs[0] not in self.missing:
            return False
        self.emit(node.op_type, [self.of(node.inputs[0]), *node.inputs[1:]], [self.result(node.outputs[0]), *node.outputs[1:]], node, node.domain,
                  **node.attributes)
        return True

    def norm_grad(self, node: Node) -> bool:
        if self.rank(node.inputs[1]) != 3 or node.inputs[1] not in self.promoted:
            return False
        self.emit(node.op_type, [self.of(node.inputs[0]), self.of(node.inputs[1]), *node.inputs[2:]], [self.result(node.outputs[0]), *node.outputs[1:]], node,
                  node.domain, **node.attributes)
        return True

    def elementwise(self, node: Node) -> bool:
        """An operator of which some operand is promoted, and every other has rank 3 or one element."""
        given = [name for name in node.inputs if name]
        if not any(name in self.missing for name in given) or any(self.rank(name) != 3 for name in node.outputs):
            return False
        if any(self.rank(name) != 3 and self.inference.types[name].count != 1 for name in given):
            return False
        inputs = [self.of(name) if name and self.rank(name) == 3 else name for name in node.inputs]
        self.emit(node.op_type, inputs, [self.result(name) for name in node.outputs], node, node.domain, **node.attributes)
        return True
