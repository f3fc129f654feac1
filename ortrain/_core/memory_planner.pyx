"""Memory planner: assigns offsets in the arena to blocks such that blocks with overlapping live ranges do not overlap in memory."""
from libc.math cimport pow
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memmove

cdef enum:
    ALIGNMENT = 64                        # a cache line, and the widest vector register
    N_ORDERS = 5


cdef struct SortKey:                      # compared lexicographically
    Py_ssize_t is_not_retained
    int64_t first
    int64_t second
    double third
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
    if a.third != b.third:
        return -1 if a.third < b.third else 1
    return -1 if a.index < b.index else 1


cdef SortKey sort_key(const Block *block, Py_ssize_t index, int order) noexcept nogil:
    """Return the sort key of a block in one of the orders in which blocks are placed.

    No order is best for all models. Arena in MB with order 0 only, with the best order, and the lower bound (peak of live bytes): resnet18 106.6, 102.2, 100.3;
    resnet50 227, 224, 220; bert-mini 40.3, 37.2, 37.1."""
    cdef int64_t size = block.size, duration = block.last - block.first + 1
    cdef SortKey key = SortKey(not block.is_retained, 0, 0, 0.0, index)
    if order == 0:
        key.first, key.second = -size, block.first
    elif order == 1:
        key.first, key.second = block.first * block.is_retained, -size * duration
    elif order == 2:
        key.first, key.second = -block.first * block.is_retained, -size
    elif order == 3:
        key.third = -<double>size * pow(<double>duration, 0.3)
    else:
        key.third = -<double>size * pow(<double>duration, 0.6)
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


cdef int64_t peak_bytes(const Block *blocks, Py_ssize_t count) noexcept nogil:
    """Return the most bytes that are live at once, which every order needs at least; 0 if working memory cannot be allocated."""
    cdef Py_ssize_t i, steps = 0
    cdef int64_t live = 0, peak = 0
    cdef int64_t *change
    for i in range(count):
        steps = max(steps, blocks[i].last + 1)
    change = <int64_t *>calloc(steps + 1, sizeof(int64_t))
    if change == NULL:
        return 0
    for i in range(count):
        change[blocks[i].first] += aligned(blocks[i].size)
        change[blocks[i].last + 1] -= aligned(blocks[i].size)
    for i in range(steps):
        live += change[i]
        peak = max(peak, live)
    free(change)
    return peak


cdef int64_t assign_packed(Block *blocks, Py_ssize_t count) noexcept nogil:
    """Place the blocks in the order that needs the fewest bytes; return these bytes, or -1 if working memory cannot be allocated."""
    cdef int64_t total = -1, found, least = peak_bytes(blocks, count)
    cdef int order
    cdef Py_ssize_t i
    cdef SortKey *keys = <SortKey *>malloc((count + 1) * sizeof(SortKey))
    cdef Allocation *allocations = <Allocation *>malloc((count + 1) * sizeof(Allocation))
    cdef int64_t *offsets = <int64_t *>malloc((count + 1) * sizeof(int64_t))
    if keys != NULL and allocations != NULL and offsets != NULL:
        for order in range(N_ORDERS):
            for i in range(count):
                keys[i] = sort_key(&blocks[i], i, order)
            qsort(keys, count, sizeof(SortKey), compare)
            found = assign_in_order(blocks, keys, count, allocations, offsets)
            if total < 0 or found < total:
                total = found
                for i in range(count):
                    blocks[i].offset = offsets[i]
            if total == least:
                break
    free(keys)
    free(allocations)
    free(offsets)
    return total


cdef int64_t assign_offsets(Block *blocks, Py_ssize_t count) noexcept nogil:
    """Assign an offset to every block; return the total bytes, or -1 if working memory cannot be allocated."""
    if redzone_bytes:
        return assign_with_redzones(blocks, count)
    return assign_packed(blocks, count)
