/* Softmax cross-entropy for one element type; included by loss.h once per type, therefore without an include guard.
 *
 * Positions whose classes are adjacent (d = 1) are computed one at a time where they have many classes. All others are computed LOSS_LANES at a time, one in
 * each lane: x[c * step + l] is logit c of position l. They lie so in memory where d > 1; else the rows of a work item are transposed into a panel. */

/* Return the maximum logit of a row, in 16 lanes. */
ALWAYS_INLINE REAL NAMED(max_logit)(const REAL *x, int64_t classes, int64_t d)
{
    REAL lane_max[LOSS_LANES], max = x[0]; int64_t c = 0;
    for (int l = 0; l < LOSS_LANES; l++) lane_max[l] = max;
    for (; c + LOSS_LANES <= classes; c += LOSS_LANES)
        for (int l = 0; l < LOSS_LANES; l++) lane_max[l] = x[(c + l) * d] > lane_max[l] ? x[(c + l) * d] : lane_max[l];
    for (; c < classes; c++) max = x[c * d] > max ? x[c * d] : max;
    for (int l = 0; l < LOSS_LANES; l++) max = lane_max[l] > max ? lane_max[l] : max;
    return max;
}
/* Return log(sum of exp(x) over the classes), in 16 lanes and a fixed order. */
ALWAYS_INLINE REAL NAMED(log_sum_exp)(const REAL *x, int64_t classes, int64_t d)
{
    REAL lanes[LOSS_LANES] = {0}, max = NAMED(max_logit)(x, classes, d), sum = 0; int64_t c;
    for (c = 0; c + LOSS_LANES <= classes; c += LOSS_LANES)
        for (int l = 0; l < LOSS_LANES; l++) lanes[l] += LOSS_EXP_NONPOSITIVE((REAL)(x[(c + l) * d] - max));
    if (c < classes) {          /* the remaining classes as one more vector of lanes */
        REAL tail[LOSS_LANES]; for (int l = 0; l < LOSS_LANES; l++) tail[l] = -INFINITY;
        for (int l = 0; c + l < classes; l++) tail[l] = x[(c + l) * d];
        for (int l = 0; l < LOSS_LANES; l++) lanes[l] += LOSS_EXP_NONPOSITIVE((REAL)(tail[l] - max));
    }
    for (int l = 0; l < LOSS_LANES; l++) sum += lanes[l];
    return max + LOSS_LOG(sum);
}
/* dx = exp(x - max(x)), possibly in place. Return its sum and set *max_logit to max(x). */
ALWAYS_INLINE REAL NAMED(exp_and_sum)(const REAL *x, int64_t classes, REAL *dx, REAL *max_logit)
{
    REAL lanes[LOSS_LANES] = {0}, exps[LOSS_LANES], max = NAMED(max_logit)(x, classes, 1), sum = 0; int64_t c = 0;
    for (; c + LOSS_LANES <= classes; c += LOSS_LANES) {
        for (int l = 0; l < LOSS_LANES; l++) { exps[l] = LOSS_EXP_NONPOSITIVE((REAL)(x[c + l] - max)); lanes[l] += exps[l]; }
        for (int l = 0; l < LOSS_LANES; l++) dx[c + l] = exps[l];
    }
    for (; c < classes; c++) { dx[c] = LOSS_EXP_NONPOSITIVE((REAL)(x[c] - max)); sum += dx[c]; }
    for (int l = 0; l < LOSS_LANES; l++) sum += lanes[l];
    *max_logit = max;
    return sum;
}

/* max[l] = the maximum logit of position l, sum[l] = the sum of exp(x - max) over its classes, which dx is set to unless it is NULL; dx may be x. */
ALWAYS_INLINE void NAMED(lanes_exp)(const REAL *x, int64_t classes, int64_t step, int64_t count, REAL *dx, REAL *sum, REAL *max)
{
    for (int64_t l = 0; l < count; l++) { max[l] = x[l]; sum[l] = 0; }
    for (int64_t c = 1; c < classes; c++)
        for (int64_t l = 0; l < count; l++) max[l] = x[c * step + l] > max[l] ? x[c * step + l] : max[l];
    for (int64_t c = 0; c < classes; c++) {
        REAL exps[LOSS_LANES];
        for (int64_t l = 0; l < count; l++) { exps[l] = LOSS_EXP_NONPOSITIVE((REAL)(x[c * step + l] - max[l])); sum[l] += exps[l]; }
        if (dx) for (int64_t l = 0; l < count; l++) dx[c * step + l] = exps[l];
    }
}

