"""The engine that running programs give to their kernels: thread pool, GEMM and random number state."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from ortrain._core.kernel cimport ORTRAIN_MAX_RANK, Engine, Kernel, KernelArgs, Tensor, WorkItem, real

import os
import threading

from ortrain._core.fork_handlers import register_after_fork
from ortrain.dtypes import NUMBERS, name_of
from ortrain.errors import InvalidArgumentError

cnp.import_array()


cdef extern from "threads.h" nogil:
    ctypedef struct Pool:
        int workers, spins
    Pool *pool_make(int workers)
    void pool_reset(Pool *pool, int workers)
    void pool_free(Pool *pool)
    void pool_parallel_for(const Engine *engine, WorkItem work, void *context, int64_t items)

cdef extern from "operating_system.h" nogil:
    void *aligned_allocate(size_t alignment, size_t size)
    void aligned_release(void *memory)

ctypedef void (*SingleBlas)(char *, char *, int *, int *, int *, float *, float *, int *, float *, int *, float *, float *, int *) noexcept nogil
ctypedef void (*DoubleBlas)(char *, char *, int *, int *, int *, double *, double *, int *, double *, int *, double *, double *, int *) noexcept nogil

ctypedef void (*SinglePackedGemm)(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                                  const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu,
                                  float *workspace) noexcept nogil

ctypedef void (*DoublePackedGemm)(int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                                  const double *b, int64_t ldb, int accumulate, double *c, int64_t ldc, const double *bias, int relu,
                                  double *workspace) noexcept nogil

ctypedef void (*SingleParallelGemm)(const Engine *engine, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                                    const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu) noexcept nogil

ctypedef void (*DoubleParallelGemm)(const Engine *engine, int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                                    const double *b, int64_t ldb, int accumulate, double *c, int64_t ldc, const double *bias, int relu) noexcept nogil

ctypedef int (*AmxGemm)(const Engine *engine, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                        const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu) noexcept nogil

ctypedef int (*SerialAmxGemm)(const Engine *engine, int64_t worker, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                              const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu) noexcept nogil

ctypedef void (*Transpose)(void *to, const void *from_, int64_t size, int64_t m, int64_t n, int64_t to_m, int64_t from_n) noexcept nogil

cdef SingleBlas sgemm = NULL
cdef DoubleBlas dgemm = NULL
cdef SinglePackedGemm packed_float32 = NULL
cdef DoublePackedGemm packed_float64 = NULL
cdef SingleParallelGemm parallel_float32 = NULL
cdef DoubleParallelGemm parallel_float64 = NULL
cdef AmxGemm amx_float32 = NULL
cdef int64_t packed_floats = 0
cdef bint has_amx = False
cdef void *implicit_gemm = NULL
cdef Transpose transpose = NULL
cdef SinglePackedGemm packed_bfloat16 = NULL
cdef SingleParallelGemm parallel_bfloat16 = NULL
cdef AmxGemm amx_bfloat16 = NULL
cdef void *implicit_bfloat16 = NULL
cdef SerialAmxGemm amx_bfloat16_serial = NULL
cdef void *pack_step_weights = NULL
cdef void *step_gemm = NULL
cdef void *pack_tiled_step_weights = NULL
cdef void *tiled_step_gemm = NULL
LOADING = threading.Lock()


def load_blas():
    """Load the GEMM routines of SciPy's BLAS.

    Raises InvalidArgumentError without SciPy."""
    global sgemm, dgemm
    try:
        from scipy.linalg import cython_blas
    except ImportError as error:
        raise InvalidArgumentError(f"ORTRAIN_GEMM=blas needs SciPy (pip install 'ortrain[blas]'), which cannot be imported: {error}") from error
    capsules = cython_blas.__pyx_capi__
    dgemm = <DoubleBlas>PyCapsule_GetPointer(capsules["dgemm"], PyCapsule_GetName(capsules["dgemm"]))
    sgemm = <SingleBlas>PyCapsule_GetPointer(capsules["sgemm"], PyCapsule_GetName(capsules["sgemm"]))


def load_services():
    """Load what the engine offers to kernels, of the instruction set in use, once: GEMM and transposes. The caller holds the lock LOADING.

    ORTRAIN_GEMM=blas uses SciPy's BLAS instead; ORTRAIN_GEMM=vectors uses vector units even if the processor has AMX tiles.
    Raises InvalidArgumentError for another value, and for blas without SciPy."""
    global packed_float32, packed_float64, parallel_float32, parallel_float64, amx_float32, implicit_gemm, transpose, packed_floats, \
        has_amx
    if packed_float32 != NULL:
        return
    import importlib

    from ortrain._core.kernel_table import instruction_set
    gemm, gemm_float64, shape = (importlib.import_module(f"ortrain._core.instruction_sets.{instruction_set()}.{name}")
                                 for name in ("gemm", "gemm_float64", "shape"))
    single, double = gemm.GEMM, gemm_float64.GEMM
    requested = os.environ.get("ORTRAIN_GEMM", "")
    if requested not in ("", "blas", "vectors"):
        raise InvalidArgumentError(f"expected ORTRAIN_GEMM to be blas or vectors, got {requested!r}")
    if requested == "blas":
        load_blas()
    packed_floats = max(single["workspace_floats"], double["workspace_floats"])
    has_amx = single["amx"] and not requested
    amx_float32 = <AmxGemm><size_t>single["amx_gemm"]
    implicit_gemm = <void *><size_t>single["implicit_gemm"]
    transpose = <Transpose><size_t>shape.TRANSPOSE
    parallel_float32 = <SingleParallelGemm><size_t>single["parallel_gemm"]
    parallel_float64 = <DoubleParallelGemm><size_t>double["parallel_gemm"]
    packed_float64 = <DoublePackedGemm><size_t>double["packed_gemm"]
    packed_float32 = <SinglePackedGemm><size_t>single["packed_gemm"]


def has_bfloat16_vectors():
    """Return whether this processor multiplies vectors of bfloat16 numbers, and the instruction set in use has a GEMM that does."""
    from ortrain._core.cpu import supports
    from ortrain._core.kernel_table import instruction_set
    return supports(f"{instruction_set()}_bf16")


def has_fast_bfloat16_vectors():
    """Return whether vectors of bfloat16 numbers are multiplied faster than those of float32. Intel's are not: an Emerald Rapids reached 60 to 80 GFLOP/s with
    them, and 90 to 150 in float32 (Cooper Lake was not measured); a Zen 4 takes half of the time."""
    from ortrain._core.cpu import is_intel
    return has_bfloat16_vectors() and not is_intel()


def multiplies_bfloat16():
    """Return whether this processor multiplies bfloat16 numbers faster than those of float32, on AMX tiles or in vectors."""
    with LOADING:
        load_services()
    return has_amx or has_fast_bfloat16_vectors()


def load_bfloat16_gemm():
    """Load the GEMM of bfloat16 operands, once. The caller holds the lock LOADING. Without the processor's help it computes the same sums more slowly."""
    global packed_bfloat16, parallel_bfloat16, amx_bfloat16, amx_bfloat16_serial, implicit_bfloat16, pack_step_weights, step_gemm, \
        pack_tiled_step_weights, tiled_step_gemm
    if packed_bfloat16 != NULL:
        return
    import importlib

    from ortrain._core.kernel_table import instruction_set
    name = "gemm_bfloat16_native" if has_bfloat16_vectors() else "gemm_bfloat16"
    gemm = importlib.import_module(f"ortrain._core.instruction_sets.{instruction_set()}.{name}").GEMM
    parallel_bfloat16 = <SingleParallelGemm><size_t>gemm["parallel_gemm"]
    amx_bfloat16 = <AmxGemm><size_t>gemm["gemm_on_tiles"]
    amx_bfloat16_serial = <SerialAmxGemm><size_t>gemm["tiled_gemm_serial"]
    implicit_bfloat16 = <void *><size_t>gemm["implicit_gemm"]
    pack_step_weights = <void *><size_t>gemm["pack_step_weights"]
    step_gemm = <void *><size_t>gemm["step_gemm"]
    pack_tiled_step_weights = <void *><size_t>gemm["pack_tiled_step_weights"]
    tiled_step_gemm = <void *><size_t>gemm["tiled_step_gemm"]
    packed_bfloat16 = <SinglePackedGemm><size_t>gemm["packed_gemm"]


