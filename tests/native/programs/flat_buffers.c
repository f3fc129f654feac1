/* Trains one network in two sessions, each with half of every batch, and averages their gradients where they are: flat_buffers ARTIFACTS OUT. Writes the
   parameters of both sessions, and of a third one that trains whole batches. */
#include <pthread.h>

#include "program.h"

#include "ortrain_extensions.h"

enum { ROWS = 4, STEPS = 3, SESSIONS = 3, WHOLE = 2 };

static const OrtTrainingExtensions *extensions;

static void train(const Trainer *t, float *x, int64_t *labels, size_t rows) {
    OrtValue *inputs[2] = { tensor_over(t, x, rows, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)),
                            tensor_over(t, labels, rows, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, sizeof(int64_t)) };
    OrtValue *outputs[2] = { NULL, NULL };
    OK(training->TrainStep(t->session, NULL, 2, (const OrtValue *const *)inputs, 2, outputs));
    for (int i = 0; i < 2; i++) {
        ort->ReleaseValue(inputs[i]);
        ort->ReleaseValue(outputs[i]);
    }
}

/* The only buffer of gradients. */
static OrtFlatBuffer *gradients_of(const Trainer *t) {
    OrtFlatBuffer **buffers = NULL, *buffer;
    size_t count = 0;
    OK(extensions->GetGradientBuffers(t->session, t->allocator, &buffers, &count));
    HOLDS(count == 1);
    buffer = buffers[0];
    OK(ort->AllocatorFree(t->allocator, buffers));
    return buffer;
}

static float *data_of(OrtValue *value, size_t *count) {
    float *data;
    OrtTensorTypeAndShapeInfo *info;
    OK(ort->GetTensorTypeAndShape(value, &info));
    OK(ort->GetTensorShapeElementCount(info, count));
    ort->ReleaseTensorTypeAndShapeInfo(info);
    OK(ort->GetTensorMutableData(value, (void **)&data));
    return data;
}

/* The memory of a view is that of the buffer, at the offset of the parameter. */
static void check_layout(const Trainer *t, OrtFlatBuffer *buffer, const float *data) {
    size_t count, elements, offset;
    OK(extensions->FlatBufferGetParameterCount(buffer, &count));
    HOLDS(count == 3);
    for (size_t i = 0; i < count; i++) {
        char *name;
        OrtValue *view;
        OK(extensions->FlatBufferGetParameterName(buffer, i, t->allocator, &name));
        OK(extensions->FlatBufferGetOffset(buffer, name, &offset));
        OK(extensions->FlatBufferGetView(buffer, name, &view));
        HOLDS(data_of(view, &elements) == data + offset && elements > 0);
        ort->ReleaseValue(view);
        OK(ort->AllocatorFree(t->allocator, name));
    }
}

static void write_parameters(const Trainer *t, const char *folder, const char *name) {
    size_t size;
    OrtValue *buffer = NULL;
    OK(training->GetParametersSize(t->session, &size, true));
    float *numbers = malloc(size * sizeof(float));
    buffer = tensor_over(t, numbers, size, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float));
    OK(training->CopyParametersToBuffer(t->session, buffer, true));
    char *path = in_folder(folder, name);
    write_bytes(path, numbers, size * sizeof(float));
    ort->ReleaseValue(buffer);
    free(numbers);
    free(path);
}

