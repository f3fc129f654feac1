"""The tutorials: their form, and what the comparison with PyTorch takes out of them. `make tutorials` runs them; their last cells assert what they reached."""

import ast
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import tutorial_tasks

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
each_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)


def cells(path: Path) -> list[tuple[str, str]]:
    """Return (kind, text) of the cells of a script in percent format."""
    parts = re.split(r"^# %%(.*)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert parts[0] == "", "text before the first cell"
    return [(kind.strip() or "code", text.strip()) for kind, text in zip(parts[1::2], parts[2::2], strict=True)]


@each_script
def test_a_tutorial_begins_with_what_is_learned_and_ends_with_assertions(path):
    first, last = cells(path)[0], cells(path)[-1]
    assert first[0] == "[markdown]"
    assert first[1].startswith("# # ") and "You will learn to" in first[1] and "pip install" in first[1]
    assert last[0] == "code"
    assert all(isinstance(statement, ast.Assert) for statement in ast.parse(last[1]).body)


@each_script
def test_cells_are_text_or_code(path):
    for kind, text in cells(path):
        assert kind in ("[markdown]", "code")
        if kind == "[markdown]":
            assert all(line == "#" or line.startswith("# ") for line in text.splitlines()), text
        else:
            ast.parse(text)


def test_every_tutorial_can_be_compared_with_pytorch():
    assert set(tutorial_tasks.TASKS) == {path.stem for path in SCRIPTS}


# ---- the comparison with PyTorch

def small_model() -> onnx.ModelProto:
    """Return y = (x + (a + b)) w, in which a + b depends on constants alone."""
    weights = {"a": np.ones(3, np.float32), "b": np.full(3, 2, np.float32), "w": np.eye(3, dtype=np.float32)}
    nodes = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["s"]),
             helper.make_node("Gemm", ["s", "w"], ["y"], transB=1)]
    graph = helper.make_graph(nodes, "small", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
                              [numpy_helper.from_array(array, name) for name, array in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_constant_parts_of_a_graph_are_computed_before_pytorch_gets_it():
    graph, weights = tutorial_tasks.portable_graph(small_model())
    assert [node["op"] for node in graph["nodes"]] == ["Add", "Gemm"]
    assert graph["nodes"][1]["attributes"] == {"transB": 1} and graph["outputs"] == ["y"]
    np.testing.assert_array_equal(weights["c"], [3, 3, 3])


def test_scores_are_what_the_metrics_of_the_trainer_say():
    target, predictions = np.array([0, 1, 1, 0]), np.array([[2.0, 1], [0, 1], [1, 0], [1, 0]], np.float32)
    assert tutorial_tasks.score("accuracy", predictions, target) == 0.75
    assert tutorial_tasks.score("auroc", predictions, target) == pytest.approx(0.75)
    assert tutorial_tasks.score("mean absolute error", np.array([1.0, 2]), np.array([0.0, 4])) == 1.5


def test_a_graph_runs_as_a_pytorch_module(tmp_path):
    torch = pytest.importorskip("torch")
    from benchmarks.peers.torch_graph import GraphModule

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    tutorial_tasks.Task(small_model(), ["w"], {"x": x}, x, {"x": x}, x, 1, 2, 0.1, "mean absolute error").write(tmp_path)
    module = GraphModule(tmp_path, ["w"])
    assert len(list(module.parameters())) == 1
    np.testing.assert_array_equal(module({"x": torch.from_numpy(x)}).detach().numpy(), x + 3)