cdef inline void epilogue(real *c, int64_t ldc, int64_t m, int64_t n, const real *bias, int relu) noexcept nogil:
    """Add a bias row [n] (or NULL) to c [m, n], then replace negative values with 0 if relu."""
    cdef int64_t i, j
    cdef real *row
    for i in range(m):
        row = c + i * ldc
        if bias != NULL:
            for j in range(n):
                row[j] += bias[j]
        if relu:
            for j in range(n):
                row[j] = row[j] if row[j] > 0 else <real>0


cdef inline void scale(real *c, int64_t ldc, int64_t m, int64_t n, real factor) noexcept nogil:
    """c [m, n] *= factor, but zeros where factor is 0"""
    cdef int64_t i, j
    for i in range(m):
        for j in range(n):
            c[i * ldc + j] = c[i * ldc + j] * factor if factor != 0 else <real>0


cdef inline void empty_gemm(int64_t m, int64_t n, real beta, real *c, int64_t ldc, const real *bias, int relu) noexcept nogil:
    """A GEMM of depth 0: c [m, n] = beta c, then bias and ReLU."""
    scale(c, ldc, m, n, beta)
    epilogue(c, ldc, m, n, bias, relu)


cdef inline void blas_gemm(int ta, int tb, int64_t m, int64_t n, int64_t k, real alpha, const real *a, int64_t lda, const real *b,
                           int64_t ldb, real beta, real *c, int64_t ldc, const real *bias, int relu) noexcept nogil:
    """Compute c [m, n] = alpha op(a) op(b) + beta c, row-major. BLAS is column-major and computes the transpose."""
    cdef char transpose_a = b'T' if ta else b'N'
    cdef char transpose_b = b'T' if tb else b'N'
    cdef int rows = <int>m, columns = <int>n, inner = <int>k
    cdef int stride_a = <int>max(lda, 1), stride_b = <int>max(ldb, 1), stride_c = <int>max(ldc, 1)
    if real is float:
        sgemm(&transpose_b, &transpose_a, &columns, &rows, &inner, &alpha, <float *>b, &stride_b, <float *>a, &stride_a, &beta, c, &stride_c)
    else:
        dgemm(&transpose_b, &transpose_a, &columns, &rows, &inner, &alpha, <double *>b, &stride_b, <double *>a, &stride_a, &beta, c, &stride_c)
    epilogue(c, ldc, m, n, bias, relu)


