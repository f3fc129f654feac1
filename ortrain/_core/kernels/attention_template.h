/* Attention for one element type; included by attention.h. */

/* scores [keys] = scale scores + mask, of one row of one head */
static void NAMED(finish_scores)(const Heads *h, int64_t image, int64_t head, int64_t row, int64_t keys, const REAL *mask, REAL *restrict scores)
{
    const REAL scale = (REAL)h->args->floats[0];
    const int64_t *step = h->mask_steps;
    const REAL *from = mask ? mask + image * step[0] + head * step[1] + row * step[2] : NULL;
    if (!mask) for (int64_t j = 0; j < keys; j++) scores[j] *= scale;
    else if (step[3] == 1) for (int64_t j = 0; j < keys; j++) scores[j] = scores[j] * scale + from[j];
    else for (int64_t j = 0; j < keys; j++) scores[j] = scores[j] * scale + from[j * step[3]];
}

/* row [keys] becomes exp(row - its largest); returns the sum, and the largest */
static REAL NAMED(exponentials)(int64_t keys, REAL *restrict row, REAL *largest)
{
    REAL tops[SCORE_LANES], lanes[SCORE_LANES] = {0}, top = row[0], sum = 0;
    int64_t j = 0;
    for (int l = 0; l < SCORE_LANES; l++) tops[l] = top;
    for (; j + SCORE_LANES <= keys; j += SCORE_LANES)
        for (int l = 0; l < SCORE_LANES; l++) tops[l] = row[j + l] > tops[l] ? row[j + l] : tops[l];
    for (; j < keys; j++) top = row[j] > top ? row[j] : top;
    for (int l = 0; l < SCORE_LANES; l++) top = tops[l] > top ? tops[l] : top;
    for (j = 0; j < keys; j++) row[j] = EXP(row[j] - top);
    for (j = 0; j + SCORE_LANES <= keys; j += SCORE_LANES)
        for (int l = 0; l < SCORE_LANES; l++) lanes[l] += row[j + l];
    for (; j < keys; j++) sum += row[j];
    for (int l = 0; l < SCORE_LANES; l++) sum += lanes[l];
    *largest = top;
    return sum;
}

/* forward: a unit is a block of query rows of one head */
static void NAMED(attend)(void *context, int64_t lane, int64_t worker)
{
    const Heads *h = context; const KernelArgs *args = h->args; const Engine *e = args->engine;
    const REAL *q = args->inputs[0].data, *k = args->inputs[1].data, *v = args->inputs[2].data, *mask = args->n_inputs > 3 ? args->inputs[3].data : NULL;
    REAL *y = args->outputs[0].data, *log_sums = args->n_outputs > 1 ? args->outputs[1].data : NULL;
    REAL *scores = (REAL *)args->scratch + lane * h->block * h->keys;
    int64_t blocks = (h->rows + h->block - 1) / h->block, step = h->heads * h->size, wide = h->heads * h->width;
    for (int64_t unit = lane; unit < h->n * h->heads * blocks; unit += h->lanes) {
        int64_t image = unit / blocks / h->heads, head = unit / blocks % h->heads, first = unit % blocks * h->block;
        int64_t count = h->rows - first < h->block ? h->rows - first : h->block, keys = keys_seen(h, first + count);
        e->GEMM_SERIAL(e, worker, 0, 1, count, keys, h->size, 1, q + (image * h->rows + first) * step + head * h->size, step,
                       k + image * h->keys * step + head * h->size, step, 0, scores, keys, NULL, 0);
        for (int64_t i = 0; i < count; i++) {
            NAMED(finish_scores)(h, image, head, first + i, keys, mask, scores + i * keys);
            REAL top, sum = NAMED(exponentials)(keys, scores + i * keys, &top), share = 1 / sum, *row = scores + i * keys;
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

/* scores become probabilities, and slopes (the gradients of the probabilities) those of the scores, of one row; all in place */
static void NAMED(slopes_of_scores)(int64_t keys, REAL log_sum, REAL dot, REAL scale, REAL *restrict scores, REAL *restrict slopes)
{
    for (int64_t j = 0; j < keys; j++) {
        REAL p = EXP(scores[j] - log_sum);
        scores[j] = p;
        slopes[j] = p * (slopes[j] - dot) * scale;
    }
}

/* (dy, q, k, v, mask, y, log_sums) -> (dq, dk, dv): a unit is a head, whose blocks follow one another, for they add to the same dk and dv */
static void NAMED(attend_back)(void *context, int64_t lane, int64_t worker)
{
    const Heads *h = context; const KernelArgs *args = h->args; const Engine *e = args->engine;
    const Tensor *in = args->inputs;
    const REAL *mask = in[4].data;
    int64_t step = h->heads * h->size, wide = h->heads * h->width;
    REAL *scores = (REAL *)args->scratch + 2 * lane * h->block * h->keys, *slopes = scores + h->block * h->keys;
    for (int64_t unit = lane; unit < h->n * h->heads; unit += h->lanes) {
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
                NAMED(finish_scores)(h, image, head, first + i, keys, mask, scores + i * keys);
                REAL dot = 0;
                for (int64_t j = 0; j < h->width; j++) dot += dresults[i * wide + j] * y[(first + i) * wide + j];
                NAMED(slopes_of_scores)(keys, log_sums[first + i], dot, (REAL)args->floats[0], scores + i * keys, slopes + i * keys);
            }
            e->GEMM_SERIAL(e, worker, 1, 0, keys, h->width, count, 1, scores, keys, dresults, wide, 1, dv, wide, NULL, 0);
            e->GEMM_SERIAL(e, worker, 0, 0, count, h->size, keys, 1, slopes, keys, k, step, 0, dq + first * step, step, NULL, 0);
            e->GEMM_SERIAL(e, worker, 1, 0, keys, h->size, count, 1, slopes, keys, rows, step, 1, dk, step, NULL, 0);
        }
    }
}
