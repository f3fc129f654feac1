"""Cases of operators along an axis: reductions, softmax, cumulative sums, selection and normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.operators.case import Case, constant, integers, positive

LAYOUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "rows": ((1024, 1024), 1), "short rows": ((65536, 16), 1), "columns": ((1024, 1024), 0), "inner 128": ((64, 128, 128), 1),
    "inner 1000": ((16, 64, 1000), 1),
    "inner 3": ((2730, 128, 3), 1), "inner 7": ((1170, 128, 7), 1), "odd rows": ((1049, 999), 1), "one row": ((1, 1 << 20), 1),
    "one column": ((1 << 20, 1), 0),
    "small": ((4, 100), 1)}
"""Label -> shape and the axis of the operator."""


def size_of(label: str) -> int:
    """Return the number of elements of a layout."""
    return math.prod(LAYOUTS[label][0])


def reduction_cases() -> Iterator[Case]:
    """Yield the reductions along every layout."""
    peers: dict[str, Callable[..., Any]] = {
        "ReduceSum": lambda torch, x, axis: x.sum(axis, keepdim=True), "ReduceMean": lambda torch, x, axis: x.mean(axis, keepdim=True),
        "ReduceMax": lambda torch, x, axis: x.amax(axis, keepdim=True), "ReduceMin": lambda torch, x, axis: x.amin(axis, keepdim=True),
        "ReduceProd": lambda torch, x, axis: x.prod(axis, keepdim=True), "ReduceL1": lambda torch, x, axis: x.norm(1, axis, keepdim=True),
        "ReduceL2": lambda torch, x, axis: x.norm(2, axis, keepdim=True), "ReduceSumSquare": lambda torch, x, axis: x.square().sum(axis, keepdim=True),
        "ReduceLogSum": lambda torch, x, axis: x.sum(axis, keepdim=True).log(),
        "ReduceLogSumExp": lambda torch, x, axis: x.logsumexp(axis, keepdim=True)}
    for name, peer in peers.items():
        for label, (shape, axis) in LAYOUTS.items():
            if name in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceMin") and label not in ("rows", "columns", "inner 7"):
                continue
            inputs = [positive(*shape) if name == "ReduceLogSum" else shape, constant(axis)]
            yield Case(name, inputs, lambda torch, x, peer=peer, axis=axis: peer(torch, x, axis), {}, label,
                       transcendentals=(size_of(label), size_of(label)) if name == "ReduceLogSumExp" else (0, 0))
    yield Case("ReduceSum", [(64, 64, 256), constant(0, 2)], lambda torch, x: x.sum((0, 2), keepdim=True), {}, "all but channels")


def softmax_cases() -> Iterator[Case]:
    """Yield softmax, its logarithm and Hardmax along every layout."""
    for name, peer in {"Softmax": "softmax", "LogSoftmax": "log_softmax"}.items():
        for label, (shape, axis) in LAYOUTS.items():
            yield Case(name, [shape], lambda torch, x, peer=peer, axis=axis: getattr(x, peer)(axis), {"axis": axis}, label,
                       transcendentals=(size_of(label), size_of(label) if name == "LogSoftmax" else 0))
    yield Case("Hardmax", [(1024, 1024)], None, {"axis": 1}, "rows", ())


def scan_cases() -> Iterator[Case]:
    """Yield cumulative sums and products, extremes with their positions, TopK and reversed sequences."""
    for label, (shape, axis) in LAYOUTS.items():
        yield Case("CumSum", [shape, np.array(axis)], lambda torch, x, axis=axis: x.cumsum(axis), {}, label)
        yield Case("ArgMax", [shape], lambda torch, x, axis=axis: x.argmax(axis), {"axis": axis, "keepdims": 0}, label, ())
        if label in ("rows", "columns", "inner 7"):
            yield Case("CumProd", [shape, np.array(axis)], lambda torch, x, axis=axis: x.cumprod(axis), {}, label, opset=26)
            yield Case("TopK", [shape, constant(5)], lambda torch, x, axis=axis: x.topk(5, axis)[0], {"axis": axis}, f"5 of {label}", outputs=2)
    yield Case("ReverseSequence", [(128, 32, 256), integers(128, 32)], None, {}, "time first", (0,))


def layer_normalizations() -> Iterator[Case]:
    """Yield the normalizations of rows."""
    for shape in ((1024, 1024), (65536, 16), (1170, 900), (1, 1000)):
        label, width = "x".join(map(str, shape)), shape[-1]
        yield Case("LayerNormalization", [shape, (width,), (width,)],
                   lambda torch, x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b), {}, label)
    yield Case("RMSNormalization", [(1024, 1024), (1024,)], lambda torch, x, w: torch.nn.functional.rms_norm(x, w.shape, w, 1e-5), {}, "1024x1024", opset=23)
    for label, (shape, axis) in LAYOUTS.items():
        if label in ("rows", "columns", "inner 128", "inner 7"):
            yield Case("LpNormalization", [shape], lambda torch, x, axis=axis: torch.nn.functional.normalize(x, 2.0, axis), {"axis": axis}, label)


def channel_normalizations() -> Iterator[Case]:
    """Yield the normalizations of channels."""
    def batch_norm(torch: Any, x: Any, w: Any, b: Any, mean: Any, variance: Any, training: bool) -> Any:
        return torch.nn.functional.batch_norm(x, mean, variance, w, b, training)

    for shape in ((1024, 1024), (8192, 128), (65536, 16), (16, 64, 32, 32), (16, 63, 31, 33), (1024, 1000, 1), (64, 256, 7, 7), (4, 10)):
        channels = (shape[1],)
        for training in (1, 0):
            inputs = [shape, channels, channels, channels, positive(*channels)]
            yield Case("BatchNormalization", inputs, lambda *a, t=bool(training): batch_norm(*a, training=t), {"training_mode": training},
                       f"{'x'.join(map(str, shape))}{' training' if training else ''}", (0, 1, 2), outputs=3 if training else 1)
    images = (16, 64, 32, 32)
    yield Case("InstanceNormalization", [images, (64,), (64,)], lambda torch, x, w, b: torch.nn.functional.instance_norm(x, weight=w, bias=b), {}, "images")
    yield Case("GroupNormalization", [images, (64,), (64,)], lambda torch, x, w, b: torch.nn.functional.group_norm(x, 8, w, b),
               {"num_groups": 8}, "images", opset=21)
    for shape in (images, (16, 63, 31, 33)):
        yield Case("LRN", [shape], lambda torch, x: torch.nn.functional.local_response_norm(x, 5, 1e-4, 0.75, 1.0), {"size": 5},
                   "x".join(map(str, shape)), transcendentals=(2 * math.prod(shape), 2 * math.prod(shape)))
    yield Case("MeanVarianceNormalization", [images], None, {}, "images", ())
