/* Pad in all its modes, and the gradient of those that repeat elements, in one pass over the output.
 *
 * Position p of an axis of y is position p - before of x if that is inside of x, else in the border. The last padded axis and the unpadded ones after it are
 * a line: its inside is copied whole, and only its borders are looked up. Axes before it choose the line; those next to it in memory are its rows. A unit is a
 * line, or a piece of one, and a work item a number of units. */
#ifndef ORTRAIN_PADDING_H
#define ORTRAIN_PADDING_H
#include "kernel.h"
#include "common/integers.h"
#include "indexing/strided_copies.h"

enum { PAD_CONSTANT = 0, PAD_EDGE = 1, PAD_REFLECT = 2, PAD_WRAP = 3 };
enum { KNOWN_BORDERS = 32 };       /* positions of a line's border that are looked up once per work item instead of once per line */

typedef struct { int64_t size, out, before; } PaddedAxis;

typedef struct {
    char *to; const char *from;    /* y and x, or dx and dy */
    const char *value;             /* of a constant border */
    const PaddedAxis *axes;        /* two at least; the last one is the line */
    int64_t rank, mode, size;      /* number of axes; bytes of an element */
    int64_t inner;                 /* elements of a position of the line */
    int64_t piece, pieces, units, per_item;
} Padding;

/* A piece [low, high) of lines: of y, whose inside is [first, last), or of dx, whose repetition inside of dy is. borders: how many positions of y are outside
 * of x, where they are few enough to be known; at, source: position in y and in x of each. */
typedef struct { int64_t low, high, first, last, borders, at[KNOWN_BORDERS], source[KNOWN_BORDERS]; } LinePiece;

/* Return the position in an axis of x that position i, counted from x's first element, repeats; -1 for a constant. */
static inline int64_t repeated_position(int64_t mode, int64_t i, int64_t size)
{
    if (i >= 0 && i < size) return i;
    if (mode == PAD_CONSTANT) return -1;
    if (mode == PAD_EDGE) return i < 0 ? 0 : size - 1;
    if (mode == PAD_WRAP) { i %= size; return i < 0 ? i + size : i; }
    if (size == 1) return 0;
    i = i < 0 ? -i : i;
    if (i >= 2 * (size - 1)) i %= 2 * (size - 1);
    return i < size ? i : 2 * (size - 1) - i;
}

/* Return the first position in an axis of y that repeats element s, `out` or more if there is none. */
static inline int64_t first_repetition(int64_t mode, const PaddedAxis *axis, int64_t s)
{
    const int64_t size = axis->size, before = axis->before, period = mode == PAD_WRAP ? size : 2 * (size - 1);
    int64_t p = s + before, image = before - s;
    if (size == 1) return 0;
    if (mode == PAD_EDGE) return s == 0 && before >= 0 ? 0 : s == size - 1 ? max_i64(p, 0) : p < 0 ? axis->out : p;
    if (mode == PAD_REFLECT && p >= 0 && s > before) return p;
    if (p < 0 || p >= period) { p %= period; p = p < 0 ? p + period : p; }
    if (mode == PAD_WRAP) return p;
    if (image < 0 || image >= period) { image %= period; image = image < 0 ? image + period : image; }
    return min_i64(p, image);
}

/* Return the position after p in an axis of y that repeats element s, which position p does too; `out` or more if there is none. */
static inline int64_t next_repetition(int64_t mode, const PaddedAxis *axis, int64_t s, int64_t p)
{
    const int64_t i = p - axis->before, size = axis->size, period = 2 * (size - 1), back = 2 * s, forth = period - back;
    if (mode == PAD_WRAP) return p + size;
    if (mode == PAD_EDGE) return (s == 0 && i < 0) || (s == size - 1 && i >= size - 1) ? p + 1 : axis->out;
    if (size == 1) return p + 1;
    if (back == 0 || forth == 0) return p + period;
    if (p + min_i64(back, forth) >= axis->out) return axis->out;
    return p + ((i % period + period) % period == s ? forth : back);
}

