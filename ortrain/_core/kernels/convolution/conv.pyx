"""Convolution of data [n, c, d, h, w] by im2col (unfold) and GEMM; depthwise convolution without im2col (conv_depthwise.pxi).

All convolutions are three-dimensional here; missing dimensions have size 1. `input` and `output` sizes are those of one plane (one channel of one image).
The record in ops/conv.py chooses the blocking by the shape alone, and sums have a fixed order, so results have the same bits for any number of threads.
Each of blocking.lanes work items has scratch of its own and computes a consecutive range of the blocks."""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset
from ortrain._core.kernel cimport DTYPE_FLOAT32, Engine, KernelArgs, STATUS_OK, real


cdef struct Geometry:
    int64_t n, c, k, group
    int64_t id, ih, iw, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw
    int64_t pointwise


cdef struct Blocking:
    int64_t tile, batch, block, slices, lanes, buffer


cdef struct Context:
    const Engine *engine
    const Geometry *v
    Blocking blocking
    bint is_float32
    const void *x
    const void *w
    const void *b
    const void *dy
    void *y
    void *dx
    void *dw
    void *db
    void *scratch
    void *partial                 # destination of weight gradients: dw itself, or one copy per slice
    int64_t input_size                 # elements of an input plane
    int64_t output_size                 # elements of an output plane
    int64_t taps
    int64_t group_channels                    # input channels of a group
    int64_t group_filters         # filters of a group
    int64_t blocks
    int64_t items
    int64_t per_item


include "common/planes.pxi"


cdef void init_context(Context *t, const KernelArgs *a) noexcept nogil:
    """Set *t to the geometry, and what follows from it, of a."""
    cdef const Geometry *v = <const Geometry *>a.ints
    memset(t, 0, sizeof(Context))
    t.engine = a.engine
    t.v = v
    t.is_float32 = a.inputs[0].dtype == DTYPE_FLOAT32
    t.scratch = a.scratch
    t.input_size = v.id * v.ih * v.iw
    t.output_size = v.od * v.oh * v.ow
    t.taps = v.kd * v.kh * v.kw
    t.group_channels = v.c // v.group
    t.group_filters = v.k // v.group


cdef inline void serial_gemm(const Context *t, int64_t worker, bint ta, bint tb, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda,
                             const real *b, int64_t ldb, real beta, real *c, int64_t ldc) noexcept nogil:
    if m <= 0 or n <= 0:
        return
    if real is float:
        t.engine.gemm_float32_serial(t.engine, worker, ta, tb, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc, NULL, 0)
    else:
        t.engine.gemm_float64_serial(t.engine, worker, ta, tb, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc, NULL, 0)


# ---- unfold (im2col) and fold (col2im)


cdef inline void copy_strided(const real *x, real *y, int64_t n, int64_t stride) noexcept nogil:
    """y [n] = x[0], x[stride], ..."""
    cdef int64_t i
    if stride == 1:
        memcpy(y, x, n * sizeof(real))
    elif stride == 2:
        for i in range(n):
            y[i] = x[2 * i]
    else:
        for i in range(n):
            y[i] = x[i * stride]


cdef inline void add_strided(const real *y, real *x, int64_t n, int64_t stride) noexcept nogil:
    """x[0], x[stride], ... += y [n]"""
    cdef int64_t i
    if stride == 1:
        for i in range(n):
            x[i] += y[i]
    else:
        for i in range(n):
            x[i * stride] += y[i]


cdef inline void unfold_tap(const Geometry *v, const real *x, int64_t zd, int64_t zh, int64_t zw, int64_t p0, int64_t p1,
                            real *out) noexcept nogil:
    """out [p1 - p0] = plane x at one tap for the outputs [p0, p1), 0 outside the plane. zd, zh, zw: tap * dilation - pad."""
    cdef int64_t lo = first_valid_output(zw, v.sw), hi = min(v.ow, end_valid_output(zw, v.sw, v.iw))
    cdef int64_t p = p0, row = p0 // v.ow, a = p0 - row * v.ow, b, d = row // v.oh, h = row - d * v.oh, i, j, s, e
    while p < p1:
        b = v.ow if v.ow - a < p1 - p else a + p1 - p
        i = d * v.sd + zd
        j = h * v.sh + zh
        s = a if a > lo else lo
        e = b if b < hi else hi
        if i < 0 or i >= v.id or j < 0 or j >= v.ih or s >= e:
            memset(out, 0, (b - a) * sizeof(real))
        else:
            if s > a:
                memset(out, 0, (s - a) * sizeof(real))
            copy_strided(x + (i * v.ih + j) * v.iw + s * v.sw + zw, out + s - a, e - s, v.sw)
            if b > e:
                memset(out + e - a, 0, (b - e) * sizeof(real))
        out += b - a
        p += b - a
        a = 0
        h += 1
        if h == v.oh:
            h = 0
            d += 1


