/* Times the tiny network through the C interface: native_step ARTIFACTS STEPS. Prints seconds to the first state and to the first session, and microseconds of
   a train step with new outputs, of one with the program's outputs, and of a reset of the gradients. */
#include "native_timing.h"

static const OrtTrainingApi *training;
static OrtTrainingSession *session;
static OrtValue *inputs[2];

/* Return microseconds of processor time per step; new outputs are released after each step. */
static double time_steps(long steps, bool makes_outputs) {
    OrtValue *outputs[2] = { NULL, NULL };
    check(training->TrainStep(session, NULL, 2, (const OrtValue *const *)inputs, 2, outputs));
    double start = now(CLOCK_THREAD_CPUTIME_ID);
    for (long step = 0; step < steps; step++) {
        if (makes_outputs) {
            ort->ReleaseValue(outputs[0]);
            ort->ReleaseValue(outputs[1]);
            outputs[0] = outputs[1] = NULL;
        }
        check(training->LazyResetGrad(session));
        check(training->TrainStep(session, NULL, 2, (const OrtValue *const *)inputs, 2, outputs));
    }
    double spent = now(CLOCK_THREAD_CPUTIME_ID) - start;
    ort->ReleaseValue(outputs[0]);
    ort->ReleaseValue(outputs[1]);
    return spent / (double)steps * 1e6;
}

int main(int argc, char **argv) {
    static const char *const names[4] = { "checkpoint", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx" };
    static float x[12] = { 1, -1, 2, 0.5f };
    static int64_t labels[4] = { 0, 1, 2, 1 };
    const int64_t x_shape[2] = { 4, 3 }, label_shape[1] = { 4 };
    char paths[4][4096];
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtCheckpointState *state;
    OrtMemoryInfo *memory;
    if (argc != 3)
        return 2;
    for (int i = 0; i < 4; i++)
        snprintf(paths[i], sizeof(paths[i]), "%s/%s", argv[1], names[i]);
    double start = now(CLOCK_MONOTONIC);
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    training = ort->GetTrainingApi(ORT_API_VERSION);
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "benchmark", &env));
    check(ort->CreateSessionOptions(&options));
    check(ort->SetIntraOpNumThreads(options, 1));
    check(training->LoadCheckpoint(paths[0], &state));
    double loaded = now(CLOCK_MONOTONIC);
    check(training->CreateTrainingSession(env, options, state, paths[1], paths[2], paths[3], &session));
    double opened = now(CLOCK_MONOTONIC);
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    check(ort->CreateTensorWithDataAsOrtValue(memory, x, sizeof(x), x_shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &inputs[0]));
    check(ort->CreateTensorWithDataAsOrtValue(memory, labels, sizeof(labels), label_shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, &inputs[1]));
    long steps = atol(argv[2]);
    double made = time_steps(steps, true), given = time_steps(steps, false);
    double before = now(CLOCK_THREAD_CPUTIME_ID);
    for (long step = 0; step < steps; step++)
        check(training->LazyResetGrad(session));
    double reset = (now(CLOCK_THREAD_CPUTIME_ID) - before) / (double)steps * 1e6;
    printf("%.3f %.3f %.3f %.3f %.3f\n", loaded - start, opened - loaded, made, given, reset);
    return 0;
}
