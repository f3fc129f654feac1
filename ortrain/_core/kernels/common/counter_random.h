/* Random bits as a function of a counter: any element's bits can be had on any thread, and are always the same.
 *
 * bits(key, i) mixes the element number twice with a 32-bit finalizer of low bias (C. Wellons, "hash prospector", 2018), keyed before each
 * round. 32-bit multiplications only, so that the compiler makes vectors of it. */
#ifndef ORTRAIN_COUNTER_RANDOM_H
#define ORTRAIN_COUNTER_RANDOM_H
#include <stdint.h>

typedef struct { uint32_t first, second; } RandomKey;

static inline uint64_t mix64(uint64_t x) {          /* splitmix64 */
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The key of one stream (one node) in one run; `block` counts 2^32 elements. */
static inline RandomKey random_key(uint64_t seed, uint64_t run, uint64_t stream, uint64_t block) {
    uint64_t x = mix64(mix64(mix64(mix64(seed) ^ run) ^ stream) ^ block);
    RandomKey key = {(uint32_t)x, (uint32_t)(x >> 32)};
    return key;
}

static inline uint32_t mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

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

/* y = x * scale where the random bits of elements first, first + 1, … reach the threshold, else 0; mask (may be NULL) says where */
DROPOUT_LOOP(float, dropout_loop_float)
DROPOUT_LOOP(double, dropout_loop_double)

#endif
