"""The C facade as a C program would use it: statuses, boxes, handles, an allocator."""

import inspect

import numpy as np
import pytest

from ortrain import capi
from ortrain.capi import ORT_FAIL, ORT_INVALID_ARGUMENT, Box, OrtErrorCode, OrtFloatProperty, OrtGetApiBase, OrtIntProperty, OrtTrainingApi
from ortrain.conformance.drivers.c import ORT, TRAINING, array_of, ort_value, out
from ortrain.errors import UseAfterRelease
from tests.facades.conftest import CHECKPOINT, EVAL_MODEL, OPTIMIZER_MODEL, TRAINING_MODEL


def code(status):
    found = ORT.GetErrorCode(status)
    ORT.ReleaseStatus(status)
    return found


@pytest.fixture
def state():
    return out(TRAINING.LoadCheckpoint, CHECKPOINT)


@pytest.fixture
def session(state):
    return out(TRAINING.CreateTrainingSession, out(ORT.CreateEnv, 2, "test"), out(ORT.CreateSessionOptions), state, TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL)


@pytest.fixture
def allocator():
    return out(ORT.GetAllocatorWithDefaultOptions)


def test_function_tables_are_returned_by_the_base():
    base = OrtGetApiBase()
    assert base.GetApi(19).GetTrainingApi(19) is not None and base.GetApi(1) is not None
    assert base.GetApi(20) is None and base.GetApi(0) is None and base.GetApi(19).GetTrainingApi(20) is None


def test_null_output_slots_are_filled_and_others_written_in_place(session, batch):
    inputs = [ort_value(array) for array in batch]
    loss = np.zeros((), np.float32)
    given = ort_value(loss)
    outputs = [given, None]
    assert TRAINING.TrainStep(session, None, 2, inputs, 2, outputs) is None
    assert outputs[0] is given and loss > 0
    scores = array_of(outputs[1])
    again = [None, None]
    assert TRAINING.EvalStep(session, None, 2, inputs, 2, again) is None
    assert np.array_equal(array_of(again[1]), scores)


def test_options_of_ortrain_are_configuration_entries(state, batch):
    options = out(ORT.CreateSessionOptions)
    assert ORT.AddSessionConfigEntry(options, "ortrain.optimizer_in_backward", "1") is None
    assert code(ORT.AddSessionConfigEntry(options, "ortrain.speed", "1")) == ORT_INVALID_ARGUMENT
    session = out(TRAINING.CreateTrainingSession, out(ORT.CreateEnv, 2, "test"), options, state, TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL)
    inputs = [ort_value(array) for array in batch]
    assert TRAINING.TrainStep(session, None, 2, inputs, 2, [None, None]) is None
    assert code(TRAINING.TrainStep(session, None, 2, inputs, 2, [None, None])) == ORT_FAIL


def test_a_refused_step_fills_no_slot(session, batch):
    outputs = [None, None]
    assert code(TRAINING.TrainStep(session, None, 1, [ort_value(batch[0])], 2, outputs)) == ORT_INVALID_ARGUMENT
    assert outputs == [None, None]


@pytest.mark.parametrize("wrong", [
    lambda s, v: TRAINING.TrainStep(s, None, 3, v, 2, [None, None]),
    lambda s, v: TRAINING.TrainStep(s, None, 2, v, 1, [None, None]),
    lambda s, v: TRAINING.TrainStep(s, None, 2, v, 2, None),
    lambda s, v: TRAINING.TrainStep(s, None, 2, v, 2, (None, None)),
    lambda s, v: TRAINING.TrainStep(s, "options", 2, v, 2, [None, None]),
    lambda s, v: TRAINING.TrainStep(None, None, 2, v, 2, [None, None]),
    lambda s, v: TRAINING.ExportModelForInferencing(s, "x", 2, ["scores"]),
    lambda s, v: TRAINING.FreezeParameters(s, 0, ["fc2.bias"]),
    lambda s, v: TRAINING.GetLearningRate(s, None),
    lambda s, v: TRAINING.TrainingSessionGetTrainingModelInputName(s, 2, out(ORT.GetAllocatorWithDefaultOptions), Box()),
    lambda s, v: TRAINING.TrainingSessionGetTrainingModelInputName(s, 0, None, Box()),
    lambda s, v: TRAINING.LoadCheckpointFromBuffer(b"abc", 4, Box()),
])
def test_wrong_lengths_indices_and_missing_boxes_return_statuses(session, batch, wrong):
    assert code(wrong(session, [ort_value(array) for array in batch])) == ORT_INVALID_ARGUMENT


