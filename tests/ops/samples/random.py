"""Samples of the random family; masks that are drawn are tested in tests/ops/test_dropout.py."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(3)
X = rng.standard_normal((3, 4, 5))
MASK = rng.random((3, 4, 5)) < 0.7
MS = "com.microsoft"


def everything(x, *_):
    return x, np.ones(x.shape, bool)


SAMPLES = [
    Sample("Dropout", [X], everything, outputs=2),
    Sample("Dropout", [X], everything, outputs=1),
    Sample("Dropout", [X, np.array(0.4)], everything, outputs=2, indices=[0]),
    Sample("Dropout", [X, np.array(0.4), np.array(False)], everything, outputs=2, constants=[1, 2], indices=[0]),
    Sample("Dropout", [X, np.array(0.0), np.array(True)], everything, outputs=2, constants=[1, 2], indices=[0]),
    Sample("Dropout", [X], everything, {"ratio": 0.3}, outputs=2, opset=11),
    Sample("DropoutGrad", [X, MASK, np.array(0.3), np.array(True)],
           lambda dy, m, r, t: np.where(m, dy / (1 - np.float64(r)), 0).astype(dy.dtype),
           domain=MS, gradient=False),
    Sample("DropoutGrad", [X, MASK], lambda dy, m: np.where(m, dy * 2, 0), domain=MS, gradient=False),
    Sample("DropoutGrad", [X, MASK, np.array(0.0)], lambda dy, m, r: dy, domain=MS, gradient=False),
]
REFUSALS = [Refusal("DropoutGrad", [X, X], domain=MS)]
