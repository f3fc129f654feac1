"""Handwritten digits: 1,797 images of 8 x 8 pixels from scikit-learn, or the 70,000 of MNIST from its four IDX files."""

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Digits:
    """Images (float32 [n, 1, size, size] in [0, 1]) and labels (int64 [n]) for training and testing."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def small_digits(seed: int) -> Digits:
    """Return scikit-learn's digits, with a fifth of every class held out for testing."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    train_x, test_x, train_y, test_y = train_test_split(images, labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=seed)
    return Digits(train_x, train_y, test_x, test_y)


def mnist(folder: str) -> Digits:
    """Return MNIST as its authors split it, from files like train-images-idx3-ubyte, optionally compressed with gzip."""
    parts = [(_read_idx(folder, f"{part}-images-idx3-ubyte"), _read_idx(folder, f"{part}-labels-idx1-ubyte")) for part in ("train", "t10k")]
    (train_x, train_y), (test_x, test_y) = [((x[:, None] / np.float32(255)).astype(np.float32), y.astype(np.int64)) for x, y in parts]
    return Digits(train_x, train_y, test_x, test_y)


def _read_idx(folder: str, name: str) -> np.ndarray:
    """Read an IDX file: two zero bytes, the type (8: bytes), the rank, the dimensions (big-endian), the data."""
    for candidate in (name, name.replace("-idx", ".idx")):
        for suffix, opener in (("", open), (".gz", gzip.open)):
            path = Path(folder) / f"{candidate}{suffix}"
            if path.exists():
                with opener(path, "rb") as file:
                    data = file.read()
                if data[:3] != b"\0\0\x08":
                    raise SystemExit(f"expected an IDX file of bytes, got {path}")
                sizes = np.frombuffer(data, ">i4", data[3], 4)
                return np.frombuffer(data, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)
    raise SystemExit(f"expected {name} or {name}.gz in {folder}")
