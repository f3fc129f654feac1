/* Depthwise convolution of planes, forward and backward, for kernels of any size, strides and dilations.
 *
 * A plane is copied with its padding, divided into the phases of the strides: pixels that are a whole number of strides apart stand side by side, in rows of
 * `pitch` elements. A tap then reads a run of one phase at a fixed offset for all outputs, and all rows of outputs, padding between them included, are one sum
 * of runs. Planes are computed in bands of rows that stay in the cache. */
#ifndef ORTRAIN_PLANES_DEPTHWISE_H
#define ORTRAIN_PLANES_DEPTHWISE_H
/* PLANE_TAPS, of a kernel, stands in ops/planes.py, too. BAND_ELEMENTS: of the copies of a band, if it has at least one row. */
enum { PLANE_TAPS = 1024, BAND_ELEMENTS = 1 << 14 };

/* How many rows and columns of outputs a tap reads beyond the first: reach_y = the rows of a phase that a kernel spans, less 1. */
static inline int64_t reach_y(const Geometry *g) { return (g->kernel_y - 1) * g->dilation_y / g->stride_y; }
static inline int64_t reach_x(const Geometry *g) { return (g->kernel_x - 1) * g->dilation_x / g->stride_x; }

/* A row of `pitch` elements: zeros up to `low`, every `stride`th element of a row from element `from` on, and zeros from `high` on. */
typedef struct RowCopy { int64_t low, high, from, stride, pitch; } RowCopy;

/* Return the copy of every `stride`th element of a row [columns], from element `first` on, which may be negative. */
static inline RowCopy row_copy(int64_t columns, int64_t first, int64_t stride, int64_t pitch)
{
    int64_t low = first < 0 ? min_i64(pitch, ceil_div(-first, stride)) : 0, high = first < columns ? min_i64(pitch, ceil_div(columns - first, stride)) : 0;
    return (RowCopy){ low, max_i64(low, high), first + low * stride, stride, pitch };
}

/* Return the elements beyond a copy that the last vectors of a tap may read. lanes: of a vector. */
static inline int64_t slack_of(const Geometry *g, int64_t lanes) { return reach_x(g) + lanes; }

/* Return the rows of a band whose copies take `per_row` elements for each row, and `halo` elements besides. */
static inline int64_t rows_of_band(int64_t rows, int64_t per_row, int64_t halo)
{ return min_i64(rows, max_i64(1, (BAND_ELEMENTS - halo) / per_row)); }
#endif

typedef struct NAMED(DepthwisePlanes) {
    const Engine *engine;
    const Geometry *g;
    const REAL *x, *w, *dy;
    REAL *y, *dx, *dw;
    NAMED(PlaneEpilogue) epilogue;
} NAMED(DepthwisePlanes);

/* Copy a row of a plane: shorter than a call of memcpy. */
static inline void NAMED(copy_row)(const REAL *restrict from, int64_t count, REAL *restrict to)
{
    int64_t i = 0;
    if (count < NAMED(WIDTH)) { for (; i < count; i++) to[i] = from[i]; return; }
    for (; i + NAMED(WIDTH) <= count; i += NAMED(WIDTH)) STORE(to + i, LOAD(from + i));
    STORE(to + count - NAMED(WIDTH), LOAD(from + count - NAMED(WIDTH)));        /* overlaps the vector before */
}

/* to [pitch] = elements of a row of a plane, with zeros at both ends; all are zeros where row is NULL. */
static inline void NAMED(copy_elements)(const RowCopy *copy, const REAL *row, REAL *to)
{
    int64_t low = row ? copy->low : copy->pitch, count = copy->high - copy->low, stride = copy->stride;
    for (int64_t i = 0; i < low; i++) to[i] = 0;
    if (!row) return;
    if (stride == 1) NAMED(copy_row)(row + copy->from, count, to + low);
    else if (stride == 2) for (int64_t i = 0; i < count; i++) to[low + i] = row[copy->from + 2 * i];
    else for (int64_t i = 0; i < count; i++) to[low + i] = row[copy->from + i * stride];
    for (int64_t i = copy->high; i < copy->pitch; i++) to[i] = 0;
}

