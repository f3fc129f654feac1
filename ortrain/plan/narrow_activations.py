"""Narrow activations: in sessions of precision bfloat16, activations that the backward pass reads are kept in bfloat16, in half the memory.

A value is rounded at its last use before the peak of the memory, and restored to float32 right before the backward pass reads it. Products and convolutions
round their operands to the same numbers anyway, so their gradients have the bits that they had; other operators read rounded values where their records say
that they may (OpRecord.takes_rounded). The steps that round and restore are Casts: elementwise fusion makes them a part of the steps beside them.

What deferred steps read is kept in the same way, gradients included, where only products read it then.

What is kept is decided before, by rematerialization: its values are recomputed from rounded ones, and kept narrow themselves where they are recomputed long
before they are read. Narrowing lowers one peak after the other, and stops where it frees too little memory for its time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ortrain._core.symbolic import memory_at_least
from ortrain.dtypes import BFLOAT16, NUMBERS
from ortrain.ir import NameSource, Node
from ortrain.ops.registry.record import record_of
from ortrain.plan.deferred_gradients import DeferredGradients
from ortrain.plan.elementwise_fusion.fusing import MIN_RESTORED_ELEMENTS
from ortrain.plan.liveness import Block, Lifetimes, live_bytes
from ortrain.plan.rematerialization import estimated_time
from ortrain.plan.steps import NARROW, Step

MIN_BYTES = 1 << 16
"""Minimum size of a value to keep narrow: for smaller ones the extra steps are not worth it."""
MIN_FREED_PER_TIME = 1
"""Exchange rate of time for memory, as that of rematerialization. The estimated time of the copies is too high: most of them find their operand in a cache,
or are fused into the steps beside them."""


@dataclass(slots=True)
class Gap:
    """A range of steps in which a value is live but unused.

    last_use: the step before it that computes or reads the value. reads: the steps after it that read the value."""

    value: str
    last_use: int
    reads: list[int]


class NarrowActivations:
    """One pass.

    deferred: the steps. recomputed: values that rematerialization computes a second time. lower: returns the steps of a node. may_read_rounded: whether an
    input of a step may have been rounded. other_bytes: memory that the program uses besides the arena, such as parameters. fuses: whether elementwise steps are
    fused afterwards."""

    def __init__(self, deferred: DeferredGradients, lifetimes: Lifetimes, recomputed: Collection[str], names: NameSource, lower: Callable[[Node], list[Step]],
                 may_read_rounded: Callable[[Step, int], bool], other_bytes: int, fuses: bool) -> None:
        self.lifetimes, self.names, self.lower, self.may_read_rounded, self.other_bytes = lifetimes, names, lower, may_read_rounded, other_bytes
        self.outputs = set(map(lifetimes.unaliased, lifetimes.outputs))
        self.deferred = deferred
        self.forward = self._forward_steps(deferred.train_step)
        self.recomputed = recomputed
        self.activations = {*recomputed, *(name for step in deferred.train_step if id(step) in self.forward for name in step.outputs if name)}
        """The values that may be narrowed: those of the forward pass, those that are recomputed, and those that were restored."""
        self.aliases: dict[str, list[str]] = {}
        for name in lifetimes.alias:
            self.aliases.setdefault(lifetimes.unaliased(name), []).append(name)
        self.casts: set[str] = set()
        """The results of the steps that round and restore."""
        self.narrow: dict[str, str] = {}
        """Restored value -> the value of bfloat16 that it was restored from."""
        self.fuses = fuses
        self.inside_fused: set[str] = set()
        """The restored values that will be within one fused step, without memory of their own."""

    def run(self) -> DeferredGradients:
        """Narrow what is unused at one peak after the other; return the steps with the best trade of time for memory."""
        deferred, program_time = self.deferred, self._time(self.deferred)
        initial_peak, gaps = self._peak_and_gaps(deferred)
        trials = [(0.0, initial_peak, deferred)]
        while gaps:
            deferred = self._narrowed(deferred, gaps)
            peak, gaps = self._peak_and_gaps(deferred)
            trials.append((self._time(deferred) / program_time - 1, peak, deferred))
        memory_for_time = MIN_FREED_PER_TIME * (initial_peak + self.other_bytes)
        return min(trials, key=lambda trial: trial[0] + trial[1] / memory_for_time)[2]

    def _time(self, deferred: DeferredGradients) -> int:
        """Return the estimated time of a train step and an optimizer step."""
        return estimated_time([*deferred.train_step, *deferred.updates], self.lifetimes.types)

    def _forward_steps(self, steps: Sequence[Step]) -> set[int]:
        """Return the ids of the steps of the forward pass: those that an output of the program depends on."""
        unaliased = self.lifetimes.unaliased
        wanted, found = set(map(unaliased, self.lifetimes.outputs)), set()
        for step in reversed(steps):
            if not wanted.isdisjoint(map(unaliased, filter(None, step.outputs))):
                found.add(id(step))
                wanted.update(map(unaliased, filter(None, step.inputs)))
        return found

    # ---- finding gaps

    def _peak_and_gaps(self, deferred: DeferredGradients) -> tuple[int, list[Gap]]:
        """Return the number of bytes that are live at the peak, and the gaps there of values that may be narrowed."""
        self.lifetimes.kept = deferred.values_kept(self.lifetimes)
        live = live_bytes(deferred.steps, self._blocks(deferred.steps))
        peak = max(live, default=0)
        return peak, list(self._gaps(deferred, live.index(peak))) if live else []

    def _blocks(self, steps: Sequence[Step]) -> dict[str, Block]:
        """Return the blocks of the arena as they are once steps are fused: a result that would overwrite a restored value begins with itself."""
        blocks = self.lifetimes.blocks(steps)
        readers = {name: index for index, step in enumerate(steps) for name in map(self.lifetimes.unaliased, step.inputs) if name in self.inside_fused}
        for name, reader in readers.items():
            block = blocks.get(name)
            if block is not None and block.last > reader:
                blocks[name] = replace(block, first=reader)
            elif block is not None:
                del blocks[name]
        return blocks

    def _gaps(self, deferred: DeferredGradients, point: int) -> Iterator[Gap]:
        """Yield the gaps at a point. One with nothing but Casts of this pass in it would be there again, however often it is filled.

        Values that deferred steps read are rounded in the train step, as the updates may run or the gradients."""
        lifetimes, unaliased, steps = self.lifetimes, self.lifetimes.unaliased, deferred.steps
        latest = min(point, len(deferred.train_step))
        uses: dict[str, list[int]] = {}
        for index, step in enumerate(steps):
            for name in dict.fromkeys(map(unaliased, filter(None, (*step.inputs, *step.outputs)))):
                uses.setdefault(name, []).append(index)
        for value, used in uses.items():
            if (value in self.outputs or not used[0] < latest <= used[-1] or point in used or lifetimes.is_outside(value)
                    or lifetimes.types[value].dtype != "float32" or not memory_at_least(lifetimes.nbytes(value), MIN_BYTES)):
                continue
            last_use, reads = max(index for index in used if index < latest), [index for index in used if index >= latest]
            if value not in self.activations and reads[0] < len(deferred.train_step):
                continue
            is_between_casts = all(self._is_cast(step) for step in steps[last_use + 1 : reads[0]])
            if not is_between_casts and self._may_be_rounded(value, reads, steps, uses):
                yield Gap(value, last_use, reads)

    def _may_be_rounded(self, value: str, reads: Sequence[int], steps: Sequence[Step], uses: dict[str, list[int]]) -> bool:
        """Return whether steps of the backward pass may read a value rounded.

        What is recomputed from it is then off as well: all of its readers must take that, unless it is a product, whose operands are rounded anyway."""
        for step in map(steps.__getitem__, reads):
            if self._is_cast(step):
                continue
            indices = [index for index, name in enumerate(step.inputs) if name and self.lifetimes.unaliased(name) == value]
            if id(step) in self.forward or not all(self.may_read_rounded(step, index) for index in indices):
                return False
            record = record_of(step.node)
            if record is None or record.takes_bfloat16 or step.outputs[0] not in self.recomputed:
                continue
            result = self.lifetimes.unaliased(step.outputs[0])
            if not self._may_be_rounded(result, uses[result][1:], steps, uses):
                return False
        return True

    # ---- narrowing

    def _narrowed(self, deferred: DeferredGradients, gaps: Sequence[Gap]) -> DeferredGradients:
        """Return the steps with values narrowed in gaps.

        A value is rounded before its last use rather than after it, so that the step that uses it can still overwrite it.
        Each elementwise reader restores a value for itself, as elementwise fusion makes that a part of it; the other readers share a restored value, but those
        of the train step, of the updates and of the gradients each their own, as these run at different times.
        A value that is rounded later anyway is not rounded a second time then."""
        steps, sections = deferred.steps, (deferred.train_step, deferred.updates, deferred.gradients)
        section_of = [number for number, section in enumerate(sections) for _ in section]
        before: dict[int, list[Step]] = {}
        after: dict[int, list[Step]] = {}
        renamed: dict[int, dict[str, str]] = {}
        rounded_before: dict[str, str] = {}
        for gap in gaps:
            narrow = self.narrow.get(gap.value)
            if narrow is None:
                place = after if gap.value in map(self.lifetimes.unaliased, steps[gap.last_use].outputs) else before
                narrow = self._cast(gap.value, f"{gap.value}{NARROW}", BFLOAT16, place.setdefault(gap.last_use, []))
            shared: list[dict[str, str]] = [{} for _ in sections]
            for index in gap.reads:
                if self._is_cast(steps[index]):
                    rounded_before[steps[index].outputs[0]] = narrow
                    continue
                record = record_of(steps[index].node)
                is_elementwise = record is not None and record.elementwise
                names = {} if is_elementwise else shared[section_of[index]]
                if not names:
                    names |= self._restored(gap.value, narrow, before.setdefault(index, []))
                if is_elementwise and self.fuses and memory_at_least(self.lifetimes.types[gap.value].count, MIN_RESTORED_ELEMENTS):
                    self.inside_fused.add(names[gap.value])
                renamed.setdefault(index, {}).update(names)
        self.narrow = {restored: rounded_before.get(narrow, narrow) for restored, narrow in self.narrow.items()}
        results: list[list[Step]] = [[] for _ in sections]
        for index, step in enumerate(steps):
            if rounded_before.keys().isdisjoint(step.outputs):
                step = _with_names(step, {**rounded_before, **renamed.get(index, {})})
                results[section_of[index]] += *before.get(index, ()), step, *after.get(index, ())
        return replace(deferred, train_step=results[0], updates=results[1], gradients=results[2])

    def _restored(self, value: str, narrow: str, steps: list[Step]) -> dict[str, str]:
        """Append the step that restores a value; return the names by which to read the value and its views from then on."""
        restored = self._cast(narrow, f"{value.removesuffix('::restored')}::restored", "float32", steps)
        self.activations.add(restored)
        self.narrow[restored] = narrow
        names = {name: self.lifetimes.add_alias(name, restored) for name in self.aliases.get(value, ())}
        self.aliases[restored] = list(names.values())
        return {value: restored, **names}

    def _cast(self, source: str, result: str, dtype: str, steps: list[Step]) -> str:
        """Append a step that converts a value; return the name of the result, which is `result` or begins with it."""
        result = self.names.unique(result)
        self.lifetimes.types[result] = replace(self.lifetimes.types[source], dtype=dtype)
        steps += self.lower(Node("Cast", [source], [result], result, attributes={"to": NUMBERS[dtype]}))
        self.casts.add(result)
        return result

    def _is_cast(self, step: Step) -> bool:
        return not self.casts.isdisjoint(step.outputs)


def _with_names(step: Step, names: Mapping[str, str]) -> Step:
    """Return a step that reads some of its inputs by other names."""
    return step if names.keys().isdisjoint(step.inputs) else replace(step, inputs=[names.get(name, name) for name in step.inputs])
