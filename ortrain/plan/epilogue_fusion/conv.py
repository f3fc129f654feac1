"""Merges what follows a channels-last convolution or normalization into it: a residual, an activation that limits, a frozen normalization, a sum of gradients.

Each of them would read and write whole activations once more, and the values between need no memory then. Backwards, the mask of an activation goes into
the gradient of the normalization before it or of the maximum pool after it. Works on the nodes of a plan, so that no file ever shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from ortrain.ir import Node
from ortrain.ops.channels_last import adds_in_product
from ortrain.ops.registry.shape_inference import Inference
from ortrain.plan.epilogue_fusion.rewriter import Merging

CONV, NORM, NORM_GRAD = "ChannelsLastConv", "ChannelsLastBatchNormalization", "ChannelsLastBatchNormalizationGrad"
CONV_GRAD, POOL_GRAD = "ChannelsLastConvGrad", "ChannelsLastMaxPoolGrad"


def merge_epilogues(nodes: Sequence[Node], inference: Inference, wanted: Iterable[str]) -> list[Node]:
    """The nodes with epilogues merged; `wanted` names values that must be there afterwards."""
    if not any(node.op_type in (CONV, NORM, POOL_GRAD) for node in nodes):
        return list(nodes)
    return Epilogues(nodes, inference, wanted).run()


@dataclass(frozen=True, slots=True)
class Gate:
    """A mask on a gradient: `dy` where `of` lies within limits. by_output: `of` is the activation's result (ReLU's), else what it limits (Clip's)."""

    dy: str
    of: str
    by_output: bool
    nodes: tuple[int, ...]
    """The nodes that compute it, the one that gives the result last."""


class Epilogues(Merging):
    """The work of one merging."""

    def __init__(self, nodes: Sequence[Node], inference: Inference, wanted: Iterable[str]) -> None:
        super().__init__(nodes, inference, wanted)
        self.gates = self._find_gates()

    def run(self) -> list[Node]:
        for number, node in enumerate(self.nodes):
            if node.op_type == NORM and node.attributes.get("training_mode", 0):
                self._after_norm(number, node)
            elif node.op_type == CONV:
                self._after_conv(number, node)
            elif node.op_type == POOL_GRAD:
                self._after_pool_grad(number, node)
            elif node.op_type in ("Add", "Sum") and len(node.inputs) == 2 and self.result[number] is node:
                self._into_data_gradient(number, node)
        return self.left()

    # ---- what nodes are

    def _limits(self, node: Node) -> tuple[float, float, int] | None:
        """(low, high, closed) of an activation that limits."""
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

    def _find_gates(self) -> dict[str, list[Gate]]:
        """What the masks are of -> the masks."""
        found: dict[str, list[Gate]] = {}
        for number, node in enumerate(self.nodes):
            gate = None
            if node.op_type == "ReluGrad":
                gate = Gate(node.inputs[0], node.inputs[1], True, (number,))
            elif node.op_type == "Where" and self._scalar(node.inputs[2]) == 0:
                gate = self._clip_gate(number, node)
            if gate is not None:
                found.setdefault(gate.of, []).append(gate)
        return found

    def _clip_gate(self, number: int, node: Node) -> Gate | None:
        """Where(And(Not(Less(x, low)), Not(Greater(x, high))), dy, 0), one of the two perhaps absent: the gradient of Clip."""
        parts, compared, chain = [node.inputs[0]], set(), [number]
        while parts:
            made = self.producer.get(parts.pop())
            if made is None or self._sole_reader(self.nodes[made].outputs[0]) is None:
                return None
            inner = self.nodes[made]
            chain.insert(0, made)
            if inner.op_type == "And" or inner.op_type == "Not":
                parts += inner.inputs
            elif inner.op_type in ("Less", "Greater") and self._scalar(inner.inputs[1]) is not None:
                compared.add(inner.inputs[0])
            else:
                return None
        return Gate(node.inputs[1], compared.pop(), False, tuple(chain)) if len(compared) == 1 else None

    # ---- normalization

    def _after_norm(self, number: int, norm: Node) -> None:
        y = norm.outputs[0]
        masks = [gate for gate in self.gates.get(y, ()) if not gate.by_output]
        reader = self._sole_reader(y, {n for gate in masks for n in gate.nodes})
        if reader is None:
            return
        after = self.nodes[reader]
        if after.op_type == "Add" and not masks:
            self._residual(number, norm, reader, after)
            return
        limits = self._limits(after)
        if limits is None:
            return
        of_result = [gate for gate in self.gates.get(after.outputs[0], ()) if gate.by_output] if after.op_type == "Relu" else []
        merged = [(gate, self._norm_grad_of(norm, gate, alone=True)) for gate in (*masks, *of_result)]
        if any(grad is None for gate, grad in merged if gate in masks) or not self._can_move(norm, reader):
            return
        self._put(number, reader, norm, norm.inputs[:5], after.outputs[0], limits)
        for gate, grad in merged:
            if grad is not None:
                for n in gate.nodes:
                    self.result[n] = None
                old = self.nodes[grad]
                inputs = [gate.dy, *old.inputs[1:5], norm.inputs[2]]
                self._replace(grad, Node(NORM_GRAD, inputs, old.outputs, old.name, old.domain, self._with(old, limits)))

    def _norm_grad_of(self, norm: Node, gate: Gate, alone: bool) -> int | None:
        """The gradient node of a normalization that takes what comes through the gate; alone: and nobody else does."""
        out = self.nodes[gate.nodes[-1]].outputs[0]
        readers = self.readers.get(out, [])
        fitting = [n for n in readers if n >= 0 and self.nodes[n].op_type == NORM_GRAD and self.result[n] is self.nodes[n]
                   and self.nodes[n].inputs[0] == out and self.nodes[n].inputs[1] == norm.inputs[0]]
        return fitting[0] if fitting and (not alone or len(readers) == 1) else None

    def _residual(self, number: int, norm: Node, reader: int, add: Node) -> None:
        """y + residual, and the ReLU after it."""
        other = [name for name in add.inputs if name != norm.outputs[0]]
        if len(other) != 1 or self.types.get(other[0]) != self.types.get(norm.outputs[0]) or not self._can_move(norm, reader):
            return
        inputs, total = [*norm.inputs[:5], other[0]], add.outputs[0]
        last = self._sole_reader(total)
        if last is None or self.nodes[last].op_type != "Relu" or not self._can_move(norm, last):
            self._put(number, reader, norm, inputs, total, None)
            return
        relu = self.nodes[last]
        self.result[reader] = None
        self._put(number, last, norm, inputs, relu.outputs[0], (0.0, inf, 0))
        for gate in self.gates.get(relu.outputs[0], ()):
            grad = self._norm_grad_of(norm, gate, alone=False) if gate.by_output else None
            if grad is not None:
                old, at = self.nodes[grad], gate.nodes[-1]
                outputs = [*old.outputs, *[""] * (3 - len(old.outputs)), self.nodes[at].outputs[0]]
                self.result[grad] = None
                self._replace(at, Node(NORM_GRAD, [gate.dy, *old.inputs[1:5], "", gate.of], outputs, old.name, old.domain, self._with(old, (0.0, inf, 0))))

    def _can_move(self, node: Node, to: int) -> bool:
        """Whether nobody reads the node's further outputs before number `to`."""
        return all(reader > to or reader < 0 for name in node.outputs[1:] if name for reader in self.readers.get(name, ()))

    def _put(self, number: int, at: int, node: Node, inputs: list[str], output: str, limits: tuple[float, float, int] | None) -> None:
        """The node with its epilogue, at the place of the last node that it replaces."""
        self.result[number] = None
        self._replace(at, Node(node.op_type, inputs, [output, *node.outputs[1:]], node.name, node.domain, self._with(node, limits)))

    @staticmethod
    def _with(node: Node, limits: tuple[float, float, int] | None) -> dict[str, object]:
        if limits is None:
            return dict(node.attributes)
        return node.attributes | {"low": limits[0], "high": limits[1], "closed": limits[2]}

    # ---- convolution

    def _after_conv(self, number: int, conv: Node) -> None:
        """A frozen normalization, then an activation that limits."""
        at, output = number, conv.outputs[0]
        inputs, attributes = list(conv.inputs), dict(conv.attributes)
        reader = self._sole_reader(output)
        after = self.nodes[reader] if reader is not None else None
        if reader is not None and after is not None and after.op_type == NORM and not after.attributes.get("training_mode", 0) and not any(after.outputs[1:]):
            inputs += [""] * (3 - len(inputs)) + list(after.inputs[1:5])
            attributes["epsilon"] = float(after.attributes.get("epsilon", 1e-5))
            self.result[at] = None
            at, output = reader, after.outputs[0]
            reader = self._sole_reader(output)
            after = self.nodes[reader] if reader is not None else None
        limits = self._limits(after) if after is not None else None
        if reader is not None and after is not None and limits is not None:
            self.result[at] = None
            at, output = reader, after.outputs[0]
            attributes |= {"low": limits[0], "high": limits[1]}
        if at != number:
            self._replace(at, Node(CONV, inputs, [output], conv.name, conv.domain, attributes))

    def _into_data_gradient(self, number: int, total: Node) -> None:
        """The sum of two gradients of one value, where a product gives one of them: with strides first, for it computes only a part of the sum."""
        found = []
        for name, other in (total.inputs, total.inputs[::-1]):
            made = self.producer.get(name)
            grad = self.nodes[made] if made is not None else None
            if (made is None or grad is None or grad.op_type != CONV_GRAD or grad.outputs[0] != name or self._sole_reader(name) != number
                    or self.result[made] is not grad or len(grad.inputs) > 3):
                continue
            if other != name and self.types[other] == self.types[name] and adds_in_product(grad, self.types[grad.inputs[2]]) and self._can_move(grad, number):
                found.append((max(grad.attributes.get("strides", (1,))), made, grad, other))
        if found:
            _, made, grad, other = max(found, key=lambda each: each[:2])
            self.result[made] = None
            self._replace(number, Node(CONV_GRAD, [*grad.inputs, other], [total.outputs[0], *grad.outputs[1:]], grad.name, grad.domain, grad.attributes))

    # ---- pooling

    def _after_pool_grad(self, number: int, grad: Node) -> None:
        """The mask of a ReLU before a maximum pool: what wins a window is above zero where the pool's result is."""
        reader = self._sole_reader(grad.outputs[0])
        pool = self.nodes[self.producer[grad.inputs[1]]]
        if reader is None or self.nodes[reader].op_type != "ReluGrad" or list(self.nodes[reader].inputs) != [grad.outputs[0], pool.inputs[0]]:
            return
        self.result[number] = None
        self._replace(reader, Node(POOL_GRAD, [*grad.inputs, pool.outputs[0]], self.nodes[reader].outputs, grad.name, grad.domain, grad.attributes))
