"""The documentation site: its navigation, the rendering of tutorials and of docstrings, and, where MkDocs is installed, the whole site."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import pages

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "docs" / "tools"
GENERATED = {"changelog.md", "bindings-specification.md"}
"""Pages that docs/tools/site_hooks.py adds."""


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


render_tutorials, docstrings = load("render_tutorials"), load("docstrings")

SCRIPT = '''# ---
# jupyter:
#   jupytext: {}
# ---

# %% [markdown]
# # A sample
#
# Text with `code`.

# %%
import os

print("hello")

# %% a title
x = 6 * 7
x  # %% not a marker

# %% [markdown]

# %%
'''


# ---- pages


def test_the_navigation_has_every_page_once():
    found = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    files = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(found) == sorted(files | GENERATED)


def test_lines_of_code_in_guides_fit_the_page():
    long = [f"{path.name}: {line}" for path in [ROOT / "docs" / "quickstart.md", *(ROOT / "docs" / "how-to").glob("*.md")]
            for block in pages.blocks(path.read_text(encoding="utf-8")) for line in block.code.splitlines() if len(line) > 88]
    assert not long


def test_every_python_name_of_the_reference_exists():
    for path in (ROOT / "docs" / "python").glob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            parts = name.split(".")
            target = __import__(parts[0])
            for number, part in enumerate(parts[1:], 2):
                target = getattr(target, part) if hasattr(target, part) else importlib.import_module(".".join(parts[:number]))


def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trainer = (tmp_path / "python" / "trainer.html").read_text(encoding="utf-8")
    assert "Create a trainer straight from a forward model." in trainer and "<svg" in (tmp_path / "architecture.html").read_text(encoding="utf-8")


# ---- tutorials


def test_a_script_is_divided_into_cells():
    assert [(cell.kind, cell.source) for cell in render_tutorials.read_cells(SCRIPT)] == [
        ("markdown", "# A sample\n\nText with `code`."), ("code", 'import os\n\nprint("hello")'), ("code", "x = 6 * 7\nx  # %% not a marker")]


def test_code_before_the_first_marker_is_a_cell():
    assert [cell.source for cell in render_tutorials.read_cells('"""Text."""\n\n# %%\na = 1\n')] == ['"""Text."""', "a = 1"]


@pytest.mark.parametrize("script, message", [("# %% [markdown]\nx = 1\n", "expected comments in a markdown cell, got 'x = 1' in line 2"),
                                             ("# %% [raw]\n", r"expected cells of code or \[markdown\], got \[raw\] in line 1")])
def test_scripts_that_are_none_are_refused(script, message):
    with pytest.raises(ValueError, match=message):
        render_tutorials.read_cells(script)


def test_a_notebook_has_the_fields_of_nbformat_and_no_outputs():
    made = render_tutorials.notebook(render_tutorials.read_cells(SCRIPT))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    assert [sorted(cell) for cell in made["cells"]] == [["cell_type", "id", "metadata", "source"],
                                                        *2 * [["cell_type", "execution_count", "id", "metadata", "outputs", "source"]]]
    assert len({cell["id"] for cell in made["cells"]}) == 3
    assert made["cells"][1]["source"] == ["import os\n", "\n", 'print("hello")']
    assert render_tutorials.to_json(made) == render_tutorials.to_json(render_tutorials.notebook(render_tutorials.read_cells(SCRIPT)))
    assert render_tutorials.has_sources(made, render_tutorials.read_cells(SCRIPT))
    assert not render_tutorials.has_sources(made, render_tutorials.read_cells(SCRIPT.replace("hello", "changed")))


def test_a_page_has_links_code_and_outputs():
    made = render_tutorials.notebook(render_tutorials.read_cells(SCRIPT))
    made["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stderr", "text": ["10 %\r", "\x1b[1m100 %\x1b[0m\r\n", "hello\n"]}]
    made["cells"][2]["outputs"] = [{"output_type": "execute_result", "data": {"text/plain": ["42"], "text/html": ["<b>\n\n", "42</b>"]}},
                                   {"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": "AAAA\n"}},
                                   {"output_type": "display_data", "data": {"text/plain": "```"}},
                                   {"output_type": "error", "traceback": ["\x1b[31mError\x1b[0m"]}]
    page = render_tutorials.markdown(made, "sample")
    assert page.startswith("# A sample\n\n[Notebook](sample.ipynb) · [Script](sample.py)\n\nText with `code`.\n\n```python\nimport os\n")
    for text in ("```text\n100 %\nhello\n```", "\n\n<b>\n42</b>\n\n", '<img alt="&lt;Figure&gt;" src="data:image/png;base64,AAAA">', "````text\n```\n````",
                 "```text\nError\n```"):
        assert f'<div class="output" markdown>\n\n{text.strip()}\n\n</div>' in page, text


def test_the_command_writes_a_notebook_and_a_page_of_each_script(tmp_path):
    (tmp_path / "one.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "two.py").write_text("# %%\nprint(1)\n", encoding="utf-8")
    assert render_tutorials.main([str(tmp_path), str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one.ipynb", "one.md", "two.ipynb", "two.md"]
    assert json.loads((tmp_path / "out" / "two.ipynb").read_text(encoding="utf-8"))["cells"][0]["source"] == ["print(1)"]


def test_the_command_executes_notebooks_and_fails_with_them(tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    (tmp_path / "good.py").write_text(SCRIPT, encoding="utf-8")
    assert render_tutorials.main([str(tmp_path), str(tmp_path / "out"), "--execute"]) == 0
    cells = json.loads((tmp_path / "out" / "good.ipynb").read_text(encoding="utf-8"))["cells"]
    assert cells[1]["outputs"][0]["text"] == ["hello\n"] and cells[2]["outputs"][0]["data"]["text/plain"] == ["42"]
    (tmp_path / "bad.py").write_text("# %%\nraise ValueError('no')\n", encoding="utf-8")
    assert render_tutorials.main([str(tmp_path / "bad.py"), str(tmp_path / "out"), "--execute"]) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "tutorials").glob("*.py")), ids=lambda path: path.stem)
def test_the_tutorial_begins_with_a_heading_and_compiles(path):
    cells = render_tutorials.read_cells(path.read_text(encoding="utf-8"))
    assert cells[0].kind == "markdown" and cells[0].source.startswith("# ")
    for cell in cells:
        if cell.kind == "code":
            compile(cell.source, str(path), "exec")


# ---- docstrings


def test_parameters_become_a_list_and_errors_links():
    text = ("Do something with `*` and 3 * x.\n\nmodel: a path. data, targets: arrays [n],\nsee <b>. seed: >= 0.\nRaises SomeError for a seed: that is "
            "wrong.\nThe other parameters are those of x.")
    assert docstrings.to_markdown(text, {"model", "data", "targets", "seed"}, {"SomeError": "package.SomeError"}) == (
        "Do something with `*` and 3 \\* x.\n\n- `model`: a path.\n- `data`, `targets`: arrays [n], see &lt;b>.\n- `seed`: >= 0.\n\n"
        "Raises [`SomeError`][package.SomeError] for a seed: that is wrong.\n\nThe other parameters are those of x.")


def test_words_before_colons_that_are_no_parameters_stay():
    assert docstrings.to_markdown("Note: a rule. y: a value.", {"x"}) == "Note: a rule. y: a value."


def test_code_tables_and_lists_in_docstrings_stay():
    text = "First.\n\n    x = 1\n\n| a | b |\n|---|---|\n\nAs follows:\n- one\n- two"
    assert docstrings.to_markdown(text, {"x"}) == "First.\n\n    x = 1\n\n| a | b |\n|---|---|\n\nAs follows:\n\n- one\n- two"
