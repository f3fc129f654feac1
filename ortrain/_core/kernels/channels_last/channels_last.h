/* The channels-last kernels, instantiated for float32 and float64, and their dispatch by the dtype of input 0. */
#ifndef ORTRAIN_CHANNELS_LAST_H
#define ORTRAIN_CHANNELS_LAST_H
#include "common/row_vectors.h"
#include "matmul/amx_eligibility.h"
#include "matmul/implicit_gemm.h"
#define TEMPLATE "channels_last/all_kernels.h"
#include "common/float_types.h"

BY_TYPE(channels_last_conv)
BY_TYPE(channels_last_conv_grad)
BY_TYPE(channels_last_norm)
BY_TYPE(channels_last_norm_train)
BY_TYPE(channels_last_norm_grad)
BY_TYPE(channels_last_norm_again)
BY_TYPE(channels_last_group_norm)
BY_TYPE(channels_last_group_norm_again)
BY_TYPE(channels_last_group_norm_grad)
BY_TYPE(channels_last_max_pool)
BY_TYPE(channels_last_max_pool_grad)
BY_TYPE(channels_last_average_pool)
BY_TYPE(channels_last_average_pool_grad)
#endif
