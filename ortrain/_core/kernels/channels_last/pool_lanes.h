/* Pooling in vectors of POOL_LANES channels, of which x [n, d, h, w, c] has at least one. Included by pool.h once per width, therefore without an include
 * guard.
 *
 * The last vector of channels starts at c - POOL_LANES, so some channels are computed twice. The gradients are computed per pixel of dx from the outputs whose
 * windows cover it, so dx is written once and needs no zeroing. */
typedef REAL LANED(PoolVector) __attribute__((vector_size(POOL_LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef INTEGER LANED(PoolMask) __attribute__((vector_size(POOL_LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef int32_t LANED(PoolTaps) __attribute__((vector_size(POOL_LANES * 4), aligned(4), may_alias));
#define V LANED(PoolVector)
#define M LANED(PoolMask)
#define AT(p) (*(V *)(p))
#define EACH_VECTOR(at, c) int64_t at = 0, c = 0; at < g->channels && (c = min_i64(at, g->channels - POOL_LANES), 1); at += POOL_LANES

static void LANED(max_pool_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    NAMED(PoolWindows) w = NAMED(pool_windows)(g, item);
    for (int64_t ox = 0; ox < g->out_columns; ox++) {
        int64_t shift = NAMED(next_pool_window)(g, s->x, &w, ox), out = (item * g->out_columns + ox) * g->channels;
        for (EACH_VECTOR(at, c)) {
            V best = AT(w.pixels[0] + shift + c);
            M winning_tap = (INTEGER)w.taps[0] - (M){0};
            for (int i = 1; i < w.count; i++) {
                V v = AT(w.pixels[i] + shift + c);
                M better = (v > best) | (v != v);                        /* NaN is kept */
                best = (V)((better & (M)v) | (~better & (M)best));
                winning_tap = (better & (INTEGER)w.taps[i]) | (~better & winning_tap);
            }
            AT(s->y + out + c) = best;
            if (s->taps) *(LANED(PoolTaps) *)(s->taps + out + c) = __builtin_convertvector(winning_tap, LANED(PoolTaps));
        }
    }
}

/* Return dy of an output, masked by y > 0 if y is given: the gradient of a ReLU before the pool. */
ALWAYS_INLINE V LANED(masked_dy)(const NAMED(Pool) *s, int64_t at)
{
    V dy = AT(s->dy + at);
    return s->y ? (V)((AT(s->y + at) > (V){0}) & (M)dy) : dy;
}
ALWAYS_INLINE M LANED(winning_taps)(const NAMED(Pool) *s, int64_t at)
{ return __builtin_convertvector(*(const LANED(PoolTaps) *)(s->taps + at), M); }

static void LANED(max_pool_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    PoolCover p = pool_cover(g, item);
    for (int64_t x = 0; x < g->columns; x++) {
        int64_t shift = NAMED(next_pool_cover)(g, &p, x);
        for (EACH_VECTOR(at, c)) {
            V sum = {0};
            for (int i = 0; i < p.count; i++) {
                M mask = LANED(winning_taps)(s, p.outputs[i] + shift + c) == (INTEGER)p.taps[i];
                sum += (V)(mask & (M)LANED(masked_dy)(s, p.outputs[i] + shift + c));
            }
            AT(s->dx + (item * g->columns + x) * g->channels + c) = sum;
        }
    }
}

/* The gradient where windows do not overlap: each output is read once. A work item is a row of outputs. */
static void LANED(max_pool_disjoint_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    REAL *rows = NAMED(disjoint_rows)(s, item);
    for (int64_t ox = 0; ox < g->out_columns; ox++)
        for (EACH_VECTOR(at, c)) {
            int64_t window = (item * g->out_columns + ox) * g->channels + c;
            V dy = LANED(masked_dy)(s, window);
            M winning_tap = LANED(winning_taps)(s, window);
            INTEGER tap = 0;
            for (int64_t z = 0; z < g->kernel_z; z++)
                for (int64_t r = z * g->rows; r < z * g->rows + g->kernel_y; r++)
                    for (int64_t t = 0; t < g->kernel_x; t++, tap++)
                        AT(rows + (r * g->columns + ox * g->kernel_x + t) * g->channels + c) = (V)((winning_tap == tap) & (M)dy);
        }
}

static void LANED(average_pool_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    NAMED(PoolWindows) w = NAMED(pool_windows)(g, item);
    for (int64_t ox = 0; ox < g->out_columns; ox++) {
        int64_t shift = NAMED(next_pool_window)(g, s->x, &w, ox);
        REAL divisor = (REAL)(s->counts_pads ? kernel_taps(g) : w.count);
        for (EACH_VECTOR(at, c)) {
            V sum = AT(w.pixels[0] + shift + c);
            for (int i = 1; i < w.count; i++) sum += AT(w.pixels[i] + shift + c);
            AT(s->y + (item * g->out_columns + ox) * g->channels + c) = sum / divisor;
        }
    }
}

static void LANED(average_pool_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    PoolCover p = pool_cover(g, item);
    for (int64_t x = 0; x < g->columns; x++) {
        int64_t shift = NAMED(next_pool_cover)(g, &p, x);
        for (EACH_VECTOR(at, c)) {
            V sum = {0};
            for (int i = 0; i < p.count; i++) sum += AT(s->dy + p.outputs[i] + shift + c) / (REAL)pool_divisor(g, s->counts_pads, p.outputs[i] + shift);
            AT(s->dx + (item * g->columns + x) * g->channels + c) = sum;
        }
    }
}

static void LANED(average_pool_disjoint_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    REAL *rows = NAMED(disjoint_rows)(s, item);
    for (int64_t ox = 0; ox < g->out_columns; ox++)
        for (EACH_VECTOR(at, c)) {
            V share = AT(s->dy + (item * g->out_columns + ox) * g->channels + c) / (REAL)kernel_taps(g);
            for (int64_t z = 0; z < g->kernel_z; z++)
                for (int64_t r = z * g->rows; r < z * g->rows + g->kernel_y; r++)
                    for (int64_t t = 0; t < g->kernel_x; t++)
                        AT(rows + (r * g->columns + ox * g->kernel_x + t) * g->channels + c) = share;
        }
}
#undef V
#undef M
#undef AT
#undef EACH_VECTOR
#undef LANED
#undef POOL_LANES
