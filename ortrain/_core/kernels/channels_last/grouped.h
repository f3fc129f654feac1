/* Convolution with narrow groups, depthwise convolution included: x [n, d, h, w, c], w [k, c / group, taps], y [n, od, oh, ow, k].
 *
 * The lanes of a vector are filters of one or several groups. The channels that lane l multiplies in step c, channel c of the lane's group, are spread over a
 * vector, so that the convolution is a sum over taps and steps of vectors of pixels times vectors of weights. Blocks of pixels are copied to the worker's
 * workspace first, where windows are padded with zeros, columns of the same phase of a stride are adjacent, and every load is aligned. Where the channels of
 * all groups of a vector are one vector of the pixel, they are copied as they are, and tiles spread them in registers; otherwise the copy is spread, a vector
 * for each step. A tile keeps the sums of GROUPED_COLUMNS outputs in registers.
 *
 * The data gradient is the same sum over dy. With strides, the pixels of dx that the same taps reach form a phase, and each phase is a convolution without
 * strides. The last vector starts at outputs - WIDTH, so some outputs are computed twice; only fewer outputs than a vector has are padded. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#ifndef ORTRAIN_CHANNELS_LAST_GROUPED_H
#define ORTRAIN_CHANNELS_LAST_GROUPED_H
/* One axis of a convolution: output point * `up` + phase reads the inputs point * step + offset of its taps. */
typedef struct GroupedAxis { int64_t inputs, outputs, kernel, step, up, lowest, extent, points; int transposed; int64_t pad, dilation, stride; } GroupedAxis;

/* Set *offset to the input that output point 0 of a phase reads at a tap, and return whether the phase has this tap. */
static inline int grouped_offset(const GroupedAxis *a, int64_t phase, int64_t tap, int64_t *offset)
{
    int64_t n = phase + a->pad - tap * a->dilation;
    if (!a->transposed) { *offset = -n; return 1; }
    if ((n % a->stride + a->stride) % a->stride) return 0;
    *offset = n / a->stride;
    return 1;
}

static GroupedAxis grouped_axis(int64_t inputs, int64_t outputs, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, int transposed)
{
    GroupedAxis a = { .inputs = transposed ? outputs : inputs, .outputs = transposed ? inputs : outputs, .kernel = kernel, .step = transposed ? 1 : stride,
                      .up = transposed ? stride : 1, .transposed = transposed, .pad = pad, .dilation = dilation, .stride = stride };
    int64_t offset, highest = INT64_MIN;
    a.lowest = INT64_MAX;
    for (int64_t phase = 0; phase < a.up; phase++)
        for (int64_t tap = 0; tap < kernel; tap++)
            if (grouped_offset(&a, phase, tap, &offset)) { a.lowest = min_i64(a.lowest, offset); highest = max_i64(highest, offset); }
    a.extent = highest - a.lowest + 1;
    a.points = ceil_div(a.outputs, a.up);
    return a;
}

/* Up to 3 taps of one kernel row that read adjacent vectors of the buffer, from `offset` on; weight: offsets of their weights. */
typedef struct GroupedRun { int64_t taps, offset, weight[3]; } GroupedRun;
/* The taps of one phase, by rows of the kernel: row i reads inputs (z[i], y[i]), with the runs [start[i], start[i + 1]). */
typedef struct GroupedTaps {
    int64_t rows, z[GROUPED_TAPS], y[GROUPED_TAPS], start[GROUPED_TAPS + 1];
    GroupedRun runs[GROUPED_TAPS];
} GroupedTaps;
/* A block of points: `planes`, `rows` and `columns` from (z, top, left) on. */
typedef struct GroupedBlock { int64_t image, z, top, left, planes, rows, columns; } GroupedBlock;

/* Return the number of input columns, rows or planes that `points` output points read. */
static inline int64_t points_read(const GroupedAxis *a, int64_t points) { return (points - 1) * a->step + a->extent; }

/* Return the planes of a block whose buffer holds `capacity` rows: as many as let the fewest rows be read per row of points. */
static int64_t grouped_block_planes(const GroupedAxis *z, const GroupedAxis *y, int64_t capacity)
{
    int64_t best = 1, best_read = 0, best_rows = 0;
    for (int64_t planes = 1; planes <= z->points; planes++) {
        int64_t rows = min_i64(y->points, (capacity / points_read(z, planes) - y->extent) / y->step + 1);
        if (rows < 1) break;
        int64_t read = points_read(z, planes) * points_read(y, rows);
        if (best_rows && read * best_rows >= best_read * planes * rows) continue;
        best = planes; best_read = read; best_rows = planes * rows;
    }
    return best;
}

