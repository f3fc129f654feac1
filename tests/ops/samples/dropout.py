"""Samples of Dropout and its variants with known masks; tests/ops/test_dropout.py tests random masks."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(3)
X = rng.standard_normal((3, 4, 5))
MASK = rng.random((3, 4, 5)) < 0.7
MS = "com.microsoft"


def keep_all(x, *_):
    return x, np.ones(x.shape, bool)


def pack_bits(mask):
    """Return a mask packed into uint32 words, lowest bit first."""
    bits = np.zeros(-(-mask.size // 32) * 32, np.uint8)
    bits[: mask.size] = mask.reshape(-1)
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def softmax(x):
    """Softmax over all axes from the second on."""
    powers = np.exp(x - x.max(axis=(1, 2), keepdims=True))
    return powers / powers.sum(axis=(1, 2), keepdims=True)


def softmax_dropout_gradient(dy, mask, y, ratio=0.5):
    scaled = np.where(mask, dy / (1 - np.float64(ratio)), 0).astype(dy.dtype)
    return y * (scaled - (y * scaled).sum(axis=(1, 2), keepdims=True))


BIAS, RESIDUAL, OFF, ON = rng.standard_normal(5), rng.standard_normal((3, 4, 5)), np.array(False), np.array(True)
FUSED = [
    Sample("BiasDropout", [X, BIAS, RESIDUAL, np.array(0.4), OFF], lambda x, b, r, *_: (x + b + r, np.ones(x.shape, bool)), domain=MS, outputs=2, indices=[0, 1, 2]),
    Sample("BiasDropout", [X, BIAS], lambda x, b: x + b, domain=MS),
    Sample("BitmaskDropout", [X, np.array(0.4), OFF], lambda x, *_: (x, pack_bits(np.ones(x.shape, bool))), domain=MS, outputs=2, indices=[0]),
    Sample("BitmaskDropout", [X[0, 0]], lambda x: (x, pack_bits(np.ones(x.shape, bool))), domain=MS, outputs=2),
    Sample("BitmaskBiasDropout", [X, BIAS, None, np.array(0.4), OFF], lambda x, b, *_: (x + b, pack_bits(np.ones(x.shape, bool))), domain=MS, outputs=2, indices=[0, 1]),
    Sample("BitmaskDropoutGrad", [X, pack_bits(MASK), np.array(0.3), ON], lambda dy, m, r, t: np.where(MASK, dy / (1 - np.float64(r)), 0).astype(dy.dtype), domain=MS,
           gradient=False),
    Sample("BitmaskDropoutGrad", [X, pack_bits(MASK)], lambda dy, m: np.where(MASK, dy * 2, 0), domain=MS, gradient=False),
    Sample("BiasSoftmaxDropout", [X, BIAS, np.array(0.0)], lambda x, b, r: (softmax(x + b), None, softmax(x + b)), {"is_inner_broadcast": 1}, MS, 3, indices=[0, 1]),
    Sample("SoftmaxDropoutGrad", [RESIDUAL, MASK, softmax(X), np.array(0.3)], softmax_dropout_gradient, {"axis": 1}, MS, gradient=False),
    Sample("SoftmaxDropoutGrad", [RESIDUAL, MASK, softmax(X)], softmax_dropout_gradient, {"axis": 1}, MS, gradient=False),
]
SAMPLES = [
    *FUSED,
    Sample("Dropout", [X], keep_all, outputs=2),
    Sample("Dropout", [X], keep_all, outputs=1),
    Sample("Dropout", [X, np.array(0.4)], keep_all, outputs=2, indices=[0]),
    Sample("Dropout", [X, np.array(0.4), np.array(False)], keep_all, outputs=2, constants=[1, 2], indices=[0]),
    Sample("Dropout", [X, np.array(0.4), np.array(False)], keep_all, outputs=2, indices=[0], label="computed-mode"),
    Sample("Dropout", [X, None, np.array(False)], keep_all, outputs=2, indices=[0], label="computed-mode-and-no-ratio"),
    Sample("Dropout", [X, np.array(0.0), np.array(True)], keep_all, outputs=2, constants=[1, 2], indices=[0]),
    Sample("Dropout", [X], keep_all, {"ratio": 0.3}, outputs=2, opset=11),
    Sample("DropoutGrad", [X, MASK, np.array(0.3), np.array(True)],
           lambda dy, m, r, t: np.where(m, dy / (1 - np.float64(r)), 0).astype(dy.dtype),
           domain=MS, gradient=False),
    Sample("DropoutGrad", [X, MASK], lambda dy, m: np.where(m, dy * 2, 0), domain=MS, gradient=False),
    Sample("DropoutGrad", [X, MASK, np.array(0.0)], lambda dy, m, r: dy, domain=MS, gradient=False),
]
REFUSALS = [
    Refusal("DropoutGrad", [X, X], domain=MS), Refusal("BitmaskDropoutGrad", [X, MASK], domain=MS),
    Refusal("BitmaskDropoutGrad", [X, pack_bits(MASK)[:1]], domain=MS, match="a mask of shape"),
]
