"""Flat buffers: the tensors of a session side by side in its own memory, for all-reduce, broadcast and whatever else works on all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

import numpy as np

from ortrain._core.session_lock import Lock
from ortrain.errors import InvalidStateError
from ortrain.ir import Model
from ortrain.runtime.options import RunOptions, SessionOptions
from ortrain.runtime.state import Segment, TrainingState
from ortrain.training.binding import statistics_of


@dataclass(slots=True, eq=False)
class FlatBuffer:
    """Tensors of one dtype side by side in one piece of a session's memory; known elsewhere as a gradient bucket or a contiguous buffer.

    Writing into it changes the session. Tensors begin on cache lines; the numbers between them are zero and must stay so, as they do in sums and products of
    whole arrays. The layout follows from names, shapes and dtypes alone, so that it is the same in every process that trains the same
    model."""

    array: np.ndarray
    """[n], contiguous and writable, with the buffer protocol and DLPack, as every NumPy array."""
    offsets: Mapping[str, int]
    """Parameter -> the index of its first element, ascending."""
    shapes: Mapping[str, tuple[int, ...]]
    """Parameter -> the shape of its tensor."""

    def view(self, name: str) -> np.ndarray:
        """Return the tensor of a parameter, a view in its shape. Raises KeyError for a name that is not in `offsets`."""
        shape, start = self.shapes[name], self.offsets[name]
        return self.array[start : start + int(np.prod(shape, dtype=np.int64))].reshape(shape)


def flat_buffers_of(segments: Iterable[Segment], left_out: Set[str] = frozenset()) -> Iterator[FlatBuffer]:
    """Yield the longest pieces of flat segments that hold no tensor named in `left_out`."""
    for segment in segments:
        for start, end in segment.runs(left_out):
            offsets = {name: offset - start for name, offset in segment.offsets.items() if start <= offset < end and segment.views[name].size}
            yield FlatBuffer(segment.array[start:end], offsets, {name: segment.shapes[name] for name in offsets})


class FlatBuffers:
    """The flat buffers of a TrainingSession, which provides the attributes below."""

    options: SessionOptions
    state: TrainingState
    training_model: Model
    _lock: Lock

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

    def parameter_buffers(self) -> list[FlatBuffer]:
        """Return the trainable parameters that are not frozen, in the layout of gradient_buffers(); to_buffer() copies instead, in the order of the model.

        Raises InvalidStateError for a nominal state, UseAfterRelease for a closed session."""
        with self._lock:
            self._ready(None)
            return list(flat_buffers_of(self.state.trainable_segments, self.state.masked))

    def moment_buffers(self) -> list[list[FlatBuffer]]:
        """Return the optimizer's moments of the parameters that are not frozen: for each moment its buffers, in the order of gradient_buffers().

        Adam's and AdamW's are the averages of gradients and of their squares. Where moments have the shapes of parameters, their layout is that of
        gradient_buffers(). A moment that the optimizer's settings leave out, such as RMSprop's momentum 0, has no buffers; plain SGD has one that stays zero,
        which checkpoints of onnxruntime-training hold. Without an optimizer there are no moments. Errors as parameter_buffers."""
        with self._lock:
            self._ready(None)
            return [list(flat_buffers_of(segments, self.state.masked)) for segments in self.state.moments]

    def running_statistics_buffers(self) -> list[FlatBuffer]:
        """Return the running means and variances that the batch normalizations of the training model update, in one buffer per dtype; several where other
        parameters that are not trained lie between. Errors as parameter_buffers."""
        with self._lock:
            self._ready(None)
            updated = {node.inputs[source] for node in self.training_model.graph.nodes for source, _ in statistics_of(node)}
            return list(flat_buffers_of(self.state.frozen_segments, self.state.frozen.keys() - updated))
