"""The Swift facade as a Swift programmer would use it."""

import inspect

import numpy as np
import pytest

from ortrain import errors
from ortrain.swift import ORTCheckpoint, ORTEnv, ORTError, ORTLoggingLevel, ORTSessionOptions, ORTTensorElementDataType, ORTTrainingSession, ORTValue
from tests.facades.conftest import CHECKPOINT, EVAL_MODEL, OPTIMIZER_MODEL, TRAINING_MODEL


@pytest.fixture
def checkpoint():
    return ORTCheckpoint(path=CHECKPOINT)


@pytest.fixture
def session(checkpoint):
    return ORTTrainingSession(env=ORTEnv(loggingLevel=ORTLoggingLevel.warning), sessionOptions=ORTSessionOptions(), checkpoint=checkpoint,
                              trainModelPath=TRAINING_MODEL, evalModelPath=EVAL_MODEL, optimizerModelPath=OPTIMIZER_MODEL)


def values(x, labels):
    return [ORTValue(tensorData=x, elementType=ORTTensorElementDataType.float, shape=x.shape),
            ORTValue(tensorData=labels, elementType=ORTTensorElementDataType.int64, shape=labels.shape)]


def test_a_training_loop(session, batch):
    inputs = values(*batch)
    session.registerLinearLRScheduler(withWarmupStepCount=1, totalStepCount=30, initialLr=0.1)
    losses = []
    for _ in range(20):
        losses.append(float(session.trainStep(withInputValues=inputs)[0].tensorData()[0]))
        session.optimizerStep()
        session.schedulerStep()
        session.lazyResetGrad()
    assert losses[-1] < 0.6 * losses[0]
    assert session.evalStep(withInputValues=inputs)[0].tensorTypeAndShapeInfo().shape == []


def test_options_of_ortrain_are_configuration_entries(checkpoint, batch):
    options = ORTSessionOptions()
    options.addConfigEntry(withKey="ortrain.optimizer_in_backward", value="1")
    session = ORTTrainingSession(env=ORTEnv(loggingLevel=ORTLoggingLevel.warning), sessionOptions=options, checkpoint=checkpoint,
                                 trainModelPath=TRAINING_MODEL, evalModelPath=EVAL_MODEL, optimizerModelPath=OPTIMIZER_MODEL)
    session.trainStep(withInputValues=values(*batch))
    with pytest.raises(ORTError, match="optimizer_in_backward"):
        session.trainStep(withInputValues=values(*batch))


def test_the_plain_init_is_refused():
    with pytest.raises(ORTError, match=r"expected arguments that fit an overload of ORTTrainingSession: \(env: ORTEnv, .*; got \(\)"):
        ORTTrainingSession()


def test_arguments_without_their_labels_are_refused(session, batch):
    with pytest.raises(TypeError):
        session.trainStep(values(*batch))
    with pytest.raises(TypeError):
        ORTCheckpoint(CHECKPOINT)
    session.setLearningRate(0.5)                           # _ lr: no label
    with pytest.raises(TypeError):
        session.setLearningRate(learningRate=0.5)


def test_functions_that_throw_in_swift_raise(checkpoint):
    with pytest.raises(ORTError) as caught:
        checkpoint.getIntProperty(withName="nothing")
    error = caught.value
    assert (error.domain, error.code, error.error_name) == ("onnxruntime", 2, "PropertyNotFoundError")
    assert error.localizedDescription == str(error) == "Property nothing not found."
    assert isinstance(error, errors.OrtrainError) and isinstance(error.__cause__, errors.PropertyNotFoundError)


def test_the_size_of_a_buffer_selects_the_parameters_to_fill(session, checkpoint):
    trainable, every = session.toBuffer(withTrainable=True), session.toBuffer(withTrainable=False)
    frozen = checkpoint.getParameter(withName="fc1.bias").tensorData().copy()
    trainable.tensorData()[:] = 1
    session.fromBuffer(with_=trainable)
    assert (session.toBuffer(withTrainable=True).tensorData() == 1).all()
    assert (checkpoint.getParameter(withName="fc1.bias").tensorData() == frozen).all()
    every.tensorData()[:] = 2
    session.fromBuffer(with_=every)
    assert (checkpoint.getParameter(withName="fc1.bias").tensorData() == 2).all()
    with pytest.raises(ORTError, match=r"Expected:27 \(trainable\) or 31 \(all\), Actual:30"):
        session.fromBuffer(with_=ORTValue(tensorData=np.zeros(30, np.float32), elementType=ORTTensorElementDataType.float, shape=[30]))
    with pytest.raises(ORTError, match="float32"):
        session.fromBuffer(with_=ORTValue(tensorData=np.zeros(27), elementType=ORTTensorElementDataType.double, shape=[27]))


def test_from_buffer_takes_no_flag():
    assert list(inspect.signature(ORTTrainingSession.fromBuffer).parameters) == ["self", "with_"]


def test_values_share_memory_and_have_type_and_shape():
    memory = bytearray(8)
    value = ORTValue(tensorData=memory, elementType=ORTTensorElementDataType.float, shape=[2])
    value.tensorData()[:] = [1, 2]
    assert memory == np.array([1, 2], np.float32).tobytes()
    info = value.tensorTypeAndShapeInfo()
    assert (info.elementType, info.shape) == (ORTTensorElementDataType.float, [2])
    with pytest.raises(ORTError, match="expected memory of int64 elements"):
        ORTValue(tensorData=bytearray(9), elementType=ORTTensorElementDataType.int64, shape=[1])
    with pytest.raises(ORTError, match="element type"):
        ORTValue(tensorData=memory, elementType=77, shape=[2])


def test_a_session_keeps_its_checkpoint_alive(batch):
    session = ORTTrainingSession(env=ORTEnv(loggingLevel=2), sessionOptions=ORTSessionOptions(), checkpoint=ORTCheckpoint(path=CHECKPOINT),
                                 trainModelPath=TRAINING_MODEL, evalModelPath=None, optimizerModelPath=None)
    assert len(session.trainStep(withInputValues=values(*batch))) == 2
