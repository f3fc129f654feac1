/* The state of a GEMM on AMX tiles (amx_gemm.h) and of its work items, and the epilogue: what happens to the sums of a block of C.
 *
 * A block is finished in the background: while the tiles of the next block are multiplied, finish_rows stores a few rows of the previous one after each step.
 * After the last chunk of the depth rows go to C with alpha, accumulation, bias and ReLU, before it to the kept sums in the L2 cache. */
#ifndef ORTRAIN_AMX_EPILOGUE_H
#define ORTRAIN_AMX_EPILOGUE_H
#include "matmul/amx_packing.h"
#include "matmul/gemm_parallel.h"
#include "matmul/implicit_gemm.h"
#if HAVE_AMX

enum {
    BLOCK_ELEMENTS = PANEL_SIZE * PANEL_SIZE,
    STAYING_ELEMENTS = STAYING_PANELS * CHUNK_STEPS * STEP_ELEMENTS, RUN_ELEMENTS = RUN_PANELS * CHUNK_STEPS * STEP_ELEMENTS,
    AMX_WORKSPACE_FLOATS = STAYING_ELEMENTS + RUN_ELEMENTS + KEPT_BLOCKS * BLOCK_ELEMENTS      /* two packed buffers per operand, elements of 2 bytes */
};
_Static_assert(SLICES * SLICED_BLOCKS <= KEPT_BLOCKS, "the blocks of all slices are kept");
_Static_assert(AMX_WORKSPACE_FLOATS + (1 << 16) <= PACKED_FLOATS, "a block that is out of range needs room for packed_gemm");

typedef struct AmxGemm {
    const Engine *engine;
    Operand a, b;
    int64_t m, n, k, ldc;
    float *c, alpha;
    const float *bias;
    int accumulate, relu, stream, rows_stay;
    int swapped;                                    /* a is op(B)^T and b is op(A)^T, so that blocks are those of C^T */
    const ImplicitGemm *windows;                    /* or NULL; it has the addresses of the rows of C */
    int64_t steps, chunks;                          /* steps of a chunk (the last one may have fewer), and number of chunks */
    int64_t staying, passing;                       /* panels of the staying and of the passing operand, */
    int64_t staying_parts, passing_parts;           /* and the number of parts that each is cut into */
    int64_t slices, parts, items;                   /* slices of the depth, parts of C in all slices, and work items that share the parts */
    const float **kept_by_part;                     /* with slices: part -> the kept blocks of the item that computed it */
} AmxGemm;

/* The pending end of a block: after the last chunk its sums, plus `kept`, are stored to C at (row, column) with the epilogue, else they are added to `kept`
 * (stored to it after the first chunk). `rows` rows are stored, of which `done` are.
 *
 * Loading the kept sums into the tiles and continuing to accumulate there takes the same time but forms one long chain of additions: 4 times the error at depth
 * 8192. */
typedef struct PendingBlock { float *kept; int64_t row, column, done, rows; int first, last; } PendingBlock;

/* A work item: one stage after another. Between the tile multiplications of a block it packs half tiles when they are due, and stores the previous block.
 *
 * Packing is spread evenly: each step of a block adds the number of half tiles of a packing to its credit, and a half tile is due, and costs `steps` of the
 * credit, when the credit has reached the number of steps in which the whole packing must be done. */
typedef struct AmxItem {
    const AmxGemm *p;
    const Operand *staying, *passing;
    int64_t run_panels;
    bfloat16 *stay[2], *run[2];
    float *blocks, *workspace;                      /* the kept blocks, and packing space for packed_gemm */
    float sums[BLOCK_ELEMENTS] __attribute__((aligned(64)));
    uint8_t stay_out_of_range[2][STAYING_PANELS], run_out_of_range[2][RUN_PANELS];
    BlockPacking stay_packing, run_packing;
    int64_t stay_credit, stay_steps, run_credit, run_steps;
    int whole_tiles;                                /* a step packs both halves of a tile of the run: one half per step would be too few */
    PendingBlock pending;
} AmxItem;

static inline int64_t rows_of_c(const AmxGemm *p) { return p->swapped ? p->n : p->m; }
static inline int64_t columns_of_c(const AmxGemm *p) { return p->swapped ? p->m : p->n; }

/* Return the address of a row of C. */
static inline float *row_of_c(const AmxGemm *p, int64_t row)
{
    const ImplicitGemm *w = p->windows;
    if (!w) return p->c + row * p->ldc;
    Point at = point_at(&w->windows, row);
    return p->c + at.image * w->image_step + at.y * w->row_step + at.x * w->column_step;
}

/* Store 16 sums, plus those kept unless NULL, to a row of C with the epilogue. */
static inline __attribute__((always_inline)) void finish_vector(const AmxGemm *p, const float *from, const float *kept, float *c, const float *bias,
                                                                __mmask16 mask)
{
    __m512 v = _mm512_load_ps(from);
    if (kept) v = _mm512_add_ps(v, _mm512_load_ps(kept));
    if (p->alpha != 1) v = _mm512_mul_ps(v, _mm512_set1_ps(p->alpha));
    if (p->accumulate) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, c));
    if (bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias));
    if (p->relu) v = _mm512_max_ps(_mm512_setzero_ps(), v);                     /* the second operand is returned for NaN */
    _mm512_mask_storeu_ps(c, mask, v);
}

