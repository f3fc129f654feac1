"""Differential privacy at the level of clients, by Flower's strategies, mods and accountant, and at that of their samples, by private sessions."""

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

import dp_accounting
from flwr.app import ConfigRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyServerSideFixedClipping

from ortrain import DifferentialPrivacy, SessionOptions
from ortrain.federated import Scaffold, client_app, equal_weights_mod, initial_arrays
from ortrain.federated.control_variates import OWN
from tests.federated.test_client import data, make_session, trained, values
from tests.federated.test_strategies import SIZES, fed, part
from tests.federated.transport import LocalGrid, context, message

CLIENTS, NORM, NOISE, DELTA = len(SIZES), 0.05, 1.2, 1e-3


def private_rounds(kind, number=1, noise=NOISE, mods=(equal_weights_mod,), **limits):
    """Run rounds; return the movement of the global arrays as one vector, the strategy and the grid."""
    accountant = RdpAccountant(PrivacyConfig(DELTA, CLIENTS, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, **limits))
    np.random.seed(0)                                       # by which Flower draws the noise
    strategy = kind(fed(fraction_evaluate=0.0), noise, NORM, CLIENTS, accountant=accountant)
    where = LocalGrid(dict.fromkeys(range(CLIENTS), client_app(make_session, part, part, mods=list(mods))))
    start = initial_arrays(make_session())
    result = strategy.start(where, start, num_rounds=number, train_config=ConfigRecord({"batch-size": 4, "epochs": 3}))
    moved = np.concatenate([(values(result.arrays)[name] - array).ravel() for name, array in values(start).items()]) if result.arrays else np.zeros(1)
    return moved, strategy, where


@pytest.mark.parametrize("kind, mods", [(DifferentialPrivacyServerSideFixedClipping, [equal_weights_mod]),
                                        (DifferentialPrivacyClientSideFixedClipping, [equal_weights_mod, fixedclipping_mod])])
def test_what_clients_have_learned_is_clipped_before_it_is_averaged(kind, mods):
    moved, _, where = private_rounds(kind, noise=1e-9, mods=mods)
    assert not where.errors and 0.2 * NORM < np.linalg.norm(moved) <= NORM * (1 + 1e-3)


def test_the_noise_of_the_average_is_that_of_the_mechanism():
    quiet, loud = (private_rounds(DifferentialPrivacyServerSideFixedClipping, noise=noise)[0] for noise in (1e-9, NOISE))
    deviation = (loud - quiet).std()
    assert deviation == pytest.approx(NOISE * NORM / CLIENTS, rel=4 / np.sqrt(2 * len(loud)))


def test_the_accountant_says_what_several_rounds_spend():
    _, strategy, _ = private_rounds(DifferentialPrivacyServerSideFixedClipping, 3)
    reference = dp_accounting.rdp.RdpAccountant()
    reference.compose(dp_accounting.GaussianDpEvent(NOISE), 3)
    assert strategy.privacy_spent().epsilon == pytest.approx(reference.get_epsilon(DELTA))


def test_training_ends_before_the_budget_is_exceeded():
    spent = private_rounds(DifferentialPrivacyServerSideFixedClipping, 2)[1].privacy_spent().epsilon
    with pytest.raises(PrivacyBudgetExhausted):
        private_rounds(DifferentialPrivacyServerSideFixedClipping, 3, max_epsilon=1.01 * spent)


def test_clients_of_different_size_are_refused_without_equal_weights():
    with pytest.raises(ValueError, match="equal client weights"):
        private_rounds(DifferentialPrivacyServerSideFixedClipping, mods=())


def test_equal_weights_are_for_training_alone():
    app = client_app(make_session, part, part, mods=[equal_weights_mod])
    arrays = initial_arrays(make_session())
    examples = [app(message(kind, arrays, 1), context(1)).content["metrics"]["num-examples"] for kind in ("train", "evaluate")]
    assert examples == [1, SIZES[1]]
    assert app(message("train", arrays, 1, epochs=0), context(1)).has_error()


# ---- privacy of single samples


def private_session(noise=NOISE, limit=1e-6):
    privacy = DifferentialPrivacy(noise_multiplier=noise / limit, max_grad_norm=limit)
    return make_session(options=SessionOptions(intra_op_num_threads=1, differential_privacy=privacy))


def test_clients_train_privately_by_sample():
    start = initial_arrays(private_session())
    for batch_size in (5, 10):
        arrays, _ = trained(client_app(private_session, data), start, batch_size=batch_size, epochs=1, learning_rate=0.01)
        moved = np.concatenate([(arrays[name] - array).ravel() for name, array in values(start).items()])
        steps = -(-len(data(context())[0]) // batch_size)
        assert moved.std() == pytest.approx(0.01 * np.sqrt(steps) * NOISE / batch_size, rel=0.3)


def test_control_variates_are_of_gradients_with_noise():
    where = LocalGrid({0: client_app(private_session, data)})
    strategy = Scaffold(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    strategy.start(where, initial_arrays(private_session()), num_rounds=1, train_config=ConfigRecord({"batch-size": 20, "epochs": 1}))
    (kept,) = [record for name, record in where.contexts[0].state.items() if name.startswith(OWN)]
    own = np.concatenate([array.ravel() for array in values(kept).values()])
    steps = -(-len(data(context())[0]) // 20)
    assert not where.errors and own.std() == pytest.approx(NOISE / 20 / np.sqrt(steps), rel=0.3)
