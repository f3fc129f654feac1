"""The moving average of weights."""

import numpy as np
import pytest

from ortrain import TrainingSession, errors
from ortrain.training.weight_average import WeightAverage
from tests.test_session import DATA, batch, steps
from tests.training.test_optimizers import BATCHES, session_of, train


def weights(session):
    return {name: array.copy() for name, array in session.state.trainable.items()}


@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_follows_its_formula(warmup):
    with session_of("adamw") as session:
        average, expected = WeightAverage(session, 0.9, warmup=warmup), {name: array.astype(float) for name, array in weights(session).items()}
        for number, one in enumerate(BATCHES):
            train(session, [one])
            average.update()
            decay = min(0.9, (1 + number) / (10 + number)) if warmup else 0.9
            expected = {name: decay * value + (1 - decay) * session.state.trainable[name] for name, value in expected.items()}
        for name, array in average.state_dict().items():
            if name != "updates":
                np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


def test_evaluation_and_export_use_the_average_and_training_goes_on_with_the_weights(tmp_path):
    with session_of("adamw") as session:
        average = WeightAverage(session, 0.5)
        train(session)
        average.update()
        before, loss = weights(session), float(session.eval_step(*BATCHES[0])[0])
        with average.applied():
            averaged = weights(session)
            assert float(session.eval_step(*BATCHES[0])[0]) != loss
            session.export(tmp_path / "averaged.onnx")
        assert (tmp_path / "averaged.onnx").stat().st_size > 0
        assert any(not np.array_equal(averaged[name], array) for name, array in before.items())
        for name, array in before.items():
            np.testing.assert_array_equal(session.state.trainable[name], array)
        assert float(session.eval_step(*BATCHES[0])[0]) == loss


def test_an_exception_inside_gives_the_weights_back():
    with session_of("adamw") as session:
        average = WeightAverage(session)
        train(session)
        before = weights(session)
        with pytest.raises(ZeroDivisionError), average.applied():
            raise ZeroDivisionError
        for name, array in before.items():
            np.testing.assert_array_equal(session.state.trainable[name], array)
        average.update()


def test_frozen_parameters_and_running_statistics_are_left_alone():
    with TrainingSession.from_artifacts(DATA / "cnn_bn") as session:
        average = WeightAverage(session)
        steps(session, batch("cnn_bn"), 2)
        frozen = {name: array.copy() for name, array in session.state.frozen.items()}
        with average.applied():
            for name, array in frozen.items():
                np.testing.assert_array_equal(session.state.frozen[name], array)
        assert set(average.state_dict()) == {*session.state.trainable, "updates"}


def test_a_saved_average_continues_with_the_same_bits():
    with session_of("adamw") as session:
        whole, first = WeightAverage(session, 0.9), WeightAverage(session, 0.9)
        train(session, BATCHES[:2])
        whole.update()
        first.update()
        second = WeightAverage(session, 0.9)
        second.load_state_dict(first.state_dict())
        train(session, BATCHES[2:])
        whole.update()
        second.update()
        assert second.updates == whole.updates == 2
        for name, array in whole.state_dict().items():
            np.testing.assert_array_equal(second.state_dict()[name], array)


def test_a_state_that_does_not_fit_changes_nothing():
    with session_of("adamw") as session:
        average = WeightAverage(session)
        good = average.state_dict()
        for wrong, error in (({**good, "other": good["w0"]}, errors.ParameterNotFoundError), ({"updates": 1}, errors.ParameterNotFoundError),
                             ({**good, "w0": good["w0"].T.copy()}, errors.ParameterShapeError),
                             ({**good, "w0": good["w0"].astype(float)}, errors.ParameterTypeError),
                             ({**good, "w1": good["w1"] + 1, "updates": np.array(-1)}, errors.InvalidArgumentError), ([], errors.ArgumentTypeError)):
            with pytest.raises(error):
                average.load_state_dict(wrong)
        for name, array in average.state_dict().items():
            np.testing.assert_array_equal(array, good[name])


def test_updates_and_second_applications_inside_are_refused():
    with session_of("adamw") as session:
        average = WeightAverage(session)
        with average.applied():
            for call in (average.update, average.state_dict, lambda: average.applied().__enter__(), lambda: average.load_state_dict({})):
                with pytest.raises(errors.InvalidStateError, match="outside of its applied"):
                    call()


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_a_decay_out_of_range_is_refused(decay):
    with session_of("adamw") as session, pytest.raises(errors.InvalidArgumentError, match="decay"):
        WeightAverage(session, decay)
