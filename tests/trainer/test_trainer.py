"""The trainer: every sample once per epoch, honest figures, and resumed runs that equal uninterrupted ones to the bit."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from ortrain import Trainer, TrainingSession, set_seed
from ortrain.errors import ArgumentTypeError, InputShapeError, InvalidArgumentError, InvalidStateError
from ortrain.metrics import ConfusionMatrix
from ortrain.onnxblock import loss as losses
from ortrain.trainer import EarlyStopping, LambdaCallback
from tests.trainer.models import CLASSES, SAMPLES, classifier, samples

X, Y = samples()
QUIET = {"progress": False}


def new_trainer(dropout: float = 0.0, **settings) -> Trainer:
    set_seed(3)
    return Trainer.from_model(classifier(dropout), loss=settings.pop("loss", "cross-entropy"), learning_rate=settings.pop("learning_rate", 0.02), **QUIET,
                              **settings)


def weights_of(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: parameter.data.copy() for name, parameter in trainer.session.parameters}


def assert_equal_weights(found, expected) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def figures(history) -> list:
    return [(r.epoch, r.step, r.training, r.validation, r.learning_rate) for r in history]


# ---- training


def test_training_learns_and_records_every_epoch():
    history = new_trainer().fit(X, Y, epochs=6, batch_size=16, validation=(X, Y))
    assert [(record.epoch, record.step) for record in history] == [(1, 4), (2, 8), (3, 12), (4, 16), (5, 20), (6, 24)]
    assert history[-1].loss < 0.5 * history[0].loss and history[-1].validation["accuracy"] > 0.8
    assert all(record.samples == SAMPLES and list(record.training) == ["loss", "accuracy"] for record in history)


def test_a_fixed_batch_is_opened_unless_the_shapes_are_to_be_kept():
    model = classifier()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    trainer = Trainer.from_model(model, loss="cross-entropy", **QUIET)
    trainer.fit(X, Y, epochs=1, batch_size=16)
    assert trainer.step == 4
    kept = Trainer.from_model(model, loss="cross-entropy", input_shapes={}, **QUIET)
    assert kept.session.training_model.graph.types["x"].shape == (1, 6)


def test_metrics_hold_what_the_last_evaluation_found():
    trainer, confusion = new_trainer(metrics=["accuracy"]), ConfusionMatrix()
    accuracy = trainer.evaluate(X, Y, metrics=[confusion])["confusion-matrix"]
    assert confusion.matrix.sum() == SAMPLES
    assert np.trace(confusion.matrix) / SAMPLES == pytest.approx(accuracy)
    validated = new_trainer(metrics=[confusion])
    history = validated.fit(X, Y, epochs=2, batch_size=16, validation=(X[:20], Y[:20]))
    assert confusion.matrix.sum() == 20
    assert history[-1].validation["confusion-matrix"] == pytest.approx(np.trace(confusion.matrix) / 20)


def test_the_loop_computes_what_a_plain_loop_of_steps_computes():
    trainer, plain = new_trainer(), new_trainer().session
    trainer.fit(X, Y, epochs=2, batch_size=16)
    for epoch in range(2):
        order = np.random.default_rng([0, epoch]).permutation(SAMPLES)
        for start in range(0, SAMPLES, 16):
            rows = order[start : start + 16]
            plain.train_step(X[rows], Y[rows])
            plain.optimizer_step()
            plain.lazy_reset_grad()
    assert_equal_weights(weights_of(trainer), {name: parameter.data for name, parameter in plain.parameters})


def test_training_loss_and_accuracy_are_means_over_samples_not_over_batches():
    trainer = new_trainer(learning_rate=0.0)
    record = trainer.fit(X, Y, epochs=1, batch_size=16)[0]
    whole = trainer.evaluate(X, Y, batch_size=SAMPLES)
    assert record.loss == pytest.approx(whole["loss"], rel=1e-6) and record.training["accuracy"] == whole["accuracy"]


def test_evaluation_does_not_depend_on_the_batch_size():
    trainer = new_trainer(metrics=["accuracy", "f1-macro"])
    results = [trainer.evaluate(X, Y, batch_size=size) for size in (1, 7, SAMPLES)]
    for result in results:
        assert list(result) == ["loss", "accuracy", "f1-macro"]
        assert result == pytest.approx(results[0], rel=1e-6)


def test_predictions_come_without_targets_in_any_batch_size():
    trainer = new_trainer()
    found = trainer.predict(X, batch_size=7)
    assert found.shape == (SAMPLES, CLASSES)
    np.testing.assert_allclose(found, trainer.session.predict(X)[0], rtol=1e-6)


@pytest.mark.parametrize("accumulation", ["mean", "sum"])
def test_accumulated_batches_make_the_step_of_one_large_batch(accumulation):
    # SGD: with the sum of the gradients, half the learning rate makes the same step
    small = new_trainer(optimizer="sgd", accumulate=2, accumulation=accumulation, learning_rate=0.1 if accumulation == "mean" else 0.05)
    large = new_trainer(optimizer="sgd", learning_rate=0.1)
    small.fit(X[:48], Y[:48], epochs=1, batch_size=8, shuffle=False)
    large.fit(X[:48], Y[:48], epochs=1, batch_size=16, shuffle=False)
    assert small.step == large.step == 3
    for name, array in weights_of(large).items():
        np.testing.assert_allclose(weights_of(small)[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_callback_changes_the_gradients_before_an_optimizer_step():
    counts = []

    def halve(trainer, batches):
        counts.append(batches)
        for buffer in trainer.session.gradient_buffers():
            buffer.array *= 0.5

    halved = new_trainer(optimizer="sgd", learning_rate=0.1, accumulate=3, callbacks=[LambdaCallback(on_gradients=halve)])
    plain = new_trainer(optimizer="sgd", learning_rate=0.05, accumulate=3)
    for trainer in (halved, plain):
        trainer.fit(X, Y, epochs=1, batch_size=12, shuffle=False)
    assert counts == [3, 2]
    for name, array in weights_of(plain).items():
        np.testing.assert_allclose(weights_of(halved)[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


def test_the_last_incomplete_group_of_accumulated_batches_also_makes_a_step():
    trainer = new_trainer(accumulate=3)
    trainer.fit(X, Y, epochs=2, batch_size=16)
    assert trainer.step == 4 and trainer.steps_per_epoch == 2


def test_a_schedule_by_name_spans_the_whole_run():
    rates = []
    trainer = new_trainer(schedule="linear", warmup_steps=2, callbacks=[LambdaCallback(on_step_end=lambda _, record: rates.append(record.learning_rate))])
    trainer.fit(X, Y, epochs=2, batch_size=16)
    np.testing.assert_allclose(rates, 0.02 * np.array([0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]), rtol=1e-6)


def test_clipping_limits_the_step():
    free, clipped = new_trainer(optimizer="sgd"), new_trainer(optimizer="sgd", clip_norm=1e-3)
    before = weights_of(free)
    for trainer in (free, clipped):
        trainer.fit(X, Y, epochs=1, batch_size=SAMPLES)
    moved = [np.sqrt(sum(np.sum((array - before[name]) ** 2) for name, array in weights_of(trainer).items())) for trainer in (free, clipped)]
    assert moved[1] == pytest.approx(0.02 * 1e-3, rel=1e-3) and moved[0] > 10 * moved[1]


def test_averaged_weights_are_used_by_evaluation_and_export_but_not_by_training(tmp_path):
    plain, averaged = new_trainer(), new_trainer(weight_average=0.9)
    for trainer in (plain, averaged):
        trainer.fit(X, Y, epochs=3, batch_size=16)
        trainer.export(tmp_path / f"{trainer is plain}.onnx")
    assert_equal_weights(weights_of(averaged), weights_of(plain))
    assert averaged.evaluate(X, Y)["loss"] != plain.evaluate(X, Y)["loss"]
    assert (tmp_path / "True.onnx").read_bytes() != (tmp_path / "False.onnx").read_bytes()


def test_early_stopping_ends_the_run_and_restores_the_best_weights():
    trainer = new_trainer(learning_rate=3.0, patience=2)
    history = trainer.fit(X, Y, epochs=40, batch_size=16, validation=(X, Y))
    best = min(history, key=lambda record: record.validation["loss"])
    assert len(history) == best.epoch + 2 < 40 and "validation_loss" in str(trainer.stopped)
    assert trainer.evaluate(X, Y)["loss"] == pytest.approx(best.validation["loss"], rel=1e-6)


@pytest.mark.parametrize("average", [None, 0.5])
def test_the_best_weights_of_before_a_resume_are_restored(average, tmp_path):
    settings = {"patience": 6, "weight_average": average}
    how = {"batch_size": 16, "validation": (X, Y)}
    straight = new_trainer(learning_rate=3.0, **settings)
    best = min(straight.fit(X, Y, epochs=12, **how), key=lambda record: record.validation["loss"])
    assert best.epoch < 12
    new_trainer(learning_rate=3.0, folder=tmp_path, **settings).fit(X, Y, epochs=best.epoch + 1, **how)
    resumed = Trainer.from_artifacts(tmp_path, resume=True, **QUIET, **settings)
    resumed.fit(X, Y, epochs=12, **how)
    assert resumed.evaluate(X, Y)["loss"] == pytest.approx(best.validation["loss"], rel=1e-6)
    assert_equal_weights(weights_of(resumed), weights_of(straight))


def test_early_stopping_restores_the_averages_that_the_best_figure_is_of():
    trainer = new_trainer(learning_rate=3.0, patience=2, weight_average=0.5)
    best = min(trainer.fit(X, Y, epochs=40, batch_size=16, validation=(X, Y)), key=lambda record: record.validation["loss"])
    assert best.epoch < len(trainer.history)
    assert trainer.evaluate(X, Y)["loss"] == pytest.approx(best.validation["loss"], rel=1e-6)


def test_a_callback_may_stop_the_run_after_a_step():
    def stop(trainer, record):
        if record.step == 3:
            trainer.stop("enough")

    trainer = new_trainer(callbacks=[LambdaCallback(on_step_end=stop)])
    trainer.fit(X, Y, epochs=5, batch_size=16)
    assert (trainer.step, trainer.stopped, len(trainer.history)) == (3, "enough", 0)


def test_hooks_are_called_in_order_and_told_of_exceptions():
    calls = []
    hooks = {name: (lambda *_, name=name: calls.append(name)) for name in ("on_fit_begin", "on_epoch_begin", "on_gradients", "on_step_end", "on_evaluation_end",
                                                                           "on_epoch_end", "on_fit_end", "on_exception")}
    new_trainer(callbacks=[LambdaCallback(**hooks)]).fit(X, Y, epochs=1, batch_size=32, validation=(X, Y))
    assert calls == ["on_fit_begin", "on_epoch_begin", *2 * ["on_gradients", "on_step_end"], "on_evaluation_end", "on_epoch_end", "on_fit_end"]
    calls.clear()
    with pytest.raises(ZeroDivisionError):
        new_trainer(callbacks=[LambdaCallback(**hooks), LambdaCallback(on_epoch_end=lambda *_: 1 / 0)]).fit(X, Y, epochs=1, batch_size=32)
    assert calls[-1] == "on_exception"


# ---- data


def test_data_may_be_named_batches_or_a_generator():
    named, listed, generated = new_trainer(), new_trainer(), new_trainer()
    named.fit({"x": X, "labels": Y}, epochs=1, batch_size=10, shuffle=False)
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, SAMPLES, 10)]
    listed.fit(batches, epochs=1)
    generated.fit(iter(batches), epochs=1, steps_per_epoch=5)
    assert_equal_weights(weights_of(listed), weights_of(named))
    assert_equal_weights(weights_of(generated), weights_of(named))


def test_a_share_of_the_samples_is_held_out():
    trainer = new_trainer()
    record = trainer.fit(X, Y, epochs=1, batch_size=16, validation=0.2)[0]
    assert record.samples == 40 and set(record.validation) == {"loss", "accuracy"}


def test_samples_can_have_weights():
    weights = np.r_[np.ones(25), np.zeros(25)].astype(np.float32)
    weighted, half = new_trainer(sample_weight=True), new_trainer()
    weighted.fit(X, Y, epochs=1, batch_size=SAMPLES, shuffle=False, sample_weight=weights)
    half.fit(X[:25], Y[:25], epochs=1, batch_size=25, shuffle=False)
    for name, array in weights_of(half).items():
        np.testing.assert_allclose(weights_of(weighted)[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_classes_can_have_weights():
    trainer = new_trainer(class_weight=[1.0, 2.0, 4.0])
    logits = trainer.predict(X)
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    weights = np.array([1.0, 2.0, 4.0])[Y]
    expected = -(weights * log_probabilities[np.arange(SAMPLES), Y]).sum() / weights.sum()
    assert trainer.evaluate(X, Y, batch_size=SAMPLES)["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_sample_that_is_not_finite_is_named():
    x = X.copy()
    x[17, 2] = np.nan
    with pytest.raises(InvalidArgumentError, match=r"17"):
        new_trainer().fit(x, Y, epochs=1)


def test_a_loss_that_is_not_finite_ends_training_and_keeps_the_checkpoint(tmp_path):
    trainer = new_trainer(learning_rate=1e37, folder=tmp_path / "run")
    with pytest.raises(InvalidStateError, match="try a lower learning rate than 1e\\+37"):
        trainer.fit(X, Y, epochs=5, batch_size=16)
    assert np.isfinite(TrainingSession.from_artifacts(tmp_path / "run").to_buffer()).all()


@pytest.mark.parametrize(("arguments", "text"), [
    ({"data": X, "targets": Y[:10]}, "10"), ({"epochs": 0}, "epochs"), ({"batch_size": 0}, "batch_size"), ({"epochs": True}, "epochs"),
    ({"validation": 1.0}, "above 0|share"), ({"validation": (X, Y, Y)}, "tuple of 3"), ({"data": X[:, :5]}, "size 6"),
    ({"targets": Y.astype(float) + 0.5}, "labels")])
def test_data_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, arguments, text):
    arguments = {"data": X, "targets": Y, "epochs": 1, **arguments}
    trainer = new_trainer(folder=tmp_path / "run")
    before = weights_of(trainer)
    with pytest.raises((ArgumentTypeError, InputShapeError, InvalidArgumentError), match=text):
        trainer.fit(**arguments)
    assert_equal_weights(weights_of(trainer), before)
    assert not (tmp_path / "run" / "trainer.json").exists()


@pytest.mark.parametrize("settings", [{"nonsense": 1}, {"clip_norm": 0}, {"clip_norm": float("nan")}, {"accumulate": 0}, {"patience": 0}, {"seed": -1},
                                      {"weight_average": 1.0}, {"accumulation": "median"}, {"callbacks": [print]}, {"metrics": ["no such"]},
                                      {"schedule": "no such"}, {"optimizer": "no such"}, {"loss": "no such"}, {"learning_rate": float("nan")},
                                      {"learning_rate": -1.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(InvalidArgumentError, match="expected"):
        new_trainer(**settings).fit(X, Y, epochs=1)


def test_metrics_need_predictions():
    session = TrainingSession.from_model(classifier(), loss=losses.CrossEntropyLoss(), optimizer="adamw")
    with pytest.raises(InvalidArgumentError, match="additional_output_names"):
        Trainer(session, metrics=["accuracy"], **QUIET)


def test_an_epoch_that_was_left_half_way_begins_anew():
    trainer, straight = new_trainer(), new_trainer()
    with pytest.raises(ConnectionError):
        trainer.fit(X, Y, epochs=1, batch_size=16, callbacks=[LambdaCallback(on_step_end=lambda *_: (_ for _ in ()).throw(ConnectionError))])
    first = weights_of(trainer)
    record = trainer.fit(X, Y, epochs=1, batch_size=16)[0]
    assert record.samples == SAMPLES
    assert any((array != weights_of(straight)[name]).any() for name, array in first.items())


@pytest.mark.parametrize("settings", [{"optimizer": "AdamW"}, {"loss": "Cross_Entropy"}, {"schedule": "one-cycle"}, {"requires_grad": "head"}])
def test_names_are_read_in_any_usual_spelling(settings):
    assert len(new_trainer(**settings).fit(X, Y, epochs=1)) == 1


def test_values_that_are_not_finite_are_accepted_on_request():
    x = X.copy()
    x[:, 0] = np.nan
    with pytest.raises(InvalidStateError, match="NaN in input 'x'"):
        new_trainer().fit(x, Y, epochs=1, check_finite=False)


# ---- checkpoints


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("settings", [{}, {"schedule": "cosine", "warmup_steps": 3}, {"weight_average": 0.9, "accumulate": 2}, {"optimizer": "lion"},
                                      {"schedule": "plateau", "schedule_options": {"patience": 0}}])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, dropout, settings):
    straight = new_trainer(dropout, **settings)
    history = straight.fit(X, Y, epochs=5, batch_size=16, validation=(X, Y))
    interrupted = new_trainer(dropout, folder=tmp_path / "run", **settings)

    def crash(trainer, record):
        if record.epoch == 3:
            raise ConnectionError("as a crash would")

    with pytest.raises(ConnectionError):
        interrupted.fit(X, Y, epochs=5, batch_size=16, validation=(X, Y), callbacks=[LambdaCallback(on_epoch_end=crash)])
    set_seed(3)
    settings.pop("optimizer", None)
    with Trainer.from_artifacts(tmp_path / "run", resume=True, **QUIET, **settings) as resumed:
        assert resumed.epoch == 2
        assert figures(resumed.fit(X, Y, epochs=5, batch_size=16, validation=(X, Y))) == figures(history)
        assert_equal_weights(weights_of(resumed), weights_of(straight))
        assert resumed.evaluate(X, Y) == straight.evaluate(X, Y)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_is_resumed_in_the_middle_of_an_epoch(tmp_path, accumulate):
    straight = new_trainer(0.3, accumulate=accumulate, schedule="linear", metrics=None)
    history = straight.fit(X, Y, epochs=3, batch_size=5)
    interrupted = new_trainer(0.3, accumulate=accumulate, schedule="linear", metrics=None, folder=tmp_path / "run", save_every_steps=3)

    def crash(trainer, record):
        if record.step == 8:
            raise ConnectionError("as a crash would")

    with pytest.raises(ConnectionError):
        interrupted.fit(X, Y, epochs=3, batch_size=5, callbacks=[LambdaCallback(on_step_end=crash)])
    set_seed(3)
    with Trainer.from_artifacts(tmp_path / "run", resume=True, accumulate=accumulate, schedule="linear", metrics=None, **QUIET) as resumed:
        assert resumed.step == 6 and (resumed.batch > 0) == (accumulate == 1 or resumed.step % 5 != 0)
        assert figures(resumed.fit(X, Y, epochs=3, batch_size=5)) == figures(history)
        assert_equal_weights(weights_of(resumed), weights_of(straight))


def test_checkpoints_are_copied_where_the_system_has_no_links(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "link")
    new_trainer(folder=tmp_path, keep_best=1).fit(X, Y, epochs=1, batch_size=16, validation=(X, Y))
    assert (tmp_path / "checkpoint.best").read_bytes() == (tmp_path / "checkpoint").read_bytes()


def test_the_folder_of_a_run_holds_the_latest_the_best_and_the_recent_checkpoints(tmp_path):
    trainer = new_trainer(folder=tmp_path, keep_last=2, keep_best=2)
    history = trainer.fit(X, Y, epochs=5, batch_size=16, validation=(X, Y))
    names = {path.name for path in tmp_path.iterdir()}
    best = sorted(sorted(history, key=lambda r: r.validation["loss"])[:2], key=lambda r: r.epoch)
    assert names == {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint", "history.json", "trainer.json", "checkpoint-epoch-0004",
                     "checkpoint-epoch-0005", *(f"checkpoint.best-epoch-{record.epoch:04d}" for record in best)}
    assert [record["epoch"] for record in json.loads((tmp_path / "history.json").read_text())] == [1, 2, 3, 4, 5]
    with TrainingSession.from_artifacts(tmp_path, checkpoint=tmp_path / "checkpoint-epoch-0005") as session:
        np.testing.assert_array_equal(session.to_buffer(), trainer.session.to_buffer())


def test_a_folder_with_a_run_is_not_overwritten_unless_asked(tmp_path):
    new_trainer(folder=tmp_path).fit(X, Y, epochs=1)
    before = (tmp_path / "checkpoint").read_bytes()
    with pytest.raises(InvalidArgumentError, match="resume=True"):
        new_trainer(folder=tmp_path).fit(X, Y, epochs=2)
    assert (tmp_path / "checkpoint").read_bytes() == before
    with Trainer.from_artifacts(tmp_path, **QUIET) as finished:
        assert finished.predict(X).shape == (SAMPLES, CLASSES)
    new_trainer(folder=tmp_path, overwrite=True).fit(X, Y, epochs=2)
    assert len(json.loads((tmp_path / "history.json").read_text())) == 2


def test_a_run_that_is_overwritten_gets_the_artifacts_of_the_new_model(tmp_path):
    new_trainer(folder=tmp_path).fit(X, Y, epochs=1)
    Trainer.from_model(classifier(), loss="mse", optimizer="sgd", folder=tmp_path, overwrite=True, **QUIET).fit(X, np.eye(3, dtype=np.float32)[Y], epochs=1)
    with TrainingSession.from_artifacts(tmp_path) as session:
        assert session.training_model.graph.types[session.input_names()[-1]].dtype == "float32"
        assert session.optimizer_model.graph.nodes[-1].op_type.startswith("SGD")


def test_a_run_is_resumed_with_its_own_seed_only(tmp_path):
    new_trainer(folder=tmp_path).fit(X, Y, epochs=1)
    with pytest.raises(InvalidArgumentError, match="seed 0"):
        Trainer.from_artifacts(tmp_path, resume=True, seed=1, **QUIET)


def test_there_must_be_something_to_resume():
    with pytest.raises(InvalidStateError, match="a Trainer wrote"):
        Trainer(new_trainer().session, resume=True, **QUIET)


INTERRUPTED = """
    import os, signal, sys
    from ortrain import Trainer
    from ortrain.trainer import LambdaCallback
    from tests.trainer.models import classifier, samples
    signal.signal(signal.SIGINT, signal.default_int_handler)      # a background job of a shell inherits that it is ignored
    def interrupt(trainer, record):
        if record.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
    trainer = Trainer.from_model(classifier(), loss="cross-entropy", progress=False, folder=sys.argv[1], callbacks=[LambdaCallback(on_step_end=interrupt)])
    trainer.fit(*samples(), epochs=1000, batch_size=16)
    print(trainer.stopped, trainer.step)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_training_after_the_step_and_saves(tmp_path):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(tmp_path / "run")], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("interrupted by Ctrl-C 3")
    with Trainer.from_artifacts(tmp_path / "run", resume=True, **QUIET) as resumed:
        assert (resumed.step, resumed.batch) == (3, 3)


