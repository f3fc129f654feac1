"""Samples of the operators that ONNX Runtime's quantizer emits; tests/peer/contrib_operators.py compares them with onnxruntime."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference
from tests.ops.samples.integer import byte, dynamic_quantize, quantize, scale, signed

rng = np.random.default_rng(71)
MICROSOFT = "com.microsoft"
A, B, A_ZERO, B_ZERO = byte(2, 3, 6), byte(2, 1, 6), np.array(120, np.uint8), np.array(7, np.uint8)
A_PARAMETERS, B_PARAMETERS, Y_PARAMETERS = [scale(0.02), A_ZERO], [scale(0.03), B_ZERO], [scale(0.0473), np.array(90, np.uint8)]


def dequantize(value, step, zero):
    return (value.astype(np.float32) - np.float32(zero)) * step


def quantized(op, first=6):
    """Return the oracle quantize(op(dequantized inputs)). first: index of the output's scale, which its zero point follows."""
    def oracle(*inputs):
        values = [dequantize(*inputs[i : i + 3]) for i in range(0, first, 3)]
        return quantize(op(*values) / inputs[first], int(inputs[first + 1]), inputs[first + 1].dtype)

    return oracle


def sample(op_type, inputs, oracle, **attributes):
    return Sample(op_type, inputs, oracle, attributes, MICROSOFT, gradient=False)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


IMAGES = byte(2, 3, 6, 5)
WINDOWS = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 0)}
CHANNELS_LAST = IMAGES.transpose(0, 2, 3, 1)
average = by_reference("AveragePool", WINDOWS)
OPERATORS = [
    sample("QLinearAdd", [A, *A_PARAMETERS, B, *B_PARAMETERS, *Y_PARAMETERS], quantized(np.add)), sample("QLinearMul", [A, *A_PARAMETERS, B, *B_PARAMETERS, *Y_PARAMETERS], quantized(np.multiply)),
    sample("QLinearSigmoid", [A, *A_PARAMETERS, scale(1 / 256), np.array(0, np.uint8)], quantized(sigmoid, 3)),
    sample("QLinearLeakyRelu", [A, *A_PARAMETERS, *Y_PARAMETERS], quantized(lambda x: np.where(x > 0, x, np.float32(0.2) * x), 3), alpha=0.2),
    sample("QLinearSoftmax", [A, *A_PARAMETERS, scale(1 / 256), np.array(0, np.uint8)], quantized(softmax, 3), axis=-1, opset=13),
    sample("QLinearAveragePool", [IMAGES, *A_PARAMETERS, *Y_PARAMETERS], quantized(average, 3), **WINDOWS),
    sample("QLinearAveragePool", [CHANNELS_LAST, *A_PARAMETERS, *Y_PARAMETERS], quantized(lambda x: average(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1), 3), channels_last=1, **WINDOWS),
    sample("QLinearGlobalAveragePool", [IMAGES, *A_PARAMETERS, *Y_PARAMETERS], quantized(lambda x: x.mean((2, 3), keepdims=True), 3)),
    sample("QLinearGlobalAveragePool", [CHANNELS_LAST, *A_PARAMETERS, *Y_PARAMETERS], quantized(lambda x: x.mean((1, 2), keepdims=True), 3), channels_last=1),
    sample("QLinearConcat", [*Y_PARAMETERS, A, *A_PARAMETERS, byte(2, 4, 6), *B_PARAMETERS],
           lambda s, z, *parts: quantize(np.concatenate([dequantize(*parts[:3]), dequantize(*parts[3:])], 1) / s, int(z), z.dtype), axis=1),
    sample("QLinearWhere", [rng.random((3, 1)) < 0.5, A, *A_PARAMETERS, B, *B_PARAMETERS, *Y_PARAMETERS],
           lambda c, a, s, z, b, t, y, u, v: quantize(np.where(c, dequantize(a, s, z), dequantize(b, t, y)) / u, int(v), v.dtype)),
    sample("QuantizeLinear", [rng.uniform(-3, 3, (3, 4)).astype(np.float32).astype(float), np.array(0.25), np.array(2, np.int8)],
           lambda x, s, z: quantize(x / s, int(z), z.dtype)),
    Sample("DequantizeLinear", [byte(3, 4), np.array(0.25), B_ZERO], lambda x, s, z: (x - z.astype(s.dtype)) * s, {}, MICROSOFT),
]
# weights of 7 bits: on AVX2 without VNNI, onnxruntime adds two neighboring products of 8-bit numbers in 16 bits and saturates
M, W, BIAS = byte(3, 8), signed(8, 5) // 2, rng.integers(-3000, 3000, 5).astype(np.int32)


