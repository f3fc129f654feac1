/* Fused kernels: a sequence of other kernels, run block by block, so that the values between them stay in the first cache.
 *
 * The kernels are called as they are, on a part of their operands: each computes the same bits as if it had run over the whole tensors. A value that nothing
 * else reads never exists as a whole; it lives in a slot of the worker's workspace, one block long.
 *
 * A kernel that needs the workspace of its worker gets what is behind the slots; the planner leaves room for it (assembly.py: MAX_SLOTS).
 *
 * All kernels of a sequence share one iteration space of `rank` axes. Elementwise kernels run over all axes, or over the first `cut` of them: over rows, one
 * element per row. A reduction over the axes from `cut` on leads from the former to the latter. cut = 0: no rows. A block is a range of one axis (`level`) with
 * all axes after it, and whole rows if there are rows.
 *
 * ints: rank, cut, elements per block, number of operands and of calls, bytes per element of a slot, number of slots; the sizes of the axes; then
 *   per operand: where (OPERAND_*), its index there, data type, bytes per element, stride in elements along each axis;
 *   per call:    address of the kernel, form (FORM_*), whether it runs over rows, whether subnormals are flushed, index of its first float, an int to pass on,
 *                number of input operands, the output operand and three input operands.
 * floats: those of all calls, one call after the other. */
#ifndef ORTRAIN_FUSED_H
#define ORTRAIN_FUSED_H
#include <string.h>
#include "kernel.h"
#include "float_mode.h"

enum { OPERAND_INPUT, OPERAND_OUTPUT, OPERAND_SLOT };
enum { FORM_FLAT, FORM_BROADCAST, FORM_REDUCTION, FORM_ROWS };
enum { FUSED_HEADER = 7, FUSED_OPERAND = 4, FUSED_CALL = 11, FUSED_INPUTS = 3, FUSED_MAX_CALLS = 32, FUSED_MAX_OPERANDS = 128,
       FUSED_ITEM = 16384,           /* elements of a work item, as in elementwise/loops.h */
       FUSED_PREFETCH_BYTES = 1 << 25,   /* size of all operands from which on they are not in the last cache: prefetching makes 2^22 elements 1.3 times
                                            as fast, but 2^18 slower by a quarter */
       FUSED_SLOT_GAP = 128 };       /* bytes between slots, so that equal positions of two slots differ in their low address bits */

typedef struct { int64_t where, index, dtype, bytes; const int64_t *stride; char *data; int is_prefetched; } FusedOperand;

typedef struct {
    Kernel kernel;
    const int64_t *code;              /* the call in ints */
    KernelArgs args;
    Tensor tensors[FUSED_INPUTS + 1];
    int64_t ints[1 + (FUSED_INPUTS + 1) * ORTRAIN_MAX_RANK];
} FusedCall;

typedef struct {
    const KernelArgs *args;
    const int64_t *dims, *operand_code, *call_code;
    int64_t rank, cut, operands, calls;
    int64_t level, step, inner, pieces, blocks, blocks_per_item;     /* a block is `step` indices of axis `level`, each of `inner` elements */
    int64_t row, inner_rows;                                         /* elements of a row; rows per index of axis `level` */
} Fused;

static inline int64_t fused_product(const int64_t *dims, int64_t from, int64_t to)
{ int64_t product = 1; for (; from < to; from++) product *= dims[from]; return product; }

static inline Fused fused_of(const KernelArgs *args)
{
    const int64_t *s = args->ints;
    Fused f = { .args = args, .rank = s[0], .cut = s[1], .operands = s[3], .calls = s[4], .dims = s + FUSED_HEADER };
    int64_t block = s[2], first_rows = f.cut ? f.cut : f.rank;
    f.operand_code = f.dims + f.rank;
    f.call_code = f.operand_code + f.operands * (FUSED_OPERAND + f.rank);
    f.row = f.cut ? fused_product(f.dims, f.cut, f.rank) : 1;
    f.level = first_rows - 1; f.inner = f.row; f.inner_rows = 1;
    while (f.level > 0 && f.inner * f.dims[f.level] <= block) {
        f.inner *= f.dims[f.level]; f.inner_rows *= f.dims[f.level]; f.level--;
    }
    f.step = block / (f.inner > 0 ? f.inner : 1);
    if (f.step < 1) f.step = 1;
    if (f.step > f.dims[f.level]) f.step = f.dims[f.level];
    if (f.step < 1) return f;                                        /* an empty axis: no blocks */
    f.pieces = (f.dims[f.level] + f.step - 1) / f.step;
    f.blocks = f.pieces * fused_product(f.dims, 0, f.level);
    f.blocks_per_item = FUSED_ITEM / (f.step * f.inner);
    if (f.blocks_per_item < 1) f.blocks_per_item = 1;
    return f;
}

