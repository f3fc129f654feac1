/* Instantiates a kernel template for float and double: includes the file that TEMPLATE names twice, with REAL (the element type), INTEGER (an integer of its
 * size), NAMED(name) (the name with the type as suffix) and the matrix multiplications of an engine of this type defined. It has no include guard, because a
 * family includes it once per template. */
#define REAL float
#define INTEGER int32_t
#define NAMED(name) name##_float
#define GEMM(e, ...) (e)->gemm_float32(e, __VA_ARGS__)
#define SERIAL_GEMM(e, ...) (e)->gemm_float32_serial(e, __VA_ARGS__)
#include TEMPLATE
#undef REAL
#undef INTEGER
#undef NAMED
#undef GEMM
#undef SERIAL_GEMM
#define REAL double
#define INTEGER int64_t
#define NAMED(name) name##_double
#define GEMM(e, ...) (e)->gemm_float64(e, __VA_ARGS__)
#define SERIAL_GEMM(e, ...) (e)->gemm_float64_serial(e, __VA_ARGS__)
#include TEMPLATE
#undef REAL
#undef INTEGER
#undef NAMED
#undef GEMM
#undef SERIAL_GEMM
#undef TEMPLATE

#ifndef ORTRAIN_FLOAT_TYPES_H
#define ORTRAIN_FLOAT_TYPES_H
/* Defines the kernel `name`, which calls name_float or name_double by the dtype of input 0. */
#define BY_TYPE(name) static int name(const KernelArgs *args) { return args->inputs[0].dtype == DTYPE_FLOAT32 ? name##_float(args) : name##_double(args); }
#endif
