// Trains a classifier of handwritten digits for an epoch and runs the exported model: train_digits ARTIFACTS CHECKPOINT OUT.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "onnxruntime_training_cxx_api.h"

constexpr int64_t PIXELS = 64, BATCH = 32, CLASSES = 10;

template <typename T>
static std::vector<T> read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::vector<T> values(bytes.size() / sizeof(T));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char *>(values.data()));
    return values;
}

static std::vector<Ort::Value> batch(const Ort::MemoryInfo &memory, float *images, int64_t *labels, int64_t rows) {
    const int64_t image_shape[] = {rows, PIXELS}, label_shape[] = {rows};
    std::vector<Ort::Value> inputs;
    inputs.push_back(Ort::Value::CreateTensor<float>(memory, images, rows * PIXELS, image_shape, 2));
    inputs.push_back(Ort::Value::CreateTensor<int64_t>(memory, labels, rows, label_shape, 1));
    return inputs;
}

static float epochs_of(Ort::CheckpointState &state) {
    try {
        return std::get<float>(state.GetProperty("epochs"));
    } catch (const Ort::Exception &) {
        return 0;
    }
}

int main(int, char **argv) {
    const std::string folder = argv[1], out = argv[3], model = out + "/trained.onnx";
    auto images = read<float>(folder + "/images.bin");
    auto labels = read<int64_t>(folder + "/labels.bin");
    const auto rows = static_cast<int64_t>(labels.size());
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "digits");
    Ort::SessionOptions options;
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    auto state = Ort::CheckpointState::LoadCheckpoint(argv[2]);
    Ort::TrainingSession session(env, options, state, folder + "/training_model.onnx", folder + "/eval_model.onnx", folder + "/optimizer_model.onnx");
    session.RegisterLinearLRScheduler(10, 100, 0.01f);
    for (int64_t start = 0; start + BATCH <= rows; start += BATCH) {
        session.TrainStep(batch(memory, images.data() + start * PIXELS, labels.data() + start, BATCH));
        session.OptimizerStep();
        session.SchedulerStep();
        session.LazyResetGrad();
    }
    auto results = session.EvalStep(batch(memory, images.data(), labels.data(), rows));
    std::printf("loss %.9g\nrate %.9g\n", *results[0].GetTensorData<float>(), session.GetLearningRate());
    const float epochs = epochs_of(state) + 1;
    state.AddProperty("epochs", epochs);
    Ort::CheckpointState::SaveCheckpoint(state, out + "/trained.checkpoint", true);
    session.ExportModelForInferencing(model, {"logits"});

    Ort::Session inference(env, model.c_str(), options);
    const char *input_names[] = {"pixels"}, *output_names[] = {"logits"};
    auto inputs = batch(memory, images.data(), labels.data(), rows);
    auto logits = inference.Run(Ort::RunOptions{}, input_names, inputs.data(), 1, output_names, 1);
    int64_t right = 0;
    for (int64_t row = 0; row < rows; row++) {
        const float *scores = logits[0].GetTensorData<float>() + row * CLASSES;
        right += std::max_element(scores, scores + CLASSES) - scores == labels[row];
    }
    std::printf("accuracy %.9g\nepochs %g\n", static_cast<double>(right) / static_cast<double>(rows), epochs);
    try {
        Ort::CheckpointState::LoadCheckpoint("no such checkpoint");
    } catch (const Ort::Exception &error) {
        std::printf("refused %s\n", error.what());
    }
    return 0;
}
