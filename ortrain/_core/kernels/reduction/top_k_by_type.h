/* TopK for elements of type R, whose last choice is WORST; included by top_k.h once per type, therefore without an include guard. */

static inline int NAMED(precedes)(R a, int64_t at, R b, int64_t b_index, int64_t smallest)
{
    if (IS_NAN(a) || IS_NAN(b)) return !IS_NAN(a) ? 1 : !IS_NAN(b) ? 0 : at < b_index;
    return a == b ? at < b_index : smallest ? a < b : a > b;
}

/* The selected elements of a row, `stride` apart, of which `size` are a heap. */
typedef struct NAMED(Heap) { R *value; int64_t *index; int64_t stride, size, smallest; } NAMED(Heap);

static inline void NAMED(sift_down)(const NAMED(Heap) *h, int64_t size, int64_t from)
{
    R *value = h->value; int64_t *index = h->index, stride = h->stride, child;
    R v = value[from * stride]; int64_t t = index[from * stride];
    while ((child = 2 * from + 1) < size) {
        if (child + 1 < size && NAMED(precedes)(value[child * stride], index[child * stride], value[(child + 1) * stride], index[(child + 1) * stride],
                                                h->smallest)) child++;
        if (!NAMED(precedes)(v, t, value[child * stride], index[child * stride], h->smallest)) break;
        value[from * stride] = value[child * stride]; index[from * stride] = index[child * stride]; from = child;
    }
    value[from * stride] = v; index[from * stride] = t;
}

/* Add an element to a heap of fewer than k, which becomes one with the k-th; or replace its worst if the element precedes it. */
static inline void NAMED(offer)(NAMED(Heap) *h, int64_t k, R v, int64_t at)
{
    if (h->size < k) {
        h->value[h->size * h->stride] = v; h->index[h->size * h->stride] = at;
        if (++h->size == k) for (int64_t j = k / 2 - 1; j >= 0; j--) NAMED(sift_down)(h, k, j);
    } else if (NAMED(precedes)(v, at, h->value[0], h->index[0], h->smallest)) {
        h->value[0] = v; h->index[0] = at;
        NAMED(sift_down)(h, k, 0);
    }
}

/* flags[i] = whether x[i] is better than `worst`, or as good if `or_equal`. Return whether any is; most blocks have none, and the test is vectorized. */
static inline int NAMED(flag_better)(const R *x, R worst, int or_equal, int64_t smallest, uint8_t *flags)
{
    uint64_t words[TOP_K_BLOCK / 8], any = 0;
    if (smallest) for (int i = 0; i < TOP_K_BLOCK; i++) flags[i] = (x[i] < worst) | (or_equal & (x[i] == worst));
    else for (int i = 0; i < TOP_K_BLOCK; i++) flags[i] = (x[i] > worst) | (or_equal & (x[i] == worst));
    memcpy(words, flags, sizeof(words));
    for (int i = 0; i < TOP_K_BLOCK / 8; i++) any |= words[i];
    return any != 0;
}

/* Return a bound that k elements of x [n] reach, n >= TOP_K_LANES and k <= TOP_K_FEW; WORST where none is known. NaNs reach none. */
static inline R NAMED(bound_of)(const R *x, int64_t n, int64_t k, int64_t smallest)
{
    R lanes[TOP_K_LANES], best[TOP_K_FEW];
    for (int l = 0; l < TOP_K_LANES; l++) lanes[l] = WORST;
    for (int64_t j = 0; j + TOP_K_LANES <= n; j += TOP_K_LANES) {
        if (smallest) for (int l = 0; l < TOP_K_LANES; l++) lanes[l] = x[j + l] < lanes[l] ? x[j + l] : lanes[l];
        else for (int l = 0; l < TOP_K_LANES; l++) lanes[l] = x[j + l] > lanes[l] ? x[j + l] : lanes[l];
    }
    for (int64_t i = 0; i < k; i++) best[i] = WORST;                 /* in order, the worst last */
    for (int l = 0; l < TOP_K_LANES; l++) {
        if (smallest ? !(lanes[l] < best[k - 1]) : !(lanes[l] > best[k - 1])) continue;
        int64_t i = k - 1;
        for (; i > 0 && (smallest ? lanes[l] < best[i - 1] : lanes[l] > best[i - 1]); i--) best[i] = best[i - 1];
        best[i] = lanes[l];
    }
    return best[k - 1];
}

/* Select the k best of x [n], whose elements are `step` apart. */
static void NAMED(select_best)(const R *x, int64_t n, int64_t step, int64_t k, NAMED(Heap) h)
{
    const int64_t smallest = h.smallest;
    uint8_t flags[TOP_K_BLOCK];
    R bound = step == 1 && n >= 2 * TOP_K_LANES && k <= TOP_K_FEW ? NAMED(bound_of)(x, n, k, smallest) : WORST;
    int64_t j = 0;
    if (bound == WORST) for (; j < k; j++) NAMED(offer)(&h, k, x[j * step], j);
    for (; step == 1 && j + TOP_K_BLOCK <= n; j += TOP_K_BLOCK) {
        const int is_full = h.size == k;
        const R worst = is_full ? h.value[0] : bound;
        if (IS_NAN(worst)) {                                        /* any number precedes NaN */
            for (int i = 0; i < TOP_K_BLOCK; i++) NAMED(offer)(&h, k, x[j + i], j + i);
            continue;
        }
        if (!NAMED(flag_better)(x + j, worst, !is_full, smallest, flags)) continue;
        for (int i = 0; i < TOP_K_BLOCK; i++) if (flags[i]) NAMED(offer)(&h, k, x[j + i], j + i);
    }
    for (; j < n; j++)
        if (h.size == k || (smallest ? x[j * step] <= bound : x[j * step] >= bound)) NAMED(offer)(&h, k, x[j * step], j);
    for (int64_t size = k - 1; size > 0; size--) {
        R v = h.value[0]; int64_t t = h.index[0];
        h.value[0] = h.value[size * h.stride]; h.index[0] = h.index[size * h.stride]; h.value[size * h.stride] = v; h.index[size * h.stride] = t;
        NAMED(sift_down)(&h, size, 0);
    }
}

static void NAMED(top_k_item)(void *context, int64_t item, int64_t worker)
{
    const TopK *s = context; const KernelArgs *args = s->args;
    const int64_t *p = args->ints, n = p[1], inner = p[2], k = p[3], step = n + TOP_K_GAP;
    R *rows = (R *)(args->engine->workspaces + worker * args->engine->workspace_floats);
    for (int64_t unit = item * s->per_item; unit < min_i64((item + 1) * s->per_item, s->units); unit++) {
        int64_t o = unit / s->groups, first = unit % s->groups * max_i64(s->columns, 1), count = min_i64(max_i64(s->columns, 1), inner - first);
        const R *x = (const R *)args->inputs[0].data + o * n * inner + first;
        const int copied = inner > 1 && s->columns > 0;
        if (copied)
            for (int64_t j = 0; j < n; j++)
                for (int64_t c = 0; c < count; c++) rows[c * step + j] = x[j * inner + c];
        for (int64_t c = 0; c < count; c++) {
            int64_t to = o * k * inner + first + c;
            NAMED(Heap) heap = { (R *)args->outputs[0].data + to, (int64_t *)args->outputs[1].data + to, inner, 0, p[4] };
            NAMED(select_best)(copied ? rows + c * step : x + c, n, copied ? 1 : inner, k, heap);
        }
    }
}
#undef R
#undef NAMED
#undef WORST
