"""Rules of ortrain.plan.layout for operators with windows: convolutions, their gradients, and pools."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ortrain.ir import Node
from ortrain.ops.channels_last import input_gradient_geometry
from ortrain.ops.conv import conv_windows
from ortrain.ops.pool import gradient_type, kernel_of, pool_windows
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.shared.conv_algorithms import MAX_TAPS, is_supported
from ortrain.ops.shared.conv_geometry import geometry_of
from ortrain.ops.shared.windows import Windows, windows_of
from ortrain.plan.layout_values import LaidOutValues, last


class WindowRules(LaidOutValues):
    """The rules, each of which adds the channels-last nodes that replace a node, and returns False if there are none.

    nodes: those of the plan. direct: compute convolutions as direct sums."""

    def __init__(self, nodes: Sequence[Node], builder: GraphBuilder, direct: bool) -> None:
        super().__init__(builder)
        self.direct = direct
        self.consumers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.inputs:
                self.consumers.setdefault(name, []).append(node)
        self.samples: dict[tuple[str, tuple[int, ...]], str] = {}
        """Data and strides of 1 x 1 convolutions -> the pixels at the strides, [n, c, h, w]."""
        self.tap_indices: set[str] = set()
        """Max-pool indices that were converted to tap numbers within the window."""
        self.of_planes: set[str] = set()
        """Outputs of convolutions that work on planes."""

    # ---- convolutions

    def conv(self, node: Node) -> bool:
        data, weight = self.image_sizes(node.inputs[0]), self.sizes(node.inputs[1])
        if not data or not self.is_supported_conv(node, 0, 1, data, weight):
            return False
        if node.outputs[0] in self.of_planes:
            return self.keep_planes("PlanesConv", node, list(node.outputs))
        sampled, attributes = self.sampled(node, 0, 1)
        self.emit("ChannelsLastConv", [self.to_channels_last(sampled), *node.inputs[1:]], [self.new_channels_last(node.outputs[0])], node, **attributes,
                  direct=int(self.direct))
        return True

    def sampled(self, node: Node, x: int, w: int) -> tuple[str, dict[str, Any]]:
        """Return the data and the attributes of a convolution, or of its gradient with respect to its weight. x, w: the
        indices of the inputs data and weight.

        With strides, a 1 x 1 convolution of data that nothing else needs channels-last reads only the pixels that it
        needs, from a Slice, and has no strides."""
        name, windows = node.inputs[x], conv_windows(self.context(node), x, w)
        others = [reader for reader in self.consumers[name] if node.inputs[w] not in reader.inputs]
        dense = max(windows.kernel) > 1 or max(windows.strides) == 1 or any(windows.padded() or (1,))
        if dense or others or name in self.channels_last or self.builder.opset < 10:
            return name, dict(node.attributes)
        key = name, windows.strides
        if key not in self.samples:
            self.samples[key] = self.builder.names.unique(f"{name}::sampled")
            rank = len(windows.kernel)
            limits = ([0] * rank, self.sizes(name)[2:], range(2, 2 + rank), windows.strides)
            operands = [self.builder.integer_constant(list(values), "limits") for values in limits]
            self.emit("Slice", [name, *operands], [self.samples[key]], node, "")
        return self.samples[key], node.attributes | {"strides": (1,) * len(windows.strides)}

    def is_supported_conv(self, node: Node, x: int, w: int, data: tuple[int, ...], weight: tuple[int, ...]) -> bool:
        kind = self.kind(node.inputs[x])
        if kind is None or kind.dtype not in ("float32", "float64"):
            return False
        windows = conv_windows(self.context(node), x, w)
        return is_supported(geometry_of(last(data), weight[0], int(node.attributes.get("group", 1)), windows))

    def conv_grad(self, node: Node) -> bool:
        dy, x, w = node.inputs
        data, weight = self.image_sizes(x), self.sizes(w)
        if not data or not self.is_supported_conv(node, 1, 2, data, weight):
            return False
        dx, *others = node.outputs
        if not self.of_planes.isdisjoint(node.outputs):
            return all(self.keep_planes("PlanesConvGrad", node, outputs) for outputs in (["", *others], [dx]) if any(outputs))
        sampled, attributes = self.sampled(node, 1, 2)
        # the gradient of the weights first: the data gradient does not read x, whose memory is then free
        if any(others):
            inputs = [self.to_channels_last(dy), self.to_channels_last(sampled), w]
            self.emit("ChannelsLastConvGrad", inputs, ["", *others], node, **attributes, direct=int(self.direct))
        if dx and sampled == x:
            inputs = [self.to_channels_last(dy), self.to_channels_last(x), w]
            self.emit("ChannelsLastConvGrad", inputs, [self.new_channels_last(dx)], node, **attributes, direct=int(self.direct))
        elif dx:
            self.emit("ChannelsLastConvInputGrad", [self.to_channels_last(dy), "", w], [self.new_channels_last(dx)], node, **node.attributes,
                      output_shape=data[2:], direct=int(self.direct))
        return True

    def keep_planes(self, op_type: str, node: Node, outputs: list[str]) -> bool:
        """Add the node of a region of planes that replaces a convolution or its gradient, or that computes some of its outputs."""
        for name in node.inputs:
            self.ensure_channels_first(name)
        self.emit(op_type, list(node.inputs), outputs, node, **node.attributes)
        return True

    def conv_input_grad(self, node: Node) -> bool:
        """Convert the data gradient that a transposed convolution is."""
        dy, _, w = node.inputs
        data, out, kind = self.image_sizes(dy), self.image_sizes(node.outputs[0]), self.kind(dy)
        if not data or not self.sizes(w) or not out or kind is None or kind.dtype not in ("float32", "float64"):
            return False
        geometry = input_gradient_geometry(self.context(node), last(data), last(out))
        if geometry is None or not is_supported(geometry):
            return False
        self.emit("ChannelsLastConvInputGrad", [self.to_channels_last(dy), "", w], [self.new_channels_last(node.outputs[0])], node, **node.attributes,
                  direct=int(self.direct))
        return True

    # ---- pools

    def max_pool(self, node: Node) -> bool:
        x = node.inputs[0]
        dims, indices = self.image_sizes(x), node.outputs[1] if len(node.outputs) > 1 else ""
        readers = self.consumers.get(indices, []) if indices else []
        if not dims or not self.is_channels_last(x) or any(r.op_type != "MaxPoolGrad" for r in readers):
            return False
        windows = pool_windows(self.context(node))
        if not self.is_supported_pool(node, windows, dims):
            return False
        outputs = [self.new_channels_last(node.outputs[0])]
        if readers:
            self.tap_indices.add(indices)
            outputs.append(self.new_channels_last(indices))
        attributes = {**node.attributes, "kernel_shape": windows.kernel}
        self.emit("ChannelsLastMaxPool", [self.to_channels_last(x)], outputs, node, **attributes)
        return True

    @staticmethod
    def is_supported_pool(node: Node, windows: Windows, dims: tuple[int, ...]) -> bool:
        """Return whether the channels-last kernels compute a pool over x of shape `dims`: no window may cover padding only. Channels may be any number."""
        axes = zip(windows.kernel, windows.begins, windows.ends, windows.dilations, strict=True)
        may_be_empty = any(max(begin or 0, end or 0) >= kernel or dilation > 1 for kernel, begin, end, dilation in axes)
        return prod(windows.kernel) <= MAX_TAPS and prod(dims) > 0 and not node.attributes.get("ceil_mode", 0) and not may_be_empty

    def max_pool_grad(self, node: Node) -> bool:
        dy, indices = node.inputs
        if indices not in self.tap_indices:
            return False
        spatial = gradient_type(self.context(node)).sizes[2:]
        inputs = [self.to_channels_last(dy), self.channels_last[indices]]
        self.emit("ChannelsLastMaxPoolGrad", inputs, [self.new_channels_last(node.outputs[0])], node, **node.attributes, spatial=spatial)
        return True

    def average_pool(self, node: Node) -> bool:
        x = node.inputs[0]
        dims = self.image_sizes(x)
        if not dims or not self.is_channels_last(x):
            return False
        windows = pool_windows(self.context(node))
        if not self.is_supported_pool(node, windows, dims):
            return False
        attributes = {**node.attributes, "kernel_shape": windows.kernel}
        self.emit("ChannelsLastAveragePool", [self.to_channels_last(x)], [self.new_channels_last(node.outputs[0])], node, **attributes)
        return True

    def average_pool_grad(self, node: Node) -> bool:
        """Convert the gradient of an average pool whose own gradient is channels-last already."""
        dy, dx = node.inputs[0], node.outputs[0]
        data = self.image_sizes(dx)
        if not data or not self.image_sizes(dy) or not self.is_channels_last(dy):
            return False
        windows = windows_of(self.context(node), data[2:], kernel_of(self.context(node), len(data)))
        if not self.is_supported_pool(node, windows, data):
            return False
        self.emit("ChannelsLastAveragePoolGrad", [self.to_channels_last(dy)], [self.new_channels_last(dx)], node, **node.attributes, spatial=data[2:])
        return True
