"""The packed float32 product of this instruction set; ortrain._core.engine calls it through PRODUCTS."""

cdef extern from "products.h" nogil:
    void packed_sgemm(int ta, int tb, long m, long n, long k, const float *a, long lda, const float *b, long ldb, int accumulate, float *c, long ldc,
                      const float *bias, int relu, float *workspace)
    size_t PACKED_FLOATS

KERNELS = {}
# the address of packed_sgemm and the packing space it needs, in floats per worker
PRODUCTS = {"packed_sgemm": <size_t>&packed_sgemm, "workspace_floats": PACKED_FLOATS}
