"""Running the Python code of a page.

All blocks of a page run in order and share their names. Comments, which readers do not see, steer it:

    <!-- setup: NAME NAME -->   anywhere in the page: functions of tests/documents/setup.py
    <!-- not run -->            in the line before a block: it is compiled and its imports are checked, but it does not run"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.documents.setup import DEFAULT, SETUPS

BLOCK = re.compile(r"(?P<mark><!-- not run -->\s*\n)?^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^ *```", re.DOTALL | re.MULTILINE)
SETUP = re.compile(r"<!-- setup: ([\w ]+?) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of Python code. line: of its first line in the page, from 1. runs: whether it is executed."""

    code: str
    line: int
    runs: bool


def blocks(text: str) -> list[Block]:
    """Return the Python blocks of a page's text."""
    found = []
    for match in BLOCK.finditer(text):
        indent = len(match["indent"])
        code = "".join(line[indent:] if line.strip() else line for line in match["code"].splitlines(keepends=True))
        found.append(Block(code, text.count("\n", 0, match.start("code")) + 1, match["mark"] is None))
    return found


def setups(text: str) -> list[str]:
    """Return the names of the setups of a page's text."""
    found = SETUP.search(text)
    return found[1].split() if found else [DEFAULT]


def run(path: Path) -> dict[str, Any]:
    """Run the blocks of a page in the current folder, and return the names that they have defined. Tracebacks show the lines of the page."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    for name in setups(text):
        names |= SETUPS[name]()
    for block in blocks(text):
        if block.runs:
            exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), names)
    return names
