"""Data-dependent sizes and non-tensor values in plans: which user inputs must be known, and where the run must be
partitioned.

Sizes in most graphs follow from the shapes of the inputs. Where they do not, planning raises InputValuesRequired if
the sizes depend on a few elements of user inputs, or PartitionRequired if they depend on computed data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ortrain.errors import InvalidModelError
from ortrain.ir import Graph, Node, TensorType
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.registry.subgraphs import is_control_flow

MAX_KNOWN_ELEMENTS = 8
"""Maximum number of elements of a user input that a program may be specialized to when sizes are computed from it:
every new value costs a new plan."""

MAX_FLOAT_SIZE_ELEMENTS = 64
"""Maximum number of elements of a value that can determine sizes if it holds floats (scales, limits); small integer
values are preferred up to the same limit."""

DATA_DEPENDENT = frozenset({"Compress", "ImageDecoder", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
"""Operators whose output sizes depend on the data. Specializing a program to their inputs would mean one plan per
batch."""


class InputValuesRequired(InvalidModelError):
    """Raised when a plan depends on the values of user inputs: sizes, axes, a condition. names: those inputs."""

    def __init__(self, names: list[str], cause: Exception) -> None:
        super().__init__(str(cause))
        self.names = names


class PartitionRequired(InvalidModelError):
    """Raised when a plan needs a partition to run before it.

    The partition computes `values`, which the plan depends on, or the inputs of `node`, which then runs as an eager
    node. kinds: the inferred types of the node's outputs, None for an unknown one."""

    def __init__(self, cause: Exception, values: Sequence[str] = (), node: Node | None = None, kinds: Sequence[TensorType | None] = ()) -> None:
        super().__init__(str(cause))
        self.values = list(values)
        self.node = node
        self.kinds = list(kinds)


