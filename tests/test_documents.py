"""What the documents show exists: code compiles, names are there, commands are commands, links lead somewhere."""

import importlib
import re
from pathlib import Path

import pytest

from benchmarks import documents
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


@page
def test_links_to_sections_lead_to_a_heading(path):
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", path.read_text(encoding="utf-8")):
        text = ((path.parent / target) if target else path).read_text(encoding="utf-8")
        anchors = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        assert anchor in anchors, f"{target}#{anchor}"


@pytest.mark.parametrize("path", documents.DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_rendered_from_the_recorded_results(path):
    text = path.read_text(encoding="utf-8")
    assert "<!-- results: " in text
    assert documents.rendered(text) == text, "run python -m benchmarks.documents"


def test_a_run_can_be_recorded_and_rendered(tmp_path, monkeypatch):
    def row(ms, mb):
        return {"status": "ok", "median_ms": ms, "growth_mb": mb, "loaded_growth_mb": mb / 2, "peak_rss_mb": 2 * mb, "cold_start_s": ms}

    by_runtime = {"ortrain": row(1.0, 10.0), "ortrain-lowest-memory": row(1.5, 8.0), "onnxruntime": row(2.0, 20.0), "torch-eager": row(4.0, 40.0),
                  "jax": {"status": "unsupported", "reason": "no"}}
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    documents.record(tmp_path / "chip.json", {"processor": "chip", "cpus": 2, "instruction set": "avx2"}, 3, {"mlp": {"1": by_runtime, "2": by_runtime}})
    block = documents.rendered("<!-- results: chip -->\nstale\n<!-- end of results -->\n<!-- results: chip runtimes -->\n<!-- end of results -->\n")
    assert "| mlp | 1.00 | 2.00 (onnxruntime-training) | 0.50 | 1.00 | 2.00 (onnxruntime-training) | 0.50 | 0.50 | 0.50 | 0.40 | 0.50 | 0.50 |" in block
    assert "| mlp | 1.00 | 2.00 | 4.00 | - | - | 20 | 40 | 80 |" in block
    assert "stale" not in block


def test_the_documents_keep_their_size():
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(readme) <= 150 and max(map(len, readme)) <= 120
    assert len((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").splitlines()) <= 200
