/* What the test programs share. They are compiled with the published header where it is there, and else with ortrain's. */
#ifndef PROGRAM_H
#define PROGRAM_H

#ifdef PUBLISHED
#include "onnxruntime_training_c_api.h"
#else
#include "ortrain_c_api.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const OrtApi *ort;
static const OrtTrainingApi *training;

static void load_tables(void) {
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    training = ort == NULL ? NULL : ort->GetTrainingApi(ORT_API_VERSION);
    if (training == NULL) {
        fprintf(stderr, "no tables\n");
        exit(2);
    }
}

static inline void check(OrtStatus *status, const char *file, int line) {
    if (status != NULL) {
        fprintf(stderr, "%s:%d: %d %s\n", file, line, ort->GetErrorCode(status), ort->GetErrorMessage(status));
        exit(1);
    }
}

/* The call succeeds. */
#define OK(call) check((call), __FILE__, __LINE__)

/* The condition holds. */
#define HOLDS(condition) \
    do { if (!(condition)) { fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); exit(1); } } while (0)

static inline void check_refused(OrtStatus *status, OrtErrorCode code, const char *part, const char *file, int line) {
    if (status == NULL || ort->GetErrorCode(status) != code || strstr(ort->GetErrorMessage(status), part) == NULL) {
        fprintf(stderr, "%s:%d: expected code %d and \"%s\", got %d %s\n", file, line, code, part, status == NULL ? 0 : ort->GetErrorCode(status),
                status == NULL ? "success" : ort->GetErrorMessage(status));
        exit(1);
    }
    ort->ReleaseStatus(status);
}

/* The call returns a status with this code, whose message contains the text. */
#define REFUSED(call, code, part) check_refused((call), (code), (part), __FILE__, __LINE__)

static inline char *in_folder(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

/* Read a file; the caller frees the bytes. */
static inline void *bytes_of(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    HOLDS(file != NULL);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *bytes = malloc(*size + 1);
    HOLDS(fread(bytes, 1, *size, file) == *size);
    fclose(file);
    return bytes;
}

static inline void write_bytes(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    HOLDS(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

/* A training session on the artifacts in a folder, with its environment and state. */
typedef struct Trainer {
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtMemoryInfo *memory;
    OrtAllocator *allocator;
    OrtCheckpointState *state;
    OrtTrainingSession *session;
} Trainer;

static inline Trainer open_trainer(const char *folder, const char *checkpoint) {
    Trainer t;
    char *paths[] = { in_folder(folder, checkpoint), in_folder(folder, "training_model.onnx"), in_folder(folder, "eval_model.onnx"),
                      in_folder(folder, "optimizer_model.onnx") };
    OK(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "test", &t.env));
    OK(ort->CreateSessionOptions(&t.options));
    OK(ort->SetIntraOpNumThreads(t.options, 1));
    OK(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &t.memory));
    OK(ort->GetAllocatorWithDefaultOptions(&t.allocator));
    OK(training->LoadCheckpoint(paths[0], &t.state));
    OK(training->CreateTrainingSession(t.env, t.options, t.state, paths[1], paths[2], paths[3], &t.session));
    for (int i = 0; i < 4; i++)
        free(paths[i]);
    return t;
}

static inline void close_trainer(Trainer *t) {
    training->ReleaseTrainingSession(t->session);
    training->ReleaseCheckpointState(t->state);
    ort->ReleaseMemoryInfo(t->memory);
    ort->ReleaseSessionOptions(t->options);
    ort->ReleaseEnv(t->env);
}

/* A tensor over memory of the program. */
static inline OrtValue *tensor_over(const Trainer *t, void *data, size_t rows, size_t columns, ONNXTensorElementDataType type, size_t element) {
    OrtValue *value = NULL;
    int64_t shape[2] = { (int64_t)rows, (int64_t)columns };
    OK(ort->CreateTensorWithDataAsOrtValue(t->memory, data, rows * (columns ? columns : 1) * element, shape, columns ? 2 : 1, type, &value));
    return value;
}

/* Bytes of the process in memory. */
static inline long resident(void) {
    long size, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    HOLDS(file != NULL && fscanf(file, "%ld %ld", &size, &pages) == 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

#endif
