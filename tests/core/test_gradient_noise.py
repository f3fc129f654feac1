"""The noise of differential privacy: ChaCha20 against its specification, the transform to normal numbers against NumPy, and how the numbers are distributed."""

import math

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain._core.optimizer_update import BoundKernel

SEED = np.array([0x03020100, 0x07060504, 0x0B0A0908, 0x0F0E0D0C, 0x13121110, 0x17161514, 0x1B1A1918, 0x1F1E1D1C, 0x4A000000, 0], np.uint32)
"""The key 00 01 ... 1f of RFC 8439, and a nonce."""
LANES, GROUP = 8, 128


def rotated(x, count):
    return (x << np.uint32(count)) | (x >> np.uint32(32 - count))


def chacha20(seed, counter):
    """Return one block of the key stream, uint32 [16]. counter: words 12 and 13."""
    x = np.concatenate([np.array([0x61707865, 0x3320646E, 0x79622D32, 0x6B206574], np.uint32), seed[:8], np.array(counter, np.uint32), seed[8:]])
    start = x.copy()
    for step in range(80):                                  # quarter rounds, of columns and of diagonals in turns
        rows = np.arange(4) * 4
        a, b, c, d = rows + (step % 4 + (np.arange(4) if step % 8 >= 4 else 0)) % 4
        for first, second, changed, count in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[[first]] += x[[second]]
            x[changed] = rotated(x[changed] ^ x[first], count)
    return x + start


def noise_of(count, seed=SEED, dtype="float32", deviation=1.0):
    gradient = np.zeros(count, dtype)
    assert call_kernel(kernels()["gradient_noise", dtype], [gradient, seed], [], (), (deviation,)) == 0
    return gradient


def test_the_oracle_is_that_of_the_rfc():
    words = chacha20(np.array([*SEED[:8], 0x4A000000, 0], np.uint32), (1, 0x09000000))         # section 2.3.2, whose nonce has three words
    assert [f"{word:08x}" for word in words[:4]] == ["e4e7f110", "15593bd1", "1fdd0f50", "c47120a3"] and f"{words[15]:08x}" == "4e3c50a2"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_is_normal_numbers_from_the_key_stream(dtype):
    count = 20_000                                          # two work items, the last group incomplete
    expected = []
    for first in range(0, math.ceil(count / GROUP) * LANES, LANES):
        words = np.stack([chacha20(SEED, (first + lane, 0)) for lane in range(LANES)], 1).reshape(-1)
        share, angle = ((words[:64] >> 1) + 0.5) / 2**31, words[64:].astype(np.int32) * (np.pi / 2**31)
        radius = np.sqrt(-2 * np.log(share))
        expected += [radius * np.cos(angle), radius * np.sin(angle)]
    np.testing.assert_allclose(noise_of(count, dtype=dtype), np.concatenate(expected)[:count], rtol=2e-5, atol=3e-6)


def test_noise_is_added_with_its_deviation():
    gradient = np.arange(300, dtype=np.float32)
    assert call_kernel(kernels()["gradient_noise", "float32"], [gradient, SEED], [], (), (0.25,)) == 0
    np.testing.assert_allclose(gradient, np.arange(300) + 0.25 * noise_of(300), rtol=1e-6, atol=1e-6)


def test_noise_has_the_same_bits_for_any_number_of_threads():
    found = []
    for threads in (1, 2, 3):
        gradient = np.zeros(100_000, np.float32)
        handle = EngineHandle(threads, 0)
        BoundKernel(handle, kernels()["gradient_noise", "float32"], [gradient, SEED]).run(1.0)
        handle.close()
        found.append(gradient.tobytes())
    assert found[0] == found[1] == found[2]


def test_noise_follows_the_normal_distribution():
    noise = noise_of(4_000_000).astype(np.float64)
    sigma = 1 / math.sqrt(len(noise))
    assert abs(noise.mean()) < 4 * sigma and abs(noise.var() - 1) < 4 * math.sqrt(2) * sigma
    assert abs((noise**3).mean()) < 4 * math.sqrt(15) * sigma and abs((noise**4).mean() - 3) < 4 * math.sqrt(96) * sigma
    edges = np.linspace(-4, 4, 65)
    probability = np.diff([0.5 * (1 + math.erf(edge / math.sqrt(2))) for edge in edges])
    counts, expected = np.histogram(noise, edges)[0], len(noise) * probability
    assert ((counts - expected) ** 2 / expected).sum() < 64 + 5 * math.sqrt(128)                # chi squared of 64 bins
    assert 4.7 < abs(noise).max() < 6.67
    for lag in (1, 8, 64, 128):
        assert abs((noise[:-lag] * noise[lag:]).mean()) < 4 * sigma


def test_noise_differs_by_key_and_nonce():
    first = noise_of(10_000)
    for word in (0, 7, 8, 9):
        seed = SEED.copy()
        seed[word] ^= 1
        assert abs((first * noise_of(10_000, seed)).mean()) < 0.04
