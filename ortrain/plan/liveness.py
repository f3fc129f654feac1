"""Liveness of the values of a plan: aliases, in-place outputs and live ranges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ortrain._core.memory_planner import aligned
from ortrain._core.symbolic import size_hint
from ortrain.dtypes import numpy_dtype
from ortrain.ir import TensorType
from ortrain.plan.steps import Step


@dataclass(slots=True)
class Block:
    """A block of arena memory: its size in bytes and its live range from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


class Lifetimes:
    """Aliases and live ranges of the values of one plan.

    types: the types of all values. is_outside: whether a value is stored outside the arena (inputs, parameters,
    constants). outputs: the outputs of the program. states: output -> the input whose memory it may overwrite."""

    def __init__(self, types: MutableMapping[str, TensorType], is_outside: Callable[[str], bool], outputs: Sequence[str], states: Mapping[str, str]) -> None:
        self.types, self.is_outside, self.outputs, self.states = types, is_outside, outputs, states
        self.alias: dict[str, str] = {}
        """Value -> the value of which it is a view under another shape."""
        self.in_place: dict[str, str] = {}
        """Value -> the value that it overwrites."""
        self.kept: Collection[str] = ()
        """Values besides the outputs that stay live to the end, because deferred steps read them."""
        self._sizes: dict[str, int] = {}

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
            size = self._sizes[name] = kind.count * numpy_dtype(kind.dtype).itemsize
        return size

    def live_to_end(self) -> Iterator[str]:
        """Return the values that stay live to the end."""
        return chain(self.outputs, self.kept)

    def _last_uses(self, steps: Sequence[Step]) -> dict[str, int]:
        """Return root value -> the last step that reads or writes it; the number of steps for values that stay live
        to the end."""
        last: dict[str, int] = {}
        shared = self.alias.keys() | self.in_place.keys()
        for index, step in enumerate(steps):
            for name in step.inputs:
                last[self.root(name) if name in shared else name] = index
            for name in step.outputs:
                last[self.root(name) if name in shared else name] = index
        for name in self.live_to_end():
            last[self.root(name)] = len(steps)
        return last

    def blocks(self, steps: Sequence[Step]) -> dict[str, Block]:
        """Choose in-place outputs; return root value -> its block of the arena."""
        last = self._choose_in_place(steps)
        blocks: dict[str, Block] = {}
        shared = self.alias.keys() | self.in_place.keys()
        for index, step in enumerate(steps):
            for name in step.outputs:
                root = self.root(name) if name in shared else name
                if root and root not in blocks and not self.is_outside(root):
                    blocks[root] = Block(self.nbytes(root), index, max(index, last[root]))
        return blocks

    def peak(self, steps: Sequence[Step]) -> int:
        """Return the maximum number of live bytes at any step, a lower bound of the arena size."""
        return max(live_bytes(steps, self.blocks(steps)), default=0)

    def _choose_in_place(self, steps: Sequence[Step]) -> dict[str, int]:
        """Fill `in_place`; return the last uses of the resulting roots."""
        self.in_place = {}
        last = self._last_uses(steps)
        outputs = set(map(self.root, self.live_to_end()))
        for index, step in enumerate(steps):
            for out, source in step.call.in_place.items():
                if out >= len(step.outputs) or source >= len(step.inputs) or not step.outputs[out] or not step.inputs[source]:
                    continue
                root = self.root(step.inputs[source])
                if last[root] != index or root in outputs or (self.is_outside(root) and self.states.get(step.outputs[out]) != root):
                    continue
                if sum(self.root(name) == root for name in step.inputs if name) > 1:
                    continue
                if self.nbytes(step.outputs[out]) == self.nbytes(step.inputs[source]) == self.nbytes(root):
                    target = step.outputs[out]
                    if self.root(target) == target:
                        self.in_place[target] = root
                        last[root] = last.get(target, index)
        return last


def live_bytes(steps: Sequence[Step], blocks: Mapping[str, Block]) -> list[int]:
    """Return the number of live bytes at each step, including its scratch memory."""
    change = [0] * (len(steps) + 2)
    for block in blocks.values():
        size = aligned(size_hint(block.size))
        change[block.first] += size
        change[min(block.last, len(steps)) + 1] -= size
    live, result = 0, []
    for index, step in enumerate(steps):
        live += change[index]
        result.append(live + (aligned(size_hint(step.call.scratch)) if step.call.scratch else 0))
    return result
