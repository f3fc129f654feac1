"""A loss that is the weighted sum of losses of several outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import add_node, generate_name
from ortrain.onnxblock.loss.base import Loss, scalar
from ortrain.onnxblock.model_accessor import current_model
from ortrain.packages import onnx


class LossTerm(NamedTuple):
    """One term of a WeightedSum: weight · loss(outputs, target)."""

    loss: blocks.Block
    weight: float
    outputs: Sequence[str]
    """The outputs of the model that the loss is called with."""
    target: str | None = None
    """The name of the input with the target, None for the loss's default name or where the loss has no target."""
    name: str | None = None
    """The name of the term's value, by default `<target>_loss`, or `loss_<number of the term>` without a target."""


class WeightedSum(blocks.Block):
    """The weighted sum of several losses, for models with several outputs.

        WeightedSum([(CrossEntropyLoss(), 1.0, ["classes"], "labels"), (SmoothL1Loss(), 0.5, ["boxes"], "box_targets")])

    terms: LossTerms, or tuples (loss, weight, outputs, target, name), of which target and name may be left out. name: of the sum.

    The block returns the sum, then the terms before they are weighted, so that a train step returns all of them, and additional outputs after them. The
    outputs that the block itself is called with are ignored: each term names its own.

    Raises InvalidArgumentError without terms, for weights that are not finite, losses that are not reduced and names used twice, ArgumentTypeError for a
    loss that is no block."""

    def __init__(self, terms: Sequence[LossTerm | tuple[Any, ...]], name: str = "loss") -> None:
        super().__init__()
        self.terms = [_checked(term) for term in terms]
        self.names = [name, *(term.name or (f"{term.target}_loss" if term.target else f"loss_{i}") for i, term in enumerate(self.terms))]
        if not self.terms:
            raise InvalidArgumentError("expected at least one term for WeightedSum, got none")
        if len(set(self.names)) < len(self.names):
            raise InvalidArgumentError(f"expected another name for each value of WeightedSum, got {self.names}: the fifth element of a term is its name")

    def build(self, *outputs: str) -> tuple[str, ...]:
        """Build all losses and their weighted sum; return its name and those of the terms. Raises InvalidArgumentError for names that the model uses."""
        graph = current_model().graph
        taken = {value.name for value in (*graph.input, *graph.initializer)}.union(*(node.output for node in graph.node))
        used = sorted(taken.intersection(self.names))
        if used:
            raise InvalidArgumentError(f"expected names for the values of WeightedSum that the model does not use, got {used}")
        total, *names = self.names
        weighted = []
        for term, name in zip(self.terms, names, strict=True):
            _name(str(term.loss(*term.outputs, *([] if term.target is None else [term.target]))), name)
            weighted.append(name if term.weight == 1 else add_node("Mul", [name, scalar(term.weight, name, "weight")])[0])
        _name(weighted[0] if len(weighted) == 1 else add_node("Sum", weighted)[0], total)
        return tuple(self.names)


def _checked(given: LossTerm | tuple[Any, ...]) -> LossTerm:
    if not isinstance(given, tuple) or not 3 <= len(given) <= 5:
        raise InvalidArgumentError(f"expected terms (loss, weight, outputs, target, name) for WeightedSum, got {given!r}")
    term = LossTerm(*given)
    if not isinstance(term.loss, blocks.Block):
        raise ArgumentTypeError(f"expected an onnxblock loss in a term of WeightedSum, got {term.loss!r}")
    if isinstance(term.outputs, str) or not term.outputs or not all(isinstance(name, str) for name in term.outputs):
        raise ArgumentTypeError(f"expected a list of the names of outputs in a term of WeightedSum, got {term.outputs!r}")
    if isinstance(term.weight, bool) or not isinstance(term.weight, int | float) or not math.isfinite(term.weight):
        raise InvalidArgumentError(f"expected a finite weight in a term of WeightedSum, got {term.weight!r}")
    if isinstance(term.loss, Loss) and term.loss.reduction == "none":
        raise InvalidArgumentError("expected losses that are reduced in WeightedSum, got one with reduction 'none'")
    return term


def _name(value: str, name: str) -> None:
    """Give a value a name of its own."""
    current_model().graph.node.append(onnx.helper.make_node("Identity", [value], [name], generate_name("Identity")))
