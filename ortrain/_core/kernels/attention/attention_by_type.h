/* Attention for one element type; included by attention.h once per type, therefore without an include guard. */

static inline REAL NAMED(reduce_lanes)(REAL *lanes)
{
    for (int half = SCORE_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

/* The mask values of one row of one head, with their stride; values is NULL without a mask. */
typedef struct NAMED(MaskRow) { const REAL *values; int64_t stride; } NAMED(MaskRow);

static inline NAMED(MaskRow) NAMED(mask_row)(const Attention *h, const REAL *mask, int64_t image, int64_t head, int64_t row)
{
    const int64_t *stride = h->mask_strides;
    return (NAMED(MaskRow)){ mask ? mask + image * stride[0] + head * stride[1] + row * stride[2] : NULL, stride[3] };
}

/* Expand LOOP(VALUE) with VALUE = scale * row[SCORE] + mask, once per kind of mask: a test inside the loop would prevent vectorization. */
#define FOR_SCORES(LOOP)                                                         \
    if (!mask.values) { LOOP(row[SCORE] * scale) }                               \
    else if (mask.stride == 1) { LOOP(row[SCORE] * scale + mask.values[SCORE]) } \
    else { LOOP(row[SCORE] * scale + mask.values[(SCORE) * mask.stride]) }

/* row [keys] = scale * row + mask. Return its maximum. */
static inline REAL NAMED(scale_and_mask)(int64_t keys, REAL scale, NAMED(MaskRow) mask, REAL *restrict row)
{
    REAL lane_max[SCORE_LANES], scores[SCORE_LANES], row_max = -INFINITY;
    int64_t j = 0;
    for (int l = 0; l < SCORE_LANES; l++) lane_max[l] = row_max;
#define SCORE j + l
#define LANES_OF_SCORES(VALUE)                                                                                 \
    for (; j + SCORE_LANES <= keys; j += SCORE_LANES) {                                                        \
        for (int l = 0; l < SCORE_LANES; l++) scores[l] = VALUE;                                               \
        for (int l = 0; l < SCORE_LANES; l++) row[j + l] = scores[l];                                          \
        for (int l = 0; l < SCORE_LANES; l++) lane_max[l] = scores[l] > lane_max[l] ? scores[l] : lane_max[l]; \
    }
    FOR_SCORES(LANES_OF_SCORES)
#undef SCORE
#define SCORE j
#define REST_OF_SCORES(VALUE) for (; j < keys; j++) { row[j] = VALUE; row_max = row[j] > row_max ? row[j] : row_max; }
    FOR_SCORES(REST_OF_SCORES)
    for (int half = SCORE_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lane_max[l] = lane_max[l + half] > lane_max[l] ? lane_max[l + half] : lane_max[l];
    return lane_max[0] > row_max ? lane_max[0] : row_max;
}

/* row [keys] = exp(row - row_max). Return its sum. */
static inline REAL NAMED(exp_and_sum)(int64_t keys, REAL row_max, REAL *restrict row)
{
    REAL lanes[SCORE_LANES] = {0}, exps[SCORE_LANES], sum = 0;
    int64_t j = 0;
    for (; j + SCORE_LANES <= keys; j += SCORE_LANES) {
        for (int l = 0; l < SCORE_LANES; l++) { exps[l] = EXP(row[j + l] - row_max); lanes[l] += exps[l]; }
        for (int l = 0; l < SCORE_LANES; l++) row[j + l] = exps[l];
    }
    for (; j < keys; j++) { row[j] = EXP(row[j] - row_max); sum += row[j]; }
    return sum + NAMED(reduce_lanes)(lanes);
}

/* Forward; a unit is a block of query rows of one head. */
static void NAMED(attention_lane)(void *context, int64_t lane, int64_t worker)
{
    const Attention *h = context; const KernelArgs *args = h->args; const Engine *e = args->engine;
    const int mask_input = h->packed ? 1 : 3; const int64_t part = h->heads * h->size;
    const REAL *q = args->inputs[0].data, *mask = args->n_inputs > mask_input ? args->inputs[mask_input].data : NULL;
    const REAL *k = h->packed ? q + part : args->inputs[1].data, *v = h->packed ? k + part : args->inputs[2].data;
    REAL *y = args->outputs[0].data, *log_sums = args->n_outputs > 1 ? args->outputs[1].data : NULL;
    REAL *scores = (REAL *)args->scratch + lane * h->block * h->keys, scale = (REAL)args->floats[0];
    int64_t blocks = (h->rows + h->block - 1) / h->block, stride = h->stride, value_stride = h->value_stride;
    for (int64_t units = h->n * h->heads * blocks, unit = units * lane / h->lanes; unit < units * (lane + 1) / h->lanes; unit++) {
        int64_t image = unit / blocks / h->heads, head = unit / blocks % h->heads, first = unit % blocks * h->block;
        int64_t count = h->rows - first < h->block ? h->rows - first : h->block, keys = visible_keys(h, first + count);
        e->GEMM_SERIAL(e, worker, 0, 1, count, keys, h->size, 1, q + (image * h->image_queries + h->first_query + first) * stride + head * h->size, stride,
                       k + image * h->keys * stride + head * h->size, stride, 0, scores, keys, NULL, 0);
        for (int64_t i = 0; i < count; i++) {
            REAL *row = scores + i * keys, row_max = NAMED(scale_and_mask)(keys, scale, NAMED(mask_row)(h, mask, image, head, first + i), row);
            REAL sum = NAMED(exp_and_sum)(keys, row_max, row), inv_sum = 1 / sum;
            for (int64_t j = 0; j < keys; j++) row[j] *= inv_sum;
            if (log_sums) log_sums[(image * h->heads + head) * h->rows + first + i] = row_max + LOG(sum);
        }
        e->GEMM_SERIAL(e, worker, 0, 0, count, h->width, keys, 1, scores, keys, v + image * h->keys * value_stride + head * h->width, value_stride, 0,
                       y + (image * h->rows + first) * h->y_stride + head * h->width, h->y_stride, NULL, 0);
    }
}

/* Set x [rows, size] of one head to zero. */
static void NAMED(zero_head)(REAL *x, int64_t rows, int64_t size, int64_t stride)
{ for (int64_t i = 0; i < rows; i++) memset(x + i * stride, 0, size * sizeof(REAL)); }

/* Return the dot product of x [n] and y [n], in SCORE_LANES lanes and a fixed order. */
static inline REAL NAMED(dot)(int64_t n, const REAL *restrict x, const REAL *restrict y)
{
    REAL lanes[SCORE_LANES] = {0}, sum = 0;
    int64_t j = 0;
    for (; j + SCORE_LANES <= n; j += SCORE_LANES)
        for (int l = 0; l < SCORE_LANES; l++) lanes[l] += x[j + l] * y[j + l];
    for (; j < n; j++) sum += x[j] * y[j];
    return sum + NAMED(reduce_lanes)(lanes);
}

/* In place for one row: q k^T becomes the probabilities, and their gradient dscores becomes the gradient of q k^T. dot: the dot product of dy and y. */
static inline void NAMED(softmax_backward)(int64_t keys, REAL scale, NAMED(MaskRow) mask, REAL log_sum, REAL dot, REAL *restrict row, REAL *restrict dscores)
{
#define DSCORES(VALUE)                               \
    for (int64_t j = 0; j < keys; j++) {             \
        REAL p = EXP(VALUE - log_sum);               \
        row[j] = p;                                  \
        dscores[j] = p * (dscores[j] - dot) * scale; \
    }
    FOR_SCORES(DSCORES)
#undef SCORE
#undef DSCORES
#undef LANES_OF_SCORES
#undef REST_OF_SCORES
#undef FOR_SCORES
}

/* (dy, q, k, v, mask or absent, y, log_sums) -> (dq, dk, dv). A unit is a head, whose blocks of query rows are added to dk and dv in order. dq may overwrite q;
 * where one block has all rows, dv may overwrite v, and dk y. Packed gradients may overwrite packed operands where one block has all queries: dk of a head is
 * in scratch until dq has been computed from k. */
static void NAMED(attention_gradient_lane)(void *context, int64_t lane, int64_t worker)
{
    const Attention *h = context; const KernelArgs *args = h->args; const Engine *e = args->engine;
    const Tensor *in = args->inputs;
    const int packed = (int)h->packed; const int64_t part = h->heads * h->size, stride = h->stride, value_stride = h->value_stride, y_stride = h->y_stride;
    const REAL *mask = in[packed ? 2 : 4].data, *all_q = in[1].data, *all_k = packed ? all_q + part : in[2].data, *all_v = packed ? all_k + part : in[3].data;
    const Tensor *result = in + (packed ? 3 : 5);                  /* y, before the log-sum-exp of its rows */
    REAL *all_dq = args->outputs[0].data, *all_dk = packed ? all_dq + part : args->outputs[1].data, *all_dv = packed ? all_dk + part : args->outputs[2].data;
    REAL *scores = (REAL *)args->scratch + lane * (2 * h->block * h->keys + (packed ? h->keys * h->size : 0)), *dscores = scores + h->block * h->keys;
    REAL *head_dk = dscores + h->block * h->keys, scale = (REAL)args->floats[0];
    for (int64_t units = h->n * h->heads, unit = units * lane / h->lanes; unit < units * (lane + 1) / h->lanes; unit++) {
        int64_t image = unit / h->heads, head = unit % h->heads;
        int64_t q_offset = (image * h->image_queries + h->first_query) * stride + head * h->size, k_offset = image * h->keys * stride + head * h->size;
        int64_t y_offset = image * h->rows * y_stride + head * h->width, v_offset = image * h->keys * value_stride + head * h->width;
        const REAL *dy = (REAL *)in[0].data + y_offset, *q = all_q + q_offset, *k = all_k + k_offset, *v = all_v + v_offset;
        const REAL *y = (REAL *)result[0].data + y_offset, *log_sums = (REAL *)result[1].data + unit * h->rows;
        REAL *dq = all_dq + q_offset, *dk = all_dk + k_offset, *dv = all_dv + v_offset;
        const int adds = h->rows != h->block || !h->rows, moves_dk = packed && !adds;
        if (adds) {
            NAMED(zero_head)(dk, h->keys, h->size, stride);
            NAMED(zero_head)(dv, h->keys, h->width, value_stride);
        }
        if (packed) {
            int64_t end = h->first_query + h->rows;
            NAMED(zero_head)(dq - h->first_query * stride, h->first_query, h->size, stride);
            NAMED(zero_head)(dq + h->rows * stride, h->keys - end, h->size, stride);
        }
        for (int64_t first = 0; first < h->rows; first += h->block) {
            int64_t count = h->rows - first < h->block ? h->rows - first : h->block, keys = visible_keys(h, first + count);
            const REAL *rows = q + first * stride, *dy_block = dy + first * y_stride;
            e->GEMM_SERIAL(e, worker, 0, 1, count, keys, h->size, 1, rows, stride, k, stride, 0, scores, keys, NULL, 0);
            e->GEMM_SERIAL(e, worker, 0, 1, count, keys, h->width, 1, dy_block, y_stride, v, value_stride, 0, dscores, keys, NULL, 0);
            for (int64_t i = 0; i < count; i++) {
                REAL dot = NAMED(dot)(h->width, dy_block + i * y_stride, y + (first + i) * y_stride);
                NAMED(softmax_backward)(keys, scale, NAMED(mask_row)(h, mask, image, head, first + i), log_sums[first + i], dot, scores + i * keys,
                                        dscores + i * keys);
            }
            e->GEMM_SERIAL(e, worker, 1, 0, keys, h->width, count, 1, scores, keys, dy_block, y_stride, adds, dv, value_stride, NULL, 0);
            e->GEMM_SERIAL(e, worker, 1, 0, keys, h->size, count, 1, dscores, keys, rows, stride, adds, moves_dk ? head_dk : dk, moves_dk ? h->size : stride,
                           NULL, 0);
            e->GEMM_SERIAL(e, worker, 0, 0, count, h->size, keys, 1, dscores, keys, k, stride, 0, dq + first * stride, stride, NULL, 0);
        }
        if (moves_dk) for (int64_t j = 0; j < h->keys; j++) memcpy(dk + j * stride, head_dk + j * h->size, (size_t)h->size * sizeof(REAL));
    }
}
