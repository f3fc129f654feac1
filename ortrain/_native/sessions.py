"""What the native library asks of the engine besides steps: sessions with the options of a program, properties, interfaces of models."""

from __future__ import annotations

import signal  # noqa: F401  it replaces the handler of SIGINT, which the library puts back after its start and could not put back after a later import
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortrain._facade_runtime import sessions
from ortrain.dtypes import NAMES, NUMBERS, name_of
from ortrain.errors import (
    ArtifactNotFoundError,
    InputNameError,
    InvalidArgumentError,
    InvalidModelError,
    InvalidStateError,
    OutputNotFoundError,
)
from ortrain.formats.onnx_files import folder_of, read_message
from ortrain.formats.onnx_messages import TensorProto
from ortrain.formats.onnx_tensors import external_data, external_range, uses_external_data
from ortrain.ir import Dim, Model, TensorType
from ortrain.loading.loader import load_model
from ortrain.ops.custom import load_operators
from ortrain.passes.specialization import specialize
from ortrain.runtime.inference_session import InferenceSession
from ortrain.runtime.options import RunOptions, SessionOptions
from ortrain.runtime.profiling import Profile, Profiling
from ortrain.runtime.state import TrainingState
from ortrain.runtime.values import OrtValue
from ortrain.training.session import TrainingSession

register_operators = load_operators
moment_buffers = sessions.moment_buffers
register_linear_schedule = sessions.register_linear_lr_scheduler
set_seed = sessions.set_seed


@dataclass
class Settings:
    """The options that a program has set for a session."""

    threads: int = 0
    profiles: bool = False
    entries: dict[str, str] = field(default_factory=dict)
    dimensions: list[tuple[str, int, bool]] = field(default_factory=list)
    """(symbol or denotation, the size that replaces it, whether it is a denotation)."""
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    files: dict[str, memoryview] = field(default_factory=dict)
    """Files of external data in the program's memory: location in the model -> content."""

    def options(self) -> SessionOptions:
        """Return the engine's options. Raises InvalidArgumentError for an entry that is not accepted."""
        made = SessionOptions(intra_op_num_threads=self.threads)
        for key, value in self.entries.items():
            made.add_session_config_entry(key, value)
        return made


class ProgramRunOptions(RunOptions):
    """Run options whose terminate flag is a byte of the program's memory, uint8 [1]."""

    def __init__(self, flag: np.ndarray) -> None:
        super().__init__()
        self._terminate = flag


# ---- training


def load_state(source: str | bytes) -> TrainingState:
    """Load a state from a path or from bytes."""
    return TrainingState.from_bytes(source) if isinstance(source, bytes) else TrainingState.load(source)


def create_training_session(settings: Settings, state: TrainingState, training_model: str | bytes, eval_model: str | bytes | None,
                            optimizer_model: str | bytes | None) -> TrainingSession:
    """Create a training session; models are paths or bytes."""
    return sessions.create_session(state, training_model, eval_model, optimizer_model, settings.options())


def copy_parameters(session: TrainingSession, buffer: np.ndarray, trainable_only: bool) -> None:
    """Copy the parameters into the program's buffer."""
    sessions.copy_parameters_to(session, OrtValue(buffer), trainable_only)


def set_property(state: TrainingState, name: str, value: int | float | str) -> None:
    """Add or replace a property."""
    sessions.set_property(state, name, value)


def parameter_type(state: TrainingState, name: str) -> TensorType:
    """Return the type of a parameter."""
    return TensorType.of(state.array(name))


def export(session: TrainingSession, path: str, names: Sequence[str]) -> None:
    """Write a model for inference. Raises InvalidArgumentError when no output is named."""
    if not names:
        raise InvalidArgumentError("expected at least one output name, got none")
    session.export(path, list(names))


# ---- inference


