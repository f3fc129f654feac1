"""SCAFFOLD: the formulas, what it is better at than FedAvg, and what it survives."""

import random

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg

from ortrain import SessionOptions, TrainingSession, errors
from ortrain.federated import GuardedGrid, Scaffold, client_app, initial_arrays, load_arrays
from ortrain.federated.control_variates import OWN
from tests.federated.test_client import make_normalized_session, make_session, normalized_data, refusal, values
from tests.federated.test_facades import echo
from tests.federated.transport import LocalGrid, context, message

FEATURES = 4
SIZES = [10, 20, 30, 60]
"""The samples of four clients."""
CLIENTS = len(SIZES)
STEPS, RATE = 5, 0.1


def linear():
    """x [n, 4] -> prediction [n, 1], of which the mean squared error is a quadratic function of the weights."""
    weights = {"weight": np.zeros((FEATURES, 1), np.float32), "bias": np.zeros(1, np.float32)}
    graph = helper.make_graph([helper.make_node("Gemm", ["x", "weight", "bias"], ["prediction"])], "linear",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
                              [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["n", 1])],
                              [numpy_helper.from_array(array, name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_linear_session(**arguments):
    return TrainingSession.from_model(linear(), loss="mse", optimizer="sgd", learning_rate=RATE, **arguments)


def samples(node):
    """The samples of a client, whose inputs and whose rule are its own."""
    rng = np.random.default_rng(node)
    x = (rng.standard_normal((SIZES[node], FEATURES)) * rng.uniform(0.3, 1.5, FEATURES)).astype(np.float32)
    return x, (x @ rng.standard_normal((FEATURES, 1)) + node).astype(np.float32)


def data(context):
    return samples(context.node_id)


def optimum():
    """Return the weights, bias last, with the least squared error over the samples of all clients."""
    x, y = (np.concatenate(part) for part in zip(*map(samples, range(CLIENTS)), strict=True))
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0].ravel()


def gradient(node, weights):
    """Return the gradient of the mean squared error of a client."""
    x, y = samples(node)
    x = np.c_[x, np.ones(len(x))]
    return 2 * x.T @ (x @ weights - y.ravel()) / len(x)


def flat(arrays):
    return np.concatenate([np.asarray(arrays[name]).ravel() for name in ("weight", "bias")])


def grid(app=None, nodes=CLIENTS, answers=lambda node, reply: reply):
    return LocalGrid(dict.fromkeys(range(nodes), app or client_app(make_linear_session, data)), answers)


def run(where, strategy, number, epochs=STEPS, make=make_linear_session, personal=()):
    """Run rounds in which every client takes full-batch steps."""
    random.seed(0)                                          # by which Flower draws clients
    return strategy.start(where, initial_arrays(make(), personal), num_rounds=number, train_config=ConfigRecord({"epochs": epochs, "batch-size": 100}))


def scaffold(nodes=CLIENTS, **arguments):
    return Scaffold(min_train_nodes=nodes, min_available_nodes=nodes, fraction_evaluate=0.0, **arguments)


def own(where, node):
    """Return a client's newest control variate."""
    state = where.contexts[node].state
    return values(state[max((name for name in state if name.startswith(OWN)), key=lambda name: int(name.removeprefix(OWN)))])


# ---- formulas


def test_rounds_of_one_step_are_those_of_the_paper():
    shares = np.array(SIZES) / sum(SIZES)
    weights, variates = np.zeros(FEATURES + 1), np.zeros((CLIENTS, FEATURES + 1))
    for _ in range(3):
        common = shares @ variates
        gradients = np.array([gradient(node, weights) for node in range(CLIENTS)])
        stepped = weights - RATE * (gradients - variates + common)
        variates = variates - common + (weights - stepped) / RATE
        weights = shares @ stepped
    where, strategy = grid(), scaffold()
    result = run(where, strategy, 3, epochs=1)
    np.testing.assert_allclose(flat(values(result.arrays)), weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(flat(strategy.control_variate()), shares @ variates, rtol=1e-4, atol=1e-6)
    for node in range(CLIENTS):
        np.testing.assert_allclose(flat(own(where, node)), variates[node], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_client_answers_the_change_of_the_second_option_of_the_paper(accumulate):
    rng, steps = np.random.default_rng(5), 3
    start = {"weight": rng.standard_normal((FEATURES, 1)).astype(np.float32), "bias": np.ones(1, np.float32)}
    common = {name: rng.standard_normal(array.shape).astype(np.float32) for name, array in start.items()}
    mine = {name: rng.standard_normal(array.shape).astype(np.float32) for name, array in start.items()}
    where = context(1)
    where.state[f"{OWN}4"] = record(mine)
    app = client_app(make_linear_session, lambda context: samples(1), accumulate=accumulate)
    sent = message("train", record(start), epochs=steps, batch_size=SIZES[1] // accumulate, control_variate=7, acknowledged_control_variate=4)
    sent.content["control-variates"] = record(common)
    reply = app(sent, where)
    trained, change = values(reply.content["arrays"]), values(reply.content["control-variates"])
    for name in start:
        np.testing.assert_allclose(change[name], (start[name] - trained[name]) / (steps * RATE) - common[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(where.state[f"{OWN}7"][name].numpy(), mine[name] + change[name], rtol=1e-5, atol=1e-6)


def record(arrays):
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def test_the_server_goes_a_share_of_the_way():
    whole, half = (run(grid(), scaffold(server_learning_rate=rate), 1).arrays for rate in (1.0, 0.5))
    np.testing.assert_allclose(flat(values(half)), flat(values(whole)) / 2, rtol=1e-6)


# ---- what it is for


def test_scaffold_finds_the_weights_that_are_best_for_all_where_federated_averaging_does_not():
    found = {kind: flat(values(run(grid(), strategy, 60).arrays))
             for kind, strategy in {"FedAvg": FedAvg(min_train_nodes=4, min_available_nodes=4, fraction_evaluate=0.0), "Scaffold": scaffold()}.items()}
    distances = {kind: float(np.linalg.norm(weights - optimum())) for kind, weights in found.items()}
    assert distances["Scaffold"] < 1e-5 and distances["FedAvg"] > 0.1, distances


def test_clients_that_take_part_in_some_rounds_only_find_them_too():
    strategy = Scaffold(fraction_train=0.5, min_available_nodes=4, fraction_evaluate=0.0)
    assert np.linalg.norm(flat(values(run(grid(), strategy, 200).arrays)) - optimum()) < 1e-5


def test_clients_with_a_class_each_train_a_better_classifier_than_by_federated_averaging():
    from tests.trainer.models import samples as classified

    x, labels = classified()
    order = np.argsort(labels, kind="stable")               # each client has mostly one class

    def part(context):
        return x[order][context.node_id * 17 : (context.node_id + 1) * 17], labels[order][context.node_id * 17 : (context.node_id + 1) * 17]

    losses = {}
    for kind, strategy in {"FedAvg": FedAvg(min_train_nodes=3, min_available_nodes=3, fraction_evaluate=0.0), "Scaffold": scaffold(3)}.items():
        result = run(grid(client_app(make_session, part), 3), strategy, 25, epochs=20, make=make_session)
        with make_session() as session:
            load_arrays(session, result.arrays)
            losses[kind] = float(session.eval_step(x, labels)[0])
    assert losses["Scaffold"] < 0.6 * losses["FedAvg"], losses


def test_running_statistics_are_averaged_and_have_no_control_variate():
    where, strategy = grid(client_app(make_normalized_session, normalized_data), 3), scaffold(3)
    result = run(where, strategy, 2, make=make_normalized_session)
    assert not where.errors and (values(result.arrays)["mean"] != 0).any()
    assert not strategy.control_variate()["mean"].any() and strategy.control_variate()["scale"].any()


def test_personal_parameters_have_no_control_variate():
    where, strategy = grid(client_app(make_normalized_session, normalized_data, personal="batch-normalization"), 3), scaffold(3)
    result = run(where, strategy, 2, make=make_normalized_session, personal="batch-normalization")
    assert not where.errors and strategy.control_variate().keys() == result.arrays.keys() == own(where, 0).keys()
    assert "scale" not in result.arrays


# ---- what it survives


def test_control_variates_of_lost_replies_do_not_count():
    def answers(node, reply):
        replies.append(node)
        return None if node == 1 and len(replies) % 3 == 0 else reply

    replies, strategy = [], scaffold()
    where = grid(answers=answers)
    result = run(where, strategy, 150)
    assert np.linalg.norm(flat(values(result.arrays)) - optimum()) < 1e-4 and not where.errors
    for node in range(CLIENTS):
        assert len([name for name in where.contexts[node].state if name.startswith(OWN)]) <= 2
    acknowledged = [values(where.contexts[node].state[f"{OWN}{number}"]) for node, number in sorted(strategy._acknowledged.items())]
    mean = sum(size * flat(variate) for size, variate in zip(SIZES, acknowledged, strict=True)) / sum(SIZES)
    np.testing.assert_allclose(flat(strategy.control_variate()), mean, rtol=1e-4, atol=1e-6)


def test_another_strategy_begins_without_the_control_variates_of_the_one_before():
    where = grid()
    run(where, scaffold(), 2)
    again, fresh = run(where, scaffold(), 1), run(grid(), scaffold(), 1)
    np.testing.assert_allclose(flat(values(again.arrays)), flat(values(fresh.arrays)), rtol=1e-6)


def test_wrong_control_variates_are_left_out_and_reported():
    def answers(node, reply):
        if node == 1:
            reply.content["control-variates"]["bias"] = Array(np.array([np.nan], np.float32))
        if node == 2:
            del reply.content["control-variates"]
        return reply

    for guard in (lambda where: where, GuardedGrid):
        strategy, found = scaffold(), []
        check = strategy._check_and_log_replies
        strategy._check_and_log_replies = lambda replies, **named: found.extend(replies) or check(replies, **named)
        result = run(guard(grid(answers=answers)), strategy, 1)
        others = run(grid(answers=lambda node, reply: reply if node in (0, 3) else None), scaffold(), 1)
        np.testing.assert_allclose(flat(values(result.arrays)), flat(values(others.arrays)), rtol=1e-6)
        reasons = sorted(reply.error.reason for reply in found if reply.has_error())
        assert reasons == ["InvalidArgumentError: expected an ArrayRecord 'control-variates' in a reply to SCAFFOLD, got ['arrays', 'metrics']",
                           "InvalidArgumentError: expected finite numbers of float32 in array 'bias', got nan at [0], one of 1 of 1"]


def test_a_client_that_has_lost_its_state_says_so():
    where = grid()
    strategy = scaffold()
    run(where, strategy, 1)
    where.contexts[2] = context(2)
    run(where, strategy, 1)
    assert where.errors == ["InvalidStateError: expected control variate 1 in the state of this client, as the server has it, got []: "
                            "the client has lost its state"]


def test_a_round_without_answers_changes_nothing():
    strategy = scaffold()
    assert not run(grid(answers=lambda node, reply: None), strategy, 1).arrays
    assert not flat(strategy.control_variate()).any()


def test_clients_refuse_where_they_cannot_change_gradients_and_what_they_do_not_know():
    def sent(**config):
        found = message("train", initial_arrays(make_linear_session()), **config)
        found.content["control-variates"] = initial_arrays(make_linear_session())
        return found

    in_backward = client_app(lambda: make_linear_session(options=SessionOptions(optimizer_in_backward=True)), lambda context: samples(0))
    assert refusal(in_backward, sent(control_variate=1)).startswith("InvalidStateError: expected gradients to keep, got a session with optimizer_in_backward")
    plain = message("train", initial_arrays(make_linear_session()), control_variate=1)
    app = client_app(make_linear_session, lambda context: samples(0))
    assert refusal(app, plain) == "InvalidArgumentError: expected control variates in a message of SCAFFOLD, got none"
    assert refusal(app, sent(control_variate=-1)) == "InvalidArgumentError: expected control-variate >= 0, got -1"
    assert refusal(echo(), sent(control_variate=1)).startswith("InvalidArgumentError: expected a message without control variates")


def test_mods_that_expect_one_record_of_arrays_refuse_messages_with_control_variates():
    where = grid(client_app(make_linear_session, data, mods=[LocalDpMod(clipping_norm=1.0, sensitivity=0.0, epsilon=1.0, delta=1e-5)]))
    run(where, scaffold(), 1)
    assert len(where.errors) == CLIENTS and "ArrayRecord" in where.errors[0]


def test_a_wrong_server_learning_rate_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="expected a finite server_learning_rate > 0, got 0"):
        Scaffold(server_learning_rate=0)


def test_replies_to_other_strategies_have_no_control_variates():
    reply = client_app(make_linear_session, lambda context: samples(0))(message("train", initial_arrays(make_linear_session())), context())
    assert list(reply.content) == ["arrays", "metrics"]
