"""Fixtures of the facade tests."""

import numpy as np
import pytest

from ortrain.conformance.cases import ARTIFACTS

FOLDER = ARTIFACTS / "classifier"
CHECKPOINT = str(FOLDER / "checkpoint")
TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL = (str(FOLDER / f"{name}_model.onnx") for name in ("training", "eval", "optimizer"))


@pytest.fixture
def batch():
    return np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 2, 0])
