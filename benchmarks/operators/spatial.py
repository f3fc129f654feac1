"""Cases of operators on images: pooling, resizing, sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.operators.case import Case, constant

IMAGES = {"64 channels": (16, 64, 32, 32), "odd": (16, 63, 31, 33), "3 channels": (8, 3, 224, 224), "narrow": (16, 256, 7, 7), "small": (1, 3, 8, 8)}
WINDOWS: dict[str, dict[str, Any]] = {
    "3x3 stride 2": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, "2x2": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "3x3 stride 1": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}}


def pooling_cases() -> Iterator[Case]:
    """Yield the pooling operators."""
    for window, attributes in WINDOWS.items():
        kernel, stride, pad = attributes["kernel_shape"][0], attributes.get("strides", [1])[0], attributes.get("pads", [0])[0]
        for label, shape in IMAGES.items():
            yield Case("MaxPool", [shape], lambda torch, x, k=(kernel, stride, pad): torch.nn.functional.max_pool2d(x, *k), attributes, f"{window}, {label}")
            yield Case("AveragePool", [shape], lambda torch, x, k=(kernel, stride, pad): torch.nn.functional.avg_pool2d(x, *k),
                       attributes | {"count_include_pad": 1}, f"{window}, {label}")
    yield Case("LpPool", [IMAGES["64 channels"]], lambda torch, x: torch.nn.functional.lp_pool2d(x, 2.0, 2, 2), WINDOWS["2x2"], "2x2, 64 channels")
    for label, shape in IMAGES.items():
        yield Case("GlobalAveragePool", [shape], lambda torch, x: x.mean((2, 3), keepdim=True), {}, label)
        yield Case("GlobalMaxPool", [shape], lambda torch, x: x.amax((2, 3), keepdim=True), {}, label)


def resize_cases() -> Iterator[Case]:
    """Yield enlarging and shrinking by every method."""
    for mode, peer in {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}.items():
        for factor in (2.0, 0.5):
            for label, shape in {"64 channels": (8, 64, 32, 32), "3 channels": (8, 3, 128, 128), "odd": (8, 15, 61, 67)}.items():
                if mode == "cubic" and label == "odd":
                    continue
                options = {} if mode == "nearest" else {"align_corners": False}
                attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric" if mode == "nearest" else "half_pixel", "nearest_mode": "floor",
                              "cubic_coeff_a": -0.75}
                yield Case("Resize", [shape, None, constant(1.0, 1.0, factor, factor)],
                           lambda torch, x, f=factor, m=peer, o=options: torch.nn.functional.interpolate(x, scale_factor=f, mode=m, **o), attributes,
                           f"{mode} x{factor:g}, {label}")


def grid(rng: np.random.Generator) -> np.ndarray:
    """Draw sampling positions, of which some are outside."""
    return rng.uniform(-1.1, 1.1, (8, 32, 32, 2)).astype(np.float32)


def sampling_cases() -> Iterator[Case]:
    """Yield sampling at positions and in boxes, and fields of view as columns."""
    for mode in ("linear", "nearest"):
        peer = "bilinear" if mode == "linear" else mode
        yield Case("GridSample", [(8, 64, 32, 32), grid], lambda torch, x, g, m=peer: torch.nn.functional.grid_sample(x, g, m, align_corners=False),
                   {"mode": mode}, f"{mode}, 64 channels", opset=20)
    boxes = np.random.default_rng(1).uniform(0, 15, (64, 4)).astype(np.float32)
    boxes[:, 2:] += boxes[:, :2] + 1
    attributes = {"output_height": 7, "output_width": 7, "sampling_ratio": 2}
    yield Case("RoiAlign", [(2, 64, 32, 32), boxes, np.repeat([0, 1], 32)], None, attributes, "64 boxes", (0,))
    numbered = np.concatenate([np.repeat([[0.0], [1.0]], 32, 0), boxes], 1).astype(np.float32)
    yield Case("MaxRoiPool", [(2, 64, 32, 32), numbered], None, {"pooled_shape": [7, 7]}, "64 boxes", (0,))
    yield Case("DeformConv", [(4, 32, 32, 32), (32, 32, 3, 3), (4, 18, 32, 32)], None, {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}, "3x3", opset=19,
               products=4 * 32 * 32 * 32 * 32 * 9)
    yield Case("Col2Im", [(8, 64 * 9, 900), constant(32, 32), constant(3, 3)], lambda torch, x: torch.nn.functional.fold(x, (32, 32), (3, 3)), {}, "3x3")
