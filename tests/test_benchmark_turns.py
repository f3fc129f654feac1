"""Processes of the benchmarks that take turns, and what becomes of those that fail, end early or do not answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import turns

ROOT = Path(__file__).resolve().parent.parent
STEPS = """
import time
from benchmarks import measure
def step(x, y):
    with open({log!r}, "a") as log: log.write("{name}")
    time.sleep(0.002)
    return 3.5
print("a line of a library", flush=True)
options = measure.argument_parser("").parse_args(["workload", "folder", "--take-turns", "--seconds", "0"])
measure.print_result(measure.time_steps(step, [(1, 2)], options, 0.0, "1.0"))
"""


def command(source):
    return turns.Command([sys.executable, "-c", source], {**os.environ, "PYTHONPATH": str(ROOT)}, str(ROOT))


def result_of(source, limit=60.0):
    (result,) = turns.take_turns([command(source)], 0.01, limit)
    return result


def test_processes_take_turns_and_report_their_own_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(turns, "PAUSE_SECONDS", 0.0)
    log = tmp_path / "steps"
    results = turns.take_turns([command(STEPS.format(log=str(log), name=name)) for name in "ab"], 0.04, 60.0)
    assert [(result["status"], result["first_loss"], result["version"]) for result in results] == [("ok", 3.5, "1.0")] * 2
    assert all(2 <= result["median_ms"] < 1000 and result["steps"] >= 4 for result in results)
    steps = log.read_text()
    order = "".join(name for place, name in enumerate(steps) if place == 0 or steps[place - 1] != name)
    assert order == "abababa"       # warm-up of both, then a b, b a, a b, b a, of which adjacent turns of one process look like one


def test_the_first_step_of_a_turn_is_not_timed(tmp_path):
    log = tmp_path / "steps"
    with turns.Contender(command(STEPS.format(log=str(log), name="a")), 60.0) as process:
        warm_up = len(log.read_text())
        process.take_turn(0.0)
        process.take_turn(0.0)
        assert process.finish()["steps"] == 2
    assert len(log.read_text()) == warm_up + 4


@pytest.mark.parametrize(("source", "reason"), [
    ("raise ValueError('no such file')", "ValueError: no such file"),
    ("import sys; sys.exit(3)", "exit status 3"),
    ("""print('{"status": "ready"}', flush=True); input(); raise ValueError("in a turn")""", "ValueError: in a turn"),
    ("""print('{"status": "unsupported", "reason": "no gradient"}')""", "no gradient"),
])
def test_a_process_that_ends_early_says_why(source, reason):
    result = result_of(source)
    assert result["status"] in ("failed", "unsupported") and result["reason"] == reason


def test_a_process_that_does_not_answer_is_stopped():
    assert result_of("import time; time.sleep(100)", limit=0.5) == {"status": "failed", "reason": "no result within 0.5 s"}
