"""The C# facade as a C# programmer would use it, beyond the conformance cases."""

import gc
import weakref
from array import array

import numpy as np
import pytest

from ortrain import errors
from ortrain.csharp import (
    CheckpointState,
    ErrorCode,
    FixedBufferOnnxValue,
    IDisposableReadOnlyCollection,
    OnnxRuntimeException,
    OrtValue,
    RunOptions,
    SessionOptions,
    TensorElementType,
    TrainingSession,
)
from tests.facades.conftest import CHECKPOINT, EVAL_MODEL, OPTIMIZER_MODEL, TRAINING_MODEL


@pytest.fixture
def state():
    return CheckpointState.LoadCheckpoint(CHECKPOINT)


@pytest.fixture
def session(state):
    return TrainingSession(state, TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL)


def fixed(*arrays):
    return [FixedBufferOnnxValue.CreateFromTensor(one) for one in arrays]


def values(*arrays):
    return [OrtValue.CreateTensorValueFromMemory(one, one.shape) for one in arrays]


def refused(call, name, *texts):
    with pytest.raises(OnnxRuntimeException) as caught:
        call()
    assert caught.value.error_name == name and all(text in caught.value.Message for text in texts), caught.value.Message
    return caught.value


def test_the_three_constructors_and_arguments_by_name(state):
    for session in (
        TrainingSession(state, TRAINING_MODEL, OPTIMIZER_MODEL),
        TrainingSession(state, trainModelPath=TRAINING_MODEL, evalModelPath=EVAL_MODEL, optimizerModelPath=OPTIMIZER_MODEL),
        TrainingSession(optimizerModelPath=OPTIMIZER_MODEL, options=SessionOptions(), state=state, evalModelPath=EVAL_MODEL, trainModelPath=TRAINING_MODEL),
    ):
        assert session.InputNames(training=True) == ["x", "labels"]
    assert TrainingSession(state, trainModelPath=TRAINING_MODEL, optimizerModelPath=OPTIMIZER_MODEL).GetLearningRate() == 0.001


def test_arguments_that_match_no_constructor_are_refused_with_a_list_of_constructors(state):
    error = refused(lambda: TrainingSession(state, TRAINING_MODEL), "ArgumentTypeError", "state: CheckpointState, trainModelPath: str",
                    "got (CheckpointState, str)")
    assert isinstance(error, errors.OrtrainError) and isinstance(error.__cause__, errors.ArgumentTypeError)
    refused(lambda: TrainingSession(state, trainPath=TRAINING_MODEL, optimizerModelPath=OPTIMIZER_MODEL), "ArgumentTypeError", "trainPath: str")


def test_the_type_of_inputs_determines_the_type_of_outputs(session, batch):
    named = session.TrainStep(fixed(*batch))
    assert [one.Name for one in named] == session.OutputNames(True) and named.Count == len(named) == 2
    session.LazyResetGrad()
    owned = session.TrainStep(values(*batch))
    assert isinstance(owned, IDisposableReadOnlyCollection) and all(isinstance(one, OrtValue) for one in owned)
    assert owned[0].GetTensorDataAsSpan()[0] == named[0].AsTensor()
    assert owned[1].GetTensorTypeAndShape().ElementDataType is TensorElementType.Float and owned[1].GetTensorTypeAndShape().Shape == [4, 3]


def test_preallocated_outputs_are_written_in_place_and_new_ones_belong_to_the_caller(session, batch):
    loss, scores = np.zeros((), np.float32), np.zeros((4, 3), np.float32)
    assert session.TrainStep(fixed(*batch), fixed(loss, scores)) is None
    assert loss > 0 and scores.any()
    before = loss.copy()
    first = session.EvalStep(values(*batch))[1].GetTensorMutableDataAsSpan()
    first[:] = 0
    session.EvalStep(inputValues=fixed(*batch), outputValues=fixed(loss, scores))
    assert loss == before and scores.any() and not first.any()
    session.TrainStep(RunOptions(), fixed(*batch), fixed(loss, scores))
    assert [one.Name for one in session.TrainStep(RunOptions(), fixed(*batch))] == session.OutputNames(True)


def test_an_empty_list_that_fits_two_overloads_is_refused_with_the_remedy(session):
    refused(lambda: session.TrainStep([]), "ArgumentTypeError", "empty list fits", "RunOptions")
    refused(lambda: session.TrainStep(RunOptions(), []), "InputCountError")           # the remedy: one overload, which wants two inputs
    refused(lambda: session.EvalStep([]), "InputCountError")                          # one overload takes one list


