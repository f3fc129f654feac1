/* Parallel strided copies (transpose, slice, pad, tile, expand) of elements of 1, 4 or 8 bytes.
 *
 * to[to_at + sum i_d to_stride_d] = from[from_at + sum i_d from_stride_d] for every index i within dims; offsets and strides in elements.
 *
 * The innermost dimension is copied row by row; short rows that repeat in the next dimension are copied once and doubled. Where it is contiguous in `to` but
 * not in `from`, and another dimension is contiguous in `from`, the two form a plane that is transposed in tiles. Where few elements follow each other in `to` or
 * in `from`, those of another dimension that continue them are moved with them, to or from places of their own: the pixels that DepthToSpace takes from channels.
 * Rows and planes longer than MEMORY_PIECE bytes are cut into pieces. A unit is one piece of one row or plane, a work item `per_item` consecutive units. */
#ifndef ORTRAIN_STRIDED_COPIES_H
#define ORTRAIN_STRIDED_COPIES_H
#include "common/memory.h"
#include "indexing/transposes.h"

#define SHORT_ROW_BYTES 256        /* rows shorter than this that repeat are copied by doubling: rows of 3 elements took 0.8 ns per element one by one */
#define ORDERED_ROW_BYTES 128      /* rows from this size on are copied in the order of `from`: heads of 128 elements took 1.2 times as long otherwise */
#define FEW_ROWS 8                 /* fewer short rows are not worth a loop of their own: 3 heads of 16 elements took twice the time of 16 rows of 3 heads */
#define STREAMED_BYTES (8 << 20)   /* transposed results from this size on bypass the caches (equal at 8 MiB: 16 images of 128 channels, 32 x 32) */
#define STRIDED_MAX_RANK 16        /* Tile splits each of 8 dimensions in two */
#define NARROW 8                   /* elements that follow each other, of which fewer are moved together with those that continue them */
#define MAX_PLACES 16              /* elements that are moved together, at most */

/* What a unit is: a row, a row that repeats, a plane, one that is stored past the caches, a narrow plane whose rows have places in `to` or in `from`. */
enum { ROWS, REPEATED_ROWS, PLANES, STREAMED_PLANES, PLACES_IN_TO, PLACES_IN_FROM };

typedef struct {
    char *to;
    const char *from;
    int64_t size;                  /* bytes per element */
    int64_t rank;                  /* number of outer dimensions: all but the innermost and the plane's other one */
    int64_t dims[STRIDED_MAX_RANK], to_strides[STRIDED_MAX_RANK], from_strides[STRIDED_MAX_RANK];
    int64_t n, to_n, from_n;       /* the innermost dimension and its strides */
    int64_t m, to_m, from_m;       /* the plane's other dimension and its strides; m is 1 where rows are copied */
    int64_t repeats;               /* how often a short row follows itself in `to` */
    int64_t count, places[MAX_PLACES];       /* places of the rows of a narrow plane */
    int64_t length, piece, pieces; /* the dimension that is cut: repeats of a row, m of a plane, or n; length and number of its pieces, of which the last differs */
    int64_t to_step, from_step;    /* its strides */
    int64_t units, per_item;
    int kind, cuts_n;
} StridedCopy;

#define MOVE_LOOP(T)                                                                                              \
    { T *to = (T *)to_; const T *from = (const T *)from_;                                                         \
      if (to_stride == 1 && from_stride == 1) for (i = 0; i < n; i++) to[i] = from[i];                            \
      else if (to_stride == 1 && from_stride == 0) { T v = from[0]; for (i = 0; i < n; i++) to[i] = v; }          \
      else for (i = 0; i < n; i++) to[i * to_stride] = from[i * from_stride]; }

/* to[i * to_stride] = from[i * from_stride], i < n */
static inline void move_row(char *to_, const char *from_, int64_t size, int64_t n, int64_t to_stride, int64_t from_stride) {
    int64_t i;
    if (to_stride == 1 && from_stride == 1 && n * size >= 32) copy_row(to_, from_, n * size);
    else if (size == 4) MOVE_LOOP(uint32_t)
    else if (size == 8) MOVE_LOOP(uint64_t)
    else MOVE_LOOP(uint8_t)
}