def overridable_initializers(model: Any) -> list[str]:
    """Return the initializers of a ModelProto that are also inputs, which a run may replace."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name in weights] if model.ir_version >= 4 else []


class Inference:
    """A model ready to run, with what the C interface tells about it."""

    def __init__(self, settings: Settings, source: str | bytes) -> None:
        proto = _message(source)
        self._model = load_model(_with_external_data(proto, source, settings) if settings.initializers or settings.files else source)
        self.producer, self.graph_name, self.domain = proto.producer_name, proto.graph.name, proto.domain
        self.description, self.graph_description, self.version = proto.doc_string, proto.graph.doc_string, proto.model_version
        self.metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self.initializers = [name for name in overridable_initializers(proto) if name in self._model.graph.initializers]
        self.types = dict(self._model.graph.types) | {name: TensorType.of(self._model.graph.initializers[name]) for name in self.initializers}
        _replace_initializers(self._model, settings.initializers)
        _fix_dimensions(self._model, proto, settings.dimensions)
        self.inputs, self.outputs = list(self._model.graph.inputs), list(self._model.graph.outputs)
        self.types |= {name: self._model.graph.types[name] for name in self.inputs}
        self._options = settings.options()
        self._session = InferenceSession(self._model, self._options)
        self._overridden: dict[frozenset[str], InferenceSession] = {}
        self._profiling: Profiling | None = None
        if settings.profiles:
            self._profiling = Profiling(self._session._handle)
            self._profile: Profile = self._profiling.__enter__()

    def run(self, input_names: Sequence[str], inputs: Sequence[Any], output_names: Sequence[str], out: Sequence[Any] | None,
            run_options: RunOptions | None) -> list[Any]:
        """Return the named outputs for inputs by name. Raises the errors of InferenceSession.run, InvalidArgumentError for a name given twice,
        OutputNotFoundError for an output that the model does not have."""
        feed = dict(zip(input_names, inputs, strict=True))
        if len(feed) != len(input_names):
            raise InvalidArgumentError(f"expected every input once, got {list(input_names)}")
        for name in output_names:
            if name not in self.outputs:
                raise OutputNotFoundError(f"Invalid output name: expected one of {self.outputs}, got {name!r}")
        if len(set(output_names)) != len(output_names):
            raise InvalidArgumentError(f"expected every output once, got {list(output_names)}")
        return self._session_for(feed).run(output_names, feed, run_options, out)

    def _session_for(self, feed: Mapping[str, Any]) -> InferenceSession:
        """Return the session whose inputs include the initializers that a run replaces."""
        replaced = frozenset(feed).intersection(self.initializers)
        if not replaced:
            return self._session
        if replaced not in self._overridden:
            model = self._model.copy()
            for name in sorted(replaced):
                del model.graph.initializers[name]
                model.graph.inputs.append(name)
                model.graph.types[name] = self.types[name]
            self._overridden[replaced] = InferenceSession(model, self._options)
        return self._overridden[replaced]

    def end_profiling(self, path: str) -> None:
        """Write the profile. Raises InvalidStateError without one."""
        if self._profiling is None:
            raise InvalidStateError("expected a session that is being profiled, this one is not")
        self._profiling.__exit__()
        self._profiling = None
        self._profile.save(path)

    def close(self) -> None:
        """Release threads and memory."""
        for session in (self._session, *self._overridden.values()):
            session._handle.close()


def _message(source: str | bytes) -> Any:
    """Return the ModelProto of a model, without its external data."""
    try:
        return read_message(source)
    except ArtifactNotFoundError as error:
        raise ArtifactNotFoundError(f"Load model from {source!r} failed: File doesn't exist ({error})") from error


def _with_external_data(proto: Any, source: str | bytes, settings: Settings) -> Any:
    """Return a model whose external data are those that the program has given; others are read from files beside the model.

    Raises InvalidModelError when a file in memory is too short, InvalidArgumentError when a given initializer has another shape or type."""
    for tensor in filter(uses_external_data, proto.graph.initializer):
        if tensor.name in settings.initializers:
            tensor.raw_data = _fitting(tensor, settings.initializers[tensor.name]).tobytes()
        elif (location := external_range(tensor)[0]) in settings.files:
            tensor.raw_data = _part_of(settings.files[location], tensor)
        elif isinstance(source, str):
            tensor.raw_data = external_data(tensor, folder_of(source))
        else:
            continue                    # the loader refuses it
        tensor.external_data, tensor.data_location = (), TensorProto.DataLocation.DEFAULT
    return proto


def _part_of(file: memoryview, tensor: TensorProto) -> memoryview:
    """Return the data of a tensor in a file that the program has in memory."""
    location, offset, length = external_range(tensor)
    stop = len(file) if length is None else offset + length
    if not offset <= stop <= len(file):
        raise InvalidModelError(f"expected bytes {offset} to {stop} of {location!r} for tensor {tensor.name!r}, got {len(file)} bytes")
    return memoryview(bytes(file[offset:stop]))


def _fitting(tensor: Any, value: np.ndarray) -> np.ndarray:
    if (NUMBERS[name_of(value.dtype)], list(value.shape)) != (tensor.data_type, list(tensor.dims)):
        raise InvalidArgumentError(f"expected {NAMES[tensor.data_type]}{list(tensor.dims)} for initializer {tensor.name!r}, "
                                   f"got {value.dtype}{list(value.shape)}")
    return value


def _replace_initializers(model: Model, values: Mapping[str, np.ndarray]) -> None:
    for name, value in values.items():
        current = model.graph.initializers.get(name)
        if current is None:
            raise InputNameError(f"expected the name of an initializer, got {name!r}")
        if current.shape != value.shape or current.dtype != value.dtype:
            raise InvalidArgumentError(f"expected {current.dtype}{list(current.shape)} for initializer {name!r}, got {value.dtype}{list(value.shape)}")
        model.graph.initializers[name] = value


def _fix_dimensions(model: Model, proto: Any, dimensions: Sequence[tuple[str, int, bool]]) -> None:
    """Give symbols in the shapes of inputs their sizes; names that the model does not have are ignored, as in onnxruntime."""
    named = {name: size for name, size, by_denotation in dimensions if not by_denotation}
    denoted = {name: size for name, size, by_denotation in dimensions if by_denotation}
    if not dimensions:
        return
    for value in proto.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.denotation in denoted and axis.dim_param:
                named[axis.dim_param] = denoted[axis.denotation]
    shapes: dict[str, list[Dim]] = {}
    for name in model.graph.inputs:
        shape = model.graph.types[name].shape
        if shape is not None and set(shape).intersection(named):
            shapes[name] = [named.get(size, size) if isinstance(size, str) else size for size in shape]
    if shapes:
        specialize(model, shapes, {})
