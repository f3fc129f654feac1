"""Refused command lines: one line that says what was expected, the right exit status, and nothing written."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.cli.conftest import image_model

TRAIN = "train model.onnx data.npz --loss cross-entropy --out run"
FAILED, USAGE = 1, 2


@pytest.fixture
def wrong_data(folder, arrays):
    """Data files that do not fit, beside the one that does."""
    x, labels = arrays
    whole = (folder / "data.npz").read_bytes()
    np.savez(folder / "fewer_labels.npz", x=x, labels=labels[:10])
    np.savez(folder / "fewer_samples.npz", x=x[:9], labels=labels)
    np.savez(folder / "one_label.npz", x=x, labels=labels[0])
    np.savez(folder / "no_samples.npz", x=x[:0], labels=labels[:0])
    np.savez(folder / "narrow.npz", x=x[:, :4], labels=labels)
    np.savez(folder / "high.npz", x=x, labels=np.where(np.arange(len(labels)) == 77, 3, labels))
    np.savez(folder / "nan.npz", x=np.where(np.arange(len(x))[:, None] == 5, np.nan, x), labels=labels)
    np.save(folder / "array.npy", x)
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "numbers.csv").write_text("0.5,1\n0.25,0\n")
    (folder / "text.csv").write_text("a,b,c,d,e,f,labels\n" + "1,2,3,4,5,6,cat\n" * 20 + "1,2,3,4,5,6,dog\n" * 20)
    (folder / "four.csv").write_text("a,b,c,d,e,f,labels\n" + "".join(f"1,2,3,4,5,6,{name}\n" for name in "wxyz") * 10)
    (folder / "empty").mkdir()
    (folder / "photos" / "cat").mkdir(parents=True)
    (folder / "photos" / "cat" / "0.png").write_bytes(b"no image")
    onnx.save(image_model(), folder / "image.onnx")


WRONG = {
    "train nothing.onnx data.npz --loss mse --out run": (FAILED, "expected a model file"),
    "train model.onnx nothing.npz --loss mse --out run": (FAILED, "expected a data file"),
    "train model.onnx model.onnx --loss mse --out run": (FAILED, "expected a data file (.npz"),
    "train model.onnx empty --loss mse --out run": (FAILED, "expected a model with an image [batch, channels, height, width] as its only input"),
    "train image.onnx empty --loss cross-entropy --out run": (FAILED, "expected a folder with one subfolder of images per class"),
    "train image.onnx photos --loss cross-entropy --out run": (FAILED, "expected an image, got a file that cannot be read"),
    "train image.onnx photos --loss cross-entropy --augment flip --out run": (FAILED, "expected horizontal-flip, vertical-flip"),
    f"{TRAIN} --strategy ray": (FAILED, "expected --workers, how many Ray is to start"),
    f"{TRAIN} --workers 2": (FAILED, "expected --workers with --strategy ray alone: mpiexec -n 2"),
    f"{TRAIN} --synchronization-options every=2": (FAILED, "expected --synchronization for its options ['every']"),
    f"{TRAIN} --synchronization diloco --synchronization-options often=2": (FAILED, "expected options of the synchronization diloco among every"),
    f"{TRAIN} --synchronization overlapped --synchronized-batch-normalization": (FAILED, "expected no synchronized batch normalization"),
    "train model.onnx array.npy --loss mse --out run": (FAILED, "expected a folder of images, or a file of named arrays or columns"),
    "train model.onnx cut.npz --loss mse --out run": (FAILED, "one that cannot be read"),
    "train model.onnx fewer_labels.npz --loss cross-entropy --out run": (FAILED, "got 120 in 'x'"),
    "train model.onnx fewer_samples.npz --loss cross-entropy --out run": (FAILED, "got 9 in 'x'"),
    "train model.onnx one_label.npz --loss cross-entropy --out run": (FAILED, "labels"),
    "train model.onnx no_samples.npz --loss cross-entropy --out run": (FAILED, "expected at least one sample"),
    "train model.onnx narrow.npz --loss cross-entropy --out run": (FAILED, "'x'"),
    "train model.onnx high.npz --loss cross-entropy --out run": (FAILED, "3"),
    "train model.onnx nan.npz --loss cross-entropy --out run": (FAILED, "finite"),
    "train model.onnx numbers.csv --loss cross-entropy --out run": (FAILED, "expected a header with the columns' names"),
    "train model.onnx four.csv --loss cross-entropy --out run": (FAILED, "expected a model with at least 4 outputs for the classes w, x, y, z, got 3"),
    "train model.onnx text.csv --loss cross-entropy --features a b --out run": (FAILED, "expected 6 columns for the input 'x', got 2: a, b"),
    "train model.onnx text.csv --loss cross-entropy --features a nope --out run": (FAILED, "without ['nope']"),
    "train model.onnx text.csv --loss cross-entropy --target nope --out run": (FAILED, "expected a column 'nope' as target"),
    "train model.onnx data.npz --out run": (USAGE, "expected --loss, one of cross-entropy"),
    "train model.onnx data.npz --loss nope --out run": (USAGE, "invalid choice: 'nope'"),
    "train model.onnx data.npz --loss mse": (USAGE, "expected --out"),
    "train model.onnx --loss mse --out run": (USAGE, "expected a data file or folder"),
    "train": (USAGE, "expected --out"),
    f"{TRAIN} --resume --overwrite": (USAGE, "expected --resume or --overwrite, got both"),
    f"{TRAIN} --resume": (FAILED, "expected a run, which has settings.json"),
    f"{TRAIN} --epochs 0": (USAGE, "argument --epochs: expected a whole number of at least 1, got '0'"),
    f"{TRAIN} --learning-rate -1": (USAGE, "argument --learning-rate: expected a number above 0"),
    f"{TRAIN} --validation 1": (FAILED, "expected a share of at least 0 and below 1"),
    f"{TRAIN} --validation nowhere.npz": (FAILED, "expected a data file"),
    f"{TRAIN} --target nope": (FAILED, "expected a column 'nope' as target"),
    f"{TRAIN} --requires-grad nope": (FAILED, "nope"),
    f"{TRAIN} --metrics accurate": (FAILED, "expected a metric among"),
    f"{TRAIN} --monitor validation_f1": (FAILED, "expected to monitor one of loss, accuracy, validation_loss, validation_accuracy, got 'validation_f1'"),
    f"{TRAIN} --monitor validation_loss --validation 0": (FAILED, "expected to monitor one of loss, accuracy, got"),
    f"{TRAIN} --optimizer-options momentum=0.9": (FAILED, "expected options of the optimizer adamw among bias_correction, betas"),
    f"{TRAIN} --optimizer sgd --optimizer-options momentum=2": (FAILED, "momentum"),
    f"{TRAIN} --loss-options gamma=2": (FAILED, "expected options of CrossEntropyLoss"),
    f"{TRAIN} --schedule step": (FAILED, "required"),
    f"{TRAIN} --class-weight 1 2": (FAILED, "expected 3 numbers as --class-weight, got 2"),
    f"{TRAIN} --class-weight heavy": (FAILED, "expected numbers or balanced"),
    f"{TRAIN} --input-shapes x": (USAGE, "expected NAME=DIMENSION"),
    f"{TRAIN} --lora nope": (FAILED, "nope"),
    f"{TRAIN} --weight-average 1": (USAGE, "expected a number above 0 and below 1"),
    f"{TRAIN} --log paper": (USAGE, "invalid choice: 'paper'"),
    f"{TRAIN} --unknown": (USAGE, "unrecognized arguments: --unknown"),
    "train model.onnx data.npz --loss mse --out data.npz": (FAILED, "expected a folder as --out"),
    "evaluate model.onnx fewer_labels.npz --loss cross-entropy": (FAILED, "10"),
    "evaluate empty data.npz": (FAILED, "expected"),
    "evaluate model.onnx data.npz --metrics nope": (FAILED, "expected a metric among"),
    "predict model.onnx data.npz --out run.txt": (USAGE, "expected a .csv or .npz file as --out"),
    "predict model.onnx data.npz --out nowhere/p.csv": (FAILED, "expected an existing folder for --out"),
    "predict model.onnx nothing.npz": (FAILED, "expected"),
    "predict image.onnx photos/cat/0.png": (FAILED, "expected an image"),
    "report empty": (FAILED, "expected a run, which has settings.json"),
    "report nothing": (FAILED, "expected a run, which has settings.json"),
    "lr-find model.onnx data.npz": (USAGE, "expected --loss"),
    "lr-find model.onnx data.npz --loss cross-entropy --plot nowhere/a.png": (FAILED, "expected an existing folder for --plot"),
    "lr-find model.onnx data.npz --loss cross-entropy --lowest 1 --highest 0.1": (FAILED, "expected 0 < lowest < highest"),
    "artifacts data.npz --loss mse --out made": (FAILED, "expected an ONNX model"),
    "export run --output-names scores": (FAILED, "expected a folder, output names and a file"),
    "export nowhere --output-names scores out.onnx": (FAILED, "expected a folder with artifacts"),
    "inspect nothing": (FAILED, "expected a model, a folder or a checkpoint"),
    "inspect data.npz": (FAILED, "expected an ONNX model"),
    "inspect empty": (FAILED, "expected artifacts"),
    "nothing": (USAGE, "invalid choice: 'nothing'"),
}


@pytest.mark.parametrize("line", list(WRONG))
def test_a_refused_command_says_why_and_writes_nothing(line, command, folder, wrong_data):
    before = sorted(folder.rglob("*"))
    status, out, err = command(line)
    expected, words = WRONG[line]
    assert (status, out) == (expected, ""), err
    assert words in err
    assert err.startswith("usage: ") if expected == USAGE else len(err.splitlines()) == 1 and err.startswith("error: ")
    assert sorted(folder.rglob("*")) == before


def test_a_run_is_not_overwritten_by_mistake(command, folder):
    assert command(f"{TRAIN} --quiet --epochs 1")[0] == 0
    before = {path: path.read_bytes() for path in (folder / "run").iterdir()}
    status, _, err = command(f"{TRAIN} --epochs 2")
    assert status == FAILED and "--overwrite" in err
    assert command(f"{TRAIN} --epochs 2 --overwrite --metrics nope")[0] == FAILED
    assert {path: path.read_bytes() for path in (folder / "run").iterdir()} == before


def test_what_a_run_knows_cannot_be_said_again(command):
    assert command(f"{TRAIN} --quiet --epochs 1")[0] == 0
    status, _, err = command("predict run data.npz --mean 0.5 --target labels")
    assert status == USAGE and "expected --target, --mean for a model only" in err
    assert command("evaluate run data.npz --loss mse")[0] == USAGE
    assert command("artifacts model.onnx --loss cross-entropy --additional-outputs scores --out made")[0] == 0
    assert command("evaluate made data.npz --loss mse")[0] == USAGE and command("evaluate made data.npz")[0] == 0


@pytest.mark.parametrize(("content", "words"), [("{", "cannot be read"), ("[]", "in format 1"), ('{"format": 9}', "in format 1"),
                                                ('{"format": 1, "preprocessing": {"kind": "music"}}', "do not fit"), ('{"format": 1}', "do not fit")])
def test_damaged_settings_of_a_run_are_refused(content, words, command, folder):
    assert command(f"{TRAIN} --quiet --epochs 1")[0] == 0
    (folder / "run" / "settings.json").write_text(content)
    for line in ("evaluate run data.npz", "predict run data.npz", "report run", "train --resume --out run"):
        status, _, err = command(line)
        assert status == FAILED and "expected the settings of a run" in err and words in err


def test_it_runs_as_a_module(folder):
    done = subprocess.run([sys.executable, "-m", "ortrain", "inspect", "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == FAILED and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