def gemm(transposed):
    """Return the oracle of QGemm. transposed: its transB."""
    def oracle(a, a_scale, a_zero, b, b_scale, b_zero, bias=None, y_scale=None, y_zero=None):
        b = b.T if transposed else b
        product = (a.astype(int) - int(a_zero)) @ (b.astype(int) - np.asarray(b_zero).astype(int)) + (0 if bias is None else bias)
        value = (product * (a_scale * b_scale)).astype(a_scale.dtype)
        return value if y_scale is None else quantize(value / y_scale, int(y_zero), y_zero.dtype)

    return oracle


COLUMN_PARAMETERS = [rng.uniform(0.01, 0.02, 5).astype(np.float32), np.zeros(5, np.int8)]
PRODUCTS = [
    sample("QGemm", [M, *A_PARAMETERS, W, scale(0.01), np.array(0, np.int8), BIAS, *Y_PARAMETERS], gemm(False)),
    sample("QGemm", [M, *A_PARAMETERS, W.T.copy(), *COLUMN_PARAMETERS, BIAS], gemm(True), transB=1), sample("QGemm", [M, *A_PARAMETERS, W, *COLUMN_PARAMETERS], gemm(False)),
]


def integer_matmul(a, b, a_scale, b_scale, a_zero=0, b_zero=0, bias=0.0):
    product = (a.astype(int) - np.asarray(a_zero).astype(int)) @ (b.astype(int) - np.asarray(b_zero).astype(int))
    return (product * (a_scale * b_scale) + bias).astype(a_scale.dtype)


def dynamic_matmul(a, b, b_scale, b_zero=None, bias=None):
    q, step, zero = dynamic_quantize(a)
    return integer_matmul(q, b, step, b_scale, zero, 0 if b_zero is None else b_zero, 0.0 if bias is None else bias)


X, COLUMN_SCALES, FLOAT_BIAS = rng.standard_normal((2, 3, 8)).astype(np.float32).astype(float), rng.uniform(0.01, 0.02, 5), rng.standard_normal(5)
FLOAT_PRODUCTS = [
    sample("MatMulIntegerToFloat", [M, W, np.array(0.02), np.array(0.01)], integer_matmul), sample("MatMulIntegerToFloat", [M, W, np.array(0.02), COLUMN_SCALES, A_ZERO, COLUMN_PARAMETERS[1], FLOAT_BIAS], integer_matmul),
    sample("DynamicQuantizeMatMul", [X, W, COLUMN_SCALES], dynamic_matmul), sample("DynamicQuantizeMatMul", [X, W, np.array(0.01), np.array(3, np.int8), FLOAT_BIAS], dynamic_matmul),
]


