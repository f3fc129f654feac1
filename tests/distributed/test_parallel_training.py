"""Parallel training: workers with a batch each train like one process with all of it."""

import json
import signal
import warnings

import numpy as np
import pytest

from ortrain import SessionOptions, Trainer, TrainingSession, errors
from ortrain.data import as_loader
from ortrain.distributed import SingleProcess
from ortrain.trainer import Callback, LambdaCallback
from ortrain.trainer.loggers import CSVLogger
from tests.distributed.threads import results, run
from tests.trainer.models import FEATURES, SAMPLES, classifier, samples
from tests.training.test_flat_buffers import normalized

X, LABELS = samples()
HELD_OUT = np.roll(X, 7, axis=0), np.roll(LABELS, 7)


def trainer_of(strategy=None, model=None, **settings):
    defaults = {"loss": "cross-entropy", "optimizer": "adamw", "learning_rate": 0.01, "progress": False, "seed": 5}
    return Trainer.from_model(model or classifier(), strategy=strategy, **(defaults | settings))


def weights_of(trainer):
    return {name: array.copy() for name, array in (*trainer.session.state.trainable.items(), *trainer.session.state.frozen.items())}


class Losses(Callback):
    """Keeps the losses of all steps."""

    def __init__(self):
        self.all = []

    def on_step_end(self, trainer, record):
        self.all.append(record.loss)


def fit(strategy, batch_size, data=(X, LABELS), epochs=2, validation=HELD_OUT, **settings):
    """Train; return (losses of steps, records of epochs without the time, weights)."""
    losses = Losses()
    with trainer_of(strategy, callbacks=[losses], **settings) as trainer:
        history = trainer.fit(*data, epochs=epochs, batch_size=batch_size, validation=validation)
        return losses.all, [(record.step, record.samples, record.figures) for record in history], weights_of(trainer)


def assert_like_one_process(size, batch_size, synchronization=lambda: None, **how):
    """Assert that workers have one process's losses, figures and weights to rounding, and exactly the same as each other."""
    found = results(size, lambda strategy: fit(strategy, batch_size, synchronization=synchronization(), **how))
    losses, records, weights = fit(None, size * batch_size, **how)
    for worker in found:
        assert worker[0] == found[0][0] and worker[1] == found[0][1]
        assert all((worker[2][name] == found[0][2][name]).all() for name in weights)
    np.testing.assert_allclose(found[0][0], losses, rtol=2e-6)
    for (step, count, figures), (expected_step, expected_count, expected) in zip(found[0][1], records, strict=True):
        assert (step, count) == (expected_step, expected_count) and figures == pytest.approx(expected, rel=2e-6)
    for name, array in weights.items():
        np.testing.assert_allclose(found[0][2][name], array, rtol=2e-4, atol=2e-6, err_msg=name)


# ---- equality


@pytest.mark.parametrize("size", [2, 3, 4])
def test_workers_train_like_one_process_with_the_whole_batch(size):
    assert_like_one_process(size, 4, metrics=["accuracy", "f1"], schedule="cosine", warmup_steps=3, clip_norm=0.5, weight_average=0.9)


@pytest.mark.parametrize("accumulate, accumulation", [(3, "mean"), (2, "sum")])
def test_accumulated_batches_are_counted_by_their_samples(accumulate, accumulation):
    assert_like_one_process(3, 3, accumulate=accumulate, accumulation=accumulation)         # 50 = 5 x 9 + 5 samples


def test_a_worker_without_samples_in_the_last_batch_takes_part():
    assert_like_one_process(4, 4, data=(X[:17], LABELS[:17]), accumulate=2, metrics=["auroc"])
    assert_like_one_process(4, 1, data=(X[:6], LABELS[:6]), validation=(X[:3], LABELS[:3]))


def test_batches_of_a_stream_are_divided():
    batches = [(X[start : start + 7], LABELS[start : start + 7]) for start in range(0, SAMPLES, 7)]
    found = results(2, lambda strategy: fit(strategy, 7, data=(batches, None)))
    losses, _, _ = fit(None, 7, data=(batches, None))
    np.testing.assert_allclose(found[1][0], losses, rtol=2e-6)


def test_a_single_worker_has_the_bits_of_a_process_without_a_strategy():
    assert fit(SingleProcess(), 8)[:2] == fit(None, 8)[:2]


