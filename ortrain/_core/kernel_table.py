"""The kernels of the instruction set that this processor has: (name, dtype) -> address."""

import functools
import importlib
import os
from pathlib import Path

from ortrain.errors import InvalidArgumentError

PREFERENCE = ("avx512", "avx2", "baseline")

PRODUCTS = frozenset({"gemm", "matmul", "conv", "conv_depthwise", "channels_last_conv", "attention", "lstm", "gru", "rnn"})
OPTIMIZERS = frozenset({"adamw", "gemm_update", "sgd"})


def flushes_subnormals(kernel: str) -> bool:
    """Whether subnormal numbers are zero to a kernel: to sums of products, in which they are lost, to gradients and to moments. What a forward pass computes
    element by element keeps them: the logarithm of a subnormal probability is a number."""
    return kernel in PRODUCTS or kernel in OPTIMIZERS or "_grad" in kernel


def supported_sets() -> tuple[str, ...]:
    """The instruction sets that were built and that this processor can run, best first."""
    from ortrain._core.cpu import supports

    here = Path(__file__).with_name("instruction_sets")
    return tuple(name for name in PREFERENCE if supports(name) and any(p.suffix in (".so", ".pyd") for p in (here / name).glob("*")))


@functools.cache
def instruction_set() -> str:
    """The set in use: the best supported one, or what ORTRAIN_INSTRUCTION_SET names."""
    chosen = os.environ.get("ORTRAIN_INSTRUCTION_SET")
    available = supported_sets()
    if chosen and chosen not in available:
        raise InvalidArgumentError(f"expected ORTRAIN_INSTRUCTION_SET to be one of {available}, got {chosen!r}")
    return chosen or available[0]


def load_set(name: str) -> dict[tuple[str, str], int]:
    """All kernels of one instruction set: (kernel name, dtype of its first tensor) -> address."""
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
    """The kernels of the instruction set in use."""
    return load_set(instruction_set())
