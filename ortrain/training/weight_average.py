"""Exponential moving average of weights, whose models often do better than the weights of the last step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ortrain._core.kernel_table import kernels
from ortrain._core.optimizer_update import BoundKernel
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, InvalidStateError, ParameterNotFoundError, ParameterShapeError, ParameterTypeError
from ortrain.runtime.numbers import check_count, check_number
from ortrain.training.session import TrainingSession

UPDATES = "updates"
"""The entry of state_dict() with the number of updates; it has the shape [] and the dtype int64. All other entries are parameters."""


class WeightAverage:
    """The moving average of a session's trainable parameters: average = decay average + (1 - decay) weights with every update.

    session: open. Its other parameters, such as running statistics, are not averaged. decay: in [0, 1). warmup: begin with a smaller decay,
    (1 + updates) / (10 + updates), while that is below `decay`, so that the first weights are soon forgotten (TensorFlow's ExponentialMovingAverage).

    The average starts as the weights at the time of creation.

    Raises ArgumentTypeError, InvalidArgumentError for a decay that is out of range and for parameters that are kept in bfloat16, whose average would not move,
    InvalidStateError for a session whose state is nominal."""

    def __init__(self, session: TrainingSession, decay: float = 0.999, *, warmup: bool = False) -> None:
        if check_number(decay, "decay") >= 1:
            raise InvalidArgumentError(f"expected a decay in [0, 1), got {decay:g}")
        if session.state.nominal:
            raise InvalidStateError("expected parameter values, got a nominal state. Please load the model parameters first.")
        session.state.check_float32("an average of weights")
        self.session, self.decay, self.warmup = session, float(decay), warmup
        self.updates = 0
        """The number of updates so far."""
        self._is_applied = False
        segments = session.state.trainable_segments
        self.segments = [segment.like() for segment in segments]
        """The memory of the average."""
        for average, segment in zip(self.segments, segments, strict=True):
            average.array[...] = segment.array
        self._averages = self._kernels("moving_average")
        self._exchanges = self._kernels("exchange")

    def _kernels(self, name: str) -> list[BoundKernel]:
        """Return a kernel over all averages and weights."""
        pairs = zip(self.segments, self.session.state.trainable_segments, strict=True)
        return [BoundKernel(self.session._handle, kernels()[name, average.dtype.name], [average.array, weights.array]) for average, weights in pairs]

    def update(self) -> None:
        """Take the current weights into the average; call it after each optimizer step. Raises InvalidStateError while the average is applied."""
        self._check_not_applied("update")
        with self.session._lock:
            decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
            for call in self._averages:
                call.run(1 - decay)
            self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the session the averaged weights within a `with`, for evaluation and export, and its own ones back at the end, whatever happens inside.

        Train steps inside it would train the average. Raises InvalidStateError when it is applied already."""
        self._check_not_applied("application")
        self._exchange()
        self._is_applied = True
        try:
            yield
        finally:
            self._exchange()
            self._is_applied = False

    def _exchange(self) -> None:
        with self.session._lock:
            for call in self._exchanges:
                call.run()

    def _check_not_applied(self, what: str) -> None:
        if self._is_applied:
            raise InvalidStateError(f"expected the {what} of a weight average outside of its applied(), got it inside")

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the averages by parameter name, and the number of updates as an int64 [] under "updates". Raises InvalidStateError while the average
        is applied."""
        self._check_not_applied("state_dict")
        return {UPDATES: np.array(self.updates, np.int64)} | {name: view.copy() for name, view in self._views().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state_dict().

        Raises ArgumentTypeError, ParameterNotFoundError for names that are missing or unknown, ParameterShapeError or ParameterTypeError for an array that does
        not fit, InvalidStateError while the average is applied; nothing has changed then."""
        self._check_not_applied("load_state_dict")
        views = self._views()
        if not isinstance(state, Mapping):
            raise ArgumentTypeError(f"expected a dict of arrays, got {type(state).__name__}")
        wrong = sorted({*views, UPDATES} ^ set(state))
        if wrong:
            raise ParameterNotFoundError(f"expected averages of the session's {len(views)} trainable parameters and {UPDATES!r}, missing or unknown are "
                                         f"{wrong[:5]}")
        arrays = {name: np.asarray(state[name]) for name in views}
        for name, array in arrays.items():
            if array.shape != views[name].shape:
                raise ParameterShapeError(f"expected an average of {name!r} with shape {list(views[name].shape)}, got {list(array.shape)}")
            if array.dtype != views[name].dtype:
                raise ParameterTypeError(f"expected an average of {name!r} with dtype {views[name].dtype}, got {array.dtype}")
        updates = check_count(np.asarray(state[UPDATES])[()], UPDATES)
        for name, array in arrays.items():
            views[name][...] = array
        self.updates = updates

    def _views(self) -> dict[str, np.ndarray]:
        return {name: view for segment in self.segments for name, view in segment.views.items()}
