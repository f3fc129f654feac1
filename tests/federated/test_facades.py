"""Clients written with the C#, Swift, Objective-C and C API in one round with those of Python."""

import random

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord

from ortrain import TrainingSession, errors
from ortrain.conformance.cases import ARTIFACTS, load_cases
from ortrain.conformance.drivers import LANGUAGES, driver_for
from ortrain.conformance.values import decoded
from ortrain.csharp import CheckpointState, OrtValue
from ortrain.csharp import TrainingSession as CSharpSession
from ortrain.federated import buffer_client_app, client_app, initial_arrays
from tests.federated.test_client import X, assert_same, make_session, refusal, values
from tests.federated.test_strategies import fed
from tests.federated.transport import LocalGrid, context, message

FOLDER = ARTIFACTS / "classifier"
MODELS = {"train_model": "training_model.onnx", "eval_model": "eval_model.onnx", "optimizer_model": "optimizer_model.onnx"}
CLIENTS, RATE = 10, 0.02


def batches(context):
    """Three batches of a client, in the order in which it trains on them, of as many samples as the number of the client says."""
    rng, size = np.random.default_rng(context.node_id), 3 + context.node_id
    return [(rng.standard_normal((size, 3), dtype=np.float32), rng.integers(0, 3, size)) for _ in range(3)]


def make_python_session():
    return TrainingSession.from_artifacts(FOLDER)


def app_in(language):
    """Return a client app whose functions make every call of the API in the spelling of a language."""
    driver = driver_for(language)

    def session_with(buffer):
        state = driver.call("checkpoint_state.load", None, {"path": str(FOLDER / "checkpoint")})
        session = driver.call("training_session.create", None, {"state": state} | {name: str(FOLDER / file) for name, file in MODELS.items()})
        driver.call("training_session.from_buffer", session, {"buffer": buffer, "trainable_only": True})
        return session

    def train(buffer, settings, context):
        session, losses, data = session_with(buffer), [], batches(context)
        driver.call("training_session.set_learning_rate", session, {"learning_rate": settings.learning_rate})
        for batch in data * settings.epochs:
            losses.append(float(driver.call("training_session.train_step", session, {"inputs": list(batch)})[0]))
            driver.call("training_session.optimizer_step", session, {})
            driver.call("training_session.lazy_reset_grad", session, {})
        trained = driver.call("training_session.to_buffer", session, {"trainable_only": True})
        return trained, {"num-examples": sum(len(labels) for _, labels in data), "loss": np.mean(losses[-len(data):])}

    def evaluate(buffer, settings, context):
        (batch, *_), session = batches(context), session_with(buffer)
        return {"num-examples": len(batch[1]), "loss": float(driver.call("training_session.eval_step", session, {"inputs": list(batch)})[0])}

    return buffer_client_app(train, evaluate)


PYTHON = client_app(make_python_session, batches, lambda context: batches(context)[:1], metrics=[])


def rounds(apps, number=2):
    where = LocalGrid(dict(enumerate(apps)))
    random.seed(0)                                          # in the order in which Flower draws clients, their arrays are summed
    result = fed(nodes=len(apps)).start(where, initial_arrays(make_python_session()), num_rounds=number,
                                        train_config=ConfigRecord({"learning-rate": RATE, "epochs": 2}))
    assert not where.errors
    return result


@pytest.mark.parametrize("others", [["csharp"], ["csharp", "swift", "objc", "c"]])
def test_a_round_with_clients_in_other_languages_has_the_bits_of_a_round_in_python(others):
    expected = rounds([PYTHON] * CLIENTS)
    found = rounds([*map(app_in, others), *[PYTHON] * (CLIENTS - len(others))])
    assert_same(values(found.arrays), values(expected.arrays))
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        assert losses(found, name) == pytest.approx(losses(expected, name), rel=1e-6)


def losses(result, name):
    return [metrics["loss"] for metrics in getattr(result, name).values()]


def test_clients_in_five_languages_train_one_model():
    found = losses(rounds([app_in(language) for language in LANGUAGES], 10), "evaluate_metrics_clientapp")
    assert found[-1] < found[0] and all(np.isfinite(found))


