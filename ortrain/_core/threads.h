/* A thread pool that runs the items of one parallel region at a time.
 *
 * Each worker owns a contiguous chunk of the items, which is the same in all regions with the same number of items, and claims them from an atomic
 * ticket; then it steals from the chunks of the others, so a worker that wakes late costs nothing. With fixed chunks, most of what a worker reads is in its
 * own cache: a single ticket for all workers made a frozen mobilenetv2 a fifth slower on two threads. After a region workers spin for a bounded time, so
 * that consecutive regions of a step need no wake-up; then they sleep on a condition variable. Where there are more workers than processors nobody spins,
 * because a thread that spins keeps its processor from one that has work. */
#ifndef ORTRAIN_THREADS_H
#define ORTRAIN_THREADS_H
#include <stdatomic.h>
#include <stdint.h>
#include "float_mode.h"
#include "kernel.h"
#include "operating_system.h"

enum { MAX_WORKERS = 64, SPINS_BETWEEN_CLOCKS = 64 };
#define SPIN_NANOSECONDS 1500000       /* 1.5 ms: longer than the gap between two steps of a training loop */

typedef struct Ticket { _Alignas(64) atomic_uint_fast64_t next; } Ticket;     /* high half: generation of the region; low half: next item of the chunk */

typedef struct Pool {
    _Alignas(64) atomic_uint generation;           /* number of the current region */
    _Alignas(64) atomic_uint_fast32_t done;        /* finished items of this region */
    _Alignas(64) atomic_int sleepers;
    _Atomic(WorkItem) work;                        /* a late worker may read these four while the next region writes them, and discards them */
    _Atomic(void *) context;
    atomic_uint items;
    _Atomic(FloatMode) mode;                       /* the float mode of the caller, adopted by the workers */
    int32_t workers;                               /* including the thread of the caller */
    int32_t started;                               /* threads start with the first region: small programs never need them */
    int32_t spins;                                 /* whether threads that wait spin: there is a processor for each */
    atomic_int stopping;
    Mutex mutex;
    Condition wake, finished;                      /* a region starts; the last item of one is finished, which only a caller that does not spin waits for */
    Ticket tickets[MAX_WORKERS];
    Thread threads[MAX_WORKERS];
    struct { struct Pool *pool; int64_t index; } starts[MAX_WORKERS];
} Pool;

static inline void pool_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns the first item of a worker's chunk, which is the end of the previous chunk. */
static inline uint32_t chunk_start(const Pool *pool, uint32_t items, int64_t worker) { return (uint32_t)((uint64_t)items * worker / pool->workers); }

/* Wakes the threads that wait for a condition. */
static void pool_signal(Pool *pool, Condition *condition)
{
    mutex_lock(&pool->mutex);
    condition_broadcast(condition);
    mutex_unlock(&pool->mutex);
}

/* Runs items of region g until none is left, those of the worker's own chunk first. The generation in the tickets makes the exchange fail for a worker that
 * is late. */
static void pool_drain(Pool *pool, uint32_t g, WorkItem work, void *context, uint32_t items, int64_t worker)
{
    for (int64_t i = 0, owner = worker; i < pool->workers; i++, owner = owner + 1 < pool->workers ? owner + 1 : 0) {
        atomic_uint_fast64_t *next = &pool->tickets[owner].next;
        uint64_t ticket = atomic_load_explicit(next, memory_order_acquire);
        uint32_t end = chunk_start(pool, items, owner + 1);
        while ((uint32_t)(ticket >> 32) == g && (uint32_t)ticket < end)
            if (atomic_compare_exchange_weak_explicit(next, &ticket, ticket + 1, memory_order_acq_rel, memory_order_acquire)) {
                work(context, (uint32_t)ticket, worker);
                uint32_t done = (uint32_t)atomic_fetch_add_explicit(&pool->done, 1, memory_order_release) + 1;
                if (done == items && !pool->spins && worker > 0) pool_signal(pool, &pool->finished);
                ticket = atomic_load_explicit(next, memory_order_acquire);
            }
    }
}

/* Sleeps until a region other than last_generation starts or the pool stops. */
static void pool_sleep(Pool *pool, uint32_t last_generation)
{
    mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->generation) == last_generation && !atomic_load(&pool->stopping)) condition_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    mutex_unlock(&pool->mutex);
}

