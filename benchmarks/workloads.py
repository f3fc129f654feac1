"""The twelve workloads: float32 models and their batches, built without torch. All train with cross entropy and AdamW."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.graphs import GraphBuilder


@dataclass(frozen=True)
class Workload:
    """A model and its batches.

    build: adds the layers after an input and returns the output, scores [rows, classes].
    input_shape: of the input, which is float32, or int64 token ids where there is a vocabulary.
    vocabulary: number of token ids; 0 for a float32 input."""

    build: Callable[[GraphBuilder, str], str]
    input_shape: tuple[int, ...]
    classes: int
    rows: int
    vocabulary: int = 0

    def make(self, name: str) -> tuple[onnx.ModelProto, list[str], list[str]]:
        """Return (forward model, names of trained weights, names of frozen weights), the same in every call."""
        g = GraphBuilder(seed=0)
        output = self.build(g, "input")
        return g.model(name, self.input_shape, "int64" if self.vocabulary else "float32", output, (self.rows, self.classes)), g.trainable, g.frozen

    def batches(self, count: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return `count` batches (input, labels), the same in every call."""
        rng = np.random.default_rng(1234)

        def draw() -> np.ndarray:
            return rng.integers(0, self.vocabulary, self.input_shape) if self.vocabulary else rng.standard_normal(self.input_shape).astype(np.float32)

        return [(draw(), rng.integers(0, self.classes, (self.rows,))) for _ in range(count)]


# ---- dense networks


def mlp(*sizes: int) -> Callable[[GraphBuilder, str], str]:
    """Return a builder of linear layers with ReLU between them."""

    def build(g: GraphBuilder, x: str) -> str:
        for i, (size_in, size_out) in enumerate(zip(sizes, sizes[1:], strict=False)):
            x = g.linear(g.relu(x) if i else x, f"fc{i}", size_in, size_out)
        return x

    return build


# ---- convolutional networks


def lenet(g: GraphBuilder, x: str) -> str:
    """Build two 5 x 5 convolutions with pooling and two dense layers."""
    x = g.max_pool(g.relu(g.conv(x, "conv1", 1, 20, 5, bias=True)), 2, 2)
    x = g.max_pool(g.relu(g.conv(x, "conv2", 20, 50, 5, bias=True)), 2, 2)
    return g.linear(g.relu(g.linear(g.op("Flatten", x, axis=1), "fc1", 800, 500)), "fc2", 500, 10)


