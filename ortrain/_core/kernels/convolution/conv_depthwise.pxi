"""Depthwise convolution, included by convolution/conv.pyx: each filter sees one channel; `m` filters per channel."""


cdef inline void axpy_from(const real *x, int64_t stride, real w, real *y, int64_t n) noexcept nogil:
    """y [n] += w * x [0], x [stride], …"""
    cdef int64_t i
    if stride == 1:
        for i in range(n):
            y[i] += w * x[i]
    elif stride == 2:
        for i in range(n):
            y[i] += w * x[2 * i]
    else:
        for i in range(n):
            y[i] += w * x[i * stride]


cdef inline void axpy_onto(const real *y, real w, real *x, int64_t stride, int64_t n) noexcept nogil:
    """x [0], x [stride], … += w * y [n]"""
    cdef int64_t i
    if stride == 1:
        for i in range(n):
            x[i] += w * y[i]
    else:
        for i in range(n):
            x[i * stride] += w * y[i]


cdef inline void multiply_add(const real *x, int64_t stride, const real *y, real *out, int64_t n) noexcept nogil:
    """out [n] += y [n] * (x [0], x [stride], …)"""
    cdef int64_t i
    if stride == 1:
        for i in range(n):
            out[i] += y[i] * x[i]
    elif stride == 2:
        for i in range(n):
            out[i] += y[i] * x[2 * i]
    else:
        for i in range(n):
            out[i] += y[i] * x[i * stride]


cdef inline void depthwise_row(const Geometry *v, int mode, real *x, const real *w, real *y, real *sums, int64_t width, int64_t d,
                               int64_t h) noexcept nogil:
    """One output row (d, h) of one filter, at every tap.

    mode 0: y += w * x; mode 1: x += w * y; mode 2: sums [taps, width] += x * y elementwise"""
    cdef int64_t i, j, l, zd, zh, zw, lo, hi, tap
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
                lo = first_inside(zw, v.sw)
                hi = min(v.ow, after_inside(zw, v.sw, v.iw))
                if lo >= hi:
                    continue
                tap = (i * v.kh + j) * v.kw + l
                row = x + (zd * v.ih + zh) * v.iw + lo * v.sw + zw
                if mode == 0:
                    axpy_from(<const real *>row, v.sw, w[tap], y + lo, hi - lo)
                elif mode == 1:
                    axpy_onto(<const real *>y + lo, w[tap], row, v.sw, hi - lo)
                else:
                    multiply_add(<const real *>row, v.sw, <const real *>y + lo, sums + tap * width + lo, hi - lo)


cdef inline void depthwise_forward(const Context *t, int64_t plane, const real *x, const real *w, const real *b, real *y) noexcept nogil:
    """The m output planes of one input plane."""
    cdef const Geometry *v = t.v
    cdef int64_t n = plane // v.c, c = plane % v.c, k, d, h, p
    cdef real *out
    cdef real value
    for k in range(c * t.m, (c + 1) * t.m):
        value = b[k] if b != NULL else <real>0
        for d in range(v.od):
            for h in range(v.oh):
                out = y + (n * v.k + k) * t.outer + (d * v.oh + h) * v.ow
                for p in range(v.ow):
                    out[p] = value
                depthwise_row(v, 0, <real *>x + plane * t.inner, w + k * t.taps, out, <real *>NULL, 0, d, h)


cdef inline void depthwise_data(const Context *t, int64_t plane, const real *dy, const real *w, real *dx) noexcept nogil:
    """The gradient of one input plane."""
    cdef const Geometry *v = t.v
    cdef int64_t n = plane // v.c, c = plane % v.c, k, d, h
    memset(dx + plane * t.inner, 0, t.inner * sizeof(real))
    for k in range(c * t.m, (c + 1) * t.m):
        for d in range(v.od):
            for h in range(v.oh):
                depthwise_row(v, 1, dx + plane * t.inner, w + k * t.taps,
                              <real *>dy + (n * v.k + k) * t.outer + (d * v.oh + h) * v.ow, <real *>NULL, 0, d, h)


