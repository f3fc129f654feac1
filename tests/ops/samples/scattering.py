"""Samples of scatters with reductions and of TensorScatter; the oracle is onnx's reference implementation.

Random values avoid ties between data and updates, where max and min are not differentiable."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(107)
X = rng.standard_normal((3, 4, 5))
ROWS = np.array([[0, 1], [2, -1], [0, 1], [1, 0]])                    # one index tuple twice
CACHE, PIECE = rng.standard_normal((2, 3, 6, 4)), rng.standard_normal((2, 3, 2, 4))


def elements(reduction, indices, axis, x=X):
    updates = rng.standard_normal(indices.shape)
    attributes = {"axis": axis, "reduction": reduction}
    return Sample("ScatterElements", [x, indices, updates], by_reference("ScatterElements", attributes, 18), attributes, opset=18)


def tuples(reduction, indices, x=X):
    updates = rng.standard_normal((*indices.shape[:-1], *x.shape[indices.shape[-1]:]))
    return Sample("ScatterND", [x, indices, updates], by_reference("ScatterND", {"reduction": reduction}, 18), {"reduction": reduction}, opset=18)


def product_gradient(dy, x, indices, updates):
    """Return (ddata, dupdates) along the only axis: dy times the product of all other factors."""
    factors = [[x[i], *updates[indices == i]] for i in range(len(x))]
    others = [[dy[i] * np.prod(f[:k] + f[k + 1:]) for k in range(len(f))] for i, f in enumerate(factors)]
    ddata, dupdates = np.array([f[0] for f in others], x.dtype), np.zeros_like(updates)
    for i in range(len(x)):
        dupdates[indices == i] = others[i][1:]
    return ddata, dupdates


LINE, NAMES, FACTORS, DY = np.array([2.0, 0.0, 3.0]), np.array([0, 1, 0, 1, 2]), np.array([0.0, 2.0, 5.0, 0.5, 7.0]), np.array([1.0, -2.0, 3.0])
ZEROS = [rng.standard_normal((4, 3)), np.array([[0], [2], [2], [2], [0], [3]]), rng.standard_normal((6, 3))]
ZEROS[0][2, 0] = ZEROS[2][1, 0] = ZEROS[2][2, 1] = ZEROS[2][2, 2] = ZEROS[2][3, 2] = ZEROS[2][4, 0] = 0       # products with one factor of 0, and with two


def cached(starts, axis=-2, cache=CACHE, piece=PIECE, mode="linear"):
    attributes = {"axis": axis, "mode": mode}
    inputs = [cache, piece] if starts is None else [cache, piece, np.array(starts)]
    return Sample("TensorScatter", inputs, by_reference("TensorScatter", attributes, 24), attributes, opset=24)


SAMPLES = [
    *[sample for reduction in ("mul", "max", "min") for sample in (
        elements(reduction, rng.integers(-3, 3, (2, 4, 5)), 0), elements(reduction, rng.integers(-4, 4, (3, 7, 2)), 1), elements(reduction, rng.integers(0, 5, (3, 4, 6)).astype(np.int32), 2),
        tuples(reduction, ROWS), tuples(reduction, rng.integers(-3, 3, (2, 3, 1))), tuples(reduction, rng.integers(0, 3, (6, 3))), tuples(reduction, np.zeros((0, 1), np.int64)))],
    elements("max", rng.integers(0, 40, (400, 300)), 1, rng.standard_normal((400, 40))), tuples("mul", rng.integers(0, 5, (40, 1)), 1 + 0.1 * rng.standard_normal((5, 3000))),
    Sample("ScatterElements", [np.array([1, 5, 3]), np.array([1, 1, 0]), np.array([4, 6, 1])], lambda *_: np.array([1, 6, 3]), {"reduction": "max"}, opset=18),
    Sample("ScatterND", ZEROS, by_reference("ScatterND", {"reduction": "mul"}, 18), {"reduction": "mul"}, opset=18, label="factors of zero"),
    Sample("ScatterElementsProductGrad", [DY, LINE, NAMES, FACTORS], product_gradient, {}, "ortrain", outputs=2, gradient=False),
    Sample("ScatterNDProductGrad", [DY, LINE, NAMES[:, None], FACTORS], lambda dy, x, i, u: product_gradient(dy, x, i[:, 0], u), {}, "ortrain", outputs=2, gradient=False),
    cached([0, 3]), cached([5, 2], mode="circular"), cached(None), cached([1, 2], 1, CACHE, CACHE[:, :1] * 2),
    cached([3], -1, rng.standard_normal((1, 5)), rng.standard_normal((1, 2))),
]
REFUSALS = [
    Refusal("ScatterND", [X, ROWS, np.zeros((4, 5))], {"reduction": "mean"}, opset=18), Refusal("ScatterElements", [X, ROWS, np.zeros((4, 2))], opset=18),
    Refusal("TensorScatter", [CACHE, PIECE], {"axis": 0}, opset=24), Refusal("TensorScatter", [PIECE, CACHE], opset=24),
    Refusal("TensorScatter", [CACHE, PIECE, np.array([0.0, 1.0])], opset=24), Refusal("TensorScatter", [CACHE, PIECE], {"mode": "both"}, opset=24),
]
