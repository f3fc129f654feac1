"""Secure aggregation by Flower's own mod and workflow: the server learns the mean of the clients' arrays, and none of them."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import FitIns, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.compat.common.recorddict_compat import fitins_to_recorddict

from ortrain.federated import buffer_client_app, client_app, initial_arrays
from tests.federated.secure_rounds import MAX_WEIGHT, STEP, secure_rounds
from tests.federated.test_client import LABELS, X, make_session, refusal, values
from tests.federated.test_strategies import SIZES, part, rounds
from tests.federated.test_strategies import grid as plain_grid
from tests.federated.transport import LocalGrid, context, message

CLIENTS = len(SIZES)


def app(data=part, **arguments):
    return client_app(make_session, data, data, mods=[secaggplus_mod], **arguments)


def train_securely(where, number=1, **config):
    """Run rounds of secure aggregation; return the arrays by name and the history."""
    settings = {name.replace("_", "-"): value for name, value in config.items()}
    arrays, history = secure_rounds(where, context(), initial_arrays(make_session()), CLIENTS, number, settings)
    return values(arrays), history


def test_rounds_of_secure_aggregation_are_rounds_of_federated_averaging_to_quantization():
    where = LocalGrid(dict.fromkeys(range(CLIENTS), app()))
    found, history = train_securely(where, 3, batch_size=8)
    expected = rounds(plain_grid(), number=3, batch_size=8)
    assert not where.errors and list(found) == list(expected.arrays)
    for name, array in values(expected.arrays).items():
        np.testing.assert_allclose(found[name], array, atol=20 * STEP * MAX_WEIGHT / sum(SIZES), err_msg=name)
    losses = [loss for _, loss in history.losses_distributed]
    assert losses == pytest.approx([metrics["loss"] for metrics in expected.evaluate_metrics_clientapp.values()], rel=1e-3)


def test_the_server_receives_masked_arrays_only():
    def answers(node, reply):
        if reply.has_content() and Key.MASKED_PARAMETERS in reply.content.config_records.get(RECORD_KEY_CONFIGS, {}):
            replies.append(reply.content)
        return reply

    replies = []
    train_securely(LocalGrid(dict.fromkeys(range(CLIENTS), app()), answers), batch_size=8)
    assert len(replies) == CLIENTS and not any(record for content in replies for record in content.array_records.values())


def test_a_client_that_drops_out_half_way_is_left_out():
    def data(context):
        x, labels = part(context)
        return (x * 1e30, labels) if context.node_id == 1 else (x, labels)

    where = LocalGrid(dict.fromkeys(range(CLIENTS), app(data)))
    found, _ = train_securely(where, batch_size=8)
    others = rounds(plain_grid(answers=lambda node, reply: None if node == 1 else reply), batch_size=8)
    for name, array in values(others.arrays).items():
        np.testing.assert_allclose(found[name], array, atol=20 * STEP * MAX_WEIGHT / (SIZES[0] + SIZES[2]), err_msg=name)
    assert where.errors


def test_clients_that_exchange_buffers_take_part():
    def train(buffer, settings, context):
        with make_session() as session:
            session.from_buffer(buffer, trainable_only=True)
            session.train_step(*part(context))
            session.optimizer_step()
            return session.to_buffer(trainable_only=True), {"num-examples": SIZES[context.node_id], "loss": 0.0}

    apps = dict.fromkeys(range(CLIENTS), app()) | {2: buffer_client_app(train, mods=[secaggplus_mod])}
    found, _ = train_securely(LocalGrid(apps), batch_size=50)
    for name, array in values(rounds(plain_grid(), batch_size=50).arrays).items():
        np.testing.assert_allclose(found[name], array, atol=20 * STEP * MAX_WEIGHT / sum(SIZES), err_msg=name)


def test_arrays_without_names_are_counted():
    message("train", initial_arrays(make_session()))        # sets what Flower has in the process of a server
    sent = Message(fitins_to_recorddict(FitIns(ndarrays_to_parameters([np.zeros(3, np.float32)]), {}), keep_input=True), 0, "train")
    reason = "ParameterNotFoundError: expected the 4 arrays that the model trains, in the order of initial_arrays, got 1"
    assert refusal(client_app(make_session, lambda context: (X, LABELS)), sent) == reason
    both = Message(RecordDict(dict(sent.content) | {"arrays": initial_arrays(make_session())}), 0, "train")
    assert "expected one ArrayRecord" in refusal(client_app(make_session, lambda context: (X, LABELS)), both)