/* to [rows, n], rows of it to_step apart, = n times the element of each row of `from`, from_step apart, in elements of 4 bytes. A call for every row took 10 ns
 * (65536 rows of 16: 538 and 88 µs). */
#define SPREAD(count)                                                                                                          \
    case count: for (; rows > 0; rows--, to += to_step, from += from_step) { uint32_t v = *from; for (int k = 0; k < count; k++) to[k] = v; } return;
static inline void spread_words(uint32_t *to, int64_t to_step, const uint32_t *from, int64_t from_step, int64_t rows, int64_t n) {
    switch (n) { SPREAD(2) SPREAD(3) SPREAD(4) SPREAD(5) SPREAD(6) SPREAD(7) }
    for (; rows > 0; rows--, to += to_step, from += from_step) {
        uint32_t v = *from;
        if (n < 8) { for (int64_t k = 0; k < n; k++) to[k] = v; continue; }
        for (int64_t k = 0; k + 8 <= n; k += 8) for (int l = 0; l < 8; l++) to[k + l] = v;
        for (int l = 0; l < 8; l++) to[n - 8 + l] = v;             /* may overlap */
    }
}

/* Copy a contiguous row of n elements to `to`, where it follows itself `repeats` times, by doubling. */
static inline void repeat_row(char *to, const char *from, int64_t bytes, int64_t repeats) {
    int64_t done = bytes, all = bytes * repeats, next;
    memcpy(to, from, (size_t)bytes);
    for (; done < all; done += next) {
        next = min_i64(done, all - done);
        memcpy(to + done, to, (size_t)next);
    }
}

static void move_units(void *context, int64_t item, int64_t worker) {
    const StridedCopy *s = (const StridedCopy *)context;
    int64_t unit = item * s->per_item, end = min_i64(unit + s->per_item, s->units);
    int64_t index[STRIDED_MAX_RANK], piece = unit % s->pieces, rest = unit / s->pieces, to = 0, from = 0, d;
    (void)worker;
    for (d = s->rank - 1; d >= 0; d--) {
        index[d] = rest % s->dims[d];
        rest /= s->dims[d];
        to += index[d] * s->to_strides[d];
        from += index[d] * s->from_strides[d];
    }
    for (int64_t rows; unit < end; unit += rows) {
        const int64_t at = piece * s->piece, length = piece + 1 < s->pieces ? s->piece : s->length - at;
        char *y = s->to + (to + at * s->to_step) * s->size;
        const char *x = s->from + (from + at * s->from_step) * s->size;
        rows = 1;
        if (s->kind == REPEATED_ROWS)
            repeat_row(y, x, s->n * s->size, length);
        else if (s->kind == STREAMED_PLANES)
            transpose_streaming(y, x, length, s->n, s->to_m, s->from_n);
        else if (s->kind == PLANES)
            transpose_plane(y, x, s->size, s->cuts_n ? s->m : length, s->cuts_n ? length : s->n, s->to_m, s->from_n);
        else if (s->kind == PLACES_IN_TO)
            transpose_to_places((uint32_t *)y, s->places, (const uint32_t *)x, s->count, length, s->from_n);
        else if (s->kind == PLACES_IN_FROM)
            transpose_from_places((uint32_t *)y, s->to_m, (const uint32_t *)x, s->places, length, s->count);
        else if (s->rank > 0 && s->to_n == 1 && s->from_n == 1 && s->n * s->size <= COPIED_ROW_BYTES) {     /* along the last outer dimension */
            d = s->rank - 1;
            rows = min_i64(s->dims[d] - index[d], end - unit);
            copy_columns(y, s->to_strides[d] * s->size, x, s->from_strides[d] * s->size, rows, s->n * s->size);
        } else if (s->rank > 0 && s->to_n == 1 && s->from_n == 0 && s->size == 4 && s->n * 4 <= SHORT_ROW_BYTES) {
            d = s->rank - 1;
            rows = min_i64(s->dims[d] - index[d], end - unit);
            spread_words((uint32_t *)y, s->to_strides[d], (const uint32_t *)x, s->from_strides[d], rows, s->n);
        } else
            move_row(y, x, s->size, length, s->to_n, s->from_n);
        if (++piece < s->pieces) continue;
        piece = 0;
        for (d = s->rank - 1; d >= 0; d--) {
            int64_t moved = d == s->rank - 1 ? rows : 1;
            to += moved * s->to_strides[d];
            from += moved * s->from_strides[d];
            index[d] += moved;
            if (index[d] < s->dims[d]) break;
            index[d] = 0;
            to -= s->dims[d] * s->to_strides[d];
            from -= s->dims[d] * s->from_strides[d];
        }
    }
    if (s->kind == STREAMED_PLANES) end_streaming();
}

