"""What is generated is what the spec says, and stubs name what the compiled modules have."""

import ast
import importlib
import importlib.util
from enum import IntEnum
from pathlib import Path

import pytest

from ortrain import enums, errors

ROOT = Path(__file__).resolve().parents[1]
STUBS = sorted((ROOT / "ortrain" / "_core").glob("*.pyi"))


@pytest.fixture
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "bindings_spec" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_files_are_fresh(generate, capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def test_a_stale_file_is_shown(generate, capsys, monkeypatch):
    target = generate.PACKAGE / "enums.py"
    monkeypatch.setattr(generate, "TARGETS", {target: lambda: target.read_text(encoding="utf-8").replace("AdamW = 1", "AdamW = 3")})
    assert generate.main(["--check"]) == 1
    assert "+    AdamW = 3" in capsys.readouterr().out


def test_enums_have_the_old_packages_values():
    assert {m.name: int(m) for m in enums.LossType} == {"MSELoss": 1, "CrossEntropyLoss": 2, "BCEWithLogitsLoss": 3, "L1Loss": 4}
    assert {m.name: int(m) for m in enums.OptimType} == {"AdamW": 1, "SGD": 2}
    assert all(issubclass(kind, IntEnum) for kind in (enums.LossType, enums.OptimType))


@pytest.mark.parametrize("error", [e for e in vars(errors).values() if isinstance(e, type)], ids=lambda e: e.__name__)
def test_every_error_says_its_message_plainly(error):
    assert issubclass(error, errors.OrtrainError)
    assert error.__doc__
    assert str(error("expected a, got 'b'")) == "expected a, got 'b'"


@pytest.mark.parametrize("stub", STUBS, ids=lambda p: p.stem)
def test_a_stub_names_what_the_compiled_module_has(stub):
    module = importlib.import_module(f"ortrain._core.{stub.stem}")
    named = {"": set()}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            named[""].add(node.name)
        if isinstance(node, ast.ClassDef):
            named[node.name] = {member.name if isinstance(member, ast.FunctionDef) else member.target.id for member in node.body}
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")}
    assert named.pop("") == own
    for name, members in named.items():
        public = {member for member in vars(getattr(module, name)) if not member.startswith("_")}
        assert members - {"__init__"} == public, name
