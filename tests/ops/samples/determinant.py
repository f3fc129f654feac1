"""Samples of the determinant, including singular matrices, whose gradient is finite."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(101)
X = rng.standard_normal((2, 3, 4, 4))
THIN = rng.standard_normal((5, 4))


def cofactor_gradient(dy, x):
    """Return dy times the cofactor of each element: the signed determinant of the matrix without the element's row and column."""
    n = x.shape[-1]
    dx = np.zeros_like(x)
    for i, j in np.ndindex(n, n):
        minor = np.delete(np.delete(x, i, -2), j, -1)
        dx[..., i, j] = dy * (-1) ** (i + j) * np.linalg.det(minor)
    return dx


SAMPLES = [
    Sample("Det", [X], np.linalg.det), Sample("Det", [X[0, 0]], np.linalg.det, opset=22), Sample("Det", [X[..., :1, :1]], np.linalg.det, opset=11),
    Sample("Det", [THIN @ THIN.T], lambda x: np.zeros((), x.dtype), label="of rank n - 1"),
    Sample("Det", [np.zeros((2, 3, 3))], np.linalg.det, label="of no rank"), Sample("Det", [np.zeros((0, 3, 3))], np.linalg.det, label="no matrices"),
    Sample("DetGrad", [rng.standard_normal((2, 3)), X], cofactor_gradient, {}, "ortrain", gradient=False),
    Sample("DetGrad", [np.array(2.0), THIN @ THIN.T], cofactor_gradient, {}, "ortrain", gradient=False),
    Sample("DetGrad", [np.array(2.0), np.outer(THIN[0], THIN[1])], lambda dy, x: np.zeros_like(x), {}, "ortrain", gradient=False, label="of rank 1"),
]
REFUSALS = [Refusal("Det", [X[..., :3]]), Refusal("Det", [X[0, 0, 0]])]
