/* Elements along an axis: gather, scatter and their reductions, at the positions that GatherElements and ScatterElements read.
 *
 * The indices are divided into runs: consecutive indices whose positions in data differ by the index alone where the axis is the last one, and also by 1 per
 * element where it is not. The loop over a run is compiled for each type of data and of indices; per element it took 2.1 ns with both chosen inside. A work
 * item is a number of units, of which each has destinations of its own, so that results do not depend on the number of threads. */
#ifndef ORTRAIN_ELEMENTS_H
#define ORTRAIN_ELEMENTS_H
#include <stdatomic.h>
#include "kernel.h"
#include "common/integers.h"
#include "common/memory.h"

enum { ELEMENT_BLOCK = 4096, ELEMENTS_PER_WORK_ITEM = 16384 };

typedef struct Elements Elements;
/* Process n indices from `first` on; data starts `at` elements further. step: distance in data between elements of a run. Return whether they are in range; the
 * first that is not ends the run, if it checks them. */
typedef int (*ElementRun)(const Elements *e, int64_t at, int64_t first, int64_t n, int64_t step);

/* data and other [index dims]; strides: of data; size: of data along the axis; length, inner: of the indices along and after the axis; row: of a run, if the
 * axis is not the last one; third: like other; reversed: whether later indices come first; status: of the call. A unit is a block of `block` elements of inner
 * at one index before the axis. */
struct Elements {
    void *data, *other; const void *third; const Tensor *indices; const int64_t *dims, *strides;
    int64_t rank, axis, size, length, inner, row, block, blocks, units, per_item, reversed;
    ElementRun run;
    atomic_int *status;
};

static inline int64_t elements_offset(const Elements *e, int64_t flat, int64_t low, int64_t high)
{
    int64_t offset = 0;
    for (int64_t d = high - 1; d >= low; d--) { offset += flat % e->dims[d] * e->strides[d]; flat /= e->dims[d]; }
    return offset;
}

/* Process the units of a work item; return whether their indices are in range. */
static int elements_units(const Elements *e, int64_t item)
{
    for (int64_t unit = item * e->per_item; unit < min_i64((item + 1) * e->per_item, e->units); unit++) {
        int64_t outer = unit / e->blocks, low = unit % e->blocks * e->block, high = min_i64(low + e->block, e->inner);
        int64_t base = elements_offset(e, outer, 0, e->axis);
        if (e->inner == 1) {
            if (!e->run(e, base, outer * e->length, e->length, 0)) return 0;
            continue;
        }
        for (int64_t k = 0, j; k < e->length; k++)
            for (int64_t q = low, n; q < high; q += n) {
                j = e->reversed ? e->length - 1 - k : k;
                n = min_i64(e->row - q % e->row, high - q);
                if (!e->run(e, base + elements_offset(e, q, e->axis + 1, e->rank), (outer * e->length + j) * e->inner + q, n, 1)) return 0;
            }
    }
    return 1;
}

static void elements_item(void *context, int64_t item, int64_t worker)
{
    const Elements *e = context; (void)worker;
    if (!elements_units(e, item)) atomic_store_explicit(e->status, STATUS_INDEX_OUT_OF_RANGE, memory_order_relaxed);
}

/* Ends the run where an index is out of range. Checked runs read indices once: rows took 0.67 to 0.95 of the time of a guard and an unchecked run. */
#define REFUSE_OUTSIDE if ((uint64_t)v + (uint64_t)size >= 2 * (uint64_t)size) return 0;
/* Unrolled, since counting takes two of nine instructions: 1.32 to 0.81 ns per element of rows of 1024. */
#define INDEX_LOOP(I, T, CHECK, STATEMENT)                                                                                                      \
    { const I *index = (const I *)e->indices->data + first;                                                                                     \
      if (step == 0 && stride == 1)                                                                                                             \
          _Pragma("GCC unroll 4")                                                                                                               \
          for (int64_t i = 0; i < n; i++) { int64_t v = index[i]; CHECK v = v < 0 ? v + size : v; T *d = data + v, *o = other + i; STATEMENT; } \
      else                                                                                                                                      \
          for (int64_t i = 0; i < n; i++) {                                                                                                     \
              int64_t v = index[i]; CHECK v = (v < 0 ? v + size : v) * stride + i * step; T *d = data + v, *o = other + i; STATEMENT; } }
