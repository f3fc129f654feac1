"""The flat buffers of a session: its gradients, parameters, moments and running statistics in its own memory."""

from __future__ import annotations

from collections.abc import Callable

from ortrain._core.fast_path import FastPath
from ortrain._core.session_lock import Lock
from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.formats.checkpoint_contents import moment_name
from ortrain.ir import Model
from ortrain.runtime.flat_buffers import FlatBuffer, buckets_of, flat_buffers_of
from ortrain.runtime.numbers import check_count
from ortrain.runtime.options import RunOptions, SessionOptions
from ortrain.runtime.runner import Runner, Watch
from ortrain.runtime.state import TrainingState
from ortrain.training.binding import statistics_of

BUCKET_BYTES = 1 << 20
"""The default size of a bucket: enough that its transfer takes much longer than its beginning."""


class FlatBuffers:
    """The flat buffers of a TrainingSession, which provides the attributes below."""

    options: SessionOptions
    state: TrainingState
    training_model: Model
    steps: FastPath
    _lock: Lock
    _train_runner: Runner
    _on_gradients_ready: Callable[[FlatBuffer], None] | None = None
    _bucket_bytes = BUCKET_BYTES

    def _make_train_runner(self) -> Runner:
        raise NotImplementedError

    def _ready(self, run_options: RunOptions | None) -> None:
        raise NotImplementedError

    def _check_gradients(self) -> None:
        raise NotImplementedError

    def keep_gradients(self) -> None:
        """Provided by Optimization."""
        raise NotImplementedError

    def gradient_buffers(self) -> list[FlatBuffer]:
        """Return the gradients of the parameters that are not frozen, as the last train steps have added them up, in one buffer per dtype; several where frozen
        parameters lie between.

        What is written into them between a train step and the optimizer step is what the optimizer step uses, scales and clips. The buffers stay the same
        memory until parameters are frozen or unfrozen, and show the gradients of later steps. Calling this makes train steps compute and keep all gradients
        from then on, as reading a single gradient does: otherwise those of large weights are deferred to the optimizer step.

        Raises InvalidStateError with optimizer_in_backward, where no gradients are kept, for gradients that are not valid, and for a nominal state;
        UseAfterRelease for a closed session."""
        with self._lock:
            self._ready(None)
            if self.options.optimizer_in_backward:
                raise InvalidStateError("expected gradients to keep, got a session with optimizer_in_backward, whose train steps use up each gradient as soon "
                                        "as it is complete")
            self._check_gradients()
            self.keep_gradients()
            return list(flat_buffers_of(self.state.gradient_segments, self.state.masked))

    def on_gradients_ready(self, callback: Callable[[FlatBuffer], None] | None, bucket_bytes: int = BUCKET_BYTES) -> None:
        """Call a function within every train step from now on with each bucket of gradients, as soon as the backward pass has completed it, so that it can be
        communicated while the pass goes on; None for no calls any more.

        callback: is given pieces of gradient_buffers() that together hold all of them once. Most come in the order of the backward pass, but which come when
        may depend on the shapes of the batch. It may change the bucket at once or later, up to the optimizer step, and must not call the session. What it
        raises ends the train step, after which the gradients are not valid. bucket_bytes: a bucket holds neighbouring parameters of at least this size
        together; a larger parameter is one by itself.

        Train steps plan their programs anew, since gradients are not deferred then, and take a few microseconds more. Raises the errors of gradient_buffers(),
        InvalidArgumentError for bucket_bytes below 1 and with differential privacy."""
        size = check_count(bucket_bytes, "bucket_bytes", 1)
        if callback is not None and self.options.differential_privacy is not None:
            raise InvalidArgumentError("expected a session without differential privacy for buckets of gradients, which have no noise yet in a train step")
        self.gradient_buffers()
        with self._lock:
            if (callback, size) == (self._on_gradients_ready, self._bucket_bytes):
                return
            self._on_gradients_ready, self._bucket_bytes = callback, size
            self.steps.invalidate()
            self._train_runner = self._make_train_runner()

    @property
    def watches_gradients(self) -> bool:
        """Whether on_gradients_ready() has set a callback."""
        return self._on_gradients_ready is not None

    def _watch(self) -> Watch | None:
        """Return what a train step has to tell, and whom."""
        callback = self._on_gradients_ready
        if callback is None:
            return None
        buckets = list(buckets_of(flat_buffers_of(self.state.gradient_segments, self.state.masked), self._bucket_bytes))
        return Watch([bucket.array for bucket in buckets], lambda number: callback(buckets[number]))

    def parameter_buffers(self) -> list[FlatBuffer]:
        """Return the trainable parameters that are not frozen, in the layout of gradient_buffers(), in bfloat16 where they are kept so; to_buffer() copies
        instead, in the order of the model.

        Raises InvalidStateError for a nominal state, UseAfterRelease for a closed session."""
        with self._lock:
            self._ready(None)
            return list(flat_buffers_of(self.state.trainable_segments, self.state.masked))

    def moment_buffers(self) -> dict[str, list[FlatBuffer]]:
        """Return the optimizer's moments of the parameters that are not frozen: the name of a moment, as checkpoints have it ("momentum0", "momentum1"), and
        its buffers in the order of gradient_buffers().

        Adam's and AdamW's are the averages of gradients and of their squares. Where moments have the shapes of parameters, their layout is that of
        gradient_buffers(). A moment that the optimizer's settings leave out, such as RMSprop's momentum 0, has no buffers; plain SGD has one that stays zero,
        which checkpoints of onnxruntime-training hold. Without an optimizer there are no moments. Errors as parameter_buffers, and InvalidStateError for a
        session that has those of a shard alone."""
        with self._lock:
            self._ready(None)
            self.state.check_whole("flat buffers of moments")
            return {moment_name(k): list(flat_buffers_of(segments, self.state.masked)) for k, segments in enumerate(self.state.moments)}

    def running_statistics_buffers(self) -> list[FlatBuffer]:
        """Return the running means and variances that the batch normalizations of the training model update, in one buffer per dtype; several where other
        parameters that are not trained lie between. Errors as parameter_buffers."""
        with self._lock:
            self._ready(None)
            updated = {node.inputs[source] for node in self.training_model.graph.nodes for source, _ in statistics_of(node)}
            return list(flat_buffers_of(self.state.frozen_segments, self.state.frozen.keys() - updated))
