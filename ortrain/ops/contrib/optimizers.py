"""Optimizers as operators on tensors, in which older files of the old package may have them. What ortrain trains with are sweeps over flat segments
(ortrain.training.optimizer)."""

from __future__ import annotations

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, check_inputs, operator


class Update:
    """The parts of an update of one weight: all scalars and tensors in the weight's dtype."""

    def __init__(self, g: NodeBuilder, weight: str) -> None:
        self.g, self.weight = g, weight

    def number(self, value: float) -> str:
        return self.g.scalar(value, self.weight)

    def of_weight_type(self, value: str) -> str:
        dtype = self.g.type(self.weight).dtype
        return value if self.g.type(value).dtype == dtype else self.g.op("Cast", value, to=NUMBERS[dtype])

    def scalar(self, value: str) -> str:
        """An input of one element."""
        return self.g.op("Reshape", self.of_weight_type(value), self.g.constant([]))

    def gradient(self, value: str, loss_scale: str, norm: str, limit: float) -> str:
        """A gradient without the scale of the loss, and no longer than the limit says where the norm of all gradients is given."""
        g, value = self.g, self.of_weight_type(value)
        divisor = self.scalar(loss_scale) if loss_scale else ""
        if norm:
            unscaled = g.op("Div", self.scalar(norm), divisor) if divisor else self.scalar(norm)
            excess = g.op("Max", g.op("Div", unscaled, self.number(limit)), self.number(1.0))
            divisor = g.op("Mul", divisor, excess) if divisor else excess
        return g.op("Div", value, divisor) if divisor else value

    def average(self, old: str, new: str, share: float) -> str:
        """share old + (1 - share) new"""
        return self.g.op("Add", self.g.op("Mul", self.of_weight_type(old), self.number(share)), self.g.op("Mul", new, self.number(1 - share)))

    def debias(self, share: float, step: str) -> str:
        """1 - share^step"""
        return self.g.op("Sub", self.number(1.0), self.g.op("Pow", self.number(share), self.scalar(step)))

    def direction(self, first: str, second: str, epsilon: float) -> str:
        """first / (sqrt(second) + epsilon)"""
        return self.g.op("Div", first, self.g.op("Add", self.g.op("Sqrt", second), self.number(epsilon)))

    def decayed(self, value: str, decay: float) -> str:
        """value + decay weight"""
        return self.g.op("Add", value, self.g.op("Mul", self.weight, self.number(decay))) if decay else value

    def results(self, signal: str, change: str, moments: tuple[str, str], inputs: list[str]) -> list[str]:
        """(weight, change, moments, weight in half precision), each in the dtype of the input it takes the place of; as they were where the update signal
        is false. inputs: weight, gradient, moments, weight in half precision (the weight again where that is absent)."""
        g = self.g
        moved = g.op("Add", self.weight, change)
        found = []
        for old, new in zip(inputs, [moved, change, *moments, moved], strict=True):
            kind = g.type(old).dtype
            new = new if g.type(new).dtype == kind else g.op("Cast", new, to=NUMBERS[kind])
            found.append(chosen(g, signal, new, old))
        return found


def chosen(g: NodeBuilder, signal: str, new: str, old: str) -> str:
    """The new value, or the old one where there is an update signal and it is false."""
    return g.op("Where", g.op("Reshape", signal, g.constant([])), new, old) if signal else new


def next_step(g: NodeBuilder, step: str, signal: str) -> str:
    return chosen(g, signal, g.op("Add", step, g.constant(np.array(1, np.int64))), step)


# ---- stochastic gradient descent


def descent(g: NodeBuilder) -> list[str]:
    rate, weight, gradient = g.inputs
    update = Update(g, weight)
    change = g.op("Neg", g.op("Mul", update.scalar(rate), update.of_weight_type(gradient)))
    return [g.op("Add", weight, change), change]


@operator("SGDOptimizer", domain=MICROSOFT, decompose=descent, differentiable=False)
def sgd_optimizer(c: InferenceContext) -> list[TensorType]:
    """(w - rate gradient, -rate gradient) of (rate, w, gradient)"""
    check_inputs(c, c.shape(1), 2)
    return [c.type(1), c.type(1)]


# ---- Adam


def adam(g: NodeBuilder) -> list[str]:
    rate, step, weight, gradient, first, second = g.inputs[:6]
    loss_scale, norm, signal = (g.optional(index) for index in range(7, 10))
    alpha, beta, decay, epsilon, limit = (float(g.attribute(name, default)) for name, default in
                                          (("alpha", 0.9), ("beta", 0.999), ("lambda", 0.0), ("epsilon", 1e-8), ("max_norm_clip", 1.0)))
    update = Update(g, weight)
    eta, unscaled = update.scalar(rate), update.gradient(gradient, loss_scale, norm, limit)
    m, v = update.average(first, unscaled, alpha), update.average(second, g.op("Mul", unscaled, unscaled), beta)
    corrected = bool(g.attribute("do_bias_correction", 1))
    if g.attribute("weight_decay_mode", 0) == 0:
        debiased = (g.op("Div", m, update.debias(alpha, step)), g.op("Div", v, update.debias(beta, step))) if corrected else (m, v)
        change = g.op("Neg", g.op("Mul", eta, update.decayed(update.direction(*debiased, epsilon), decay)))
    else:
        size = g.op("Mul", eta, g.op("Div", g.op("Sqrt", update.debias(beta, step)), update.debias(alpha, step))) if corrected else eta
        moved = g.op("Sub", weight, g.op("Mul", size, update.direction(m, v, epsilon)))
        change = g.op("Sub", g.op("Sub", moved, g.op("Mul", g.op("Mul", eta, update.number(decay)), moved)), weight)
    moved, change, m, v, half = update.results(signal, change, (m, v), [weight, gradient, first, second, g.optional(6) or weight])
    return [next_step(g, step, signal), m, v, moved, change, half]


