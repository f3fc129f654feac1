"""Kernel tests with every other instruction set and GEMM backend. Each is chosen when a process starts, so each runs in a new process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import instruction_set, supported_instruction_sets

ROOT = Path(__file__).resolve().parents[2]
OTHERS = [{"ORTRAIN_GEMM": "blas"}, *([{"ORTRAIN_GEMM": "vectors"}] if EngineHandle().amx else []),
          *({"ORTRAIN_INSTRUCTION_SET": name} for name in supported_instruction_sets() if name != instruction_set())]


def test_an_unknown_gemm_backend_is_rejected():
    process = subprocess.run([sys.executable, "-c", "from ortrain._core.engine import EngineHandle; EngineHandle()"], cwd=ROOT,
                          env=os.environ | {"ORTRAIN_GEMM": "mkl"}, capture_output=True, text=True, check=False)
    assert process.returncode == 1 and "expected ORTRAIN_GEMM to be blas or vectors, got 'mkl'" in process.stderr


@pytest.mark.parametrize("choice", OTHERS, ids=lambda choice: "=".join(*choice.items()))
def test_kernels_gemm_and_recorded_runs_pass_with(choice):
    tests = [ROOT / "tests" / name for name in ("ops/test_kernels.py", "core/test_products.py", "test_recorded_runs.py")]
    process = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, tests)], cwd=ROOT, env=os.environ | choice,
                          capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-3000:]