static void check_refusals(const Trainer *t) {
    OrtFlatBuffer **buffers = NULL, *buffer = gradients_of(t);
    OrtValue *value = NULL;
    char *name;
    size_t count = 7;
    HOLDS(OrtGetTrainingExtensions(0) == NULL && OrtGetTrainingExtensions(2) == NULL);
    REFUSED(extensions->GetGradientBuffers((OrtTrainingSession *)t->state, t->allocator, &buffers, &count), ORT_INVALID_ARGUMENT, "got an OrtCheckpointState");
    REFUSED(extensions->GetGradientBuffers(t->session, NULL, &buffers, &count), ORT_INVALID_ARGUMENT, "allocator of GetGradientBuffers");
    REFUSED(extensions->GetGradientBuffers(t->session, t->allocator, NULL, &count), ORT_INVALID_ARGUMENT, "buffers of GetGradientBuffers");
    REFUSED(extensions->GetGradientBuffers(t->session, t->allocator, &buffers, NULL), ORT_INVALID_ARGUMENT, "buffers_len of GetGradientBuffers");
    REFUSED(extensions->GetMomentBuffers(t->session, "momentum2", t->allocator, &buffers, &count), ORT_INVALID_ARGUMENT, "momentum2");
    REFUSED(extensions->GetMomentName(t->session, 2, t->allocator, &name), ORT_INVALID_ARGUMENT, "[0, 2)");
    REFUSED(extensions->FlatBufferGetParameterName(buffer, 3, t->allocator, &name), ORT_INVALID_ARGUMENT, "[0, 3)");
    REFUSED(extensions->FlatBufferGetOffset(buffer, "fc1.bias", &count), ORT_INVALID_ARGUMENT, "fc1.bias");
    REFUSED(extensions->FlatBufferGetView(buffer, "fc1.bias", &value), ORT_INVALID_ARGUMENT, "fc1.bias");
    HOLDS(buffers == NULL && count == 7 && value == NULL);
    OK(extensions->GetRunningStatisticsBuffers(t->session, t->allocator, &buffers, &count));
    HOLDS(buffers == NULL && count == 0);
    OK(extensions->FlatBufferGetValue(buffer, &value));
    extensions->ReleaseFlatBuffer(buffer);
    extensions->ReleaseFlatBuffer(buffer);
    extensions->ReleaseFlatBuffer(NULL);
    HOLDS(data_of(value, &count) != NULL && count == 48);
    ort->ReleaseValue(value);
    REFUSED(extensions->FlatBufferGetValue(buffer, &value), ORT_INVALID_ARGUMENT, "an OrtFlatBuffer that was released");
}

/* What a function is called with for each bucket of gradients. */
typedef struct Ready {
    const char *checkpoint;
    size_t buckets, elements;
} Ready;

static void *load(void *checkpoint) {
    OrtCheckpointState *state = NULL;
    OK(training->LoadCheckpoint(checkpoint, &state));
    training->ReleaseCheckpointState(state);
    return NULL;
}

/* Zero a bucket, and wait for another thread that uses the library, as one that sends the bucket may. */
static void clear_bucket(void *param, OrtFlatBuffer *bucket) {
    Ready *ready = param;
    OrtValue *value;
    size_t count;
    pthread_t thread;
    OK(extensions->FlatBufferGetValue(bucket, &value));
    float *data = data_of(value, &count);
    memset(data, 0, count * sizeof(float));
    ready->buckets++;
    ready->elements += count;
    ort->ReleaseValue(value);
    extensions->ReleaseFlatBuffer(bucket);
    HOLDS(pthread_create(&thread, NULL, load, (void *)ready->checkpoint) == 0 && pthread_join(thread, NULL) == 0);
}

