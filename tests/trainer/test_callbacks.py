"""Early stopping, gradual unfreezing and functions as callbacks."""

import json
import math

import pytest

from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from ortrain.trainer.callbacks import HOOKS, Callback, EarlyStopping, GradualUnfreezing, LambdaCallback
from tests.trainer.fakes import FakeTrainer, new_session


def losses(*values):
    return [{"loss": value} for value in values]


# ---- early stopping


def test_training_stops_when_the_figure_has_not_improved_for_patience_epochs():
    stopping = EarlyStopping(patience=2)
    trainer = FakeTrainer([stopping], epochs=9, validation=losses(3, 2, 2.5, 2, 1, 1, 1, 1, 1))
    trainer.fit()
    assert trainer.epoch == 4, "an equal value is no improvement"
    assert trainer.reason == "validation_loss has not improved for 2 epochs (best: 2 in epoch 2)"
    assert trainer.restored == "weights of epoch 2"


def test_the_weights_of_the_best_epoch_are_restored_without_stopping_too():
    trainer = FakeTrainer([EarlyStopping()], validation=losses(3, 1, 2))
    trainer.fit()
    assert trainer.reason is None and trainer.restored == "weights of epoch 2"
    best_last = FakeTrainer([EarlyStopping()], validation=losses(3, 2, 1))
    best_last.fit()
    assert best_last.restored is None
    unwanted = FakeTrainer([EarlyStopping(restore_best=False)], validation=losses(3, 1, 2))
    unwanted.fit()
    assert unwanted.restored is None


def test_metrics_that_are_to_rise_are_told_from_losses_by_name():
    trainer = FakeTrainer([EarlyStopping("validation_f1", 1)], validation=[{"loss": 1, "f1": value} for value in (0.1, 0.2, 0.15)])
    trainer.fit()
    assert trainer.restored == "weights of epoch 2"
    for name in ("loss", "validation_mae", "perplexity", "validation_log_loss"):
        assert EarlyStopping(name)._sign == 1
    for name in ("accuracy", "validation_top-5", "balanced_accuracy_score"):
        assert EarlyStopping(name)._sign == -1
    with pytest.raises(InvalidArgumentError, match='mode="min"'):
        EarlyStopping("validation_mine")
    assert EarlyStopping("validation_mine", mode="max")._sign == -1


def test_small_changes_and_nan_are_no_improvement():
    stopping = EarlyStopping(patience=3, min_delta=0.125)
    trainer = FakeTrainer([stopping], epochs=5, validation=losses(math.nan, 2, 1.95, 1.875, math.nan))
    trainer.fit()
    assert (stopping.best, stopping.best_epoch, stopping.waited) == (2, 2, 3)
    never = FakeTrainer([EarlyStopping(patience=2)], epochs=5, validation=losses(*[math.nan] * 5))
    never.fit()
    assert never.epoch == 2 and "no finite value" in never.reason and never.restored is None


def test_a_resumed_run_stops_where_an_uninterrupted_one_would():
    validation = losses(3, 2, 2.5, 2.4, 2.3, 2.2)
    straight = FakeTrainer([EarlyStopping(patience=3)], epochs=6, validation=validation)
    straight.fit()
    first, second = EarlyStopping(patience=3), EarlyStopping(patience=3)
    interrupted = FakeTrainer([first], epochs=3, validation=validation)
    interrupted.fit()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    interrupted.callbacks, interrupted.epochs = [second], 6
    with pytest.warns(UserWarning, match="lost when the run was resumed"):
        interrupted.fit()
    assert interrupted.epoch == straight.epoch == 5 and interrupted.reason == straight.reason
    with pytest.raises(InvalidArgumentError, match="state of EarlyStopping"):
        second.load_state_dict({"best": 1})
    assert second.best_epoch == 2


def test_the_best_weights_of_before_a_resume_are_restored_in_a_run_with_a_folder(tmp_path):
    first, second = EarlyStopping(patience=3), EarlyStopping(patience=3)
    trainer = FakeTrainer([first], epochs=4, validation=losses(4, 3, 2, 2.5, 2.4, 2.2))
    trainer.output_folder = tmp_path / "run"
    trainer.fit()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    trainer.callbacks, trainer.epochs, trainer.restored = [second], 6, None
    trainer.fit()
    assert trainer.restored == "weights of epoch 3" and second.best_epoch == 3


