"""What the tutorials train, taken out of their scripts: networks, data and settings, written to files for ortrain and for PyTorch."""

from __future__ import annotations

import ast
import fnmatch
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from benchmarks.tutorial_files import DATA, GRAPH, MODEL, SETTINGS, WEIGHTS
from ortrain.formats.onnx_files import to_proto

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"


@dataclass(frozen=True)
class Task:
    """A training run, the same for every runtime: AdamW, a learning rate that falls along a cosine, samples in the order of ortrain.data."""

    model: onnx.ModelProto
    trainable: list[str]
    inputs: dict[str, np.ndarray]
    target: np.ndarray
    test_inputs: dict[str, np.ndarray]
    test_target: np.ndarray
    epochs: int
    batch_size: int
    learning_rate: float
    metric: str
    loss: str = "cross-entropy"
    loss_options: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the files that the measuring processes read; the graph also as JSON, for environments without the package onnx."""
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(self.model, folder / MODEL)
        graph, weights = portable_graph(self.model)
        (folder / GRAPH).write_text(json.dumps(graph), encoding="utf-8")
        np.savez(folder / WEIGHTS, **weights)
        parts = {"inputs": self.inputs, "test_inputs": self.test_inputs}
        np.savez(folder / DATA, target=self.target, **{f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()})
        settings = {name: getattr(self, name) for name in ("trainable", "epochs", "batch_size", "learning_rate", "loss", "loss_options")}
        (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")


def portable_graph(model: onnx.ModelProto) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (nodes and outputs as JSON values, weights by name); nodes that depend on constants alone are replaced by their value."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.input and all(name in weights for name in node.input):
            values = ReferenceEvaluator(helper.make_model(helper.make_graph(
                [node], "constant", [], [helper.make_empty_tensor_value_info(name) for name in node.output],
                [numpy_helper.from_array(weights[name], name) for name in node.input]), opset_imports=model.opset_import)).run(None, {})
            weights.update(zip(node.output, map(np.asarray, values), strict=True))
            continue
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        attributes = {name: value.decode() if isinstance(value, bytes) else list(value) if not isinstance(value, int | float) else value
                      for name, value in attributes.items()}
        nodes.append({"op": node.op_type, "inputs": list(node.input), "outputs": list(node.output), "attributes": attributes})
    return {"nodes": nodes, "outputs": [value.name for value in model.graph.output]}, weights


# ---- the tutorials

def before_training(name: str) -> dict[str, Any]:
    """Run a tutorial up to its first `trainer.fit` and return its variables."""
    path = TUTORIALS / f"{name}.py"
    variables: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if "trainer.fit(" in ast.unparse(statement):
            break
        exec(compile(ast.Module([statement], []), str(path), "exec"), variables)
    return variables


def image_transfer_learning(v: dict[str, Any]) -> Task:
    """All layers of the pretrained network, on images that are not changed at random."""
    images = {part: np.stack([v[part].without_augmentation().read(number) for number in range(len(v[part]))]) for part in ("training", "testing")}
    patterns = ("conv2d_*", "batch_norm2d_*.w_0*", "batch_norm2d_*.b_0*", "linear_*")
    trainable = [weight for weight in v["model"].graph.initializers if any(fnmatch.fnmatch(weight, pattern) for pattern in patterns)]
    name = v["image_input"]
    return Task(to_proto(v["model"]), trainable, {name: images["training"]}, v["training"].labels, {name: images["testing"]}, v["testing"].labels, v["EPOCHS"],
                v["BATCH"], 2e-3, "accuracy")


def text_classification_lora(v: dict[str, Any]) -> Task:
    """The adapters and the last layer of the encoder."""
    inputs, tests = (dict(zip(("tokens", "mask"), arrays, strict=True)) for arrays in (v["train_inputs"], v["test_inputs"]))
    return Task(to_proto(v["adapted"]), v["trained_names"], inputs, v["train_labels"], tests, v["test_labels"], v["EPOCHS"],
                v["BATCH"], 1e-3, "accuracy")


def tabular(v: dict[str, Any]) -> Task:
    """The network with embeddings, with class weights, for the epochs after which its tutorial stops."""
    inputs, tests = ({"numbers": part.numbers, "categories": part.categories} for part in (v["training"], v["testing"]))
    return Task(v["model"], list(v["weights"]), inputs, v["training"].target, tests, v["testing"].target, 20, v["BATCH"], 1e-3, "auroc",
                loss_options={"weight": (1 / (2 * v["shares"])).tolist()})


def audio(v: dict[str, Any]) -> Task:
    """The convolutional network behind the spectrogram."""
    return Task(v["model"], list(v["weights"]), {"waveform": v["waveforms"]}, v["labels"], {"waveform": v["test_waveforms"]}, v["test_labels"], v["EPOCHS"],
                v["BATCH"], 2e-3, "accuracy", loss_options={"label_smoothing": 0.1})


def time_series(v: dict[str, Any]) -> Task:
    """The LSTM, without an average of the weights."""
    inputs, tests = ({"past": v["past"][rows], "holidays": v["holidays_ahead"][rows]} for rows in (v["training"], v["testing"]))
    return Task(v["model"], list(v["weights"]), inputs, v["target"][v["training"]], tests, v["target"][v["testing"]], v["EPOCHS"], v["BATCH"], 3e-3,
                "mean absolute error", "huber", {"delta": 0.5})


TASKS: dict[str, Callable[[dict[str, Any]], Task]] = {
    function.__name__: function for function in (image_transfer_learning, text_classification_lora, tabular, audio, time_series)}


def score(metric: str, predictions: np.ndarray, target: np.ndarray) -> float:
    """Return the figure of predictions."""
    if metric == "mean absolute error":
        return float(np.abs(predictions - target).mean())
    if metric == "accuracy":
        return float((predictions.argmax(axis=1) == target).mean())
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(target, predictions[:, 1] - predictions[:, 0]))