#define ONE_RUN(NAME, T, CHECK, STATEMENT)                                                                                                 \
static int NAME(const Elements *e, int64_t at, int64_t first, int64_t n, int64_t step)                                                     \
{                                                                                                                                          \
    T *data = (T *)e->data + at, *other = (T *)e->other + first; const int64_t size = e->size, stride = e->strides[e->axis];               \
    if (e->indices->dtype == DTYPE_INT32) INDEX_LOOP(int32_t, T, CHECK, STATEMENT) else INDEX_LOOP(int64_t, T, CHECK, STATEMENT)           \
    return 1;                                                                                                                              \
}
#define ELEMENT_RUN(NAME, T, STATEMENT) ONE_RUN(NAME, T, , STATEMENT) ONE_RUN(checked_##NAME, T, REFUSE_OUTSIDE, STATEMENT)
ELEMENT_RUN(gather_1, uint8_t, *o = *d) ELEMENT_RUN(gather_4, uint32_t, *o = *d) ELEMENT_RUN(gather_8, uint64_t, *o = *d)
ELEMENT_RUN(assign_1, uint8_t, *d = *o) ELEMENT_RUN(assign_4, uint32_t, *d = *o) ELEMENT_RUN(assign_8, uint64_t, *d = *o)
#define REDUCING_RUNS(T)                                                                                \
ELEMENT_RUN(add_##T, T, *d += *o) ELEMENT_RUN(multiply_##T, T, *d *= *o)                                \
/* NaN is kept. As one expression, GCC compared by a branch that no processor predicts: 8 ns per element. */ \
ELEMENT_RUN(maximum_##T, T, T a = *o; T b = *d; T m = a > b ? a : b; if (a != a) m = a; *d = m)         \
ELEMENT_RUN(minimum_##T, T, T a = *o; T b = *d; T m = a < b ? a : b; if (a != a) m = a; *d = m)
REDUCING_RUNS(float) REDUCING_RUNS(double) REDUCING_RUNS(int32_t) REDUCING_RUNS(int64_t)

/* Whether a kernel is to check indices: the last of the ints of along_axis. */
static inline int checks_indices(const int64_t *ints) { return ints[3 + 2 * ints[0]] != 0; }

/* The run for an operation by whether it checks indices and by the dtype of data: RUN_BY_SIZE for moves, RUN_BY_TYPE for arithmetic. */
#define RUN_OF(ints, BY, NAME, d) (checks_indices(ints) ? BY(checked_##NAME, d) : BY(NAME, d))
#define RUN_BY_SIZE(NAME, size) ((size) == 4 ? NAME##_4 : (size) == 8 ? NAME##_8 : NAME##_1)
#define RUN_BY_TYPE(NAME, d) ((d) == DTYPE_FLOAT32 ? NAME##_float : (d) == DTYPE_FLOAT64 ? NAME##_double : (d) == DTYPE_INT32 ? NAME##_int32_t : NAME##_int64_t)

/* ints: rank, axis, size of data along it, index dims [rank], data strides [rank], whether to check indices */
static int along_axis_with(const Engine *engine, const int64_t *ints, void *data, const Tensor *indices, void *other, const void *third, int reversed,
                           ElementRun run)
{
    Elements e = { .data = data, .other = other, .third = third, .indices = indices, .dims = ints + 3, .strides = ints + 3 + ints[0], .rank = ints[0],
                   .axis = ints[1], .size = ints[2], .length = ints[3 + ints[1]], .inner = 1, .row = ints[2 + ints[0]], .reversed = reversed, .run = run };
    int64_t outer = 1;
    atomic_int status;
    if (indices->count == 0) return STATUS_OK;
    atomic_init(&status, STATUS_OK);
    e.status = &status;
    for (int64_t d = 0; d < e.rank; d++) { if (d < e.axis) outer *= e.dims[d]; else if (d > e.axis) e.inner *= e.dims[d]; }
    for (int64_t d = e.rank - 2; d > e.axis && e.strides[d] == e.row; d--) e.row *= e.dims[d];       /* whole trailing axes are one run */
    e.block = min_i64(e.inner, ELEMENT_BLOCK);
    e.blocks = ceil_div(e.inner, e.block);
    e.units = outer * e.blocks;
    e.per_item = max_i64(1, ELEMENTS_PER_WORK_ITEM / (e.length * e.block));
    run_items(engine, elements_item, &e, ceil_div(e.units, e.per_item));
    return atomic_load_explicit(&status, memory_order_relaxed);
}

static int along_axis(const Engine *engine, const int64_t *ints, void *data, const Tensor *indices, void *other, ElementRun run)
{ return along_axis_with(engine, ints, data, indices, other, NULL, 0, run); }

/* (data, indices) -> y [index dims] = data at the same position, except along the axis, where indices give it; ints as along_axis. */
static inline int gather_elements(const KernelArgs *a)
{
    const Tensor *x = &a->inputs[0];
    return along_axis(a->engine, a->ints, x->data, &a->inputs[1], a->outputs[0].data, RUN_OF(a->ints, RUN_BY_SIZE, gather, element_size(x->dtype)));
}
/* (dy [index dims], shape, indices) -> dx: zeros with dy added at the positions that gather_elements reads. */
static inline int gather_elements_grad(const KernelArgs *a)
{
    const Tensor *dx = &a->outputs[0];
    zero_block(a->engine, dx->data, dx->count * element_size(dx->dtype));
    return along_axis(a->engine, a->ints, dx->data, &a->inputs[2], a->inputs[0].data, RUN_OF(a->ints, RUN_BY_TYPE, add, dx->dtype));
}
/* (data, indices, updates [index dims]) -> y = data, with `run` applied to the positions that gather_elements reads and the updates, in their order. */
static inline int scatter_to_copy(const KernelArgs *a, const int64_t *ints, ElementRun run)
{
    copy_block(a->engine, a->outputs[0].data, a->inputs[0].data, a->inputs[0].count * element_size(a->inputs[0].dtype));
    return along_axis(a->engine, ints, a->outputs[0].data, &a->inputs[1], a->inputs[2].data, run);
}
/* the last update of an element wins */
static inline int scatter_elements(const KernelArgs *a)
{ return scatter_to_copy(a, a->ints, RUN_OF(a->ints, RUN_BY_SIZE, assign, element_size(a->inputs[0].dtype))); }
static inline int scatter_elements_add(const KernelArgs *a) { return scatter_to_copy(a, a->ints, RUN_OF(a->ints, RUN_BY_TYPE, add, a->inputs[0].dtype)); }
/* ints: SCATTER_..., then as along_axis */
enum { SCATTER_MULTIPLY = 0, SCATTER_MAXIMUM = 1, SCATTER_MINIMUM = 2 };
static inline int scatter_elements_reduce(const KernelArgs *a)
{
    const int32_t d = a->inputs[0].dtype; const int64_t *ints = a->ints + 1;
    return scatter_to_copy(a, ints, a->ints[0] == SCATTER_MULTIPLY ? RUN_OF(ints, RUN_BY_TYPE, multiply, d)
                           : a->ints[0] == SCATTER_MAXIMUM ? RUN_OF(ints, RUN_BY_TYPE, maximum, d) : RUN_OF(ints, RUN_BY_TYPE, minimum, d));
}
#endif
