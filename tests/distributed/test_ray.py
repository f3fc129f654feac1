"""Workers that Ray Train starts. `python -m tests.distributed ray` runs this where Ray is not installed."""

import json
import os
import pickle
import re
import runpy
import shlex
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest

from ortrain import Trainer, errors
from ortrain.cli import main
from ortrain.distributed import Launcher, Ray, SingleProcess
from ortrain.distributed.ray import _cluster, _failure
from ortrain.distributed.ray_worker import INLINE_BYTES
from ortrain.formats.checkpoint import read_checkpoint
from ortrain.trainer import Callback
from tests.distributed.test_parallel_training import HELD_OUT, LABELS, X, trainer_of, weights_of
from tests.distributed.threads import results
from tests.layers import ROOT
from tests.trainer.models import classifier

SETTINGS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def cluster():
    """One Ray of this machine for all tests, which would otherwise start one each."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "PYTHONPATH": str(ROOT)}.items():
            patch.setenv(name, value)
        with _cluster(ray, 4):
            patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)          # of programs that tests start
            yield ray


HOW = {"metrics": None, "weight_average": 0.9}


class Event(Callback):
    """Lets one worker die or fail after a step, once."""

    def __init__(self, event, folder, rank=1, step=7):
        self.event, self.happened, self.rank, self.step = event, folder / "happened", rank, step

    def on_step_end(self, trainer, record):
        if trainer.rank == self.rank and record.step == self.step and not self.happened.exists():
            self.happened.write_text("")
            if self.event == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("no space left")


def fit(strategy, batch_size, epochs=3, **settings):
    """Train; return (figures of epochs, weights)."""
    with trainer_of(strategy, **settings) as trainer:
        trainer.fit(X, LABELS, epochs=epochs, batch_size=batch_size, validation=HELD_OUT)
        assert trainer.epoch == epochs and trainer.evaluate(*HELD_OUT)["loss"] == pytest.approx(trainer.history[-1].validation_loss, rel=1e-6)
        return [record.figures for record in trainer.history], weights_of(trainer)


def assert_same(found, expected):
    assert found[0] == expected[0]
    for name, array in expected[1].items():
        np.testing.assert_array_equal(found[1][name], array, err_msg=name)


# ---- exchanges


def exchange_everything(worker):
    """Compare what the methods of a strategy make of known arrays."""
    for count in (5, INLINE_BYTES):
        mine = np.arange(count, dtype=np.float32) * (worker.rank + 1)
        total = np.arange(count, dtype=np.float32) * (worker.size * (worker.size + 1) / 2)
        reduced, bounds = mine.copy(), [0, *(count * rank // (worker.size + 1) for rank in range(1, worker.size)), count]
        worker.all_reduce(reduced)
        np.testing.assert_array_equal(reduced, total)
        part = mine.copy()
        worker.reduce_scatter(part, bounds)
        worker.all_gather_in_place(part, bounds)
        np.testing.assert_array_equal(part, total)
        sent = mine.copy()
        worker.broadcast(sent, 1)
        np.testing.assert_array_equal(sent, np.arange(count, dtype=np.float32) * 2)
        np.testing.assert_array_equal(worker.all_gather(mine), [np.arange(count, dtype=np.float32) * (rank + 1) for rank in range(worker.size)])
        rows = np.full((worker.size, count), worker.rank, np.uint8)
        np.testing.assert_array_equal(worker.all_to_all(rows)[:, 0], range(worker.size))
    worker.barrier()
    assert worker.threads() == 1


class UnportableError(Exception):
    """Can be pickled, but not be read again."""

    def __init__(self, path, reason):
        super().__init__(f"{path}: {reason}")


def exchange_and_fail(worker, attempt):
    exchange_everything(worker)
    if worker.rank == 0:
        raise UnportableError("data.csv", "no such column")
    worker.barrier()


def test_arrays_of_any_size_are_exchanged_until_a_worker_fails_whose_error_others_know_even_if_they_cannot_read_it(cluster):
    with pytest.raises(errors.WorkerFailedError, match=r"rank 0 of 3 failed: UnportableError: data\.csv: no such column"):
        Ray(workers=3).run(exchange_and_fail)


# ---- training


def assert_close(found, expected):
    for mine, other in zip(found[0], expected[0], strict=True):
        assert mine == pytest.approx(other, rel=2e-6)
    for name, array in expected[1].items():
        np.testing.assert_allclose(found[1][name], array, rtol=2e-4, atol=2e-6, err_msg=name)


# ---- the command line

TRAIN = "train model.onnx data.npz --loss cross-entropy --learning-rate 0.01 --quiet --epochs"


def test_the_command_line_trains_in_four_workers_that_divide_the_optimizer_as_in_one_process(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "model.onnx")
    np.savez("data.npz", x=X, labels=LABELS)

    def history(line, folder):
        assert main(shlex.split(f"{line} --out {folder}")) == 0, capsys.readouterr().err
        losses = [record["training"]["loss"] for record in json.loads((tmp_path / folder / "history.json").read_text(encoding="utf-8"))]
        return losses, read_checkpoint(tmp_path / folder / "checkpoint").trainable

    one, one_weights = history(f"{TRAIN} 3 --batch-size 8", "one")
    several = "--strategy ray --workers 4 --synchronization sharded-optimizer"
    losses, weights = history(f"{TRAIN} 3 --batch-size 2 --log csv {several}", "several")
    assert losses == pytest.approx(one, rel=2e-6)
    for name, array in one_weights.items():
        np.testing.assert_allclose(weights[name], array, rtol=2e-4, atol=2e-6, err_msg=name)
    files = {path.name for path in (tmp_path / "several").iterdir()}
    assert {"trained.onnx", "checkpoint", "checkpoint.best", "history.csv", "settings.json", "log.csv"} <= files
    described = json.loads((tmp_path / "several" / "trainer.json").read_text(encoding="utf-8"))
    assert (described["loss"], described["optimizer"], described["workers"]) == ("cross-entropy", "adamw", 4)
    assert main(shlex.split(f"{TRAIN} 3 {several} --out several")) == 1 and "holds a run already" in capsys.readouterr().err


# ---- workers that are lost or fail


def test_workers_start_anew_from_the_last_checkpoint_when_one_was_killed_and_end_as_if_none_was(cluster, tmp_path):
    uninterrupted = results(2, lambda strategy: fit(strategy, 4, **HOW))[0]                         # of workers that are threads, which sum in the same order
    with pytest.warns(RuntimeWarning, match="rank 1 of 2 was lost, and Ray Train has started all workers anew"):
        found = fit(Ray(workers=2), 4, folder=tmp_path / "run", save_every_steps=2, callbacks=[Event("kill", tmp_path)], **HOW)
    assert_same(found, uninterrupted)
    assert_close(found, fit(None, 8, **HOW))


def test_a_worker_that_is_lost_too_often_ends_the_run_with_its_rank(cluster, tmp_path):
    with pytest.raises(errors.WorkerFailedError, match="rank 1 of 2 was lost, and 0 restarts were allowed"):
        fit(Ray(workers=2, restarts=0), 4, callbacks=[Event("kill", tmp_path)])


INTERRUPTED = """
import os, signal, threading, time
from pathlib import Path
from ortrain.distributed import Ray

