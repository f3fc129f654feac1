"""Ten networks that were written when the engine was finished, to see how fast networks are that nobody tuned: ONNX graphs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from benchmarks.networks.builder import CLASSES, NetworkBuilder
from benchmarks.networks.transformers import FAR, attend, merge_heads, split_heads
from benchmarks.workloads import conv_bn

NORM_GROUPS, COLORS = 8, 3
MOBILE_BLOCKS = ((1, 1, 3, 1), (2, 6, 3, 2), (2, 6, 3, 1), (3, 6, 5, 2), (3, 6, 5, 1), (5, 6, 5, 2))
"""Width in multiples of the stem's, expansion, kernel and stride."""


def swish(g: NetworkBuilder, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


def convolution(g: NetworkBuilder, x: str, name: str, channels_in: int, channels_out: int, kernel: Sequence[int], stride: Sequence[int] = (),
                group: int = 1, bias: bool = True) -> str:
    """Add a convolution over any number of axes, padded to keep the size."""
    fan_in, pads = channels_in // group * prod(kernel), [size // 2 for size in kernel]
    inputs = [x, g.uniform(f"{name}.weight", (channels_out, channels_in // group, *kernel), fan_in)]
    if bias:
        inputs.append(g.uniform(f"{name}.bias", (channels_out,), fan_in))
    return g.op("Conv", *inputs, kernel_shape=list(kernel), strides=list(stride) or [1] * len(kernel), pads=pads * 2, dilations=[1] * len(kernel), group=group)


def efficientnet(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build inverted bottlenecks with depthwise 3 x 3 and 5 x 5 convolutions, swish and channel gates."""
    x, channels = swish(g, conv_bn(g, g.input((batch, COLORS, image, image)), "stem", COLORS, width, 3, 2)), width
    for i, (multiple, expansion, kernel, stride) in enumerate(MOBILE_BLOCKS):
        name, size, wide = f"blocks.{i}", multiple * width, channels * expansion
        y = swish(g, conv_bn(g, x, f"{name}.expand", channels, wide, 1))
        y = swish(g, conv_bn(g, y, f"{name}.depthwise", wide, wide, kernel, stride, wide))
        gate = swish(g, g.conv(g.op("GlobalAveragePool", y), f"{name}.squeeze", wide, channels // 4, 1, bias=True))
        y = g.op("Mul", y, g.op("Sigmoid", g.conv(gate, f"{name}.excite", channels // 4, wide, 1, bias=True)))
        y = conv_bn(g, y, f"{name}.project", wide, size, 1)
        x, channels = g.op("Add", y, x) if stride == 1 and size == channels else y, size
    x = swish(g, conv_bn(g, x, "last", channels, 4 * channels, 1))
    return g.linear(g.global_pool(x), "head", 4 * channels, CLASSES)


def sinusoids(length: int, width: int) -> np.ndarray:
    """Return the positions of the first transformer: [length, width]."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], 2).reshape(length, width)


def attention(g: NetworkBuilder, x: str, source: str, name: str, shape: tuple[int, ...], heads: int, *biases: str) -> str:
    """Add attention from x to source, both of `shape`, by dense layers q, k, v and out."""
    q, k, v = (split_heads(g, g.dense(y, f"{name}.{part}", shape[-1], shape[-1]), heads, shape) for part, y in zip("qkv", (x, source, source), strict=True))
    return g.dense(merge_heads(g, attend(g, q, k, v, 4, shape[-1] // heads, *biases), shape), f"{name}.out", shape[-1], shape[-1])


def encoder_decoder(g: NetworkBuilder, batch: int, length: int, vocabulary: int, width: int, heads: int, layers: int) -> str:
    """Build the first transformer: normalizations after residuals, ReLU, one table for both embeddings and the scores of all target tokens."""
    ids, shape = g.input((batch, 2, length), vocabulary), (batch, length, width)
    table = g.normal("tokens.weight", (vocabulary, width), width ** -0.5)
    positions = g.constant("positions", sinusoids(length, width), "float32")
    mask = g.constant("mask", np.triu(np.full((length, length), FAR), 1), "float32")

    def embedded(part: int) -> str:
        rows = g.op("Gather", table, g.index(ids, 1, part), axis=0)
        return g.op("Add", g.op("Mul", rows, g.scalar(width ** 0.5)), positions)

    def residual(x: str, y: str, name: str) -> str:
        return g.layer_norm(g.op("Add", x, y), name, width)

    def forward(x: str, name: str) -> str:
        return g.dense(g.relu(g.dense(x, f"{name}.expand", width, 4 * width)), f"{name}.project", 4 * width, width)

    x, y = embedded(0), embedded(1)
    for i in range(layers):
        name = f"encoder.{i}"
        x = residual(x, attention(g, x, x, f"{name}.attention", shape, heads), f"{name}.norm1")
        x = residual(x, forward(x, name), f"{name}.norm2")
    for i in range(layers):
        name = f"decoder.{i}"
        y = residual(y, attention(g, y, y, f"{name}.attention", shape, heads, mask), f"{name}.norm1")
        y = residual(y, attention(g, y, x, f"{name}.cross", shape, heads), f"{name}.norm2")
        y = residual(y, forward(y, name), f"{name}.norm3")
    return g.op("MatMul", g.reshape(y, -1, width), g.transpose(table, 1, 0))


def factorization_machine(g: NetworkBuilder, batch: int, fields: int, bins: int, size: int, hidden: int) -> str:
    """Build a click model (DeepFM): one large table of embeddings, their pairwise products, a linear term, and two dense layers."""
    rows = g.op("Add", g.input((batch, fields), bins), g.constant("offsets", np.arange(fields) * bins))
    vectors, weights = g.embedding(rows, "vectors", fields * bins, size), g.embedding(rows, "weights", fields * bins, 1)
    total = g.sum(vectors, 1)
    squares = g.sum(g.op("Mul", vectors, vectors), 1)
    pairs = g.op("Mul", g.sum(g.op("Sub", g.op("Mul", total, total), squares), 1, keepdims=1), g.scalar(0.5))
    x = g.relu(g.linear(g.reshape(vectors, batch, fields * size), "first", fields * size, hidden))
    x = g.relu(g.linear(x, "second", hidden, hidden))
    score = g.op("Add", g.op("Add", g.sum(weights, 1), pairs), g.linear(x, "third", hidden, 1))
    return g.concat(1, score, g.op("Neg", score))


def super_resolution(g: NetworkBuilder, batch: int, image: int, width: int, blocks: int) -> str:
    """Build residual blocks without normalization and an enlargement by shuffled pixels."""
    first = x = g.conv(g.input((batch, COLORS, image, image)), "stem", COLORS, width, 3, pad=1, bias=True)
    for i in range(blocks):
        y = g.relu(g.conv(x, f"blocks.{i}.first", width, width, 3, pad=1, bias=True))
        x = g.op("Add", x, g.op("Mul", g.conv(y, f"blocks.{i}.second", width, width, 3, pad=1, bias=True), g.scalar(0.1)))
    x = g.op("Add", g.conv(x, "body", width, width, 3, pad=1, bias=True), first)
    x = g.op("DepthToSpace", g.conv(x, "up", width, 4 * width, 3, pad=1, bias=True), blocksize=2, mode="CRD")
    return g.conv(x, "head", width, COLORS, 3, pad=1, bias=True)


def conformer(g: NetworkBuilder, batch: int, frames: int, bands: int, width: int, heads: int, layers: int, kernel: int) -> str:
    """Build blocks of attention and of gated, depthwise convolutions over time between halves of dense layers: scores for every frame."""
    shape, x = (batch, frames, width), g.dense(g.input((batch, frames, bands)), "stem", bands, width)

    def half_step(x: str, name: str) -> str:
        y = swish(g, g.dense(g.layer_norm(x, f"{name}.norm", width), f"{name}.expand", width, 4 * width))
        return g.op("Add", x, g.op("Mul", g.dense(y, f"{name}.project", 4 * width, width), g.scalar(0.5)))

    def convolve(x: str, name: str) -> str:
        y = g.transpose(g.layer_norm(x, f"{name}.norm", width), 0, 2, 1)
        content, gate = g.split(convolution(g, y, f"{name}.expand", width, 2 * width, (1,)), 1, width, width)
        y = convolution(g, g.op("Mul", content, g.op("Sigmoid", gate)), f"{name}.depthwise", width, width, (kernel,), group=width)
        y = convolution(g, swish(g, g.batch_norm(y, f"{name}.batch_norm", width)), f"{name}.project", width, width, (1,))
        return g.op("Add", x, g.transpose(y, 0, 2, 1))

    for i in range(layers):
        name = f"layers.{i}"
        x = half_step(x, f"{name}.before")
        y = g.layer_norm(x, f"{name}.attention_norm", width)
        x = convolve(g.op("Add", x, attention(g, y, y, f"{name}.attention", shape, heads)), f"{name}.convolution")
        x = g.layer_norm(half_step(x, f"{name}.after"), f"{name}.norm", width)
    return g.reshape(g.dense(x, "head", width, CLASSES), -1, CLASSES)


def pointnet(g: NetworkBuilder, batch: int, points: int, width: int) -> str:
    """Build layers that all points of a cloud share, the maximum over the points, and a classifier."""
    x, channels = g.input((batch, 3, points)), 3
    for i, size in enumerate((width, 2 * width, 8 * width)):
        x, channels = g.relu(g.batch_norm(convolution(g, x, f"shared.{i}", channels, size, (1,)), f"shared_norms.{i}", size)), size
    x = g.op("ReduceMax", x, axes=[2], keepdims=0)
    x = g.relu(g.batch_norm(g.linear(x, "dense", channels, 4 * width), "dense_norm", 4 * width))
    return g.linear(x, "head", 4 * width, CLASSES)


def video(g: NetworkBuilder, batch: int, frames: int, image: int, width: int) -> str:
    """Build residual blocks over clips: whole 3 x 3 x 3 kernels first, then such as are split into one over the image and one over time."""
    def unit(x: str, name: str, size_in: int, size: int, kernel: Sequence[int], stride: Sequence[int] = ()) -> str:
        return g.batch_norm(convolution(g, x, f"{name}.conv", size_in, size, kernel, stride, bias=False), f"{name}.bn", size)

    x, channels = g.relu(unit(g.input((batch, COLORS, frames, image, image)), "stem", COLORS, width, (3, 3, 3), (1, 2, 2))), width
    y = g.relu(unit(x, "whole.first", width, width, (3, 3, 3)))
    x = g.relu(g.op("Add", x, unit(y, "whole.second", width, width, (3, 3, 3))))
    for i in range(2):
        name, size = f"split.{i}", 2 * channels
        y = g.relu(unit(x, f"{name}.image", channels, size, (1, 3, 3), (1, 2, 2)))
        y = unit(y, f"{name}.time", size, size, (3, 1, 1), (2, 1, 1))
        x, channels = g.relu(g.op("Add", y, unit(x, f"{name}.short", channels, size, (1, 1, 1), (2, 2, 2)))), size
    return g.linear(g.global_pool(x), "head", channels, CLASSES)


def generator(g: NetworkBuilder, batch: int, latent: int, width: int) -> str:
    """Build an image of 32 x 32 from numbers by transposed convolutions (DCGAN)."""
    x = g.reshape(g.linear(g.input((batch, latent)), "project", latent, 4 * width * 16), batch, 4 * width, 4, 4)
    x, channels = g.relu(g.batch_norm(x, "norm", 4 * width)), 4 * width
    for i in range(2):
        x, channels = g.conv_transpose(x, f"up.{i}", channels, channels // 2, 4, 2, 1), channels // 2
        x = g.op("LeakyRelu", g.batch_norm(x, f"norms.{i}", channels), alpha=0.2)
    return g.op("Tanh", g.conv_transpose(x, "last", channels, COLORS, 4, 2, 1))


def radiance_field(g: NetworkBuilder, batch: int, frequencies: int, width: int, layers: int) -> str:
    """Build color and density at points of a scene, from sines and cosines of their coordinates (NeRF): the input enters again halfway."""
    x = g.input((batch, 3))
    powers = g.reshape(g.op("Mul", g.op("Unsqueeze", x, g.integers(2)), g.constant("powers", 2.0 ** np.arange(frequencies), "float32")), batch, 3 * frequencies)
    encoded, size = g.concat(1, x, g.op("Sin", powers), g.op("Cos", powers)), 3 + 6 * frequencies
    y, wide = encoded, size
    for i in range(layers):
        y, wide = g.relu(g.linear(y, f"layers.{i}", wide, width)), width
        if i == layers // 2:
            y, wide = g.concat(1, y, encoded), width + size
    density, color = g.op("Softplus", g.linear(y, "density", wide, 1)), g.op("Sigmoid", g.linear(y, "color", wide, COLORS))
    return g.concat(1, color, density)


def group_norm(g: NetworkBuilder, x: str, name: str, channels: int, shape: tuple[int, ...]) -> str:
    """Add a group normalization as torch exports it: instance normalization of reshaped images."""
    ones, zeros = g.constant("ones", np.ones(NORM_GROUPS), "float32"), g.constant("zeros", np.zeros(NORM_GROUPS), "float32")
    y = g.op("InstanceNormalization", g.reshape(x, 0, NORM_GROUPS, -1), ones, zeros, epsilon=1e-5)
    weight, bias = g.parameter(f"{name}.weight", np.ones(channels)), g.parameter(f"{name}.bias", np.zeros(channels))
    scaled = g.op("Mul", g.reshape(y, *shape), g.op("Unsqueeze", weight, g.integers(1, 2)))
    return g.op("Add", scaled, g.op("Unsqueeze", bias, g.integers(1, 2)))


def diffusion(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build the noise of images, as diffusion models have it: a U-Net with group normalization, swish, an embedding added to channels, and attention."""
    x = g.input((batch, COLORS, image, image))
    time = swish(g, g.linear(g.mean(x, 2, 3), "time", COLORS, 4 * width))

    def block(x: str, name: str, size_in: int, size: int, side: int) -> str:
        y = swish(g, group_norm(g, x, f"{name}.norm1", size_in, (batch, size_in, side, side)))
        y = g.conv(y, f"{name}.conv1", size_in, size, 3, pad=1, bias=True)
        y = g.op("Add", y, g.op("Unsqueeze", g.linear(time, f"{name}.time", 4 * width, size), g.integers(2, 3)))
        y = swish(g, group_norm(g, y, f"{name}.norm2", size, (batch, size, side, side)))
        y = g.conv(y, f"{name}.conv2", size, size, 3, pad=1, bias=True)
        return g.op("Add", y, x if size == size_in else g.conv(x, f"{name}.short", size_in, size, 1, bias=True))

    def attend_to_pixels(x: str, size: int, side: int) -> str:
        y = group_norm(g, x, "attention_norm", size, (batch, size, side, side))
        y = g.transpose(g.reshape(y, batch, size, side * side), 0, 2, 1)
        y = attention(g, y, y, "attention", (batch, side * side, size), 1)
        return g.op("Add", x, g.reshape(g.transpose(y, 0, 2, 1), batch, size, side, side))

    first = block(g.conv(x, "stem", COLORS, width, 3, pad=1, bias=True), "first", width, width, image)
    x = g.conv(first, "down", width, width, 3, 2, 1, bias=True)
    x = block(x, "second", width, 2 * width, image // 2)
    x = block(attend_to_pixels(x, 2 * width, image // 2), "third", 2 * width, 2 * width, image // 2)
    x = g.concat(1, g.conv(g.resize(x, 2), "up", 2 * width, width, 3, pad=1, bias=True), first)
    x = block(x, "last", 2 * width, width, image)
    return g.conv(swish(g, group_norm(g, x, "norm", width, (batch, width, image, image))), "head", width, COLORS, 3, pad=1, bias=True)
