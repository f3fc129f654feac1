/* Counts copies of the program's memory: copies ARTIFACTS. Prints the bytes of inputs and of outputs that six steps, and then three runs of inference, copy.
   The functions of the C library that copy are replaced for all libraries of the process. */
#include "program.h"

enum { ROWS = 20000, LEAST = 64 };              /* bytes that may be copied at a time */
enum { X, LABELS, SCORES, PARAMETERS, WATCHED };

static const char *watched[WATCHED];
static size_t watched_bytes[WATCHED], copied[WATCHED];

static size_t shared(const char *part, size_t n, const char *whole, size_t size) {
    const char *low = part > whole ? part : whole, *high = part + n < whole + size ? part + n : whole + size;
    return low < high ? (size_t)(high - low) : 0;
}

static void count(const char *to, const char *from, size_t n) {
    for (int i = 0; i < WATCHED && n > LEAST; i++)
        copied[i] += shared(to, n, watched[i], watched_bytes[i]) + shared(from, n, watched[i], watched_bytes[i]);
}

#define LOOP __attribute__((optimize("no-tree-loop-distribute-patterns"))) /* which would call the function itself */

LOOP void *memmove(void *to, const void *from, size_t n) {
    char *target = to;
    const char *source = from;
    count(to, from, n);
    if (target < source)
        for (size_t i = 0; i < n; i++)
            target[i] = source[i];
    else
        while (n-- > 0)
            target[n] = source[n];
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t n) { return memmove(to, from, n); }

static void watch(int i, const void *memory, size_t bytes) {
    watched[i] = memory;
    watched_bytes[i] = bytes;
}

/* Print what was copied since the last report. */
static void report(const char *what) {
    printf("%s: %zu bytes of inputs, %zu of outputs\n", what, copied[X] + copied[LABELS], copied[SCORES]);
    memset(copied, 0, sizeof(copied));
}

int main(int argc, char **argv) {
    HOLDS(argc == 2);
    load_tables();
    Trainer t = open_trainer(argv[1], "checkpoint");
    float *x = calloc(ROWS * 3, sizeof(float)), *scores = calloc(ROWS * 3, sizeof(float)), loss = -1, *parameters;
    int64_t *labels = calloc(ROWS, sizeof(int64_t)), shape[1];
    size_t size;
    OrtValue *buffer, *inputs[2] = { tensor_over(&t, x, ROWS, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)),
                                     tensor_over(&t, labels, ROWS, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, sizeof(int64_t)) };
    OrtValue *outputs[2] = { NULL, tensor_over(&t, scores, ROWS, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)) };
    OK(ort->CreateTensorWithDataAsOrtValue(t.memory, &loss, sizeof(loss), NULL, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &outputs[0]));
    watch(X, x, ROWS * 3 * sizeof(float));
    watch(LABELS, labels, ROWS * sizeof(int64_t));
    watch(SCORES, scores, ROWS * 3 * sizeof(float));
    for (int step = 0; step < 3; step++) {
        OK(training->TrainStep(t.session, NULL, 2, (const OrtValue *const *)inputs, 2, outputs));
        OK(training->EvalStep(t.session, NULL, 2, (const OrtValue *const *)inputs, 2, outputs));
    }
    HOLDS(loss > 0 && scores[ROWS * 3 - 1] != 0);
    report("training");
    OrtSession *session;
    OrtValue *answer = outputs[1];
    const char *const input_names[1] = { "x" }, *const output_names[1] = { "scores" };
    char *forward = in_folder(argv[1], "forward.onnx");
    OK(ort->CreateSession(t.env, forward, t.options, &session));
    memset(scores, 0, ROWS * 3 * sizeof(float));
    for (int run = 0; run < 3; run++)
        OK(ort->Run(session, NULL, input_names, (const OrtValue *const *)inputs, 1, output_names, 1, &answer));
    HOLDS(answer == outputs[1] && scores[ROWS * 3 - 1] != 0);
    report("inference");
    OK(training->GetParametersSize(t.session, &size, false));
    shape[0] = (int64_t)size;
    parameters = calloc(size, sizeof(float));
    OK(ort->CreateTensorWithDataAsOrtValue(t.memory, parameters, size * sizeof(float), shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &buffer));
    watch(PARAMETERS, parameters, size * sizeof(float));
    OK(training->CopyParametersToBuffer(t.session, buffer, false));
    HOLDS(copied[PARAMETERS] == size * sizeof(float));            /* or copies would not be counted */
    ort->ReleaseSession(session);
    close_trainer(&t);
    return 0;
}
