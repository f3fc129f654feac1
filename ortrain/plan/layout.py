"""Lays the data of convolutional regions out channels-last: transposes stand only at the edges of a region.

1 x 1 convolution is a product then, and whatever else belongs to a convolution runs along contiguous channels. Weights and everything that is not of
shape [n, c, h, w] stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np

from ortrain.ir import Node, TensorType
from ortrain.ops.conv import conv_windows
from ortrain.ops.pool import gradient_type, pool_windows
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, canonical_domain
from ortrain.ops.shared.conv_algorithms import MAX_TAPS, MIN_CHANNELS, fits, geometry_of
from ortrain.plan.epilogue_fusion.conv import merge_epilogues

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)

ELEMENTWISE = frozenset({
    "Add", "Sub", "Mul", "Div", "Sum", "Neg", "Abs", "Sqrt", "Exp", "Log", "Erf", "Reciprocal", "Relu", "ReluGrad", "LeakyRelu", "LeakyReluGrad",
    "Sigmoid", "SigmoidGrad", "Tanh", "TanhGrad", "Gelu", "GeluGrad", "FastGelu", "FastGeluGrad", "QuickGelu", "QuickGeluGrad", "Swish", "Elu",
    "EluGrad", "Selu", "SeluGrad", "Celu", "CeluGrad", "Softplus", "SoftplusGrad", "Mish", "MishGrad", "HardSigmoid", "HardSigmoidGrad", "HardSwish",
    "HardSwishGrad", "Clip", "Not", "And", "Or", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Where", "Cast", "Scale", "Sign",
    "Min", "Max"})
"""Operators that do with each element what they do with any other."""


def lay_out(nodes: Sequence[Node], builder: GraphBuilder, wanted: Iterable[str], direct: bool) -> list[Node]:
    """The nodes with those of convolutional regions on channels-last data; `wanted` names values that must be there as they were.

    direct: convolutions are direct sums (see SessionOptions)."""
    if not any(canonical_domain(node.domain) in ("", MICROSOFT) and node.op_type in ("Conv", "ConvGrad") for node in nodes):
        return list(nodes)
    wanted = list(wanted)
    return merge_epilogues(Layout(nodes, builder, direct).run(nodes, wanted), builder.inference, wanted)


class Layout:
    """One pass over the nodes. A value of shape [n, c, h, w] is there as ONNX has it, channels-last under another name, or both."""

    def __init__(self, nodes: Sequence[Node], builder: GraphBuilder, direct: bool) -> None:
        self.builder, self.direct = builder, direct
        self.inference = builder.inference
        self.last: dict[str, str] = {}
        """Value -> its name channels-last."""
        self.missing: set[str] = set()
        """Values that are there channels-last only."""
        self.made: list[Node] = []
        self.consumers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.inputs:
                self.consumers.setdefault(name, []).append(node)
        self.pooled: set[str] = set()
        """Winning positions of maximum pools that are tap numbers now."""
        self.rules: dict[str, Callable[[Node], bool]] = {
            "Conv": self.conv, "ConvGrad": self.conv_grad, "BatchNormalization": self.norm, "BatchNormInternal": self.norm,
            "BatchNormalizationGrad": self.norm_grad, "MaxPool": self.max_pool, "MaxPoolGrad": self.max_pool_grad,
            "GlobalAveragePool": self.global_pool, "Expand": self.expand, "Concat": self.concat, "Split": self.split, "SplitTraining": self.split}

    def run(self, nodes: Sequence[Node], wanted: Iterable[str]) -> list[Node]:
        for node in nodes:
            if not self.take(node):
                for name in node.inputs:
                    self.first_of(name)
                self.made.append(node)
        for name in wanted:
            self.first_of(name)
        return self.made

    def take(self, node: Node) -> bool:
        """Puts channels-last nodes in the place of one; says whether it did."""
        if canonical_domain(node.domain) not in ("", MICROSOFT, ORTRAIN) or node.graphs:
            return False
        rule = self.rules.get(node.op_type, self.elementwise if node.op_type in ELEMENTWISE else None)
        return rule is not None and rule(node)

    # ---- values

    def kind(self, name: str) -> TensorType | None:
        return self.inference.types.get(name) if name else None

    def sizes(self, name: str) -> tuple[int, ...]:
        """The shape of a value that is known, else ()."""
        kind = self.kind(name)
        return kind.sizes if kind is not None and kind.is_static else ()

    def emit(self, op_type: str, inputs: list[str], outputs: list[str], like: Node, domain: str = ORTRAIN, **attributes: object) -> None:
        node = Node(op_type, inputs, outputs, like.name, domain, attributes)
        self.inference.visit(node)
        self.made.append(node)

    def new_last(self, name: str) -> str:
        """A name for what was [n, c, h, w] and is made channels-last."""
        if not name:
            return ""
        self.last[name] = self.builder.names.unique(f"{name}::channels_last")
        self.missing.add(name)
        return self.last[name]

    def last_of(self, name: str) -> str:
        """The value channels-last."""
        if name not in self.last:
            self.last[name] = self.builder.names.unique(f"{name}::channels_last")
            self.move(name, self.last[name], LAST)
        return self.last[name]

    def first_of(self, name: str) -> None:
        """Sees to it that the value is there as ONNX has it."""
        if name in self.missing:
            self.missing.discard(name)
            self.move(self.last[name], name, FIRST)

    def move(self, source: str, target: str, order: tuple[int, ...]) -> None:
        """A transpose, or another shape for the same memory where one of the sides has size 1."""
        dims = self.sizes(source)
        moved = [dims[axis] for axis in order]
        channels, plane = (dims[1], dims[2] * dims[3]) if order == LAST else (dims[3], dims[1] * dims[2])
        like = Node("Transpose", [], [], target)
        if channels == 1 or plane == 1:
            self.emit("Reshape", [source, self.builder.whole_numbers(moved, "shape")], [target], like, "")
        else:
            self.emit("Transpose", [source], [target], like, "", perm=order)

    def context(self, node: Node) -> InferenceContext:
        return self.inference.context(node)

    # ---- operators

    def conv(self, node: Node) -> bool:
        data, weight = self.sizes(node.inputs[0]), self.sizes(node.inputs[1])
        if len(data) != 4 or not self.fits(node, 0, 1, data, weight):
            return False
        self.emit("ChannelsLastConv", [self.last_of(node.inputs[0]), *node.inputs[1:]], [self.new_last(node.outputs[0])], node,
                  **node.attributes, direct=int(self.direct))
        return True

    def fits(self, node: Node, x: int, w: int, data: tuple[int, ...], weight: tuple[int, ...]) -> bool:
        kind = self.kind(node.inputs[x])
        if kind is None or kind.dtype not in ("float32", "float64"):
            return False
        windows = conv_windows(self.context(node), x, w)
        return fits(geometry_of((data[0], data[2], data[3], data[1]), weight[0], int(node.attributes.get("group", 1)), windows))

    def conv_grad(self, node: Node) -> bool:
        dy, x, w = node.inputs
        data, weight = self.sizes(x), self.sizes(w)
        if len(data) != 4 or not self.fits(node, 1, 2, data, weight):
            return False
        inputs = [self.last_of(dy), self.last_of(x), w]
        dx, *others = node.outputs
        # the weights' part first: x, which the data's does not read, may be gone by then
        for outputs in (["", *others], [self.new_last(dx)]):
            if any(outputs):
                self.emit("ChannelsLastConvGrad", inputs, outputs, node, **node.attributes, direct=int(self.direct))
        return True

    def is_last(self, name: str) -> bool:
        return name in self.missing

    def norm(self, node: Node) -> bool:
        dims = self.sizes(node.inputs[0])
        if len(dims) != 4 or not self.is_last(node.inputs[0]) or prod(dims) == 0:
            return False
        training = node.op_type == "BatchNormInternal" or bool(node.attributes.get("training_mode", 0))
        inputs = [self.last_of(node.inputs[0]), *node.inputs[1:5]]
        kept = {key: node.attributes[key] for key in ("epsilon", "momentum") if key in node.attributes}
        self.emit("ChannelsLastBatchNormalization", inputs, [self.new_last(node.outputs[0]), *node.outputs[1:]], node, training_mode=int(training), **kept)
        return True

    def norm_grad(self, node: Node) -> bool:
        if len(self.sizes(node.inputs[1])) != 4 or node.inputs[1] not in self.last:
            return False
        inputs = [self.last_of(node.inputs[0]), self.last_of(node.inputs[1]), *node.inputs[2:]]
        self.emit("ChannelsLastBatchNormalizationGrad", inputs, [self.new_last(node.outputs[0]), *node.outputs[1:]], node)
        return True

    def max_pool(self, node: Node) -> bool:
        x = node.inputs[0]
        dims, taps = self.sizes(x), node.outputs[1] if len(node.outputs) > 1 else ""
        readers = self.consumers.get(taps, []) if taps else []
        if len(dims) != 4 or not self.is_last(x) or dims[1] < MIN_CHANNELS or any(r.op_type != "MaxPoolGrad" for r in readers):
            return False
        windows = pool_windows(self.context(node))
        if prod(windows.kernel) > MAX_TAPS or prod(dims) == 0 or node.attributes.get("ceil_mode", 0) or self.has_empty_windows(windows, dims):
            return False
        outputs = [self.new_last(node.outputs[0])]
        if readers:
            self.pooled.add(taps)
            outputs.append(self.new_last(taps))
        attributes = {**node.attributes, "kernel_shape": windows.kernel}
        self.emit("ChannelsLastMaxPool", [self.last_of(x)], outputs, node, **attributes)
        return True

    @staticmethod
    def has_empty_windows(windows: object, dims: tuple[int, ...]) -> bool:
        """Whether some window lies in the pads alone."""
        kernel, begins, ends, dilations = (getattr(windows, name) for name in ("kernel", "begins", "ends", "dilations"))
        return any(max(b or 0, e or 0) >= k or d > 1 for k, b, e, d in zip(kernel, begins, ends, dilations, strict=True))

    def max_pool_grad(self, node: Node) -> bool:
        dy, taps = node.inputs
        if taps not in self.pooled:
            return False
        spatial = gradient_type(self.context(node)).sizes[2:]
        self.emit("ChannelsLastMaxPoolGrad", [self.last_of(dy), self.last[taps]], [self.new_last(node.outputs[0])], node, **node.attributes, spatial=spatial)
        return True

    def global_pool(self, node: Node) -> bool:
        x, y = node.inputs[0], node.outputs[0]
        if len(self.sizes(x)) != 4 or not self.is_last(x):
            return False
        attributes: dict[str, object] = {"keepdims": 1}
        inputs = [self.last_of(x)]
        if self.builder.opset >= 18:
            inputs.append(self.builder.constant(np.array([1, 2], np.int64), "axes"))
        else:
            attributes["axes"] = (1, 2)
        self.emit("ReduceMean", inputs, [self.new_last(y)], node, "", **attributes)
        return True

    def expand(self, node: Node) -> bool:
        """One value per channel over a map: the gradient of a global average."""
        dims, out = self.sizes(node.inputs[0]), self.sizes(node.outputs[0])
        if len(dims) != 4 or len(out) != 4 or dims[2:] != (1, 1) or dims[:2] != out[:2] or out[2:] == (1, 1) or not self.last:
            return False
        shape = self.builder.whole_numbers([out[axis] for axis in LAST], "shape")
        self.emit("Expand", [self.last_of(node.inputs[0]), shape], [self.new_last(node.outputs[0])], node, "")
        return True

    def concat(self, node: Node) -> bool:
        axis = int(node.attributes.get("axis", 0))
        if axis not in (1, -3) or any(len(self.sizes(name)) != 4 for name in node.inputs) or not any(map(self.is_last, node.inputs)):
            return False
        self.emit("Concat", [self.last_of(name) for name in node.inputs], [self.new_last(node.outputs[0])], node, "", axis=3)
        return True

    def split(self, node: Node) -> bool:
        """Along the channels: among others the gradient of a concatenation."""
        if int(node.attributes.get("axis", 0)) not in (1, -3) or len(self.sizes(node.inputs[0])) != 4 or not self.is_last(node.inputs[0]):
            return False
        inputs = [self.last_of(node.inputs[0]), *node.inputs[1:]]
        self.emit(node.op_type, inputs, [self.new_last(name) for name in node.outputs], node, node.domain, **node.attributes | {"axis": 3})
        return True

    def elementwise(self, node: Node) -> bool:
        """Where one operand is channels-last already and every other is of its shape, one value per channel of each image, or a scalar."""
        full = [name for name in node.inputs if self.is_last(name)]
        if not full or any(len(self.sizes(name)) != 4 for name in node.outputs):
            return False
        shape = self.sizes(node.outputs[0])
        given = [name for name in node.inputs if name]
        wide = [name for name in given if prod(self.sizes(name)) > 1 or len(self.sizes(name)) == 4]
        if not all(self.sizes(name) in (shape, (shape[0], shape[1], 1, 1), (1, shape[1], 1, 1), (1, 1, 1, 1)) for name in wide):
            return False
        inputs = [self.last_of(name) if name in wide else name for name in node.inputs]
        self.emit(node.op_type, inputs, [self.new_last(name) for name in node.outputs], node, node.domain, **node.attributes)
        return True
