"""Rematerialization: activations that are cheap to make again are dropped after the forward pass and made again right before the backward pass needs them.

The cheapest for each byte come first: a normalization from what it normalized, which its gradient reads anyway, and what works element by element; then, as far
as a session's share of time goes, convolutions and products. A residual of blocks is made again block by block from the first on, in one sweep where the last
one is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ortrain._core.symbolic import plain, spares
from ortrain.plan.liveness import Lifetimes, live_bytes
from ortrain.plan.steps import Step

MIN_BYTES = 1 << 16
"""Smaller values are not worth a step of their own."""
OPERATIONS_PER_BYTE = 8
"""Floating-point operations of a product or convolution in the time in which a byte is moved: a core's 80 GFLOP/s and 20 GB/s (AVX2) to 210 and 18 (tiles)."""
MIN_SHARE = 0.01
"""Shares are spent in rounds, each twice the one before, from this one on: spent at once, a large one goes for a peak's values whose sweeps make others."""
WORTH = 0.1
"""Of the memory: what rematerialization has to free at least for the whole of a program's time, so that a tenth of the time frees a hundredth."""
MAX_SCHEDULED = 1 << 18
"""Steps, of all schedules that are tried for one order: 1.4 s. resnet50 takes 24,000 for 3 % of its time, 144,000 for a half."""
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
    names: dict[str, str]
    """The value and its aliases -> what they are called from then on."""
    size: int
    cost: int
    """Of making it again, in operations."""


@dataclass(slots=True)
class Schedule:
    """Steps with rematerialization."""

    steps: list[Step]
    moment: int
    """When the most bytes are in use."""
    peak: int
    """How many."""
    again: list[str]
    """The candidates that are there at that moment because they have been made again by then."""


Chosen = dict[str, int]
"""Candidate -> a moment at which it is not to be there."""


def rematerialize(steps: list[Step], lifetimes: Lifetimes, again: Callable[[Step], Step | None], share: float, held: int) -> list[Step]:
    """The steps with rematerialization where the most bytes are in use at once, as far as it lowers them and stays cheap.

    again: the step that makes the first output of a step once more, None where there is none. share: of the program's reckoned time, what rematerialization may
    add. held: bytes that the program uses besides: parameters and the like."""
    if share <= 0:
        return steps
    work = Rematerialization(steps, lifetimes, again, held)
    return work.run(share) if work.candidates else steps


