"""What is checked of a wheel: how large it is, on which systems it runs, and that tests pass with what it installs, away from the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["ortrain", "bindings_spec", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"]
"""What a wheel is built from."""
READ_BY_TESTS = ["tests", "docs", "examples", "benchmarks", "bindings_spec", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile",
                 "setup.py", "mkdocs.yml"]
CONFORMANCE = ["-m", "ortrain", "conformance", "run", "--port"]
EPOCH = "1577836800"
"""SOURCE_DATE_EPOCH of a build: the time that files in a wheel have, 1 January 2020."""


@dataclass
class Result:
    """A row of the table."""

    python: str
    wheel: str = ""
    megabytes: float = 0.0
    installed: float = 0.0
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def row(self) -> str:
        outcome = ", ".join(self.passed) + (f"; **failed**: {', '.join(self.failed)}" if self.failed else "")
        return f"| {self.python} | `{self.wheel}` | {self.megabytes:.1f} | {self.installed:.1f} | {outcome} |"


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


def repair(python: Path, wheel: Path, folder: Path) -> Path:
    """Return a wheel in `folder` whose name has the oldest platform on which it runs, as auditwheel finds it in the environment of an interpreter.

    Raises CalledProcessError where the wheel refers to libraries that systems need not have."""
    shutil.rmtree(folder, ignore_errors=True)
    output([str(python), "-m", "auditwheel", "repair", "--plat=auto", f"--wheel-dir={folder}", str(wheel)],
           env=os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": EPOCH})
    return next(folder.glob("*.whl"))


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


def print_table(results: list[Result]) -> None:
    """Print a row for each result."""
    print("| Python | wheel | MB | MB installed | passed |\n|---|---|---:|---:|---|")
    print("\n".join(result.row() for result in results))


def passes_installed(python: Path, folder: Path, wheel: Path, name: str, tests: list[str]) -> bool:
    """Print the table of a wheel that is installed in `folder`/installed, beside what it needs in `folder`/site; return whether all tests passed.

    python: of another platform than this process, in whose environment it runs. name: of it, in the table."""
    result = Result(name, wheel.name, wheel.stat().st_size / 1e6)
    os.environ |= {"PYTHONPATH": f"{folder / 'installed'}:{folder / 'site'}", "OPENBLAS_NUM_THREADS": "1"}          # from here on for the other Python
    result.installed = installed_size(python)
    shutil.rmtree(folder / "tests_only", ignore_errors=True)
    run_tests(python, folder / "tests_only", tests, result)
    print_table([result])
    return not result.failed
