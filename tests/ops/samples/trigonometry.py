"""Samples of the trigonometric and hyperbolic functions."""

import numpy as np

from tests.ops.samples import Sample

rng = np.random.default_rng(21)
X = rng.uniform(0.1, 0.9, (3, 4, 5)) * rng.choice([-1.0, 1.0], (3, 4, 5))

SAMPLES = [
    *[Sample(name, [10 * X], function) for name, function in (("Sin", np.sin), ("Cos", np.cos))],
    *[Sample(name, [X], function) for name, function in (("Tan", np.tan), ("Asin", np.arcsin), ("Acos", np.arccos), ("Atanh", np.arctanh))],
    *[Sample(name, [3 * X], function) for name, function in (("Atan", np.arctan), ("Sinh", np.sinh), ("Cosh", np.cosh), ("Asinh", np.arcsinh))],
    Sample("Acosh", [1.1 + np.abs(3 * X)], np.arccosh),
]