class Rematerialization:
    """The work of one pass. Moments are the numbers of the given steps: what is made again for step n comes right before it, at the same moment."""

    def __init__(self, steps: list[Step], lifetimes: Lifetimes, again: Callable[[Step], Step | None], held: int) -> None:
        self.steps, self.lifetimes, self.held = steps, lifetimes, held
        self.scheduled = 0
        self.tried: set[frozenset[tuple[str, int]]] = set()
        self.wanted = set(map(lifetimes.unaliased, lifetimes.stays()))
        self.readers: dict[str, list[int]] = {}
        """Value -> the moments at which it, or it under another shape, is read."""
        for moment, step in enumerate(steps):
            for name in dict.fromkeys(map(lifetimes.unaliased, filter(None, step.inputs))):
                self.readers.setdefault(name, []).append(moment)
        self.candidates = self._find(again)

    def run(self, share: float) -> list[Step]:
        """Spends the share, in rounds, as far as it was worth it in the end."""
        chosen: Chosen = {}
        best = self._schedule(chosen)
        seen = [(chosen, best)]
        whole, part = self.cost(self.steps), MIN_SHARE
        while True:
            seen += self._lower(*seen[-1], min(part, share) * whole)
            if part >= share:
                break
            part *= 2
        memory = WORTH * (best.peak + self.held)
        return min(seen, key=lambda pair: sum(self.candidates[value].cost for value in pair[0]) / whole + pair[1].peak / memory)[1].steps

    def _lower(self, chosen: Chosen, best: Schedule, budget: float) -> Iterator[tuple[Chosen, Schedule]]:
        """Lowers one peak after the other: by what is not kept until then, or else by keeping something that has been made again by then."""
        while True:
            more = [dict.fromkeys((c.value for c in group), best.moment) for group in self._more(chosen, best.moment, budget)]
            first = [more[:count] for count in sorted({len(more) >> halvings for halvings in range(len(more).bit_length())})]
            found = (self._lowest([chosen | {name: at for group in groups for name, at in group.items()} for groups in first], best)
                     or self._lowest([chosen | group for group in more[1:]], best)
                     or self._lowest([{value: moment for value, moment in chosen.items() if value != kept} for kept in best.again], best))
            if found is None:
                return
            chosen, best = found
            yield found

    def _lowest(self, trials: Sequence[Chosen], than: Schedule) -> tuple[Chosen, Schedule] | None:
        """The first of those with the lowest peak, if it is lower than another's, as far as there is time to try them. What was no lower once never is."""
        untried = [trial for trial in trials if frozenset(trial.items()) not in self.tried]
        self.tried.update(frozenset(trial.items()) for trial in untried)
        found = min(((trial, self._schedule(trial)) for trial in untried if self.scheduled < MAX_SCHEDULED), key=lambda pair: pair[1].peak, default=None)
        return found if found is not None and found[1].peak < than.peak else None

    def _more(self, chosen: Chosen, moment: int, budget: float) -> list[list[Candidate]]:
        """What else need not be there at a moment, as far as the budget goes, each with what has to be made again for it."""
        more: list[list[Candidate]] = []
        taken = set(chosen)
        left = budget - sum(self.candidates[value].cost for value in chosen)
        for candidate in self.candidates.values():
            gap = self._gap(self.readers[candidate.value], candidate, moment)
            if candidate.value not in taken and gap is not None:
                group = [c for c in self._with_sources(candidate, gap[1]) if c.value not in taken]
                cost = sum(c.cost for c in group)
                if group and cost <= left:
                    more.append(group)
                    taken |= {c.value for c in group}
                    left -= cost
        return more

    def _with_sources(self, candidate: Candidate, moment: int) -> list[Candidate]:
        """A candidate and what it is made of as far as that has to be made again for it; nothing where it would have to be kept for it."""
        found, unseen = {candidate.value: candidate}, [candidate]
        while unseen:
            made = unseen.pop()
            for name in map(self.lifetimes.unaliased, filter(None, made.step.inputs)):
                if name not in found and not self._is_there(name, moment, made):
                    if name not in self.candidates:
                        return []
                    found[name] = self.candidates[name]
                    unseen.append(found[name])
        return list(found.values())

    # ---- what there is

    def _find(self, again: Callable[[Step], Step | None]) -> dict[str, Candidate]:
        """The candidates by value, those with the most bytes saved for each operation first."""
        found: list[Candidate] = []
        aliases: dict[str, list[str]] = {}
        for name in self.lifetimes.alias:
            aliases.setdefault(self.lifetimes.unaliased(name), []).append(name)
        for moment, step in enumerate(self.steps):
            value, *others = step.outputs or [""]
            if value not in self.readers or step.guard is not None or value in self.wanted or self.lifetimes.is_outside(value):
                continue
            size = self.lifetimes.nbytes(value)
            if not (spares(size, MIN_BYTES) and spares(size, SMALL * sum(self.lifetimes.nbytes(name) for name in others if name))):
                continue
            made = again(step)
            if made is not None:
                names = {value: made.outputs[0]} | {name: self.lifetimes.renamed(name, made.outputs[0]) for name in aliases.get(value, ())}
                found.append(Candidate(value, moment, made, names, plain(size), self.cost([made])))
        return {c.value: c for c in sorted(found, key=lambda c: (c.cost / c.size, -c.size))}

    def cost(self, steps: Sequence[Step]) -> int:
        """Their time in operations: those that they do, and bytes that they move."""
        types = self.lifetimes.types
        return sum(plain(step.operations(types) or 0) + OPERATIONS_PER_BYTE * plain(step.traffic(types)) for step in steps)

    @staticmethod
    def _gap(readers: Sequence[int], candidate: Candidate, moment: int) -> tuple[int, int] | None:
        """(last use before a moment, first use after it) where a value is in use before and after it, but not then."""
        before = max((use for use in (candidate.made, *readers) if use <= moment), default=moment)
        after = min((use for use in readers if use > moment), default=moment)
        return (before, after) if before < moment < after else None

    # ---- the steps

    def _schedule(self, chosen: Chosen) -> Schedule:
        """The steps in which chosen candidates are made again. Values made last come first, so that what makes them again is a use of what they are of."""
        self.scheduled += len(self.steps)
        extra: dict[int, list[Step]] = {}                # moment -> what is made again for it, last first
        names: dict[int, dict[str, str]] = {}            # moment -> what is called otherwise from there on
        readers = {name: list(self.readers[name]) for name in chosen}
        for candidate in sorted(map(self.candidates.__getitem__, chosen), key=lambda c: -c.made):
            value, moment = candidate.value, chosen[candidate.value]
            gap = self._gap(readers[value], candidate, moment)
            if gap is None:
                continue
            for use in readers[value]:
                if use > moment:
                    names.setdefault(use, {}).update(candidate.names)
            extra.setdefault(gap[1], []).append(candidate.step)
            for name in map(self.lifetimes.unaliased, filter(None, candidate.step.inputs)):
                if name in readers:
                    readers[name].append(gap[1])
        moments = [(moment, _renamed(made, names.get(moment, {})))
                   for moment, step in enumerate(self.steps) for made in (*reversed(extra.get(moment, ())), step)]
        result = [step for _, step in moments]
        blocks = self.lifetimes.blocks(result)
        live = live_bytes(result, blocks)
        peak = max(live)
        fullest = live.index(peak)
        made = {value: blocks[name] for value in chosen if (name := self.lifetimes.root(self.candidates[value].step.outputs[0])) in blocks}
        return Schedule(result, moments[fullest][0], peak, [value for value, block in made.items() if block.first < fullest <= block.last])

    def _is_there(self, name: str, moment: int, candidate: Candidate) -> bool:
        """Whether a value is in the arena at a moment anyway, or lies outside of it, or may stay until then."""
        return (self.lifetimes.is_outside(name) or name in self.wanted or self.readers.get(name, (0,))[-1] >= moment
                or SMALL * plain(self.lifetimes.nbytes(name)) <= candidate.size)


def _renamed(step: Step, names: dict[str, str]) -> Step:
    return step if names.keys().isdisjoint(step.inputs) else replace(step, inputs=[names.get(name, name) for name in step.inputs])
