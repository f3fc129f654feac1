"""The client: what it does with a message, what it refuses, and what it keeps."""

import pickle

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from ortrain import TrainingSession, errors, lora
from ortrain.federated import client, client_app, initial_arrays, load_arrays
from ortrain.trainer import LambdaCallback
from tests.federated.transport import context, message
from tests.trainer.models import CLASSES, FEATURES, SAMPLES, classifier, samples
from tests.training.test_flat_buffers import normalized

X, LABELS = samples()


def make_session(model=None, optimizer="sgd", **arguments):
    return TrainingSession.from_model(model or classifier(), loss="cross-entropy", optimizer=optimizer, learning_rate=0.1, **arguments)


def make_scoring_session():
    return make_session(additional_output_names=["scores"])


def make_normalized_session():
    return make_session(normalized())


def data(context):
    """Every so-many-th sample."""
    node, nodes = context.node_config["partition-id"], context.node_config["num-partitions"]
    return X[node::nodes], LABELS[node::nodes]


def normalized_data(context):
    """Samples whose mean tells the clients apart."""
    rng = np.random.default_rng(context.node_id)
    return (rng.standard_normal((40, 20)) + context.node_id).astype(np.float32), rng.integers(0, 5, 40)


def values(record):
    return {name: array.numpy() for name, array in record.items()}


def trained(app, arrays, where=None, **config):
    """Return the arrays and metrics of a client's reply to a "train" message."""
    reply = app(message("train", arrays, **config), where or context())
    assert not reply.has_error(), reply.error
    return values(reply.content["arrays"]), dict(reply.content["metrics"])


def refusal(app, sent, where=None):
    """Return the reason of a client's error."""
    reply = app(sent, where or context())
    assert reply.has_error(), "expected a reply with an error"
    return reply.error.reason


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


# ---- training and evaluation


def test_a_client_trains_for_the_epochs_and_with_the_settings_of_the_round():
    arrays, sizes = initial_arrays(make_session()), []
    watch = LambdaCallback(on_gradients=lambda trainer, batches: sizes.append(trainer.session.learning_rate))
    _, metrics = trained(client_app(make_scoring_session, data, callbacks=[watch]), arrays, epochs=3, batch_size=20, learning_rate=0.5)
    assert sizes == [0.5] * 9 and metrics["num-examples"] == SAMPLES and 0 < metrics["accuracy"] <= 1
    sizes.clear()
    trained(client_app(make_session, data, callbacks=[watch]), arrays)
    assert sizes == [0.1] * 2, "expected one epoch of 32 samples a batch, with the learning rate of make_session"


def test_a_reply_holds_what_a_trainer_of_its_own_finds():
    with make_session() as session:
        arrays = initial_arrays(session)
        for name in ("hidden.weight", "hidden.bias", "head.weight", "head.bias"):
            session.state.array(name)[...] = arrays[name].numpy()
        loss, = session.train_step(X, LABELS)
        session.optimizer_step()
        expected = {name: session.state.array(name).copy() for name in arrays}
    found, metrics = trained(client_app(make_session, lambda context: (X, LABELS)), arrays, batch_size=SAMPLES)
    assert metrics == {"num-examples": SAMPLES, "loss": pytest.approx(float(loss), rel=1e-6)}
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7)


def test_evaluation_changes_nothing_and_reads_the_held_out_data():
    app = client_app(make_scoring_session, data, lambda context: {"x": X[:10], "labels": LABELS[:10]})
    arrays = initial_arrays(make_session())
    reply = app(message("evaluate", arrays), context())
    with make_scoring_session() as session:
        loss, scores = session.eval_step(X[:10], LABELS[:10])
    assert dict(reply.content["metrics"]) == {"num-examples": 10, "loss": pytest.approx(float(loss), rel=1e-6),
                                              "accuracy": pytest.approx((scores.argmax(1) == LABELS[:10]).mean())}
    assert not reply.content.array_records


