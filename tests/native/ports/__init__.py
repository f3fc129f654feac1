"""Conformance ports in C and C#, which answer by way of the native library. `python -m tests.native.ports` builds them and prints the table of cases."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from ortrain._native.installation import flags

HERE = Path(__file__).resolve().parent
TOOLS = {"native-c": ["cc"], "native-csharp": ["mcs", "mono"]}
"""Names of ports -> the programs that build and run them."""


def missing_tool(port: str) -> str | None:
    """Return a program that a port needs and that is not there, or None."""
    return next((tool for tool in TOOLS[port] if shutil.which(tool) is None), None)


def build(port: str, installation: Path, folder: Path, extra: Sequence[str] = ()) -> list[str]:
    """Build a port into a folder; return the command that runs it."""
    if port == "native-c":
        command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", str(HERE / "conformance.c"), "-o", str(folder / port), *extra,
                   *flags(installation).split()]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        return [str(folder / port)]
    program = folder / "port.exe"
    subprocess.run(["mcs", f"-out:{program}", *map(str, sorted(HERE.glob("*.cs")))], check=True, capture_output=True, text=True, timeout=300)
    (folder / "port.exe.config").write_text(f'<configuration><dllmap dll="libonnxruntime" target="{installation / "libonnxruntime.so"}" /></configuration>\n')
    return ["mono", str(program)]


def environment() -> dict[str, str]:
    """Return the variables of a program that is no part of this Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ORTRAIN"))}


def absent() -> dict[str, dict[str, list[str]]]:
    """Return what ports cannot do: port -> what is absent -> the cases."""
    return tomllib.loads((HERE / "absent.toml").read_text(encoding="utf-8"))


def as_toml(found: dict[str, dict[str, list[str]]]) -> str:
    """Render what ports cannot do as the text of absent.toml."""
    lines = ["# The cases that the ports cannot run to their end, by what is absent there. Tests compare them with what the ports answer."]
    for port, reasons in found.items():
        lines += ["", f"[{port}]"]
        for reason, cases in sorted(reasons.items()):
            lines += [f'"{reason}" = [', *(f'  "{case}",' for case in cases), "]"]
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """Render what ports cannot do as the table of docs/porting.md."""
    ports = absent()

    def cell(cases: Iterable[str]) -> str:
        return ", ".join(f"`{case}`" for case in cases) or "none"

    lines = ["| absent | cases in C | cases in C# |", "|---|---|---|"]
    reasons = sorted({reason for found in ports.values() for reason in found})
    lines += [f"| {reason} | " + " | ".join(cell(ports[port].get(reason, [])) for port in TOOLS) + " |" for reason in reasons]
    return "\n".join(lines) + "\n"
