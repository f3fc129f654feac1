# %% [markdown]
# # Sounds, with the spectrogram inside the model
#
# You will learn to
#
# - put the spectrogram into the ONNX graph, so that the exported model takes waveforms and needs no code around it;
# - train a small convolutional network on it, with label smoothing;
# - split recordings so that the test says something, and read a confusion matrix;
# - check the exported model in onnxruntime.
#
# The data are real, and few: two minutes of field and laboratory recordings of three birds, the great tit (20 songs of two males, N. M. Recalde), the Bengalese
# finch (two songs of one bird, Tachibana, Koumura and Okanoya 2015) and the European storm petrel (xeno-canto 46092, D. Preston, and 663885,
# S. S. Christiansen). They ship in the PyPI package `pykanto` (without its dependencies, as only its files are read).
#
# Each species was recorded with its own equipment in its own surroundings. With so few recordings a network may tell microphones apart as well as birds, and
# the accuracy says only that the recordings of the second tit, the second petrel and the second finch song are recognized.
#
#     pip install "ortrain[tutorials]"
#     pip install --no-deps --ignore-requires-python pykanto

# %%
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from scipy.io import wavfile
from scipy.signal import resample_poly

from ortrain import Trainer, set_seed
from ortrain.metrics import ConfusionMatrix

set_seed(0)
package = importlib.util.find_spec("pykanto")
assert package is not None and package.submodule_search_locations, "pip install --no-deps pykanto"
recordings = Path(package.submodule_search_locations[0]) / "data"

# %% [markdown]
# ## Windows
#
# Recordings become mono at 16 kHz and are cut into windows of 0.4 s, one every 0.1 s. Every window has the same loudness, so that loudness tells nothing.
# One tit, one finch song and one petrel are for training, the others for testing. Windows of one recording overlap and resemble each other: a random split
# would test on what was trained.

# %%
RATE, LENGTH, HOP = 16_000, 6_400, 1_600
FILES = {
    "great tit": ("segmented/great_tit/WAV/2021-B32-*.wav", "segmented/great_tit/WAV/2021-SW83-*.wav"),
    "Bengalese finch": ("raw/BENGALESE_FINCH/bird_3/348.wav", "raw/BENGALESE_FINCH/bird_3/363.wav"),
    "storm petrel": ("raw/STORM-PETREL/XC46092.wav", "raw/STORM-PETREL/XC663885.wav"),
}


def windows(path):
    """Return the windows of a recording, float32 [n, LENGTH], each with mean square 1."""
    rate, samples = wavfile.read(path)
    samples = samples.astype(np.float64)
    sound = resample_poly(samples if samples.ndim == 1 else samples.mean(axis=1), RATE, rate)
    cut = np.lib.stride_tricks.sliding_window_view(sound, LENGTH)[::HOP]
    return (cut / (np.sqrt((cut**2).mean(axis=1, keepdims=True)) + 1e-3)).astype(np.float32)


def load(part):
    """Return (waveforms [n, LENGTH], labels [n]) of the training (0) or the test part (1)."""
    sounds = [np.concatenate([windows(path) for path in sorted(recordings.glob(patterns[part]))]) for patterns in FILES.values()]
    return np.concatenate(sounds), np.repeat(np.arange(len(sounds)), [len(sound) for sound in sounds])


waveforms, labels = load(0)
test_waveforms, test_labels = load(1)
print(f"{len(labels)} windows to train on {np.bincount(labels)}, {len(test_labels)} to test {np.bincount(test_labels)}: {', '.join(FILES)}")

# %% [markdown]
# ## The network
#
# The first half of the graph makes a mel spectrogram from ONNX's own operators: `HannWindow`, `STFT`, the power, `MelWeightMatrix`, a logarithm. It has no
# weights, so nothing is trained there, and no gradient is computed for it. The second half is a convolutional network with batch normalization.

