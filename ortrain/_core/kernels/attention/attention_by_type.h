/* Attention for one element type; included by attention.h. */

static inline REAL NAMED(sum_of_lanes)(REAL *lanes)
{
    for (int half = SCORE_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

/* The mask of one row of one head: `step` apart, or NULL. */
typedef struct NAMED(MaskRow) { const REAL *at; int64_t step; } NAMED(MaskRow);

static inline NAMED(MaskRow) NAMED(mask_row)(const Heads *h, const REAL *mask, int64_t image, int64_t head, int64_t row)
{
    const int64_t *step = h->mask_steps;
    return (NAMED(MaskRow)){ mask ? mask + image * step[0] + head * step[1] + row * step[2] : NULL, step[3] };
}

/* LOOP with `score` as scale row[j] + mask, for the three kinds of masks: inside a loop the question kept it scalar */
#define FOR_SCORES(LOOP)                                                                                                               \
    if (!mask.at) { LOOP(row[SCORE] * scale) }                                                                                          \
    else if (mask.step == 1) { LOOP(row[SCORE] * scale + mask.at[SCORE]) }                                                              \
    else { LOOP(row[SCORE] * scale + mask.at[(SCORE) * mask.step]) }

/* row [keys] = scale row + mask; returns the largest */
static inline REAL NAMED(finish_scores)(int64_t keys, REAL scale, NAMED(MaskRow) mask, REAL *restrict row)
{
    REAL tops[SCORE_LANES], scores[SCORE_LANES], top = -INFINITY;
    int64_t j = 0;
    for (int l = 0; l < SCORE_LANES; l++) tops[l] = top;
#define SCORE j + l
#define LANES_OF_SCORES(VALUE)                                                                                                         \
    for (; j + SCORE_LANES <= keys; j += SCORE_LANES) {                                                                                 \
        for (int l = 0; l < SCORE_LANES; l++) scores[l] = VALUE;                                                                        \
        for (int l = 0; l < SCORE_LANES; l++) row[j + l] = scores[l];                                                                   \
        for (int l = 0; l < SCORE_LANES; l++) tops[l] = scores[l] > tops[l] ? scores[l] : tops[l];                                      \
    }
    FOR_SCORES(LANES_OF_SCORES)
#undef SCORE
#define SCORE j
#define REST_OF_SCORES(VALUE) for (; j < keys; j++) { row[j] = VALUE; top = row[j] > top ? row[j] : top; }
    FOR_SCORES(REST_OF_SCORES)
    for (int half = SCORE_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) tops[l] = tops[l + half] > tops[l] ? tops[l + half] : tops[l];
    return tops[0] > top ? tops[0] : top;
}

/* row [keys] becomes exp(row - top); returns the sum */
static inline REAL NAMED(exponentials)(int64_t keys, REAL top, REAL *restrict row)
{
    REAL lanes[SCORE_LANES] = {0}, powers[SCORE_LANES], sum = 0;
    int64_t j = 0;
    for (; j + SCORE_LANES <= keys; j += SCORE_LANES) {
        for (int l = 0; l < SCORE_LANES; l++) { powers[l] = EXP(row[j + l] - top); lanes[l] += powers[l]; }
        for (int l = 0; l < SCORE_LANES; l++) row[j + l] = powers[l];
    }
    for (; j < keys; j++) { row[j] = EXP(row[j] - top); sum += row[j]; }
    return sum + NAMED(sum_of_lanes)(lanes);
}

/* forward: a unit is a block of query rows of one head */
static void NAMED(attend)(void *context, int64_t lane, int64_t worker)
{
    const Heads *h = context; const KernelArgs *args = h->args; const Engine *e = args->engine;
    const REAL *q = args->inputs[0].data, *k = args->inputs[1].data, *v = args->inputs[2].data, *mask = args->n_inputs > 3 ? args->inputs[3].data : NULL;
    REAL *y = args->outputs[0].data, *log_sums = args->n_outputs > 1 ? args->outputs[1].data : NULL;
    REAL *scores = (REAL *)args->scratch + lane * h->block * h->keys, scale = (REAL)args->floats[0];
    int64_t blocks = (h->rows + h->block - 1) / h->block, step = h->heads * h->size, wide = h->heads * h->width;
    for (int64_t all = h->n * h->heads * blocks, unit = all * lane / h->lanes; unit < all * (lane + 1) / h->lanes; unit++) {
        int64_t image = unit / blocks / h->heads, head = unit / blocks % h->heads, first = unit % blocks * h->block;
        int64_t count = h->rows - first < h->block ? h->rows - first : h->block, keys = keys_seen(h, first + count);
        e->GEMM_SERIAL(e, worker, 0, 1, count, keys, h->size, 1, q + (image * h->rows + first) * step + head * h->size, step,
                       k + image * h->keys * step + head * h->size, step, 0, scores, keys, NULL, 0);
        for (int64_t i = 0; i < count; i++) {
            REAL *row = scores + i * keys, top = NAMED(finish_scores)(keys, scale, NAMED(mask_row)(h, mask, image, head, first + i), row);
            REAL sum = NAMED(exponentials)(keys, top, row), share = 1 / sum;
            for (int64_t j = 0; j < keys; j++) row[j] *= share;
            if (log_sums) log_sums[(image * h->heads + head) * h->rows + first + i] = top + LOG(sum);
        }
        e->GEMM_SERIAL(e, worker, 0, 0, count, h->width, keys, 1, scores, keys, v + image * h->keys * wide + head * h->width, wide, 0,
                       y + (image * h->rows + first) * wide + head * h->width, wide, NULL, 0);
    }
}

/* x [rows, size] of a head = 0 */
static void NAMED(clear_head)(REAL *x, int64_t rows, int64_t size, int64_t step)
{ for (int64_t i = 0; i < rows; i++) memset(x + i * step, 0, size * sizeof(REAL)); }

/* x y of a row; lanes, in one order */
static inline REAL NAMED(dot)(int64_t n, const REAL *restrict x, const REAL *restrict y)
{
    REAL lanes[SCORE_LANES] = {0}, sum = 0;
    int64_t j = 0;
    for (; j + SCORE_LANES <= n; j += SCORE_LANES)
        for (int l = 0; l < SCORE_LANES; l++) lanes[l] += x[j + l] * y[j + l];
    for (; j < n; j++) sum += x[j] * y[j];
    return sum + NAMED(sum_of_lanes)(lanes);
}

/* products of queries and keys become probabilities, and slopes (the gradients of the probabilities) those of the products, of one row; all in place */
static inline void NAMED(slopes_of_scores)(int64_t keys, REAL scale, NAMED(MaskRow) mask, REAL log_sum, REAL dot, REAL *restrict row, REAL *restrict slopes)
{
#define SLOPES(VALUE)                                                                                                                  \
    for (int64_t j = 0; j < keys; j++) {                                                                                                \
        REAL p = EXP(VALUE - log_sum);                                                                                                  \
        row[j] = p;                                                                                                                     \
        slopes[j] = p * (slopes[j] - dot) * scale;                                                                                      \
    }
    FOR_SCORES(SLOPES)
#undef SCORE
#undef SLOPES
#undef LANES_OF_SCORES
#undef REST_OF_SCORES
#undef FOR_SCORES
}

/* (dy, q, k, v, mask, y, log_sums) -> (dq, dk, dv): a unit is a head, whose blocks follow one another, for they add to the same dk and dv */
static void NAMED(attend_back)(void *context, int64_t lane, int64_t worker)
{
    const Heads *h = context; const KernelArgs *args = h->args; const Engine *e = args->engine;
    const Tensor *in = args->inputs;
    const REAL *mask = in[4].data;
    int64_t step = h->heads * h->size, wide = h->heads * h->width;
    REAL *scores = (REAL *)args->scratch + 2 * lane * h->block * h->keys, *slopes = scores + h->block * h->keys, scale = (REAL)args->floats[0];
    for (int64_t all = h->n * h->heads, unit = all * lane / h->lanes; unit < all * (lane + 1) / h->lanes; unit++) {
        int64_t image = unit / h->heads, head = unit % h->heads;
        int64_t of_rows = image * h->rows * step + head * h->size, of_keys = image * h->keys * step + head * h->size;
        int64_t of_results = image * h->rows * wide + head * h->width, of_values = image * h->keys * wide + head * h->width;
        const REAL *dy = (REAL *)in[0].data + of_results, *q = (REAL *)in[1].data + of_rows, *k = (REAL *)in[2].data + of_keys;
        const REAL *v = (REAL *)in[3].data + of_values, *y = (REAL *)in[5].data + of_results, *log_sums = (REAL *)in[6].data + unit * h->rows;
        REAL *dq = (REAL *)args->outputs[0].data + of_rows, *dk = (REAL *)args->outputs[1].data + of_keys, *dv = (REAL *)args->outputs[2].data + of_values;
        NAMED(clear_head)(dk, h->keys, h->size, step);
        NAMED(clear_head)(dv, h->keys, h->width, wide);
        for (int64_t first = 0; first < h->rows; first += h->block) {
            int64_t count = h->rows - first < h->block ? h->rows - first : h->block, keys = keys_seen(h, first + count);
            const REAL *rows = q + first * step, *dresults = dy + first * wide;
            e->GEMM_SERIAL(e, worker, 0, 1, count, keys, h->size, 1, rows, step, k, step, 0, scores, keys, NULL, 0);
            e->GEMM_SERIAL(e, worker, 0, 1, count, keys, h->width, 1, dresults, wide, v, wide, 0, slopes, keys, NULL, 0);
            for (int64_t i = 0; i < count; i++) {
                REAL dot = NAMED(dot)(h->width, dresults + i * wide, y + (first + i) * wide);
                NAMED(slopes_of_scores)(keys, scale, NAMED(mask_row)(h, mask, image, head, first + i), log_sums[first + i], dot, scores + i * keys,
                                        slopes + i * keys);
            }
            e->GEMM_SERIAL(e, worker, 1, 0, keys, h->width, count, 1, scores, keys, dresults, wide, 1, dv, wide, NULL, 0);
            e->GEMM_SERIAL(e, worker, 0, 0, count, h->size, keys, 1, slopes, keys, k, step, 0, dq + first * step, step, NULL, 0);
            e->GEMM_SERIAL(e, worker, 1, 0, keys, h->size, count, 1, slopes, keys, rows, step, 1, dk, step, NULL, 0);
        }
    }
}
