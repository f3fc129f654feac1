"""Flat buffers in every language: arrays over the session's memory, with the buffer protocol and DLPack."""

import numpy as np
import pytest

from ortrain.capi import Box
from ortrain.conformance.drivers import FINISHED, Failure, driver_for
from ortrain.conformance.drivers.c import EXTENSIONS, ORT, checked, default_allocator, out
from ortrain.conformance.drivers.objc import send
from ortrain.csharp import OnnxRuntimeException
from ortrain.errors import UseAfterRelease
from tests.facades.conftest import CHECKPOINT, EVAL_MODEL, OPTIMIZER_MODEL, TRAINING_MODEL

DATA = {
    "python": lambda buffer: buffer.array,
    "csharp": lambda buffer: buffer.Value.GetTensorMutableDataAsSpan(),
    "swift": lambda buffer: buffer.value().tensorData(),
    "objc": lambda buffer: send(send(buffer.valueWithError_).tensorDataWithError_),
    "c": lambda buffer: out(ORT.GetTensorMutableData, out(EXTENSIONS.FlatBufferGetValue, buffer)),
}
"""Language -> the elements of a buffer, as a program in it gets them."""
MOMENTS = {"name": "momentum0"}


def started(language):
    """Return a driver and a session of a language."""
    driver = driver_for(language)
    state = driver.call("checkpoint_state.load", None, {"path": CHECKPOINT})
    return driver, driver.call("training_session.create", None, {"state": state, "train_model": TRAINING_MODEL, "eval_model": EVAL_MODEL,
                                                                 "optimizer_model": OPTIMIZER_MODEL})


@pytest.mark.parametrize("language", FINISHED)
@pytest.mark.parametrize(("operation", "arguments"), [("gradient_buffers", {}), ("parameter_buffers", {}), ("moment_buffers", MOMENTS)])
def test_the_elements_are_the_memory_of_the_session(language, operation, arguments, batch):
    driver, session = started(language)
    driver.call("training_session.train_step", session, {"inputs": list(batch)})
    driver.call("training_session.optimizer_step", session, {})
    first, again = (DATA[language](driver.call(f"training_session.{operation}", session, arguments)[0]) for _ in range(2))
    assert first.dtype == np.float32 and first.ndim == 1 and first.flags.writeable and first.any()
    for other in (again, np.frombuffer(memoryview(first), np.float32), np.from_dlpack(first)):
        assert np.shares_memory(first, other)
        first[:2] += 1
        assert np.array_equal(other, first)


@pytest.mark.parametrize("language", FINISHED)
def test_memory_outlives_the_objects_through_which_it_was_found(language, batch):
    driver, session = started(language)
    driver.call("training_session.train_step", session, {"inputs": list(batch)})
    elements = DATA[language](driver.call("training_session.gradient_buffers", session, {})[0])
    before = elements.copy()
    del driver, session
    assert np.array_equal(elements, before)


def test_a_collection_of_flat_buffers_is_disposed_of_together():
    _, session = started("csharp")
    with session.GradientBuffers() as buffers:
        assert buffers.Count == 1
        buffer, value = buffers[0], buffers[0].Value
    with pytest.raises(OnnxRuntimeException, match="an open FlatBuffer"):
        buffer.ParameterNames()
    assert value.GetTensorDataAsSpan().size == 48


def test_an_array_of_flat_buffers_is_freed_once():
    _, session = started("c")
    allocator, buffers, length = default_allocator(), Box(), Box()
    assert EXTENSIONS.GetGradientBuffers(session, allocator, buffers, length) is None
    assert length.value == len(buffers.value) == 1
    assert ORT.AllocatorFree(allocator, buffers.value) is None
    with pytest.raises(UseAfterRelease, match="freed before"):
        ORT.AllocatorFree(allocator, buffers.value)


def test_an_array_of_flat_buffers_comes_with_its_length_or_not_at_all():
    _, session = started("c")
    buffers = Box()
    assert EXTENSIONS.GetGradientBuffers(session, default_allocator(), buffers, None) is not None
    assert buffers.value is None


def test_an_error_of_a_function_for_ready_buckets_ends_the_train_step(batch):
    driver, session = started("csharp")
    session.OnGradientsReady(lambda bucket: bucket.View("nothing"))
    with pytest.raises(OnnxRuntimeException, match="got 'nothing'"):
        driver.training_session__train_step(session, list(batch))
    with pytest.raises(OnnxRuntimeException, match="expected valid gradients"):
        session.GradientBuffers()


def test_what_cannot_be_called_is_no_function_for_ready_buckets():
    for language, call in (("csharp", lambda session: session.OnGradientsReady(3)), ("swift", lambda session: session.onGradientsReady(handler=3)),
                           ("objc", lambda session: send(session.onGradientsReadyWithBucketBytes_handler_error_, 1, 3)),
                           ("c", lambda session: checked(EXTENSIONS.SetGradientsReadyFunction(session, 3, None, 1)))):
        driver, session = started(language)
        with pytest.raises(Failure, match="ArgumentTypeError: expected a function or none"):
            driver.guarded(lambda call=call, session=session: call(session))
