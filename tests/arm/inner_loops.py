"""Inner loops of cross-compiled kernels: their sums stay in registers, they multiply whole vectors, and they read each operand once.

    python -m pytest tests/arm/inner_loops.py        after python -m tests.arm.build build/arm; the variable ORTRAIN_ARM names another folder"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.arm.build import package
from tests.arm.disassembly import Loop, loops
from tests.arm.environment import COMPILER, FOLDER
from tests.arm.tiles import tiles

TILES = list(tiles(package(Path(os.environ.get("ORTRAIN_ARM", FOLDER)))))
SIZES = {"packed": (range(1, 9), 3), "in_place": (range(1, 9), 3), "windows": (range(1, 9), 3), "transposed": (range(1, 9), 3),
         "nn": ((1, 2, 4, 12), 2), "tn": ((1, 2, 4, 12), 2)}
"""Kind of a tile -> its numbers of rows, and its largest number of vectors."""
OF_BFLOAT16 = ("packed", "in_place")
each_tile = pytest.mark.parametrize("tile", TILES, ids=str)


def test_tiles_of_all_sizes_are_found():
    for kind, (rows, vectors) in SIZES.items():
        for dtype in ("float", "double", *(["bfloat16"] if kind in OF_BFLOAT16 else [])):
            found = sorted((tile.rows, tile.vectors) for tile in TILES if (tile.kind, tile.dtype) == (kind, dtype))
            assert found == [(row, vector) for row in rows for vector in range(1, vectors + 1)]


@each_tile
def test_sums_of_a_tile_stay_in_registers(tile):
    assert [str(loop) for loop in tile.loops if loop.count("spill")] == []


@each_tile
def test_a_tile_multiplies_whole_vectors(tile):
    assert [str(loop) for loop in tile.loops if loop.count("scalar_product") or loop.count("vector_product") % tile.sums] == []


def test_tiles_multiply_by_the_instruction_of_their_type():
    for tile in TILES:
        products = {instruction.name for loop in tile.loops for instruction in loop.instructions if instruction.is_vector_product}
        assert products == {"bfdot" if tile.dtype == "bfloat16" else "fmla"}, str(tile)


@each_tile
def test_a_tile_reads_every_operand_once_per_step(tile):
    for loop in tile.loops:
        assert loop.count("load") <= tile.most_loads * loop.count("vector_product") // tile.sums, str(loop)


@pytest.fixture
def compiled_loops(tmp_path):
    """Return a function that compiles C, or assembles, for arm64 and returns the innermost loops with products."""
    def compile_loops(source: str, language: str = "c") -> list[Loop]:
        options = ["-O3", "-fPIC", "-shared", "-nostdlib", "-x", language, "-", "-o", tmp_path / "loop.so"]
        subprocess.run([COMPILER, *options], input=source, text=True, check=True)
        return loops(tmp_path / "loop.so")

    return compile_loops


TILE = """
typedef float Vector __attribute__((vector_size(16)));
void tile(long depth, const float *a, const Vector *b, Vector *c)
{
    Vector sum[8][VECTORS] = {0};
    for (long p = 0; p < depth; p++, a += 8, b += VECTORS)
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) sum[i][j] += a[i] * b[j];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
        _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) c[i * VECTORS + j] = sum[i][j];
}
"""


@pytest.mark.parametrize("vectors, spills", [(2, False), (5, True)])
def test_spills_are_found_where_a_tile_has_more_sums_than_registers(compiled_loops, vectors, spills):
    (loop,) = compiled_loops(TILE.replace("VECTORS", str(vectors)))
    assert loop.count("vector_product") == 8 * vectors and loop.count("scalar_product") == 0
    assert bool(loop.count("spill")) == spills


def test_scalar_products_are_found_in_a_loop_that_cannot_be_vectorized(compiled_loops):
    (loop,) = compiled_loops("float polynomial(long n, const float *a, float x) { float y = 0; for (long i = 0; i < n; i++) y = y * x + a[i]; return y; }")
    assert loop.count("scalar_product") == 1 and loop.count("vector_product") == 0 and loop.count("load") == 1


def test_a_branch_back_from_code_behind_a_loop_closes_no_loop(compiled_loops):
    (loop,) = compiled_loops("""
        .type sum, %function
        sum:    cbz x0, behind
        again:  fmla v0.4s, v1.4s, v2.s[0]
                subs x0, x0, #1
                b.ne again
        end:    ret
        behind: fmla v3.4s, v1.4s, v2.s[0]
                b end
    """, "assembler")
    assert [instruction.name for instruction in loop.instructions] == ["fmla", "subs", "b.ne"]
