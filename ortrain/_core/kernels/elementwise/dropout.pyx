"""Dropout and its gradient. The mask depends on the session's seed, the number of the run, the node and the element alone."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from ortrain._core.kernel cimport (DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_INT32, DTYPE_INT64, Engine, KernelArgs, STATUS_OK,
                                   Tensor, WorkItem, real)

cdef extern from "common/memory.h" nogil:
    int64_t min_i64(int64_t a, int64_t b)
    int64_t element_size(int dtype)
    void run_items(const Engine *engine, WorkItem work, void *context, int64_t items)
    void copy_block(const Engine *engine, void *to, const void *from_, int64_t bytes)
    void fill_block(const Engine *engine, void *to, const void *value, int64_t size, int64_t count)

cdef extern from "common/counter_random.h" nogil:
    ctypedef struct RandomKey:
        uint32_t first
        uint32_t second
    RandomKey random_key(uint64_t seed, uint64_t run, uint64_t stream, uint64_t block)
    void dropout_loop_float(const float *x, float *y, uint8_t *mask, int64_t n, RandomKey key, uint32_t first,
                            uint32_t threshold, float scale)
    void dropout_loop_double(const double *x, double *y, uint8_t *mask, int64_t n, RandomKey key, uint32_t first,
                             uint32_t threshold, double scale)

cdef enum:
    PIECE = 32768                # elements of one item; divides 2^32, so that an item has one key


cdef struct Dropped:
    Tensor *x
    Tensor *y
    uint8_t *mask
    const Engine *engine
    uint64_t stream
    uint32_t threshold
    double scale


cdef inline double number(const Tensor *t) noexcept nogil:
    """The value of a scalar of any dtype."""
    if t.dtype == DTYPE_FLOAT32:
        return (<float *>t.data)[0]
    if t.dtype == DTYPE_FLOAT64:
        return (<double *>t.data)[0]
    if t.dtype == DTYPE_INT64:
        return <double>(<int64_t *>t.data)[0]
    if t.dtype == DTYPE_INT32:
        return <double>(<int *>t.data)[0]
    return <double>(<uint8_t *>t.data)[0]


cdef inline double number_or(const KernelArgs *a, int index, double default) noexcept nogil:
    """The value of a scalar input, or the default where it is absent."""
    return number(&a.inputs[index]) if a.n_inputs > index and a.inputs[index].data != NULL else default


cdef void dropout_piece(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef Dropped *d = <Dropped *>context
    cdef int64_t at = item * PIECE, n = min_i64(PIECE, d.x.count - item * PIECE)
    cdef uint8_t *mask = d.mask + at if d.mask != NULL else NULL
    cdef RandomKey key = random_key(d.engine.seed, d.engine.run_index, d.stream, <uint64_t>at >> 32)
    if d.x.dtype == DTYPE_FLOAT32:
        dropout_loop_float(<float *>d.x.data + at, <float *>d.y.data + at, mask, n, key, <uint32_t>at, d.threshold, <float>d.scale)
    else:
        dropout_loop_double(<double *>d.x.data + at, <double *>d.y.data + at, mask, n, key, <uint32_t>at, d.threshold, d.scale)


cdef int dropout(const KernelArgs *a) noexcept nogil:
    """y [n], mask [n] (optional) of (x [n], ratio 0.5, training_mode false); ints: stream"""
    cdef Dropped d
    cdef uint8_t one = 1
    cdef double ratio = number_or(a, 1, 0.5)
    cdef Tensor *mask = &a.outputs[1]
    cdef bint masked = a.n_outputs > 1 and mask.data != NULL
    d.x = &a.inputs[0]
    d.y = &a.outputs[0]
    if number_or(a, 2, 0) == 0 or ratio <= 0:
        copy_block(a.engine, d.y.data, d.x.data, d.x.count * element_size(d.x.dtype))
        if masked:
            fill_block(a.engine, mask.data, &one, 1, mask.count)
        return STATUS_OK
    d.mask = <uint8_t *>mask.data if masked else NULL
    d.engine = a.engine
    d.stream = <uint64_t>a.ints[0]
    d.threshold = <uint32_t>(ratio * 4294967296.0) if ratio < 1 else 0xFFFFFFFFu
    d.scale = 1 / (1 - ratio) if ratio < 1 else 0
    run_items(a.engine, dropout_piece, &d, (d.x.count + PIECE - 1) // PIECE)
    return STATUS_OK


cdef struct Masked:
    Tensor *dy
    const uint8_t *mask
    void *dx
    double scale


cdef inline void masked_loop(const real *dy, const uint8_t *mask, real *dx, int64_t n, real scale) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        dx[i] = dy[i] * scale if mask[i] else <real>0


cdef void masked_piece(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef Masked *m = <Masked *>context
    cdef int64_t at = item * PIECE, n = min_i64(PIECE, m.dy.count - item * PIECE)
    if m.dy.dtype == DTYPE_FLOAT32:
        masked_loop(<const float *>m.dy.data + at, m.mask + at, <float *>m.dx + at, n, <float>m.scale)
    else:
        masked_loop(<const double *>m.dy.data + at, m.mask + at, <double *>m.dx + at, n, m.scale)


cdef int dropout_grad(const KernelArgs *a) noexcept nogil:
    """dx [n] = dy [n] / (1 - ratio) where mask [n], else 0; a copy of dy when ratio is 0; training_mode is not looked at"""
    cdef Masked m
    cdef double ratio = number_or(a, 2, 0.5)
    m.dy = &a.inputs[0]
    m.mask = <const uint8_t *>a.inputs[1].data
    m.dx = a.outputs[0].data
    if ratio <= 0:
        copy_block(a.engine, m.dx, m.dy.data, m.dy.count * element_size(m.dy.dtype))
        return STATUS_OK
    m.scale = 1 / (1 - ratio) if ratio < 1 else 0
    run_items(a.engine, masked_piece, &m, (m.dy.count + PIECE - 1) // PIECE)
    return STATUS_OK


# name -> (address, dtypes of input 0 it is for)
KERNELS = {
    "dropout": (<size_t>&dropout, ("float32", "float64")),
    "dropout_grad": (<size_t>&dropout_grad, ("float32", "float64")),
}
