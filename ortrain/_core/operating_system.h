/* What operating systems spell differently: threads, time, and aligned memory. POSIX everywhere but on Windows.
 *
 * A mutex is free and a condition has no waiting threads after initialization; neither needs to be destroyed. */
#ifndef ORTRAIN_OPERATING_SYSTEM_H
#define ORTRAIN_OPERATING_SYSTEM_H
#include <stdint.h>
#include <stdlib.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <malloc.h>
#include <process.h>
#include <windows.h>

typedef SRWLOCK Mutex;
typedef CONDITION_VARIABLE Condition;
typedef HANDLE Thread;
typedef unsigned ThreadResult;
#define THREAD_MAIN __stdcall          /* between the type and the name of a thread's main function */

static inline void mutex_initialize(Mutex *mutex) { InitializeSRWLock(mutex); }
static inline void mutex_lock(Mutex *mutex) { AcquireSRWLockExclusive(mutex); }
static inline void mutex_unlock(Mutex *mutex) { ReleaseSRWLockExclusive(mutex); }
static inline void condition_initialize(Condition *condition) { InitializeConditionVariable(condition); }
static inline void condition_wait(Condition *condition, Mutex *mutex) { SleepConditionVariableSRW(condition, mutex, INFINITE, 0); }
static inline void condition_broadcast(Condition *condition) { WakeAllConditionVariable(condition); }
static inline int thread_start(Thread *thread, ThreadResult(THREAD_MAIN *run)(void *), void *argument)
{ return (*thread = (HANDLE)_beginthreadex(NULL, 0, run, argument, 0, NULL)) != NULL; }
static inline void thread_join(Thread thread) { WaitForSingleObject(thread, INFINITE); CloseHandle(thread); }
static inline void thread_yield(void) { SwitchToThread(); }

/* Returns how many processors this process may use. */
static inline int64_t available_processors(void)
{
    DWORD_PTR allowed, all;
    return GetProcessAffinityMask(GetCurrentProcess(), &allowed, &all) ? __builtin_popcountll(allowed) : 1;
}

/* Returns nanoseconds since some moment. */
static inline int64_t monotonic_clock(void)
{
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    return ticks.QuadPart / per_second.QuadPart * 1000000000LL + ticks.QuadPart % per_second.QuadPart * 1000000000LL / per_second.QuadPart;
}

static inline void *aligned_allocate(size_t alignment, size_t size) { return _aligned_malloc(size, alignment); }
static inline void aligned_release(void *memory) { _aligned_free(memory); }

#else
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

typedef pthread_mutex_t Mutex;
typedef pthread_cond_t Condition;
typedef pthread_t Thread;
typedef void *ThreadResult;
#define THREAD_MAIN

static inline void mutex_initialize(Mutex *mutex) { pthread_mutex_init(mutex, NULL); }
static inline void mutex_lock(Mutex *mutex) { pthread_mutex_lock(mutex); }
static inline void mutex_unlock(Mutex *mutex) { pthread_mutex_unlock(mutex); }
static inline void condition_initialize(Condition *condition) { pthread_cond_init(condition, NULL); }
static inline void condition_wait(Condition *condition, Mutex *mutex) { pthread_cond_wait(condition, mutex); }
static inline void condition_broadcast(Condition *condition) { pthread_cond_broadcast(condition); }
static inline int thread_start(Thread *thread, ThreadResult (*run)(void *), void *argument) { return pthread_create(thread, NULL, run, argument) == 0; }
static inline void thread_join(Thread thread) { pthread_join(thread, NULL); }
static inline void thread_yield(void) { sched_yield(); }

/* Returns how many processors this process may use. */
static inline int64_t available_processors(void)
{
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
    return sysconf(_SC_NPROCESSORS_ONLN);
}

/* Returns nanoseconds since some moment. */
static inline int64_t monotonic_clock(void)
{ struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }

static inline void *aligned_allocate(size_t alignment, size_t size) { return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment); }
static inline void aligned_release(void *memory) { free(memory); }
#endif
#endif
