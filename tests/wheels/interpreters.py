"""Compiles a Python without a global interpreter lock, which no package has for this system.

    python -m tests.wheels.interpreters FOLDER

Prints the interpreter, with which `make wheels` builds and tests. Needs a compiler and Debian's package manager, from whose source it is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.debian import unpack_source

VERSION, RELEASE = "3.13", "trixie"
"""The newest version of which a release of Debian has the source."""


def run(*command: str | Path, folder: Path, **variables: str) -> None:
    """Run a command in a folder, with its output in a file there. Raises CalledProcessError if it fails."""
    with (folder / "log.txt").open("ab") as log:
        subprocess.run(command, cwd=folder, env=os.environ | variables, check=True, stdout=log, stderr=log)


def install_python(source: Path, prefix: Path, *options: str, **variables: str) -> None:
    """Compile the source of a Python, without its tests, and install it in `prefix`."""
    run("./configure", "--quiet", f"--prefix={prefix}", "--disable-test-modules", *options, folder=source, **variables)
    run("make", "--silent", f"--jobs={len(os.sched_getaffinity(0))}", "install", folder=source)


def make(folder: Path) -> Path:
    """Return a Python without a GIL, compiling it in `folder` if necessary."""
    folder = folder.resolve()
    interpreter = folder / "bin" / f"python{VERSION}t"
    if not interpreter.exists():
        install_python(unpack_source(f"python{VERSION}", RELEASE, folder / "source"), folder, "--disable-gil")
    return interpreter


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
