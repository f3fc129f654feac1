"""Compiles Pythons that no package has for this system, with the global interpreter lock or, for versions that end in t, without it.

    python -m tests.wheels.interpreters FOLDER VERSION ...          such as 3.13t 3.14 3.14t

Prints the interpreters, with which `make wheels` builds and tests. Needs a compiler and Debian's package manager, from whose sources they are made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.debian import unpack_source

RELEASES = {"3.13": "trixie", "3.14": "sid"}
"""Version -> the release of Debian that has its source."""


def run(*command: str | Path, folder: Path, **variables: str) -> None:
    """Run a command in a folder, with its output in a file there. Raises CalledProcessError if it fails."""
    with (folder / "log.txt").open("ab") as log:
        subprocess.run(command, cwd=folder, env=os.environ | variables, check=True, stdout=log, stderr=log)


def install_python(source: Path, prefix: Path, *options: str, **variables: str) -> None:
    """Compile the sources of a Python, without its tests, and install it in `prefix`."""
    run("./configure", "--quiet", f"--prefix={prefix}", "--disable-test-modules", *options, folder=source, **variables)
    run("make", "--silent", f"--jobs={len(os.sched_getaffinity(0))}", "install", folder=source)


def make(folder: Path, version: str) -> Path:
    """Return the interpreter of a version, compiling it in `folder` if necessary. Raises SystemExit for a version without a source."""
    number, free_threading = version.removesuffix("t"), version.endswith("t")
    if number not in RELEASES:
        raise SystemExit(f"expected a version among {', '.join(RELEASES)}, or one of them without a GIL such as {next(iter(RELEASES))}t, got {version}")
    prefix = folder.resolve() / version
    interpreter = prefix / "bin" / f"python{version}"
    if not interpreter.exists():
        source = unpack_source(f"python{number}", RELEASES[number], folder.resolve() / f"source-{version}")
        install_python(source, prefix, *(["--disable-gil"] if free_threading else []))
    return interpreter


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(make(Path(sys.argv[1]), name))
