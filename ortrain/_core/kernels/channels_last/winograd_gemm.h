/* The GEMMs of Winograd convolutions between the transforms of tiles (winograd.h, winograd_stride2.h), the transforms of filters, and the division into work
 * items, which differs for few and for many tiles. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)

/* ---- the transforms of filters, and those of tiles by stride */

/* planes [36] = G taps [9] G^T. There are two functions, because one function that selects the transform was not inlined and passed vectors through memory. */
#define FILTER_TRANSFORM(NAME, TRANSFORM)                                                                   \
ALWAYS_INLINE void NAME(const V *taps, REAL *planes, int64_t plane_step)                                    \
{                                                                                                           \
    V m[6][3], o[6];                                                                                        \
    _Pragma("GCC unroll 3") for (int j = 0; j < 3; j++) {                                                   \
        TRANSFORM(o, taps[j], taps[3 + j], taps[6 + j]);                                                    \
        _Pragma("GCC unroll 6") for (int i = 0; i < 6; i++) m[i][j] = o[i];                                 \
    }                                                                                                       \
    _Pragma("GCC unroll 6") for (int i = 0; i < 6; i++) {                                                   \
        TRANSFORM(o, m[i][0], m[i][1], m[i][2]);                                                            \
        _Pragma("GCC unroll 6") for (int j = 0; j < 6; j++) STORE(planes + (i * 6 + j) * plane_step, o[j]); \
    }                                                                                                       \
}
FILTER_TRANSFORM(NAMED(f43_filter_2d), NAMED(f43_filter))
FILTER_TRANSFORM(NAMED(stride2_filter_2d), NAMED(stride2_filter_1d))
#undef FILTER_TRANSFORM

/* Transform WIDTH channels, one per step of `taps`, of WIDTH filters, one per lane. */
ALWAYS_INLINE void NAMED(transform_filter_block)(const V *taps, REAL *planes, int64_t plane_step, int strided)
{
    if (strided) for (int i = 0; i < W; i++) NAMED(stride2_filter_2d)(taps + 9 * i, planes + i * NAMED(PANEL), plane_step);
    else for (int i = 0; i < W; i++) NAMED(f43_filter_2d)(taps + 9 * i, planes + i * NAMED(PANEL), plane_step);
}

/* taps[c * 9 + tap] = w for WIDTH filters from k on, one per lane, and WIDTH channels from c on. The weights are read once, in 16 rows of 576 bytes, which the
 * hardware does not prefetch, so the elements `ahead` are prefetched. */
ALWAYS_INLINE void NAMED(load_taps)(const REAL *w, int64_t channels, int64_t k, int64_t c, int64_t ahead, V *taps)
{
    _Pragma("GCC unroll 1") for (int q = 0; q < 9; q++) {
        V r[W];
        _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) {
            const REAL *from = w + ((k + i) * channels + c) * 9 + q * W;
            __builtin_prefetch(from + ahead, 0, 3);
            r[i] = LOAD(from);
        }
        NAMED(transpose)(r);
        _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) taps[q * W + i] = r[i];
    }
}

/* filters [36, panel, depth, PANEL] = the transformed filters of outputs [first, first + count) and input channels [from, from + depth). */
NOINLINE void NAMED(transform_filters)(const NAMED(Winograd) *s, int64_t from, int64_t depth, int64_t first, int64_t count, REAL *filters, int64_t plane_step)
{
    V taps[9 * W], rotated_taps[9 * W];
    for (int64_t k = 0; k < count; k += W) {
        REAL *panel = filters + k / NAMED(PANEL) * depth * NAMED(PANEL) + k % NAMED(PANEL);
        for (int64_t c = 0; c < depth; c += W) {
            int64_t plane = (from + c) / s->in_channels, channel = (from + c) % s->in_channels;
            const REAL *w = s->w + plane * s->in_channels * s->outputs * 9;
            if (!s->rotated) {
                NAMED(load_taps)(w, s->channels, first + k, channel, 9 * W, taps);
                NAMED(transform_filter_block)(taps, panel + c * NAMED(PANEL), plane_step, s->strided);
                continue;
            }
            NAMED(load_taps)(w, s->channels, channel, first + k, W * s->channels * 9, taps);
            _Pragma("GCC unroll 1") for (int q = 0; q < 9; q++) {
                V r[W];
                _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) r[i] = taps[i * 9 + 8 - q];
                NAMED(transpose)(r);
                _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) rotated_taps[i * 9 + q] = r[i];
            }
            NAMED(transform_filter_block)(rotated_taps, panel + c * NAMED(PANEL), plane_step, s->strided);
        }
    }
}

