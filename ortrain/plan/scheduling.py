"""The order of a plan's steps, as far as it decides how long values are held. A step stays behind those it reads from and before those that read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ortrain._core.symbolic import spares
from ortrain.plan.liveness import Lifetimes
from ortrain.plan.steps import Step

MIN_BYTES = 1 << 16
"""A step that makes so much more than it frees is worth putting off."""


def orders(steps: list[Step], lifetimes: Lifetimes, is_accumulation: Callable[[Step], bool], is_update: Callable[[Step], bool],
           stays: Callable[[Step], bool]) -> list[list[Step]]:
    """Orders of the steps, one or two, in which values are held shortly: gradients are accumulated at once, and in one of them what makes much is put off.

    is_accumulation, is_update: steps that add a value to a gradient, or update a parameter from one. stays: further steps that are not to be moved."""
    readers = Counter(name for step in steps for name in step.inputs)

    def moves(step: Step) -> bool:
        return is_accumulation(step) and readers[step.inputs[0]] == 1

    deferred = defer(steps, lifetimes, lambda step: moves(step) or is_update(step), stays)
    return [accumulate_early(order, lifetimes, moves) for order in ([steps] if deferred is steps else [deferred, steps])]


def accumulate_early(steps: Sequence[Step], lifetimes: Lifetimes, is_accumulation: Callable[[Step], bool]) -> list[Step]:
    """Puts each accumulation right behind the step that makes its value: in the order of the graph, all gradients would be held to the end."""
    made = {lifetimes.root(name): moment for moment, step in enumerate(steps) for name in step.outputs if name}
    keys = []
    for moment, step in enumerate(steps):
        sources = [made[lifetimes.root(name)] for name in step.inputs if lifetimes.root(name) in made]
        keys.append((max(sources), 1) if is_accumulation(step) and sources else (moment, 0))
    return [steps[moment] for moment in sorted(range(len(steps)), key=keys.__getitem__)]


def update_early(steps: list[Step], lifetimes: Lifetimes, is_update: Callable[[Step], bool], may_refuse: Callable[[Step], bool]) -> list[Step]:
    """Puts each update of a parameter right behind the last step that it has to wait for: the one that makes its gradient, all others that read the parameter,
    and those that may refuse the run, after which a part of the parameters would be new."""
    if not any(map(is_update, steps)):
        return steps
    value = lifetimes.unaliased
    made: dict[str, int] = {}
    read: dict[str, int] = {}
    refusal = -1
    for moment, step in enumerate(steps):
        if not is_update(step):
            made |= dict.fromkeys(map(value, filter(None, step.outputs)), moment)
            read |= dict.fromkeys(map(value, filter(None, step.inputs)), moment)
            refusal = moment if may_refuse(step) else refusal
    keys = []
    for moment, step in enumerate(steps):
        if is_update(step):
            # it waits for those who make what it reads, and for those who read what nobody makes: the parameter itself
            keys.append((max(refusal, *(made.get(name, read.get(name, -1)) for name in map(value, filter(None, step.inputs)))), 1))
        else:
            keys.append((moment, 0))
    return [steps[moment] for moment in sorted(range(len(steps)), key=keys.__getitem__)]


def defer(steps: list[Step], lifetimes: Lifetimes, spends: Callable[[Step], bool], stays: Callable[[Step], bool]) -> list[Step]:
    """Puts off steps that make more than they free until something reads it, as the gradient of a shortcut, which is added to that of the blocks beside it
    after these; and what is only spent until one of the values that it is computed of is read for the last time: they may have to be made again for it.

    spends: steps that accumulate a gradient, or update a parameter: they follow what they spend afterwards."""
    root = lifetimes.root
    users: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        for name in filter(None, (*step.inputs, *step.outputs)):
            users.setdefault(root(name), []).append(number)
        if not spends(step):
            for name in filter(None, step.inputs):
                readers.setdefault(root(name), []).append(number)
    place = list(range(len(steps)))
    moved = False
    for number in reversed(range(len(steps))):
        step = steps[number]
        held = [value for value in dict.fromkeys(map(root, filter(None, step.outputs))) if value in readers]
        if stays(step) or spends(step):
            continue
        read = [value for value in dict.fromkeys(map(root, filter(None, step.inputs))) if not lifetimes.is_outside(value)]
        last = [max((place[user] for user in users[value] if user != number), default=0) for value in read]
        first = min((place[reader] for value in held for reader in readers[value] if reader != number), default=0) if held else min(last, default=0)
        if first <= place[number] + 1:
            continue
        freed = [value for value, other in zip(read, last, strict=True) if other < place[number]]
        if not held or spares(sum(map(lifetimes.nbytes, held)) - sum(map(lifetimes.nbytes, freed)), MIN_BYTES):
            place = [p - 1 if place[number] < p < first else p for p in place]
            place[number] = first - 1
            moved = True
    return [steps[number] for number in sorted(range(len(steps)), key=place.__getitem__)] if moved else steps