folder, handler = Path.cwd(), signal.getsignal(signal.SIGINT)

def wait(worker, attempt):
    (folder / f"{worker.rank}").touch()
    time.sleep(100)

def interrupt():
    while not ((folder / "0").exists() and (folder / "1").exists()):
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    Ray(workers=2).run(wait)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) == handler)
"""


def test_an_interrupt_ends_the_workers_and_leaves_the_programs_own_handler(cluster, tmp_path):
    (tmp_path / "program.py").write_text(INTERRUPTED, encoding="utf-8")
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "interrupted True"), done.stderr


# ---- the example


def test_the_example_trains_and_exports(cluster, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["train_digits.py", "--ray", "2", "--epochs", "3", "--out", str(tmp_path / "out")])
    runpy.run_path(str(ROOT / "examples" / "data_parallel" / "train_digits.py"), run_name="__main__")
    found = re.search(r"2 workers with 16 samples each: 3 epochs, 135 steps, .* held-out accuracy ([\d.]+)%", capsys.readouterr().out)
    assert found is not None and float(found[1]) > 90 and (tmp_path / "out" / "trained.onnx").exists()


# ---- without Ray


class OneWorker(Launcher):
    """Starts one worker in this process, with what it was sent, and with `restarts` anew when it has failed, as Ray Train does with one that was lost."""

    workers = cpus = 1

    def __init__(self, restarts=0):
        self.restarts = restarts

    def run(self, work):
        sent = pickle.dumps(work)
        for attempt in range(self.restarts):
            with pytest.raises(OSError, match="no space left"):
                pickle.loads(sent)(SingleProcess(), attempt)
        return pickle.loads(sent)(SingleProcess(), self.restarts)


@pytest.fixture(scope="module")
def alone():
    """What one process reaches without a launcher."""
    return fit(None, 8, **HOW)


def test_a_second_fit_and_a_resumed_run_go_on_where_the_first_has_ended(alone, tmp_path):
    with trainer_of(OneWorker(), folder=tmp_path / "run", **HOW) as trainer:
        trainer.fit(X, LABELS, epochs=1, batch_size=8, validation=HELD_OUT)
        trainer.fit(X, LABELS, epochs=2, batch_size=8, validation=HELD_OUT)
        trainer.save()
    with Trainer.from_artifacts(tmp_path / "run", resume=True, strategy=OneWorker(), seed=5, progress=False, **HOW) as trainer:
        assert trainer.epoch == 2
        trainer.fit(X, LABELS, epochs=3, batch_size=8, validation=HELD_OUT)
        assert_same(([record.figures for record in trainer.history], weights_of(trainer)), alone)
    with trainer_of(OneWorker(), folder=tmp_path / "run") as trainer, pytest.raises(errors.InvalidArgumentError, match="expected a folder without a run"):
        trainer.fit(X, LABELS)


def test_workers_without_a_folder_start_anew_from_the_beginning(alone, tmp_path):
    assert_same(fit(OneWorker(restarts=1), 8, callbacks=[Event("fail", tmp_path, rank=0)], **HOW), alone)


def test_the_error_of_a_run_is_the_one_that_all_workers_have_or_names_the_rank():
    first, second, told = OSError("no space left"), OSError("no such file"), errors.WorkerFailedError("rank 1 of 2 failed: OSError: no such file")
    assert _failure({0: first, 1: second}, 2) is first
    assert _failure({0: told, 1: second}, 2) is told
    failure = _failure({1: second}, 2)
    assert (type(failure), str(failure), failure.__cause__) == (type(told), str(told), second)


def test_what_is_missing_or_wrong_is_named(monkeypatch):
    with pytest.raises(errors.InvalidArgumentError, match="expected workers >= 1, got 0"):
        Ray(workers=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.train", raising=False)
    with pytest.raises(errors.MissingPackageError, match=r"expected the package ray for Ray: pip install 'ortrain\[ray\]'"):
        Ray(workers=2)
