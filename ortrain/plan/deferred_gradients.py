"""DeferredGradients gradients: a train step leaves them in the arena, where activations were before, and the next one writes over them; of large weights, which take more
memory than what their gradients are computed of, it leaves that. An optimizer step spends them; whoever reads them or adds to them has them accumulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ortrain._core.builtin_kernels import KERNELS as BUILTIN_KERNELS
from ortrain._core.symbolic import spares
from ortrain.dtypes import numpy_dtype
from ortrain.ir import NameSource, Node
from ortrain.ops.registry.record import KernelCall
from ortrain.ops.registry.shape_inference import Inference
from ortrain.ops.training import BUFFER_SUFFIX
from ortrain.plan.epilogue_fusion.optimizer_update import merge_updates
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Step

MIN_BYTES = 1 << 16
"""Smaller gradients are not worth an update of their own."""
MIN_COMPUTED = 1 << 20
"""Smaller ones are computed by the train step in any case, while what they are computed of is in the caches."""


class ParameterUpdates(Protocol):
    """What deferred updates are made with."""

    @property
    def masks(self) -> Mapping[str, np.ndarray]:
        """One for each parameter that can be updated, by its name."""

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """What updates read and write besides parameters and gradients, by the names that nodes have for it."""

    def update_node(self, accumulation: Node, gradient: str, flag: str) -> Node:
        """The update from `gradient` of the parameter whose gradient the accumulation adds to; its output is `flag`."""


@dataclass(slots=True)
class DeferredGradients:
    """The steps of a program that leaves gradients until later."""

    now: list[Step] = field(default_factory=list)
    updates: list[Step] = field(default_factory=list)
    """Update parameters from gradients that they compute."""
    gradients: list[Step] = field(default_factory=list)
    """Compute the gradients and accumulate them."""
    names: set[str] = field(default_factory=set)
    """The parameters."""

    @property
    def steps(self) -> list[Step]:
        """All, in this order."""
        return [*self.now, *self.updates, *self.gradients]

    def held(self, lifetimes: Lifetimes) -> set[str]:
        """The values that are held for deferred steps."""
        made = {name for step in self.now for name in step.outputs if name}
        return made & {lifetimes.unaliased(name) for step in self.updates for name in step.inputs if name}


@dataclass(slots=True)
class Candidate:
    """A gradient that may be deferred."""

    accumulation: Step
    value: str
    """The gradient as a step makes it: perhaps another shape of what is accumulated."""
    made: Step | None
    """What computes it, if that is deferred as well."""
    held: set[str]
    """The values that are held for it: the gradient itself, or what it is computed of."""

    @property
    def parameter(self) -> str:
        return self.accumulation.inputs[0].removesuffix(BUFFER_SUFFIX)


def defer_gradients(steps: Sequence[Step], lifetimes: Lifetimes, inference: Inference, names: NameSource, updates: ParameterUpdates, lower: Callable[[Node], list[Step]],
            is_accumulation: Callable[[Step], bool], stays: Callable[[Step], bool], inputs: Collection[str]) -> DeferredGradients:
    """The steps with gradients deferred.

    lower: the steps of a node. is_accumulation: steps that add a value to a gradient. stays: steps that are not to be moved. inputs: the user's, which are gone
    when deferred steps run."""
    work = GradientDeferral(steps, lifetimes, inference, names, updates, lower, inputs)
    return work.run(list(work.choose(is_accumulation, stays)))


class GradientDeferral:
    """The work of one pass."""

    def __init__(self, steps: Sequence[Step], lifetimes: Lifetimes, inference: Inference, names: NameSource, updates: ParameterUpdates,
                 lower: Callable[[Node], list[Step]], inputs: Collection[str]) -> None:
        self.steps, self.lifetimes, self.inference, self.names, self.updates, self.inputs = steps, lifetimes, inference, names, updates, inputs
        self.lower = lower
        self.copies: dict[str, str] = {}
        """User input -> its copy."""

    # ---- which

    def choose(self, is_accumulation: Callable[[Step], bool], stays: Callable[[Step], bool]) -> Iterator[Candidate]:
        """The gradients worth being deferred, in the order in which they are accumulated."""
        unaliased, nbytes = self.lifetimes.unaliased, self.lifetimes.nbytes
        made = {name: step for step in self.steps for name in step.outputs if name}
        readers = Counter(name for step in self.steps for name in map(unaliased, filter(None, step.inputs)))
        wanted = set(map(unaliased, self.lifetimes.wanted))
        accumulations = [step for step in self.steps if is_accumulation(step)]
        buffers = Counter(step.inputs[0] for step in accumulations)
        held: set[str] = set()
        for step in accumulations:
            candidate = Candidate(step, unaliased(step.inputs[1]), None, {unaliased(step.inputs[1])})
            value = candidate.value
            if (value not in made or nbytes(value) < MIN_BYTES or candidate.parameter not in self.updates.masks or buffers[step.inputs[0]] > 1
                    or not wanted.isdisjoint(step.outputs)):
                continue
            maker = made[value]
            if nbytes(value) >= MIN_COMPUTED and readers[value] == 1 and value not in wanted and not stays(maker) and not is_accumulation(maker):
                sources = self._sources(maker)
                if sources is not None and spares(nbytes(value), sum(nbytes(name) for name in sources - held)):
                    candidate = Candidate(step, value, maker, sources)
            held |= candidate.held
            yield candidate

    def _sources(self, maker: Step) -> set[str] | None:
        """What has to be held for a step to run later; None where others may write to it until then, or other values wait for the step."""
        names = {name for name in map(self.lifetimes.unaliased, filter(None, maker.inputs)) if name not in self.inference.values}
        alone = len(list(filter(None, maker.outputs))) == 1
        return names if alone and all(name in self.inputs or not self.lifetimes.is_outside(name) for name in names) else None

    # ---- how

    def run(self, chosen: Iterable[Candidate]) -> DeferredGradients:
        """The steps with these gradients deferred."""
        deferred = DeferredGradients()
        candidates = {id(candidate.accumulation): candidate for candidate in chosen}
        makers = {id(candidate.made): candidate for candidate in candidates.values() if candidate.made is not None}
        for step in self.steps:
            if id(step) in makers:
                deferred.now += self._copies_for(makers[id(step)])
            elif id(step) in candidates:
                self._add_deferred(candidates[id(step)], deferred)
            else:
                deferred.now.append(step)
        return deferred

    def _copies_for(self, candidate: Candidate) -> Iterator[Step]:
        """Copies of user inputs that it needs, once; from then on it reads them."""
        for name in sorted(candidate.held):
            if name in self.inputs and name not in self.copies:
                kind = self.inference.types[name]
                copy = self.copies[name] = self.names.unique(f"{name}::held")
                self.inference.types[copy] = kind
                call = KernelCall("copy", (numpy_dtype(kind.dtype).itemsize,))
                yield Step(Node("Identity", [name], [copy], f"copy of {name}"), call, [name], [copy], None, BUILTIN_KERNELS["copy"])

    def _held(self, name: str) -> str:
        copy = self.copies.get(self.lifetimes.unaliased(name))
        if copy is None:
            return name
        return copy if name in self.copies else self.lifetimes.renamed(name, copy)

    def _add_deferred(self, candidate: Candidate, deferred: DeferredGradients) -> None:
        accumulation, value, gradient = candidate.accumulation, candidate.value, candidate.accumulation.inputs[1]
        nodes: list[Node] = []
        if candidate.made is not None:
            again = self.names.unique(f"{value}::spent")
            gradient = again if gradient == value else self.lifetimes.renamed(gradient, again)
            nodes.append(self._reading_copies(candidate.made.node, again))
            deferred.gradients += self._lowered(self._reading_copies(candidate.made.node, value))
        deferred.gradients.append(accumulation)
        nodes.append(self.updates.update_node(accumulation.node, gradient, self.names.unique(f"{accumulation.outputs[0]}::update")))
        for node in nodes:
            self.inference.visit(node)
        for node in merge_updates(nodes, self.inference, ()):
            deferred.updates += self._lowered(node)
        deferred.names.add(candidate.parameter)

    def _reading_copies(self, node: Node, value: str) -> Node:
        """A node that computes a value as another one does, from copies of the user's inputs."""
        return Node(node.op_type, [self._held(name) for name in node.inputs], [value if name else "" for name in node.outputs], node.name, node.domain,
                    node.attributes)

    def _lowered(self, node: Node) -> list[Step]:
        """Its steps; what its indices are checked for stays where it was."""
        return [step for step in self.lower(node) if step.guard is None]
