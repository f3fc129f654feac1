"""Guards that kernels run themselves: indices are read once instead of twice.

A guard runs before the steps of its program, so that a run which is refused changes nothing. A kernel that checks the indices which it reads may take its place
where everything before that kernel is forgotten with the run: nothing outside of the arena is written, no random numbers are drawn, and no Python runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ortrain.ops.registry.constants import surely_equal
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Step


def check_in_kernels(steps: Sequence[Step], lifetimes: Lifetimes, has_lasting_effect: Callable[[Step], bool],
                     is_accumulation: Callable[[Step], bool]) -> list[Step]:
    """Return the steps without guards that the kernel which reads the indices first can run itself.

    has_lasting_effect: whether a step does what outlives a run that is refused after it. So does one that computes a gradient, perhaps in the buffer to which
    an accumulation would add it."""
    gradients = {lifetimes.unaliased(name) for step in steps if is_accumulation(step) for name in step.inputs if name}

    def lasts(step: Step) -> bool:
        return has_lasting_effect(step) or any(lifetimes.unaliased(name) in gradients for name in step.outputs if name)

    result: list[Step | None] = list(steps)
    for position, guard in enumerate(steps):
        if guard.guard is None:
            continue
        root = lifetimes.root(guard.inputs[0])
        following = range(position + 1, len(steps))
        reader = next((index for index in following if steps[index].guard is None and root in map(lifetimes.root, filter(None, steps[index].inputs))), -1)
        if reader >= 0 and _runs(steps[reader], guard, root, lifetimes) and not any(map(lasts, steps[position + 1 : reader + 1])):
            call = steps[reader].call
            result[reader] = replace(steps[reader], call=replace(call, ints=(*call.ints[:-1], 1)), checks=guard)
            result[position] = None
    return [step for step in result if step is not None]


def _runs(step: Step, guard: Step, root: str, lifetimes: Lifetimes) -> bool:
    """Return whether the kernel of a step checks what a guard of a value checks."""
    if not step.call.checks_indices or guard.guard is None:
        return False
    return any(lifetimes.root(step.node.inputs[own.input]) == root and surely_equal(own.low, guard.guard.low) and surely_equal(own.high, guard.guard.high)
               for own in step.call.guards)
