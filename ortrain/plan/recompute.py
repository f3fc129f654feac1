"""Recomputation: activations that one cheap pass can make again are dropped after the forward pass and made again right before the backward pass needs them.

What a record's `again` offers alone is made again (a normalisation from what it normalised, which its gradient reads anyway), never a product or a
convolution. A residual of blocks is made again block by block from the first on, in one sweep where the last one is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ortrain.ops.costs import operations, traffic
from ortrain.plan.lifetimes import Lifetimes, live_bytes
from ortrain.plan.steps import Step

LEAST_BYTES = 1 << 16
"""Smaller values are not worth a step of their own."""
SHARE = 0.02
"""Of a program's reckoned time: what recomputation may add."""
OPERATIONS_PER_BYTE = 4
"""Floating-point operations of a product or convolution in the time in which a byte is moved: 80 GFLOP/s and 20 GB/s of a core (docs/performance.md)."""
SMALL = 16
"""A value of at most this part of another may be kept longer for it."""


@dataclass(slots=True)
class Candidate:
    """A value that can be made again."""

    value: str
    made: int
    """The number of the step that makes it."""
    step: Step
    """What makes it again, under the name of `step.outputs[0]`."""
    size: int
    moved: int
    """Bytes that making it again reads and writes."""


@dataclass(slots=True)
class Schedule:
    """Steps with recomputation."""

    steps: list[Step]
    moment: int
    """When the most bytes are in use."""
    peak: int
    """How many."""
    again: list[str]
    """The candidates that are there at that moment because they have been made again by then."""


Chosen = dict[str, int]
"""Candidate -> a moment at which it is not to be there."""


def recompute(steps: list[Step], lifetimes: Lifetimes, again: Callable[[Step], Step | None]) -> list[Step]:
    """The steps with recomputation where the most bytes are in use at once, as far as it lowers them and stays cheap.

    again: the step that makes the first output of a step once more, None where there is none."""
    work = Recomputation(steps, lifetimes, again)
    return work.run() if work.candidates else steps


