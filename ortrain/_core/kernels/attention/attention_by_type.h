/* Attention for one element type (common/float_types.h). The rows of scores are in score_rows.h. */

#define PRODUCT_AT(i) (NAMED(row_load)(x + (i)) * NAMED(row_load)(y + (i)))
/* Return the dot product of x [n] and y [n]. */
static inline REAL NAMED(dot)(int64_t n, const REAL *x, const REAL *y)
{
    REAL sum_of_few = 0;
    if (n < NAMED(ROW_WIDTH)) {
        for (int64_t i = 0; i < n; i++) sum_of_few += x[i] * y[i];
        return sum_of_few;
    }
    const NAMED(RowMask) end = NAMED(lanes_of_end)(n, ceil_div(n, NAMED(ROW_WIDTH)));
    LONG_ROW_SUM(sum, PRODUCT_AT)
    return sum;
}
#undef PRODUCT_AT

static inline NAMED(ScoreRow) NAMED(score_row)(const Attention *h, const REAL *mask, int64_t image, int64_t head, int64_t row, REAL scale)
{
    const int64_t *stride = h->mask_strides;
    const REAL *values = mask ? mask + image * stride[0] + head * stride[1] + row * stride[2] : NULL;
    return (NAMED(ScoreRow)){ stride[3] ? values : NULL, scale, values && !stride[3] ? *values : 0 };
}

/* Replace the products of a row with `keys` keys by exponentials, store their inverse sum, and return their log-sum-exp. */
static inline REAL NAMED(softmax_forward)(int64_t keys, NAMED(ScoreRow) s, REAL *row, REAL *inverse)
{
    REAL largest, sum;
    if (s.mask) { largest = NAMED(largest_score)(row, s, keys); sum = NAMED(exponentials)(row, s, largest, keys); }
    else { s.mask = NULL; largest = NAMED(largest_score)(row, s, keys); sum = NAMED(exponentials)(row, s, largest, keys); }
    *inverse = 1 / sum;
    return largest + ATTENTION_LOG(sum);
}

/* Forward; a unit is a block of query rows of one head. */
static void NAMED(attention_lane)(void *context, int64_t lane, int64_t worker)
{
    const Attention *h = context; const KernelArgs *args = h->args; const Engine *e = args->engine;
    const int mask_input = h->packed ? 1 : 3; const int64_t part = h->heads * h->size, q_row = h->q.row, y_row = h->y.row;
    const REAL *q = args->inputs[0].data, *mask = args->n_inputs > mask_input ? args->inputs[mask_input].data : NULL;
    const REAL *k = h->packed ? q + part : args->inputs[1].data, *v = h->packed ? k + part : args->inputs[2].data;
    REAL *y = args->outputs[0].data, *log_sums = args->n_outputs > 1 ? args->outputs[1].data : NULL;
    REAL *scores = (REAL *)args->scratch + lane * h->block * (h->keys + 1), *inverses = scores + h->block * h->keys, scale = (REAL)args->floats[0];
    const int64_t blocks = (h->rows + h->block - 1) / h->block, group = h->heads / h->shared;
    for (int64_t units = h->n * h->heads * blocks, unit = units * lane / h->lanes; unit < units * (lane + 1) / h->lanes; unit++) {
        int64_t image = unit / blocks / h->heads, head = unit / blocks % h->heads, first = unit % blocks * h->block;
        int64_t count = h->rows - first < h->block ? h->rows - first : h->block, keys = visible_keys(h, first + count);
        const REAL *queries = q + offset_of_head(h->q, image, head) + (h->first_query + first) * q_row;
        const REAL *head_k = k + offset_of_head(h->k, image, head / group), *head_v = v + offset_of_head(h->v, image, head / group);
        REAL *result = y + offset_of_head(h->y, image, head) + first * y_row;
        SERIAL_GEMM(e, worker, 0, 1, count, keys, h->size, 1, queries, q_row, head_k, h->k.row, 0, scores, keys, NULL, 0);
        for (int64_t i = 0; i < count; i++) {
            REAL log_sum = NAMED(softmax_forward)(keys, NAMED(score_row)(h, mask, image, head, first + i, scale), scores + i * keys, inverses + i);
            if (log_sums) log_sums[(image * h->heads + head) * h->rows + first + i] = log_sum;
        }
        SERIAL_GEMM(e, worker, 0, 0, count, h->width, keys, 1, scores, keys, head_v, h->v.row, 0, result, y_row, NULL, 0);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < h->width; j++) result[i * y_row + j] *= inverses[i];
    }
}

/* Set x [rows, size] of one head to zero. */
static void NAMED(zero_head)(REAL *x, int64_t rows, int64_t size, int64_t stride)
{ for (int64_t i = 0; i < rows; i++) memset(x + i * stride, 0, size * sizeof(REAL)); }

/* The operands of a gradient, at the first row of a head */
typedef struct NAMED(HeadGradient) {
    const REAL *dy, *q, *k, *v, *y, *log_sums, *mask;
    REAL *dq, *dk, *dv, *scores, *dscores;
    int64_t image, head, dk_row;
} NAMED(HeadGradient);

