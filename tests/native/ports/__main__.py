"""Builds the ports whose tools are there, and prints the table of conformance cases with their columns; --update also rewrites absent.toml and the table of
docs/porting.md."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from pathlib import Path

from ortrain._native.installation import install
from ortrain.cli import main
from tests.native.ports import HERE, TOOLS, absent, as_markdown, as_toml, build, missing_tool
from tests.native.ports.answers import absences, outcomes

PAGE = HERE.parents[2] / "docs" / "porting.md"


def run() -> int:
    """Build, run, print."""
    commands = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        install(folder)
        for port in TOOLS:
            tool = missing_tool(port)
            if tool is None:
                commands[port] = build(port, folder, folder)
            else:
                print(f"{port}: {tool} is not there")
        if "--update" in sys.argv:
            found = absent() | {port: absences(outcomes(command)) for port, command in commands.items()}
            (HERE / "absent.toml").write_text(as_toml(found), encoding="utf-8")
            text = re.sub(r"\| absent \| cases in C .*?\n\n", lambda _: as_markdown() + "\n", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
            PAGE.write_text(text, encoding="utf-8")
        return main(["conformance", "run", *(word for command in commands.values() for word in ("--port", shlex.join(command)))])


sys.exit(run())
