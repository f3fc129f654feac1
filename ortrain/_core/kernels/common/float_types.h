/* Instantiates a kernel template for float and double: includes the file that TEMPLATE names twice, with REAL (the element type) and NAMED(name) (the name with
 * the type as suffix) defined. It has no include guard, because a family includes it once per template. */
#define REAL float
#define NAMED(name) name##_float
#include TEMPLATE
#undef REAL
#undef NAMED
#define REAL double
#define NAMED(name) name##_double
#include TEMPLATE
#undef REAL
#undef NAMED
#undef TEMPLATE

#ifndef ORTRAIN_FLOAT_TYPES_H
#define ORTRAIN_FLOAT_TYPES_H
/* Defines the kernel `name`, which calls name_float or name_double by the dtype of input 0. */
#define BY_TYPE(name) static int name(const KernelArgs *args) { return args->inputs[0].dtype == DTYPE_FLOAT32 ? name##_float(args) : name##_double(args); }
#endif
