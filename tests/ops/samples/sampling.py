"""Samples of GridSample and of the deformable convolution. GridSample's oracle is a product with one dense matrix of weights per axis in float64, and
onnx's reference implementation, which rounds coordinates to float32, in float32. Interpolation is not differentiable at coordinates of pixels and borders."""

import functools

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(83)
X2 = rng.standard_normal((2, 3, 5, 4))
GRID2 = rng.uniform(-2.6, 2.6, (2, 3, 7, 2))
X3 = rng.standard_normal((2, 2, 3, 4, 5))
GRID3 = rng.uniform(-1.4, 1.4, (2, 2, 3, 3, 3))


def keys(t, a=-0.75):
    t = abs(t)
    return ((a + 2) * t - (a + 3)) * t * t + 1 if t <= 1 else ((a * t - 5 * a) * t + 8 * a) * t - 4 * a if t < 2 else 0.0


def mirrored(x, low, high):
    """Return coordinates reflected into [low, high]."""
    if high == low:
        return low
    along = (x - low) % (2 * (high - low))
    return low + min(along, 2 * (high - low) - along)


def row(at, n, mode, padding, align):
    """Return the weights of n elements at a coordinate in [-1, 1]."""
    low, high = (0, n - 1) if align else (-0.5, n - 0.5)
    x = (at + 1) / 2 * (n - 1) if align else ((at + 1) * n - 1) / 2
    x = float(np.rint(x)) if mode == "nearest" else x
    if not low <= x <= high and padding == "border" and mode != "cubic":       # cubic taps are clamped one by one, as in PyTorch and onnxruntime
        x = min(max(x, 0), n - 1)
    elif not low <= x <= high and padding == "reflection":
        x = mirrored(x, low, high)
    weights = np.zeros(n)
    for i in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
        w = {"nearest": float(i == x), "linear": max(0.0, 1 - abs(i - x)), "cubic": keys(i - x)}[mode]
        at = i if padding == "zeros" else min(max(i, 0), n - 1) if padding == "border" else int(mirrored(i, low, high))
        if 0 <= at < n:
            weights[at] += w
    return weights


def dense(x, grid, mode, padding, align):
    positions = grid.reshape(len(grid), -1, grid.shape[-1])
    y = []
    for image, places in zip(x, positions, strict=True):
        for place in places:
            value = image
            for n, at in zip(reversed(image.shape[1:]), place, strict=True):     # the grid has the last axis first
                value = value @ row(at, n, mode, padding, align)
            y.append(value)
    return np.moveaxis(np.array(y).reshape(len(x), *grid.shape[1:-1], x.shape[1]), -1, 1)


def sampled(x, grid, mode="linear", padding="zeros", align=0, opset=20, **more):
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    kind = mode.removeprefix("bi")
    reference = by_reference("GridSample", attributes | {"mode": kind}, 20)
    differs = kind == "cubic" and padding == "border"      # the reference moves the position, PyTorch and onnxruntime each tap

    def oracle(x, grid):
        return dense(x, grid, kind, padding, align) if x.dtype == np.float64 or differs else reference(x, grid)

    return Sample("GridSample", [x, grid], oracle, attributes, opset=opset, **more)


def affine(sizes, align):
    reference = by_reference("AffineGrid", {"align_corners": align}, 20)

    def oracle(theta, size):
        if theta.dtype == np.float32:                           # the reference computes in float32
            return reference(theta, size)
        grid = np.zeros((2, *sizes, len(sizes)))
        for place in np.ndindex(*sizes):
            at = [-1 + (2 * i / (n - 1) if align else (2 * i + 1) / n) for i, n in zip(place, sizes, strict=True)]
            grid[(slice(None), *place)] = theta @ [*reversed(at), 1]
        return grid

    inputs = [rng.standard_normal((2, len(sizes), len(sizes) + 1)), np.array([2, 3, *sizes])]
    return Sample("AffineGrid", inputs, oracle, {"align_corners": align}, opset=20, constants=(1,))