/* Each bucket comes once in a step, and what is written into it is the gradient. */
static void check_ready(const Trainer *t, const char *folder) {
    float x[ROWS * 3] = { 1, -2, 3 };
    int64_t labels[ROWS] = { 0, 1, 2, 0 };
    char *checkpoint = in_folder(folder, "checkpoint");
    Ready ready = { checkpoint, 0, 0 };
    OK(extensions->SetGradientsReadyFunction(t->session, clear_bucket, &ready, 1));
    for (size_t step = 1; step < 3; step++) {
        OK(training->LazyResetGrad(t->session));
        train(t, x, labels, ROWS);
        HOLDS(ready.buckets == 3 * step && ready.elements == 48 * step);
    }
    OrtFlatBuffer *gradients = gradients_of(t);
    OrtValue *value;
    size_t count;
    OK(extensions->FlatBufferGetValue(gradients, &value));
    float *data = data_of(value, &count);
    for (size_t i = 0; i < count; i++)
        HOLDS(data[i] == 0);
    REFUSED(extensions->SetGradientsReadyFunction(t->session, clear_bucket, &ready, 0), ORT_INVALID_ARGUMENT, "bucket_bytes");
    OK(extensions->SetGradientsReadyFunction(t->session, NULL, NULL, 1));
    train(t, x, labels, ROWS);
    HOLDS(ready.buckets == 6);
    ort->ReleaseValue(value);
    extensions->ReleaseFlatBuffer(gradients);
    free(checkpoint);
}

/* Buffers and their values keep the memory of a session that is released. */
static void check_lifetime(Trainer *t) {
    OrtFlatBuffer *buffer = gradients_of(t), **buffers;
    OrtValue *value;
    size_t count;
    OK(extensions->FlatBufferGetValue(buffer, &value));
    extensions->ReleaseFlatBuffer(buffer);
    OrtTrainingSession *session = t->session;
    OrtAllocator *allocator = t->allocator;
    close_trainer(t);
    float *data = data_of(value, &count);
    for (size_t i = 0; i < count; i++)
        data[i] = 1;
    ort->ReleaseValue(value);
    REFUSED(extensions->GetGradientBuffers(session, allocator, &buffers, &count), ORT_INVALID_ARGUMENT, "an OrtTrainingSession that was released");
}

int main(int argc, char **argv) {
    HOLDS(argc == 3);
    load_tables();
    extensions = OrtGetTrainingExtensions(1);
    HOLDS(extensions != NULL);
    Trainer trainers[SESSIONS];
    OrtFlatBuffer *gradients[SESSIONS];
    for (int i = 0; i < SESSIONS; i++)
        trainers[i] = open_trainer(argv[1], "checkpoint");
    float x[ROWS * 3];
    int64_t labels[ROWS];
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < ROWS * 3; i++)
            x[i] = (float)((7 * i + 5 * step) % 11 - 5) / 4;
        for (int i = 0; i < ROWS; i++)
            labels[i] = (i + step) % 3;
        train(&trainers[0], x, labels, ROWS / 2);
        train(&trainers[1], x + ROWS / 2 * 3, labels + ROWS / 2, ROWS / 2);
        train(&trainers[WHOLE], x, labels, ROWS);
        OrtValue *values[2];
        float *data[2];
        size_t count[2];
        for (int i = 0; i < 2; i++) {
            gradients[i] = gradients_of(&trainers[i]);
            OK(extensions->FlatBufferGetValue(gradients[i], &values[i]));
            data[i] = data_of(values[i], &count[i]);
            check_layout(&trainers[i], gradients[i], data[i]);
        }
        HOLDS(count[0] == count[1]);
        for (size_t i = 0; i < count[0]; i++)
            data[0][i] = data[1][i] = (data[0][i] + data[1][i]) / 2;
        for (int i = 0; i < 2; i++) {
            ort->ReleaseValue(values[i]);
            extensions->ReleaseFlatBuffer(gradients[i]);
        }
        for (int i = 0; i < SESSIONS; i++) {
            OK(training->OptimizerStep(trainers[i].session, NULL));
            OK(training->LazyResetGrad(trainers[i].session));
        }
    }
    write_parameters(&trainers[0], argv[2], "first.bin");
    write_parameters(&trainers[1], argv[2], "second.bin");
    write_parameters(&trainers[WHOLE], argv[2], "whole.bin");
    check_refusals(&trainers[0]);
    check_ready(&trainers[WHOLE], argv[1]);
    for (int i = 0; i < SESSIONS; i++)
        check_lifetime(&trainers[i]);
    return 0;
}
