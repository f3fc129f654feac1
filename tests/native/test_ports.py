"""The conformance suite through the native library: ports in C and C# answer its cases."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ortrain.conformance.cases import known_failures
from tests.native import ports
from tests.native.conftest import ARTIFACTS
from tests.native.ports.answers import absences, outcomes

PAGE = ports.HERE.parents[2] / "docs" / "porting.md"


@pytest.fixture(scope="module")
def command(request, installation, tmp_path_factory) -> list[str]:
    """The command of a port that has been built."""
    tool = ports.missing_tool(request.param)
    if tool is not None:
        pytest.skip(f"the compiler {tool} is not there")
    return ports.build(request.param, installation, tmp_path_factory.mktemp("port"))


@pytest.mark.parametrize(("command", "name"), [(name, name) for name in ports.TOOLS], indirect=["command"])
def test_a_port_passes_every_case_but_those_that_the_interface_cannot_ask_for(command, name, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = outcomes(command)
    failures = {case: outcome.detail for case, outcome in found.items() if outcome.verdict == "failed"}
    assert set(failures) == set(known_failures()[name]), failures
    assert absences(found) == ports.absent()[name]


def test_the_address_sanitizer_finds_nothing_in_the_c_port_and_the_library(sanitized, sanitizer, tmp_path, monkeypatch):
    """Every case, with released objects and wrong arguments, in a library whose memory is watched."""
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0:exitcode=99")
    command = ports.build("native-c", sanitized, tmp_path, sanitizer)
    found = outcomes(command)
    assert {outcome.verdict for outcome in found.values()} <= {"passed", "absent", "failed"}
    assert {case for case, outcome in found.items() if outcome.verdict == "failed"} == set(known_failures()["native-c"])


@pytest.mark.parametrize("command", list(ports.TOOLS), indirect=True, ids=list(ports.TOOLS))
def test_a_port_refuses_requests_that_are_not_valid_and_goes_on(command):
    lines = ["no json", '{"call": "checkpoint_state.parameter_count", "on": "nothing"}', '{"call": "nothing.at_all"}', "",
             json.dumps({"call": "checkpoint_state.load", "arguments": {"path": str(ARTIFACTS / "checkpoint")}, "as": "näme \"x\""}), '{"call": "reset"}']
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, encoding="utf-8", env=ports.environment(), timeout=120, check=True)
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [next(iter(reply)) for reply in replies] == ["refused", "refused", "absent", "result", "result"]
    assert replies[3] == {"result": {"object": "näme \"x\""}} and done.stderr == ""


@pytest.mark.parametrize("command", list(ports.TOOLS), indirect=True, ids=list(ports.TOOLS))
def test_ports_are_columns_of_the_table(command, tmp_path):
    words = [sys.executable, "-m", "ortrain", "conformance", "run", "--only", "the_linear_schedule", "--port", " ".join(command), "--port", " ".join(command)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    header, row = done.stdout.splitlines()[:2]
    name = header.split()[-2]
    assert name in ports.TOOLS and header.split()[-1] == f"{name}-2"
    assert row.split()[1:] == ["ok"] * 7


def test_the_porting_guide_lists_what_the_ports_cannot_do():
    assert ports.as_markdown() in PAGE.read_text(encoding="utf-8")
