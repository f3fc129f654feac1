"""Builds a wheel with each given Python, installs it into an environment of its own, and runs tests there, away from the sources.

    python -m tests.wheels [PYTHON ...] [--tests core ops/test_kernels.py ...] [--folder build/wheels] [--reproduce]

Prints a table with a row for each Python: the wheel, the oldest C library that it runs with (auditwheel's tag), its size, and what ran. The exit status is 0
if everything passed. With --reproduce every wheel is built a second time, from a copy of the sources in another folder, and has to have the same bytes."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["ortrain", "bindings_spec", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"]
"""What a wheel is built from."""
READ_BY_TESTS = ["tests", "docs", "examples", "benchmarks", "bindings_spec", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile",
                 "setup.py", "mkdocs.yml"]
DEFAULT_TESTS = ["core", "conformance", "test_session.py", "test_package.py"]
REQUIREMENTS = ["pytest", "pytest-xdist", "hypothesis", "jsonschema", "auditwheel"]
EPOCH = "1577836800"
"""SOURCE_DATE_EPOCH of a build: the time that files in a wheel have, 1 January 2020."""
CONFORMANCE = ["-m", "ortrain", "conformance", "run", "--port"]


@dataclass
class Result:
    """A row of the table."""

    python: str
    wheel: str = ""
    platform: str = ""
    megabytes: float = 0.0
    installed: float = 0.0
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def row(self) -> str:
        outcome = ", ".join(self.passed) + (f"; **failed**: {', '.join(self.failed)}" if self.failed else "")
        return f"| {self.python} | `{self.wheel}` | {self.platform} | {self.megabytes:.1f} | {self.installed:.1f} | {outcome} |"


def output(command: list[str], **options: object) -> str:
    """Return what a command prints. Raises CalledProcessError if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout      # type: ignore[call-overload,no-any-return]


def copy(names: list[str], target: Path) -> Path:
    """Copy files and folders of the project, without what was compiled."""
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("*.so", "libonnxruntime*", "__pycache__", "*.pyc"), dirs_exist_ok=True)
        else:
            shutil.copy2(ROOT / name, target / name)
    return target


def environment(folder: Path, python: str) -> Path:
    """Return the interpreter of a new virtual environment with what a build needs."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inner = folder / "bin" / "python"
    subprocess.run([str(inner), "-m", "pip", "install", "--quiet", "--upgrade", "pip", "setuptools>=77", "wheel", "cython>=3.1", "numpy>=2.0"], check=True)
    return inner


def build(inner: Path, sources: Path, target: Path) -> Path:
    """Build the wheel of `sources` in `target` with an interpreter."""
    subprocess.run([str(inner), "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(sources)], check=True,
                   env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH})
    return next(target.glob("*.whl"))


def platform_of(inner: Path, wheel: Path) -> str:
    """Return the oldest platform on which a wheel runs: it names the version of the C library."""
    report = subprocess.run([str(inner), "-m", "auditwheel", "show", str(wheel)], check=False, capture_output=True, text=True)
    found = re.search(r"platform tag:\s+\"?([\w.]+)", report.stdout)
    return found[1] if found else report.stderr.strip().splitlines()[-1]


def installed_size(inner: Path) -> float:
    """Return the size of the installed package in MB."""
    package = output([str(inner), "-c", "import ortrain; print(ortrain.__path__[0])"], cwd="/").strip()
    return sum(path.stat().st_size for path in Path(package).rglob("*") if path.is_file() and path.suffix != ".pyc") / 1e6


def run_tests(inner: Path, folder: Path, tests: list[str], result: Result) -> None:
    """Run the conformance suite and tests in `folder`, which has no sources of ortrain."""
    copy(READ_BY_TESTS, folder)
    commands = {"conformance suite": [str(inner), *CONFORMANCE, f"{inner} -m ortrain conformance serve"]}
    commands |= {name: [str(inner), "-m", "pytest", "-p", "no:cacheprovider", f"tests/{name}"] for name in tests}
    for name, command in commands.items():
        process = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        last = (process.stdout.strip().splitlines() or [""])[-1].strip("= ")
        if process.returncode == 0:
            result.passed.append(f"{name} ({last})" if name in tests else name)
        else:
            result.failed.append(name)
            print(process.stdout[-6000:], process.stderr[-2000:], sep="\n", file=sys.stderr)


def check(python: str, options: argparse.Namespace) -> Result:
    """Build a wheel with an interpreter, install it, and run tests."""
    version = output([python, "-c", "import sys, sysconfig; print(sys.version.split()[0] + 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"]).strip()
    result = Result(version)
    with tempfile.TemporaryDirectory(prefix="ortrain_wheel_") as name:
        folder = Path(name)
        inner = environment(folder / "venv", python)
        wheel = build(inner, copy(SOURCES, folder / "sources"), folder / "wheel")
        result.wheel, result.megabytes = wheel.name, wheel.stat().st_size / 1e6
        if options.reproduce:
            again = build(inner, copy(SOURCES, folder / "elsewhere" / "sources"), folder / "again")
            same = hashlib.sha256(wheel.read_bytes()).digest() == hashlib.sha256(again.read_bytes()).digest()
            (result.passed if same else result.failed).append("built twice with the same bytes")
        subprocess.run([str(inner), "-m", "pip", "install", "--quiet", f"{wheel}[artifacts]", *REQUIREMENTS], check=True)
        result.platform, result.installed = platform_of(inner, wheel), installed_size(inner)
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
    print("| Python | wheel | runs from | MB | MB installed | passed |\n|---|---|---|---:|---:|---|")
    print("\n".join(result.row() for result in results))
    sys.exit(any(result.failed for result in results))


if __name__ == "__main__":
    main()