def test_a_share_of_the_data_is_held_out_from_training():
    app = client_app(make_session, data, 0.2)
    arrays = initial_arrays(make_session())
    _, metrics = trained(app, arrays)
    evaluated = app(message("evaluate", arrays), context()).content["metrics"]
    assert (metrics["num-examples"], evaluated["num-examples"]) == (40, 10)


def test_a_client_without_validation_data_refuses_to_evaluate():
    reason = refusal(client_app(make_session, data), message("evaluate", initial_arrays(make_session())))
    assert reason == "InvalidStateError: expected validation data to evaluate, client_app() was given none"


def test_epochs_of_later_rounds_have_other_orders_of_samples():
    app, arrays = client_app(make_session, data), initial_arrays(make_session())
    first, again, second = (trained(app, arrays, server_round=number, batch_size=4)[0] for number in (1, 1, 2))
    assert_same(again, first)
    assert (second["head.bias"] != first["head.bias"]).any()


def test_a_mod_of_flower_finds_the_arrays_in_the_order_of_the_message():
    arrays = initial_arrays(make_session())
    shuffled = ArrayRecord({name: arrays[name] for name in sorted(arrays, reverse=True)})
    plain, _ = trained(client_app(make_session, data), arrays)
    limited, _ = trained(client_app(make_session, data, mods=[LocalDpMod(clipping_norm=1e-3, sensitivity=0.0, epsilon=1.0, delta=1e-5)]), shuffled)
    moved = [np.concatenate([(found[name] - arrays[name].numpy()).ravel() for name in arrays]) for found in (plain, limited)]
    assert np.linalg.norm(moved[1]) == pytest.approx(1e-3, rel=1e-2) and list(limited) == list(shuffled)
    np.testing.assert_allclose(moved[1] / np.linalg.norm(moved[1]), moved[0] / np.linalg.norm(moved[0]), atol=1e-3)


# ---- the session of a process


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_clients_use_one_session_and_do_not_influence_each_other(optimizer):
    made = []

    def make():
        made.append(make_session(classifier(dropout=0.3), optimizer=optimizer))
        return made[-1]

    arrays, contexts = initial_arrays(make()), [context(node, 3) for node in range(3)]
    made.clear()
    app = client_app(make, data)
    forward = [trained(app, arrays, where, server_round=2, batch_size=4)[0] for where in contexts]
    backward = [trained(app, arrays, where, server_round=2, batch_size=4)[0] for where in contexts[::-1]][::-1]
    for mine, again in zip(forward, backward, strict=True):
        assert_same(again, mine)
    assert len(made) == 1 and (forward[0]["head.bias"] != forward[1]["head.bias"]).any()


def test_random_masks_follow_from_the_number_of_the_partition_or_of_the_node():
    arrays, app = initial_arrays(make_session()), client_app(lambda: make_session(classifier(dropout=0.3)), lambda context: (X, LABELS))

    def head_of(node, config):
        where = context(node)
        where.node_config = config
        return trained(app, arrays, where)[0]["head.bias"].tolist()

    first, second = head_of(1, {"partition-id": 0}), head_of(1, {"partition-id": 1})
    assert head_of(2, {"partition-id": 0}) == first != second
    assert head_of(1, {}) == second == head_of(1, {"partition-id": "north"})


def test_copies_of_a_client_find_the_session_and_another_app_replaces_it():
    arrays, mine = initial_arrays(make_session()), client.Client("mine", make_session, data, None, (), {})
    others = client.Client("others", make_session, data, None, (), {})
    mine.train(message("train", arrays), context())
    session = client._workspaces["mine"].session
    pickle.loads(pickle.dumps(mine)).train(message("train", arrays), context())
    assert client._workspaces["mine"].session is session
    others.train(message("train", arrays), context())
    assert list(client._workspaces) == ["others"]
    with pytest.raises(errors.UseAfterRelease):
        session.train_step(X, LABELS)


