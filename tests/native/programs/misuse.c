/* Every misuse that can be seen is a status: misuse ARTIFACTS, of a network with inputs x [batch, 3] and labels [batch]. */
#include "program.h"

static void statuses(void) {
    OrtStatus *status = ort->CreateStatus(ORT_EP_FAIL, "a message");
    HOLDS(ort->GetErrorCode(status) == ORT_EP_FAIL && strcmp(ort->GetErrorMessage(status), "a message") == 0);
    ort->ReleaseStatus(status);
    ort->ReleaseStatus(status);
    ort->ReleaseStatus(NULL);
    HOLDS(ort->GetErrorCode(status) == ORT_INVALID_ARGUMENT);
}

static void handles(Trainer *t) {
    OrtEnv *env;
    OK(ort->CreateEnv(ORT_LOGGING_LEVEL_INFO, NULL, &env));
    ort->ReleaseEnv(env);
    ort->ReleaseEnv(env);
    ort->ReleaseEnv(NULL);
    ort->ReleaseSessionOptions((OrtSessionOptions *)t->env);
    OrtSession *session = NULL;
    REFUSED(ort->CreateSession(env, "m.onnx", t->options, &session), ORT_INVALID_ARGUMENT, "an OrtEnv that was released");
    REFUSED(ort->CreateSession((OrtEnv *)t->options, "m.onnx", t->options, &session), ORT_INVALID_ARGUMENT, "got an OrtSessionOptions");
    REFUSED(ort->CreateSession(NULL, "m.onnx", t->options, &session), ORT_INVALID_ARGUMENT, "null pointer");
    REFUSED(ort->CreateSession((OrtEnv *)((char *)t->env + 1), "m.onnx", t->options, &session), ORT_INVALID_ARGUMENT, "not aligned");
    REFUSED(ort->CreateSession(t->env, "no such file.onnx", t->options, &session), ORT_NO_SUCHFILE, "no such file.onnx");
    REFUSED(ort->CreateSession(t->env, NULL, t->options, &session), ORT_INVALID_ARGUMENT, "model_path");
    REFUSED(ort->CreateSession(t->env, "m.onnx", t->options, NULL), ORT_INVALID_ARGUMENT, "as out of");
    REFUSED(ort->CreateSessionFromArray(t->env, "nonsense", 8, t->options, &session), ORT_INVALID_GRAPH, "");
    HOLDS(session == NULL);
    OrtAllocator *allocator = NULL;
    OK(ort->GetAllocatorWithDefaultOptions(&allocator));
    OK(ort->AllocatorFree(allocator, NULL));
    ort->ReleaseAllocator(allocator);
    ort->ReleaseMemoryInfo((OrtMemoryInfo *)allocator->Info(allocator));
    REFUSED(ort->SetIntraOpNumThreads(t->options, -1), ORT_INVALID_ARGUMENT, "intra_op_num_threads");
    REFUSED(ort->SessionOptionsAppendExecutionProvider(t->options, "XNNPACK", NULL, NULL, 0), ORT_INVALID_ARGUMENT, "XNNPACK");
    REFUSED(ort->RegisterCustomOpsLibrary_V2(t->options, "operators.so"), ORT_NO_SUCHFILE, "operators.so");
    OrtMemoryInfo *memory;
    REFUSED(ort->CreateMemoryInfo("Cuda", OrtDeviceAllocator, 0, OrtMemTypeDefault, &memory), ORT_INVALID_ARGUMENT, "not supported");
}