/* Return whether the planes of a copy are to be streamed: whether they are large, and their rows aligned vectors. */
static int is_streamed(const StridedCopy *s, int64_t planes)
{
    if (planes * s->m * s->n * s->size < STREAMED_BYTES || !is_streamable(s->to, s->size, s->n, s->to_m)) return 0;
    for (int64_t d = 0; d < s->rank; d++)
        if (s->to_strides[d] * s->size % 64) return 0;
    return 1;
}

/* Exchange outer dimensions d and e. */
static inline void exchange_outer(StridedCopy *s, int64_t d, int64_t e) {
    int64_t *lists[] = { s->dims, s->to_strides, s->from_strides };
    for (int i = 0; i < 3; i++) { int64_t kept = lists[i][d]; lists[i][d] = lists[i][e]; lists[i][e] = kept; }
}

/* Return the outer dimension whose elements continue `count` of them that follow each other, by its strides in `to` or `from`; -1 if there is none that
 * makes at most MAX_PLACES of them. */
static int64_t continuing(const StridedCopy *s, const int64_t *strides, int64_t count)
{
    for (int64_t d = 0; s->size == 4 && count > 1 && count < NARROW && d < s->rank; d++)
        if (strides[d] == count && s->dims[d] > 1 && s->dims[d] * count <= MAX_PLACES) return d;
    return -1;
}

/* Make a copy of planes one of narrow planes, whose rows have places: those of outer dimension d and of the `inner` rows that it continues. */
static void place_rows(StridedCopy *s, int kind, int64_t d, const int64_t *strides, int64_t inner, int64_t stride)
{
    s->kind = kind;
    s->count = s->dims[d] * inner;
    for (int64_t i = 0; i < s->count; i++) s->places[i] = i / inner * strides[d] + i % inner * stride;
    for (s->rank--; d < s->rank; d++) exchange_outer(s, d, d + 1);
}

/* Choose what the units of a copy are, and the order of its outer dimensions. planes: the number of planes. */
static void choose_kind(StridedCopy *s, int64_t planes)
{
    int64_t k = s->rank, d;
    if (s->repeats > 1) { s->kind = REPEATED_ROWS; return; }
    if (s->m > 1) {
        s->kind = PLANES;
        if (s->n >= 4 && (d = continuing(s, s->from_strides, s->m)) >= 0) place_rows(s, PLACES_IN_TO, d, s->to_strides, s->m, s->to_m);
        else if (s->m >= 4 && (d = continuing(s, s->to_strides, s->n)) >= 0) place_rows(s, PLACES_IN_FROM, d, s->from_strides, s->n, s->from_n);
        else if (is_streamed(s, planes)) s->kind = STREAMED_PLANES;
        return;
    }
    s->kind = ROWS;
    if (k > 1 && s->n * s->size <= SHORT_ROW_BYTES && s->dims[k - 1] < FEW_ROWS && s->dims[k - 2] > s->dims[k - 1]) exchange_outer(s, k - 2, k - 1);
    if (s->to_n == 1 && s->from_n == 1 && s->n * s->size >= ORDERED_ROW_BYTES && s->n * s->size <= COPIED_ROW_BYTES)
        for (d = 0; d < k - 1; d++)
            if (s->from_strides[d] == s->n && s->dims[d] > 1) { exchange_outer(s, d, k - 1); return; }
}

