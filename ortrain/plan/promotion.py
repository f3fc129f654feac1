"""Promotion of 1-D convolutional regions to 2-D, so that the channels-last kernels for images run them.

A value of shape [n, c, length] becomes [n, c, 1, length], which has the same memory: the Reshapes at the borders of a region are aliases. Convolutions,
pooling and normalizations get a leading spatial axis of size 1; elementwise operators, pads, reductions, splits and concatenations between them are converted
as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ortrain.ir import Node, TensorType
from ortrain.ops.padding import pads_of
from ortrain.ops.reduce import axes_of
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain, is_elementwise
from ortrain.plan.operator_kinds import CONVOLUTIONS

SPATIAL = {"kernel_shape": 1, "strides": 1, "dilations": 1}
"""Attribute with one number per spatial axis -> its number for the new axis."""
REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare")
"""Reductions that may reduce the positions of a region."""


def promote_to_2d(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with 1-D convolutional regions promoted to two dimensions. outputs: values that must be available in their original shape."""
    promotion = Promotion(builder)
    if not any(node.op_type in CONVOLUTIONS and promotion.rank(node.inputs[0]) == 3 for node in nodes):
        return list(nodes)
    return promotion.run(nodes, outputs)


def with_axes(node: Node, axes: Sequence[int], builder: GraphBuilder) -> Node:
    """Return a reduction with other axes, which stay an attribute or an input."""
    if len(node.inputs) < 2:
        return replace(node, attributes=node.attributes | {"axes": tuple(axes)})
    return replace(node, inputs=[node.inputs[0], builder.integer_constant(list(axes), "axes")])