ALWAYS_INLINE void NAMED(tile_input)(const NAMED(Winograd) *s, int64_t tile, REAL *planes, int64_t plane_step)
{
    if (!s->strided) {
        NAMED(TilePosition) at = NAMED(tile_position)(s, tile);
        int64_t plane = at.image;
        for (int64_t r = 0; r < s->g->kernel_z; r++, planes += s->in_channels) {
            at.image = input_plane(s->g, s->rotated, plane, r);
            if (at.image >= 0) NAMED(transform_input)(s, at, planes, plane_step);
            else for (int p = 0; p < PLANES; p++) memset(planes + p * plane_step, 0, (size_t)s->in_channels * sizeof(REAL));
        }
    } else if (s->rotated) NAMED(stride2_data_input)(s, tile, planes, plane_step);
    else NAMED(stride2_input)(s, tile, planes, plane_step);
}
ALWAYS_INLINE void NAMED(tile_gradient)(const NAMED(Winograd) *s, int64_t tile, REAL *planes, int64_t plane_step)
{ (s->strided ? NAMED(stride2_gradient) : NAMED(transform_gradient))(s, tile, planes, plane_step); }
ALWAYS_INLINE void NAMED(tile_output)(const NAMED(Winograd) *s, int64_t tile, const REAL *planes, int64_t plane_step, int64_t first, int64_t count)
{
    if (!s->strided) NAMED(transform_output)(s, tile, planes, plane_step, first, count);
    else if (s->rotated) NAMED(stride2_data_output)(s, tile, planes, plane_step, first, count);
    else NAMED(stride2_output)(s, tile, planes, plane_step, first, count);
}

/* ---- kernels with several planes */

/* Exchange the order of w [k, channels, planes, 9] and [planes, k, channels, 9]. A work item is a filter. */
typedef struct NAMED(KernelPlanes) { const REAL *from; REAL *to; int64_t filters, channels, planes; int merge; } NAMED(KernelPlanes);
static void NAMED(kernel_planes_item)(void *context, int64_t filter, int64_t worker)
{
    const NAMED(KernelPlanes) *s = context; (void)worker;
    for (int64_t c = 0; c < s->channels; c++)
        for (int64_t plane = 0; plane < s->planes; plane++) {
            int64_t merged = ((filter * s->channels + c) * s->planes + plane) * 9, split = ((plane * s->filters + filter) * s->channels + c) * 9;
            for (int i = 0; i < 9; i++) s->to[(s->merge ? merged : split) + i] = s->from[(s->merge ? split : merged) + i];
        }
}
static void NAMED(exchange_kernel_planes)(const NAMED(Winograd) *s, const REAL *from, REAL *to, int merge)
{
    NAMED(KernelPlanes) planes = { from, to, s->g->filters, s->g->channels, s->g->kernel_z, merge };
    s->engine->parallel_for(s->engine, NAMED(kernel_planes_item), &planes, s->g->filters);
}
ALWAYS_INLINE int64_t NAMED(kernel_planes_size)(const Geometry *g) { return g->kernel_z > 1 ? g->filters * g->channels * g->kernel_z * 9 : 0; }

