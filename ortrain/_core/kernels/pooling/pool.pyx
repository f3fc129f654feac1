"""Pooling kernels, forward and backward, over planes [depth, height, width] (missing axes have size 1).

A row of outputs is computed in pieces, tap by tap, so that the inner loop runs along the width and vectorizes."""
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset
from ortrain._core.kernel cimport DTYPE_FLOAT32, KernelArgs, STATUS_OK, real

cdef extern from "pooling/pool_rows.h" nogil:
    void keep_larger_float32(const float *x, int64_t stride, int32_t where, float *best, int32_t *index, int64_t n)
    void keep_larger_float64(const double *x, int64_t stride, int32_t where, double *best, int32_t *index, int64_t n)
    void add_row_float32(const float *x, int64_t stride, float *sums, int64_t n)
    void add_row_float64(const double *x, int64_t stride, double *sums, int64_t n)

cdef enum:
    PIECE = 64                    # outputs at a time


cdef struct Geometry:
    int64_t planes
    int64_t id, ih, iw, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw
    int64_t include_pad, ed, eh, ew


cdef struct Context:
    const Geometry *v
    bint single
    const void *x
    void *y
    int64_t *indices
    const int64_t *from_indices
    int64_t planes
    int64_t inner
    int64_t outer
    int64_t per


include "common/planes.pxi"


cdef inline int64_t taps_below(int64_t start, int64_t limit, int64_t kernel, int64_t dilation) noexcept nogil:
    """How many of the taps start, start + dilation, … lie below limit."""
    if limit <= start:
        return 0
    return min(kernel, divide_up(limit - start, dilation))


cdef inline int64_t taps_counted(int64_t start, int64_t size, int64_t end, int64_t kernel, int64_t dilation, bint padded) noexcept nogil:
    """Taps of a window on one axis that an average divides by: those inside, or inside and in the pads."""
    cdef int64_t below
    if padded:
        return taps_below(start, size + end, kernel, dilation)
    below = taps_below(start, 0, kernel, dilation)
    return taps_below(start, size, kernel, dilation) - below


# Maximum


cdef inline void keep_larger(const real *x, int64_t stride, int32_t where, real *best, int32_t *index, int64_t n) noexcept nogil:
    if real is float:
        keep_larger_float32(x, stride, where, best, index, n)
    else:
        keep_larger_float64(x, stride, where, best, index, n)


cdef inline void max_piece(const Geometry *v, const real *x, int64_t d, int64_t h, int64_t w0, int64_t w1, real *best,
                           int32_t *index) noexcept nogil:
    """Outputs w0 to w1 of row (d, h) of plane x."""
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
                lo = max(w0, first_inside(zw, v.sw))
                hi = min(w1, after_inside(zw, v.sw, v.iw))
                if lo < hi:
                    at = (zd * v.ih + zh) * v.iw + lo * v.sw + zw
                    keep_larger(x + at, v.sw, <int32_t>at, best + (lo - w0), index + (lo - w0), hi - lo)


cdef inline void max_plane(const Context *t, int64_t plane, const real *x, real *y) noexcept nogil:
    """One plane of maxima and, if wanted, where they are. A plane has fewer than 2^31 elements."""
    cdef const Geometry *v = t.v
    cdef real best[PIECE]
    cdef int32_t index[PIECE]
    cdef int64_t d, h, w, i, n, out
    for d in range(v.od):
        for h in range(v.oh):
            w = 0
            while w < v.ow:
                n = min(<int64_t>PIECE, v.ow - w)
                for i in range(n):
                    best[i] = <real>-INFINITY
                    index[i] = -1
                max_piece(v, x + plane * t.inner, d, h, w, w + n, best, index)
                out = plane * t.outer + (d * v.oh + h) * v.ow + w
                for i in range(n):
                    y[out + i] = best[i]
                if t.indices != NULL:
                    for i in range(n):
                        t.indices[out + i] = plane * t.inner + index[i] if index[i] >= 0 else -1
                w += n


cdef void max_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per, min((item + 1) * t.per, t.planes)):
        if t.single:
            max_plane(t, i, <const float *>t.x, <float *>t.y)
        else:
            max_plane(t, i, <const double *>t.x, <double *>t.y)


