"""`python -m tests.real_models [--halves] [NAME…]`: downloads the models, checks them and prints a table; fails if a model does.

--halves: check the models converted to float16 by onnxruntime's converter."""

import sys
import tempfile
from pathlib import Path

from tests.real_models.catalog import models
from tests.real_models.checks import HALVES_LEFT_OUT, STEPS, check, check_half


def main(arguments: list[str]) -> int:
    """Print one row per model and return the number of models that failed."""
    halves, names = "--halves" in arguments, [name for name in arguments if name != "--halves"]
    print(f"| package | model | trainable tensors | forward against onnxruntime | loss, first and best of {STEPS} | gradient against differences | "
          "exported against onnxruntime | |\n|---|---|---:|---:|---:|---:|---:|---|")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for package, name, data in models():
            if names and name not in names or halves and name in HALVES_LEFT_OUT:
                continue
            result = (check_half if halves else check)(name, data, Path(folder))
            failed += not result.passed
            first, best = result.losses
            gradient = "" if halves else f"{result.gradient:.1e}"
            print(f"| {package} | {name} | {result.parameters} | {result.forward:.1e} | {first:.4f}, {best:.4f} | {gradient} | "
                  f"{result.exported:.1e} | {'ok' if result.passed else 'FAILED ' + result.error} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
