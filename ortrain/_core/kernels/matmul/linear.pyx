"""Matrix products: matmul (batched, also FusedMatMul) and gemm."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport DTYPE_FLOAT32, KernelArgs, STATUS_OK, real

# below this many multiplications a batch of products is split over the batch, above it within each product
cdef enum:
    SMALL_PRODUCT = 1 << 21


cdef inline void batch_offsets(const int64_t *ints, int64_t item, int64_t *a, int64_t *b) noexcept nogil:
    cdef int64_t rank = ints[6], d, position
    a[0] = b[0] = 0
    for d in range(rank - 1, -1, -1):
        position = item % ints[7 + d]
        item = item // ints[7 + d]
        a[0] += position * ints[7 + rank + d]
        b[0] += position * ints[7 + 2 * rank + d]


cdef inline void one_product(const KernelArgs *args, int64_t item, int64_t worker, bint serial) noexcept nogil:
    """y[item] [m, n] = alpha op(a) op(b)"""
    cdef const int64_t *s = args.ints
    cdef int64_t m = s[0], n = s[1], k = s[2], a, b, lda, ldb
    cdef int ta = s[3], tb = s[4]
    batch_offsets(s, item, &a, &b)
    lda = m if ta else k
    ldb = k if tb else n
    if args.inputs[0].dtype == DTYPE_FLOAT32:
        if serial:
            args.engine.gemm_float32_serial(args.engine, worker, ta, tb, m, n, k, <float>args.floats[0], <float *>args.inputs[0].data + a, lda,
                                            <float *>args.inputs[1].data + b, ldb, 0, <float *>args.outputs[0].data + item * m * n, n, NULL, 0)
        else:
            args.engine.gemm_float32(args.engine, ta, tb, m, n, k, <float>args.floats[0], <float *>args.inputs[0].data + a, lda,
                                     <float *>args.inputs[1].data + b, ldb, 0, <float *>args.outputs[0].data + item * m * n, n, NULL, 0)
    elif serial:
        args.engine.gemm_float64_serial(args.engine, worker, ta, tb, m, n, k, args.floats[0], <double *>args.inputs[0].data + a, lda,
                                        <double *>args.inputs[1].data + b, ldb, 0, <double *>args.outputs[0].data + item * m * n, n, NULL, 0)
    else:
        args.engine.gemm_float64(args.engine, ta, tb, m, n, k, args.floats[0], <double *>args.inputs[0].data + a, lda,
                                 <double *>args.inputs[1].data + b, ldb, 0, <double *>args.outputs[0].data + item * m * n, n, NULL, 0)


cdef void product_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    one_product(<const KernelArgs *>context, item, worker, True)


cdef int matmul(const KernelArgs *args) noexcept nogil:
    """y [batch, m, n] = alpha op(a) @ op(b); ints: m, n, k, ta, tb, batches, rank, batch dims, strides of a, strides of b; floats: alpha"""
    cdef const int64_t *s = args.ints
    cdef int64_t item
    if s[0] == 0 or s[1] == 0:
        return STATUS_OK
    if s[5] > 1 and s[0] * s[1] * s[2] < SMALL_PRODUCT:
        args.engine.parallel_for(args.engine, product_item, <void *>args, s[5])
    else:
        for item in range(s[5]):
            one_product(args, item, 0, False)
    return STATUS_OK


cdef inline void spread(real *y, const real *c, real beta, int64_t m, int64_t n, int64_t row, int64_t column) noexcept nogil:
    """y [m, n] = beta c, c broadcast by its strides"""
    cdef int64_t i, j
    for i in range(m):
        for j in range(n):
            y[i * n + j] = beta * c[i * row + j * column]


cdef int gemm(const KernelArgs *args) noexcept nogil:
    """y [m, n] = alpha op(a) op(b) + beta c, then ReLU where asked; ints: m, n, k, ta, tb, row and column stride of c, c present, relu; floats: alpha, beta.
    With ReLU, c is a bias row or absent, and alpha and beta are 1"""
    cdef const int64_t *s = args.ints
    cdef int64_t m = s[0], n = s[1], k = s[2], lda, ldb
    cdef int ta = s[3], tb = s[4]
    cdef bint present = s[7] != 0
    # a bias row goes into the product's epilogue, anything else is spread over y first
    cdef bint bias = present and s[5] == 0 and (s[6] == 1 or n == 1) and args.floats[1] == 1.0
    cdef bint spread_first = present and not bias
    if m == 0 or n == 0:
        return STATUS_OK
    lda = m if ta else k
    ldb = k if tb else n
    if args.inputs[0].dtype == DTYPE_FLOAT32:
        if spread_first:
            spread(<float *>args.outputs[0].data, <const float *>args.inputs[2].data, <float>args.floats[1], m, n, s[5], s[6])
        args.engine.gemm_float32(args.engine, ta, tb, m, n, k, <float>args.floats[0], <float *>args.inputs[0].data, lda,
                                 <float *>args.inputs[1].data, ldb, <float>1 if spread_first else <float>0, <float *>args.outputs[0].data, n,
                                 <float *>args.inputs[2].data if bias else NULL, <int>s[8])
    else:
        if spread_first:
            spread(<double *>args.outputs[0].data, <const double *>args.inputs[2].data, args.floats[1], m, n, s[5], s[6])
        args.engine.gemm_float64(args.engine, ta, tb, m, n, k, args.floats[0], <double *>args.inputs[0].data, lda,
                                 <double *>args.inputs[1].data, ldb, 1.0 if spread_first else 0.0, <double *>args.outputs[0].data, n,
                                 <double *>args.inputs[2].data if bias else NULL, <int>s[8])
    return STATUS_OK


# name -> (address, dtypes of input 0 it is for)
KERNELS = {
    "matmul": (<size_t>&matmul, ("float32", "float64")),
    "gemm": (<size_t>&gemm, ("float32", "float64")),
}
