"""Depthwise convolution without im2col, included by convolution/conv.pyx: a group has one channel and group_filters filters."""


cdef inline void axpy_strided_input(const real *x, int64_t stride, real w, real *y, int64_t n) noexcept nogil:
    """y [n] += w * (x[0], x[stride], ...)"""
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


cdef inline void axpy_strided_output(const real *y, real w, real *x, int64_t stride, int64_t n) noexcept nogil:
    """x[0], x[stride], ... += w * y [n]"""
    cdef int64_t i
    if stride == 1:
        for i in range(n):
            x[i] += w * y[i]
    else:
        for i in range(n):
            x[i * stride] += w * y[i]


cdef inline void multiply_add(const real *x, int64_t stride, const real *y, real *out, int64_t n) noexcept nogil:
    """out [n] += y [n] * (x[0], x[stride], ...)"""
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
    """One row (d, h) of outputs of one filter, at every tap.

    mode 0: y += w * x; mode 1: x += w * y; mode 2: sums [taps, width] += x * y elementwise."""
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
                lo = first_valid_output(zw, v.sw)
                hi = min(v.ow, end_valid_output(zw, v.sw, v.iw))
                if lo >= hi:
                    continue
                tap = (i * v.kh + j) * v.kw + l
                row = x + (zd * v.ih + zh) * v.iw + lo * v.sw + zw
                if mode == 0:
                    axpy_strided_input(<const real *>row, v.sw, w[tap], y + lo, hi - lo)
                elif mode == 1:
                    axpy_strided_output(<const real *>y + lo, w[tap], row, v.sw, hi - lo)
                else:
                    multiply_add(<const real *>row, v.sw, <const real *>y + lo, sums + tap * width + lo, hi - lo)


cdef inline void depthwise_forward(const Context *t, int64_t plane, const real *x, const real *w, const real *b, real *y) noexcept nogil:
    """Compute the output planes of all filters of one input plane."""
    cdef const Geometry *v = t.v
    cdef int64_t n = plane // v.c, c = plane % v.c, k, d, h, p
    cdef real *out
    cdef real value
    for k in range(c * t.group_filters, (c + 1) * t.group_filters):
        value = b[k] if b != NULL else <real>0
        for d in range(v.od):
            for h in range(v.oh):
                out = y + (n * v.k + k) * t.output_size + (d * v.oh + h) * v.ow
                for p in range(v.ow):
                    out[p] = value
                depthwise_row(v, 0, <real *>x + plane * t.input_size, w + k * t.taps, out, <real *>NULL, 0, d, h)


cdef inline void depthwise_data(const Context *t, int64_t plane, const real *dy, const real *w, real *dx) noexcept nogil:
    """Compute the gradient of one input plane."""
    cdef const Geometry *v = t.v
    cdef int64_t n = plane // v.c, c = plane % v.c, k, d, h
    memset(dx + plane * t.input_size, 0, t.input_size * sizeof(real))
    for k in range(c * t.group_filters, (c + 1) * t.group_filters):
        for d in range(v.od):
            for h in range(v.oh):
                depthwise_row(v, 1, dx + plane * t.input_size, w + k * t.taps,
                              <real *>dy + (n * v.k + k) * t.output_size + (d * v.oh + h) * v.ow, <real *>NULL, 0, d, h)


cdef inline void depthwise_weight(const Context *t, int64_t c, const real *dy, const real *x, real *dw, real *sums) noexcept nogil:
    """Compute the gradients of all filters of channel c. sums [taps, width]: scratch, one partial sum per output column."""
    cdef const Geometry *v = t.v
    cdef int64_t n, k, d, h, tap, width = ceil_div(v.ow, 16) * 16
    for k in range(c * t.group_filters, (c + 1) * t.group_filters):
        memset(sums, 0, t.taps * width * sizeof(real))
        for n in range(v.n):
            for d in range(v.od):
                for h in range(v.oh):
                    depthwise_row(v, 2, <real *>x + (n * v.c + c) * t.input_size, <const real *>NULL,
                                  <real *>dy + (n * v.k + k) * t.output_size + (d * v.oh + h) * v.ow, sums, width, d, h)
        for tap in range(t.taps):
            dw[k * t.taps + tap] = lane_sum(<const real *>sums + tap * width, width)


cdef void depthwise_forward_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per_item, min((item + 1) * t.per_item, t.items)):
        if t.is_float32:
            depthwise_forward(t, i, <const float *>t.x, <const float *>t.w, <const float *>t.b, <float *>t.y)
        else:
            depthwise_forward(t, i, <const double *>t.x, <const double *>t.w, <const double *>t.b, <double *>t.y)


cdef void depthwise_data_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t i
    for i in range(item * t.per_item, min((item + 1) * t.per_item, t.items)):
        if t.is_float32:
            depthwise_data(t, i, <const float *>t.dy, <const float *>t.w, <float *>t.dx)
        else:
            depthwise_data(t, i, <const double *>t.dy, <const double *>t.w, <double *>t.dx)


cdef void depthwise_weight_lane(void *context, int64_t lane, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t c, size = t.taps * ceil_div(t.v.ow, 16) * 16
    for c in range(lane * t.v.c // t.blocking.lanes, (lane + 1) * t.v.c // t.blocking.lanes):
        if t.is_float32:
            depthwise_weight(t, c, <const float *>t.dy, <const float *>t.x, <float *>t.dw, <float *>t.scratch + lane * size)
        else:
            depthwise_weight(t, c, <const double *>t.dy, <const double *>t.x, <double *>t.dw, <double *>t.scratch + lane * size)


cdef int conv_depthwise(const KernelArgs *a) noexcept nogil:
    """(x [n, c, input], w [k, 1, taps], b [k] or absent) -> y [n, k, output], where k = c * group_filters."""
    cdef Context t
    init_context(&t, a)
    t.x = a.inputs[0].data
    t.w = a.inputs[1].data
    t.b = a.inputs[2].data if a.n_inputs > 2 else NULL
    t.y = a.outputs[0].data
    t.items = t.v.n * t.v.c
    t.per_item = max(1, 32768 // max(1, t.output_size * t.group_filters * t.taps))
    if t.items > 0:
        a.engine.parallel_for(a.engine, depthwise_forward_item, &t, ceil_div(t.items, t.per_item))
    return STATUS_OK


cdef int conv_grad_depthwise(const KernelArgs *a) noexcept nogil:
    """(dy [n, k, output], x, w) -> (dx [n, c, input], dw [k, 1, taps], db [k]), all optional."""
    cdef Context t
    init_gradient_context(&t, a)
    t.items = t.v.n * t.v.c
    t.per_item = max(1, 32768 // max(1, t.output_size * t.group_filters * t.taps))
    if t.dx != NULL and t.items > 0:
        a.engine.parallel_for(a.engine, depthwise_data_item, &t, ceil_div(t.items, t.per_item))
    if t.dw != NULL:
        t.blocking.lanes = a.ints[sizeof(Geometry) // sizeof(int64_t)]
        a.engine.parallel_for(a.engine, depthwise_weight_lane, &t, t.blocking.lanes)
    if t.db != NULL:
        bias_gradient(&t)
    return STATUS_OK
