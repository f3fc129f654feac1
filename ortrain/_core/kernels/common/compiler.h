/* What GCC and Clang spell differently, and what C has no word for.
 *
 * The lanes of SHUFFLE(a, indices) are a[indices[l]], those of SHUFFLE_PAIR(a, b, indices) the same of a and b side by side. Indices are a vector of integers
 * as wide as the elements, and lie within a, or within a and b.
 *
 * INDEPENDENT stands before a loop over elements: an output is an input's memory or does not overlap it, so that the compiler need not check. */
#ifndef ORTRAIN_COMPILER_H
#define ORTRAIN_COMPILER_H

/* The compiler inlines large functions once, but a loop is vectorized only if everything in it is inlined. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define OUT_OF_LINE static __attribute__((noinline))

#if defined(__clang__)
/* Clang shuffles by literal indices only, but recognizes lanes that are copied one by one by indices that become constants when loops are unrolled. */
#define SHUFFLE_PAIR(a, b, ...) __extension__ ({                                                                       \
    enum { shuffled_lanes = sizeof(a) / sizeof((a)[0]) };                                                              \
    const __typeof__(a) shuffled_a = (a), shuffled_b = (b);                                                            \
    const __typeof__(__VA_ARGS__) shuffled_indices = __VA_ARGS__;                                                      \
    __typeof__((void)0, (a)) shuffled;      /* the type of a without const */                                          \
    _Pragma("GCC unroll 16") for (int l = 0; l < shuffled_lanes; l++)                                                  \
        shuffled[l] = (int)shuffled_indices[l] < shuffled_lanes ? shuffled_a[shuffled_indices[l]]                      \
                                                                : shuffled_b[shuffled_indices[l] - shuffled_lanes];    \
    shuffled; })
#define SHUFFLE(a, indices) SHUFFLE_PAIR(a, a, indices)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SHUFFLE __builtin_shuffle
#define SHUFFLE_PAIR __builtin_shuffle
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
#endif