/* Return whether an operand has one stride along all axes of a block, 1 or 0, and store it. */
static inline int fused_uniform(const Fused *f, const FusedOperand *operand, int64_t end, int64_t *stride)
{
    int64_t contiguous = 1; int is_scalar = 1, is_contiguous = 1;
    for (int64_t d = end - 1; d >= f->level; d--) {
        if (f->dims[d] != 1 && operand->stride[d] != contiguous) is_contiguous = 0;
        if (f->dims[d] != 1 && operand->stride[d] != 0) is_scalar = 0;
        contiguous *= f->dims[d];
    }
    *stride = is_contiguous;
    return is_contiguous || is_scalar;
}

static inline int fused_is_contiguous(const Fused *f, const FusedOperand *operand)
{
    int64_t contiguous = 1;
    for (int64_t d = f->rank - 1; d >= 0; d--) { if (operand->stride[d] != contiguous) return 0; contiguous *= f->dims[d]; }
    return 1;
}

/* Write the ints of a broadcasting kernel (elementwise/loops.h) for blocks of `step` indices: one axis where possible. */
static inline void fused_broadcast_ints(const Fused *f, const FusedOperand *operands, FusedCall *call, int64_t step, int64_t elements, int64_t end)
{
    const int64_t *inputs = call->code + 8; int64_t count = call->code[6], uniform = 1, *ints = call->ints;
    for (int64_t i = 0; i < count; i++) uniform = fused_uniform(f, &operands[inputs[i]], end, &ints[2 + i]) && uniform;
    if (uniform) { ints[0] = 1; ints[1] = elements; return; }
    int64_t rank = end - f->level;
    ints[0] = rank;
    for (int64_t d = 0; d < rank; d++) {
        ints[1 + d] = d ? f->dims[f->level + d] : step;
        for (int64_t i = 0; i < count; i++) ints[1 + (1 + i) * rank + d] = operands[inputs[i]].stride[f->level + d];
    }
}

/* Prepare all calls for blocks of `step` indices of axis `level`. */
static inline void fused_prepare(const Fused *f, const FusedOperand *operands, FusedCall *calls, int64_t step)
{
    for (int64_t c = 0; c < f->calls; c++) {
        FusedCall *call = &calls[c];
        const int64_t *code = call->code;
        int over_rows = code[2] != 0;
        int64_t rows = step * f->inner_rows, elements = over_rows ? rows : step * f->inner;
        for (int64_t t = 0; t <= code[6]; t++) call->tensors[t].count = elements;       /* 0 is the output */
        if (code[1] == FORM_FLAT) call->ints[0] = code[5];
        else if (code[1] == FORM_BROADCAST) fused_broadcast_ints(f, operands, call, step, elements, over_rows ? f->cut : f->rank);
        else if (code[1] == FORM_ROWS) { int64_t ints[3] = { rows, f->row, 1 }; memcpy(call->ints, ints, sizeof ints); }
        else {                                                                           /* reduction/reduce.h */
            int64_t ints[8] = { rows, f->row, 1, rows, f->row, 1, f->row, 1 };
            call->tensors[1].count = rows * f->row;
            memcpy(call->ints, ints, sizeof ints);
        }
    }
}

/* Point the operands outside of slots to a block: `start` is its first index of axis `level`, `outer` the flat index over the axes before. */
static inline void fused_move(const Fused *f, FusedOperand *operands, int64_t outer, int64_t start)
{
    int64_t index[ORTRAIN_MAX_RANK];
    for (int64_t d = f->level - 1; d >= 0; d--) { index[d] = outer % f->dims[d]; outer /= f->dims[d]; }
    index[f->level] = start;
    for (int64_t o = 0; o < f->operands; o++) {
        FusedOperand *operand = &operands[o];
        if (operand->where == OPERAND_SLOT) continue;
        const Tensor *tensor = operand->where == OPERAND_INPUT ? &f->args->inputs[operand->index] : &f->args->outputs[operand->index];
        int64_t offset = 0;
        for (int64_t d = 0; d <= f->level; d++) offset += index[d] * operand->stride[d];
        operand->data = (char *)tensor->data + offset * operand->bytes;
    }
}