/* The positions of a work item: `first` to `end`; whether they are in a panel, and the distance of classes. */
typedef struct NAMED(Positions) { int64_t classes, d, first, end, step; int in_panel; } NAMED(Positions);

static inline NAMED(Positions) NAMED(positions_of)(const KernelArgs *args, int64_t item, int64_t short_classes)
{
    const int64_t *s = args->ints; int in_panel = s[2] == 1 && s[1] <= short_classes;
    return (NAMED(Positions)){ s[1], s[2], item * LOSS_ROWS, min_i64((item + 1) * LOSS_ROWS, s[0] * s[2]), in_panel ? LOSS_ROWS : s[2], in_panel };
}
/* Return the number of positions from i on that are computed at once. */
static inline int64_t NAMED(positions_at)(const NAMED(Positions) *p, int64_t i)
{ return p->step == 1 ? 1 : min_i64(LOSS_LANES, min_i64(p->end - i, p->in_panel ? LOSS_ROWS : p->d - i % p->d)); }

/* Return where the values of position i are in a tensor. */
static inline int64_t NAMED(place_of)(const NAMED(Positions) *p, int64_t i) { return i / p->d * p->classes * p->d + i % p->d; }

/* The rows of the item to a panel [classes, LOSS_ROWS], and back. */
static inline void NAMED(load_panel)(const Engine *engine, const NAMED(Positions) *p, const REAL *x, REAL *panel)
{
    if (p->in_panel) engine->transpose(panel, x + p->first * p->classes, sizeof(REAL), p->classes, p->end - p->first, LOSS_ROWS, p->classes);
}
static inline void NAMED(store_panel)(const Engine *engine, const NAMED(Positions) *p, REAL *y, const REAL *panel)
{
    if (p->in_panel) engine->transpose(y + p->first * p->classes, panel, sizeof(REAL), p->end - p->first, p->classes, p->classes, LOSS_ROWS);
}

/* Run BODY for the lanes l < count: LOSS_LANES of them in a loop of constant length. */
#define FOR_LANES(BODY)                                                   \
    if (count == LOSS_LANES) for (int l = 0; l < LOSS_LANES; l++) { BODY } \
    else for (int64_t l = 0; l < count; l++) { BODY }
#define FOR_CLASSES_AND_LANES(BODY)                                       \
    if (count == LOSS_LANES) for (int64_t c = 0; c < p.classes; c++) INDEPENDENT for (int l = 0; l < LOSS_LANES; l++) { BODY } \
    else for (int64_t c = 0; c < p.classes; c++) for (int64_t l = 0; l < count; l++) { BODY }

/* Return the weight of a label: 0 where it is ignored. w: the weights of the classes, or NULL */
static inline double NAMED(label_weight)(int64_t label, int64_t ignored, const REAL *w) { return label == ignored ? 0 : w ? (double)w[label] : 1; }

/* Reduce the sums of losses and weights of the items, in scratch, to the loss, in order. */
static void NAMED(reduce_losses)(const KernelArgs *args)
{
    const double *sums = args->scratch; double total = 0, weight = 0;
    for (int64_t i = 0; i < loss_items(args); i++) { total += sums[2 * i]; weight += sums[2 * i + 1]; }
    *(REAL *)args->outputs[0].data = (REAL)(args->ints[3] == 2 ? total : weight > 0 ? total / weight : 0);
}

