/* Whether a thread takes subnormal numbers (below 1.2e-38 in float32) for zero.
 *
 * x86 processors need some 150 cycles for an operation that meets one, and training meets many: moments of a weight whose gradient has vanished get there in
 * 800 steps and stay, gradients of samples that are learnt by heart and of long recurrences pass through. A step of 4096 x 4096 products took 7 times as
 * long then. */
#ifndef ORTRAIN_FLOAT_MODE_H
#define ORTRAIN_FLOAT_MODE_H
#include <stdint.h>

typedef uint32_t FloatMode;

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
enum { FLUSH_SUBNORMALS = 0x8040 };    /* results (bit 15) and operands (bit 6) */
static inline FloatMode float_mode(void) { return _mm_getcsr(); }
static inline void set_float_mode(FloatMode mode) { _mm_setcsr(mode); }
#else                                   /* other processors lose little or nothing */
enum { FLUSH_SUBNORMALS = 0 };
static inline FloatMode float_mode(void) { return 0; }
static inline void set_float_mode(FloatMode mode) { (void)mode; }
#endif
#endif
