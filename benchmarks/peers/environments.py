"""The runtimes that are compared, and the environments that they run in: made with venv and pip when they are first asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

from tests.peer import environment as old_package

CONVOLUTIONAL = ("cnn", "resnet", "mobilenet")
TRANSFORMERS = ("bert-mini", "gpt-mini")


@dataclass(frozen=True)
class Environment:
    """What is installed. The variable names a Python that has it already."""

    variable: str
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runtime:
    """A row of the comparison: a module that measures one workload, with options; variants: options that are tried beside none, for some workloads."""

    environment: str | None
    module: str
    options: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Option -> beginnings of the names of the workloads it is tried on; the faster one counts."""
    pin: bool = True
    can_be_held: bool = True
    """Whether it has a switch for the instructions that it uses."""

    def choices(self, workload: str) -> list[tuple[str, ...]]:
        """The sets of options to measure."""
        return [self.options, *((*self.options, option) for option, names in self.variants.items() if workload.startswith(names))]


ENVIRONMENTS = {
    "torch": Environment("ORTRAIN_BENCH_TORCH_PYTHON", ("torch", "numpy")),
    "onnxruntime": Environment("ORTRAIN_BENCH_ONNXRUNTIME_PYTHON"),
    "jax": Environment("ORTRAIN_BENCH_JAX_PYTHON", ("jax", "numpy")),
}
OURS, LOWEST_MEMORY = "ortrain", "ortrain-lowest-memory"
"""ortrain with its default options, and with the options that take the least memory (benchmarks/one.py)."""
TORCH = "benchmarks.peers.run_torch"
RUNTIMES = {
    OURS: Runtime(None, "benchmarks.one"),
    LOWEST_MEMORY: Runtime(None, "benchmarks.one", ("--lowest-memory",)),
    "onnxruntime": Runtime("onnxruntime", "benchmarks.peers.run_onnxruntime", can_be_held=False),
    "torch-eager": Runtime("torch", TORCH, variants={"--channels-last": CONVOLUTIONAL, "--fused-attention": TRANSFORMERS}),
    "torch-compile": Runtime("torch", TORCH, ("--compile",)),
    "jax": Runtime("jax", "benchmarks.peers.run_jax", pin=False),
}

HELD_TO_AVX2 = {"ORTRAIN_INSTRUCTION_SET": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                "XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}
"""The switches of ortrain, PyTorch with its libraries, and JAX."""


class NotInstalled(Exception):
    """Why a runtime is not in the comparison."""


def python_of(runtime: Runtime, folder: Path) -> str:
    """The Python that the runtime runs in. Raises NotInstalled."""
    if runtime.environment is None:
        return sys.executable
    environment = ENVIRONMENTS[runtime.environment]
    given = os.environ.get(environment.variable)
    if given:
        return given
    place = folder / runtime.environment
    try:
        return str(old_package.make(place) if not environment.requirements else make(place, environment.requirements))
    except (SystemExit, subprocess.CalledProcessError, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotInstalled(said.strip().splitlines()[-1]) from error


def make(folder: Path, requirements: tuple[str, ...]) -> Path:
    """The Python of an environment with these packages, made there unless it is ready."""
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True, capture_output=True, text=True)
        ready.write_text("ok\n")
    return python
