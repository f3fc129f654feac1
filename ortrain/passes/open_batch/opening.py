"""The pass: follows the samples through the graph, rewrites nodes and checks the result by shape inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ortrain.errors import InvalidArgumentError, OrtrainError
from ortrain.ir import Dim, Graph, Model, NameSource, Node, Shape, TensorType
from ortrain.loading.loader import all_names
from ortrain.ops.registry.record import canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference, infer_graph, opset_of
from ortrain.passes.open_batch.batch_axis import BatchAxis, NodeView, NotSeparable
from ortrain.passes.open_batch.rules import SIZE_INPUTS, positions

TRIAL_BATCHES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061)
"""Primes that stand for the number of samples while the changed graph is checked."""
MAX_RETRIES = 48
"""Attempts with other positions of the samples after a Reshape that allows several."""
MAKES_BATCH = frozenset({"Expand", "Tile", "ConstantOfShape"})
"""Operators that make a tensor with samples from their number alone."""


def open_batch(model: Model, axes: Mapping[str, int], symbol: str = "batch") -> None:
    """Make a model that was exported for a fixed number of samples accept any number of them. Changes the model in place.

    axes: input name -> the axis along which its samples lie, which has a fixed size, the same for all inputs. symbol: the name of the dynamic dimension.

    Raises InvalidArgumentError, which names the node and the reason, where it cannot be proved that the model computes each sample on its own; the model
    stays as it was."""
    batch = _fixed_size(model.graph, axes)
    source = model.copy()
    places = {name: axis % len(source.graph.types[name].shape or ()) for name, axis in axes.items()}
    for name in source.graph.inputs:
        shape = source.graph.types[name].shape if name in source.graph.types else None
        for axis, size in enumerate(shape or ()):
            if size == symbol and places.setdefault(name, axis) != axis:
                raise InvalidArgumentError(f"expected one batch axis per input, got {symbol!r} along axes {places[name]} and {axis} of input {name!r}")
        if name in places and shape is not None:
            source.graph.types[name] = _resized(source.graph.types[name], places[name], batch)
    source.graph.types = {name: source.graph.types[name] for name in source.graph.inputs if name in source.graph.types}
    original = infer_graph(source.graph, source.opsets)
    choices: dict[str, int] = {}
    first_failure: InvalidArgumentError | None = None
    for _ in range(MAX_RETRIES):
        opening = Opening(source, original, places, batch, choices)
        try:
            opening.run()
        except InvalidArgumentError as error:
            first_failure = first_failure or error
            if not opening.choose_differently():
                raise first_failure from error
            continue
        opening.finish(model, symbol)
        return
    assert first_failure is not None
    raise first_failure


def fixed_batch(model: Model) -> dict[str, int]:
    """Return the inputs that appear to have a fixed batch, each with its batch axis, in the form that open_batch takes.

    These are the inputs whose axis 0 has one common fixed size; in recurrent models axis 1 where only that one can be opened."""
    first = _common_size(model.graph, 0)
    is_recurrent = any(canonical_domain(node.domain) == "" and node.op_type in ("LSTM", "GRU", "RNN") for node in model.graph.nodes)
    if is_recurrent and not (first and _opens(model, first)):
        second = _common_size(model.graph, 1)
        return second if second and _opens(model, second) else first
    return first


def opened_shapes(model: Model, symbol: str = "batch") -> dict[str, list[Dim]]:
    """Return the shapes of the inputs that appear to have a fixed batch, with `symbol` for their batch axes, where it can be proved that the batch can
    be opened; no shapes otherwise. TrainingSession.from_model and generate_artifacts take them as input_shapes."""
    axes = fixed_batch(model)
    if not axes or not _opens(model, axes):
        return {}
    return {name: [symbol if place == axis else size for place, size in enumerate(model.graph.types[name].shape or ())] for name, axis in axes.items()}


def _common_size(graph: Graph, axis: int) -> dict[str, int]:
    """Return the inputs with the most common fixed size along an axis; none where the axis is dynamic in one of them."""
    shapes = {name: kind.shape for name in graph.inputs if (kind := graph.types.get(name)) and kind.shape and len(kind.shape) > axis}
    sizes = [size for shape in shapes.values() if isinstance(size := shape[axis], int)]
    if not sizes or len(sizes) < len(shapes):
        return {}
    common = Counter(sizes).most_common(1)[0][0]
    return {name: axis for name, shape in shapes.items() if shape[axis] == common}


def _opens(model: Model, axes: Mapping[str, int]) -> bool:
    try:
        open_batch(model.copy(), axes)
    except OrtrainError:
        return False
    return True


def _fixed_size(graph: Graph, axes: Mapping[str, int]) -> int:
    """Return the number of samples that the inputs have. Raises InvalidArgumentError unless it is one fixed number."""
    sizes: dict[str, int] = {}
    for name, axis in axes.items():
        shape = graph.types[name].shape if name in graph.types else None
        if name not in graph.inputs or shape is None or not -len(shape) <= axis < len(shape):
            raise InvalidArgumentError(f"expected an input with axis {axis}, got {name!r} of the inputs {graph.inputs}")
        size = shape[axis]
        if not isinstance(size, int) or size < 1:
            raise InvalidArgumentError(f"expected a fixed size along axis {axis} of input {name!r}, got {list(shape)}")
        sizes[name] = size
    if len(set(sizes.values())) != 1:
        raise InvalidArgumentError(f"expected inputs with one common batch size, got {sizes}")
    return next(iter(sizes.values()))


def _resized(kind: TensorType, axis: int, size: int | str) -> TensorType:
    shape = list(kind.shape or ())
    shape[axis] = size
    return TensorType(kind.dtype, tuple(shape), kind.sequence, kind.optional)


class Opening:
    """One attempt. It implements batch_axis.Rewriter."""

    def __init__(self, source: Model, original: ShapeInference, places: Mapping[str, int], batch: int, choices: dict[str, int]) -> None:
        self.source = source
        self.original = original
        self.batch = batch
        self.graph = source.graph.copy()
        self.consumers = self.graph.consumers()
        self.producers = self.graph.producers()
        self.names = NameSource(all_names(self.graph))
        self.places: dict[str, BatchAxis] = {name: BatchAxis(axis) for name, axis in places.items()}
        self.batch_input = next(iter(places))
        self.trial_batch = _trial_batch(original)
        types = {name: original.types[name] for name in self.graph.inputs if name in original.types}
        types |= {name: _resized(types[name], axis, self.trial_batch) for name, axis in places.items()}
        self.opened = ShapeInference(source.opsets, types, dict(self.graph.initializers))
        self.computed: set[str] = set()
        """Values that are not per sample but depend on the number of samples."""
        self.nodes: list[Node] = []
        self.cached: dict[tuple[tuple[int | None, ...], int], str] = {}
        self.choices = choices
        """Name of a Reshape's output -> which of its possible positions this attempt takes."""
        self.offered: dict[str, int] = {}

    def _visit_all(self, error: type[OrtrainError], what: str) -> None:
        """Follow the samples through all nodes. Raises an error that says what is expected of a model, and names the node that prevents the proof."""
        for node in self.source.graph.nodes:
            try:
                self._visit(node)
            except NotSeparable as reason:
                raise error(f"expected a model that {what}, but {node.op_type} node {node.name or node.outputs[0]!r} prevents the proof: {reason}") from reason

    def run(self) -> None:
        """Follow the samples through all nodes. Raises InvalidArgumentError, which names the node that cannot be proved to keep them apart."""
        self._visit_all(InvalidArgumentError, f"computes each sample on its own, so that its batch of {self.batch} can be opened")
        if not any(name in self.places for name in self.graph.outputs):
            raise InvalidArgumentError(f"expected samples that reach an output, got outputs {self.graph.outputs} without a batch")

    def choose_differently(self) -> bool:
        """Take the next position at the latest Reshape that offers one; return whether there is one."""
        for name, count in reversed(self.offered.items()):
            if self.choices.get(name, 0) + 1 < count:
                self.choices[name] = self.choices.get(name, 0) + 1
                return True
            self.choices.pop(name, None)
        return False

    def finish(self, model: Model, symbol: str) -> None:
        """Write the changed graph into the model."""
        graph = self.graph
        graph.nodes = self.nodes
        graph.types = {name: self.source.graph.types[name] for name in graph.inputs if name in self.source.graph.types}
        for name in (*graph.inputs, *graph.outputs):
            place, kind = self.places.get(name), self.original.types.get(name)
            if place is not None and kind is not None:
                graph.types[name] = _resized(kind, place.axis, symbol if place.is_plain else f"{name}.{place.axis}")
            elif kind is not None:
                graph.types[name] = kind
        used = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
        graph.initializers = {name: array for name, array in graph.initializers.items() if name in used}
        model.graph = graph

    # ---- one node

    def _visit(self, node: Node) -> None:
        axes = [self.places.get(name) for name in node.inputs]
        is_made = canonical_domain(node.domain) == "" and node.op_type in MAKES_BATCH and any(name in self.computed for name in node.inputs)
        view = NodeView(node.copy(), axes, opset_of(node, self.source.opsets), self)
        view.node.domain = canonical_domain(node.domain)
        found: list[BatchAxis | None] = [None] * len(node.outputs)
        if any(axes) or is_made:
            if node.graphs:
                raise NotSeparable("samples are not followed into branches and loops")
            self._check_sizes_only(view)
            found = positions(view)
        view.node.domain = node.domain
        self._append(view.node)
        self._check_outputs(node, found)
        if not any(axes) or node.op_type in ("Shape", "Size"):
            self._record_computed(node, found)

    def _append(self, node: Node) -> None:
        try:
            self.opened.visit(node)
        except OrtrainError as error:
            raise NotSeparable(f"it does not fit another number of samples: {error}") from error
        self.nodes.append(node)

    def _check_sizes_only(self, view: NodeView) -> None:
        """Refuse numbers of samples that enter the computation other than as sizes."""
        allowed = SIZE_INPUTS.get(view.node.op_type, ())
        for index, name in enumerate(view.node.inputs):
            if name in self.computed and index not in allowed:
                raise NotSeparable(f"it computes with the number of samples ({name!r})")

    def _check_outputs(self, node: Node, found: Sequence[BatchAxis | None]) -> None:
        """Check the inferred shapes of a node against the original ones, and record where the samples of its outputs are."""
        for name, place in zip(node.outputs, found, strict=False):
            if not name:
                continue
            before, after = self.original.types[name], self.opened.types[name]
            wanted = before
            if place is not None:
                if before.shape is None or not 0 <= place.axis < len(before.shape) or before.shape[place.axis] != place.size(self.batch):
                    raise NotSeparable(f"its result {name!r} of shape {list(before.shape or ())} has no axis for the samples")
                wanted = _resized(before, place.axis, place.size(self.trial_batch))
                self.places[name] = place
            if wanted.shape != after.shape or wanted.dtype != after.dtype:
                raise NotSeparable(f"the shape {list(before.shape or ())} of its result {name!r} does not follow the number of samples")

    def _record_computed(self, node: Node, found: Sequence[BatchAxis | None]) -> None:
        """Record the outputs whose elements depend on the number of samples. Raises NotSeparable where that cannot be told."""
        if not any(name in self.computed for name in node.inputs) and node.op_type not in ("Shape", "Size"):
            return
        for name, place in zip(node.outputs, found, strict=False):
            if not name or place is not None:
                continue
            before, after = _elements(self.original, name), _elements(self.opened, name)
            if before is None or after is None:
                raise NotSeparable("it computes with the number of samples")
            if before != after:
                self.computed.add(name)

    # ---- what rules ask for

    def constant(self, array: np.ndarray) -> str:
        name = self.names.unique("ortrain::batch::constant")
        self.graph.initializers[name] = self.opened.values[name] = array
        self.opened.types[name] = TensorType.of(array)
        return name

    def sizes(self, entries: Sequence[int | None], factor: int = 1) -> str:
        key = (tuple(entries), factor)
        if key not in self.cached:
            parts = [self._batch_size(factor) if entry is None else self.constant(np.array([entry], np.int64)) for entry in entries]
            self.cached[key] = parts[0] if len(parts) == 1 else self.add(Node("Concat", parts, [], attributes={"axis": 0}))
        return self.cached[key]

    def _batch_size(self, factor: int) -> str:
        """Return the name of the number of samples times a factor, int64 [1]."""
        key = ((None,), factor)
        if key not in self.cached:
            if factor == 1:
                shape = self.add(Node("Shape", [self.batch_input], []))
                axis = self.constant(np.array([self.places[self.batch_input].axis], np.int64))
                self.cached[key] = self.add(Node("Gather", [shape, axis], [], attributes={"axis": 0}))
            else:
                self.cached[key] = self.add(Node("Mul", [self._batch_size(1), self.constant(np.array([factor], np.int64))], []))
        return self.cached[key]

    def first_rows(self, name: str, axis: int, count: int) -> str:
        size = self.shape_of(name)[axis]
        if size == count:
            return name
        if not self._repeats(name, axis, count):
            raise NotSeparable(f"its input {name!r} has other values for every sample")
        producer, shape = self.producers.get(name), self.shape_of(name)
        if producer is not None and producer.op_type == "Expand" and self.shape_of(producer.inputs[0]) == (*shape[:axis], count, *shape[axis + 1 :]):
            return producer.inputs[0]                       # what was repeated
        initializer = self.graph.initializers.get(name)
        if initializer is not None and len(self.consumers.get(name, ())) == 1 and name not in self.graph.outputs:
            rows = np.ascontiguousarray(np.take(initializer, range(count), axis))
            self.graph.initializers[name] = self.opened.values[name] = rows
            self.opened.types[name] = TensorType.of(rows)
            return name
        if self.source.opset < 10:
            return self.add(Node("Slice", [name], [], attributes={"starts": (0,), "ends": (count,), "axes": (axis,)}))
        return self.add(Node("Slice", [name, *(self.constant(np.array([number], np.int64)) for number in (0, count, axis))], []))

    def _repeats(self, name: str, axis: int, count: int) -> bool:
        """Return whether a value repeats its first rows along an axis."""
        value, producer = self.value_of(name), self.producers.get(name)
        if value is not None:
            repeats = [1] * value.ndim
            repeats[axis] = value.shape[axis] // count
            return value.shape[axis] % count == 0 and np.array_equal(value, np.tile(np.take(value, range(count), axis), repeats))
        if producer is None or canonical_domain(producer.domain) or producer.op_type not in ("Expand", "Tile", "ConstantOfShape"):
            return False
        if producer.op_type == "ConstantOfShape":
            return True
        before = self.shape_of(producer.inputs[0])
        own_axis = axis - len(self.shape_of(name)) + len(before)
        size = 1 if own_axis < 0 else before[own_axis]
        return isinstance(size, int) and count % size == 0

    def add(self, node: Node) -> str:
        node.outputs = [self.names.unique(f"ortrain::batch::{node.op_type}")]
        node.name = node.outputs[0]
        self._append(node)
        return node.outputs[0]

    def shape_of(self, name: str) -> Shape:
        kind = self.original.types.get(name)
        if kind is None or kind.shape is None:
            raise NotSeparable(f"the rank of {name!r} is not known")
        return kind.shape

    def value_of(self, name: str) -> np.ndarray | None:
        return self.original.values.get(name)

    def computes_from_batch(self, name: str) -> bool:
        return name in self.computed

    def computed_elements(self, name: str) -> list[int]:
        before, after = _elements(self.original, name) or (), _elements(self.opened, name) or ()
        return [index for index, (old, new) in enumerate(zip(before, after, strict=False)) if old != new]

    def open_shape(self, node: Node) -> Shape | None:
        try:
            self.opened.visit(node)
        except OrtrainError:
            return None
        return self.opened.types[node.outputs[0]].shape

    def choose(self, node: Node, candidates: Sequence[BatchAxis]) -> BatchAxis:
        name = node.outputs[0]
        self.offered[name] = len(candidates)
        return candidates[self.choices.get(name, 0)]


def _trial_batch(original: ShapeInference) -> int:
    """Return a prime that divides no size of the original model."""
    sizes = {size for kind in original.types.values() for size in kind.shape or () if isinstance(size, int)}
    return next((prime for prime in TRIAL_BATCHES if all(size % prime for size in sizes if size)), TRIAL_BATCHES[0])


def _elements(inference: ShapeInference, name: str) -> tuple[object, ...] | None:
    """Return the known elements of a small value, None where they are not known."""
    if name in inference.sizes:
        return inference.sizes[name]
    value = inference.values.get(name)
    return None if value is None else tuple(value.reshape(-1).tolist())