# ---- learning-rate finder


def test_the_learning_rate_finder_leaves_everything_as_it_was():
    trainer = new_trainer()
    trainer.fit(X, Y, epochs=1, batch_size=16)
    before, moments = weights_of(trainer), trainer.session.state.to_bytes(include_optimizer_state=True)
    curve = trainer.find_learning_rate(X, Y, batch_size=16, steps=40)
    assert_equal_weights(weights_of(trainer), before)
    assert trainer.session.state.to_bytes(include_optimizer_state=True) == moments
    assert len(curve.learning_rates) == len(curve.losses) >= 20 and curve.learning_rates[0] == pytest.approx(1e-7)
    assert 1e-4 < curve.suggestion < 1


def test_the_curve_of_the_finder_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    new_trainer().find_learning_rate(X, Y, steps=30).plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_finder_refuses_limits_that_are_no_range():
    with pytest.raises(InvalidArgumentError, match="lowest < highest"):
        new_trainer().find_learning_rate(X, Y, lowest=1.0, highest=0.1)


def test_early_stopping_and_other_callbacks_resume_with_their_counts(tmp_path):
    def settings():
        return {"callbacks": [EarlyStopping("loss", patience=4, restore_best=False)], "schedule": "constant"}

    new_trainer(folder=tmp_path, learning_rate=0.0, **settings()).fit(X, Y, epochs=2, batch_size=16)
    with Trainer.from_artifacts(tmp_path, resume=True, **settings(), **QUIET) as second:
        second.fit(X, Y, epochs=50, batch_size=16)
        assert second.epoch < 50
