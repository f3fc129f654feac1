/* Counter-based random bits, and the dropout loop that uses them.
 *
 * The bits of an element are a function of a key and the element's index, so any thread can compute them and the result never depends on the split into work
 * items. random_bits(key, i) applies a 32-bit finalizer of low bias (C. Wellons, "hash prospector", 2018) to the index twice, and adds half of the key before
 * each round. It multiplies 32-bit integers only, which the compiler vectorizes. */
#ifndef ORTRAIN_COUNTER_RANDOM_H
#define ORTRAIN_COUNTER_RANDOM_H
#include <stdint.h>

typedef struct { uint32_t first, second; } RandomKey;       /* added before the first and the second round */

/* splitmix64 */
static inline uint64_t mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Return the key of one stream (a node of the graph) in one run. block: the element's index divided by 2^32. */
static inline RandomKey random_key(uint64_t seed, uint64_t run, uint64_t stream, uint64_t block) {
    uint64_t x = mix64(mix64(mix64(mix64(seed) ^ run) ^ stream) ^ block);
    RandomKey key = {(uint32_t)x, (uint32_t)(x >> 32)};
    return key;
}

/* The 32-bit finalizer. */
static inline uint32_t mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* Return the 32 random bits of element i, the low 32 bits of its index. */
static inline uint32_t random_bits(RandomKey key, uint32_t i) {
    return mix32(mix32(i * 0x9E3779B9u + key.first) + key.second);
}

#define DROPOUT_LOOP(T, name)                                                                                     \
    static inline void name(const T *x, T *y, uint8_t *mask, int64_t n, RandomKey key, uint32_t first, uint32_t threshold, T scale) { \
        int64_t i;                                                                                                \
        uint8_t keep[256];                                                                                        \
        while (n > 0) {                                                                                           \
            int64_t m = n < 256 ? n : 256;                                                                        \
            for (i = 0; i < m; i++) keep[i] = random_bits(key, first + (uint32_t)i) >= threshold;                 \
            for (i = 0; i < m; i++) y[i] = keep[i] ? x[i] * scale : (T)0;                                         \
            if (mask) { for (i = 0; i < m; i++) mask[i] = keep[i]; mask += m; }                                   \
            x += m; y += m; n -= m; first += (uint32_t)m;                                                         \
        }                                                                                                         \
    }

/* y [n] = x [n] * scale where the random bits of elements first, first + 1, ... are >= threshold, else 0; mask [n] (or NULL) is 1 where they are. The bits of
 * 256 elements are computed ahead of the selection, so that both loops vectorize. */
DROPOUT_LOOP(float, dropout_loop_float)
DROPOUT_LOOP(double, dropout_loop_double)

#endif
