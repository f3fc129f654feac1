"""Builds ortrain for arm64 and runs a part of the tests in an emulator: make arm.

    python -m tests.arm [FOLDER] [--all] [--only PART ...]

docs/arm.md says what is run. --all runs all tests instead, which takes hours: a part for each folder of tests. --only runs the named parts alone. Without the
programs that this needs, it says so and succeeds."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.arm import environment
from tests.arm.build import ROOT, build

LARGEST_DIFFERENCE = 2e-6
"""Of a loss from that of another processor, relative: sums of products in another order round differently."""


@dataclass(frozen=True)
class Section:
    """A command for Python that is a part of the tests, in the emulator or on this processor.

    processor: the emulator's name of the one that it emulates, where max has all extensions."""

    name: str
    command: list[str]
    emulated: bool = True
    processor: str = "max"


def pytest(*arguments: str) -> list[str]:
    """Return the command of a test run."""
    return ["-m", "pytest", "-p", "no:cacheprovider", *arguments]


def emulated_pytest(*arguments: str) -> list[str]:
    """Return the command of a test run in the emulator."""
    return pytest("-p", "tests.arm.slow_processor", *arguments)


BFLOAT16 = emulated_pytest("-k", "not train and not session and not exception and not workers and not auto",
                           "tests/core/test_bfloat16_convolutions.py", "tests/core/test_bfloat16_products.py")
SECTIONS = [
    *(Section(f"kernels and gradients, {part}", ["-m", "tests.arm.kernels", part]) for part in ("1/2", "2/2")),
    Section("recorded runs of onnxruntime-training", emulated_pytest("tests/test_recorded_runs.py")),
    Section("checkpoints", emulated_pytest("tests/formats/test_checkpoint.py", "tests/formats/test_checkpoint_folder.py")),
    Section("threads and subnormal numbers", emulated_pytest("tests/core/test_threads.py", "tests/core/test_subnormals.py")),
    Section("sessions", emulated_pytest("tests/test_session.py")),
    Section("conformance suite", ["-m", "ortrain", "conformance", "run"]),
    Section("one epoch of the demo", ["examples/digits/train_digits.py", "--epochs", "1"]),
    Section("bfloat16, by instructions", BFLOAT16),
    Section("bfloat16, emulated pairs", BFLOAT16, processor="cortex-a72"),
    Section("inner loops", pytest("tests/arm/inner_loops.py"), emulated=False),
]
LARGE_FOLDERS = [Path("tests"), Path("tests/core"), Path("tests/ops")]
NEEDING_A_COMPILER = Path("tests/native")
"""Tests that compile programs, for which an emulated Python would find the compiler of this processor."""


def everything() -> list[Section]:
    """Return all tests: a part for each folder, and for each file of those that have most of them."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
    parts = {file if file.parent in LARGE_FOLDERS else file.parent for file in files}
    return [Section(str(part), emulated_pytest("--durations", "5", str(part))) for part in sorted(parts - {NEEDING_A_COMPILER})]


def environment_of(python: Path, target: Path) -> dict[str, str]:
    """Return the variables for the emulated Python: where packages are, and one thread for BLAS, whose threads would wait for each other."""
    return os.environ | {"PYTHONPATH": f"{target}:{python.parents[1] / 'site'}", "OPENBLAS_NUM_THREADS": "1"}


def run(section: Section, python: Path, target: Path, logs: Path) -> bool:
    """Run a section, print its last line and how long it took, and return whether it succeeded; what it prints goes to a file in `logs`."""
    log, started = logs / f"{re.sub('[^a-z0-9]+', '-', section.name)}.log", time.monotonic()
    with log.open("w") as output:
        if section.emulated:
            command, folder, variables = [str(python)], target, environment_of(python, target) | {"QEMU_CPU": section.processor}
        else:
            command, folder, variables = [sys.executable], ROOT, os.environ | {"ORTRAIN_ARM": str(target.parent)}
        status = subprocess.run([*command, *section.command], cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    lines = log.read_text(errors="replace").splitlines()
    print(f"{'passed' if status == 0 else 'FAILED'} in {time.monotonic() - started:4.0f} s: {section.name}: {lines[-1].strip() if lines else ''}", flush=True)
    if status:
        print("\n".join(lines[-40:]))
    return status == 0


def losses_agree(python: Path, target: Path) -> bool:
    """Compare the losses of some workloads with those of this processor and print the largest difference."""
    found = []
    for command, folder, variables in (([str(python)], target, environment_of(python, target)), ([sys.executable], ROOT, dict(os.environ))):
        answer = subprocess.run([*command, "-m", "tests.arm.losses"], cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
        found.append(json.loads(answer))
    difference = max(abs(arm / here - 1) for name in found[1] for arm, here in zip(found[0][name], found[1][name], strict=True))
    print(f"{'passed' if difference <= LARGEST_DIFFERENCE else 'FAILED'}: losses differ from those of this processor by {difference:.1e} at most", flush=True)
    return difference <= LARGEST_DIFFERENCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=environment.FOLDER)
    parser.add_argument("--all", action="store_true", help="run all tests")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="run these parts alone, such as 'sessions', or with --all tests/core")
    options = parser.parse_args()
    sections = everything() if options.all else SECTIONS
    if unknown := set(options.only) - {section.name for section in sections}:
        raise SystemExit("\n".join(["expected parts among", *(f"  {section.name}" for section in sections), f"got {', '.join(sorted(unknown))}"]))
    if missing := environment.missing_tools():
        print(f"{', '.join(missing)} not on PATH: the tests on ARM are skipped")
        return
    started = time.monotonic()
    python = environment.make(options.folder)
    if options.all:
        environment.add_packages_of_tests(options.folder)
    target = build(options.folder)
    print(f"built for arm64 in {time.monotonic() - started:.0f} s", flush=True)
    started, logs = time.monotonic(), options.folder / "logs"
    logs.mkdir(exist_ok=True)
    sections = [section for section in sections if not options.only or section.name in options.only]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        agree = [] if options.only else [workers.submit(losses_agree, python, target)]
        passed = [*workers.map(lambda section: run(section, python, target, logs), sections), *(answer.result() for answer in agree)]
    print(f"{sum(passed)} of {len(passed)} parts passed in {(time.monotonic() - started) / 60:.1f} minutes; their output is in {logs}")
    raise SystemExit(not all(passed))


if __name__ == "__main__":
    main()
