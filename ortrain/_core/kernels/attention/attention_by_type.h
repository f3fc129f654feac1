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
    const int mask_input = h->packed ? 1 : 3; const int64_t part = h->heads * h->size;
    const REAL *q = args->inputs[0].data, *mask = args->n_inputs > mask_input ? args->inputs[mask_input].data : NULL;
    const REAL *k = h->packed ? q + part : args->inputs[1].data, *v = h->packed ? k + part : args->inputs[2].data;
    REAL *y = args->outputs[0].data, *log_sums = args->n_outputs > 1 ? args->outputs[1].data : NULL;
    REAL *scores = (REAL *)args->scratch + lane * h->block * (h->keys + 1), *inverses = scores + h->block * h->keys, scale = (REAL)args->floats[0];
    int64_t blocks = (h->rows + h->block - 1) / h->block, stride = h->stride, value_stride = h->value_stride;
    for (int64_t units = h->n * h->heads * blocks, unit = units * lane / h->lanes; unit < units * (lane + 1) / h->lanes; unit++) {
        int64_t image = unit / blocks / h->heads, head = unit / blocks % h->heads, first = unit % blocks * h->block;
        int64_t count = h->rows - first < h->block ? h->rows - first : h->block, keys = visible_keys(h, first + count);
        SERIAL_GEMM(e, worker, 0, 1, count, keys, h->size, 1, q + (image * h->image_queries + h->first_query + first) * stride + head * h->size, stride,
                       k + image * h->keys * stride + head * h->size, stride, 0, scores, keys, NULL, 0);
        for (int64_t i = 0; i < count; i++) {
            REAL log_sum = NAMED(softmax_forward)(keys, NAMED(score_row)(h, mask, image, head, first + i, scale), scores + i * keys, inverses + i);
            if (log_sums) log_sums[(image * h->heads + head) * h->rows + first + i] = log_sum;
        }
        REAL *result = y + (image * h->rows + first) * h->y_stride + head * h->width;
        SERIAL_GEMM(e, worker, 0, 0, count, h->width, keys, 1, scores, keys, v + image * h->keys * value_stride + head * h->width, value_stride, 0, result,
                    h->y_stride, NULL, 0);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < h->width; j++) result[i * h->y_stride + j] *= inverses[i];
    }
}

/* Set x [rows, size] of one head to zero. */
static void NAMED(zero_head)(REAL *x, int64_t rows, int64_t size, int64_t stride)
{ for (int64_t i = 0; i < rows; i++) memset(x + i * stride, 0, size * sizeof(REAL)); }

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
            SERIAL_GEMM(e, worker, 0, 1, count, keys, h->size, 1, rows, stride, k, stride, 0, scores, keys, NULL, 0);
            SERIAL_GEMM(e, worker, 0, 1, count, keys, h->width, 1, dy_block, y_stride, v, value_stride, 0, dscores, keys, NULL, 0);
            for (int64_t i = 0; i < count; i++) {
                REAL dot = NAMED(dot)(h->width, dy_block + i * y_stride, y + (first + i) * y_stride);
                NAMED(ScoreRow) s = NAMED(score_row)(h, mask, image, head, first + i, scale);
                REAL log_sum = log_sums[first + i], *row = scores + i * keys, *gradients = dscores + i * keys;
                if (s.mask) NAMED(softmax_backward)(row, gradients, s, log_sum, dot, keys);
                else { s.mask = NULL; NAMED(softmax_backward)(row, gradients, s, log_sum, dot, keys); }
            }
            SERIAL_GEMM(e, worker, 1, 0, keys, h->width, count, 1, scores, keys, dy_block, y_stride, adds, dv, value_stride, NULL, 0);
            SERIAL_GEMM(e, worker, 1, 0, keys, h->size, count, 1, dscores, keys, rows, stride, adds, moves_dk ? head_dk : dk, moves_dk ? h->size : stride,
                           NULL, 0);
            SERIAL_GEMM(e, worker, 0, 0, count, h->size, keys, 1, dscores, keys, k, stride, 0, dq + first * stride, stride, NULL, 0);
        }
        if (moves_dk) for (int64_t j = 0; j < h->keys; j++) memcpy(dk + j * stride, head_dk + j * h->size, (size_t)h->size * sizeof(REAL));
    }
}
