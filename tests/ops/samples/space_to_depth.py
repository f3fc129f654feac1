"""Samples of DepthToSpace and SpaceToDepth."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(17)
DEEP = rng.standard_normal((2, 12, 2, 3))
WIDE = rng.standard_normal((2, 3, 4, 6))


def to_space(x: np.ndarray, block: int, mode: str = "DCR") -> np.ndarray:
    """DepthToSpace by its definition: one strided assignment per image channel and position in the block."""
    n, channels, height, width = x.shape
    inner = channels // block**2
    y = np.empty((n, inner, height * block, width * block), x.dtype)
    for c, i, j in np.ndindex(inner, block, block):
        y[:, c, i::block, j::block] = x[:, (i * block + j) * inner + c if mode == "DCR" else c * block**2 + i * block + j]
    return y


def to_depth(x: np.ndarray, block: int, mode: str = "DCR") -> np.ndarray:
    n, channels, height, width = x.shape
    y = np.empty((n, channels * block**2, height // block, width // block), x.dtype)
    for c, i, j in np.ndindex(channels, block, block):
        y[:, (i * block + j) * channels + c if mode == "DCR" else c * block**2 + i * block + j] = x[:, c, i::block, j::block]
    return y


SAMPLES = [
    *[Sample("DepthToSpace", [DEEP], lambda x, a=a: to_space(x, 2, **a), {"blocksize": 2, **a}, opset=opset)
      for a, opset in (({}, 9), ({"mode": "DCR"}, 13), ({"mode": "CRD"}, 11), ({"mode": "CRD"}, 28))],
    Sample("DepthToSpace", [DEEP], lambda x: x, {"blocksize": 1}),
    *[Sample("SpaceToDepth", [WIDE], lambda x, a=a: to_depth(x, 2, **a), {"blocksize": 2, **a}, opset=opset) for a, opset in (({}, 9), ({"mode": "CRD"}, 28))],
]

REFUSALS = [
    Refusal("DepthToSpace", [DEEP], {"blocksize": 5}), Refusal("DepthToSpace", [DEEP], {"blocksize": 0}), Refusal("DepthToSpace", [DEEP[0]], {"blocksize": 2}),
    Refusal("DepthToSpace", [DEEP], {"blocksize": 2, "mode": "RCD"}), Refusal("SpaceToDepth", [WIDE], {"blocksize": 3}), Refusal("SpaceToDepth", [WIDE], {"blocksize": -2}),
]
