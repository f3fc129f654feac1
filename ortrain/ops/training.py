"""Gradient accumulation. The operators of optimizer models work on sequences of all parameters; ortrain.optimizer runs them as sweeps over flat segments."""

from __future__ import annotations

from ortrain.ir import TensorType
from ortrain.ops.record import MICROSOFT, InferenceContext, operator


@operator("InPlaceAccumulatorV2", domain=MICROSOFT, lower="accumulate", differentiable=False)
def in_place_accumulator(c: InferenceContext) -> list[TensorType]:
    """buffer = value where the overwrite flag is set, else buffer + value, in place; output: updated [1]"""
    if c.shape(0) != c.shape(1) and all(isinstance(d, int) for d in (*c.shape(0), *c.shape(1))):
        raise c.error(f"expected a value of the buffer's shape {list(c.shape(0))}, got {list(c.shape(1))}")
    return [TensorType("bool", (1,))]
