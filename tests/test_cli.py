"""The command line, run in this process: what it writes and prints, and that errors are one line and status 2."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain.cli import main
from ortrain.formats.checkpoint import read_checkpoint
from tests.trainer.models import CLASSES, FEATURES, classifier

SAMPLES = 120


@pytest.fixture
def folder(tmp_path):
    """A folder with a classifier and its data."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    labels = (x @ rng.standard_normal((FEATURES, CLASSES))).argmax(1)
    onnx.save(classifier(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    return tmp_path


@pytest.fixture
def wrong_data(folder):
    """Data files that do not fit, beside the one that does."""
    with np.load(folder / "data.npz") as data:
        x, labels = data["x"], data["labels"]
    whole = (folder / "data.npz").read_bytes()
    np.savez(folder / "fewer_labels.npz", x=x, labels=labels[:10])
    np.savez(folder / "fewer_samples.npz", x=x[:9], labels=labels)
    np.savez(folder / "one_label.npz", x=x, labels=labels[0])
    np.savez(folder / "no_samples.npz", x=x[:0], labels=labels[:0])
    np.save(folder / "array.npy", x)
    (folder / "table.csv").write_text("x,labels\n1,2\n")
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "damaged.npz").write_bytes(whole[:200] + bytes(200) + whole[400:])


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """Runs a command line in the folder; gives (status, stdout, stderr)."""
    monkeypatch.chdir(folder)

    def call(line: str) -> tuple[int, str, str]:
        try:
            status = main(line.split())
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


TRAIN = "train model.onnx data.npz --loss cross-entropy --out run --quiet"


def test_train_then_evaluate_and_export(command, folder):
    status, out, err = command(f"{TRAIN} --epochs 12 --batch-size 16 --learning-rate 0.02 --validation-split 0.2")
    assert (status, err) == (0, "") and "epoch 12, loss" in out
    assert {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint", "trained.onnx", "history.json",
            "settings.json"} <= {path.name for path in (folder / "run").iterdir()}
    history = json.loads((folder / "run" / "history.json").read_text())
    assert len(history) == 12 and history[-1]["validation_loss"] < history[0]["loss"]

    status, out, _ = command("eval run data.npz")
    assert status == 0 and f"samples {SAMPLES}, loss" in out and "accuracy" in out
    status, on_model, _ = command("eval run/trained.onnx data.npz")
    assert status == 0 and on_model == out, "the exported model is the trained one"

    for line in ("export run --output-names scores again.onnx", "export run again.onnx --output-names scores", "export run again.onnx"):
        assert command(line)[0] == 0
        model = onnx.load(folder / "again.onnx")
        assert ([v.name for v in model.graph.input], [v.name for v in model.graph.output]) == (["x"], ["scores"])


def test_a_resumed_run_equals_a_straight_one(command, folder):
    how = "--batch-size 16 --seed 4 --learning-rate 0.01"
    assert command(f"{TRAIN} {how} --epochs 4")[0] == 0
    straight = read_checkpoint(folder / "run" / "checkpoint")
    assert command(f"{TRAIN} {how} --epochs 2 --overwrite")[0] == 0
    assert command("train model.onnx data.npz --out run --resume --epochs 4 --quiet")[0] == 0
    resumed = read_checkpoint(folder / "run" / "checkpoint")
    for name, array in straight.trainable.items():
        np.testing.assert_array_equal(resumed.trainable[name], array)
    assert [r["epoch"] for r in json.loads((folder / "run" / "history.json").read_text())] == [1, 2, 3, 4]


@pytest.mark.parametrize("loss", ["mse", "l1", "bce-with-logits"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_every_loss_and_optimizer_trains(loss, optimizer, command, folder):
    x = np.load(folder / "data.npz")["x"]
    np.savez(folder / "data.npz", x=x, wanted=(x[:, :CLASSES] > 0).astype(np.float64))
    status, _, err = command(f"train model.onnx data.npz --loss {loss} --optimizer {optimizer} --target wanted --epochs 5 "
                             "--learning-rate 0.01 --validation-split 0 --out run --quiet")
    assert (status, err) == (0, "")
    history = json.loads((folder / "run" / "history.json").read_text())
    assert history[-1]["loss"] < history[0]["loss"] and history[0]["accuracy"] is None


def test_artifacts_and_frozen_weights(command, folder):
    status, out, _ = command("artifacts model.onnx --loss cross-entropy --optimizer sgd --requires-grad w2 b2 --frozen w1 b1 --out made")
    assert status == 0 and len(out.splitlines()) == 4
    checkpoint = read_checkpoint(folder / "made" / "checkpoint")
    assert (set(checkpoint.trainable), set(checkpoint.frozen)) == ({"w2", "b2"}, {"w1", "b1"})
    status, out, _ = command("inspect made")
    assert status == 0 and "SoftmaxCrossEntropyLoss" in out and "SGDOptimizerV2" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["w2", "float32", "[16,", "3]", "trainable"] in rows and ["w1", "float32", "[6,", "16]", "frozen"] in rows


def test_inspect_a_model_says_what_cannot_be_trained(command, folder):
    nodes = [helper.make_node(*arguments) for arguments in (("Relu", ["x"], ["a"]), ("NobodyKnows", ["a"], ["b"]), ("Relu", ["b"], ["y"]))]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.zeros(2, np.float32), "odd\x1b[31m\nname")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "odd.onnx")
    status, out, _ = command("inspect odd.onnx")
    rows = [line.split() for line in out.splitlines()]
    assert status == 0
    assert ["Relu", "ai.onnx", "2", "yes", "yes"] in rows and ["NobodyKnows", "ai.onnx", "1", "no", "no"] in rows
    assert ["input", "x", "float32", "[batch,", "2]"] in rows
    assert "\x1b" not in out and r"odd\x1b[31m\nname" in out, "a name cannot command the terminal"


def test_inspect_a_checkpoint(command):
    command(f"{TRAIN} --epochs 1 --seed 9")
    status, out, _ = command("inspect run/checkpoint")
    rows = [line.split() for line in out.splitlines()]
    assert status == 0 and "checkpoint: version 2" in out
    assert ["epoch", "int", "1"] in rows and ["seed", "int", "9"] in rows and rows.count(["w1", "float32", "[6,", "16]", "trainable"]) == 1
    assert any(row[:2] == ["group0", "4"] for row in rows), "108 samples make 4 steps"


WRONG = {
    "train nothing.onnx data.npz --loss mse --out run": "expected a model file",
    "train model.onnx nothing.npz --loss mse --out run": "expected a data file",
    "train model.onnx model.onnx --loss mse --out run": "expected an .npz file",
    "train model.onnx . --loss mse --out run": "expected a data file with named arrays or columns (.npz, .csv or .parquet), got a folder",
    "train model.onnx table.csv --loss mse --out run": "as numpy.savez writes them, got another kind of file: 'table.csv'",
    "train model.onnx array.npy --loss mse --out run": "got another kind of file",
    "train model.onnx cut.npz --loss mse --out run": "got another kind of file",
    "train model.onnx damaged.npz --loss mse --out run": "one that cannot be read",
    "train model.onnx fewer_labels.npz --loss cross-entropy --out run": "got 120 in 'x', 10 in 'labels'",
    "train model.onnx fewer_samples.npz --loss cross-entropy --out run": "got 9 in 'x', 120 in 'labels'",
    "train model.onnx one_label.npz --loss cross-entropy --out run": "got 120 in 'x', 0 in 'labels'",
    "train model.onnx no_samples.npz --loss cross-entropy --out run": "got 0 in 'x', 0 in 'labels'",
    "eval model.onnx fewer_labels.npz --loss cross-entropy": "10",
    "train model.onnx data.npz --out run": "expected --loss",
    "train model.onnx data.npz --loss cross-entropy --target nope --out run": "expected the target 'nope'",
    "train model.onnx data.npz --loss cross-entropy --epochs 0 --out run": "expected --epochs above 0",
    "train model.onnx data.npz --loss cross-entropy --validation-split 1 --out run": "expected --seed >= 0 and --validation-split",
    "train model.onnx data.npz --loss cross-entropy --requires-grad nope --out run": "nope",
    "train model.onnx data.npz --loss cross-entropy --resume --out run": "expected a run to resume",
    "artifacts data.npz --loss mse --out made": "expected an ONNX model",
    "eval run data.npz": "expected a model file",
    "export run --output-names scores": "expected a folder, output names and a file",
    "export nowhere --output-names scores out.onnx": "expected a folder with artifacts",
    "inspect nothing": "expected a model, a folder or a checkpoint",
    "inspect data.npz": "expected an ONNX model",
    "inspect .": "expected artifacts",
}


@pytest.mark.parametrize("line", list(WRONG))
def test_an_error_is_one_line_and_status_2(line, command, folder, wrong_data):
    if line == "inspect .":
        for path in folder.iterdir():
            path.unlink()
    status, out, err = command(line)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("error: ") and WRONG[line] in err
    assert not (folder / "run").exists() and not (folder / "made" / "checkpoint").exists()


def test_a_run_is_not_overwritten_by_mistake(command, folder):
    assert command(f"{TRAIN} --epochs 1")[0] == 0
    before = (folder / "run" / "checkpoint").read_bytes()
    status, _, err = command(f"{TRAIN} --epochs 2")
    assert status == 2 and "--overwrite" in err
    assert (folder / "run" / "checkpoint").read_bytes() == before


def test_labels_of_another_integer_type_fit_and_fractions_do_not(command, folder):
    with np.load(folder / "data.npz") as data:
        x, labels = data["x"], data["labels"]
    np.savez(folder / "data.npz", x=x.astype(np.float64), labels=labels.astype(np.uint8))
    assert command(f"{TRAIN} --epochs 1")[0] == 0
    np.savez(folder / "data.npz", x=x, labels=labels + 0.5)
    status, _, err = command(f"{TRAIN} --epochs 1 --overwrite")
    assert status == 2 and "expected 'labels' with dtype int64, got float64" in err
    np.savez(folder / "data.npz", x=x, labels=labels + CLASSES)
    status, _, err = command(f"{TRAIN} --epochs 1 --overwrite")
    assert status == 2 and len(err.splitlines()) == 1


def test_fewer_labels_than_samples_are_refused_before_anything_is_written(command, folder):
    with np.load(folder / "data.npz") as data:
        np.savez(folder / "data.npz", x=data["x"], labels=data["labels"][:10])
    for line in (f"{TRAIN} --epochs 1", "eval model.onnx data.npz"):
        status, _, err = command(line)
        assert status == 2 and "expected as many samples in every input, got 120 in 'x'" in err and "10 in 'labels'" in err
    assert not (folder / "run").exists()


def write_csv(path, x, labels):
    header = [*(f"column {number}" for number in range(x.shape[1])), "labels"]
    rows = [[*map(str, row), str(label)] for row, label in zip(x.tolist(), labels.tolist(), strict=True)]
    path.write_text("\n".join(",".join(row) for row in [header, *rows]))


def test_a_csv_file_trains_like_the_arrays_it_was_written_from(command, folder):
    with np.load(folder / "data.npz") as data:
        write_csv(folder / "data.csv", data["x"], data["labels"])
    assert command(f"{TRAIN} --epochs 2")[0] == 0
    of_arrays = json.loads((folder / "run" / "history.json").read_text())
    status, _, err = command(TRAIN.replace("data.npz", "data.csv") + " --epochs 2 --overwrite")
    assert (status, err) == (0, "")
    of_columns = json.loads((folder / "run" / "history.json").read_text())
    assert [record["loss"] for record in of_columns] == [record["loss"] for record in of_arrays]


def test_a_csv_file_without_a_header_is_refused_in_words(command, folder):
    (folder / "data.csv").write_text("0.5,1\n0.25,0\n")
    status, _, err = command(TRAIN.replace("data.npz", "data.csv"))
    assert status == 2 and "expected a header with the columns' names" in err and "pickle" not in err
    assert not (folder / "run").exists()


def test_a_wrong_word_is_a_usage_error(command):
    for line in ("nothing", "train", "train model.onnx data.npz --loss nope --out run"):
        status, _, err = command(line)
        assert status == 2 and "usage:" in err


def test_it_runs_as_a_module(folder):
    done = subprocess.run([sys.executable, "-m", "ortrain", "inspect", "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