/* ---- forward and data gradient */

/* A full tile of gemm_nn that prefetches the rows of the next plane: 16 rows from `next` on, one line per step. */
NOINLINE void NAMED(plane_tile)(int64_t depth, const REAL *restrict a, int64_t a_step, const REAL *restrict b, REAL *restrict c, int64_t ldc, int accumulate,
                                const REAL *next)
{
    V sum[FULL_ROWS][2];
    _Pragma("GCC unroll 16") for (int i = 0; i < FULL_ROWS; i++)
        _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) sum[i][j] = accumulate ? LOAD(c + i * ldc + j * W) : (V){0};
    for (int64_t r = 0; r < 16; r++, next += a_step)
        for (int64_t p = 0; p < depth; p += 16, a++, b += 2 * W) {
            V low = LOAD(b), high = LOAD(b + W);
            __builtin_prefetch(next + p, 0, 2);
            _Pragma("GCC unroll 16") for (int i = 0; i < FULL_ROWS; i++) {
                V element = a[i * a_step] - (V){0};
                sum[i][0] += element * low; sum[i][1] += element * high;
            }
        }
    _Pragma("GCC unroll 16") for (int i = 0; i < FULL_ROWS; i++)
        _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) STORE(c + i * ldc + j * W, sum[i][j]);
}

/* c [m, PANEL] = a [m, depth] b (+ c); rows of a are a_step apart. next: the same rows of the next plane. */
static void NAMED(plane_gemm)(int64_t m, int64_t depth, const REAL *a, int64_t a_step, const REAL *b, REAL *c, int accumulate, const REAL *next)
{
    int64_t i = 0;
    for (; i + FULL_ROWS <= m; i += FULL_ROWS)
        NAMED(plane_tile)(depth, a + i * a_step, a_step, b, c + i * NAMED(PANEL), NAMED(PANEL), accumulate, next + i * a_step);
    if (i < m) NAMED(gemm_nn)(m - i, NAMED(PANEL), depth, a + i * a_step, a_step, b, NAMED(PANEL), 0, c + i * NAMED(PANEL), NAMED(PANEL), accumulate);
}

/* Multiply all planes of `count` tiles by the filters of one block of outputs and one block of the depth, and after the last block of the depth store the
 * outputs of these tiles. */
static void NAMED(multiply_tiles)(const NAMED(Winograd) *s, const REAL *planes, int64_t plane_step, int64_t tile, int64_t count, int64_t first, int64_t outputs,
                                  const REAL *filters, int64_t filter_step, int64_t from, int64_t depth, REAL *results, int64_t result_step)
{
    int fetching = VECTOR_BYTES == 64 && s->few_tiles && outputs == NAMED(PANEL);
    for (int64_t i = 0; i < s->points; i++)
        for (int64_t j = 0; j < s->points; j++) {
            int64_t p = i * s->points + j;
            const REAL *a = planes + p * plane_step + from, *b = filters + filter_plane(i, j) * filter_step;
            REAL *c = results + p * result_step;
            if (fetching) NAMED(plane_gemm)(count, depth, a, s->depth, b, c, from > 0, p + 1 < s->points * s->points ? a + plane_step : planes + from + depth);
            else NAMED(gemm_nn)(count, outputs, depth, a, s->depth, b, NAMED(PANEL), depth * NAMED(PANEL), c, outputs, from > 0);
        }
    if (from + depth < s->depth) return;
    for (int64_t t = 0; t < count; t++) NAMED(tile_output)(s, tile + t, results + t * outputs, result_step, first, outputs);
}

ALWAYS_INLINE int64_t NAMED(filter_step)(const NAMED(Winograd) *s)
{ return min_i64(DEPTH_BLOCK, s->depth) * ceil_div(min_i64(FILTER_BLOCK, s->outputs), WHOLE_PANEL) * WHOLE_PANEL + PLANE_PAD; }

