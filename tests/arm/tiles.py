"""The register tiles of products and convolutions among cross-compiled kernels: functions that are named after their kind and size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.arm.disassembly import Loop, loops

KERNELS = Path("ortrain") / "_core" / "instruction_sets" / "neon"
NAME = re.compile(r"(packed|in_place|windows|transposed|nn|tn)_tile_(\d+)_(\d+)(?:_(float|double))?$")
MODULES = {"gemm": "float", "gemm_float64": "double", "gemm_bfloat16_native": "bfloat16", "channels_last": ""}
"""Module -> the type of its tiles, where their names do not have it."""
VECTOR_BYTES = 16


@dataclass(frozen=True)
class Tile:
    """A tile of rows x vectors sums, and the loops in which it multiplies and adds.

    kind: packed, in_place: of products (matmul/gemm_micro_kernels.h); windows, transposed: of direct convolutions (channels_last/direct_tiles.h);
    nn, tn: of other channels-last convolutions (channels_last/vectors.h).
    dtype: float, double, or bfloat16, whose elements are pairs (matmul/bfloat16_pairs.h)."""

    kind: str
    rows: int
    vectors: int
    dtype: str
    loops: tuple[Loop, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.rows} x {self.vectors}, {self.dtype}"

    @property
    def sums(self) -> int:
        """Return the products of one step along the depth."""
        return self.rows * self.vectors

    @property
    def most_loads(self) -> int:
        """Return how many loads one step needs if it reads every operand once: vectors of B, and elements of A, of which those side by side make vectors."""
        lanes = VECTOR_BYTES // (8 if self.dtype == "double" else 4)
        adjacent = self.rows // lanes if self.kind in ("packed", "transposed", "tn") else 0
        return self.vectors + adjacent + self.rows - adjacent * lanes


def tiles(build: Path) -> Iterator[Tile]:
    """Yield the tiles of the package that tests.arm.build compiled."""
    for module, dtype_of_module in MODULES.items():
        (path,) = (build / KERNELS).glob(f"{module}.*.so")
        found: dict[str, list[Loop]] = {}
        for loop in loops(path, NAME.pattern):
            found.setdefault(loop.function, []).append(loop)
        for function, its_loops in found.items():
            kind, rows, vectors, dtype = NAME.match(function).groups()
            yield Tile(kind, int(rows), int(vectors), dtype or dtype_of_module, tuple(its_loops))