/* Store rows of a block with the full epilogue. */
static void store_rows_with_epilogue(const AmxGemm *p, const PendingBlock *f, const float *from, const float *kept, int64_t rows)
{
    int64_t columns = min_i64(PANEL_SIZE, columns_of_c(p) - f->column);
    uint32_t mask = columns == PANEL_SIZE ? 0xffffffffu : (1u << columns) - 1;
    const float *bias = p->bias ? p->bias + f->column : 0;
    for (int64_t i = 0; i < rows; i++, from += PANEL_SIZE) {
        float *c = row_of_c(p, f->row + f->done + i) + f->column;
        finish_vector(p, from, kept, c, bias, (__mmask16)mask);
        if (mask >> 16) finish_vector(p, from + 16, kept ? kept + 16 : 0, c + 16, bias ? bias + 16 : 0, (__mmask16)(mask >> 16));
        if (kept) kept += PANEL_SIZE;
    }
}

/* Store full rows of a block without epilogue. At depth 128 these are a sixth of all instructions. */
static void store_rows(const float *from, const float *kept, float *c, int64_t step, int64_t rows, int stream)
{
    for (int64_t i = 0; i < rows; i++, from += PANEL_SIZE, c += step) {
        __m512 low = _mm512_load_ps(from), high = _mm512_load_ps(from + 16);
        if (kept) {
            low = _mm512_add_ps(low, _mm512_load_ps(kept));
            high = _mm512_add_ps(high, _mm512_load_ps(kept + 16));
            kept += PANEL_SIZE;
        }
        if (stream) { _mm512_stream_ps(c, low); _mm512_stream_ps(c + 16, high); }
        else { _mm512_storeu_ps(c, low); _mm512_storeu_ps(c + 16, high); }
    }
}

/* Store rows of a block to the kept sums, or add to them. */
static void keep_rows(const float *from, float *kept, int64_t rows, int first)
{
    for (int64_t i = 0; i < rows * PANEL_SIZE; i += 16) {
        __m512 v = _mm512_load_ps(from + i);
        _mm512_store_ps(kept + i, first ? v : _mm512_add_ps(v, _mm512_load_ps(kept + i)));
    }
}

/* sums [32, 32] = (sums + kept)^T; kept: or NULL */
static __attribute__((noinline)) void transpose_block(float *sums, const float *kept)
{
    float transposed[BLOCK_ELEMENTS] __attribute__((aligned(64)));
    if (kept) for (int64_t i = 0; i < BLOCK_ELEMENTS; i += 16) _mm512_store_ps(sums + i, _mm512_add_ps(_mm512_load_ps(sums + i), _mm512_load_ps(kept + i)));
    for (int64_t i = 0; i < PANEL_SIZE; i += 16)
        for (int64_t j = 0; j < PANEL_SIZE; j += 16) transpose_square(sums + i * PANEL_SIZE + j, PANEL_SIZE, transposed + j * PANEL_SIZE + i, PANEL_SIZE);
    memcpy(sums, transposed, sizeof(transposed));
}

/* Prefetch rows of C for writing while their block is computed: 3 % of the time of resnet50's 1 x 1 convolutions with cold caches. */
static inline __attribute__((always_inline)) void fetch_rows(const AmxGemm *p, const PendingBlock *f, int64_t first, int64_t count)
{
    if (!f->last || p->stream || p->windows) return;
    float *c = p->c + (f->row + first) * p->ldc + f->column;
    for (int64_t i = first; i < min_i64(first + count, f->rows); i++, c += p->ldc) {
        __builtin_prefetch(c, 1, 3);
        __builtin_prefetch(c + 16, 1, 3);
    }
}

/* Finish the next `count` rows of the pending block. */
static __attribute__((noinline)) void finish_rows(AmxItem *t, int64_t count)
{
    const AmxGemm *p = t->p;
    PendingBlock *f = &t->pending;
    if (p->swapped && f->last && f->done == 0 && f->rows > 0) {
        transpose_block(t->sums, f->first ? NULL : f->kept);
        f->first = 1;                               /* the sums now include the kept ones */
    }
    int64_t rows = min_i64(count, f->rows - f->done), done = f->done * PANEL_SIZE;
    const float *from = t->sums + done, *kept = f->first ? 0 : f->kept + done;
    int only_stored = columns_of_c(p) - f->column >= PANEL_SIZE && !p->windows && !p->accumulate && p->alpha == 1 && !p->bias && !p->relu;
    if (!f->last) keep_rows(from, f->kept + done, rows, f->first);
    else if (only_stored) store_rows(from, kept, p->c + (f->row + f->done) * p->ldc + f->column, p->ldc, rows, p->stream);
    else store_rows_with_epilogue(p, f, from, kept, rows);
    f->done += rows;
}
#endif
#endif
