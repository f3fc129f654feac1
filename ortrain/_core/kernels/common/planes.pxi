"""What convolution and pooling share, included by convolution/conv.pyx and pooling/pool.pyx: which outputs see a tap inside the data, along one axis, and sums."""


cdef inline int64_t divide_up(int64_t a, int64_t b) noexcept nogil:
    """a / b rounded up, for a >= 0; the usual strides without a division"""
    if b == 1:
        return a
    if b == 2:
        return (a + 1) >> 1
    return (a + b - 1) // b


cdef inline int64_t first_inside(int64_t offset, int64_t stride) noexcept nogil:
    """The first o >= 0 with o * stride + offset >= 0."""
    return 0 if offset >= 0 else divide_up(-offset, stride)


cdef inline int64_t after_inside(int64_t offset, int64_t stride, int64_t size) noexcept nogil:
    """The first o >= 0 from which o * stride + offset >= size."""
    return 0 if size <= offset else divide_up(size - offset, stride)


cdef inline real total(const real *x, int64_t n) noexcept nogil:
    """The sum of x [n] in 16 interleaved partial sums."""
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
