"""artifacts, inspect, lr-find, and what all commands have in common: help, exit status, the page about them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain.cli import COMMANDS, module_of
from ortrain.cli.page import page
from ortrain.formats.checkpoint import read_checkpoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"


def test_artifacts_and_frozen_weights(command, folder):
    status, out, _ = command("artifacts model.onnx --loss cross-entropy --optimizer sgd --requires-grad head.weight head.bias --frozen 'hidden.*' --out made")
    assert status == 0 and len(out.splitlines()) == 4
    checkpoint = read_checkpoint(folder / "made" / "checkpoint")
    assert (set(checkpoint.trainable), set(checkpoint.frozen)) == ({"head.weight", "head.bias"}, {"hidden.weight", "hidden.bias"})
    status, out, _ = command("inspect made")
    assert status == 0 and "SoftmaxCrossEntropyLoss" in out and "SGDOptimizerV2" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["head.weight", "float32", "[16,", "3]", "trainable"] in rows and ["hidden.weight", "float32", "[6,", "16]", "frozen"] in rows


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
    assert ["Relu", "ai.onnx", "2", "yes", "yes", "no"] in rows and ["NobodyKnows", "ai.onnx", "1", "no", "no", "no"] in rows
    assert ["input", "x", "float32", "[batch,", "2]"] in rows
    assert "\x1b" not in out and r"odd\x1b[31m\nname" in out, "a name cannot command the terminal"


def test_inspect_says_which_operators_multiply_in_bfloat16(command):
    rows = [line.split() for line in command("inspect model.onnx")[1].splitlines()]
    assert any(row[0] == "Gemm" and row[-1] == "yes" for row in rows if row)


def test_inspect_a_checkpoint(command):
    assert command("train model.onnx data.npz --loss cross-entropy --out run --quiet --epochs 1 --seed 9")[0] == 0
    status, out, _ = command("inspect run/checkpoint")
    rows = [line.split() for line in out.splitlines()]
    assert status == 0 and "checkpoint: version 2" in out
    assert rows.count(["hidden.weight", "float32", "[6,", "16]", "trainable"]) == 1
    assert any(row[:2] == ["group0", "4"] for row in rows), "108 samples make 4 steps"


def test_the_learning_rate_finder_suggests_and_draws(command, folder):
    pytest.importorskip("matplotlib")
    status, out, err = command("lr-find model.onnx data.npz --loss cross-entropy --batch-size 16 --steps 60 --plot found.png")
    assert (status, err) == (0, "")
    assert 1e-6 < float(out.split("suggested learning rate: ")[1].split()[0]) < 1
    assert (folder / "found.png").read_bytes().startswith(b"\x89PNG") and not (folder / "run").exists()


def test_the_page_about_the_command_line_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "render it again: python -m ortrain.cli.page > docs/command-line.md"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_is_in_sentences(name, command):
    status, out, _ = command(f"{name} --help")
    assert status == 0 and out.startswith("usage: python -m ortrain")
    assert COMMANDS[name].summary.endswith(".") and " ".join(COMMANDS[name].summary.split()[:3]) in out
    assert module_of(name).__doc__.startswith(f"The command {name}")


def test_general_help_imports_neither_numpy_nor_onnx():
    code = "import sys\nfrom ortrain.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n" \
           "print({'numpy', 'onnx', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()" and all(name in done.stdout for name in COMMANDS)
