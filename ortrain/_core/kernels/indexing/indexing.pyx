"""Concat, Split, Gather and Scatter kernels, and the guard of indices. A scatter adds in the order of the indices, each destination in one work item, so results have fixed bits."""
from libc.stdint cimport uint32_t, int32_t, int64_t
from libc.string cimport memcpy, memset
from ortrain._core.kernel cimport (DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_INT32, Engine, KernelArgs, STATUS_INDEX_OUT_OF_RANGE, STATUS_OK,
                                   Tensor, WorkItem)

cdef extern from "common/memory.h" nogil:
    int64_t MEMORY_PIECE
    int64_t element_size(int32_t dtype)
    int64_t min_i64(int64_t a, int64_t b)
    int64_t ceil_div(int64_t n, int64_t d)
    void run_items(const Engine *engine, WorkItem work, void *context, int64_t items)
    void interleave_words(uint32_t *block, const uint32_t *a, const uint32_t *b, int64_t n)
    void separate_words(const uint32_t *block, uint32_t *a, uint32_t *b, int64_t n)
    void copy_bytes(char *to, const char *from_, int64_t n)
    void copy_row(char *to, const char *from_, int64_t n)
    void copy_columns(char *to, int64_t to_step, const char *from_, int64_t from_step, int64_t rows, int64_t width)
    void copy_block(const Engine *engine, void *to, const void *from_, int64_t bytes)
    void fill_block(const Engine *engine, void *to, const void *value, int64_t size, int64_t count)
    void zero_block(const Engine *engine, void *to, int64_t bytes)

cdef extern from "indexing/check_range.h" nogil:
    int check_range(const KernelArgs *a)

cdef extern from "indexing/elements.h" nogil:
    int gather_elements(const KernelArgs *a)
    int gather_elements_grad(const KernelArgs *a)
    int scatter_elements(const KernelArgs *a)
    int scatter_elements_add(const KernelArgs *a)

cdef extern from "indexing/rows.h" nogil:
    void gather_run(const char *table, char *rows, const int64_t *index, int64_t n, int64_t width)
    void gather_batches(const char *table, int64_t step, char *rows, const int64_t *index, int64_t n, int64_t width, int64_t batches)
    void scatter_add_run_float(float *table, const float *rows, const int64_t *index, int64_t n, int64_t inner, int64_t low, int64_t high)
    void scatter_add_run_double(double *table, const double *rows, const int64_t *index, int64_t n, int64_t inner, int64_t low, int64_t high)
    void scatter_assign_run(char *table, const char *rows, const int64_t *index, int64_t n, int64_t width, int64_t low, int64_t high)

cdef enum:
    ADD = 1
    ASSIGN = 2
    WIDE_PART = 64               # bytes of a part that is copied row by row
    ROWS_PER_ITEM = 16           # of a concatenation, at least; longer rows are cut


# ---- concatenate and split

cdef struct Concatenation:
    char *block                  # [outer, sum of widths] bytes
    Tensor *parts                # each [outer, width] bytes
    const int64_t *widths
    int64_t count
    int64_t row
    int64_t narrowest            # width of a part
    int64_t bytes
    int concatenating                  # 1: copy the parts to the block, 0: copy the block to the parts


cdef void concatenation_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    """Copy one chunk of the block from or to the parts that it overlaps. Absent parts are skipped."""
    cdef Concatenation *s = <Concatenation *>context
    cdef int64_t at = item * MEMORY_PIECE, end = min_i64(item * MEMORY_PIECE + MEMORY_PIECE, s.bytes)
    cdef int64_t o = at // s.row, offset = at % s.row, k = 0, n
    cdef char *part
    while at < end:
        if offset < s.widths[k]:
            n = min_i64(s.widths[k] - offset, end - at)
            if s.parts[k].data != NULL:
                part = <char *>s.parts[k].data + o * s.widths[k] + offset
                if s.concatenating:
                    copy_bytes(s.block + at, part, n)
                else:
                    copy_bytes(part, s.block + at, n)
            at += n
            offset = 0
        else:
            offset -= s.widths[k]
        k += 1
        if k == s.count:
            k = 0
            o += 1
            offset = 0


