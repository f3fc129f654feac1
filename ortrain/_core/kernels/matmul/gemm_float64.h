/* The float64 GEMM: gemm_parallel.h for elements of 8 bytes. A module of its own, because one file can include it for one type only. */
#ifndef ORTRAIN_GEMM_FLOAT64_H
#define ORTRAIN_GEMM_FLOAT64_H
#define SCALAR_BYTES 8
#include "matmul/gemm_parallel.h"
#endif