/* Set *unit to the first unit of an item and index to the position of its line in the axes before the last one; return the item's end. */
static inline int64_t first_unit(const Padding *p, int64_t item, int of_y, int64_t *unit, int64_t *index)
{
    *unit = item * p->per_item;
    for (int64_t d = p->rank - 2, rest = *unit / p->pieces; d >= 0; d--) {
        int64_t n = of_y ? p->axes[d].out : p->axes[d].size;
        index[d] = rest % n;
        rest /= n;
    }
    return min_i64(*unit + p->per_item, p->units);
}

/* Go on by n lines, which do not leave their rows. */
static inline void next_lines(const Padding *p, int of_y, int64_t *index, int64_t n)
{
    for (int64_t d = p->rank - 2; d >= 0; d--, n = 1) {
        index[d] += n;
        if (index[d] < (of_y ? p->axes[d].out : p->axes[d].size)) return;
        index[d] = 0;
    }
}

static inline void choose_units(Padding *p, int of_y)
{
    const PaddedAxis *line = p->axes + p->rank - 1;
    int64_t lines = 1, n = of_y ? line->out : line->size, bytes = p->inner * p->size;
    for (int64_t d = 0; d < p->rank - 1; d++) lines *= of_y ? p->axes[d].out : p->axes[d].size;
    p->units = 0;
    if (lines * n * bytes == 0) return;
    p->piece = min_i64(n, max_i64(1, MEMORY_PIECE / bytes));
    p->pieces = ceil_div(n, p->piece);
    p->units = lines * p->pieces;
    p->per_item = max_i64(1, MEMORY_PIECE / (p->piece * bytes));
}

/* The piece of lines of a unit. Where its borders are not known, `borders` is KNOWN_BORDERS + 1. */
static inline void find_piece(const Padding *p, int of_y, int64_t unit, LinePiece *l)
{
    const PaddedAxis line = p->axes[p->rank - 1]; const int64_t before = line.before, n = of_y ? line.out : line.size;
    l->low = unit % p->pieces * p->piece;
    l->high = min_i64(l->low + p->piece, n);
    l->first = min_i64(max_i64(l->low, of_y ? before : -before), l->high);
    l->last = max_i64(l->first, min_i64(l->high, of_y ? before + line.size : line.out - before));
    l->borders = 0;
    for (int64_t q = 0; q < line.out && l->borders <= KNOWN_BORDERS; q++) {
        if (q >= before && q < before + line.size) q = before + line.size;             /* the inside */
        if (q >= line.out) break;
        int64_t s = repeated_position(p->mode, q - before, line.size);
        if (of_y ? q < l->low || q >= l->high : s < l->low || s >= l->high) continue;
        if (l->borders < KNOWN_BORDERS) { l->at[l->borders] = q; l->source[l->borders] = s; }
        l->borders++;
    }
}

/* The border positions [low, high) of a line of y, one by one. */
static inline void copy_border(const Padding *p, char *y, const char *x, int64_t low, int64_t high)
{
    const PaddedAxis line = p->axes[p->rank - 1]; const int64_t bytes = p->inner * p->size;
    for (int64_t q = low; q < high; q++) {
        int64_t s = repeated_position(p->mode, q - line.before, line.size);
        if (s < 0) fill_elements(y + q * bytes, p->value, p->size, p->inner); else copy_row(y + q * bytes, x + s * bytes, bytes);
    }
}

/* y [rows, before + inside + after] = `before` times the word `value`, a row of x [rows, inside], `after` times the value: a loop for rows of few words, which
 * took 6 ns each with their borders looked up (16 images of 64 channels, 32 x 32: 210 to 159 µs). */
static inline void pad_rows(uint32_t *y, const uint32_t *x, int64_t rows, int64_t before, int64_t inside, int64_t after, uint32_t value)
{
    for (; rows > 0; rows--, x += inside) {
        for (int64_t i = 0; i < before; i++) *y++ = value;
        copy_row((char *)y, (const char *)x, inside * 4);
        y += inside;
        for (int64_t i = 0; i < after; i++) *y++ = value;
    }
}

