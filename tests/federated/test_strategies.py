"""Rounds of Flower's strategies with several clients."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies

from ortrain import TrainingSession
from ortrain.federated import GuardedGrid, client_app, initial_arrays, load_arrays
from tests.federated.test_client import LABELS, SAMPLES, X, assert_same, make_normalized_session, make_session, normalized_data, values
from tests.federated.transport import LocalGrid, message

SIZES = [8, 12, 30]
"""The samples of three clients, all different and SAMPLES together."""


def part(context):
    """Consecutive samples, as many as SIZES says."""
    end = sum(SIZES[: context.node_id + 1])
    return X[end - SIZES[context.node_id] : end], LABELS[end - SIZES[context.node_id] : end]


def grid(make=make_session, data=part, nodes=3, answers=lambda node, reply: reply, **arguments):
    return LocalGrid(dict.fromkeys(range(nodes), client_app(make, data, data, **arguments)), answers)


def fed(kind="FedAvg", nodes=3, **arguments):
    return getattr(strategies, kind)(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes, **arguments)


def rounds(where, strategy=None, make=make_session, number=1, personal=(), **config):
    """Run a strategy; return its result."""
    settings = ConfigRecord({name.replace("_", "-"): value for name, value in config.items()})
    return (strategy or fed()).start(where, initial_arrays(make(), personal), num_rounds=number, train_config=settings)


def test_a_round_of_full_batch_steps_is_a_step_with_all_samples():
    with make_session() as session:
        session.learning_rate = 0.3
        for _ in range(3):
            session.train_step(X, LABELS)
            session.optimizer_step()
            session.lazy_reset_grad()
        expected, loss = values(initial_arrays(session)), float(session.eval_step(X, LABELS)[0])
    result = rounds(grid(), number=3, batch_size=SAMPLES, learning_rate=0.3)
    for name, array in values(result.arrays).items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-5, atol=1e-6, err_msg=name)
    assert result.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("kind, arguments", [("FedAvg", {}), ("FedProx", {"proximal_mu": 0.1}), ("FedAdam", {"eta": 0.05}), ("FedYogi", {"eta": 0.05}),
                                             ("FedAdagrad", {"eta": 0.05}), ("FedAvgM", {"server_momentum": 0.5}), ("FedMedian", {}), ("FedTrimmedAvg", {})])
def test_clients_work_with_the_strategy(kind, arguments):
    arrays = initial_arrays(make_session())
    where = grid()
    result = fed(kind, **arguments).start(where, arrays, num_rounds=5, train_config=ConfigRecord({"batch-size": 8, "epochs": 2}))
    losses = [metrics["loss"] for metrics in result.evaluate_metrics_clientapp.values()]
    assert len(losses) == 5 and losses[-1] < losses[0] and not where.errors
    with make_session() as session:
        load_arrays(session, result.arrays)
        assert float(session.eval_step(X, LABELS)[0]) == pytest.approx(losses[-1], rel=1e-5)


def test_a_client_that_drops_out_is_left_out():
    def answers(node, reply):
        return None if node == 1 else reply

    assert_same(values(rounds(grid(answers=answers), batch_size=8).arrays), mean_of([0, 2], batch_size=8))


def mean_of(nodes, **config):
    """Return the mean of what some of the clients answer alone, weighted by their samples."""
    found = []
    for node in nodes:
        alone = rounds(grid(answers=lambda sender, reply: reply if sender == node else None), **config)
        found.append((SIZES[node] / sum(SIZES[node] for node in nodes), values(alone.arrays)))
    return {name: sum(array[name] * share for share, array in found) for name in found[0][1]}


def test_a_client_that_diverges_is_left_out_and_reported():
    def data(context):
        x, labels = part(context)
        return (x * 1e30, labels) if context.node_id == 1 else (x, labels)

    where = grid(data=data)
    result = rounds(where, batch_size=4)
    assert_same(values(result.arrays), mean_of([0, 2], batch_size=4))
    assert "InvalidStateError: expected a finite loss, got " in where.errors[0]


def test_the_global_model_survives_a_round_without_answers():
    where = grid(data=lambda context: (X * 1e30, LABELS))
    strategy = fed()
    sent = []
    configure = strategy.configure_train
    strategy.configure_train = lambda server_round, arrays, config, grid: sent.append(values(arrays)) or configure(server_round, arrays, config, grid)
    rounds(where, strategy, number=2, batch_size=4)
    assert len(where.errors) >= 6
    assert_same(sent[1], sent[0])


def test_running_statistics_are_averaged_by_samples():
    start = initial_arrays(make_normalized_session())
    result = rounds(grid(make_normalized_session, normalized_data), make=make_normalized_session, batch_size=40)
    means = []
    for node in range(3):
        alone = rounds(grid(make_normalized_session, normalized_data, answers=lambda sender, reply: reply if sender == node else None),
                       make=make_normalized_session, batch_size=40)
        means.append(values(alone.arrays)["mean"])
    found = values(result.arrays)["mean"]
    np.testing.assert_allclose(found, np.mean(means, axis=0), rtol=1e-6)
    assert (found != start["mean"].numpy()).all() and (means[0] != means[2]).all()


def test_personal_statistics_stay_with_clients_whose_data_differ():
    where = grid(make_normalized_session, normalized_data, personal="batch-normalization")
    result = rounds(where, make=make_normalized_session, number=3, personal="batch-normalization", batch_size=10)
    kept = [context.state["ortrain.personal"]["mean"].numpy() for context in where.contexts.values()]
    assert not where.errors and "mean" not in result.arrays
    assert (kept[0] != kept[1]).all() and (kept[1] != kept[2]).all()


def test_clients_with_another_model_are_reported_and_left_out():
    def make_other():
        from tests.trainer.models import classifier

        return TrainingSession.from_model(classifier(), loss="cross-entropy", optimizer="sgd", requires_grad=["head.weight"])

    apps = {node: client_app(make_other if node == 1 else make_session, part, part) for node in range(3)}
    where = LocalGrid(apps)
    result = rounds(where, batch_size=8)
    assert_same(values(result.arrays), mean_of([0, 2], batch_size=8))
    assert where.errors[0].startswith("ParameterNotFoundError: expected the 1 arrays that the model trains, got 4")


def reply_with(reply, arrays=None, **metrics):
    """Return a reply with other arrays or metrics, _ in names of which stands for -."""
    found = dict(reply.content["metrics"]) | {name.replace("_", "-"): value for name, value in metrics.items()}
    content = {"arrays": ArrayRecord(dict(reply.content["arrays"]) | (arrays or {})), "metrics": MetricRecord(found)}
    changed = Message(RecordDict(content), reply_to=message("train", ArrayRecord()))
    changed.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return changed


@pytest.mark.parametrize("wrong, text", [
    ({"arrays": {"head.bias": Array(np.array([0, np.nan, 1], np.float32))}}, "InvalidArgumentError: expected finite numbers of float32 in array 'head.bias'"),
    ({"arrays": {"head.bias": Array(np.zeros((3, 3), np.float32))}}, r"ParameterShapeError: expected array 'head.bias' with shape [3], got [3, 3]"),
    ({"arrays": {"tail.bias": Array(np.zeros(3))}}, "ParameterNotFoundError: expected the 4 arrays that the model trains, got 5"),
    ({"num_examples": -20}, "InvalidArgumentError: expected a finite num-examples > 0, got -20"),
    ({"num_examples": float("inf")}, "InvalidArgumentError: expected a finite num-examples > 0, got inf"),
    ({"num_examples": 0}, "InvalidArgumentError: expected a finite num-examples > 0, got 0"),
    ({"num_examples": [1, 2]}, "ArgumentTypeError: expected a number as num-examples, got list")])
def test_a_guarded_grid_leaves_out_replies_that_would_harm_the_model(wrong, text):
    def answers(node, reply):
        return reply_with(reply, **wrong) if node == 1 and reply.content.array_records else reply

    class Watched(GuardedGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            reasons.extend((reply.metadata.src_node_id, reply.error.reason) for reply in replies if reply.has_error())
            return replies

    reasons = []
    assert_same(values(rounds(Watched(grid(answers=answers)), batch_size=8).arrays), mean_of([0, 2], batch_size=8))
    (node, reason), = reasons
    assert node == 1 and reason.startswith(text)


def test_a_guarded_grid_hands_on_everything_else():
    where = GuardedGrid(grid(data=lambda context: (X * 1e30, LABELS) if context.node_id == 1 else part(context)))
    result = rounds(where, number=2, batch_size=4)
    assert len(result.evaluate_metrics_clientapp) == 2 and list(where.get_node_ids()) == [0, 1, 2]
    assert where.errors[0].startswith("InvalidStateError: ")


def test_a_strategy_continues_from_the_arrays_of_a_session():
    first = rounds(grid(), number=1, batch_size=8)
    with make_session() as session:
        load_arrays(session, first.arrays)
        again = initial_arrays(session)
    assert_same(values(again), values(first.arrays))
    assert isinstance(again, ArrayRecord) and isinstance(again["head.bias"], Array)
