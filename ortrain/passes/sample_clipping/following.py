"""The samples of a batch within a training model: where each value has them, and the proof that the loss is a sum or a mean over them of losses of their own.

The proof is that of ortrain.passes.open_batch: a node that computes each sample on its own does not care how many there are. Since the loss of a sample
depends on no other one, neither does its gradient by any value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortrain.errors import OrtrainError, PerSampleGradientError
from ortrain.ir import Dim, Model, Node, TensorType
from ortrain.ops.registry.record import ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import infer_graph, opset_of
from ortrain.passes.open_batch.batch_axis import BatchAxis, NodeView, NotSeparable
from ortrain.passes.open_batch.opening import Opening

BATCH = 31
"""The number of samples of the model that is followed."""
SIZES = (7, 11, 13, 17, 19, 23, 29, 37), (211, 223, 227, 229, 233, 239, 241, 251), (4001, 4003, 4007, 4013, 4019, 4021, 4027, 4049), (2, 3, 5, 7)
"""What stands for the other dynamic sizes: short sequences, or others where those do not fit the model."""
LABEL_LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "SoftmaxFocalLoss"})
"""Losses of scores, labels, and maybe class weights and sample weights."""
ADDITIVE = frozenset({"Add", "Sub", "Sum", "Neg", "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "ReduceSum", "ReduceMean"})
"""What may happen to a loss of one element: it stays a sum over samples, as it does with a constant factor."""


@dataclass(frozen=True, slots=True)
class FollowedSamples:
    """The result."""

    positions: Mapping[str, BatchAxis]
    """Value -> where its samples are, for every value that has any."""
    totals: Collection[str]
    """The loss, and values on the way to it that sum over the samples."""
    is_mean: bool
    """Whether the loss is the mean over the samples, not the sum."""
    batch_input: str
    """An input whose axis 0 are the samples."""


def follow_samples(model: Model, loss: str, parameters: Collection[str]) -> FollowedSamples:
    """Follow the samples of a model from its inputs, along whose axis 0 they lie, to the loss.

    parameters: the inputs that are none of the user's. Raises PerSampleGradientError, which names the node that computes across samples."""
    inputs = [name for name in model.graph.inputs if name not in parameters]
    first_failure: OrtrainError | None = None
    for sizes in SIZES:
        source = model.copy()
        places = _stand_in_sizes(source, inputs, sizes)
        try:
            following = _Following(source, places)
        except OrtrainError as error:                       # sizes that do not fit the model
            first_failure = first_failure or error
            continue
        following.run()
        if loss not in following.totals:
            raise PerSampleGradientError(f"expected a loss that is a sum or a mean over samples, got {loss!r}, which has no samples")
        return FollowedSamples(following.places, following.totals, following.reductions == {"mean"}, next(iter(places)))
    raise PerSampleGradientError(f"expected a model whose dynamic sizes can be tried out, got one that fits none: {first_failure}; fix them by input_shapes")


