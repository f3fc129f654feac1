"""The training state in memory: parameters and gradients in flat segments, optimizer moments, properties and progress."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ortrain.dtypes import BFLOAT16, numpy_dtype
from ortrain.errors import (
    InvalidArgumentError,
    InvalidCheckpointError,
    InvalidStateError,
    ParameterNotFoundError,
    ParameterShapeError,
    ParameterTypeError,
    PropertyNotFoundError,
    PropertyTypeError,
)
from ortrain.formats.checkpoint import checkpoint_bytes, parse_checkpoint, read_checkpoint, write_checkpoint
from ortrain.formats.checkpoint_contents import Checkpoint, OptimizerGroup, moment_name
from ortrain.ir import TensorType
from ortrain.packages import require
from ortrain.runtime.segments import Segment, Sharding, Sizes, segments_of

GROUP = "group0"
FLOAT32 = np.dtype(np.float32)
DEFAULT_LEARNING_RATE = 0.001

PropertyValue = int | float | str


class Snapshot(NamedTuple):
    """What TrainingState.restore sets."""

    optimizer_step: int
    arrays: list[tuple[np.ndarray, np.ndarray]]
    """(memory of the state, copy of its contents)."""


class TrainingState:
    """Parameters, gradients, optimizer state and properties: what `CheckpointState` exposes and sessions train."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.nominal = checkpoint.nominal
        self._external = checkpoint.external
        self._load(checkpoint.trainable, checkpoint.frozen)
        self.properties: dict[str, PropertyValue] = dict(checkpoint.properties)
        self.groups: dict[str, OptimizerGroup] = dict(checkpoint.optimizer_groups)
        self.optimizer_step = 0
        self.initial_learning_rate = DEFAULT_LEARNING_RATE
        self.order: list[str] = [*self.trainable, *self.frozen]
        """The public order of parameters: that of the training model's inputs, once a session has bound the state."""
        self._gradients: dict[str, np.ndarray] = {}
        self._gradients_by: weakref.ref[Any] | None = None
        self._bound_by: weakref.ref[Any] | None = None
        """The last session."""
        self.keeps_gradients = True
        self.gradient_segments: list[Segment] = []
        self.moments: list[list[Segment]] = []
        """One list of segments per optimizer moment, empty for a moment that the optimizer's hyperparameters leave out."""
        self._moment_shapes: list[Callable[[Sizes], Sizes] | None] = []
        self.sharding: Sharding | None = None
        """Which part of the parameters this process updates, and has moments of, where several processes divide them; None for all of them."""
        self.masked: set[str] = set()
        """Trainable parameters that are currently frozen."""
        self.rounding_seed: int | None = None
        """The seed by which updates round parameters of bfloat16, which the first session sets that keeps them so."""

    def _load(self, trainable: Mapping[str, np.ndarray], frozen: Mapping[str, np.ndarray]) -> None:
        numbers = {name: array for name, array in frozen.items() if array.dtype != object}
        self.trainable_segments = segments_of(trainable)
        self.frozen_segments = segments_of(numbers)
        views = {name: view for segment in (*self.trainable_segments, *self.frozen_segments) for name, view in segment.views.items()}
        self.trainable = {name: views[name] for name in trainable}
        """Parameter -> its value as it is kept, a view: array() returns that of one of bfloat16 in float32."""
        self.frozen = {name: views.get(name, array) for name, array in frozen.items()}

    @property
    def gradients(self) -> dict[str, np.ndarray]:
        """Parameter name -> its gradient, a view; empty without a session. Reading this property makes the session's train steps compute and keep all
        gradients from then on."""
        if self._gradients_by is not None:
            session = self._gradients_by()
            if session is None:
                self.drop_gradients()
            else:
                session.keep_gradients()
        return self._gradients

    @property
    def updated_segments(self) -> Sequence[Segment]:
        """The trainable parameters that this process updates: all segments, or its shards of them."""
        return self.trainable_segments if self.sharding is None else self.sharding.shards(self.trainable_segments)

    @property
    def updated_gradient_segments(self) -> Sequence[Segment]:
        """The gradients of updated_segments."""
        return self.gradient_segments if self.sharding is None else self.sharding.shards(self.gradient_segments)

    def gradients_by(self, session: Any) -> dict[str, np.ndarray]:
        """Return the gradients for a session whose keep_gradients() is called from now on to materialize them; the session is referenced weakly."""
        self._gradients_by = self._bound_by = weakref.ref(session)
        return self._gradients

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainingState:
        """Load the state from a checkpoint file. Raises ArtifactNotFoundError or InvalidCheckpointError."""
        return cls(read_checkpoint(path))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> TrainingState:
        """Load the state from the bytes of a checkpoint file. Raises InvalidCheckpointError."""
        return cls(parse_checkpoint(bytes(data)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle or copy the state without its gradients: as the bytes of a checkpoint, and what those omit."""
        rest = {"order": self.order, "masked": self.masked, "optimizer_step": self.optimizer_step, "initial_learning_rate": self.initial_learning_rate,
                "rounding_seed": self.rounding_seed}
        return type(self).from_bytes, (self.to_bytes(include_optimizer_state=True),), rest

    def __copy__(self) -> TrainingState:
        return copy.deepcopy(self)

    def to_bytes(self, include_optimizer_state: bool = False) -> bytes:
        """Serialize the state as a checkpoint file. Raises InvalidArgumentError above 2 GB."""
        return checkpoint_bytes(self.to_checkpoint(include_optimizer_state))

    # ---- parameters

    def array(self, name: str) -> np.ndarray:
        """Return the value of a parameter: a view of the state's memory, or of a parameter that is kept in bfloat16 a float32 copy, which cannot be written.

        Raises ParameterNotFoundError, InvalidStateError for a nominal state."""
        found = self.trainable.get(name)
        if found is None:
            found = self.frozen.get(name)
        if found is None:
            raise ParameterNotFoundError(f"Parameter {name} not found.")
        if self.nominal:
            raise InvalidStateError("Cannot get parameter from a nominal state. Please load the parameter states first")
        return widened(found)

    def replace(self, name: str, value: np.ndarray) -> None:
        """Copy a new value into a parameter; one that is kept in bfloat16 takes float32, and rounds to the nearest number.

        Raises ParameterShapeError or ParameterTypeError when shape or dtype differ."""
        if self.nominal:
            raise InvalidStateError("Cannot copy parameter to a nominal state. Please load all the parameter states first")
        current = self.array(name)
        value = np.asarray(value)
        if value.shape != current.shape:
            raise ParameterShapeError(f"Parameter data shape mismatch. Expected: {list(current.shape)}, Got: {list(value.shape)} (parameter {name!r})")
        if value.dtype != current.dtype:
            raise ParameterTypeError(f"Parameter data type mismatch. Expected: {current.dtype}, Got: {value.dtype} (parameter {name!r})")
        self._any(name)[...] = value

    def check_float32(self, purpose: str) -> None:
        """Raise InvalidArgumentError where parameters are kept in bfloat16."""
        if any(map(is_bfloat16, self.trainable_segments)):
            raise InvalidArgumentError(f"expected parameters that are kept in float32 for {purpose}, got a session with parameter_dtype='bfloat16'")

    def names(self) -> list[str]:
        """Return all parameter names, sorted, as onnxruntime-training lists them."""
        return sorted((*self.trainable, *self.frozen))

    # ---- properties

    def property(self, name: str) -> PropertyValue:
        if name not in self.properties:
            raise PropertyNotFoundError(f"Property {name} not found.")
        return self.properties[name]

    def set_property(self, name: str, value: PropertyValue) -> None:
        """Add or replace a property. As in the file, integers beyond 64 bits become floats, and floats have single precision."""
        self.properties[name] = property_value(value)

    # ---- binding to a session

    def bind(self, order: list[str], trainable: list[str], types: Mapping[str, TensorType], parameter_dtype: str = FLOAT32.name) -> None:
        """Adopt the parameter order of a training model and allocate gradients for its trainable parameters.

        parameter_dtype: "float32", or "bfloat16" to keep trainable parameters of float32, and their moments, in half the memory.

        Raises InvalidCheckpointError when the model's parameters are not those of the checkpoint, InvalidStateError for a sharded state and where another open
        session keeps the parameters in the other dtype, MissingPackageError for bfloat16 without ml_dtypes."""
        self.check_whole("another session")
        missing = [name for name in order if name not in self.trainable and name not in self.frozen]
        if missing:
            raise InvalidCheckpointError(f"expected the checkpoint to hold the model's parameters, it lacks {missing[:5]}")
        wrong = [name for name in trainable if name not in self.trainable]
        extra = [name for name in self.trainable if name not in trainable]
        if wrong or extra:
            raise InvalidCheckpointError(f"expected model and checkpoint to train the same parameters; only in the model: {wrong[:5]}, "
                                         f"only in the checkpoint: {extra[:5]}")
        if self.nominal:
            dtypes_of = {name: array.dtype for name, array in (*self.trainable.items(), *self.frozen.items())}
            empty = {name: np.zeros(types[name].sizes if name in types else (), dtypes_of[name]) for name in dtypes_of}
            self._load({n: empty[n] for n in self.trainable}, {n: empty[n] for n in self.frozen})
        for name in order:
            array = widened(self._any(name))
            wanted, found = types[name], TensorType.of(array)
            if found.shape != wanted.shape:
                raise InvalidCheckpointError(f"expected parameter {name!r} with shape {list(wanted.sizes)}, the checkpoint has {list(array.shape)}")
            if found.dtype != wanted.dtype:
                raise InvalidCheckpointError(f"expected parameter {name!r} with dtype {wanted.dtype}, the checkpoint has {found.dtype}")
        self.order = list(order)
        self._keep_in(parameter_dtype)
        self.gradient_segments = [segment.like(dtype=FLOAT32 if is_bfloat16(segment) else None) for segment in self.trainable_segments]
        views = {name: view for segment in self.gradient_segments for name, view in segment.views.items()}
        self._gradients = {name: views[name] for name in self.trainable}
        self._gradients_by = None
        self.keeps_gradients = True

    def _keep_in(self, dtype: str) -> None:
        """Keep the trainable parameters of float32 and their moments in a dtype from now on. Errors as bind."""
        source = FLOAT32.name if dtype == BFLOAT16 else BFLOAT16
        if not any(segment.dtype.name == source for segment in self.trainable_segments):
            return
        if self._bound_by is not None and (session := self._bound_by()) is not None and session.is_open:
            raise InvalidStateError(f"expected a state whose other session is closed, to keep its parameters in {dtype}: the other one keeps them in {source}")
        if dtype == BFLOAT16:
            require("ml_dtypes", "artifacts", "parameters in bfloat16")
        if self.moments:
            self.groups[GROUP] = self._optimizer_group()
            self.moments = []
        self.trainable_segments = segments_of(self.trainable, {numpy_dtype(source): numpy_dtype(dtype)})
        views = {name: view for segment in self.trainable_segments for name, view in segment.views.items()}
        self.trainable = {name: views[name] for name in self.trainable}

    def forget_gradients_by(self, session: Any) -> None:
        """Discard the deferred gradients of a session that is being closed, unless another session has bound the state since."""
        if self._gradients_by is not None and self._gradients_by() is session:
            self.drop_gradients()

    def drop_gradients(self) -> None:
        """Free the gradients, for a session that consumes each gradient at once, or one that is closed."""
        self.gradient_segments, self._gradients, self._gradients_by, self.keeps_gradients = [], {}, None, False

    def bind_moments(self, shapes: Sequence[Callable[[Sizes], Sizes] | None], written: bool = True) -> None:
        """Allocate the moments of the parameters that this process updates, filled from the checkpoint's optimizer group if it has one. Moments of the same
        shapes are kept.

        shapes: for each moment, the function from the shape of a parameter to that of its moment; None for a moment that is left out.
        written: whether updates write to them. Their pages are then allocated at once, so that training steps allocate only the arena."""
        self._moment_shapes = list(shapes)
        moments = self.new_moments(self.updated_segments)
        if self.moments and [[s.shapes for s in segments] for segments in self.moments] == [[s.shapes for s in segments] for segments in moments]:
            return
        group = self.groups.get(GROUP)
        if group is not None:
            for k, segments in enumerate(moments):
                for segment in segments:
                    for name, view in segment.views.items():
                        self._fill_moment(group, name, moment_name(k), view)
            self.optimizer_step = group.step
            self.initial_learning_rate = group.initial_learning_rate
        elif written:
            for segment in chain.from_iterable(moments):
                segment.touch_pages()
        self.moments = moments

    def new_moments(self, segments: Sequence[Segment]) -> list[list[Segment]]:
        """Return zeroed moments of the tensors in segments of trainable parameters."""
        return [[] if shape_of is None else [segment.like(shape_of) for segment in segments] for shape_of in self._moment_shapes]

    @staticmethod
    def _fill_moment(group: OptimizerGroup, name: str, moment: str, view: np.ndarray) -> None:
        value = group.momentums.get(name, {}).get(moment)
        if value is None:
            raise InvalidCheckpointError(f"Parameter {name} not found in the source optimizer checkpoint states ({moment}).")
        dtype = FLOAT32 if is_bfloat16(view) else view.dtype
        if value.size != view.size or value.dtype != dtype:
            raise InvalidCheckpointError(f"expected {moment} of {name!r} with shape {list(view.shape)} and dtype {dtype}, "
                                         f"got {list(value.shape)} and {value.dtype}")
        view[...] = value.reshape(view.shape)

    # ---- shards

    def shard(self, sharding: Sharding) -> None:
        """Keep the moments of this process's shards of the trainable parameters alone. Shards of other bounds than before have no moments yet."""
        if self.sharding is not None:
            self.moments = self.moments if sharding.bounds == self.sharding.bounds else []
        elif self.moments:
            shards = sharding.shards(self.trainable_segments)
            whole, self.moments = self.moments, self.new_moments(shards)
            for segments, parts in zip(whole, self.moments, strict=True):
                for shard, segment, part in zip(shards, segments, parts, strict=False):
                    for name, view in part.views.items():
                        view[...] = shard.part_of(name, segment.views[name], view)
        self.groups.pop(GROUP, None)                        # of the checkpoint, whose moments are in those of the state
        self.sharding = sharding

    def check_whole(self, purpose: str) -> None:
        """Raise InvalidStateError where this process has the moments of shards alone."""
        if self.sharding is not None:
            raise InvalidStateError(f"expected all moments of the optimizer for {purpose}, got a session that keeps those of shard {self.sharding.rank} of "
                                    f"{self.sharding.size} alone")

    @contextmanager
    def with_moments(self, moments: list[list[Segment]]) -> Iterator[None]:
        """Have all moments, as new_moments(trainable_segments) allocates them, instead of those of shards in the block."""
        own = self.moments, self.sharding
        self.moments, self.sharding = moments, None
        try:
            yield
        finally:
            self.moments, self.sharding = own

    # ---- all of it

    def segments(self) -> list[Segment]:
        """The memory of all parameters and moments."""
        return [*self.parameter_segments(), *chain.from_iterable(self.moments)]

    def parameter_segments(self) -> list[Segment]:
        """The memory of all parameters."""
        return [*self.trainable_segments, *self.frozen_segments]

    def snapshot(self) -> Snapshot:
        """Return a copy of all parameters, moments and of the count of optimizer steps, for restore()."""
        return Snapshot(self.optimizer_step, [(segment.array, segment.array.copy()) for segment in self.segments()])

    def restore(self, snapshot: Snapshot) -> None:
        """Set parameters, moments and the count of optimizer steps to what snapshot() copied from this state."""
        for array, contents in snapshot.arrays:
            array[...] = contents
        self.optimizer_step = snapshot.optimizer_step

    # ---- flat buffers

    def flat_names(self, trainable_only: bool) -> list[str]:
        """Return the names of the float32 parameters in the order of the flat buffer; integer parameters are not part of it. Raises ParameterTypeError
        when there are float64 parameters, which the buffer would omit."""
        names = [name for name in self.order if not trainable_only or name in self.trainable]
        doubles = [name for name in names if self._any(name).dtype == np.float64]
        if doubles:
            raise ParameterTypeError(f"expected parameters of float32 for a flat buffer, got float64 for {doubles[0]!r}: read them by name")
        return [name for name in names if self._any(name).dtype == FLOAT32 or is_bfloat16(self._any(name))]

    def _any(self, name: str) -> np.ndarray:
        found = self.trainable.get(name)
        return self.frozen[name] if found is None else found

    def flat_size(self, trainable_only: bool) -> int:
        return sum(self._any(name).size for name in self.flat_names(trainable_only))

    def to_buffer(self, trainable_only: bool) -> np.ndarray:
        """Return a dense copy of the parameters, float32 [n], in the order of the training model."""
        if self.nominal:
            raise InvalidStateError("expected parameter values, got a nominal state. Please load the model parameters first.")
        parts = [widened(self._any(name)).ravel() for name in self.flat_names(trainable_only)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def from_buffer(self, buffer: np.ndarray, trainable_only: bool | None = None) -> None:
        """Copy a dense buffer, float32 [n], into the parameters; one of all parameters also completes a nominal state.

        trainable_only: whether the buffer omits the frozen parameters; None: its size says so."""
        if trainable_only is None:
            trainable_only = self._omits_frozen(buffer)
        if self.nominal and trainable_only:
            raise InvalidStateError("For nominal checkpoint state, all parameters need to be loaded into the model (trainable_only = false).")
        if buffer.dtype != np.float32:
            raise ParameterTypeError(f"Tensor type mismatch. Expected: float32, Got: {buffer.dtype}")
        size = self.flat_size(trainable_only)
        if buffer.size != size:
            raise ParameterShapeError(f"Parameters buffer size incorrect. Expected:{size}, Actual:{buffer.size}")
        start = 0
        flat = buffer.ravel()
        for name in self.flat_names(trainable_only):
            array = self._any(name)
            array[...] = flat[start : start + array.size].reshape(array.shape)
            start += array.size
        self.nominal = False

    def _omits_frozen(self, buffer: np.ndarray) -> bool:
        every, trainable = self.flat_size(False), self.flat_size(True)
        if buffer.size not in (every, trainable):
            raise ParameterShapeError(f"Parameters buffer size incorrect. Expected:{trainable} (trainable) or {every} (all), Actual:{buffer.size}")
        return buffer.size != every

    # ---- files

    def to_checkpoint(self, include_optimizer_state: bool = False) -> Checkpoint:
        """Return the state as a checkpoint, everything sorted by name, as onnxruntime-training writes it; what is kept in bfloat16 is float32 there, exactly.

        Raises InvalidStateError for the optimizer state of a sharded state."""
        groups: dict[str, OptimizerGroup] = {}
        if include_optimizer_state:
            self.check_whole("a checkpoint with the optimizer's state")
            groups = {name: group for name, group in self.groups.items() if name != GROUP or not self.moments}
            if self.moments:
                groups[GROUP] = self._optimizer_group()
        return Checkpoint(
            trainable={name: widened(self.trainable[name]) for name in sorted(self.trainable)},
            frozen={name: self.frozen[name] for name in sorted(self.frozen)},
            properties={name: self.properties[name] for name in sorted(self.properties)},
            optimizer_groups=groups,
            nominal=self.nominal,
            external=self._external,
        )

    def _optimizer_group(self) -> OptimizerGroup:
        return OptimizerGroup(self.optimizer_step, self.initial_learning_rate, dict(self._moment_tables()))

    def _moment_tables(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for name in sorted(self.trainable):
            views = {k: next(segment.views[name] for segment in segments if name in segment.views) for k, segments in enumerate(self.moments) if segments}
            yield name, {moment_name(k): widened(view) for k, view in views.items()}

    def save(self, path: str | os.PathLike[str], include_optimizer_state: bool = False) -> None:
        """Write the state to a checkpoint file, which is replaced atomically."""
        write_checkpoint(self.to_checkpoint(include_optimizer_state), path)


def is_bfloat16(kept: np.ndarray | Segment) -> bool:
    """Return whether an array or a segment is one of bfloat16."""
    return kept.dtype.name == BFLOAT16


def widened(array: np.ndarray) -> np.ndarray:
    """Return an array of bfloat16 as a float32 copy that cannot be written, since nothing would come of that; another one as it is."""
    if not is_bfloat16(array):
        return array
    copy = array.astype(FLOAT32)
    copy.flags.writeable = False
    return copy


def property_value(value: object) -> PropertyValue:
    """Convert a value to one that the file can hold: int64, float32 or str. Raises PropertyTypeError for anything else."""
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | np.integer):
        return int(value) if -(2**63) <= int(value) < 2**63 else float(np.float32(value))
    if isinstance(value, float | np.floating):
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    raise PropertyTypeError(f"expected an int, a float or a str, got {type(value).__name__}")


