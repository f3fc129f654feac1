"""The JSON-lines protocol of ports in other languages: replies to valid and to invalid requests."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortrain.cli import main
from ortrain.conformance.cases import ARTIFACTS
from ortrain.conformance.drivers import LANGUAGES, driver_for
from ortrain.conformance.service import Service
from ortrain.conformance.values import decoded, difference, encoded

SERVE = [sys.executable, "-m", "ortrain", "conformance", "serve"]


def exchange(*lines, facade="python"):
    """Return the replies to some lines."""
    done = subprocess.run([*SERVE, "--facade", facade], input="\n".join(lines), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_requests_are_answered_in_order():
    path = str(ARTIFACTS / "classifier" / "checkpoint")
    hello, loaded, names, refused, absent = exchange(
        '{"call": "hello"}',
        json.dumps({"call": "checkpoint_state.load", "arguments": {"path": path}, "as": "state"}),
        '{"call": "checkpoint_state.parameter_names", "on": "state"}',
        '{"call": "checkpoint_state.get_parameter", "on": "state", "arguments": {"name": "nothing"}}',
        '{"call": "session_options.release", "on": "state"}',
    )
    assert hello["result"]["language"] == "python" and "training_session.train_step" in hello["result"]["operations"]
    assert loaded == {"result": {"object": "state"}}
    assert names == {"result": ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]}
    assert refused["error"]["name"] == "ParameterNotFoundError" and refused["error"]["shown"].startswith("raises ")
    assert absent == {"absent": "session_options.release"}


def test_an_invalid_request_is_refused_and_the_service_continues():
    replies = exchange("no json", "[1]", '{"call": 3}', '{"call": "checkpoint_state.parameter_names", "on": "nothing"}',
                       '{"call": "training.set_seed", "arguments": {"sed": 1}}', '{"call": "training.set_seed", "arguments": 1}', "", '{"call": "reset"}')
    assert [list(reply) for reply in replies] == [["refused"]] * 6 + [["result"]]


def test_a_port_is_a_column_of_the_table(capsys):
    command = shlex.join([*SERVE, "--facade", "objc"])
    assert main(["conformance", "run", "--port", command, "--only", "a_property_*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["case", *LANGUAGES, "port"]
    assert lines[-1] == "port: 7 passed"


def test_wrong_results_of_a_port_are_reported(tmp_path, capsys):
    """The port claims that every call succeeded without a result."""
    port = tmp_path / "port.py"
    port.write_text("import sys\nfor line in sys.stdin:\n"
                    "    print('{\"result\": {\"language\": \"mine\"}}' if 'hello' in line else '{\"result\": null}', flush=True)\n")
    assert main(["conformance", "run", "--port", shlex.join([sys.executable, str(port)]), "--only", "a_value_of_another_*"]) == 1
    assert "expected ParameterShapeError" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["", "print('hello')", "print('[]')"])
def test_a_port_without_replies_is_refused(program, capsys):
    assert main(["conformance", "run", "--port", shlex.join([sys.executable, "-c", program]), "--only", "statuses"]) == 1
    assert "from the port" in capsys.readouterr().err


def test_the_cases_are_listed(capsys):
    assert main(["conformance", "list"]) == 0
    assert "steps: a_run_of_six_steps\n" in capsys.readouterr().out


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "float32", "int64", "string", "x", "AAE="])
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"dtype": inner, "shape": inner, "data": inner})
                    | st.fixed_dictionaries({"object": inner}) | st.fixed_dictionaries({"bytes": inner}), max_leaves=6)
REQUESTS = st.fixed_dictionaries({"call": st.sampled_from(["checkpoint_state.load", "training.set_seed", "tensor.create", "training_session.train_step"])},
                                 optional={"arguments": st.dictionaries(st.sampled_from(["path", "seed", "memory", "shape", "inputs"]), JSON), "on": JSON})


@given(REQUESTS)
def test_no_request_stops_the_service(request_):
    for language in ("python", "c"):
        reply = Service(driver_for(language)).request(request_)
        assert set(reply) <= {"result", "error", "absent", "refused"} and len(reply) == 1
        json.dumps(reply)


def test_the_example_of_the_porting_guide_is_valid():
    """ortrain's own service gives replies of the same form to the requests in the guide."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "porting.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```json-lines\n(.*?)```", text, re.DOTALL)
    lines = [(line[0], json.loads(line[2:])) for line in block.splitlines()]
    service = Service(driver_for("python"))
    for (asks, request), (answers, reply) in zip(lines[::2], lines[1::2], strict=True):
        assert (asks, answers) == (">", "<")
        if request["call"] == "checkpoint_state.load":
            request["arguments"]["path"] = str(ARTIFACTS / "classifier" / "checkpoint")
        own = service.request(request)
        assert list(own) == list(reply)
        assert {name: type(value) for name, value in own.get("error", {}).items()} == {name: type(value) for name, value in reply.get("error", {}).items()}


@pytest.mark.parametrize("value", [
    {"dtype": "float32", "shape": [2], "data": [0.5, -1.0]}, {"dtype": "int64", "shape": [0, 3], "data": []}, {"dtype": "string", "shape": [1], "data": ["a"]},
    {"bytes": "AAE="}, [1, "a", None, True, 0.5],
])
def test_values_survive_json_encoding(value):
    assert encoded(decoded(value)) == value
    assert difference(encoded(decoded(value)), value, 0, 0) is None


@pytest.mark.parametrize(("got", "wanted"), [
    (1, True), (True, 1), (1.0, 2.0), ([1], [1, 2]), ("a", "b"), (None, 0),
    ({"dtype": "float32", "shape": [1], "data": [1.0]}, {"dtype": "float64", "shape": [1], "data": [1.0]}),
    ({"dtype": "float32", "shape": [1], "data": [1.0]}, {"dtype": "float32", "shape": [1], "data": [1.1]}),
    ({"dtype": "float32", "shape": [1], "data": [float("nan")]}, {"dtype": "float32", "shape": [1], "data": [1.0]}),
])
def test_differences_are_described(got, wanted):
    assert difference(got, wanted, 1e-5, 1e-6)
