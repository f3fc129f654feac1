"""Scheduling: orders of a plan's steps that shorten live ranges. All orders respect data dependencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ortrain._core.symbolic import memory_at_least
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Step

MIN_BYTES = 1 << 16
"""Minimum number of bytes by which a step's outputs must exceed the operands it frees for the step to be moved later."""


def candidate_orders(steps: list[Step], lifetimes: Lifetimes, is_accumulation: Callable[[Step], bool], is_update: Callable[[Step], bool],
                     is_pinned: Callable[[Step], bool]) -> list[list[Step]]:
    """Return one or two orders of the steps: gradients are accumulated as soon as they are computed, and in the first
    order large outputs are moved later.

    is_accumulation, is_update: whether a step accumulates a gradient or updates a parameter. is_pinned: whether a
    step must not be moved for other reasons."""
    readers = Counter(name for step in steps for name in step.inputs)

    def is_movable(step: Step) -> bool:
        return is_accumulation(step) and readers[step.inputs[0]] == 1

    delayed = delay_large_outputs(steps, lifetimes, lambda step: is_movable(step) or is_update(step), is_pinned)
    return [accumulate_early(order, lifetimes, is_movable) for order in ([steps] if delayed is steps else [delayed, steps])]


def accumulate_early(steps: Sequence[Step], lifetimes: Lifetimes, is_accumulation: Callable[[Step], bool]) -> list[Step]:
    """Move each accumulation right behind the step that computes its value; in graph order all gradients would be
    live to the end."""
    produced_at = {lifetimes.root(name): position for position, step in enumerate(steps) for name in step.outputs if name}
    keys = []
    for position, step in enumerate(steps):
        sources = [produced_at[lifetimes.root(name)] for name in step.inputs if lifetimes.root(name) in produced_at]
        keys.append((max(sources), 1) if is_accumulation(step) and sources else (position, 0))
    return [steps[position] for position in sorted(range(len(steps)), key=keys.__getitem__)]


def update_early(steps: list[Step], lifetimes: Lifetimes, is_update: Callable[[Step], bool], may_refuse: Callable[[Step], bool]) -> list[Step]:
    """Move each parameter update to the earliest position that is safe.

    It must follow the step that computes its gradient, all other readers of the parameter, and every step that may
    refuse the run (a guard): otherwise a refused run would leave some parameters updated."""
    if not any(map(is_update, steps)):
        return steps
    unaliased = lifetimes.unaliased
    produced_at: dict[str, int] = {}
    read_at: dict[str, int] = {}
    refusal = -1
    for position, step in enumerate(steps):
        if not is_update(step):
            produced_at |= dict.fromkeys(map(unaliased, filter(None, step.outputs)), position)
            read_at |= dict.fromkeys(map(unaliased, filter(None, step.inputs)), position)
            refusal = position if may_refuse(step) else refusal
    keys = []
    for position, step in enumerate(steps):
        if is_update(step):
            # it follows the producers of its operands; an operand without producer is the parameter, whose readers it follows
            keys.append((max(refusal, *(produced_at.get(name, read_at.get(name, -1)) for name in map(unaliased, filter(None, step.inputs)))), 1))
        else:
            keys.append((position, 0))
    return [steps[position] for position in sorted(range(len(steps)), key=keys.__getitem__)]


def delay_large_outputs(steps: list[Step], lifetimes: Lifetimes, consumes_gradient: Callable[[Step], bool], is_pinned: Callable[[Step], bool]) -> list[Step]:
    """Move steps later whose outputs are larger than the operands they free.

    Such a step moves right before the first reader of its outputs: the gradient of a shortcut, for example, is added
    to that of the block beside it only after the block. A step whose outputs are read by accumulations or updates
    only moves to the earliest last use among its operands: if that operand is rematerialized, one recomputation then
    serves both.

    consumes_gradient: whether a step accumulates a gradient or updates a parameter; these steps follow the producers
    of their gradients afterwards."""
    root = lifetimes.root
    uses: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        for name in filter(None, (*step.inputs, *step.outputs)):
            uses.setdefault(root(name), []).append(number)
        if not consumes_gradient(step):
            for name in filter(None, step.inputs):
                readers.setdefault(root(name), []).append(number)
    of_weights = lifetimes.of_weights(steps)                       # they move together with the steps that they free them for
    positions = list(range(len(steps)))
    moved = False
    for number in reversed(range(len(steps))):
        step = steps[number]
        read_outputs = [value for value in dict.fromkeys(map(root, filter(None, step.outputs))) if value in readers]
        if is_pinned(step) or consumes_gradient(step):
            continue
        operands = [value for value in dict.fromkeys(map(root, filter(None, step.inputs))) if not lifetimes.is_outside(value)]
        last_uses = [max((positions[use] for use in uses[value] if use != number), default=0) for value in operands]
        first_reads = [positions[use] for value in read_outputs for use in readers[value] if use != number]
        target = min(first_reads if read_outputs else last_uses, default=0)
        if target <= positions[number] + 1:
            continue
        freed_operands = [value for value, last_use in zip(operands, last_uses, strict=True) if last_use < positions[number] and value not in of_weights]
        if not read_outputs or memory_at_least(sum(map(lifetimes.nbytes, read_outputs)) - sum(map(lifetimes.nbytes, freed_operands)), MIN_BYTES):
            positions = [p - 1 if positions[number] < p < target else p for p in positions]
            positions[number] = target - 1
            moved = True
    return [steps[number] for number in sorted(range(len(steps)), key=positions.__getitem__)] if moved else steps
