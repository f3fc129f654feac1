/* Softmax, log-softmax and their gradients over x [outer, size, inner]; ints: outer, size, inner. */
#ifndef ORTRAIN_SOFTMAX_H
#define ORTRAIN_SOFTMAX_H
#include <math.h>
#include "kernel.h"
#include "common/panels.h"
#include "common/vector_math.h"

enum { SOFTMAX_CHUNK = 8192, ROW_LANES = 64, LONG_ROW = 64, SUMMED_ROWS = 64 };

#define SOFT_EXP(x) _Generic((x), float: ot_expf, double: exp)(x)
#define SOFT_LOG(x) _Generic((x), float: logf, double: log)(x)
#define ROWS_PER_ITEM(size) (SOFTMAX_CHUNK / ((size) > 0 ? (size) : 1) + 1)

#define TEMPLATE "normalization/softmax_columns.h"
#include "common/float_types.h"

BY_TYPE(softmax) BY_TYPE(log_softmax) BY_TYPE(softmax_grad) BY_TYPE(log_softmax_grad)
#endif