cdef inline void scatter_plane(const Context *t, int64_t plane, const real *dy, real *dx) noexcept nogil:
    """dx of one plane; an index outside the plane (no window element) gets nothing."""
    cdef const int64_t *indices = t.from_indices + plane * t.outer
    cdef int64_t i, at
    dx += plane * t.inner
    dy += plane * t.outer
    memset(dx, 0, t.inner * sizeof(real))
    for i in range(t.outer):
        at = indices[i] - plane * t.inner
        if at >= 0 and at < t.inner:
            dx[at] += dy[i]


cdef void scatter_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per, min((item + 1) * t.per, t.planes)):
        if t.single:
            scatter_plane(t, i, <const float *>t.x, <float *>t.y)
        else:
            scatter_plane(t, i, <const double *>t.x, <double *>t.y)


# Average


cdef inline void add_row(const real *x, int64_t stride, real *sums, int64_t n) noexcept nogil:
    if real is float:
        add_row_float32(x, stride, sums, n)
    else:
        add_row_float64(x, stride, sums, n)


cdef inline void spread_row(const real *shares, real *x, int64_t stride, int64_t n) noexcept nogil:
    """x [0], x [stride], … += shares [n]"""
    cdef int64_t i
    if stride == 1:
        for i in range(n):
            x[i] += shares[i]
    else:
        for i in range(n):
            x[i * stride] += shares[i]


cdef inline void average_taps(const Geometry *v, bint backward, real *x, int64_t d, int64_t h, int64_t w0, int64_t w1,
                              real *sums) noexcept nogil:
    """Outputs w0 to w1 of row (d, h): forward adds the taps of plane x to sums, backward adds sums to them."""
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
                lo = max(w0, first_inside(zw, v.sw))
                hi = min(w1, after_inside(zw, v.sw, v.iw))
                if lo >= hi:
                    continue
                row = x + (zd * v.ih + zh) * v.iw + lo * v.sw + zw
                if backward:
                    spread_row(<const real *>sums + (lo - w0), row, v.sw, hi - lo)
                else:
                    add_row(<const real *>row, v.sw, sums + (lo - w0), hi - lo)


cdef inline void divisors(const Geometry *v, int64_t d, int64_t h, int64_t w, int64_t n, real *out) noexcept nogil:
    """What the outputs w to w + n of row (d, h) divide by; 1 for a window without elements."""
    cdef int64_t rows = taps_counted(d * v.sd - v.pd, v.id, v.ed, v.kd, v.dd, v.include_pad)
    cdef int64_t i
    rows *= taps_counted(h * v.sh - v.ph, v.ih, v.eh, v.kh, v.dh, v.include_pad)
    for i in range(n):
        out[i] = <real>max(<int64_t>1, rows * taps_counted((w + i) * v.sw - v.pw, v.iw, v.ew, v.kw, v.dw, v.include_pad))


cdef inline void average_plane(const Context *t, bint backward, int64_t plane, real *x, real *y) noexcept nogil:
    """Forward: averages y of plane x. Backward: x = y spread over the windows."""
    cdef const Geometry *v = t.v
    cdef real sums[PIECE]
    cdef real counts[PIECE]
    cdef int64_t d, h, w, i, n
    cdef real *out
    x += plane * t.inner
    if backward:
        memset(x, 0, t.inner * sizeof(real))
    for d in range(v.od):
        for h in range(v.oh):
            w = 0
            while w < v.ow:
                n = min(<int64_t>PIECE, v.ow - w)
                out = y + plane * t.outer + (d * v.oh + h) * v.ow + w
                divisors(v, d, h, w, n, counts)
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
    for i in range(item * t.per, min((item + 1) * t.per, t.planes)):
        if t.single:
            average_plane(t, False, i, <float *>t.x, <float *>t.y)
        else:
            average_plane(t, False, i, <double *>t.x, <double *>t.y)


cdef void spread_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per, min((item + 1) * t.per, t.planes)):
        if t.single:
            average_plane(t, True, i, <float *>t.y, <float *>t.x)
        else:
            average_plane(t, True, i, <double *>t.y, <double *>t.x)


# Global


cdef inline real plane_max(const real *x, int64_t n) noexcept nogil:
    """The maximum of x [n]."""
    cdef real best = x[0]
    cdef int64_t i
    for i in range(1, n):
        best = x[i] if x[i] > best or x[i] != x[i] else best
    return best


