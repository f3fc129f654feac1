"""The model that blocks are editing: base, empty_base and custom_op_library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import onnx
import onnx.defs

from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidStateError

NEWEST_IR, NEWEST_OPSET = 10, 21
"""What the old runtime (1.18, 1.19) reads: a new empty model is no newer."""


class ModelAccessor:
    """Holds the onnx.ModelProto that blocks add to."""

    def __init__(self, model: onnx.ModelProto, path: str | os.PathLike[str] | None = None) -> None:
        self.model = model
        self.path = path


_current: ContextVar[ModelAccessor | None] = ContextVar("ortrain.onnxblock.accessor", default=None)


def current_model() -> onnx.ModelProto:
    """The model being edited. Raises InvalidStateError outside `base` and `empty_base`."""
    accessor = _current.get()
    if accessor is None:
        raise InvalidStateError("expected a block to be called inside `with onnxblock.base(model)` or `onnxblock.empty_base()`")
    return accessor.model


@contextmanager
def base(model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> Iterator[ModelAccessor]:
    """The model on which blocks build, for the length of a `with`; it is edited in place.

    Raises InvalidArgumentError when model is None, InvalidStateError inside another base."""
    if model is None:
        raise InvalidArgumentError("Base onnx model cannot be None. Expected an onnx.ModelProto.")
    if _current.get() is not None:
        raise InvalidStateError("Base onnx model already exists. Cannot create multiple ModelAccessors.")
    token = _current.set(ModelAccessor(model, model_path))
    try:
        yield _current.get()  # type: ignore[misc]
    finally:
        _current.reset(token)


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """A new empty model on which blocks build, for the length of a `with`. Raises InvalidStateError inside another base."""
    model = onnx.ModelProto(ir_version=min(onnx.IR_VERSION, NEWEST_IR), producer_name="orttraining")
    model.graph.name = "graph"
    model.opset_import.add(domain="com.microsoft", version=1)
    model.opset_import.add(domain="", version=opset_version or min(onnx.defs.onnx_opset_version(), NEWEST_OPSET))
    with base(model) as accessor:
        yield accessor


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[None]:
    """Libraries of onnxruntime operators cannot be loaded: raises InvalidArgumentError, or ArtifactNotFoundError when there is no file."""
    refuse_custom_op_library(custom_op_library_path)
    yield


def refuse_custom_op_library(path: str | os.PathLike[str]) -> None:
    """Raises ArtifactNotFoundError when the library is not there, else InvalidArgumentError."""
    if not Path(path).exists():
        raise ArtifactNotFoundError(f"Custom op library path {path} does not exist.")
    raise InvalidArgumentError(f"expected operators that ortrain has, got {str(path)!r}: libraries made for onnxruntime cannot be loaded")