/* With many tiles: first transform all filters. A work item is a block of outputs and of the depth. */
static void NAMED(filter_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    int64_t depths = ceil_div(s->depth, DEPTH_BLOCK), first = item / depths * FILTER_BLOCK, from = item % depths * DEPTH_BLOCK, step = NAMED(filter_step)(s);
    NAMED(transform_filters)(s, from, min_i64(DEPTH_BLOCK, s->depth - from), first, min_i64(FILTER_BLOCK, s->outputs - first),
                             s->filters + item * PLANES * step, step);
}

/* With many tiles: then compute the outputs. A work item is a block of tiles. */
static void NAMED(tile_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context;
    int64_t capacity, tile = item * s->block, count = min_i64(s->block, s->tiles - tile), plane_step = s->block * s->depth + PLANE_PAD;
    int64_t result_step = s->block * min_i64(FILTER_BLOCK, s->outputs) + PLANE_PAD, filter_step = NAMED(filter_step)(s);
    REAL *planes = NAMED(workspace)(s->engine, worker, &capacity), *results = planes + s->points * s->points * plane_step;
    const REAL *filters = s->filters;
    for (int64_t t = 0; t < count; t++) NAMED(tile_input)(s, tile + t, planes + t * s->depth, plane_step);
    for (int64_t first = 0; first < s->outputs; first += FILTER_BLOCK)
        for (int64_t from = 0; from < s->depth; from += DEPTH_BLOCK, filters += PLANES * filter_step)
            NAMED(multiply_tiles)(s, planes, plane_step, tile, count, first, min_i64(FILTER_BLOCK, s->outputs - first), filters, filter_step, from,
                                  min_i64(DEPTH_BLOCK, s->depth - from), results, result_step);
}

/* With few tiles: first transform all tiles. A work item is a tile. */
static void NAMED(few_input_item)(void *context, int64_t tile, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    NAMED(tile_input)(s, tile, s->planes + tile * s->depth, s->tiles * s->depth + PLANE_PAD);
}

/* With few tiles: then compute the outputs. A work item is a block of outputs, whose filters are transformed right before they are used and never stored. */
static void NAMED(few_output_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context;
    int64_t capacity, first = item * FEW_FILTER_BLOCK, outputs = min_i64(FEW_FILTER_BLOCK, s->outputs - first), plane_step = s->tiles * s->depth + PLANE_PAD;
    int64_t filter_step = FEW_DEPTH_BLOCK * FEW_FILTER_BLOCK + PLANE_PAD, result_step = s->tiles * outputs + PLANE_PAD;
    REAL *filters = NAMED(workspace)(s->engine, worker, &capacity), *results = filters + PLANES * filter_step;
    for (int64_t from = 0; from < s->depth; from += FEW_DEPTH_BLOCK) {
        int64_t depth = min_i64(FEW_DEPTH_BLOCK, s->depth - from);
        NAMED(transform_filters)(s, from, depth, first, outputs, filters, filter_step);
        NAMED(multiply_tiles)(s, s->planes, plane_step, 0, s->tiles, first, outputs, filters, filter_step, from, depth, results, result_step);
    }
}

static void NAMED(winograd_tiles)(NAMED(Winograd) *s)
{
    int64_t size = s->strided && s->rotated ? 8 : 4;
    s->points = s->strided ? 9 : 6;
    s->tiles_y = ceil_div(s->out_rows, size);
    s->tiles_x = ceil_div(s->out_columns, size);
    s->tiles = s->images * s->tiles_y * s->tiles_x;
    s->few_tiles = s->tiles <= FEW_TILES;
}

/* s->out = epilogue(conv(s->in, w)). scratch: w by planes if it has several; then with few tiles the planes of all tiles, else the transformed filters
 * (winograd_scratch in ops/shared/conv_algorithms.py). */
