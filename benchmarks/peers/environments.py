"""Runtimes of the comparison, and their virtual environments, which are created on first use."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

from tests.peer import environment as onnxruntime_training

CONVOLUTIONAL = ("cnn", "resnet", "mobilenet", "squeeze-excitation", "densenet", "inception", "convnext", "resnext", "shufflenet", "spectrogram", "unet",
                 "feature-pyramid", "single-shot-detector", "autoencoder", "siamese", "efficientnet", "super-resolution", "generator", "diffusion")
TRANSFORMERS = ("bert-mini", "gpt-mini")


@dataclass(frozen=True)
class Environment:
    """A virtual environment of a peer.

    variable: an environment variable that may name a Python interpreter to use instead.
    requirements: packages to install; none for onnxruntime-training, which needs the special care of tests.peer.environment."""

    variable: str
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runtime:
    """A runtime of the comparison.

    environment: key of ENVIRONMENTS; None is the environment of this process.
    module: measures one workload, when run with `python -m`.
    options: always passed to the module.
    variants: option -> prefixes of the names of the workloads on which that option is measured too; the fastest counts.
    pin: may be run with --pin.
    can_restrict_isa: has a switch that restricts its instruction set. has_bfloat16: can train with products in bfloat16."""

    environment: str | None
    module: str
    options: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pin: bool = True
    can_restrict_isa: bool = True
    has_bfloat16: bool = True

    def option_sets(self, workload: str) -> list[tuple[str, ...]]:
        """Return the sets of options to measure on a workload."""
        return [self.options, *((*self.options, option) for option, prefixes in self.variants.items() if workload.startswith(prefixes))]


ENVIRONMENTS = {
    "torch": Environment("ORTRAIN_BENCH_TORCH_PYTHON", ("torch", "numpy")),
    "onnxruntime": Environment("ORTRAIN_BENCH_ONNXRUNTIME_PYTHON"),
    "jax": Environment("ORTRAIN_BENCH_JAX_PYTHON", ("jax", "numpy")),
}
OWN = OURS, LOWEST_MEMORY, OURS_IN_FLOAT32 = "ortrain", "ortrain-lowest-memory", "ortrain-float32"
"""ortrain with its default options, with its lowest-memory options (benchmarks/one.py), and in float32 where the others run in another precision."""
TORCH = "benchmarks.peers.run_torch"
RUNTIMES = {
    OURS: Runtime(None, "benchmarks.one"),
    LOWEST_MEMORY: Runtime(None, "benchmarks.one", ("--lowest-memory",)),
    OURS_IN_FLOAT32: Runtime(None, "benchmarks.one", ("--precision", "float32")),
    "onnxruntime": Runtime("onnxruntime", "benchmarks.peers.run_onnxruntime", can_restrict_isa=False, has_bfloat16=False),
    "torch-eager": Runtime("torch", TORCH, variants={"--channels-last": CONVOLUTIONAL, "--fused-attention": TRANSFORMERS}),
    "torch-compile": Runtime("torch", TORCH, ("--compile",)),
    "jax": Runtime("jax", "benchmarks.peers.run_jax", pin=False, has_bfloat16=False),
}

RESTRICTIONS = {
    "avx2": {"ORTRAIN_INSTRUCTION_SET": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
             "XLA_FLAGS": "--xla_cpu_max_isa=AVX2"},
    "baseline": {"ORTRAIN_INSTRUCTION_SET": "baseline", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41",
                 "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"},
}
"""Instruction set -> environment variables that restrict ortrain, PyTorch with its libraries, and JAX to it, or to the nearest one that they know."""


class NotInstalled(Exception):
    """A runtime cannot be installed; the message is the reason."""


def python_for(runtime: Runtime, folder: Path) -> str:
    """Return the Python interpreter of a runtime, creating its environment in the folder where needed. Raises NotInstalled."""
    if runtime.environment is None:
        return sys.executable
    environment = ENVIRONMENTS[runtime.environment]
    existing = os.environ.get(environment.variable)
    if existing:
        return existing
    target = folder / runtime.environment
    try:
        return str(onnxruntime_training.make(target) if not environment.requirements else create_environment(target, environment.requirements))
    except (SystemExit, subprocess.CalledProcessError, OSError) as error:
        message = getattr(error, "stderr", None) or str(error)
        raise NotInstalled(message.strip().splitlines()[-1]) from error


def create_environment(folder: Path, requirements: tuple[str, ...]) -> Path:
    """Create a virtual environment with these packages unless it is complete, and return its Python interpreter."""
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True, capture_output=True, text=True)
        ready.write_text("ok\n")
    return python