class Promotion:
    """One pass over the nodes of a plan. Each rule adds the promoted node for a node, or returns False to keep the node as it is."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.inference = builder.inference
        self.promoted: dict[str, str] = {}
        """Value -> the name of the promoted value."""
        self.promoted_only: set[str] = set()
        """Values that exist promoted only."""
        self.result: list[Node] = []
        self.rules: dict[str, Callable[[Node], bool]] = {
            "Conv": self.window, "MaxPool": self.window, "AveragePool": self.window, "ConvGrad": self.conv_grad, "MaxPoolGrad": self.pool_grad,
            "ConvInputGrad": self.conv_input_grad,
            "AveragePoolGrad": self.pool_grad, "BatchNormalization": self.norm, "BatchNormInternal": self.norm, "BatchNormalizationGrad": self.norm_grad,
            "GroupNorm": self.norm, "GroupNormGrad": self.norm_grad,
            "Pad": self.pad, "Split": self.along_channels, "SplitTraining": self.along_channels, "Concat": self.along_channels,
            "Unsqueeze": self.unsqueeze, "Squeeze": self.squeeze, "Expand": self.expand, **dict.fromkeys(REDUCTIONS, self.reduce)}

    def run(self, nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
        """Return the nodes with promoted regions."""
        for node in nodes:
            rule = self.rules.get(node.op_type, self.elementwise if is_elementwise(node) else None)
            known = canonical_domain(node.domain) in ("", MICROSOFT, ORTRAIN) and not node.graphs and self.is_one_dimensional(node)
            if rule is None or not known or not rule(node):
                for name in node.inputs:
                    self.restore(name)
                self.result.append(node)
        for name in outputs:
            self.restore(name)
        return self.result

    def rank(self, name: str) -> int:
        """Return the rank of a value of static shape, else -1."""
        kind = self.inference.types.get(name) if name else None
        return len(kind.sizes) if kind is not None and kind.is_static else -1

    def emit(self, node: Node) -> None:
        """Add a node and infer its output types."""
        self.inference.visit(node)
        self.result.append(node)

    def reshape(self, source: str, target: str, dims: Sequence[int]) -> None:
        """Add a Reshape of `source` to `dims`, with the output `target`."""
        self.emit(Node("Reshape", [source, self.builder.integer_constant(list(dims), "shape")], [target], target))

    def shape_2d(self, name: str) -> tuple[int, ...]:
        """Return the shape that a value has when it is promoted."""
        first, second, length = self.inference.types[name].sizes
        return first, second, 1, length

    def to_2d(self, name: str) -> str:
        """Return the name of a promoted value, reshaping the value if necessary."""
        if name not in self.promoted:
            self.promoted[name] = self.builder.names.unique(f"{name}::2d")
            self.reshape(name, self.promoted[name], self.shape_2d(name))
        return self.promoted[name]

    def new_2d(self, name: str) -> str:
        """Register a value that is only computed promoted; return its new name."""
        if not name:
            return ""
        self.promoted[name] = self.builder.names.unique(f"{name}::2d")
        self.promoted_only.add(name)
        return self.promoted[name]

    def restore(self, name: str) -> None:
        """Reshape a value back to its original shape if it only exists promoted."""
        if name in self.promoted_only:
            self.promoted_only.discard(name)
            self.reshape(self.promoted[name], name, self.inference.types[name].sizes)

    @staticmethod
    def is_one_dimensional(node: Node) -> bool:
        """Return whether a node's window attributes, if any, have one spatial axis; shape inference accepts some malformed ones."""
        counts = dict.fromkeys(SPATIAL, 1) | {"pads": 2}
        return all(len(node.attributes[name]) == count for name, count in counts.items() if isinstance(node.attributes.get(name), tuple))

    @staticmethod
    def attributes(node: Node) -> dict[str, object]:
        """Return the attributes of a node, with the new axis first in those of windows."""
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
        """Promote a convolution, or a pooling operator inside a region."""
        if self.rank(node.inputs[0]) != 3 or node.op_type != "Conv" and node.inputs[0] not in self.promoted_only:
            return False
        weights = [self.to_2d(name) for name in node.inputs[1:2]]
        self.emit(replace(node, inputs=[self.to_2d(node.inputs[0]), *weights, *node.inputs[2:]], outputs=[self.new_2d(name) for name in node.outputs],
                          attributes=self.attributes(node)))
        return True

    def conv_grad(self, node: Node) -> bool:
        if self.rank(node.inputs[1]) != 3:
            return False
        dx, dw, *db = [*node.outputs, "", ""][: max(2, len(node.outputs))]
        self.emit(replace(node, inputs=[self.to_2d(name) for name in node.inputs], outputs=[self.new_2d(dx), self.new_2d(dw), *db],
                          attributes=self.attributes(node)))
        return True

    def conv_input_grad(self, node: Node) -> bool:
        """Promote the data gradient that a transposed convolution is."""
        if self.rank(node.inputs[0]) != 3:
            return False
        attributes = self.attributes(node) | {"output_shape": (1, *node.attributes["output_shape"])}
        self.emit(replace(node, inputs=[self.to_2d(name) if name else "" for name in node.inputs], outputs=[self.new_2d(node.outputs[0])],
                          attributes=attributes))
        return True

    def pool_grad(self, node: Node) -> bool:
        """Promote the gradient of a pooling operator, whose declared output type has the size of the forward input."""
        if self.rank(node.inputs[0]) != 3 or not any(name in self.promoted for name in node.inputs):
            return False
        self.inference.visit(node)
        kind, shape, name = self.inference.types[node.outputs[0]], self.shape_2d(node.outputs[0]), self.new_2d(node.outputs[0])
        self.inference.declared[name] = TensorType(kind.dtype, shape)
        self.emit(replace(node, inputs=[self.to_2d(each) for each in node.inputs], outputs=[name], attributes=self.attributes(node)))
        return True

    def norm(self, node: Node) -> bool:
        if self.rank(node.inputs[0]) != 3 or node.inputs[0] not in self.promoted_only:
            return False
        self.emit(replace(node, inputs=[self.to_2d(node.inputs[0]), *node.inputs[1:]], outputs=[self.new_2d(node.outputs[0]), *node.outputs[1:]]))
        return True

    def norm_grad(self, node: Node) -> bool:
        if self.rank(node.inputs[1]) != 3 or node.inputs[1] not in self.promoted:
            return False
        operands = [self.to_2d(name) for name in node.inputs[:2]]
        self.emit(replace(node, inputs=[*operands, *node.inputs[2:]], outputs=[self.new_2d(node.outputs[0]), *node.outputs[1:]]))
        return True

    def pad(self, node: Node) -> bool:
        """Promote a Pad with a constant whose pads are known before running."""
        x = node.inputs[0]
        if self.rank(x) != 3 or x not in self.promoted_only or self.rank(node.outputs[0]) != 3 or node.attributes.get("mode", "constant") != "constant":
            return False
        found = pads_of(self.inference.context(node))
        if found is None:
            return False
        pads = [pair[end] for end in (0, 1) for pair in (*found[:2], (0, 0), found[2])]
        if self.builder.opset < 11:
            promoted = replace(node, inputs=[self.to_2d(x)], attributes=node.attributes | {"pads": tuple(pads)})
        else:
            promoted = replace(node, inputs=[self.to_2d(x), self.builder.integer_constant(pads, "pads"), *node.inputs[2:3]])
        self.emit(replace(promoted, outputs=[self.new_2d(node.outputs[0])]))
        return True

    def along_channels(self, node: Node) -> bool:
        """Promote a Split or Concat along the channels."""
        data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        if int(node.attributes.get("axis", 0)) not in (1, -2) or any(self.rank(name) != 3 for name in data) or not self.promoted_only.intersection(data):
            return False
        inputs = [*map(self.to_2d, data), *node.inputs[len(data):]]
        self.emit(replace(node, inputs=inputs, outputs=[self.new_2d(name) for name in node.outputs], attributes=node.attributes | {"axis": 1}))
        return True

    def reduce(self, node: Node) -> bool:
        """Promote a reduction, of the positions at least if it drops axes."""
        x, y = node.inputs[0], node.outputs[0]
        axes = axes_of(self.inference.context(node)) if self.rank(x) == 3 and x in self.promoted_only else None
        if not axes or 2 not in axes and not node.attributes.get("keepdims", 1):
            return False
        target = self.new_2d(y) if node.attributes.get("keepdims", 1) else y
        promoted = [*axes, 3] if 2 in axes else list(axes)
        self.emit(with_axes(replace(node, inputs=[self.to_2d(x), *node.inputs[1:]], outputs=[target]), promoted, self.builder))
        return True

    def expand(self, node: Node) -> bool:
        """Promote an Expand of one value per channel to all positions of a region, as in the gradient of a reduction."""
        x, y = node.inputs[0], node.outputs[0]
        if self.rank(x) != 3 or self.rank(y) != 3 or not self.promoted:
            return False
        if self.inference.types[x].sizes != (*self.inference.types[y].sizes[:2], 1):
            return False
        self.emit(replace(node, inputs=[self.to_2d(x), self.builder.integer_constant(list(self.shape_2d(y)), "shape")], outputs=[self.new_2d(y)]))
        return True

    def unsqueeze(self, node: Node) -> bool:
        """Replace an Unsqueeze to the shape that the promoted value has."""
        x, y = node.inputs[0], node.outputs[0]
        if self.rank(x) != 3 or x not in self.promoted_only or self.inference.types[y].shape != self.shape_2d(x):
            return False
        self.emit(Node("Identity", [self.promoted[x]], [y], node.name))
        return True

    def squeeze(self, node: Node) -> bool:
        """Drop a Squeeze from the shape that the promoted result has."""
        x, y = node.inputs[0], node.outputs[0]
        if self.rank(x) != 4 or self.rank(y) != 3 or self.inference.types[x].shape != self.shape_2d(y):
            return False
        self.promoted[y] = x
        self.promoted_only.add(y)
        return True

    def elementwise(self, node: Node) -> bool:
        """Promote an elementwise operator with a promoted operand, if every other operand has rank 3 or one element."""
        given = [name for name in node.inputs if name]
        if not any(name in self.promoted_only for name in given) or any(self.rank(name) != 3 for name in node.outputs):
            return False
        if any(self.rank(name) != 3 and self.inference.types[name].count != 1 for name in given):
            return False
        inputs = [self.to_2d(name) if name and self.rank(name) == 3 else name for name in node.inputs]
        self.emit(replace(node, inputs=inputs, outputs=[self.new_2d(name) for name in node.outputs]))
        return True
