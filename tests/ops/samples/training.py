"""Samples of the training family. The accumulator writes into its first input, which tests/core/test_optimizer_kernels.py looks at."""

import numpy as np

from tests.ops.samples import Refusal, Sample

X = np.random.default_rng(7).standard_normal((3, 4))

SAMPLES = [
    Sample("InPlaceAccumulatorV2", [X, X + 1, np.array([True])], lambda *_: np.array([True]), {}, "com.microsoft", gradient=False),
    Sample("InPlaceAccumulator", [X, X + 1], lambda old, value: old + value, {}, "com.microsoft", gradient=False),
    *[Sample("InPlaceAccumulator", [X, X + 1, np.array([signal])], lambda old, value, s: old + s * value, {}, "com.microsoft", gradient=False)
      for signal in (True, False)],
    Sample("ZeroGradient", [X, np.array([True])], lambda x, s: np.zeros_like(x), {}, "com.microsoft", gradient=False),
]
REFUSALS = [Refusal("InPlaceAccumulatorV2", [X, X[:2]], domain="com.microsoft")]
