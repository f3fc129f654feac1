/* Normal noise for differential privacy from a cryptographically secure generator: ChaCha20 (D. J. Bernstein, 2008, whose block function RFC 8439 has), several
 * blocks side by side, and the transform of Box and Muller.
 *
 * The noise of an element is a function of key, nonce and index, so that it has the same bits for any number of threads. */
#ifndef ORTRAIN_GRADIENT_NOISE_H
#define ORTRAIN_GRADIENT_NOISE_H
#include "common/compiler.h"
#include "common/trigonometry.h"
#include "common/vector_math.h"
#include "training/training.h"

enum { NOISE_LANES = 8,                                     /* blocks that are computed side by side */
       NOISE_GROUP = 16 * NOISE_LANES,                      /* words of random bits, and elements, of so many blocks */
       KEY_WORDS = 8, NONCE = 8 };                          /* where the nonce [2] begins behind the key [8] */

typedef uint32_t Blocks __attribute__((vector_size(4 * NOISE_LANES)));

#define ROTATED(x, n) ((x) << (n) | (x) >> (32 - (n)))
#define QUARTER_ROUND(a, b, c, d)                                                                                 \
    a += b; d ^= a; d = ROTATED(d, 16); c += d; b ^= c; b = ROTATED(b, 12);                                       \
    a += b; d ^= a; d = ROTATED(d, 8); c += d; b ^= c; b = ROTATED(b, 7);

/* words [16][NOISE_LANES] = the key stream of blocks first, first + 1, ...; seed [10]: key and nonce */
static inline void chacha20_blocks(const uint32_t *seed, uint64_t first, uint32_t *words)
{
    static const uint32_t constants[4] = {0x61707865u, 0x3320646Eu, 0x79622D32u, 0x6B206574u};
    Blocks start[16], x[16];
    for (int w = 0; w < 16; w++)
        for (int l = 0; l < NOISE_LANES; l++)
            start[w][l] = w < 4 ? constants[w] : w < 12 ? seed[w - 4] : w == 12 ? (uint32_t)(first + l) : w == 13 ? (uint32_t)((first + l) >> 32)
                        : seed[NONCE + w - 14];
    memcpy(x, start, sizeof x);
    for (int round = 0; round < 10; round++) {
        QUARTER_ROUND(x[0], x[4], x[8], x[12]) QUARTER_ROUND(x[1], x[5], x[9], x[13])
        QUARTER_ROUND(x[2], x[6], x[10], x[14]) QUARTER_ROUND(x[3], x[7], x[11], x[15])
        QUARTER_ROUND(x[0], x[5], x[10], x[15]) QUARTER_ROUND(x[1], x[6], x[11], x[12])
        QUARTER_ROUND(x[2], x[7], x[8], x[13]) QUARTER_ROUND(x[3], x[4], x[9], x[14])
    }
    for (int w = 0; w < 16; w++) x[w] += start[w];
    memcpy(words, x, sizeof x);
}

/* noise [NOISE_GROUP], standard normal: of words i and i + NOISE_GROUP / 2, the first is a radius with 2^31 values, up to 6.66, the second an angle */
static inline void normal_group(const uint32_t *words, float *noise)
{
    const int half = NOISE_GROUP / 2;
    for (int i = 0; i < half; i++) {
        float share = ((float)(int32_t)(words[i] >> 1) + 0.5f) * 4.65661287e-10f;                 /* (k + 1/2) / 2^31 */
        float radius = sqrtf(-2.0f * ot_logf(ot_minf(share, 1.0f))), angle = (float)(int32_t)words[i + half] * 1.46291808e-9f;    /* pi / 2^31 */
        noise[i] = radius * ot_cosf(angle); noise[i + half] = radius * ot_sinf(angle);
    }
}

#define GRADIENT_NOISE(R)                                                                                         \
static void gradient_noise_##R##_item(void *context, int64_t item, int64_t worker)                                \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *gradient = args->inputs[0].data, deviation = (R)args->floats[0];                                           \
    const uint32_t *seed = args->inputs[1].data;                                                                  \
    uint32_t words[NOISE_GROUP]; float noise[NOISE_GROUP];                                                        \
    for (; i < end; i += NOISE_GROUP) {                                                                           \
        chacha20_blocks(seed, (uint64_t)i / 16, words);                                                           \
        normal_group(words, noise);                                                                               \
        int64_t n = end - i < NOISE_GROUP ? end - i : NOISE_GROUP;                                                \
        for (int64_t k = 0; k < n; k++) gradient[i + k] += deviation * noise[k];                                  \
    }                                                                                                             \
}
GRADIENT_NOISE(float)
GRADIENT_NOISE(double)

/* gradient [n] += floats[0] * standard normal noise; inputs: gradient, uint32 [10] (key [8], nonce [2]) */
IN_PLACE_KERNEL(gradient_noise)
#endif
