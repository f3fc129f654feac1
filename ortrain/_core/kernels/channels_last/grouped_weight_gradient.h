/* Weight gradient of a convolution with narrow groups (grouped.h): sums over the pixels of a block, which stay in the L1 cache for all steps and taps. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)

/* sums at the weights of RUNS runs of TAPS taps += the sums over rows and columns of x at a tap times dy. GROUPED_SUMMED_COLUMNS columns at a time, which share
 * the pixels of adjacent taps; even and odd ones have sums of their own. lanes: those of the step. */
#define ADD_COLUMNS(TAPS, RUNS, COLUMNS, PIXEL)                                                                                                           \
    {                                                                                                                                                     \
        V factor[COLUMNS];                                                                                                                                \
        LOAD_AGAIN(o);                                                                                                                                    \
        _Pragma("GCC unroll 4") for (int i = 0; i < COLUMNS; i++) factor[i] = LOAD(dy + o + i * W);                                                       \
        _Pragma("GCC unroll 6") for (int r = 0; r < RUNS; r++)                                                                                            \
            _Pragma("GCC unroll 6") for (int i = 0; i < COLUMNS + TAPS - 1; i++) {                                                                        \
                V pixel = PIXEL(from[r] + o + i * W);                                                                                                     \
                KEEP_IN_REGISTER(pixel);                                                                                                                  \
                _Pragma("GCC unroll 3") for (int t = 0; t < TAPS; t++)                                                                                    \
                    if (i >= t && i - t < COLUMNS) sum[(i - t) % 2][r][t] += pixel * factor[i >= t && i - t < COLUMNS ? i - t : 0];                       \
            }                                                                                                                                             \
    }
