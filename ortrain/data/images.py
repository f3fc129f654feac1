"""Folders of images, one subfolder per class, read with Pillow when their batch is needed."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ortrain.data.augmentation import Augment
from ortrain.data.sources import Key, RandomAccess
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, MissingPackageError

__all__ = ["Augment", "ImageFolder"]

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's mode for a number of channels."""
WIDE_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
"""Modes with more than 8 bits per channel, which Pillow would clip."""
HIDDEN = frozenset({"thumbs.db", "desktop.ini"})
"""Files that file managers leave behind, in lower case; names that begin with a dot are passed over as well."""

Values = float | Sequence[float]


def import_pillow() -> Any:
    """Return the module PIL.Image. Raises MissingPackageError where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("expected Pillow to read images: pip install 'ortrain[images]'") from error
    return Image


class ImageFolder:
    """The images below a folder, `path/CLASS/**/IMAGE`, with the numbers of their classes as labels.

    size: (height, width) of what the model gets; None for the size of the first image, which all others must then have.
    channels: 1 for gray, 3 for RGB, 4 for RGBA; images are converted, and turned upright where their EXIF data say so.
    layout: "NCHW" for [samples, channels, height, width], "NHWC" for channels last.
    scale, mean, std: a pixel p of 0 to 255 becomes (p * scale - mean) / std; mean and std are numbers, or one for each channel.
    resize: "squash" changes the proportions, "crop" cuts off what exceeds the proportions at the center, "pad" adds zeros around the image.
    augment: random changes in training; `without_augmentation` returns the same images without them.

    Images are float32, labels int64. Raises ArtifactNotFoundError when there is no folder, InvalidArgumentError for a folder without classes, for files that
    are no images, which the error names, and for settings out of range; MissingPackageError where Pillow is not installed."""

    def __init__(self, path: str | os.PathLike[str], size: tuple[int, int] | None = None, channels: int = 3, layout: Literal["NCHW", "NHWC"] = "NCHW",
                 mean: Values = 0.0, std: Values = 1.0, scale: float = 1 / 255, resize: Literal["squash", "crop", "pad"] = "squash",
                 augment: Augment | None = None) -> None:
        if channels not in MODES or layout not in ("NCHW", "NHWC") or resize not in ("squash", "crop", "pad"):
            raise InvalidArgumentError(f"expected channels 1, 3 or 4, layout NCHW or NHWC, and resize squash, crop or pad, got {channels}, {layout!r} and "
                                       f"{resize!r}")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise InvalidArgumentError(f"expected size as (height, width) >= 1, got {size}")
        self.path, self.channels, self.layout, self.scale, self.resize, self.augment = Path(path), channels, layout, float(scale), resize, augment
        self._mean, self._std = _per_channel(mean, channels, "mean"), _per_channel(std, channels, "std")
        if not (self._std > 0).all():
            raise InvalidArgumentError(f"expected std above 0, got {std}")
        self._pillow = import_pillow()
        self.classes, self.files, self.labels = self._find(frozenset(self._pillow.registered_extensions()))
        self._exact = size is None
        self.size = self._size_of(0) if size is None else (int(size[0]), int(size[1]))
        """(height, width) of the images that `read` returns."""

    classes: list[str]
    """The names of the classes, which are those of the folders, sorted; a label is an index in this list."""
    files: list[Path]
    """The files of all samples."""
    labels: np.ndarray
    """The numbers of the samples' classes, int64 [samples]."""

    def _find(self, suffixes: frozenset[str]) -> tuple[list[str], list[Path], np.ndarray]:
        return _found(self.path, suffixes)

    def __len__(self) -> int:
        return len(self.files)

    def without_augmentation(self) -> ImageFolder:
        """Return the same images without random changes, for evaluation."""
        plain = copy.copy(self)
        plain.augment = None
        return plain

    def as_source(self, names: Sequence[str]) -> ImageSource:
        """Return the source of the inputs `names`: the image and, if there are two, the label."""
        return ImageSource(self, names)

    def read(self, sample: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
        """Return the image of a sample, float32 in the folder's layout without the sample axis; random changes depend on (seed, epoch, sample).

        Raises InvalidArgumentError, with the file's name, for a file that cannot be read."""
        random = None if self.augment is None else np.random.default_rng((seed, epoch, sample))
        pixels = self._pixels(sample, random)
        if self.augment is not None and random is not None:
            pixels = self.augment.pixels(pixels, random)
        values: np.ndarray = (pixels * np.float32(self.scale) - self._mean) / self._std
        return values.transpose(2, 0, 1) if self.layout == "NCHW" else values

    def _open(self, sample: int) -> Any:
        from PIL import ImageOps

        path = self.files[sample]
        try:
            with self._pillow.open(path) as file:
                if file.mode in WIDE_MODES:
                    raise InvalidArgumentError(f"expected an image with 8 bits per channel, got mode {file.mode!r}: {str(path)!r}")
                return ImageOps.exif_transpose(file).convert(MODES[self.channels])
        except InvalidArgumentError:
            raise
        except (OSError, SyntaxError, ValueError, EOFError, self._pillow.DecompressionBombError) as error:
            raise InvalidArgumentError(f"expected an image, got a file that cannot be read: {str(path)!r} ({error})") from error

    def _size_of(self, sample: int) -> tuple[int, int]:
        width, height = self._open(sample).size
        return height, width

    def _pixels(self, sample: int, random: np.random.Generator | None) -> np.ndarray:
        """The resized image, float32 [height, width, channels]."""
        image, (height, width) = self._open(sample), self.size
        if self._exact and image.size != (width, height):
            raise InvalidArgumentError(f"expected all images of one size, got {width} x {height} and, in {str(self.files[sample])!r}, {image.size[0]} x "
                                       f"{image.size[1]}: give ImageFolder a size")
        if self.augment is not None and random is not None:
            image = self.augment.area(image, random)
        resized = self._resized(image, width, height)
        return np.asarray(resized, np.float32).reshape(height, width, self.channels)

    def _resized(self, image: Any, width: int, height: int) -> Any:
        from PIL import ImageOps

        bilinear = self._pillow.Resampling.BILINEAR
        if image.size == (width, height):
            return image
        if self.resize == "crop":
            return ImageOps.fit(image, (width, height), bilinear)
        if self.resize == "pad":
            return ImageOps.pad(image, (width, height), bilinear)
        return image.resize((width, height), bilinear)

    def __repr__(self) -> str:
        return f"ImageFolder({str(self.path)!r}: {len(self)} images of {len(self.classes)} classes, {self.size[0]} x {self.size[1]} x {self.channels})"


class ImageFiles(ImageFolder):
    """Images without classes, for predictions: one file, or all images at any depth of a folder, in the order of their paths.

    The parameters and errors are those of ImageFolder. `classes` is empty and all labels are 0."""

    def _find(self, suffixes: frozenset[str]) -> tuple[list[str], list[Path], np.ndarray]:
        path = self.path
        found = [path] if path.is_file() else sorted(entry for entry in path.rglob("*") if entry.is_file() and not _is_hidden(entry))
        if not path.exists():
            raise ArtifactNotFoundError(f"expected an image or a folder of images, found nothing at {str(path)!r}")
        files = [entry for entry in found if entry.suffix.lower() in suffixes]
        if not files:
            raise InvalidArgumentError(f"expected an image or a folder of images, got no image in {str(path)!r}")
        return [], files, np.zeros(len(files), np.int64)


class ImageSource(RandomAccess):
    """The images of an ImageFolder and their labels."""

    def __init__(self, folder: ImageFolder, names: Sequence[str]) -> None:
        if len(names) not in (1, 2):
            raise InvalidArgumentError(f"expected one input for images and one for labels, got {list(names)}")
        self.names, self.samples, self._folder = list(names), len(folder), folder

    def read(self, rows: np.ndarray | slice, key: Key) -> list[np.ndarray]:
        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        images = np.stack([self._folder.read(number, *key) for number in numbers])
        return [images, self._folder.labels[rows]][: len(self.names)]

    def targets(self) -> np.ndarray:
        return self._folder.labels

    def plain(self) -> ImageSource:
        return ImageSource(self._folder.without_augmentation(), self.names)

    def describe(self) -> str:
        return repr(self._folder)


def _per_channel(values: Values, channels: int, name: str) -> np.ndarray:
    array = np.asarray(values, np.float32)
    if array.shape not in ((), (1,), (channels,)) or not np.isfinite(array).all():
        raise InvalidArgumentError(f"expected {name} as a number or one for each of {channels} channels, got {values}")
    return array


def _found(path: Path, suffixes: frozenset[str]) -> tuple[list[str], list[Path], np.ndarray]:
    """The classes, files and labels of a folder."""
    if not path.is_dir():
        raise ArtifactNotFoundError(f"expected a folder with one subfolder of images per class, found none at {str(path)!r}")
    classes = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    stray = sorted(entry.name for entry in path.iterdir() if entry.is_file() and not _is_hidden(entry))
    if not classes or stray:
        raise InvalidArgumentError(f"expected a folder with one subfolder of images per class in {str(path)!r}, got "
                                   + (f"files beside the subfolders, such as {stray[0]!r}" if stray else "no subfolders"))
    files: list[Path] = []
    counts = []
    for name in classes:
        found = sorted(entry for entry in (path / name).rglob("*") if entry.is_file() and not _is_hidden(entry))
        for entry in found:
            if entry.suffix.lower() not in suffixes:
                raise InvalidArgumentError(f"expected images only in the folders of classes, got {str(entry)!r}")
        if not found:
            raise InvalidArgumentError(f"expected at least one image of every class, got none in {str(path / name)!r}")
        files += found
        counts.append(len(found))
    return classes, files, np.repeat(np.arange(len(classes), dtype=np.int64), counts)


def _is_hidden(entry: Path) -> bool:
    return entry.name.startswith(".") or entry.name.lower() in HIDDEN
