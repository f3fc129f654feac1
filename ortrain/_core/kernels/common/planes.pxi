"""Index arithmetic of sliding windows along one axis, and a sum; included by convolution/conv.pyx and pooling/pool.pyx."""


cdef inline int64_t ceil_div(int64_t a, int64_t b) noexcept nogil:
    """Return a / b rounded up, for a >= 0. Strides 1 and 2 need no division."""
    if b == 1:
        return a
    if b == 2:
        return (a + 1) >> 1
    return (a + b - 1) // b


cdef inline int64_t first_valid_output(int64_t offset, int64_t stride) noexcept nogil:
    """Return the first output o >= 0 with o * stride + offset >= 0, where a tap at `offset` is inside the data."""
    return 0 if offset >= 0 else ceil_div(-offset, stride)


cdef inline int64_t end_valid_output(int64_t offset, int64_t stride, int64_t size) noexcept nogil:
    """Return the first output o >= 0 with o * stride + offset >= size, where a tap at `offset` has left data of this size."""
    return 0 if size <= offset else ceil_div(size - offset, stride)


cdef inline real lane_sum(const real *x, int64_t n) noexcept nogil:
    """Return the sum of x [n], accumulated in 16 interleaved partial sums that vectorize and fix the order of additions."""
    cdef real lanes[16]
    cdef real rest = 0
    cdef int64_t i, l
    for l in range(16):
        lanes[l] = 0
    for i in range(n // 16):
        for l in range(16):
            lanes[l] += x[16 * i + l]
    for i in range(n // 16 * 16, n):
        rest += x[i]
    for l in range(16):
        rest += lanes[l]
    return rest
