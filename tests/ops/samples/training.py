"""Samples of the training operators. tests/core/test_optimizer_kernels.py checks the inputs that they overwrite."""

import numpy as np

from tests.ops.samples import Refusal, Sample

updated = lambda *_: np.array([True])
PROGRESS = np.array([0.01, 3])
X = np.random.default_rng(7).standard_normal((3, 4))

SAMPLES = [
    Sample("InPlaceAccumulatorV2", [X, X + 1, np.array([True])], updated, {}, "com.microsoft", gradient=False),
    Sample("InPlaceAccumulator", [X, X + 1], lambda old, value: old + value, {}, "com.microsoft", gradient=False),
    *[Sample("InPlaceAccumulator", [X, X + 1, np.array([signal])], lambda old, value, s: old + s * value, {}, "com.microsoft", gradient=False)
      for signal in (True, False)],
    Sample("SGDUpdate", [X, X + 1, PROGRESS], updated, {}, "ortrain", gradient=False),
    Sample("AdamWUpdate", [X, X + 1, PROGRESS, None, X, X * X], updated, {"adam_mode": 1}, "ortrain", gradient=False),
    Sample("AdamWUpdate", [X, X + 1, PROGRESS, np.array([True]), X, X * X], updated, {}, "ortrain", gradient=False, label="masked"),
    Sample("GemmUpdate", [X, X + 1, X.T @ X, None, PROGRESS], updated, {"transA": 1}, "ortrain", gradient=False),
    Sample("GemmUpdate", [X, X + 1, X @ X.T, None, PROGRESS, None, X @ X.T, X @ X.T], updated, {"transB": 1}, "ortrain", gradient=False),
    Sample("ZeroGradient", [X, np.array([True])], lambda x, s: np.zeros_like(x), {}, "com.microsoft", gradient=False),
]
REFUSALS = [
    Refusal("InPlaceAccumulatorV2", [X, X[:2]], domain="com.microsoft"),
    Refusal("SGDUpdate", [X, X[:2], PROGRESS], domain="ortrain"),
    Refusal("SGDUpdate", [X, X, PROGRESS[:1]], domain="ortrain"),
    Refusal("AdamWUpdate", [X, X, PROGRESS, None, X, X[:2]], domain="ortrain"),
    Refusal("GemmUpdate", [X, X, X, None, PROGRESS], domain="ortrain"),
]