@operator("AdamOptimizer", domain=MICROSOFT, decompose=adam, differentiable=False)
def adam_optimizer(c: InferenceContext) -> list[TensorType]:
    """(step + 1, moments, w, its change, w in half precision) of (rate, step, w, gradient, moments, w in half precision, loss scale, norm, update signal)"""
    if c.attribute("weight_decay_mode", 0) not in (0, 1):
        raise c.error(f"expected a weight_decay_mode of 0 or 1, got {c.attribute('weight_decay_mode')}")
    check_inputs(c, c.shape(2), 3, 4, 5)
    return [c.type(1), c.type(4), c.type(5), c.type(2), c.type(3), c.type(6) if c.has(6) else c.type(2)]


# ---- LAMB


GROUP = 5
"""weight, gradient, two moments, weight in half precision: five inputs, and as many outputs, for each weight."""


def norm_of(g: NodeBuilder, value: str) -> str:
    return g.op("Sqrt", g.reduce_sum(g.op("Mul", value, value), list(range(g.rank(value))), keepdims=False))


def trust(g: NodeBuilder, update: Update, direction: str) -> str:
    """|w| / |direction| within its limits; 1 where either is zero."""
    of_weight, of_direction, zero = norm_of(g, update.weight), norm_of(g, direction), update.number(0.0)
    known = g.op("And", g.op("Greater", of_weight, zero), g.op("Greater", of_direction, zero))
    ratio = g.op("Div", of_weight, of_direction)
    for limit, operation in (("ratio_max", "Min"), ("ratio_min", "Max")):
        if g.attribute(limit) is not None:
            ratio = g.op(operation, ratio, update.number(float(g.attribute(limit))))
    return g.op("Where", known, ratio, update.number(1.0))


def lamb_of_one(g: NodeBuilder, place: int) -> list[str]:
    """Of the weight whose group of inputs begins at `place`."""
    signal, loss_scale, norm, rate, step = (g.optional(index) for index in range(GROUP))
    weight, gradient, first, second = g.inputs[place : place + GROUP - 1]
    number = place // GROUP - 1

    def of_this(name: str, default: float) -> float:
        values = g.attribute(name, ())
        return float(values[number]) if number < len(values) else default

    update = Update(g, weight)
    alpha, beta = of_this("alpha", 0.9), of_this("beta", 0.999)
    unscaled = update.gradient(gradient, loss_scale, norm, of_this("max_norm_clip", 1.0))
    m, v = update.average(first, unscaled, alpha), update.average(second, g.op("Mul", unscaled, unscaled), beta)
    debiased = (m, v)
    if step and g.attribute("do_bias_correction", 1):
        debiased = g.op("Div", m, update.debias(alpha, step)), g.op("Div", v, update.debias(beta, step))
    direction = update.decayed(update.direction(*debiased, of_this("epsilon", 1e-6)), of_this("lambda", 0.0))
    change = g.op("Neg", g.op("Mul", g.op("Mul", update.scalar(rate), trust(g, update, direction)), direction))
    return update.results(signal, change, (m, v), [weight, gradient, first, second, g.optional(place + GROUP - 1) or weight])


def lamb(g: NodeBuilder) -> list[str]:
    found = [next_step(g, g.inputs[4], g.optional(0)) if g.has(4) else g.constant(np.array(0, np.int64))]
    for place in range(GROUP, len(g.inputs), GROUP):
        found += lamb_of_one(g, place)
    return found[: len(g.outputs)]


@operator("LambOptimizer", domain=MICROSOFT, decompose=lamb, differentiable=False)
def lamb_optimizer(c: InferenceContext) -> list[TensorType]:
    """(step + 1, and for each weight: w, its change, moments, w in half precision) of (update signal, loss scale, norm, rate, step, and for each weight: w,
    gradient, moments, w in half precision): each weight moves by the learning rate times its own length (You et al., arXiv:1904.00962)"""
    if not c.has(3):
        raise c.error("expected a learning rate, input 3, got none")
    kinds = [c.type(4) if c.has(4) else TensorType("int64", ())]
    for place in range(GROUP, len(c.node.inputs), GROUP):
        check_inputs(c, c.shape(place), place + 1, place + 2, place + 3)
        kinds += [c.type(place + index) if c.has(place + index) else c.type(place) for index in range(GROUP)]
    return kinds
