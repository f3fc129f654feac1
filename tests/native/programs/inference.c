/* Ordinary inference: inference MODEL STRINGS SEQUENCES. The model is x [batch, 3] -> scores [batch, 3] with an overridable initializer fc2.bias and
   metadata; STRINGS is an Identity of strings [n]; SEQUENCES an Identity of a sequence of floats. */
#include "program.h"

static OrtAllocator *allocator;
static OrtMemoryInfo *memory;
static OrtEnv *env;
static OrtSessionOptions *options;

static OrtValue *rows_of(float *data, int64_t rows) {
    OrtValue *value = NULL;
    int64_t shape[2] = { rows, 3 };
    OK(ort->CreateTensorWithDataAsOrtValue(memory, data, (size_t)rows * 3 * sizeof(float), shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    return value;
}

static void interface_of(OrtSession *session) {
    size_t count, rank;
    char *name;
    OrtTypeInfo *info;
    const OrtTensorTypeAndShapeInfo *tensor;
    ONNXTensorElementDataType type;
    int64_t dims[2];
    const char *symbols[2];
    OK(ort->SessionGetInputCount(session, &count));
    HOLDS(count == 1);
    OK(ort->SessionGetOutputCount(session, &count));
    HOLDS(count == 1);
    OK(ort->SessionGetOverridableInitializerCount(session, &count));
    HOLDS(count == 1);
    OK(ort->SessionGetOverridableInitializerName(session, 0, allocator, &name));
    HOLDS(strcmp(name, "fc2.bias") == 0);
    OK(ort->AllocatorFree(allocator, name));
    OK(ort->SessionGetInputName(session, 0, allocator, &name));
    HOLDS(strcmp(name, "x") == 0);
    OK(ort->AllocatorFree(allocator, name));
    REFUSED(ort->SessionGetInputName(session, 1, allocator, &name), ORT_INVALID_ARGUMENT, "[0, 1)");
    OK(ort->SessionGetInputTypeInfo(session, 0, &info));
    OK(ort->CastTypeInfoToTensorInfo(info, &tensor));
    OK(ort->GetTensorElementType(tensor, &type));
    OK(ort->GetDimensionsCount(tensor, &rank));
    HOLDS(type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && rank == 2);
    OK(ort->GetDimensions(tensor, dims, 2));
    OK(ort->GetSymbolicDimensions(tensor, symbols, 2));
    HOLDS(dims[0] == -1 && dims[1] == 3 && strcmp(symbols[0], "batch") == 0 && *symbols[1] == '\0');
    ort->ReleaseTypeInfo(info);
    REFUSED(ort->GetDimensionsCount(tensor, &rank), ORT_INVALID_ARGUMENT, "released");
}

static void metadata_of(OrtSession *session) {
    OrtModelMetadata *metadata;
    char *text, **keys;
    int64_t version, count;
    OK(ort->SessionGetModelMetadata(session, &metadata));
    OK(ort->ModelMetadataGetProducerName(metadata, allocator, &text));
    HOLDS(strcmp(text, "tests") == 0);
    OK(ort->AllocatorFree(allocator, text));
    OK(ort->ModelMetadataLookupCustomMetadataMap(metadata, allocator, "colour", &text));
    HOLDS(strcmp(text, "blue") == 0);
    OK(ort->AllocatorFree(allocator, text));
    OK(ort->ModelMetadataLookupCustomMetadataMap(metadata, allocator, "absent", &text));
    HOLDS(text == NULL);
    OK(ort->ModelMetadataGetVersion(metadata, &version));
    OK(ort->ModelMetadataGetCustomMetadataMapKeys(metadata, allocator, &keys, &count));
    HOLDS(version == 5 && count == 1 && strcmp(keys[0], "colour") == 0);
    OK(ort->AllocatorFree(allocator, keys[0]));
    OK(ort->AllocatorFree(allocator, keys));
    ort->ReleaseModelMetadata(metadata);
}

static void runs(OrtSession *session) {
    float x[6] = { 1, 2, 3, -1, 0, 2 }, scores[6] = { 0 }, bias[3] = { 100, 0, 0 }, *made;
    const char *names[] = { "x", "fc2.bias" }, *outputs[] = { "scores" }, *unknown[] = { "nonsense" };
    OrtValue *inputs[2] = { rows_of(x, 2), NULL }, *given[1] = { rows_of(scores, 2) }, *new[1] = { NULL };
    int64_t size[1] = { 3 };
    void *place;
    OK(ort->CreateTensorWithDataAsOrtValue(memory, bias, sizeof(bias), size, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &inputs[1]));
    OK(ort->Run(session, NULL, names, (const OrtValue *const *)inputs, 1, outputs, 1, given));
    OK(ort->GetTensorMutableData(given[0], &place));
    HOLDS(place == scores);
    OK(ort->Run(session, NULL, names, (const OrtValue *const *)inputs, 1, outputs, 1, new));
    OK(ort->GetTensorMutableData(new[0], (void **)&made));
    HOLDS(memcmp(made, scores, sizeof(scores)) == 0);
    ort->ReleaseValue(new[0]);
    new[0] = NULL;
    x[0] = 5;                   /* the input is the program's memory, not a copy */
    OK(ort->Run(session, NULL, names, (const OrtValue *const *)inputs, 1, outputs, 1, new));
    OK(ort->GetTensorMutableData(new[0], (void **)&made));
    HOLDS(memcmp(made, scores, 3 * sizeof(float)) != 0 && memcmp(made + 3, scores + 3, 3 * sizeof(float)) == 0);
    ort->ReleaseValue(new[0]);
    new[0] = NULL;
    OK(ort->Run(session, NULL, names, (const OrtValue *const *)inputs, 2, outputs, 1, new));
    float *replaced;
    OK(ort->GetTensorMutableData(new[0], (void **)&replaced));
    HOLDS(replaced[3] > 90);
    ort->ReleaseValue(new[0]);
    new[0] = NULL;
    REFUSED(ort->Run(session, NULL, names, (const OrtValue *const *)inputs, 1, unknown, 1, new), ORT_INVALID_ARGUMENT, "nonsense");
    REFUSED(ort->Run(session, NULL, unknown, (const OrtValue *const *)inputs, 1, outputs, 1, new), ORT_INVALID_ARGUMENT, "nonsense");
    REFUSED(ort->Run(session, NULL, names, (const OrtValue *const *)inputs, 0, outputs, 1, new), ORT_INVALID_ARGUMENT, "missing");
    REFUSED(ort->Run(session, NULL, names, (const OrtValue *const *)inputs, 1, outputs, 0, new), ORT_INVALID_ARGUMENT, "output");
    HOLDS(new[0] == NULL);
    ort->ReleaseValue(inputs[0]);
    ort->ReleaseValue(inputs[1]);
    ort->ReleaseValue(given[0]);
}

static void bindings(OrtSession *session) {
    float x[6] = { 1, 2, 3, -1, 0, 2 }, scores[6] = { 0 }, *found;
    OrtValue *input = rows_of(x, 2), *output = rows_of(scores, 2), **values;
    OrtIoBinding *binding;
    size_t count, *lengths;
    char *names;
    OK(ort->CreateIoBinding(session, &binding));
    REFUSED(ort->BindInput(binding, "y", input), ORT_INVALID_ARGUMENT, "input name");
    REFUSED(ort->RunWithBinding(session, NULL, binding), ORT_INVALID_ARGUMENT, "output");
    OK(ort->BindInput(binding, "x", input));
    OK(ort->BindOutput(binding, "scores", output));
    REFUSED(ort->GetBoundOutputValues(binding, allocator, &values, &count), ORT_FAIL, "run before");
    ort->ReleaseValue(input);           /* the binding keeps what it needs */
    ort->ReleaseValue(output);
    OK(ort->RunWithBinding(session, NULL, binding));
    HOLDS(scores[0] != 0);
    OK(ort->BindOutputToDevice(binding, "scores", memory));
    OK(ort->RunWithBinding(session, NULL, binding));
    OK(ort->GetBoundOutputNames(binding, allocator, &names, &lengths, &count));
    HOLDS(count == 1 && lengths[0] == 6 && memcmp(names, "scores", 6) == 0);
    OK(ort->AllocatorFree(allocator, names));
    OK(ort->AllocatorFree(allocator, lengths));
    OK(ort->GetBoundOutputValues(binding, allocator, &values, &count));
    OK(ort->GetTensorMutableData(values[0], (void **)&found));
    HOLDS(count == 1 && memcmp(found, scores, sizeof(scores)) == 0);
    ort->ReleaseIoBinding(binding);
    HOLDS(found[0] == scores[0]);       /* the value outlives the binding */
    ort->ReleaseValue(values[0]);
    OK(ort->AllocatorFree(allocator, values));
}

static void strings(const char *path) {
    OrtSession *session;
    OrtValue *input, *output[1] = { NULL };
    int64_t shape[1] = { 2 };
    const char *words[] = { "ein", "\xc3\xa9t\xc3\xa9" }, *in[] = { "x" }, *out[] = { "y" };
    char text[16], *buffer;
    size_t length, offsets[2];
    OK(ort->CreateSession(env, path, options, &session));
    OK(ort->CreateTensorAsOrtValue(allocator, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &input));
    REFUSED(ort->FillStringTensor(input, words, 1), ORT_INVALID_ARGUMENT, "2 strings");
    OK(ort->FillStringTensor(input, words, 2));
    OK(ort->GetResizedStringTensorElementBuffer(input, 0, 3, &buffer));
    memcpy(buffer, "one", 3);
    OK(ort->Run(session, NULL, in, (const OrtValue *const *)&input, 1, out, 1, output));
    OK(ort->GetStringTensorDataLength(output[0], &length));
    HOLDS(length == 8);
    REFUSED(ort->GetStringTensorContent(output[0], text, 4, offsets, 2), ORT_FAIL, "space");
    OK(ort->GetStringTensorContent(output[0], text, sizeof(text), offsets, 2));
    HOLDS(offsets[1] == 3 && memcmp(text, "one\xc3\xa9t\xc3\xa9", 8) == 0);
    OK(ort->GetStringTensorElementLength(output[0], 1, &length));
    OK(ort->GetStringTensorElement(output[0], sizeof(text), 1, text));
    HOLDS(length == 5 && memcmp(text, words[1], 5) == 0);
    REFUSED(ort->GetStringTensorElement(output[0], sizeof(text), 2, text), ORT_FAIL, "out of bounds");
    ort->ReleaseValue(output[0]);
    ort->ReleaseValue(input);
    ort->ReleaseSession(session);
}

static void sequences(const char *path) {
    OrtSession *session;
    float x[6] = { 1, 2, 3, 4, 5, 6 }, *found;
    OrtValue *items[2] = { rows_of(x, 1), rows_of(x, 2) }, *sequence, *item, *output[1] = { NULL };
    const char *in[] = { "x" }, *out[] = { "y" };
    size_t count;
    ONNXType kind;
    OK(ort->CreateSession(env, path, options, &session));
    OK(ort->CreateValue((const OrtValue *const *)items, 2, ONNX_TYPE_SEQUENCE, &sequence));
    ort->ReleaseValue(items[0]);
    ort->ReleaseValue(items[1]);
    OK(ort->Run(session, NULL, in, (const OrtValue *const *)&sequence, 1, out, 1, output));
    OK(ort->GetValueType(output[0], &kind));
    OK(ort->GetValueCount(output[0], &count));
    HOLDS(kind == ONNX_TYPE_SEQUENCE && count == 2);
    OK(ort->GetValue(output[0], 1, allocator, &item));
    OK(ort->GetTensorMutableData(item, (void **)&found));
    HOLDS(memcmp(found, x, sizeof(x)) == 0);
    ort->ReleaseValue(output[0]);
    HOLDS(found[5] == 6);
    ort->ReleaseValue(item);
    ort->ReleaseValue(sequence);
    ort->ReleaseSession(session);
}

int main(int argc, char **argv) {
    HOLDS(argc == 4);
    load_tables();
    char **providers;
    int count;
    size_t size;
    OrtSession *session;
    OK(ort->GetAvailableProviders(&providers, &count));
    HOLDS(count == 1 && strcmp(providers[0], "CPUExecutionProvider") == 0);
    OK(ort->ReleaseAvailableProviders(providers, count));
    OK(ort->GetAllocatorWithDefaultOptions(&allocator));
    OK(ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
    OrtThreadingOptions *threads;
    OK(ort->CreateThreadingOptions(&threads));
    OK(ort->SetGlobalIntraOpNumThreads(threads, 1));
    OK(ort->CreateEnvWithGlobalThreadPools(ORT_LOGGING_LEVEL_WARNING, "inference", threads, &env));
    ort->ReleaseThreadingOptions(threads);
    OK(ort->DisableTelemetryEvents(env));
    OK(ort->CreateSessionOptions(&options));
    OK(ort->DisablePerSessionThreads(options));
    OK(ort->SetSessionGraphOptimizationLevel(options, ORT_ENABLE_ALL));
    OK(ort->CreateSession(env, argv[1], options, &session));
    interface_of(session);
    metadata_of(session);
    runs(session);
    bindings(session);
    ort->ReleaseSession(session);
    void *bytes = bytes_of(argv[1], &size);
    OK(ort->CreateSessionFromArray(env, bytes, size, options, &session));
    free(bytes);
    runs(session);
    ort->ReleaseSession(session);
    OrtSessionOptions *copy;
    OK(ort->AddFreeDimensionOverrideByName(options, "batch", 2));
    OK(ort->CloneSessionOptions(options, &copy));
    OK(ort->CreateSession(env, argv[1], copy, &session));
    OrtTypeInfo *info;
    const OrtTensorTypeAndShapeInfo *tensor;
    OK(ort->SessionGetInputTypeInfo(session, 0, &info));
    OK(ort->CastTypeInfoToTensorInfo(info, &tensor));
    OK(ort->GetTensorShapeElementCount(tensor, &size));
    HOLDS(size == 6);
    ort->ReleaseTypeInfo(info);
    ort->ReleaseSessionOptions(copy);
    ort->ReleaseSession(session);
    strings(argv[2]);
    sequences(argv[3]);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseMemoryInfo(memory);
    ort->ReleaseEnv(env);
    puts("inferred");
    return 0;
}