cdef inline void fold_tap(const Geometry *v, const real *y, int64_t zd, int64_t zh, int64_t zw, int64_t p0, int64_t p1,
                          real *x) noexcept nogil:
    """Add y [p1 - p0] to plane x, the adjoint of unfold_tap."""
    cdef int64_t lo = first_valid_output(zw, v.sw), hi = min(v.ow, end_valid_output(zw, v.sw, v.iw))
    cdef int64_t p = p0, row = p0 // v.ow, a = p0 - row * v.ow, b, d = row // v.oh, h = row - d * v.oh, i, j, s, e
    while p < p1:
        b = v.ow if v.ow - a < p1 - p else a + p1 - p
        i = d * v.sd + zd
        j = h * v.sh + zh
        s = a if a > lo else lo
        e = b if b < hi else hi
        if i >= 0 and i < v.id and j >= 0 and j < v.ih and s < e:
            add_strided(y + s - a, x + (i * v.ih + j) * v.iw + s * v.sw + zw, e - s, v.sw)
        y += b - a
        p += b - a
        a = 0
        h += 1
        if h == v.oh:
            h = 0
            d += 1


cdef inline void unfold(const Context *t, const real *x, int64_t channels, int64_t p0, int64_t p1, real *out, int64_t ld) noexcept nogil:
    """out [channels * taps, p1 - p0] (leading dimension ld) = the windows of planes x [channels, input] for the outputs [p0, p1)."""
    cdef const Geometry *v = t.v
    cdef int64_t c, i, j, l
    for c in range(channels):
        for i in range(v.kd):
            for j in range(v.kh):
                for l in range(v.kw):
                    unfold_tap(v, x + c * t.input_size, i * v.dd - v.pd, j * v.dh - v.ph, l * v.dw - v.pw, p0, p1, out)
                    out += ld


cdef inline void fold(const Context *t, const real *y, int64_t ld, int64_t channels, int64_t p0, int64_t p1, real *x) noexcept nogil:
    """x [channels, input] += y [channels * taps, p1 - p0] (leading dimension ld) at the windows, the adjoint of unfold."""
    cdef const Geometry *v = t.v
    cdef int64_t c, i, j, l
    for c in range(channels):
        for i in range(v.kd):
            for j in range(v.kh):
                for l in range(v.kw):
                    fold_tap(v, y, i * v.dd - v.pd, j * v.dh - v.ph, l * v.dw - v.pw, p0, p1, x + c * t.input_size)
                    y += ld


cdef inline void pack_batch(const Context *t, const real *dy, int64_t g, int64_t n0, int64_t n1, real *out) noexcept nogil:
    """out [group filters, (n1 - n0) * output] = dy [n, k, output] of group g for the images [n0, n1)."""
    cdef int64_t n, k, columns = (n1 - n0) * t.output_size
    for k in range(t.group_filters):
        for n in range(n0, n1):
            memcpy(out + k * columns + (n - n0) * t.output_size, dy + (n * t.v.k + g * t.group_filters + k) * t.output_size, t.output_size * sizeof(real))


# ---- forward


