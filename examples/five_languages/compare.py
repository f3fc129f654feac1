"""Runs the five programs and shows that they do the same: `python examples/five_languages/compare.py`."""

import importlib
import tempfile
from pathlib import Path

from make_artifacts import STEPS, artifacts_in, data

LANGUAGES = ("python", "csharp", "swift", "objc", "c")


def main() -> None:
    """Trains five times from the same start; prints the losses and whether the checkpoints are the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        paths = artifacts_in(folder)
        written = {}
        for language in LANGUAGES:
            losses = importlib.import_module(f"train_{language}").train(*paths, *data(), STEPS)
            written[language] = Path(f"{paths[0]}.{language}").read_bytes()
            print(f"{language:<7} loss {losses[0]:.6f} -> {losses[-1]:.6f} after {STEPS} steps")
        print("the same checkpoint from all five" if len(set(written.values())) == 1 else "the checkpoints differ")


if __name__ == "__main__":
    main()
