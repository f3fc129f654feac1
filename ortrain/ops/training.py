"""The old package's training operators: gradient accumulation, and the optimizers over sequences, which the session runs on its flat segments."""

from __future__ import annotations

from ortrain.ir import TensorType
from ortrain.ops.record import MICROSOFT, InferenceContext, operator


@operator("InPlaceAccumulatorV2", domain=MICROSOFT, lower="accumulate", differentiable=False)
def in_place_accumulator(c: InferenceContext) -> list[TensorType]:
    """buffer = value where the overwrite flag is set, else buffer + value, in place; outputs (updated [1], buffer)"""
    if c.shape(0) != c.shape(1) and all(isinstance(d, int) for d in (*c.shape(0), *c.shape(1))):
        raise c.error(f"expected a value of the buffer's shape {list(c.shape(0))}, got {list(c.shape(1))}")
    return [TensorType("bool", (1,)), c.type(0)]


@operator("AdamWOptimizer", domain=MICROSOFT, differentiable=False)
def adamw_optimizer(c: InferenceContext) -> list[TensorType]:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) over sequences of weights, gradients and two moments, in place"""
    return [TensorType("bool", (1,)), *(c.type(i) for i in (2, 4, 5))]


@operator("SGDOptimizerV2", domain=MICROSOFT, differentiable=False)
def sgd_optimizer(c: InferenceContext) -> list[TensorType]:
    """w = w - lr g over sequences, in place"""
    return [TensorType("bool", (1,)), c.type(1)]


@operator("InplaceClipGradNorm", domain=MICROSOFT, differentiable=False)
def in_place_clip_grad_norm(c: InferenceContext) -> list[TensorType]:
    """g = g min(1, max_norm / (norm + 1e-6)), norm over all tensors of the sequence"""
    return [c.type(0)]


