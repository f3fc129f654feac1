/* Taps: the elements that are read at a fractional position, for one element type; included by sampling.h once per type, therefore without an include guard. */

typedef struct NAMED(Axis) { int64_t count; int32_t index[MAX_TAPS_PER_AXIS]; REAL weight[MAX_TAPS_PER_AXIS], slope[MAX_TAPS_PER_AXIS]; } NAMED(Axis);

/* A table of taps [taps, block], so that loops over positions are contiguous. slope[axis]: the derivative of the weight by the position along that axis. */
typedef struct NAMED(Taps) { int32_t offset[TAP_TABLE_SIZE]; REAL weight[TAP_TABLE_SIZE], slope[3][TAP_TABLE_SIZE]; } NAMED(Taps);

/* Return x reflected at low and high until it is between them, and set *derivative to d result / d x. NaN and infinity become low. */
static inline REAL NAMED(reflect)(REAL x, REAL low, REAL high, REAL *derivative)
{
    REAL range = high - low, distance = x < low ? low - x : x - high, periods, excess, reflected;
    *derivative = 1;
    if (x >= low && x <= high) return x;
    *derivative = 0;
    if (!(range > 0)) return low;
    periods = (REAL)floor(distance / range);
    excess = distance - periods * range;
    int even = fmod(periods, 2) == 0;
    reflected = (x < low) == even ? low + excess : high - excess;
    if (!(reflected >= low && reflected <= high)) return low;
    *derivative = even ? -1 : 1;
    return reflected;
}

static inline REAL NAMED(cubic_outer_weight)(REAL u) { const REAL a = (REAL)-0.75; return ((a * u - 5 * a) * u + 8 * a) * u - 4 * a; }
static inline REAL NAMED(cubic_outer_slope)(REAL u) { const REAL a = (REAL)-0.75; return (3 * a * u - 10 * a) * u + 8 * a; }
static inline REAL NAMED(cubic_inner_weight)(REAL u) { const REAL a = (REAL)-0.75; return ((a + 2) * u - (a + 3)) * u * u + 1; }
static inline REAL NAMED(cubic_inner_slope)(REAL u) { const REAL a = (REAL)-0.75; return (3 * (a + 2) * u - 2 * (a + 3)) * u; }

/* Set *a to the taps along an axis of n elements, with borders low and high, at position x. scale: the derivative of x by the grid coordinate or offset. */
static inline void NAMED(axis_taps)(REAL x, REAL scale, int64_t n, int64_t mode, int64_t padding, REAL low, REAL high, NAMED(Axis) *a)
{
    REAL derivative = 1, last = (REAL)(n - 1);
    if (mode == NEAREST) x = (REAL)rint(x);
    if (!(x >= low && x <= high)) {
        if (padding == REFLECTION) x = NAMED(reflect)(x, low, high, &derivative);
        else if (padding == BORDER && mode == CUBIC) x = x > last + 4 ? last + 4 : x > -4 ? x : -4;     /* each tap is clamped to the border, as in PyTorch */
        else if (padding == BORDER) { x = x > last ? last : x > 0 ? x : 0; derivative = 0; }
        else if (!(x > -4 && x < last + 4)) x = -4;         /* all taps are outside */
    }
    REAL start = (REAL)(mode == NEAREST ? x : floor(x)), t = x - start, s = scale * derivative;
    int64_t first = (int64_t)start - (mode == CUBIC);
    switch (mode) {
        case NEAREST: a->count = 1; a->weight[0] = 1; a->slope[0] = 0; break;
        case LINEAR: a->count = 2; a->weight[0] = 1 - t; a->weight[1] = t; a->slope[0] = -s; a->slope[1] = s; break;
        default:
            a->count = 4;
            a->weight[0] = NAMED(cubic_outer_weight)(t + 1); a->weight[1] = NAMED(cubic_inner_weight)(t);
            a->weight[2] = NAMED(cubic_inner_weight)(1 - t); a->weight[3] = NAMED(cubic_outer_weight)(2 - t);
            a->slope[0] = s * NAMED(cubic_outer_slope)(t + 1); a->slope[1] = s * NAMED(cubic_inner_slope)(t);
            a->slope[2] = -s * NAMED(cubic_inner_slope)(1 - t); a->slope[3] = -s * NAMED(cubic_outer_slope)(2 - t);
    }
    for (int64_t k = 0; k < a->count; k++) {
        int64_t i = first + k;
        if (i < 0 || i >= n) {
            if (padding == ZEROS) { a->weight[k] = a->slope[k] = 0; i = 0; }
            else if (padding == REFLECTION) i = (int64_t)NAMED(reflect)((REAL)i, low, high, &derivative);
            i = i < 0 ? 0 : i >= n ? n - 1 : i;
        }
        a->index[k] = (int32_t)i;
    }
}