/* Keep a compiler from loading a value again for each use, which exceeds the two loads per cycle of most processors. */
#if defined(__GNUC__) && defined(__AVX512F__)
#define KEEP_IN_REGISTER(value) __asm__("" : "+v"(value))
#elif defined(__GNUC__) && defined(__aarch64__)
#define KEEP_IN_REGISTER(value) __asm__("" : "+w"(value))
#elif defined(__GNUC__) && defined(__SSE2__)
#define KEEP_IN_REGISTER(value) __asm__("" : "+x"(value))
#else
#define KEEP_IN_REGISTER(value)
#endif
/* Keep a compiler from carrying what was loaded at an index over to the next iteration: the registers for it are taken from the sums. */
#if defined(__GNUC__)
#define LOAD_AGAIN(index) __asm__("" : "+r"(index))
#else
#define LOAD_AGAIN(index)
#endif

/* Whether a shuffle of a vector by variable indices is one instruction. With AVX2 it is slow across halves (8 x 28 x 28 pixels of 64 channels in groups of 4:
 * 770 µs, within halves 610); groups of up to 4 channels stay in their half. */
#define HAS_SHUFFLE (VECTOR_BYTES == 64 || (VECTOR_BYTES == 32 && sizeof(REAL) == 4))
#define SHUFFLES_HALVES (VECTOR_BYTES == 32)
/* The pixel of a step from the buffer: a vector as it is, a vector spread by `lanes`, or one element for all lanes. */
#define SPREAD_PIXEL(from) LOAD(from)
#if defined(__AVX2__) && !defined(__AVX512F__)
#include <immintrin.h>
#define SPREADING_PIXEL(from) ((V)_mm256_permutevar_ps((__m256)LOAD(from), (__m256i)lanes))
#else
#define SPREADING_PIXEL(from) SHUFFLE(LOAD(from), lanes)
#endif
#define BROADCAST_PIXEL(from) ((from)[0] - (V){0})
#endif

typedef struct NAMED(Grouped) {
    const Engine *engine;
    GroupedAxis z_axis, y_axis, x_axis;
    const REAL *in, *w, *dy;
    REAL *out, *dw, *packed, *sums;
    int64_t images, inputs, outputs, taps;
    int64_t group_inputs, group_outputs; /* group_inputs: steps of a lane */
    int in_tiles; /* whether tiles spread the steps of a pixel, which the buffer has as it is, in registers */
    int64_t vectors, block_planes, block_rows, block_columns, plane_blocks, row_blocks, column_blocks, blocks;
    /* Of the buffer [planes, rows, steps, phase, width, WIDTH]: steps, vectors of channels if tiles spread them; columns of a phase; elements of a step, of a
     * row, of a plane. */
    int64_t steps, width, plane, row, depth;
    int64_t slices;
    NAMED(Epilogue) epilogue;
} NAMED(Grouped);

ALWAYS_INLINE int64_t NAMED(first_of_vector)(const NAMED(Grouped) *s, int64_t vector) { return max_i64(0, min_i64(vector * W, s->outputs - W)); }

/* Whether the lanes of every vector are filters of one group, whose channels tiles broadcast from memory. With AVX2, groups of 8 channels take half of the time
 * that they take with shuffles. */
static inline int NAMED(broadcasts)(const NAMED(Grouped) *s)
{ return VECTOR_BYTES < 64 && s->group_inputs > 1 && s->group_outputs % W == 0; }

/* Whether tiles spread pixels. Those of 3 x 3 and 3 x 3 x 3 kernels for groups of 4 and 8 channels take 0.55 to 0.75 of the time of a copy that is spread,
 * which writes a pixel once for each step, and so do their weight gradients on AVX-512; on AVX2 those take as long as with the copy, half with strides. */
static inline int NAMED(spreads_in_tiles)(const NAMED(Grouped) *s)
{
    int shuffles = HAS_SHUFFLE && s->group_inputs > 1 && s->outputs >= W && W % s->group_outputs == 0 && W / s->group_outputs * s->group_inputs <= W;
    return shuffles || NAMED(broadcasts)(s);
}

/* The convolution, or with `transposed` its data gradient; with `summed` what the weight gradient reads. Blocks of points are as large as the L2 cache allows,
 * but about SPREAD_BLOCKS or more in all. */
