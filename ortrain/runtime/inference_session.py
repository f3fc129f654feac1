"""InferenceSession, which runs a forward model (as onnxruntime.InferenceSession)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain._core.session_lock import Lock
from ortrain.errors import InputCountError, InputNameError
from ortrain.ir import Dim, Model
from ortrain.loading.loader import ModelSource, as_model
from ortrain.passes.fused_training import fused_forward_model
from ortrain.passes.half_precision import convert_to_float32, restore_output_types
from ortrain.runtime.options import RunOptions, SessionOptions, check_patterns, check_precision
from ortrain.runtime.runner import Runner
from ortrain.runtime.seed import current_seed


@dataclass(frozen=True)
class NodeArg:
    """Name, type such as "tensor(float)", and shape of an input or output; a dynamic dimension is a symbol or None."""

    name: str
    type: str
    shape: list[Dim | None]


class InferenceSession:
    """A forward model ready to run. Raises ArtifactNotFoundError or InvalidModelError."""

    def __init__(self, path_or_bytes: ModelSource, sess_options: SessionOptions | None = None, providers: Sequence[str] | None = None,
                 **_: Any) -> None:
        self._model: Model = as_model(path_or_bytes)
        convert_to_float32(self._model)
        restore_output_types(self._model, self._model.graph.outputs)
        self._options = sess_options or SessionOptions()
        self._handle = EngineHandle(self._options.threads(), current_seed())
        self._handle.winograd = self._options.enable_winograd
        self._handle.amx = self._options.enable_amx
        self._handle.precision = check_precision(self._options.precision)
        self._handle.float32_nodes = check_patterns(self._options.float32_nodes)
        self._handle.elementwise_fusion = self._options.enable_elementwise_fusion
        self._lock = Lock(self._handle)
        self._runners: dict[tuple[str, ...], Runner] = {}

    def _arguments(self, names: Sequence[str]) -> list[NodeArg]:
        found = []
        for name in names:
            kind = self._model.graph.types.get(name)
            dtype = {"float32": "float", "float64": "double"}.get(kind.dtype, kind.dtype) if kind else "float"
            found.append(NodeArg(name, f"tensor({dtype})", list(kind.shape) if kind and kind.shape is not None else []))
        return found

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs."""
        return self._arguments(self._model.graph.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs."""
        return self._arguments(self._model.graph.outputs)

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None,
            out: Sequence[Any] | None = None) -> list[np.ndarray]:
        """Return the named outputs (None: all) for inputs by name. Threads that share the session take turns.

        out: arrays or OrtValues that receive the outputs, None for an output that is to be allocated. Raises OutputShapeError when one does not fit. They hold
        anything after a TerminatedError or OperatorFailedError, or an index out of range that the model has computed.

        Raises the input errors of TrainingSession.train_step, InvalidStateError when called from a Python operator that the session is running."""
        names = tuple(output_names or self._model.graph.outputs)
        unknown = [name for name in input_feed if name not in self._model.graph.inputs]
        if unknown:
            raise InputNameError(f"expected inputs named {self._model.graph.inputs}, got {unknown}")
        missing = [name for name in self._model.graph.inputs if name not in input_feed]
        if missing:
            raise InputCountError(f"expected inputs {self._model.graph.inputs}, {missing} missing")
        with self._lock:
            if names not in self._runners:
                fused = fused_forward_model(self._model, names)
                self._runners[names] = Runner(fused, self._model.graph.inputs, names, {}, self._handle, "model", empty=True)
            return self._runners[names].run(tuple(input_feed[name] for name in self._model.graph.inputs), run_options=run_options, out=out)