/* Store the products of the taps along depth, height and width in column p of the table. scale: a factor of the weights, but not of the slopes. */
static inline void NAMED(store_taps)(NAMED(Taps) *t, int64_t block, int64_t p, const NAMED(Axis) *axes, int64_t height, int64_t width, REAL scale)
{
    int64_t at = p;
    for (int64_t i = 0; i < axes[0].count; i++)
        for (int64_t j = 0; j < axes[1].count; j++)
            for (int64_t k = 0; k < axes[2].count; k++, at += block) {
                REAL u = axes[0].weight[i], v = axes[1].weight[j], w = axes[2].weight[k];
                t->offset[at] = (int32_t)((axes[0].index[i] * height + axes[1].index[j]) * width + axes[2].index[k]);
                t->weight[at] = scale * u * v * w;
                t->slope[0][at] = axes[0].slope[i] * v * w;
                t->slope[1][at] = u * axes[1].slope[j] * w;
                t->slope[2][at] = u * v * axes[2].slope[k];
            }
}

/* y [n] = the samples of a plane at the first n columns of the table. */
static inline void NAMED(gather_taps)(const NAMED(Taps) *t, int64_t taps, int64_t block, int64_t n, const REAL *plane, REAL *y)
{
    INDEPENDENT for (int64_t p = 0; p < n; p++) y[p] = t->weight[p] * plane[t->offset[p]];
    for (int64_t k = block; k < taps * block; k += block)
        INDEPENDENT for (int64_t p = 0; p < n; p++) y[p] += t->weight[k + p] * plane[t->offset[k + p]];
}

/* Add dy [n] to the taps in a plane, the adjoint of gather_taps. */
static inline void NAMED(scatter_taps)(const NAMED(Taps) *t, int64_t taps, int64_t block, int64_t n, const REAL *dy, REAL *plane)
{
    for (int64_t k = 0; k < taps * block; k += block)
        for (int64_t p = 0; p < n; p++) plane[t->offset[k + p]] += t->weight[k + p] * dy[p];
}

/* gather_taps for a chunk of channels side by side: plane [positions, chunk], y [n, chunk]. */
static inline void NAMED(gather_channels)(const NAMED(Taps) *t, int64_t taps, int64_t block, int64_t n, const REAL *plane, int64_t chunk, REAL *y)
{
    for (int64_t p = 0; p < n; p++)
        for (int64_t first = 0; first < chunk; first += CHANNEL_LANES) {
            REAL sum[CHANNEL_LANES];
            for (int c = 0; c < CHANNEL_LANES; c++) sum[c] = t->weight[p] * plane[t->offset[p] * chunk + first + c];
            for (int64_t k = p + block; k < p + taps * block; k += block)
                for (int c = 0; c < CHANNEL_LANES; c++) sum[c] += t->weight[k] * plane[t->offset[k] * chunk + first + c];
            for (int c = 0; c < CHANNEL_LANES; c++) y[p * chunk + first + c] = sum[c];
        }
}

/* scatter_taps for a chunk of channels side by side: dy [n, chunk], plane [positions, chunk]. */
static inline void NAMED(scatter_channels)(const NAMED(Taps) *t, int64_t taps, int64_t block, int64_t n, const REAL *dy, int64_t chunk, REAL *plane)
{
    for (int64_t p = 0; p < n; p++)
        for (int64_t k = p; k < p + taps * block; k += block)
            for (int64_t first = 0; first < chunk; first += CHANNEL_LANES) {
                REAL *restrict to = plane + t->offset[k] * chunk + first, weight = t->weight[k];
                const REAL *restrict from = dy + p * chunk + first;
                for (int c = 0; c < CHANNEL_LANES; c++) to[c] += weight * from[c];
            }
}

/* sums [n] += dy times the samples taken with `weight` instead of the weights of the table. */
static inline void NAMED(reduce_taps)(const NAMED(Taps) *t, const REAL *weight, int64_t taps, int64_t block, int64_t n, const REAL *plane, const REAL *dy,
                                      REAL *sums)
{
    for (int64_t k = 0; k < taps * block; k += block)
        INDEPENDENT for (int64_t p = 0; p < n; p++) sums[p] += weight[k + p] * plane[t->offset[k + p]] * dy[p];
}

/* sums [2, TAP_TABLE_SIZE] += dy times the samples taken with each of two weights, which are read once. */
static inline void NAMED(reduce_taps_twice)(const NAMED(Taps) *t, const REAL *first, const REAL *second, int64_t taps, int64_t block, int64_t n,
                                            const REAL *plane, const REAL *dy, REAL *sums)
{
    for (int64_t k = 0; k < taps * block; k += block)
        INDEPENDENT for (int64_t p = 0; p < n; p++) {
            REAL value = plane[t->offset[k + p]] * dy[p];
            sums[p] += first[k + p] * value; sums[TAP_TABLE_SIZE + p] += second[k + p] * value;
        }
}
