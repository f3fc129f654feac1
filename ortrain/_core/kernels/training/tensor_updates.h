/* Optimizers whose update of an element depends on the whole tensor. Included once per type: R is the type, OF(name) the name for it.
 *
 * weights, gradients: one parameter in its own shape; everything else as in training.h. */

/* ---- LAMB. floats: beta1, beta2, epsilon, weight decay; ints: correct bias */

typedef struct OF(Lamb) { R b1, b2, o1, o2, epsilon, decay, first, second, size; } OF(Lamb);

/* the direction of element i, before it is scaled to the norm of the weights */
#define DIRECTION(s, i) (m[i] * (s)->first / (SQUARE_ROOT(v[i]) * (s)->second + (s)->epsilon) + (s)->decay * w[i])

/* updates the moments of a part and sums the squares of its weights and of its direction */
static void OF(lamb_moments)(void *context, int64_t item, int64_t worker)
{
    PartialSums *sums = context; const KernelArgs *args = sums->args; const OF(Lamb) *s = sums->constants; (void)worker;
    const R *restrict w = args->inputs[WEIGHTS].data, *restrict g = args->inputs[GRADIENTS].data;
    R *restrict m = moment_of(args, FIRST_MOMENTS), *restrict v = moment_of(args, SECOND_MOMENTS);
    const int64_t start = item * sums->size, n = args->inputs[WEIGHTS].count, end = start + sums->size < n ? start + sums->size : n;
    double of_weights[8] = {0}, of_direction[8] = {0};
    for (int64_t i = start; i < end; i += 8)
        for (int64_t k = 0, lanes = end - i < 8 ? end - i : 8; k < lanes; k++) {
            const int64_t j = i + k;
            m[j] = s->b1 * m[j] + s->o1 * g[j];
            v[j] = s->b2 * v[j] + s->o2 * g[j] * g[j];
            const double direction = DIRECTION(s, j);
            of_weights[k] += (double)w[j] * (double)w[j];
            of_direction[k] += direction * direction;
        }
    sums->first[item] = total_of(of_weights, 8);
    sums->second[item] = total_of(of_direction, 8);
}

static void OF(lamb_weights)(void *context, int64_t item, int64_t worker)
{
    const PartialSums *sums = context; const KernelArgs *args = sums->args; const OF(Lamb) *s = sums->constants; (void)worker;
    R *restrict w = args->inputs[WEIGHTS].data;
    const R *restrict m = moment_of(args, FIRST_MOMENTS), *restrict v = moment_of(args, SECOND_MOMENTS);
    const int64_t start = item * sums->size, n = args->inputs[WEIGHTS].count, end = start + sums->size < n ? start + sums->size : n;
    for (int64_t i = start; i < end; i++) w[i] -= s->size * DIRECTION(s, i);
}

static void OF(lamb)(const KernelArgs *args)
{
    const double *p = args->floats, step = step_number(args), rate = learning_rate(args);
    const double c1 = args->ints[0] ? 1 - pow(p[0], step) : 1, c2 = args->ints[0] ? 1 - pow(p[1], step) : 1;
    OF(Lamb) s = {(R)p[0], (R)p[1], (R)(1 - p[0]), (R)(1 - p[1]), (R)p[2], (R)p[3], (R)(1 / c1), (R)(1 / sqrt(c2)), 0};
    PartialSums sums = partial_sums(args, args->inputs[WEIGHTS].count, UPDATE_CHUNK);
    sums.constants = &s;
    args->engine->parallel_for(args->engine, OF(lamb_moments), &sums, sums.parts);
    const double weights = sqrt(total_of(sums.first, sums.parts)), direction = sqrt(total_of(sums.second, sums.parts));
    s.size = (R)(rate * (weights > 0 && direction > 0 ? weights / direction : 1));
    args->engine->parallel_for(args->engine, OF(lamb_weights), &sums, sums.parts);
}
#undef DIRECTION

/* ---- Adafactor. floats: decay rate, epsilon1, epsilon2, clip threshold, weight decay; ints: scale parameter, relative step.
 *
 * Moments of weights [batch..., rows, columns]: means of squared gradients over columns [batch..., rows] and over rows [batch..., columns]. Weights of
 * rank 0 and 1 have their squared gradients themselves as first moment. */

typedef struct OF(Adafactor) {
    int64_t rows, columns;
    double epsilon, beta, rest;
    R keep, size;
} OF(Adafactor);