/* Copy the pixels of a plane that `rows` rows of outputs from `first` on read into `to` [phase y, phase x, rows + reach, pitch]. reach: reach_y(g). */
NOINLINE void NAMED(split_plane)(const Geometry *g, const REAL *plane, int64_t first, int64_t rows, int64_t reach, int64_t pitch, REAL *to)
{
    for (int64_t phase_y = 0; phase_y < g->stride_y; phase_y++)
        for (int64_t phase_x = 0; phase_x < g->stride_x; phase_x++) {
            const RowCopy copy = row_copy(g->columns, phase_x - g->pad_x, g->stride_x, pitch);
            int64_t y = first * g->stride_y + phase_y - g->pad_y;
            for (int64_t r = 0; r < rows + reach; r++, to += pitch, y += g->stride_y)
                NAMED(copy_elements)(&copy, y < 0 || y >= g->rows ? NULL : plane + y * g->columns, to);
        }
}

/* Set offsets[tap] to the distance between an output and what the tap reads for it, in elements of the copy of split_plane. */
static void NAMED(tap_offsets)(const Geometry *g, int64_t rows, int64_t pitch, int64_t *offsets)
{
    const int64_t phase = (rows + reach_y(g)) * pitch;
    for (int64_t r = 0; r < g->kernel_y; r++)
        for (int64_t t = 0; t < g->kernel_x; t++) {
            int64_t y = r * g->dilation_y, x = t * g->dilation_x;
            *offsets++ = (y % g->stride_y * g->stride_x + x % g->stride_x) * phase + y / g->stride_y * pitch + x / g->stride_x;
        }
}

/* The taps of a plane, as a list of weights and offsets and, where they are `rows` x `columns` taps side by side from `first` on, as a window (rows > 0); and
 * the epilogue of the plane: + bias, and the limits if `clamped`. */
typedef struct NAMED(Taps) {
    int64_t count, rows, columns, first;
    int clamped;
    REAL bias, low, high;
    int64_t offsets[PLANE_TAPS];
    REAL weights[PLANE_TAPS];
} NAMED(Taps);

ALWAYS_INLINE NAMED(Vector) NAMED(finished)(const NAMED(Taps) *s, NAMED(Vector) v)
{
    const NAMED(Vector) zero = {0};
    v += s->bias;
    if (s->clamped) {
        v = NAMED(select)(v < s->low, s->low - zero, v);              /* NaN is kept */
        v = NAMED(select)(v > s->high, s->high - zero, v);
    }
    return v;
}

/* `vectors` vectors of a row of outputs: out [i] = sum over taps of weight * in[i + offset]. */
ALWAYS_INLINE void NAMED(sum_list)(const NAMED(Taps) *s, int64_t taps, int vectors, const REAL *restrict in, REAL *restrict out)
{
    NAMED(Vector) sum[4] = {{0}};
    _Pragma("GCC unroll 9") for (int64_t t = 0; t < taps; t++) {
        const REAL *from = in + s->offsets[t];
        NAMED(Vector) tap = s->weights[t] - (NAMED(Vector)){0};
        _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) sum[v] += LOAD(from + v * NAMED(WIDTH)) * tap;
    }
    _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) STORE(out + v * NAMED(WIDTH), NAMED(finished)(s, sum[v]));
}

