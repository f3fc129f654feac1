"""Whose memory each value of a plan is, and from which step to which it is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ortrain._core.memory_planner import aligned
from ortrain._core.symbolic import plain
from ortrain.dtypes import numpy_dtype
from ortrain.ir import TensorType
from ortrain.plan.steps import Step


@dataclass(slots=True)
class Block:
    """A piece of memory in bytes that is in use from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


class Lifetimes:
    """The values of one plan.

    types: of all values. is_outside: whether a value lies outside of the arena (inputs, parameters, constants). wanted: the outputs of the program. states:
    output -> the input whose place it may be written to."""

    def __init__(self, types: MutableMapping[str, TensorType], is_outside: Callable[[str], bool], wanted: Sequence[str], states: Mapping[str, str]) -> None:
        self.types, self.is_outside, self.wanted, self.states = types, is_outside, wanted, states
        self.alias: dict[str, str] = {}
        """Value -> the value whose memory it is under another shape."""
        self.in_place: dict[str, str] = {}
        """Value -> the value over which it is written."""
        self.held: Collection[str] = ()
        """Values that stay to the end besides the outputs: steps are still to come that read them."""
        self._sizes: dict[str, int] = {}

    def root(self, name: str) -> str:
        """The value whose memory `name` is."""
        while name in self.alias or name in self.in_place:
            name = self.alias.get(name) or self.in_place[name]
        return name

    def unaliased(self, name: str) -> str:
        """The value that `name` is under another shape, whatever it is written over."""
        while name in self.alias:
            name = self.alias[name]
        return name

    def renamed(self, name: str, root: str) -> str:
        """A further alias of the kind of `name`, of another value."""
        new = f"{name}::of {root}"
        self.alias[new] = root
        self.types[new] = self.types[name]
        return new

    def nbytes(self, name: str) -> int:
        """The size of a value in bytes."""
        size = self._sizes.get(name)
        if size is None:                                 # asked for every order of steps that is tried
            kind = self.types[name]
            size = self._sizes[name] = kind.count * numpy_dtype(kind.dtype).itemsize
        return size

    def stays(self) -> Iterator[str]:
        """The values that stay to the end."""
        return chain(self.wanted, self.held)

    def _last_uses(self, steps: Sequence[Step]) -> dict[str, int]:
        """Root value -> the last step that reads or writes it; the end for what stays."""
        last: dict[str, int] = {}
        other = self.alias.keys() | self.in_place.keys()
        for index, step in enumerate(steps):
            for name in step.inputs:
                last[self.root(name) if name in other else name] = index
            for name in step.outputs:
                last[self.root(name) if name in other else name] = index
        for name in self.stays():
            last[self.root(name)] = len(steps)
        return last

    def blocks(self, steps: Sequence[Step]) -> dict[str, Block]:
        """Root value -> its piece of the arena, after a choice of what is written in place."""
        last = self._choose_in_place(steps)
        blocks: dict[str, Block] = {}
        for index, step in enumerate(steps):
            for name in filter(None, step.outputs):
                root = self.root(name)
                if root not in blocks and not self.is_outside(root):
                    blocks[root] = Block(self.nbytes(root), index, max(index, last[root]))
        return blocks

    def peak(self, steps: Sequence[Step]) -> int:
        """The bytes in use at the fullest step: no arena can be smaller."""
        return max(live_bytes(steps, self.blocks(steps)), default=0)

    def _choose_in_place(self, steps: Sequence[Step]) -> dict[str, int]:
        """Fills `in_place`; returns the last uses of roots then."""
        self.in_place = {}
        last = self._last_uses(steps)
        outputs = set(map(self.root, self.stays()))
        for index, step in enumerate(steps):
            for out, source in step.call.in_place.items():
                if out >= len(step.outputs) or source >= len(step.inputs) or not step.outputs[out] or not step.inputs[source]:
                    continue
                root = self.root(step.inputs[source])
                own_state = self.states.get(step.outputs[out]) == root
                if (self.is_outside(root) and not own_state) or root in outputs or last[root] != index:
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
    """The bytes in use at each step, its scratch among them."""
    change = [0] * (len(steps) + 2)
    for block in blocks.values():
        size = aligned(plain(block.size))
        change[block.first] += size
        change[min(block.last, len(steps)) + 1] -= size
    live, found = 0, []
    for index, step in enumerate(steps):
        live += change[index]
        found.append(live + (aligned(plain(step.call.scratch)) if step.call.scratch else 0))
    return found
