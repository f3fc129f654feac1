/* Memory infos, the allocator, and the options that concern memory, which have no effect here. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "text.h"

enum { ALIGNMENT = 64 };

static OrtMemoryInfo cpu_memory = { { HANDLE_MAGIC + KIND_MemoryInfo, true, NULL }, "Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault };

static void *ORT_API_CALL allocate(OrtAllocator *allocator, size_t size) {
    void *memory = NULL;
    (void)allocator;
    return posix_memalign(&memory, ALIGNMENT, size > 0 ? size : 1) == 0 ? memory : NULL;
}

static void ORT_API_CALL release(OrtAllocator *allocator, void *memory) {
    (void)allocator;
    free(memory);
}

static const OrtMemoryInfo *ORT_API_CALL info_of(const OrtAllocator *allocator) {
    (void)allocator;
    return &cpu_memory;
}

static OrtAllocator default_allocator = { ORT_API_VERSION, allocate, release, info_of, allocate };

const OrtMemoryInfo *memory_of_cpu(void) { return &cpu_memory; }

OrtStatus *ORT_API_CALL api_GetAllocatorWithDefaultOptions(OrtAllocator **out) {
    REQUIRE_POINTER(out);
    *out = &default_allocator;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CreateAllocator(const OrtSession *session, const OrtMemoryInfo *mem_info, OrtAllocator **out) {
    REQUIRE(Session, session);
    REQUIRE(MemoryInfo, mem_info);
    REQUIRE_POINTER(out);
    *out = &default_allocator;
    return NULL;
}

void ORT_API_CALL api_ReleaseAllocator(OrtAllocator *input) { (void)input; /* every allocator is the default one */ }

OrtStatus *ORT_API_CALL api_AllocatorAlloc(OrtAllocator *ort_allocator, size_t size, void **out) {
    REQUIRE_POINTER(ort_allocator);
    REQUIRE_POINTER(out);
    *out = ort_allocator->Alloc(ort_allocator, size);
    return *out == NULL ? out_of_memory() : NULL;
}

OrtStatus *ORT_API_CALL api_AllocatorFree(OrtAllocator *ort_allocator, void *p) {
    REQUIRE_POINTER(ort_allocator);
    if (p != NULL)
        ort_allocator->Free(ort_allocator, p);
    return NULL;
}

OrtStatus *ORT_API_CALL api_AllocatorGetInfo(const OrtAllocator *ort_allocator, const OrtMemoryInfo **out) {
    REQUIRE_POINTER(ort_allocator);
    REQUIRE_POINTER(out);
    *out = ort_allocator->Info(ort_allocator);
    return NULL;
}

/* ---- memory infos */

OrtStatus *ORT_API_CALL api_CreateMemoryInfo(const char *name, OrtAllocatorType type, int id, OrtMemType mem_type, OrtMemoryInfo **out) {
    REQUIRE_POINTER(name);
    REQUIRE_POINTER(out);
    if (strcmp(name, "Cpu") != 0)
        return make_status(ORT_INVALID_ARGUMENT, "Specified device is not supported: expected the memory of \"Cpu\", got \"%s\"", name);
    OrtMemoryInfo *made = new_handle(KIND_MemoryInfo);
    if (made == NULL || (made->name = copy_text(name)) == NULL)
        return out_of_memory();
    made->type = type;
    made->id = id;
    made->memory_type = mem_type;
    *out = made;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CreateCpuMemoryInfo(OrtAllocatorType type, OrtMemType mem_type, OrtMemoryInfo **out) {
    return api_CreateMemoryInfo("Cpu", type, 0, mem_type, out);
}

OrtStatus *ORT_API_CALL api_CompareMemoryInfo(const OrtMemoryInfo *info1, const OrtMemoryInfo *info2, int *out) {
    REQUIRE(MemoryInfo, info1);
    REQUIRE(MemoryInfo, info2);
    REQUIRE_POINTER(out);
    *out = info1->type == info2->type && info1->id == info2->id && info1->memory_type == info2->memory_type && strcmp(info1->name, info2->name) == 0 ? 0 : -1;
    return NULL;
}

OrtStatus *ORT_API_CALL api_MemoryInfoGetName(const OrtMemoryInfo *ptr, const char **out) {
    REQUIRE(MemoryInfo, ptr);
    REQUIRE_POINTER(out);
    *out = ptr->name;
    return NULL;
}

OrtStatus *ORT_API_CALL api_MemoryInfoGetId(const OrtMemoryInfo *ptr, int *out) {
    REQUIRE(MemoryInfo, ptr);
    REQUIRE_POINTER(out);
    *out = ptr->id;
    return NULL;
}

OrtStatus *ORT_API_CALL api_MemoryInfoGetMemType(const OrtMemoryInfo *ptr, OrtMemType *out) {
    REQUIRE(MemoryInfo, ptr);
    REQUIRE_POINTER(out);
    *out = ptr->memory_type;
    return NULL;
}

OrtStatus *ORT_API_CALL api_MemoryInfoGetType(const OrtMemoryInfo *ptr, OrtAllocatorType *out) {
    REQUIRE(MemoryInfo, ptr);
    REQUIRE_POINTER(out);
    *out = ptr->type;
    return NULL;
}

void ORT_API_CALL api_MemoryInfoGetDeviceType(const OrtMemoryInfo *ptr, OrtMemoryInfoDeviceType *out) {
    (void)ptr;
    if (out != NULL)
        *out = OrtMemoryInfoDeviceType_CPU;
}

void ORT_API_CALL api_ReleaseMemoryInfo(OrtMemoryInfo *input) {
    char *name = is_open(input, KIND_MemoryInfo) && !input->handle.is_part ? input->name : NULL;
    if (free_handle(input, KIND_MemoryInfo))
        free(name);
}

/* ---- arenas and prepacked weights, which have no counterpart */

OrtStatus *ORT_API_CALL api_CreateArenaCfg(size_t max_mem, int arena_extend_strategy, int initial_chunk_size_bytes, int max_dead_bytes_per_chunk,
                                           OrtArenaCfg **out) {
    (void)max_mem; (void)arena_extend_strategy; (void)initial_chunk_size_bytes; (void)max_dead_bytes_per_chunk;
    REQUIRE_POINTER(out);
    OrtArenaCfg *made = new_handle(KIND_ArenaCfg);
    if (made == NULL)
        return out_of_memory();
    *out = made;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CreateArenaCfgV2(const char *const *arena_config_keys, const size_t *arena_config_values, size_t num_keys, OrtArenaCfg **out) {
    if (num_keys > 0) {
        REQUIRE_POINTER(arena_config_keys);
        REQUIRE_POINTER(arena_config_values);
    }
    return api_CreateArenaCfg(0, 0, 0, 0, out);
}

void ORT_API_CALL api_ReleaseArenaCfg(OrtArenaCfg *input) { free_handle(input, KIND_ArenaCfg); }

OrtStatus *ORT_API_CALL api_CreatePrepackedWeightsContainer(OrtPrepackedWeightsContainer **out) {
    REQUIRE_POINTER(out);
    OrtPrepackedWeightsContainer *made = new_handle(KIND_PrepackedWeightsContainer);
    if (made == NULL)
        return out_of_memory();
    *out = made;
    return NULL;
}

void ORT_API_CALL api_ReleasePrepackedWeightsContainer(OrtPrepackedWeightsContainer *input) { free_handle(input, KIND_PrepackedWeightsContainer); }
