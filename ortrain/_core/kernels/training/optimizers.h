/* All optimizers besides AdamW and SGD, which training.h has: sweeps.h element by element, tensor_updates.h tensor by tensor, for float and double. */
#ifndef ORTRAIN_OPTIMIZERS_H
#define ORTRAIN_OPTIMIZERS_H
#include "training/training.h"

#define R float
#define OF(name) name##_float
#define SQUARE_ROOT sqrtf
#define GEMM_float engine->gemm_float32
#include "training/sweeps.h"
#include "training/tensor_updates.h"
#undef R
#undef OF
#undef SQUARE_ROOT

#define R double
#define OF(name) name##_double
#define SQUARE_ROOT sqrt
#define GEMM_double engine->gemm_float64
#include "training/sweeps.h"
#include "training/tensor_updates.h"
#undef R
#undef OF
#undef SQUARE_ROOT

/* outputs: updated [1] or absent */
#define SWEEP_KERNEL(NAME)                                                                                        \
static int NAME(const KernelArgs *args)                                                                           \
{                                                                                                                 \
    if (!skips_update(args)) update_elements(args, NAME##_float, NAME##_double);                                  \
    set_updated_flag(args);                                                                                            \
    return STATUS_OK;                                                                                             \
}
SWEEP_KERNEL(adam)
SWEEP_KERNEL(momentum)
SWEEP_KERNEL(lion)
SWEEP_KERNEL(rmsprop)
SWEEP_KERNEL(adagrad)

#define TENSOR_KERNEL(NAME)                                                                                       \
static int NAME(const KernelArgs *args)                                                                           \
{                                                                                                                 \
    if (!skips_update(args)) { if (args->inputs[0].dtype == DTYPE_FLOAT32) NAME##_float(args); else NAME##_double(args); } \
    set_updated_flag(args);                                                                                            \
    return STATUS_OK;                                                                                             \
}
TENSOR_KERNEL(lamb)
TENSOR_KERNEL(adafactor)
TENSOR_KERNEL(muon)
#endif
