"""A plugin of pytest for processors with AVX-512 and without AMX: what belongs on AMX tiles is computed on emulated ones.

    python -m pytest -p tests.amx.emulation tests/core/test_amx.py"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

import ortrain

HERE, CORE = Path(__file__).resolve().parent, Path(ortrain.__file__).parent / "_core"
INSTRUCTION_SET = "avx512"
COMPILER = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
FLAGS = ["-shared", "-fPIC", "-O2", "-march=x86-64-v4", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
         "-include", str(HERE / "emulated_tiles.h"), f"-I{CORE}", f"-I{CORE / 'kernels'}"]
MODULES = {"gemm": [], "gemm_bfloat16": ["-DROUND_TO_BFLOAT16"], "gemm_bfloat16_native": ["-DROUND_TO_BFLOAT16", "-mavx512bf16"]}
"""The modules that are replaced, and flags of the compiler beside these."""
ENTRY_POINTS = ["packed_gemm", "parallel_gemm", "implicit_gemm"]
BFLOAT16_ENTRY_POINTS = [*ENTRY_POINTS, "gemm_on_tiles", "tiled_gemm_serial", "pack_step_weights", "step_gemm", "pack_tiled_step_weights", "tiled_step_gemm"]


def compile_module(name: str, folder: Path) -> ModuleType:
    """Return a module with the kernels of the compiled one of this name on emulated tiles, which are compiled into `folder`."""
    library = folder / f"{name}.so"
    subprocess.run([*COMPILER, *FLAGS, *MODULES[name], str(HERE / "gemm.c"), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    module = ModuleType(f"ortrain._core.instruction_sets.{INSTRUCTION_SET}.{name}")
    entries = [*ENTRY_POINTS, "amx_gemm"] if name == "gemm" else BFLOAT16_ENTRY_POINTS
    module.__dict__["GEMM"] = {entry: ctypes.c_void_p.in_dll(loaded, f"address_of_{entry}").value for entry in entries} | {
        "workspace_floats": ctypes.c_size_t.in_dll(loaded, "workspace_floats").value, "amx": True}
    return module


def pytest_configure() -> None:
    """Replace the modules before the engine loads them, which it does when it is first made."""
    with tempfile.TemporaryDirectory() as folder:
        for name in MODULES:
            module = compile_module(name, Path(folder))
            sys.modules[module.__name__] = module
