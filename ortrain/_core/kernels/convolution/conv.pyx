"""Convolution kernels: windows unfolded into a buffer (im2col) and a product; depthwise ones by direct loops (conv_depthwise.pxi).

Everything is seen as three-dimensional (missing axes have size 1). All cuts come from the record, so they depend on shapes alone, and sums
have a fixed order: results have the same bits for any number of threads."""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset
from ortrain._core.kernel cimport DTYPE_FLOAT32, Engine, KernelArgs, STATUS_OK, real


cdef struct Geometry:
    int64_t n, c, k, group
    int64_t id, ih, iw, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw
    int64_t pointwise


cdef struct Phase:
    int64_t tile, batch, block, slices, lanes, buffer


cdef struct Context:
    const Engine *engine
    const Geometry *v
    Phase phase
    bint single
    const void *x
    const void *w
    const void *b
    const void *dy
    void *y
    void *dx
    void *dw
    void *db
    void *scratch
    void *partial                 # where weight gradients go: dw itself, or one copy per slice
    int64_t inner                 # input elements of a plane
    int64_t outer                 # output elements of a plane
    int64_t taps
    int64_t cg                    # input channels of a group
    int64_t m                     # filters of a group
    int64_t blocks
    int64_t items
    int64_t per


include "common/planes.pxi"


cdef void prepare(Context *t, const KernelArgs *a) noexcept nogil:
    """Fills in what follows from the geometry."""
    cdef const Geometry *v = <const Geometry *>a.ints
    memset(t, 0, sizeof(Context))
    t.engine = a.engine
    t.v = v
    t.single = a.inputs[0].dtype == DTYPE_FLOAT32
    t.scratch = a.scratch
    t.inner = v.id * v.ih * v.iw
    t.outer = v.od * v.oh * v.ow
    t.taps = v.kd * v.kh * v.kw
    t.cg = v.c // v.group
    t.m = v.k // v.group


cdef inline void product(const Context *t, int64_t worker, bint ta, bint tb, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda,
                         const real *b, int64_t ldb, real beta, real *c, int64_t ldc) noexcept nogil:
    if m <= 0 or n <= 0:
        return
    if real is float:
        t.engine.gemm_float32_serial(t.engine, worker, ta, tb, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc, NULL, 0)
    else:
        t.engine.gemm_float64_serial(t.engine, worker, ta, tb, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc, NULL, 0)


# Unfolding and folding


cdef inline void copy_strided(const real *x, real *y, int64_t n, int64_t stride) noexcept nogil:
    """y [n] = x [0], x [stride], …"""
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
    """x [0], x [stride], … += y [n]"""
    cdef int64_t i
    if stride == 1:
        for i in range(n):
            x[i] += y[i]
    else:
        for i in range(n):
            x[i * stride] += y[i]


cdef inline void unfold_tap(const Geometry *v, const real *x, int64_t zd, int64_t zh, int64_t zw, int64_t p0, int64_t p1,
                            real *out) noexcept nogil:
    """out [p1 - p0] = plane x at one tap (zd, zh, zw: tap * dilation - pad) for the output positions p0 to p1; 0 outside."""
    cdef int64_t lo = first_inside(zw, v.sw), hi = min(v.ow, after_inside(zw, v.sw, v.iw))
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
    """The adjoint of unfold_tap: adds y [p1 - p0] to plane x."""
    cdef int64_t lo = first_inside(zw, v.sw), hi = min(v.ow, after_inside(zw, v.sw, v.iw))
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
    """out [channels * taps, p1 - p0] (rows ld apart) = the windows of planes x [channels, inner]"""
    cdef const Geometry *v = t.v
    cdef int64_t c, i, j, l
    for c in range(channels):
        for i in range(v.kd):
            for j in range(v.kh):
                for l in range(v.kw):
                    unfold_tap(v, x + c * t.inner, i * v.dd - v.pd, j * v.dh - v.ph, l * v.dw - v.pw, p0, p1, out)
                    out += ld


cdef inline void fold(const Context *t, const real *y, int64_t ld, int64_t channels, int64_t p0, int64_t p1, real *x) noexcept nogil:
    """planes x [channels, inner] += y [channels * taps, p1 - p0] (rows ld apart) at its windows"""
    cdef const Geometry *v = t.v
    cdef int64_t c, i, j, l
    for c in range(channels):
        for i in range(v.kd):
            for j in range(v.kh):
                for l in range(v.kw):
                    fold_tap(v, y, i * v.dd - v.pd, j * v.dh - v.ph, l * v.dw - v.pw, p0, p1, x + c * t.inner)
                    y += ld