class Recomputation:
    """The work of one pass. Moments are the numbers of the given steps: what is made again for step n comes right before it, at the same moment."""

    def __init__(self, steps: list[Step], lifetimes: Lifetimes, again: Callable[[Step], Step | None]) -> None:
        self.steps, self.lifetimes = steps, lifetimes
        self.last = dict.fromkeys(map(lifetimes.unaliased, lifetimes.wanted), len(steps))
        """Value -> its last use, whatever is written over it then."""
        self.readers: dict[str, list[int]] = {}
        for moment, step in enumerate(steps):
            for name in dict.fromkeys(filter(None, step.inputs)):
                self.readers.setdefault(name, []).append(moment)
                self.last[lifetimes.unaliased(name)] = max(moment, self.last.get(lifetimes.unaliased(name), 0))
        self.candidates = self._find(again)

    def run(self) -> list[Step]:
        """Lowers one peak after the other: by what is not kept until then, or else by keeping something that has been made again by then."""
        chosen: Chosen = {}
        best = self._schedule(chosen)
        budget = SHARE / OPERATIONS_PER_BYTE * self._reckoned_operations()
        while True:
            trials = [chosen | self._more(chosen, best.moment, budget)]
            schedules = [self._schedule(trials[0])]
            if schedules[0].peak >= best.peak:
                trials = [{value: moment for value, moment in chosen.items() if value != kept} for kept in best.again]
                schedules = [self._schedule(trial) for trial in trials]
            lowest = min(range(len(trials)), key=lambda number: schedules[number].peak, default=0)
            if not trials or schedules[lowest].peak >= best.peak:
                return best.steps
            chosen, best = trials[lowest], schedules[lowest]

    def _more(self, chosen: Chosen, moment: int, budget: float) -> Chosen:
        """What else need not be there at a moment, as far as the budget of bytes moved goes."""
        more: Chosen = {}
        left = budget - sum(self.candidates[value].moved for value in chosen)
        for candidate in self.candidates.values():
            gap = self._gap(self.readers[candidate.value], candidate, moment)
            if candidate.value not in chosen and gap is not None:
                group = [c for c in self._with_sources(candidate, gap[1]) if c.value not in chosen and c.value not in more]
                cost = sum(c.moved for c in group)
                if cost <= left:
                    more |= {c.value: moment for c in group}
                    left -= cost
        return more

    def _with_sources(self, candidate: Candidate, moment: int) -> list[Candidate]:
        """A candidate and what it is made of as far as that has to be made again for it; nothing where it would have to be kept for it."""
        found = [candidate]
        for name in filter(None, candidate.step.inputs):
            if not self._is_there(name, moment, candidate):
                sources = self._with_sources(self.candidates[name], moment) if name in self.candidates else []
                if not sources:
                    return []
                found += sources
        return found

    # ---- what there is

    def _find(self, again: Callable[[Step], Step | None]) -> dict[str, Candidate]:
        """The candidates by value, those with the most bytes saved for each byte moved first."""
        found, shared = [], set(self.lifetimes.alias.values())
        for moment, step in enumerate(self.steps):
            value = step.outputs[0] if step.outputs else ""
            if value not in self.readers or step.guard is not None or value in shared or value in self.lifetimes.wanted:
                continue
            size = self.lifetimes.nbytes(value)
            made = again(step) if size >= LEAST_BYTES else None
            if made is not None:
                found.append(Candidate(value, moment, made, size, traffic([self.lifetimes.types[name] for name in (*made.inputs, *made.outputs) if name])))
        return {c.value: c for c in sorted(found, key=lambda c: (c.moved / c.size, -c.size))}

    def _reckoned_operations(self) -> float:
        """The program's time in operations: those of its steps, and bytes moved."""
        total = 0
        for step in self.steps:
            inputs, outputs = ([self.lifetimes.types.get(name) if name else None for name in names] for names in (step.inputs, step.outputs))
            total += (operations(step.node.op_type, step.node.attributes, inputs, outputs) or 0) + OPERATIONS_PER_BYTE * traffic([*inputs, *outputs])
        return total

    @staticmethod
    def _gap(readers: Sequence[int], candidate: Candidate, moment: int) -> tuple[int, int] | None:
        """(last use before a moment, first use after it) where a value is in use before and after it, but not then."""
        before = max((use for use in (candidate.made, *readers) if use <= moment), default=moment)
        after = min((use for use in readers if use > moment), default=moment)
        return (before, after) if before < moment < after else None

    # ---- the steps

    def _schedule(self, chosen: Chosen) -> Schedule:
        """The steps in which chosen candidates are made again. Values made last come first, so that what makes them again is a use of what they are of."""
        steps = list(self.steps)
        extra: dict[int, list[Step]] = {}                # moment -> what is made again for it, last first
        readers = {name: list(self.readers[name]) for name in chosen}
        for candidate in sorted(map(self.candidates.__getitem__, chosen), key=lambda c: -c.made):
            value, moment = candidate.value, chosen[candidate.value]
            gap = self._gap(readers[value], candidate, moment)
            if gap is None:
                continue
            names = {value: candidate.step.outputs[0]}
            for use in readers[value]:
                if use > moment:
                    steps[use] = _renamed(steps[use], names)
                    extra[use] = [_renamed(step, names) for step in extra.get(use, ())]
            extra.setdefault(gap[1], []).append(candidate.step)
            for name in candidate.step.inputs:
                if name in readers:
                    readers[name].append(gap[1])
        moments = [(moment, step) for moment in range(len(steps)) for step in (*reversed(extra.get(moment, ())), steps[moment])]
        result = [step for _, step in moments]
        blocks = self.lifetimes.blocks(result)
        live = live_bytes(result, blocks)
        peak = max(live)
        fullest = live.index(peak)
        made = {value: blocks[name] for value in chosen if (name := self.lifetimes.root(self.candidates[value].step.outputs[0])) in blocks}
        return Schedule(result, moments[fullest][0], peak, [value for value, block in made.items() if block.first < fullest <= block.last])

    def _is_there(self, name: str, moment: int, candidate: Candidate) -> bool:
        """Whether a value is in the arena at a moment anyway, or lies outside of it, or may stay until then."""
        source = self.lifetimes.unaliased(name)
        return self.lifetimes.is_outside(source) or self.last[source] >= moment or SMALL * self.lifetimes.nbytes(source) <= candidate.size


def _renamed(step: Step, names: dict[str, str]) -> Step:
    return replace(step, inputs=[names.get(name, name) for name in step.inputs])
