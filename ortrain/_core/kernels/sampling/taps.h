/* Taps: what a position between elements reads, for one element type (REAL); included by sampling.h once per type, hence without a guard. */

typedef struct NAMED(Axis) { int64_t count; int32_t index[TAPS_PER_AXIS]; REAL weight[TAPS_PER_AXIS], slope[TAPS_PER_AXIS]; } NAMED(Axis);

/* tap-major [taps, block], so that a loop over positions is contiguous; slope [axis] is the weight's derivative by the position along it */
typedef struct NAMED(Taps) { int32_t offset[TABLE_OF_TAPS]; REAL weight[TABLE_OF_TAPS], slope[3][TABLE_OF_TAPS]; } NAMED(Taps);

/* x mirrored at low and high till it lies between them; turn becomes the derivative. Not a number and infinity end at low. */
static inline REAL NAMED(mirrored)(REAL x, REAL low, REAL high, REAL *turn)
{
    REAL range = high - low, beyond = x < low ? low - x : x - high, times, rest, found;
    *turn = 1;
    if (x >= low && x <= high) return x;
    *turn = 0;
    if (!(range > 0)) return low;
    times = (REAL)floor(beyond / range);
    rest = beyond - times * range;
    int even = fmod(times, 2) == 0;
    found = (x < low) == even ? low + rest : high - rest;
    if (!(found >= low && found <= high)) return low;
    *turn = even ? -1 : 1;
    return found;
}

static inline REAL NAMED(far_weight)(REAL u) { const REAL a = (REAL)-0.75; return ((a * u - 5 * a) * u + 8 * a) * u - 4 * a; }
static inline REAL NAMED(far_slope)(REAL u) { const REAL a = (REAL)-0.75; return (3 * a * u - 10 * a) * u + 8 * a; }
static inline REAL NAMED(near_weight)(REAL u) { const REAL a = (REAL)-0.75; return ((a + 2) * u - (a + 3)) * u * u + 1; }
static inline REAL NAMED(near_slope)(REAL u) { const REAL a = (REAL)-0.75; return (3 * (a + 2) * u - 2 * (a + 3)) * u; }

/* The taps along an axis of n elements at position x, which changes by `scale` with what the derivative is taken by; the axis's borders lie at low and high */
static inline void NAMED(axis_taps)(REAL x, REAL scale, int64_t n, int64_t mode, int64_t padding, REAL low, REAL high, NAMED(Axis) *a)
{
    REAL turn = 1, last = (REAL)(n - 1);
    if (mode == NEAREST) x = (REAL)rint(x);
    if (!(x >= low && x <= high)) {
        if (padding == REFLECTION) x = NAMED(mirrored)(x, low, high, &turn);
        else if (padding == BORDER && mode == CUBIC) x = x > last + 4 ? last + 4 : x > -4 ? x : -4;     /* each tap is moved to the border, as PyTorch does */
        else if (padding == BORDER) { x = x > last ? last : x > 0 ? x : 0; turn = 0; }
        else if (!(x > -4 && x < last + 4)) x = -4;         /* every tap lies outside */
    }
    REAL start = (REAL)(mode == NEAREST ? x : floor(x)), t = x - start, s = scale * turn;
    int64_t first = (int64_t)start - (mode == CUBIC);
    switch (mode) {
        case NEAREST: a->count = 1; a->weight[0] = 1; a->slope[0] = 0; break;
        case LINEAR: a->count = 2; a->weight[0] = 1 - t; a->weight[1] = t; a->slope[0] = -s; a->slope[1] = s; break;
        default:
            a->count = 4;
            a->weight[0] = NAMED(far_weight)(t + 1); a->weight[1] = NAMED(near_weight)(t);
            a->weight[2] = NAMED(near_weight)(1 - t); a->weight[3] = NAMED(far_weight)(2 - t);
            a->slope[0] = s * NAMED(far_slope)(t + 1); a->slope[1] = s * NAMED(near_slope)(t);
            a->slope[2] = -s * NAMED(near_slope)(1 - t); a->slope[3] = -s * NAMED(far_slope)(2 - t);
    }
    for (int64_t k = 0; k < a->count; k++) {
        int64_t i = first + k;
        if (i < 0 || i >= n) {
            if (padding == ZEROS) { a->weight[k] = a->slope[k] = 0; i = 0; }
            else if (padding == REFLECTION) i = (int64_t)NAMED(mirrored)((REAL)i, low, high, &turn);
            i = i < 0 ? 0 : i >= n ? n - 1 : i;
        }
        a->index[k] = (int32_t)i;
    }
}

/* The table's column p: all products of the taps along depth, height and width; `scale` multiplies the weights, not the slopes */
static inline void NAMED(set_taps)(NAMED(Taps) *t, int64_t block, int64_t p, const NAMED(Axis) *axes, int64_t height, int64_t width, REAL scale)
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

/* y [n] = the samples that the table's first n columns take from a plane */
static inline void NAMED(take)(const NAMED(Taps) *t, int64_t taps, int64_t block, int64_t n, const REAL *plane, REAL *y)
{
    for (int64_t p = 0; p < n; p++) y[p] = t->weight[p] * plane[t->offset[p]];
    for (int64_t k = block; k < taps * block; k += block)
        for (int64_t p = 0; p < n; p++) y[p] += t->weight[k + p] * plane[t->offset[k + p]];
}

/* the adjoint of take: every sample's gradient goes to the elements that it read */
static inline void NAMED(give)(const NAMED(Taps) *t, int64_t taps, int64_t block, int64_t n, const REAL *dy, REAL *plane)
{
    for (int64_t k = 0; k < taps * block; k += block)
        for (int64_t p = 0; p < n; p++) plane[t->offset[k + p]] += t->weight[k + p] * dy[p];
}

/* sums [n] += dy times the samples that are taken with other weights */
static inline void NAMED(lean)(const NAMED(Taps) *t, const REAL *weight, int64_t taps, int64_t block, int64_t n, const REAL *plane, const REAL *dy, REAL *sums)
{
    for (int64_t k = 0; k < taps * block; k += block)
        for (int64_t p = 0; p < n; p++) sums[p] += weight[k + p] * plane[t->offset[k + p]] * dy[p];
}
