"""Kernel tests with every other instruction set and GEMM backend. Each is chosen when a process starts, so each runs in a new process."""

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

from ortrain._core import kernel_table
from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import instruction_set, supported_instruction_sets

ROOT = Path(__file__).resolve().parents[2]
OTHERS = [*([{"ORTRAIN_GEMM": "blas"}] if find_spec("scipy") else []), *([{"ORTRAIN_GEMM": "vectors"}] if EngineHandle().amx else []),
          *({"ORTRAIN_INSTRUCTION_SET": name} for name in supported_instruction_sets() if name != instruction_set())]


def test_a_checkout_that_is_built_for_two_pythons_loads_the_modules_of_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_table, "__file__", str(tmp_path / "kernel_table.py"))
    for name, files in {"avx2": ["__init__.py", f"conv{EXTENSION_SUFFIXES[0]}", "conv.cpython-27-other.so"], "baseline": ["conv.cpython-27-other.so"]}.items():
        (tmp_path / "instruction_sets" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "instruction_sets" / name / file).touch()
    assert [kernel_table.kernel_modules(name) for name in ("avx2", "baseline", "avx512")] == [["conv"], [], []]


def multiply_without_scipy(**variables):
    """Multiply matrices of float64 in a process that cannot import SciPy."""
    code = """
import sys
sys.modules["scipy"] = None
import numpy as np
from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
a, b, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4), np.empty((2, 4))
call_kernel(kernels()["gemm", "float64"], [a, b, None], [y], (2, 4, 3, 0, 0, 4, 1, 0), (1.0, 1.0), 0, EngineHandle())
np.testing.assert_array_equal(y, a @ b)
"""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False)


def test_float64_needs_no_scipy():
    process = multiply_without_scipy()
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("backend, message", [("mkl", "expected ORTRAIN_GEMM to be blas or vectors, got 'mkl'"),
                                              ("blas", "ORTRAIN_GEMM=blas needs SciPy (pip install 'ortrain[blas]')")])
def test_a_gemm_backend_that_is_not_there_is_refused(backend, message):
    process = multiply_without_scipy(ORTRAIN_GEMM=backend)
    assert process.returncode == 1 and message in process.stderr


@pytest.mark.parametrize("choice", OTHERS, ids=lambda choice: "=".join(*choice.items()))
def test_kernels_gemm_and_recorded_runs_pass_with(choice):
    tests = [ROOT / "tests" / name for name in ("ops/test_kernels.py", "core/test_products.py", "core/test_bfloat16_products.py", "test_recorded_runs.py")]
    process = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, tests)], cwd=ROOT, env=os.environ | choice,
                          capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-3000:]
