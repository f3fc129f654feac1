"""Samples of what onnxruntime's quantizer writes. Each agrees with onnxruntime (tests/peer/contrib_operators.py)."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference
from tests.ops.samples.integer import as_it_comes, byte, scale, signed, stored

rng = np.random.default_rng(71)
MICROSOFT = "com.microsoft"
A, B, ZERO, OTHER = byte(2, 3, 6), byte(2, 1, 6), np.array(120, np.uint8), np.array(7, np.uint8)
OF_A, OF_B, OF_Y = [scale(0.02), ZERO], [scale(0.03), OTHER], [scale(0.0473), np.array(90, np.uint8)]


def real(value, step, zero):
    return (value.astype(np.float32) - np.float32(zero)) * step


def in_store(op, first=6):
    """An oracle: op on what is stored, stored as the inputs from `first` on say."""
    def oracle(*inputs):
        values = [real(*inputs[i : i + 3]) for i in range(0, first, 3)]
        return stored(op(*values) / inputs[first], int(inputs[first + 1]), inputs[first + 1].dtype)

    return oracle


def sample(op_type, inputs, oracle, **attributes):
    return Sample(op_type, inputs, oracle, attributes, MICROSOFT, gradient=False)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


IMAGES = byte(2, 3, 6, 5)
IN_PLANES = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 0)}
LAST = IMAGES.transpose(0, 2, 3, 1)
average = by_reference("AveragePool", IN_PLANES)
OPERATORS = [
    sample("QLinearAdd", [A, *OF_A, B, *OF_B, *OF_Y], in_store(np.add)), sample("QLinearMul", [A, *OF_A, B, *OF_B, *OF_Y], in_store(np.multiply)),
    sample("QLinearSigmoid", [A, *OF_A, scale(1 / 256), np.array(0, np.uint8)], in_store(sigmoid, 3)),
    sample("QLinearLeakyRelu", [A, *OF_A, *OF_Y], in_store(lambda x: np.where(x > 0, x, np.float32(0.2) * x), 3), alpha=0.2),
    sample("QLinearSoftmax", [A, *OF_A, scale(1 / 256), np.array(0, np.uint8)], in_store(softmax, 3), axis=-1, opset=13),
    sample("QLinearAveragePool", [IMAGES, *OF_A, *OF_Y], in_store(average, 3), **IN_PLANES),
    sample("QLinearAveragePool", [LAST, *OF_A, *OF_Y], in_store(lambda x: average(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1), 3), channels_last=1, **IN_PLANES),
    sample("QLinearGlobalAveragePool", [IMAGES, *OF_A, *OF_Y], in_store(lambda x: x.mean((2, 3), keepdims=True), 3)),
    sample("QLinearGlobalAveragePool", [LAST, *OF_A, *OF_Y], in_store(lambda x: x.mean((1, 2), keepdims=True), 3), channels_last=1),
    sample("QLinearConcat", [*OF_Y, A, *OF_A, byte(2, 4, 6), *OF_B],
           lambda s, z, *parts: stored(np.concatenate([real(*parts[:3]), real(*parts[3:])], 1) / s, int(z), z.dtype), axis=1),
    sample("QLinearWhere", [rng.random((3, 1)) < 0.5, A, *OF_A, B, *OF_B, *OF_Y],
           lambda c, a, s, z, b, t, y, u, v: stored(np.where(c, real(a, s, z), real(b, t, y)) / u, int(v), v.dtype)),
    sample("QuantizeLinear", [rng.uniform(-3, 3, (3, 4)).astype(np.float32).astype(float), np.array(0.25), np.array(2, np.int8)],
           lambda x, s, z: stored(x / s, int(z), z.dtype)),
    Sample("DequantizeLinear", [byte(3, 4), np.array(0.25), OTHER], lambda x, s, z: (x - z.astype(s.dtype)) * s, {}, MICROSOFT),
]
# of seven bits: products of two neighbors of eight do not fit the sixteen bits that onnxruntime has for them on processors with AVX2 alone
M, W, BIAS = byte(3, 8), signed(8, 5) // 2, rng.integers(-3000, 3000, 5).astype(np.int32)


def gemm(transposed, y=None):
    def oracle(a, a_scale, a_zero, b, b_scale, b_zero, bias=None, y_scale=None, y_zero=None):
        b = b.T if transposed else b
        product = (a.astype(int) - int(a_zero)) @ (b.astype(int) - np.asarray(b_zero).astype(int)) + (0 if bias is None else bias)
        value = (product * (a_scale * b_scale)).astype(a_scale.dtype)
        return value if y_scale is None else stored(value / y_scale, int(y_zero), y_zero.dtype)

    return oracle


COLUMNS = [rng.uniform(0.01, 0.02, 5).astype(np.float32), np.zeros(5, np.int8)]
PRODUCTS = [
    sample("QGemm", [M, *OF_A, W, scale(0.01), np.array(0, np.int8), BIAS, *OF_Y], gemm(False)),
    sample("QGemm", [M, *OF_A, W.T.copy(), *COLUMNS, BIAS], gemm(True), transB=1), sample("QGemm", [M, *OF_A, W, *COLUMNS], gemm(False)),
]


def to_float(a, b, a_scale, b_scale, a_zero=0, b_zero=0, bias=0.0):
    product = (a.astype(int) - np.asarray(a_zero).astype(int)) @ (b.astype(int) - np.asarray(b_zero).astype(int))
    return (product * (a_scale * b_scale) + bias).astype(a_scale.dtype)


def dynamic(a, b, b_scale, b_zero=None, bias=None):
    q, step, zero = as_it_comes(a)
    return to_float(q, b, step, b_scale, zero, 0 if b_zero is None else b_zero, 0.0 if bias is None else bias)


X, STEPS, FLOAT_BIAS = rng.standard_normal((2, 3, 8)).astype(np.float32).astype(float), rng.uniform(0.01, 0.02, 5), rng.standard_normal(5)
FLOAT_PRODUCTS = [
    sample("MatMulIntegerToFloat", [M, W, np.array(0.02), np.array(0.01)], to_float), sample("MatMulIntegerToFloat", [M, W, np.array(0.02), STEPS, ZERO, COLUMNS[1], FLOAT_BIAS], to_float),
    sample("DynamicQuantizeMatMul", [X, W, STEPS], dynamic), sample("DynamicQuantizeMatMul", [X, W, np.array(0.01), np.array(3, np.int8), FLOAT_BIAS], dynamic),
]


def few_bits(bits, block, k):
    """The sample's oracle."""
    def unpacked(packed):
        return np.stack([packed >> (bits * i) & (2**bits - 1) for i in range(8 // bits)], -1).reshape(*packed.shape[:-1], -1).astype(float)

    def oracle(a, packed, scales, zeros=None, indices=None, bias=None):
        numbers = unpacked(packed)
        n, blocks = numbers.shape[:2]
        if zeros is None:
            zero = np.full((n, blocks), 2.0 ** (bits - 1))
        else:
            zero = unpacked(zeros.reshape(n, -1))[:, :blocks] if zeros.dtype == np.uint8 else zeros.reshape(n, blocks)
        weights = ((numbers - zero[:, :, None]) * scales.reshape(n, blocks, 1)).reshape(n, -1)[:, :k]
        return (a @ weights.T + (0 if bias is None else bias)).astype(a.dtype)

    return oracle


def few_bits_sample(bits, block, k, n, zeros=None, bias=None):
    blocks = -(-k // block)
    inputs = [rng.standard_normal((2, k)), byte(n, blocks, block * bits // 8), rng.uniform(0.01, 0.02, n * blocks)]
    inputs += [zeros, None, bias] if bias is not None else [zeros] if zeros is not None else []
    return Sample("MatMulNBits", inputs, few_bits(bits, block, k), {"K": k, "N": n, "bits": bits, "block_size": block}, MICROSOFT, indices=[0])


FEW_BITS = [few_bits_sample(4, 16, 32, 3), few_bits_sample(4, 16, 40, 3, byte(3 * 2)), few_bits_sample(8, 32, 64, 5, byte(5 * 2)),
            few_bits_sample(4, 16, 48, 3, rng.uniform(0, 15, (3, 3)), rng.standard_normal(3))]


FP4 = np.array([0, 0.0052083333, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25])
NF4 = np.array([-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617,
                0.72295684, 1])


def four_bits(values, block):
    def oracle(a, packed, largest):
        numbers = np.stack([packed >> 4, packed & 15], 1).reshape(-1)
        weights = values[numbers] * largest.repeat(block)[: numbers.size]
        return (a @ weights.reshape(-1, a.shape[-1]).T).astype(a.dtype)

    return oracle


BITSANDBYTES = [Sample("MatMulBnb4", [rng.standard_normal((3, k)), byte(k * 3 // 2), rng.uniform(0.5, 2, -(-k * 3 // 16))], four_bits(values, 16),
                       {"K": k, "N": 3, "block_size": 16, "quant_type": kind, "transB": 1}, MICROSOFT, indices=[0])
                for kind, values, k in ((0, np.concatenate([FP4, -FP4]), 32), (1, NF4, 32), (1, NF4, 40))]


def lstm(x, w, r, b, _, h, c, p, w_scale, w_zero, r_scale, r_zero, backwards=(False,)):
    q, step, zero = as_it_comes(x)
    size, found = r.shape[1], []
    for k, reverse in enumerate(backwards):
        projected = to_float(q, w[k], step, w_scale[k], zero, w_zero[k])
        projected = projected + (0 if b is None else b[k, : 4 * size] + b[k, 4 * size :])
        state, cell = (np.zeros((x.shape[1], size), x.dtype) if start is None else start[k] for start in (h, c))
        outputs = []
        for t in range(len(x))[:: -1 if reverse else 1]:
            hq, h_step, h_zero = as_it_comes(state)
            i, o, f, g = np.split(projected[t] + to_float(hq, r[k], h_step, r_scale[k], h_zero, r_zero[k]), 4, -1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            state = (sigmoid(o) * np.tanh(cell)).astype(x.dtype)
            outputs.append(state)
        found.append((np.stack(outputs[:: -1 if reverse else 1]), state, cell))
    return np.stack([y for y, _, _ in found], 1), np.stack([s for _, s, _ in found]), np.stack([c for _, _, c in found])


def lstm_sample(directions, backwards, bias=True, states=False, **attributes):
    # one image: onnxruntime may quantize the states of several one by one
    size, steps = 4, rng.standard_normal((5, 1, 3)).astype(np.float32).astype(float)
    starts = [rng.uniform(-0.5, 0.5, (directions, 1, size)).astype(np.float32).astype(float) if states else None for _ in range(2)]
    inputs = [steps, signed(directions, 3, 4 * size) // 2, signed(directions, size, 4 * size) // 2, rng.standard_normal((directions, 8 * size)) if bias else None, None,
              *starts, None, rng.uniform(0.005, 0.01, directions).astype(np.float32), np.zeros(directions, np.int8),
              rng.uniform(0.005, 0.01, directions).astype(np.float32), np.zeros(directions, np.int8)]
    return Sample("DynamicQuantizeLSTM", inputs, lambda *a: lstm(*a, backwards=backwards), {"hidden_size": size, **attributes}, MICROSOFT, 3, gradient=False)


LSTM = [lstm_sample(1, (False,)), lstm_sample(1, (True,), states=True, direction="reverse"), lstm_sample(2, (False, True), bias=False, direction="bidirectional")]
ROUNDED = rng.uniform(-3, 12, (3, 4)).astype(np.float32).astype(float)


def rounded(x, step, zero):
    place = np.rint(x / step) + zero
    return (np.clip(place, 0, 20) - zero) * step, (place >= 0) & (place <= 20)


FAKE = [Sample("FakeQuant", [ROUNDED, np.array(0.5), np.array(3.0)], rounded, {"quant_max": 20}, MICROSOFT, 2, gradient=False),
        Sample("FakeQuantGrad", [ROUNDED, ROUNDED > 0], lambda dy, kept: np.where(kept, dy, 0), {}, MICROSOFT, gradient=False)]
SAMPLES = [*FAKE, *OPERATORS, *PRODUCTS, *FLOAT_PRODUCTS, *FEW_BITS, *BITSANDBYTES, *LSTM]
REFUSALS = [
    Refusal("QLinearAdd", [A, *OF_A, byte(2, 2, 6), *OF_B, *OF_Y], {}, MICROSOFT), Refusal("QLinearConcat", [*OF_Y, A, *OF_A, byte(2, 6), *OF_B], {"axis": 0}, MICROSOFT),
    Refusal("MatMulNBits", [rng.standard_normal((2, 31)), byte(3, 2, 8), np.ones(6)], {"K": 32, "N": 3, "bits": 4, "block_size": 16}, MICROSOFT),
    Refusal("MatMulNBits", [rng.standard_normal((2, 32)), byte(3, 2, 8), np.ones(6)], {"K": 32, "N": 3, "bits": 3, "block_size": 16}, MICROSOFT),
    Refusal("DynamicQuantizeLSTM", [rng.standard_normal((5, 1, 3)), signed(1, 3, 16), signed(1, 4, 16)], {"hidden_size": 4, "direction": "both"}, MICROSOFT),
]