cdef void gemm_float32(const Engine *e, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, float beta, float *c, int64_t ldc, const float *bias, int relu) noexcept nogil:
    if k == 0 or m == 0 or n == 0:
        empty_gemm(m, n, beta, c, ldc, bias, relu)
    elif sgemm != NULL:
        blas_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias, relu)
    elif not amx_float32(e, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu):
        parallel_float32(e, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu)


cdef void gemm_float64(const Engine *e, int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                       const double *b, int64_t ldb, double beta, double *c, int64_t ldc, const double *bias, int relu) noexcept nogil:
    if k == 0 or m == 0 or n == 0:
        empty_gemm(m, n, beta, c, ldc, bias, relu)
    elif dgemm != NULL:
        blas_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias, relu)
    else:
        parallel_float64(e, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu)


cdef void gemm_float32_serial(const Engine *e, int64_t worker, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                              int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc, const float *bias,
                              int relu) noexcept nogil:
    if k == 0 or m == 0 or n == 0:
        empty_gemm(m, n, beta, c, ldc, bias, relu)
    elif sgemm != NULL:
        blas_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias, relu)
    else:
        packed_float32(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu, e.workspaces + worker * e.workspace_floats)


cdef void gemm_float64_serial(const Engine *e, int64_t worker, int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha,
                              const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc,
                              const double *bias, int relu) noexcept nogil:
    if k == 0 or m == 0 or n == 0:
        empty_gemm(m, n, beta, c, ldc, bias, relu)
    elif dgemm != NULL:
        blas_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias, relu)
    else:
        packed_float64(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu, <double *>(e.workspaces + worker * e.workspace_floats))


# The sides and the depth from which products take bfloat16 operands. Smaller ones gain nothing, because their operands take longer to convert than to multiply
# (16 x 256 x 256: 0.93 of the rate of float32, 32 x 128 x 512: 1.40).
cdef enum:
    MIN_BFLOAT16_SIDE = 24
    MIN_BFLOAT16_DEPTH = 24


cdef inline bint suits_bfloat16(int64_t m, int64_t n, int64_t k) noexcept nogil:
    return m >= MIN_BFLOAT16_SIDE and n >= MIN_BFLOAT16_SIDE and k >= MIN_BFLOAT16_DEPTH


cdef void gemm_bfloat16(const Engine *e, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                        const float *b, int64_t ldb, float beta, float *c, int64_t ldc, const float *bias, int relu) noexcept nogil:
    """gemm_float32 with operands rounded to bfloat16, where they suit."""
    if k > 0 and m > 0 and n > 0 and amx_bfloat16(e, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu):
        return
    if e.bfloat16 and suits_bfloat16(m, n, k):
        parallel_bfloat16(e, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu)
        return
    gemm_float32(e, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias, relu)