static NAMED(Grouped) NAMED(grouped_from_args)(const KernelArgs *args, int transposed, int summed)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Grouped) s = { .engine = args->engine, .images = g->images, .taps = kernel_taps(g), .inputs = transposed ? g->filters : g->channels,
                         .outputs = transposed ? g->channels : g->filters };
    s.z_axis = grouped_axis(g->planes, g->out_planes, g->kernel_z, g->stride_z, g->pad_z, g->dilation_z, transposed);
    s.y_axis = grouped_axis(g->rows, g->out_rows, g->kernel_y, g->stride_y, g->pad_y, g->dilation_y, transposed);
    s.x_axis = grouped_axis(g->columns, g->out_columns, g->kernel_x, g->stride_x, g->pad_x, g->dilation_x, transposed);
    s.group_inputs = s.inputs / g->group; s.group_outputs = s.outputs / g->group;
    s.vectors = ceil_div(s.outputs, W);
    s.in_tiles = NAMED(spreads_in_tiles)(&s);
    s.steps = s.in_tiles ? ceil_div(s.group_inputs, W) : s.group_inputs;
    int64_t columns = s.x_axis.points, rows = s.y_axis.points, pixels = GROUPED_BYTES / (int64_t)sizeof(REAL) / (s.steps * W);
    if (summed && s.in_tiles) pixels = GROUPED_SUMMED_BYTES / (VECTOR_BYTES * s.steps);
    int64_t inputs = GROUPED_INPUT_BYTES / (int64_t)sizeof(REAL) / s.inputs;
    if (s.z_axis.inputs * s.y_axis.inputs * s.x_axis.inputs > inputs) pixels = min_i64(pixels, inputs);
    if (s.z_axis.extent > 1) pixels *= GROUPED_VOLUME;
    s.column_blocks = 1;
    while (s.column_blocks * GROUPED_COLUMNS < columns
           && s.z_axis.extent * (s.y_axis.extent + s.y_axis.step) * points_read(&s.x_axis, ceil_div(columns, s.column_blocks)) > pixels) s.column_blocks++;
    s.block_columns = min_i64(columns, round_up(ceil_div(columns, s.column_blocks), rows > 1 ? 1 : GROUPED_COLUMNS));
    s.column_blocks = ceil_div(columns, s.block_columns);
    int64_t capacity = pixels / points_read(&s.x_axis, s.block_columns);
    s.block_planes = grouped_block_planes(&s.z_axis, &s.y_axis, capacity);
    s.plane_blocks = ceil_div(s.z_axis.points, s.block_planes);
    s.block_planes = ceil_div(s.z_axis.points, s.plane_blocks);
    s.plane_blocks = ceil_div(s.z_axis.points, s.block_planes);
    int64_t fitting = (capacity / points_read(&s.z_axis, s.block_planes) - s.y_axis.extent) / s.y_axis.step + 1;
    int64_t spread = max_i64(GROUPED_MIN_ROWS, ceil_div(rows * s.images * s.plane_blocks * s.column_blocks, SPREAD_BLOCKS));
    s.row_blocks = ceil_div(rows, max_i64(1, min_i64(fitting, spread)));
    s.block_rows = ceil_div(rows, s.row_blocks);
    s.row_blocks = ceil_div(rows, s.block_rows);
    s.blocks = s.images * s.plane_blocks * s.row_blocks * s.column_blocks;
    s.width = ceil_div(points_read(&s.x_axis, s.block_columns), s.x_axis.step);
    s.plane = s.x_axis.step * s.width * W;
    s.row = s.steps * s.plane;
    s.depth = points_read(&s.y_axis, s.block_rows) * s.row;
    return s;
}

/* ---- spreading channels over lanes */

/* How a vector of lanes is filled: lane l of step c is channel base + lane[l] + c, from one or two vectors from `base` on, or one by one. Where tiles spread
 * vectors by halves (sources is HALVES), the buffer has channel base + half[l] in lane l, and `lane` counts from the first channel of the half. */
enum { NAMED(HALVES) = 4 };
typedef struct NAMED(Spread) { int sources; int64_t base; NAMED(Mask) lane, half; int64_t channel[W]; } NAMED(Spread);

