"""An hour of training in a few minutes: `python -m tests.native.stress` runs a host of ten threads with a session each, which trains the tiny network.

The hour is that of a program which makes a train and an optimizer step every millisecond: 3,600,000 of each per session, with new inputs and outputs for
every step. The program trains twice; its memory is measured from the end of the second warm-up, a tenth of the steps, and may grow by 2 MiB at most. The
suite runs the same program with 3,000 steps (test_programs.py)."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ortrain._native.installation import flags, install
from ortrain.conformance.cases import ARTIFACTS
from tests.native.ports import environment

PROGRAM = Path(__file__).resolve().parent / "programs" / "threads.c"
THREADS, HOUR = 10, 3_600_000
BOUND = 2 << 20
"""Bytes by which the process may grow after its warm-up."""
INTERVAL = 5.0


def resident(process: subprocess.Popen[str]) -> int:
    """Return the bytes of a process in memory, 0 after its end."""
    try:
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError):
        return 0


def main() -> int:
    """Build and run the program, print its memory every few seconds and the result; return 1 where memory grew beyond the bound."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--steps", type=int, default=HOUR, help="Steps of each session. Default: %(default)s.")
    steps = command.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
        program = Path(folder) / "threads"
        subprocess.run(["cc", "-std=gnu11", "-O2", str(PROGRAM), "-o", str(program), *flags(folder).split(), "-lpthread", "-lm"], check=True)
        start = time.monotonic()
        process = subprocess.Popen([str(program), str(ARTIFACTS / "classifier"), str(steps)], env=environment() | {"OPENBLAS_NUM_THREADS": "1"},
                                   stdout=subprocess.PIPE, text=True)
        while process.poll() is None:
            print(f"{time.monotonic() - start:6.0f} s  {resident(process) / (1 << 20):7.1f} MiB", flush=True)
            try:
                process.wait(INTERVAL)
            except subprocess.TimeoutExpired:
                continue
        seconds = time.monotonic() - start
        assert process.stdout is not None
        printed = process.stdout.read().split()
    if process.returncode:
        return 1
    grown, made = int(printed[1]), 2 * THREADS * (steps + steps // 10 + 1)
    print(f"{made:,} train and optimizer steps in {seconds:.0f} s, {seconds / made * 1e6:.2f} µs each; loss {printed[0]}")
    print(f"memory grew by {grown / 1024:.0f} KiB in {THREADS * steps:,} steps after the warm-up; at most {BOUND / 1024:.0f} KiB are allowed")
    return int(grown > BOUND)


if __name__ == "__main__":
    sys.exit(main())