static void tensors(Trainer *t) {
    float numbers[6];
    OrtValue *value = NULL;
    int64_t shape[2] = { 2, 3 }, negative[1] = { -1 }, huge[2] = { INT64_MAX, 4 }, many[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    REFUSED(ort->CreateTensorWithDataAsOrtValue(t->memory, numbers, 20, shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value), ORT_INVALID_ARGUMENT,
            "not enough space: expected 24 bytes");
    REFUSED(ort->CreateTensorWithDataAsOrtValue(t->memory, NULL, 24, shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value), ORT_INVALID_ARGUMENT, "p_data");
    REFUSED(ort->CreateTensorWithDataAsOrtValue(t->memory, numbers, 24, NULL, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value), ORT_INVALID_ARGUMENT, "shape");
    REFUSED(ort->CreateTensorWithDataAsOrtValue(t->memory, numbers, 24, shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &value), ORT_INVALID_ARGUMENT,
            "strings");
    REFUSED(ort->CreateTensorAsOrtValue(t->allocator, negative, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value), ORT_INVALID_ARGUMENT, "-1 along axis 0");
    REFUSED(ort->CreateTensorAsOrtValue(t->allocator, huge, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value), ORT_INVALID_ARGUMENT, "fit into memory");
    REFUSED(ort->CreateTensorAsOrtValue(t->allocator, many, 9, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value), ORT_NOT_IMPLEMENTED, "dimensions");
    REFUSED(ort->CreateTensorAsOrtValue(t->allocator, shape, 2, (ONNXTensorElementDataType)99, &value), ORT_NOT_IMPLEMENTED, "99");
    HOLDS(value == NULL);
    value = tensor_over(t, numbers, 2, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float));
    int64_t outside[2] = { 2, 0 };
    void *place;
    size_t count;
    REFUSED(ort->TensorAt(value, outside, 2, &place), ORT_INVALID_ARGUMENT, "[0, 2) along axis 0");
    REFUSED(ort->TensorAt(value, outside, 1, &place), ORT_INVALID_ARGUMENT, "2 indices");
    REFUSED(ort->GetStringTensorDataLength(value, &count), ORT_INVALID_ARGUMENT, "strings");
    REFUSED(ort->GetValueCount(value, &count), ORT_FAIL, "sequence");
    REFUSED(ort->GetTensorMutableData(value, NULL), ORT_INVALID_ARGUMENT, "as out of");
    ort->ReleaseValue(value);
    ort->ReleaseValue(value);
    REFUSED(ort->GetTensorMutableData(value, &place), ORT_INVALID_ARGUMENT, "released");
}

static void steps(Trainer *t) {
    float x[6] = { 0 }, wide[8] = { 0 }, loss[1], wrong[2];
    int64_t labels[2] = { 0, 1 }, far[2] = { 0, 99 };
    OrtValue *inputs[2] = { tensor_over(t, x, 2, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)),
                            tensor_over(t, labels, 2, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, sizeof(int64_t)) };
    OrtValue *others[] = { tensor_over(t, wide, 2, 4, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)),
                           tensor_over(t, far, 2, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, sizeof(int64_t)),
                           tensor_over(t, wrong, 2, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)) };
    OrtValue *outputs[2] = { NULL, NULL };
    const OrtValue *given[2] = { inputs[0], inputs[1] };
    for (int round = 0; round < 2; round++) {          /* on the slow and on the fast path */
        REFUSED(training->TrainStep(t->session, NULL, 1, given, 2, outputs), ORT_INVALID_ARGUMENT, "expected 2 inputs for TrainStep, got 1");
        REFUSED(training->TrainStep(t->session, NULL, 2, given, 1, outputs), ORT_INVALID_ARGUMENT, "expected 2 outputs for TrainStep, got 1");
        REFUSED(training->TrainStep(t->session, NULL, 2, NULL, 2, outputs), ORT_INVALID_ARGUMENT, "inputs");
        const OrtValue *null[2] = { inputs[0], NULL }, *broad[2] = { others[0], inputs[1] }, *label[2] = { inputs[0], others[1] };
        const OrtValue *swapped[2] = { inputs[1], inputs[0] };
        REFUSED(training->TrainStep(t->session, NULL, 2, null, 2, outputs), ORT_INVALID_ARGUMENT, "null pointer");
        REFUSED(training->TrainStep(t->session, NULL, 2, broad, 2, outputs), ORT_INVALID_ARGUMENT, "expected size 3");
        REFUSED(training->TrainStep(t->session, NULL, 2, label, 2, outputs), ORT_INVALID_ARGUMENT, "99");
        REFUSED(training->TrainStep(t->session, NULL, 2, swapped, 2, outputs), ORT_INVALID_ARGUMENT, "float32");
        OrtValue *bad_outputs[2] = { others[2], NULL };
        REFUSED(training->TrainStep(t->session, NULL, 2, given, 2, bad_outputs), ORT_INVALID_ARGUMENT, "output");
        HOLDS(outputs[0] == NULL && outputs[1] == NULL && bad_outputs[1] == NULL);
        OrtRunOptions *run_options;
        OK(ort->CreateRunOptions(&run_options));
        OK(ort->RunOptionsSetTerminate(run_options));
        REFUSED(training->TrainStep(t->session, run_options, 2, given, 2, outputs), ORT_FAIL, "terminated");
        OK(ort->RunOptionsUnsetTerminate(run_options));
        OrtValue *place = NULL;
        OK(ort->CreateTensorWithDataAsOrtValue(t->memory, loss, sizeof(loss), NULL, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &place));
        OrtValue *own[2] = { place, NULL };
        loss[0] = -1;
        OK(training->TrainStep(t->session, run_options, 2, given, 2, own));
        HOLDS(loss[0] > 0 && own[0] == place && own[1] != NULL);
        ort->ReleaseRunOptions(run_options);
        REFUSED(training->TrainStep(t->session, run_options, 2, given, 2, own), ORT_INVALID_ARGUMENT, "released");
        OK(training->LazyResetGrad(t->session));
        ort->ReleaseValue(own[0]);
        ort->ReleaseValue(own[1]);
    }
    for (int i = 0; i < 2; i++)
        ort->ReleaseValue(inputs[i]);
    for (int i = 0; i < 3; i++)
        ort->ReleaseValue(others[i]);
}

