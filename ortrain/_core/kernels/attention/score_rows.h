/* Rows of attention's scores for one element type (common/float_types.h). A score is scale * x + mask, where x is a product of a query and a key. A row starts
 * and ends with a whole vector where it has as many elements, so that its end is computed as fast as the rest: the last block overlaps the one before. */

#define V NAMED(RowVector)
#define W NAMED(ROW_WIDTH)

/* What turns products into scores. Without a mask per key, mask is NULL and shift the mask of all keys of the row, or 0. */
typedef struct NAMED(ScoreRow) { const REAL *mask; REAL scale, shift; } NAMED(ScoreRow);

/* A score, and vectors of scores: the tests are of constants, since everything here is inlined into two callers, with and without a mask. */
#define SCORE(i) (s.mask ? x[i] * s.scale + s.mask[i] : x[i] * s.scale + s.shift)
#define SCORES(i) (s.mask ? NAMED(row_load)(x + (i)) * s.scale + NAMED(row_load)(s.mask + (i)) : NAMED(row_load)(x + (i)) * s.scale + s.shift)

/* Scores minus `less`, which has been subtracted from s.shift: the same bits whether the mask of a single key is broadcast or not. */
#define DIFFERENCE(i, less) (x[i] * s.scale + (s.mask ? s.mask[i] - (less) : s.shift))
#define DIFFERENCES(i, less) (s.mask ? NAMED(row_load)(x + (i)) * s.scale + (NAMED(row_load)(s.mask + (i)) - (less)) \
                                     : NAMED(row_load)(x + (i)) * s.scale + s.shift)

/* Return the largest score of a row of n products x. */
ALWAYS_INLINE REAL NAMED(largest_score)(const REAL *x, NAMED(ScoreRow) s, int64_t n)
{
    if (n < W) {
        REAL largest = -INFINITY;
        for (int64_t i = 0; i < n; i++) largest = SCORE(i) > largest ? SCORE(i) : largest;
        return largest;
    }
    V largest[2] = { SCORES(0), SCORES(n - W) };
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        _Pragma("GCC unroll 2") for (int u = 0; u < 2; u++) largest[u] = NAMED(row_larger)(SCORES(i + u * W), largest[u]);
    if (i + W <= n) largest[0] = NAMED(row_larger)(SCORES(i), largest[0]);
    return NAMED(lane_max)(NAMED(row_larger)(largest[1], largest[0]));
}

/* x [n] = exp(scores - largest). Return their sum. Two vectors at a time: GCC takes loops over the lanes of one vector apart. */
ALWAYS_INLINE REAL NAMED(exponentials)(REAL *x, NAMED(ScoreRow) s, REAL largest, int64_t n)
{
    enum { BLOCK = 2 * W };
    REAL block[BLOCK], sum_of_rest = 0;
    V sum[2] = {{0}}, last[2];
    s.shift -= largest;
    if (n < W) {
        for (int64_t i = 0; i < n; i++) { x[i] = ATTENTION_EXP(DIFFERENCE(i, largest)); sum_of_rest += x[i]; }
        return sum_of_rest;
    }
    const int64_t at[2] = { n < BLOCK ? 0 : n - BLOCK, n - W };
    for (int u = 0; u < 2; u++) last[u] = DIFFERENCES(at[u], largest);
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        for (int u = 0; u < 2; u++) NAMED(row_store)(block + u * W, DIFFERENCES(i + u * W, largest));
        for (int l = 0; l < BLOCK; l++) block[l] = ATTENTION_EXP(block[l]);
        for (int u = 0; u < 2; u++) { V e = NAMED(row_load)(block + u * W); sum[u] += e; NAMED(row_store)(x + i + u * W, e); }
    }
    if (i < n) {
        memcpy(block, last, sizeof(block));
        for (int l = 0; l < BLOCK; l++) block[l] = ATTENTION_EXP(block[l]);
        for (int u = 0; u < 2; u++) NAMED(row_store)(x + at[u], NAMED(row_load)(block + u * W));
        for (int u = 0; u < 2; u++)
            for (int l = 0; l < W; l++) block[u * W + l] = at[u] + l < i || (!u && at[0] + l >= at[1]) ? 0 : block[u * W + l];
        for (int u = 0; u < 2; u++) sum[u] += NAMED(row_load)(block + u * W);
    }
    return NAMED(lane_sum)(sum[0] + sum[1]);
}

/* In place for a row of n products x: x becomes the probabilities exp(scores - log_sum), and dx, their gradient, that of the products. dot: the dot product of
 * the row's result and its gradient. */
ALWAYS_INLINE void NAMED(softmax_backward)(REAL *restrict x, REAL *restrict dx, NAMED(ScoreRow) s, REAL log_sum, REAL dot, int64_t n)
{
    enum { BLOCK = 2 * W };
    const int64_t at[2] = { n < BLOCK ? 0 : n - BLOCK, n - W }, whole = n < W ? n : n / BLOCK * BLOCK;
    REAL block[BLOCK];
    V last_gradients[2] = {{0}};
    s.shift -= log_sum;
    if (whole < n)
        for (int u = 0; u < 2; u++) { NAMED(row_store)(block + u * W, DIFFERENCES(at[u], log_sum)); last_gradients[u] = NAMED(row_load)(dx + at[u]); }
    for (int64_t i = 0; i < whole; i++) {
        REAL p = ATTENTION_EXP(DIFFERENCE(i, log_sum));
        x[i] = p;
        dx[i] = p * (dx[i] - dot) * s.scale;
    }
    if (whole < n) {
        for (int l = 0; l < BLOCK; l++) block[l] = ATTENTION_EXP(block[l]);
        for (int u = 0; u < 2; u++) {
            V p = NAMED(row_load)(block + u * W);
            NAMED(row_store)(x + at[u], p);
            NAMED(row_store)(dx + at[u], p * (last_gradients[u] - dot) * s.scale);
        }
    }
}
#undef DIFFERENCE
#undef DIFFERENCES
#undef SCORES
#undef SCORE
#undef V
#undef W
