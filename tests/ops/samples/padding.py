"""Samples of Pad, and of its gradient in the modes that repeat elements."""

from collections.abc import Callable, Sequence

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(2)
X = rng.standard_normal((3, 4, 5))
ORTRAIN = "ortrain"


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def sources(sizes: Sequence[int], pads: Sequence[int], mode: str) -> tuple[np.ndarray, ...]:
    """Return the position in x of each element of y, by axis, where elements are repeated; pads as ONNX's, negative ones too."""
    found = []
    for size, before, after in zip(sizes, pads, pads[len(sizes):], strict=False):
        positions = np.pad(np.arange(size), (max(before, 0), max(after, 0)), mode=mode)
        found.append(positions[max(-before, 0) : len(positions) - max(-after, 0)])
    return np.ix_(*found)


def repeated(pads: Sequence[int], mode: str) -> Callable[..., np.ndarray]:
    return lambda x, *_: x[sources(x.shape, pads, mode)]


def pad_gradient(pads: Sequence[int], mode: str) -> Callable[..., np.ndarray]:
    """Return an oracle of dx: the sum of dy over the copies of each element."""

    def run(dy: np.ndarray, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
        dx = np.zeros_like(x)
        np.add.at(dx, sources(x.shape, pads, mode), dy)
        return dx

    return run


def constant(x: np.ndarray, pads: Sequence[int]) -> np.ndarray:
    """Return x padded with zeros, and without the elements that negative pads remove."""
    pairs = list(zip(pads, pads[x.ndim:], strict=False))
    y = np.pad(x, [(max(before, 0), max(after, 0)) for before, after in pairs])
    return y[tuple(slice(max(-before, 0), size - max(-after, 0)) for size, (before, after) in zip(y.shape, pairs, strict=True))]


REPEATED = {
    "beyond the elements along two axes": ((3, 4, 5), (0, 9, 6, 0, 3, 11)),
    "all axes": ((2, 3, 2), (1, 2, 3, 2, 1, 1)),
    "axes around one that is not": ((2, 3, 4, 2), (1, 0, 2, 0, 1, 0, 1, 1)),
    "pixels of channels": ((2, 3, 4, 3), (0, 1, 1, 0, 0, 1, 1, 0)),
    "rows of vectors": ((2, 3, 37), (0, 1, 1, 0, 1, 2)),
    "removed and repeated elements": ((3, 6, 7), (0, -2, 3, 0, 4, -5)),
    "one element": ((2, 1, 1), (0, 2, 1, 0, 1, 3)),
    "more elements than are looked up once": ((2, 3, 4), (0, 0, 20, 0, 0, 30)),
}
LONG = {"long lines": ((2, 70001), (1, 3, 0, 2)), "long rows of a line": ((5, 3001), (2, 0, 1, 0))}


def padded(mode: str, label: str, shape: tuple[int, ...], pads: tuple[int, ...], gradient: bool) -> list[Sample]:
    """Return the samples of a Pad and of its gradient."""
    x, attributes, label = rng.standard_normal(shape), {"mode": mode}, f"{mode}, {label}"
    y = x[sources(shape, pads, mode)]
    return [Sample("Pad", [x, ints(*pads)], repeated(pads, mode), attributes, constants=[1], opset=19, label=label, gradient=gradient),
            Sample("PadGrad", [rng.standard_normal(y.shape), x, ints(*pads)], pad_gradient(pads, mode), attributes, domain=ORTRAIN, constants=[2],
                   gradient=False, label=label)]


SAMPLES = [
    Sample("Pad", [X, ints(1, 0, 2, 0, 3, 1)], lambda x, p: np.pad(x, ((1, 0), (0, 3), (2, 1))), constants=[1]),
    Sample("Pad", [X, ints(0, 0, 2, 0, 0, 1), np.array(1.5)],
           lambda x, p, v: np.pad(x, ((0, 0), (0, 0), (2, 1)), constant_values=v), constants=[1],
           indices=[0]),
    Sample("Pad", [X, ints(0, -1, 2, 0, 0, -1)], lambda x, p: np.pad(x[:, 1:, :-1], ((0, 0), (0, 0), (2, 0))), constants=[1]),
    Sample("Pad", [X, ints(0, -1, 0, 0, -1, -1)], lambda x, p: x[:, 1:-1, :-1], constants=[1]),
    *[Sample("Pad", [X, ints(0, 2, 1, 0, 1, 3)], lambda x, p, mode=mode: np.pad(x, ((0, 0), (2, 1), (1, 3)), mode=mode), {"mode": mode}, constants=[1],
             opset=19) for mode in ("edge", "reflect", "wrap")],
    Sample("Pad", [X, ints(0, -1, 2, 0, 2, -1)], lambda x, p: np.pad(np.pad(x[:, 1:, :-1], ((0, 0), (0, 2), (0, 0)), "edge"), ((0, 0), (0, 0), (2, 0)), "edge"),
           {"mode": "edge"}, constants=[1]),
    Sample("Pad", [X, ints(1, 2), None, ints(-1)], lambda x, p, _, a: np.pad(x, ((0, 0), (0, 0), (1, 2))), opset=18, constants=[1, 3]),
    Sample("Pad", [X],
           lambda x: np.pad(x, ((0, 0), (1, 0), (0, 1)), constant_values=2), {"pads": (0, 1, 0, 0, 0, 1), "value": 2.0}, opset=10),
    *[sample for mode in ("edge", "reflect", "wrap") for cases, gradient in ((REPEATED, True), (LONG, False)) for label, case in cases.items()
      for sample in padded(mode, label, *case, gradient)],
    *[Sample("Pad", [rng.standard_normal(shape), ints(*pads)], lambda x, p, pads=pads: constant(x, pads), constants=[1], label=label, gradient=label in REPEATED)
      for label, (shape, pads) in (REPEATED | LONG).items()],
]

REFUSALS = [
    Refusal("Pad", [X, ints(1, 1)], constants=[1]),
    Refusal("Pad", [X, ints(-4, 0, 0, 0, 0, 0)], constants=[1]),
    Refusal("Pad", [X[:0], ints(1, 0, 0, 1, 0, 0)], {"mode": "edge"}, constants=[1], match="elements to repeat"),
    Refusal("Pad", [X, ints(1, 0, 0, 1, 0, 0)], {"mode": "mirror"}, constants=[1]),
    Refusal("PadGrad", [X, X, ints(1, 0, 0, 1, 0, 0)], {"mode": "edge"}, domain=ORTRAIN, constants=[2]),
]
