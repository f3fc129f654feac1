"""Samples of RoiAlign (the oracle is onnx's reference implementation) and MaxRoiPool. They are not differentiable where two maxima are equal."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(89)
X = rng.standard_normal((2, 3, 9, 8))
ROIS = np.array([[0.3, 0.7, 5.1, 6.2], [1.2, 2.1, 1.9, 2.4], [-2.3, -1.6, 4.2, 5.7], [3.3, 4.4, 11.2, 13.7], [5.2, 6.1, 4.1, 3.3], [20.1, 20.2, 25.3, 26.4]])
IMAGES = np.array([0, 1, 1, 0, 0, 1])
WIDE = rng.standard_normal((1, 35, 12, 11))


def aligned(opset=16, x=X, rois=ROIS, images=IMAGES, **attributes):
    named = {"coordinate_transformation_mode": "output_half_pixel"} if opset < 16 else {}
    return Sample("RoiAlign", [x, rois, images], by_reference("RoiAlign", named | attributes, 22), attributes, opset=opset)


def pooled(x, regions, size, scale=1.0):
    y = np.zeros((len(regions), x.shape[1], *size), x.dtype)
    for r, (image, *box) in enumerate(regions):
        left, top, right, bottom = (int(np.floor(abs(v * scale) + 0.5) * np.sign(v)) for v in box)
        height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for i, j in np.ndindex(*size):
            rows = slice(max(0, top + i * height // size[0]), max(0, top - (-(i + 1) * height // size[0])))
            columns = slice(max(0, left + j * width // size[1]), max(0, left - (-(j + 1) * width // size[1])))
            part = x[int(image), :, rows, columns]
            y[r, :, i, j] = part.max((1, 2)) if part.size else 0
    return y


def adjoint(dy, function, x):
    """Return the gradient of a function that selects elements of x: dy times its derivative, which is 0 or 1."""
    dx = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        up = x.copy()
        up[i] += 2.0**-20
        dx[i] = np.round((function(up) - function(x)) * 2.0**20).ravel() @ dy.ravel()
    return dx


BOXES = np.concatenate([IMAGES[:, None], ROIS], 1)
SMALL = np.round(rng.standard_normal((2, 1, 5, 4)) * 4096) / 4096                # the differences by which the oracle finds the pick are exact in float32
DY = rng.standard_normal((2, 1, 2, 2))
SAMPLES = [
    *[aligned(mode=mode, coordinate_transformation_mode=how, output_height=3, output_width=2, sampling_ratio=ratio, spatial_scale=0.875)
      for mode in ("avg", "max") for how in ("half_pixel", "output_half_pixel") for ratio in (0, 2)],
    aligned(opset=10, output_height=2, output_width=3), aligned(opset=22, mode="max"),
    aligned(x=WIDE, rois=ROIS[:2], images=IMAGES[:2] * 0, output_height=2, output_width=2, sampling_ratio=9),
    Sample("RoiAlign", [X, ROIS[:0], IMAGES[:0]], lambda x, *_: np.zeros((0, 3, 1, 1), x.dtype), opset=16),
    Sample("RoiAlign", [np.ones((1, 1, 4, 4)), np.array([[0.0, 0.0, 1e30, 4.0], [np.nan, 0, 1, 1], [0, 0, np.inf, 1]]), np.zeros(3, np.int64)],
           lambda x, *_: np.zeros((3, 1, 1, 1), x.dtype), opset=16, indices=(0,), label="borders that are no places"),
    Sample("RoiAlignGrad", [np.ones((1, 3, 1, 1)), X, np.array([[2.5, 2.5, 3.5, 3.5]]), np.array([1])],
           lambda dy, x, *_: np.where((np.arange(2)[:, None, None, None] == 1) & (np.arange(9)[:, None] // 2 == 1) & (np.arange(8) // 2 == 1), 0.25, 0) + x * 0,
           {"sampling_ratio": 1}, "ortrain", gradient=False),
    *[Sample("MaxRoiPool", [X, BOXES], lambda x, r, s=scale: pooled(x, r, (3, 2), s), {"pooled_shape": (3, 2), "spatial_scale": scale}, opset=opset)
      for opset, scale in ((1, 1.0), (22, 0.6))],
    Sample("MaxRoiPool", [WIDE, BOXES[:3] * [0, 1, 1, 1, 1]], lambda x, r: pooled(x, r, (2, 2)), {"pooled_shape": (2, 2)}),
    Sample("MaxRoiPoolGrad", [DY, SMALL, np.array([[0.0, 0, 0, 3, 4], [1, 1, 1, 2, 2]])],
           lambda dy, x, r: adjoint(dy, lambda x: pooled(x, r, (2, 2)), x), {"pooled_shape": (2, 2)}, "ortrain", gradient=False),
]
REFUSALS = [
    Refusal("RoiAlign", [X, ROIS, IMAGES], {"mode": "least"}, opset=16), Refusal("RoiAlign", [X, ROIS[:, :3], IMAGES], opset=16, match="regions"),
    Refusal("RoiAlign", [X, ROIS, IMAGES[:2]], opset=16), Refusal("RoiAlign", [X[0], ROIS, IMAGES], opset=16), Refusal("RoiAlign", [X, ROIS, IMAGES * 1.0], opset=16),
    Refusal("RoiAlign", [X, ROIS, IMAGES], {"sampling_ratio": -1}, opset=16), Refusal("RoiAlign", [X[:, :, :0], ROIS, IMAGES], opset=16, match="at least one pixel"),
    Refusal("MaxRoiPool", [X, BOXES], match="pooled_shape"), Refusal("MaxRoiPool", [X, ROIS], {"pooled_shape": (2, 2)}, match="regions"),
]