def conv_bn(g: GraphBuilder, x: str, name: str, channels_in: int, channels_out: int, kernel: int, stride: int = 1, group: int = 1) -> str:
    """Build a convolution without bias, padded to keep the size, and a batch normalization."""
    y = g.conv(x, f"{name}.conv", channels_in, channels_out, kernel, stride, kernel // 2, group)
    return g.batch_norm(y, f"{name}.bn", channels_out)


def basic_block(g: GraphBuilder, x: str, name: str, channels_in: int, width: int, stride: int) -> tuple[str, int]:
    """Build two 3 x 3 convolutions beside a shortcut; return the output and its number of channels."""
    y = g.relu(conv_bn(g, x, f"{name}.1", channels_in, width, 3, stride))
    y = conv_bn(g, y, f"{name}.2", width, width, 3)
    short = x if stride == 1 and channels_in == width else conv_bn(g, x, f"{name}.short", channels_in, width, 1, stride)
    return g.relu(g.op("Add", y, short)), width


def bottleneck(g: GraphBuilder, x: str, name: str, channels_in: int, width: int, stride: int) -> tuple[str, int]:
    """Build 1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut; return the output and its number of channels, 4 * width."""
    y = g.relu(conv_bn(g, x, f"{name}.1", channels_in, width, 1))
    y = g.relu(conv_bn(g, y, f"{name}.2", width, width, 3, stride))
    y = conv_bn(g, y, f"{name}.3", width, 4 * width, 1)
    short = x if stride == 1 and channels_in == 4 * width else conv_bn(g, x, f"{name}.short", channels_in, 4 * width, 1, stride)
    return g.relu(g.op("Add", y, short)), 4 * width


def resnet(g: GraphBuilder, x: str, block: Callable[..., tuple[str, int]], depths: Sequence[int], classes: int) -> str:
    """Build four stages of blocks after the stem, then pooling and a dense layer."""
    channels = 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            x, channels = block(g, x, f"stage{stage}.{i}", channels, 64 << stage, 2 if stage and i == 0 else 1)
    return g.linear(g.global_pool(x), "fc", channels, classes)


def resnet18(g: GraphBuilder, x: str) -> str:
    """Build ResNet-18 for 32 x 32 images: its stem is a 3 x 3 convolution without pooling."""
    return resnet(g, g.relu(conv_bn(g, x, "stem", 3, 64, 3)), basic_block, (2, 2, 2, 2), 10)


def resnet50(g: GraphBuilder, x: str) -> str:
    """Build ResNet-50 for 224 x 224 images: its stem is a 7 x 7 convolution with pooling."""
    return resnet(g, g.max_pool(g.relu(conv_bn(g, x, "stem", 3, 64, 7, 2)), 3, 2, 1), bottleneck, (3, 4, 6, 3), 1000)


def inverted_residual(g: GraphBuilder, x: str, name: str, channels_in: int, channels_out: int, stride: int, expand: int) -> str:
    """Build a 1 x 1 expansion, a 3 x 3 depthwise and a 1 x 1 convolution, added to the input where shapes are equal."""
    middle, y = channels_in * expand, x
    if expand != 1:
        y = g.relu6(conv_bn(g, y, f"{name}.expand", channels_in, middle, 1))
    y = g.relu6(conv_bn(g, y, f"{name}.depthwise", middle, middle, 3, stride, group=middle))
    y = conv_bn(g, y, f"{name}.project", middle, channels_out, 1)
    return g.op("Add", x, y) if stride == 1 and channels_in == channels_out else y


def mobilenetv2(transfer: bool) -> Callable[[GraphBuilder, str], str]:
    """Return a builder of MobileNetV2; with `transfer` only the classifier is trained."""

    def build(g: GraphBuilder, x: str) -> str:
        g.train_weights = not transfer
        x, channels = g.relu6(conv_bn(g, x, "stem", 3, 32, 3, 2)), 32
        stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
        for stage, (expand, width, repeat, stride) in enumerate(stages):
            for i in range(repeat):
                x = inverted_residual(g, x, f"stage{stage}.{i}", channels, width, stride if i == 0 else 1, expand)
                channels = width
        x = g.global_pool(g.relu6(conv_bn(g, x, "head", channels, 1280, 1)))
        g.train_weights = True
        return g.linear(x, "classifier", 1280, 10)

    return build


# ---- transformers

DIM, HEADS, LAYERS, BATCH, SEQUENCE, VOCABULARY = 256, 4, 4, 8, 128, 8192


def attention(g: GraphBuilder, x: str, name: str, causal: bool, batch: int, sequence: int) -> str:
    """Build self-attention with four heads: x [batch, sequence, dim] -> the same shape."""
    head = DIM // HEADS
    split = g.constant("split_heads", [batch, sequence, HEADS, head])
    merge = g.constant("merge_heads", [batch, sequence, DIM])

    def projected(part: str, order: list[int]) -> str:
        return g.op("Transpose", g.op("Reshape", g.dense(x, f"{name}.{part}", DIM, DIM), split), perm=order)

    q, k, v = projected("q", [0, 2, 1, 3]), projected("k", [0, 2, 3, 1]), projected("v", [0, 2, 1, 3])
    scores = g.op("Mul", g.op("MatMul", q, k), g.constant("scale", head ** -0.5, "float32"))
    if causal:
        scores = g.op("Add", scores, g.constant("mask", np.triu(np.full((sequence, sequence), -1e9), 1), "float32"))
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    return g.dense(g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), merge), f"{name}.o", DIM, DIM)