cdef inline void forward_item(const Context *t, int64_t item, int64_t worker, real *buffer) noexcept nogil:
    """y = bias + w [group filters, rows] windows [rows, columns] for one tile of outputs of one group, rows = group channels * taps.

    With a batch of one image the GEMM writes y itself, else a buffer that is copied to the images afterwards."""
    cdef const Geometry *v = t.v
    cdef int64_t tiles = ceil_div(t.output_size, t.blocking.tile), rows = t.group_channels * t.taps
    cdef int64_t p0 = item % tiles * t.blocking.tile, g = item // tiles % v.group, n0 = item // (tiles * v.group) * t.blocking.batch
    cdef int64_t p1 = min(p0 + t.blocking.tile, t.output_size), n1 = min(n0 + t.blocking.batch, v.n)
    cdef int64_t columns = (n1 - n0) * (p1 - p0), ld = columns, n, k, p
    cdef const real *x = <const real *>t.x + g * t.group_channels * t.input_size
    cdef const real *w = <const real *>t.w + g * t.group_filters * rows
    cdef const real *b = <const real *>t.b
    cdef const real *windows = buffer
    cdef real *y = <real *>t.y + (n0 * v.k + g * t.group_filters) * t.output_size + p0
    cdef real *out = y
    cdef real value
    if v.pointwise and t.blocking.batch == 1:
        windows = x + n0 * v.c * t.input_size + p0
        ld = t.input_size
    else:
        for n in range(n0, n1):
            unfold(t, x + n * v.c * t.input_size, t.group_channels, p0, p1, buffer + (n - n0) * t.output_size, ld)
    if t.blocking.batch == 1:
        if b != NULL:
            for k in range(t.group_filters):
                value = b[g * t.group_filters + k]
                for p in range(columns):
                    out[k * t.output_size + p] = value
        serial_gemm(t, worker, 0, 0, t.group_filters, columns, rows, w, rows, windows, ld, <real>(b != NULL), out, t.output_size)
        return
    out = buffer + rows * columns
    serial_gemm(t, worker, 0, 0, t.group_filters, columns, rows, w, rows, windows, ld, <real>0, out, columns)
    for n in range(n1 - n0):
        for k in range(t.group_filters):
            value = b[g * t.group_filters + k] if b != NULL else <real>0
            for p in range(t.output_size):
                y[(n * v.k + k) * t.output_size + p] = out[k * columns + n * t.output_size + p] + value