#define GROUPED_SUMS(NAME, TAPS, RUNS, PIXEL)                                                                                                             \
NOINLINE void NAMED(NAME##_##TAPS##_##RUNS)(const GroupedRun *runs, const REAL *x, int64_t x_row, const REAL *dy, int64_t dy_row, int64_t rows,           \
                                            int64_t columns, NAMED(Mask) lanes, REAL *sums)                                                               \
{                                                                                                                                                         \
    V sum[2][RUNS][TAPS];                                                                                                                                 \
    const REAL *from[RUNS];                                                                                                                               \
    (void)lanes;                                                                                                                                          \
    _Pragma("GCC unroll 6") for (int r = 0; r < RUNS; r++) {                                                                                              \
        from[r] = x + runs[r].offset;                                                                                                                     \
        _Pragma("GCC unroll 3") for (int t = 0; t < TAPS; t++) sum[0][r][t] = sum[1][r][t] = (V){0};                                                      \
    }                                                                                                                                                     \
    for (int64_t row = 0; row < rows; row++, dy += dy_row) {                                                                                              \
        int64_t o = 0;                                                                                                                                    \
        for (; o + GROUPED_SUMMED_COLUMNS * W <= columns * W; o += GROUPED_SUMMED_COLUMNS * W)                                                            \
            ADD_COLUMNS(TAPS, RUNS, GROUPED_SUMMED_COLUMNS, PIXEL)                                                                                        \
        for (; o < columns * W; o += W) ADD_COLUMNS(TAPS, RUNS, 1, PIXEL)                                                                                 \
        _Pragma("GCC unroll 6") for (int r = 0; r < RUNS; r++) from[r] += x_row;                                                                          \
    }                                                                                                                                                     \
    _Pragma("GCC unroll 6") for (int r = 0; r < RUNS; r++)                                                                                                \
        _Pragma("GCC unroll 3") for (int t = 0; t < TAPS; t++) {                                                                                          \
            REAL *to = sums + runs[r].weight[t];                                                                                                          \
            STORE(to, LOAD(to) + (sum[0][r][t] + sum[1][r][t]));                                                                                          \
        }                                                                                                                                                 \
}
/* [taps - 1][runs - 1] */
#define GROUPED_SUM_TABLE(NAME, PIXEL)                                                                                                                    \
GROUPED_SUMS(NAME, 1, 1, PIXEL) GROUPED_SUMS(NAME, 1, 2, PIXEL) GROUPED_SUMS(NAME, 1, 3, PIXEL) GROUPED_SUMS(NAME, 1, 4, PIXEL)                           \
GROUPED_SUMS(NAME, 1, 5, PIXEL) GROUPED_SUMS(NAME, 1, 6, PIXEL) GROUPED_SUMS(NAME, 2, 1, PIXEL) GROUPED_SUMS(NAME, 2, 2, PIXEL)                           \
GROUPED_SUMS(NAME, 2, 3, PIXEL) GROUPED_SUMS(NAME, 3, 1, PIXEL) GROUPED_SUMS(NAME, 3, 2, PIXEL)                                                           \
static const NAMED(GroupedSums) NAMED(NAME)[3][GROUPED_SUMMED_TAPS] = {                                                                                   \
    { NAMED(NAME##_1_1), NAMED(NAME##_1_2), NAMED(NAME##_1_3), NAMED(NAME##_1_4), NAMED(NAME##_1_5), NAMED(NAME##_1_6) },                                 \
    { NAMED(NAME##_2_1), NAMED(NAME##_2_2), NAMED(NAME##_2_3) }, { NAMED(NAME##_3_1), NAMED(NAME##_3_2) }                                                 \
};
typedef void (*NAMED(GroupedSums))(const GroupedRun *, const REAL *, int64_t, const REAL *, int64_t, int64_t, int64_t, NAMED(Mask), REAL *);
GROUPED_SUM_TABLE(spread_sums, SPREAD_PIXEL)
GROUPED_SUM_TABLE(spreading_sums, SPREADING_PIXEL)
GROUPED_SUM_TABLE(broadcast_sums, BROADCAST_PIXEL)
#undef ADD_COLUMNS
#undef GROUPED_SUMS
#undef GROUPED_SUM_TABLE

/* to [planes, rows, columns, WIDTH] = dy of a block for a vector of filters. */
static void NAMED(copy_grouped_dy)(const NAMED(Grouped) *s, int64_t vector, const GroupedBlock *block, REAL *to)
{
    int64_t first = NAMED(first_of_vector)(s, vector), lanes = min_i64(W, s->outputs);
    int64_t top = (block->image * s->z_axis.outputs + block->z) * s->y_axis.outputs + block->top;
    for (int64_t row = 0; row < block->planes * block->rows; row++) {
        int64_t y = top + row / block->rows * s->y_axis.outputs + row % block->rows;
        const REAL *from = s->dy + (y * s->x_axis.outputs + block->left) * s->outputs + first;
        for (int64_t i = 0; i < block->columns; i++, from += s->outputs, to += W) {
            if (lanes == W) { STORE(to, LOAD(from)); continue; }
            for (int64_t l = 0; l < W; l++) to[l] = l < lanes ? from[l] : 0;
        }
    }
}

/* Set *taps to all taps, with runs of as many taps side by side and offsets of their sums [tap, WIDTH] as weights. */
static void NAMED(summed_taps)(const NAMED(Grouped) *s, GroupedTaps *taps)
{
    GroupedTaps all;
    NAMED(grouped_taps)(s, 0, 0, 0, &all);
    taps->rows = 0;
    for (int64_t length = 1; length <= 3; length++)
        for (int64_t r = 0; r < all.start[all.rows]; r++) {
            GroupedRun run = all.runs[r];
            if (run.taps != length) continue;
            for (int64_t t = 0; t < length; t++) run.weight[t] /= s->group_inputs;
            taps->runs[taps->rows++] = run;
        }
}

/* sums [step, tap, WIDTH] of a vector += those of a block. x: the spread inputs; dy: a copy of the gradient. */
static void NAMED(sum_block)(const NAMED(Grouped) *s, const GroupedTaps *taps, const GroupedBlock *block, NAMED(Mask) lanes, const REAL *x, const REAL *dy,
                             REAL *sums)
{
    const NAMED(Mask) one = 1 - (NAMED(Mask)){0};
    int64_t dy_row = block->columns * W, count;
    const int broadcast = NAMED(broadcasts)(s) || !HAS_SHUFFLE;
    const NAMED(GroupedSums) (*functions)[GROUPED_SUMMED_TAPS] = !s->in_tiles ? NAMED(spread_sums) : broadcast ? NAMED(broadcast_sums) : NAMED(spreading_sums);
    const REAL *const buffer = x;
    for (int64_t c = 0; c < s->group_inputs; c++, sums += s->taps * W, lanes += one) {
        x = !s->in_tiles ? buffer + c * s->plane : broadcast ? buffer + lanes[0] / W * s->plane + lanes[0] % W : buffer;
        for (int64_t r = 0; r < taps->rows; r += count) {
            int64_t length = taps->runs[r].taps;
            count = 1;
            while (r + count < taps->rows && taps->runs[r + count].taps == length && (count + 1) * length <= GROUPED_SUMMED_TAPS) count++;
            for (int64_t point = 0; point < block->planes; point++)
                functions[length - 1][count - 1](taps->runs + r, x + point * s->z_axis.step * s->depth, s->y_axis.step * s->row,
                                                 dy + point * block->rows * dy_row, dy_row, block->rows, block->columns, lanes, sums);
        }
    }
}

/* sums [slice, vector, step, tap, WIDTH] over the blocks of a slice. A work item is a slice. */
static void NAMED(grouped_weight_gradient_item)(void *context, int64_t slice, int64_t worker)
{
    const NAMED(Grouped) *s = context;
    GroupedTaps taps;
    int64_t capacity, size = s->taps * s->group_inputs * W, dy_size = s->block_planes * s->block_rows * s->block_columns * W;
    REAL *dy = NAMED(workspace)(s->engine, worker, &capacity), *buffer = dy + dy_size, *sums = s->sums + slice * s->vectors * size;
    NAMED(summed_taps)(s, &taps);
    memset(sums, 0, (size_t)(s->vectors * size) * sizeof(REAL));
    for (int64_t item = slice * s->blocks / s->slices; item < (slice + 1) * s->blocks / s->slices; item++) {
        GroupedBlock block = NAMED(grouped_block)(s, item);
        for (int64_t vector = 0; vector < s->vectors; vector++) {
            NAMED(Spread) spread = NAMED(spread_of)(s, vector);
            NAMED(copy_grouped_dy)(s, vector, &block, dy);
            NAMED(spread_block)(s, &spread, &block, 1, buffer);
            NAMED(sum_block)(s, &taps, &block, spread.lane, buffer, dy, sums + vector * size);
        }
    }
}

/* s->dw = the weight gradient. scratch: the sums. */
static void NAMED(grouped_weight_gradient)(NAMED(Grouped) *s, REAL *scratch)
{
    int64_t size = s->taps * s->group_inputs * W;
    s->sums = scratch;
    s->engine->parallel_for(s->engine, NAMED(grouped_weight_gradient_item), s, s->slices);
    for (int64_t slice = 1; slice < s->slices; slice++) NAMED(add_elements)(s->sums, s->sums + slice * s->vectors * size, s->vectors * size);
    for (int64_t k = 0; k < s->outputs; k++) {
        int64_t vector = k / W, lane = k - NAMED(first_of_vector)(s, vector);
        for (int64_t i = 0; i < s->taps * s->group_inputs; i++) s->dw[k * s->taps * s->group_inputs + i] = s->sums[vector * size + i * W + lane];
    }
}
#undef V
#undef W
