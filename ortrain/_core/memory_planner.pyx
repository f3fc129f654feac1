"""Memory planner: assigns offsets in the arena to blocks such that blocks with overlapping live ranges do not overlap in memory."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memmove

cdef enum:
    ALIGNMENT = 64                        # a cache line, and the widest vector register
    N_ORDERS = 5
    N_CORRECTIONS = 4                     # see promote: of the highest blocks and of all above the peak, to the front and halfway
    N_PROMOTIONS = 8                      # per order and correction; with half as many, arenas are 0.1 % larger
    MAX_PLACED = 1 << 15                  # blocks placed in one search, which takes 0.03 s then; with four times as many, densenet's arena is 3 % smaller
    CLOSE = 256                           # the search ends where less than one part in so many is left to gain


cdef struct SortKey:                      # compared lexicographically
    Py_ssize_t is_not_retained
    int64_t first
    int64_t second
    Py_ssize_t index


cdef struct Allocation:
    int64_t start
    int64_t end
    Py_ssize_t first
    Py_ssize_t last


cpdef int64_t aligned(int64_t size) noexcept nogil:
    """Return a size rounded up to the alignment, at least one unit so that every block has a distinct address."""
    return max(ALIGNMENT, (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)


cdef int compare(const void *left, const void *right) noexcept nogil:
    """Order two SortKeys for qsort."""
    cdef const SortKey *a = <const SortKey *>left
    cdef const SortKey *b = <const SortKey *>right
    if a.is_not_retained != b.is_not_retained:
        return -1 if a.is_not_retained < b.is_not_retained else 1
    if a.first != b.first:
        return -1 if a.first < b.first else 1
    if a.second != b.second:
        return -1 if a.second < b.second else 1
    return -1 if a.index < b.index else 1


cdef SortKey sort_key(const Block *block, Py_ssize_t index, int order, int64_t crowd) noexcept nogil:
    """Return the sort key of a block in one of the orders in which blocks are placed.

    crowd: the most bytes that are live at once while the block is. Blocks of crowded steps come first in most orders, as others find room beside
    them. No order is best for all models: each of the five is needed by one of the benchmark networks."""
    cdef int64_t size = block.size, duration = block.last - block.first + 1
    cdef SortKey key = SortKey(not block.is_retained, 0, 0, index)
    if order == 0:
        key.first, key.second = -crowd, -duration
    elif order == 1:
        key.first, key.second = -crowd, -size
    elif order == 2:
        key.first, key.second = -crowd, block.first
    elif order == 3:
        key.first, key.second = block.first * block.is_retained, -size * duration
    else:
        key.first, key.second = -block.first * block.is_retained, -size
    return key


cdef int64_t assign_in_order(const Block *blocks, const SortKey *keys, Py_ssize_t count, Allocation *allocations, int64_t *offsets) noexcept nogil:
    """Place each block in turn at the lowest offset that is free during its live range; return the total bytes."""
    cdef Py_ssize_t i, j, n
    cdef int64_t offset, size, total = 0
    cdef const Block *block
    for n in range(count):                # allocations[:n] is sorted by start
        block = &blocks[keys[n].index]
        size, offset = aligned(block.size), 0
        for i in range(n):
            if allocations[i].last < block.first or block.last < allocations[i].first:
                continue
            if allocations[i].start >= offset + size:
                break
            offset = max(offset, allocations[i].end)
        offsets[keys[n].index] = offset
        total = max(total, offset + size)
        j = n
        while j > 0 and allocations[j - 1].start > offset:
            j -= 1
        memmove(&allocations[j + 1], &allocations[j], (n - j) * sizeof(Allocation))
        allocations[j] = Allocation(offset, offset + size, block.first, block.last)
    return total


cdef int64_t redzone_bytes = 0


def set_redzone_bytes(int64_t n_bytes):
    """Give every block memory of its own between red zones of n_bytes (a multiple of 64) from now on, for kernel tests; 0 packs blocks again.

    The red zones of a program must keep their content when it runs."""
    global redzone_bytes
    redzone_bytes = n_bytes


cdef int64_t assign_with_redzones(Block *blocks, Py_ssize_t count) noexcept nogil:
    """Place each block behind a red zone; return the total bytes, including the red zone behind the last block."""
    cdef int64_t end = redzone_bytes
    cdef Py_ssize_t i
    for i in range(count):
        blocks[i].offset = end
        end += aligned(blocks[i].size) + redzone_bytes
    return end


cdef int64_t count_crowds(const Block *blocks, Py_ssize_t count, int64_t *crowds) noexcept nogil:
    """Write the most bytes that are live at once while each block is; return the peak of the program, which every order needs at least.

    Returns -1 if working memory cannot be allocated."""
    cdef Py_ssize_t i, step, steps = 0
    cdef int64_t peak = 0
    cdef int64_t *live
    for i in range(count):
        steps = max(steps, blocks[i].last + 1)
    live = <int64_t *>calloc(steps + 1, sizeof(int64_t))
    if live == NULL:
        return -1
    for i in range(count):
        live[blocks[i].first] += aligned(blocks[i].size)
        live[blocks[i].last + 1] -= aligned(blocks[i].size)
    for step in range(1, steps):
        live[step] += live[step - 1]
    for i in range(count):
        crowds[i] = 0
        for step in range(blocks[i].first, blocks[i].last + 1):
            crowds[i] = max(crowds[i], live[step])
        peak = max(peak, crowds[i])
    free(live)
    return peak


cdef void promote(const Block *blocks, SortKey *keys, Py_ssize_t count, const int64_t *offsets, int64_t limit, bint halfway) noexcept nogil:
    """Move each block that ends above a limit to the front of the order, or halfway there, before blocks that have been in its way.

    Retained blocks stay before the others."""
    cdef Py_ssize_t i, target, n_retained = 0
    cdef SortKey key
    for i in range(count):
        n_retained += not keys[i].is_not_retained
    for i in range(count):
        key = keys[i]
        if offsets[key.index] + aligned(blocks[key.index].size) > limit:
            target = max(i // 2 if halfway else 0, n_retained if key.is_not_retained else 0)
            memmove(&keys[target + 1], &keys[target], (i - target) * sizeof(SortKey))
            keys[target] = key


cdef int64_t search(Block *blocks, Py_ssize_t count, const int64_t *crowds, int64_t peak, SortKey *keys, Allocation *allocations,
                    int64_t *offsets) noexcept nogil:
    """Place the blocks in several orders, each of which is corrected where the arena became high; keep the offsets that need the fewest bytes and return these
    bytes.

    Arenas of twenty-nine benchmark networks, in float32 and bfloat16, are 0.4 % above their peaks on average; without corrections they are 2.2 %."""
    cdef int64_t total = -1, found = 0, placed = 0
    cdef int correction, order, promotion
    cdef Py_ssize_t i
    for correction in range(N_CORRECTIONS):
        for order in range(N_ORDERS):
            for i in range(count):
                keys[i] = sort_key(&blocks[i], i, order, crowds[i])
            qsort(keys, count, sizeof(SortKey), compare)
            for promotion in range(N_PROMOTIONS + 1):
                if promotion:
                    promote(blocks, keys, count, offsets, peak if correction % 2 else found - 1, correction >= 2)
                found = assign_in_order(blocks, keys, count, allocations, offsets)
                if total < 0 or found < total:
                    total = found
                    for i in range(count):
                        blocks[i].offset = offsets[i]
                placed += count
                if total - peak <= peak // CLOSE or placed > MAX_PLACED:
                    return total
    return total


cdef int64_t assign_packed(Block *blocks, Py_ssize_t count) noexcept nogil:
    """Place the blocks such that they need few bytes; return these bytes, or -1 if working memory cannot be allocated."""
    cdef int64_t total = -1, peak
    cdef SortKey *keys = <SortKey *>malloc((count + 1) * sizeof(SortKey))
    cdef Allocation *allocations = <Allocation *>malloc((count + 1) * sizeof(Allocation))
    cdef int64_t *offsets = <int64_t *>malloc((count + 1) * sizeof(int64_t))
    cdef int64_t *crowds = <int64_t *>malloc((count + 1) * sizeof(int64_t))
    if keys != NULL and allocations != NULL and offsets != NULL and crowds != NULL:
        peak = count_crowds(blocks, count, crowds)
        if peak >= 0:
            total = search(blocks, count, crowds, peak, keys, allocations, offsets)
    free(keys)
    free(allocations)
    free(offsets)
    free(crowds)
    return total


cdef int64_t assign_offsets(Block *blocks, Py_ssize_t count) noexcept nogil:
    """Assign an offset to every block; return the total bytes, or -1 if working memory cannot be allocated."""
    if redzone_bytes:
        return assign_with_redzones(blocks, count)
    return assign_packed(blocks, count)
