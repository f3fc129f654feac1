/* Softmax, log-softmax and their gradients over x [outer, size, inner]; ints: outer, size, inner. */
#ifndef ORTRAIN_SOFTMAX_H
#define ORTRAIN_SOFTMAX_H
#include <math.h>
#include "kernel.h"
#include "common/panels.h"
#include "common/vector_math.h"

enum {
    SOFTMAX_CHUNK = 8192, ROW_LANES = 64, SUMMED_ROWS = 64,
    /* Contiguous rows of at least so many elements are computed one at a time. A row's maximum and its sum wait for each other, so that rows of 64 take 0.33 ns an
       element in panels and 0.62 by row, rows of 256 0.36 and 0.30. Gradients have one sum only: rows of 64 take 0.36 and 0.29. */
    LONG_ROW = 256, LONG_GRADIENT_ROW = 64
};

#define SOFT_EXP(x) _Generic((x), float: ot_expf, double: exp)(x)
#define EXP_OF_NEGATIVE(x) _Generic((x), float: ot_expf_of_negative, double: exp)(x)
#define SOFT_LOG(x) _Generic((x), float: logf, double: log)(x)
#define ROWS_PER_ITEM(size) (SOFTMAX_CHUNK / ((size) > 0 ? (size) : 1) + 1)

#define TEMPLATE "normalization/softmax_columns.h"
#include "common/float_types.h"

BY_TYPE(softmax) BY_TYPE(log_softmax) BY_TYPE(softmax_grad) BY_TYPE(log_softmax_grad)
#endif