def test_gradients_are_exchanged_once_for_each_optimizer_step():
    def reduced(accumulate):
        def work(strategy):
            fit(strategy, 5, accumulate=accumulate, metrics=None, validation=None, epochs=1)
            return strategy.reduced

        return results(2, work)[0]

    with trainer_of() as trainer:
        elements = sum(len(buffer.array) for buffer in trainer.session.gradient_buffers())
    exchange = 8
    assert reduced(1) - reduced(5) == 4 * (elements + exchange), "expected 5 and 1 optimizer steps for 5 batches"


def test_workers_draw_different_masks():
    def work(strategy):
        with trainer_of(strategy, classifier(dropout=0.5), optimizer="sgd") as trainer:
            return [float(trainer.session.train_step(X, LABELS)[0]) for _ in range(3)]

    first, second, third = results(3, work)
    assert not set(first) & set(second) and not set(second) & set(third) and first == work(SingleProcess())


# ---- running statistics


def statistics_of(session):
    return {name: session.state.frozen[name].copy() for name in ("mean", "variance")}


def test_running_statistics_are_averaged_before_evaluation_and_checkpoints():
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((40, 20)).astype(np.float32), rng.integers(0, 5, 40)
    seen = []

    def work(strategy):
        callback = LambdaCallback(on_step_end=lambda trainer, record: before.append(statistics_of(trainer.session)),
                                  on_evaluation_end=lambda trainer, figures: evaluated.append(statistics_of(trainer.session)))
        before, evaluated = [], []
        with trainer_of(strategy, normalized(), callbacks=[callback]) as trainer:
            trainer.fit(x, labels, batch_size=10, validation=(x, labels))
            seen.append(trainer.history[0].validation_loss)
            return before[-1], evaluated[-1], statistics_of(trainer.session)

    found = results(2, work)
    for name in ("mean", "variance"):
        own = [before[name] for before, _, _ in found]
        assert (own[0] != own[1]).any(), "expected statistics of each worker's samples between epochs"
        for _, evaluated, after in found:
            np.testing.assert_array_equal(evaluated[name], (own[0] + own[1]) / 2)
            np.testing.assert_array_equal(after[name], evaluated[name])
    assert seen[0] == seen[1]


# ---- stopping and failing


def test_a_worker_that_stops_stops_all_after_the_next_step():
    def stop(trainer, record):
        if trainer.rank == 1 and record.step == 3:
            trainer.stop("enough")

    def work(strategy):
        with trainer_of(strategy, callbacks=[LambdaCallback(on_step_end=stop)]) as trainer:
            trainer.fit(X, LABELS, epochs=5, batch_size=5)
            return trainer.step, trainer.stopped

    assert results(3, work) == [(4, "enough")] * 3


def test_a_worker_that_stops_at_the_end_of_an_epoch_stops_all():
    def work(strategy):
        stop = LambdaCallback(on_epoch_end=lambda trainer, record: trainer.stop("enough") if trainer.rank == 1 else None)
        with trainer_of(strategy, callbacks=[stop]) as trainer:
            trainer.fit(X, LABELS, epochs=5, batch_size=5)
            return trainer.epoch, trainer.stopped

    assert results(2, work) == [(1, "enough")] * 2


def test_early_stopping_restores_the_best_weights_of_all_workers(tmp_path):
    def work(strategy):
        with trainer_of(strategy, learning_rate=1.0, patience=2, folder=tmp_path / "run") as trainer:
            trainer.fit(X, LABELS, epochs=30, batch_size=5, validation=HELD_OUT)
            return trainer.stopped, weights_of(trainer), trainer.evaluate(*HELD_OUT)["loss"], min(record.validation_loss for record in trainer.history)

    found = results(3, work)
    for stopped, weights, loss, best in found:
        assert stopped == found[0][0] and "has not improved for 2 epochs" in stopped
        assert all((weights[name] == found[0][1][name]).all() for name in weights)
        assert loss == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("where", ["on_fit_begin", "on_gradients", "on_step_end", "on_evaluation_end", "on_epoch_end", "on_fit_end"])
def test_a_worker_that_fails_ends_all_with_its_rank(where):
    def fail(trainer, *_):
        if trainer.rank == 2:
            raise OSError("disk full")

    def work(strategy):
        with trainer_of(strategy, callbacks=[LambdaCallback(**{where: fail})]) as trainer:
            trainer.fit(X, LABELS, batch_size=5, validation=HELD_OUT)

    found = run(3, work)
    assert [(type(error), str(error)) for error in found] == [(errors.WorkerFailedError, "rank 2 of 3 failed: OSError: disk full")] * 3


