"""Samples of the activation family."""

import math

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(1)
X = rng.uniform(0.2, 1.5, (3, 4, 5)) * rng.choice([-1.0, 1.0], (3, 4, 5))      # no element near a kink
WIDE = np.concatenate([rng.uniform(-12, 12, 40), [-95.0, 95.0]])
DY = rng.standard_normal((3, 4, 5))
BIAS = rng.standard_normal(5)
MICROSOFT = "com.microsoft"
ERF = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def gelu(x):
    return 0.5 * x * (1 + ERF(x / math.sqrt(2)))


def fast_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def leaky(alpha):
    return lambda x: np.where(x > 0, x, alpha * x)


def gradient(op_type, oracle, **attributes):
    return Sample(op_type, [DY, X], oracle, attributes, MICROSOFT, gradient=False)


SAMPLES = [
    Sample("Relu", [X], lambda x: np.maximum(x, 0)),
    *[Sample("LeakyRelu", [X], leaky(a), {"alpha": a}) for a in (0.01, 0.3, -0.5)],
    Sample("Sigmoid", [X], sigmoid), Sample("Sigmoid", [WIDE], sigmoid, label="wide"),
    Sample("Tanh", [X], np.tanh), Sample("Tanh", [WIDE], np.tanh, label="wide"), Sample("Tanh", [X / 100], np.tanh, label="small"),
    Sample("Gelu", [X], gelu, opset=20), Sample("Gelu", [X], fast_gelu, {"approximate": "tanh"}, opset=20), Sample("Gelu", [3 * X], gelu, domain=MICROSOFT),
    Sample("FastGelu", [X], fast_gelu, domain=MICROSOFT),
    Sample("FastGelu", [X, BIAS], lambda x, b: fast_gelu(x + b), domain=MICROSOFT),
    Sample("BiasGelu", [X, BIAS], lambda x, b: gelu(x + b), domain=MICROSOFT),
    Sample("BiasGeluGrad_dX", [DY, X, BIAS], lambda dy, x, b: dy * gelu_slope(x + b), domain=MICROSOFT, gradient=False),
    Sample("BiasFastGeluGrad_dX", [DY, X, BIAS], lambda dy, x, b: dy * fast_gelu_slope(x + b), domain=MICROSOFT, gradient=False), Sample("QuickGelu", [X], lambda x: x * sigmoid(1.3 * x), {"alpha": 1.3}, MICROSOFT),
    Sample("Clip", [X, np.array(-0.7), np.array(0.8)], lambda x, a, b: np.clip(x, a, b), constants=(1, 2)),
    Sample("Clip", [X, np.array(0.1)], lambda x, a: np.maximum(x, a), constants=(1,)), Sample("Clip", [X], lambda x: x),
    gradient("ReluGrad", lambda dy, y: np.where(y > 0, dy, 0)), gradient("SigmoidGrad", lambda dy, y: dy * y * (1 - y)),
    gradient("TanhGrad", lambda dy, y: dy * (1 - y * y)), gradient("LeakyReluGrad", lambda dy, y: np.where(y > 0, dy, 0.3 * dy), alpha=0.3),
    gradient("GeluGrad", lambda dy, x: dy * gelu_slope(x)),
    gradient("QuickGeluGrad", lambda dy, x: dy * (sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))))),
    gradient("FastGeluGrad", lambda dy, x: dy * fast_gelu_slope(x)),
]


def gelu_slope(x):
    return 0.5 * (1 + ERF(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def fast_gelu_slope(x):
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


REFUSALS = [Refusal("ReluGrad", [DY, X[:, :3]], domain=MICROSOFT), Refusal("FastGelu", [X, X[0]], domain=MICROSOFT)]