cdef void forward_lane(void *context, int64_t lane, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t item
    for item in range(lane * t.items // t.blocking.lanes, (lane + 1) * t.items // t.blocking.lanes):
        if t.is_float32:
            forward_item(t, item, worker, <float *>t.scratch + lane * t.blocking.buffer)
        else:
            forward_item(t, item, worker, <double *>t.scratch + lane * t.blocking.buffer)


cdef int conv(const KernelArgs *a) noexcept nogil:
    """(x [n, c, input], w [k, c / group, taps], b [k] or absent) -> y [n, k, output]."""
    cdef Context t
    init_context(&t, a)
    t.blocking = (<const Blocking *>(a.ints + sizeof(Geometry) // sizeof(int64_t)))[0]
    t.x = a.inputs[0].data
    t.w = a.inputs[1].data
    t.b = a.inputs[2].data if a.n_inputs > 2 else NULL
    t.y = a.outputs[0].data
    t.items = ceil_div(t.v.n, t.blocking.batch) * t.v.group * ceil_div(t.output_size, t.blocking.tile)
    if t.items > 0:
        a.engine.parallel_for(a.engine, forward_lane, &t, t.blocking.lanes)
    return STATUS_OK


# ---- data gradient


cdef inline void data_item(const Context *t, int64_t item, int64_t worker, real *buffer) noexcept nogil:
    """dx = fold(w [group filters, rows]^T dy [group filters, columns]) for a block of channels of a batch of images."""
    cdef const Geometry *v = t.v
    cdef int64_t c0 = item % t.blocks * t.blocking.block, g = item // t.blocks % v.group, n0 = item // (t.blocks * v.group) * t.blocking.batch
    cdef int64_t channels = min(t.blocking.block, t.group_channels - c0), n1 = min(n0 + t.blocking.batch, v.n)
    cdef int64_t rows = channels * t.taps, p0, p1, n, columns
    cdef const real *w = <const real *>t.w + g * t.group_filters * t.group_channels * t.taps + c0 * t.taps
    cdef const real *dy = <const real *>t.dy + (n0 * v.k + g * t.group_filters) * t.output_size
    cdef real *dx = <real *>t.dx + (g * t.group_channels + c0) * t.input_size
    cdef real *packed_dy
    if t.blocking.batch == 1 and v.pointwise:
        p0 = 0
        while p0 < t.output_size:
            p1 = min(p0 + t.blocking.tile, t.output_size)
            serial_gemm(t, worker, 1, 0, rows, p1 - p0, t.group_filters, w, t.group_channels, dy + p0, t.output_size, <real>0,
                        dx + n0 * v.c * t.input_size + p0, t.input_size)
            p0 = p1
        return
    for n in range(n0, n1):
        memset(dx + n * v.c * t.input_size, 0, channels * t.input_size * sizeof(real))
    if t.blocking.batch > 1:
        columns = (n1 - n0) * t.output_size
        packed_dy = buffer + rows * columns
        pack_batch(t, <const real *>t.dy, g, n0, n1, packed_dy)
        serial_gemm(t, worker, 1, 0, rows, columns, t.group_filters, w, t.group_channels * t.taps, <const real *>packed_dy, columns, <real>0, buffer, columns)
        for n in range(n0, n1):
            fold(t, <const real *>buffer + (n - n0) * t.output_size, columns, channels, 0, t.output_size, dx + n * v.c * t.input_size)
        return
    p0 = 0
    while p0 < t.output_size:
        p1 = min(p0 + t.blocking.tile, t.output_size)
        serial_gemm(t, worker, 1, 0, rows, p1 - p0, t.group_filters, w, t.group_channels * t.taps, dy + p0, t.output_size, <real>0, buffer, p1 - p0)
        fold(t, <const real *>buffer, p1 - p0, channels, p0, p1, dx + n0 * v.c * t.input_size)
        p0 = p1


cdef void data_lane(void *context, int64_t lane, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t item
    for item in range(lane * t.items // t.blocking.lanes, (lane + 1) * t.items // t.blocking.lanes):
        if t.is_float32:
            data_item(t, item, worker, <float *>t.scratch + lane * t.blocking.buffer)
        else:
            data_item(t, item, worker, <double *>t.scratch + lane * t.blocking.buffer)


# ---- weight gradient


cdef inline void weight_item(const Context *t, int64_t item, int64_t worker, real *buffer) noexcept nogil:
    """dw [group filters, rows] = sum over tiles of dy [group filters, columns] windows [rows, columns]^T, for a block of channels and a slice of the images."""
    cdef const Geometry *v = t.v
    cdef int64_t c0 = item % t.blocks * t.blocking.block, g = item // t.blocks % v.group, s = item // (t.blocks * v.group)
    cdef int64_t channels = min(t.blocking.block, t.group_channels - c0), batches = ceil_div(v.n, t.blocking.batch)
    cdef int64_t rows = channels * t.taps, width = t.group_channels * t.taps, batch, n0, n1, p0, p1, n, k, columns, ld, ldy
    cdef const real *x = <const real *>t.x + (g * t.group_channels + c0) * t.input_size
    cdef const real *windows
    cdef const real *dy
    cdef real *packed_dy
    cdef real *dw = <real *>t.partial + (s * v.k + g * t.group_filters) * width + c0 * t.taps
    cdef real beta = 0
    for batch in range(s * batches // t.blocking.slices, (s + 1) * batches // t.blocking.slices):
        n0 = batch * t.blocking.batch
        n1 = min(n0 + t.blocking.batch, v.n)
        p0 = 0
        while p0 < t.output_size:
            p1 = min(p0 + t.blocking.tile, t.output_size)
            columns = (n1 - n0) * (p1 - p0)
            windows = buffer
            ld = columns
            if v.pointwise and t.blocking.batch == 1:
                windows = x + n0 * v.c * t.input_size + p0
                ld = t.input_size
            else:
                for n in range(n0, n1):
                    unfold(t, x + n * v.c * t.input_size, channels, p0, p1, buffer + (n - n0) * t.output_size, ld)
            dy = <const real *>t.dy + (n0 * v.k + g * t.group_filters) * t.output_size + p0
            ldy = t.output_size
            if t.blocking.batch > 1:
                packed_dy = buffer + rows * columns
                pack_batch(t, <const real *>t.dy, g, n0, n1, packed_dy)
                dy = packed_dy
                ldy = columns
            serial_gemm(t, worker, 0, 1, t.group_filters, rows, columns, dy, ldy, windows, ld, beta, dw, width)
            beta = 1
            p0 = p1
    if beta == 0:
        for k in range(t.group_filters):
            memset(dw + k * width, 0, rows * sizeof(real))


cdef void weight_lane(void *context, int64_t lane, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t item
    for item in range(lane * t.items // t.blocking.lanes, (lane + 1) * t.items // t.blocking.lanes):
        if t.is_float32:
            weight_item(t, item, worker, <float *>t.scratch + lane * t.blocking.buffer)
        else:
            weight_item(t, item, worker, <double *>t.scratch + lane * t.blocking.buffer)


cdef inline void reduce_slices(const real *partial, real *dw, int64_t count, int64_t slices) noexcept nogil:
    """dw [count] = the sum of partial [slices, count], in order."""
    cdef int64_t s, i
    memcpy(dw, partial, count * sizeof(real))
    for s in range(1, slices):
        for i in range(count):
            dw[i] += partial[s * count + i]


cdef void weight_gradient(Context *t) noexcept nogil:
    cdef int64_t count = t.v.k * t.group_channels * t.taps
    cdef int64_t size = sizeof(float) if t.is_float32 else sizeof(double)
    t.blocks = ceil_div(t.group_channels, t.blocking.block)
    t.items = t.blocking.slices * t.v.group * t.blocks
    t.partial = t.dw
    if t.blocking.slices > 1:
        t.partial = <char *>t.scratch + t.blocking.lanes * t.blocking.buffer * size
    if count == 0:
        return
    t.engine.parallel_for(t.engine, weight_lane, t, t.blocking.lanes)
    if t.blocking.slices > 1:
        if t.is_float32:
            reduce_slices(<const float *>t.partial, <float *>t.dw, count, t.blocking.slices)
        else:
            reduce_slices(<const double *>t.partial, <double *>t.dw, count, t.blocking.slices)


# ---- bias gradient


cdef inline void bias_rows(const Context *t, int64_t k0, int64_t k1, real *db) noexcept nogil:
    cdef int64_t k, n
    cdef real s
    for k in range(k0, k1):
        s = 0
        for n in range(t.v.n):
            s += lane_sum(<const real *>t.dy + (n * t.v.k + k) * t.output_size, t.output_size)
        db[k] = s


cdef void bias_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t k0 = item * t.per_item, k1 = min(k0 + t.per_item, t.v.k)
    if t.is_float32:
        bias_rows(t, k0, k1, <float *>t.db)
    else:
        bias_rows(t, k0, k1, <double *>t.db)


cdef void bias_gradient(Context *t) noexcept nogil:
    """db [k] = the sum of dy [n, k, output] over images and outputs."""
    t.per_item = max(1, 32768 // max(1, t.v.n * t.output_size))
    if t.v.k > 0:
        t.engine.parallel_for(t.engine, bias_item, t, ceil_div(t.v.k, t.per_item))


cdef void init_gradient_context(Context *t, const KernelArgs *a) noexcept nogil:
    init_context(t, a)
    t.dy = a.inputs[0].data
    t.x = a.inputs[1].data
    t.w = a.inputs[2].data
    t.dx = a.outputs[0].data
    t.dw = a.outputs[1].data if a.n_outputs > 1 else NULL
    t.db = a.outputs[2].data if a.n_outputs > 2 else NULL


cdef int conv_grad(const KernelArgs *a) noexcept nogil:
    """(dy [n, k, output], x, w) -> (dx [n, c, input], dw [k, c / group, taps], db [k]), all optional."""
    cdef Context t
    cdef const Blocking *blockings
    init_gradient_context(&t, a)
    blockings = <const Blocking *>(a.ints + sizeof(Geometry) // sizeof(int64_t))
    if t.dx != NULL and t.v.n * t.v.c > 0:
        t.blocking = blockings[0]
        t.blocks = ceil_div(t.group_channels, t.blocking.block)
        t.items = ceil_div(t.v.n, t.blocking.batch) * t.v.group * t.blocks
        t.engine.parallel_for(t.engine, data_lane, &t, t.blocking.lanes)
    if t.dw != NULL:
        t.blocking = blockings[1]
        weight_gradient(&t)
    if t.db != NULL:
        bias_gradient(&t)
    return STATUS_OK


include "convolution/conv_depthwise.pxi"


# name -> (address, dtypes of input 0)
KERNELS = {
    "conv": (<size_t>&conv, ("float32", "float64")),
    "conv_grad": (<size_t>&conv_grad, ("float32", "float64")),
    "conv_depthwise": (<size_t>&conv_depthwise, ("float32", "float64")),
    "conv_grad_depthwise": (<size_t>&conv_grad_depthwise, ("float32", "float64")),
}
