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
    Sample("AdamUpdate", [X, X + 1, PROGRESS, None, X, X * X], updated, {}, "ortrain", gradient=False),
    Sample("MomentumUpdate", [X, X + 1, PROGRESS, None, X], updated, {"nesterov": 1}, "ortrain", gradient=False),
    Sample("MomentumUpdate", [X, X + 1, PROGRESS], updated, {"momentum": 0.0, "weight_decay": 0.1}, "ortrain", gradient=False, label="without momentum"),
    Sample("LionUpdate", [X, X + 1, PROGRESS, None, X], updated, {}, "ortrain", gradient=False),
    Sample("RMSpropUpdate", [X, X + 1, PROGRESS, None, X * X], updated, {}, "ortrain", gradient=False),
    Sample("RMSpropUpdate", [X, X + 1, PROGRESS, None, X * X, None, X], updated, {"momentum": 0.9}, "ortrain", gradient=False, label="with momentum"),
    Sample("RMSpropUpdate", [X, X + 1, PROGRESS, None, X * X, X], updated, {"centered": 1}, "ortrain", gradient=False, label="centered"),
    Sample("AdagradUpdate", [X, X + 1, PROGRESS, None, X * X], updated, {}, "ortrain", gradient=False),
    Sample("LambUpdate", [X, X + 1, PROGRESS, None, X, X * X], updated, {}, "ortrain", gradient=False),
    Sample("AdafactorUpdate", [X, X + 1, PROGRESS, None, X[:, 0] ** 2, X[0] ** 2], updated, {}, "ortrain", gradient=False),
    Sample("AdafactorUpdate", [X[0], X[0], PROGRESS, None, X[0] ** 2, X[0, :0]], updated, {}, "ortrain", gradient=False, label="vector"),
    Sample("MuonUpdate", [X, X + 1, PROGRESS, None, X, X[0, :0]], updated, {}, "ortrain", gradient=False),
    Sample("MuonUpdate", [X[0], X[0], PROGRESS, None, X[0], X[0] ** 2], updated, {}, "ortrain", gradient=False, label="vector"),
    Sample("GemmUpdate", [X, X + 1, X.T @ X, None, PROGRESS], updated, {"transA": 1, "update": "SGDUpdate"}, "ortrain", gradient=False),
    Sample("GemmUpdate", [X, X + 1, X @ X.T, None, PROGRESS, None, X @ X.T, X @ X.T], updated, {"transB": 1, "update": "AdamWUpdate"}, "ortrain",
           gradient=False),
    Sample("ZeroGradient", [X, np.array([True])], lambda x, s: np.zeros_like(x), {}, "com.microsoft", gradient=False),
]
REFUSALS = [
    Refusal("InPlaceAccumulatorV2", [X, X[:2]], domain="com.microsoft"),
    Refusal("SGDUpdate", [X, X[:2], PROGRESS], domain="ortrain"),
    Refusal("SGDUpdate", [X, X, PROGRESS[:1]], domain="ortrain"),
    Refusal("AdamWUpdate", [X, X, PROGRESS, None, X, X[:2]], domain="ortrain"),
    Refusal("AdafactorUpdate", [X, X, PROGRESS, None, X[0], X[0]], domain="ortrain"),
    Refusal("RMSpropUpdate", [X, X, PROGRESS, None, X, None, X[:2]], {"momentum": 0.5}, domain="ortrain"),
    Refusal("GemmUpdate", [X, X, X, None, PROGRESS], {"update": "SGDUpdate"}, domain="ortrain"),
]
