/* How a register tile adds products to its sums, and how it reads the column of A by which it multiplies a row of B, in one step of its depth.
 *
 * x86 broadcasts each element from memory as part of a multiplication or of a load. ARM multiplies by a lane of a vector instead, so that adjacent elements
 * take one load and one register for four, or for two of float64. A tile then uses 29 of 32 registers, and no load may move to an earlier step: GCC moved them,
 * and in each step stored seven of the 24 sums of an 8 x 12 tile on the stack and loaded them again. */
#ifndef ORTRAIN_TILE_COLUMNS_H
#define ORTRAIN_TILE_COLUMNS_H

/* sum += x * y for vectors of a type. GCC chooses forms of the instruction that overwrite a factor, and moves sums to other registers or to memory: 5 % of a
 * tile's time with 32-byte vectors. With the form that adds to the sum, steps may be unrolled. */
#if defined(__AVX2__)
#define ADD_PRODUCT_float(sum, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))
#define ADD_PRODUCT_double(sum, x, y) __asm__("vfmadd231pd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))
enum { UNROLLED_STEPS = 4 };
#else
#define ADD_PRODUCT_float(sum, x, y) sum += (x) * (y)
#define ADD_PRODUCT_double(sum, x, y) sum += (x) * (y)
enum { UNROLLED_STEPS = 1 };
#endif

#if defined(__aarch64__) && defined(__GNUC__)
#define KEEP_LOADS_HERE __asm__ volatile("" : : : "memory");
#define EARLY_LANES 2        /* vectors of a column that are loaded at once; others are where their rows follow, lest registers run out with float64 */
/* Declares and loads the column a[i * STEP], i < ROWS. VECTOR: an unaligned vector of WIDTH elements. STEP: the constant 1, or a variable. */
#define LOAD_COLUMN(VECTOR, WIDTH, ROWS, STEP, a)                                              \
    VECTOR lanes[(ROWS) / (WIDTH) + 1];                                                        \
    const int adjacent = __builtin_constant_p(STEP) ? (ROWS) / (WIDTH) * (WIDTH) : 0;          \
    const int early = adjacent / (WIDTH) < EARLY_LANES ? adjacent / (WIDTH) : EARLY_LANES;     \
    KEEP_LOADS_HERE                                                                            \
    _Pragma("GCC unroll 2") for (int i = 0; i < early; i++) lanes[i] = *(const VECTOR *)((a) + i * (WIDTH));
/* Element i of the column, times 1 in all lanes. */
#define ELEMENT_OF_COLUMN(VECTOR, WIDTH, STEP, a, i) ((i < adjacent ? lanes[i / (WIDTH)][i % (WIDTH)] : (a)[i * (STEP)]) - (VECTOR){0})
/* Before row i: where elements are not adjacent in memory, two are loaded at a time. */
#define NEXT_ROW_OF_COLUMN(VECTOR, WIDTH, a, i)                                                \
    if (i >= adjacent && i % 2 == 0) KEEP_LOADS_HERE                                           \
    if (i < adjacent && i >= EARLY_LANES * (WIDTH) && i % (WIDTH) == 0) {                      \
        KEEP_LOADS_HERE                                                                        \
        lanes[i / (WIDTH)] = *(const VECTOR *)((a) + i);                                       \
    }
#else
#define LOAD_COLUMN(VECTOR, WIDTH, ROWS, STEP, a)
#define ELEMENT_OF_COLUMN(VECTOR, WIDTH, STEP, a, i) ((a)[i * (STEP)] - (VECTOR){0})
#define NEXT_ROW_OF_COLUMN(VECTOR, WIDTH, a, i)
#endif
#endif
