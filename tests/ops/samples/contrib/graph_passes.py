"""Samples of what the old package's graph passes put between operators."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(131)
MS = "com.microsoft"
FLOAT, HALF = 1, 10
A, B, C = rng.standard_normal((3, 3, 4))
SCALED = {"scale_0": 0.5, "scale_1": -2.0}
ALL_SCALED = {**SCALED, "scale_2": 3.0}
ENDS = np.array([[1.0, np.inf, -2.0], [np.nan, 0.0, -np.inf]])
ROWS, PLACES, PACKED = rng.standard_normal((2, 3, 4)), np.array([0, 5, 2]), rng.standard_normal((3, 4))


def shared(scale, *values):
    return np.concatenate([(value * value.dtype.type(scale)).astype(np.float16).reshape(-1) for value in values])


def spread(x, indices, dims):
    y = np.zeros((6, 4), x.dtype)
    y[indices] = x
    return y.reshape(2, 3, 4)


def apart(x, *_):
    flat = x.reshape(-1)
    return flat[:4].reshape(2, 2), flat[4:10].reshape(3, 2), flat[10:]


SHAPES = [np.array([2, 2]), np.array([3, 2]), np.array([2])]
SAMPLES = [
    Sample("ScaledSum", [A, B], lambda a, b: a * 0.5 - b * 2, SCALED, MS),
    Sample("ScaledSum", [A, B, C], lambda a, b, c: a * 0.5 - b * 2 + c * 3, ALL_SCALED, MS),
    Sample("BatchScale", [A], lambda a: (a * 0.5, a * -2), SCALED, MS, 2),
    Sample("BatchScale", [A], lambda a: (a * 0.5, a * -2, a * 3), ALL_SCALED, MS, 3),
    Sample("MixedPrecisionScale", [np.array([4.0]), A, C], lambda s, a, c: ((a * s).astype(np.float32), (c * s).astype(np.float32)), {"to": FLOAT}, MS, 2, gradient=False),
    Sample("MixedPrecisionScale", [np.array(4.0), A, ROWS], shared, {"to": HALF, "fuse_outputs": 1}, MS, gradient=False),
    Sample("IsFinite", [ENDS], np.isfinite, {}, MS, gradient=False),
    Sample("IsAllFinite", [A, B], lambda *_: np.array(True), {}, MS, gradient=False),
    Sample("IsAllFinite", [A, ENDS], lambda *_: np.array(False), {}, MS, gradient=False),
    *[Sample("IsAllFinite", [values], lambda x, answer=answer: np.array(answer), {only: 1}, MS, gradient=False) for only, values, answer in (
        ("isinf_only", np.array([1, np.nan]), True), ("isinf_only", np.array([1, np.inf]), False),
        ("isnan_only", np.array([1, np.inf]), True), ("isnan_only", np.array([1, np.nan]), False))],
    *[Sample("All", [np.array(values)], lambda x: np.array(x.all()), {}, MS, gradient=False) for values in ([True, True], [[True], [False]], [False])],
    Sample("Group", [A, PLACES], lambda *_: np.array([True]), {}, MS, gradient=False),
    Sample("PassThrough", [A, ROWS], lambda *a: a, {}, MS, 2),
    *[Sample(name, [np.array(7), A, ROWS], lambda event, *a: a, {}, MS, 2) for name in ("RecordEvent", "WaitEvent")],
    Sample("View", [A, *SHAPES], apart, {}, MS, 3, constants=[1, 2, 3]),
    Sample("FlattenAndUnpad", [ROWS, PLACES], lambda x, i: (x.reshape(6, 4)[i], np.array([2, 3])), {}, MS, 2, gradient=False),
    Sample("FlattenAndUnpad", [ROWS, PLACES], lambda x, i: x.reshape(6, 4)[i], {}, MS),
    Sample("FlattenAndUnpad", [ROWS[0], PLACES], lambda x, i: x.reshape(-1)[i], {}, MS),
    Sample("PadAndUnflatten", [PACKED, PLACES, np.array([2, 3])], spread, {}, MS, constants=[2]),
    Sample("GistBinarizeEncoder", [ENDS], lambda x: x > 0, {}, MS, gradient=False),
    Sample("GistBinarizeDecoder", [ENDS > 0], lambda x: x.astype(np.float32), {"to": FLOAT}, MS, gradient=False),
    Sample("GistPack16Encoder", [A], lambda x: x.astype(np.float16), {}, MS, gradient=False),
    Sample("GistPack16Decoder", [A.astype(np.float16)], lambda x: x.astype(np.float32), {"to": FLOAT}, MS, gradient=False),
]
REFUSALS = [
    Refusal("ScaledSum", [A, B, C], SCALED, MS, match="a scale_i for each"), Refusal("ScaledSum", [A, ROWS], SCALED, MS, match="of one type"),
    Refusal("BatchScale", [A], SCALED, MS, match="a scale_i for each"), Refusal("MixedPrecisionScale", [A, A], {"to": 99}, MS),
    Refusal("IsAllFinite", [A], {"isinf_only": 1, "isnan_only": 1}, MS), Refusal("View", [A, np.array([5])], {}, MS, constants=[1], match="12 elements"),
    Refusal("FlattenAndUnpad", [A[0], PLACES], {}, MS), Refusal("PadAndUnflatten", [PACKED, PLACES[:2], np.array([2, 3])], {}, MS),
    Refusal("PadAndUnflatten", [PACKED, PLACES, np.array([2])], {}, MS),
]
