"""The memory planner: blocks that are live at once have memory of their own, and an arena is hardly larger than its peak."""

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle
from ortrain._core.memory_planner import aligned
from ortrain._core.program_builder import ProgramBuilder

STEPS = 60


def program_with_blocks(blocks):
    """Return a program without steps that has blocks of (size, first step, last step, whether deferred steps read it)."""
    builder = ProgramBuilder(EngineHandle())
    for block in blocks:
        builder.add_block(*block)
    return builder.finish()


def random_blocks(seed):
    """Return the blocks of a training program: activations that the backward pass reads in reverse order, values between two steps, and retained gradients."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.choice([100, 4096, 50_000, 65_536, 200_000], 3 * STEPS)]
    activations = [(sizes[step], step, 2 * STEPS - step, False) for step in range(STEPS) if step % 3]
    values = [(sizes[STEPS + step], step, step + int(rng.integers(1, 4)), False) for step in range(2 * STEPS)]
    gradients = [(sizes[step], 2 * STEPS - step, 2 * STEPS + 4, True) for step in range(0, STEPS, 7)]
    return activations + values + gradients


def peak_of(blocks):
    """Return the most bytes that are live at once."""
    return max(sum(aligned(size) for size, first, last, _ in blocks if first <= step <= last) for step in range(2 * STEPS + 5))


@pytest.mark.parametrize("seed", range(8))
def test_blocks_that_are_live_at_once_do_not_overlap(seed):
    blocks = random_blocks(seed)
    program = program_with_blocks(blocks)
    ranges = [(offset, offset + size, first, last) for (offset, size), (_, first, last, _) in zip(program.block_extents, blocks, strict=True)]
    for number, (start, end, first, last) in enumerate(ranges):
        assert start % 64 == 0 and end <= program.arena_bytes
        assert all(other_end <= start or end <= other_start or other_last < first or last < other_first
                   for other_start, other_end, other_first, other_last in ranges[:number])


def test_retained_blocks_are_at_the_beginning_of_the_arena():
    blocks = random_blocks(0)
    program = program_with_blocks(blocks)
    assert program.retained_bytes == sum(aligned(size) for size, _, _, is_retained in blocks if is_retained)


def test_arenas_are_hardly_larger_than_their_peaks():
    excess = [program_with_blocks(blocks).arena_bytes / peak_of(blocks) for blocks in map(random_blocks, range(8))]
    assert min(excess) >= 1 and np.mean(excess) < 1.003, excess


def test_a_program_without_blocks_needs_no_memory():
    assert program_with_blocks([]).arena_bytes == 0
