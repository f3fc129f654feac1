"""The description of the adapters of a model, which its metadata hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ortrain.errors import InvalidModelError
from ortrain.ir import Model
from ortrain.loading.loader import ModelSource, as_model
from ortrain.passes.weight_layers import Layer, find_layers

METADATA = "ortrain.lora"
"""The metadata property that lists a model's adapters, as JSON."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of one layer."""

    name: str
    """The name of the adapter that this layer's part belongs to."""
    module: str
    """The layer, by the path of its module in PyTorch as far as the model tells it."""
    kind: str
    """The kind of the layer, of ortrain.passes.weight_layers."""
    weight: str
    """The layer's weight; for a quantized layer the packed or quantized one."""
    quantized: bool
    rank: int
    alpha: float

    @property
    def a(self) -> str:
        """The name of A, [inputs, rank], or [rank, channels, …kernel] for a convolution."""
        return f"{self.module}.lora_A.{self.name}.weight"

    @property
    def b(self) -> str:
        """The name of B, [rank, outputs], or [outputs, rank, …1] for a convolution."""
        return f"{self.module}.lora_B.{self.name}.weight"

    @property
    def scale(self) -> float:
        """The factor of the adapter's output."""
        return self.alpha / self.rank

    @property
    def prefix(self) -> str:
        """What the names of the adapter's nodes begin with."""
        return f"{self.module}.lora.{self.name}."


def adapters(model: ModelSource) -> list[Adapter]:
    """Return the adapters of a model, one per layer, in the order in which they were added. Raises InvalidModelError when the metadata are damaged."""
    return read_adapters(as_model(model))


def read_adapters(model: Model) -> list[Adapter]:
    """Return the adapters that a loaded model's metadata list."""
    text = model.metadata.get(METADATA)
    if not text:
        return []
    try:
        return [Adapter(**entry) for entry in json.loads(text)]
    except (TypeError, ValueError) as error:
        raise InvalidModelError(f"expected the description of adapters in the metadata property {METADATA!r}, got one that cannot be read: {error}") from error


def adaptable_layers(model: Model) -> list[Layer]:
    """Return the layers of a model without those that adapters have added."""
    return find_layers(model, {weight for adapter in read_adapters(model) for weight in (adapter.a, adapter.b)})


def write_adapters(model: Model, found: Sequence[Adapter]) -> None:
    """Store the description of adapters in a model's metadata."""
    if found:
        model.metadata[METADATA] = json.dumps([asdict(adapter) for adapter in found])
    else:
        model.metadata.pop(METADATA, None)
