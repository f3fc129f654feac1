"""Clients that exchange flat buffers: programs that call the C#, Swift, Objective-C, C or Python API, or a process in another language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.errors import ArgumentTypeError, InvalidArgumentError, InvalidStateError, ParameterShapeError, ParameterTypeError
from ortrain.federated.arrays import float32_arrays, non_finite, record_of_arrays
from ortrain.federated.flower import NUMBER_OF_EXAMPLES, flower
from ortrain.federated.messages import Request, answer
from ortrain.federated.round_settings import RoundSettings
from ortrain.runtime.numbers import check_number

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, MetricRecord
    from flwr.clientapp import ClientApp

Train = Callable[[np.ndarray, RoundSettings, "Context"], tuple[np.ndarray, Mapping[str, float]]]
Evaluate = Callable[[np.ndarray, RoundSettings, "Context"], Mapping[str, float]]


def buffer_client_app(train: Train, evaluate: Evaluate | None = None, *, mods: Sequence[Any] = ()) -> ClientApp:
    """Return a Flower ClientApp for a training loop of one's own, which gets the parameters as one flat buffer and returns them as one.

        def train(buffer, settings, context):
            session.FromBuffer(OrtValue.CreateTensorValueFromMemory(buffer, buffer.shape), onlyTrainable=True)
            ...                                             # TrainStep, OptimizerStep, LazyResetGrad of ortrain.csharp
            return session.ToBuffer(onlyTrainable=True).GetTensorDataAsSpan(), {"num-examples": len(labels), "loss": loss}

        app = buffer_client_app(train)

    train: takes a buffer, float32 [n], which is its own, the settings of the round and the client's Context; returns the trained buffer, and metrics with
    "num-examples". evaluate: takes the same, returns metrics with "num-examples"; without it clients refuse to evaluate. mods: Flower's, for all messages.

    The buffer holds the arrays of the message one after the other. Those of initial_arrays are in the order of the training model's inputs, and strategies of
    Flower keep it, so that the buffer is the one that ToBuffer and FromBuffer of every facade, or CopyParametersToBuffer of the C interface, exchange for the
    trainable parameters. Running statistics are not among these: a server leaves them out by `initial_arrays(session, "running-statistics")`. Such
    clients take part in the same rounds as those of client_app.

    Wrong arrays in a message, errors of ortrain and of its facades in the functions, and buffers and metrics that are wrong become replies with an error, as
    those of client_app do. Raises MissingPackageError without Flower, ArgumentTypeError for what is no function."""
    for name, function in {"train": train, "evaluate": evaluate}.items():
        if not callable(function) and (name == "train" or function is not None):
            raise ArgumentTypeError(f"expected a function as {name}, got {type(function).__name__}")

    def trained(request: Request, context: Context) -> dict[str, Any]:
        if request.control_variate is not None:
            raise InvalidArgumentError("expected a message without control variates: clients that exchange buffers know no gradients, use client_app")
        arrays = float32_arrays(request.arrays)
        buffer, metrics = train(_flat(arrays), request.settings, context)
        return {request.key: _record_of(buffer, arrays), "metrics": _metrics(metrics)}

    def evaluated(request: Request, context: Context) -> dict[str, Any]:
        if evaluate is None:
            raise InvalidStateError("expected a function to evaluate with, buffer_client_app() was given none")
        return {"metrics": _metrics(evaluate(_flat(float32_arrays(request.arrays)), request.settings, context))}

    app: ClientApp = flower("flwr.clientapp").ClientApp(mods=list(mods))
    app.train()(lambda message, context: answer(message, lambda request: trained(request, context)))
    app.evaluate()(lambda message, context: answer(message, lambda request: evaluated(request, context)))
    return app


def _flat(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return arrays as one, float32 [n]."""
    return np.concatenate([np.zeros(0, np.float32), *(array.ravel() for array in arrays.values())])


def _record_of(buffer: np.ndarray, arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Divide a buffer into arrays of given names and shapes. Raises ParameterTypeError, ParameterShapeError, InvalidStateError for one that does not fit."""
    buffer = np.asarray(buffer)
    size = sum(array.size for array in arrays.values())
    if buffer.dtype != np.float32:
        raise ParameterTypeError(f"expected a buffer of float32 from train, got {buffer.dtype}")
    if buffer.size != size:
        raise ParameterShapeError(f"expected a buffer of {size} elements from train, as many as it was given, got {buffer.size}")
    flat = buffer.reshape(-1)
    if found := non_finite(flat):
        raise InvalidStateError(f"expected finite parameters after local training, got {found}")
    ends = np.cumsum([array.size for array in arrays.values()])
    return record_of_arrays({name: flat[end - array.size : end].reshape(array.shape) for (name, array), end in zip(arrays.items(), ends, strict=True)})


def _metrics(metrics: Mapping[str, float]) -> MetricRecord:
    """Return the metrics of a reply. Raises InvalidArgumentError or ArgumentTypeError without a "num-examples" above 0."""
    if NUMBER_OF_EXAMPLES not in metrics:
        raise InvalidArgumentError(f"expected metrics with {NUMBER_OF_EXAMPLES!r}, by which strategies weigh replies, got {sorted(metrics)}")
    check_number(metrics[NUMBER_OF_EXAMPLES], NUMBER_OF_EXAMPLES, positive=True)
    record: MetricRecord = flower().MetricRecord(dict(metrics))
    return record
