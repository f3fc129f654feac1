/* Short rows in registers: a row of n elements is K vectors, of which the last ends with the row and overlaps the one before where n is no multiple of a vector.
 * Functions take K as a constant, so that the vectors of a row are registers; FOR_ROW_VECTORS lists the numbers. */
#ifndef ORTRAIN_ROW_VECTORS_H
#define ORTRAIN_ROW_VECTORS_H
#include <string.h>
#include "common/integers.h"
#include "common/tuning.h"
#include "common/vector_math.h"

/* Rows of more vectors spill registers, and are long enough for sums in lanes. */
enum { MAX_ROW_VECTORS = 8 };
#define FOR_ROW_VECTORS(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8)

/* The statement that follows, for each of the K vectors k; the first element of vector k; SUM = the sum of the vectors of(k), of which the last counts in the lanes
 * `end` only. */
#define EACH_ROW_VECTOR _Pragma("GCC unroll 8") for (int k = 0; k < K; k++)
#define ROW_VECTOR_AT(k) ((k) < K - 1 ? (k) * NAMED(ROW_WIDTH) : n - NAMED(ROW_WIDTH))
#define ROW_VECTOR_SUM(SUM, of) \
    NAMED(RowVector) SUM = NAMED(row_masked)(of(K - 1), end); _Pragma("GCC unroll 8") for (int k = 0; k < K - 1; k++) SUM += of(k);

#define TEMPLATE "common/row_vectors_by_type.h"
#include "common/float_types.h"
#endif