/* row moments; an item is a part of all rows */
static void OF(adafactor_rows)(void *context, int64_t item, int64_t worker)
{
    const PartialSums *sums = context; const KernelArgs *args = sums->args; const OF(Adafactor) *s = sums->constants; (void)worker;
    const int64_t all = args->inputs[FIRST_MOMENTS].count, start = item * sums->size, end = start + sums->size < all ? start + sums->size : all;
    const R *g = args->inputs[GRADIENTS].data; R *row = moment_of(args, FIRST_MOMENTS);
    for (int64_t r = start; r < end; r++)
        row[r] = (R)(s->beta * row[r] + s->rest * (OF(sum_of_squares)(g + r * s->columns, s->columns) / s->columns + s->epsilon));
}

enum { OF(COLUMNS) = 256 };           /* of one item */
/* column moments; an item is a block of columns of one matrix */
static void OF(adafactor_columns)(void *context, int64_t item, int64_t worker)
{
    const PartialSums *sums = context; const KernelArgs *args = sums->args; const OF(Adafactor) *s = sums->constants; (void)worker;
    const int64_t blocks = (s->columns + OF(COLUMNS) - 1) / OF(COLUMNS), matrix = item / blocks, start = item % blocks * OF(COLUMNS);
    const int64_t n = s->columns - start < OF(COLUMNS) ? s->columns - start : OF(COLUMNS);
    const R *g = (const R *)args->inputs[GRADIENTS].data + matrix * s->rows * s->columns + start;
    R *column = (R *)moment_of(args, SECOND_MOMENTS) + matrix * s->columns + start;
    double squares[OF(COLUMNS)] = {0};
    for (int64_t r = 0; r < s->rows; r++, g += s->columns)
        for (int64_t c = 0; c < n; c++) squares[c] += (double)g[c] * (double)g[c];
    for (int64_t c = 0; c < n; c++) column[c] = (R)(s->beta * column[c] + s->rest * (squares[c] / s->rows + s->epsilon));
}

static double OF(mean)(const R *x, int64_t n) { double total = 0; for (int64_t i = 0; i < n; i++) total += x[i]; return total / n; }

/* sums of squared weights and of the squared update before it is clipped, or (weights) the update itself; an item is a part of all rows */
static inline void OF(adafactor_matrices)(const PartialSums *sums, int64_t item, double *of_weights, double *of_update)
{
    const KernelArgs *args = sums->args; const OF(Adafactor) *s = sums->constants;
    const int64_t all = args->inputs[FIRST_MOMENTS].count, first = item * sums->size, end = first + sums->size < all ? first + sums->size : all;
    const R *row = moment_of(args, FIRST_MOMENTS), *columns = moment_of(args, SECOND_MOMENTS);
    double mean = 1;
    for (int64_t r = first; r < end; r++) {
        if (r == first || r % s->rows == 0) mean = OF(mean)(row + r / s->rows * s->rows, s->rows);
        R *restrict w = (R *)args->inputs[WEIGHTS].data + r * s->columns;
        const R *restrict g = (const R *)args->inputs[GRADIENTS].data + r * s->columns, *restrict column = columns + r / s->rows * s->columns;
        if (of_update == NULL) {
            const R factor = (R)(s->size * sqrt(mean / row[r]));
            for (int64_t c = 0; c < s->columns; c++) w[c] = w[c] * s->keep - factor * g[c] / SQUARE_ROOT(column[c]);
            continue;
        }
        double squares[8] = {0};
        for (int64_t c = 0; c < s->columns; c += 8)
            for (int64_t k = 0, lanes = s->columns - c < 8 ? s->columns - c : 8; k < lanes; k++)
                squares[k] += (double)g[c + k] * (double)g[c + k] / (double)column[c + k];
        *of_update += total_of(squares, 8) * mean / row[r];
        *of_weights += OF(sum_of_squares)(w, s->columns);
    }
}

static void OF(adafactor_matrix_sums)(void *context, int64_t item, int64_t worker)
{
    PartialSums *sums = context; (void)worker;
    sums->first[item] = sums->second[item] = 0;
    OF(adafactor_matrices)(sums, item, &sums->first[item], &sums->second[item]);
}
static void OF(adafactor_matrix_weights)(void *context, int64_t item, int64_t worker) { (void)worker; OF(adafactor_matrices)(context, item, NULL, NULL); }