/* The same for a window of `rows` rows of taps, of WINDOW_ROWS rows of outputs: what a tap reads, it reads for several of them. */
enum { NAMED(WINDOW_ROWS) = 4 };
ALWAYS_INLINE void NAMED(sum_window)(const NAMED(Taps) *s, int64_t rows, int vectors, int64_t pitch, const REAL *restrict in, REAL *restrict out,
                                     int64_t out_pitch)
{
    NAMED(Vector) sum[NAMED(WINDOW_ROWS)][2] = {{{0}}};
    for (int64_t t = 0; t < s->columns; t++)
        _Pragma("GCC unroll 10") for (int64_t r = 0; r < rows + NAMED(WINDOW_ROWS) - 1; r++) {
            NAMED(Vector) value[2];
            _Pragma("GCC unroll 2") for (int v = 0; v < vectors; v++) value[v] = LOAD(in + r * pitch + t + v * NAMED(WIDTH));
            _Pragma("GCC unroll 4") for (int64_t o = 0; o < NAMED(WINDOW_ROWS); o++)
                if (r - o >= 0 && r - o < rows) {
                    NAMED(Vector) tap = s->weights[(r - o) * s->columns + t] - (NAMED(Vector)){0};
                    _Pragma("GCC unroll 2") for (int v = 0; v < vectors; v++) sum[o][v] += value[v] * tap;
                }
        }
    _Pragma("GCC unroll 4") for (int64_t o = 0; o < NAMED(WINDOW_ROWS); o++)
        _Pragma("GCC unroll 2") for (int v = 0; v < vectors; v++) STORE(out + o * out_pitch + v * NAMED(WIDTH), NAMED(finished)(s, sum[o][v]));
}

/* A row, or WINDOW_ROWS rows, of `columns` outputs, at least a vector of them; the last vectors overlap those before. */
#define ROW_OF_LIST(NAME, TAPS)                                                                                                              \
    NOINLINE void NAME(const NAMED(Taps) *s, int64_t columns, const REAL *restrict in, REAL *restrict out)                                   \
    {                                                                                                                                        \
        const int64_t width = NAMED(WIDTH), step = columns >= 4 * width ? 4 * width : columns >= 2 * width ? 2 * width : width;              \
        for (int64_t at = 0; at < columns; at += step) {                                                                                     \
            int64_t i = min_i64(at, columns - step);                                                                                         \
            if (step == 4 * width) NAMED(sum_list)(s, TAPS, 4, in + i, out + i);                                                             \
            else if (step == 2 * width) NAMED(sum_list)(s, TAPS, 2, in + i, out + i);                                                        \
            else NAMED(sum_list)(s, TAPS, 1, in + i, out + i);                                                                               \
        }                                                                                                                                    \
    }
ROW_OF_LIST(NAMED(row_of_9_taps), 9)
ROW_OF_LIST(NAMED(row_of_taps), s->count)
#undef ROW_OF_LIST
#define ROWS_OF_WINDOW(ROWS)                                                                                                                 \
    NOINLINE void NAMED(rows_of_window_##ROWS)(const NAMED(Taps) *s, int64_t columns, int64_t pitch, const REAL *restrict in,                \
                                               REAL *restrict out, int64_t out_pitch)                                                        \
    {                                                                                                                                        \
        const int64_t step = columns >= 2 * NAMED(WIDTH) ? 2 * NAMED(WIDTH) : NAMED(WIDTH);                                                  \
        for (int64_t at = 0; at < columns; at += step) {                                                                                     \
            int64_t i = min_i64(at, columns - step);                                                                                         \
            if (step > NAMED(WIDTH)) NAMED(sum_window)(s, ROWS, 2, pitch, in + i, out + i, out_pitch);                                       \
            else NAMED(sum_window)(s, ROWS, 1, pitch, in + i, out + i, out_pitch);                                                           \
        }                                                                                                                                    \
    }
ROWS_OF_WINDOW(2) ROWS_OF_WINDOW(3) ROWS_OF_WINDOW(5) ROWS_OF_WINDOW(7)
#undef ROWS_OF_WINDOW
typedef void (*NAMED(RowsOfWindow))(const NAMED(Taps) *s, int64_t columns, int64_t pitch, const REAL *restrict in, REAL *restrict out, int64_t out_pitch);

/* out [rows, columns] = the sums over taps, with the epilogue; rows of `in` and `out` are pitch and out_pitch elements apart. Narrow rows are computed as one
 * run, the elements between them included, in `spare` [rows * pitch, rounded up to whole vectors]. */
