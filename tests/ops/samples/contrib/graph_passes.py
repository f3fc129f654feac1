"""Samples of operators that graph transformations of ONNX Runtime training insert."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(131)
MS = "com.microsoft"
FLOAT, HALF = 1, 10
A, B, C = rng.standard_normal((3, 3, 4))
TWO_SCALES = {"scale_0": 0.5, "scale_1": -2.0}
THREE_SCALES = {**TWO_SCALES, "scale_2": 3.0}
SPECIAL = np.array([[1.0, np.inf, -2.0], [np.nan, 0.0, -np.inf]])
ROWS, INDICES, PACKED = rng.standard_normal((2, 3, 4)), np.array([0, 5, 2]), rng.standard_normal((3, 4))


def scale_and_concat(scale, *values):
    return np.concatenate([(value * value.dtype.type(scale)).astype(np.float16).reshape(-1) for value in values])


def pad_and_unflatten(x, indices, dims):
    y = np.zeros((6, 4), x.dtype)
    y[indices] = x
    return y.reshape(2, 3, 4)


def views(x, *_):
    flat = x.reshape(-1)
    return flat[:4].reshape(2, 2), flat[4:10].reshape(3, 2), flat[10:]


SHAPES = [np.array([2, 2]), np.array([3, 2]), np.array([2])]
SAMPLES = [
    Sample("ScaledSum", [A, B], lambda a, b: a * 0.5 - b * 2, TWO_SCALES, MS),
    Sample("ScaledSum", [A, B, C], lambda a, b, c: a * 0.5 - b * 2 + c * 3, THREE_SCALES, MS),
    Sample("BatchScale", [A], lambda a: (a * 0.5, a * -2), TWO_SCALES, MS, 2),
    Sample("BatchScale", [A], lambda a: (a * 0.5, a * -2, a * 3), THREE_SCALES, MS, 3),
    Sample("MixedPrecisionScale", [np.array([4.0]), A, C], lambda s, a, c: ((a * s).astype(np.float32), (c * s).astype(np.float32)), {"to": FLOAT}, MS, 2, gradient=False),
    Sample("MixedPrecisionScale", [np.array(4.0), A, ROWS], scale_and_concat, {"to": HALF, "fuse_outputs": 1}, MS, gradient=False),
    Sample("IsFinite", [SPECIAL], np.isfinite, {}, MS, gradient=False),
    Sample("IsAllFinite", [A, B], lambda *_: np.array(True), {}, MS, gradient=False),
    Sample("IsAllFinite", [A, SPECIAL], lambda *_: np.array(False), {}, MS, gradient=False),
    *[Sample("IsAllFinite", [values], lambda x, answer=answer: np.array(answer), {only: 1}, MS, gradient=False) for only, values, answer in (
        ("isinf_only", np.array([1, np.nan]), True), ("isinf_only", np.array([1, np.inf]), False),
        ("isnan_only", np.array([1, np.inf]), True), ("isnan_only", np.array([1, np.nan]), False))],
    *[Sample("All", [np.array(values)], lambda x: np.array(x.all()), {}, MS, gradient=False) for values in ([True, True], [[True], [False]], [False])],
    Sample("Group", [A, INDICES], lambda *_: np.array([True]), {}, MS, gradient=False),
    Sample("PassThrough", [A, ROWS], lambda *a: a, {}, MS, 2),
    *[Sample(name, [np.array(7), A, ROWS], lambda event, *a: a, {}, MS, 2) for name in ("RecordEvent", "WaitEvent")],
    Sample("View", [A, *SHAPES], views, {}, MS, 3, constants=[1, 2, 3]),
    Sample("FlattenAndUnpad", [ROWS, INDICES], lambda x, i: (x.reshape(6, 4)[i], np.array([2, 3])), {}, MS, 2, gradient=False),
    Sample("FlattenAndUnpad", [ROWS, INDICES], lambda x, i: x.reshape(6, 4)[i], {}, MS),
    Sample("FlattenAndUnpad", [ROWS[0], INDICES], lambda x, i: x.reshape(-1)[i], {}, MS),
    Sample("PadAndUnflatten", [PACKED, INDICES, np.array([2, 3])], pad_and_unflatten, {}, MS, constants=[2]),
    Sample("GistBinarizeEncoder", [SPECIAL], lambda x: x > 0, {}, MS, gradient=False),
    Sample("GistBinarizeDecoder", [SPECIAL > 0], lambda x: x.astype(np.float32), {"to": FLOAT}, MS, gradient=False),
    Sample("GistPack16Encoder", [A], lambda x: x.astype(np.float16), {}, MS, gradient=False),
    Sample("GistPack16Decoder", [A.astype(np.float16)], lambda x: x.astype(np.float32), {"to": FLOAT}, MS, gradient=False),
]
REFUSALS = [
    Refusal("ScaledSum", [A, B, C], TWO_SCALES, MS, match="a scale_i for each"), Refusal("ScaledSum", [A, ROWS], TWO_SCALES, MS, match="of one type"),
    Refusal("BatchScale", [A], TWO_SCALES, MS, match="a scale_i for each"), Refusal("MixedPrecisionScale", [A, A], {"to": 99}, MS),
    Refusal("IsAllFinite", [A], {"isinf_only": 1, "isnan_only": 1}, MS), Refusal("View", [A, np.array([5])], {}, MS, constants=[1], match="12 elements"),
    Refusal("FlattenAndUnpad", [A[0], INDICES], {}, MS), Refusal("PadAndUnflatten", [PACKED, INDICES[:2], np.array([2, 3])], {}, MS),
    Refusal("PadAndUnflatten", [PACKED, INDICES, np.array([2])], {}, MS),
]