def test_a_label_of_one_workers_part_that_is_wrong_is_named():
    wrong = LABELS.copy()
    wrong[7] = 11
    batches = [(X[start : start + 10], wrong[start : start + 10]) for start in range(0, SAMPLES, 10)]

    def work(strategy):
        with trainer_of(strategy) as trainer:
            trainer.fit(batches)

    for error in run(2, work):
        assert isinstance(error, errors.WorkerFailedError)
        assert str(error).startswith("rank 1 of 2 failed: LabelRangeError: expected every element of 'labels' in [0, 3), got 11")


def test_a_loss_that_is_not_finite_ends_all():
    x = X.copy()
    x[0] = np.inf

    def work(strategy):
        with trainer_of(strategy) as trainer:
            trainer.fit(x, LABELS, batch_size=25, shuffle=False, check_finite=False)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = run(2, work)
    assert all("rank 0 of 2 failed: InvalidStateError: expected finite data" in str(error) for error in found)


def test_an_error_that_all_workers_have_is_raised_as_it_is():
    def work(strategy):
        with trainer_of(strategy) as trainer:
            trainer.fit(X, LABELS + 5)

    assert [type(error) for error in run(2, work)] == [errors.LabelRangeError] * 2


def test_evaluation_fails_for_all_too():
    def work(strategy):
        with trainer_of(strategy) as trainer:
            trainer.evaluate(X[: SAMPLES - 5 * strategy.rank, : FEATURES - strategy.rank], LABELS[: SAMPLES - 5 * strategy.rank])

    assert all(isinstance(error, errors.WorkerFailedError) and str(error).startswith("rank 1 of 2 failed: InputShapeError") for error in run(2, work))


@pytest.mark.parametrize("difference, message", [
    ({"seed": 6}, "expected the same seed on every worker"), ({"accumulate": 2}, "expected the same accumulation on every worker"),
    ({"optimizer": "sgd"}, "expected the same model on every worker"), ({"metrics": ["f1"]}, "expected the same names of metrics on every worker"),
])
def test_workers_that_would_train_differently_are_refused(difference, message):
    def work(strategy):
        with trainer_of(strategy, **(difference if strategy.rank else {})) as trainer:
            trainer.fit(X, LABELS, batch_size=5)

    for error in run(2, work):
        assert isinstance(error, errors.InvalidArgumentError) and message in str(error) and "rank 1" in str(error)


def test_workers_begin_with_the_weights_of_rank_0():
    def work(strategy):
        with trainer_of(strategy, weight_average=0.5, learning_rate=0.0) as trainer:
            trainer.session.state.trainable["head.bias"][...] = trainer.average.segments[0].views["head.bias"][...] = 1 + strategy.rank
            trainer.fit(X, LABELS, batch_size=25)
            return float(trainer.session.state.trainable["head.bias"].max()), float(trainer.average.segments[0].views["head.bias"].max())

    assert results(2, work) == [(1.0, 1.0)] * 2


def test_a_session_that_keeps_no_gradients_is_refused():
    session = TrainingSession.from_model(classifier(), loss="cross-entropy", optimizer="adamw", options=SessionOptions(optimizer_in_backward=True))
    for error in run(2, lambda strategy: Trainer(session, strategy=strategy)):
        assert isinstance(error, errors.InvalidArgumentError) and "expected a session without optimizer_in_backward for several workers" in str(error)
    session.close()


def test_data_that_end_are_refused():
    def work(strategy):
        with trainer_of(strategy) as trainer:
            trainer.fit(iter([(X, LABELS)] * 4), steps_per_epoch=2)

    assert all("expected data that every worker can iterate again" in str(error) for error in run(2, work))


# ---- files


def test_one_worker_writes_the_files_and_shows_the_progress(tmp_path, capsys):
    def work(strategy):
        logger = CSVLogger(tmp_path / f"log-{strategy.rank}.csv")
        with trainer_of(strategy, folder=tmp_path / "run", progress=True, callbacks=[logger], keep_last=2, save_every_steps=2) as trainer:
            trainer.fit(X, LABELS, batch_size=5, epochs=2)
            trainer.export(tmp_path / f"trained-{strategy.rank}.onnx")

    results(3, work)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"log-0.csv", "run", "trained-0.onnx"} <= names and not [name for name in names if name.startswith(("log-1", "log-2", "trained-1", "trained-2"))]
    assert json.loads((tmp_path / "run" / "trainer.json").read_text())["workers"] == 3
    assert len((tmp_path / "log-0.csv").read_text().splitlines()) > 2
    assert capsys.readouterr().err.count("epoch 1") == 1