static void NAMED(sum_taps)(const NAMED(Taps) *s, int64_t rows, int64_t columns, int64_t pitch, const REAL *in, REAL *out, int64_t out_pitch, REAL *spare)
{
    NAMED(RowsOfWindow) window = s->rows == 2 ? NAMED(rows_of_window_2) : s->rows == 3 ? NAMED(rows_of_window_3) : s->rows == 5 ? NAMED(rows_of_window_5)
                               : s->rows == 7 ? NAMED(rows_of_window_7) : NULL;
    void (*row)(const NAMED(Taps) *, int64_t, const REAL *restrict, REAL *restrict) = s->count == 9 ? NAMED(row_of_9_taps) : NAMED(row_of_taps);
    if (columns < NAMED(WIDTH)) {
        row(s, round_up(rows * pitch, NAMED(WIDTH)), in, spare);
        for (int64_t r = 0; r < rows; r++) for (int64_t i = 0; i < columns; i++) out[r * out_pitch + i] = spare[r * pitch + i];
    } else if (window && rows >= NAMED(WINDOW_ROWS)) {
        for (int64_t at = 0; at < rows; at += NAMED(WINDOW_ROWS)) {
            int64_t r = min_i64(at, rows - NAMED(WINDOW_ROWS));
            window(s, columns, pitch, in + s->first + r * pitch, out + r * out_pitch, out_pitch);
        }
    } else for (int64_t r = 0; r < rows; r++) row(s, columns, in + r * pitch, out + r * out_pitch);
}

/* y of one plane. A work item is a plane of an image. */
static void NAMED(depthwise_plane_item)(void *context, int64_t plane, int64_t worker)
{
    const NAMED(DepthwisePlanes) *s = context;
    const Geometry *g = s->g;
    int64_t channel = plane % g->channels, capacity, reach = reach_y(g), pitch = g->out_columns + reach_x(g), phases = g->stride_y * g->stride_x;
    int64_t rows = rows_of_band(g->out_rows, (phases + 1) * pitch, phases * reach * pitch), copied = phases * (rows + reach) * pitch;
    const REAL *x = s->x + plane * g->rows * g->columns;
    REAL *y = s->y + plane * g->out_rows * g->out_columns, *copy = NAMED(workspace)(s->engine, worker, &capacity);
    NAMED(Taps) taps;                               /* without an initializer, which would write 12 KiB of zeros */
    taps.count = kernel_taps(g); taps.rows = phases == 1 && g->dilation_y == 1 && g->dilation_x == 1 ? g->kernel_y : 0;
    taps.columns = g->kernel_x; taps.first = 0;
    taps.bias = s->epilogue.bias ? s->epilogue.bias[channel] : 0;
    taps.clamped = s->epilogue.clamped; taps.low = s->epilogue.low; taps.high = s->epilogue.high;
    for (int64_t t = 0; t < taps.count; t++) taps.weights[t] = s->w[channel * taps.count + t];
    for (int64_t first = 0; first < g->out_rows; first += rows) {
        rows = min_i64(rows, g->out_rows - first);
        NAMED(tap_offsets)(g, rows, pitch, taps.offsets);
        NAMED(split_plane)(g, x, first, rows, reach, pitch, copy);
        NAMED(sum_taps)(&taps, rows, g->out_columns, pitch, copy, y + first * g->out_columns, g->out_columns, copy + copied + slack_of(g, NAMED(WIDTH)));
    }
}

static void NAMED(depthwise_planes)(NAMED(DepthwisePlanes) *s)
{ s->engine->parallel_for(s->engine, NAMED(depthwise_plane_item), s, s->g->images * s->g->channels); }