cdef inline void gather_rows(const Context *t, const real *dy, int64_t g, int64_t n0, int64_t n1, real *out) noexcept nogil:
    """out [m, (n1 - n0) * outer] = dy [n, k, outer] of group g for images n0 to n1"""
    cdef int64_t n, k, columns = (n1 - n0) * t.outer
    for k in range(t.m):
        for n in range(n0, n1):
            memcpy(out + k * columns + (n - n0) * t.outer, dy + (n * t.v.k + g * t.m + k) * t.outer, t.outer * sizeof(real))


# Forward


cdef inline void forward_item(const Context *t, int64_t item, int64_t worker, real *buffer) noexcept nogil:
    """One tile of outputs of one group: y = bias + w [m, cg * taps] times windows [cg * taps, columns]"""
    cdef const Geometry *v = t.v
    cdef int64_t tiles = divide_up(t.outer, t.phase.tile), rows = t.cg * t.taps
    cdef int64_t p0 = item % tiles * t.phase.tile, g = item // tiles % v.group, n0 = item // (tiles * v.group) * t.phase.batch
    cdef int64_t p1 = min(p0 + t.phase.tile, t.outer), n1 = min(n0 + t.phase.batch, v.n)
    cdef int64_t columns = (n1 - n0) * (p1 - p0), ld = columns, n, k, p
    cdef const real *x = <const real *>t.x + g * t.cg * t.inner
    cdef const real *w = <const real *>t.w + g * t.m * rows
    cdef const real *b = <const real *>t.b
    cdef const real *windows = buffer
    cdef real *y = <real *>t.y + (n0 * v.k + g * t.m) * t.outer + p0
    cdef real *out = y
    cdef real value
    if v.pointwise and t.phase.batch == 1:
        windows = x + n0 * v.c * t.inner + p0
        ld = t.inner
    else:
        for n in range(n0, n1):
            unfold(t, x + n * v.c * t.inner, t.cg, p0, p1, buffer + (n - n0) * t.outer, ld)
    if t.phase.batch == 1:
        if b != NULL:
            for k in range(t.m):
                value = b[g * t.m + k]
                for p in range(columns):
                    out[k * t.outer + p] = value
        product(t, worker, 0, 0, t.m, columns, rows, w, rows, windows, ld, <real>(b != NULL), out, t.outer)
        return
    out = buffer + rows * columns
    product(t, worker, 0, 0, t.m, columns, rows, w, rows, windows, ld, <real>0, out, columns)
    for n in range(n1 - n0):
        for k in range(t.m):
            value = b[g * t.m + k] if b != NULL else <real>0
            for p in range(t.outer):
                y[(n * v.k + k) * t.outer + p] = out[k * columns + n * t.outer + p] + value


