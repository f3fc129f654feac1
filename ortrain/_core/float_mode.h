/* Whether a thread takes subnormal numbers (below 1.2e-38 in float32) for zero.
 *
 * They slow x86 processors down, and training meets many: moments of a weight whose gradient has vanished get there in
 * 800 steps and stay, gradients of samples that are learnt by heart and of long recurrences pass through. A step of mlp-wide took 8 times as
 * long then, its products 9 times. */
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
