"""The cases are valid, every operation of the specification has one, and every callable of every facade is called by one."""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from ortrain.conformance import cases as suite
from ortrain.conformance.drivers import FINISHED, LANGUAGES, driver_for
from ortrain.conformance.runner import CHECKS, run_case
from ortrain.conformance.service import Service

ROOT = Path(__file__).resolve().parents[2]
CASES = suite.load_cases()
COMPOSED = {"c": {"checkpoint_state.parameter_names", "flat_buffer.parameter_names", "training_session.input_names", "training_session.moment_names",
                  "training_session.output_names", "training_session.to_buffer"}}
"""Operations that a driver composes of several calls, because its language has no single one."""


@pytest.mark.parametrize("path", sorted((suite.HERE / "cases").glob("*.json")), ids=lambda path: path.stem)
def test_cases_conform_to_the_schema(path):
    schema = json.loads((suite.HERE / "case.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), schema)


def test_cases_name_languages_that_exist():
    assert {language for case in CASES for language in case.languages} <= set(LANGUAGES)


def test_names_of_cases_are_unique():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


def test_cases_call_operations_and_expect_errors_that_exist(spec):
    for case in CASES:
        for call in (*case.setup, *case.calls):
            assert call["call"] in spec.operations or call["call"] in CHECKS, case.name
            if "error" in call:
                assert call["error"]["name"] in spec.errors, case.name


def test_every_operation_has_a_case(spec):
    called = {operation for case in CASES for operation in case.operations()}
    callable_somewhere = {name for name, operation in spec.operations.items() if any(operation.forms.values())}
    assert sorted(callable_somewhere - called) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_driver_has_a_method_for_each_operation_of_its_language(spec, language):
    offered = {name for name, operation in spec.operations.items() if operation.forms[language]}
    assert set(driver_for(language).operations()) == offered | COMPOSED.get(language, set())


def functions_of(module):
    """Return code object -> name for every public function and method that a facade's modules define."""
    found = {}
    for name, value in inspect.getmembers(module):
        if inspect.isfunction(value) and value.__module__.startswith(module.__name__):
            found[value.__code__] = name
        if inspect.isclass(value) and value.__module__.startswith(module.__name__):
            for member, kind in vars(value).items():
                if member.startswith("_") and member not in ("__init__", "__call__"):
                    continue
                function = kind.fget if isinstance(kind, property) else getattr(kind, "__func__", kind)
                if inspect.isfunction(function):
                    found[function.__code__] = f"{name}.{member}"
                if isinstance(kind, property) and kind.fset is not None:
                    found[kind.fset.__code__] = f"{name}.{member} (set)"
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_callable_of_a_facade_is_called_by_a_case(spec, language):
    waiting = functions_of(importlib.import_module(spec.naming[language]["module"]))
    assert len(waiting) > 20 or language not in FINISHED

    def see(frame, event, _):
        if event == "call":
            waiting.pop(frame.f_code, None)

    service = Service(driver_for(language))
    sys.setprofile(see)
    try:
        for case in CASES:
            run_case(service, case)
    finally:
        sys.setprofile(None)
    assert sorted(waiting.values()) == []


def test_stored_artifacts_equal_newly_generated_ones(tmp_path):
    # generated names come from a counter of the process, so it takes one of its own
    code = "import sys, pathlib; from tests.conformance.make_artifacts import make; make(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    for path in suite.ARTIFACTS.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / path.relative_to(suite.ARTIFACTS)).read_bytes(), path.name
