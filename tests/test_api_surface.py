"""Every operation of onnxruntime-training's API, which tests/data/api_surface.toml lists per language, is in the specification and in its facade."""

import importlib
import inspect
import keyword
import re
import tomllib
import typing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SURFACE = tomllib.loads((Path(__file__).parent / "data" / "api_surface.toml").read_text(encoding="utf-8"))
DOCUMENTED = tomllib.loads((Path(__file__).parent / "data" / "documented_parameters.toml").read_text(encoding="utf-8"))
OPERATIONS = [(language, operation) for language in SURFACE for operation in SURFACE[language]["operations"]]


def resolved(language, name):
    """Return the object with a listed name: for a constructor the __init__ of its class, for a function of C the member of a table."""
    module = importlib.import_module(SURFACE[language]["module"])
    if language == "c":
        return getattr(module.OrtTrainingApi, name)
    found = module
    parts = name.split(".")
    if parts[-1] == "init" or len(parts) == 2 and parts[0] == parts[1]:
        parts[-1] = "__init__"
    for part in parts:
        if inspect.ismodule(found) and not hasattr(found, part):
            found = importlib.import_module(f"{found.__name__}.{part}")
        elif hasattr(found, part):
            found = getattr(found, part)
        else:                                             # an attribute that instances have
            return any(re.search(rf"self\.{part}\b", inspect.getsource(kind)) for kind in found.__mro__ if kind is not object)
    return found


def listed_parameters(language, signature):
    """Return the parameter names in a line of the list, as Python identifiers; None where it lists only types or a result."""
    inside = re.match(r"\((.*?)\)(?: throws)?(?: ->|$)", signature)
    if inside is None:
        return None
    if language == "swift":
        names = re.findall(r"_ (\w+):|(\w+):", inside[1])
        return [f"{label}_" if keyword.iskeyword(label) else label for label in (a or b for a, b in names)]
    parts = [part.split("=")[0].split(":")[0].strip() for part in inside[1].split(",") if part.strip()]
    return [part.split()[-1].lstrip("*&") for part in parts]


def forms_of(found):
    """Return the parameter names of each overload of a callable."""
    found = getattr(found, "__func__", found)
    return [[name for name in inspect.signature(form).parameters if name not in ("self", "cls")] for form in typing.get_overloads(found) or [found]]


@pytest.mark.parametrize(("language", "operation"), OPERATIONS, ids=lambda value: value["name"] + value["sig"] if isinstance(value, dict) else value)
def test_operation_is_a_callable_with_the_listed_parameters(language, operation):
    found = resolved(language, operation["name"])
    assert found
    if not inspect.isfunction(found) and not inspect.ismethod(found):
        return
    forms = forms_of(found)
    if language == "objc":                                # a selector has one colon per argument
        assert [len(form) for form in forms] == [operation["name"].rpartition(".")[2].count("_") or 1]
        return
    names = None if language == "c" else listed_parameters(language, operation["sig"])     # C's are abbreviated there; the header's follow
    types_only = {"string", "long", "OrtValue", "float"}
    if names is not None and not types_only & set(names) and "float | string" not in operation["sig"]:
        assert names in forms


@pytest.mark.parametrize(("language", "name"), [(language, name) for language, functions in DOCUMENTED.items() for name in functions])
def test_parameters_have_their_documented_names(language, name):
    documented = DOCUMENTED[language][name]
    owner = {"csharp": "TrainingSession.", "swift": "ORTTrainingSession.", "objc": "ORTTrainingSession."}.get(language, "")
    forms = forms_of(resolved(language, "TrainingSession.__init__" if (language, name) == ("csharp", "TrainingSession") else owner + name))
    for names in documented if not documented or isinstance(documented[0], list) else [documented]:
        assert [f"{one}_" if keyword.iskeyword(one) else one for one in names] in forms


@pytest.mark.parametrize(("language", "operation"), OPERATIONS, ids=lambda value: value["name"] + value["sig"] if isinstance(value, dict) else value)
def test_operation_is_a_record_of_the_spec(spec, language, operation):
    paths = {form.path for form in spec.forms(language)} | {record["name"] for record in spec.naming[language]["classes"].values()}
    name = operation["name"].removeprefix("checkpoint_state.")
    if language == "c":
        name = f"OrtTrainingApi.{name}"
    if language in ("python", "swift") and name.endswith(("__init__", ".init")):
        name = f"{name.split('.')[0]}.{name.split('.')[0]}"
    assert name in paths
