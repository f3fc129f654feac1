"""Deferred gradients: a train step leaves gradients in the arena instead of accumulating them into gradient buffers.

The arena memory of a deferred gradient is free for reuse by the next train step. If a large weight takes more memory
than the operands of its gradient, the operands are kept in the arena and the gradient is not even computed. An
optimizer step consumes the deferred gradients through fused updates; if the user reads them or accumulates into them,
the deferred steps compute and accumulate them instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ortrain._core.builtin_kernels import KERNELS as BUILTIN_KERNELS
from ortrain._core.symbolic import memory_at_least
from ortrain.dtypes import numpy_dtype
from ortrain.ir import NameSource, Node
from ortrain.ops.registry.record import KernelCall
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.training import BUFFER_SUFFIX
from ortrain.plan.epilogue_fusion.optimizer_update import fuse_updates
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Step

MIN_BYTES = 1 << 16
"""Minimum size of a deferred gradient: for smaller ones a separate update costs more than it saves."""
MIN_UNCOMPUTED_BYTES = 1 << 20
"""Minimum size of a gradient that is left uncomputed: for smaller ones the train step computes the gradient while its
operands are still in the cache."""


class ParameterUpdates(Protocol):
    """The optimizer updates that deferred gradients are consumed by."""

    @property
    def masks(self) -> Mapping[str, np.ndarray]:
        """One mask for each parameter that can be updated, by parameter name."""

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The arrays that updates read and write besides parameters and gradients, by value name."""

    def update_node(self, accumulation: Node, gradient: str, flag: str) -> Node:
        """Return the node that updates a parameter from `gradient`.

        accumulation: the node that accumulates the parameter's gradient. flag: the name of the update's output."""


@dataclass(slots=True)
class DeferredGradients:
    """The steps of a program with deferred gradients; without any, all steps are in `train_step`."""

    train_step: list[Step] = field(default_factory=list)
    """Run in every train step."""
    updates: list[Step] = field(default_factory=list)
    """Run by an optimizer step: compute the uncomputed gradients and update parameters from all deferred ones."""
    gradients: list[Step] = field(default_factory=list)
    """Run instead of `updates` when gradients are read: compute and accumulate them."""
    names: set[str] = field(default_factory=set)
    """The parameters whose gradients are deferred."""

    @property
    def steps(self) -> list[Step]:
        """All steps: train step, updates, gradients."""
        return [*self.train_step, *self.updates, *self.gradients]

    def values_kept(self, lifetimes: Lifetimes) -> set[str]:
        """Return the values of the train step that stay in the arena for the deferred steps."""
        computed = {name for step in self.train_step for name in step.outputs if name}
        return computed & {lifetimes.unaliased(name) for step in self.updates for name in step.inputs if name}


@dataclass(slots=True)
class Candidate:
    """A gradient that may be deferred."""

    accumulation: Step
    value: str
    """The gradient as its producer computes it; the accumulation may read it under another shape."""
    producer: Step | None
    """The step that computes the gradient, if it is deferred as well; else None."""
    values_kept: set[str]
    """The values kept in the arena: the gradient, or the operands of its producer."""

    @property
    def parameter(self) -> str:
        return self.accumulation.inputs[0].removesuffix(BUFFER_SUFFIX)


def defer_gradients(steps: Sequence[Step], lifetimes: Lifetimes, inference: ShapeInference, names: NameSource, updates: ParameterUpdates,
                    lower: Callable[[Node], list[Step]], is_accumulation: Callable[[Step], bool], is_pinned: Callable[[Step], bool],
                    inputs: Collection[str]) -> DeferredGradients:
    """Return the steps with gradients deferred where that saves memory.

    lower: returns the steps of a node. is_accumulation: whether a step accumulates a gradient. is_pinned: whether a
    step must not be moved. inputs: user inputs, which are no longer available when deferred steps run."""
    deferral = GradientDeferral(steps, lifetimes, inference, names, updates, lower, inputs)
    return deferral.run(list(deferral.choose(is_accumulation, is_pinned)))


