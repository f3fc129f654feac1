"""Optimizers as operators on single tensors, which older ONNX Runtime training models contain, as decompositions.

ortrain itself trains with one kernel over flat segments (ortrain.training.optimizer)."""

from __future__ import annotations

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, check_inputs, operator


class Update:
    """The parts of the update of one weight; all scalars and tensors are cast to the weight's dtype."""

    def __init__(self, g: NodeBuilder, weight: str) -> None:
        self.g, self.weight = g, weight

    def number(self, value: float) -> str:
        """Return a 0-d constant."""
        return self.g.scalar(value, self.weight)

    def cast(self, value: str) -> str:
        """Return a value in the weight's dtype."""
        dtype = self.g.type(self.weight).dtype
        return value if self.g.type(value).dtype == dtype else self.g.op("Cast", value, to=NUMBERS[dtype])

    def scalar(self, value: str) -> str:
        """Return an input of one element as a 0-d value."""
        return self.g.op("Reshape", self.cast(value), self.g.constant([]))

    def gradient(self, value: str, loss_scale: str, norm: str, limit: float) -> str:
        """Return a gradient divided by the loss scale and clipped by the norm of all gradients.

        loss_scale, norm: inputs, "" where absent; norm includes the loss scale. limit: largest norm; without `norm` nothing is clipped."""
        g, value = self.g, self.cast(value)
        divisor = self.scalar(loss_scale) if loss_scale else ""
        if norm:
            unscaled = g.op("Div", self.scalar(norm), divisor) if divisor else self.scalar(norm)
            excess = g.op("Max", g.op("Div", unscaled, self.number(limit)), self.number(1.0))
            divisor = g.op("Mul", divisor, excess) if divisor else excess
        return g.op("Div", value, divisor) if divisor else value

    def moving_average(self, old: str, new: str, decay: float) -> str:
        """Return decay old + (1 - decay) new."""
        return self.g.op("Add", self.g.op("Mul", self.cast(old), self.number(decay)), self.g.op("Mul", new, self.number(1 - decay)))

    def bias_correction(self, decay: float, step: str) -> str:
        """Return 1 - decay^step."""
        return self.g.op("Sub", self.number(1.0), self.g.op("Pow", self.number(decay), self.scalar(step)))

    def direction(self, first: str, second: str, epsilon: float) -> str:
        """Return first / (sqrt(second) + epsilon)."""
        return self.g.op("Div", first, self.g.op("Add", self.g.op("Sqrt", second), self.number(epsilon)))

    def add_weight_decay(self, value: str, decay: float) -> str:
        """Return value + decay weight."""
        return self.g.op("Add", value, self.g.op("Mul", self.weight, self.number(decay))) if decay else value

    def results(self, signal: str, change: str, moments: tuple[str, str], inputs: list[str]) -> list[str]:
        """Return (weight, change, moments, half-precision weight) after the update, or `inputs` if the update signal is false.

        inputs: (weight, gradient, moments, half-precision weight or else the weight again), whose dtypes the results get. signal: the update signal, "" if
        absent."""
        g = self.g
        updated = g.op("Add", self.weight, change)
        results = []
        for old, new in zip(inputs, [updated, change, *moments, updated], strict=True):
            kind = g.type(old).dtype
            new = new if g.type(new).dtype == kind else g.op("Cast", new, to=NUMBERS[kind])
            results.append(select_update(g, signal, new, old))
        return results


def select_update(g: NodeBuilder, signal: str, new: str, old: str) -> str:
    """Return `new`, or `old` if the update signal is given and false."""
    return g.op("Where", g.op("Reshape", signal, g.constant([])), new, old) if signal else new


def next_step(g: NodeBuilder, step: str, signal: str) -> str:
    """Return step + 1, or `step` if the update signal is given and false."""
    return select_update(g, signal, g.op("Add", step, g.constant(np.array(1, np.int64))), step)


# ---- stochastic gradient descent


def sgd_decomposition(g: NodeBuilder) -> list[str]:
    rate, weight, gradient = g.inputs
    update = Update(g, weight)
    change = g.op("Neg", g.op("Mul", update.scalar(rate), update.cast(gradient)))
    return [g.op("Add", weight, change), change]


@operator("SGDOptimizer", domain=MICROSOFT, decompose=sgd_decomposition, differentiable=False)
def sgd_optimizer(c: InferenceContext) -> list[TensorType]:
    """(w - rate gradient, -rate gradient), of (rate, w, gradient)"""
    check_inputs(c, c.shape(1), 2)
    return [c.type(1), c.type(1)]


# ---- Adam


def adam_decomposition(g: NodeBuilder) -> list[str]:
    rate, step, weight, gradient, first, second = g.inputs[:6]
    loss_scale, norm, signal = (g.optional(index) for index in range(7, 10))
    alpha, beta, weight_decay, epsilon, limit = (float(g.attribute(name, default)) for name, default in
                                          (("alpha", 0.9), ("beta", 0.999), ("lambda", 0.0), ("epsilon", 1e-8), ("max_norm_clip", 1.0)))
    update = Update(g, weight)
    eta, unscaled = update.scalar(rate), update.gradient(gradient, loss_scale, norm, limit)
    m, v = update.moving_average(first, unscaled, alpha), update.moving_average(second, g.op("Mul", unscaled, unscaled), beta)
    is_corrected = bool(g.attribute("do_bias_correction", 1))
    if g.attribute("weight_decay_mode", 0) == 0:
        debiased = (g.op("Div", m, update.bias_correction(alpha, step)), g.op("Div", v, update.bias_correction(beta, step))) if is_corrected else (m, v)
        change = g.op("Neg", g.op("Mul", eta, update.add_weight_decay(update.direction(*debiased, epsilon), weight_decay)))
    else:
        rate_of_step = eta
        if is_corrected:
            rate_of_step = g.op("Mul", eta, g.op("Div", g.op("Sqrt", update.bias_correction(beta, step)), update.bias_correction(alpha, step)))
        updated = g.op("Sub", weight, g.op("Mul", rate_of_step, update.direction(m, v, epsilon)))
        change = g.op("Sub", g.op("Sub", updated, g.op("Mul", g.op("Mul", eta, update.number(weight_decay)), updated)), weight)
    updated, change, m, v, half = update.results(signal, change, (m, v), [weight, gradient, first, second, g.optional(6) or weight])
    return [next_step(g, step, signal), m, v, updated, change, half]


