/* Softmax, log-softmax and their gradients over x [outer, size, inner]; ints: outer, size, inner. */
#ifndef ORTRAIN_SOFTMAX_H
#define ORTRAIN_SOFTMAX_H
#include <math.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/panels.h"
#include "common/row_vectors.h"
#include "common/vector_math.h"

enum {
    SOFTMAX_CHUNK = 8192, SUMMED_ROWS = 64,
    /* Contiguous rows of at least so many elements that are too long for registers are computed one at a time. A row's maximum and its sum wait for each other: rows
       of 197 take 1.1 ns an element with AVX2, and 2.4 in panels, but rows of 64 with AVX-512 0.62, and 0.33 in panels. Gradients have one sum only. */
    LONG_ROW = VECTOR_BYTES < 64 ? 65 : 256, LONG_GRADIENT_ROW = 33,
    /* Rows of at most so many vectors stay in panels, where the logarithms and sums of several rows are computed side by side: with AVX2, rows of 16 elements
       took 1.3 times as long in registers, rows of 63 half the time. Gradients take a quarter of the time in registers from one vector on. */
    PANEL_VECTORS = 3
};

#define SOFT_EXP(x) _Generic((x), float: ot_expf, double: exp)(x)
#define EXP_OF_NEGATIVE(x) _Generic((x), float: ot_expf_of_negative, double: exp)(x)
#define SOFT_LOG(x) _Generic((x), float: ot_logf, double: log)(x)
#define ROWS_PER_ITEM(size) (SOFTMAX_CHUNK / ((size) > 0 ? (size) : 1) + 1)

#define TEMPLATE "normalization/softmax_vectors.h"
#include "common/float_types.h"
#define TEMPLATE "normalization/softmax_columns.h"
#include "common/float_types.h"

BY_TYPE(softmax) BY_TYPE(log_softmax) BY_TYPE(softmax_grad) BY_TYPE(log_softmax_grad)
#endif
