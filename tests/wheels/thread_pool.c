/* Runs regions on the thread pool, whose threads spin or sleep between them, and checks that every item ran once in each. */
#include <stdio.h>
#include "threads.h"

enum { ITEMS = 10000, REGIONS = 200, WORKERS = 4 };
static int64_t runs[ITEMS];

static void count(void *context, int64_t item, int64_t worker)
{
    (void)context;
    runs[item] += worker < WORKERS;
    for (volatile int wait = 0; wait < 100; wait++);
}

int main(void)
{
    int64_t started = monotonic_clock();
    for (int32_t spins = 0; spins < 2; spins++) {
        Pool *pool = pool_make(WORKERS);
        Engine engine = { .pool = pool, .workers = WORKERS };
        if (!pool || (uintptr_t)pool % 64) return puts("expected aligned memory for a pool"), 1;
        pool->spins = spins;
        for (int region = 0; region < REGIONS; region++) pool_parallel_for(&engine, count, NULL, ITEMS);
        if (pool->workers != WORKERS) return printf("expected %d workers, got %d\n", WORKERS, (int)pool->workers), 1;
        pool_free(pool);
    }
    for (int item = 0; item < ITEMS; item++)
        if (runs[item] != 2 * REGIONS) return printf("expected %d runs of item %d, got %d\n", 2 * REGIONS, item, (int)runs[item]), 1;
    printf("%d regions on %d threads and %d processors in %.1f s\n", 2 * REGIONS, WORKERS, (int)available_processors(),
           (double)(monotonic_clock() - started) / 1e9);
    return 0;
}