def test_eval_and_optimizer_model_may_be_null(state, batch):
    session = out(TRAINING.CreateTrainingSession, out(ORT.CreateEnv, 2, ""), None, state, TRAINING_MODEL, None, None)
    assert code(TRAINING.OptimizerStep(session, None)) == ORT_FAIL
    assert code(TRAINING.EvalStep(session, None, 2, [ort_value(array) for array in batch], 2, [None, None])) == ORT_FAIL
    assert code(TRAINING.CreateTrainingSession(None, None, state, TRAINING_MODEL, None, None, Box())) == ORT_INVALID_ARGUMENT


def test_a_checkpoint_may_be_released_before_its_session(state, session, batch):
    TRAINING.ReleaseCheckpointState(state)
    outputs = [None, None]
    assert TRAINING.TrainStep(session, None, 2, [ort_value(array) for array in batch], 2, outputs) is None
    with pytest.raises(UseAfterRelease, match="goes on"):
        TRAINING.SaveCheckpoint(state, "x", False)


def test_every_function_refuses_a_released_session(session, allocator):
    TRAINING.ReleaseTrainingSession(session)
    for name, function in inspect.getmembers(OrtTrainingApi, inspect.isfunction):
        parameters = list(inspect.signature(function).parameters)
        if parameters[0] in ("sess", "session"):
            with pytest.raises(UseAfterRelease):
                function(session, *[allocator if p == "allocator" else Box() for p in parameters[1:]])
                pytest.fail(name)
    TRAINING.ReleaseTrainingSession(None)                  # NULL is nothing to release


def test_strings_and_property_values_are_freed_once(state, session, allocator):
    name = out(TRAINING.TrainingSessionGetTrainingModelInputName, session, 0, allocator)
    assert name == "x"
    assert ORT.AllocatorFree(allocator, name) is None
    with pytest.raises(UseAfterRelease):
        ORT.AllocatorFree(allocator, name)
    assert TRAINING.AddProperty(state, "rate", OrtFloatProperty, 0.1) is None
    kind, value = Box(), Box()
    assert TRAINING.GetProperty(state, "rate", allocator, kind, value) is None
    assert kind.value is OrtFloatProperty and value.value == np.float32(0.1)
    assert ORT.AllocatorFree(allocator, value.value) is None and ORT.AllocatorFree(allocator, None) is None
    assert code(ORT.AllocatorFree(allocator, "mine")) == ORT_INVALID_ARGUMENT


@pytest.mark.parametrize(("kind", "value"), [(OrtIntProperty, 0.5), (OrtIntProperty, "1"), (OrtFloatProperty, "1"), (7, 1), (OrtIntProperty, 2**63)])
def test_a_property_value_must_have_its_stated_type(state, kind, value):
    assert code(TRAINING.AddProperty(state, "p", kind, value)) == ORT_INVALID_ARGUMENT


def test_a_status_is_released_once(state):
    status = TRAINING.LoadCheckpoint("nothing", Box())
    assert ORT.GetErrorCode(status) is OrtErrorCode.ORT_NO_SUCHFILE and "nothing" in ORT.GetErrorMessage(status)
    ORT.ReleaseStatus(status)
    with pytest.raises(UseAfterRelease):
        ORT.GetErrorMessage(status)
    ORT.ReleaseStatus(None)


def test_a_tensor_shares_the_callers_memory():
    memory = np.zeros(6, np.float32)
    value = ort_value(memory.reshape(2, 3))
    out(ORT.GetTensorMutableData, value)[:] = 3
    assert (memory == 3).all()
    info = out(ORT.CreateCpuMemoryInfo, capi.OrtDeviceAllocator, capi.OrtMemTypeDefault)
    assert code(ORT.CreateTensorWithDataAsOrtValue(info, memory, 23, [6], 1, 1, Box())) == ORT_INVALID_ARGUMENT
    assert code(ORT.CreateTensorWithDataAsOrtValue(info, memory, 24, [6], 2, 1, Box())) == ORT_INVALID_ARGUMENT
    assert code(ORT.CreateTensorWithDataAsOrtValue(None, memory, 24, [6], 1, 1, Box())) == ORT_INVALID_ARGUMENT


GARBAGE = [None, 3, -1, 0.5, "nothing", b"x", [], [None], object(), np.zeros(2)]


@pytest.mark.parametrize("table", [TRAINING, ORT], ids=["OrtTrainingApi", "OrtApi"])
def test_functions_raise_nothing_but_use_after_release_for_any_argument(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unguarded = {"CreateStatus", "GetErrorCode", "GetErrorMessage", "GetTrainingApi"}          # they return what they return, in C too
    for name, function in inspect.getmembers(type(table), inspect.isfunction):
        count = len(inspect.signature(function).parameters)
        for garbage in GARBAGE:
            if name in unguarded or name.startswith("Release"):
                continue
            status = function(*[garbage] * count)
            assert status is None or ORT.GetErrorMessage(status)
