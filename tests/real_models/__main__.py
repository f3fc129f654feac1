"""`python -m tests.real_models [NAME…]`: fetches the models, runs the checks, prints the table; fails when a model does."""

import sys
import tempfile
from pathlib import Path

from tests.real_models.catalogue import models
from tests.real_models.checks import STEPS, check


def main(names: list[str]) -> int:
    """Prints one row per model; gives the number of models that failed."""
    print(f"| package | model | trainable tensors | forward against onnxruntime | loss, first and best of {STEPS} | gradient against differences | "
          "exported against onnxruntime | |\n|---|---|---:|---:|---:|---:|---:|---|")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for package, name, data in models():
            if names and name not in names:
                continue
            result = check(name, data, Path(folder))
            failed += not result.passed
            first, best = result.losses
            print(f"| {package} | {name} | {result.parameters} | {result.forward:.1e} | {first:.4f}, {best:.4f} | {result.gradient:.1e} | "
                  f"{result.exported:.1e} | {'ok' if result.passed else 'FAILED ' + result.error} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
