"""Every operation of the discontinued API that a facade must offer is there (tests/data/api_surface.toml lists them, per language)."""

import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest

SURFACE = tomllib.loads((Path(__file__).parent / "data" / "api_surface.toml").read_text(encoding="utf-8"))
BUILT = ("python",)
"""The facades that exist; the others follow."""
OPERATIONS = [(language, operation) for language in BUILT for operation in SURFACE[language]["operations"]]


def resolved(module, name):
    """What a dotted name is in a facade; attributes that instances have are found in the class's __init__."""
    found = importlib.import_module(module)
    for part in name.split("."):
        if inspect.ismodule(found) and not hasattr(found, part):
            found = importlib.import_module(f"{found.__name__}.{part}")
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            return re.search(rf"self\.{part}\b", inspect.getsource(found.__init__))
    return found


def parameters_of(signature):
    """The parameter names that a signature of the list has."""
    inside = re.match(r"\((.*?)\)(?: ->|$)", signature)
    return [re.split(r"[:=]", part)[0].strip() for part in inside[1].split(",") if part.strip()] if inside else []


@pytest.mark.parametrize(("language", "operation"), OPERATIONS, ids=lambda value: value["name"] if isinstance(value, dict) else value)
def test_operation_is_there_with_its_parameters(language, operation):
    found = resolved(SURFACE[language]["module"], operation["name"])
    assert found
    wanted = [name.lstrip("*") for name in parameters_of(operation["sig"])]
    if inspect.isfunction(found) or inspect.ismethod(found):
        assert [name for name in inspect.signature(found).parameters if name != "self"] == wanted
