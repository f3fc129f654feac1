"""The steps of a program to be, and the plan that they make up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ortrain._core.loop import Iteration
from ortrain.ir import Node, TensorType
from ortrain.ops.registry.constants import is_symbolic
from ortrain.ops.registry.cost_model import operations, traffic
from ortrain.ops.registry.record import Guard, KernelCall
from ortrain.ops.training import ACCUMULATOR, WRITTEN


@dataclass(slots=True)
class Step:
    """One kernel call to be: the node it comes from and what its record asked for."""

    node: Node
    call: KernelCall
    inputs: list[str]
    outputs: list[str]
    guard: Guard | None = None
    address: int = 0
    iteration: Iteration | None = None
    """What a Loop or Scan runs."""

    def operations(self, types: Mapping[str, TensorType]) -> int | None:
        """Floating-point operations of a run, None where they are not known; types: of all values. A guard stands for its node, but does nothing of it."""
        inputs, outputs = ([types.get(name) if name else None for name in names] for names in (self.node.inputs, self.node.outputs))
        return None if self.guard is not None else operations(self.node.op_type, self.node.attributes, inputs, outputs)

    def traffic(self, types: Mapping[str, TensorType]) -> int:
        """Bytes that a run at least moves; what it updates is read and written, what it accumulates may be overwritten."""
        updated = () if self.node.op_type == ACCUMULATOR else WRITTEN.get(self.node.op_type, ())
        return traffic([types[name] for name in (*self.inputs, *self.outputs, *(self.inputs[i] for i in updated if i < len(self.inputs))) if name in types])


@dataclass(slots=True)
class Plan:
    """What a finished program was made from, for messages and for `inspect`."""

    steps: list[Step]
    types: dict[str, TensorType]
    arena_bytes: int = 0
    outputs: list[str] = field(default_factory=list)

    def at_sizes(self, number: Callable[[int], int]) -> Plan:
        """The plan in plain numbers. number: what a symbolic one is."""
        def plain(value: Any) -> Any:
            if isinstance(value, int):
                return number(value) if is_symbolic((value,)) else value
            return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value

        def step_of(step: Step) -> Step:
            guard = step.guard and replace(step.guard, low=plain(step.guard.low), high=plain(step.guard.high))
            call = replace(step.call, ints=plain(step.call.ints), scratch=plain(step.call.scratch))
            attributes = {name: plain(value) for name, value in step.node.attributes.items()}
            return replace(step, node=replace(step.node, attributes=attributes), call=call, guard=guard)

        types = {name: replace(kind, shape=plain(kind.shape)) for name, kind in self.types.items()}
        return Plan([step_of(step) for step in self.steps], types, self.arena_bytes, self.outputs)

    def __str__(self) -> str:
        lines = [f"{i:4d} {step.call.kernel:28s} {step.node}" for i, step in enumerate(self.steps)]
        return "\n".join([*lines, f"arena: {self.arena_bytes} bytes"])