def test_low_rank_adapters_travel_alone():
    adapted = lora.add(classifier(), targets="hidden.weight", rank=2)
    session = make_session(adapted, requires_grad=lora.parameters(adapted))
    assert set(initial_arrays(session)) == set(lora.parameters(adapted))
    found, _ = trained(client_app(lambda: session, data), initial_arrays(session))
    assert {array.shape for array in found.values()} == {(FEATURES, 2), (2, 16)}


def test_parameters_that_are_frozen_do_not_travel():
    session = make_session()
    session.freeze("hidden.*")
    assert set(initial_arrays(session)) == {"head.weight", "head.bias"}


# ---- running statistics and personal arrays


def test_running_statistics_travel_unless_they_are_personal():
    session = make_normalized_session()
    everything = set(initial_arrays(session))
    assert {"mean", "variance"} <= everything
    assert set(initial_arrays(session, "running-statistics")) == everything - {"mean", "variance"}
    assert set(initial_arrays(session, "batch-normalization")) == everything - {"mean", "variance", "scale", "bias"}
    found, _ = trained(client_app(lambda: session, normalized_data), initial_arrays(make_normalized_session()), context(1))
    assert (found["mean"] != 0).any() and set(found) == everything


def test_each_client_keeps_its_personal_arrays_in_its_context():
    session, seen = make_normalized_session(), []
    arrays = initial_arrays(make_normalized_session(), "batch-normalization")
    watch = LambdaCallback(on_fit_begin=lambda trainer: seen.append(float(session.state.array("mean").mean())))
    app = client_app(lambda: session, normalized_data, normalized_data, personal="batch-normalization", callbacks=[watch])
    contexts = [context(node, 2) for node in (1, 5)]
    for _ in range(2):
        for where in contexts:
            found, _ = trained(app, arrays, where, batch_size=40)
            assert found.keys() == arrays.keys()
    assert seen[:2] == [0, 0] and seen[2] != seen[3], "expected each client to go on with its own statistics"
    for where, start in zip(contexts, seen[2:], strict=True):
        app(message("evaluate", arrays), where)
        kept = where.state["ortrain.personal"]
        assert set(kept) == {"mean", "variance", "scale", "bias"}
        np.testing.assert_array_equal(session.state.array("mean"), kept["mean"].numpy())
        assert abs(kept["mean"].numpy().mean()) > abs(start)


def test_a_client_that_has_not_trained_evaluates_with_the_personal_arrays_of_make_session():
    session = make_normalized_session()
    arrays = initial_arrays(session, "batch-normalization")
    app = client_app(lambda: session, normalized_data, normalized_data, personal="batch-normalization")
    trained(app, arrays, context(5))
    app(message("evaluate", arrays), context(1))
    assert not session.state.array("mean").any()


def test_a_personal_head_stays_and_a_name_that_does_not_exist_is_refused():
    assert set(initial_arrays(make_session(), "head")) == {"hidden.weight", "hidden.bias"}
    for wrong in ("haed", "batch-normalization"):
        with pytest.raises(errors.ParameterNotFoundError, match=f"Parameter {wrong} not found"):
            initial_arrays(make_session(), [wrong])


# ---- the proximal term


