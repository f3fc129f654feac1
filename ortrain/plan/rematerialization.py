"""Rematerialization: activations that are cheap to recompute are dropped after the forward pass and recomputed right
before the backward pass reads them.

Candidates are ranked by cost per byte saved, once by their own cost and once with that of operands that must be recomputed
for them, and the better schedule is taken: neither ranking is best for all models. The cheapest are normalizations, whose gradients read their inputs
anyway, and elementwise operators; convolutions and matrix multiplications follow as far as the session's time budget
allows. In a chain of residual blocks the inputs of several blocks are recomputed in one sweep, block by block, where
the last of them is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ortrain._core.symbolic import memory_at_least, size_hint
from ortrain.ir import TensorType
from ortrain.plan.liveness import OPERATIONS_PER_BYTE, Lifetimes
from ortrain.plan.steps import Step

MIN_BYTES = 1 << 16
"""Minimum size of a value to rematerialize: for smaller ones the extra step is not worth it."""
FIRST_ROUND_SHARE = 0.01
"""Share of the program's time to spend in the first round; each further round doubles it up to the session's limit.

Spent at once, a large share would go into the values of the first peak, whose recomputations create new peaks."""
MIN_FREED_PER_TIME = 2
"""Exchange rate of time for memory: rematerialization that costs a fraction t of the program's time must free at
least this times t of the memory in use. Below 2, matrix multiplications of gpt-mini and bert-mini run twice, which
takes 4 % of a step and saves 17 and 19 % of an arena that is small beside the parameters. Up to 5, densenet is the same."""
PRICED_SHARE = 0.07
"""The greatest share of the program's time to which the exchange rate applies, that of sessions without a share of their own.
A greater share values memory more: it falls in proportion."""
MAX_SCHEDULED_STEPS = 1 << 18
"""Limit of the search, as the total number of steps of all schedules tried for one order: 1.4 s. resnet50 takes
44,000 at a share of 3 %, 135,000 at 40 %."""
NEAR_FLOOR = 1.05
"""Ratio of the peak to the memory of what is live at the end, such as gradients for the optimizer step, up to which nothing is tried: of 64 dense layers of
128 with 128 rows, whose ratio is 1.02, the search took a quarter of the plan's time and freed nothing."""
NEGLIGIBLE_RATIO = 16
"""A value smaller than another by at least this factor may be kept live longer to recompute the other."""


@dataclass(slots=True)
class Candidate:
    """A value that can be recomputed."""

    value: str
    producer_point: int
    """The point of the step that computes the value in the forward pass."""
    step: Step
    """The step that recomputes the value, under the name `step.outputs[0]`."""
    names: dict[str, str]
    """The value and its aliases -> the names to read after the recomputation."""
    size: int
    cost: int
    """Cost of the recomputation, in operations; 0 for a value of weights alone, which takes little of the time of the product that reads it."""


@dataclass(slots=True)
class Schedule:
    """The steps of a selection, with its recomputations."""

    steps: list[Step]
    peak_point: int
    """The point where most bytes are live."""
    peak: int
    """The number of bytes live there."""
    recomputed: list[str]
    """The selected candidates that are live there because they were recomputed before."""


Selection = dict[str, int]
"""Candidate -> a point at which it must not be live."""


def estimated_time(steps: Sequence[Step], types: Mapping[str, TensorType]) -> int:
    """Return the estimated time of steps in operations: their own, and those in the time of their memory traffic. types: of all values."""
    return sum(size_hint(step.operations(types) or 0) + OPERATIONS_PER_BYTE * size_hint(step.traffic(types)) for step in steps)


def rematerialize(steps: list[Step], lifetimes: Lifetimes, recomputation: Callable[[Step], Step | None], share: float, other_bytes: int) -> list[Step]:
    """Return the steps with recomputations that lower the peak memory.

    recomputation: returns a step that computes the first output of a step once more, None if that is not possible.
    share: the estimated fraction of the program's time that recomputations may add. other_bytes: memory that the
    program uses besides the arena, such as parameters."""
    if share <= 0 or lifetimes.peak(steps) <= NEAR_FLOOR * _floor(lifetimes):
        return steps
    search = Rematerialization(steps, lifetimes, recomputation, other_bytes)
    return search.run(share) if search.candidates else steps


