"""Matrix multiplication kernels for float32 and float64: matmul (batched, also FusedMatMul), gemm, and dequantized_gemm of stored weights."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport DTYPE_FLOAT32, KernelArgs, STATUS_OK, real

cdef extern from "matmul/dequantized_gemm.h" nogil:
    int dequantized_gemm(const KernelArgs *args)

# Up to this many multiplications per matrix a batch is split over threads by matrices; larger matrices are multiplied one after another on all threads.
cdef enum:
    SMALL_PRODUCT = 1 << 21


# Positions among the ints of matmul.
cdef enum:
    BATCH_SIZE = 5
    BATCH_RANK = 6
    LEADING = 7
    OFFSETS = 10
    BATCH_DIMS = 12


cdef inline void batch_offsets(const int64_t *ints, int64_t item, int64_t *a, int64_t *b, int64_t *y) noexcept nogil:
    """Set *a, *b and *y to the offsets, in elements, of the operands and the result of the batch's matrix `item`."""
    cdef int64_t rank = ints[BATCH_RANK], d, position
    cdef const int64_t *dims = ints + BATCH_DIMS
    a[0] = ints[OFFSETS]
    b[0] = ints[OFFSETS + 1]
    y[0] = 0
    for d in range(rank - 1, -1, -1):
        position = item % dims[d]
        item = item // dims[d]
        a[0] += position * dims[rank + d]
        b[0] += position * dims[2 * rank + d]
        y[0] += position * dims[3 * rank + d]


cdef inline void multiply_matrices(const KernelArgs *args, int64_t item, int64_t worker, bint serial) noexcept nogil:
    """y[item] [m, n] = alpha op(a) @ op(b), on the calling worker if `serial`, else on all."""
    cdef const int64_t *s = args.ints
    cdef int64_t m = s[0], n = s[1], k = s[2], a, b, y, lda = s[LEADING], ldb = s[LEADING + 1], ldy = s[LEADING + 2]
    cdef int transpose_a = s[3], transpose_b = s[4]
    batch_offsets(s, item, &a, &b, &y)
    if args.inputs[0].dtype == DTYPE_FLOAT32:
        if serial:
            args.engine.gemm_float32_serial(args.engine, worker, transpose_a, transpose_b, m, n, k, <float>args.floats[0],
                                            <float *>args.inputs[0].data + a, lda, <float *>args.inputs[1].data + b, ldb, 0,
                                            <float *>args.outputs[0].data + y, ldy, NULL, 0)
        else:
            args.engine.gemm_float32(args.engine, transpose_a, transpose_b, m, n, k, <float>args.floats[0], <float *>args.inputs[0].data + a, lda,
                                     <float *>args.inputs[1].data + b, ldb, 0, <float *>args.outputs[0].data + y, ldy, NULL, 0)
    elif serial:
        args.engine.gemm_float64_serial(args.engine, worker, transpose_a, transpose_b, m, n, k, args.floats[0], <double *>args.inputs[0].data + a, lda,
                                        <double *>args.inputs[1].data + b, ldb, 0, <double *>args.outputs[0].data + y, ldy, NULL, 0)
    else:
        args.engine.gemm_float64(args.engine, transpose_a, transpose_b, m, n, k, args.floats[0], <double *>args.inputs[0].data + a, lda,
                                 <double *>args.inputs[1].data + b, ldb, 0, <double *>args.outputs[0].data + y, ldy, NULL, 0)


cdef void matrix_item(void *context, int64_t item, int64_t worker) noexcept nogil:
    multiply_matrices(<const KernelArgs *>context, item, worker, True)


cdef int matmul(const KernelArgs *args) noexcept nogil:
    """(a, b) -> y [batch dims, m, n] = alpha op(a) @ op(b), broadcast over the batch. Operands and result may be parts of larger tensors.

    ints: m, n, k, whether a and b are transposed, batch size, rank of the batch, distances between the rows of a, b and y, offsets of a and b, batch
    dims [rank], batch strides of a [rank], of b [rank] and of y [rank], in elements; floats: alpha. A work item is one matrix, or a part of one
    (SMALL_PRODUCT)."""
    cdef const int64_t *s = args.ints
    cdef int64_t item
    if s[0] == 0 or s[1] == 0:
        return STATUS_OK
    if s[BATCH_SIZE] > 1 and s[0] * s[1] * s[2] < SMALL_PRODUCT:
        args.engine.parallel_for(args.engine, matrix_item, <void *>args, s[BATCH_SIZE])
    else:
        for item in range(s[BATCH_SIZE]):
            multiply_matrices(args, item, 0, False)
    return STATUS_OK