static void pad_item(void *context, int64_t item, int64_t worker)
{
    const Padding *p = (const Padding *)context; const PaddedAxis line = p->axes[p->rank - 1], rows = p->axes[p->rank - 2];
    const int64_t bytes = p->inner * p->size, last = p->rank - 2;
    const int whole = p->mode == PAD_CONSTANT && bytes == 4 && p->pieces == 1 && line.before >= 0 && line.out >= line.before + line.size;   /* lines of words */
    uint32_t value = 0;
    int64_t unit, n, index[STRIDED_MAX_RANK], end = first_unit(p, item, 1, &unit, index); LinePiece l;
    (void)worker;
    if (whole) memcpy(&value, p->value, sizeof(value));
    find_piece(p, 1, unit, &l);
    for (; unit < end; unit += n) {
        int64_t first = index[last], row = 0;
        n = p->pieces == 1 ? min_i64(rows.out - first, end - unit) : 1;
        if (p->pieces > 1) find_piece(p, 1, unit, &l);
        for (int64_t d = 0; d < last && row >= 0; d++) {
            int64_t s = repeated_position(p->mode, index[d] - p->axes[d].before, p->axes[d].size);
            row = s < 0 ? -1 : row * p->axes[d].size + s;
        }
        char *y = p->to + unit / p->pieces * line.out * bytes;
        for (int64_t r = 0; r < n; r++, y += line.out * bytes) {
            if (whole && row >= 0 && first + r >= rows.before && first + r < rows.before + rows.size) {
                int64_t s = first + r - rows.before, count = min_i64(rows.size - s, n - r);
                pad_rows((uint32_t *)y, (const uint32_t *)p->from + (row * rows.size + s) * line.size, count, line.before, line.size,
                         line.out - line.before - line.size, value);
                r += count - 1; y += (count - 1) * line.out * bytes;
                continue;
            }
            int64_t s = row < 0 ? -1 : repeated_position(p->mode, first + r - rows.before, rows.size);
            if (s < 0) { fill_elements(y + l.low * bytes, p->value, p->size, (l.high - l.low) * p->inner); continue; }
            const char *x = p->from + (row * rows.size + s) * line.size * bytes, *from = p->mode == PAD_CONSTANT ? p->value : x;
            copy_row(y + l.first * bytes, x + (l.first - line.before) * bytes, (l.last - l.first) * bytes);
            if (l.borders <= KNOWN_BORDERS && bytes == 4)
                for (int64_t b = 0; b < l.borders; b++) memcpy(y + l.at[b] * 4, from + (from == x ? l.source[b] * 4 : 0), 4);
            else { copy_border(p, y, x, l.low, l.first); copy_border(p, y, x, l.last, l.high); }
        }
        if (p->pieces == 1 || l.high == line.out) next_lines(p, 1, index, n);
    }
}

/* y = x padded. ints: mode, elements of a position of the line, number of axes, (size, size in y, before) of each. */
static inline void pad_tensor(const Engine *engine, char *y, const char *x, int64_t size, const int64_t *ints, const void *value)
{
    Padding p = { .to = y, .from = x, .value = (const char *)value, .axes = (const PaddedAxis *)(ints + 3), .rank = ints[2], .mode = ints[0], .size = size,
                  .inner = ints[1] };
    choose_units(&p, 1);
    if (p.units) run_items(engine, pad_item, &p, ceil_div(p.units, p.per_item));
}

