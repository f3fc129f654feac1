"""Training models whose gradients are sums of the clipped gradients of single samples, for differential privacy."""

from ortrain.passes.sample_clipping.model import GRADIENT_SCALE, MAX_NORM, clipping_model

__all__ = ["GRADIENT_SCALE", "MAX_NORM", "clipping_model"]
