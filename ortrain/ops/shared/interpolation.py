"""Interpolation along one axis, as ONNX's Resize defines it: the source coordinate, neighbors and weights of each resized element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Interpolation:
    """The attributes of Resize that determine how to interpolate."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its size, resized size, scale and region of interest (start, end) in normalized coordinates."""

    size: int
    resized: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5), "floor": np.floor, "ceil": np.ceil,
}
MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize")


def positions(axis: Axis, how: Interpolation) -> np.ndarray:
    """Return the source coordinate of each resized element, float64 [resized]."""
    j = np.arange(axis.resized, dtype=np.float64)
    n, m, scale = axis.size, axis.resized, axis.scale
    width = scale * n                                     # not rounded down, as in ONNX's reference implementation
    match how.coordinates:
        case "align_corners":
            return j * (n - 1) / (width - 1) if width != 1 else np.zeros(m)
        case "asymmetric":
            return j / scale
        case "tf_half_pixel_for_nn":
            return (j + 0.5) / scale
        case "tf_crop_and_resize":
            start, end = axis.roi
            return start * (n - 1) + (j * (end - start) * (n - 1) / (width - 1) if width != 1 else np.full(m, 0.5 * (end - start) * (n - 1)))
        case "pytorch_half_pixel" if width == 1:
            return np.full(m, -0.5)
        case "half_pixel_symmetric":
            return n / 2 * (1 - m / width) + (j + 0.5) / scale - 0.5
    return (j + 0.5) / scale - 0.5


def cubic_weight(t: np.ndarray, a: float) -> np.ndarray:
    """Return the weight of an element at distance t in cubic convolution interpolation with coefficient a (Keys, 1981)."""
    t = np.abs(t)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def table(axis: Axis, how: Interpolation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (indices int64 [resized, taps], weights float64 [resized, taps], whether each element is outside of the region, bool [resized])."""
    x = positions(axis, how)
    outside = (x < 0) | (x > axis.size - 1) if how.coordinates == "tf_crop_and_resize" else np.zeros(len(x), bool)
    if how.mode == "nearest":
        indices = ROUNDING[how.nearest](x).astype(np.int64)[:, None]
        weights = np.ones(indices.shape)
    else:
        indices, weights = _neighbors(x, axis.scale, how)
    if how.exclude_outside:
        weights = np.where((indices < 0) | (indices >= axis.size), 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    weights = np.where(outside[:, None], 0.0, weights)
    return np.clip(indices, 0, axis.size - 1), weights, outside


def _neighbors(x: np.ndarray, scale: float, how: Interpolation) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the elements that linear or cubic interpolation reads at coordinates x, which may be out of range, and their weights."""
    base = np.ceil(x) - 1
    ratio = x - base                                     # in (0, 1]
    shrink = min(scale, 1.0) if how.antialias else 1.0
    reach = 1 if how.mode == "linear" else 2
    start = int(np.floor(-reach / shrink)) + 1
    taps = np.arange(start, 2 - start if how.mode == "cubic" else start + 2 - 2 * start)
    distance = (taps[None, :] - ratio[:, None]) * shrink
    weights = np.clip(1 - np.abs(distance), 0, 1) if how.mode == "linear" else cubic_weight(distance, how.cubic)
    if how.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return (base[:, None] + taps[None, :]).astype(np.int64), weights