/* (logits, labels, weight or absent) -> (loss, log probabilities unless absent) */
static void NAMED(loss_item)(void *context, int64_t item, int64_t worker)
{
    const KernelArgs *args = context; const int64_t *s = args->ints; const NAMED(Positions) p = NAMED(positions_of)(args, item, SHORT_CLASSES);
    const REAL *logits = args->inputs[0].data, *w = args->n_inputs > 2 ? args->inputs[2].data : NULL;
    REAL *logs = args->n_outputs > 1 ? args->outputs[1].data : NULL, panel[SHORT_CLASSES * LOSS_ROWS]; (void)worker;
    double *sums = (double *)args->scratch + 2 * item, total = 0, total_weight = 0;
    NAMED(load_panel)(args->engine, &p, logits, panel);
    for (int64_t i = p.first, count; i < p.end; i += count) {
        int64_t at = NAMED(place_of)(&p, i), step = p.step;
        const REAL *x = p.in_panel ? panel + i - p.first : logits + at;
        REAL max[LOSS_LANES], sum[LOSS_LANES];
        count = NAMED(positions_at)(&p, i);
        if (step == 1) max[0] = NAMED(log_sum_exp)(x, p.classes, 1);
        else {
            if (count == LOSS_LANES) NAMED(lanes_exp)(x, p.classes, step, LOSS_LANES, NULL, sum, max);
            else NAMED(lanes_exp)(x, p.classes, step, count, NULL, sum, max);
            FOR_LANES(max[l] += LOSS_LOG(sum[l]);)
        }
        for (int64_t l = 0; l < count; l++) {                      /* before the log probabilities overwrite x */
            int64_t label = label_at(&args->inputs[1], i + l);
            double weight = NAMED(label_weight)(label, s[4], w), loss = weight == 0 ? 0 : weight * (double)(REAL)(max[l] - x[label * step + l]);
            if (s[3] == 0) ((REAL *)args->outputs[0].data)[i + l] = (REAL)loss;
            total += loss;
            total_weight += weight;
        }
        if (!logs) continue;
        REAL *y = p.in_panel ? panel + i - p.first : logs + at;
        if (step == 1) for (int64_t c = 0; c < p.classes; c++) y[c] = x[c] - max[0];
        else FOR_CLASSES_AND_LANES(y[c * step + l] = x[c * step + l] - max[l];)
    }
    if (logs) NAMED(store_panel)(args->engine, &p, logs, panel);
    sums[0] = total;
    sums[1] = total_weight;
}
static int NAMED(softmax_cross_entropy_loss)(const KernelArgs *args)
{
    args->engine->parallel_for(args->engine, NAMED(loss_item), (void *)args, loss_items(args));
    if (args->ints[3] != 0) NAMED(reduce_losses)(args);
    return STATUS_OK;
}

typedef struct NAMED(LossGrad) { const KernelArgs *args; double scale; } NAMED(LossGrad);

/* Return the factor of all gradients: 1, or of a mean the inverse of the sum of the weights of all labels. labels, weight: the indices of these inputs. */
static double NAMED(loss_scale)(const KernelArgs *args, int labels, int weight)
{
    const int64_t *s = args->ints, rows = s[0] * s[2]; double total = 0;
    const REAL *w = args->n_inputs > weight ? args->inputs[weight].data : NULL;
    if (s[3] != 1) return 1;
    if (w) for (int64_t i = 0; i < rows; i++) total += NAMED(label_weight)(label_at(&args->inputs[labels], i), s[4], w);
    else total = (double)counted_labels(&args->inputs[labels], rows, s[4]);
    return total > 0 ? 1 / total : 0;
}
/* (dloss, log probabilities, labels, weight or absent) -> dlogits, possibly in place */
static void NAMED(loss_grad_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(LossGrad) *grad = context; const KernelArgs *args = grad->args; const int64_t *s = args->ints;
    const NAMED(Positions) p = NAMED(positions_of)(args, item, SHORT_GRADIENT_CLASSES); (void)worker;
    const REAL *dloss = args->inputs[0].data, *logs = args->inputs[1].data, *w = args->n_inputs > 3 ? args->inputs[3].data : NULL;
    REAL *out = args->outputs[0].data, panel[SHORT_GRADIENT_CLASSES * LOSS_ROWS];
    NAMED(load_panel)(args->engine, &p, logs, panel);
    for (int64_t i = p.first, count; i < p.end; i += count) {
        int64_t at = NAMED(place_of)(&p, i), step = p.step;
        const REAL *y = p.in_panel ? panel + i - p.first : logs + at; REAL *dx = p.in_panel ? panel + i - p.first : out + at;
        REAL g[LOSS_LANES] = {0};
        count = NAMED(positions_at)(&p, i);
        for (int64_t l = 0; l < count; l++) {
            int64_t label = label_at(&args->inputs[2], i + l);
            if (label != s[4]) g[l] = (REAL)((double)dloss[s[3] == 0 ? i + l : 0] * (w ? (double)w[label] : 1) * grad->scale);
        }
        if (step == 1) for (int64_t c = 0; c < p.classes; c++) dx[c] = g[0] * LOSS_EXP(y[c]);
        else FOR_CLASSES_AND_LANES(dx[c * step + l] = g[l] * LOSS_EXP((REAL)y[c * step + l]);)
        for (int64_t l = 0; l < count; l++) {
            int64_t label = label_at(&args->inputs[2], i + l);
            if (label != s[4]) dx[label * step + l] -= g[l];
        }
    }
    NAMED(store_panel)(args->engine, &p, out, panel);
}
static int NAMED(softmax_cross_entropy_loss_grad)(const KernelArgs *args)
{
    NAMED(LossGrad) grad = { args, NAMED(loss_scale)(args, 2, 3) };
    args->engine->parallel_for(args->engine, NAMED(loss_grad_item), &grad, loss_items(args));
    return STATUS_OK;
}

