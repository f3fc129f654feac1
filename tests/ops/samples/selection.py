"""Samples of TopK, ArgMax, ArgMin, Trilu, ReverseSequence and Compress."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(71)
X = rng.permutation(60).reshape(3, 4, 5) / 7.0              # no two elements equal
TIES = rng.integers(0, 3, (4, 6))


def top_k(k, axis=-1, largest=1):
    def oracle(x, *_):
        order = np.argsort(-x if largest else x, axis=axis, kind="stable")
        indices = np.take(order, np.arange(k), axis)
        return np.take_along_axis(x, indices, axis), indices

    return oracle


LONG = {"numbers": rng.standard_normal((20, 150)), "ties": rng.integers(-3, 4, (20, 150)) / 2.0, "constant": np.ones((3, 150)),
        "integers": rng.integers(-1000, 1000, (20, 150)), "ascending": np.arange(450.0).reshape(3, 150), "few-numbers": np.full((18, 130), np.nan),
        "infinite": np.where(rng.random((4, 150)) < 0.98, -np.inf, rng.standard_normal((4, 150)))}
LONG["few-numbers"][:, 60:63] = rng.standard_normal((18, 3))
SAMPLES = [
    *[Sample("TopK", [X, np.array([k])], top_k(k, axis), {"axis": axis}, outputs=2, constants=(1,)) for k, axis in ((2, -1), (3, 0), (1, 1), (4, 1))],
    Sample("TopK", [X, np.array([2])], top_k(2, largest=0), {"largest": 0}, outputs=2, constants=(1,)), Sample("TopK", [TIES, np.array([3])], top_k(3), outputs=2, constants=(1,)),
    Sample("TopK", [X], top_k(2), {"k": 2}, outputs=2, opset=9),
    *[Sample(name, [x], lambda x, f=f, a=axis: np.expand_dims(f(x, a), a), {"axis": axis}) for name, f in (("ArgMax", np.argmax), ("ArgMin", np.argmin))
      for x, axis in ((X, 0), (X, 2), (TIES, 1))],
    Sample("ArgMax", [X], lambda x: x.argmax(1), {"axis": 1, "keepdims": 0}),
    Sample("ArgMax", [TIES], lambda x: x.shape[1] - 1 - x[:, ::-1].argmax(1), {"axis": 1, "keepdims": 0, "select_last_index": 1}),
    *[Sample("Trilu", [X] if k is None else [X, np.array(k)], lambda x, *_, k=k or 0, f=f: f(x, k), {"upper": upper}, constants=(1,))
      for upper, f in ((1, np.triu), (0, np.tril)) for k in (None, 0, 1, -2)],
    Sample("Trilu", [TIES], np.triu),
]
def reverse_sequences(x, lengths, time):
    y = x.copy()
    for b, n in enumerate(lengths):
        at = (slice(None), b) if time == 0 else (b,)
        y[at][:n] = x[at][:n][::-1]
    return y


SAMPLES += [
    Sample("ReverseSequence", [X[:, :, 0], np.array([1, 2, 3, 0])], lambda x, n: reverse_sequences(x, n, 0)),
    Sample("ReverseSequence", [X, np.array([4, 1, 2])], lambda x, n: reverse_sequences(x, n, 1), {"batch_axis": 0, "time_axis": 1}),
]
NAN = np.where(TIES == 1, np.nan, TIES.astype(float))
SAMPLES += [
    Sample("ArgMax", [rng.standard_normal((3, 7, 150))], lambda x: x.argmax(1), {"axis": 1, "keepdims": 0}),
    *[Sample(name, [x], lambda x, f=f: f(x, 1), {"axis": 1, "keepdims": 0}) for name, f in (("ArgMax", np.argmax), ("ArgMin", np.argmin))
      for x in (rng.integers(0, 40, (5, 201)), np.where(rng.random((5, 201)) < 0.01, np.nan, 1.0))],
    Sample("ArgMin", [TIES], lambda x: x.shape[1] - 1 - x[:, ::-1].argmin(1), {"axis": 1, "keepdims": 0, "select_last_index": 1}),
    *[Sample(name, [NAN], lambda x, f=f: f(x, 1), {"axis": 1, "keepdims": 0}) for name, f in (("ArgMax", np.argmax), ("ArgMin", np.argmin))],
    *[Sample("TopK", [NAN, np.array([k])], top_k(k), outputs=2, constants=(1,), gradient=False) for k in (1, 6)],
    Sample("TopK", [rng.permutation(4096).reshape(2, 2048) / 7.0, np.array([100])], top_k(100), outputs=2, constants=(1,)),
    Sample("TopK", [np.array([[-(2**63), 5, 2**63 - 1]]), np.array([2])], top_k(2, largest=0), {"largest": 0}, outputs=2, constants=(1,)),
    *[Sample("TopK", [x, np.array([k])], top_k(k, axis, largest), {"largest": largest, "axis": axis}, outputs=2, constants=(1,), gradient=False, label=label)
      for label, x in LONG.items() for largest in (1, 0) for k, axis in ((5, 1), (17, 1), (3, 0))],
    Sample("TopK", [X, np.array([0])], top_k(0), outputs=2, constants=(1,)),
]
CONDITION = np.array([True, False, True, True])
SAMPLES += [
    Sample("Compress", [X, CONDITION], lambda x, k: x.compress(k, 1), {"axis": 1}, constants=(1,)), Sample("Compress", [X, CONDITION[:2]], lambda x, k: x.compress(k, -1), {"axis": -1}, constants=(1,)),
    Sample("Compress", [X, rng.random(50) < 0.4], lambda x, k: x.compress(k), constants=(1,)), Sample("Compress", [TIES, CONDITION], lambda x, k: x.compress(k, 0), {"axis": 0}, constants=(1,)),
    Sample("Compress", [X, np.zeros(3, bool)], lambda x, k: x[:0], {"axis": 0}, constants=(1,), opset=9), Sample("Compress", [X, CONDITION[:3]], lambda x, k: x.compress(k, 0), {"axis": 0}, constants=(1,), opset=28),
]
REFUSALS = [
    Refusal("Compress", [X, np.ones(4)], {"axis": 1}), Refusal("Compress", [X, np.ones(5, bool)], {"axis": 1}), Refusal("Compress", [X, CONDITION], {"axis": 3}),
    *[Refusal("ReverseSequence", [X, np.array(lengths)], {"time_axis": 1, "batch_axis": 0}, match="lengths") for lengths in ([2], [1, 2, 3, 4])],
    Refusal("ReverseSequence", [X, np.array([1, 2, 3])], {"time_axis": 2, "batch_axis": 0}), Refusal("ReverseSequence", [X[0, 0], np.array([1])]), Refusal("TopK", [X, np.array([6])], constants=(1,)), Refusal("TopK", [X, np.array([2])], {"axis": 3}, constants=(1,)), Refusal("Trilu", [X[0, 0]])]
