/* Times inference of the tiny network through the C interface: native_run MODEL RUNS. Prints microseconds of processor time of a Run with new outputs, and of one
   with the program's outputs. */
#include "native_timing.h"

/* Return microseconds per run; new outputs are released after each run. */
static double time_runs(OrtSession *session, const OrtValue *input, long runs, bool makes_outputs) {
    const char *const input_names[1] = { "x" }, *const output_names[1] = { "scores" };
    OrtValue *output = NULL;
    check(ort->Run(session, NULL, input_names, &input, 1, output_names, 1, &output));
    double start = now(CLOCK_THREAD_CPUTIME_ID);
    for (long run = 0; run < runs; run++) {
        if (makes_outputs) {
            ort->ReleaseValue(output);
            output = NULL;
        }
        check(ort->Run(session, NULL, input_names, &input, 1, output_names, 1, &output));
    }
    double spent = now(CLOCK_THREAD_CPUTIME_ID) - start;
    ort->ReleaseValue(output);
    return spent / (double)runs * 1e6;
}

int main(int argc, char **argv) {
    static float x[12] = { 1, -1, 2, 0.5f };
    const int64_t shape[2] = { 4, 3 };
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtMemoryInfo *memory;
    OrtSession *session;
    OrtValue *input;
    if (argc != 3)
        return 2;
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "benchmark", &env));
    check(ort->CreateSessionOptions(&options));
    check(ort->SetIntraOpNumThreads(options, 1));
    check(ort->CreateSession(env, argv[1], options, &session));
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    check(ort->CreateTensorWithDataAsOrtValue(memory, x, sizeof(x), shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &input));
    long runs = atol(argv[2]);
    printf("%.3f %.3f\n", time_runs(session, input, runs, true), time_runs(session, input, runs, false));
    return 0;
}
