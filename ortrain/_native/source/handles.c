/* Memory of handles: one pool per kind, which grows and never shrinks. Released handles wait in a queue before they are used again. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "handles.h"
#include "status.h"

enum { SLAB = 64, QUARANTINE = 256 };           /* objects allocated at a time; released objects that wait before the first is used again */

typedef struct Pool {
    size_t size;
    const char *name;
    Handle *first, *last;       /* the queue of released objects */
    size_t n_released;
    char *slab;                 /* the rest of the newest slab */
    size_t n_left;
} Pool;

#define POOL_OF(name) { sizeof(Ort##name), "Ort" #name, NULL, NULL, 0, NULL, 0 },
static Pool pools[N_KINDS] = { HANDLES(POOL_OF) };
static pthread_mutex_t pools_mutex = PTHREAD_MUTEX_INITIALIZER;

static Handle *take(Pool *pool) {
    if (pool->n_released > QUARANTINE) {
        Handle *handle = pool->first;
        pool->first = handle->next;
        pool->n_released--;
        return handle;
    }
    if (pool->n_left == 0) {
        pool->slab = calloc(SLAB, pool->size);
        if (pool->slab == NULL)
            return NULL;
        pool->n_left = SLAB;
    }
    Handle *handle = (Handle *)pool->slab;
    pool->slab += pool->size;
    pool->n_left--;
    return handle;
}

void *new_handle(Kind kind) {
    pthread_mutex_lock(&pools_mutex);
    Handle *handle = take(&pools[kind]);
    pthread_mutex_unlock(&pools_mutex);
    if (handle != NULL) {
        memset((char *)handle + sizeof(Handle), 0, pools[kind].size - sizeof(Handle));
        handle->next = NULL;
        handle->magic = HANDLE_MAGIC + kind;
    }
    return handle;
}

void make_part(Handle *handle, Kind kind) {
    handle->magic = HANDLE_MAGIC + kind;
    handle->is_part = true;
}

bool free_handle(const void *object, Kind kind) {
    if (!is_open(object, kind))
        return false;
    Handle *handle = (Handle *)object;
    Pool *pool = &pools[kind];
    if (handle->is_part)
        return false;
    pthread_mutex_lock(&pools_mutex);
    bool was_open = handle->magic == HANDLE_MAGIC + (uint32_t)kind;
    if (was_open) {
        handle->magic = RELEASED_MAGIC + kind;
        handle->next = NULL;
        if (pool->n_released++ == 0)
            pool->first = handle;
        else
            pool->last->next = handle;
        pool->last = handle;
    }
    pthread_mutex_unlock(&pools_mutex);
    return was_open;
}

OrtStatus *wrong_handle(const void *object, Kind kind, const char *name, const char *function) {
    const char *wanted = pools[kind].name;
    if (object == NULL)
        return make_status(ORT_INVALID_ARGUMENT, "expected an %s as %s of %s, got a null pointer", wanted, name, function);
    if ((uintptr_t)object & (sizeof(void *) - 1))
        return make_status(ORT_INVALID_ARGUMENT, "expected an %s as %s of %s, got a pointer that is not aligned", wanted, name, function);
    uint32_t magic = ((const Handle *)object)->magic;
    if (magic - RELEASED_MAGIC < N_KINDS)
        return make_status(ORT_INVALID_ARGUMENT, "expected an open %s as %s of %s, got an %s that was released%s", wanted, name, function,
                           pools[magic - RELEASED_MAGIC].name,
                           magic - RELEASED_MAGIC == KIND_CheckpointState ? " (a session that was made with it keeps the parameters and goes on)" : "");
    const char *found = magic - HANDLE_MAGIC < N_KINDS ? pools[magic - HANDLE_MAGIC].name : "object of no known kind";
    return make_status(ORT_INVALID_ARGUMENT, "expected an %s as %s of %s, got an %s", wanted, name, function, found);
}
