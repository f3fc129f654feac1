"""Search: which steps of a plan can run in one pass.

A group must not depend on itself through a step outside of it. The search keeps, for every step or group, the set of
those that it depends on; a step joins a group that it reads from if no other operand depends on that group.

A step does not join a group that it would have to pass a large step for: a part of the backward pass, and above all a
recomputation, would otherwise run in the forward pass and its result be kept in memory."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence

from ortrain.ops.training import WRITTEN
from ortrain.plan.elementwise_fusion.group import Group
from ortrain.plan.elementwise_fusion.pieces import REDUCTIONS, Piece, Pieces
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Step


class Dependencies:
    """The steps that a step must follow: those that compute its operands, and for written parameters and for checks
    the order of the plan.

    has_effect: whether a step writes to memory outside of the program. may_refuse: whether it may end the run."""

    def __init__(self, steps: Sequence[Step], lifetimes: Lifetimes, has_effect: Callable[[Step], bool], may_refuse: Callable[[Step], bool]) -> None:
        self.lifetimes = lifetimes
        self.producer = {lifetimes.unaliased(name): index for index, step in enumerate(steps) for name in step.outputs if name}
        self.ordered: list[set[int]] = [set() for _ in steps]
        """For each step, those that it must follow for other reasons than its operands."""
        self._order_writes(steps)
        refusal = -1
        for index, step in enumerate(steps):
            refuses = may_refuse(step)
            if refusal >= 0 and (refuses or has_effect(step)):
                self.ordered[index].add(refusal)
            refusal = index if refuses else refusal

    def _order_writes(self, steps: Sequence[Step]) -> None:
        """Order the readers and writers of memory that steps overwrite."""
        unaliased = self.lifetimes.unaliased
        written = [{unaliased(step.inputs[i]) for i in WRITTEN.get(step.node.op_type, ()) if step.guard is None and i < len(step.inputs)} for step in steps]
        tracked = set().union(*written)
        if not tracked:
            return
        last_write: dict[str, int] = {}
        reads: dict[str, list[int]] = {}
        for index, step in enumerate(steps):
            for value in tracked.intersection(map(unaliased, filter(None, step.inputs))):
                if value in last_write:
                    self.ordered[index].add(last_write[value])
                if value in written[index]:
                    self.ordered[index].update(reads.pop(value, ()))
                    last_write[value] = index
                else:
                    reads.setdefault(value, []).append(index)

    def of_values(self, values: Iterable[str]) -> set[int]:
        """Return the steps that compute values."""
        return {self.producer[value] for value in values if value in self.producer}

    def of_step(self, index: int, step: Step) -> set[int]:
        """Return the steps that a step must follow."""
        return self.of_values(map(self.lifetimes.unaliased, filter(None, step.inputs))) | self.ordered[index]


SMALL_KERNELS = REDUCTIONS | {"accumulate", "strided_copy"}
"""Kernels that a step may pass to join a group: their steps take no longer than elementwise ones."""


class Search:
    """One search over the steps of a plan; `groups` has the result, by the index of each group's first step.

    is_strict: whether no step of a group may pass a large step, even if they do not depend on each other."""

    def __init__(self, steps: Sequence[Step], pieces: Pieces, dependencies: Dependencies, is_strict: bool) -> None:
        self.dependencies, self.is_strict = dependencies, is_strict
        self.large: list[int] = []
        """The steps so far that are large and in no group."""
        self.groups: dict[int, Group] = {}
        self.owner = list(range(len(steps)))
        """For each step, the first step of its group; the step itself for the others."""
        self.ancestors = [0] * len(steps)
        """For each group, bits of the steps that it depends on, directly or not."""
        for index, step in enumerate(steps):
            self._add(index, step, pieces)

    def _add(self, index: int, step: Step, pieces: Pieces) -> None:
        found = pieces.of(step)
        own = {piece.output for piece in found}
        operands = [operand.value for piece in found for operand in piece.inputs if operand.value not in own]
        before = self.dependencies.of_values(operands) | self.dependencies.ordered[index] if found else self.dependencies.of_step(index, step)
        owners = {self.owner[earlier] for earlier in before}
        if any(self._join(index, found, first, owners) for first in sorted(owners & self.groups.keys(), reverse=True)
               if found and not self._passes_large_step(first)):
            return
        group = Group.of(index, found) if found else None
        if group is not None:
            self.groups[index] = group
        elif step.outputs and step.call.kernel not in SMALL_KERNELS:
            self.large.append(index)
        for owner in owners:
            self.ancestors[index] |= self.ancestors[owner] | 1 << owner

    def _passes_large_step(self, first: int) -> bool:
        """Return whether the next step would have to pass a large step to join a group."""
        last = self.groups[first].pieces[-1][0]
        return any(self.is_strict or self._depends(large, [first]) for large in self.large[bisect(self.large, last) :])

    def _depends(self, step: int, on: Iterable[int]) -> bool:
        return any(self.ancestors[step] >> other & 1 for other in on)

    def _join(self, index: int, found: Sequence[Piece], first: int, owners: set[int]) -> bool:
        """Add the pieces of a step to group `first`, and merge other groups that the step reads from with it. Return
        whether that is possible."""
        group, taken = self.groups[first], [first]
        for other in sorted(owners & self.groups.keys() - {first}):
            if not self._passes_large_step(other) and not self._depends(other, taken) and not any(self._depends(each, [other]) for each in taken):
                merged = group.merged(self.groups[other])
                if merged is not None:
                    group, taken = merged, [*taken, other]
        joined = self._with_pieces(group, index, found)
        if joined is None and len(taken) > 1:
            joined, taken = self._with_pieces(self.groups[first], index, found), [first]
        others = owners.difference(taken)
        if joined is None or any(self._depends(other, taken) for other in others):
            return False
        self._record(joined, index, taken, others)
        return True

    @staticmethod
    def _with_pieces(group: Group, index: int, found: Sequence[Piece]) -> Group | None:
        joined: Group | None = group
        for piece in found:
            joined = joined.with_piece(index, piece) if joined is not None else None
        return joined

    def _record(self, joined: Group, index: int, taken: Sequence[int], others: Iterable[int]) -> None:
        """Replace the groups `taken` by one that also has step `index` and depends on `others`."""
        target, bits, before = min(taken), 0, 0
        for each in taken:
            del self.groups[each]
            bits |= 1 << each
            before |= self.ancestors[each]
        for other in others:
            before |= self.ancestors[other] | 1 << other
        is_unchanged = len(taken) == 1 and before == self.ancestors[target]
        self.groups[target], self.ancestors[target] = joined, before
        for step, _ in joined.pieces:
            self.owner[step] = target
        if not is_unchanged:
            for step in range(target, index):
                if self.ancestors[step] & bits:
                    self.ancestors[step] |= before | 1 << target
