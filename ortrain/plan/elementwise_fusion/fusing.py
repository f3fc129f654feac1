"""The fusion pass over the ordered steps of a plan."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence

from ortrain._core.kernel_table import kernels
from ortrain._core.symbolic import memory_at_least
from ortrain.dtypes import BFLOAT16
from ortrain.ir import Node
from ortrain.ops.registry.record import ORTRAIN
from ortrain.plan.elementwise_fusion.assembly import Assembled, assemble
from ortrain.plan.elementwise_fusion.group import Group
from ortrain.plan.elementwise_fusion.pieces import Pieces
from ortrain.plan.elementwise_fusion.search import Dependencies, Search
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Step

MIN_ELEMENTS = 1 << 17
"""Minimum number of elements of a fused step: the operands of smaller steps stay in the second cache anyway, and each block costs the calls of its kernels.
Fused, chains of three to six operators take 0.97 to 1.08 as long as single steps on 2^15 elements, 0.86 to 1.09 on 2^16, and 0.74 to 1.00 on 2^17."""
MIN_RESTORED_ELEMENTS = 1 << 15
"""The same for a step that restores activations from bfloat16, which then need no memory in float32."""
CACHED_BYTES = 3 << 22
"""Number of bytes of all whole operands of a step that the last cache is taken to hold."""
MIN_TRAFFIC_RATIO = 3
"""Operands that the last cache does not hold are streamed at 70 GB/s by single steps, but only at 40 GB/s by fused ones, which turn from one operand to the
next after each block: the single steps must read and write more than this times as many bytes. Of 2^22 elements, with a ratio of 2.3 fused steps take 1.17 as
long as single ones, with 3 they take 1.00, with 3.3 they take 0.90 and with 3.5 they take 0.76; of 2^19 elements, 0.83, 0.85, 0.72 and 0.70."""
MAX_REJECTED = 6
"""Number of groups that are given up one by one before a larger peak ends the attempt."""


def fuse_elementwise(steps: list[Step], lifetimes: Lifetimes, has_effect: Callable[[Step], bool], may_refuse: Callable[[Step], bool],
                     read_later: Collection[str] = ()) -> list[Step]:
    """Return the steps with chains of elementwise steps fused, in an order that respects their dependencies and does not
    raise the peak memory.

    has_effect: whether a step writes to memory outside of the program. may_refuse: whether a step may end the run,
    which must be before any effect. read_later: values that steps outside of `steps` read."""
    kept = {*map(lifetimes.unaliased, read_later), *map(lifetimes.unaliased, lifetimes.live_to_end())}
    peak = lifetimes.peak(steps)
    for is_strict in (False, True):
        fusion = ElementwiseFusion(steps, lifetimes, has_effect, may_refuse, is_strict)
        for _ in range(MAX_REJECTED):
            fused = fusion.run(kept)
            if fused is steps:
                break
            live = lifetimes.live_bytes(fused)[0]
            if max(live) <= peak:
                return fused
            fusion.reject_near(fused, live.index(max(live)))
    lifetimes.blocks(steps)                                       # the in-place outputs of these steps again
    return steps


class ElementwiseFusion:
    """One fusion pass; parameters as in fuse_elementwise."""

    def __init__(self, steps: list[Step], lifetimes: Lifetimes, has_effect: Callable[[Step], bool], may_refuse: Callable[[Step], bool],
                 is_strict: bool) -> None:
        self.steps, self.lifetimes = steps, lifetimes
        self.pieces = Pieces(lifetimes)
        self.dependencies = Dependencies(steps, lifetimes, has_effect, may_refuse)
        found = Search(steps, self.pieces, self.dependencies, is_strict).groups.values()
        self.groups = {group.pieces[-1][0]: group for group in found if self._is_worthwhile(group)}
        """Last step of a group -> the group, for groups that are worth fusing."""

    def run(self, kept: Collection[str]) -> list[Step]:
        """Return the steps with the groups fused; the same list if there are none. kept: values that must be computed."""
        assembled = self._assembled_all(kept)
        if not assembled:
            return self.steps
        members = {index: last for last in assembled for index, _ in self.groups[last].pieces}
        units: dict[int, tuple[Step, set[int]]] = {}
        for index, step in enumerate(self.steps):
            if index in assembled:
                before = set().union(*(self.dependencies.ordered[member] for member, _ in self.groups[index].pieces))
                units[index] = self._step(self.groups[index], assembled[index]), before | self.dependencies.of_values(assembled[index].inputs)
            elif index not in members:
                units[index] = step, self.dependencies.of_step(index, step)
        return _in_order({index: (step, {members.get(each, each) for each in before} - {index}) for index, (step, before) in units.items()})

    def reject_near(self, fused: Sequence[Step], position: int) -> None:
        """Give up the group whose fused step is next to a position of the fused steps."""
        by_distance = sorted((abs(index - position), index) for index, step in enumerate(fused) if step.parts)
        rejected = fused[by_distance[0][1]].parts[-1]
        self.groups = {last: group for last, group in self.groups.items() if self.steps[last] is not rejected}

    def _is_worthwhile(self, group: Group) -> bool:
        is_chain = len({index for index, _ in group.pieces}) > 1
        restores = any(self.lifetimes.types[operand.value].dtype == BFLOAT16 for _, piece in group.pieces for operand in piece.inputs)
        return is_chain and memory_at_least(math.prod(group.axes), MIN_RESTORED_ELEMENTS if restores else MIN_ELEMENTS)

    def _assembled_all(self, kept: Collection[str]) -> dict[int, Assembled]:
        """Return the calls of the groups, by their last step; drop groups that do not pay or exceed a limit of the kernel."""
        while True:
            found = self._assembled({index for group in self.groups.values() for index, _ in group.pieces}, kept)
            remaining = {last: self.groups[last] for last, assembled in found.items() if self._pays(self.groups[last], assembled)}
            if len(remaining) == len(self.groups):
                return found
            self.groups = remaining

    @staticmethod
    def _pays(group: Group, assembled: Assembled) -> bool:
        """Return whether a fused step takes less time than the single steps of its group."""
        if assembled.single_traffic > MIN_TRAFFIC_RATIO * assembled.traffic:
            return True
        return assembled.single_traffic > assembled.traffic and not memory_at_least(assembled.traffic * math.prod(group.axes), CACHED_BYTES)

    def _assembled(self, fused: Collection[int], kept: Collection[str]) -> dict[int, Assembled]:
        """Return the calls of the groups, by their last step; none for a group that the kernel cannot run."""
        readers: dict[str, set[int]] = {}
        for index, step in enumerate(self.steps):
            if index not in fused:
                for name in filter(None, step.inputs):
                    readers.setdefault(self.lifetimes.unaliased(name), set()).add(-1)
        for last, group in self.groups.items():
            for _, piece in group.pieces:
                for operand in piece.inputs:
                    readers.setdefault(operand.value, set()).add(last)
        found: dict[int, Assembled] = {}
        for last, group in self.groups.items():
            needed = {value for value in group.over_rows if value in kept or readers.get(value, set()) - {last}}
            assembled = assemble(group, needed, self.lifetimes.types)
            if assembled is not None:
                found[last] = assembled
        return found

    def _step(self, group: Group, assembled: Assembled) -> Step:
        parts = tuple(self.steps[index] for index in dict.fromkeys(index for index, _ in group.pieces))
        names = [part.node.name or part.outputs[0] for part in parts]
        node = Node("+".join(part.node.op_type for part in parts), assembled.inputs, assembled.outputs, f"{names[0]} … {names[-1]}", ORTRAIN)
        address = kernels()["fused", "float32"]                   # one function for all dtypes, whose variants the parts are
        return Step(node, assembled.call, list(assembled.inputs), list(assembled.outputs), None, address, parts=parts)


def _in_order(units: dict[int, tuple[Step, set[int]]]) -> list[Step]:
    """Return the steps in the order of their indices, each after those that it depends on."""
    waiting = {index: len(before & units.keys()) for index, (_, before) in units.items()}
    dependents: dict[int, list[int]] = {}
    for index, (_, before) in units.items():
        for each in before:
            dependents.setdefault(each, []).append(index)
    ready = [index for index, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(units[index][0])
        for dependent in dependents.get(index, ()):
            waiting[dependent] -= 1
            if waiting[dependent] == 0:
                heapq.heappush(ready, dependent)
    assert len(ordered) == len(units), "expected groups without circular dependencies"
    return ordered
