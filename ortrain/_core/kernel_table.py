"""The compiled kernels of the instruction set in use: (kernel name, dtype) -> address."""

import functools
import importlib
import os
from pathlib import Path

from ortrain.errors import InvalidArgumentError

INSTRUCTION_SETS = ("avx512", "avx2", "baseline", "neon", "simd128")
"""All instruction sets, of each architecture the best first. A processor supports those of its own."""

MATMUL_KERNELS = frozenset({"gemm", "matmul", "channels_last_conv", "attention", "lstm", "gru", "rnn"})
"""Kernels whose results are sums of products."""
OPTIMIZER_KERNELS = frozenset({"adafactor", "adagrad", "adam", "adamw", "gemm_update", "lamb", "lion", "momentum", "muon", "rmsprop", "sgd"})
"""Kernels that update parameters."""


def flushes_subnormals(kernel: str) -> bool:
    """Return True if a kernel treats subnormal numbers as zero: sums of products, gradients and optimizers.

    Elementwise kernels of the forward pass keep them, because the logarithm of a subnormal probability, for example, is finite."""
    return kernel in MATMUL_KERNELS or kernel in OPTIMIZER_KERNELS or "_grad" in kernel


def supported_instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that are built and that this processor can run, best first."""
    from ortrain._core.cpu import supports

    folder = Path(__file__).with_name("instruction_sets")
    return tuple(name for name in INSTRUCTION_SETS if supports(name) and any(p.suffix in (".so", ".pyd") for p in (folder / name).glob("*")))


@functools.cache
def instruction_set() -> str:
    """Return the instruction set in use: the best supported one, or that of the environment variable ORTRAIN_INSTRUCTION_SET.

    Raises InvalidArgumentError if that is not supported."""
    requested = os.environ.get("ORTRAIN_INSTRUCTION_SET")
    available = supported_instruction_sets()
    if requested and requested not in available:
        raise InvalidArgumentError(f"expected ORTRAIN_INSTRUCTION_SET to be one of {available}, got {requested!r}")
    return requested or available[0]


def load_kernels(name: str) -> dict[tuple[str, str], int]:
    """Load all kernels of one instruction set: (kernel name, dtype of its first tensor) -> address."""
    table: dict[tuple[str, str], int] = {}
    folder = Path(__file__).with_name("instruction_sets") / name
    for path in sorted(folder.iterdir()):
        if path.suffix in (".so", ".pyd"):
            module = importlib.import_module(f"ortrain._core.instruction_sets.{name}.{path.name.split('.')[0]}")
            for kernel, (address, dtypes) in module.KERNELS.items():
                for dtype in dtypes:
                    assert (kernel, dtype) not in table, f"two kernels named {kernel!r} for {dtype}"
                    table[kernel, dtype] = address
    return table


@functools.cache
def kernels() -> dict[tuple[str, str], int]:
    """Return the kernels of the instruction set in use: (kernel name, dtype) -> address."""
    return load_kernels(instruction_set())
