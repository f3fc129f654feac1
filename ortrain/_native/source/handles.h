/* The objects of the interface. Each begins with a Handle, whose magic word tells its kind, and lies in memory that is only used for objects of its kind, also
   after its release: a released or wrong handle is therefore seen, and answered with a status. */
#ifndef ORTRAIN_HANDLES_H
#define ORTRAIN_HANDLES_H

#include "bridge.h"
#include "functions.h"

#define KIND_OF(name) KIND_##name,
typedef enum Kind { HANDLES(KIND_OF) N_KINDS } Kind;
#undef KIND_OF

typedef struct Handle {
    uint32_t magic;             /* HANDLE_MAGIC + kind, RELEASED_MAGIC + kind */
    bool is_part;               /* whether it is a part of another object, with which it is released */
    struct Handle *next;        /* of the released ones */
} Handle;

#define HANDLE_MAGIC 0x4f525400u
#define RELEASED_MAGIC 0x4f524400u

/* Where an environment's messages go; shared with its sessions. */
typedef struct Logger {
    int references;             /* atomic */
    OrtLoggingFunction function;        /* NULL: messages are dropped */
    void *parameter;
    int level;                  /* atomic */
    char *id;
} Logger;

struct OrtStatus { Handle handle; OrtErrorCode code; char *message; };
struct OrtMemoryInfo { Handle handle; char *name; OrtAllocatorType type; int id; OrtMemType memory_type; };
struct OrtThreadingOptions { Handle handle; int threads; };
struct OrtArenaCfg { Handle handle; };
struct OrtPrepackedWeightsContainer { Handle handle; };
struct OrtEnv { Handle handle; Logger *logger; int global_threads; };           /* -1: without global thread pools */
struct OrtRunOptions { Handle handle; uint8_t terminate; int verbosity, severity; char *tag; };
struct OrtSessionOptions { Handle handle; Settings settings; char *log_id, *profile_prefix; int verbosity, severity; bool uses_global_threads; Logger *logger; };
struct OrtValue { Handle handle; Content *content; };

struct OrtTensorTypeAndShapeInfo { Handle handle; int element_type; size_t rank; int64_t *dims; char **symbols; };
struct OrtSequenceTypeInfo { Handle handle; struct OrtTypeInfo *owner; };
struct OrtOptionalTypeInfo { Handle handle; struct OrtTypeInfo *owner; };
struct OrtMapTypeInfo { Handle handle; };
struct OrtTypeInfo { Handle handle; ONNXType kind; bool contains_sequence; OrtTensorTypeAndShapeInfo tensor; OrtSequenceTypeInfo sequence;
                     OrtOptionalTypeInfo optional; };
struct OrtModelMetadata { Handle handle; Metadata *metadata; };

struct OrtSession { Handle handle; void *object; ModelInterface found; Logger *logger; char *profile_prefix; uint64_t profiling_start; };
struct OrtCheckpointState { Handle handle; void *object; };
struct OrtTrainingSession { Handle handle; void *object; TrainingNames names; Logger *logger; };
struct OrtFlatBuffer { Handle handle; BufferContents contents; };
struct OrtIoBinding { Handle handle; OrtSession *session; Strings input_names, output_names; Content **inputs, **outputs, **results; };

/* Return a new object of a kind, zeroed behind its handle; NULL when memory is exhausted. */
void *new_handle(Kind kind);
/* Make a handle that is a part of another object. */
void make_part(Handle *handle, Kind kind);
/* Give an object back. Returns false, and does nothing, for NULL, a released or wrong handle, and a part of another object. */
bool free_handle(const void *handle, Kind kind);
/* Return the status of a handle that is not an open one of the kind. */
OrtStatus *wrong_handle(const void *handle, Kind kind, const char *name, const char *function);

static inline bool is_open(const void *handle, Kind kind) {
    return handle != NULL && ((uintptr_t)handle & (sizeof(void *) - 1)) == 0 && ((const Handle *)handle)->magic == HANDLE_MAGIC + (uint32_t)kind;
}

static inline OrtStatus *check_handle(const void *handle, Kind kind, const char *name, const char *function) {
    return is_open(handle, kind) ? NULL : wrong_handle(handle, kind, name, function);
}

#endif
