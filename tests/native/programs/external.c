/* Models whose weights are not in them: external MODEL DATA. MODEL says that its initializer weight, float [2, 3], begins at byte 8 of weights.bin, whose bytes
   are in the file DATA. The model is given as bytes, so that nothing beside it can be read. Prints the output for x = (1, 1). */
#include "program.h"

static OrtEnv *env;
static OrtMemoryInfo *memory;
static void *model;
static size_t model_size;

static void infer(OrtSessionOptions *options, const char *what) {
    const char *const input_names[1] = { "x" }, *const output_names[1] = { "y" };
    float x[2] = { 1, 1 }, *y;
    OrtSession *session;
    OrtValue *input, *output = NULL;
    OK(ort->CreateSessionFromArray(env, model, model_size, options, &session));
    OK(ort->CreateTensorWithDataAsOrtValue(memory, x, sizeof(x), (int64_t[]){ 1, 2 }, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &input));
    OK(ort->Run(session, NULL, input_names, (const OrtValue *const *)&input, 1, output_names, 1, &output));
    OK(ort->GetTensorMutableData(output, (void **)&y));
    printf("%s %g %g %g\n", what, y[0], y[1], y[2]);
    ort->ReleaseValue(output);
    ort->ReleaseValue(input);
    ort->ReleaseSession(session);
}

int main(int argc, char **argv) {
    HOLDS(argc == 3);
    load_tables();
    size_t size, none = 4;
    char *data = bytes_of(argv[2], &size);
    const char *name = "weights.bin", *weight = "weight";
    float own[6] = { 1, 2, 3, 10, 20, 30 };
    OrtSessionOptions *options, *copy;
    OrtSession *session = NULL;
    OrtValue *value, *flat;
    model = bytes_of(argv[1], &model_size);
    OK(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "test", &env));
    OK(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));

    OK(ort->CreateSessionOptions(&options));
    REFUSED(ort->CreateSessionFromArray(env, model, model_size, options, &session), ORT_INVALID_GRAPH, "external data");
    REFUSED(ort->AddExternalInitializersFromFilesInMemory(options, &name, NULL, &size, 1), ORT_INVALID_ARGUMENT, "external_initializer_file_buffer_array");
    REFUSED(ort->AddExternalInitializersFromFilesInMemory(options, &name, &(char *){ NULL }, &size, 1), ORT_INVALID_ARGUMENT, "null pointer");
    REFUSED(ort->AddExternalInitializersFromFilesInMemory(options, &(const char *){ NULL }, &data, &size, 1), ORT_INVALID_ARGUMENT, "element 0");
    OK(ort->AddExternalInitializersFromFilesInMemory(options, &name, &data, &size, 1));
    REFUSED(ort->AddExternalInitializersFromFilesInMemory(options, &name, &data, &size, 1), ORT_INVALID_ARGUMENT, "twice");
    OK(ort->CloneSessionOptions(options, &copy));
    ort->ReleaseSessionOptions(options);
    infer(copy, "file");
    ort->ReleaseSessionOptions(copy);

    OK(ort->CreateSessionOptions(&options));
    OK(ort->AddExternalInitializersFromFilesInMemory(options, &name, &data, &none, 1));
    REFUSED(ort->CreateSessionFromArray(env, model, model_size, options, &session), ORT_INVALID_GRAPH, "got 4 bytes");
    ort->ReleaseSessionOptions(options);

    OK(ort->CreateTensorWithDataAsOrtValue(memory, own, sizeof(own), (int64_t[]){ 2, 3 }, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    OK(ort->CreateTensorWithDataAsOrtValue(memory, own, sizeof(own), (int64_t[]){ 6 }, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &flat));
    OK(ort->CreateSessionOptions(&options));
    OK(ort->AddExternalInitializers(options, &weight, (const OrtValue *const *)&value, 1));
    infer(options, "values");
    ort->ReleaseSessionOptions(options);
    OK(ort->CreateSessionOptions(&options));
    OK(ort->AddExternalInitializers(options, &weight, (const OrtValue *const *)&flat, 1));
    REFUSED(ort->CreateSessionFromArray(env, model, model_size, options, &session), ORT_INVALID_ARGUMENT, "weight");
    HOLDS(session == NULL);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseValue(flat);
    ort->ReleaseValue(value);
    free(data);
    free(model);
    ort->ReleaseMemoryInfo(memory);
    ort->ReleaseEnv(env);
    return 0;
}
