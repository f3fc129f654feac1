/* Parallel strided copies (transpose, slice, pad, tile, expand) of elements of 1, 4 or 8 bytes.
 *
 * to[to_at + sum i_d to_stride_d] = from[from_at + sum i_d from_stride_d] for every index i within dims; offsets and strides in elements.
 *
 * The innermost dimension is copied row by row; short rows that repeat in the next dimension are copied once and doubled. Where it is contiguous in `to` but
 * not in `from`, and another dimension is contiguous in `from`, the two form a plane that is transposed in tiles. Rows and planes longer than MEMORY_PIECE
 * bytes are cut into pieces. A unit is one piece of one row or plane, a work item `per_item` consecutive units. */
#ifndef ORTRAIN_STRIDED_COPIES_H
#define ORTRAIN_STRIDED_COPIES_H
#include "common/memory.h"
#include "indexing/transposes.h"

#define SHORT_ROW_BYTES 256        /* rows shorter than this that repeat are copied by doubling: rows of 3 elements took 0.8 ns per element one by one */
#define ORDERED_ROW_BYTES 128      /* rows from this size on are copied in the order of `from`: heads of 128 elements took 1.2 times as long otherwise */
#define FEW_ROWS 8                 /* fewer short rows are not worth a loop of their own: 3 heads of 16 elements took twice the time of 16 rows of 3 heads */
#define STREAMED_BYTES (8 << 20)   /* transposed results from this size on bypass the caches (equal at 8 MiB: 16 images of 128 channels, 32 x 32) */
#define STRIDED_MAX_RANK 16        /* Tile splits each of 8 dimensions in two */


typedef struct {
    char *to;
    const char *from;
    int64_t size;                  /* bytes per element */
    int64_t rank;                  /* number of outer dimensions: all but the innermost and the plane's other one */
    int64_t dims[STRIDED_MAX_RANK], to_strides[STRIDED_MAX_RANK], from_strides[STRIDED_MAX_RANK];
    int64_t n, to_n, from_n;       /* the innermost dimension and its strides */
    int64_t m, to_m, from_m;       /* the plane's other dimension and its strides; m is 1 where rows are copied */
    int64_t repeats;               /* how often a short row follows itself in `to` */
    int64_t piece, pieces;         /* length and number of the pieces: of n where rows are copied, of m in a plane */
    int64_t units, per_item;
    int streamed;                  /* whether planes are transposed with non-temporal stores */
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
        int64_t at = piece * s->piece;
        rows = 1;
        if (s->repeats > 1)
            repeat_row(s->to + (to + at * s->n) * s->size, s->from + from * s->size, s->n * s->size, min_i64(s->piece, s->repeats - at));
        else if (s->streamed)
            transpose_streaming(s->to + (to + at * s->to_m) * 4, s->from + (from + at) * 4, min_i64(s->piece, s->m - at), s->n, s->to_m, s->from_n);
        else if (s->m > 1)
            transpose_plane(s->to + (to + at * s->to_m) * s->size, s->from + (from + at) * s->size, s->size, min_i64(s->piece, s->m - at), s->n,
                            s->to_m, s->from_n);
        else if (s->rank > 0 && s->to_n == 1 && s->from_n == 1 && s->n * s->size <= COPIED_ROW_BYTES) {     /* along the last outer dimension */
            d = s->rank - 1;
            rows = min_i64(s->dims[d] - index[d], end - unit);
            copy_columns(s->to + to * s->size, s->to_strides[d] * s->size, s->from + from * s->size, s->from_strides[d] * s->size, rows, s->n * s->size);
        } else if (s->rank > 0 && s->to_n == 1 && s->from_n == 0 && s->size == 4 && s->n * 4 <= SHORT_ROW_BYTES) {
            d = s->rank - 1;
            rows = min_i64(s->dims[d] - index[d], end - unit);
            spread_words((uint32_t *)s->to + to, s->to_strides[d], (const uint32_t *)s->from + from, s->from_strides[d], rows, s->n);
        } else
            move_row(s->to + (to + at * s->to_n) * s->size, s->from + (from + at * s->from_n) * s->size, s->size,
                     min_i64(s->piece, s->n - at), s->to_n, s->from_n);
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
    if (s->streamed) end_streaming();
}

/* Return whether the planes of a copy are to be streamed: whether they are large, and their rows aligned vectors. */
static int is_streamed(const StridedCopy *s, int64_t planes)
{
    if (s->m == 1 || planes * s->m * s->n * s->size < STREAMED_BYTES || !is_streamable(s->to, s->size, s->n, s->to_m)) return 0;
    for (int64_t d = 0; d < s->rank; d++)
        if (s->to_strides[d] * s->size % 64) return 0;
    return 1;
}

