"""Gradients of single samples: what operators know of them beside their gradients, which are sums over all samples of a batch.

A rule receives a SampleGradientBuilder for its node, and returns for each weight among the node's inputs the form in which the gradients by every single sample
can be had at the least cost. The norms of a ProductGradient and of a LookupGradient follow from their factors, without the gradients themselves:

    def gemm_sample_gradients(g: SampleGradientBuilder) -> list[SampleGradient | None]:
        return [None, ProductGradient(g.rows(g.inputs[0]), g.rows(g.dy, g.outputs[0]))]

Sources: I. Goodfellow, Efficient Per-Example Gradient Computations (2015); X. Li and others, Large Language Models Can Be Strong Differentially Private
Learners (2022); Z. Bu and others, Differentially Private Optimization on Large Model at Small Cost (2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ortrain.errors import PerSampleGradientError
from ortrain.ir import Node
from ortrain.ops.registry.node_builder import GradientBuilder, GraphBuilder


@dataclass(frozen=True, slots=True)
class ProductGradient:
    """The gradient by sample i is the matrix left_i^T right_i [p, q]: a sum over positions, such as the tokens of a text or the pixels of an image."""

    left: str
    """[n, positions, p], or [n * blocks, p, positions] with positions_last."""
    right: str
    """[n, positions, q], or [n * blocks, q, positions] with positions_last."""
    positions_last: bool = False
    blocks: int = 1
    """Products of a sample, which make parts of the weight side by side: the groups of a convolution."""


@dataclass(frozen=True, slots=True)
class ProductsGradient:
    """The gradient by sample i has several products of it one below the other: the gates and directions of a recurrent layer. Their sum over the samples is
    computed from the factors, in place of the operator's own gradient."""

    products: tuple[ProductGradient, ...]
    """None of them has its positions last, or blocks."""


@dataclass(frozen=True, slots=True)
class LookupGradient:
    """The gradient by sample i is a table of zeros plus rows_i at indices_i, which may be repeated."""

    indices: str
    """int64 [n, positions], from 0 on."""
    rows: str
    """[n, positions, size of a row]."""
    size: int
    """Rows of the table."""


@dataclass(frozen=True, slots=True)
class WholeGradient:
    """The gradients by all samples one after the other, for weights that are small beside the activations."""

    values: str
    """[n, elements of the weight]."""


SampleGradient = ProductGradient | ProductsGradient | LookupGradient | WholeGradient


class SamplePosition(Protocol):
    """Where the samples of a value lie: along an axis of size outer * n * inner."""

    @property
    def axis(self) -> int: ...
    @property
    def outer(self) -> int: ...
    @property
    def inner(self) -> int: ...


class SampleGradientBuilder(GradientBuilder):
    """The builder that a rule receives: that of the gradient rule, which knows where the samples of values lie.

    positions: value -> where. count: the number of samples n, int64 [1]."""

    suffix = "_SampleGrad"

    def __init__(self, builder: GraphBuilder, node: Node, output_gradients: Sequence[str | None], needed: frozenset[int],
                 positions: Mapping[str, SamplePosition], count: str) -> None:
        super().__init__(builder, node, output_gradients, needed)
        self.positions, self.count = positions, count

    def refusal(self, reason: str) -> PerSampleGradientError:
        """Return an error that names the node."""
        return PerSampleGradientError(f"expected a weight with gradients by single samples, but {self.node.op_type} node "
                                      f"{self.node.name or self.outputs[0]!r} {reason}; freeze its weights, or use another operator")

    def unknown(self) -> PerSampleGradientError:
        """Return the error of an operator without a rule."""
        return self.refusal("has weights whose gradients by single samples are not known")

    def has_samples(self, index: int) -> bool:
        """Return whether input `index` differs from sample to sample."""
        return self.has(index) and self.inputs[index] in self.positions

    def samples_first(self, value: str, like: str = "") -> str:
        """Return a value with its samples along axis 0: [n, other axes], or [n, inner, other axes] where the axis held several elements of a sample.

        like: the value whose samples lie in the same place, where `value` is its gradient."""
        place, rank = self.positions[like or value], self.rank(value)
        if place.outer == 1 and place.inner == 1:
            return value if place.axis == 0 else self.op("Transpose", value, perm=(place.axis, *(axis for axis in range(rank) if axis != place.axis)))
        if place.axis or place.outer != 1:
            raise self.refusal(f"reads {value!r}, in which a sample's elements lie apart")
        return self.op("Reshape", value, self._sizes(value, (-1,)))

    def _sizes(self, value: str, after_count: Sequence[int]) -> str:
        """Return the vector [n, after_count..., sizes of the value from axis 1 on]."""
        rest = self.shape(value)[1:]
        if all(isinstance(size, int) for size in rest):
            return self.op("Concat", self.count, self.constant([*after_count, *(int(size) for size in rest)]), axis=0)
        sizes = self.op("Gather", self.shape_of(value), self.constant(list(range(1, 1 + len(rest)))), axis=0)
        return self.op("Concat", self.count, self.constant(list(after_count)), sizes, axis=0)

    def rows(self, value: str, like: str = "") -> str:
        """Return a value as [n, positions, size of its last axis]. like: as for samples_first."""
        size = self.shape(value)[-1]
        if not isinstance(size, int):
            raise self.refusal(f"reads {value!r}, whose last axis has no fixed size")
        first = self.samples_first(value, like)
        if self.rank(first) == 3:
            return first
        return self.op("Reshape", first, self.constant([0, 1 if self.rank(first) == 2 else -1, size]))

    def whole(self, gradient: str, weight: str, axis: int | None = None) -> WholeGradient:
        """Return the gradients of a weight which broadcasts to the shape of output 0, from `gradient`, which has that shape.

        axis: that of the output along which a weight with one axis lies; by default, it broadcasts as in ONNX."""
        y = self.outputs[0]
        have, full = self.shape(gradient), self.shape(y)
        if len(have) != len(full) or any(a != b and not (isinstance(a, str) and isinstance(b, str)) for a, b in zip(have, full, strict=True)):
            raise self.unknown()
        behind = 0 if axis is None else len(full) - 1 - axis
        place, sizes = self.positions[y], (1,) * (len(full) - self.rank(weight) - behind) + tuple(self.shape(weight)) + (1,) * behind
        if sizes[place.axis] != 1:
            raise self.refusal(f"has a weight for each sample, {weight!r}")
        first = self.samples_first(gradient, y)
        inserted = 0 if place.outer == place.inner == 1 else 1
        kept = [size for axis, size in enumerate(sizes) if axis != place.axis]
        axes = [*([1] if inserted else []), *(1 + inserted + axis for axis, size in enumerate(kept) if size == 1)]
        total = self.reduce_sum(first, axes, keepdims=False) if axes else first
        return WholeGradient(self.op("Reshape", total, self.op("Concat", self.count, self.constant([-1]), axis=0)))
