"""What the documents show exists: code compiles, names are there, commands are commands, links lead somewhere."""

import importlib
import re
from pathlib import Path

import pytest

from ortrain.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "bindings_spec" / "README.md"]


def page(function):
    return pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)(function)


@page
def test_python_compiles_and_imports_what_is_there(path):
    for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        compile(block, str(path), "exec")
        for module, names in re.findall(r"^from (ortrain[\w.]*) import (.+)$", block, re.MULTILINE):
            for name in names.split(","):
                assert hasattr(importlib.import_module(module), name.strip()), f"{module}.{name.strip()}"


@page
def test_names_of_ortrain_exist(path):
    for name in set(re.findall(r"`(ortrain(?:\.\w+)+)", path.read_text(encoding="utf-8"))):
        if name == "ortrain.drop_in":
            continue                                    # importing it changes what onnxruntime means; tests/test_drop_in.py does
        module, _, rest = name.partition(".")
        found = importlib.import_module(module)
        for part in rest.split("."):
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(f"{found.__name__}.{part}")


@page
def test_commands_exist(path):
    text = path.read_text(encoding="utf-8")
    for command in set(re.findall(r"python -m ortrain ([a-z]\w*)", text)):
        assert command in COMMANDS, command
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`?make ([a-z][\w-]*)`?", "\n".join(re.findall(r"`[^`\n]+`|^    .*$", text, re.MULTILINE)))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@page
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
