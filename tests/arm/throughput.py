"""How many products per cycle the inner loops of cross-compiled kernels reach in LLVM's models of processors, of those that the models' pipelines could.

    python -m tests.arm.throughput [FOLDER] [--record]    after python -m tests.arm.build

--record writes the results, from which python -m benchmarks.documents renders the table of docs/arm.md.

The models know pipelines and latencies, but no caches: they say what the instructions allow, not what memory delivers."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS
from benchmarks.inner_loops import TILE_TITLES, inner_loops_table
from tests.arm.build import package
from tests.arm.disassembly import Loop
from tests.arm.environment import COMPILER, FOLDER
from tests.arm.tiles import Tile, tiles

ANALYZER = "llvm-mca-19"
PROCESSORS = ("neoverse-n1", "neoverse-n2", "neoverse-v2", "cortex-a76", "apple-m1")
WITH_BFLOAT16 = ("neoverse-n2", "neoverse-v2")
ITERATIONS = 200
PRODUCTS = {"float": "fmla v{}.4s, v30.4s, v31.s[0]\n", "bfloat16": "bfdot v{}.4s, v30.8h, v31.2h[0]\n"}
"""Type of operands -> an instruction that multiplies and adds a vector of them, for a number of a register."""
NAME = "arm-inner-loops"
"""Of the recorded results."""
LEAST_ROWS = 4
"""Tiles of fewer rows are used at the edge of a result only."""


def cycles(assembly: str, processor: str) -> float:
    """Return the cycles that one iteration of a loop takes in the model of a processor."""
    command = [ANALYZER, "-mtriple=aarch64", f"-mcpu={processor}", f"-iterations={ITERATIONS}", "-json"]
    answer = json.loads(subprocess.run(command, input=assembly, check=True, capture_output=True, text=True).stdout)
    return float(answer["CodeRegions"][0]["SummaryView"]["TotalCycles"]) / ITERATIONS


def products_per_cycle(loop: Loop, processor: str) -> float:
    """Return the vector products per cycle of a loop."""
    return loop.count("vector_product") / cycles(loop.assembly(), processor)


def shares(found: list[Tile], peaks: dict[str, float]) -> dict[str, list[float]]:
    """Return processor -> the lowest and the highest share of its possible products per cycle over all loops of some tiles."""
    rates = {name: [products_per_cycle(loop, name) / peak for tile in found for loop in tile.loops] for name, peak in peaks.items()}
    return {name: [round(min(values), 3), round(max(values), 3)] for name, values in rates.items()}


def possible(dtype: str, processors: Sequence[str]) -> dict[str, float]:
    """Return processor -> the vector products per cycle of a loop of nothing but products."""
    loop = "".join(PRODUCTS[dtype].format(register) for register in range(24)) + "subs x0, x0, #1\nb.ne target\n"
    return {name: round(24 / cycles(loop, name), 1) for name in processors}


def version(program: str) -> str:
    """Return the version that a program prints."""
    text = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+\.\d+\.\d+", text.partition("\n")[0]) or re.search(r"\d+\.\d+\.\d+", text)
    return found[0] if found else "unknown"


def measure(folder: Path) -> dict[str, Any]:
    """Return the figures of the build in the folder of an environment: for each type, float32 and bfloat16, kind of tile and number of vectors, over 4 and
    more rows."""
    groups: dict[tuple[str, str, int], list[Tile]] = {}
    for tile in tiles(package(folder)):
        if tile.rows >= LEAST_ROWS and tile.dtype in PRODUCTS:
            groups.setdefault((tile.dtype, tile.kind, tile.vectors), []).append(tile)
    peaks = {"float": possible("float", PROCESSORS), "bfloat16": possible("bfloat16", WITH_BFLOAT16)}
    rows = [{"dtype": dtype, "kind": kind, "vectors": vectors, "rows": sorted(tile.rows for tile in found), "share": shares(found, peaks[dtype])}
            for (dtype, kind, vectors), found in sorted(groups.items(), key=lambda group: (list(TILE_TITLES).index(group[0][:2]), -group[0][2]))]
    return {"compiler": f"GCC {version(COMPILER)}", "analyzer": f"llvm-mca {version(ANALYZER)}", "possible": peaks, "tiles": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    results = measure(options.folder)
    if options.record:
        (RESULTS / f"{NAME}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(inner_loops_table(results), end="")


if __name__ == "__main__":
    main()