def _floor(lifetimes: Lifetimes) -> int:
    """Return the bytes of the arena that are live after the last step, whatever is recomputed."""
    values = {name for name in map(lifetimes.unaliased, lifetimes.live_to_end()) if not lifetimes.is_outside(name)}
    return sum(map(lifetimes.planned_bytes, values))


class Rematerialization:
    """One rematerialization pass. Points are indices of the original steps; a recomputation for step n runs right
    before it, at the same point."""

    def __init__(self, steps: list[Step], lifetimes: Lifetimes, recomputation: Callable[[Step], Step | None], other_bytes: int) -> None:
        self.steps, self.lifetimes, self.other_bytes = steps, lifetimes, other_bytes
        self.scheduled_steps = 0
        self.schedules: dict[frozenset[tuple[str, int]], Schedule] = {}
        self.tried_selections: set[frozenset[tuple[str, int]]] = set()
        self.renamed_steps: dict[tuple[int, tuple[str, ...]], Step] = {}
        self.live_to_end = set(map(lifetimes.unaliased, lifetimes.live_to_end()))
        self.readers: dict[str, list[int]] = {}
        """Value -> the points at which it, or an alias of it, is read."""
        for point, step in enumerate(steps):
            for name in dict.fromkeys(map(lifetimes.unaliased, filter(None, step.inputs))):
                self.readers.setdefault(name, []).append(point)
        self.candidates = self._find_candidates(recomputation)

    def run(self, share: float) -> list[Step]:
        """Spend up to the share of the program's time; return the steps of the schedule with the best trade of time for
        memory."""
        selection: Selection = {}
        initial = self._schedule(selection)
        program_cost = estimated_time(self.steps, self.lifetimes.types)
        found = [(selection, initial)]
        for with_operands in (False, True):
            found += self._spend(share, program_cost, selection, initial, with_operands)
        memory_for_time = MIN_FREED_PER_TIME * min(1, PRICED_SHARE / share) * (initial.peak + self.other_bytes)

        def price(trial: tuple[Selection, Schedule]) -> float:
            time = sum(self.candidates[value].cost for value in trial[0]) / program_cost
            return time + trial[1].peak / memory_for_time

        return min(found, key=price)[1].steps

    def _spend(self, share: float, program_cost: int, selection: Selection, schedule: Schedule, with_operands: bool) -> list[tuple[Selection, Schedule]]:
        """Spend up to the share of the program's time in rounds; return the selections of all rounds with their schedules.

        with_operands: rank candidates by their cost with that of their operands. A bias is added in no time, and yet the
        matrix product before it may have to be computed again for it. In a chain of blocks, on the other hand, the operands
        of one candidate are others that are to be dropped as well."""
        self.tried_selections.clear()
        found, round_share = [(selection, schedule)], FIRST_ROUND_SHARE
        while True:
            found += self._reduce_peaks(*found[-1], min(round_share, share) * program_cost, with_operands)
            if round_share >= share:
                return found
            round_share *= 2

    def _reduce_peaks(self, selection: Selection, schedule: Schedule, budget: float, with_operands: bool) -> Iterator[tuple[Selection, Schedule]]:
        """Lower one peak after the other: by dropping values that are live there, or else by keeping a value that was
        recomputed before."""
        while True:
            groups_to_drop = self._groups_to_drop(selection, schedule.peak_point, budget, with_operands)
            drops = [dict.fromkeys((c.value for c in group), schedule.peak_point) for group in groups_to_drop]
            prefixes = [drops[:count] for count in sorted({len(drops) >> halvings for halvings in range(len(drops).bit_length())})]
            better = (self._best_below([selection | {name: point for group in groups for name, point in group.items()} for groups in prefixes], schedule)
                     or self._best_below([selection | group for group in drops[1:]], schedule)
                     or self._best_below([{value: point for value, point in selection.items() if value != kept} for kept in schedule.recomputed], schedule))
            if better is None:
                return
            selection, schedule = better
            yield better

    def _best_below(self, trials: Sequence[Selection], schedule: Schedule) -> tuple[Selection, Schedule] | None:
        """Return the first of the selections with the lowest peak and its schedule, if the peak is below that of
        `schedule`; else None.

        Selections that were tried before are skipped: they did not lower the peak then."""
        untried = [trial for trial in trials if frozenset(trial.items()) not in self.tried_selections]
        self.tried_selections.update(frozenset(trial.items()) for trial in untried)
        scheduled = ((trial, self._schedule(trial)) for trial in untried if self.scheduled_steps < MAX_SCHEDULED_STEPS)
        found = min(scheduled, key=lambda pair: pair[1].peak, default=None)
        return found if found is not None and found[1].peak < schedule.peak else None

    def _groups_to_drop(self, selection: Selection, point: int, budget: float, with_operands: bool) -> list[list[Candidate]]:
        """Return candidates that need not be live at a point, as far as the budget allows, each with the values to
        recompute for it."""
        groups: list[list[Candidate]] = []
        taken = set(selection)
        left = budget - sum(self.candidates[value].cost for value in selection)
        for candidate, next_use in self._droppable(taken, point, with_operands):
            if candidate.value not in taken:
                group = [c for c in self._with_operands(candidate, next_use) if c.value not in taken]
                cost = sum(c.cost for c in group)
                if group and cost <= left:
                    groups.append(group)
                    taken |= {c.value for c in group}
                    left -= cost
        return groups

    def _droppable(self, taken: Collection[str], point: int, with_operands: bool) -> list[tuple[Candidate, int]]:
        """Return the candidates that are live at a point without being used there, each with its first use after the
        point; those with the lowest cost per byte first."""
        found = [(candidate, unused[1]) for candidate in self.candidates.values() if candidate.value not in taken
                 and (unused := self._unused_range(self.readers[candidate.value], candidate, point)) is not None]
        if not with_operands:
            return found

        def cost_per_byte(entry: tuple[Candidate, int]) -> float:
            return sum(c.cost for c in self._with_operands(*entry) if c.value not in taken) / entry[0].size

        return sorted(found, key=cost_per_byte)

    def _with_operands(self, candidate: Candidate, point: int) -> list[Candidate]:
        """Return a candidate and the operands that must be recomputed for it; nothing if an operand would have to be
        kept live for it."""
        found, unseen = {candidate.value: candidate}, [candidate]
        while unseen:
            dependent = unseen.pop()
            for name in map(self.lifetimes.unaliased, filter(None, dependent.step.inputs)):
                if name not in found and not self._is_available(name, point, dependent):
                    if name not in self.candidates:
                        return []
                    found[name] = self.candidates[name]
                    unseen.append(found[name])
        return list(found.values())

    # ---- candidates

    def _find_candidates(self, recomputation: Callable[[Step], Step | None]) -> dict[str, Candidate]:
        """Return the candidates by value, those with the lowest cost per byte first."""
        candidates: list[Candidate] = []
        of_weights = self.lifetimes.of_weights(self.steps)
        aliases: dict[str, list[str]] = {}
        for name in self.lifetimes.alias:
            aliases.setdefault(self.lifetimes.unaliased(name), []).append(name)
        for point, step in enumerate(self.steps):
            value, *others = step.outputs or [""]
            if value not in self.readers or step.guard is not None or value in self.live_to_end or self.lifetimes.is_outside(value):
                continue
            size = self.lifetimes.nbytes(value)
            if not (memory_at_least(size, MIN_BYTES)
                    and memory_at_least(size, NEGLIGIBLE_RATIO * sum(self.lifetimes.nbytes(name) for name in others if name))):
                continue
            second = recomputation(step)
            if second is not None:
                names = {value: second.outputs[0]} | {name: self.lifetimes.add_alias(name, second.outputs[0]) for name in aliases.get(value, ())}
                cost = 0 if value in of_weights else estimated_time([second], self.lifetimes.types)
                candidates.append(Candidate(value, point, second, names, size_hint(size), cost))
        return {c.value: c for c in sorted(candidates, key=lambda c: (c.cost / c.size, -c.size))}

    @staticmethod
    def _unused_range(readers: Sequence[int], candidate: Candidate, point: int) -> tuple[int, int] | None:
        """Return (last use up to a point, first use after it) if a value is in use before and after the point but not
        at it; else None."""
        before = max((use for use in (candidate.producer_point, *readers) if use <= point), default=point)
        after = min((use for use in readers if use > point), default=point)
        return (before, after) if before < point < after else None

    # ---- schedules

    def _schedule(self, selection: Selection) -> Schedule:
        """Return the steps with the selected candidates recomputed.

        Candidates are processed from the last produced to the first, because a recomputation counts as a use of its
        operands."""
        key = frozenset(selection.items())
        if key in self.schedules:
            return self.schedules[key]
        self.scheduled_steps += len(self.steps)
        recomputations: dict[int, list[Step]] = {}       # point -> steps that recompute for it, last first
        renames: dict[int, dict[str, str]] = {}     # point -> values that its step reads under other names
        readers = {name: list(self.readers[name]) for name in selection}
        for candidate in sorted(map(self.candidates.__getitem__, selection), key=lambda c: -c.producer_point):
            value, point = candidate.value, selection[candidate.value]
            unused = self._unused_range(readers[value], candidate, point)
            if unused is None:
                continue
            for use in readers[value]:
                if use > point:
                    renames.setdefault(use, {}).update(candidate.names)
            recomputations.setdefault(unused[1], []).append(candidate.step)
            for name in map(self.lifetimes.unaliased, filter(None, candidate.step.inputs)):
                if name in readers:
                    readers[name].append(unused[1])
        steps: list[Step] = []
        points: list[int] = []                           # of each step
        done = 0
        for point in sorted(renames.keys() | recomputations.keys()):
            names = renames.get(point, {})
            again = [self._with_renamed_inputs(step, names) for step in (*reversed(recomputations.get(point, ())), self.steps[point])]
            steps += self.steps[done:point] + again
            points += [*range(done, point), *[point] * len(again)]
            done = point + 1
        steps += self.steps[done:]
        points += range(done, len(self.steps))
        live, first, last = self.lifetimes.live_bytes(steps)
        peak = max(live)
        peak_index = live.index(peak)
        roots = {value: self.lifetimes.root(self.candidates[value].step.outputs[0]) for value in selection}
        live_at_peak = [value for value, root in roots.items() if root in first and first[root] < peak_index <= last[root]]
        self.schedules[key] = Schedule(steps, points[peak_index], peak, live_at_peak)
        return self.schedules[key]

    def _is_available(self, name: str, point: int, candidate: Candidate) -> bool:
        """Return whether a value is live at a point anyway, is stored outside the arena, or is small enough to be
        kept until then."""
        return (self.lifetimes.is_outside(name) or name in self.live_to_end or self.readers.get(name, (0,))[-1] >= point
                or NEGLIGIBLE_RATIO * size_hint(self.lifetimes.nbytes(name)) <= candidate.size)

    def _with_renamed_inputs(self, step: Step, names: Mapping[str, str]) -> Step:
        """Return a step with other names for some of its inputs, the same in every schedule."""
        if names.keys().isdisjoint(step.inputs):
            return step
        inputs = tuple([names.get(name, name) for name in step.inputs])
        key = id(step), inputs
        if key not in self.renamed_steps:
            self.renamed_steps[key] = replace(step, inputs=list(inputs))
        return self.renamed_steps[key]