static NAMED(Spread) NAMED(spread_of)(const NAMED(Grouped) *s, int64_t vector)
{
    NAMED(Spread) spread;
    int64_t first = NAMED(first_of_vector)(s, vector);
    for (int64_t l = 0; l < W; l++) spread.channel[l] = min_i64(first + l, s->outputs - 1) / s->group_outputs * s->group_inputs;
    spread.base = spread.channel[0];
    int64_t span = spread.channel[W - 1] + s->group_inputs - spread.base;
    const int halves = SHUFFLES_HALVES && s->in_tiles && !NAMED(broadcasts)(s);
    spread.sources = halves ? NAMED(HALVES) : s->in_tiles || (s->group_inputs == 1 && s->group_outputs == 1) ? 0 : span <= W ? 1 : span <= 2 * W ? 2 : 3;
    int64_t loaded = spread.sources == 2 ? 2 * W : s->in_tiles ? s->steps * W : W;
    spread.base = max_i64(0, min_i64(spread.base, s->inputs - loaded));
    for (int64_t l = 0; l < W; l++) {
        int64_t first_of_half = halves ? spread.channel[l / (W / 2) * (W / 2)] : spread.base;
        spread.lane[l] = (INTEGER)(spread.channel[l] - first_of_half);
        spread.half[l] = (INTEGER)(halves ? min_i64(W - 1, first_of_half - spread.base + l % (W / 2)) : l);
    }
    return spread;
}

/* Spread `count` pixels from `from` on to columns [column, column + count) of a row of the buffer, whose steps start at `to`. */
ALWAYS_INLINE void NAMED(spread_pixels)(const NAMED(Grouped) *s, int sources, const NAMED(Spread) *spread, const REAL *from, int64_t column, int64_t count,
                                        REAL *to)
{
    const NAMED(Mask) one = 1 - (NAMED(Mask)){0};
    const int64_t step = s->x_axis.step, width = s->width * W, steps = s->steps;
    int64_t phase = column % step;
    to += phase * width + column / step * W;
    for (int64_t i = 0; i < count; i++, from += s->inputs) {
        __builtin_prefetch(from + spread->base + W, 0, 2);                /* for the next vector */
        if (sources == 3 && s->in_tiles) {
            for (int64_t c = 0; c < steps; c++)
                for (int64_t l = 0; l < W; l++) {
                    int64_t channel = spread->base + c * W + spread->half[l];
                    to[c * s->plane + l] = channel < s->inputs ? from[channel] : 0;
                }
        } else if (sources == 3) {
            for (int64_t c = 0; c < steps; c++)
                for (int64_t l = 0; l < W; l++) to[c * s->plane + l] = from[spread->channel[l] + c];
        } else {
            V low = LOAD(from + spread->base), high = sources == 2 ? LOAD(from + spread->base + W) : low;
            NAMED(Mask) lane = spread->lane;
            REAL *at = to;
            if (sources == 0) {
                STORE(to, low);
                for (int64_t c = 1; c < steps; c++) STORE(to + c * s->plane, LOAD(from + spread->base + c * W));
            }
            else if (sources == NAMED(HALVES)) STORE(to, SHUFFLE(low, spread->half));
            else
                for (int64_t c = 0; c < steps; c++, at += s->plane, lane += one)
                    STORE(at, sources == 1 ? SHUFFLE(low, lane) : SHUFFLE_PAIR(low, high, lane));
        }
        to += width;
        if (++phase == step) { phase = 0; to += W - step * width; }
    }
}

/* Zeros in columns [begin, end) of a row of the buffer. */
static void NAMED(clear_columns)(const NAMED(Grouped) *s, int64_t begin, int64_t end, REAL *to)
{
    for (int64_t c = 0; c < s->steps; c++)
        for (int64_t column = begin; column < end; column++)
            STORE(to + c * s->plane + (column % s->x_axis.step * s->width + column / s->x_axis.step) * W, (V){0});
}

/* The input columns [first, first + extent) of row y of image plane z, spread to `to`, which is one row of the buffer; zeros outside the image.
 *
 * The last pixels of the whole input are spread one by one, where whole vectors would exceed it. */
