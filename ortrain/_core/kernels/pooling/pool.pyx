"""Max and average pooling and their gradients over planes [depth, height, width]; missing dimensions have size 1.

Small planes are pooled in panels of 16 (pool_panels.h). In large ones, a row of outputs is computed in blocks of ROW_BLOCK outputs, one tap after another, so
the inner loop runs along the width and is vectorized."""
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset
from ortrain._core.kernel cimport DTYPE_FLOAT32, KernelArgs, STATUS_OK, real

cdef extern from "pooling/pool_rows.h" nogil:
    void update_max_float32(const float *x, int64_t stride, int32_t position, float *best, int32_t *index, int64_t n)
    void update_max_float64(const double *x, int64_t stride, int32_t position, double *best, int32_t *index, int64_t n)
    void add_row_float32(const float *x, int64_t stride, float *sums, int64_t n)
    void add_row_float64(const double *x, int64_t stride, double *sums, int64_t n)
    ctypedef struct Geometry "PoolGeometry":
        int64_t planes, id, ih, iw, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw, include_pad, ed, eh, ew
    bint max_pool_panels(const KernelArgs *args)
    bint average_pool_panels(const KernelArgs *args)
    bint average_pool_grad_panels(const KernelArgs *args)

cdef enum:
    ROW_BLOCK = 64                    # outputs of a block


cdef struct Context:
    const Geometry *v
    bint is_float32
    const void *x
    void *y
    int64_t *indices
    const int64_t *from_indices
    int64_t planes
    int64_t input_size
    int64_t output_size
    int64_t per_item


include "common/planes.pxi"


cdef inline int64_t taps_below(int64_t start, int64_t limit, int64_t kernel, int64_t dilation) noexcept nogil:
    """Return how many of the taps start, start + dilation, ... are below limit."""
    if limit <= start:
        return 0
    return min(kernel, ceil_div(limit - start, dilation))


cdef inline int64_t counted_taps(int64_t start, int64_t size, int64_t end, int64_t kernel, int64_t dilation, bint padded) noexcept nogil:
    """Return the taps of a window along one axis that the divisor of an average counts: those inside, and with `padded` those in the padding."""
    cdef int64_t below
    if padded:
        return taps_below(start, size + end, kernel, dilation)
    below = taps_below(start, 0, kernel, dilation)
    return taps_below(start, size, kernel, dilation) - below


# ---- max pooling


cdef inline void update_max(const real *x, int64_t stride, int32_t position, real *best, int32_t *index, int64_t n) noexcept nogil:
    if real is float:
        update_max_float32(x, stride, position, best, index, n)
    else:
        update_max_float64(x, stride, position, best, index, n)


cdef inline void max_row_block(const Geometry *v, const real *x, int64_t d, int64_t h, int64_t w0, int64_t w1, real *best,
                               int32_t *index) noexcept nogil:
    """Update best and index [w1 - w0] with the windows of the outputs [w0, w1) of row (d, h) of plane x."""
    cdef int64_t i, j, l, zd, zh, zw, lo, hi, at
    for i in range(v.kd):
        zd = d * v.sd + i * v.dd - v.pd
        if zd < 0 or zd >= v.id:
            continue
        for j in range(v.kh):
            zh = h * v.sh + j * v.dh - v.ph
            if zh < 0 or zh >= v.ih:
                continue
            for l in range(v.kw):
                zw = l * v.dw - v.pw
                lo = max(w0, first_valid_output(zw, v.sw))
                hi = min(w1, end_valid_output(zw, v.sw, v.iw))
                if lo < hi:
                    at = (zd * v.ih + zh) * v.iw + lo * v.sw + zw
                    update_max(x + at, v.sw, <int32_t>at, best + (lo - w0), index + (lo - w0), hi - lo)


cdef inline void max_plane(const Context *t, int64_t plane, const real *x, real *y) noexcept nogil:
    """y = the maxima of one plane, and their indices if wanted. A plane has fewer than 2^31 elements, so its indices are int32."""
    cdef const Geometry *v = t.v
    cdef real best[ROW_BLOCK]
    cdef int32_t index[ROW_BLOCK]
    cdef int64_t d, h, w, i, n, out
    for d in range(v.od):
        for h in range(v.oh):
            w = 0
            while w < v.ow:
                n = min(<int64_t>ROW_BLOCK, v.ow - w)
                for i in range(n):
                    best[i] = <real>-INFINITY
                    index[i] = -1
                max_row_block(v, x + plane * t.input_size, d, h, w, w + n, best, index)
                out = plane * t.output_size + (d * v.oh + h) * v.ow + w
                for i in range(n):
                    y[out + i] = best[i]
                if t.indices != NULL:
                    for i in range(n):
                        t.indices[out + i] = plane * t.input_size + index[i] if index[i] >= 0 else -1
                w += n


