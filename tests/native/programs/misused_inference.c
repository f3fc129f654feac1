/* Misuse of inference that can be seen is a status: misused_inference MODEL, of a network with the input x [batch, 3] and the output scores [batch, 3]. Released
   handles, handles of other kinds, wrong counts, null pointers, other element types and shapes, for Run and for bindings. */
#include "program.h"

static OrtEnv *env;
static OrtMemoryInfo *memory;
static OrtSession *session;

static OrtValue *tensor(void *data, size_t bytes, int64_t rows, int64_t columns, ONNXTensorElementDataType type) {
    OrtValue *value = NULL;
    OK(ort->CreateTensorWithDataAsOrtValue(memory, data, bytes, (int64_t[]){ rows, columns }, 2, type, &value));
    return value;
}

static const char *const x_name[2] = { "x", "x" }, *const y_name[2] = { "scores", "scores" };

static OrtStatus *run(const OrtValue *input, OrtValue **output) { return ort->Run(session, NULL, x_name, &input, 1, y_name, 1, output); }

static void runs(void) {
    float x[6] = { 1 }, wide[8] = { 0 }, small[3] = { 0 };
    double other[6] = { 0 };
    OrtValue *input = tensor(x, sizeof(x), 2, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    OrtValue *broad = tensor(wide, sizeof(wide), 2, 4, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    OrtValue *doubles = tensor(other, sizeof(other), 2, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE);
    OrtValue *short_output = tensor(small, sizeof(small), 1, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT), *output = NULL;
    const OrtValue *two[2] = { input, input }, *null[1] = { NULL };
    const char *const unknown[1] = { "nothing" }, *const no_name[1] = { NULL };
    for (int round = 0; round < 2; round++) {           /* before the first run, and after one */
        REFUSED(run(broad, &output), ORT_INVALID_ARGUMENT, "expected size 3");
        REFUSED(run(doubles, &output), ORT_INVALID_ARGUMENT, "float64");
        REFUSED(run(NULL, &output), ORT_INVALID_ARGUMENT, "null pointer");
        REFUSED(run((OrtValue *)env, &output), ORT_INVALID_ARGUMENT, "got an OrtEnv");
        REFUSED(run(input, NULL), ORT_INVALID_ARGUMENT, "outputs");
        REFUSED(run(input, &short_output), ORT_INVALID_ARGUMENT, "output");
        REFUSED(run(input, &doubles), ORT_INVALID_ARGUMENT, "output");
        REFUSED(ort->Run(session, NULL, x_name, NULL, 1, y_name, 1, &output), ORT_INVALID_ARGUMENT, "inputs");
        REFUSED(ort->Run(session, NULL, NULL, two, 1, y_name, 1, &output), ORT_INVALID_ARGUMENT, "input_names");
        REFUSED(ort->Run(session, NULL, x_name, two, 1, NULL, 1, &output), ORT_INVALID_ARGUMENT, "output_names");
        REFUSED(ort->Run(session, NULL, no_name, two, 1, y_name, 1, &output), ORT_INVALID_ARGUMENT, "element 0");
        REFUSED(ort->Run(session, NULL, x_name, null, 1, y_name, 1, &output), ORT_INVALID_ARGUMENT, "null pointer");
        REFUSED(ort->Run(session, NULL, x_name, two, 0, y_name, 1, &output), ORT_INVALID_ARGUMENT, "missing");
        REFUSED(ort->Run(session, NULL, x_name, two, 2, y_name, 1, &output), ORT_INVALID_ARGUMENT, "once");
        REFUSED(ort->Run(session, NULL, unknown, two, 1, y_name, 1, &output), ORT_INVALID_ARGUMENT, "nothing");
        REFUSED(ort->Run(session, NULL, x_name, two, 1, unknown, 1, &output), ORT_INVALID_ARGUMENT, "nothing");
        REFUSED(ort->Run((OrtSession *)env, NULL, x_name, two, 1, y_name, 1, &output), ORT_INVALID_ARGUMENT, "got an OrtEnv");
        REFUSED(ort->Run(session, (OrtRunOptions *)env, x_name, two, 1, y_name, 1, &output), ORT_INVALID_ARGUMENT, "got an OrtEnv");
        HOLDS(output == NULL);
        OK(run(input, &output));
        ort->ReleaseValue(output);
        REFUSED(run(output, &output), ORT_INVALID_ARGUMENT, "released");
        OrtValue *released = output;
        REFUSED(run(input, &released), ORT_INVALID_ARGUMENT, "released");
        output = NULL;
    }
    ort->ReleaseValue(input);
    REFUSED(run(input, &output), ORT_INVALID_ARGUMENT, "released");
    HOLDS(output == NULL);
    ort->ReleaseValue(broad);
    ort->ReleaseValue(doubles);
    ort->ReleaseValue(short_output);
}

static void bindings(void) {
    double other[6] = { 0 };
    OrtIoBinding *binding = NULL;
    OrtValue *doubles = tensor(other, sizeof(other), 2, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE);
    REFUSED(ort->CreateIoBinding(NULL, &binding), ORT_INVALID_ARGUMENT, "null pointer");
    REFUSED(ort->CreateIoBinding(session, NULL), ORT_INVALID_ARGUMENT, "of CreateIoBinding");
    OK(ort->CreateIoBinding(session, &binding));
    REFUSED(ort->BindInput(binding, NULL, doubles), ORT_INVALID_ARGUMENT, "name");
    REFUSED(ort->BindInput(binding, "x", NULL), ORT_INVALID_ARGUMENT, "null pointer");
    REFUSED(ort->BindInput(binding, "x", (OrtValue *)session), ORT_INVALID_ARGUMENT, "got an OrtSession");
    OK(ort->BindInput(binding, "x", doubles));
    OK(ort->BindOutputToDevice(binding, "scores", memory));
    REFUSED(ort->RunWithBinding(session, NULL, binding), ORT_INVALID_ARGUMENT, "float64");
    ort->ReleaseIoBinding(binding);
    ort->ReleaseIoBinding(binding);
    REFUSED(ort->RunWithBinding(session, NULL, binding), ORT_INVALID_ARGUMENT, "released");
    REFUSED(ort->BindInput(binding, "x", doubles), ORT_INVALID_ARGUMENT, "released");
    ort->ReleaseValue(doubles);
}

int main(int argc, char **argv) {
    HOLDS(argc == 2);
    load_tables();
    OK(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "test", &env));
    OK(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    OK(ort->CreateSession(env, argv[1], NULL, &session));
    runs();
    bindings();
    ort->ReleaseSession(session);
    ort->ReleaseSession(session);
    size_t count;
    REFUSED(ort->SessionGetInputCount(session, &count), ORT_INVALID_ARGUMENT, "released");
    ort->ReleaseMemoryInfo(memory);
    ort->ReleaseEnv(env);
    puts("refused");
    return 0;
}
