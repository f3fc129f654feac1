"""The app of examples/federated, with clients in this process."""

import re
import sys
import tomllib

import pytest

pytest.importorskip("flwr")
pytest.importorskip("sklearn")

from ortrain import InferenceSession
from tests.federated.transport import LocalGrid, context
from tests.layers import ROOT

FOLDER = ROOT / "examples" / "federated"


@pytest.mark.parametrize("strategy", ["FedProx", "FedAvg", "Scaffold"])
def test_the_example_trains_and_exports(strategy, monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    from federated_digits import client_app, server_app, task

    app = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    for part in app["components"].values():
        module, _, name = part.partition(":")
        assert hasattr(sys.modules[module], name)
    where = context()
    where.run_config = app["config"] | {"rounds": 8, "fraction": 1.0, "strategy": strategy, "out": str(tmp_path / "trained.onnx")}
    grid = LocalGrid(dict.fromkeys(range(5), client_app.app), run_config=where.run_config)
    server_app.app(grid, where)
    found = re.search(r"after 8 rounds: held-out accuracy ([\d.]+)%", capsys.readouterr().out)
    assert found is not None and float(found[1]) > 85 and not grid.errors
    x, labels = task.held_out()
    scores, = InferenceSession(tmp_path / "trained.onnx").run(None, {"pixels": x})
    assert 100 * (scores.argmax(1) == labels).mean() == pytest.approx(float(found[1]), abs=0.01)
