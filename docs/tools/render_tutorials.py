"""Tutorials: Python scripts in the percent format, rendered to notebooks and to Markdown pages.

A script is divided into cells by lines `# %%` (code) and `# %% [markdown]` (text in comments), the format of Jupytext, VS Code, PyCharm and Spyder.

    python docs/tools/render_tutorials.py docs/tutorials build/tutorials             # NAME.ipynb and NAME.md of each NAME.py
    python docs/tools/render_tutorials.py docs/tutorials build/tutorials --execute   # with outputs; needs nbclient and ipykernel (extra "tutorials")

With --execute, an exception in a cell ends the command with status 1."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

MARKER = re.compile(r"# %%(?P<title>[^\[\n]*)(?:\[(?P<kind>\w+)\])?.*")
HEADER = re.compile(r"\A# ---\n(?:#.*\n)*?# ---\n")
"""The settings that Jupytext puts at the top of a script."""
LANGUAGE = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}}
SECONDS = 600
"""The longest time that one cell may take."""
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a script. kind: "code" or "markdown". source: without markers, and for markdown without the signs of comments."""

    kind: str
    source: str


def read_cells(script: str) -> list[Cell]:
    """Return the cells of a script in the percent format; what stands before the first marker is code. Cells without content are left out.

    Raises ValueError for a line of a markdown cell that is no comment, and for a kind of cell other than markdown and code."""
    kind, lines, cells = "code", [], []
    for number, line in enumerate([*HEADER.sub("", script).splitlines(), "# %%"], 1):
        marker = MARKER.fullmatch(line)
        if marker is None:
            lines.append(_uncommented(line, number) if kind == "markdown" else line)
            continue
        source = "\n".join(lines).strip("\n").rstrip()
        if source:
            cells.append(Cell(kind, source))
        kind, lines = marker["kind"] or "code", []
        if kind not in ("code", "markdown"):
            raise ValueError(f"expected cells of code or [markdown], got [{kind}] in line {number}")
    return cells


def _uncommented(line: str, number: int) -> str:
    if not line.startswith("#") and line.strip():
        raise ValueError(f"expected comments in a markdown cell, got {line!r} in line {number}")
    return line.removeprefix("#").removeprefix(" ")


# ---- notebooks


def notebook(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the notebook of cells, nbformat 4.5, without outputs. It depends on the cells alone: the same script gives the same file."""
    return {"cells": [_notebook_cell(number, cell) for number, cell in enumerate(cells)], "metadata": LANGUAGE, "nbformat": 4, "nbformat_minor": 5}


def _notebook_cell(number: int, cell: Cell) -> dict[str, Any]:
    identifier = hashlib.sha256(f"{number}{cell.source}".encode()).hexdigest()[:8]
    made = {"cell_type": cell.kind, "id": identifier, "metadata": {}, "source": cell.source.splitlines(keepends=True)}
    return made | ({"execution_count": None, "outputs": []} if cell.kind == "code" else {})


def to_json(made: dict[str, Any]) -> str:
    """Return the text of a notebook's file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


class CellError(Exception):
    """A cell of a tutorial has failed; the message is the traceback."""


def execute(made: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells, which run in a temporary folder. Raises CellError."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    node = nbformat.reads(to_json(made), as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        try:
            NotebookClient(node, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
        except (CellExecutionError, CellTimeoutError) as error:
            raise CellError(ANSI.sub("", str(error))) from error
    done: dict[str, Any] = json.loads(nbformat.writes(node))
    for cell in done["cells"]:
        # times of execution differ from run to run
        cell["metadata"].pop("execution", None)
    return done


def has_sources(made: dict[str, Any], cells: Sequence[Cell]) -> bool:
    """Return whether a notebook, executed or not, is that of these cells."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]] == [(cell.kind, cell.source) for cell in cells]


# ---- Markdown


def markdown(made: dict[str, Any], name: str) -> str:
    """Return the page of a notebook, with its outputs and, below the first heading, links to NAME.ipynb and NAME.py beside it."""
    pieces = []
    for cell in made["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces.append(source)
            continue
        pieces.append(_fenced(source, "python"))
        pieces += [f'<div class="output" markdown>\n\n{text}\n\n</div>' for text in _outputs(cell["outputs"])]
    links = f"[Notebook]({name}.ipynb) · [Script]({name}.py)"
    if pieces and pieces[0].startswith("# "):
        heading, _, rest = pieces[0].partition("\n")
        pieces[:1] = [heading, links, rest.strip()]
    else:
        pieces.insert(0, links)
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`{3,}", text)), 3)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _outputs(outputs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the Markdown of each output: the richest form that a page can show."""
    for output in outputs:
        if output["output_type"] == "stream":
            yield _fenced(_terminal("".join(output["text"])), "text")
        elif output["output_type"] == "error":
            yield _fenced(ANSI.sub("", "\n".join(output["traceback"])), "text")
        else:
            data = {kind: "".join(content) if isinstance(content, list) else content for kind, content in output["data"].items()}
            if "text/html" in data:
                yield re.sub(r"\n\s*\n", "\n", data["text/html"])
            elif "image/png" in data:
                yield f'<img alt="{escape(data.get("text/plain", "figure"))}" src="data:image/png;base64,{data["image/png"].strip()}">'
            elif "text/plain" in data:
                yield _fenced(data["text/plain"], "text")


def _terminal(text: str) -> str:
    """Return what a terminal shows of a stream: of a line that was written over, the last state."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in ANSI.sub("", text).split("\n"))


# ---- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Render all tutorials of a folder and return the exit status."""
    parser = argparse.ArgumentParser(description="Render tutorials to notebooks and Markdown pages.")
    parser.add_argument("source", type=Path, help="folder of scripts, or one script")
    parser.add_argument("target", type=Path, help="folder for NAME.ipynb and NAME.md")
    parser.add_argument("--execute", action="store_true", help="run the cells and store their outputs")
    options = parser.parse_args(arguments)
    scripts = [options.source] if options.source.is_file() else sorted(options.source.glob("*.py"))
    if not scripts:
        print(f"no tutorials in {options.source}")
    options.target.mkdir(parents=True, exist_ok=True)
    for script in scripts:
        made = notebook(read_cells(script.read_text(encoding="utf-8")))
        if options.execute:
            print(f"executing {script.name}", flush=True)
            try:
                made = execute(made)
            except CellError as error:
                print(f"{script.name} failed: {error}", file=sys.stderr)
                return 1
        (options.target / f"{script.stem}.ipynb").write_text(to_json(made), encoding="utf-8")
        (options.target / f"{script.stem}.md").write_text(markdown(made, script.stem), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