/* (logits, labels, weight or absent) -> (loss, dlogits, possibly in place of the logits); floats: dloss */
static void NAMED(loss_and_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(LossGrad) *grad = context; const KernelArgs *args = grad->args; const int64_t *s = args->ints;
    const NAMED(Positions) p = NAMED(positions_of)(args, item, SHORT_CLASSES); (void)worker;
    const REAL *logits = args->inputs[0].data, *w = args->n_inputs > 2 ? args->inputs[2].data : NULL;
    REAL *out = args->outputs[1].data, panel[SHORT_CLASSES * LOSS_ROWS];
    double *sums = (double *)args->scratch + 2 * item, total = 0, total_weight = 0;
    NAMED(load_panel)(args->engine, &p, logits, panel);
    for (int64_t i = p.first, count; i < p.end; i += count) {
        int64_t at = NAMED(place_of)(&p, i), step = p.step;
        const REAL *x = p.in_panel ? panel + i - p.first : logits + at; REAL *dx = p.in_panel ? panel + i - p.first : out + at;
        REAL label_logits[LOSS_LANES] = {0}, max[LOSS_LANES], sum[LOSS_LANES], shift[LOSS_LANES], g[LOSS_LANES] = {0}, factor[LOSS_LANES];
        count = NAMED(positions_at)(&p, i);
        for (int64_t l = 0; l < count; l++) {                      /* before dx overwrites x */
            int64_t label = label_at(&args->inputs[1], i + l);
            if (label != s[4]) label_logits[l] = x[label * step + l];
        }
        if (step == 1) sum[0] = NAMED(exp_and_sum)(x, p.classes, dx, max);
        else if (count == LOSS_LANES) NAMED(lanes_exp)(x, p.classes, step, LOSS_LANES, dx, sum, max);
        else NAMED(lanes_exp)(x, p.classes, step, count, dx, sum, max);
        FOR_LANES(shift[l] = LOSS_LOG(sum[l]) + max[l];)
        for (int64_t l = 0; l < count; l++) {
            double weight = NAMED(label_weight)(label_at(&args->inputs[1], i + l), s[4], w);
            total += weight == 0 ? 0 : weight * (double)(REAL)(shift[l] - label_logits[l]);
            total_weight += weight;
            g[l] = (REAL)(args->floats[0] * weight * grad->scale);
        }
        FOR_LANES(factor[l] = g[l] / sum[l];)
        if (step == 1) for (int64_t c = 0; c < p.classes; c++) dx[c] *= factor[0];
        else FOR_CLASSES_AND_LANES(dx[c * step + l] *= factor[l];)
        for (int64_t l = 0; l < count; l++) {
            int64_t label = label_at(&args->inputs[1], i + l);
            if (label != s[4]) dx[label * step + l] -= g[l];
        }
    }
    NAMED(store_panel)(args->engine, &p, out, panel);
    sums[0] = total;
    sums[1] = total_weight;
}
static int NAMED(loss_and_gradient)(const KernelArgs *args)
{
    NAMED(LossGrad) grad = { args, NAMED(loss_scale)(args, 1, 2) };
    args->engine->parallel_for(args->engine, NAMED(loss_and_gradient_item), &grad, loss_items(args));
    NAMED(reduce_losses)(args);
    return STATUS_OK;
}
#undef FOR_LANES
#undef FOR_CLASSES_AND_LANES
