"""Gradient accumulation. The operators of optimizer models work on sequences of all parameters; ortrain.optimizer runs them as sweeps over flat segments."""

from __future__ import annotations

from ortrain.ir import TensorType
from ortrain.ops.building import NodeBuilder
from ortrain.ops.record import MICROSOFT, InferenceContext, operator

RESET_FLAG = "lazy_reset_grad"
BUFFER_SUFFIX = "_grad.accumulation.buffer"
UPDATED_SUFFIX = "_grad.accumulation.out"
"""How the inputs and outputs of training models are called by which gradients are accumulated: the flag, and what follows a parameter's name."""


@operator("InPlaceAccumulatorV2", domain=MICROSOFT, lower="accumulate", differentiable=False)
def in_place_accumulator(c: InferenceContext) -> list[TensorType]:
    """buffer = value where the overwrite flag is set, else buffer + value, in place; output: updated [1]"""
    if c.shape(0) != c.shape(1) and all(isinstance(d, int) for d in (*c.shape(0), *c.shape(1))):
        raise c.error(f"expected a value of the buffer's shape {list(c.shape(0))}, got {list(c.shape(1))}")
    return [TensorType("bool", (1,))]


def select_sum(g: NodeBuilder) -> list[str]:
    total = g.op("Add", g.inputs[0], g.inputs[1])
    return [g.op("Where", g.inputs[2], total, g.inputs[0]) if g.has(2) else total]


@operator("InPlaceAccumulator", domain=MICROSOFT, differentiable=False, expand=select_sum)
def accumulator(c: InferenceContext) -> list[TensorType]:
    """new = old + value, or old where the update signal is false"""
    return [c.type(0)]


@operator("ZeroGradient", domain=MICROSOFT, differentiable=False,
          expand=lambda g: [g.op("Expand", g.scalar(0.0, g.inputs[0]), g.shape_of(g.inputs[0]))])
def zero_gradient(c: InferenceContext) -> list[TensorType]:
    """Zeros of the shape of the first input"""
    return [c.type(0)]
