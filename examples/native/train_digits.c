/* Trains a classifier of handwritten digits for an epoch and runs the exported model: train_digits ARTIFACTS CHECKPOINT OUT. */
#ifdef PUBLISHED
#include "onnxruntime_training_c_api.h"
#else
#include "ortrain_c_api.h"
#endif

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIXELS = 64, BATCH = 32, CLASSES = 10 };

static const OrtApi *ort;
static const OrtTrainingApi *training;
static OrtMemoryInfo *memory;

/* End the program with the message of a failed call. */
static void check(OrtStatus *status) {
    if (status != NULL) {
        fprintf(stderr, "%d: %s\n", ort->GetErrorCode(status), ort->GetErrorMessage(status));
        exit(1);
    }
}

static const char *in_folder(const char *folder, const char *name) {
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *bytes = malloc(*size);
    if (fread(bytes, 1, *size, file) != *size)
        exit(1);
    fclose(file);
    return bytes;
}

/* A tensor over memory of the program. */
static OrtValue *tensor(void *data, size_t size, const int64_t *shape, size_t rank, ONNXTensorElementDataType type) {
    OrtValue *value;
    check(ort->CreateTensorWithDataAsOrtValue(memory, data, size, shape, rank, type, &value));
    return value;
}

/* Run a train or eval step and return the loss. */
static float step(OrtTrainingSession *session, bool is_training, float *images, int64_t *labels, size_t rows) {
    const int64_t shape[] = { (int64_t)rows, PIXELS };
    OrtValue *inputs[] = { tensor(images, rows * PIXELS * sizeof(float), shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
                           tensor(labels, rows * sizeof(int64_t), shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) };
    OrtValue *output = NULL;
    if (is_training)
        check(training->TrainStep(session, NULL, 2, (const OrtValue *const *)inputs, 1, &output));
    else
        check(training->EvalStep(session, NULL, 2, (const OrtValue *const *)inputs, 1, &output));
    float *loss;
    check(ort->GetTensorMutableData(output, (void **)&loss));
    float result = *loss;
    ort->ReleaseValue(output);
    ort->ReleaseValue(inputs[0]);
    ort->ReleaseValue(inputs[1]);
    return result;
}

/* Return the number of epochs that the checkpoint tells, 0 for a new one. */
static float epochs_of(const OrtCheckpointState *state) {
    OrtAllocator *allocator;
    enum OrtPropertyType type;
    float *found;
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    OrtStatus *status = training->GetProperty(state, "epochs", allocator, &type, (void **)&found);
    if (status != NULL) {
        ort->ReleaseStatus(status);
        return 0;
    }
    float epochs = *found;
    check(ort->AllocatorFree(allocator, found));
    return epochs;
}

/* Return how many images the exported model recognizes. */
static double accuracy(const OrtEnv *env, const OrtSessionOptions *options, const char *model, float *images, const int64_t *labels, size_t rows) {
    OrtSession *session;
    const int64_t shape[] = { (int64_t)rows, PIXELS };
    const char *inputs[] = { "pixels" }, *outputs[] = { "logits" };
    OrtValue *x = tensor(images, rows * PIXELS * sizeof(float), shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT), *logits = NULL;
    float *scores;
    size_t right = 0;
    check(ort->CreateSession(env, model, options, &session));
    check(ort->Run(session, NULL, inputs, (const OrtValue *const *)&x, 1, outputs, 1, &logits));
    check(ort->GetTensorMutableData(logits, (void **)&scores));
    for (size_t row = 0; row < rows; row++, scores += CLASSES) {
        int best = 0;
        for (int digit = 1; digit < CLASSES; digit++)
            best = scores[digit] > scores[best] ? digit : best;
        right += best == labels[row];
    }
    ort->ReleaseValue(logits);
    ort->ReleaseValue(x);
    ort->ReleaseSession(session);
    return (double)right / (double)rows;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    const char *artifacts = argv[1], *out = argv[3];
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    training = ort->GetTrainingApi(ORT_API_VERSION);
    size_t size;
    float *images = read_file(in_folder(artifacts, "images.bin"), &size);
    int64_t *labels = read_file(in_folder(artifacts, "labels.bin"), &size);
    size_t rows = size / sizeof(int64_t);
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtCheckpointState *state, *missing;
    OrtTrainingSession *session;
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "digits", &env));
    check(ort->CreateSessionOptions(&options));
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    check(training->LoadCheckpoint(argv[2], &state));
    check(training->CreateTrainingSession(env, options, state, in_folder(artifacts, "training_model.onnx"), in_folder(artifacts, "eval_model.onnx"),
                                          in_folder(artifacts, "optimizer_model.onnx"), &session));
    check(training->RegisterLinearLRScheduler(session, 10, 100, 0.01f));
    for (size_t start = 0; start + BATCH <= rows; start += BATCH) {
        step(session, true, images + start * PIXELS, labels + start, BATCH);
        check(training->OptimizerStep(session, NULL));
        check(training->SchedulerStep(session));
        check(training->LazyResetGrad(session));
    }
    float rate;
    check(training->GetLearningRate(session, &rate));
    printf("loss %.9g\nrate %.9g\n", step(session, false, images, labels, rows), rate);
    float epochs = epochs_of(state) + 1;
    const char *model = in_folder(out, "trained.onnx"), *names[] = { "logits" };
    check(training->AddProperty(state, "epochs", OrtFloatProperty, &epochs));
    check(training->SaveCheckpoint(state, in_folder(out, "trained.checkpoint"), true));
    check(training->ExportModelForInferencing(session, model, 1, names));
    printf("accuracy %.9g\nepochs %g\n", accuracy(env, options, model, images, labels, rows), epochs);
    OrtStatus *status = training->LoadCheckpoint("no such checkpoint", &missing);
    printf("refused %s\n", ort->GetErrorMessage(status));
    ort->ReleaseStatus(status);
    training->ReleaseTrainingSession(session);
    training->ReleaseCheckpointState(state);
    ort->ReleaseMemoryInfo(memory);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseEnv(env);
    free(images);
    free(labels);
    return 0;
}
