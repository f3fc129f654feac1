"""Transformers and the MLP-Mixer as ONNX graphs."""

from __future__ import annotations

import numpy as np

from benchmarks.networks.builder import CLASSES, NetworkBuilder

FAR = -1e9
"""Added to the scores of pairs that must not attend to each other."""


def split_heads(g: NetworkBuilder, x: str, heads: int, shape: tuple[int, ...]) -> str:
    """Return [..., heads, tokens, size] of x [..., tokens, heads * size], where `shape` is that of x."""
    rank = len(shape)
    y = g.reshape(x, *shape[:-1], heads, shape[-1] // heads)
    return g.transpose(y, *range(rank - 2), rank - 1, rank - 2, rank)


def merge_heads(g: NetworkBuilder, x: str, shape: tuple[int, ...]) -> str:
    """Return the reverse of split_heads."""
    rank = len(shape)
    return g.reshape(g.transpose(x, *range(rank - 2), rank - 1, rank - 2, rank), *shape)


def attend(g: NetworkBuilder, q: str, k: str, v: str, rank: int, size: int, *biases: str) -> str:
    """Return softmax(q · kᵀ / √size + biases) · v of q, k, v [..., heads, tokens, size]."""
    scores = g.op("Mul", g.op("MatMul", q, g.transpose(k, *range(rank - 2), rank - 1, rank - 2)), g.scalar(size ** -0.5))
    for bias in biases:
        scores = g.op("Add", scores, bias)
    return g.op("MatMul", g.op("Softmax", scores, axis=-1), v)


def patches(g: NetworkBuilder, batch: int, image: int, patch: int, width: int) -> tuple[str, int]:
    """Return ([batch, tokens, width], tokens) of the image's patches."""
    x = g.conv(g.input((batch, 3, image, image)), "patch", 3, width, patch, patch, bias=True)
    tokens = (image // patch) ** 2
    return g.transpose(g.reshape(x, batch, width, tokens), 0, 2, 1), tokens


def feed_forward(g: NetworkBuilder, x: str, name: str, size: int, hidden: int) -> str:
    return g.dense(g.gelu(g.dense(x, f"{name}.expand", size, hidden)), f"{name}.project", hidden, size)


def vision_transformer(g: NetworkBuilder, batch: int, image: int, patch: int, width: int, heads: int, layers: int) -> str:
    """Build a transformer over patches with a class token; queries, keys and values come from one dense layer."""
    x, tokens = patches(g, batch, image, patch, width)
    first = g.op("Expand", g.normal("class_token", (1, 1, width), 0.02), g.integers(batch, 1, width))
    x = g.op("Add", g.concat(1, first, x), g.normal("positions", (1, tokens + 1, width), 0.02))
    shape = (batch, tokens + 1, width)
    for i in range(layers):
        name = f"layers.{i}"
        projected = g.dense(g.layer_norm(x, f"{name}.norm1", width), f"{name}.qkv", width, 3 * width)
        stacked = g.transpose(g.reshape(projected, *shape[:2], 3, heads, width // heads), 2, 0, 3, 1, 4)
        mixed = attend(g, *(g.index(stacked, 0, part) for part in range(3)), 4, width // heads)
        x = g.op("Add", x, g.dense(merge_heads(g, mixed, shape), f"{name}.out", width, width))
        x = g.op("Add", x, feed_forward(g, g.layer_norm(x, f"{name}.norm2", width), name, width, 4 * width))
    return g.linear(g.index(g.layer_norm(x, "norm", width), 1, 0), "head", width, CLASSES)


def relative_positions(window: int) -> np.ndarray:
    """Return, for every pair of a window's tokens, the row of the table of relative positions: [window⁴]."""
    rows, columns = np.divmod(np.arange(window * window), window)
    return ((rows[:, None] - rows + window - 1) * (2 * window - 1) + columns[:, None] - columns + window - 1).reshape(-1)


def shifted_mask(side: int, window: int) -> np.ndarray:
    """Return what is added to the scores so that tokens from opposite borders of a shifted image do not attend to each other: [windows, 1, w², w²]."""
    border = np.repeat(np.arange(3), (side - window, window - window // 2, window // 2))
    regions = (3 * border[:, None] + border).reshape(side // window, window, side // window, window)
    regions = regions.transpose(0, 2, 1, 3).reshape(-1, window * window)
    return np.where(regions[:, :, None] == regions[:, None, :], 0, FAR)[:, None]


def window_attention(g: NetworkBuilder, x: str, name: str, batch: int, side: int, width: int, heads: int, window: int, shift: int) -> str:
    """Build attention within windows of an image x [batch, side, side, width] that is rolled by `shift` on both axes before and back after."""
    def roll(y: str, amount: int) -> str:
        for axis in (1, 2):
            y = g.concat(axis, g.slice(y, axis, amount, side), g.slice(y, axis, 0, amount))
        return y

    count, tokens = side // window, window * window
    shape = (batch, count * count, tokens, width)
    x = g.reshape(roll(x, shift) if shift else x, batch, count, window, count, window, width)
    x = g.reshape(g.transpose(x, 0, 1, 3, 2, 4, 5), *shape)
    q, k, v = (split_heads(g, g.dense(x, f"{name}.{part}", width, width), heads, shape) for part in "qkv")
    table = g.normal(f"{name}.relative", ((2 * window - 1) ** 2, heads), 0.02)
    bias = g.op("Gather", table, g.constant(f"relative_{window}", relative_positions(window)), axis=0)
    biases = [g.transpose(g.reshape(bias, tokens, tokens, heads), 2, 0, 1)]
    if shift:
        biases.append(g.constant(f"mask_{side}_{window}", shifted_mask(side, window), "float32"))
    y = g.dense(merge_heads(g, attend(g, q, k, v, 5, width // heads, *biases), shape), f"{name}.out", width, width)
    y = g.transpose(g.reshape(y, batch, count, count, window, window, width), 0, 1, 3, 2, 4, 5)
    y = g.reshape(y, batch, side, side, width)
    return roll(y, side - shift) if shift else y


def swin(g: NetworkBuilder, batch: int, image: int, patch: int, width: int, heads: int, window: int) -> str:
    """Build two stages of two layers with attention in windows, every second shifted, and merged patches between the stages."""
    x, _ = patches(g, batch, image, patch, width)
    side = image // patch
    x = g.reshape(g.layer_norm(x, "patch_norm", width), batch, side, side, width)
    for stage in range(2):
        for i in range(2):
            name = f"stages.{stage}.{i}"
            shift = window // 2 if i and side > window else 0
            y = window_attention(g, g.layer_norm(x, f"{name}.norm1", width), f"{name}.attention", batch, side, width, heads, window, shift)
            x = g.op("Add", x, y)
            x = g.op("Add", x, feed_forward(g, g.layer_norm(x, f"{name}.norm2", width), name, width, 4 * width))
        if stage == 0:
            parts = [g.slice(g.slice(x, 1, row, side, 2), 2, column, side, 2) for column in (0, 1) for row in (0, 1)]
            x = g.dense(g.layer_norm(g.concat(3, *parts), "merge_norm", 4 * width), "merge", 4 * width, 2 * width, bias=False)
            side, width, heads = side // 2, 2 * width, 2 * heads
    return g.linear(g.mean(g.layer_norm(x, "norm", width), 1, 2), "head", width, CLASSES)


def rms_norm(g: NetworkBuilder, x: str, name: str, size: int) -> str:
    """Build x / √(mean(x²) + ε) · weight."""
    root = g.op("Sqrt", g.op("Add", g.mean(g.op("Pow", x, g.scalar(2)), -1, keepdims=1), g.scalar(1e-6)))
    return g.op("Mul", g.parameter(f"{name}.weight", np.ones(size)), g.op("Mul", x, g.op("Div", g.scalar(1), root)))


def rotate(g: NetworkBuilder, x: str, length: int, size: int) -> str:
    """Build rotary positions: x · cos + (-x₂, x₁) · sin."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    cos, sin = (g.constant(name, np.tile(part, 2), "float32") for name, part in (("cos", np.cos(angles)), ("sin", np.sin(angles))))
    turned = g.concat(-1, g.op("Neg", g.slice(x, 3, size // 2, size)), g.slice(x, 3, 0, size // 2))
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))


def llama(g: NetworkBuilder, batch: int, length: int, vocabulary: int, width: int, heads: int, groups: int, layers: int) -> str:
    """Build a decoder with RMS normalization, rotary positions, gated layers, and `heads` query heads on `groups` key and value heads."""
    size = width // heads
    x = g.embedding(g.input((batch, length), vocabulary), "tokens", vocabulary, width)
    mask = g.constant("mask", np.triu(np.full((length, length), FAR), 1), "float32")

    def repeated(y: str) -> str:
        y = g.op("Expand", g.op("Unsqueeze", y, g.integers(2)), g.integers(batch, groups, heads // groups, length, size))
        return g.reshape(y, batch, heads, length, size)

    for i in range(layers):
        name = f"layers.{i}"
        y = rms_norm(g, x, f"{name}.norm1", width)
        q = split_heads(g, g.dense(y, f"{name}.q", width, width, bias=False), heads, (batch, length, width))
        k, v = (split_heads(g, g.dense(y, f"{name}.{part}", width, groups * size, bias=False), groups, (batch, length, groups * size)) for part in "kv")
        mixed = attend(g, rotate(g, q, length, size), repeated(rotate(g, k, length, size)), repeated(v), 4, size, mask)
        x = g.op("Add", x, g.dense(merge_heads(g, mixed, (batch, length, width)), f"{name}.out", width, width, bias=False))
        y = rms_norm(g, x, f"{name}.norm2", width)
        gate = g.dense(y, f"{name}.gate", width, 3 * width, bias=False)
        gated = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), g.dense(y, f"{name}.up", width, 3 * width, bias=False))
        x = g.op("Add", x, g.dense(gated, f"{name}.down", 3 * width, width, bias=False))
    return g.reshape(g.dense(rms_norm(g, x, "norm", width), "head", width, vocabulary, bias=False), -1, vocabulary)


def mixer(g: NetworkBuilder, batch: int, image: int, patch: int, width: int, layers: int) -> str:
    """Build dense layers over tokens and over channels in turn."""
    x, tokens = patches(g, batch, image, patch, width)
    for i in range(layers):
        name = f"layers.{i}"
        y = feed_forward(g, g.transpose(g.layer_norm(x, f"{name}.norm1", width), 0, 2, 1), f"{name}.tokens", tokens, width // 2)
        x = g.op("Add", x, g.transpose(y, 0, 2, 1))
        x = g.op("Add", x, feed_forward(g, g.layer_norm(x, f"{name}.norm2", width), f"{name}.channels", width, 4 * width))
    return g.linear(g.mean(g.layer_norm(x, "norm", width), 1), "head", width, CLASSES)
