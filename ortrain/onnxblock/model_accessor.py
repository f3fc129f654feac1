"""The model that blocks are editing: base, empty_base and custom_op_library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.ops.custom import load_operators
from ortrain.packages import onnx

NEWEST_IR, NEWEST_OPSET = 10, 21
"""The newest versions that onnxruntime-training 1.18 and 1.19 read; a new empty model uses none newer."""


class ModelAccessor:
    """Holds the onnx.ModelProto that blocks add to."""

    def __init__(self, model: onnx.ModelProto, path: str | os.PathLike[str] | None = None) -> None:
        self.model = model
        self.path = path


_library: ContextVar[str | None] = ContextVar("ortrain.onnxblock.custom_op_library", default=None)
_current: ContextVar[ModelAccessor | None] = ContextVar("ortrain.onnxblock.accessor", default=None)


def current_model() -> onnx.ModelProto:
    """Return the model being edited. Raises InvalidStateError outside `base` and `empty_base`."""
    accessor = _current.get()
    if accessor is None:
        raise InvalidStateError("expected a block to be called inside `with onnxblock.base(model)` or `onnxblock.empty_base()`")
    return accessor.model


@contextmanager
def base(model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> Iterator[ModelAccessor]:
    """Make a model the one that blocks edit, in place, within a `with`.

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
    """Make a new empty model the one that blocks edit, within a `with`. Raises InvalidStateError inside another base."""
    model = onnx.ModelProto(ir_version=min(onnx.IR_VERSION, NEWEST_IR), producer_name="orttraining")
    model.graph.name = "graph"
    model.opset_import.add(domain="com.microsoft", version=1)
    model.opset_import.add(domain="", version=opset_version or min(onnx.defs.onnx_opset_version(), NEWEST_OPSET))
    with base(model) as accessor:
        yield accessor


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[None]:
    """Load custom operators within a `with`: a Python file that calls ortrain.register_operator (they stay registered).

    Raises ArtifactNotFoundError when the file does not exist, InvalidArgumentError for a shared library, InvalidStateError inside another
    custom_op_library."""
    if _library.get() is not None:
        raise InvalidStateError("Custom op library already loaded. Cannot load multiple custom op libraries.")
    load_operators(custom_op_library_path)
    token = _library.set(str(custom_op_library_path))
    try:
        yield
    finally:
        _library.reset(token)
