/* Copies the parameters to a buffer, changes them, copies them back: buffers ARTIFACTS OUT. Writes the parameters before and after, and properties. */
#include "program.h"

static OrtValue *buffer_of(const Trainer *t, float **data, size_t *size) {
    OrtValue *buffer = NULL;
    OK(training->GetParametersSize(t->session, size, false));
    int64_t shape[1] = { (int64_t)*size };
    OK(ort->CreateTensorAsOrtValue(t->allocator, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &buffer));
    OK(training->CopyParametersToBuffer(t->session, buffer, false));
    OK(ort->GetTensorMutableData(buffer, (void **)data));
    return buffer;
}

int main(int argc, char **argv) {
    HOLDS(argc == 3);
    load_tables();
    OK(training->SetSeed(7));
    Trainer t = open_trainer(argv[1], "checkpoint");
    char *before = in_folder(argv[2], "before.bin"), *after = in_folder(argv[2], "after.bin"), *checkpoint = in_folder(argv[2], "changed.checkpoint");
    float *data;
    size_t size;
    OrtValue *buffer = buffer_of(&t, &data, &size);
    write_bytes(before, data, size * sizeof(float));
    for (size_t i = 0; i < size; i++)
        data[i] *= 2;
    OK(training->CopyBufferToParameters(t.session, buffer, false));
    ort->ReleaseValue(buffer);
    buffer = buffer_of(&t, &data, &size);
    write_bytes(after, data, size * sizeof(float));
    ort->ReleaseValue(buffer);
    int64_t epoch = 1;
    OK(training->AddProperty(t.state, "epoch", OrtIntProperty, &epoch));
    OK(training->AddProperty(t.state, "name", OrtStringProperty, (void *)"digits"));
    OK(training->SaveCheckpoint(t.state, checkpoint, true));
    close_trainer(&t);
    free(before);
    free(after);
    free(checkpoint);
    return 0;
}