def test_the_weights_that_the_last_checkpoint_refers_to_stay_until_the_next_one_is_written(tmp_path):
    def stems():
        return sorted(path.stem[-4:] for path in tmp_path.iterdir())

    seen = []
    trainer = FakeTrainer([EarlyStopping(), LambdaCallback(on_epoch_end=lambda *_: seen.append(stems()))], epochs=4, validation=losses(4, 3, 2, 1))
    trainer.output_folder = tmp_path
    trainer.fit()
    assert seen == [["0001"], ["0001", "0002"], ["0002", "0003"], ["0003", "0004"]]
    again = FakeTrainer([EarlyStopping()], epochs=1, validation=losses(9))
    again.output_folder = tmp_path
    again.fit()
    assert stems() == ["0001"], "a new run in the folder begins without those of the old one"


def test_a_new_run_starts_counting_anew():
    stopping = EarlyStopping(patience=1)
    FakeTrainer([stopping], validation=losses(0.1, 1, 1)).fit()
    again = FakeTrainer([stopping], validation=losses(3, 2, 1))
    again.fit()
    assert again.reason is None and stopping.best == 1


def test_settings_of_early_stopping_that_make_no_sense_are_refused():
    for how in ({"patience": 0}, {"patience": 1.5}, {"min_delta": -1}, {"min_delta": math.nan}, {"mode": "up"}):
        with pytest.raises(InvalidArgumentError, match="expected"):
            EarlyStopping(**how)
    with pytest.raises(InvalidArgumentError, match="expected to monitor one of loss, accuracy, got 'validation_loss'"):
        FakeTrainer([EarlyStopping()]).fit()


# ---- gradual unfreezing


def trained(session):
    return [name for name, parameter in session.parameters if parameter.requires_grad]


def test_parameters_are_unfrozen_epoch_by_epoch():
    seen = []
    with new_session() as session:
        watch = LambdaCallback(on_step_end=lambda trainer, record: seen.append((record.epoch, trained(trainer.session))))
        FakeTrainer([GradualUnfreezing({1: "head.*", 2: ["body.w*", "*"], 3: "body.bias"}), watch], steps_per_epoch=1, session=session).fit()
    head = ["head.bias", "head.weight"]
    everything = ["body.bias", "body.weight", *head]
    assert seen == [(1, head), (2, everything), (3, everything)], "body.bias fits a pattern of epoch 2 already"


def test_a_resumed_run_has_the_parameters_of_its_epoch():
    with new_session() as session:
        trainer = FakeTrainer([GradualUnfreezing({1: "head.*", 2: "body.bias", 4: "body.weight"})], steps_per_epoch=1, epochs=3, session=session)
        trainer.epoch = 2
        trainer.fit()
        assert trained(session) == ["body.bias", "head.bias", "head.weight"]


def test_schedules_that_fit_nothing_are_refused_and_freeze_nothing():
    for wrong, error in (({0: "*"}, InvalidArgumentError), ({"1": "*"}, InvalidArgumentError), (["*"], ArgumentTypeError)):
        with pytest.raises(error, match="expected"):
            GradualUnfreezing(wrong)
    with new_session() as session:
        with pytest.raises(InvalidArgumentError, match="got 'haed'; they are"):
            FakeTrainer([GradualUnfreezing({1: "head.*", 2: "haed"})], session=session).fit()
        assert len(trained(session)) == 4


# ---- functions


def test_every_event_reaches_a_function():
    seen = []
    hooks = {name: (lambda name: lambda trainer, *rest: seen.append((name, len(rest))))(name) for name in HOOKS}
    FakeTrainer([LambdaCallback(**hooks), Callback()], epochs=1, steps_per_epoch=2, validation=losses(1)).fit()
    with pytest.raises(KeyboardInterrupt):
        FakeTrainer([LambdaCallback(**hooks)], fail_at=0).fit()
    begin = [("on_fit_begin", 0), ("on_epoch_begin", 0)]
    steps = 2 * [("on_gradients", 1), ("on_step_end", 1)]
    assert seen == [*begin, *steps, ("on_evaluation_end", 1), ("on_epoch_end", 1), ("on_fit_end", 0), *begin, ("on_exception", 1)]


def test_functions_for_events_that_do_not_exist_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"on_fit_begin, .*got 'on_batch_end'"):
        LambdaCallback(on_batch_end=print)
    with pytest.raises(ArgumentTypeError, match="expected a function"):
        LambdaCallback(on_step_end=3)