class GradientDeferral:
    """One deferral pass; parameters as in defer_gradients."""

    def __init__(self, steps: Sequence[Step], lifetimes: Lifetimes, inference: ShapeInference, names: NameSource, updates: ParameterUpdates,
                 lower: Callable[[Node], list[Step]], inputs: Collection[str]) -> None:
        self.steps, self.lifetimes, self.inference, self.names, self.updates, self.inputs = steps, lifetimes, inference, names, updates, inputs
        self.lower = lower
        self.copies: dict[str, str] = {}
        """User input -> the copy that deferred steps read."""

    # ---- choosing gradients

    def choose(self, is_accumulation: Callable[[Step], bool], is_pinned: Callable[[Step], bool]) -> Iterator[Candidate]:
        """Yield the gradients that are worth deferring, in the order of their accumulations."""
        unaliased, nbytes = self.lifetimes.unaliased, self.lifetimes.nbytes
        producers = {name: step for step in self.steps for name in step.outputs if name}
        readers = Counter(name for step in self.steps for name in map(unaliased, filter(None, step.inputs)))
        outputs = set(map(unaliased, self.lifetimes.outputs))
        accumulations = [step for step in self.steps if is_accumulation(step)]
        accumulations_per_buffer = Counter(step.inputs[0] for step in accumulations)
        kept: set[str] = set()
        for step in accumulations:
            candidate = Candidate(step, unaliased(step.inputs[1]), None, {unaliased(step.inputs[1])})
            value = candidate.value
            if (value not in producers or nbytes(value) < MIN_BYTES or candidate.parameter not in self.updates.masks
                    or accumulations_per_buffer[step.inputs[0]] > 1 or not outputs.isdisjoint(step.outputs)):
                continue
            producer = producers[value]
            if (nbytes(value) >= MIN_UNCOMPUTED_BYTES and readers[value] == 1 and value not in outputs
                    and not is_pinned(producer) and not is_accumulation(producer)):
                operands = self._operands_to_keep(producer)
                if operands is not None and memory_at_least(nbytes(value), sum(nbytes(name) for name in operands - kept)):
                    candidate = Candidate(step, value, producer, operands)
            kept |= candidate.values_kept
            yield candidate

    def _operands_to_keep(self, producer: Step) -> set[str] | None:
        """Return the values that must be kept to run a step later; None if it has other outputs or an operand may be
        overwritten until then."""
        names = {name for name in map(self.lifetimes.unaliased, filter(None, producer.inputs)) if name not in self.inference.values}
        has_one_output = len(list(filter(None, producer.outputs))) == 1
        return names if has_one_output and all(name in self.inputs or not self.lifetimes.is_outside(name) for name in names) else None

    # ---- deferring steps

    def run(self, chosen: Iterable[Candidate]) -> DeferredGradients:
        """Return the steps with the chosen gradients deferred."""
        deferred = DeferredGradients()
        by_accumulation = {id(candidate.accumulation): candidate for candidate in chosen}
        by_producer = {id(candidate.producer): candidate for candidate in by_accumulation.values() if candidate.producer is not None}
        for step in self.steps:
            if id(step) in by_producer:
                deferred.train_step += self._copies_for(by_producer[id(step)])
            elif id(step) in by_accumulation:
                self._defer(by_accumulation[id(step)], deferred)
            else:
                deferred.train_step.append(step)
        return deferred

    def _copies_for(self, candidate: Candidate) -> Iterator[Step]:
        """Yield steps that copy the user inputs among a candidate's operands, each input once per program."""
        for name in sorted(candidate.values_kept):
            if name in self.inputs and name not in self.copies:
                kind = self.inference.types[name]
                copy = self.copies[name] = self.names.unique(f"{name}::kept")
                self.inference.types[copy] = kind
                call = KernelCall("copy", (numpy_dtype(kind.dtype).itemsize,))
                yield Step(Node("Identity", [name], [copy], f"copy of {name}"), call, [name], [copy], None, BUILTIN_KERNELS["copy"])

    def _deferred_name(self, name: str) -> str:
        """Return the name under which deferred steps read a value: its copy for a user input, else the value itself."""
        copy = self.copies.get(self.lifetimes.unaliased(name))
        if copy is None:
            return name
        return copy if name in self.copies else self.lifetimes.add_alias(name, copy)

    def _defer(self, candidate: Candidate, deferred: DeferredGradients) -> None:
        """Add the accumulation of a candidate, its update and its deferred producer to the deferred steps."""
        accumulation, value, gradient = candidate.accumulation, candidate.value, candidate.accumulation.inputs[1]
        nodes: list[Node] = []
        if candidate.producer is not None:
            recomputed = self.names.unique(f"{value}::deferred")
            gradient = recomputed if gradient == value else self.lifetimes.add_alias(gradient, recomputed)
            nodes.append(self._with_copies(candidate.producer.node, recomputed))
            deferred.gradients += self._lower(self._with_copies(candidate.producer.node, value))
        deferred.gradients.append(accumulation)
        nodes.append(self.updates.update_node(accumulation.node, gradient, self.names.unique(f"{accumulation.outputs[0]}::update")))
        for node in nodes:
            self.inference.visit(node)
        for node in fuse_updates(nodes, self.inference, ()):
            deferred.updates += self._lower(node)
        deferred.names.add(candidate.parameter)

    def _with_copies(self, node: Node, value: str) -> Node:
        """Return a copy of a node that reads copies of user inputs and writes `value`."""
        return Node(node.op_type, [self._deferred_name(name) for name in node.inputs], [value if name else "" for name in node.outputs], node.name, node.domain,
                    node.attributes)

    def _lower(self, node: Node) -> list[Step]:
        """Return the steps of a node without guards, which run in the train step."""
        return [step for step in self.lower(node) if step.guard is None]
