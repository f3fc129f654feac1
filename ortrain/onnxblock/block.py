"""Block: something that adds nodes to the base model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import onnx

from ortrain.errors import InvalidStateError
from ortrain.onnxblock.model_accessor import ModelAccessor, current


class Block(ABC):
    """Base of all blocks: `build` adds nodes to `self.base`, the model being edited, and returns the names of its outputs.

    temp_file_name is kept for scripts written for the old package; nothing is written."""

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        if Path(temp_file_name).is_absolute():
            raise InvalidStateError("Please pass in a relative path for the temp_file_name.")
        self.base: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Adds the block's nodes; returns one output name or several."""

    @property
    def accessor(self) -> ModelAccessor:
        """Names, types and nodes of the model being edited."""
        return current()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Builds the block on the base model."""
        self.base = current().model
        return self.build(*args, **kwargs)

    def infer_shapes_on_base(self) -> None:
        """Writes the types of intermediate values into the base model."""
        accessor = current()
        accessor.model.CopyFrom(onnx.shape_inference.infer_shapes(accessor.model))
