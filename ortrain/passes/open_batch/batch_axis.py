"""The position of the samples in a tensor, and the view of a node that the rules work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ortrain.ir import Node, Shape


class NotSeparable(Exception):
    """A node cannot be proved to compute each sample on its own; the message is the reason."""


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """The axis along which the samples of a tensor lie. Its size is outer * batch * inner, since a Reshape may merge it with its neighbours."""

    axis: int
    outer: int = 1
    inner: int = 1

    def size(self, batch: int) -> int:
        """Return the size of the axis for a number of samples."""
        return self.outer * batch * self.inner

    def at(self, axis: int) -> BatchAxis:
        """Return the same samples along another axis."""
        return replace(self, axis=axis)

    @property
    def is_plain(self) -> bool:
        """Whether the axis is the batch alone."""
        return self.outer == self.inner == 1


class Rewriter(Protocol):
    """What a rule may ask of the pass."""

    batch: int
    """The fixed number of samples of the original model."""

    def constant(self, array: np.ndarray) -> str:
        """Add an integer constant and return its name."""

    def sizes(self, entries: Sequence[int | None], factor: int = 1) -> str:
        """Return the name of an int64 vector of sizes, in which None becomes the number of samples times `factor`."""

    def first_rows(self, name: str, axis: int, count: int) -> str:
        """Return the name of the first `count` rows of a value along an axis. Raises NotSeparable unless all other rows repeat them."""

    def add(self, node: Node) -> str:
        """Add a node before the current one and return the name of its output, which is still to be named."""

    def shape_of(self, name: str) -> Shape:
        """Return the shape of a value of the original model. Raises NotSeparable where the rank is unknown."""

    def value_of(self, name: str) -> np.ndarray | None:
        """Return a constant of the original model, None for what is computed."""

    def computes_from_batch(self, name: str) -> bool:
        """Return whether the elements of an integer value depend on the number of samples."""

    def computed_elements(self, name: str) -> list[int]:
        """Return which elements of an integer vector depend on the number of samples."""

    def open_shape(self, node: Node) -> Shape | None:
        """Return the shape of a node's first output as inferred for another number of samples; None where the node does not fit that number."""

    def choose(self, node: Node, candidates: Sequence[BatchAxis]) -> BatchAxis:
        """Return one of several possible positions of the samples, the first unless it has failed before."""


class NodeView:
    """A node whose samples are followed: positions, shapes and constants of its inputs. Rules may change `node`, which is a copy."""

    def __init__(self, node: Node, axes: Sequence[BatchAxis | None], opset: int, rewriter: Rewriter) -> None:
        self.node = node
        self.axes = list(axes)
        self.opset = opset
        self.rewriter = rewriter

    def has(self, index: int) -> bool:
        """Whether the node has input `index`."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def shape(self, index: int) -> Shape:
        """Return the original shape of an input."""
        return self.rewriter.shape_of(self.node.inputs[index])

    def rank(self, index: int) -> int:
        return len(self.shape(index))

    def output_shape(self) -> Shape:
        """Return the original shape of the first output."""
        return self.rewriter.shape_of(self.node.outputs[0])

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """Return integers that newer opsets take from input `index` and older ones from an attribute; None where there are none.

        Raises NotSeparable where they are computed."""
        if self.has(index):
            value = self.rewriter.value_of(self.node.inputs[index])
            if value is None:
                raise NotSeparable(f"its input {self.node.inputs[index]!r} is not a constant")
            return [int(v) for v in value.reshape(-1)]
        given = self.attribute(attribute)
        return None if given is None else [int(v) for v in (given if isinstance(given, tuple | list) else (given,))]

    def batched(self, index: int) -> BatchAxis:
        """Return the samples' position in an input. Raises NotSeparable where the input has no samples."""
        found = self.axes[index] if index < len(self.axes) else None
        if found is None:
            raise NotSeparable(f"its input {index} has no batch while another one has")
        return found

    def need_unbatched(self, *indices: int) -> None:
        """Raise NotSeparable where one of these inputs differs from sample to sample."""
        for index in indices:
            if index < len(self.axes) and self.axes[index] is not None:
                raise NotSeparable(f"its input {self.node.inputs[index]!r} differs from sample to sample")

    def share(self, index: int, where: BatchAxis) -> None:
        """Give an input that is the same for all samples a batch at a position, by repeating it. An input with that batch stays."""
        if self.axes[index] == where:
            return
        if self.axes[index] is not None:
            raise NotSeparable(f"the samples of its inputs lie along different axes ({self.node.inputs[index]!r})")
        name, shape = self.node.inputs[index], self.shape(index)
        size, rewriter = shape[where.axis], self.rewriter
        vector: list[int | None] = [None if axis == where.axis else 1 for axis in range(len(shape))]
        if size == 1:
            repeated = Node("Expand", [name, rewriter.sizes(vector, where.size(1))], [])
        elif where.outer == 1 and size in (where.inner, where.size(rewriter.batch)):
            rows = rewriter.first_rows(name, where.axis, where.inner)
            repeated = Node("Expand" if where.inner == 1 else "Tile", [rows, rewriter.sizes(vector)], [])
        else:
            raise NotSeparable(f"its input {name!r} has size {size} along the axis of the samples, which cannot be repeated for each")
        self.node.inputs[index] = rewriter.add(repeated)
        self.axes[index] = where

    def broadcast(self, index: int, where: BatchAxis, rank: int) -> None:
        """Make an input without samples broadcast along the samples' axis of an output of `rank` axes."""
        axis = where.axis - rank + self.rank(index)
        if axis < 0 or self.shape(index)[axis] == 1:
            return
        if where.is_plain and self.shape(index)[axis] == self.rewriter.batch:
            self.node.inputs[index] = self.rewriter.first_rows(self.node.inputs[index], axis, 1)
        else:
            self.share(index, where.at(axis))