/* Set the taps that reach the pixels of a phase, from the last to the first, such that their offsets ascend. */
static void NAMED(taps_of_phase)(const Geometry *g, const REAL *w, int64_t phase_y, int64_t phase_x, int64_t pitch, NAMED(Taps) *taps)
{
    taps->count = 0;
    for (int64_t r = g->kernel_y - 1; r >= 0; r--)
        for (int64_t t = g->kernel_x - 1; t >= 0; t--) {
            int64_t y = r * g->dilation_y, x = t * g->dilation_x;
            if (y % g->stride_y != phase_y || x % g->stride_x != phase_x) continue;
            taps->weights[taps->count] = w[r * g->kernel_x + t];
            taps->offsets[taps->count++] = (reach_y(g) - y / g->stride_y) * pitch + reach_x(g) - x / g->stride_x;
        }
    taps->rows = taps->count && g->dilation_y == 1 && g->dilation_x == 1 ? ceil_div(g->kernel_y - phase_y, g->stride_y) : 0;
    taps->columns = taps->rows ? taps->count / taps->rows : 0;
    taps->first = taps->count ? taps->offsets[0] : 0;
}

/* dx of one plane. Pixels of one phase read the same taps: dx[a, b] of a phase is the sum of w[r, t] dy[a - r dilation / stride, b - t dilation / stride] over
 * the taps that reach the phase. A band is a number of rows of each phase. A work item is a plane of an image. */
static void NAMED(depthwise_plane_gradient_item)(void *context, int64_t plane, int64_t worker)
{
    const NAMED(DepthwisePlanes) *s = context;
    const Geometry *g = s->g;
    int64_t channel = plane % g->channels, capacity, above = reach_y(g), before = reach_x(g);
    int64_t all_rows = (g->rows - 1 + g->pad_y) / g->stride_y + 1, pitch = (g->columns - 1 + g->pad_x) / g->stride_x + 1 + before;
    int64_t phases = g->stride_y * g->stride_x, rows = rows_of_band(all_rows, (phases + 1) * pitch, above * pitch), slack = slack_of(g, NAMED(WIDTH));
    const REAL *dy = s->dy + plane * g->out_rows * g->out_columns, *w = s->w + channel * kernel_taps(g);
    REAL *dx = s->dx + plane * g->rows * g->columns, *copy = NAMED(workspace)(s->engine, worker, &capacity);
    const RowCopy row = row_copy(g->out_columns, -before, 1, pitch);
    NAMED(Taps) taps;
    taps.bias = 0; taps.clamped = 0;
    for (int64_t first = 0; first < all_rows; first += rows) {
        rows = min_i64(rows, all_rows - first);
        for (int64_t r = 0; r < rows + above; r++) {
            int64_t from = first + r - above;
            NAMED(copy_elements)(&row, from < 0 || from >= g->out_rows ? NULL : dy + from * g->out_columns, copy + r * pitch);
        }
        for (int64_t phase = 0; phase < phases; phase++) {
            int64_t phase_y = phase / g->stride_x, phase_x = phase % g->stride_x, top, left, bottom;
            top = max_i64(first, phase_y < g->pad_y ? ceil_div(g->pad_y - phase_y, g->stride_y) : 0);
            left = phase_x < g->pad_x ? ceil_div(g->pad_x - phase_x, g->stride_x) : 0;
            bottom = min_i64(first + rows, ceil_div(max_i64(0, g->rows + g->pad_y - phase_y), g->stride_y));
            int64_t columns = ceil_div(max_i64(0, g->columns + g->pad_x - phase_x), g->stride_x) - left, y = top * g->stride_y + phase_y - g->pad_y;
            const REAL *in = copy + (top - first) * pitch + left;
            REAL *out = copy + (rows + above) * pitch + slack, *to = dx + y * g->columns + left * g->stride_x + phase_x - g->pad_x;
            if (bottom <= top || columns <= 0) continue;
            NAMED(taps_of_phase)(g, w, phase_y, phase_x, pitch, &taps);
            if (g->stride_x == 1) {
                NAMED(sum_taps)(&taps, bottom - top, columns, pitch, in, to, g->stride_y * g->columns, out);
                continue;
            }
            NAMED(sum_taps)(&taps, bottom - top, columns, pitch, in, out, columns, out + (bottom - top) * columns);
            for (int64_t r = top; r < bottom; r++, to += g->stride_y * g->columns)
                for (int64_t i = 0; i < columns; i++) to[i * g->stride_x] = *out++;
        }
    }
}