cdef void concatenation_rows_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    """Copy some rows of the block from or to the parts: narrow parts one after another, wide ones row by row, in the order of memory. Absent parts are skipped.

    1024 rows of two parts of 2 KiB that are in no cache took 730 µs part by part with memcpy and 590 row by row in vectors."""
    cdef Concatenation *s = <Concatenation *>context
    cdef int64_t per_item = MEMORY_PIECE // s.row, first = item * per_item, rows = min_i64(per_item, s.bytes // s.row - first), k, i, width
    cdef char *block = s.block + first * s.row
    cdef char *part
    if s.narrowest >= WIDE_PART:
        for i in range(first, first + rows):
            for k in range(s.count):
                width = s.widths[k]
                if s.parts[k].data != NULL:
                    part = <char *>s.parts[k].data + i * width
                    if s.concatenating:
                        copy_row(block, part, width)
                    else:
                        copy_row(part, block, width)
                block += width
        return
    if s.count == 2 and s.row == 8 and s.widths[0] == 4 and s.parts[0].data != NULL and s.parts[1].data != NULL:
        if s.concatenating:
            interleave_words(<uint32_t *>block, <uint32_t *>s.parts[0].data + first, <uint32_t *>s.parts[1].data + first, rows)
        else:
            separate_words(<uint32_t *>block, <uint32_t *>s.parts[0].data + first, <uint32_t *>s.parts[1].data + first, rows)
        return
    for k in range(s.count):
        width = s.widths[k]
        if s.parts[k].data != NULL:
            part = <char *>s.parts[k].data + first * width
            if s.concatenating:
                copy_columns(block, s.row, part, width, rows, width)
            else:
                copy_columns(part, width, block, s.row, rows, width)
        block += width


