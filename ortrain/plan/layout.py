"""Channels-last layout: converts convolutional regions to channels-last data, with transposes only at the borders of
a region.

In this layout a 1 x 1 convolution is a matrix multiplication, and the other operators of a region run along
contiguous channels. Weights and values whose shape is not that of images, [n, c, h, w] or [n, c, d, h, w], keep their
layout.

A region begins at a convolution and goes on through batch and group normalization, pools with any number of channels,
elementwise operators, dropout, reductions, pads, slices, resampling, and Concat and Split along channels. Where a reduction drops axes,
only its result is transposed. A Reshape that divides the channels, a Transpose of the parts and a Reshape that unites
them (a channel shuffle) remain in the region as well: they move channels within each pixel, and ortrain.plan.transposes
makes them a part of the Concat or Split beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from ortrain.ir import Node
from ortrain.ops.channels_last import RANKS
from ortrain.ops.indexing import slice_bounds
from ortrain.ops.padding import pads_of
from ortrain.ops.reduce import axes_of
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain, is_elementwise
from ortrain.plan.epilogue_fusion.conv import fuse_epilogues
from ortrain.plan.layout_values import last, to_first, to_last
from ortrain.plan.layout_windows import WindowRules
from ortrain.plan.plane_regions import convolutions_of_planes
from ortrain.plan.promotion import REDUCTIONS, with_axes

LOSS, LOSS_GRAD = "SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"


def convert_to_channels_last(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str], direct: bool) -> list[Node]:
    """Return the nodes with those of convolutional regions working on channels-last data.

    builder: adds constants to the plan. outputs: values that must be available in their original layout. direct:
    compute convolutions as direct sums, without Winograd or bfloat16 approximations (see SessionOptions)."""
    outputs = list(outputs)
    return fuse_epilogues(LayoutConversion(nodes, builder, direct).run(nodes, outputs), builder.inference, outputs)


class LayoutConversion(WindowRules):
    """One pass over the nodes."""

    def __init__(self, nodes: Sequence[Node], builder: GraphBuilder, direct: bool) -> None:
        super().__init__(nodes, builder, direct)
        self.rules: dict[str, Callable[[Node], bool]] = {
            "Conv": self.conv, "ConvGrad": self.conv_grad, "ConvInputGrad": self.conv_input_grad,
            "BatchNormalization": self.batch_norm, "BatchNormInternal": self.batch_norm, "BatchNormalizationGrad": self.norm_grad,
            "GroupNorm": self.group_norm, "GroupNormGrad": self.norm_grad, "MaxPool": self.max_pool, "MaxPoolGrad": self.max_pool_grad,
            "AveragePool": self.average_pool, "AveragePoolGrad": self.average_pool_grad, "Reshape": self.reshape,
            "GlobalAveragePool": self.global_pool, "Expand": self.expand, "Concat": self.concat, "Split": self.split, "SplitTraining": self.split,
            "Slice": self.slice, "SliceGrad": self.slice, "Dropout": self.dropout, "DropoutGrad": self.dropout_grad,
            "Pad": self.pad, "PadGrad": self.pad, "ResampleAxis": self.resample, "ResampleAxisGrad": self.resample,
            "Identity": self.identity, "Transpose": self.transposed, LOSS: self.loss, LOSS_GRAD: self.loss_grad,
            **dict.fromkeys(REDUCTIONS, self.reduce)}
        self.loss_rows: dict[str, tuple[str, str]] = {}
        """Log probabilities of a loss [n, c, h, w] -> the same as [n · h · w, c], and the labels as [n · h · w]."""
        self.outputs: set[str] = set()

    def run(self, nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
        """Return the converted nodes."""
        self.outputs.update(outputs)
        self.of_planes = convolutions_of_planes(nodes, self.inference, lambda name: bool(self.image_sizes(name)), self.rules)
        for node in nodes:
            if not self.convert(node):
                for name in node.inputs:
                    self.ensure_channels_first(name)
                self.converted.append(node)
        for name in outputs:
            self.ensure_channels_first(name)
        return self.converted

    def convert(self, node: Node) -> bool:
        """Add the channels-last nodes that replace a node; return False if there are none."""
        if canonical_domain(node.domain) not in ("", MICROSOFT, ORTRAIN) or node.graphs:
            return False
        rule = self.rules.get(node.op_type, self.elementwise if is_elementwise(node) else None)
        return rule is not None and rule(node)

    # ---- operators

    def batch_norm(self, node: Node) -> bool:
        """Convert a BatchNormalization whose input is channels-last already."""
        dims = self.image_sizes(node.inputs[0])
        if not dims or not self.is_channels_last(node.inputs[0]) or prod(dims) == 0:
            return False
        training = node.op_type == "BatchNormInternal" or bool(node.attributes.get("training_mode", 0))
        inputs = [self.to_channels_last(node.inputs[0]), *node.inputs[1:5]]
        attributes = {key: node.attributes[key] for key in ("epsilon", "momentum") if key in node.attributes}
        outputs = [self.new_channels_last(node.outputs[0]), *node.outputs[1:]]
        self.emit("ChannelsLastBatchNormalization", inputs, outputs, node, training_mode=int(training), **attributes)
        return True

    def group_norm(self, node: Node) -> bool:
        """Convert a GroupNorm whose input is channels-last already."""
        dims = self.image_sizes(node.inputs[0])
        if not dims or not self.is_channels_last(node.inputs[0]) or prod(dims) == 0:
            return False
        inputs, outputs = [self.to_channels_last(node.inputs[0]), *node.inputs[1:]], [self.new_channels_last(node.outputs[0]), *node.outputs[1:]]
        self.emit("ChannelsLastGroupNorm", inputs, outputs, node, **node.attributes)
        return True

    def norm_grad(self, node: Node) -> bool:
        if not self.image_sizes(node.inputs[1]) or node.inputs[1] not in self.channels_last:
            return False
        inputs = [self.to_channels_last(node.inputs[0]), self.to_channels_last(node.inputs[1]), *node.inputs[2:]]
        self.emit(f"ChannelsLast{node.op_type}", inputs, [self.new_channels_last(node.outputs[0]), *node.outputs[1:]], node, **node.attributes)
        return True

    def global_pool(self, node: Node) -> bool:
        x, y = node.inputs[0], node.outputs[0]
        dims = self.image_sizes(x)
        if not dims or not self.is_channels_last(x):
            return False
        spatial = tuple(range(1, len(dims) - 1))
        axes = [self.builder.constant(np.array(spatial, np.int64), "axes")] if self.builder.opset >= 18 else []
        attributes: dict[str, Any] = {"keepdims": 1} if axes else {"keepdims": 1, "axes": spatial}
        self.emit("ReduceMean", [self.to_channels_last(x), *axes], [self.new_channels_last(y)], node, "", **attributes)
        return True

    def expand(self, node: Node) -> bool:
        """Convert an Expand along spatial axes, the gradient of a mean over them: of one value per channel, or where a reader works on channels-last data."""
        dims, out = self.image_sizes(node.inputs[0]), self.image_sizes(node.outputs[0])
        if not dims or len(out) != len(dims) or dims[:2] != out[:2] or dims == out or not self.channels_last:
            return False
        readers = self.consumers.get(node.outputs[0], [])
        if set(dims[2:]) != {1} and not any(name in self.channels_last for reader in readers for name in reader.inputs):
            return False
        shape = self.builder.integer_constant(list(last(out)), "shape")
        self.emit("Expand", [self.to_channels_last(node.inputs[0]), shape], [self.new_channels_last(node.outputs[0])], node, "")
        return True

    def concat(self, node: Node) -> bool:
        rank = len(self.sizes(node.inputs[0]))
        if not self.is_channel_axis(node, rank) or any(not self.image_sizes(name) for name in node.inputs) or not any(map(self.is_channels_last, node.inputs)):
            return False
        self.emit("Concat", [self.to_channels_last(name) for name in node.inputs], [self.new_channels_last(node.outputs[0])], node, "", axis=rank - 1)
        return True

    @staticmethod
    def is_channel_axis(node: Node, rank: int) -> bool:
        return int(node.attributes.get("axis", 0)) in (1, 1 - rank)

    def split(self, node: Node) -> bool:
        """Convert a Split along the channels, for example the gradient of a Concat."""
        rank = len(self.image_sizes(node.inputs[0]))
        if not rank or not self.is_channel_axis(node, rank) or not self.is_channels_last(node.inputs[0]):
            return False
        inputs = [self.to_channels_last(node.inputs[0]), *node.inputs[1:]]
        self.emit(node.op_type, inputs, [self.new_channels_last(name) for name in node.outputs], node, node.domain, **node.attributes | {"axis": rank - 1})
        return True

    def slice(self, node: Node) -> bool:
        """Convert a Slice or SliceGrad with limits that are known before running."""
        x, y, is_gradient = node.inputs[0], node.outputs[0], node.op_type == "SliceGrad"
        rank = len(self.image_sizes(x))
        if not rank or not self.is_channels_last(x) or not self.image_sizes(y):
            return False
        bounds = slice_bounds(self.context(node), 2 if is_gradient else 1, rank)
        if bounds is None:
            return False
        order = to_last(rank)
        starts, ends, axes, steps = (list(limits) for limits in zip(*((start, end, order.index(axis), step) for axis, start, end, step in bounds), strict=True))
        if self.builder.opset < 10 and not is_gradient:
            self.emit("Slice", [self.to_channels_last(x)], [self.new_channels_last(y)], node, "", starts=tuple(starts), ends=tuple(ends), axes=tuple(axes))
            return True
        limits = [self.builder.integer_constant(numbers, "limits") for numbers in (starts, ends, axes, steps)]
        shape = [self.builder.integer_constant(list(last(self.sizes(y))), "shape")] if is_gradient else []
        self.emit(node.op_type, [self.to_channels_last(x), *shape, *limits], [self.new_channels_last(y)], node, node.domain)
        return True

    def dropout(self, node: Node) -> bool:
        """Convert a Dropout, whose mask then is channels-last, too."""
        x = node.inputs[0]
        if not self.image_sizes(x) or not self.is_channels_last(x):
            return False
        outputs = [self.new_channels_last(name) for name in node.outputs]
        self.emit("Dropout", [self.to_channels_last(x), *node.inputs[1:]], outputs, node, node.domain, **node.attributes)
        return True

    def dropout_grad(self, node: Node) -> bool:
        """Convert the gradient of a Dropout that was converted."""
        dy, mask = node.inputs[:2]
        if mask not in self.only_channels_last:
            return False
        inputs = [self.to_channels_last(dy), self.channels_last[mask], *node.inputs[2:]]
        self.emit("DropoutGrad", inputs, [self.new_channels_last(node.outputs[0])], node, node.domain, **node.attributes)
        return True

    def reduce(self, node: Node) -> bool:
        """Convert a reduction. Where it drops axes, and the result has channels and positions, the result is transposed, which is smaller than the data."""
        x, y = node.inputs[0], node.outputs[0]
        dims = self.image_sizes(x)
        axes = axes_of(self.context(node)) if dims and self.is_channels_last(x) else None
        if not axes or prod(dims[axis] for axis in axes) < 2:
            return False
        order = to_last(len(dims))
        found = with_axes(node, sorted(order.index(axis) for axis in axes), self.builder)
        kept = [axis for axis in order if axis not in axes]
        target = y if kept == sorted(kept) else self.builder.names.unique(f"{y}::channels_last")
        if node.attributes.get("keepdims", 1):
            target = self.new_channels_last(y)
        self.emit(node.op_type, [self.to_channels_last(x), *found.inputs[1:]], [target], node, node.domain, **found.attributes)
        if target not in (y, self.channels_last.get(y)):
            self.emit("Transpose", [target], [y], node, "", perm=tuple(kept.index(axis) for axis in sorted(kept)))
        return True

    def pad(self, node: Node) -> bool:
        """Convert a Pad or PadGrad whose pads are known before running."""
        first = 2 if node.op_type == "PadGrad" else 1
        data, context = node.inputs[:first], self.context(node)
        if any(not self.image_sizes(x) or not self.is_channels_last(x) for x in data) or not self.sizes(node.outputs[0]):
            return False
        pads = pads_of(context, first)
        if pads is None:
            return False
        reordered = [pads[axis][end] for end in (0, 1) for axis in to_last(len(pads))]
        attributes = {key: value for key, value in node.attributes.items() if key != "pads"}
        inputs = [self.to_channels_last(x) for x in data]
        if "pads" in node.attributes:
            attributes["pads"] = tuple(reordered)
        else:
            inputs += [self.builder.integer_constant(reordered, "pads"), *node.inputs[first + 1:first + 2]]
        self.emit(node.op_type, inputs, [self.new_channels_last(node.outputs[0])], node, node.domain, **attributes)
        return True

    def resample(self, node: Node) -> bool:
        """Convert a resampling along a spatial axis, which then reads whole pixels."""
        axis = int(node.attributes["axis"])
        if axis < 2 or not self.image_sizes(node.inputs[0]) or not self.is_channels_last(node.inputs[0]):
            return False
        self.emit(node.op_type, [self.to_channels_last(node.inputs[0])], [self.new_channels_last(node.outputs[0])], node, node.domain,
                  **node.attributes | {"axis": axis - 1})
        return True

    def identity(self, node: Node) -> bool:
        x, y = node.inputs[0], node.outputs[0]
        if not self.is_channels_last(x):
            return False
        self.channels_last[y] = self.channels_last[x]
        self.only_channels_last.add(y)
        return True

    def transposed(self, node: Node) -> bool:
        """Convert a Transpose of axes that divide the channels, or one between both layouts, whose result exists already."""
        x, y, order = node.inputs[0], node.outputs[0], tuple(node.attributes.get("perm", ()))
        if x in self.divided and self.permutes_channels(node, self.channel_axes(x)):
            source, count = self.divided[x]
            spatial = len(order) - count - 1
            self.divided[y] = self.builder.names.unique(f"{y}::channels_last"), count
            self.emit("Transpose", [source], [self.divided[y][0]], node, "", perm=(*range(spatial + 1), *(axis + spatial for axis in order[1 : count + 1])))
            self.inference.visit(node)
            return True
        if len(order) not in RANKS:
            return False
        if order == to_last(len(order)) and x in self.channels_last:
            self.emit("Identity", [self.channels_last[x]], [y], node, "")
            return True
        if order == to_first(len(order)) and self.image_sizes(x) and not self.is_channels_last(x):
            self.channels_last[y] = x
            self.only_channels_last.add(y)
            self.inference.visit(node)
            return True
        return False

    @staticmethod
    def permutes_channels(node: Node, count: int) -> bool:
        """Return whether a node is a Transpose that changes the order of the `count` axes after the first only."""
        order = tuple(node.attributes.get("perm", ()))
        return node.op_type == "Transpose" and order[:1] == (0,) and order[count + 1 :] == tuple(range(count + 1, len(order)))

    def reshape(self, node: Node) -> bool:
        """Convert a Reshape that divides channels into axes which then change places, or unites them: channels are shuffled within each pixel."""
        x, y = node.inputs[0], node.outputs[0]
        dims, out, count = self.sizes(x), self.sizes(y), self.channel_axes(x)
        spatial = dims[count + 1 :]
        united = len(out) - 1 - len(spatial)
        if not count or united < 1 or out[:1] != dims[:1] or out[united + 1 :] != spatial or y in self.outputs:
            return False
        if united > 1 and not all(self.permutes_channels(reader, united) for reader in self.consumers.get(y, [])):
            return False
        source = self.channels_last[x] if count == 1 else self.divided[x][0]
        shape = self.builder.integer_constant([out[0], *spatial, *out[1 : united + 1]], "shape")
        if united == 1:
            target = self.new_channels_last(y)
        else:
            target = self.builder.names.unique(f"{y}::channels_last")
            self.divided[y] = target, united
        self.emit("Reshape", [source, shape], [target], node, "")
        return True

    def loss(self, node: Node) -> bool:
        """Convert a reduced loss of scores for every pixel to one of rows of scores."""
        scores, labels, *weight = node.inputs
        dims, log_probabilities = self.image_sizes(scores), node.outputs[1] if len(node.outputs) > 1 else ""
        readers = self.consumers.get(log_probabilities, []) if log_probabilities else []
        if not dims or not self.is_channels_last(scores) or node.attributes.get("reduction", "mean") == "none":
            return False
        if log_probabilities in self.outputs or any(reader.op_type != LOSS_GRAD for reader in readers):
            return False
        rows, flat = self.rows_of(scores, dims, node), self.builder.names.unique(f"{labels}::rows")
        self.emit("Reshape", [labels, self.builder.integer_constant([prod(dims) // dims[1]], "shape")], [flat], node, "")
        outputs = [node.outputs[0]]
        if log_probabilities:
            outputs.append(self.builder.names.unique(f"{log_probabilities}::rows"))
            self.loss_rows[log_probabilities] = (outputs[1], flat)
        self.emit(node.op_type, [rows, flat, *weight], outputs, node, node.domain, **node.attributes)
        return True

    def rows_of(self, name: str, dims: tuple[int, ...], node: Node) -> str:
        """Add and return the value as [n · h · w, c]."""
        rows = self.builder.names.unique(f"{name}::rows")
        self.emit("Reshape", [self.to_channels_last(name), self.builder.integer_constant([prod(dims) // dims[1], dims[1]], "shape")], [rows], node, "")
        return rows

    def loss_grad(self, node: Node) -> bool:
        """Convert the gradient of a converted loss."""
        dloss, log_probabilities, _, *weight = node.inputs
        if log_probabilities not in self.loss_rows:
            return False
        dscores, (rows, flat) = node.outputs[0], self.loss_rows[log_probabilities]
        gradient = self.builder.names.unique(f"{dscores}::rows")
        self.emit(node.op_type, [dloss, rows, flat, *weight], [gradient], node, node.domain, **node.attributes)
        shape = self.builder.integer_constant(list(last(self.sizes(log_probabilities))), "shape")
        self.emit("Reshape", [gradient, shape], [self.new_channels_last(dscores)], node, "")
        return True

    def elementwise(self, node: Node) -> bool:
        """Convert if an operand is channels-last and the others are broadcast along axes of size 1, have one value per channel, or one element."""
        converted_inputs = [name for name in node.inputs if self.is_channels_last(name)]
        shape = self.image_sizes(node.outputs[0])
        if not converted_inputs or not shape or any(len(self.sizes(name)) != len(shape) for name in node.outputs):
            return False
        present, ones = [name for name in node.inputs if name], (1,) * (len(shape) - 2)
        non_scalar = [name for name in present if prod(self.sizes(name)) > 1 or len(self.sizes(name)) == len(shape)]
        per_channel = [name for name in non_scalar if len(self.sizes(name)) < len(shape) and self.sizes(name) == (shape[1], *ones)]
        if not all(len(self.sizes(name)) == len(shape) for name in non_scalar if name not in per_channel):
            return False
        inputs = [self.channel_vector(name, node) if name in per_channel else self.to_channels_last(name) if name in non_scalar else name
                  for name in node.inputs]
        self.emit(node.op_type, inputs, [self.new_channels_last(name) for name in node.outputs], node, node.domain, **node.attributes)
        return True

    def channel_vector(self, name: str, node: Node) -> str:
        """Add and return a value of shape [c, 1, 1] as [c], which is broadcast over channels-last data."""
        vector = self.builder.names.unique(f"{name}::channels")
        self.emit("Reshape", [name, self.builder.integer_constant([self.sizes(name)[0]], "shape")], [vector], node, "")
        return vector
