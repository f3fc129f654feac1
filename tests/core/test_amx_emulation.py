"""Tests of AMX pass on emulated tiles (tests/amx), on any processor with AVX-512. Kernels are chosen when a process starts, so each file runs in a new one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ortrain._core.kernel_table import instruction_set
from tests.amx import emulation

ROOT = Path(__file__).resolve().parents[2]
TESTS = {"test_amx.py": "", "test_products.py": "test_amx or EngineHandle", "test_convolution.py": "amx or workers", "test_bfloat16_products.py": "",
         "test_bfloat16_convolutions.py": "", "test_tiled_layers.py": ""}
"""File -> which of its tests, as pytest's option -k takes it."""

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or instruction_set() != emulation.INSTRUCTION_SET, reason="kernels for AMX are those of AVX-512 on Linux"),
    pytest.mark.skipif(shutil.which(emulation.COMPILER[0]) is None, reason="there is no C compiler"),
]


@pytest.mark.parametrize("file", TESTS)
def test_products_pass_on_emulated_tiles(file):
    plugins = [argument for name in ("no:cacheprovider", "no:xdist", emulation.__name__) for argument in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, "-rs", f"tests/core/{file}", "-k", TESTS[file]]
    process = subprocess.run(command, cwd=ROOT, env={name: value for name, value in os.environ.items() if name != "ORTRAIN_GEMM"},
                             capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    assert "(AMX)" not in process.stdout, "tests of AMX were skipped"