@operator("AdamOptimizer", domain=MICROSOFT, decompose=adam_decomposition, differentiable=False)
def adam_optimizer(c: InferenceContext) -> list[TensorType]:
    """(step + 1, first moment, second moment, w, change of w, half-precision w)

    Inputs: (rate, step, w, gradient, first moment, second moment, half-precision w, loss scale, gradient norm, update signal)."""
    if c.attribute("weight_decay_mode", 0) not in (0, 1):
        raise c.error(f"expected a weight_decay_mode of 0 or 1, got {c.attribute('weight_decay_mode')}")
    check_inputs(c, c.shape(2), 3, 4, 5)
    return [c.type(1), c.type(4), c.type(5), c.type(2), c.type(3), c.type(6) if c.has(6) else c.type(2)]


# ---- LAMB


GROUP = 5
"""Number of inputs, and of outputs, per weight: weight, gradient or change, two moments, half-precision weight."""


def l2_norm(g: NodeBuilder, value: str) -> str:
    """Return the square root of the sum of squares of all elements."""
    return g.op("Sqrt", g.reduce_sum(g.op("Mul", value, value), list(range(g.rank(value))), keepdims=False))


def trust_ratio(g: NodeBuilder, update: Update, direction: str) -> str:
    """Return |w| / |direction| limited to [ratio_min, ratio_max]; 1 if either norm is zero."""
    weight_norm, direction_norm, zero = l2_norm(g, update.weight), l2_norm(g, direction), update.number(0.0)
    is_defined = g.op("And", g.op("Greater", weight_norm, zero), g.op("Greater", direction_norm, zero))
    ratio = g.op("Div", weight_norm, direction_norm)
    for limit, operation in (("ratio_max", "Min"), ("ratio_min", "Max")):
        if g.attribute(limit) is not None:
            ratio = g.op(operation, ratio, update.number(float(g.attribute(limit))))
    return g.op("Where", is_defined, ratio, update.number(1.0))


def lamb_update(g: NodeBuilder, start: int) -> list[str]:
    """Return the outputs for one weight. start: index of the first of its GROUP inputs."""
    signal, loss_scale, norm, rate, step = (g.optional(index) for index in range(GROUP))
    weight, gradient, first, second = g.inputs[start : start + GROUP - 1]
    number = start // GROUP - 1

    def option(name: str, default: float) -> float:
        """Return the value for this weight of an attribute that lists one value per weight."""
        values = g.attribute(name, ())
        return float(values[number]) if number < len(values) else default

    update = Update(g, weight)
    alpha, beta = option("alpha", 0.9), option("beta", 0.999)
    unscaled = update.gradient(gradient, loss_scale, norm, option("max_norm_clip", 1.0))
    m, v = update.moving_average(first, unscaled, alpha), update.moving_average(second, g.op("Mul", unscaled, unscaled), beta)
    debiased = (m, v)
    if step and g.attribute("do_bias_correction", 1):
        debiased = g.op("Div", m, update.bias_correction(alpha, step)), g.op("Div", v, update.bias_correction(beta, step))
    direction = update.add_weight_decay(update.direction(*debiased, option("epsilon", 1e-6)), option("lambda", 0.0))
    change = g.op("Neg", g.op("Mul", g.op("Mul", update.scalar(rate), trust_ratio(g, update, direction)), direction))
    return update.results(signal, change, (m, v), [weight, gradient, first, second, g.optional(start + GROUP - 1) or weight])


def lamb_decomposition(g: NodeBuilder) -> list[str]:
    results = [next_step(g, g.inputs[4], g.optional(0)) if g.has(4) else g.constant(np.array(0, np.int64))]
    for start in range(GROUP, len(g.inputs), GROUP):
        results += lamb_update(g, start)
    return results[: len(g.outputs)]


@operator("LambOptimizer", domain=MICROSOFT, decompose=lamb_decomposition, differentiable=False)
def lamb_optimizer(c: InferenceContext) -> list[TensorType]:
    """(step + 1, then for each weight: w, change of w, first moment, second moment, half-precision w)

    Inputs: (update signal, loss scale, gradient norm, rate, step, then for each weight: w, gradient, first moment, second moment, half-precision w). The
    length of each update is the learning rate times the norm of the weight (You et al., arXiv:1904.00962)."""
    if not c.has(3):
        raise c.error("expected a learning rate, input 3, got none")
    kinds = [c.type(4) if c.has(4) else TensorType("int64", ())]
    for start in range(GROUP, len(c.node.inputs), GROUP):
        check_inputs(c, c.shape(start), start + 1, start + 2, start + 3)
        kinds += [c.type(start + index) if c.has(start + index) else c.type(start) for index in range(GROUP)]
    return kinds