/* the same for weights of rank 0 and 1; an item is a part of their elements */
static void OF(adafactor_vector_sums)(void *context, int64_t item, int64_t worker)
{
    PartialSums *sums = context; const KernelArgs *args = sums->args; const OF(Adafactor) *s = sums->constants; (void)worker;
    const int64_t n = args->inputs[WEIGHTS].count, start = item * sums->size, end = start + sums->size < n ? start + sums->size : n;
    const R *g = args->inputs[GRADIENTS].data, *w = args->inputs[WEIGHTS].data; R *v = moment_of(args, FIRST_MOMENTS);
    sums->first[item] = OF(sum_of_squares)(w + start, end - start);
    sums->second[item] = 0;
    for (int64_t i = start; i < end; i++) {
        v[i] = (R)(s->beta * v[i] + s->rest * ((double)g[i] * (double)g[i] + s->epsilon));
        sums->second[item] += (double)g[i] * (double)g[i] / (double)v[i];
    }
}
static void OF(adafactor_vector_weights)(void *context, int64_t item, int64_t worker)
{
    const PartialSums *sums = context; const KernelArgs *args = sums->args; const OF(Adafactor) *s = sums->constants; (void)worker;
    const int64_t n = args->inputs[WEIGHTS].count, start = item * sums->size, end = start + sums->size < n ? start + sums->size : n;
    R *w = args->inputs[WEIGHTS].data; const R *g = args->inputs[GRADIENTS].data, *v = moment_of(args, FIRST_MOMENTS);
    for (int64_t i = start; i < end; i++) w[i] = w[i] * s->keep - s->size * g[i] / SQUARE_ROOT(v[i]);
}

static void OF(adafactor)(const KernelArgs *args)
{
    const Engine *engine = args->engine; const Tensor *weights = &args->inputs[WEIGHTS];
    const double *p = args->floats, step = step_number(args), n = (double)weights->count, beta = 1 - pow(step, p[0]);
    double rate = learning_rate(args);
    if (weights->count == 0) return;
    if (args->ints[1] && rate > 1 / sqrt(step)) rate = 1 / sqrt(step);
    const int is_matrix = weights->rank > 1;
    OF(Adafactor) s = {is_matrix ? weights->dims[weights->rank - 2] : 1, is_matrix ? weights->dims[weights->rank - 1] : weights->count, p[1], beta, 1 - beta,
                       (R)(1 - rate * p[4]), 0};
    PartialSums sums = is_matrix ? partial_sums(args, args->inputs[FIRST_MOMENTS].count, (UPDATE_CHUNK + s.columns - 1) / s.columns)
                                 : partial_sums(args, weights->count, UPDATE_CHUNK);
    sums.constants = &s;
    if (is_matrix) {
        engine->parallel_for(engine, OF(adafactor_rows), &sums, sums.parts);
        engine->parallel_for(engine, OF(adafactor_columns), &sums, weights->count / (s.rows * s.columns) * ((s.columns + OF(COLUMNS) - 1) / OF(COLUMNS)));
    }
    engine->parallel_for(engine, is_matrix ? OF(adafactor_matrix_sums) : OF(adafactor_vector_sums), &sums, sums.parts);
    const double size = sqrt(total_of(sums.first, sums.parts) / n), update = sqrt(total_of(sums.second, sums.parts) / n);
    if (args->ints[0]) rate *= size > p[2] ? size : p[2];
    s.size = (R)(update > p[3] ? rate * p[3] / update : rate);
    engine->parallel_for(engine, is_matrix ? OF(adafactor_matrix_weights) : OF(adafactor_vector_weights), &sums, sums.parts);
}

/* ---- Muon. floats: momentum, weight decay, epsilon, and beta1, beta2 and epsilon of the AdamW that weights of rank 0 and 1 get; ints: nesterov,
 * Newton-Schulz steps, whether updates get the root mean square of AdamW's. scratch: 2 (rows columns + k k) elements, k the smaller of rows and columns.
 *
 * Weights of rank 2 or more are matrices [first dimension, the others]; their second moments are absent or empty. */

typedef struct OF(Muon) { R *x, *y; R of_x, of_y; } OF(Muon);