cdef void gemm_bfloat16_serial(const Engine *e, int64_t worker, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc, const float *bias,
                               int relu) noexcept nogil:
    """gemm_float32_serial with operands rounded to bfloat16, where they suit."""
    if k > 0 and m > 0 and n > 0 and amx_bfloat16_serial(e, worker, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu):
        return
    if not (e.bfloat16 and suits_bfloat16(m, n, k)):
        gemm_float32_serial(e, worker, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias, relu)
        return
    packed_bfloat16(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta != 0, c, ldc, bias, relu, e.workspaces + worker * e.workspace_floats)


# floats per worker that lowering assumes (ROOM in ops/shared/conv_algorithms.py)
cdef enum:
    MIN_WORKSPACE = 1 << 20


cdef class EngineHandle:
    """An Engine with its thread pool and packing buffers."""

    def __cinit__(self, int workers=1, seed=0):
        with LOADING:
            load_services()
        memset(&self.engine, 0, sizeof(Engine))
        self.engine.pool = pool_make(workers) if workers > 1 else NULL
        self.engine.workers = (<Pool *>self.engine.pool).workers if self.engine.pool != NULL else 1
        self.engine.parallel_for = pool_parallel_for
        self.engine.workspace_floats = max(MIN_WORKSPACE, (packed_floats + 1023) // 1024 * 1024)
        self.engine.workspaces = <float *>aligned_allocate(4096, (self.engine.workers + 1) * self.engine.workspace_floats * sizeof(float))
        self.engine.shared_workspace = self.engine.workers
        if self.engine.workspaces == NULL:
            raise MemoryError
        self.engine.amx = has_amx
        self.engine.implicit_gemm = implicit_gemm
        self.engine.transpose = transpose
        self.engine.gemm_float32 = gemm_float32
        self.engine.gemm_float64 = gemm_float64
        self.engine.gemm_float32_serial = gemm_float32_serial
        self.engine.gemm_float64_serial = gemm_float64_serial
        self.engine.seed = seed
        self.engine.run_index = 0
        self.bfloat16_engine = self.engine
        self.bfloat16_engine.bfloat16 = not has_amx
        self.bfloat16_engine.rounds = 1
        self.bfloat16_engine.gemm_float32 = gemm_bfloat16
        self.bfloat16_engine.gemm_float32_serial = gemm_bfloat16_serial
        self.float32_nodes = ()
        self.winograd = self.elementwise_fusion = True
        register_after_fork(self)

    def __dealloc__(self):
        pool_free(<Pool *>self.engine.pool)
        aligned_release(self.engine.workspaces)

    def close(self):
        """Release the threads and the arena; later calls run on the thread of the caller."""
        cdef Pool *pool = <Pool *>self.engine.pool
        self.arena = None
        self.set_pool(NULL)
        self.engine.workers = self.bfloat16_engine.workers = 1
        with nogil:
            pool_free(pool)

    cdef void set_pool(self, void *pool) noexcept nogil:
        """Run kernels with these threads from now on, NULL for none."""
        self.engine.pool = self.bfloat16_engine.pool = pool

    cdef void count_train_step(self) noexcept nogil:
        self.engine.run_index += 1
        self.bfloat16_engine.run_index += 1

    @property
    def precision(self):
        """The type of the operands of matrix multiplications: "float32" or "bfloat16"; may be set to "auto", too."""
        return "bfloat16" if self.is_bfloat16 else "float32"

    @precision.setter
    def precision(self, name):
        if name == "auto":
            name = "bfloat16" if self.engine.amx or has_fast_bfloat16_vectors() else "float32"
        if name == "bfloat16":
            with LOADING:
                load_bfloat16_gemm()
            self.bfloat16_engine.implicit_gemm = implicit_bfloat16
            self.choose_steps()
        self.is_bfloat16 = name == "bfloat16"

    cdef void choose_steps(self) noexcept:
        """Have time steps of recurrent layers in bfloat16 on AMX tiles, or in vectors."""
        self.bfloat16_engine.pack_step_weights = pack_tiled_step_weights if self.engine.amx else pack_step_weights
        self.bfloat16_engine.step_gemm = tiled_step_gemm if self.engine.amx else step_gemm

    @property
    def spins(self):
        """Whether threads that wait for work keep their processors for a while; they do where there is one for each thread."""
        return self.engine.pool != NULL and bool((<Pool *>self.engine.pool).spins)

    @property
    def amx(self):
        """Whether GEMM may use the processor's AMX tiles; always False without them.

        Where it may, a product that does not suit tiles is computed in float32 even if its operands may be rounded to bfloat16: processors with AMX multiply
        vectors of bfloat16 numbers more slowly than those of float32."""
        return bool(self.engine.amx)

    @amx.setter
    def amx(self, enabled):
        self.engine.amx = self.bfloat16_engine.amx = has_amx and enabled
        self.bfloat16_engine.bfloat16 = not self.engine.amx
        self.choose_steps()

    def after_fork(self):
        """Reset the pool in a forked child, which lacks its parent's threads; the next parallel region starts new ones."""
        if self.engine.pool != NULL:
            pool_reset(<Pool *>self.engine.pool, self.engine.workers)

    cdef int64_t *timestamp_buffer(self, object source, Py_ssize_t steps) except? NULL:
        """Return a buffer for the timestamps of a run, recorded for the profiler; NULL while nothing is profiled.

        source: the Program or BoundKernel that runs. Steps that are not reached keep 0."""
        cdef cnp.npy_intp count = steps + 1
        cdef cnp.ndarray timestamps
        if self.recording is None:
            return NULL
        timestamps = cnp.PyArray_ZEROS(1, &count, cnp.NPY_INT64, 0)
        self.recording.append((source, timestamps))
        return <int64_t *>cnp.PyArray_DATA(timestamps)

    @property
    def run_index(self):
        """The number of train steps run, which is the counter of the counter-based random numbers."""
        return self.engine.run_index

    @run_index.setter
    def run_index(self, value):
        self.engine.run_index = self.bfloat16_engine.run_index = value

    @property
    def workers(self):
        return self.engine.workers

    @property
    def seed(self):
        return self.engine.seed

    @seed.setter
    def seed(self, value):
        self.engine.seed = self.bfloat16_engine.seed = value


cdef void fill_tensor(Tensor *t, object array) except *:
    """Describe an array as a tensor; None as an absent one."""
    cdef int i
    memset(t, 0, sizeof(Tensor))
    if array is None:
        return
    cdef cnp.ndarray x = array
    if not x.flags.c_contiguous or x.ndim > ORTRAIN_MAX_RANK:
        raise ValueError(f"expected a C-contiguous array of at most {ORTRAIN_MAX_RANK} axes, got {x.ndim} axes and strides {(<object>x).strides}")
    t.data = cnp.PyArray_DATA(x)
    t.count = x.size
    t.rank = x.ndim
    t.dtype = NUMBERS[name_of(x.dtype)]
    for i in range(x.ndim):
        t.dims[i] = x.shape[i]


def call_kernel(size_t address, list inputs, list outputs, tuple ints=(), tuple floats=(), Py_ssize_t scratch=0, EngineHandle handle=None):
    """Run one kernel on arrays (None: absent) outside of a program, and return its status: for constant folding and kernel tests.

    scratch: bytes of working memory. handle: None for a new engine."""
    cdef KernelArgs args
    cdef cnp.ndarray int_values, float_values
    cdef Py_ssize_t i
    cdef int status
    import numpy as np
    handle = handle or EngineHandle()
    int_values = np.array(list(ints) + [0], np.int64)
    float_values = np.array(list(floats) + [0], np.float64)
    buffer = np.zeros(scratch + 64, np.uint8)
    cdef size_t base = <size_t>cnp.PyArray_DATA(<cnp.ndarray>buffer)
    args.inputs = <Tensor *>calloc(len(inputs) + 1, sizeof(Tensor))
    args.outputs = <Tensor *>calloc(len(outputs) + 1, sizeof(Tensor))
    try:
        for i in range(len(inputs)):
            fill_tensor(&args.inputs[i], inputs[i])
        for i in range(len(outputs)):
            fill_tensor(&args.outputs[i], outputs[i])
        args.n_inputs = len(inputs)
        args.n_outputs = len(outputs)
        args.ints = <int64_t *>cnp.PyArray_DATA(int_values)
        args.floats = <double *>cnp.PyArray_DATA(float_values)
        args.scratch = <void *>((base + 63) & ~<size_t>63)
        args.engine = &handle.bfloat16_engine if handle.is_bfloat16 else &handle.engine
        with nogil:
            status = (<Kernel>address)(&args)
        return status
    finally:
        free(args.inputs)
        free(args.outputs)