def resumed(strategy, folder, **settings):
    settings = {"progress": False, "seed": 5, "weight_average": 0.9} | settings
    return Trainer.from_artifacts(folder, resume=True, strategy=strategy, **settings)


def test_a_run_is_resumed_in_the_middle_of_an_epoch(tmp_path):
    def stop(trainer, record):
        if record.step == 5:
            trainer.stop("for now")

    def work(strategy):
        with trainer_of(strategy, weight_average=0.9) as straight:
            straight.fit(X, LABELS, batch_size=5, epochs=3)
            expected = weights_of(straight), [record.figures for record in straight.history]
        with trainer_of(strategy, weight_average=0.9, folder=tmp_path / "run", callbacks=[LambdaCallback(on_step_end=stop)]) as trainer:
            trainer.fit(X, LABELS, batch_size=5, epochs=3)
        strategy.barrier()
        with resumed(strategy, tmp_path / "run") as trainer:
            assert (trainer.epoch, trainer.step) == (1, 6)          # 4 steps an epoch; a wish to stop takes effect with the next step
            trainer.fit(X, LABELS, batch_size=5, epochs=3)
            return expected, (weights_of(trainer), [record.figures for record in trainer.history])

    for expected, found in results(3, work):
        assert all((found[0][name] == array).all() for name, array in expected[0].items())
        assert [figures["loss"] for figures in found[1]] == [figures["loss"] for figures in expected[1]]


def test_another_number_of_workers_resumes_between_epochs_only(tmp_path):
    def stop(trainer, record):
        trainer.stop("for now")

    def work(strategy, event, name):
        with trainer_of(strategy, weight_average=0.9, folder=tmp_path / name, callbacks=[LambdaCallback(**{event: stop})]) as trainer:
            trainer.fit(X, LABELS, batch_size=5, epochs=3)

    results(2, lambda strategy: work(strategy, "on_step_end", "within"))
    with pytest.raises(errors.InvalidArgumentError, match="expected 2 workers to resume a run in the middle of an epoch, got 1"):
        resumed(None, tmp_path / "within")
    results(2, lambda strategy: work(strategy, "on_epoch_end", "between"))
    with resumed(None, tmp_path / "between") as trainer:
        assert len(trainer.fit(X, LABELS, batch_size=10, epochs=2)) == 2


def test_a_folder_that_holds_a_run_is_refused_by_rank_0_for_all(tmp_path):
    def work(strategy):
        with trainer_of(strategy, folder=tmp_path) as trainer:
            trainer.fit(X, LABELS, batch_size=5)

    results(2, work)
    for error in run(2, work):
        assert isinstance(error, errors.WorkerFailedError)
        assert str(error).startswith("rank 0 of 2 failed: InvalidArgumentError: expected a folder without a run")


def test_ctrl_c_in_one_process_stops_all(monkeypatch):
    """Only the main thread receives signals, so that the worker in it is the one that is interrupted."""
    import threading

    from tests.distributed.threads import Meeting, Threads

    meeting = Meeting(2)

    def press(trainer, record):
        if trainer.rank == 0 and record.step == 2:
            signal.raise_signal(signal.SIGINT)

    def work(strategy):
        with trainer_of(strategy, callbacks=[LambdaCallback(on_step_end=press)]) as trainer:
            trainer.fit(X, LABELS, batch_size=5, epochs=9)
            return trainer.step, trainer.stopped

    other = []
    thread = threading.Thread(target=lambda: other.append(work(Threads(meeting, 1))))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    try:
        found = work(Threads(meeting, 0))
    finally:
        thread.join()
        signal.signal(signal.SIGINT, previous)
    assert [found, *other] == [(3, "interrupted by Ctrl-C")] * 2


def test_evaluation_of_workers_is_that_of_one_process():
    def evaluate(strategy):
        with trainer_of(strategy) as trainer:
            return trainer.evaluate(X, LABELS, batch_size=4, metrics=["accuracy", "auroc"])

    expected = evaluate(None)
    for found in results(3, evaluate):
        assert found == pytest.approx(expected, rel=1e-6)


def test_predictions_are_gathered_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr("ortrain.trainer.parallel_loop.METRIC_SAMPLES", 20)
    assert_like_one_process(2, 3, metrics=["accuracy"])


def test_a_loader_that_the_caller_has_made_is_sharded():
    loader = as_loader(X, LABELS, names=["x", "labels"], batch_size=5, seed=5)
    losses = results(2, lambda strategy: fit(strategy, 5, data=(loader, None)))[0][0]
    np.testing.assert_allclose(losses, fit(None, 10)[0], rtol=2e-6)