/* Exchange outer dimensions d and e. */
static inline void exchange_outer(StridedCopy *s, int64_t d, int64_t e) {
    int64_t *lists[] = { s->dims, s->to_strides, s->from_strides };
    for (int i = 0; i < 3; i++) { int64_t kept = lists[i][d]; lists[i][d] = lists[i][e]; lists[i][e] = kept; }
}

/* Copy between strided boxes of elements of `size` bytes.
 *
 * ints: rank, to_at, from_at, dims[rank], to_strides[rank], from_strides[rank]. The lowering merges adjacent dimensions; rank is 1 to STRIDED_MAX_RANK. */
static inline void copy_strided(const Engine *engine, void *to, const void *from, int64_t size, const int64_t *ints) {
    int64_t rank = ints[0], d, k, plane = -1, repeated = -1, outer = 1, unit;
    const int64_t *dims = ints + 3, *to_strides = dims + rank, *from_strides = to_strides + rank;
    StridedCopy s;
    for (d = 0; d < rank; d++) if (dims[d] == 0) return;
    s.size = size;
    s.to = (char *)to + ints[1] * size;
    s.from = (const char *)from + ints[2] * size;
    s.n = dims[rank - 1];
    s.to_n = to_strides[rank - 1];
    s.from_n = from_strides[rank - 1];
    s.m = 1;
    s.to_m = s.from_m = 0;
    if (s.to_n == 1 && s.from_n > 1 && s.n >= 2)
        for (d = 0; d < rank - 1; d++)
            if (from_strides[d] == 1 && dims[d] >= 2) plane = d;
    s.repeats = 1;
    d = rank - 2;
    if (plane < 0 && d >= 0 && s.to_n == 1 && s.from_n == 1 && from_strides[d] == 0 && to_strides[d] == s.n && s.n * size < SHORT_ROW_BYTES) {
        repeated = d;
        s.repeats = dims[d];
    }
    for (d = 0, k = 0; d < rank - 1; d++) {
        if (d == repeated) continue;
        if (d == plane) {
            s.m = dims[d];
            s.to_m = to_strides[d];
            s.from_m = 1;
            continue;
        }
        s.dims[k] = dims[d];
        s.to_strides[k] = to_strides[d];
        s.from_strides[k] = from_strides[d];
        outer *= dims[d];
        k++;
    }
    s.rank = k;
    if (k > 1 && s.m == 1 && s.repeats == 1 && s.n * size <= SHORT_ROW_BYTES && s.dims[k - 1] < FEW_ROWS && s.dims[k - 2] > s.dims[k - 1])
        exchange_outer(&s, k - 2, k - 1);
    if (s.m == 1 && s.repeats == 1 && s.to_n == 1 && s.from_n == 1 && s.n * size >= ORDERED_ROW_BYTES && s.n * size <= COPIED_ROW_BYTES)
        for (d = 0; d < k - 1; d++)
            if (s.from_strides[d] == s.n && s.dims[d] > 1) { exchange_outer(&s, d, k - 1); break; }
    if (s.repeats > 1) {           /* a piece is a number of copies of the row */
        s.piece = MEMORY_PIECE / size / s.n;
        s.pieces = (s.repeats + s.piece - 1) / s.piece;
        unit = min_i64(s.piece, s.repeats) * s.n;
    } else if (s.m > 1) {          /* a piece of a plane is a band of whole rows of `to`, a multiple of TILE of them */
        s.piece = MEMORY_PIECE / size / s.n / TILE * TILE;
        if (s.piece < TILE) s.piece = TILE;
        if (size == 4 && is_tiled(s.m, s.n, s.from_n)) s.piece = round_up(s.piece, PLANE_TILE);
        s.pieces = (s.m + s.piece - 1) / s.piece;
        unit = min_i64(s.piece, s.m) * s.n;
    } else {
        s.piece = MEMORY_PIECE / size;
        s.pieces = (s.n + s.piece - 1) / s.piece;
        unit = min_i64(s.piece, s.n);
    }
    s.streamed = is_streamed(&s, outer);
    s.units = outer * s.pieces;
    s.per_item = MEMORY_PIECE / size / unit;
    if (s.per_item < 1) s.per_item = 1;
    run_items(engine, move_units, &s, (s.units + s.per_item - 1) / s.per_item);
}

#endif