def grid_gradient(dy, x, grid):
    """Return (dx, dgrid) of linear interpolation: dx since samples are linear in x, dgrid by central differences, which are exact where differentiable."""
    f = functools.partial(dense, mode="linear", padding="zeros", align=0)
    if x.dtype == np.float32:
        return None, None
    dx, dgrid = np.zeros_like(x), np.zeros_like(grid)
    for i in np.ndindex(*x.shape):
        one = np.zeros_like(x)
        one[i] = 1
        dx[i] = (dy * f(one, grid)).sum()
    for i in np.ndindex(*grid.shape):
        step = np.zeros_like(grid)
        step[i] = 2.0**-12
        dgrid[i] = (dy * (f(x, grid + step) - f(x, grid - step))).sum() * 2.0**11
    return dx, dgrid


# ---- deformable convolution


def bilinear(image, y, x):
    """Return an image [c, h, w] interpolated at (y, x), with zeros outside."""
    out = np.zeros(image.shape[0], image.dtype)
    for i in (int(np.floor(y)), int(np.floor(y)) + 1):
        for j in (int(np.floor(x)), int(np.floor(x)) + 1):
            if 0 <= i < image.shape[1] and 0 <= j < image.shape[2]:
                out += image[:, i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return out


def columns(x, offset, mask=None, kernel=(3, 3), groups=1, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)):
    n, channels = x.shape[:2]
    taps, (height, width) = kernel[0] * kernel[1], offset.shape[2:]
    moves = offset.reshape(n, groups, taps, 2, height, width)
    factors = np.ones((n, groups, taps, height, width), x.dtype) if mask is None else mask.reshape(n, groups, taps, height, width)
    out = np.zeros((n, groups, channels // groups, taps, height, width), x.dtype)
    for b, g, t, i, j in np.ndindex(n, groups, taps, height, width):
        y = i * strides[0] - pads[0] + t // kernel[1] * dilations[0] + moves[b, g, t, 0, i, j]
        z = j * strides[1] - pads[1] + t % kernel[1] * dilations[1] + moves[b, g, t, 1, i, j]
        out[b, g, :, t, i, j] = bilinear(x[b].reshape(groups, -1, *x.shape[2:])[g], y, z) * factors[b, g, t, i, j]
    return out.reshape(n, channels * taps, height, width)


def deformed(x, w, offset, b=None, mask=None, group=1, **windows):
    found = columns(x, offset, mask, w.shape[2:], **windows)
    n, _, height, width = found.shape
    y = np.einsum("ngkp,gfk->ngfp", found.reshape(n, group, -1, height * width), w.reshape(group, w.shape[0] // group, -1))
    return y.reshape(n, w.shape[0], height, width) + (0 if b is None else b[:, None, None])


def deformable(x, w, size, groups=1, biased=False, masked=False, opset=19, kernel_shape=True, **attributes):
    taps, n = w[2] * w[3], x[0]
    inputs = [rng.standard_normal(x), rng.standard_normal(w), rng.uniform(-1.7, 1.7, (n, groups * taps * 2, *size)), None, None]
    if biased:
        inputs[3] = rng.standard_normal(w[0])
    if masked:
        inputs[4] = rng.uniform(0, 1, (n, groups * taps, *size))
    inputs = inputs if masked else inputs[: 4 if biased else 3]
    named = attributes | {"offset_group": groups} | ({"kernel_shape": w[2:]} if kernel_shape else {})
    reference = by_reference("DeformConv", named, opset)

    def oracle(*a):
        return reference(*a) if x[0] == 1 and a[0].dtype == np.float32 else deformed(*a, groups=groups, **attributes)     # the reference takes seconds

    return Sample("DeformConv", inputs, oracle, named, opset=opset)


SAMPLES = [
    *[sampled(x, grid, mode, padding, align) for x, grid in ((X2, GRID2), (X3, GRID3)) for mode in ("nearest", "linear", "cubic")
      for padding in ("zeros", "border", "reflection") for align in (0, 1)],
    *[sampled(X2, GRID2, mode, opset=16) for mode in ("bilinear", "bicubic")], sampled(X2, GRID2, opset=22),
    sampled(rng.standard_normal((1, 11, 6, 5)), rng.uniform(-1.1, 1.1, (1, 20, 30, 2)), label="several blocks and owners"),
    *[sampled(rng.standard_normal((8, 40, 3, 3)), rng.uniform(-1.1, 1.1, (8, 3, 4, 2)), mode, label="chunks of several vectors") for mode in ("nearest", "linear")],
    Sample("GridSample", [rng.standard_normal((2, 3, 1, 4)), GRID2], lambda x, grid: dense(x, grid, "linear", "reflection", 1),
           {"padding_mode": "reflection", "align_corners": 1}, opset=20, label="an axis of one element, by which the reference divides"),
    sampled(X2[..., 0], rng.uniform(-2, 2, (2, 6, 1)), label="one axis"),
    Sample("GridSample", [X2, GRID2[:, :0]], lambda x, grid: np.zeros((2, 3, 0, 7), x.dtype), opset=20, label="no positions"),
    Sample("GridSampleGrad", [rng.standard_normal((2, 3, 3, 7)), X2, GRID2], grid_gradient, {"mode": "linear"}, "ortrain", outputs=2, gradient=False),
    *[affine(sizes, align) for sizes in ((4, 5), (2, 3, 4)) for align in (0, 1)],
    deformable((2, 3, 5, 6), (4, 3, 3, 3), (3, 4)), deformable((2, 3, 5, 6), (4, 3, 2, 3), (3, 3), biased=True, masked=True, strides=(2, 2), pads=(1, 1, 0, 1)),
    deformable((2, 4, 6, 6), (6, 2, 3, 3), (4, 4), groups=2, masked=True, group=2, dilations=(2, 2), pads=(1, 1, 1, 1), opset=22),
    deformable((1, 4, 5, 5), (4, 4, 1, 1), (5, 5), groups=4, biased=True, kernel_shape=False),
    deformable((2, 18, 20, 19), (2, 18, 2, 2), (19, 18), groups=2, masked=True),
    deformable((1, 2, 4, 5), (2, 2, 2, 2), (4, 5), masked=True, pads=(1, 0, 0, 1)),
    Sample("DeformableColumns", [X2, rng.uniform(-1, 1, (2, 8, 4, 3)), rng.uniform(0, 1, (2, 4, 4, 3))], lambda *a: columns(*a, kernel=(2, 2)),
           {"kernel_shape": (2, 2)}, "ortrain"),
    Sample("DeformableColumnsGrad", [np.ones((2, 3, 5, 4)), X2, np.zeros((2, 2, 5, 4))], lambda dy, x, o: (dy, None), {"kernel_shape": (1, 1)}, "ortrain",
           outputs=2, gradient=False),
]
REFUSALS = [
    Refusal("AffineGrid", [np.zeros((2, 2, 2)), np.array([2, 3, 4, 5])], opset=20, constants=(1,)),
    Refusal("AffineGrid", [np.zeros((2, 2, 3)), np.array([2, 3, 4])], opset=20, constants=(1,)),
    Refusal("AffineGrid", [np.zeros((2, 2, 3)), np.array([3, 3, 4, 5])], opset=20, constants=(1,), match="theta of shape"),
    Refusal("AffineGrid", [np.zeros((2, 2, 3)), np.array([2, 3, -4, 5])], opset=20, constants=(1,), match="positive"),
    Refusal("GridSample", [X2, GRID2], {"mode": "best"}, opset=20), Refusal("GridSample", [X2, GRID2], {"padding_mode": "none"}, opset=20),
    Refusal("GridSample", [X2, GRID3], opset=20), Refusal("GridSample", [X2, GRID2[:1]], opset=20), Refusal("GridSample", [X2, GRID2[..., :1]], opset=20),
    Refusal("GridSample", [X2[:, :, :0], GRID2], opset=20, match="at least one pixel"),
    Refusal("DeformConv", [X2, np.zeros((4, 3, 2, 2)), np.zeros((2, 8, 5, 4))], opset=19, match="offsets"),
    Refusal("DeformConv", [X2, np.zeros((4, 2, 2, 2)), np.zeros((2, 8, 4, 3))], opset=19, match="channels"),
    Refusal("DeformConv", [X2, np.zeros((4, 3, 2, 2)), np.zeros((2, 8, 4, 3))], {"offset_group": 2}, opset=19, match="divides"),
    Refusal("DeformConv", [X2, np.zeros((4, 3, 2, 2)), np.zeros((2, 8, 4, 3)), None, np.zeros((2, 3, 4, 3))], opset=19, match="mask"),
    Refusal("DeformConv", [X2, np.zeros((4, 3, 2, 2)), np.zeros((2, 8, 4, 3))], {"kernel_shape": (3, 3)}, opset=19, match="kernel"),
]
