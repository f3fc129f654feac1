"""Samples of LabelEncoder with numbers; tests/test_text_inputs.py tests strings, which programs do not support."""

import numpy as np

from tests.ops.samples import Refusal, Sample

KEYS = np.array([[1, 2], [7, 3]])
ML = "ai.onnx.ml"

SAMPLES = [
    Sample("LabelEncoder", [KEYS], lambda x: np.array([[10, 20], [-1, 30]]), {"keys_int64s": (1, 2, 3), "values_int64s": (10, 20, 30)}, ML, gradient=False),
    Sample("LabelEncoder", [KEYS], lambda x: np.array([[0.5, 9.0], [9.0, 1.5]], np.float32),
           {"keys_int64s": (1, 3), "values_floats": (0.5, 1.5), "default_float": 9.0}, ML, gradient=False),
]
REFUSALS = [Refusal("LabelEncoder", [KEYS], {"keys_int64s": (1, 2), "values_int64s": (1,)}, ML), Refusal("LabelEncoder", [KEYS], {}, ML)]
