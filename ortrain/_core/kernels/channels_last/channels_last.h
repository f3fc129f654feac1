/* The channels-last kernels, instantiated for float32 and float64, and their dispatch by the dtype of input 0. */
#ifndef ORTRAIN_CHANNELS_LAST_H
#define ORTRAIN_CHANNELS_LAST_H
#include "matmul/amx_eligibility.h"
#include "matmul/implicit_gemm.h"
#define NAMED(x) x##_float
#define REAL float
#define INTEGER int32_t
#define GEMM(e, ...) (e)->gemm_float32(e, __VA_ARGS__)
#define SERIAL_GEMM(e, ...) (e)->gemm_float32_serial(e, __VA_ARGS__)
#include "channels_last/all_kernels.h"
#undef NAMED
#undef REAL
#undef INTEGER
#undef GEMM
#undef SERIAL_GEMM
#define NAMED(x) x##_double
#define REAL double
#define INTEGER int64_t
#define GEMM(e, ...) (e)->gemm_float64(e, __VA_ARGS__)
#define SERIAL_GEMM(e, ...) (e)->gemm_float64_serial(e, __VA_ARGS__)
#include "channels_last/all_kernels.h"

#define SINGLE (args->inputs[0].dtype == DTYPE_FLOAT32)
static int channels_last_conv(const KernelArgs *args) { return SINGLE ? channels_last_conv_float(args) : channels_last_conv_double(args); }
static int channels_last_conv_grad(const KernelArgs *args) { return SINGLE ? channels_last_conv_grad_float(args) : channels_last_conv_grad_double(args); }
static int channels_last_norm(const KernelArgs *args) { return SINGLE ? channels_last_norm_float(args, 0) : channels_last_norm_double(args, 0); }
static int channels_last_norm_train(const KernelArgs *args) { return SINGLE ? channels_last_norm_float(args, 1) : channels_last_norm_double(args, 1); }
static int channels_last_norm_grad(const KernelArgs *args) { return SINGLE ? channels_last_norm_grad_float(args) : channels_last_norm_grad_double(args); }
static int channels_last_norm_again(const KernelArgs *args) { return SINGLE ? channels_last_norm_again_float(args) : channels_last_norm_again_double(args); }
static int channels_last_max_pool(const KernelArgs *args) { return SINGLE ? channels_last_max_pool_float(args) : channels_last_max_pool_double(args); }
static int channels_last_max_pool_grad(const KernelArgs *args)
{ return SINGLE ? channels_last_max_pool_grad_float(args) : channels_last_max_pool_grad_double(args); }
static int channels_last_average_pool(const KernelArgs *args)
{ return SINGLE ? channels_last_average_pool_float(args) : channels_last_average_pool_double(args); }
static int channels_last_average_pool_grad(const KernelArgs *args)
{ return SINGLE ? channels_last_average_pool_grad_float(args) : channels_last_average_pool_grad_double(args); }
#endif