cdef void global_average_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per, min((item + 1) * t.per, t.planes)):
        if t.single:
            (<float *>t.y)[i] = total(<const float *>t.x + i * t.inner, t.inner) / <float>t.inner
        else:
            (<double *>t.y)[i] = total(<const double *>t.x + i * t.inner, t.inner) / <double>t.inner


cdef void global_max_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per, min((item + 1) * t.per, t.planes)):
        if t.single:
            (<float *>t.y)[i] = plane_max(<const float *>t.x + i * t.inner, t.inner)
        else:
            (<double *>t.y)[i] = plane_max(<const double *>t.x + i * t.inner, t.inner)


# Entries


cdef void prepare(Context *t, const KernelArgs *a, bint windowed) noexcept nogil:
    cdef const Geometry *v = <const Geometry *>a.ints
    cdef int64_t work
    memset(t, 0, sizeof(Context))
    t.v = v
    t.single = a.inputs[0].dtype == DTYPE_FLOAT32
    t.x = a.inputs[0].data
    t.y = a.outputs[0].data
    t.planes = v.planes
    if windowed:
        t.inner = v.id * v.ih * v.iw
        t.outer = v.od * v.oh * v.ow
        work = t.inner + t.outer * v.kd * v.kh * v.kw
    else:
        t.inner = a.ints[1]
        work = t.inner
    t.per = max(<int64_t>1, 32768 // max(<int64_t>1, work))


cdef int max_pool(const KernelArgs *a) noexcept nogil:
    """y [planes, outer] and perhaps indices [planes, outer] of x [planes, inner]"""
    cdef Context t
    prepare(&t, a, True)
    t.indices = <int64_t *>a.outputs[1].data if a.n_outputs > 1 else NULL
    if t.planes > 0:
        a.engine.parallel_for(a.engine, max_item, &t, divide_up(t.planes, t.per))
    return STATUS_OK


cdef int max_pool_grad(const KernelArgs *a) noexcept nogil:
    """dx [planes, inner] of dy [planes, outer] and indices [planes, outer]"""
    cdef Context t
    prepare(&t, a, False)
    t.outer = a.ints[2]
    t.from_indices = <const int64_t *>a.inputs[1].data
    if t.planes > 0:
        a.engine.parallel_for(a.engine, scatter_item, &t, divide_up(t.planes, t.per))
    return STATUS_OK


cdef int average_pool(const KernelArgs *a) noexcept nogil:
    """y [planes, outer] of x [planes, inner]"""
    cdef Context t
    prepare(&t, a, True)
    if t.planes > 0:
        a.engine.parallel_for(a.engine, average_item, &t, divide_up(t.planes, t.per))
    return STATUS_OK


cdef int average_pool_grad(const KernelArgs *a) noexcept nogil:
    """dx [planes, inner] of dy [planes, outer]"""
    cdef Context t
    prepare(&t, a, True)
    if t.planes > 0:
        a.engine.parallel_for(a.engine, spread_item, &t, divide_up(t.planes, t.per))
    return STATUS_OK


cdef int global_average_pool(const KernelArgs *a) noexcept nogil:
    """y [planes] = mean of x [planes, inner]"""
    cdef Context t
    prepare(&t, a, False)
    if t.planes > 0:
        a.engine.parallel_for(a.engine, global_average_item, &t, divide_up(t.planes, t.per))
    return STATUS_OK


cdef int global_max_pool(const KernelArgs *a) noexcept nogil:
    """y [planes] = maximum of x [planes, inner]"""
    cdef Context t
    prepare(&t, a, False)
    if t.planes > 0 and t.inner > 0:
        a.engine.parallel_for(a.engine, global_max_item, &t, divide_up(t.planes, t.per))
    return STATUS_OK


# name -> (address, dtypes of input 0 it is for)
KERNELS = {
    "max_pool": (<size_t>&max_pool, ("float32", "float64")),
    "max_pool_grad": (<size_t>&max_pool_grad, ("float32", "float64")),
    "average_pool": (<size_t>&average_pool, ("float32", "float64")),
    "average_pool_grad": (<size_t>&average_pool_grad, ("float32", "float64")),
    "global_average_pool": (<size_t>&global_average_pool, ("float32", "float64")),
    "global_max_pool": (<size_t>&global_max_pool, ("float32", "float64")),
}