NOINLINE void NAMED(spread_row)(const NAMED(Grouped) *s, const NAMED(Spread) *spread, int64_t image, int64_t z, int64_t y, int64_t first, int64_t extent,
                                REAL *to)
{
    const int64_t columns = s->x_axis.inputs, inside = z >= 0 && z < s->z_axis.inputs && y >= 0 && y < s->y_axis.inputs;
    const REAL *from = s->in + (((image * s->z_axis.inputs + z) * s->y_axis.inputs + y) * columns + first) * s->inputs;
    const REAL *end = s->in + s->images * s->z_axis.inputs * s->y_axis.inputs * columns * s->inputs;
    int64_t low = inside ? min_i64(extent, max_i64(0, -first)) : extent, high = inside ? max_i64(low, min_i64(extent, columns - first)) : extent;
    int64_t safe = spread->sources == 3 ? low : high, loaded = spread->base + (spread->sources == 2 ? 2 : s->in_tiles ? s->steps : 1) * W;
    NAMED(clear_columns)(s, 0, low, to);
    NAMED(clear_columns)(s, high, extent, to);
    while (safe > low && from + (safe - 1) * s->inputs + loaded > end) safe--;
    if (spread->sources == 0) NAMED(spread_pixels)(s, 0, spread, from + low * s->inputs, low, safe - low, to);
    else if (spread->sources == 1) NAMED(spread_pixels)(s, 1, spread, from + low * s->inputs, low, safe - low, to);
    else if (spread->sources == 2) NAMED(spread_pixels)(s, 2, spread, from + low * s->inputs, low, safe - low, to);
    else if (SHUFFLES_HALVES && spread->sources == NAMED(HALVES))
        NAMED(spread_pixels)(s, NAMED(HALVES), spread, from + low * s->inputs, low, safe - low, to);
    NAMED(spread_pixels)(s, 3, spread, from + safe * s->inputs, safe, high - safe, to);
}

/* ---- forward and data gradient */

/* packed [vector, tap, step, WIDTH] = w, with lanes as outputs. A work item is a vector. */
static void NAMED(pack_grouped_item)(void *context, int64_t vector, int64_t worker)
{
    const NAMED(Grouped) *s = context; (void)worker;
    int64_t first = NAMED(first_of_vector)(s, vector), transposed = s->y_axis.transposed;
    REAL *to = s->packed + vector * s->taps * s->group_inputs * W;
    for (int64_t tap = 0; tap < s->taps; tap++)
        for (int64_t c = 0; c < s->group_inputs; c++)
            for (int64_t l = 0; l < W; l++) {
                int64_t o = min_i64(first + l, s->outputs - 1), group = o / s->group_outputs, inner = o % s->group_outputs;
                int64_t row = transposed ? (group * s->group_inputs + c) * s->group_outputs + inner : o * s->group_inputs + c;
                *to++ = s->w[row * s->taps + tap];
            }
}

/* sum[i] += the pixels under TAPS adjacent taps, from a on, times their weights b[tap]: each pixel is loaded once for all taps. PIXEL(from): the pixel of the
 * step in the buffer; NEXT: go on to the next step. */
#define ADD_RUN(TAPS, COLUMNS, PIXEL, NEXT)                                                                                                               \
    do {                                                                                                                                                  \
        V factor[TAPS];                                                                                                                                   \
        _Pragma("GCC unroll 3") for (int t = 0; t < TAPS; t++) factor[t] = LOAD(b[t]);                                                                    \
        _Pragma("GCC unroll 14") for (int i = 0; i < COLUMNS + TAPS - 1; i++) {                                                                           \
            V pixel = PIXEL(a + i * W);                                                                                                                   \
            KEEP_IN_REGISTER(pixel);                                                                                                                      \
            _Pragma("GCC unroll 3") for (int t = 0; t < TAPS; t++) if (i >= t && i - t < COLUMNS) sum[i - t] += pixel * factor[t];                        \
        }                                                                                                                                                 \
        NEXT;                                                                                                                                             \
        _Pragma("GCC unroll 3") for (int t = 0; t < TAPS; t++) b[t] += W;                                                                                 \
    } while (--c > 0);
/* out [COLUMNS, WIDTH] = epilogue(sum over the taps of runs [begin, end) and over steps of x * w). x: the buffer at the tile. lane: the lanes of step 0. FIRST:
 * where the pixel of step 0 begins. */
