"""The example programs in five languages write the same checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

from ortrain.conformance.languages import FINISHED

ROOT = Path(__file__).resolve().parents[1]


def test_all_languages_write_the_same_checkpoint():
    result = subprocess.run([sys.executable, "examples/five_languages/compare.py"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, check=True)
    *programs, verdict = result.stdout.splitlines()
    assert [line.split()[0] for line in programs] == list(FINISHED)
    assert len({line.split(maxsplit=1)[1] for line in programs}) == 1
    first, last = (float(text) for text in (programs[0].split()[2], programs[0].split()[4]))
    assert last < first / 3
    assert verdict == f"the same checkpoint from all {len(FINISHED)}"
