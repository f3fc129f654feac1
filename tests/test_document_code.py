"""The Python code of documents runs: all blocks of a page in order, in a folder with the files that its setup comment names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import pages
from tests.documents.setup import SETUPS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if pages.blocks(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_code_of_the_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run(path)


def test_the_quickstart_starts_from_nothing(tmp_path):
    """In a process of its own, which finds neither a model nor names."""
    code = "\n".join(block.code for block in pages.blocks((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")))
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": path})
    assert (tmp_path / "trained.onnx").exists()


def test_blocks_keep_their_lines_and_lose_their_indentation():
    text = ('Text\n\n```python\na = 1\n```\n\n??? note\n\n    ```python title="x"\n    if a:\n        b = 2\n\n    c = 3\n    ```\n\n'
            "<!-- not run -->\n```python\nd = 4\n```\n")
    found = pages.blocks(text)
    assert [(block.code, block.line, block.runs) for block in found] == [
        ("a = 1\n", 4, True), ("if a:\n    b = 2\n\nc = 3\n", 10, True), ("d = 4\n", 18, False)]


def test_an_error_names_the_line_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\na = 1\nraise ValueError('here')\n```\n", encoding="utf-8")
    with pytest.raises(ValueError, match="here") as caught:
        pages.run(page)
    assert caught.traceback[-1].lineno + 1 == 5 and Path(str(caught.traceback[-1].path)) == page


def test_blocks_share_names_and_those_marked_do_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- setup: regressor -->\n```python\na = 1\n```\n<!-- not run -->\n```python\na = 2\n```\n```python\nb = a + len(prices)\n```\n",
                    encoding="utf-8")
    assert pages.run(page)["b"] == 201 and (tmp_path / "regressor.onnx").exists()


def test_every_setup_is_used_by_a_page():
    used = {name for path in PAGES for name in pages.setups(path.read_text(encoding="utf-8"))}
    assert used == set(SETUPS)
