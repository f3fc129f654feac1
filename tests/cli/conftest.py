"""A folder with models and data of every kind, and a command line that runs in this process."""

import shlex

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain.cli import main
from tests.trainer.models import CLASSES, FEATURES, classifier

SAMPLES = 120
ANIMALS = ["cat", "dog", "owl"]
COLORS = {"blue": (20, 30, 220), "green": (20, 200, 40), "red": (230, 20, 10)}


def image_model(height="height", width="width"):
    """image [n, 3, height, width] -> scores [n, 3] of the mean color."""
    rng = np.random.default_rng(0)
    weights = {"weight": rng.standard_normal((3, 3)) * 0.5, "bias": np.zeros(3)}
    nodes = [helper.make_node("GlobalAveragePool", ["image"], ["pooled"]), helper.make_node("Flatten", ["pooled"], ["features"]),
             helper.make_node("Gemm", ["features", "weight", "bias"], ["scores"])]
    graph = helper.make_graph(nodes, "colors", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, height, width])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
                              [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path):
    """A folder with a classifier, model.onnx, and its data as arrays, data.npz."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    labels = (x @ rng.standard_normal((FEATURES, CLASSES))).argmax(1)
    onnx.save(classifier(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    return tmp_path


@pytest.fixture
def arrays(folder):
    """The arrays of data.npz."""
    with np.load(folder / "data.npz") as data:
        return data["x"], data["labels"]


@pytest.fixture
def table(folder, arrays):
    """table.csv: four columns of numbers, one with missing values, a column of text with two values, and the class as text."""
    x, labels = arrays
    rows = [[*(f"{value:.4f}" for value in numbers[:4]), ("rome", "oslo")[number % 2], ANIMALS[label]]
            for number, (numbers, label) in enumerate(zip(x, labels, strict=True))]
    for row in rows[::13]:
        row[1] = ""
    path = folder / "table.csv"
    path.write_text("\n".join(",".join(row) for row in [["a", "b", "c", "d", "city", "animal"], *rows]))
    return path


@pytest.fixture
def images(folder):
    """photos: a folder with ten images of each of three colors, and image.onnx, which takes images of any size."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name, color in COLORS.items():
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.clip(np.array(color) + rng.integers(-20, 20, (6, 5, 3)), 0, 255).astype(np.uint8)
            image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")
    onnx.save(image_model(), folder / "image.onnx")
    return folder / "photos"


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """Runs a command line in the folder; gives (status, stdout, stderr)."""
    monkeypatch.chdir(folder)

    def call(line: str) -> tuple[int, str, str]:
        try:
            status = main(shlex.split(line))
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