cdef void copy_parts(const KernelArgs *a, Tensor *block, Tensor *parts, int concatenating) noexcept nogil:
    """Copy between a block and its parts. ints: number of parts, their widths in bytes."""
    cdef Concatenation s
    cdef int64_t k
    s.block = <char *>block.data
    s.parts = parts
    s.count = a.ints[0]
    s.widths = a.ints + 1
    s.row = 0
    s.narrowest = WIDE_PART
    s.concatenating = concatenating
    for k in range(s.count):
        s.row += s.widths[k]
        s.narrowest = min_i64(s.narrowest, s.widths[k])
    s.bytes = block.count * element_size(block.dtype)
    if s.bytes > 0 and s.row * ROWS_PER_ITEM <= MEMORY_PIECE:
        run_items(a.engine, concatenation_rows_item, &s, ceil_div(s.bytes // s.row, MEMORY_PIECE // s.row))
    elif s.bytes > 0:
        run_items(a.engine, concatenation_item, &s, ceil_div(s.bytes, MEMORY_PIECE))


cdef int concat(const KernelArgs *a) noexcept nogil:
    """y [outer, sum w_k] = the inputs [outer, w_k] concatenated; ints: number of inputs, widths in bytes."""
    copy_parts(a, &a.outputs[0], a.inputs, 1)
    return STATUS_OK


cdef int concat_training(const KernelArgs *a) noexcept nogil:
    """concat, and lengths [k] = the sizes of the inputs along the axis; ints: as concat, then the sizes."""
    cdef int64_t k
    copy_parts(a, &a.outputs[0], a.inputs, 1)
    if a.n_outputs > 1 and a.outputs[1].data != NULL:
        for k in range(a.ints[0]):
            (<int64_t *>a.outputs[1].data)[k] = a.ints[1 + a.ints[0] + k]
    return STATUS_OK


cdef int split(const KernelArgs *a) noexcept nogil:
    """outputs [outer, w_k] = x [outer, sum w_k] split; ints: number of outputs, widths in bytes."""
    copy_parts(a, &a.inputs[0], a.outputs, 0)
    return STATUS_OK


# ---- rows

cdef inline int64_t index_at(const Tensor *t, int64_t i) noexcept nogil:
    return (<const int32_t *>t.data)[i] if t.dtype == DTYPE_INT32 else (<const int64_t *>t.data)[i]


cdef struct RowIndexing:
    char *table                  # [batches, size, inner]
    char *rows                   # [batches, n, inner]
    const char *initial          # initial value of the table of a scatter, or NULL for zeros
    const int64_t *indices       # [n] with stride 0, or [batches, n] with stride n
    int64_t stride
    int64_t batches
    int64_t size
    int64_t n
    int64_t inner                # elements of a row
    int64_t bytes                # bytes of an element
    int64_t ranges               # ranges that the rows of the table are divided into, one per work item
    int64_t per_item             # batches (scatter) or rows (gather) of a work item


cdef void normalize_indices(const Tensor *indices, int64_t size, int64_t *rows) noexcept nogil:
    """rows [n] = the indices, with negative ones counted from the end."""
    cdef int64_t i, v
    for i in range(indices.count):
        v = index_at(indices, i)
        rows[i] = v + size if v < 0 else v


cdef int flatten_tuples(const Tensor *indices, int64_t k, const int64_t *dims, const int64_t *strides, int64_t *rows) noexcept nogil:
    """rows [n] = the row numbers of the index tuples [n, k]. Returns STATUS_INDEX_OUT_OF_RANGE if an index is outside of dims."""
    cdef int64_t i, j, v, row, n = indices.count // k
    for i in range(n):
        row = 0
        for j in range(k):
            v = index_at(indices, i * k + j)
            if v < -dims[j] or v >= dims[j]:
                return STATUS_INDEX_OUT_OF_RANGE
            row += (v + dims[j] if v < 0 else v) * strides[j]
        rows[i] = row
    return STATUS_OK


cdef void gather_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef RowIndexing *r = <RowIndexing *>context
    cdef int64_t i = item * r.per_item, end = min_i64((item + 1) * r.per_item, r.batches * r.n), width = r.inner * r.bytes, b, n, count
    while i < end:
        b = i // r.n
        n = i - b * r.n
        if n == 0 and r.stride == 0 and end - i >= r.n:
            count = (end - i) // r.n
            gather_batches(r.table + b * r.size * width, r.size * width, r.rows + i * width, r.indices, r.n, width, count)
            i += count * r.n
            continue
        count = min_i64(end - i, r.n - n)
        gather_run(r.table + b * r.size * width, r.rows + i * width, r.indices + b * r.stride + n, count, width)
        i += count


cdef void gather_rows(const Engine *engine, RowIndexing *r) noexcept nogil:
    """rows[b, i, :] = table[b, indices[b, i], :]"""
    cdef int64_t width = r.inner * r.bytes
    if r.batches * r.n == 0 or width == 0:
        return
    r.per_item = max(1, MEMORY_PIECE // (width + 8))
    run_items(engine, gather_item, r, (r.batches * r.n + r.per_item - 1) // r.per_item)


cdef inline void scatter_ranges(RowIndexing *r, int64_t item, int mode) noexcept nogil:
    """Initialize the rows of the table in the item's range, then scatter to them in order."""
    cdef int64_t width = r.inner * r.bytes, range_index = item % r.ranges, first = item // r.ranges * r.per_item
    cdef int64_t low = r.size * range_index // r.ranges, high = r.size * (range_index + 1) // r.ranges, b
    cdef char *to
    cdef char *source
    cdef const int64_t *indices
    for b in range(first, min_i64(first + r.per_item, r.batches)):
        to = r.table + (b * r.size + low) * width
        if r.initial == NULL:
            memset(to, 0, <size_t>((high - low) * width))
        elif r.initial != r.table:
            memcpy(to, r.initial + (b * r.size + low) * width, <size_t>((high - low) * width))
        to = r.table + b * r.size * width
        source = r.rows + b * r.n * width
        indices = r.indices + b * r.stride
        if mode == ASSIGN:
            scatter_assign_run(to, source, indices, r.n, width, low, high)
        elif r.bytes == 4:
            scatter_add_run_float(<float *>to, <const float *>source, indices, r.n, r.inner, low, high)
        else:
            scatter_add_run_double(<double *>to, <const double *>source, indices, r.n, r.inner, low, high)


cdef void scatter_add_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    scatter_ranges(<RowIndexing *>context, item, ADD)


cdef void scatter_assign_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    scatter_ranges(<RowIndexing *>context, item, ASSIGN)


cdef void scatter_rows(const Engine *engine, RowIndexing *r, int mode) noexcept nogil:
    """table[b, indices[b, i], :] += (or =) rows[b, i, :]"""
    cdef int64_t work = (r.size + r.n) * r.inner
    if r.batches * r.size * r.inner == 0:
        return
    # Every range reads all indices, which costs more than narrow rows gain (4096 rows of 256: 370 us with 64 ranges, 185 us with 4). A row belongs to one
    # range, so results do not depend on their number.
    r.ranges = max(1, min(min(engine.workers, r.size), min(r.inner // 8, work // 32768)))
    r.per_item = max(1, 32768 // work) if r.ranges == 1 else 1
    run_items(engine, scatter_add_item if mode == ADD else scatter_assign_item, r, (r.batches + r.per_item - 1) // r.per_item * r.ranges)


cdef RowIndexing rows_from_args(Tensor *table, Tensor *rows, const int64_t *indices, const int64_t *ints) noexcept nogil:
    """ints: batches, size, n, inner, stride of the indices"""
    cdef RowIndexing r
    memset(&r, 0, sizeof(RowIndexing))
    r.table = <char *>table.data
    r.rows = <char *>rows.data
    r.indices = indices
    r.batches = ints[0]
    r.size = ints[1]
    r.n = ints[2]
    r.inner = ints[3]
    r.stride = ints[4]
    r.bytes = element_size(table.dtype)
    return r


cdef int gather(const KernelArgs *a) noexcept nogil:
    """(data, indices) -> y [outer, n, inner] = data [outer, indices [n], inner].

    ints: outer, size, n, inner, 0; scratch: n int64."""
    cdef RowIndexing r = rows_from_args(&a.inputs[0], &a.outputs[0], <int64_t *>a.scratch, a.ints)
    normalize_indices(&a.inputs[1], r.size, <int64_t *>a.scratch)
    gather_rows(a.engine, &r)
    return STATUS_OK


cdef int gather_grad(const KernelArgs *a) noexcept nogil:
    """(shape, indices, dy) -> dx [outer, size, inner]: dx[o, indices[i], :] += dy[o, i, :]; ints and scratch as gather."""
    cdef RowIndexing r = rows_from_args(&a.outputs[0], &a.inputs[2], <int64_t *>a.scratch, a.ints)
    normalize_indices(&a.inputs[1], r.size, <int64_t *>a.scratch)
    scatter_rows(a.engine, &r, ADD)
    return STATUS_OK


cdef int gather_nd(const KernelArgs *a) noexcept nogil:
    """(data, indices) -> y [b, n, inner] = data [b, indices [b, n, k], inner].

    ints: b, size, n, inner, n, k, dims [k], strides [k]; scratch: b * n int64."""
    cdef RowIndexing r = rows_from_args(&a.inputs[0], &a.outputs[0], <int64_t *>a.scratch, a.ints)
    cdef int64_t k = a.ints[5]
    cdef int status = flatten_tuples(&a.inputs[1], k, a.ints + 6, a.ints + 6 + k, <int64_t *>a.scratch)
    if status == STATUS_OK:
        gather_rows(a.engine, &r)
    return status


cdef int gather_nd_grad(const KernelArgs *a) noexcept nogil:
    """(shape, indices, dy) -> dx [b, size, inner]: dx[b, indices[b, i], :] += dy[b, i, :]; ints and scratch as gather_nd."""
    cdef RowIndexing r = rows_from_args(&a.outputs[0], &a.inputs[2], <int64_t *>a.scratch, a.ints)
    cdef int64_t k = a.ints[5]
    cdef int status = flatten_tuples(&a.inputs[1], k, a.ints + 6, a.ints + 6 + k, <int64_t *>a.scratch)
    if status == STATUS_OK:
        scatter_rows(a.engine, &r, ADD)
    return status


cdef inline int scatter_nd_mode(const KernelArgs *a, int mode) noexcept nogil:
    cdef RowIndexing r = rows_from_args(&a.outputs[0], &a.inputs[2], <int64_t *>a.scratch, a.ints)
    cdef int64_t k = a.ints[5]
    cdef int status = flatten_tuples(&a.inputs[1], k, a.ints + 6, a.ints + 6 + k, <int64_t *>a.scratch)
    r.initial = <const char *>a.inputs[0].data
    if status == STATUS_OK:
        scatter_rows(a.engine, &r, mode)
    return status


cdef int scatter_nd(const KernelArgs *a) noexcept nogil:
    """(data [1, size, inner], indices, updates [1, n, inner]) -> y = data with the indexed rows replaced; the last update of a row wins."""
    return scatter_nd_mode(a, ASSIGN)


cdef int scatter_nd_add(const KernelArgs *a) noexcept nogil:
    """scatter_nd with updates added to the rows."""
    return scatter_nd_mode(a, ADD)


cdef int one_hot(const KernelArgs *a) noexcept nogil:
    """(indices [outer, inner], depth, values (off, on)) -> y [outer, depth, inner] = on at the index, else off; ints: depth, inner."""
    cdef int64_t i, v, depth = a.ints[0], inner = a.ints[1], size = element_size(a.outputs[0].dtype)
    cdef Tensor *indices = &a.inputs[0]
    cdef char *values = <char *>a.inputs[2].data
    fill_block(a.engine, a.outputs[0].data, values, size, a.outputs[0].count)
    for i in range(indices.count):
        if indices.dtype == DTYPE_FLOAT32:
            v = <int64_t>(<float *>indices.data)[i]
        elif indices.dtype == DTYPE_FLOAT64:
            v = <int64_t>(<double *>indices.data)[i]
        else:
            v = index_at(indices, i)
        v = v + depth if v < 0 else v
        if 0 <= v < depth:
            memcpy(<char *>a.outputs[0].data + ((i // inner * depth + v) * inner + i % inner) * size, values + size, <size_t>size)
    return STATUS_OK


ALL = ("float32", "float64", "int32", "int64", "bool", "uint8", "int8")
FLOATS = ("float32", "float64")
# name -> (address, dtypes of input 0)
KERNELS = {
    "check_range": (<size_t>&check_range, ("int64", "int32")),
    "concat": (<size_t>&concat, ALL),
    "concat_training": (<size_t>&concat_training, ALL),
    "split": (<size_t>&split, ALL),
    "gather": (<size_t>&gather, ALL),
    "gather_grad": (<size_t>&gather_grad, ("int64",)),
    "gather_nd": (<size_t>&gather_nd, ALL),
    "gather_nd_grad": (<size_t>&gather_nd_grad, ("int64",)),
    "scatter_nd": (<size_t>&scatter_nd, ALL),
    "scatter_nd_add": (<size_t>&scatter_nd_add, FLOATS),
    "gather_elements": (<size_t>&gather_elements, ALL),
    "gather_elements_grad": (<size_t>&gather_elements_grad, FLOATS),
    "scatter_elements": (<size_t>&scatter_elements, ALL),
    "scatter_elements_add": (<size_t>&scatter_elements_add, FLOATS),
    "one_hot": (<size_t>&one_hot, ("float32", "float64", "int32", "int64")),
}