/* Load part `part` of `parts` of the next block of all contiguous operands into the cache: the processor does not, as each kernel reads only a block of its
 * operands at a time. always_inline: GCC removes calls of functions that do nothing but prefetch. */
static inline __attribute__((always_inline)) void fused_prefetch(const Fused *f, const FusedOperand *operands, int64_t part, int64_t parts)
{
    for (int64_t o = 0; o < f->operands; o++) {
        int64_t bytes = f->step * f->inner * operands[o].bytes;
        if (!operands[o].is_prefetched) continue;
        const char *next = operands[o].data + bytes;
        for (int64_t byte = part * bytes / parts / 64 * 64, end = (part + 1) * bytes / parts; byte < end; byte += 64)
            __builtin_prefetch(next + byte, 0, 3);
    }
}

static void fused_item(void *context, int64_t item, int64_t worker)
{
    const Fused *f = context;
    const KernelArgs *args = f->args;
    FusedOperand operands[FUSED_MAX_OPERANDS];
    FusedCall calls[FUSED_MAX_CALLS];
    double partial[2];                                                /* scratch of a reduction whose block has one row */
    Engine serial = *args->engine;
    char *slots = (char *)(args->engine->workspaces + worker * args->engine->workspace_floats);
    int64_t bytes = 0, slot_bytes = (f->step * f->inner * args->ints[5] + 63) / 64 * 64 + FUSED_SLOT_GAP;
    serial.pool = NULL; serial.workers = 1;
    serial.workspaces = (float *)(slots + args->ints[6] * slot_bytes);                    /* kernels along rows transpose short ones there */
    for (int64_t o = 0; o < f->operands; o++) {
        const int64_t *code = f->operand_code + o * (FUSED_OPERAND + f->rank);
        operands[o] = (FusedOperand){ code[0], code[1], code[2], code[3], code + FUSED_OPERAND, slots + code[1] * slot_bytes, 0 };
        operands[o].is_prefetched = code[0] != OPERAND_SLOT && fused_is_contiguous(f, &operands[o]);
        if (operands[o].is_prefetched) bytes += fused_product(f->dims, 0, f->rank) * code[3];
    }
    int prefetches = bytes >= FUSED_PREFETCH_BYTES;
    for (int64_t c = 0; c < f->calls; c++) {
        FusedCall *call = &calls[c];
        const int64_t *code = call->code = f->call_code + c * FUSED_CALL;
        call->kernel = (Kernel)code[0];
        call->args = (KernelArgs){ .inputs = call->tensors + 1, .outputs = call->tensors, .ints = call->ints, .floats = args->floats + code[4],
                                   .scratch = partial, .engine = &serial, .n_inputs = (int32_t)code[6], .n_outputs = 1 };
        for (int64_t t = 0; t <= code[6]; t++) { call->tensors[t].rank = 1; call->tensors[t].dtype = (int32_t)operands[code[7 + t]].dtype; }
    }
    FloatMode base = float_mode(), mode = base;
    int64_t prepared = 0, end = (item + 1) * f->blocks_per_item;
    for (int64_t block = item * f->blocks_per_item; block < end && block < f->blocks; block++) {
        int64_t start = block % f->pieces * f->step, step = f->dims[f->level] - start < f->step ? f->dims[f->level] - start : f->step;
        if (step != prepared) { fused_prepare(f, operands, calls, step); prepared = step; }
        fused_move(f, operands, block / f->pieces, start);
        for (int64_t c = 0; c < f->calls; c++) {
            FusedCall *call = &calls[c];
            for (int64_t t = 0; t <= call->code[6]; t++) call->tensors[t].data = operands[call->code[7 + t]].data;
            FloatMode needed = call->code[3] ? base | FLUSH_SUBNORMALS : base;
            if (needed != mode) { set_float_mode(needed); mode = needed; }
            if (prefetches && block + 1 < end) fused_prefetch(f, operands, c, f->calls);
            call->kernel(&call->args);
        }
    }
    if (mode != base) set_float_mode(base);
}

static int fused(const KernelArgs *args)
{
    Fused f = fused_of(args);
    if (f.blocks > 0) args->engine->parallel_for(args->engine, fused_item, &f, (f.blocks + f.blocks_per_item - 1) / f.blocks_per_item);
    return STATUS_OK;
}
#endif