static void NAMED(winograd)(NAMED(Winograd) *s, REAL *scratch)
{
    int64_t capacity;
    NAMED(winograd_tiles)(s);
    if (s->g->kernel_z > 1) {
        NAMED(exchange_kernel_planes)(s, s->w, scratch, 0);
        s->w = scratch;
        scratch += NAMED(kernel_planes_size)(s->g);
    }
    s->planes = s->filters = scratch;
    if (s->few_tiles) {
        s->engine->parallel_for(s->engine, NAMED(few_input_item), s, s->tiles);
        s->engine->parallel_for(s->engine, NAMED(few_output_item), s, ceil_div(s->outputs, FEW_FILTER_BLOCK));
        return;
    }
    NAMED(workspace)(s->engine, 0, &capacity);
    s->block = min_i64(TILE_BLOCK, max_i64(1, (capacity / (s->points * s->points) - 2 * PLANE_PAD) / (s->depth + min_i64(FILTER_BLOCK, s->outputs))));
    s->engine->parallel_for(s->engine, NAMED(filter_item), s, ceil_div(s->outputs, FILTER_BLOCK) * ceil_div(s->depth, DEPTH_BLOCK));
    s->engine->parallel_for(s->engine, NAMED(tile_item), s, ceil_div(s->tiles, s->block));
}

/* ---- weight gradient */

/* Transform one tile of the input and of dy. The rows of a plane are PLANE_PAD elements longer than necessary, which spreads the columns that gemm_tn reads
 * over the sets of the L1 cache. */
static void NAMED(gradient_transform_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    int64_t input_row = s->depth + PLANE_PAD, output_row = s->outputs + PLANE_PAD;
    NAMED(tile_input)(s, s->first + item, s->planes + item * input_row, s->block * input_row + PLANE_PAD);
    NAMED(tile_gradient)(s, s->first + item, s->gradients + item * output_row, s->block * output_row + PLANE_PAD);
}

/* sums [depth, outputs] of one plane of the filter (+)= planes^T gradients over the tiles at work. */
static void NAMED(weight_gradient_plane)(const NAMED(Winograd) *s, int64_t plane, int64_t from, int64_t depth, int64_t first, int64_t outputs, REAL *sums,
                                         int64_t sums_row, int accumulate)
{
    int64_t input_row = s->depth + PLANE_PAD, output_row = s->outputs + PLANE_PAD;
    int64_t y = plane / 6, x = plane % 6, y_end = y == 5 ? s->points : y + 1, x_end = x == 5 ? s->points : x + 1;
    for (int64_t i = y; i < y_end; i++)
        for (int64_t j = x; j < x_end; j++, accumulate = 1) {
            int64_t p = i * s->points + j;
            NAMED(gemm_tn)(depth, outputs, s->count, s->planes + p * (s->block * input_row + PLANE_PAD) + from, input_row,
                           s->gradients + p * (s->block * output_row + PLANE_PAD) + first, output_row, NAMED(PANEL), sums, sums_row, accumulate);
        }
}

/* taps [9] = G^T sums [36] G, the adjoint of the transform of filters. */
#define FILTER_ADJOINT(NAME, TRANSFORM)                                                                                                  \
ALWAYS_INLINE void NAME(V *taps, const REAL *sums, int64_t plane_step)                                                                   \
{                                                                                                                                        \
    V m[3][6], o[3];                                                                                                                     \
    _Pragma("GCC unroll 6") for (int j = 0; j < 6; j++) {                                                                                \
        const REAL *q = sums + j * plane_step;                                                                                           \
        TRANSFORM(o, LOAD(q), LOAD(q + 6 * plane_step), LOAD(q + 12 * plane_step), LOAD(q + 18 * plane_step), LOAD(q + 24 * plane_step), \
               LOAD(q + 30 * plane_step));                                                                                               \
        _Pragma("GCC unroll 3") for (int r = 0; r < 3; r++) m[r][j] = o[r];                                                              \
    }                                                                                                                                    \
    _Pragma("GCC unroll 3") for (int r = 0; r < 3; r++)                                                                                  \
        TRANSFORM(taps + 3 * r, m[r][0], m[r][1], m[r][2], m[r][3], m[r][4], m[r][5]);                                                   \
}
FILTER_ADJOINT(NAMED(f43_filter_adjoint_2d), NAMED(f43_filter_adjoint))
FILTER_ADJOINT(NAMED(stride2_filter_adjoint_2d), NAMED(stride2_filter_adjoint_1d))
#undef FILTER_ADJOINT

