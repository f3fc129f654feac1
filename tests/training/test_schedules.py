"""Learning-rate schedules, and learning rates that make no sense."""

import json
import math

import numpy as np
import pytest

from ortrain import TrainingSession, api, errors
from ortrain.artifacts import LossType
from ortrain.training.schedules import (
    SCHEDULES,
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    MultiStepSchedule,
    OneCycleSchedule,
    PlateauSchedule,
    PolynomialSchedule,
    StepSchedule,
    make_schedule,
)
from tests.test_session import DATA
from tests.training.test_optimizers import BATCHES, session_of, small, train

OPTIONS = {"step": {"step_size": 10}, "multi_step": {"milestones": [10, 20]}, "exponential": {"factor": 0.9}}
NO_RATES = (-0.1, float("nan"), float("inf"), -float("inf"))


def rates(schedule, steps):
    return [schedule.rate(step) for step in steps]


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "one_cycle"])
def test_every_schedule_warms_up_linearly_from_zero(name):
    schedule = make_schedule(name, 40, 0.2, warmup_steps=4, **OPTIONS.get(name, {}))
    np.testing.assert_allclose(rates(schedule, range(5)), [0, 0.05, 0.1, 0.15, 0.2])
    assert schedule.initial_learning_rate == 0.2
    assert make_schedule(name, 40, 0.2, **OPTIONS.get(name, {})).rate(0) == pytest.approx(0.2)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_gives_finite_rates_also_after_its_end(name):
    for warmup in (0, 3, 40):
        schedule = make_schedule(name, 40, 0.2, warmup_steps=warmup, **OPTIONS.get(name, {}))
        assert all(0 <= rate <= 0.2 * (1 + 1e-12) for rate in rates(schedule, range(100)))


def test_schedules_follow_their_formulas():
    assert rates(ConstantSchedule(0.1), (0, 1000)) == [0.1, 0.1]
    np.testing.assert_allclose(rates(CosineSchedule(0.1, 40, final_learning_rate=0.02), (0, 20, 40, 50)), [0.1, 0.06, 0.02, 0.02])
    np.testing.assert_allclose(rates(CosineSchedule(0.1, 40, cycles=2), (0, 10, 20, 30, 40)), [0.1, 0.05, 0.1, 0.05, 0], atol=1e-15)
    np.testing.assert_allclose(rates(PolynomialSchedule(0.1, 40, power=2.0, warmup_steps=20), (20, 30, 40)), [0.1, 0.025, 0])
    np.testing.assert_allclose(rates(StepSchedule(0.1, 10, factor=0.5), (9, 10, 19, 20)), [0.1, 0.05, 0.05, 0.025])
    np.testing.assert_allclose(rates(MultiStepSchedule(0.1, [10, 15]), (9, 10, 15, 99)), [0.1, 0.01, 0.001, 0.001])
    np.testing.assert_allclose(rates(ExponentialSchedule(0.1, 0.9, warmup_steps=2), (2, 3, 4)), [0.1, 0.09, 0.081])
    np.testing.assert_allclose(rates(LinearSchedule(2, 12, 0.1), (0, 1, 2, 7, 12, 20)), [0, 0.05, 0.1, 0.05, 0, 0])


def test_one_cycle_has_the_rates_of_pytorch():
    """Values that torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50) gives after 0, 7, 14, 30 and 49 steps."""
    np.testing.assert_allclose(rates(OneCycleSchedule(0.1, 50), (0, 7, 14, 30, 49)), [0.004, 0.052, 0.1, 0.05671, 4e-7], rtol=1e-4)
    schedule = OneCycleSchedule(0.1, 50, warmup_steps=5)
    assert schedule.rate(5) == pytest.approx(0.1) and schedule.rate(4) < 0.1 > schedule.rate(6)


def test_a_plateau_reduces_the_rate_when_the_metric_stops_improving():
    schedule = PlateauSchedule(0.1, factor=0.5, patience=1, cooldown=1, final_learning_rate=0.02)
    found = [schedule.update(metric) for metric in (1.0, 0.9, 0.9, 0.95, 0.95, 0.95, 0.95, float("nan"), 1, 1, 1, 1)]
    assert found == [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.02, 0.02, 0.02]
    negative = PlateauSchedule(0.1, mode="max", patience=0, threshold=0.1)
    assert [negative.update(metric) for metric in (-1.0, -0.8, -0.75)] == pytest.approx([0.1, 0.1, 0.01])
    with pytest.raises(errors.ArgumentTypeError, match="metric"):
        negative.update("0.5")
    best = PlateauSchedule(0.1, mode="max", patience=0)
    assert [best.update(metric) for metric in (0.5, 0.6, 0.6)] == pytest.approx([0.1, 0.1, 0.01])