# %%
FRAME, STEP, MELS, CHANNELS = 512, 160, 40, (16, 32, 64)
random = np.random.default_rng(0)
weights, statistics = {}, {}
constants = {
    "frame": np.array(FRAME), "step": np.array(STEP), "last": np.array([2]), "channel": np.array([1]), "floor": np.array(1e-3, np.float32),
    "mels": np.array(MELS), "rate": np.array(RATE), "lowest": np.array(100, np.float32), "highest": np.array(8000, np.float32),
}
nodes = [
    helper.make_node("HannWindow", ["frame"], ["hann"]),
    helper.make_node("MelWeightMatrix", ["mels", "frame", "rate", "lowest", "highest"], ["mel_weights"]),
    helper.make_node("Unsqueeze", ["waveform", "last"], ["signal"]),
    helper.make_node("STFT", ["signal", "step", "hann", "frame"], ["spectrum"]),           # [batch, frames, bins, real and imaginary part]
    helper.make_node("ReduceSumSquare", ["spectrum"], ["power"], axes=[3], keepdims=0),
    helper.make_node("MatMul", ["power", "mel_weights"], ["mel"]),
    helper.make_node("Add", ["mel", "floor"], ["positive"]),
    helper.make_node("Log", ["positive"], ["decibels"]),
    helper.make_node("Unsqueeze", ["decibels", "channel"], ["image"]),
]
value, inputs = "image", 1
for block, outputs in enumerate(CHANNELS):
    weights[f"conv{block}.weight"] = (random.standard_normal((outputs, inputs, 3, 3)) * np.sqrt(2 / (9 * inputs))).astype(np.float32)
    weights[f"norm{block}.weight"], weights[f"norm{block}.bias"] = np.ones(outputs, np.float32), np.zeros(outputs, np.float32)
    statistics[f"norm{block}.mean"], statistics[f"norm{block}.variance"] = np.zeros(outputs, np.float32), np.ones(outputs, np.float32)
    norm = [f"norm{block}.{part}" for part in ("weight", "bias", "mean", "variance")]
    nodes += [
        helper.make_node("Conv", [value, f"conv{block}.weight"], [f"c{block}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", [f"c{block}", *norm], [f"n{block}"]),
        helper.make_node("Relu", [f"n{block}"], [f"r{block}"]),
        helper.make_node("MaxPool", [f"r{block}"], [f"p{block}"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    value, inputs = f"p{block}", outputs
weights["fc.weight"] = (random.standard_normal((len(FILES), inputs)) / np.sqrt(inputs)).astype(np.float32)
weights["fc.bias"] = np.zeros(len(FILES), np.float32)
nodes += [
    helper.make_node("GlobalAveragePool", [value], ["pooled"]),
    helper.make_node("Flatten", ["pooled"], ["summary"]),
    helper.make_node("Gemm", ["summary", "fc.weight", "fc.bias"], ["scores"], transB=1),
]
graph = helper.make_graph(
    nodes, "birds", [helper.make_tensor_value_info("waveform", TensorProto.FLOAT, ["batch", LENGTH])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", len(FILES)])],
    [numpy_helper.from_array(array, name) for name, array in (weights | statistics | constants).items()])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)

# %% [markdown]
# ## Training
#
# Label smoothing keeps the network from being too sure of the little that it has heard. The running statistics of batch normalization are followed, not
# trained.

# %%
EPOCHS, BATCH = 15, 32
trainer = Trainer.from_model(model, loss="cross-entropy", loss_options={"label_smoothing": 0.1}, optimizer="adamw", learning_rate=2e-3,
                             schedule="cosine", progress=False)
history = trainer.fit(waveforms, labels, epochs=EPOCHS, batch_size=BATCH)
print(f"{len(history)} epochs in {sum(record.seconds for record in history):.1f} s; the last: {history[-1]}")

# %% [markdown]
# ## The result
#
# Most windows of the test part belong to the great tit; a model that always says so is the baseline.

# %%
confusion = ConfusionMatrix()
results = trainer.evaluate(test_waveforms, test_labels, metrics=["accuracy", confusion])
baseline = np.bincount(test_labels).max() / len(test_labels)
print(f"accuracy on recordings that were not trained on: {results['accuracy']:.1%} (always the most frequent bird: {baseline:.1%})")
print(f"rows: the truth, columns: the answer, both {', '.join(FILES)}\n{confusion.matrix}")

# %% [markdown]
# The exported model hears a waveform and names a bird, in any runtime that has ONNX's operators.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "birds.onnx"
    trainer.export(path)
    exported = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    scores = exported.run(["scores"], {"waveform": test_waveforms})[0]
exported_accuracy = float((scores.argmax(axis=1) == test_labels).mean())
print(f"onnxruntime: accuracy {exported_accuracy:.1%}, largest difference of a score {np.abs(scores - trainer.predict(test_waveforms)).max():.1e}")

# %%
assert results["accuracy"] > 0.85 > baseline
assert abs(exported_accuracy - results["accuracy"]) < 0.005
