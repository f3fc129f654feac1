/* Convolutions of planes, instantiated for float32 and float64, and their dispatch by the dtype of input 0. */
#ifndef ORTRAIN_PLANES_H
#define ORTRAIN_PLANES_H
#include "kernel.h"
#define TEMPLATE "planes/conv_of_planes.h"
#include "common/float_types.h"

BY_TYPE(planes_conv)
BY_TYPE(planes_conv_grad)
#endif