/* Cut the units into pieces of about MEMORY_PIECE bytes along one dimension, the longer one of planes that are narrow. Returns the elements of a unit. */
static int64_t cut_units(StridedCopy *s)
{
    const int64_t elements = MEMORY_PIECE / s->size;
    int64_t row = 1;                                  /* elements of a unit for each of the dimension */
    s->cuts_n = s->kind == ROWS || s->kind == PLACES_IN_TO || (s->kind == PLANES && s->m < TILE);
    s->length = s->kind == REPEATED_ROWS ? s->repeats : s->cuts_n ? s->n : s->m;
    s->to_step = s->kind == REPEATED_ROWS ? s->n : s->cuts_n ? s->to_n : s->to_m;
    s->from_step = s->kind == REPEATED_ROWS ? 0 : s->cuts_n ? s->from_n : s->from_m;
    if (s->kind == REPEATED_ROWS) row = s->n;
    else if (s->kind == PLACES_IN_TO || s->kind == PLACES_IN_FROM) row = s->count;
    else if (s->kind != ROWS) row = s->cuts_n ? s->m : s->n;
    s->piece = elements / row;
    if (s->kind != ROWS && s->kind != REPEATED_ROWS) s->piece = s->piece < TILE ? TILE : s->piece / TILE * TILE;       /* whole tiles */
    if (s->kind == PLANES && s->size == 4 && is_tiled(s->m, s->n, s->from_n)) s->piece = round_up(s->piece, PLANE_TILE);
    s->pieces = ceil_div(s->length, s->piece);
    if (s->pieces > 1 && s->length % s->piece && s->length % s->piece < 4) s->pieces--;           /* the last piece is longer */
    return min_i64(s->piece, s->length) * row;
}

/* Copy between strided boxes of elements of `size` bytes.
 *
 * ints: rank, to_at, from_at, dims[rank], to_strides[rank], from_strides[rank]. The lowering merges adjacent dimensions; rank is 1 to STRIDED_MAX_RANK. */
static inline void copy_strided(const Engine *engine, void *to, const void *from, int64_t size, const int64_t *ints) {
    int64_t rank = ints[0], d, plane = -1, repeated = -1, outer = 1;
    const int64_t *dims = ints + 3, *to_strides = dims + rank, *from_strides = to_strides + rank;
    StridedCopy s = { .to = (char *)to + ints[1] * size, .from = (const char *)from + ints[2] * size, .size = size, .n = dims[rank - 1],
                      .to_n = to_strides[rank - 1], .from_n = from_strides[rank - 1], .m = 1, .repeats = 1 };
    for (d = 0; d < rank; d++) if (dims[d] == 0) return;
    if (s.to_n == 1 && s.from_n > 1 && s.n >= 2)
        for (d = 0; d < rank - 1; d++)
            if (from_strides[d] == 1 && dims[d] >= 2) plane = d;
    d = rank - 2;
    if (plane < 0 && d >= 0 && s.to_n == 1 && s.from_n == 1 && from_strides[d] == 0 && to_strides[d] == s.n && s.n * size < SHORT_ROW_BYTES) {
        repeated = d;
        s.repeats = dims[d];
    }
    for (d = 0; d < rank - 1; d++) {
        if (d == repeated) continue;
        if (d == plane) {
            s.m = dims[d];
            s.to_m = to_strides[d];
            s.from_m = 1;
            continue;
        }
        s.dims[s.rank] = dims[d];
        s.to_strides[s.rank] = to_strides[d];
        s.from_strides[s.rank++] = from_strides[d];
        outer *= dims[d];
    }
    choose_kind(&s, outer);
    int64_t unit = cut_units(&s);
    s.units = s.pieces;
    for (d = 0; d < s.rank; d++) s.units *= s.dims[d];
    s.per_item = MEMORY_PIECE / size / unit;
    if (s.per_item < 1) s.per_item = 1;
    run_items(engine, move_units, &s, ceil_div(s.units, s.per_item));
}

#endif
