"""Run the programs of all languages and compare their checkpoints: `python examples/five_languages/compare.py`."""

import importlib
import tempfile
from pathlib import Path

from make_artifacts import STEPS, artifacts_in, data

from ortrain.conformance.languages import FINISHED


def main() -> None:
    """Train with each program from the same checkpoint; print the losses and the result of the comparison."""
    with tempfile.TemporaryDirectory() as folder:
        paths = artifacts_in(folder)
        checkpoints = {}
        for language in FINISHED:
            losses = importlib.import_module(f"train_{language}").train(*paths, *data(), STEPS)
            checkpoints[language] = Path(f"{paths[0]}.{language}").read_bytes()
            print(f"{language:<7} loss {losses[0]:.6f} -> {losses[-1]:.6f} after {STEPS} steps")
        print(f"the same checkpoint from all {len(FINISHED)}" if len(set(checkpoints.values())) == 1 else "the checkpoints differ")


if __name__ == "__main__":
    main()
