/* Includes TEMPLATE once for float and once for double, with REAL and NAMED(name) defined: kernels of several inputs that all have one type. Without a guard:
 * a family includes it for each of its templates. */
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

#ifndef ORTRAIN_BOTH_TYPES_H
#define ORTRAIN_BOTH_TYPES_H
/* the kernel that a template has made for the dtype of input 0 */
#define BY_TYPE(name) static int name(const KernelArgs *args) { return args->inputs[0].dtype == DTYPE_FLOAT32 ? name##_float(args) : name##_double(args); }
#endif