#define GROUPED_TILE(NAME, COLUMNS, PIXEL, FIRST, NEXT)                                                                                                   \
NOINLINE void NAMED(NAME##_##COLUMNS)(const GroupedTaps *taps, int64_t begin, int64_t end, int64_t steps, const REAL *x, int64_t plane,                   \
                                      const NAMED(Mask) *lane, const REAL *w, REAL *out, int64_t out_step, const NAMED(Epilogue) *epilogue,               \
                                      int64_t channel)                                                                                                    \
{                                                                                                                                                         \
    V sum[COLUMNS];                                                                                                                                       \
    (void)plane;                                                                                                                                          \
    _Pragma("GCC unroll 12") for (int i = 0; i < COLUMNS; i++) sum[i] = (V){0};                                                                           \
    for (int64_t r = begin; r < end; r++) {                                                                                                               \
        const GroupedRun *run = taps->runs + r;                                                                                                           \
        NAMED(Mask) lanes = *lane;                                                                                                                        \
        int64_t c = steps, at = lanes[0];                                                                                                                 \
        const REAL *a = x + run->offset + (FIRST), *b[3] = { w + run->weight[0], w + run->weight[1], w + run->weight[2] };                                \
        (void)lanes; (void)at;                                                                                                                            \
        if (run->taps == 3) ADD_RUN(3, COLUMNS, PIXEL, NEXT)                                                                                              \
        else if (run->taps == 2) ADD_RUN(2, COLUMNS, PIXEL, NEXT)                                                                                         \
        else ADD_RUN(1, COLUMNS, PIXEL, NEXT)                                                                                                             \
    }                                                                                                                                                     \
    if (epilogue)                                                                                                                                         \
        _Pragma("GCC unroll 12") for (int i = 0; i < COLUMNS; i++) sum[i] = NAMED(apply_epilogue)(epilogue, sum[i], channel);                             \
    _Pragma("GCC unroll 12") for (int i = 0; i < COLUMNS; i++) STORE(out + i * out_step, sum[i]);                                                         \
}
#define GROUPED_TILES(NAME, PIXEL, FIRST, NEXT)                                                                                                           \
GROUPED_TILE(NAME, 1, PIXEL, FIRST, NEXT) GROUPED_TILE(NAME, 2, PIXEL, FIRST, NEXT) GROUPED_TILE(NAME, 3, PIXEL, FIRST, NEXT)                             \
GROUPED_TILE(NAME, 4, PIXEL, FIRST, NEXT) GROUPED_TILE(NAME, 5, PIXEL, FIRST, NEXT) GROUPED_TILE(NAME, 6, PIXEL, FIRST, NEXT)                             \
GROUPED_TILE(NAME, 7, PIXEL, FIRST, NEXT) GROUPED_TILE(NAME, 8, PIXEL, FIRST, NEXT) GROUPED_TILE(NAME, 9, PIXEL, FIRST, NEXT)                             \
GROUPED_TILE(NAME, 10, PIXEL, FIRST, NEXT) GROUPED_TILE(NAME, 11, PIXEL, FIRST, NEXT) GROUPED_TILE(NAME, 12, PIXEL, FIRST, NEXT)                          \
static const NAMED(GroupedTile) NAMED(NAME)[GROUPED_COLUMNS] = {                                                                                          \
    NAMED(NAME##_1), NAMED(NAME##_2), NAMED(NAME##_3), NAMED(NAME##_4), NAMED(NAME##_5), NAMED(NAME##_6), NAMED(NAME##_7), NAMED(NAME##_8),               \
    NAMED(NAME##_9), NAMED(NAME##_10), NAMED(NAME##_11), NAMED(NAME##_12)                                                                                 \
};
typedef void (*NAMED(GroupedTile))(const GroupedTaps *, int64_t, int64_t, int64_t, const REAL *, int64_t, const NAMED(Mask) *, const REAL *, REAL *, int64_t,
                                   const NAMED(Epilogue) *, int64_t);
GROUPED_TILES(spread_tiles, SPREAD_PIXEL, 0, a += plane)
GROUPED_TILES(spreading_tiles, SPREADING_PIXEL, 0, lanes += 1 - (NAMED(Mask)){0})
GROUPED_TILES(broadcast_tiles, BROADCAST_PIXEL, at, if (++a, ++at == W) { at = 0; a += plane - W; })
#undef ADD_RUN
#undef GROUPED_TILE
#undef GROUPED_TILES

/* Return where the buffer has input (z, y, x), relative to the first one that point 0 reads. */
ALWAYS_INLINE int64_t NAMED(buffer_offset)(const NAMED(Grouped) *s, int64_t z, int64_t y, int64_t x)
{
    int64_t column = x - s->x_axis.lowest, step = s->x_axis.step;
    return (z - s->z_axis.lowest) * s->depth + (y - s->y_axis.lowest) * s->row + (column % step * s->width + column / step) * W;
}

/* Set *taps to the taps of a phase. A tap joins the run whose last tap reads the vector before its own; with strides that is not the tap before it. */
static void NAMED(grouped_taps)(const NAMED(Grouped) *s, int64_t phase_z, int64_t phase_y, int64_t phase_x, GroupedTaps *taps)
{
    int64_t count = 0, x;
    taps->rows = 0;
    for (int64_t r = 0; r < s->z_axis.kernel * s->y_axis.kernel; r++) {
        if (!grouped_offset(&s->z_axis, phase_z, r / s->y_axis.kernel, &taps->z[taps->rows])) continue;
        if (!grouped_offset(&s->y_axis, phase_y, r % s->y_axis.kernel, &taps->y[taps->rows])) continue;
        int64_t start = taps->start[taps->rows] = count;
        for (int64_t i = 0; i < s->x_axis.kernel; i++) {
            int64_t t = s->x_axis.transposed ? s->x_axis.kernel - 1 - i : i, run = start;          /* in the order of x */
            if (!grouped_offset(&s->x_axis, phase_x, t, &x)) continue;
            int64_t offset = NAMED(buffer_offset)(s, taps->z[taps->rows], taps->y[taps->rows], x);
            while (run < count && (taps->runs[run].taps == 3 || taps->runs[run].offset + taps->runs[run].taps * W != offset)) run++;
            if (run == count) taps->runs[count++] = (GroupedRun){ .offset = offset };
            taps->runs[run].weight[taps->runs[run].taps++] = (r * s->x_axis.kernel + t) * s->group_inputs * W;
        }
        taps->rows++;
    }
    taps->start[taps->rows] = count;
}

/* Return whether the buffer has zeros in the rows above and below the image. Those of one plane are left out of the sums instead. */
ALWAYS_INLINE int NAMED(has_padded_rows)(const NAMED(Grouped) *s) { return s->z_axis.kernel > 1; }

/* Return whether row `row` of the taps is outside the image, for the point that reads inputs from (z, y) on. */
ALWAYS_INLINE int NAMED(is_outside)(const NAMED(Grouped) *s, const GroupedTaps *taps, int64_t row, int64_t z, int64_t y)
{
    z += taps->z[row]; y += taps->y[row];
    return z < 0 || z >= s->z_axis.inputs || (!NAMED(has_padded_rows)(s) && (y < 0 || y >= s->y_axis.inputs));
}

/* Plane `point` of a block for one phase and one vector, with its lanes in step 0. buffer: the spread inputs of the plane. */
static void NAMED(grouped_phase)(const NAMED(Grouped) *s, const GroupedTaps *taps, const GroupedBlock *block, int64_t point, int64_t vector,
                                 const NAMED(Mask) *lane, int64_t phase_z, int64_t phase_y, int64_t phase_x, const REAL *buffer)
{
    const GroupedAxis *za = &s->z_axis, *ya = &s->y_axis, *xa = &s->x_axis;
    const int64_t top = block->top, left = block->left, plane = (block->z + point) * za->up + phase_z, z = (block->z + point) * za->step;
    int64_t rows = min_i64(block->rows, (ya->outputs - phase_y + ya->up - 1) / ya->up - top), first = NAMED(first_of_vector)(s, vector);
    int64_t columns = min_i64(block->columns, (xa->outputs - phase_x + xa->up - 1) / xa->up - left), out_step = xa->up * s->outputs;
    if (plane >= za->outputs || rows <= 0 || columns <= 0) return;
    REAL edge[GROUPED_COLUMNS * W];
    int partial = s->outputs < W, tiles = (int)ceil_div(columns, GROUPED_COLUMNS);
    const NAMED(Epilogue) *epilogue = s->epilogue.scale || s->epilogue.shift || s->epilogue.clamped ? &s->epilogue : 0;
    const REAL *w = s->packed + vector * s->taps * s->group_inputs * W;
    const NAMED(GroupedTile) *functions = !s->in_tiles ? NAMED(spread_tiles) : NAMED(broadcasts)(s) || !HAS_SHUFFLE ? NAMED(broadcast_tiles)
                                          : NAMED(spreading_tiles);
    for (int64_t tile = 0, at = 0, count; tile < tiles; tile++, at += count) {
        count = columns / tiles + (tile < columns % tiles);
        for (int64_t row = 0; row < rows; row++) {
            int64_t y = (top + row) * ya->step, begin = 0, end = taps->rows;
            while (begin < end && NAMED(is_outside)(s, taps, begin, z, y)) begin++;
            while (end > begin && NAMED(is_outside)(s, taps, end - 1, z, y)) end--;
            int64_t out_row = (block->image * za->outputs + plane) * ya->outputs + (top + row) * ya->up + phase_y;
            REAL *out = s->out + (out_row * xa->outputs + (left + at) * xa->up + phase_x) * s->outputs + first;
            functions[count - 1](taps, taps->start[begin], taps->start[end], s->group_inputs, buffer + row * ya->step * s->row + at * W, s->plane, lane, w,
                                 partial ? edge : out, partial ? W : out_step, partial ? 0 : epilogue, first);
            if (!partial) continue;
            for (int64_t i = 0; i < count; i++) {
                memcpy(out + i * out_step, edge + i * W, (size_t)s->outputs * sizeof(REAL));
                NAMED(epilogue_rows)(&s->epilogue, out + i * out_step, 1, s->outputs);
            }
        }
    }
}

ALWAYS_INLINE GroupedBlock NAMED(grouped_block)(const NAMED(Grouped) *s, int64_t block)
{
    int64_t plane = block / s->column_blocks / s->row_blocks;
    GroupedBlock b = { .image = plane / s->plane_blocks, .z = plane % s->plane_blocks * s->block_planes,
                       .top = block / s->column_blocks % s->row_blocks * s->block_rows, .left = block % s->column_blocks * s->block_columns };
    b.planes = min_i64(s->block_planes, s->z_axis.points - b.z);
    b.rows = min_i64(s->block_rows, s->y_axis.points - b.top);
    b.columns = min_i64(s->block_columns, s->x_axis.points - b.left);
    return b;
}

/* Spread the rows that a block reads, those outside the image only if `padded`. */
static void NAMED(spread_block)(const NAMED(Grouped) *s, const NAMED(Spread) *spread, const GroupedBlock *block, int padded, REAL *buffer)
{
    const GroupedAxis *za = &s->z_axis, *ya = &s->y_axis, *xa = &s->x_axis;
    int64_t z = block->z * za->step + za->lowest, y = block->top * ya->step + ya->lowest, x = block->left * xa->step + xa->lowest;
    int64_t planes = points_read(za, block->planes), rows = points_read(ya, block->rows), columns = points_read(xa, block->columns);
    for (int64_t plane = 0; plane < planes; plane++)
        for (int64_t row = 0; row < rows; row++)
            if (padded || (z + plane >= 0 && z + plane < za->inputs && y + row >= 0 && y + row < ya->inputs))
                NAMED(spread_row)(s, spread, block->image, z + plane, y + row, x, columns, buffer + plane * s->depth + row * s->row);
}

/* A work item is a block of points. */
static void NAMED(grouped_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Grouped) *s = context;
    int64_t capacity, up_y = s->y_axis.up, up_x = s->x_axis.up, phases = s->z_axis.up * up_y * up_x;
    REAL *buffer = NAMED(workspace)(s->engine, worker, &capacity);
    GroupedTaps taps;
    GroupedBlock block = NAMED(grouped_block)(s, item);
    for (int64_t vector = 0; vector < s->vectors; vector++) {
        NAMED(Spread) spread = NAMED(spread_of)(s, vector);
        NAMED(spread_block)(s, &spread, &block, NAMED(has_padded_rows)(s), buffer);
        for (int64_t phase = 0; phase < phases; phase++) {
            int64_t phase_z = phase / up_x / up_y, phase_y = phase / up_x % up_y, phase_x = phase % up_x;
            if (vector == 0 || phases > 1) NAMED(grouped_taps)(s, phase_z, phase_y, phase_x, &taps);
            for (int64_t point = 0; point < block.planes; point++)
                NAMED(grouped_phase)(s, &taps, &block, point, vector, &spread.lane, phase_z, phase_y, phase_x, buffer + point * s->z_axis.step * s->depth);
        }
    }
}

/* s->out = the convolution of s->in, or its data gradient. scratch: the packed weights. */
static void NAMED(grouped_convolution)(NAMED(Grouped) *s, REAL *scratch)
{
    s->packed = scratch;
    s->engine->parallel_for(s->engine, NAMED(pack_grouped_item), s, s->vectors);
    s->engine->parallel_for(s->engine, NAMED(grouped_item), s, s->blocks);
}
#undef V
#undef W