/* A piece of a line of dx = (assigning) or += the positions of a line of dy that repeat it: the inside, then the borders in their order. */
#define PAD_GRAD(R)                                                                                                                                    \
static inline void fold_line_##R(const Padding *p, const LinePiece *l, R *restrict dx, const R *restrict dy, int assigning)                            \
{                                                                                                                                                      \
    const PaddedAxis line = p->axes[p->rank - 1]; const int64_t w = p->inner, before = line.before, first = l->first, last = l->last;                  \
    if (assigning) {                                                                                                                                   \
        for (int64_t i = l->low * w; i < first * w; i++) dx[i] = 0;                                                                                    \
        copy_row((char *)(dx + first * w), (const char *)(dy + (first + before) * w), (last - first) * w * (int64_t)sizeof(R));                        \
        for (int64_t i = last * w; i < l->high * w; i++) dx[i] = 0;                                                                                    \
    } else for (int64_t i = first * w; i < last * w; i++) dx[i] += dy[i + before * w];                                                                 \
    if (l->borders <= KNOWN_BORDERS && w == 1) { for (int64_t b = 0; b < l->borders; b++) dx[l->source[b]] += dy[l->at[b]]; return; }                  \
    for (int64_t q = 0; q < line.out; q++) {                                                                                                           \
        if (q >= before && q < before + line.size) q = before + line.size;                                                                             \
        if (q >= line.out) break;                                                                                                                      \
        int64_t s = repeated_position(p->mode, q - before, line.size);                                                                                 \
        if (s >= l->low && s < l->high) for (int64_t j = 0; j < w; j++) dx[s * w + j] += dy[q * w + j];                                                \
    }                                                                                                                                                  \
}                                                                                                                                                      \
static void pad_grad_##R##_item(void *context, int64_t item, int64_t worker)                                                                           \
{                                                                                                                                                      \
    const Padding *p = (const Padding *)context; const PaddedAxis line = p->axes[p->rank - 1], rows = p->axes[p->rank - 2];                            \
    const int64_t last = p->rank - 2, step = line.out * p->inner;                                                                                      \
    int64_t unit, n, index[STRIDED_MAX_RANK], copy[STRIDED_MAX_RANK], end = first_unit(p, item, 0, &unit, index), d; LinePiece l;                      \
    (void)worker;                                                                                                                                      \
    find_piece(p, 0, unit, &l);                                                                                                                        \
    for (; unit < end; unit += n) {                                                                                                                    \
        int64_t start = index[last], none = 0;                                                                                                         \
        n = p->pieces == 1 ? min_i64(rows.size - start, end - unit) : 1;                                                                               \
        if (p->pieces > 1) find_piece(p, 0, unit, &l);                                                                                                 \
        for (d = 0; d < last; d++) {                                                                                                                   \
            copy[d] = first_repetition(p->mode, p->axes + d, index[d]);                                                                                \
            none |= copy[d] >= p->axes[d].out;                                                                                                         \
        }                                                                                                                                              \
        for (int assigning = 1; ; assigning = 0) {                                                                                                     \
            int64_t outer = 0;                                                                                                                         \
            for (d = 0; d < last; d++) outer = outer * p->axes[d].out + copy[d];                                                                       \
            R *dx = (R *)p->to + unit / p->pieces * line.size * p->inner;                                                                              \
            const R *dy = (const R *)p->from + outer * rows.out * step;                                                                                \
            for (int64_t s = start; s < start + n; s++, dx += line.size * p->inner) {                                                                  \
                int64_t q = none ? rows.out : first_repetition(p->mode, &rows, s);                                                                     \
                if (q >= rows.out && assigning) for (int64_t i = l.low * p->inner; i < l.high * p->inner; i++) dx[i] = 0;                              \
                for (int add = !assigning; q < rows.out; q = next_repetition(p->mode, &rows, s, q), add = 1)                                           \
                    fold_line_##R(p, &l, dx, dy + q * step, !add);                                                                                     \
            }                                                                                                                                          \
            for (d = none ? -1 : last - 1; d >= 0; d--) {                                                                                              \
                copy[d] = next_repetition(p->mode, p->axes + d, index[d], copy[d]);                                                                    \
                if (copy[d] < p->axes[d].out) break;                                                                                                   \
                copy[d] = first_repetition(p->mode, p->axes + d, index[d]);                                                                            \
            }                                                                                                                                          \
            if (d < 0) break;                                                                                                                          \
        }                                                                                                                                              \
        if (p->pieces == 1 || l.high == line.size) next_lines(p, 0, index, n);                                                                         \
    }                                                                                                                                                  \
}
PAD_GRAD(float) PAD_GRAD(double)

/* (dy, ...) -> dx = dy summed over the repetitions of each element; ints as pad_tensor. */
static inline int pad_grad(const KernelArgs *a)
{
    Padding p = { .to = (char *)a->outputs[0].data, .from = (const char *)a->inputs[0].data, .axes = (const PaddedAxis *)(a->ints + 3), .rank = a->ints[2],
                  .mode = a->ints[0], .size = element_size(a->outputs[0].dtype), .inner = a->ints[1] };
    choose_units(&p, 0);
    if (p.units) run_items(a->engine, p.size == 4 ? pad_grad_float_item : pad_grad_double_item, &p, ceil_div(p.units, p.per_item));
    return STATUS_OK;
}
#endif
