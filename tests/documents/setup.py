"""Setups: functions that write files into the current folder and return the names that the code of a page finds. A page names them in a comment:
<!-- setup: classifier photos -->"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortrain import TrainingSession
from tests.documents import models

Names = dict[str, Any]


def vectors(samples: int, inputs: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (float32 [samples, inputs], int64 [samples]): noisy copies of one random vector per class."""
    centers = np.random.default_rng(17).standard_normal((classes, inputs))
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, samples)
    return (centers[labels] + 0.8 * random.standard_normal((samples, inputs))).astype(np.float32), labels


def readme() -> Names:
    """model.onnx with the weights fc.weight and fc.bias, data.npz, its arrays, and batches: what README.md takes for granted."""
    models.perceptron("model.onnx", [4, 3], "image", "output", ["fc"])
    x, labels = vectors(40, 4, 3)
    np.savez("data.npz", image=x, labels=labels)
    batches = [(x[start:start + 8], labels[start:start + 8]) for start in range(0, 40, 8)]
    return {"batches": batches, "images": x, "labels": labels, "test_images": x, "test_labels": labels}


def classifier() -> Names:
    """model.onnx, an image classifier of 10 classes, with images, labels and those for testing."""
    models.convolutional("model.onnx", 1, 8, 10)
    x, labels = vectors(320, 64, 10)
    test_x, test_labels = vectors(96, 64, 10, seed=1)
    np.savez("data.npz", image=x.reshape(-1, 1, 8, 8), labels=labels)
    return {"images": x.reshape(-1, 1, 8, 8), "labels": labels, "test_images": test_x.reshape(-1, 1, 8, 8), "test_labels": test_labels}


def regressor() -> Names:
    """regressor.onnx: "numbers" [batch, 6] -> "price" [batch, 1]; numbers and prices."""
    models.perceptron("regressor.onnx", [6, 16, 1], "numbers", "price", ["hidden", "output"])
    random = np.random.default_rng(0)
    numbers = random.standard_normal((200, 6)).astype(np.float32)
    return {"numbers": numbers, "prices": (numbers @ random.standard_normal((6, 1))).astype(np.float32)}


def text() -> Names:
    """text_model.onnx, a small transformer of 4 classes; tokens and labels."""
    models.encoder("text_model.onnx")
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 160)
    return {"tokens": (random.integers(0, 12, (160, 10)) + 12 * labels[:, None]).astype(np.int64), "labels": labels}


def fixed() -> Names:
    """fixed_model.onnx, a classifier exported for one sample, with images and labels."""
    models.convolutional("fixed_model.onnx", 1, 8, 10, batch=1)
    x, labels = vectors(160, 64, 10)
    return {"images": x.reshape(-1, 1, 8, 8), "labels": labels}


def photos() -> Names:
    """photos/CLASS/NUMBER.png and photo_model.onnx, which takes them in 16 x 16."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number, name in enumerate(("cat", "dog")):
        folder = Path("photos") / name
        folder.mkdir(parents=True)
        for index in range(20):
            pixels = random.integers(0, 128, (20, 24, 3)) + 100 * np.eye(3, dtype=np.int64)[number]
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
    models.convolutional("photo_model.onnx", 3, 16, 2)
    return {}


def houses() -> Names:
    """houses.csv and new_houses.csv, with columns of numbers and text, and house_model.onnx with "numbers" [batch, 5] -> "scores" [batch, 2]."""
    random = np.random.default_rng(0)
    header = "area,rooms,city"
    rows = [(random.normal(100, 30), random.integers(1, 6), random.choice(["Bern", "Graz", "Lyon"])) for _ in range(120)]
    lines = [f"{area:.1f},{rooms},{city},{'yes' if area + 10 * rooms > 130 else 'no'}" for area, rooms, city in rows]
    Path("houses.csv").write_text("\n".join([f"{header},sold", *lines]) + "\n", encoding="utf-8")
    Path("new_houses.csv").write_text("\n".join([header, "120,4,Bern", "60,,Graz", "95,3,Oslo"]) + "\n", encoding="utf-8")
    models.perceptron("house_model.onnx", [5, 16, 2], "numbers", "scores", ["hidden", "output"])
    return {}


def profiling() -> Names:
    """An open session, batches, and train(session, batches)."""
    batches = readme()["batches"]
    session = TrainingSession.from_model("model.onnx", loss="cross-entropy", optimizer="adamw")

    def train(session: TrainingSession, batches: Sequence[Sequence[np.ndarray]]) -> None:
        for batch in batches:
            session.train_step(*batch)
            session.optimizer_step()
            session.lazy_reset_grad()

    return {"session": session, "batches": batches, "train": train}


SETUPS: dict[str, Callable[[], Names]] = {setup.__name__: setup for setup in (readme, classifier, regressor, text, fixed, photos, houses, profiling)}
DEFAULT = "readme"
"""The setup of a page that names none."""
