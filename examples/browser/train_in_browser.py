"""Train the digits model on images in memory: worker.js calls `train` in a browser, and any other Python can, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.trainer import LambdaCallback, Trainer

LEARNING_RATE, BATCH_SIZE, SEED = 2e-3, 32, 0
SHOWN = 30


def train(folder: str, epochs: int, report: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
    """Train the artifacts in a folder on its digits.npz, whose pixels are integers from 0 to 16, and write trained.onnx there.

    report: is called with the record of every epoch. Returns some held-out digits, as `pixels`, with their `label` and their `prediction`."""
    digits = np.load(Path(folder) / "digits.npz")
    training, held_out = ((digits[f"{part}_images"] / np.float32(16), digits[f"{part}_labels"].astype(np.int64)) for part in ("train", "test"))
    progress = LambdaCallback(on_epoch_end=lambda trainer, record: report(record.to_dict()))
    with Trainer.from_artifacts(folder, learning_rate=LEARNING_RATE, seed=SEED, overwrite=True) as trainer:
        trainer.fit(*training, epochs=epochs, batch_size=BATCH_SIZE, validation=held_out, callbacks=[progress])
        trainer.export(Path(folder) / "trained.onnx")
        predictions = np.asarray(trainer.predict(held_out[0][:SHOWN])).argmax(1)
    return [{"pixels": pixels.reshape(-1).tolist(), "label": int(label), "prediction": int(prediction)}
            for pixels, label, prediction in zip(digits["test_images"], digits["test_labels"], predictions, strict=False)]
