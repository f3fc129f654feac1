/* Softmax cross-entropy of logits [n, c, d] and its gradient. ints: n, c, d, reduction (0 none, 1 mean, 2 sum), ignored label. scratch of kernels that compute
 * the loss: the sums of losses and of weights of each work item, as double. */
#ifndef ORTRAIN_LOSS_H
#define ORTRAIN_LOSS_H
#include <math.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"
#include "common/vector_math.h"

enum {
    LOSS_ROWS = 64,              /* rows of a work item, equal to the constant in ops/loss.py */
    BIAS_COLUMNS = 512,          /* of a work item of the gradient of a bias */
    LOSS_LANES = 16,             /* partial sums of a row, and positions that are computed at once */
    /* Rows of at most so many classes are transposed to panels: 65 classes take 0.86 ns an element, 2.07 one row at a time. The gradient has no sums: 10
       classes take 1.5 ns and 4.9, 32 the same. */
    SHORT_CLASSES = 96, SHORT_GRADIENT_CLASSES = 32
};

static inline int64_t label_at(const Tensor *labels, int64_t i)
{ return labels->dtype == DTYPE_INT32 ? ((const int32_t *)labels->data)[i] : ((const int64_t *)labels->data)[i]; }

/* Return the number of work items. */
static inline int64_t loss_items(const KernelArgs *args) { return ceil_div(args->ints[0] * args->ints[2], LOSS_ROWS); }

/* Return how many of n labels are not ignored. */
static inline int64_t counted_labels(const Tensor *labels, int64_t n, int64_t ignored)
{
    int64_t count = 0;
    if (labels->dtype == DTYPE_INT32) for (int64_t i = 0; i < n; i++) count += ((const int32_t *)labels->data)[i] != ignored;
    else for (int64_t i = 0; i < n; i++) count += ((const int64_t *)labels->data)[i] != ignored;
    return count;
}

#define LOSS_EXP(x) _Generic((x), float: ot_expf, double: exp)(x)
#define LOSS_EXP_NONPOSITIVE(x) _Generic((x), float: ot_expf_of_negative, double: exp)(x)        /* for logits minus their maximum */
#define LOSS_LOG(x) _Generic((x), float: ot_logf, double: log)(x)

#define LOSS_GEMM(engine, ...) _Generic((REAL)0, float: (engine)->gemm_float32, double: (engine)->gemm_float64)(engine, __VA_ARGS__)

#define TEMPLATE "training/loss_by_type.h"
#include "common/float_types.h"
#define TEMPLATE "training/linear_cross_entropy.h"
#include "common/float_types.h"

BY_TYPE(softmax_cross_entropy_loss) BY_TYPE(loss_and_gradient) BY_TYPE(softmax_cross_entropy_loss_grad) BY_TYPE(linear_cross_entropy)
#endif
