/* The inner loops of gathering and scattering rows, of which narrow ones are not worth a call of memcpy: columns of 4 bytes took 1.8 ns per element. */
#ifndef ORTRAIN_ROWS_H
#define ORTRAIN_ROWS_H
#include <stdint.h>
#include <string.h>
#include "common/memory.h"

enum { NARROW_ROW_BYTES = 64, MIN_SPAN = 8, LINE_BYTES = 64, AHEAD_BYTES = 16384 };

#define GATHER_ROWS(T, words)                                                                                                  \
    { const T *from = (const T *)table; T *to = (T *)rows;                                                                     \
      _Pragma("GCC unroll 4")                                                                                                  \
      for (int64_t i = 0; i < n; i++) for (int64_t k = 0; k < (words); k++) to[i * (words) + k] = from[index[i] * (words) + k]; }

/* rows [n, width bytes] = table [index [n], width bytes] */
static inline void gather_run(const char *table, char *rows, const int64_t *index, int64_t n, int64_t width)
{
    if (width == 4) GATHER_ROWS(uint32_t, 1)
    else if (width == 8) GATHER_ROWS(uint64_t, 1)
    else if (width % 4 == 0 && width <= NARROW_ROW_BYTES) GATHER_ROWS(uint32_t, width / 4)
    else for (int64_t i = 0; i < n; i++) copy_row(rows + i * width, table + index[i] * width, width);
}

/* gather_run for `batches` tables that are `step` bytes apart. Where most indices continue the one before, as those of a Pad do, whole spans are copied: an
 * edge around 32 x 32 took 0.45 ns per element one by one. */
static inline void gather_batches(const char *table, int64_t step, char *rows, const int64_t *index, int64_t n, int64_t width, int64_t batches)
{
    int64_t spans = 1;
    for (int64_t i = 1; i < n; i++) spans += index[i] != index[i - 1] + 1;
    if (batches < 2 || spans * MIN_SPAN > n) {
        /* The next table is fetched where it fits into half of the first-level cache and as many lines of it are read as it has: 4096 tables of 64 rows of 64
         * bytes took 0.82 ns per element without and 0.50 with it, but a single row of each table 0.16 and 2.0. */
        const int64_t ahead = step <= AHEAD_BYTES && n * ceil_div(width, LINE_BYTES) * LINE_BYTES >= step ? step : 0;
        for (int64_t b = 0; b < batches; b++) {
            for (int64_t i = 0; i < ahead && b + 1 < batches; i += LINE_BYTES) __builtin_prefetch(table + (b + 1) * step + i);
            gather_run(table + b * step, rows + b * n * width, index, n, width);
        }
        return;
    }
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && index[end] == index[end - 1] + 1; ) end++;
        if ((end - i) * width == 4) for (int64_t b = 0; b < batches; b++) memcpy(rows + (b * n + i) * 4, table + b * step + index[i] * 4, 4);
        else for (int64_t b = 0; b < batches; b++) memcpy(rows + (b * n + i) * width, table + b * step + index[i] * width, (size_t)((end - i) * width));
    }
}

/* Scatter the rows whose index is in [low, high), in order: table [index [n], inner] += (or, with assign, =) rows [n, inner]. */
#define SCATTER_RUN(NAME, R)                                                                                                   \
static inline void NAME(R *table, const R *rows, const int64_t *index, int64_t n, int64_t inner, int64_t low, int64_t high)    \
{                                                                                                                              \
    if (inner == 1) {                                                                                                          \
        for (int64_t i = 0; i < n; i++) if (index[i] >= low && index[i] < high) table[index[i]] += rows[i];                    \
        return;                                                                                                                \
    }                                                                                                                          \
    for (int64_t i = 0; i < n; i++) {                                                                                          \
        if (index[i] < low || index[i] >= high) continue;                                                                      \
        R *restrict to = table + index[i] * inner; const R *restrict from = rows + i * inner;                                  \
        for (int64_t k = 0; k < inner; k++) to[k] += from[k];                                                                  \
    }                                                                                                                          \
}
SCATTER_RUN(scatter_add_run_float, float)
SCATTER_RUN(scatter_add_run_double, double)

static inline void scatter_assign_run(char *table, const char *rows, const int64_t *index, int64_t n, int64_t width, int64_t low, int64_t high)
{
    for (int64_t i = 0; i < n; i++)
        if (index[i] >= low && index[i] < high) copy_row(table + index[i] * width, rows + i * width, width);
}
#endif
