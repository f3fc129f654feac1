/* Optimizers of weights and moments that are kept in bfloat16. A block of them is widened, updated by the float32 kernel of the optimizer, and rounded to one of
 * the two nearest bfloat16 numbers at random, the nearer one the likelier, so that rounding is right on average: steps far smaller than the distance of two
 * bfloat16 numbers add up, which rounding to nearest would lose. So do decays of second moments, by a thousandth in a step.
 *
 * Random bits are a function of the seed, the optimizer step and the number of the element, so that threads, shards and deferral change nothing. */
#ifndef ORTRAIN_STOCHASTIC_ROUNDING_H
#define ORTRAIN_STOCHASTIC_ROUNDING_H
#include "common/counter_random.h"
#include "common/half_precision.h"

enum { ROUNDING_SEED, FIRST_ELEMENT, ROUNDING_INTS };       /* the ints before the optimizer's: the seed, and the number of the first element */
enum { WIDENED_BLOCK = 1024 };                              /* elements: what is widened of three moments and the weights takes half of the first cache */

/* x after adding 16 random bits to the 16 bits that bfloat16 lacks, so that the more of them there are the likelier it grows in magnitude; infinities and NaNs
 * stay what they are */
static inline uint16_t stochastic_bfloat16(float x, uint32_t random)
{
    const uint32_t bits = bits_of_float(x), magnitude = bits & 0x7fffffff;
    return (uint16_t)((magnitude < 0x7f800000u ? bits + random : magnitude > 0x7f800000u ? bits | 0x400000 : bits) >> 16);
}

typedef struct WidenedUpdate { const KernelArgs *args; WorkItem update; } WidenedUpdate;

/* the inputs that stay from step to step; the first two share 32 random bits, as do the last two */
static const int KEPT[] = {WEIGHTS, FIRST_MOMENTS, SECOND_MOMENTS, THIRD_MOMENTS};
enum { KEPT_INPUTS = sizeof KEPT / sizeof *KEPT };

static void widen_block(const uint16_t *restrict kept, float *restrict values, int64_t n)
{ for (int64_t j = 0; j < n; j++) values[j] = float32_from_bfloat16(kept[j]); }

static void round_block(const float *restrict values, const uint32_t *restrict random, int shift, uint16_t *restrict kept, int64_t n)
{ for (int64_t j = 0; j < n; j++) kept[j] = stochastic_bfloat16(values[j], random[j] >> shift & 0xffff); }

static void widened_update_item(void *context, int64_t item, int64_t worker)
{
    const WidenedUpdate *widened = context; const KernelArgs *args = widened->args; RANGE(args);
    const uint64_t seed = (uint64_t)args->ints[ROUNDING_SEED], step = (uint64_t)step_number(args);
    _Alignas(64) float values[KEPT_INPUTS][WIDENED_BLOCK];
    _Alignas(64) uint32_t random[WIDENED_BLOCK];
    Tensor operands[THIRD_MOMENTS + 1] = {0};
    KernelArgs block = *args;
    block.inputs = operands; block.ints += ROUNDING_INTS;
    memcpy(operands, args->inputs, (size_t)args->n_inputs * sizeof(Tensor));
    operands[WEIGHTS].dtype = DTYPE_FLOAT32;
    for (int64_t n; i < end; i += n) {
        const uint64_t first = (uint64_t)(args->ints[FIRST_ELEMENT] + i), left = 0x100000000u - (first & 0xffffffffu);
        n = end - i < WIDENED_BLOCK ? end - i : WIDENED_BLOCK;
        if ((uint64_t)n > left) n = (int64_t)left;          /* the random bits of a block have one key */
        operands[WEIGHTS].count = n;
        operands[GRADIENTS].data = (float *)args->inputs[GRADIENTS].data + i;
        for (int k = 0; k < KEPT_INPUTS; k++) {
            const uint16_t *kept = moment_of(args, KEPT[k]);
            if (kept == NULL) continue;
            widen_block(kept + i, values[k], n);
            operands[KEPT[k]].data = values[k];
        }
        widened->update(&block, 0, worker);
        for (int pair = 0; pair < KEPT_INPUTS / 2; pair++) {
            uint16_t *low = moment_of(args, KEPT[2 * pair]), *high = moment_of(args, KEPT[2 * pair + 1]);
            if (low == NULL && high == NULL) continue;
            const RandomKey key = random_key(seed, step, (uint64_t)pair, first >> 32);
            for (int64_t j = 0; j < n; j++) random[j] = random_bits(key, (uint32_t)first + (uint32_t)j);
            if (low != NULL) round_block(values[2 * pair], random, 0, low + i, n);
            if (high != NULL) round_block(values[2 * pair + 1], random, 16, high + i, n);
        }
    }
}

/* an update of each element on its own, of weights of float32, float64 or bfloat16 */
static inline void update_elements(const KernelArgs *args, WorkItem of_float, WorkItem of_double)
{
    const int32_t dtype = args->inputs[WEIGHTS].dtype;
    if (dtype != DTYPE_BFLOAT16) { update_segment(args, dtype == DTYPE_FLOAT32 ? of_float : of_double); return; }
    WidenedUpdate widened = {args, of_float};
    args->engine->parallel_for(args->engine, widened_update_item, &widened, (args->inputs[WEIGHTS].count + UPDATE_CHUNK - 1) / UPDATE_CHUNK);
}
#endif
