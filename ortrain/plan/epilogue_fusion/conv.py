"""Epilogue fusion of channels-last convolutions, normalizations and pooling.

A residual, a clipping activation or a frozen normalization is fused into the convolution or normalization before it,
Swish, LeakyRelu or HardSwish into a normalization, and a sum of gradients into a convolution's data gradient. Unfused,
each would read and write whole activations once more and keep the values in between in memory. In the backward pass
the gradient of an activation is fused into that of the normalization, or of the maximum pool, that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from ortrain.ir import Node
from ortrain.ops.channels_last import can_accumulate_data_gradient
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter

CONV, PLANES_CONV, NORM, NORM_GRAD = "ChannelsLastConv", "PlanesConv", "ChannelsLastBatchNormalization", "ChannelsLastBatchNormalizationGrad"
GROUP_NORM, GROUP_NORM_GRAD = "ChannelsLastGroupNorm", "ChannelsLastGroupNormGrad"
CONV_GRAD, POOL_GRAD = "ChannelsLastConvGrad", "ChannelsLastMaxPoolGrad"
CURVES = {("", "Swish"): ("Swish", 1.0), (MICROSOFT, "QuickGelu"): ("Swish", 1.702), (MICROSOFT, "QuickGeluGrad"): ("Swish", 1.702),
          ("", "LeakyRelu"): ("LeakyRelu", 0.01), (MICROSOFT, "LeakyReluGrad"): ("LeakyRelu", 0.01),
          ("", "HardSwish"): ("HardSwish", 0.0), (ORTRAIN, "HardSwishGrad"): ("HardSwish", 0.0)}
"""Domain and type of an activation or of its gradient -> the attribute `activation` of a normalization, and the alpha that it has without the attribute."""


def fuse_epilogues(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with epilogues fused. outputs: values that must still be computed."""
    if not any(node.op_type in (CONV, PLANES_CONV, NORM, GROUP_NORM, POOL_GRAD) for node in nodes):
        return list(nodes)
    return ConvRewriter(nodes, inference, outputs).run()


Curve = tuple[str, float]
"""The attributes `activation` and `alpha`."""


@dataclass(frozen=True, slots=True)
class GradientMask:
    """The gradient of an activation: for a clipping one, `dy` where `operand` is within limits, else 0.

    by_output: whether `operand` is the output of the activation (ReLU) or its input (Clip, Swish)."""

    dy: str
    operand: str
    by_output: bool
    nodes: tuple[int, ...]
    """Indices of the nodes that compute the mask and apply it; the last one has the result."""
    curve: Curve | None = None
    """That of the activation, None for clipping ones."""