/* dw of WIDTH channels from depth c on and filters [first, first + outputs) = G^T sums G, transposed to ONNX's layout. */
static void NAMED(store_weights)(const NAMED(Winograd) *s, const REAL *sums, int64_t plane_step, int64_t row, int64_t c, int64_t first, int64_t outputs)
{
    V taps[9 * W];
    REAL *dw = s->dw + (c / s->in_channels * s->outputs * s->in_channels + c % s->in_channels) * 9;
    for (int64_t k = 0; k < outputs; k += W) {
        for (int i = 0; i < W; i++) {
            for (int q = 0; q < 9; q++) __builtin_prefetch(dw + (first + k + i) * s->in_channels * 9 + q * W, 1, 3);
            if (s->strided) NAMED(stride2_filter_adjoint_2d)(taps + 9 * i, sums + i * row + k, plane_step);
            else NAMED(f43_filter_adjoint_2d)(taps + 9 * i, sums + i * row + k, plane_step);
        }
        _Pragma("GCC unroll 1") for (int q = 0; q < 9; q++) {
            V r[W];
            _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) r[i] = taps[q * W + i];
            NAMED(transpose)(r);
            _Pragma("GCC unroll 16") for (int i = 0; i < W; i++) STORE(dw + (first + k + i) * s->in_channels * 9 + q * W, r[i]);
        }
    }
}

/* With few tiles: a work item is a block of channels and filters, whose sums are in the worker's workspace. */
static void NAMED(few_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context;
    int64_t capacity, depths = ceil_div(s->depth, GRADIENT_DEPTH_BLOCK), first = item / depths * FILTER_BLOCK, from = item % depths * GRADIENT_DEPTH_BLOCK;
    int64_t depth = min_i64(GRADIENT_DEPTH_BLOCK, s->depth - from), outputs = min_i64(FILTER_BLOCK, s->outputs - first), step = depth * outputs + PLANE_PAD;
    REAL *sums = NAMED(workspace)(s->engine, worker, &capacity);
    for (int p = 0; p < PLANES; p++) NAMED(weight_gradient_plane)(s, p, from, depth, first, outputs, sums + p * step, outputs, 0);
    for (int64_t c = 0; c < depth; c += W) NAMED(store_weights)(s, sums + c * outputs, step, outputs, from + c, first, outputs);
}

/* With many tiles of few channels: a work item is a slice of the tiles, which the same worker transforms, in blocks, and multiplies. When another worker
 * multiplied them, the planes moved between cores: 128 channels on 16 x 16 took 5.9 ms with one thread and 4.5 with two, now 5.8 and 3.1. */
static void NAMED(gradient_slice_item)(void *context, int64_t slice, int64_t worker)
{
    NAMED(Winograd) s = *(const NAMED(Winograd) *)context;
    int64_t capacity, begin = slice * s.tiles / s.slices, end = (slice + 1) * s.tiles / s.slices, blocks = ceil_div(end - begin, s.block);
    int64_t size = s.depth * s.outputs + PLANE_PAD, input_row = s.depth + PLANE_PAD;
    REAL *sums = s.filters + slice * PLANES * size;
    s.planes = NAMED(workspace)(s.engine, worker, &capacity);
    s.gradients = s.planes + s.points * s.points * (s.block * input_row + PLANE_PAD);
    for (int64_t block = 0; block < blocks; block++) {
        s.first = begin + block * (end - begin) / blocks;
        s.count = begin + (block + 1) * (end - begin) / blocks - s.first;
        for (int64_t tile = 0; tile < s.count; tile++) NAMED(gradient_transform_item)(&s, tile, worker);
        for (int p = 0; p < PLANES; p++)
            for (int64_t first = 0; first < s.outputs; first += FILTER_BLOCK)
                NAMED(weight_gradient_plane)(&s, p, 0, s.depth, first, min_i64(FILTER_BLOCK, s.outputs - first), sums + p * size + first, s.outputs, block > 0);
    }
}

