"""Interrupted and resumed runs: the same weights as a straight run, and no setting changed by mistake."""

import json
import signal

import numpy as np
import pytest

from ortrain.cli import train
from ortrain.formats.checkpoint import read_checkpoint
from ortrain.trainer import LambdaCallback

HOW = "train model.onnx data.npz --loss cross-entropy --quiet --batch-size 16 --seed 4 --learning-rate 0.01 --schedule constant --warmup-steps 3"


def weights_of(folder, name):
    return read_checkpoint(folder / name / "checkpoint").trainable


def assert_same_weights(folder, first, second):
    found = weights_of(folder, second)
    for name, array in weights_of(folder, first).items():
        np.testing.assert_array_equal(found[name], array)


@pytest.fixture
def interrupt(monkeypatch):
    """Call it with a number: Ctrl-C is pressed after so many steps."""
    def after(steps):
        def press(trainer, record):
            if record.step == steps:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(train, "_loggers", lambda names, folder: [LambdaCallback(on_step_end=press)])

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)      # a background job of a shell inherits that it is ignored
    yield after
    signal.signal(signal.SIGINT, previous)


def test_a_run_that_ctrl_c_ended_in_the_middle_of_an_epoch_goes_on_as_if_nothing_had_happened(command, folder, interrupt, monkeypatch):
    assert command(f"{HOW} --epochs 4 --out straight")[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr(train, "_loggers", train._loggers)
        interrupt(10)
        status, out, err = command(f"{HOW} --epochs 4 --out run")
    assert (status, err) == (130, "") and "interrupted; saved after 10 steps" in out and "--resume --out run" in out
    assert (folder / "run" / "trained.onnx").exists() and len(json.loads((folder / "run" / "history.json").read_text())) == 1
    monkeypatch.setattr(train, "_loggers", lambda names, folder: [])
    assert command("train --resume --out run --quiet")[0] == 0
    assert_same_weights(folder, "straight", "run")
    assert [record["epoch"] for record in json.loads((folder / "run" / "history.json").read_text())] == [1, 2, 3, 4]


def test_a_run_that_broke_off_goes_on_from_the_last_of_so_many_steps(command, folder, monkeypatch):
    def break_off(trainer, record):
        if record.step == 11:
            raise OSError("power failed")

    assert command(f"{HOW} --epochs 4 --out straight")[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr(train, "_loggers", lambda names, folder: [LambdaCallback(on_step_end=break_off)])
        assert command(f"{HOW} --epochs 4 --save-every-steps 5 --out run")[0] == 1
    steps = []
    monkeypatch.setattr(train, "_loggers", lambda names, folder: [LambdaCallback(on_step_end=lambda trainer, record: steps.append(record.step))])
    assert command("train --resume --out run --quiet")[0] == 0
    assert steps[0] == 11, "expected the checkpoint of step 10, in the middle of the second epoch"
    assert_same_weights(folder, "straight", "run")


def test_more_epochs_continue_a_complete_run_exactly(command, folder):
    assert command(f"{HOW} --epochs 4 --out straight")[0] == 0
    assert command(f"{HOW} --epochs 2 --out run")[0] == 0
    assert command("train model.onnx data.npz --out run --resume --epochs 4 --quiet")[0] == 0
    assert_same_weights(folder, "straight", "run")
    assert json.loads((folder / "run" / "settings.json").read_text())["options"]["epochs"] == 4


def test_averaged_weights_and_parameter_groups_survive_a_resume(command, folder):
    more = "--weight-average 0.8 --no-decay --optimizer-options weight_decay=0.1 --label-smoothing 0.1"
    assert command(f"{HOW} {more} --epochs 3 --out straight")[0] == 0
    assert command(f"{HOW} {more} --epochs 1 --out run")[0] == 0
    assert command("train --out run --resume --epochs 3 --quiet")[0] == 0
    assert_same_weights(folder, "straight", "run")
    assert command("evaluate straight data.npz")[1] == command("evaluate run data.npz")[1]


def test_images_are_resumed_with_their_preprocessing_from_another_folder(command, folder, images, monkeypatch):
    how = "train image.onnx photos --loss cross-entropy --quiet --mean 0.5 --augment horizontal-flip random-crop=1 --batch-size 8"
    assert command(f"{how} --epochs 3 --out straight")[::2] == (0, "")
    assert command(f"{how} --epochs 1 --out run")[0] == 0
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert command("train --resume --out ../run --epochs 3 --quiet")[0] == 0
    assert_same_weights(folder, "straight", "run")


def test_a_resumed_run_refuses_other_settings_than_its_own(command, folder):
    assert command(f"{HOW} --epochs 1 --out run")[0] == 0
    before = (folder / "run" / "checkpoint").read_bytes()
    wrong = {"--batch-size 8": "the run's own batch-size 16, got 8", "--loss mse": "the run's own loss cross-entropy", "--seed 5": "seed 4"}
    for option, words in wrong.items():
        status, _, err = command(f"train --resume --out run --epochs 2 {option}")
        assert status == 2 and words in err and "--epochs" in err
    assert (folder / "run" / "checkpoint").read_bytes() == before
    assert command("train --resume --out run --epochs 2 --batch-size 16 --quiet")[0] == 0, "a setting that is the run's own may be repeated"


def test_a_complete_run_says_that_it_is_complete(command, folder):
    assert command(f"{HOW} --epochs 1 --out run")[0] == 0
    status, out, _ = command("train --resume --out run --quiet")
    assert status == 0 and "the run has completed 1 epochs already" in out


def test_data_of_another_length_are_no_data_to_resume_with(command, folder, arrays):
    x, labels = arrays
    assert command(f"{HOW} --epochs 1 --out run")[0] == 0
    np.savez(folder / "data.npz", x=x[:50], labels=labels[:50])
    status, _, err = command("train --resume --out run --epochs 2 --quiet")
    assert status == 1 and "expected the 120 samples of the run" in err
