"""Samples of QuantizeLinear, DequantizeLinear and FakeQuantize."""

import numpy as np

from tests.ops.samples import Sample

rng = np.random.default_rng(81)
X = rng.integers(-100, 100, (3, 4, 5)).astype(np.int8)
SCALES, ZEROS = rng.uniform(0.1, 0.5, 4), rng.integers(-5, 5, 4).astype(np.int8)

SAMPLES = [
    Sample("DequantizeLinear", [X, np.array(0.25), np.array(3, np.int8)], lambda x, s, z: (x.astype(s.dtype) - z) * s, opset=19),
    Sample("DequantizeLinear", [X, np.array(0.25)], lambda x, s: x * s, opset=19),
    Sample("DequantizeLinear", [X, SCALES, ZEROS], lambda x, s, z: (x.astype(s.dtype) - z[:, None]) * s[:, None], {"axis": 1}, opset=19),
    Sample("DequantizeLinear", [X.astype(np.int32), SCALES], lambda x, s: x * s[:, None], {"axis": -2}, opset=19),
    Sample("QuantizeLinear", [rng.uniform(-3, 3, (3, 4)).astype(np.float32).astype(float), np.array(0.25), np.array(2, np.int8)],
           lambda x, s, z: np.clip(np.rint(x / s) + z, -128, 127).astype(np.int8)),
    Sample("FakeQuantize", [rng.uniform(-3, 3, (3, 4)).astype(np.float32).astype(float), np.array(0.25), np.array(2, np.int8)],
           lambda x, s, z: ((np.clip(np.rint(x / s) + z, -128, 127) - z) * s).astype(x.dtype), {}, "ortrain", gradient=False),
]