/* Add the sums of all slices, in order, to those of the first one. A work item is a plane. */
static void NAMED(gradient_add_item)(void *context, int64_t plane, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    int64_t size = s->depth * s->outputs + PLANE_PAD;
    REAL *sums = s->filters + plane * size;
    for (int64_t slice = 1; slice < s->slices; slice++) NAMED(add_elements)(sums, sums + slice * PLANES * size, size - PLANE_PAD);
}

/* With many tiles of many channels: a work item is a plane and a block of filters, for one block of tiles after another. */
static void NAMED(gradient_plane_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    int64_t p = item % PLANES, first = item / PLANES * FILTER_BLOCK;
    NAMED(weight_gradient_plane)(s, (int)p, 0, s->depth, first, min_i64(FILTER_BLOCK, s->outputs - first),
                                 s->filters + p * (s->depth * s->outputs + PLANE_PAD) + first, s->outputs, s->first > 0);
}

static void NAMED(gradient_store_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    NAMED(store_weights)(s, s->filters + item * W * s->outputs, s->depth * s->outputs + PLANE_PAD, s->outputs, item * W, 0, s->outputs);
}

/* s->dw = the weight gradient. scratch: dw by planes if it has several; then with slices their sums; else the planes of the tiles at work, followed by the sums
 * if there are many tiles (as in winograd_weight_scratch of ops/shared/conv_algorithms.py). */
static void NAMED(winograd_weight_gradient)(NAMED(Winograd) *s, int64_t block, int64_t slices, REAL *scratch)
{
    const Engine *e = s->engine;
    REAL *dw = s->dw;
    NAMED(winograd_tiles)(s);
    if (s->g->kernel_z > 1) {
        s->dw = scratch;
        scratch += NAMED(kernel_planes_size)(s->g);
    }
    s->block = min_i64(block, s->tiles);
    s->slices = slices;
    s->planes = s->filters = scratch;
    if (slices) {
        e->parallel_for(e, NAMED(gradient_slice_item), s, slices);
        e->parallel_for(e, NAMED(gradient_add_item), s, PLANES);
    } else {
        s->gradients = s->planes + s->points * s->points * (s->block * (s->depth + PLANE_PAD) + PLANE_PAD);
        s->filters = s->gradients + s->points * s->points * (s->block * (s->outputs + PLANE_PAD) + PLANE_PAD);
        for (s->first = 0; s->first < s->tiles; s->first += s->block) {
            s->count = min_i64(s->block, s->tiles - s->first);
            e->parallel_for(e, NAMED(gradient_transform_item), s, s->count);
            if (!s->few_tiles) e->parallel_for(e, NAMED(gradient_plane_item), s, PLANES * ceil_div(s->outputs, FILTER_BLOCK));
        }
    }
    if (s->few_tiles) e->parallel_for(e, NAMED(few_gradient_item), s, ceil_div(s->depth, GRADIENT_DEPTH_BLOCK) * ceil_div(s->outputs, FILTER_BLOCK));
    else e->parallel_for(e, NAMED(gradient_store_item), s, s->depth / W);
    if (s->g->kernel_z > 1) NAMED(exchange_kernel_planes)(s, s->dw, dw, 1);
}
#undef V
#undef W
