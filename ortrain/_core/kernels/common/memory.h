/* Memory operations: copies of rows, and parallel copies and fills of contiguous blocks.
 *
 * Elements are moved by their size (1, 4 or 8 bytes) and never interpreted. A work item moves about MEMORY_PIECE bytes; the split into items depends on the
 * sizes only, never on the number of threads. */
#ifndef ORTRAIN_MEMORY_H
#define ORTRAIN_MEMORY_H
#include <stdint.h>
#include <string.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"
#include "common/tuning.h"

#define MEMORY_PIECE 131072        /* bytes that one work item moves */
#define COPIED_ROW_BYTES 4096      /* rows up to this are copied in vectors: 36 bytes took 3.5 ns by memcpy and 1.9 so, 2 KiB in no cache 360 and 300 */

/* Return the size in bytes of an element of a DTYPE_ number. */
static inline int64_t element_size(int32_t dtype) {
    switch (dtype) {
        case DTYPE_FLOAT32: case DTYPE_INT32: return 4;
        case DTYPE_FLOAT64: case DTYPE_INT64: return 8;
        default: return 1;
    }
}

/* parallel_for that calls a single item directly and accepts 0 items. */
static inline void run_items(const Engine *engine, WorkItem work, void *context, int64_t items) {
    if (items == 1) work(context, 0, 0);
    else if (items > 1) engine->parallel_for(engine, work, context, items);
}

/* ---- contiguous blocks ---- */

/* Copy n bytes; few whole words without a call of memcpy (rows of 12 and 16 bytes took twice as long with it). */
static inline void copy_bytes(char *to, const char *from, int64_t n) {
    uint32_t word;
    if (n % 4 || n > 32) { memcpy(to, from, (size_t)n); return; }
    for (; n > 0; n -= 4, to += 4, from += 4) { memcpy(&word, from, 4); memcpy(to, &word, 4); }
}

/* Copy VECTOR_BYTES bytes, in a loop that GCC does not replace by a call of memcpy. */
#if defined(__GNUC__)
typedef char copied_vector __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));
#define COPY_VECTOR(to, from) { *(copied_vector *)(to) = *(const copied_vector *)(from); __asm__ volatile(""); }
#else
#define COPY_VECTOR(to, from) memcpy(to, from, VECTOR_BYTES);
#endif

/* Copy 64 bytes. */
static inline void copy_line(char *to, const char *from) { for (int64_t i = 0; i < 64; i += VECTOR_BYTES) COPY_VECTOR(to + i, from + i) }

/* Copy n >= 128 bytes, whole cache lines of `to` at a time: calls of memcpy took a fifth more for 8192 rows of 512 bytes. */
static inline void copy_lines(char *to, const char *from, int64_t n)
{
    int64_t i = 64 - (int64_t)((uintptr_t)to & 63);
    copy_line(to, from);
    for (; i + 64 <= n; i += 64) copy_line(to + i, from + i);
    copy_line(to + n - 64, from + n - 64);
}

/* Copy n bytes of a row: up to COPIED_ROW_BYTES in vectors, of which the last one overlaps the one before. */
static inline void copy_row(char *to, const char *from, int64_t n) {
    if (n > COPIED_ROW_BYTES) memcpy(to, from, (size_t)n);
    else if (n >= 128) copy_lines(to, from, n);
    else if (n >= VECTOR_BYTES) {
        int64_t i = 0;
        for (; i + VECTOR_BYTES <= n; i += VECTOR_BYTES) COPY_VECTOR(to + i, from + i)
        if (i < n) COPY_VECTOR(to + n - VECTOR_BYTES, from + n - VECTOR_BYTES)
    }
    else if (n >= 32) { memcpy(to, from, 32); memcpy(to + n - 32, from + n - 32, 32); }
    else if (n >= 16) { memcpy(to, from, 16); memcpy(to + n - 16, from + n - 16, 16); }
    else if (n >= 8) { memcpy(to, from, 8); memcpy(to + n - 8, from + n - 8, 8); }
    else if (n >= 4) { memcpy(to, from, 4); memcpy(to + n - 4, from + n - 4, 4); }
    else for (; n > 0; n--) *to++ = *from++;
}

