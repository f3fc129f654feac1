"""Liveness of the values of a plan: aliases, in-place outputs and live ranges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ortrain._core.memory_planner import aligned
from ortrain._core.symbolic import size_hint
from ortrain.dtypes import itemsize
from ortrain.ir import TensorType
from ortrain.plan.steps import Step

OPERATIONS_PER_BYTE = 8
"""Floating-point operations of a matrix multiplication or convolution in the time of moving one byte. Measured per
core: 80 GFLOP/s and 20 GB/s with AVX2, 210 GFLOP/s and 18 GB/s with AMX tiles."""


@dataclass(slots=True)
class Block:
    """A block of arena memory: its size in bytes and its live range from step `first` to step `last`, both included.

    planned_bytes: the bytes of the arena that it takes for the sizes that the plan is made with."""

    size: int
    first: int
    last: int
    planned_bytes: int


class Lifetimes:
    """Aliases and live ranges of the values of one plan.

    types: the types of all values. is_outside: whether a value is stored outside the arena (inputs, parameters,
    constants). inputs: the inputs of the program. outputs: its outputs. states: output -> the input whose memory it may
    overwrite."""

    def __init__(self, types: MutableMapping[str, TensorType], is_outside: Callable[[str], bool], inputs: Collection[str], outputs: Sequence[str],
                 states: Mapping[str, str]) -> None:
        self.types, self.is_outside, self.inputs, self.outputs, self.states = types, is_outside, inputs, outputs, states
        self.alias: dict[str, str] = {}
        """Value -> the value of which it is a view under another shape."""
        self.in_place: dict[str, str] = {}
        """Value -> the value that it overwrites."""
        self.kept: Collection[str] = ()
        """Values besides the outputs that stay live to the end, because deferred steps read them."""
        self._sizes: dict[str, int] = {}
        self._planned_bytes: dict[str, int] = {}
        self._arena_bytes: dict[str, int] = {}

    def root(self, name: str) -> str:
        """Return the value that owns the memory of `name`, following aliases and in-place outputs."""
        while name in self.alias or name in self.in_place:
            name = self.alias.get(name) or self.in_place[name]
        return name

    def unaliased(self, name: str) -> str:
        """Return the value of which `name` is a view; `name` if it is none. In-place outputs count as values of their
        own."""
        while name in self.alias:
            name = self.alias[name]
        return name

    def add_alias(self, name: str, root: str) -> str:
        """Create an alias of `root` with the type of `name`; return its name."""
        alias = f"{name}::of {root}"
        self.alias[alias] = root
        self.types[alias] = self.types[name]
        return alias

    def nbytes(self, name: str) -> int:
        """Return the size of a value in bytes."""
        size = self._sizes.get(name)
        if size is None:                                 # cached: every schedule that is tried needs it
            kind = self.types[name]
            size = self._sizes[name] = kind.count * itemsize(kind.dtype)
        return size

    def planned_bytes(self, name: str) -> int:
        """Return the bytes of the arena that a value takes for the sizes that the plan is made with."""
        size = self._planned_bytes.get(name)
        if size is None:
            size = self._planned_bytes[name] = aligned(size_hint(self.nbytes(name)))
        return size

    def arena_bytes(self, name: str) -> int:
        """Return the bytes of the arena that a value takes for the sizes that the plan is made with: 0 for one that is stored outside."""
        size = self._arena_bytes.get(name)
        if size is None:
            size = self._arena_bytes[name] = 0 if not name or self.is_outside(name) else self.planned_bytes(name)
        return size

    def of_weights(self, steps: Sequence[Step]) -> set[str]:
        """Return the values that steps in the time of their memory traffic compute from parameters and constants alone, such as the floats of a weight that
        is stored as integers."""
        found: set[str] = set()
        for step in steps:
            operands = [self.unaliased(name) for name in step.inputs if name]
            if step.guard is None and all(name in found or name not in self.inputs and self.is_outside(name) for name in operands):
                operations, traffic = size_hint(step.operations(self.types) or 0), size_hint(step.traffic(self.types))
                if operations <= OPERATIONS_PER_BYTE * traffic:
                    found.update(self.unaliased(name) for name in step.outputs if name)
        return found

    def live_to_end(self) -> Iterator[str]:
        """Return the values that stay live to the end."""
        return chain(self.outputs, self.kept)

    def _uses(self, steps: Sequence[Step]) -> tuple[dict[str, int], dict[str, int]]:
        """Return the first step that writes each value, and the last one that reads or writes it: the number of steps for values that stay live to the end.

        A view counts as the value that it shows. No output is in place yet."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        alias, unaliased = self.alias, self.unaliased
        for index, step in enumerate(steps):
            for name in step.inputs:
                last[unaliased(name) if name in alias else name] = index
            for name in step.outputs:
                value = unaliased(name) if name in alias else name
                last[value] = index
                if value not in first:
                    first[value] = index
        for name in self.live_to_end():
            last[unaliased(name)] = len(steps)
        return first, last

    def blocks(self, steps: Sequence[Step]) -> dict[str, Block]:
        """Choose in-place outputs; return root value -> its block of the arena."""
        first, last = self._choose_in_place(steps)
        in_place, is_outside = self.in_place, self.is_outside
        return {name: Block(self.nbytes(name), index, last[name], self.planned_bytes(name)) for name, index in first.items()
                if name and name not in in_place and not is_outside(name)}

    def live_bytes(self, steps: Sequence[Step]) -> tuple[list[int], dict[str, int], dict[str, int]]:
        """Choose in-place outputs; return the number of live bytes at each step, and the first and last step of each value's use.

        The same as live_bytes of `blocks`, without making these: the search of rematerialization asks for hundreds of schedules."""
        first, last = self._choose_in_place(steps)
        change, end = [0] * (len(steps) + 2), len(steps)
        sizes, in_place = self._arena_bytes, self.in_place
        for name, index in first.items():
            if name in in_place:
                continue
            size = sizes[name] if name in sizes else self.arena_bytes(name)
            if size:
                change[index] += size
                change[min(last[name], end) + 1] -= size
        return with_scratch(steps, change), first, last

    def peak(self, steps: Sequence[Step]) -> int:
        """Return the maximum number of live bytes at any step, a lower bound of the arena size."""
        return max(self.live_bytes(steps)[0], default=0)

    def _choose_in_place(self, steps: Sequence[Step]) -> tuple[dict[str, int], dict[str, int]]:
        """Fill `in_place`; return the first writes of all values and the last uses of the resulting roots."""
        self.in_place = {}
        first, last = self._uses(steps)
        outputs = set(map(self.root, self.live_to_end()))
        for index, step in enumerate(steps):
            for out, source in step.call.in_place.items():
                if out >= len(step.outputs) or source >= len(step.inputs) or not step.outputs[out] or not step.inputs[source]:
                    continue
                root = self.root(step.inputs[source])
                target = step.outputs[out]
                if last[root] != index or root in outputs or (self.is_outside(root) and self.states.get(target) != root):
                    continue
                if not self.nbytes(target) == self.nbytes(step.inputs[source]) == self.nbytes(root):
                    continue
                if self.root(target) == target and sum([self.root(name) == root for name in step.inputs if name]) == 1:
                    self.in_place[target] = root
                    last[root] = last.get(target, index)
        return first, last


def live_bytes(steps: Sequence[Step], blocks: Mapping[str, Block]) -> list[int]:
    """Return the number of live bytes at each step, including its scratch memory."""
    change = [0] * (len(steps) + 2)
    for block in blocks.values():
        change[block.first] += block.planned_bytes
        change[min(block.last, len(steps)) + 1] -= block.planned_bytes
    return with_scratch(steps, change)


def with_scratch(steps: Sequence[Step], change: Sequence[int]) -> list[int]:
    """Return the number of live bytes at each step, including its scratch memory. change: by how many bytes each step changes it."""
    live, result = 0, []
    for index, step in enumerate(steps):
        live += change[index]
        scratch = step.call.scratch
        result.append(live if type(scratch) is int and not scratch else live + aligned(size_hint(scratch)))
    return result