cdef inline void broadcast_into(real *y, const real *c, real beta, int64_t m, int64_t n, int64_t row, int64_t column, bint add) noexcept nogil:
    """y [m, n] = beta * c, or += if `add`, with c broadcast by its strides along rows and columns"""
    cdef int64_t i, j
    for i in range(m):
        for j in range(n):
            y[i * n + j] = beta * c[i * row + j * column] + (y[i * n + j] if add else <real>0)


cdef int gemm(const KernelArgs *args) noexcept nogil:
    """(a, b, c or absent) -> y [m, n] = alpha op(a) @ op(b) + beta c, then ReLU if the relu flag is set.

    ints: m, n, k, whether a and b are transposed, strides of c along rows and columns (0: broadcast), whether c is has_c, relu; floats: alpha, beta.
    With ReLU, c is a bias row or absent, and alpha and beta are 1."""
    cdef const int64_t *s = args.ints
    cdef int64_t m = s[0], n = s[1], k = s[2], lda, ldb
    cdef int transpose_a = s[3], transpose_b = s[4]
    cdef bint has_c = s[7] != 0, is_scaled = args.floats[0] != 1.0
    # A bias row is added in the epilogue of the GEMM; any other c is first broadcast into y, to which the GEMM adds. A scaled result is complete before c
    # is added to it.
    cdef bint is_bias_row = has_c and s[5] == 0 and (s[6] == 1 or n == 1) and args.floats[1] == 1.0 and not is_scaled
    cdef bint broadcast_first = has_c and not is_bias_row and not is_scaled
    if m == 0 or n == 0:
        return STATUS_OK
    lda = m if transpose_a else k
    ldb = k if transpose_b else n
    if args.inputs[0].dtype == DTYPE_FLOAT32:
        if broadcast_first:
            broadcast_into(<float *>args.outputs[0].data, <const float *>args.inputs[2].data, <float>args.floats[1], m, n, s[5], s[6], False)
        args.engine.gemm_float32(args.engine, transpose_a, transpose_b, m, n, k, <float>args.floats[0], <float *>args.inputs[0].data, lda,
                                 <float *>args.inputs[1].data, ldb, <float>1 if broadcast_first else <float>0, <float *>args.outputs[0].data, n,
                                 <float *>args.inputs[2].data if is_bias_row else NULL, <int>s[8])
        if has_c and is_scaled:
            broadcast_into(<float *>args.outputs[0].data, <const float *>args.inputs[2].data, <float>args.floats[1], m, n, s[5], s[6], True)
    else:
        if broadcast_first:
            broadcast_into(<double *>args.outputs[0].data, <const double *>args.inputs[2].data, args.floats[1], m, n, s[5], s[6], False)
        args.engine.gemm_float64(args.engine, transpose_a, transpose_b, m, n, k, args.floats[0], <double *>args.inputs[0].data, lda,
                                 <double *>args.inputs[1].data, ldb, 1.0 if broadcast_first else 0.0, <double *>args.outputs[0].data, n,
                                 <double *>args.inputs[2].data if is_bias_row else NULL, <int>s[8])
        if has_c and is_scaled:
            broadcast_into(<double *>args.outputs[0].data, <const double *>args.inputs[2].data, args.floats[1], m, n, s[5], s[6], True)
    return STATUS_OK


# name -> (address, dtypes of input 0)
KERNELS = {
    "matmul": (<size_t>&matmul, ("float32", "float64")),
    "gemm": (<size_t>&gemm, ("float32", "float64")),
    "dequantized_gemm": (<size_t>&dequantized_gemm, ("float32", "float64", "float16", "bfloat16")),
}
