"""Samples of running sums and products."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(61)
X = rng.standard_normal((3, 4, 5))


def running(function, axis, exclusive, reverse, start):
    def oracle(x, *_):
        y = np.flip(x, axis) if reverse else x
        if exclusive:
            first = np.full_like(np.take(y, [0], axis), start)
            y = np.concatenate([first, np.take(y, np.arange(y.shape[axis] - 1), axis)], axis)
        y = function(y, axis=axis, dtype=x.dtype)
        return np.flip(y, axis) if reverse else y

    return oracle


SAMPLES = [
    *[Sample("CumSum", [X, np.array(axis)], running(np.cumsum, axis, e, r, 0), {"exclusive": e, "reverse": r}, constants=(1,))
      for axis in (0, 1, 2, -1) for e in (0, 1) for r in (0, 1)],
    Sample("CumSum", [np.arange(6).reshape(2, 3), np.array([1])], lambda x, a: np.cumsum(x, 1), constants=(1,)),
    *[Sample("CumulativeProduct", [X], running(np.cumprod, axis, e, r, 1), {"axis": axis, "exclusive": e, "reverse": r}, "ortrain")
      for axis in (0, 1, 2) for e in (0, 1) for r in (0, 1)],
]
REFUSALS = [Refusal("CumSum", [X, np.array(3)], constants=(1,))]