cdef inline void depthwise_weight(const Context *t, int64_t c, const real *dy, const real *x, real *dw, real *sums) noexcept nogil:
    """The gradients of the m filters of channel c; sums [taps, width] holds one partial sum per output column."""
    cdef const Geometry *v = t.v
    cdef int64_t n, k, d, h, tap, width = divide_up(v.ow, 16) * 16
    for k in range(c * t.m, (c + 1) * t.m):
        memset(sums, 0, t.taps * width * sizeof(real))
        for n in range(v.n):
            for d in range(v.od):
                for h in range(v.oh):
                    depthwise_row(v, 2, <real *>x + (n * v.c + c) * t.inner, <const real *>NULL,
                                  <real *>dy + (n * v.k + k) * t.outer + (d * v.oh + h) * v.ow, sums, width, d, h)
        for tap in range(t.taps):
            dw[k * t.taps + tap] = total(<const real *>sums + tap * width, width)


cdef void depthwise_forward_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per, min((item + 1) * t.per, t.items)):
        if t.single:
            depthwise_forward(t, i, <const float *>t.x, <const float *>t.w, <const float *>t.b, <float *>t.y)
        else:
            depthwise_forward(t, i, <const double *>t.x, <const double *>t.w, <const double *>t.b, <double *>t.y)


cdef void depthwise_data_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per, min((item + 1) * t.per, t.items)):
        if t.single:
            depthwise_data(t, i, <const float *>t.dy, <const float *>t.w, <float *>t.dx)
        else:
            depthwise_data(t, i, <const double *>t.dy, <const double *>t.w, <double *>t.dx)


cdef void depthwise_weight_lane(void *context, int64_t lane, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t c, size = t.taps * divide_up(t.v.ow, 16) * 16
    for c in range(lane * t.v.c // t.phase.lanes, (lane + 1) * t.v.c // t.phase.lanes):
        if t.single:
            depthwise_weight(t, c, <const float *>t.dy, <const float *>t.x, <float *>t.dw, <float *>t.scratch + lane * size)
        else:
            depthwise_weight(t, c, <const double *>t.dy, <const double *>t.x, <double *>t.dw, <double *>t.scratch + lane * size)


cdef int conv_depthwise(const KernelArgs *a) noexcept nogil:
    """y [n, c * m, outer] of x [n, c, inner], w [c * m, 1, taps] and perhaps b [c * m]"""
    cdef Context t
    prepare(&t, a)
    t.x = a.inputs[0].data
    t.w = a.inputs[1].data
    t.b = a.inputs[2].data if a.n_inputs > 2 else NULL
    t.y = a.outputs[0].data
    t.items = t.v.n * t.v.c
    t.per = max(1, 32768 // max(1, t.outer * t.m * t.taps))
    if t.items > 0:
        a.engine.parallel_for(a.engine, depthwise_forward_item, &t, divide_up(t.items, t.per))
    return STATUS_OK


cdef int conv_grad_depthwise(const KernelArgs *a) noexcept nogil:
    """dx [n, c, inner], dw [c * m, 1, taps], db [c * m], each if wanted, of dy [n, c * m, outer], x and w"""
    cdef Context t
    gradient_arguments(&t, a)
    t.items = t.v.n * t.v.c
    t.per = max(1, 32768 // max(1, t.outer * t.m * t.taps))
    if t.dx != NULL and t.items > 0:
        a.engine.parallel_for(a.engine, depthwise_data_item, &t, divide_up(t.items, t.per))
    if t.dw != NULL:
        t.phase.lanes = a.ints[sizeof(Geometry) // sizeof(int64_t)]
        a.engine.parallel_for(a.engine, depthwise_weight_lane, &t, t.phase.lanes)
    if t.db != NULL:
        bias_gradient(&t)
    return STATUS_OK