static void states(Trainer *t) {
    void *value;
    char *name;
    OrtPropertyType type;
    OrtCheckpointState *state = NULL;
    OrtTrainingSession *session = NULL;
    OrtValue *parameter = NULL;
    const char *none[1] = { "no such value" };
    REFUSED(training->LoadCheckpoint("no such file", &state), ORT_NO_SUCHFILE, "no such file");
    REFUSED(training->LoadCheckpointFromBuffer("nonsense", 8, &state), ORT_FAIL, "");
    REFUSED(training->GetProperty(t->state, "absent", t->allocator, &type, &value), ORT_INVALID_ARGUMENT, "absent");
    REFUSED(training->AddProperty(t->state, "p", (OrtPropertyType)7, "x"), ORT_INVALID_ARGUMENT, "property type");
    REFUSED(training->GetParameter(t->state, "absent", t->allocator, &parameter), ORT_INVALID_ARGUMENT, "absent");
    REFUSED(training->CreateTrainingSession(t->env, t->options, t->state, "no.onnx", NULL, NULL, &session), ORT_NO_SUCHFILE, "no.onnx");
    REFUSED(training->ExportModelForInferencing(t->session, "out.onnx", 0, none), ORT_INVALID_ARGUMENT, "output name");
    REFUSED(training->ExportModelForInferencing(t->session, "out.onnx", 1, none), ORT_INVALID_ARGUMENT, "no such value");
    REFUSED(training->TrainingSessionGetTrainingModelInputName(t->session, 2, t->allocator, &name), ORT_INVALID_ARGUMENT, "[0, 2)");
    REFUSED(training->SchedulerStep(t->session), ORT_FAIL, "schedule");
    REFUSED(training->RegisterLinearLRScheduler(t->session, -1, 10, 0.1f), ORT_INVALID_ARGUMENT, "warm-up");
    float small[2] = { 0 };
    OrtValue *buffer = tensor_over(t, small, 2, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float));
    REFUSED(training->CopyBufferToParameters(t->session, buffer, false), ORT_INVALID_ARGUMENT, "size incorrect");
    REFUSED(training->UpdateParameter(t->state, "fc1.bias", buffer), ORT_INVALID_ARGUMENT, "shape mismatch");
    ort->ReleaseValue(buffer);
    HOLDS(state == NULL && session == NULL && parameter == NULL);
}

int main(int argc, char **argv) {
    HOLDS(argc == 2);
    load_tables();
    HOLDS(OrtGetApiBase()->GetApi(0) == NULL && OrtGetApiBase()->GetApi(20) == NULL && OrtGetApiBase()->GetApi(1) == ort);
    HOLDS(ort->GetTrainingApi(20) == NULL && ort->GetTrainingApi(16) == training);
    statuses();
    Trainer t = open_trainer(argv[1], "checkpoint");
    handles(&t);
    tensors(&t);
    steps(&t);
    states(&t);
    /* any order of release, and twice */
    ort->ReleaseEnv(t.env);
    training->ReleaseCheckpointState(t.state);
    OK(training->LazyResetGrad(t.session));
    training->ReleaseTrainingSession(t.session);
    training->ReleaseTrainingSession(t.session);
    REFUSED(training->LazyResetGrad(t.session), ORT_INVALID_ARGUMENT, "released");
    REFUSED(training->SaveCheckpoint(t.state, "x", false), ORT_INVALID_ARGUMENT, "released");
    ort->ReleaseSessionOptions(t.options);
    ort->ReleaseMemoryInfo(t.memory);
    puts("refused");
    return 0;
}
