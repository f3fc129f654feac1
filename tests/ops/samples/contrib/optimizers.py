"""Samples of optimizers as operators on single tensors.

The oracles of SGDOptimizer and AdamOptimizer without loss scale and norm were compared with onnxruntime-training 1.19.2 by hand."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(137)
MS = "com.microsoft"
W, G, M = rng.standard_normal((3, 3, 4))
V = rng.uniform(0.1, 1, (3, 4))
RATE, STEP, SCALE, NORM, YES, NO = np.array(0.1), np.array(3), np.array(4.0), np.array(24.0), np.array(True), np.array([False])


def moments(g, m, v, step, alpha, beta):
    """Return the first and the second moment after a step, then both with bias correction."""
    first, second = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
    return first, second, first / (1 - alpha**step), second / (1 - beta**step)


def adam(mode=0, decay=0.0, epsilon=1e-8, corrected=True):
    """Return the oracle of AdamOptimizer. mode: its weight_decay_mode. corrected: its do_bias_correction."""
    def oracle(rate, step, w, g, m, v, half=None, scale=None, norm=None, signal=None):
        dtype, given = w.dtype, g
        rate, w, g, m, v = (np.asarray(x, np.float64) for x in (rate, w, g, m, v))
        scale = 1.0 if scale is None else float(scale)
        excess = 1.0 if norm is None else max(1.0, float(norm) / scale / 1.0)
        first, second, unbiased, unbiased_second = moments(g / scale / excess, m, v, step.item(), 0.9, 0.999)
        if mode == 0:
            a, b = (unbiased, unbiased_second) if corrected else (first, second)
            updated = w - rate * (a / (np.sqrt(b) + epsilon) + decay * w)
        else:
            rate_of_step = rate * np.sqrt(1 - 0.999 ** step.item()) / (1 - 0.9 ** step.item()) if corrected else rate
            updated = w - rate_of_step * first / (np.sqrt(second) + epsilon)
            updated = updated - rate * decay * updated
        if signal is not None and not signal.any():
            return step, m.astype(dtype), v.astype(dtype), w.astype(dtype), given, half
        half_result = None if half is None else updated.astype(half.dtype)
        return step + 1, first.astype(dtype), second.astype(dtype), updated.astype(dtype), (updated - w).astype(dtype), half_result

    return oracle


def lamb(signal, scale, norm, rate, step, *groups, decay=(0.01, 0.0), lowest=-np.inf, highest=np.inf):
    """Return the outputs of LambOptimizer. lowest, highest: its ratio_min and ratio_max."""
    results = [step + 1]
    for number in range(len(groups) // 5):
        w, g, m, v, _ = groups[5 * number : 5 * number + 5]
        w64 = w.astype(np.float64)
        excess = 1.0 if norm is None else max(1.0, float(norm) / float(scale))
        gradient = g.astype(np.float64) / (1.0 if scale is None else float(scale)) / excess
        first, second, unbiased, unbiased_second = moments(gradient, m.astype(np.float64), v.astype(np.float64), step.item(), 0.9, 0.999)
        direction = unbiased / (np.sqrt(unbiased_second) + 1e-6) + decay[number] * w64
        norms = np.sqrt((w64 * w64).sum()), np.sqrt((direction * direction).sum())
        ratio = min(max(norms[0] / norms[1], lowest), highest) if all(norms) else 1.0
        change = -float(rate) * ratio * direction
        results += [part.astype(w.dtype) for part in (w64 + change, change, first, second, w64 + change)]
    return tuple(results)


GROUPS = [W, G, M, V, None, W[0] * 0, G[0], M[0], V[0], None]
OPTIONS = {"lambda": [0.01, 0.0]}
SAMPLES = [
    Sample("SGDOptimizer", [RATE, W, G], lambda rate, w, g: (w - w.dtype.type(rate) * g, -w.dtype.type(rate) * g), {}, MS, 2, gradient=False),
    Sample("AdamOptimizer", [RATE, STEP, W, G, M, V], adam(), {}, MS, 5, gradient=False),
    Sample("AdamOptimizer", [RATE, STEP[None], W, G, M, V], adam(decay=0.01, epsilon=1e-2, corrected=False),
           {"lambda": 0.01, "epsilon": 1e-2, "do_bias_correction": 0}, MS, 5, gradient=False),
    *[Sample("AdamOptimizer", [RATE, STEP, W, G, M, V], adam(1, 0.01, 1e-2, corrected), {"lambda": 0.01, "epsilon": 1e-2, "weight_decay_mode": 1,
             "do_bias_correction": int(corrected)}, MS, 5, gradient=False) for corrected in (True, False)],
    Sample("AdamOptimizer", [RATE, STEP, W, G, M, V, W.astype(np.float16), SCALE, NORM, YES], adam(), {}, MS, 6, gradient=False),
    Sample("AdamOptimizer", [RATE, STEP, W, G, M, V, W.astype(np.float16), None, None, NO], adam(), {}, MS, 6, gradient=False),
    Sample("LambOptimizer", [None, None, None, RATE, STEP, *GROUPS], lamb, OPTIONS, MS, 11, gradient=False),
    Sample("LambOptimizer", [YES, SCALE, NORM, RATE, STEP, *GROUPS[:5]], lambda *a: lamb(*a, lowest=0.5, highest=0.75),
           {**OPTIONS, "ratio_min": 0.5, "ratio_max": 0.75}, MS, 6, gradient=False),
    Sample("LambOptimizer", [NO, None, None, RATE, STEP, *GROUPS[:5]], lambda signal, scale, norm, rate, step, w, g, m, v, half: (step, w, g, m, v, w), {}, MS, 6,
           gradient=False),
]
REFUSALS = [
    Refusal("SGDOptimizer", [RATE, W, G[0]], {}, MS), Refusal("AdamOptimizer", [RATE, STEP, W, G, M, V[0]], {}, MS),
    Refusal("AdamOptimizer", [RATE, STEP, W, G, M, V], {"weight_decay_mode": 2}, MS), Refusal("LambOptimizer", [None, None, None, None, STEP, *GROUPS], {}, MS),
    Refusal("LambOptimizer", [None, None, None, RATE, STEP, W, G, M, V[0], None], {}, MS),
]
