"""Dropout's masks: kept at the right rate, scaled, the same for a seed, others for other seeds and nodes."""

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels


def drop(n, ratio, seed=1, stream=7, workers=1, dtype="float32"):
    """(y, mask) of ones."""
    y, mask = np.zeros(n, dtype), np.zeros(n, bool)
    inputs = [np.ones(n, dtype), np.array(ratio, np.float32), np.array(True)]
    assert call_kernel(kernels()["dropout", dtype], inputs, [y, mask], (stream,), (), 0, EngineHandle(workers, seed)) == 0
    return y, mask


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_elements_are_kept_at_the_given_rate_and_scaled(ratio):
    y, mask = drop(200_000, ratio)
    assert mask.mean() == pytest.approx(1 - ratio, abs=0.005)
    np.testing.assert_allclose(y, np.where(mask, np.float32(1 / (1 - ratio)), 0), rtol=1e-6)


def test_neighbours_and_streams_are_independent():
    masks = [drop(200_000, 0.5, seed, stream)[1] * 2.0 - 1 for seed, stream in [(1, 7), (1, 8), (2, 7)]]
    pairs = [(a, b) for i, a in enumerate(masks) for b in masks[:i]] + [(masks[0][lag:], masks[0][:-lag]) for lag in (1, 2, 16, 256, 32768)]
    assert max(abs(float((a * b).mean())) for a, b in pairs) < 0.012


def test_a_mask_depends_on_the_seed_and_not_on_threads_dtype_or_length():
    mask = drop(100_001, 0.3)[1]
    for other in (drop(100_001, 0.3, workers=4), drop(100_001, 0.3, dtype="float64")):
        np.testing.assert_array_equal(other[1], mask)
    np.testing.assert_array_equal(drop(1000, 0.3)[1], mask[:1000])
    assert (drop(100_001, 0.3, seed=2)[1] != mask).any()


def test_a_ratio_of_one_drops_everything():
    y, _ = drop(1000, 1.0)
    assert not y.any()
