"""Samples of MatMul, Gemm, their fused variants and Dense."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(2)


def r(*shape):
    return rng.standard_normal(shape)


def transpose_if(x, flag):
    return np.swapaxes(x, -1, -2) if flag and x.ndim > 1 else x


def gemm(alpha, beta, ta, tb):
    return lambda a, b, c=None: alpha * (transpose_if(a, ta) @ transpose_if(b, tb)) + (0 if c is None else beta * c)


MATMULS = [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (2, 4, 5)), ((4,), (4,)), ((4,), (4, 5)),
           ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((1, 1), (1, 1)), ((70, 33), (33, 49)), ((0, 4), (4, 5)), ((1, 300), (300, 17))]
SAMPLES = [
    *[Sample("MatMul", [r(*a), r(*b)], np.matmul) for a, b in MATMULS],
    *[Sample("FusedMatMul", [r(*(a[::-1] if ta else a)), r(*(b[::-1] if tb else b))], lambda x, y, ta=ta, tb=tb: 1.5 * (transpose_if(x, ta) @ transpose_if(y, tb)),
             {"alpha": 1.5, "transA": ta, "transB": tb}, "com.microsoft") for ta in (0, 1) for tb in (0, 1) for a, b in (((3, 4), (4, 5)),)],
    *[Sample("FusedMatMul", [np.swapaxes(r(2, 3, 4), 1, 2).copy() if ta else r(2, 3, 4), np.swapaxes(r(2, 4, 5), 1, 2).copy() if tb else r(2, 4, 5)],
             lambda x, y, ta=ta, tb=tb: transpose_if(x, ta) @ transpose_if(y, tb), {"transA": ta, "transB": tb}, "com.microsoft") for ta in (0, 1) for tb in (0, 1)],
    Sample("FusedMatMul", [r(3, 2, 4), r(2, 4, 5)], lambda x, y: 0.5 * (x.transpose(1, 0, 2) @ y), {"transBatchA": 1, "alpha": 0.5}, "com.microsoft"),
    Sample("FusedMatMul", [r(3, 2, 4), r(5, 2, 3)], lambda x, y: x.transpose(1, 2, 0) @ y.transpose(1, 2, 0),
           {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1}, "com.microsoft"),
    Sample("FusedMatMul", [r(2, 4, 3), r(4, 5)], lambda x, y: transpose_if(x, 1) @ y, {"transA": 1}, "com.microsoft"),
    *[Sample("Gemm", [r(*((4, 3) if ta else (3, 4))), r(*((5, 4) if tb else (4, 5))), *c], gemm(alpha, beta, ta, tb),
             {"alpha": alpha, "beta": beta, "transA": ta, "transB": tb})
      for ta in (0, 1) for tb in (0, 1) for alpha, beta in ((1.0, 1.0), (0.5, 2.0)) for c in ([], [r(5)], [r(3, 5)], [r(3, 1)], [r()])],
]
A, B, C = r(3, 4), r(5, 4), r(5)


def dense(tb, relu):
    def oracle(x, w, b=None):
        y = x @ transpose_if(w, tb) + (0 if b is None else b)
        return np.maximum(y, 0) if relu else y

    return oracle


SAMPLES += [Sample("Dense", [r(*x), r(*((n, x[-1]) if tb else (x[-1], n))), b if b is None else r(n)], dense(tb, relu), {"transB": tb, "relu": relu},
                   "ortrain", gradient=False, label=f"{'x'.join(map(str, x))}-{n}-bias-{b is not None}-{tb}-{relu}")
            for x, n in (((3, 4), 5), ((2, 3, 4), 5), ((1, 300), 17), ((40, 64), 700), ((2, 150, 33), 49), ((0, 4), 5))
            for b in (None, True) for tb in (0, 1) for relu in (0, 1)]


def dequantized_dense(x, n, axis, tb, relu, bias=True, alpha=1.0):
    """Return a sample of a dense layer over integers with scales along an axis, one scale (None), or none ("")."""
    def oracle(x, w, scale=None, b=None):
        return dense(tb, relu)(alpha * x, w * (1.0 if scale is None else scale if axis is None else np.expand_dims(scale, 1 - axis)), b)

    shape = (n, x[-1]) if tb else (x[-1], n)
    scales = [] if axis == "" else [np.array(0.05) if axis is None else rng.uniform(0.01, 0.1, shape[axis])]
    attributes = {"transB": tb, "relu": relu} | ({"alpha": alpha} if alpha != 1 else {}) | ({"axis": axis} if axis in (0, 1) else {})
    return Sample("DequantizedDense", [r(*x), rng.integers(-127, 128, shape).astype(np.int8), *(scales or [None] * bias), *([r(n)] if bias else [])], oracle,
                  attributes, "ortrain", gradient=False, label=f"{'x'.join(map(str, x))}-{n}-{axis}-{tb}-{relu}")


SAMPLES += [dequantized_dense(x, n, axis, tb, relu) for x, n in (((3, 4), 5), ((2, 3, 70), 41), ((0, 4), 5)) for axis in (0, 1, None, "") for tb in (0, 1)
            for relu in (0, 1)]
SAMPLES += [dequantized_dense((9, 300), 1000, axis, tb, 0, False, 0.5) for axis in (0, 1, "") for tb in (0, 1)]           # several blocks
SAMPLES += [
    Sample("FusedGemm", [A, B, C], lambda a, b, c: np.maximum(0.5 * a @ b.T + c, 0), {"transB": 1, "alpha": 0.5, "activation": "Relu"}, "com.microsoft"),
    Sample("FusedGemm", [A, B, C], lambda a, b, c: np.tanh(a @ b.T + c), {"transB": 1, "activation": "Tanh"}, "com.microsoft"),
    Sample("FusedGemm", [A, B], lambda a, b: np.where(a @ b.T > 0, a @ b.T, 0.2 * (a @ b.T)), {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2},
           "com.microsoft"),
]
REFUSALS = [
    Refusal("MatMul", [r(3, 4), r(5, 4)]), Refusal("MatMul", [r(3, 4), np.array(1.0)]), Refusal("Gemm", [r(3, 4), r(5, 4)]), Refusal("Gemm", [r(2, 3, 4), r(4, 5)]),
    Refusal("MatMul", [r(2, 3, 4), r(3, 4, 5)]), Refusal("MatMul", [r(3, 4), np.ones((4, 5), np.int64)]),
    Refusal("FusedMatMul", [r(3, 4), r(2, 4, 5)], {"transBatchA": 1}, "com.microsoft"),
    Refusal("Dense", [r(3, 4), r(4, 5), r(4)], {}, "ortrain"), Refusal("Dense", [r(3, 4), r(2, 4, 5), r(5)], {}, "ortrain"),
    Refusal("DequantizedDense", [r(3, 4), np.ones((4, 5), np.int8), r(4)], {"axis": 1}, "ortrain", match="scales of the integers along one axis"),
    Refusal("DequantizedDense", [r(3, 4), np.ones((4, 5), np.int8), r(), r(4)], {}, "ortrain", match=r"a bias \[n\]"),
    Refusal("DequantizedDense", [r(3, 4), np.ones((4, 5), np.int8), r(4)], {"axis": 2}, "ortrain", match="one axis"),
]
