"""The steps of a program to be, and the plan that they make up."""

from __future__ import annotations

from dataclasses import dataclass, field

from ortrain._core.iteration import Iteration
from ortrain.ir import Node, TensorType
from ortrain.ops.record import Guard, KernelCall
from ortrain.plan.memory import Block


@dataclass(slots=True)
class Step:
    """One kernel call to be: the node it comes from and what its record asked for."""

    node: Node
    call: KernelCall
    inputs: list[str]
    outputs: list[str]
    guard: Guard | None = None
    address: int = 0
    scratch: Block | None = None
    iteration: Iteration | None = None
    """What a Loop or Scan runs."""


@dataclass(slots=True)
class Plan:
    """What a finished program was made from, for messages and for `inspect`."""

    steps: list[Step]
    types: dict[str, TensorType]
    arena_bytes: int = 0
    outputs: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{i:4d} {step.call.kernel:28s} {step.node}" for i, step in enumerate(self.steps)]
        return "\n".join([*lines, f"arena: {self.arena_bytes} bytes"])