def _stand_in_sizes(model: Model, inputs: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    """Give the inputs of a model fixed sizes; return the axis of the samples, which is 0, for each input that has any."""
    numbers: dict[str, int] = {}
    places, types = {}, model.graph.types
    model.graph.types = {name: types[name] for name in model.graph.inputs if name in types}
    for name in inputs:
        kind = types.get(name)
        if kind is None or kind.shape is None:
            raise PerSampleGradientError(f"expected an input {name!r} of known rank, got {kind}")
        if kind.shape and kind.shape[0] != 1:
            if isinstance(kind.shape[0], int):
                raise PerSampleGradientError(f"expected any number of samples along axis 0 of input {name!r}, got shape {list(kind.shape)}: "
                                             "input_shapes makes it dynamic, as a Trainer does by itself")
            places[name] = 0
        shape: list[Dim] = [BATCH if name in places and axis == 0 else size if isinstance(size, int)
                            else numbers.setdefault(size, sizes[len(numbers) % len(sizes)]) for axis, size in enumerate(kind.shape)]
        model.graph.types[name] = TensorType(kind.dtype, tuple(shape), kind.sequence, kind.optional)
    if not places:
        raise PerSampleGradientError(f"expected inputs with samples along axis 0, got {inputs}")
    return places


class _Following(Opening):
    """Follows samples through a graph that stays as it is."""

    def __init__(self, source: Model, places: Mapping[str, int]) -> None:
        super().__init__(source, infer_graph(source.graph, source.opsets), places, BATCH, {})
        self.totals: set[str] = set()
        self.reductions: set[str] = set()
        """Among "mean" and "sum": how the totals came about."""

    def run(self) -> None:
        self._visit_all(PerSampleGradientError, "computes the loss of each sample on its own")

    def _visit(self, node: Node) -> None:
        reduction = "" if any(name in self.totals for name in node.inputs) else self._reduction(node)
        if reduction in ("mean", "sum"):
            self.reductions.add(reduction)
            if len(self.reductions) > 1:
                raise NotSeparable("one part of the loss is a mean over samples, another one a sum")
            self._append(node.copy())
            self.totals.add(node.outputs[0])
        elif reduction:
            self._append(node.copy())
            self._check_outputs(node, [self.places[node.inputs[1]], self.places[node.inputs[0]]])
        elif any(name in self.totals for name in node.inputs):
            self._check_total(node)
            self._append(node.copy())
            self.totals.add(node.outputs[0])
        elif node.op_type == "BatchNormInternal" and node.inputs[0] in self.places:
            raise NotSeparable("it normalizes by the statistics of the whole batch: use group or layer normalization in its place, or freeze its scale and "
                               "its bias (frozen_params), so that it uses its running statistics")
        else:
            super()._visit(node)

    def _reduction(self, node: Node) -> str:
        """Return how a node reduces the samples: "mean", "sum", "none" for a loss by each sample, "" for another node."""
        if not node.inputs or node.inputs[0] not in self.places or canonical_domain(node.domain) not in ("", ORTRAIN):
            return ""
        if node.op_type in LABEL_LOSSES:
            return self._label_reduction(node)
        if node.op_type not in ("ReduceMean", "ReduceSum"):
            return ""
        view = NodeView(node, [self.places.get(name) for name in node.inputs], opset_of(node, self.source.opsets), self)
        axes = view.integers(1, "axes")
        if not axes and view.attribute("noop_with_empty_axes", 0):
            return ""
        reduced = {axis % view.rank(0) for axis in axes} if axes else set(range(view.rank(0)))
        if self.places[node.inputs[0]].axis not in reduced:
            return ""
        if any(size != 1 for size in self.original.types[node.outputs[0]].shape or ()):
            raise NotSeparable("it sums over samples, and something else than the loss of one element reads the sums")
        return "mean" if node.op_type == "ReduceMean" else "sum"

    def _label_reduction(self, node: Node) -> str:
        where, others = self.places[node.inputs[0]], [self.places.get(name) for name in node.inputs[1:]]
        if where.axis or others[0] != where or any(other is not None and (index != 2 or other != where) for index, other in enumerate(others[1:], 1)):
            raise NotSeparable("the samples of its scores, labels and weights do not lie along the same axis")
        reduction = node.attributes.get("reduction", "mean")
        reduction = reduction.decode() if isinstance(reduction, bytes) else str(reduction)
        is_weighted = any(node.inputs[2:]) and bool(node.attributes.get("weighted_mean", 1))
        if reduction == "mean" and (is_weighted or "ignore_index" in node.attributes):
            raise NotSeparable("it divides by a number that depends on the labels of all samples, because of weights or an ignored label: take the reduction "
                               '"sum", or a loss without them')
        return reduction

    def _check_total(self, node: Node) -> None:
        """Raise NotSeparable unless a node with a total among its inputs returns another one."""
        of_totals = [index for index, name in enumerate(node.inputs) if name in self.totals]
        scales = node.op_type == "Mul" and len(of_totals) == 1 or node.op_type == "Div" and of_totals == [0]
        if canonical_domain(node.domain) or not scales and node.op_type not in ADDITIVE:
            raise NotSeparable("it computes with the sum over all samples")
        others = [name for name in node.inputs if name and name not in self.totals]
        if any(name not in self.original.values for name in others):
            raise NotSeparable("it adds a term to the loss, or multiplies it by a factor, that is not constant: weight decay is the optimizer's")

    # ---- the graph stays as it is

    def choose(self, node: Node, candidates: Sequence[BatchAxis]) -> BatchAxis:
        """Return the position that a Reshape gives the samples by itself."""
        opened, before = self.open_shape(node), self.original.types[node.outputs[0]].shape or ()
        changed = [axis for axis, (size, old) in enumerate(zip(opened or (), before, strict=False)) if size != old]
        for candidate in candidates:
            if [candidate.axis] == changed:
                return candidate
        raise NotSeparable("its target fits one number of samples only")

    def constant(self, array: np.ndarray) -> str:
        raise NotSeparable("it fits one number of samples only")

    def sizes(self, entries: Sequence[int | None], factor: int = 1) -> str:
        raise NotSeparable("it fits one number of samples only")

    def first_rows(self, name: str, axis: int, count: int) -> str:
        raise NotSeparable(f"its input {name!r} has a row for each sample of a fixed batch")


