"""predict and evaluate: names of classes, probabilities, and the preprocessing of the run."""

import csv

import numpy as np
import pytest

from ortrain.runs import Run
from tests.cli.conftest import ANIMALS, SAMPLES


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_predictions_for_a_table_have_the_names_of_its_classes(command, folder, table):
    assert command("train model.onnx table.csv --target animal --loss cross-entropy --epochs 25 --learning-rate 0.02 --out run --quiet")[0] == 0
    status, out, err = command("predict run table.csv")
    assert (status, err) == (0, "") and "written to predictions.csv: 120 predictions" in out
    rows = rows_of(folder / "predictions.csv")
    assert list(rows[0]) == ["row", "prediction", "probability", *(f"scores[{name}]" for name in ANIMALS)]
    targets = [row["animal"] for row in rows_of(table)]
    right = np.mean([row["prediction"] == target for row, target in zip(rows, targets, strict=True)])
    assert f"accuracy {right:.2%}" in command("evaluate run table.csv")[1]
    scores = np.array([[float(row[f"scores[{name}]"]) for name in ANIMALS] for row in rows])
    softmax = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose([float(row["probability"]) for row in rows], softmax.max(1), rtol=1e-4)


def test_a_table_without_the_target_and_with_a_new_word_can_be_predicted(command, folder, table):
    assert command("train model.onnx table.csv --target animal --loss cross-entropy --epochs 1 --out run --quiet")[0] == 0
    (folder / "new.csv").write_text("city,d,c,b,a\nparis,0.1,0.2,,0.4\noslo,1,2,3,4\n")
    assert command("predict run new.csv --out new_predictions.csv")[0] == 0
    assert [row["row"] for row in rows_of(folder / "new_predictions.csv")] == ["0", "1"]


def test_images_without_classes_are_predicted_by_file(command, folder, images):
    image = pytest.importorskip("PIL.Image")
    how = "--epochs 20 --batch-size 8 --learning-rate 0.1 --mean 0.5 --std 0.25"
    assert command(f"train image.onnx photos --loss cross-entropy {how} --out run --quiet")[0] == 0
    (folder / "new" / "deep").mkdir(parents=True)
    image.new("RGB", (40, 30), (250, 10, 10)).save(folder / "new" / "a.png")
    image.new("L", (6, 5), 10).save(folder / "new" / "deep" / "b.jpg")
    (folder / "new" / "readme.txt").write_text("no image")
    assert command("predict run new --out p.csv")[0] == 0
    rows = rows_of(folder / "p.csv")
    assert [row["file"] for row in rows] == ["a.png", "deep/b.jpg"] and rows[0]["prediction"] == "red"
    assert command("predict run new/a.png --out one.csv")[0] == 0
    assert rows_of(folder / "one.csv")[0]["file"] == "a.png" and rows_of(folder / "one.csv")[0]["prediction"] == "red"
    assert command("predict run/trained.onnx new --out again.csv")[0] == 0
    assert rows_of(folder / "again.csv") == rows, "a model in a run's folder has the run's preprocessing"


def test_regression_predicts_numbers(command, folder, arrays):
    x, _ = arrays
    np.savez(folder / "data.npz", x=x, labels=x[:, :3])
    assert command("train model.onnx data.npz --loss mse --metrics mae r2 --epochs 2 --out run --quiet")[0] == 0
    assert command("predict run data.npz")[0] == 0
    assert list(rows_of(folder / "predictions.csv")[0]) == ["row", "scores[0]", "scores[1]", "scores[2]"]
    assert "mae 0." in command("evaluate run data.npz")[1] and "r2 " in command("evaluate run data.npz")[1]


def test_an_npz_file_holds_the_outputs_as_arrays(command, folder, images):
    assert command("train image.onnx photos --loss cross-entropy --epochs 1 --out run --quiet")[0] == 0
    assert command("predict run photos --out p.npz")[0] == 0
    with np.load(folder / "p.npz") as found:
        assert found["scores"].shape == (30, 3) and found["scores"].dtype == np.float32
        assert set(found["prediction"]) <= {"blue", "green", "red"} and found["file"][0] == "blue/0.png"


def test_a_model_alone_is_predicted_with_the_options_for_its_data(command, folder, images, arrays):
    assert command("predict model.onnx data.npz --out p.csv")[0] == 0
    assert len(rows_of(folder / "p.csv")) == SAMPLES and list(rows_of(folder / "p.csv")[0]) == ["row", "scores[0]", "scores[1]", "scores[2]"]
    assert command("predict image.onnx photos/red --mean 0.5 --std 0.25 --out a.npz")[0] == 0
    assert command("predict image.onnx photos/red --out b.npz")[0] == 0
    with np.load(folder / "a.npz") as first, np.load(folder / "b.npz") as second:
        assert first["scores"].shape == (10, 3) and not np.allclose(first["scores"], second["scores"])


def test_a_run_is_opened_from_python(command, folder):
    assert command("train model.onnx data.npz --loss cross-entropy --epochs 3 --out run --quiet")[0] == 0
    run = Run.open(folder / "run")
    assert len(run.history()) == 3 and run.settings.samples == SAMPLES
    with run.trainer() as trainer:
        scores = trainer.predict(run.unlabelled(folder / "data.npz", trainer))
        part, what = run.validation(trainer)
        figures = trainer.evaluate(part)
    assert scores.shape == (SAMPLES, 3) and what.startswith("10%")
    assert figures["loss"] == pytest.approx(run.history()[-1].validation["loss"], rel=1e-5)