def test_lists_of_other_types_are_refused(session, batch):
    refused(lambda: session.TrainStep(list(batch)), "ArgumentTypeError", "FixedBufferOnnxValue[]", "OrtValue[]")
    refused(lambda: session.TrainStep(fixed(batch[0]) + values(batch[1])), "ArgumentTypeError")


def test_errors_have_the_code_and_message_format_of_onnxruntime(session):
    error = refused(session.SchedulerStep, "InvalidStateError", "[ErrorCode:Fail] expected a registered")
    assert error.ErrorCode == ErrorCode.Fail and str(error) == error.Message


def test_a_with_statement_disposes(state, batch):
    with state, TrainingSession(state, TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL) as session, session.TrainStep(values(*batch)) as results:
        assert results.Count == 2
        kept = results[0]
    refused(session.GetLearningRate, "UseAfterRelease", "TrainingSession")
    refused(lambda: state.GetParameter("fc2.bias"), "UseAfterRelease", "CheckpointState")
    refused(kept.GetTensorDataAsSpan, "UseAfterRelease", "OrtValue")
    with pytest.raises(errors.UseAfterRelease):
        len(results)


def test_disposing_twice_does_nothing(session, batch):
    results = session.TrainStep(values(*batch))
    for thing in (results, results, session, session):
        thing.Dispose()


def test_objects_that_are_not_disposed_of_are_freed_with_their_last_reference(state, batch):
    session = TrainingSession(state, TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL)
    results = session.TrainStep(values(*batch))
    watched = [weakref.ref(session), weakref.ref(session._session), weakref.ref(results)]
    del session, results
    gc.collect()
    assert [one() for one in watched] == [None, None, None]


def test_a_checkpoint_may_be_disposed_of_before_its_session(state, batch):
    session = TrainingSession(state, TRAINING_MODEL, OPTIMIZER_MODEL)
    state.Dispose()
    session.TrainStep(values(*batch)).Dispose()
    refused(lambda: CheckpointState.SaveCheckpoint(state, "x"), "UseAfterRelease", "a session that was made with it keeps the parameters")


def test_options_are_properties(state):
    options = SessionOptions()
    options.IntraOpNumThreads = 2
    assert options.IntraOpNumThreads == 2
    with pytest.raises(OnnxRuntimeException):
        options.IntraOpNumThreads = -1
    run = RunOptions()
    assert run.Terminate is False
    run.Terminate = True
    session = TrainingSession(options, state, TRAINING_MODEL, None, OPTIMIZER_MODEL)
    refused(lambda: session.OptimizerStep(run), "TerminatedError")


def test_options_of_ortrain_are_configuration_entries(state, batch):
    options = SessionOptions()
    options.AddSessionConfigEntry("ortrain.optimizer_in_backward", "1")
    session = TrainingSession(options, state, TRAINING_MODEL, None, OPTIMIZER_MODEL)
    session.TrainStep(values(*batch))
    refused(lambda: session.TrainStep(values(*batch)), "InvalidStateError", "optimizer_in_backward")
    refused(lambda: options.AddSessionConfigEntry("ortrain.speed", "1"), "InvalidArgumentError", "ortrain.parameter_dtype, got the configuration entry")


def test_properties_keep_their_types(state):
    for value in (7, 0.5, "text"):
        state.AddProperty("p", value)
        assert state.GetProperty("p") == value and type(state.GetProperty("p")) is type(value)


@pytest.mark.parametrize("memory", [[1.0, 2.0], 3.0, None, "text"])
def test_memory_that_cannot_be_shared_is_refused(memory):
    refused(lambda: OrtValue.CreateTensorValueFromMemory(memory, [2]), "ArgumentTypeError", "numpy.array")
    refused(lambda: FixedBufferOnnxValue.CreateFromTensor(memory), "ArgumentTypeError")


def test_any_contiguous_buffer_can_back_a_tensor():
    data = array("f", [1.0, 2.0])
    value = OrtValue.CreateTensorValueFromMemory(data, [1, 2])
    value.GetTensorMutableDataAsSpan()[0] = 5
    assert data[0] == 5 and value.IsTensor
    with pytest.raises(ValueError, match="read-only"):
        value.GetTensorDataAsSpan()[0] = 1
    refused(lambda: FixedBufferOnnxValue.CreateFromTensor(np.zeros((4, 4), np.float32)[:, ::2]), "ArgumentTypeError", "ascontiguousarray")