def transformer(causal: bool, batch: int = BATCH, sequence: int = SEQUENCE, layers: int = LAYERS) -> Callable[[GraphBuilder, str], str]:
    """Return a builder of GPT (causal, normalization first, scores for every token) or BERT (normalization last, four classes)."""

    def feed_forward(g: GraphBuilder, x: str, name: str) -> str:
        return g.dense(g.gelu(g.dense(x, f"{name}.f1", DIM, 4 * DIM)), f"{name}.f2", 4 * DIM, DIM)

    def layer(g: GraphBuilder, x: str, name: str) -> str:
        if causal:
            x = g.op("Add", x, attention(g, g.layer_norm(x, f"{name}.n1", DIM), name, causal, batch, sequence))
            return g.op("Add", x, feed_forward(g, g.layer_norm(x, f"{name}.n2", DIM), name))
        x = g.layer_norm(g.op("Add", x, attention(g, x, name, causal, batch, sequence)), f"{name}.n1", DIM)
        return g.layer_norm(g.op("Add", x, feed_forward(g, x, name)), f"{name}.n2", DIM)

    def build(g: GraphBuilder, ids: str) -> str:
        tokens = g.parameter("tokens", g.rng.standard_normal((VOCABULARY, DIM)))
        positions = g.parameter("positions", 0.02 * g.rng.standard_normal((sequence, DIM)))
        x = g.op("Add", g.op("Gather", tokens, ids, axis=0), positions)
        if not causal:
            x = g.layer_norm(x, "norm", DIM)
        for i in range(layers):
            x = layer(g, x, f"layer{i}")
        if causal:
            scores = g.dense(g.layer_norm(x, "norm", DIM), "head", DIM, VOCABULARY, bias=False)
            return g.op("Reshape", scores, g.constant("rows", [-1, VOCABULARY]))
        first = g.op("Gather", x, g.constant("first", 0), axis=1)
        return g.linear(g.op("Tanh", g.linear(first, "pool", DIM, DIM)), "head", DIM, 4)

    return build


# ---- recurrent networks


def lstm(g: GraphBuilder, x: str) -> str:
    """Build an LSTM of 128 units and a dense layer on its last state: x [batch, time, 64] -> [batch, 10]."""
    hidden, size = 128, 64
    weights = [g.uniform(f"rnn.{part}", shape, hidden)
               for part, shape in (("W", (1, 4 * hidden, size)), ("R", (1, 4 * hidden, hidden)), ("B", (1, 8 * hidden)))]
    y = g.op("LSTM", g.op("Transpose", x, perm=[1, 0, 2]), *weights, hidden_size=hidden)
    last = g.op("Squeeze", g.op("Gather", y, g.constant("last", -1), axis=0), g.constant("direction_axis", [0]))
    return g.linear(last, "head", hidden, 10)


WORKLOADS = {
    "mlp-mnist": Workload(mlp(784, 500, 10), (64, 784), 10, 64),
    "mlp-tiny-b1": Workload(mlp(16, 32, 32, 4), (1, 16), 4, 1),
    "mlp-tiny-b16": Workload(mlp(16, 32, 32, 4), (16, 16), 4, 16),
    "mlp-wide": Workload(mlp(1024, 4096, 4096, 1000), (128, 1024), 1000, 128),
    "cnn-lenet": Workload(lenet, (64, 1, 28, 28), 10, 64),
    "resnet18-cifar": Workload(resnet18, (32, 3, 32, 32), 10, 32),
    "mobilenetv2-transfer": Workload(mobilenetv2(transfer=True), (8, 3, 96, 96), 10, 8),
    "mobilenetv2-full": Workload(mobilenetv2(transfer=False), (8, 3, 96, 96), 10, 8),
    "resnet50-224": Workload(resnet50, (4, 3, 224, 224), 1000, 4),
    "bert-mini": Workload(transformer(causal=False), (BATCH, SEQUENCE), 4, BATCH, VOCABULARY),
    "gpt-mini": Workload(transformer(causal=True), (BATCH, SEQUENCE), VOCABULARY, BATCH * SEQUENCE, VOCABULARY),
    "lstm": Workload(lstm, (32, 50, 64), 10, 32),
}