/* to [rows, width bytes], `to_step` bytes apart, = from [rows, width bytes], `from_step` apart. */
#define COPY_COLUMNS(words)                                                                                                    \
    case 4 * (words): for (; rows > 0; rows--, to += to_step, from += from_step) memcpy(to, from, 4 * (words)); return;
static inline void copy_columns(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t rows, int64_t width)
{
    switch (width) {               /* few whole words without a call of memcpy: rows of 12 and 16 bytes took 4 ns with it */
        COPY_COLUMNS(1) COPY_COLUMNS(2) COPY_COLUMNS(3) COPY_COLUMNS(4) COPY_COLUMNS(5) COPY_COLUMNS(6) COPY_COLUMNS(7) COPY_COLUMNS(8)
        COPY_COLUMNS(12) COPY_COLUMNS(16) COPY_COLUMNS(24) COPY_COLUMNS(32)
        COPY_COLUMNS(48) COPY_COLUMNS(64)
    }
    for (; rows > 0; rows--, to += to_step, from += from_step) copy_row(to, from, width);
}

/* Pairs of words: block [n, 2] = (a [n], b [n]), or back. Loops of GCC's that it vectorizes. */
static inline void interleave_words(uint32_t *restrict block, const uint32_t *restrict a, const uint32_t *restrict b, int64_t n)
{ for (int64_t i = 0; i < n; i++) { block[2 * i] = a[i]; block[2 * i + 1] = b[i]; } }
static inline void separate_words(const uint32_t *restrict block, uint32_t *restrict a, uint32_t *restrict b, int64_t n)
{ for (int64_t i = 0; i < n; i++) { a[i] = block[2 * i]; b[i] = block[2 * i + 1]; } }

/* A copy of `bytes` bytes, or a fill of them with the element of `size` bytes at `from`. */
typedef struct { char *to; const char *from; int64_t bytes; int64_t size; } Block;

static void copy_piece(void *context, int64_t item, int64_t worker) {
    const Block *b = (const Block *)context;
    int64_t at = item * MEMORY_PIECE;
    (void)worker;
    memcpy(b->to + at, b->from + at, (size_t)min_i64(MEMORY_PIECE, b->bytes - at));
}

/* Copy `bytes` bytes; nothing happens in place. */
static inline void copy_block(const Engine *engine, void *to, const void *from, int64_t bytes) {
    Block b = {(char *)to, (const char *)from, bytes, 1};
    if (bytes > 0 && to != from) run_items(engine, copy_piece, &b, (bytes + MEMORY_PIECE - 1) / MEMORY_PIECE);
}

/* Set n elements of `size` bytes to the one at `value`. */
static inline void fill_elements(char *to, const void *value, int64_t size, int64_t n) {
    int64_t i;
    if (size == 4) { uint32_t v; memcpy(&v, value, 4); for (i = 0; i < n; i++) ((uint32_t *)to)[i] = v; }
    else if (size == 8) { uint64_t v; memcpy(&v, value, 8); for (i = 0; i < n; i++) ((uint64_t *)to)[i] = v; }
    else memset(to, *(const uint8_t *)value, (size_t)n);
}

static void fill_piece(void *context, int64_t item, int64_t worker) {
    const Block *b = (const Block *)context;
    int64_t at = item * MEMORY_PIECE;
    (void)worker;
    fill_elements(b->to + at, b->from, b->size, min_i64(MEMORY_PIECE, b->bytes - at) / b->size);
}

/* Set `count` elements of `size` bytes to the one at `value`. */
static inline void fill_block(const Engine *engine, void *to, const void *value, int64_t size, int64_t count) {
    Block b = {(char *)to, (const char *)value, count * size, size};
    run_items(engine, fill_piece, &b, (b.bytes + MEMORY_PIECE - 1) / MEMORY_PIECE);
}

static inline void zero_block(const Engine *engine, void *to, int64_t bytes) {
    static const uint8_t zero = 0;
    fill_block(engine, to, &zero, 1, bytes);
}

#endif
