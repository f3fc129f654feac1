"""The arrays that server and clients exchange: which they are, what is accepted, and how they enter a session."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.errors import InvalidArgumentError, ParameterNotFoundError, ParameterShapeError, ParameterTypeError
from ortrain.federated.flower import flower
from ortrain.ir.globs import expand
from ortrain.passes.head import HEAD, head_parameters
from ortrain.training.binding import statistics_of
from ortrain.training.session import TrainingSession

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord

BATCH_NORMALIZATION = "batch-normalization"
"""The word that stands for the scales, biases and running statistics of all batch normalizations."""
RUNNING_STATISTICS = "running-statistics"
"""The word that stands for their running means and variances."""
HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Version of NumPy's file format -> the function that reads its header."""


def initial_arrays(session: TrainingSession, personal: str | Iterable[str] = ()) -> ArrayRecord:
    """Return the arrays of a session that a Flower strategy begins with, by name: trainable parameters that are not frozen, and running statistics.

    personal: as of client_app. Raises MissingPackageError without Flower, ParameterNotFoundError for a personal name that the session does not have."""
    return record_of(session, shared_names(session, personal))


def load_arrays(session: TrainingSession, arrays: ArrayRecord, personal: str | Iterable[str] = ()) -> None:
    """Copy the arrays of a message, or of a strategy's result, into a session; the reverse of initial_arrays.

    Before anything changes, raises ParameterNotFoundError for arrays of other names, ParameterShapeError for other shapes, ParameterTypeError for what is no
    float, InvalidArgumentError for numbers that are not finite and for bytes that are no array."""
    copy_into(session, checked_arrays(arrays, values_of(session, shared_names(session, personal))))


def shared_names(session: TrainingSession, personal: str | Iterable[str] = ()) -> list[str]:
    """Return the names of the arrays that travel, in the order of the model."""
    kept = set(personal_names(session, personal))
    return [name for name in _trained(session) if name not in kept]


def personal_names(session: TrainingSession, personal: str | Iterable[str]) -> list[str]:
    """Return the names of the arrays that stay with each client. Raises ParameterNotFoundError."""
    names = _trained(session)

    def normalization(first: int) -> Sequence[str]:
        found = {name for node in session.training_model.graph.nodes if statistics_of(node) for name in node.inputs[first:5]}
        return [name for name in names if name in found]

    def head() -> Sequence[str]:
        model = session.eval_model or session.training_model
        return head_parameters(model, [name for name in names if name in session.state.trainable], model.graph.outputs[0])

    return expand(personal, names, "personal", {BATCH_NORMALIZATION: lambda: normalization(1), RUNNING_STATISTICS: lambda: normalization(3), HEAD: head})


def _trained(session: TrainingSession) -> list[str]:
    """Return what training changes: parameters that are not frozen, and running statistics."""
    state = session.state
    statistics = {name for buffer in session.running_statistics_buffers() for name in buffer.offsets}
    return [name for name in state.order if name in statistics or name in state.trainable and name not in state.masked]


def values_of(session: TrainingSession, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return parameters and running statistics by name, views of the session's memory."""
    return {name: session.state.array(name) for name in names}


def record_of(session: TrainingSession, names: Iterable[str]) -> ArrayRecord:
    """Return the current values of parameters and running statistics. Raises MissingPackageError."""
    return record_of_arrays(values_of(session, names))


def record_of_arrays(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Return arrays by name as a record of Flower, which copies them. Raises MissingPackageError."""
    app = flower()
    record: ArrayRecord = app.ArrayRecord({name: app.Array(array) for name, array in arrays.items()})
    return record


def copy_into(session: TrainingSession, arrays: dict[str, np.ndarray]) -> None:
    """Copy arrays that checked_arrays() has returned into their parameters."""
    for name, array in arrays.items():
        session.state.replace(name, array)


def checked_arrays(record: ArrayRecord, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a record in the dtypes of those expected, in the order of the record. Raises the errors of load_arrays."""
    missing, unknown = sorted(expected.keys() - record.keys()), sorted(record.keys() - expected.keys())
    if missing or unknown:
        raise ParameterNotFoundError(f"expected the {len(expected)} arrays that the model trains, got {len(record)}; missing: {missing[:5]}, "
                                     f"unknown: {unknown[:5]}")
    return {name: _checked(name, array, expected[name].dtype, expected[name].shape) for name, array in record.items()}


def float32_arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return the arrays of a record, of any names and shapes, in float32. Raises the other errors of load_arrays."""
    return {name: _checked(name, array, np.dtype(np.float32)) for name, array in record.items()}


def _checked(name: str, array: Array, dtype: np.dtype[Any], expected: tuple[int, ...] | None = None) -> np.ndarray:
    """Return the values of an array in a dtype. The header is looked at first, so that what does not fit the expected shape is not even read."""
    try:
        stream = io.BytesIO(array.data)
        shape, _, found = HEADER_READERS[np.lib.format.read_magic(stream)](stream)
        if expected is not None and shape != expected:
            raise ParameterShapeError(f"expected array {name!r} with shape {list(expected)}, got {list(shape)}")
        if found.kind != "f":
            raise ParameterTypeError(f"expected array {name!r} with dtype {dtype}, got {found}")
        values: np.ndarray = array.numpy()
    except (ParameterShapeError, ParameterTypeError):
        raise
    except (ValueError, KeyError, EOFError, TypeError) as error:
        raise InvalidArgumentError(f"expected array {name!r} in NumPy's file format, got {len(array.data)} bytes as {array.stype!r}: {error}") from error
    with np.errstate(over="ignore"):                        # a number that is too large becomes infinite, and is found
        values = values.astype(dtype, copy=False)
    if wrong := non_finite(values):
        raise InvalidArgumentError(f"expected finite numbers of {dtype} in array {name!r}, got {wrong}")
    return values


def non_finite(array: np.ndarray) -> str | None:
    """Describe the first number that is not finite; None where all are."""
    wrong = ~np.isfinite(array)
    if not wrong.any():
        return None
    place = tuple(int(index) for index in np.unravel_index(int(wrong.argmax()), wrong.shape))
    return f"{array[place]} at {list(place)}, one of {np.count_nonzero(wrong)} of {array.size}"