/* momentum [n], and into x the direction that is orthogonalized: of_x gradient + of_y momentum */
static void OF(muon_momentum)(void *context, int64_t item, int64_t worker)
{
    const PartialSums *sums = context; const KernelArgs *args = sums->args; const OF(Muon) *s = sums->constants; (void)worker;
    const int64_t n = args->inputs[WEIGHTS].count, start = item * sums->size, end = start + sums->size < n ? start + sums->size : n;
    const R *restrict g = args->inputs[GRADIENTS].data; R *restrict m = moment_of(args, FIRST_MOMENTS), *restrict x = s->x;
    const R keep = (R)args->floats[0], rest = (R)(1 - args->floats[0]);
    for (int64_t i = start; i < end; i++) { m[i] = keep * m[i] + rest * g[i]; x[i] = s->of_x * g[i] + s->of_y * m[i]; }
    ((PartialSums *)context)->first[item] = OF(sum_of_squares)(x + start, end - start);
}

/* y = of_x x + of_y y; an item is a part of n elements, which `parts` and `size` divide */
static void OF(muon_combination)(void *context, int64_t item, int64_t worker)
{
    const PartialSums *sums = context; const OF(Muon) *s = sums->constants; (void)worker;
    const int64_t start = item * sums->size, n = (int64_t)sums->first[0], end = start + sums->size < n ? start + sums->size : n;
    const R *x = s->x; R *y = s->y;
    if (s->of_y == 0) for (int64_t i = start; i < end; i++) y[i] = s->of_x * x[i];
    else for (int64_t i = start; i < end; i++) y[i] = s->of_x * x[i] + s->of_y * y[i];
}
static void OF(combine)(const KernelArgs *args, int64_t n, double of_x, R *x, double of_y, R *y)
{
    OF(Muon) s = {x, y, (R)of_x, (R)of_y};
    PartialSums sums = partial_sums(args, n, UPDATE_CHUNK);
    sums.constants = &s; sums.first[0] = (double)n;
    args->engine->parallel_for(args->engine, OF(muon_combination), &sums, sums.parts);
}

/* the matrix with the singular vectors of x [m, n] and singular values near 1, by Newton-Schulz iterations; returns where it is: x or y */
static R *OF(orthogonalized)(const KernelArgs *args, R *x, R *y, R *square, R *polynomial, int64_t m, int64_t n, int64_t steps)
{
    const Engine *engine = args->engine; const int wide = m <= n; const int64_t k = wide ? m : n;
    for (int64_t step = 0; step < steps; step++) {
        OF(GEMM)(engine, !wide, wide, k, k, wide ? n : m, 1, x, n, x, n, 0, square, k, 0, 0);
        OF(GEMM)(engine, 0, 0, k, k, k, 1, square, k, square, k, 0, polynomial, k, 0, 0);
        OF(combine)(args, k * k, -4.7750, square, 2.0315, polynomial);
        OF(combine)(args, m * n, 3.4445, x, 0, y);
        if (wide) OF(GEMM)(engine, 0, 0, m, n, k, 1, polynomial, k, x, n, 1, y, n, 0, 0);
        else OF(GEMM)(engine, 0, 0, m, n, k, 1, x, n, polynomial, k, 1, y, n, 0, 0);
        R *result = y; y = x; x = result;
    }
    return x;
}

static void OF(muon)(const KernelArgs *args)
{
    const Tensor *weights = &args->inputs[WEIGHTS]; const double *p = args->floats, rate = learning_rate(args);
    if (weights->rank < 2) {
        const double floats[4] = {p[3], p[4], p[5], p[1]}; const int64_t ints[1] = {1};
        KernelArgs as_adam = *args;
        as_adam.floats = floats; as_adam.ints = ints;
        update_segment(&as_adam, OF(adam));
        return;
    }
    const int64_t count = weights->count, m = weights->dims[0], n = m ? count / m : 0, k = m < n ? m : n;
    if (count == 0) return;
    R *x = args->scratch, *y = x + count;
    OF(Muon) s = {x, y, (R)(args->ints[0] ? 1 - p[0] : 0), (R)(args->ints[0] ? p[0] : 1)};
    PartialSums sums = partial_sums(args, count, UPDATE_CHUNK);
    sums.constants = &s;
    args->engine->parallel_for(args->engine, OF(muon_momentum), &sums, sums.parts);
    OF(combine)(args, count, 1 / (sqrt(total_of(sums.first, sums.parts)) + p[2]), x, 0, x);
    x = OF(orthogonalized)(args, x, y, y + count, y + count + k * k, m, n, args->ints[1]);
    const double shape = args->ints[2] ? 0.2 * sqrt((double)(m > n ? m : n)) : sqrt(m > n ? (double)m / n : 1);
    OF(combine)(args, count, -rate * shape, x, 1 - rate * p[1], weights->data);
}
