"""Steps of a program before it is emitted, and the plan they form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ortrain.ir import Node, TensorType
from ortrain.ops.registry.constants import is_symbolic
from ortrain.ops.registry.cost_model import count_operations, memory_traffic
from ortrain.ops.registry.record import Guard, KernelCall
from ortrain.ops.training import ACCUMULATOR, WRITTEN

if TYPE_CHECKING:
    from ortrain._core.loop import LoopBody

NARROW = "::narrow"
"""Ends the names of activations that are rounded to bfloat16 for the backward pass, possibly with a number after it."""


@dataclass(slots=True)
class Step:
    """One kernel call: the node it was lowered from, the call, and its operands.

    guard: set for a step that checks user data instead of running the node. address: of the kernel function. checks: the step of a
    guard that the kernel runs itself."""

    node: Node
    call: KernelCall
    inputs: list[str]
    outputs: list[str]
    guard: Guard | None = None
    address: int = 0
    iteration: LoopBody | None = None
    """The body that a Loop or Scan runs; None for other steps."""
    parts: tuple[Step, ...] = ()
    """The steps that a fused step computes (ortrain.plan.elementwise_fusion); none for other steps."""
    checks: Step | None = None

    def operations(self, types: Mapping[str, TensorType]) -> int | None:
        """Return the floating-point operations of one run; None if unknown, and for guards. types: the types of all
        values."""
        if self.parts:
            counts = [part.operations(types) for part in self.parts]
            return sum(count for count in counts if count is not None)
        inputs, outputs = ([types.get(name) if name else None for name in names] for names in (self.node.inputs, self.node.outputs))
        return None if self.guard is not None else count_operations(self.node.op_type, self.node.attributes, inputs, outputs)

    def traffic(self, types: Mapping[str, TensorType]) -> int:
        """Return a lower bound of the bytes moved by one run.

        Updated operands count twice; accumulated gradients count once, since an accumulation may overwrite them."""
        updated = () if self.node.op_type == ACCUMULATOR else WRITTEN.get(self.node.op_type, ())
        names = (*self.inputs, *self.outputs, *(self.inputs[i] for i in updated if i < len(self.inputs)))
        return memory_traffic([types[name] for name in names if name in types])


@dataclass(slots=True)
class Plan:
    """The steps and types a program was emitted from, for error messages, profiles and inspection."""

    steps: list[Step]
    types: dict[str, TensorType]
    arena_bytes: int = 0
    outputs: list[str] = field(default_factory=list)

    def at_sizes(self, number: Callable[[int], int]) -> Plan:
        """Return the plan with plain numbers in place of symbolic sizes. number: evaluates a symbolic size."""
        def evaluate(value: Any) -> Any:
            if isinstance(value, int):
                return number(value) if is_symbolic((value,)) else value
            return type(value)(map(evaluate, value)) if isinstance(value, list | tuple) else value

        def step_of(step: Step) -> Step:
            guard = step.guard and replace(step.guard, low=evaluate(step.guard.low), high=evaluate(step.guard.high))
            call = replace(step.call, ints=evaluate(step.call.ints), scratch=evaluate(step.call.scratch))
            attributes = {name: evaluate(value) for name, value in step.node.attributes.items()}
            return replace(step, node=replace(step.node, attributes=attributes), call=call, guard=guard, checks=step.checks and step_of(step.checks))

        types = {name: replace(kind, shape=evaluate(kind.shape)) for name, kind in self.types.items()}
        return Plan([step_of(step) for step in self.steps], types, self.arena_bytes, self.outputs)

    def __str__(self) -> str:
        lines = [f"{i:4d} {step.call.kernel:28s} {step.node}" for i, step in enumerate(self.steps)]
        return "\n".join([*lines, f"arena: {self.arena_bytes} bytes"])