def test_clients_move_less_with_a_larger_proximal_term():
    app, arrays = client_app(make_session, data), initial_arrays(make_session())
    start = values(arrays)

    def distance(mu):
        found, _ = trained(app, arrays, proximal_mu=mu, epochs=10, batch_size=10)
        return sum(float(((found[name] - array) ** 2).sum()) for name, array in start.items()) ** 0.5

    distances = [distance(mu) for mu in (0.0, 0.1, 1.0, 5.0)]
    assert distances == sorted(distances, reverse=True) and distances[0] > 2 * distances[-1] > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_proximal_gradient_is_mu_times_the_way_from_the_global_parameters(accumulate):
    mu, rate, count = 0.7, 0.1, 48
    arrays = initial_arrays(make_session())
    found, _ = trained(client_app(make_session, lambda context: (X[:count], LABELS[:count]), accumulate=accumulate), arrays, proximal_mu=mu,
                       batch_size=count // (2 * accumulate))
    order = np.random.default_rng((0, 0)).permutation(count)
    start, weights = values(arrays), values(arrays)
    with make_session() as session:
        for step in range(2):
            load_arrays(session, ArrayRecord({name: Array(array) for name, array in weights.items()}))
            picked = order[step * count // 2 : (step + 1) * count // 2]
            session.train_step(X[picked], LABELS[picked])
            gradients = {name: session.parameters[name].grad.copy() for name in weights}
            session.lazy_reset_grad()
            weights = {name: array - np.float32(rate) * (gradients[name] + np.float32(mu) * (array - start[name])) for name, array in weights.items()}
    for name, array in weights.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_proximal_term_leaves_personal_parameters_alone():
    arrays = initial_arrays(make_session(), "head")
    heads = []
    for mu in (0.0, 1e3):
        app = client_app(make_session, data, personal="head")
        where = context()
        trained(app, arrays, where, proximal_mu=mu, learning_rate=1e-4, epochs=5)
        heads.append(where.state["ortrain.personal"]["head.bias"].numpy())
    np.testing.assert_allclose(heads[1], heads[0], rtol=1e-2)


# ---- refusals


def changed(arrays, **changes):
    """Return a record with arrays replaced, or removed by None; _ in names stands for a point."""
    found = dict(arrays) | {name.replace("_", "."): array for name, array in changes.items()}
    return ArrayRecord({name: array for name, array in found.items() if array is not None})


def with_number(shape, number, dtype=np.float32):
    array = np.zeros(shape, dtype)
    array.flat[1] = number
    return Array(array)


HEADER = Array(np.zeros((1000, 1000), np.float32)).data[:128]
WRONG = {
    "a missing array": ({"head_bias": None}, errors.ParameterNotFoundError, r"expected the 4 arrays .* got 3; missing: \['head.bias'\], unknown: \[\]"),
    "an unknown array": ({"tail_bias": Array(np.zeros(3))}, errors.ParameterNotFoundError, r"got 5; missing: \[\], unknown: \['tail.bias'\]"),
    "another shape": ({"head_bias": Array(np.zeros((CLASSES, 1), np.float32))}, errors.ParameterShapeError, r"'head.bias' with shape \[3\], got \[3, 1\]"),
    "integers": ({"head_bias": Array(np.zeros(CLASSES, np.int64))}, errors.ParameterTypeError, "'head.bias' with dtype float32, got int64"),
    "NaN": ({"head_bias": with_number(CLASSES, np.nan)}, errors.InvalidArgumentError, r"of float32 in array 'head.bias', got nan at \[1\], one of 1 of 3"),
    "infinity": ({"head_weight": with_number((16, CLASSES), -np.inf)}, errors.InvalidArgumentError, r"'head.weight', got -inf at \[0, 1\]"),
    "a number too large": ({"head_bias": with_number(CLASSES, 1e300, np.float64)}, errors.InvalidArgumentError, r"'head.bias', got inf at \[1\]"),
    "no array": ({"head_bias": Array("float32", (3,), "numpy.ndarray", b"?")}, errors.InvalidArgumentError, "'head.bias' in NumPy's file format, got 1 bytes"),
    "a format of others": ({"head_bias": Array("float32", (3,), "torch", Array(np.zeros(3, np.float32)).data)}, errors.InvalidArgumentError, "as 'torch'"),
    "bytes that are missing": ({"head_bias": Array("float32", (3,), "numpy.ndarray", Array(np.zeros(3, np.float32)).data[:-4])}, errors.InvalidArgumentError,
                               "'head.bias' in NumPy's file format"),
    "a large promise": ({"head_bias": Array("float32", (3,), "numpy.ndarray", HEADER)}, errors.ParameterShapeError, r"\[3\], got \[1000, 1000\]"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arrays_are_refused_before_anything_changes(what):
    changes, kind, text = WRONG[what]
    with make_session() as session:
        before = session.to_buffer()
        wrong = changed(initial_arrays(session), **changes)
        for name in ("hidden.weight", "hidden.bias"):
            wrong[name] = Array(np.ones_like(session.state.array(name)))
        with pytest.raises(kind, match=text) as raised:
            load_arrays(session, wrong)
        assert type(raised.value) is kind
        np.testing.assert_array_equal(session.to_buffer(), before)
    assert refusal(client_app(make_session, data), message("train", wrong)).startswith(f"{kind.__name__}: ")


def test_floats_of_another_width_are_converted():
    with make_session() as session:
        load_arrays(session, ArrayRecord({name: Array(array.numpy().astype(np.float64) + 1) for name, array in initial_arrays(session).items()}))
        np.testing.assert_array_equal(session.state.array("head.bias"), np.ones(CLASSES, np.float32))


def test_a_client_that_diverges_replies_with_an_error_and_keeps_its_personal_arrays():
    app, where = client_app(make_session, data, personal="head"), context()
    arrays = initial_arrays(make_session(), "head")
    trained(app, arrays, where)
    kept = values(where.state["ortrain.personal"])
    reason = refusal(app, message("train", arrays, learning_rate=1e30, epochs=5), where)
    assert reason.startswith("InvalidStateError: expected a finite loss, got ") and "try a lower learning rate than 1e+30" in reason
    assert_same(values(where.state["ortrain.personal"]), kept)
    found, metrics = trained(app, arrays, where)
    assert all(np.isfinite(array).all() for array in found.values()) and np.isfinite(metrics["loss"]), "expected the client to take part in the next round"


def test_a_last_step_that_diverges_is_noticed():
    def enlarge(trainer, batches):
        for buffer in trainer.session.gradient_buffers():
            buffer.array *= 1e35

    app = client_app(make_session, data, callbacks=[LambdaCallback(on_gradients=enlarge)])
    reason = refusal(app, message("train", initial_arrays(make_session()), learning_rate=1e10, batch_size=SAMPLES))
    assert reason.startswith("InvalidStateError: expected finite parameters after local training, got ")


@pytest.mark.parametrize("config, text", [
    ({"epochs": 0}, "InvalidArgumentError: expected epochs >= 1, got 0"),
    ({"batch_size": "8"}, "ArgumentTypeError: expected a whole number as batch-size, got str"),
    ({"learning_rate": -1.0}, "InvalidArgumentError: expected a finite learning rate >= 0, got -1"),
    ({"proximal_mu": float("nan")}, "InvalidArgumentError: expected a finite proximal-mu >= 0, got nan")])
def test_wrong_settings_of_a_round_are_refused(config, text):
    assert refusal(client_app(make_session, data), message("train", initial_arrays(make_session()), **config)) == text


def test_messages_without_arrays_and_wrong_data_are_refused():
    sent = message("train", initial_arrays(make_session()))
    empty = Message(RecordDict({"config": ConfigRecord()}), 0, "train")
    assert "expected one ArrayRecord and at most one ConfigRecord in a message, got 0 and 1" in refusal(client_app(make_session, data), empty)
    assert refusal(client_app(make_session, lambda context: (X, LABELS + 5)), sent).startswith("LabelRangeError: ")
    assert "expected a TrainingSession from make_session, got str" in refusal(client_app(lambda: "session", data), sent)
    without = client_app(lambda: make_session(optimizer=None, requires_grad=["*"]), data)
    assert refusal(without, sent) == "InvalidStateError: expected a session with an optimizer from make_session, to train with"


def test_wrong_arguments_are_refused():
    with pytest.raises(errors.ArgumentTypeError, match="expected a function as data, got tuple"):
        client_app(make_session, (X, LABELS))
    for wrong in (1.5, 1, "0.1"):
        with pytest.raises(errors.InvalidArgumentError, match=r"expected a function or a share in \(0, 1\) as validation"):
            client_app(make_session, data, wrong)
    with pytest.raises(errors.InvalidArgumentError, match=r"expected settings among seed, metrics, .*, got patience"):
        client_app(make_session, data, patience=3)
    with pytest.raises(errors.InvalidArgumentError, match="expected accumulate >= 1, got 0"):
        client_app(make_session, data, accumulate=0)
