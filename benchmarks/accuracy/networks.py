"""Networks of the trainings as ONNX graphs, most of whose multiplications suit bfloat16: dense layers, attention and 1 x 1 convolutions."""

from __future__ import annotations

from benchmarks.networks.builder import CLASSES, NetworkBuilder
from benchmarks.networks.transformers import attend, feed_forward, llama, merge_heads, split_heads
from benchmarks.workloads import conv_bn, inverted_residual


def separable(g: NetworkBuilder, batch: int, image: int, width: int, expand: int) -> str:
    """Build an image classifier of inverted residuals (Sandler and others, MobileNetV2, 2018) with batch normalization."""
    x = g.relu6(conv_bn(g, g.input((batch, 1, image, image)), "stem", 1, width, 3))
    for i, (channels_in, channels_out, stride) in enumerate(((width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1))):
        x = inverted_residual(g, x, f"blocks.{i}", channels_in, channels_out, stride, expand)
    return g.linear(g.global_pool(x), "head", 2 * width, CLASSES)


def convnext(g: NetworkBuilder, batch: int, image: int, patch: int, width: int, blocks: int) -> str:
    """Build an image classifier of 7 x 7 depthwise convolutions, each followed by layer normalization and two dense layers (Liu and others, A ConvNet for the
    2020s, 2022), all at the resolution of the patches."""
    x = g.conv(g.input((batch, 1, image, image)), "stem", 1, width, patch, patch, bias=True)
    for i in range(blocks):
        name = f"blocks.{i}"
        y = g.transpose(g.conv(x, f"{name}.depthwise", width, width, 7, pad=3, group=width, bias=True), 0, 2, 3, 1)
        y = feed_forward(g, g.layer_norm(y, f"{name}.norm", width), name, width, 4 * width)
        x = g.op("Add", x, g.transpose(y, 0, 3, 1, 2))
    return g.linear(g.layer_norm(g.mean(x, 2, 3), "norm", width), "head", width, CLASSES)


def encoder(g: NetworkBuilder, batch: int, length: int, vocabulary: int, width: int, heads: int, layers: int, classes: int) -> str:
    """Build a text classifier: a transformer with normalization first, and the mean over all words."""
    shape = (batch, length, width)
    x = g.op("Gather", g.normal("tokens", (vocabulary, width), 0.1), g.input((batch, length), vocabulary), axis=0)
    x = g.op("Add", x, g.normal("positions", (length, width), 0.02))
    for i in range(layers):
        name = f"layers.{i}"
        y = g.layer_norm(x, f"{name}.norm1", width)
        q, k, v = (split_heads(g, g.dense(y, f"{name}.{part}", width, width), heads, shape) for part in "qkv")
        x = g.op("Add", x, g.dense(merge_heads(g, attend(g, q, k, v, 4, width // heads), shape), f"{name}.out", width, width))
        x = g.op("Add", x, feed_forward(g, g.layer_norm(x, f"{name}.norm2", width), name, width, 4 * width))
    return g.linear(g.mean(g.layer_norm(x, "norm", width), 1), "head", width, classes)


def perceptron(g: NetworkBuilder, batch: int, columns: int, width: int, layers: int) -> str:
    """Build a regression of one number from a table: dense layers with ReLU."""
    x, size = g.input((batch, columns)), columns
    for i in range(layers):
        x, size = g.relu(g.linear(x, f"layers.{i}", size, width)), width
    return g.linear(x, "head", size, 1)


def forecaster(g: NetworkBuilder, batch: int, past: int, columns: int, hidden: int, layers: int, ahead: int) -> str:
    """Build LSTM layers over the past, of whose last state a dense layer makes the numbers ahead."""
    x, size, last = g.transpose(g.input((batch, past, columns)), 1, 0, 2), columns, ""
    for layer in range(layers):
        states, last = g.recurrent("LSTM", x, f"layers.{layer}", size, hidden)
        x, size = g.op("Squeeze", states, g.integers(1)), hidden
    return g.linear(g.op("Squeeze", last, g.integers(0)), "head", hidden, ahead)


def decoder(g: NetworkBuilder, batch: int, length: int, vocabulary: int, width: int, heads: int, groups: int, layers: int) -> str:
    """Build a decoder that predicts each next character: scores [batch, length, vocabulary]."""
    return g.reshape(llama(g, batch, length, vocabulary, width, heads, groups, layers), batch, length, vocabulary)
