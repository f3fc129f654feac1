"""Samples of Softmax, LogSoftmax and Hardmax; `flattened` means the form before opset 13, over all axes from `axis` on."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(5)
X, DY = rng.standard_normal((3, 4, 37)), rng.standard_normal((3, 4, 37))
MICROSOFT = "com.microsoft"


def softmax(x, axes):
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


def log_softmax(x, axes):
    z = x - x.max(axes, keepdims=True)
    return z - np.log(np.exp(z).sum(axes, keepdims=True))


def axes_of(axis, flattened):
    return tuple(range(axis % 3, 3)) if flattened else (axis % 3,)


def hardmax(x, axis, flattened):
    """Return 1 at the first of the largest elements of each row, else 0."""
    axes = axes_of(axis, flattened)
    rows = np.moveaxis(x, axes, range(-len(axes), 0))
    flat = rows.reshape(*rows.shape[: x.ndim - len(axes)], -1)
    hot = np.arange(flat.shape[-1]) == flat.argmax(-1)[..., None]
    return np.moveaxis(hot.reshape(rows.shape), range(-len(axes), 0), axes).astype(x.dtype)


def gradients(axis, flattened):
    axes, suffix = axes_of(axis, flattened), "" if flattened else "_13"
    y, logs = softmax(X, axes), log_softmax(X, axes)
    yield Sample(f"SoftmaxGrad{suffix}", [DY, y], lambda dy, y: y * (dy - (y * dy).sum(axes, keepdims=True)), {"axis": axis}, MICROSOFT, gradient=False)
    yield Sample(f"LogSoftmaxGrad{suffix}", [DY, logs], lambda dy, y: dy - np.exp(y) * dy.sum(axes, keepdims=True), {"axis": axis}, MICROSOFT, gradient=False)


SAMPLES = [
    *[Sample(op, [X], lambda x, f=f, a=axes_of(axis, opset < 13): f(x, a), {"axis": axis}, opset=opset)
      for op, f in (("Softmax", softmax), ("LogSoftmax", log_softmax)) for axis in (-1, 1, 0) for opset in (11, 13)],
    Sample("Softmax", [X], lambda x: softmax(x, (2,)), label="default"), Sample("Softmax", [X], lambda x: softmax(x, (1, 2)), opset=12, label="old-default"),
    Sample("Softmax", [100 * X], lambda x: softmax(x, (2,)), label="large", gradient=False),
    *[s for axis in (-1, 1) for flattened in (False, True) for s in gradients(axis, flattened)],
]
SAMPLES += [
    Sample("Hardmax", [x], lambda x, a=axis, n=opset: hardmax(x, a, n < 13), {"axis": axis}, opset=opset, gradient=False)
    for x in (X, np.round(X)) for axis in (-1, 1, 0) for opset in (7, 11, 13) if axis >= 0 or opset > 7
]
LAYOUTS = {"transposed slices": (rng.standard_normal((37, 5, 3)), 1), "short rows": (rng.standard_normal((70, 6)), 1),
           "rows that are long in gradients": (rng.standard_normal((3, 200)), 1), "long rows": (rng.standard_normal((3, 300)), 1),
           "blocks of columns": (rng.standard_normal((2, 70, 500)), 1), "one narrow slice": (rng.standard_normal((1, 90, 3)), 1),
           "columns longer than the workspace": (rng.standard_normal((1, 9000, 33)), 1),
           **{f"rows of {n}": (rng.standard_normal((3, n)), 1) for n in (4, 5, 8, 13, 16, 25, 31, 33, 64, 65, 100, 128)}}
"""Label -> an array and an axis, one for each way to divide an array into panels (common/panels.h) and rows into vectors (common/row_vectors.h)."""
for label, (x, axis) in LAYOUTS.items():
    ys = {"Softmax": softmax(x, (axis,)), "LogSoftmax": log_softmax(x, (axis,))}
    SAMPLES += [Sample(name, [x], lambda x, f=f, a=axis: f(x, (a,)), {"axis": axis}, gradient=x.size < 1000, label=label)
                for name, f in (("Softmax", softmax), ("LogSoftmax", log_softmax))]
    SAMPLES += [Sample("SoftmaxGrad_13", [np.cos(x), ys["Softmax"]], lambda dy, y, a=axis: y * (dy - (y * dy).sum(a, keepdims=True)), {"axis": axis}, MICROSOFT,
                       gradient=False, label=label),
                Sample("LogSoftmaxGrad_13", [np.cos(x), ys["LogSoftmax"]], lambda dy, y, a=axis: dy - np.exp(y) * dy.sum(a, keepdims=True), {"axis": axis}, MICROSOFT,
                       gradient=False, label=label)]
REFUSALS = [Refusal("Softmax", [X], {"axis": 3}), Refusal("LogSoftmax", [X], {"axis": -4})]
