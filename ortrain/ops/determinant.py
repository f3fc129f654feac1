"""The determinant of square matrices and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, operator


def cofactors(x: np.ndarray) -> np.ndarray:
    """Return the cofactor matrices of x [..., n, n], which are the derivatives of det x.

    With the singular value decomposition x = U S V^T they are det(U) det(V) U S' V^T, where S' holds for each singular value the product of all others.
    This needs no division, so it is exact for singular matrices too."""
    u, s, v = np.linalg.svd(x)
    n = x.shape[-1]
    products_of_others = np.where(np.eye(n, dtype=bool), x.dtype.type(1), s[..., None, :]).prod(-1)      # [..., n]
    sign = np.linalg.det(u) * np.linalg.det(v)
    return np.asarray(np.round(sign)[..., None, None] * ((u * products_of_others[..., None, :]) @ v), x.dtype)


def det_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return [g.op("DetGrad", g.dy, g.inputs[0], domain=ORTRAIN)]


@operator("Det", lower=lambda c: KernelCall("python", function=lambda x: [np.asarray(np.linalg.det(x))]), gradient=det_gradient)
def det(c: InferenceContext) -> list[TensorType]:
    """y [...] = det x of the matrices x [..., n, n]"""
    shape = c.shape(0)
    if len(shape) < 2 or isinstance(shape[-1], int) and isinstance(shape[-2], int) and shape[-1] != shape[-2]:
        raise c.error(f"expected square matrices, got shape {list(shape)}")
    if c.dtype(0) not in ("float32", "float64"):
        raise c.error(f"expected float32 or float64, got {c.dtype(0)}")
    return [TensorType(c.dtype(0), shape[:-2])]


@operator("DetGrad", domain=ORTRAIN, lower=lambda c: KernelCall("python", function=lambda dy, x: [dy[..., None, None] * cofactors(x)]))
def det_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dY cofactors(x), of (dY, x)"""
    return [c.type(1)]