def test_a_plateau_continues_from_its_state():
    metrics = np.random.default_rng(2).random(40)
    whole, first, second = (PlateauSchedule(0.1, factor=0.5, patience=2, cooldown=1) for _ in range(3))
    expected = [whole.update(metric) for metric in metrics]
    for metric in metrics[:20]:
        first.update(metric)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [second.update(metric) for metric in metrics[20:]] == expected[20:]
    with pytest.raises(errors.InvalidArgumentError, match="state of a plateau schedule"):
        second.load_state_dict({"best": 1})


def test_a_session_takes_any_schedule():
    with session_of("adamw") as session:
        session.register_schedule(make_schedule("cosine", 10, 0.1, warmup_steps=2))
        assert session.learning_rate == 0
        for step, batch in enumerate(BATCHES, 1):
            train(session, [batch])
            session.schedule_step()
            assert session.learning_rate == CosineSchedule(0.1, 10, warmup_steps=2).rate(step)
        assert session.state.initial_learning_rate == 0.1


def test_an_unknown_schedule_or_option_is_refused_with_the_known_ones():
    with pytest.raises(errors.InvalidArgumentError, match=f"among {', '.join(SCHEDULES)}, got 'cosin'"):
        make_schedule("cosin", 10, 0.1)
    with pytest.raises(errors.InvalidArgumentError, match=r"among final_learning_rate, cycles for the schedule 'cosine', got \['gamma'\]"):
        make_schedule("cosine", 10, 0.1, gamma=3)
    with pytest.raises(errors.InvalidArgumentError, match=r"step_size \(required\)"):
        make_schedule("step", 10, 0.1)
    with pytest.raises(errors.InvalidArgumentError, match="total_steps >= 1"):
        make_schedule("cosine", 0, 0.1)


@pytest.mark.parametrize("make", [
    lambda: StepSchedule(0.1, 0), lambda: MultiStepSchedule(0.1, [5, 5]), lambda: ExponentialSchedule(0.1, 0), lambda: CosineSchedule(0.1, 10, cycles=0),
    lambda: PlateauSchedule(0.1, factor=1.0), lambda: PlateauSchedule(0.1, mode="best"), lambda: ConstantSchedule(0.1, warmup_steps=-1),
    lambda: PolynomialSchedule(0.1, 10, power=-1), lambda: OneCycleSchedule(0.1, 10, final_divisor=0),
])
def test_arguments_out_of_range_are_refused(make):
    with pytest.raises(errors.InvalidArgumentError):
        make()


@pytest.mark.parametrize("rate", NO_RATES)
def test_a_learning_rate_that_is_negative_or_not_finite_is_refused_everywhere(rate):
    with session_of("adamw") as session:
        with pytest.raises(errors.InvalidArgumentError, match="finite learning rate >= 0"):
            session.learning_rate = rate
        assert session.learning_rate == 0.003
        for name in SCHEDULES:
            with pytest.raises(errors.InvalidArgumentError, match="learning rate"):
                make_schedule(name, 40, rate, **OPTIONS.get(name, {}))

        class Broken:
            initial_learning_rate = 0.1

            def rate(self, step):
                return rate if step else 0.1

        session.register_schedule(Broken())
        train(session)
        with pytest.raises(errors.InvalidArgumentError, match="learning rate"):
            session.schedule_step()
        assert session.learning_rate == 0.1
        with pytest.raises(errors.InvalidArgumentError, match="learning rate"):
            session.register_schedule(Broken())
    with pytest.raises(errors.InvalidArgumentError, match="learning rate"):
        TrainingSession.from_model(small(), loss=LossType.CrossEntropyLoss, optimizer="adamw", learning_rate=rate)
    state = api.CheckpointState.load_checkpoint(DATA / "mlp_ce" / "checkpoint")
    module = api.Module(DATA / "mlp_ce" / "training_model.onnx", state, DATA / "mlp_ce" / "eval_model.onnx")
    with pytest.raises(errors.InvalidArgumentError, match="learning rate"):
        api.Optimizer(DATA / "mlp_ce" / "optimizer_model.onnx", module).set_learning_rate(rate)


def test_what_is_no_number_is_no_learning_rate():
    with session_of("adamw") as session:
        for value in ("0.1", True, None, np.array([0.1])):
            with pytest.raises(errors.ParameterTypeError, match="expected a number as learning rate"):
                session.learning_rate = value
        session.learning_rate = np.float32(0.5)
        assert session.learning_rate == 0.5 and math.isfinite(session.learning_rate)
