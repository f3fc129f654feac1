/* All channels-last kernels for one element type. Included once per type by channels_last.h, therefore without an include guard. */
#include "channels_last/vectors.h"
#include "channels_last/geometry.h"
#include "channels_last/winograd.h"
#include "channels_last/winograd_stride2.h"
#include "channels_last/im2col.h"
#include "channels_last/winograd_gemm.h"
#include "channels_last/pointwise.h"
#include "channels_last/direct.h"
#include "channels_last/winograd_1d.h"
#include "channels_last/weight_gradient.h"
#include "channels_last/grouped.h"
#include "channels_last/batch_norm.h"
#include "channels_last/max_pool.h"
#include "channels_last/implicit_gemm_conv.h"
#include "channels_last/conv.h"
#undef INPUT
#undef OUTPUT