cdef void max_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per_item, min((item + 1) * t.per_item, t.planes)):
        if t.is_float32:
            max_plane(t, i, <const float *>t.x, <float *>t.y)
        else:
            max_plane(t, i, <const double *>t.x, <double *>t.y)


cdef inline void max_gradient_plane(const Context *t, int64_t plane, const real *dy, real *dx) noexcept nogil:
    """dx of one plane. Indices outside of the plane, those of empty windows, are ignored."""
    cdef const int64_t *indices = t.from_indices + plane * t.output_size
    cdef int64_t i, at
    dx += plane * t.input_size
    dy += plane * t.output_size
    memset(dx, 0, t.input_size * sizeof(real))
    for i in range(t.output_size):
        at = indices[i] - plane * t.input_size
        if at >= 0 and at < t.input_size:
            dx[at] += dy[i]


cdef void max_gradient_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per_item, min((item + 1) * t.per_item, t.planes)):
        if t.is_float32:
            max_gradient_plane(t, i, <const float *>t.x, <float *>t.y)
        else:
            max_gradient_plane(t, i, <const double *>t.x, <double *>t.y)


# ---- average pooling


cdef inline void add_row(const real *x, int64_t stride, real *sums, int64_t n) noexcept nogil:
    if real is float:
        add_row_float32(x, stride, sums, n)
    else:
        add_row_float64(x, stride, sums, n)


cdef inline void scatter_row(const real *shares, real *x, int64_t stride, int64_t n) noexcept nogil:
    """x[0], x[stride], ... += shares [n]"""
    cdef int64_t i
    if stride == 1:
        for i in range(n):
            x[i] += shares[i]
    else:
        for i in range(n):
            x[i * stride] += shares[i]


cdef inline void average_taps(const Geometry *v, bint backward, real *x, int64_t d, int64_t h, int64_t w0, int64_t w1,
                              real *sums) noexcept nogil:
    """Forward: add all taps of plane x to the sums of the outputs [w0, w1) of row (d, h). Backward: add the sums to all taps."""
    cdef int64_t i, j, l, zd, zh, zw, lo, hi
    cdef real *row
    for i in range(v.kd):
        zd = d * v.sd + i * v.dd - v.pd
        if zd < 0 or zd >= v.id:
            continue
        for j in range(v.kh):
            zh = h * v.sh + j * v.dh - v.ph
            if zh < 0 or zh >= v.ih:
                continue
            for l in range(v.kw):
                zw = l * v.dw - v.pw
                lo = max(w0, first_valid_output(zw, v.sw))
                hi = min(w1, end_valid_output(zw, v.sw, v.iw))
                if lo >= hi:
                    continue
                row = x + (zd * v.ih + zh) * v.iw + lo * v.sw + zw
                if backward:
                    scatter_row(<const real *>sums + (lo - w0), row, v.sw, hi - lo)
                else:
                    add_row(<const real *>row, v.sw, sums + (lo - w0), hi - lo)


cdef inline void window_counts(const Geometry *v, int64_t d, int64_t h, int64_t w, int64_t n, real *out) noexcept nogil:
    """out [n] = the divisors of the outputs [w, w + n) of row (d, h); 1 for an empty window."""
    cdef int64_t rows = counted_taps(d * v.sd - v.pd, v.id, v.ed, v.kd, v.dd, v.include_pad)
    cdef int64_t i
    rows *= counted_taps(h * v.sh - v.ph, v.ih, v.eh, v.kh, v.dh, v.include_pad)
    for i in range(n):
        out[i] = <real>max(<int64_t>1, rows * counted_taps((w + i) * v.sw - v.pw, v.iw, v.ew, v.kw, v.dw, v.include_pad))


