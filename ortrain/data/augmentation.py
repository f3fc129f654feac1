"""Random changes of images while they are read, reproducible from (seed, epoch, sample)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain.errors import InvalidArgumentError

ASPECT = (3 / 4, 4 / 3)
"""Ratios of width to height that a random crop by scale takes, as in "Going deeper with convolutions" (Szegedy et al., 2015)."""


@dataclass(frozen=True, slots=True)
class Augment:
    """What may happen to an image of a training epoch.

    horizontal_flip, vertical_flip: mirror every second image, on average. random_crop: a number of pixels by which the image is padded with zeros on all
    sides before a piece of the original size is cut out; or a pair (low, high) of shares of the area, of which a random one is cut out and resized.
    brightness, contrast: largest relative change b, so that the factor is uniform in [1 - b, 1 + b].

    Raises InvalidArgumentError for values out of range."""

    horizontal_flip: bool = False
    vertical_flip: bool = False
    random_crop: int | tuple[float, float] | None = None
    brightness: float = 0.0
    contrast: float = 0.0

    def __post_init__(self) -> None:
        crop = self.random_crop
        if isinstance(crop, tuple):
            if len(crop) != 2 or not 0 < crop[0] <= crop[1] <= 1:
                raise InvalidArgumentError(f"expected random_crop as a pair of shares with 0 < low <= high <= 1, got {crop}")
        elif crop is not None and (isinstance(crop, bool) or not isinstance(crop, int) or crop < 0):
            raise InvalidArgumentError(f"expected random_crop as a number of pixels >= 0, a pair of shares or None, got {crop!r}")
        for name in ("brightness", "contrast"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidArgumentError(f"expected {name} in [0, 1], got {getattr(self, name)}")

    def area(self, image: Any, random: np.random.Generator) -> Any:
        """Return a random piece of a Pillow image where random_crop is a pair of shares, otherwise the image."""
        if not isinstance(self.random_crop, tuple):
            return image
        width, height = image.size
        share = random.uniform(*self.random_crop) * width * height
        ratio = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w = min(width, max(1, round(math.sqrt(share * ratio))))
        h = min(height, max(1, round(math.sqrt(share / ratio))))
        left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
        return image.crop((left, top, left + w, top + h))

    def pixels(self, pixels: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return changed pixels; pixels: float32 [height, width, channels], 0 to 255."""
        if isinstance(self.random_crop, int) and self.random_crop:
            height, width = pixels.shape[:2]
            padding = self.random_crop
            top, left = random.integers(2 * padding + 1, size=2)
            pixels = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))[top : top + height, left : left + width]
        # every choice is drawn whether it is wanted or not, so that switching one off leaves the others as they were
        horizontal, vertical = random.random(2) < 0.5
        brightness, contrast = 1 + random.uniform(-1, 1, 2) * (self.brightness, self.contrast)
        if self.horizontal_flip and horizontal:
            pixels = pixels[:, ::-1]
        if self.vertical_flip and vertical:
            pixels = pixels[::-1]
        if self.brightness or self.contrast:
            mean = pixels.mean()
            pixels = np.clip(((pixels - mean) * np.float32(contrast) + mean) * np.float32(brightness), 0, 255)
        return pixels
