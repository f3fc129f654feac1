"""Samples of Pad, and of its gradient in the modes that repeat elements."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(2)
X = rng.standard_normal((3, 4, 5))
ORTRAIN = "ortrain"


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def pad_gradient(dy: np.ndarray, x: np.ndarray, before: int, after: int, mode: str) -> np.ndarray:
    """Return dx of a Pad along the last axis: the sum of dy over the copies of each element."""
    source = np.pad(np.arange(x.shape[-1]), (before, after), mode=mode)
    return np.stack([dy[..., source == k].sum(-1) for k in range(x.shape[-1])], -1)


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
    *[Sample("PadGrad", [rng.standard_normal((3, 4, 10)), X, ints(0, 0, 2, 0, 0, 3)], lambda dy, x, p, mode=mode: pad_gradient(dy, x, 2, 3, mode), {"mode": mode},
             domain=ORTRAIN, constants=[2], gradient=False) for mode in ("edge", "reflect", "wrap")],
]

REFUSALS = [
    Refusal("Pad", [X, ints(1, 1)], constants=[1]),
    Refusal("Pad", [X, ints(-4, 0, 0, 0, 0, 0)], constants=[1]),
    Refusal("Pad", [X[:0], ints(1, 0, 0, 1, 0, 0)], {"mode": "edge"}, constants=[1], match="elements to repeat"),
    Refusal("Pad", [X, ints(1, 0, 0, 1, 0, 0)], {"mode": "mirror"}, constants=[1]),
]