cdef void forward_lane(void *context, int64_t lane, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t item
    for item in range(lane * t.items // t.phase.lanes, (lane + 1) * t.items // t.phase.lanes):
        if t.single:
            forward_item(t, item, worker, <float *>t.scratch + lane * t.phase.buffer)
        else:
            forward_item(t, item, worker, <double *>t.scratch + lane * t.phase.buffer)


cdef int conv(const KernelArgs *a) noexcept nogil:
    """y [n, k, outer] of x [n, c, inner], w [k, c / group, taps] and perhaps b [k]"""
    cdef Context t
    prepare(&t, a)
    t.phase = (<const Phase *>(a.ints + sizeof(Geometry) // sizeof(int64_t)))[0]
    t.x = a.inputs[0].data
    t.w = a.inputs[1].data
    t.b = a.inputs[2].data if a.n_inputs > 2 else NULL
    t.y = a.outputs[0].data
    t.items = divide_up(t.v.n, t.phase.batch) * t.v.group * divide_up(t.outer, t.phase.tile)
    if t.items > 0:
        a.engine.parallel_for(a.engine, forward_lane, &t, t.phase.lanes)
    return STATUS_OK


# Gradient of the data


cdef inline void data_item(const Context *t, int64_t item, int64_t worker, real *buffer) noexcept nogil:
    """A block of channels of some images: dx = fold of w [m, rows] transposed times dy [m, columns]"""
    cdef const Geometry *v = t.v
    cdef int64_t c0 = item % t.blocks * t.phase.block, g = item // t.blocks % v.group, n0 = item // (t.blocks * v.group) * t.phase.batch
    cdef int64_t channels = min(t.phase.block, t.cg - c0), n1 = min(n0 + t.phase.batch, v.n)
    cdef int64_t rows = channels * t.taps, p0, p1, n, columns
    cdef const real *w = <const real *>t.w + g * t.m * t.cg * t.taps + c0 * t.taps
    cdef const real *dy = <const real *>t.dy + (n0 * v.k + g * t.m) * t.outer
    cdef real *dx = <real *>t.dx + (g * t.cg + c0) * t.inner
    cdef real *gathered
    if t.phase.batch == 1 and v.pointwise:
        p0 = 0
        while p0 < t.outer:
            p1 = min(p0 + t.phase.tile, t.outer)
            product(t, worker, 1, 0, rows, p1 - p0, t.m, w, t.cg, dy + p0, t.outer, <real>0, dx + n0 * v.c * t.inner + p0, t.inner)
            p0 = p1
        return
    for n in range(n0, n1):
        memset(dx + n * v.c * t.inner, 0, channels * t.inner * sizeof(real))
    if t.phase.batch > 1:
        columns = (n1 - n0) * t.outer
        gathered = buffer + rows * columns
        gather_rows(t, <const real *>t.dy, g, n0, n1, gathered)
        product(t, worker, 1, 0, rows, columns, t.m, w, t.cg * t.taps, <const real *>gathered, columns, <real>0, buffer, columns)
        for n in range(n0, n1):
            fold(t, <const real *>buffer + (n - n0) * t.outer, columns, channels, 0, t.outer, dx + n * v.c * t.inner)
        return
    p0 = 0
    while p0 < t.outer:
        p1 = min(p0 + t.phase.tile, t.outer)
        product(t, worker, 1, 0, rows, p1 - p0, t.m, w, t.cg * t.taps, dy + p0, t.outer, <real>0, buffer, p1 - p0)
        fold(t, <const real *>buffer, p1 - p0, channels, p0, p1, dx + n0 * v.c * t.inner)
        p0 = p1


cdef void data_lane(void *context, int64_t lane, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t item
    for item in range(lane * t.items // t.phase.lanes, (lane + 1) * t.items // t.phase.lanes):
        if t.single:
            data_item(t, item, worker, <float *>t.scratch + lane * t.phase.buffer)
        else:
            data_item(t, item, worker, <double *>t.scratch + lane * t.phase.buffer)


# Gradient of the weight


cdef inline void weight_item(const Context *t, int64_t item, int64_t worker, real *buffer) noexcept nogil:
    """A block of channels over a slice of images: dw [m, rows] = sum over tiles of dy [m, columns] windows [rows, columns]^T"""
    cdef const Geometry *v = t.v
    cdef int64_t c0 = item % t.blocks * t.phase.block, g = item // t.blocks % v.group, s = item // (t.blocks * v.group)
    cdef int64_t channels = min(t.phase.block, t.cg - c0), batches = divide_up(v.n, t.phase.batch)
    cdef int64_t rows = channels * t.taps, width = t.cg * t.taps, batch, n0, n1, p0, p1, n, k, columns, ld, ldy
    cdef const real *x = <const real *>t.x + (g * t.cg + c0) * t.inner
    cdef const real *windows
    cdef const real *dy
    cdef real *gathered
    cdef real *dw = <real *>t.partial + (s * v.k + g * t.m) * width + c0 * t.taps
    cdef real beta = 0
    for batch in range(s * batches // t.phase.slices, (s + 1) * batches // t.phase.slices):
        n0 = batch * t.phase.batch
        n1 = min(n0 + t.phase.batch, v.n)
        p0 = 0
        while p0 < t.outer:
            p1 = min(p0 + t.phase.tile, t.outer)
            columns = (n1 - n0) * (p1 - p0)
            windows = buffer
            ld = columns
            if v.pointwise and t.phase.batch == 1:
                windows = x + n0 * v.c * t.inner + p0
                ld = t.inner
            else:
                for n in range(n0, n1):
                    unfold(t, x + n * v.c * t.inner, channels, p0, p1, buffer + (n - n0) * t.outer, ld)
            dy = <const real *>t.dy + (n0 * v.k + g * t.m) * t.outer + p0
            ldy = t.outer
            if t.phase.batch > 1:
                gathered = buffer + rows * columns
                gather_rows(t, <const real *>t.dy, g, n0, n1, gathered)
                dy = gathered
                ldy = columns
            product(t, worker, 0, 1, t.m, rows, columns, dy, ldy, windows, ld, beta, dw, width)
            beta = 1
            p0 = p1
    if beta == 0:
        for k in range(t.m):
            memset(dw + k * width, 0, rows * sizeof(real))


cdef void weight_lane(void *context, int64_t lane, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t item
    for item in range(lane * t.items // t.phase.lanes, (lane + 1) * t.items // t.phase.lanes):
        if t.single:
            weight_item(t, item, worker, <float *>t.scratch + lane * t.phase.buffer)
        else:
            weight_item(t, item, worker, <double *>t.scratch + lane * t.phase.buffer)


cdef inline void add_slices(const real *partial, real *dw, int64_t count, int64_t slices) noexcept nogil:
    """dw [count] = the sum of partial [slices, count], in order"""
    cdef int64_t s, i
    memcpy(dw, partial, count * sizeof(real))
    for s in range(1, slices):
        for i in range(count):
            dw[i] += partial[s * count + i]


cdef void weight_gradient(Context *t) noexcept nogil:
    cdef int64_t count = t.v.k * t.cg * t.taps
    cdef int64_t size = sizeof(float) if t.single else sizeof(double)
    t.blocks = divide_up(t.cg, t.phase.block)
    t.items = t.phase.slices * t.v.group * t.blocks
    t.partial = t.dw
    if t.phase.slices > 1:
        t.partial = <char *>t.scratch + t.phase.lanes * t.phase.buffer * size
    if count == 0:
        return
    t.engine.parallel_for(t.engine, weight_lane, t, t.phase.lanes)
    if t.phase.slices > 1:
        if t.single:
            add_slices(<const float *>t.partial, <float *>t.dw, count, t.phase.slices)
        else:
            add_slices(<const double *>t.partial, <double *>t.dw, count, t.phase.slices)


# Gradient of the bias


cdef inline void bias_rows(const Context *t, int64_t k0, int64_t k1, real *db) noexcept nogil:
    cdef int64_t k, n
    cdef real s
    for k in range(k0, k1):
        s = 0
        for n in range(t.v.n):
            s += total(<const real *>t.dy + (n * t.v.k + k) * t.outer, t.outer)
        db[k] = s


cdef void bias_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    cdef const Context *t = <const Context *>context
    cdef int64_t k0 = item * t.per, k1 = min(k0 + t.per, t.v.k)
    if t.single:
        bias_rows(t, k0, k1, <float *>t.db)
    else:
        bias_rows(t, k0, k1, <double *>t.db)


cdef void bias_gradient(Context *t) noexcept nogil:
    """db [k] = the sum of dy [n, k, outer]"""
    t.per = max(1, 32768 // max(1, t.v.n * t.outer))
    if t.v.k > 0:
        t.engine.parallel_for(t.engine, bias_item, t, divide_up(t.v.k, t.per))


cdef void gradient_arguments(Context *t, const KernelArgs *a) noexcept nogil:
    prepare(t, a)
    t.dy = a.inputs[0].data
    t.x = a.inputs[1].data
    t.w = a.inputs[2].data
    t.dx = a.outputs[0].data
    t.dw = a.outputs[1].data if a.n_outputs > 1 else NULL
    t.db = a.outputs[2].data if a.n_outputs > 2 else NULL


cdef int conv_grad(const KernelArgs *a) noexcept nogil:
    """dx [n, c, inner], dw [k, c / group, taps], db [k], each if wanted, of dy [n, k, outer], x and w"""
    cdef Context t
    cdef const Phase *phases
    gradient_arguments(&t, a)
    phases = <const Phase *>(a.ints + sizeof(Geometry) // sizeof(int64_t))
    if t.dx != NULL and t.v.n * t.v.c > 0:
        t.phase = phases[0]
        t.blocks = divide_up(t.cg, t.phase.block)
        t.items = divide_up(t.v.n, t.phase.batch) * t.v.group * t.blocks
        t.engine.parallel_for(t.engine, data_lane, &t, t.phase.lanes)
    if t.dw != NULL:
        t.phase = phases[1]
        weight_gradient(&t)
    if t.db != NULL:
        bias_gradient(&t)
    return STATUS_OK


include "convolution/conv_depthwise.pxi"


# name -> (address, dtypes of input 0 it is for)
KERNELS = {
    "conv": (<size_t>&conv, ("float32", "float64")),
    "conv_grad": (<size_t>&conv_grad, ("float32", "float64")),
    "conv_depthwise": (<size_t>&conv_depthwise, ("float32", "float64")),
    "conv_grad_depthwise": (<size_t>&conv_grad_depthwise, ("float32", "float64")),
}
