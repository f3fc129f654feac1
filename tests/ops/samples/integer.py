"""Samples of integer matrix multiplication and convolution, and of dynamic quantization."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(67)


def byte(*shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


def signed(*shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def scale(value):
    return np.array(value, np.float32)


A, B, X, W = byte(3, 4, 70), signed(70, 5), byte(2, 4, 7, 6), signed(6, 2, 3, 3)
BYTE, SIGNED = np.array(100, np.uint8), np.array(3, np.int8)
MATMUL_INTEGER = [
    Sample("MatMulInteger", inputs, by_reference("MatMulInteger"), gradient=False)
    for inputs in ([A, B], [A, B, BYTE], [A, B, BYTE, SIGNED], [A, signed(3, 70, 2), BYTE, SIGNED], [A, B, BYTE, signed(5)], [byte(4, 70), byte(70, 5), byte(1), byte(1)])
] + [Sample("MatMulInteger", [A[0], B, byte(4)], lambda a, b, z: (a.astype(np.int32) - z[:, None]) @ b.astype(np.int32), gradient=False)]
GROUPS = {"group": 2, "pads": (1, 0, 1, 2), "strides": (2, 1)}
CONV_INTEGER = [
    *[Sample("ConvInteger", inputs, by_reference("ConvInteger", GROUPS), GROUPS, gradient=False) for inputs in ([X, byte(6, 2, 3, 3)], [X, byte(6, 2, 3, 3), BYTE])],
    Sample("ConvInteger", [X, W, BYTE, SIGNED], lambda x, w, a, b: by_reference("Conv", GROUPS)(x.astype(float) - a, w.astype(float) - b).astype(np.int32), GROUPS,
           gradient=False, label="zero-of-w"),
    # 3 x 3 with 16 channels: computed by Winograd convolution
    Sample("ConvInteger", [byte(1, 16, 9, 9), signed(16, 16, 3, 3), BYTE],
           lambda x, w, z: np.rint(by_reference("Conv")(x.astype(float) - z, w.astype(float))).astype(np.int32), gradient=False, label="winograd"),
]


def quantize(value, zero, dtype):
    limits = np.iinfo(dtype)
    return np.clip(np.rint(value) + zero, limits.min, limits.max).astype(dtype)


def quantized_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    product = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)
    return quantize(product * (a_scale * b_scale / y_scale).astype(np.float64), y_zero.astype(int), y_zero.dtype)


def quantized_conv(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias=None):
    per_filter = np.reshape(w_zero, (-1, 1, 1, 1)).astype(float)
    product = by_reference("Conv", GROUPS)(x.astype(float) - x_zero, w.astype(float) - per_filter)
    product = product + (0 if bias is None else bias[:, None, None])
    return quantize(product * np.reshape(x_scale * w_scale / y_scale, (-1, 1, 1)).astype(np.float64), y_zero.astype(int), y_zero.dtype)


QUANTIZED = [
    Sample("QLinearMatMul", [A, scale(0.02), BYTE, B, scale(0.01), SIGNED, scale(0.7), BYTE], quantized_matmul, gradient=False),
    Sample("QLinearMatMul", [A, scale(0.02), BYTE, B, rng.uniform(0.01, 0.02, 5).astype(np.float32), signed(5), scale(0.7), SIGNED], quantized_matmul, gradient=False),
    Sample("QLinearConv", [X, scale(0.02), BYTE, W, scale(0.01), SIGNED, scale(0.6), BYTE], quantized_conv, GROUPS, gradient=False),
    Sample("QLinearConv", [X, scale(0.02), BYTE, W, rng.uniform(0.01, 0.02, 6).astype(np.float32), np.zeros(6, np.int8), scale(0.6), BYTE,
                           rng.integers(-9000, 9000, 6).astype(np.int32)], quantized_conv, GROUPS, gradient=False),
]


def dynamic_quantize(x):
    low, high = min(0, x.min()), max(0, x.max())
    step = np.array((high - low) / 255 or 1, x.dtype)
    zero = np.rint(-low / step).astype(np.uint8)
    return quantize(x / step, int(zero), np.uint8), step, zero


FLOATS = [rng.uniform(-3, 2, (3, 7)), rng.uniform(0.5, 2, 5), rng.uniform(-2, -1, (2, 2, 3)), np.zeros(4)]
DYNAMIC = [Sample("DynamicQuantizeLinear", [x.astype(np.float32).astype(float)], dynamic_quantize, {}, outputs=3, gradient=False) for x in FLOATS]


def dequantized_product(op_type, a, b, a_zero, b_zero):
    a, b = a.astype(float) - a_zero, b.astype(float) - b_zero
    return (a @ b if op_type == "MatMul" else by_reference("Conv", GROUPS)(a, b))


DYNAMIC_PRODUCTS = [
    Sample("DynamicProduct", [rng.standard_normal(a.shape), scale(0.1), None, None, a, b, BYTE, SIGNED],
           lambda x, s, y, t, a, b, za, zb, op=op: dequantized_product(op, a, b, za, zb).astype(x.dtype), {"product": op, **own}, "ortrain", gradient=False)
    for op, a, b, own in (("MatMul", A, B, {}), ("Conv", X, W, GROUPS))
]
SAMPLES = [*MATMUL_INTEGER, *CONV_INTEGER, *QUANTIZED, *DYNAMIC, *DYNAMIC_PRODUCTS]
REFUSALS = [Refusal("MatMulInteger", [A, B[:-1]]), Refusal("ConvInteger", [X, W], {"group": 1}),
            Refusal("QLinearMatMul", [A, scale(1), BYTE, B[:-1], scale(1), SIGNED, scale(1), BYTE])]
