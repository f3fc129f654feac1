"""What a plan lacks where a graph's sizes do not follow from its inputs' shapes: values of user inputs that it has to know, or a partition of the run that
comes before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ortrain.errors import InvalidModelError
from ortrain.ir import Graph, Node, TensorType
from ortrain.ops.registry.shape_inference import Inference
from ortrain.ops.registry.subgraphs import has_graphs

FEW = 8
"""Most elements of a user input whose values a plan may ask to know when it only computes with them: a plan is made anew for every new value."""

SMALL = 64
"""Most elements of a value of floats that says sizes: scales, limits."""

DATA_SIZED = frozenset({"Compress", "ImageDecoder", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
"""Operators whose outputs have the sizes that the data decide: to know their inputs would be a plan for every batch."""


class InputValuesRequired(InvalidModelError):
    """A plan needs to know the values of some user inputs: sizes, axes, a condition."""

    def __init__(self, names: list[str], cause: Exception) -> None:
        super().__init__(str(cause))
        self.names = names


class PartitionRequired(InvalidModelError):
    """A plan needs another run before it: one that computes `values`, which it has to know, or the inputs of `node`, which runs outside of programs."""

    def __init__(self, cause: Exception, values: Sequence[str] = (), node: Node | None = None, kinds: Sequence[TensorType | None] = ()) -> None:
        super().__init__(str(cause))
        self.values = list(values)
        self.node = node
        self.kinds = list(kinds)
        """What is known of the node's outputs."""


class Unknowns:
    """The nodes of a graph, as they are visited, whose outputs have open sizes."""

    def __init__(self, graph: Graph, inputs: Mapping[str, TensorType], objects: Collection[str], inference: Inference) -> None:
        self.inputs, self.objects, self.inference = inputs, objects, inference
        self.producers: dict[str, Node] = {}
        self._open: list[Node] = []
        self._origin: dict[str, Node] = {}
        self._made = graph.producers()

    def note(self, node: Node, pieces: Iterable[Node]) -> None:
        """A node that has been visited, and the nodes that stand for it."""
        for piece in pieces:
            self._origin |= {name: node for name in piece.outputs if name}
            self.producers |= {name: piece for name in piece.outputs if name}
            if any(self._is_open(name) for name in piece.outputs if name):
                self._open.append(piece)

    def _is_open(self, name: str) -> bool:
        kind = self.inference.types.get(name)
        return kind is None or not kind.is_static

    # ---- what no program holds

    def reads_objects(self, node: Node) -> bool:
        """True for a node that takes text, sequences or optionals."""
        return any(self._is_object(name) for name in node.inputs if name)

    def makes_objects(self, node: Node) -> bool:
        """True for a node, visited, that gives text, sequences or optionals."""
        return any(self._is_object(name) for name in node.outputs if name)

    def _is_object(self, name: str) -> bool:
        if name in self.inference.values:
            return False
        kind = self.inference.types.get(name)
        return name in self.objects or kind is not None and kind.is_object

    def refuse_objects(self, node: Node) -> None:
        """Raises PartitionRequired for a node that works on objects; its condition has to be known first where it has one."""
        cause = InvalidModelError(f"expected tensors of numbers, got others at {node}")
        self._ask_for(self._conditions(node), cause)
        raise self.outside(node, cause)

    def outside(self, node: Node, cause: Exception) -> PartitionRequired:
        """The request to run a node outside of programs."""
        origin = next((self._origin[name] for name in node.outputs if name in self._origin), node)
        return PartitionRequired(cause, node=origin, kinds=[self.inference.types.get(name) for name in origin.outputs])

    # ---- what is to be known

    def ask(self, node: Node, cause: Exception) -> None:
        """Raises InputValuesRequired or PartitionRequired when a node cannot be planned because sizes are open; returns when that is not why."""
        culprit = self._first_open(node)
        if culprit.op_type not in DATA_SIZED or all(name in self.inputs for name in culprit.inputs):
            self._ask_for(self._sizes(culprit), cause)
        # without types, inference has refused the node: that is an error, not a size that is open
        if culprit is not node or any(name in self.inference.types and self._is_open(name) for name in node.outputs if name):
            raise self.outside(culprit, cause) from cause

    def ask_for_inputs(self, names: Collection[str], cause: Exception) -> None:
        """Raises InputValuesRequired or PartitionRequired for values that are not known and have to be."""
        self._ask_for([name for name in names if name not in self.inference.values], cause)

    def _ask_for(self, names: Sequence[str], cause: Exception) -> None:
        if not names:
            return
        inputs = self._inputs_behind(names)
        if inputs is not None:
            raise InputValuesRequired(inputs, cause) from cause
        computed = [name for name in names if name not in self.inputs]
        if computed and all(name in self._made for name in computed):
            raise PartitionRequired(cause, values=computed) from cause

    def _inputs_behind(self, names: Sequence[str]) -> list[str] | None:
        """The user inputs from which these values are computed, if they are few; None where anything else goes in."""
        waiting, seen, found = list(names), set(names), set()
        while waiting:
            name = waiting.pop()
            if name in self.inputs:
                if name not in names and self.inference.types[name].count > FEW:
                    return None
                found.add(name)
                continue
            producer = self.producers.get(name)
            if producer is None or producer.op_type in DATA_SIZED or has_graphs(producer):
                return None
            new = [n for n in producer.inputs if n and n not in seen and n not in self.inference.values]
            if not new:
                return None
            seen.update(new)
            waiting += new
        return [name for name in self.inputs if name in found]

    def _first_open(self, node: Node) -> Node:
        """The first node with open outputs on which a node depends, or the node."""
        behind, waiting = {id(node)}, [node]
        while waiting:
            for name in waiting.pop().inputs:
                producer = self.producers.get(name)
                if producer is not None and id(producer) not in behind and name not in self.inference.values:
                    behind.add(id(producer))
                    waiting.append(producer)
        return next((candidate for candidate in self._open if id(candidate) in behind), node)

    def _conditions(self, node: Node) -> list[str]:
        """The inputs that say which graph inside a node runs, or how often, and are not known."""
        if not has_graphs(node):
            return []
        own = node.inputs[:1] if node.op_type == "If" else node.inputs[:2] if node.op_type == "Loop" else []
        return [name for name in own if name and name not in self.inference.values]

    def _sizes(self, node: Node) -> list[str]:
        """The inputs whose values may say the sizes of a node's outputs, and are not known."""
        if has_graphs(node):
            return self._conditions(node)
        unknown = [name for name in dict.fromkeys(node.inputs) if name and name not in self.inference.values]
        kinds = {name: self.inference.types[name] for name in unknown if not self._is_open(name)}
        whole = [name for name, kind in kinds.items() if kind.dtype in ("int64", "int32", "bool")]
        few = [name for name in whole if kinds[name].count <= SMALL]
        return few or whole or [name for name, kind in kinds.items() if kind.count <= SMALL]
