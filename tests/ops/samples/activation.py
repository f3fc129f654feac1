"""Samples of the activation functions."""

import math

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(1)
X = rng.uniform(0.2, 1.5, (3, 4, 5)) * rng.choice([-1.0, 1.0], (3, 4, 5))      # no element near 0, where some functions are not differentiable
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


def leaky_relu(alpha):
    return lambda x: np.where(x > 0, x, alpha * x)


def gradient(op_type, oracle, **attributes):
    return Sample(op_type, [DY, X], oracle, attributes, MICROSOFT, gradient=False)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def hard_sigmoid(x, alpha=0.2, beta=0.5):
    return np.clip(alpha * x + beta, 0, 1)


def derivative(function, x, h=1e-3):
    """Return the derivative of a function at x by central differences of fourth order."""
    return (8 * (function(x + h) - function(x - h)) - function(x + 2 * h) + function(x - 2 * h)) / (12 * h)


def selu(x, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    return gamma * np.where(x > 0, x, alpha * (np.exp(np.minimum(x, 0)) - 1))


SMOOTH = [
    ("Elu", lambda x: np.where(x < 0, 0.7 * (np.exp(np.minimum(x, 0)) - 1), x), {"alpha": 0.7}),
    ("Celu", lambda x: np.where(x < 0, 0.7 * (np.exp(np.minimum(x, 0) / 0.7) - 1), x), {"alpha": 0.7}),
    ("Selu", selu, {}), ("Selu", lambda x: selu(x, 1.5, 1.2), {"alpha": 1.5, "gamma": 1.2}),
    ("Softplus", softplus, {}), ("Softsign", lambda x: x / (1 + np.abs(x)), {}), ("Mish", lambda x: x * np.tanh(softplus(x)), {}),
    ("HardSigmoid", lambda x: hard_sigmoid(x, 0.9, 0.4), {"alpha": 0.9, "beta": 0.4}), ("HardSigmoid", hard_sigmoid, {}),
    ("HardSwish", lambda x: x * hard_sigmoid(x, 1 / 6), {}), ("ThresholdedRelu", lambda x: np.where(x > 0.53, x, 0), {"alpha": 0.53}),
    ("Shrink", lambda x: np.where(x < -0.83, x + 0.4, np.where(x > 0.83, x - 0.4, 0)), {"lambd": 0.83, "bias": 0.4}),
]

SAMPLES = [
    *[Sample(name, [3 * X], f, attributes, opset=17 if name != "Mish" else 18) for name, f, attributes in SMOOTH],
    *[Sample(name, [WIDE], f, attributes, opset=17 if name != "Mish" else 18, label="wide") for name, f, attributes in SMOOTH],
    *[Sample(f"{name}Grad", [DY, 3 * X], lambda dy, x, f=f: (dy.astype(np.float64) * derivative(f, x.astype(np.float64))).astype(x.dtype), attributes, "ortrain", gradient=False)
      for name, f, attributes in SMOOTH],
    Sample("Swish", [X], lambda x: x * sigmoid(x), opset=24), Sample("Swish", [X], lambda x: x * sigmoid(1.3 * x), {"alpha": 1.3}, opset=24),
    *[Sample("PRelu", [X, slope], lambda x, s: np.where(x < 0, s * x, x)) for slope in (BIAS, BIAS[:1], rng.standard_normal((4, 1)), rng.standard_normal((3, 4, 5)))],
    *[Sample("PReluGrad", [DY, X, slope], lambda dy, x, s: np.where(x < 0, dy * s, dy), domain="ortrain", gradient=False) for slope in (BIAS, rng.standard_normal((4, 1)))],
    Sample("PReluSlopeGrad", [DY, X], lambda dy, x: np.where(x < 0, dy * x, 0), domain="ortrain", gradient=False),
    Sample("Relu", [X], lambda x: np.maximum(x, 0)),
    *[Sample("LeakyRelu", [X], leaky_relu(a), {"alpha": a}) for a in (0.01, 0.3, -0.5)],
    Sample("Sigmoid", [X], sigmoid), Sample("Sigmoid", [WIDE], sigmoid, label="wide"),
    Sample("Tanh", [X], np.tanh), Sample("Tanh", [WIDE], np.tanh, label="wide"), Sample("Tanh", [X / 100], np.tanh, label="small"),
    Sample("Gelu", [X], gelu, opset=20), Sample("Gelu", [X], fast_gelu, {"approximate": "tanh"}, opset=20), Sample("Gelu", [3 * X], gelu, domain=MICROSOFT),
    Sample("FastGelu", [X], fast_gelu, domain=MICROSOFT),
    Sample("FastGelu", [X, BIAS], lambda x, b: fast_gelu(x + b), domain=MICROSOFT),
    Sample("BiasGelu", [X, BIAS], lambda x, b: gelu(x + b), domain=MICROSOFT),
    Sample("BiasGeluGrad_dX", [DY, X, BIAS], lambda dy, x, b: dy * gelu_derivative(x + b), domain=MICROSOFT, gradient=False),
    Sample("BiasFastGeluGrad_dX", [DY, X, BIAS], lambda dy, x, b: dy * fast_gelu_derivative(x + b), domain=MICROSOFT, gradient=False), Sample("QuickGelu", [X], lambda x: x * sigmoid(1.3 * x), {"alpha": 1.3}, MICROSOFT),
    Sample("Clip", [X, np.array(-0.7), np.array(0.8)], lambda x, a, b: np.clip(x, a, b), constants=(1, 2)),
    Sample("Clip", [X, np.array(0.5), np.array(-0.5)], lambda x, a, b: np.full_like(x, b), constants=(1, 2), label="crossed"),
    Sample("Clip", [X, np.array(0.1)], lambda x, a: np.maximum(x, a), constants=(1,)), Sample("Clip", [X], lambda x: x),
    gradient("ReluGrad", lambda dy, y: np.where(y > 0, dy, 0)), gradient("SigmoidGrad", lambda dy, y: dy * y * (1 - y)),
    gradient("TanhGrad", lambda dy, y: dy * (1 - y * y)), gradient("LeakyReluGrad", lambda dy, y: np.where(y > 0, dy, 0.3 * dy), alpha=0.3),
    gradient("GeluGrad", lambda dy, x: dy * gelu_derivative(x)),
    gradient("QuickGeluGrad", lambda dy, x: dy * (sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))))),
    gradient("FastGeluGrad", lambda dy, x: dy * fast_gelu_derivative(x)),
]


def gelu_derivative(x):
    return 0.5 * (1 + ERF(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def fast_gelu_derivative(x):
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


REFUSALS = [Refusal("PRelu", [X[0, 0], X]), Refusal("PRelu", [X, X[:, :3]]), Refusal("ReluGrad", [DY, X[:, :3]], domain=MICROSOFT), Refusal("FastGelu", [X, X[0]], domain=MICROSOFT)]
