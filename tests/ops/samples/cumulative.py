"""Samples of CumSum, CumProd and the product's gradient."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(61)
X = rng.standard_normal((3, 4, 5))


def cumulative(function, axis, exclusive, reverse, start):
    def oracle(x, *_):
        y = np.flip(x, axis) if reverse else x
        if exclusive:
            first = np.full_like(np.take(y, [0], axis), start)
            y = np.concatenate([first, np.take(y, np.arange(y.shape[axis] - 1), axis)], axis)
        y = function(y, axis=axis, dtype=x.dtype)
        return np.flip(y, axis) if reverse else y

    return oracle


def product_gradient(dy, x, exclusive, reverse):
    """Return dx along axis 1 by definition: the derivative of a product by a factor is the product without the factor."""
    dx, n = np.zeros_like(x), x.shape[1]
    direction = slice(None, None, -1 if reverse else 1)
    dy, x = dy[:, direction], x[:, direction]
    for i in range(n):
        for j in range(i + exclusive, n):
            dx[:, i] += dy[:, j] * np.prod([x[:, k] for k in range(j + 1 - exclusive) if k != i] or [np.ones_like(x[:, 0])], axis=0)
    return dx[:, direction]


ZEROS = rng.standard_normal((2, 5, 70))
ZEROS[0, 2, ::3] = ZEROS[1, 1] = ZEROS[1, 3, ::2] = 0        # rows with one, no and two zeros, where dividing a product by an element fails
SAMPLES = [
    *[Sample("CumSum", [X, np.array(axis)], cumulative(np.cumsum, axis, e, r, 0), {"exclusive": e, "reverse": r}, constants=(1,))
      for axis in (0, 1, 2, -1) for e in (0, 1) for r in (0, 1)],
    Sample("CumSum", [np.arange(6).reshape(2, 3), np.array([1])], lambda x, a: np.cumsum(x, 1), constants=(1,)),
    *[Sample("CumulativeProduct", [X], cumulative(np.cumprod, axis, e, r, 1), {"axis": axis, "exclusive": e, "reverse": r}, "ortrain")
      for axis in (0, 1, 2) for e in (0, 1) for r in (0, 1)],
    *[Sample("CumProd", [ZEROS, np.array(1)], by_reference("CumProd", {"exclusive": e, "reverse": r}, 26), {"exclusive": e, "reverse": r}, opset=26, constants=(1,))
      for e in (0, 1) for r in (0, 1)],
    Sample("CumProd", [np.arange(1, 7).reshape(2, 3), np.array(-1)], lambda x, a: np.cumprod(x, 1), opset=26, constants=(1,)),
    *[Sample("CumulativeProductGrad", [rng.standard_normal(ZEROS.shape), ZEROS], lambda dy, x, e=e, r=r: product_gradient(dy, x, e, r),
             {"axis": 1, "exclusive": e, "reverse": r}, "ortrain", gradient=False) for e in (0, 1) for r in (0, 1)],
]
REFUSALS = [Refusal("CumSum", [X, np.array(3)], constants=(1,)), Refusal("CumProd", [X, np.array(3)], opset=26, constants=(1,))]
