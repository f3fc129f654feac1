"""Preprocessing of images: a folder with one subfolder per class, or, for predictions, images without classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from ortrain.data.augmentation import Augment
from ortrain.data.images import MODES, ImageFiles, ImageFolder
from ortrain.errors import InvalidArgumentError
from ortrain.runs.preprocessing import DataOptions, ModelInputs, Preprocessing


@dataclass(frozen=True, slots=True)
class ImagePreprocessing(Preprocessing):
    """Images of one size; see ortrain.data.images.ImageFolder for the fields."""

    kind: ClassVar[str] = "images"
    size: tuple[int, int]
    channels: int
    layout: Literal["NCHW", "NHWC"]
    mean: list[float]
    std: list[float]
    resize: Literal["squash", "crop", "pad"]
    classes: list[Any] | None = None
    augment: Augment | None = field(default=None)

    @classmethod
    def fit(cls, path: str | os.PathLike[str], inputs: ModelInputs, options: DataOptions, labelled: bool = True) -> ImagePreprocessing:
        """Return the preprocessing of images for a model, in one subfolder per class if they are `labelled`.

        Raises InvalidArgumentError for a model without an image as its only input."""
        layout, channels, size = _image_input(inputs)
        wanted = options.image_size
        if wanted is not None and size is not None and tuple(wanted) != size:
            raise InvalidArgumentError(f"expected images of {size[0]} x {size[1]} pixels (height x width), as the model takes them, got {wanted[0]} x "
                                       f"{wanted[1]}")
        kind = ImageFolder if labelled else ImageFiles
        found = kind(path, size or wanted, channels, layout, mean=_number_or_several(options.mean), std=_number_or_several(options.std),
                            resize=options.resize)  # type: ignore[arg-type]
        return cls(found.size, channels, layout, list(options.mean), list(options.std), options.resize, found.classes,  # type: ignore[arg-type]
                   options.augment)

    def _arguments(self, augment: bool) -> dict[str, Any]:
        return {"size": self.size, "channels": self.channels, "layout": self.layout, "mean": _number_or_several(self.mean),
                "std": _number_or_several(self.std), "resize": self.resize, "augment": self.augment if augment else None}

    def labelled(self, path: str | os.PathLike[str], names: Sequence[str], augment: bool = False) -> tuple[Any, Any]:
        images = ImageFolder(path, **self._arguments(augment))
        if images.classes != self.classes:
            raise InvalidArgumentError(f"expected a folder with the classes {self.classes}, got {images.classes} in {os.fspath(path)!r}")
        return images, None

    def unlabelled(self, path: str | os.PathLike[str], names: Sequence[str]) -> ImageFiles:
        return ImageFiles(path, **self._arguments(augment=False))

    def samples(self, path: str | os.PathLike[str]) -> tuple[str, list[str]]:
        files = ImageFiles(path, **self._arguments(augment=False))
        return "file", [os.path.relpath(file, path) if file != files.path else file.name for file in files.files]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> ImagePreprocessing:
        """Return the preprocessing that to_dict described."""
        augment = dict(values["augment"]) if values.get("augment") else None
        if augment is not None and isinstance(augment.get("random_crop"), list):
            augment["random_crop"] = tuple(augment["random_crop"])
        return cls(**{**values, "size": tuple(values["size"]), "augment": None if augment is None else Augment(**augment)})


def _number_or_several(values: Sequence[float]) -> float | list[float]:
    return values[0] if len(values) == 1 else list(values)


def _image_input(inputs: ModelInputs) -> tuple[Literal["NCHW", "NHWC"], int, tuple[int, int] | None]:
    """Return (layout, channels, (height, width) where the model fixes them) of the model's only input."""
    shape = inputs.types[inputs.forward[0]].shape if len(inputs.forward) == 1 and inputs.forward[0] in inputs.types else None
    if shape is None or len(shape) != 4:
        shown = {name: list(kind.shape) if kind.shape is not None else "?" for name, kind in inputs.types.items() if name in inputs.forward}
        raise InvalidArgumentError(f"expected a model with an image [batch, channels, height, width] as its only input for a folder of images, got {shown}")
    _, first, second, third = shape
    last = third in MODES and first not in MODES
    channels, height, width = (third, first, second) if last else (first, second, third)
    if isinstance(channels, int) and channels not in MODES:
        raise InvalidArgumentError(f"expected 1, 3 or 4 channels in the model's input {inputs.forward[0]!r}, got shape {list(shape)}")
    size = (height, width) if isinstance(height, int) and isinstance(width, int) else None
    return "NHWC" if last else "NCHW", channels if isinstance(channels, int) else 3, size