static void NAMED(depthwise_planes_data_gradient)(NAMED(DepthwisePlanes) *s)
{ s->engine->parallel_for(s->engine, NAMED(depthwise_plane_gradient_item), s, s->g->images * s->g->channels); }

/* totals[t] += the sum over i < count of dy[i] * x[i + offsets[t]], for TAPS taps. count is a multiple of the vectors' width. */
enum { NAMED(TAPS_AT_ONCE) = VECTOR_REGISTERS == 32 ? 16 : 10 };
ALWAYS_INLINE void NAMED(add_products_of_some)(int taps, int64_t count, const int64_t *offsets, const REAL *restrict x, const REAL *restrict dy, double *totals)
{
    NAMED(Vector) sum[NAMED(TAPS_AT_ONCE)];
    _Pragma("GCC unroll 16") for (int t = 0; t < taps; t++) sum[t] = (NAMED(Vector)){0};
    for (int64_t i = 0; i < count; i += NAMED(WIDTH)) {
        NAMED(Vector) d = LOAD(dy + i);
        _Pragma("GCC unroll 16") for (int t = 0; t < taps; t++) sum[t] += LOAD(x + offsets[t] + i) * d;
    }
    for (int t = 0; t < taps; t++) for (int l = 0; l < NAMED(WIDTH); l++) totals[t] += sum[t][l];
}
NOINLINE void NAMED(add_products_of_taps)(int taps, int64_t count, const int64_t *offsets, const REAL *restrict x, const REAL *restrict dy, double *totals)
{
    for (int done = 0; done < taps;) {
        int most = taps - done;
#define SOME(N) if (most >= N) { NAMED(add_products_of_some)(N, count, offsets + done, x, dy, totals + done); done += N; continue; }
#if VECTOR_REGISTERS == 32
        SOME(16)
#else
        SOME(10)
#endif
        SOME(9) SOME(8) SOME(7) SOME(5) SOME(4) SOME(3) SOME(2) SOME(1)
#undef SOME
    }
}

/* dw of one channel, over all images. A work item is a channel. */
static void NAMED(depthwise_planes_weight_item)(void *context, int64_t channel, int64_t worker)
{
    const NAMED(DepthwisePlanes) *s = context;
    const Geometry *g = s->g;
    int64_t taps = kernel_taps(g), offsets[PLANE_TAPS], capacity, reach = reach_y(g), pitch = g->out_columns + reach_x(g);
    int64_t phases = g->stride_y * g->stride_x, most = rows_of_band(g->out_rows, (phases + 1) * pitch, phases * reach * pitch);
    int64_t slack = slack_of(g, NAMED(WIDTH));
    REAL *copy = NAMED(workspace)(s->engine, worker, &capacity), *gradient = copy + phases * (most + reach) * pitch + slack;
    const RowCopy row = row_copy(g->out_columns, 0, 1, pitch);
    double totals[PLANE_TAPS];
    for (int64_t t = 0; t < taps; t++) totals[t] = 0;
    for (int64_t image = 0; image < g->images; image++)
        for (int64_t first = 0; first < g->out_rows; first += most) {
            int64_t rows = min_i64(most, g->out_rows - first), count = round_up(rows * pitch, NAMED(WIDTH)), plane = image * g->channels + channel;
            NAMED(tap_offsets)(g, rows, pitch, offsets);
            NAMED(split_plane)(g, s->x + plane * g->rows * g->columns, first, rows, reach, pitch, copy);
            /* the last vectors read beyond the copy, and multiply that by zeros */
            memset(copy + phases * (rows + reach) * pitch, 0, (size_t)slack * sizeof(REAL));
            for (int64_t r = 0; r < rows; r++)
                NAMED(copy_elements)(&row, s->dy + (plane * g->out_rows + first + r) * g->out_columns, gradient + r * pitch);
            for (int64_t i = rows * pitch; i < count; i++) gradient[i] = 0;
            NAMED(add_products_of_taps)((int)taps, count, offsets, copy, gradient, totals);
        }
    for (int64_t t = 0; t < taps; t++) s->dw[channel * taps + t] = (REAL)totals[t];
}
