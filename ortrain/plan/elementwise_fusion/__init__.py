"""Elementwise fusion: neighboring elementwise steps, and reductions over the last axes between them, become one step.

A fused step runs its kernels block by block, so that the values between them stay in the first cache and are never
stored as a whole. The kernels are those of the single steps; so are the bits of the results."""

from ortrain.plan.elementwise_fusion.fusing import fuse_elementwise

__all__ = ["fuse_elementwise"]
