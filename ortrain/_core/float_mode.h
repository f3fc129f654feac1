/* The floating-point mode of a thread: whether it treats subnormal numbers (below 1.2e-38 in float32) as zero.
 *
 * x86 processors are slow on subnormals, and training produces many: moments of a weight whose gradient vanishes become subnormal
 * within 800 steps, and so do gradients of memorized samples and of long recurrences. With them a step of an MLP took 8 times as
 * long, and its matrix multiplications 9 times. */
#ifndef ORTRAIN_FLOAT_MODE_H
#define ORTRAIN_FLOAT_MODE_H
#include <stdint.h>

typedef uint32_t FloatMode;

#if defined(__x86_64__)
#include <xmmintrin.h>
enum { FLUSH_SUBNORMALS = 0x8040 };    /* results (bit 15) and operands (bit 6) */
static inline FloatMode float_mode(void) { return _mm_getcsr(); }
static inline void set_float_mode(FloatMode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
/* ARM's processors slow down little or not at all, but results are to be those of x86: bit 24 of the control register flushes results and operands. Only the
 * lower half of the register has a meaning. */
enum { FLUSH_SUBNORMALS = 1 << 24 };
static inline FloatMode float_mode(void) { uint64_t mode; __asm__ volatile("mrs %0, fpcr" : "=r"(mode)); return (FloatMode)mode; }
static inline void set_float_mode(FloatMode mode) { uint64_t wide = mode; __asm__ volatile("msr fpcr, %0" : : "r"(wide)); }
#else
enum { FLUSH_SUBNORMALS = 0 };
static inline FloatMode float_mode(void) { return 0; }
static inline void set_float_mode(FloatMode mode) { (void)mode; }
#endif
#endif