class OpenSizes:
    """The nodes of a graph with open (not yet known) output sizes, recorded while the planner visits them.

    graph: the graph to plan. inputs: types of the user inputs. objects: names of inputs that are text, sequences or
    optionals. inference: the shape inference of the plan."""

    def __init__(self, graph: Graph, inputs: Mapping[str, TensorType], objects: Collection[str], inference: ShapeInference) -> None:
        self.inputs, self.objects, self.inference = inputs, objects, inference
        self.producers: dict[str, Node] = {}
        self._open: list[Node] = []
        self._original: dict[str, Node] = {}
        self._graph_producers = graph.producers()

    def record(self, node: Node, replacements: Iterable[Node]) -> None:
        """Record a visited node and the nodes that replace it (the node itself if it is not decomposed)."""
        for replacement in replacements:
            self._original |= {name: node for name in replacement.outputs if name}
            self.producers |= {name: replacement for name in replacement.outputs if name}
            if any(self._is_open(name) for name in replacement.outputs if name):
                self._open.append(replacement)

    def _is_open(self, name: str) -> bool:
        kind = self.inference.types.get(name)
        return kind is None or not kind.is_static

    # ---- objects: values that no program holds

    def reads_objects(self, node: Node) -> bool:
        """Return whether a node reads text, sequences or optionals."""
        return any(self._is_object(name) for name in node.inputs if name)

    def produces_objects(self, node: Node) -> bool:
        """Return whether a node that has been visited produces text, sequences or optionals."""
        return any(self._is_object(name) for name in node.outputs if name)

    def _is_object(self, name: str) -> bool:
        if name in self.inference.values:
            return False
        kind = self.inference.types.get(name)
        return name in self.objects or kind is not None and kind.is_object

    def require_partition_for_objects(self, node: Node) -> None:
        """Raise PartitionRequired for a node that works on objects; if it has an unknown condition, require that
        value first."""
        cause = InvalidModelError(f"expected tensors of numbers, got text, sequences or optionals at {node}")
        self._require(self._conditions(node), cause)
        raise self.partition_at(node, cause)

    def partition_at(self, node: Node, cause: Exception) -> PartitionRequired:
        """Return the exception that makes a node an eager node between two partitions."""
        origin = next((self._original[name] for name in node.outputs if name in self._original), node)
        return PartitionRequired(cause, node=origin, kinds=[self.inference.types.get(name) for name in origin.outputs])

    # ---- values that must be known

    def check_sizes(self, node: Node, cause: Exception) -> None:
        """Raise InputValuesRequired or PartitionRequired if a node cannot be planned because of open sizes; return if
        it fails for another reason.

        cause: the error that planning the node raised."""
        first = self._first_open(node)
        if first.op_type not in DATA_DEPENDENT or all(name in self.inputs for name in first.inputs):
            self._require(self._size_inputs(first), cause)
        # outputs without types mean that inference rejected the node itself: an error in the model, not an open size
        if first is not node or any(name in self.inference.types and self._is_open(name) for name in node.outputs if name):
            raise self.partition_at(first, cause) from cause

    def require_values(self, names: Collection[str], cause: Exception) -> None:
        """Raise InputValuesRequired or PartitionRequired for those of the named values that are not known."""
        self._require([name for name in names if name not in self.inference.values], cause)

    def _require(self, names: Sequence[str], cause: Exception) -> None:
        if not names:
            return
        sources = self._source_inputs(names)
        if sources is not None:
            raise InputValuesRequired(sources, cause) from cause
        computed = [name for name in names if name not in self.inputs]
        if computed and all(name in self._graph_producers for name in computed):
            raise PartitionRequired(cause, values=computed) from cause

    def _source_inputs(self, names: Sequence[str]) -> list[str] | None:
        """Return the user inputs from which these values are computed; None if one is too large or something else
        contributes."""
        stack, seen, found = list(names), set(names), set()
        while stack:
            name = stack.pop()
            if name in self.inputs:
                if name not in names and self.inference.types[name].count > MAX_KNOWN_ELEMENTS:
                    return None
                found.add(name)
                continue
            producer = self.producers.get(name)
            if producer is None or producer.op_type in DATA_DEPENDENT or is_control_flow(producer):
                return None
            unknown = [n for n in producer.inputs if n and n not in seen and n not in self.inference.values]
            if not unknown:
                return None
            seen.update(unknown)
            stack += unknown
        return [name for name in self.inputs if name in found]

    def _first_open(self, node: Node) -> Node:
        """Return the first node with open output sizes among a node and its ancestors; the node itself if there is
        none."""
        ancestors, stack = {id(node)}, [node]
        while stack:
            for name in stack.pop().inputs:
                producer = self.producers.get(name)
                if producer is not None and id(producer) not in ancestors and name not in self.inference.values:
                    ancestors.add(id(producer))
                    stack.append(producer)
        return next((candidate for candidate in self._open if id(candidate) in ancestors), node)

    def _conditions(self, node: Node) -> list[str]:
        """Return the unknown inputs that decide which graph of a control-flow node runs, or how often."""
        if not is_control_flow(node):
            return []
        controlling = node.inputs[:1] if node.op_type == "If" else node.inputs[:2] if node.op_type == "Loop" else []
        return [name for name in controlling if name and name not in self.inference.values]

    def _size_inputs(self, node: Node) -> list[str]:
        """Return the unknown inputs whose values may determine the sizes of a node's outputs, the most likely ones
        only."""
        if is_control_flow(node):
            return self._conditions(node)
        unknown = [name for name in dict.fromkeys(node.inputs) if name and name not in self.inference.values]
        kinds = {name: self.inference.types[name] for name in unknown if not self._is_open(name)}
        integers = [name for name, kind in kinds.items() if kind.dtype in ("int64", "int32", "bool")]
        small_integers = [name for name in integers if kinds[name].count <= MAX_FLOAT_SIZE_ELEMENTS]
        return small_integers or integers or [name for name, kind in kinds.items() if kind.count <= MAX_FLOAT_SIZE_ELEMENTS]