class ConvRewriter(EpilogueRewriter):
    """Fuses epilogues of channels-last operators."""

    def __init__(self, nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> None:
        super().__init__(nodes, inference, outputs)
        self.masks = self._find_masks()

    def run(self) -> list[Node]:
        for index, node in enumerate(self.nodes):
            if node.op_type == NORM and node.attributes.get("training_mode", 0) or node.op_type == GROUP_NORM:
                self._fuse_after_norm(index, node)
            elif node.op_type in (CONV, PLANES_CONV):
                self._fuse_after_conv(index, node)
            elif node.op_type == POOL_GRAD:
                self._fuse_relu_mask_of_pool(index, node)
            elif node.op_type in ("Add", "Sum") and len(node.inputs) == 2 and self.result[index] is node:
                self._fuse_gradient_sum(index, node)
        return self.remaining()

    # ---- activations

    @staticmethod
    def _curve(node: Node) -> Curve | None:
        """Return the curve of an activation that is not clipping, or of its gradient; None for other nodes."""
        found = CURVES.get((canonical_domain(node.domain), node.op_type))
        return None if found is None else (found[0], float(node.attributes.get("alpha", found[1])))

    def _clipping_limits(self, node: Node) -> tuple[float, float, int] | None:
        """Return (low, high, closed) of a Relu or Clip, None for other nodes. closed: the gradient flows at the
        limits themselves."""
        if node.op_type == "Relu":
            return 0.0, inf, 0
        if node.op_type != "Clip":
            return None
        low, high = float(node.attributes.get("min", -inf)), float(node.attributes.get("max", inf))
        for index, name in enumerate(node.inputs[1:3]):
            if name:
                value = self._scalar(name)
                if value is None:
                    return None
                low, high = (value, high) if index == 0 else (low, value)
        return (low, high, 1) if low <= high else None

    def _find_masks(self) -> dict[str, list[GradientMask]]:
        """Return masked operand -> its gradient masks."""
        found: dict[str, list[GradientMask]] = {}
        for index, node in enumerate(self.nodes):
            mask = None
            if node.op_type == "ReluGrad":
                mask = GradientMask(node.inputs[0], node.inputs[1], True, (index,))
            elif node.op_type.endswith("Grad") and (curve := self._curve(node)) is not None:
                mask = GradientMask(node.inputs[0], node.inputs[1], False, (index,), curve)
            elif node.op_type == "Where" and self._scalar(node.inputs[2]) == 0:
                mask = self._clip_mask(index, node)
            # a mask may broadcast its gradient, such as that of a mean, which a gradient of a normalization does not
            if mask is not None and self.types.get(mask.dy) == self.types.get(mask.operand):
                found.setdefault(mask.operand, []).append(mask)
        return found

    def _clip_mask(self, index: int, node: Node) -> GradientMask | None:
        """Return the gradient of a Clip: Where(And(Not(Less(x, low)), Not(Greater(x, high))), dy, 0), where one
        comparison may be absent."""
        conditions, compared, node_indices = [node.inputs[0]], set(), [index]
        while conditions:
            inner_index = self.producer.get(conditions.pop())
            if inner_index is None or self._sole_reader(self.nodes[inner_index].outputs[0]) is None:
                return None
            inner = self.nodes[inner_index]
            node_indices.insert(0, inner_index)
            if inner.op_type == "And" or inner.op_type == "Not":
                conditions += inner.inputs
            elif inner.op_type in ("Less", "Greater") and self._scalar(inner.inputs[1]) is not None:
                compared.add(inner.inputs[0])
            else:
                return None
        return GradientMask(node.inputs[1], compared.pop(), False, tuple(node_indices)) if len(compared) == 1 else None

    # ---- normalization

    def _fuse_after_norm(self, index: int, norm: Node) -> None:
        """Fuse an activation, or a residual and a ReLU, into a normalization, and the activation's gradients into its gradient."""
        y = norm.outputs[0]
        input_masks = [mask for mask in self.masks.get(y, ()) if not mask.by_output]
        reader = self._sole_reader(y, {mask_node for mask in input_masks for mask_node in mask.nodes})
        if reader is None:
            return
        after = self.nodes[reader]
        if after.op_type == "Add" and not input_masks and norm.op_type == NORM:
            self._fuse_residual(index, norm, reader, after)
            return
        limits, curve = self._clipping_limits(after), self._curve(after)
        if limits is None and curve is None or any(mask.curve != curve for mask in input_masks):
            return
        output_masks = [mask for mask in self.masks.get(after.outputs[0], ()) if mask.by_output] if after.op_type == "Relu" else []
        masked_gradients = [(mask, self._norm_grad_of(norm, mask, alone=True)) for mask in (*input_masks, *output_masks)]
        if any(grad_index is None for mask, grad_index in masked_gradients if mask in input_masks) or not self._can_delay(norm, reader):
            return
        activation = self._limits(limits) if limits is not None else dict(zip(("activation", "alpha"), curve or (), strict=True))
        self._put_fused(index, reader, norm, norm.inputs[:5], after.outputs[0], activation)
        for mask, grad_index in masked_gradients:
            if grad_index is not None:
                for mask_node in mask.nodes:
                    self.result[mask_node] = None
                grad = self.nodes[grad_index]
                inputs = [mask.dy, *grad.inputs[1:5], norm.inputs[2]]
                self._replace(grad_index, Node(grad.op_type, inputs, grad.outputs, grad.name, grad.domain, grad.attributes | activation))

    def _norm_grad_of(self, norm: Node, mask: GradientMask, alone: bool) -> int | None:
        """Return the index of the normalization's gradient node that reads a masked gradient. alone: only if it is
        the only reader."""
        masked = self.nodes[mask.nodes[-1]].outputs[0]
        readers = self.readers.get(masked, [])
        kind = NORM_GRAD if norm.op_type == NORM else GROUP_NORM_GRAD
        matches = [reader for reader in readers if reader >= 0 and self.nodes[reader].op_type == kind and self.result[reader] is self.nodes[reader]
                   and self.nodes[reader].inputs[0] == masked and self.nodes[reader].inputs[1] == norm.inputs[0]]
        return matches[0] if matches and (not alone or len(readers) == 1) else None

    def _fuse_residual(self, index: int, norm: Node, reader: int, add: Node) -> None:
        """Fuse the addition of a residual, and a ReLU after it, into a normalization."""
        others = [name for name in add.inputs if name != norm.outputs[0]]
        if len(others) != 1 or self.types.get(others[0]) != self.types.get(norm.outputs[0]) or not self._can_delay(norm, reader):
            return
        inputs, total = [*norm.inputs[:5], others[0]], add.outputs[0]
        relu_index = self._sole_reader(total)
        if relu_index is None or self.nodes[relu_index].op_type != "Relu" or not self._can_delay(norm, relu_index):
            self._put_fused(index, reader, norm, inputs, total, {})
            return
        relu = self.nodes[relu_index]
        self.result[reader] = None
        limits = self._limits((0.0, inf, 0))
        self._put_fused(index, relu_index, norm, inputs, relu.outputs[0], limits)
        for mask in self.masks.get(relu.outputs[0], ()):
            grad_index = self._norm_grad_of(norm, mask, alone=False) if mask.by_output else None
            if grad_index is not None:
                grad, mask_index = self.nodes[grad_index], mask.nodes[-1]
                outputs = [*grad.outputs, *[""] * (3 - len(grad.outputs)), self.nodes[mask_index].outputs[0]]
                self.result[grad_index] = None
                inputs = [mask.dy, *grad.inputs[1:5], "", mask.operand]
                self._replace(mask_index, Node(NORM_GRAD, inputs, outputs, grad.name, grad.domain, grad.attributes | limits))

    def _can_delay(self, node: Node, index: int) -> bool:
        """Return whether no reader of a node's further outputs comes before an index."""
        return all(reader > index or reader < 0 for name in node.outputs[1:] if name for reader in self.readers.get(name, ()))

    def _put_fused(self, index: int, last: int, node: Node, inputs: list[str], output: str, epilogue: dict[str, Any]) -> None:
        """Replace a node and its epilogue by the fused node, at the index of the last node that it replaces."""
        self.result[index] = None
        self._replace(last, Node(node.op_type, inputs, [output, *node.outputs[1:]], node.name, node.domain, node.attributes | epilogue))

    @staticmethod
    def _limits(limits: tuple[float, float, int]) -> dict[str, Any]:
        return dict(zip(("low", "high", "closed"), limits, strict=True))

    # ---- convolution

    def _fuse_after_conv(self, index: int, conv: Node) -> None:
        """Fuse a frozen normalization and a clipping activation into a convolution."""
        last, output = index, conv.outputs[0]
        inputs, attributes = list(conv.inputs), dict(conv.attributes)
        reader = self._sole_reader(output)
        after = self.nodes[reader] if reader is not None else None
        if reader is not None and after is not None and after.op_type == NORM and not after.attributes.get("training_mode", 0) and not any(after.outputs[1:]):
            inputs += [""] * (3 - len(inputs)) + list(after.inputs[1:5])
            attributes["epsilon"] = float(after.attributes.get("epsilon", 1e-5))
            self.result[last] = None
            last, output = reader, after.outputs[0]
            reader = self._sole_reader(output)
            after = self.nodes[reader] if reader is not None else None
        limits = self._clipping_limits(after) if after is not None else None
        if reader is not None and after is not None and limits is not None:
            self.result[last] = None
            last, output = reader, after.outputs[0]
            attributes |= {"low": limits[0], "high": limits[1]}
        if last != index:
            self._replace(last, Node(conv.op_type, inputs, [output], conv.name, conv.domain, attributes))

    def _fuse_gradient_sum(self, index: int, sum_node: Node) -> None:
        """Fuse a sum of two gradients of one value into the convolution's data gradient that computes one of them.

        If both summands qualify, the one with strides is chosen: it computes only some of the elements of the sum."""
        candidates = []
        for name, other in (sum_node.inputs, sum_node.inputs[::-1]):
            grad_index = self.producer.get(name)
            grad = self.nodes[grad_index] if grad_index is not None else None
            if (grad_index is None or grad is None or grad.op_type != CONV_GRAD or grad.outputs[0] != name or self._sole_reader(name) != index
                    or self.result[grad_index] is not grad or len(grad.inputs) > 3):
                continue
            alike = other != name and self.types[other] == self.types[name]
            if alike and can_accumulate_data_gradient(grad, self.types[grad.inputs[2]]) and self._can_delay(grad, index):
                candidates.append((max(grad.attributes.get("strides", (1,))), grad_index, grad, other))
        if candidates:
            _, grad_index, grad, other = max(candidates, key=lambda each: each[:2])
            self.result[grad_index] = None
            self._replace(index, Node(CONV_GRAD, [*grad.inputs, other], [sum_node.outputs[0], *grad.outputs[1:]], grad.name, grad.domain, grad.attributes))

    # ---- pooling

    def _fuse_relu_mask_of_pool(self, index: int, grad: Node) -> None:
        """Fuse the mask of a ReLU into the gradient of the maximum pool after it: the maximum of a window is positive
        exactly where the pool's output is."""
        reader = self._sole_reader(grad.outputs[0])
        pool = self.nodes[self.producer[grad.inputs[1]]]
        if reader is None or self.nodes[reader].op_type != "ReluGrad" or list(self.nodes[reader].inputs) != [grad.outputs[0], pool.inputs[0]]:
            return
        self.result[index] = None
        self._replace(reader, Node(POOL_GRAD, [*grad.inputs, pool.outputs[0]], self.nodes[reader].outputs, grad.name, grad.domain, grad.attributes))