cdef inline void average_plane(const Context *t, bint backward, int64_t plane, real *x, real *y) noexcept nogil:
    """Forward: y = the averages of plane x. Backward: x = y / divisor scattered to the windows."""
    cdef const Geometry *v = t.v
    cdef real sums[ROW_BLOCK]
    cdef real counts[ROW_BLOCK]
    cdef int64_t d, h, w, i, n
    cdef real *out
    x += plane * t.input_size
    if backward:
        memset(x, 0, t.input_size * sizeof(real))
    for d in range(v.od):
        for h in range(v.oh):
            w = 0
            while w < v.ow:
                n = min(<int64_t>ROW_BLOCK, v.ow - w)
                out = y + plane * t.output_size + (d * v.oh + h) * v.ow + w
                window_counts(v, d, h, w, n, counts)
                for i in range(n):
                    sums[i] = out[i] / counts[i] if backward else <real>0
                average_taps(v, backward, x, d, h, w, w + n, sums)
                if not backward:
                    for i in range(n):
                        out[i] = sums[i] / counts[i]
                w += n


cdef void average_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per_item, min((item + 1) * t.per_item, t.planes)):
        if t.is_float32:
            average_plane(t, False, i, <float *>t.x, <float *>t.y)
        else:
            average_plane(t, False, i, <double *>t.x, <double *>t.y)


cdef void average_gradient_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per_item, min((item + 1) * t.per_item, t.planes)):
        if t.is_float32:
            average_plane(t, True, i, <float *>t.y, <float *>t.x)
        else:
            average_plane(t, True, i, <double *>t.y, <double *>t.x)


# ---- kernels


cdef void init_context(Context *t, const KernelArgs *a, bint has_windows) noexcept nogil:
    cdef const Geometry *v = <const Geometry *>a.ints
    cdef int64_t work
    memset(t, 0, sizeof(Context))
    t.v = v
    t.is_float32 = a.inputs[0].dtype == DTYPE_FLOAT32
    t.x = a.inputs[0].data
    t.y = a.outputs[0].data
    t.planes = v.planes
    if has_windows:
        t.input_size = v.id * v.ih * v.iw
        t.output_size = v.od * v.oh * v.ow
        work = t.input_size + t.output_size * v.kd * v.kh * v.kw
    else:
        t.input_size = a.ints[1]
        work = t.input_size
    t.per_item = max(<int64_t>1, 32768 // max(<int64_t>1, work))


cdef int max_pool(const KernelArgs *a) noexcept nogil:
    """x [planes, input] -> (y [planes, output], indices [planes, output] or absent)."""
    cdef Context t
    init_context(&t, a, True)
    t.indices = <int64_t *>a.outputs[1].data if a.n_outputs > 1 else NULL
    if t.planes > 0 and not max_pool_panels(a):
        a.engine.parallel_for(a.engine, max_item, &t, ceil_div(t.planes, t.per_item))
    return STATUS_OK


cdef int max_pool_grad(const KernelArgs *a) noexcept nogil:
    """(dy [planes, output], indices [planes, output]) -> dx [planes, input]."""
    cdef Context t
    init_context(&t, a, False)
    t.output_size = a.ints[2]
    t.from_indices = <const int64_t *>a.inputs[1].data
    if t.planes > 0:
        a.engine.parallel_for(a.engine, max_gradient_item, &t, ceil_div(t.planes, t.per_item))
    return STATUS_OK


cdef int average_pool(const KernelArgs *a) noexcept nogil:
    """x [planes, input] -> y [planes, output]."""
    cdef Context t
    init_context(&t, a, True)
    if t.planes > 0 and not average_pool_panels(a):
        a.engine.parallel_for(a.engine, average_item, &t, ceil_div(t.planes, t.per_item))
    return STATUS_OK


cdef int average_pool_grad(const KernelArgs *a) noexcept nogil:
    """dy [planes, output] -> dx [planes, input]."""
    cdef Context t
    init_context(&t, a, True)
    if t.planes > 0 and not average_pool_grad_panels(a):
        a.engine.parallel_for(a.engine, average_gradient_item, &t, ceil_div(t.planes, t.per_item))
    return STATUS_OK


# name -> (address, dtypes of input 0)
KERNELS = {
    "max_pool": (<size_t>&max_pool, ("float32", "float64")),
    "max_pool_grad": (<size_t>&max_pool_grad, ("float32", "float64")),
    "average_pool": (<size_t>&average_pool, ("float32", "float64")),
    "average_pool_grad": (<size_t>&average_pool_grad, ("float32", "float64")),
}
