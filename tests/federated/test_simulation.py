"""Clients in Flower's own simulation engine. `python -m tests.federated` runs this with Ray."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

pytest.importorskip("flwr")

from tests.federated.program import PROCESSES
from tests.layers import ROOT


@pytest.mark.parametrize("how", [[], ["secure"]])
def test_clients_of_a_simulation_share_the_session_of_their_process(how):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs flwr[simulation]")
    done = subprocess.run([sys.executable, "-m", "tests.federated.program", "6", "4", *how], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(losses) == 4 and losses == sorted(losses, reverse=True), "expected all clients to train in every round"
    made = re.findall(r"a session in process (\d+)", done.stdout + done.stderr)
    assert len(made) == len(set(made)) <= PROCESSES + 1, "expected one session in each process, of clients and of the server"