def test_the_conformance_case_holds_what_a_client_of_flower_answers():
    (case,) = [case for case in load_cases() if case.name == "a_client_takes_part_in_two_federated_rounds"]
    found = {name: [call for call in case.calls if call["call"] == f"training_session.{name}"] for name in ("from_buffer", "train_step", "to_buffer")}
    rate, = {call["arguments"]["learning_rate"] for call in case.calls if call["call"] == "training_session.set_learning_rate"}
    steps = [tuple(decoded(call["arguments"]["inputs"])) for call in found["train_step"]]
    assert len(found["from_buffer"]) == len(found["to_buffer"]) == 2
    for sent, answered, data in zip(found["from_buffer"], found["to_buffer"], (steps[: len(steps) // 2], steps[len(steps) // 2 :]), strict=True):
        with make_python_session() as session:
            session.from_buffer(decoded(sent["arguments"]["buffer"]), trainable_only=True)
            arrays = initial_arrays(session)
        reply = client_app(make_python_session, lambda context, data=data: data)(message("train", arrays, learning_rate=rate), context())
        flat = np.concatenate([array.ravel() for array in values(reply.content["arrays"]).values()])
        np.testing.assert_allclose(flat, decoded(answered["result"]), rtol=1e-5, atol=1e-6)


def echo(change=lambda buffer: buffer, **metrics):
    """Return a client app that returns a changed buffer."""
    return buffer_client_app(lambda buffer, settings, context: (change(buffer), {"num-examples": 3} | metrics))


def test_buffers_are_those_of_the_session_and_come_back_in_the_shapes_of_the_message():
    seen = []
    with make_session() as session:
        arrays, flat = initial_arrays(session), session.to_buffer(trainable_only=True)
    reply = echo(lambda buffer: seen.append(buffer.copy()) or buffer + 1)(message("train", arrays), context())
    np.testing.assert_array_equal(seen[0], flat)
    assert_same(values(reply.content["arrays"]), {name: array + 1 for name, array in values(arrays).items()})
    assert list(reply.content["arrays"]) == list(arrays) and dict(reply.content["metrics"]) == {"num-examples": 3}


@pytest.mark.parametrize("kind", ["FedAvg", "FedProx", "FedAdam", "FedMedian", "FedTrimmedAvg"])
def test_strategies_keep_the_order_of_the_arrays(kind):
    names = list(initial_arrays(make_session()))
    result = fed(kind).start(LocalGrid(dict.fromkeys(range(3), echo(loss=1.0))), initial_arrays(make_session()), num_rounds=2)
    assert list(result.arrays) == names


@pytest.mark.parametrize("app, text", [
    (echo(lambda buffer: buffer[1:]), "ParameterShapeError: expected a buffer of 163 elements from train, as many as it was given, got 162"),
    (echo(lambda buffer: buffer.astype(np.float64)), "ParameterTypeError: expected a buffer of float32 from train, got float64"),
    (echo(lambda buffer: buffer * np.nan), "InvalidStateError: expected finite parameters after local training, got nan at [0], one of 163 of 163"),
    (buffer_client_app(lambda buffer, settings, context: (buffer, {"loss": 1.0})),
     "InvalidArgumentError: expected metrics with 'num-examples', by which strategies weigh replies, got ['loss']"),
    (buffer_client_app(lambda buffer, settings, context: (buffer, {"num-examples": 0})), "InvalidArgumentError: expected a finite num-examples > 0, got 0")])
def test_wrong_answers_of_a_training_loop_are_refused(app, text):
    assert refusal(app, message("train", initial_arrays(make_session()))) == text


def test_errors_of_a_facade_become_replies():
    def train(buffer, settings, context):
        with CheckpointState.LoadCheckpoint(str(FOLDER / "checkpoint")) as state:
            session = CSharpSession(state, *(str(FOLDER / file) for file in MODELS.values()))
            session.FromBuffer(OrtValue.CreateTensorValueFromMemory(buffer, buffer.shape), onlyTrainable=True)

    other = ArrayRecord({"head.bias": Array(np.zeros(5, np.float32))})
    assert refusal(buffer_client_app(train), message("train", other)) == ("OnnxRuntimeException: [ErrorCode:InvalidArgument] "
                                                                          "Parameters buffer size incorrect. Expected:27, Actual:5")


def test_wrong_messages_and_arguments_are_refused():
    wrong = ArrayRecord({"head.bias": Array(np.array([1, np.inf], np.float32))})
    assert refusal(echo(), message("train", wrong)).startswith("InvalidArgumentError: expected finite numbers of float32 in array 'head.bias', got inf at [1]")
    arrays = initial_arrays(make_session())
    assert refusal(echo(), message("evaluate", arrays)) == "InvalidStateError: expected a function to evaluate with, buffer_client_app() was given none"
    for arguments, name in (((X,), "train"), ((print, X), "evaluate")):
        with pytest.raises(errors.ArgumentTypeError, match=f"expected a function as {name}, got ndarray"):
            buffer_client_app(*arguments)
