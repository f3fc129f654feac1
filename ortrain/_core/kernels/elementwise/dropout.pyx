"""Dropout and its gradient. The mask is a function of the seed of the session, the number of the run, the node and the element."""
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
    CHUNK = 32768                # elements of a work item; divides 2^32, so that an item has one key


cdef struct DropoutTask:
    Tensor *x
    Tensor *y
    uint8_t *mask
    const Engine *engine
    uint64_t stream
    uint32_t threshold
    double scale


cdef inline double scalar_value(const Tensor *t) noexcept nogil:
    """Return the value of a scalar of any dtype."""
    if t.dtype == DTYPE_FLOAT32:
        return (<float *>t.data)[0]
    if t.dtype == DTYPE_FLOAT64:
        return (<double *>t.data)[0]
    if t.dtype == DTYPE_INT64:
        return <double>(<int64_t *>t.data)[0]
    if t.dtype == DTYPE_INT32:
        return <double>(<int *>t.data)[0]
    return <double>(<uint8_t *>t.data)[0]


cdef inline double scalar_or_default(const KernelArgs *a, int index, double default) noexcept nogil:
    """Return the value of a scalar input, or the default if it is absent."""
    return scalar_value(&a.inputs[index]) if a.n_inputs > index and a.inputs[index].data != NULL else default


cdef void dropout_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef DropoutTask *d = <DropoutTask *>context
    cdef int64_t at = item * CHUNK, n = min_i64(CHUNK, d.x.count - item * CHUNK)
    cdef uint8_t *mask = d.mask + at if d.mask != NULL else NULL
    cdef RandomKey key = random_key(d.engine.seed, d.engine.run_index, d.stream, <uint64_t>at >> 32)
    if d.x.dtype == DTYPE_FLOAT32:
        dropout_loop_float(<float *>d.x.data + at, <float *>d.y.data + at, mask, n, key, <uint32_t>at, d.threshold, <float>d.scale)
    else:
        dropout_loop_double(<double *>d.x.data + at, <double *>d.y.data + at, mask, n, key, <uint32_t>at, d.threshold, d.scale)


cdef int dropout(const KernelArgs *a) noexcept nogil:
    """(x [n], ratio or 0.5, training_mode or false) -> (y [n], mask [n] or absent); ints: stream"""
    cdef DropoutTask d
    cdef uint8_t one = 1
    cdef double ratio = scalar_or_default(a, 1, 0.5)
    cdef Tensor *mask = &a.outputs[1]
    cdef bint masked = a.n_outputs > 1 and mask.data != NULL
    d.x = &a.inputs[0]
    d.y = &a.outputs[0]
    if scalar_or_default(a, 2, 0) == 0 or ratio <= 0:
        copy_block(a.engine, d.y.data, d.x.data, d.x.count * element_size(d.x.dtype))
        if masked:
            fill_block(a.engine, mask.data, &one, 1, mask.count)
        return STATUS_OK
    d.mask = <uint8_t *>mask.data if masked else NULL
    d.engine = a.engine
    d.stream = <uint64_t>a.ints[0]
    d.threshold = <uint32_t>(ratio * 4294967296.0) if ratio < 1 else 0xFFFFFFFFu
    d.scale = 1 / (1 - ratio) if ratio < 1 else 0
    run_items(a.engine, dropout_item, &d, (d.x.count + CHUNK - 1) // CHUNK)
    return STATUS_OK


cdef struct MaskedGradient:
    Tensor *dy
    const uint8_t *mask
    void *dx
    double scale


cdef inline void masked_loop(const real *dy, const uint8_t *mask, real *dx, int64_t n, real scale) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        dx[i] = dy[i] * scale if mask[i] else <real>0


cdef void masked_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef MaskedGradient *m = <MaskedGradient *>context
    cdef int64_t at = item * CHUNK, n = min_i64(CHUNK, m.dy.count - item * CHUNK)
    if m.dy.dtype == DTYPE_FLOAT32:
        masked_loop(<const float *>m.dy.data + at, m.mask + at, <float *>m.dx + at, n, <float>m.scale)
    else:
        masked_loop(<const double *>m.dy.data + at, m.mask + at, <double *>m.dx + at, n, m.scale)


cdef int dropout_grad(const KernelArgs *a) noexcept nogil:
    """(dy [n], mask [n], ratio or 0.5) -> dx [n] = dy / (1 - ratio) where the mask is set, else 0; dy if ratio is 0. training_mode is ignored."""
    cdef MaskedGradient m
    cdef double ratio = scalar_or_default(a, 2, 0.5)
    m.dy = &a.inputs[0]
    m.mask = <const uint8_t *>a.inputs[1].data
    m.dx = a.outputs[0].data
    if ratio <= 0:
        copy_block(a.engine, m.dx, m.dy.data, m.dy.count * element_size(m.dy.dtype))
        return STATUS_OK
    m.scale = 1 / (1 - ratio) if ratio < 1 else 0
    run_items(a.engine, masked_item, &m, (m.dy.count + CHUNK - 1) // CHUNK)
    return STATUS_OK


# name -> (address, dtypes of input 0)
KERNELS = {
    "dropout": (<size_t>&dropout, ("float32", "float64")),
    "dropout_grad": (<size_t>&dropout_grad, ("float32", "float64")),
}
