/* Trains one epoch, evaluates, saves and exports: train_digits ARTIFACTS IMAGES LABELS OUT. Images are float32 [n, 64], labels int64 [n]. */
#include "program.h"

enum { PIXELS = 64, BATCH = 32 };

static float step(const Trainer *t, bool is_training, float *images, int64_t *labels, size_t rows) {
    OrtValue *inputs[2] = { tensor_over(t, images, rows, PIXELS, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, sizeof(float)),
                            tensor_over(t, labels, rows, 0, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, sizeof(int64_t)) };
    OrtValue *outputs[1] = { NULL };
    float *loss;
    if (is_training)
        OK(training->TrainStep(t->session, NULL, 2, (const OrtValue *const *)inputs, 1, outputs));
    else
        OK(training->EvalStep(t->session, NULL, 2, (const OrtValue *const *)inputs, 1, outputs));
    OK(ort->GetTensorMutableData(outputs[0], (void **)&loss));
    float result = *loss;
    ort->ReleaseValue(outputs[0]);
    ort->ReleaseValue(inputs[0]);
    ort->ReleaseValue(inputs[1]);
    return result;
}

static void write_parameters(const Trainer *t, const char *path) {
    size_t size;
    OK(training->GetParametersSize(t->session, &size, false));
    int64_t shape[1] = { (int64_t)size };
    OrtValue *buffer = NULL;
    void *data;
    OK(ort->CreateTensorAsOrtValue(t->allocator, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &buffer));
    OK(training->CopyParametersToBuffer(t->session, buffer, false));
    OK(ort->GetTensorMutableData(buffer, &data));
    write_bytes(path, data, size * sizeof(float));
    OK(training->CopyBufferToParameters(t->session, buffer, false));
    ort->ReleaseValue(buffer);
}

int main(int argc, char **argv) {
    HOLDS(argc == 5);
    load_tables();
    OK(training->SetSeed(7));
    size_t image_bytes, label_bytes;
    float *images = bytes_of(argv[2], &image_bytes);
    int64_t *labels = bytes_of(argv[3], &label_bytes);
    size_t rows = label_bytes / sizeof(int64_t);
    HOLDS(image_bytes == rows * PIXELS * sizeof(float));
    Trainer t = open_trainer(argv[1], "checkpoint");
    OK(training->RegisterLinearLRScheduler(t.session, 10, 100, 0.01f));
    for (size_t start = 0; start + BATCH <= rows; start += BATCH) {
        step(&t, true, images + start * PIXELS, labels + start, BATCH);
        OK(training->OptimizerStep(t.session, NULL));
        OK(training->SchedulerStep(t.session));
        OK(training->LazyResetGrad(t.session));
    }
    float rate;
    OK(training->GetLearningRate(t.session, &rate));
    printf("%.9g %.9g\n", step(&t, false, images, labels, rows), rate);
    int64_t epoch = 1;
    OK(training->AddProperty(t.state, "epoch", OrtIntProperty, &epoch));
    OK(training->AddProperty(t.state, "name", OrtStringProperty, (void *)"digits"));
    char *checkpoint = in_folder(argv[4], "trained.checkpoint"), *parameters = in_folder(argv[4], "parameters.bin"), *model = in_folder(argv[4], "trained.onnx");
    const char *names[] = { "logits" };
    OK(training->SaveCheckpoint(t.state, checkpoint, true));
    OK(training->ExportModelForInferencing(t.session, model, 1, names));
    write_parameters(&t, parameters);
    close_trainer(&t);
    free(checkpoint);
    free(parameters);
    free(model);
    free(images);
    free(labels);
    return 0;
}
