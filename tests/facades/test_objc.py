"""The Objective-C facade with PyObjC's conventions: selectors, error boxes, and never an exception."""

import inspect

import numpy as np
import pytest

from ortrain import objc
from ortrain.objc import (
    Box,
    NSError,
    ORTCheckpoint,
    ORTEnv,
    ORTSessionOptions,
    ORTTensorElementDataTypeFloat,
    ORTTensorElementDataTypeInt64,
    ORTTrainingSession,
    ORTValue,
)
from tests.facades.conftest import CHECKPOINT, EVAL_MODEL, OPTIMIZER_MODEL, TRAINING_MODEL


@pytest.fixture
def checkpoint():
    return ORTCheckpoint.alloc().initWithPath_error_(CHECKPOINT, None)


@pytest.fixture
def session(checkpoint):
    return ORTTrainingSession.alloc().initWithEnv_sessionOptions_checkpoint_trainModelPath_evalModelPath_optimizerModelPath_error_(
        ORTEnv.alloc().initWithLoggingLevel_error_(2, None), ORTSessionOptions.alloc().initWithError_(None), checkpoint, TRAINING_MODEL, EVAL_MODEL,
        OPTIMIZER_MODEL, None)


def values(x, labels):
    init = "initWithTensorData_elementType_shape_error_"
    return [getattr(ORTValue.alloc(), init)(x, ORTTensorElementDataTypeFloat, x.shape, None),
            getattr(ORTValue.alloc(), init)(labels, ORTTensorElementDataTypeInt64, labels.shape, None)]


def test_an_init_returns_its_object(checkpoint):
    waiting = ORTCheckpoint.alloc()
    assert waiting.initWithPath_error_(CHECKPOINT, None) is waiting
    assert checkpoint.parameterNamesWithError_(None) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]


def test_options_of_ortrain_are_configuration_entries(checkpoint, batch):
    options = ORTSessionOptions.alloc().initWithError_(None)
    assert options.addConfigEntryWithKey_value_error_("ortrain.optimizer_in_backward", "1", None) is True
    session = ORTTrainingSession.alloc().initWithEnv_sessionOptions_checkpoint_trainModelPath_evalModelPath_optimizerModelPath_error_(
        ORTEnv.alloc().initWithLoggingLevel_error_(2, None), options, checkpoint, TRAINING_MODEL, EVAL_MODEL, OPTIMIZER_MODEL, None)
    error = Box()
    assert session.trainStepWithInputValues_error_(values(*batch), error) is not None
    assert session.trainStepWithInputValues_error_(values(*batch), error) is None
    assert "optimizer_in_backward" in error.value.localizedDescription


def test_a_successful_call_does_not_set_the_error_box(session, batch):
    error = Box()
    assert len(session.trainStepWithInputValues_error_(values(*batch), error)) == 2
    assert session.optimizerStepWithError_(error) is True
    assert session.getLearningRateWithError_(error) == 0.001
    assert error.value is None


@pytest.mark.parametrize("box", [True, False])
def test_a_failed_call_returns_nil_no_or_zero_with_or_without_an_error_box(session, checkpoint, box):
    for call, nil in [(lambda error: ORTCheckpoint.alloc().initWithPath_error_("nothing", error), None),
                      (lambda error: session.trainStepWithInputValues_error_([], error), None),
                      (session.schedulerStepWithError_, False),
                      (lambda error: checkpoint.getIntPropertyWithName_error_("nothing", error), 0),
                      (lambda error: checkpoint.getFloatPropertyWithName_error_("nothing", error), 0.0),
                      (lambda error: checkpoint.getStringPropertyWithName_error_("nothing", error), None)]:
        error = Box() if box else None
        result = call(error)
        assert result == nil and type(result) is type(nil)
        if box:
            assert isinstance(error.value, NSError) and error.value.domain == "onnxruntime" and error.value.localizedDescription
            assert error.value.userInfo["NSLocalizedDescription"] == error.value.localizedDescription


def test_a_plain_init_is_not_available():
    assert not hasattr(ORTTrainingSession, "init")
    error = Box()
    assert ORTTrainingSession.alloc().getLearningRateWithError_(error) == 0.0
    assert error.value.error_name == "InvalidStateError"


GARBAGE = [None, 3, -1, 0.5, "nothing", b"x", [], [None], {}, object(), np.zeros(2), float("nan")]


@pytest.mark.parametrize("name", ["ORTTrainingSession", "ORTCheckpoint", "ORTValue", "ORTSessionOptions", "ORTEnv"])
def test_messages_never_raise_for_any_argument(name, session, checkpoint, batch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objects = {"ORTTrainingSession": session, "ORTCheckpoint": checkpoint, "ORTValue": values(*batch)[0]}
    kind = getattr(objc, name)
    for selector, function in inspect.getmembers(kind, inspect.isfunction):
        if selector.startswith("_") or not selector.endswith("_"):
            continue
        count = len(inspect.signature(function).parameters) - 2
        for garbage in GARBAGE:
            for receiver in (kind.alloc(), objects.get(name, kind.alloc())):
                if not selector.startswith("init") or receiver is not objects.get(name):
                    function(receiver, *[garbage] * count, Box())
