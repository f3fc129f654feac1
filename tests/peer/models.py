"""Models in addition to the recorded ones that onnxruntime-training trains: layers whose gradients have operators of their own."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortrain.artifacts import LossType, OptimType, generate_artifacts
from tests.recordings import Recording

STEPS, ROWS, CLASSES = 6, 4, 3


def draw(rng, *shape):
    return (rng.standard_normal(shape) * 0.4).astype(np.float32)


def recurrent(op_type, gates, **attributes):
    """Return a recurrent layer over sequences x [n, 5, 8] with a classifier of its last state."""
    def build(rng):
        weights = {"W": draw(rng, 1, gates * 6, 8), "R": draw(rng, 1, gates * 6, 6), "B": draw(rng, 1, 2 * gates * 6), "w": draw(rng, 6, CLASSES)}
        nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
                 helper.make_node(op_type, ["t", "W", "R", "B"], ["", "h"], hidden_size=6, **attributes),
                 helper.make_node("Squeeze", ["h", "first"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]
        return nodes, weights, {"first": np.array([0])}, (5, 8)

    return build


def convolutional(rng):
    """Groups, strides and pads, pooling, layer normalization. (Its gradient of AveragePool dies with SIGFPE where a size is open, as the batch is here.)"""
    weights = {"k1": draw(rng, 6, 2, 3, 3), "k2": draw(rng, 6, 2, 3, 3), "s": draw(rng, 72) + 1, "b": draw(rng, 72), "w": draw(rng, 72, CLASSES)}
    nodes = [helper.make_node("Conv", ["x", "k1"], ["a"], pads=[1, 0, 1, 2], strides=[1, 1]), helper.make_node("LeakyRelu", ["a"], ["l"], alpha=0.2),
             helper.make_node("Conv", ["l", "k2"], ["c"], group=3, pads=[1, 1, 1, 1], strides=[2, 2]),
             helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], pads=[0, 0, 1, 1], strides=[1, 1]),
             helper.make_node("Flatten", ["p"], ["f"]), helper.make_node("LayerNormalization", ["f", "s", "b"], ["n"]),
             helper.make_node("Tanh", ["n"], ["t"]), helper.make_node("MatMul", ["t", "w"], ["y"])]
    return nodes, weights, {}, (2, 8, 6)


def shaped(rng):
    """Concat, Split, Slice, Gather, Expand, Where, Pow, reductions and a padded border."""
    weights = {"w1": draw(rng, 8, 6), "e": draw(rng, 5, 4), "w2": draw(rng, 14, CLASSES)}
    fixed = {"ids": np.array([0, 3, 3, 1]), "start": np.array([1]), "end": np.array([5]), "axis": np.array([1]), "two": np.array(2.0, np.float32),
             "zero": np.array(0.0, np.float32), "pads": np.array([0, 1, 0, 1])}
    nodes = [helper.make_node("Gemm", ["x", "w1"], ["a"]), helper.make_node("Gather", ["e", "ids"], ["g"]),
             helper.make_node("Slice", ["a", "start", "end", "axis"], ["s"]), helper.make_node("Add", ["s", "g"], ["sum"]),
             helper.make_node("Split", ["sum"], ["left", "right"], axis=1), helper.make_node("Pow", ["left", "two"], ["q"]),
             helper.make_node("Sigmoid", ["right"], ["r"]), helper.make_node("Concat", ["q", "r", "a"], ["c"], axis=1),
             helper.make_node("Greater", ["c", "zero"], ["positive"]), helper.make_node("Exp", ["c"], ["x2"]),
             helper.make_node("Where", ["positive", "c", "x2"], ["chosen"]), helper.make_node("ReduceMean", ["chosen"], ["m"], axes=[1]),
             helper.make_node("Sub", ["chosen", "m"], ["d"]), helper.make_node("Pad", ["d", "pads"], ["p"]),
             helper.make_node("Concat", ["p", "m", "m"], ["all"], axis=1), helper.make_node("MatMul", ["all", "w2"], ["y"])]
    return nodes, weights, fixed, (8,)


def halves(rng):
    """float16 between float32 edges: both train float32 copies of the weights."""
    weights = {"w1": draw(rng, 8, 6).astype(np.float16), "b": draw(rng, 6).astype(np.float16), "w2": draw(rng, 6, CLASSES).astype(np.float16)}
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), helper.make_node("Gemm", ["h", "w1", "b"], ["g"]),
             helper.make_node("Relu", ["g"], ["r"]), helper.make_node("MatMul", ["r", "w2"], ["m"]),
             helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT)]
    return nodes, weights, {}, (8,)


MODELS = {
    "lstm": recurrent("LSTM", 4), "gru": recurrent("GRU", 3), "gru_linear": recurrent("GRU", 3, linear_before_reset=1),
    "convolutional": convolutional, "shaped": shaped, "halves": halves,
}


class ModelCase(Recording):
    """A model with random batches, with the interface of a Recording but without recorded results."""

    def __init__(self, name: str, folder: Path) -> None:
        self.case, self.updates_after, self.noisy = name, 1, set()
        self.meta = {"learning_rate": 0.01, "train_steps": STEPS}
        self.folders = [folder]
        folder.mkdir()
        rng = np.random.default_rng(len(name))
        nodes, weights, fixed, shape = MODELS[name](rng)
        self.weights = list(weights)
        graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])],
                                  [numpy_helper.from_array(np.asarray(array), key) for key, array in (weights | fixed).items()])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "forward.onnx")
        batches = {f"{key}.{part}": value for key in [*(f"train{k}" for k in range(STEPS)), "eval"]
                   for part, value in (("x", draw(rng, ROWS, *shape)), ("labels", rng.integers(0, CLASSES, ROWS)))}
        np.savez(folder / "inputs.npz", input_order=["x", "labels"], **batches)

    def make_artifacts(self, folder, **options):
        generate_artifacts(self.file("forward.onnx"), self.weights, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                           artifact_directory=folder, **options)
