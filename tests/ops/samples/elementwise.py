"""Samples of the element-wise family."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(0)
# no element near a kink of the functions below
X = rng.uniform(0.2, 1.5, (3, 4, 5)) * rng.choice([-1.0, 1.0], (3, 4, 5))

SAMPLES = [
    Sample("Relu", [X], lambda x: np.maximum(x, 0)),
    Sample("ReluGrad", [X, X * 2], lambda dy, y: np.where(y > 0, dy, 0), domain="com.microsoft", gradient=False),
]
REFUSALS: list[Refusal] = []