/* dq = , and dk and dv (+)= the gradients of one head, by blocks of query rows in order. */
static void NAMED(gradient_of_head)(const Attention *h, const NAMED(HeadGradient) *g, int adds, int64_t worker)
{
    const Engine *e = h->args->engine;
    const int64_t q_row = h->q.row, k_row = h->k.row, v_row = h->v.row, y_row = h->y.row;
    const REAL scale = (REAL)h->args->floats[0];
    for (int64_t first = 0; first < h->rows; first += h->block) {
        int64_t count = h->rows - first < h->block ? h->rows - first : h->block, keys = visible_keys(h, first + count);
        const REAL *rows = g->q + first * q_row, *dy = g->dy + first * y_row;
        SERIAL_GEMM(e, worker, 0, 1, count, keys, h->size, 1, rows, q_row, g->k, k_row, 0, g->scores, keys, NULL, 0);
        SERIAL_GEMM(e, worker, 0, 1, count, keys, h->width, 1, dy, y_row, g->v, v_row, 0, g->dscores, keys, NULL, 0);
        for (int64_t i = 0; i < count; i++) {
            REAL dot = NAMED(dot)(h->width, dy + i * y_row, g->y + (first + i) * y_row), log_sum = g->log_sums[first + i];
            REAL *row = g->scores + i * keys, *gradients = g->dscores + i * keys;
            NAMED(ScoreRow) s = NAMED(score_row)(h, g->mask, g->image, g->head, first + i, scale);
            if (s.mask) NAMED(softmax_backward)(row, gradients, s, log_sum, dot, keys);
            else { s.mask = NULL; NAMED(softmax_backward)(row, gradients, s, log_sum, dot, keys); }
        }
        SERIAL_GEMM(e, worker, 1, 0, keys, h->width, count, 1, g->scores, keys, dy, y_row, adds, g->dv, v_row, NULL, 0);
        SERIAL_GEMM(e, worker, 1, 0, keys, h->size, count, 1, g->dscores, keys, rows, q_row, adds, g->dk, g->dk_row, NULL, 0);
        SERIAL_GEMM(e, worker, 0, 0, count, h->size, keys, 1, g->dscores, keys, g->k, k_row, 0, g->dq + first * q_row, q_row, NULL, 0);
    }
}

/* (dy, q, k, v, mask or absent, y, log_sums) -> (dq, dk, dv). A unit is a head of keys, whose heads of queries are added to dk and dv in order. dq may
 * overwrite q; where one block has all rows and each head its own keys, dv may overwrite v, and dk y. Packed gradients may overwrite packed operands where one
 * block has all queries: dk of a head is in scratch until dq has been computed from k. */
static void NAMED(attention_gradient_lane)(void *context, int64_t lane, int64_t worker)
{
    const Attention *h = context; const KernelArgs *args = h->args;
    const Tensor *in = args->inputs;
    const int packed = (int)h->packed; const int64_t part = h->heads * h->size, group = h->heads / h->shared;
    const REAL *mask = in[packed ? 2 : 4].data, *q = in[1].data, *k = packed ? q + part : in[2].data, *v = packed ? k + part : in[3].data;
    const Tensor *result = in + (packed ? 3 : 5);                  /* y, before the log-sum-exp of its rows */
    REAL *dq = args->outputs[0].data, *dk = packed ? dq + part : args->outputs[1].data, *dv = packed ? dk + part : args->outputs[2].data;
    REAL *scores = (REAL *)args->scratch + lane * (2 * h->block * h->keys + (packed ? h->keys * h->size : 0)), *dscores = scores + h->block * h->keys;
    REAL *head_dk = dscores + h->block * h->keys;
    const int adds = h->rows != h->block || !h->rows || group > 1, moves_dk = packed && !adds;
    for (int64_t units = h->n * h->shared, unit = units * lane / h->lanes; unit < units * (lane + 1) / h->lanes; unit++) {
        int64_t image = unit / h->shared, of_keys = unit % h->shared;
        int64_t k_offset = offset_of_head(h->k, image, of_keys), v_offset = offset_of_head(h->v, image, of_keys);
        REAL *unit_dk = dk + k_offset;
        if (adds) {
            NAMED(zero_head)(unit_dk, h->keys, h->size, h->k.row);
            NAMED(zero_head)(dv + v_offset, h->keys, h->width, h->v.row);
        }
        for (int64_t head = of_keys * group; head < (of_keys + 1) * group; head++) {
            int64_t q_offset = offset_of_head(h->q, image, head) + h->first_query * h->q.row, y_offset = offset_of_head(h->y, image, head);
            if (packed) {
                NAMED(zero_head)(dq + q_offset - h->first_query * h->q.row, h->first_query, h->size, h->q.row);
                NAMED(zero_head)(dq + q_offset + h->rows * h->q.row, h->keys - h->first_query - h->rows, h->size, h->q.row);
            }
            NAMED(HeadGradient) g = { (REAL *)in[0].data + y_offset, q + q_offset, k + k_offset, v + v_offset, (REAL *)result[0].data + y_offset,
                                      (REAL *)result[1].data + (image * h->heads + head) * h->rows, mask, dq + q_offset, moves_dk ? head_dk : unit_dk,
                                      dv + v_offset, scores, dscores, image, head, moves_dk ? h->size : h->k.row };
            NAMED(gradient_of_head)(h, &g, adds, worker);
        }
        if (moves_dk) for (int64_t j = 0; j < h->keys; j++) memcpy(unit_dk + j * h->k.row, head_dk + j * h->size, (size_t)h->size * sizeof(REAL));
    }
}
