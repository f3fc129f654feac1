// The program train_digits.c through the published C++ headers.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "onnxruntime_training_cxx_api.h"

constexpr int64_t PIXELS = 64, BATCH = 32;

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

int main(int, char **argv) {
    const std::string folder = argv[1], out = argv[4];
    auto images = read<float>(argv[2]);
    auto labels = read<int64_t>(argv[3]);
    const auto rows = static_cast<int64_t>(labels.size());
    Ort::SetSeed(7);
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "test");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    auto state = Ort::CheckpointState::LoadCheckpoint(folder + "/checkpoint");
    Ort::TrainingSession session(env, options, state, folder + "/training_model.onnx", folder + "/eval_model.onnx", folder + "/optimizer_model.onnx");
    session.RegisterLinearLRScheduler(10, 100, 0.01f);
    for (int64_t start = 0; start + BATCH <= rows; start += BATCH) {
        session.TrainStep(batch(memory, images.data() + start * PIXELS, labels.data() + start, BATCH));
        session.OptimizerStep();
        session.SchedulerStep();
        session.LazyResetGrad();
    }
    auto results = session.EvalStep(batch(memory, images.data(), labels.data(), rows));
    std::printf("%.9g %.9g\n", *results[0].GetTensorData<float>(), session.GetLearningRate());
    state.AddProperty("epoch", int64_t{1});
    state.AddProperty("name", std::string("digits"));
    Ort::CheckpointState::SaveCheckpoint(state, out + "/trained.checkpoint", true);
    session.ExportModelForInferencing(out + "/trained.onnx", {"logits"});
    auto buffer = session.ToBuffer(false);
    const auto size = buffer.GetTensorTypeAndShapeInfo().GetElementCount();
    std::ofstream(out + "/parameters.bin", std::ios::binary).write(reinterpret_cast<const char *>(buffer.GetTensorData<float>()), size * sizeof(float));
    // the exported model, in the same library
    Ort::Session inference(env, (out + "/trained.onnx").c_str(), options);
    Ort::AllocatorWithDefaultOptions allocator;
    const auto name = inference.GetInputNameAllocated(0, allocator);
    const char *input_names[] = {name.get()}, *output_names[] = {"logits"};
    auto inputs = batch(memory, images.data(), labels.data(), rows);
    auto logits = inference.Run(Ort::RunOptions{}, input_names, inputs.data(), 1, output_names, 1);
    int64_t right = 0;
    for (int64_t row = 0; row < rows; row++) {
        const float *scores = logits[0].GetTensorData<float>() + row * 10;
        right += std::max_element(scores, scores + 10) - scores == labels[row];
    }
    std::fprintf(stderr, "%.3f\n", static_cast<double>(right) / static_cast<double>(rows));
    return 0;
}