/* The main function of a worker thread. */
static ThreadResult THREAD_MAIN pool_thread(void *start)
{
    Pool *pool = *(Pool **)start;
    int64_t worker = ((int64_t *)start)[1];
    uint32_t last_generation = 0;
    for (;;) {
        int64_t since = monotonic_clock();
        uint32_t g;
        for (int i = 1; (g = atomic_load_explicit(&pool->generation, memory_order_acquire)) == last_generation && !atomic_load(&pool->stopping); i++) {
            pool_pause();
            if (!pool->spins || (i % SPINS_BETWEEN_CLOCKS == 0 && monotonic_clock() - since > SPIN_NANOSECONDS)) {
                pool_sleep(pool, last_generation);
                since = monotonic_clock();
            }
        }
        if (atomic_load(&pool->stopping)) return 0;
        last_generation = g;
        /* validated by the tickets afterwards: whoever sees one of these of a later region sees the tickets of region g closed */
        WorkItem work = atomic_load_explicit(&pool->work, memory_order_acquire);
        void *context = atomic_load_explicit(&pool->context, memory_order_acquire);
        uint32_t items = atomic_load_explicit(&pool->items, memory_order_acquire);
        set_float_mode(atomic_load_explicit(&pool->mode, memory_order_acquire));
        pool_drain(pool, g, work, context, items, worker);
    }
}

/* Makes a pool without threads: a new one, or in a forked child that of its parent, whose threads do not exist there. */
static void pool_reset(Pool *pool, int32_t workers)
{
    *pool = (Pool){ .workers = workers, .spins = workers <= available_processors() };
    mutex_initialize(&pool->mutex);
    condition_initialize(&pool->wake);
    condition_initialize(&pool->finished);
}

static Pool *pool_make(int32_t workers)
{
    Pool *pool = aligned_allocate(64, sizeof(Pool));
    if (pool) pool_reset(pool, workers < MAX_WORKERS ? workers : MAX_WORKERS);
    return pool;
}

static void pool_start(Pool *pool)
{
    int32_t i = 1;
    for (; i < pool->workers; i++) {
        pool->starts[i].pool = pool; pool->starts[i].index = i;
        if (!thread_start(&pool->threads[i], pool_thread, &pool->starts[i])) break;              /* fewer threads give the same results */
    }
    pool->workers = i;
    pool->started = 1;
}

static void pool_free(Pool *pool)
{
    if (!pool) return;
    if (pool->started) {
        atomic_store(&pool->stopping, 1);
        pool_signal(pool, &pool->wake);
        for (int32_t i = 1; i < pool->workers; i++) thread_join(pool->threads[i]);
    }
    aligned_release(pool);
}

/* Waits until all items of the region are finished. */
static void pool_finish(Pool *pool, uint32_t items)
{
    if (pool->spins) {
        for (int i = 1; atomic_load_explicit(&pool->done, memory_order_acquire) < items; i++) {
            pool_pause();
            if (i % 2000 == 0) thread_yield();                             /* other processes may need the processor */
        }
        return;
    }
    mutex_lock(&pool->mutex);
    while (atomic_load_explicit(&pool->done, memory_order_acquire) < items) condition_wait(&pool->finished, &pool->mutex);
    mutex_unlock(&pool->mutex);
}

/* Runs a region of at least 2 items on all workers. */
static void pool_run(Pool *pool, WorkItem work, void *context, uint32_t items)
{
    uint32_t g = atomic_load_explicit(&pool->generation, memory_order_relaxed) + 1;
    for (int32_t w = 0; w < pool->workers; w++)
        atomic_store_explicit(&pool->tickets[w].next, (uint64_t)g << 32 | 0xffffffffu, memory_order_relaxed);          /* closed: no items to claim */
    /* every one of these is a release, so that whoever sees it sees the tickets closed; a fence would do, but the thread sanitizer does not know fences */
    atomic_store_explicit(&pool->work, work, memory_order_release);
    atomic_store_explicit(&pool->context, context, memory_order_release);
    atomic_store_explicit(&pool->items, items, memory_order_release);
    atomic_store_explicit(&pool->mode, float_mode(), memory_order_release);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    for (int32_t w = 0; w < pool->workers; w++)
        atomic_store_explicit(&pool->tickets[w].next, (uint64_t)g << 32 | chunk_start(pool, items, w), memory_order_release);
    atomic_store(&pool->generation, g);
    if (atomic_load(&pool->sleepers)) pool_signal(pool, &pool->wake);
    pool_drain(pool, g, work, context, items, 0);
    pool_finish(pool, items);
}

/* Engine.parallel_for */
static void pool_parallel_for(const Engine *engine, WorkItem work, void *context, int64_t items)
{
    Pool *pool = engine->pool;
    if (items > 1 && items < 0xffffffff && pool && pool->workers > 1) {
        if (!pool->started) pool_start(pool);
        pool_run(pool, work, context, (uint32_t)items);
    } else for (int64_t i = 0; i < items; i++) work(context, i, 0);
}
#endif