def n_bits(bits, block, k):
    """Return the oracle of MatMulNBits."""
    def unpack(packed):
        return np.stack([packed >> (bits * i) & (2**bits - 1) for i in range(8 // bits)], -1).reshape(*packed.shape[:-1], -1).astype(float)

    def oracle(a, packed, scales, zeros=None, indices=None, bias=None):
        numbers = unpack(packed)
        n, blocks = numbers.shape[:2]
        if zeros is None:
            zero = np.full((n, blocks), 2.0 ** (bits - 1))
        else:
            zero = unpack(zeros.reshape(n, -1))[:, :blocks] if zeros.dtype == np.uint8 else zeros.reshape(n, blocks)
        weights = ((numbers - zero[:, :, None]) * scales.reshape(n, blocks, 1)).reshape(n, -1)[:, :k]
        return (a @ weights.T + (0 if bias is None else bias)).astype(a.dtype)

    return oracle


def n_bits_sample(bits, block, k, n, zeros=None, bias=None):
    blocks = -(-k // block)
    inputs = [rng.standard_normal((2, k)), byte(n, blocks, block * bits // 8), rng.uniform(0.01, 0.02, n * blocks)]
    inputs += [zeros, None, bias] if bias is not None else [zeros] if zeros is not None else []
    return Sample("MatMulNBits", inputs, n_bits(bits, block, k), {"K": k, "N": n, "bits": bits, "block_size": block}, MICROSOFT, indices=[0])


N_BITS = [n_bits_sample(4, 16, 32, 3), n_bits_sample(4, 16, 40, 3, byte(3 * 2)), n_bits_sample(8, 32, 64, 5, byte(5 * 2)),
          n_bits_sample(4, 16, 48, 3, rng.uniform(0, 15, (3, 3)), rng.standard_normal(3))]


FP4 = np.array([0, 0.0052083333, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25])
NF4 = np.array([-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617,
                0.72295684, 1])


def bnb4(values, block):
    """Return the oracle of MatMulBnb4. values: those of the 16 codes."""
    def oracle(a, packed, largest):
        codes = np.stack([packed >> 4, packed & 15], 1).reshape(-1)
        weights = values[codes] * largest.repeat(block)[: codes.size]
        return (a @ weights.reshape(-1, a.shape[-1]).T).astype(a.dtype)

    return oracle


BITSANDBYTES = [Sample("MatMulBnb4", [rng.standard_normal((3, k)), byte(k * 3 // 2), rng.uniform(0.5, 2, -(-k * 3 // 16))], bnb4(values, 16),
                       {"K": k, "N": 3, "block_size": 16, "quant_type": kind, "transB": 1}, MICROSOFT, indices=[0])
                for kind, values, k in ((0, np.concatenate([FP4, -FP4]), 32), (1, NF4, 32), (1, NF4, 40))]


def lstm(x, w, r, b, _, h, c, p, w_scale, w_zero, r_scale, r_zero, reverse=(False,)):
    """Return the outputs of DynamicQuantizeLSTM. reverse: for each direction whether it runs from the last step to the first."""
    q, step, zero = dynamic_quantize(x)
    size, results = r.shape[1], []
    for k, is_reverse in enumerate(reverse):
        projected = integer_matmul(q, w[k], step, w_scale[k], zero, w_zero[k])
        projected = projected + (0 if b is None else b[k, : 4 * size] + b[k, 4 * size :])
        state, cell = (np.zeros((x.shape[1], size), x.dtype) if start is None else start[k] for start in (h, c))
        outputs = []
        for t in range(len(x))[:: -1 if is_reverse else 1]:
            hq, h_step, h_zero = dynamic_quantize(state)
            i, o, f, g = np.split(projected[t] + integer_matmul(hq, r[k], h_step, r_scale[k], h_zero, r_zero[k]), 4, -1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            state = (sigmoid(o) * np.tanh(cell)).astype(x.dtype)
            outputs.append(state)
        results.append((np.stack(outputs[:: -1 if is_reverse else 1]), state, cell))
    return np.stack([y for y, _, _ in results], 1), np.stack([s for _, s, _ in results]), np.stack([c for _, _, c in results])


def lstm_sample(directions, reverse, bias=True, states=False, **attributes):
    # one row: onnxruntime may quantize the states of several rows separately
    size, steps = 4, rng.standard_normal((5, 1, 3)).astype(np.float32).astype(float)
    starts = [rng.uniform(-0.5, 0.5, (directions, 1, size)).astype(np.float32).astype(float) if states else None for _ in range(2)]
    inputs = [steps, signed(directions, 3, 4 * size) // 2, signed(directions, size, 4 * size) // 2, rng.standard_normal((directions, 8 * size)) if bias else None, None,
              *starts, None, rng.uniform(0.005, 0.01, directions).astype(np.float32), np.zeros(directions, np.int8),
              rng.uniform(0.005, 0.01, directions).astype(np.float32), np.zeros(directions, np.int8)]
    return Sample("DynamicQuantizeLSTM", inputs, lambda *a: lstm(*a, reverse=reverse), {"hidden_size": size, **attributes}, MICROSOFT, 3, gradient=False)


LSTM = [lstm_sample(1, (False,)), lstm_sample(1, (True,), states=True, direction="reverse"), lstm_sample(2, (False, True), bias=False, direction="bidirectional")]
X_FAKE = rng.uniform(-3, 12, (3, 4)).astype(np.float32).astype(float)


def fake_quantize(x, step, zero):
    level = np.rint(x / step) + zero
    return (np.clip(level, 0, 20) - zero) * step, (level >= 0) & (level <= 20)


FAKE_QUANT = [Sample("FakeQuant", [X_FAKE, np.array(0.5), np.array(3.0)], fake_quantize, {"quant_max": 20}, MICROSOFT, 2, gradient=False),
              Sample("FakeQuantGrad", [X_FAKE, X_FAKE > 0], lambda dy, mask: np.where(mask, dy, 0), {}, MICROSOFT, gradient=False)]
SAMPLES = [*FAKE_QUANT, *OPERATORS, *PRODUCTS, *FLOAT_PRODUCTS, *N_BITS, *BITSANDBYTES, *LSTM]
REFUSALS = [
    Refusal("QLinearAdd", [A, *A_PARAMETERS, byte(2, 2, 6), *B_PARAMETERS, *Y_PARAMETERS], {}, MICROSOFT), Refusal("QLinearConcat", [*Y_PARAMETERS, A, *A_PARAMETERS, byte(2, 6), *B_PARAMETERS], {"axis": 0}, MICROSOFT),
    Refusal("MatMulNBits", [rng.standard_normal((2, 31)), byte(3, 2, 8), np.ones(6)], {"K": 32, "N": 3, "bits": 4, "block_size": 16}, MICROSOFT),
    Refusal("MatMulNBits", [rng.standard_normal((2, 32)), byte(3, 2, 8), np.ones(6)], {"K": 32, "N": 3, "bits": 3, "block_size": 16}, MICROSOFT),
    Refusal("DynamicQuantizeLSTM", [rng.standard_normal((5, 1, 3)), signed(1, 3, 16), signed(1, 4, 16)], {"hidden_size": 4, "direction": "both"}, MICROSOFT),
]
