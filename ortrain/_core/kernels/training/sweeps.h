/* Optimizers that update every element on its own, over flat segments. Included once per type: R is the type, OF(name) the name for it. */

/* The elements of one work item, and what a sweep reads: p are the floats and o the ints that the optimizer's record lists. */
#define SWEEP                                                                                                     \
    const KernelArgs *args = context; RANGE(args);                                                                \
    const double *p = args->floats; const int64_t *o = args->ints; const double rate = learning_rate(args);       \
    R *restrict w = args->inputs[WEIGHTS].data; const R *restrict g = args->inputs[GRADIENTS].data; (void)o

/* Weight decay in its two forms: decoupled, weights shrink by a factor before the update (keep); otherwise a multiple of them is added to the gradient. */
#define WEIGHT_DECAY(decay, decoupled)                                                                            \
    const R keep = (R)((decoupled) ? 1 - rate * (decay) : 1), added = (R)((decoupled) ? 0 : (decay))

/* Adam. floats: beta1, beta2, epsilon, weight decay; ints: decoupled weight decay */
static void OF(adam)(void *context, int64_t item, int64_t worker)
{
    SWEEP;
    WEIGHT_DECAY(p[3], o[0]);
    R *restrict m = moment_of(args, FIRST_MOMENTS), *restrict v = moment_of(args, SECOND_MOMENTS);
    const double step = step_number(args);
    const R b1 = (R)p[0], b2 = (R)p[1], o1 = (R)(1 - p[0]), o2 = (R)(1 - p[1]), epsilon = (R)p[2];
    const R size = (R)(rate / (1 - pow(p[0], step))), correction = (R)(1 / sqrt(1 - pow(p[1], step)));
    for (; i < end; i++) {
        const R d = g[i] + added * w[i];
        m[i] = b1 * m[i] + o1 * d;
        v[i] = b2 * v[i] + o2 * d * d;
        w[i] = w[i] * keep - size * m[i] / (SQUARE_ROOT(v[i]) * correction + epsilon);
    }
}

/* Gradient descent with momentum. floats: momentum, dampening, weight decay; ints: nesterov, decoupled weight decay. The momentum begins as the first
 * gradient, undamped; it is absent where its factor is 0. */
static void OF(momentum)(void *context, int64_t item, int64_t worker)
{
    SWEEP;
    WEIGHT_DECAY(p[2], o[1]);
    R *restrict m = moment_of(args, FIRST_MOMENTS);
    const R size = (R)rate, factor = (R)p[0], taken = (R)(step_number(args) > 1 ? 1 - p[1] : 1);
    const R of_gradient = (R)(o[0] ? 1 : 0), of_momentum = (R)(o[0] ? p[0] : 1);
    if (m == NULL)
        for (; i < end; i++) w[i] = w[i] * keep - size * (g[i] + added * w[i]);
    else
        for (; i < end; i++) {
            const R d = g[i] + added * w[i];
            m[i] = factor * m[i] + taken * d;
            w[i] = w[i] * keep - size * (of_gradient * d + of_momentum * m[i]);
        }
}

/* Lion. floats: beta1, beta2, weight decay (decoupled) */
static void OF(lion)(void *context, int64_t item, int64_t worker)
{
    SWEEP;
    WEIGHT_DECAY(p[2], 1); (void)added;
    R *restrict m = moment_of(args, FIRST_MOMENTS);
    const R size = (R)rate, b1 = (R)p[0], b2 = (R)p[1], o1 = (R)(1 - p[0]), o2 = (R)(1 - p[1]);
    for (; i < end; i++) {
        const R d = b1 * m[i] + o1 * g[i];
        w[i] = w[i] * keep - size * (R)((d > 0) - (d < 0));
        m[i] = b2 * m[i] + o2 * g[i];
    }
}

/* RMSprop. floats: alpha, epsilon, momentum, weight decay; ints: centered, decoupled weight decay. Moments: squared gradients, gradients (absent unless
 * centered), momentum (absent if 0). */
static void OF(rmsprop)(void *context, int64_t item, int64_t worker)
{
    SWEEP;
    WEIGHT_DECAY(p[3], o[1]);
    R *restrict v = moment_of(args, FIRST_MOMENTS), *restrict mean = moment_of(args, SECOND_MOMENTS), *restrict m = moment_of(args, THIRD_MOMENTS);
    const R alpha = (R)p[0], rest = (R)(1 - p[0]), epsilon = (R)p[1], factor = (R)p[2], size = (R)rate;
    if (mean == NULL && m == NULL)
        for (; i < end; i++) {
            const R d = g[i] + added * w[i];
            v[i] = alpha * v[i] + rest * d * d;
            w[i] = w[i] * keep - size * d / (SQUARE_ROOT(v[i]) + epsilon);
        }
    else if (mean == NULL)
        for (; i < end; i++) {
            const R d = g[i] + added * w[i];
            v[i] = alpha * v[i] + rest * d * d;
            m[i] = factor * m[i] + d / (SQUARE_ROOT(v[i]) + epsilon);
            w[i] = w[i] * keep - size * m[i];
        }
    else
        for (; i < end; i++) {
            const R d = g[i] + added * w[i];
            v[i] = alpha * v[i] + rest * d * d;
            mean[i] = alpha * mean[i] + rest * d;
            const R variance = v[i] - mean[i] * mean[i];          /* rounding can make it negative */
            R change = d / (SQUARE_ROOT(variance > 0 ? variance : 0) + epsilon);
            if (m != NULL) change = m[i] = factor * m[i] + change;
            w[i] = w[i] * keep - size * change;
        }
}

/* Adagrad. floats: epsilon, learning-rate decay, weight decay; ints: decoupled weight decay */
static void OF(adagrad)(void *context, int64_t item, int64_t worker)
{
    SWEEP;
    WEIGHT_DECAY(p[2], o[0]);
    R *restrict sum = moment_of(args, FIRST_MOMENTS);
    const R size = (R)(rate / (1 + (step_number(args) - 1) * p[1])), epsilon = (R)p[0];
    for (; i < end; i++) {
        const R d = g[i] + added * w[i];
        sum[i] += d * d;
        w[i] = w[i] * keep - size * d / (SQUARE_ROOT(sum[i]) + epsilon);
    }
}
#undef SWEEP
#undef WEIGHT_DECAY
