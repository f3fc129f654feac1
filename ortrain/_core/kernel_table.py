"""The compiled kernels of the instruction set in use: (kernel name, dtype) -> address."""

import functools
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ortrain._core.kernel_modules import KERNEL_MODULES
from ortrain.errors import InvalidArgumentError

INSTRUCTION_SETS = ("avx512", "avx2", "baseline", "neon", "simd128")
"""All instruction sets, of each architecture the best first. A processor supports those of its own."""

MATMUL_KERNELS = frozenset({"gemm", "matmul", "channels_last_conv", "planes_conv", "attention", "lstm", "gru", "rnn"})
"""Kernels whose results are sums of products."""
OPTIMIZER_KERNELS = frozenset({"adafactor", "adagrad", "adam", "adamw", "gemm_update", "lamb", "lion", "momentum", "muon", "rmsprop", "sgd"})
"""Kernels that update parameters."""
MODULE_OF = {kernel: module for module, kernels in KERNEL_MODULES.items() for kernel in kernels}
"""Kernel -> the module that has it."""


def flushes_subnormals(kernel: str) -> bool:
    """Return True if a kernel treats subnormal numbers as zero: sums of products, gradients and optimizers.

    Elementwise kernels of the forward pass keep them, because the logarithm of a subnormal probability, for example, is finite."""
    return kernel in MATMUL_KERNELS or kernel in OPTIMIZER_KERNELS or "_grad" in kernel


def kernel_modules(name: str) -> list[str]:
    """Return the modules of an instruction set that are built for this Python; a checkout may also have those of another one."""
    files = [path.name for path in Path(__file__).with_name("instruction_sets").joinpath(name).glob("*")]
    return sorted({module for file in files for suffix in EXTENSION_SUFFIXES if file.endswith(suffix) and "." not in (module := file.removesuffix(suffix))})


def supported_instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that are built and that this processor can run, best first."""
    from ortrain._core.cpu import supports

    return tuple(name for name in INSTRUCTION_SETS if supports(name) and kernel_modules(name))


@functools.cache
def instruction_set() -> str:
    """Return the instruction set in use: the best supported one, or that of the environment variable ORTRAIN_INSTRUCTION_SET.

    Raises InvalidArgumentError if that is not supported."""
    requested = os.environ.get("ORTRAIN_INSTRUCTION_SET")
    available = supported_instruction_sets()
    if requested and requested not in available:
        raise InvalidArgumentError(f"expected ORTRAIN_INSTRUCTION_SET to be one of {available}, got {requested!r}")
    return requested or available[0]


class KernelTable(Mapping[tuple[str, str], int]):
    """The kernels of one instruction set: (kernel name, dtype of its first tensor) -> address.

    A module of kernels is imported when one of its kernels is first looked up, which plans do and steps do not; iterating imports all modules."""

    def __init__(self, name: str) -> None:
        self.instruction_set = name
        self._addresses: dict[tuple[str, str], int] = {}
        """The kernels of the modules that were imported."""

    def __getitem__(self, key: tuple[str, str]) -> int:
        if key not in self._addresses:
            self._load(MODULE_OF[key[0]])
        return self._addresses[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter([key for module in KERNEL_MODULES for key in self._load(module)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def name_of(self, address: int) -> str | None:
        """Return the name of a kernel that was looked up; None for an address that is not of this table."""
        return next((name for (name, _), known in tuple(self._addresses.items()) if known == address), None)

    def _load(self, module: str) -> Iterable[tuple[str, str]]:
        """Import a module and return its kernels."""
        kernels = importlib.import_module(f"ortrain._core.instruction_sets.{self.instruction_set}.{module}").KERNELS
        addresses = {(kernel, dtype): address for kernel, (address, dtypes) in kernels.items() for dtype in dtypes}
        self._addresses.update(addresses)
        return addresses


@functools.cache
def load_kernels(name: str) -> KernelTable:
    """Return the kernels of one instruction set."""
    return KernelTable(name)


def kernels() -> KernelTable:
    """Return the kernels of the instruction set in use."""
    return load_kernels(instruction_set())
