"""Networks with an output per pixel or per anchor as ONNX graphs."""

from __future__ import annotations

from benchmarks.networks.builder import CLASSES, NetworkBuilder
from benchmarks.workloads import conv_bn

ANCHORS, BOX = 3, 4


def unet(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build two levels down and up with skip connections; the first enlargement is nearest, the second bilinear. Scores for every pixel."""
    def double(x: str, name: str, size_in: int, size: int) -> str:
        return g.relu(conv_bn(g, g.relu(conv_bn(g, x, f"{name}.0", size_in, size, 3)), f"{name}.1", size, size, 3))

    first = double(g.input((batch, 3, image, image)), "first", 3, width)
    second = double(g.max_pool(first, 2, 2), "second", width, 2 * width)
    x = double(g.max_pool(second, 2, 2), "bottom", 2 * width, 4 * width)
    x = double(g.concat(1, g.resize(x, 2), second), "up_second", 6 * width, 2 * width)
    x = double(g.concat(1, g.resize(x, 2, linear=True), first), "up_first", 3 * width, width)
    return g.conv(x, "head", width, CLASSES, 1, bias=True)


def feature_pyramid(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build four levels, a top-down path of width 2 * width, and scores for every fourth pixel from the sum of all levels."""
    x, channels, laterals = g.relu(conv_bn(g, g.input((batch, 3, image, image)), "stem", 3, width, 3, 2)), width, []
    for i in range(4):
        size = width << min(i, 2)
        x, channels = g.relu(conv_bn(g, x, f"levels.{i}", channels, size, 3, 2)), size
        laterals.append(g.conv(x, f"laterals.{i}", channels, 2 * width, 1, bias=True))
    merged = [laterals[-1]]
    for lateral in reversed(laterals[:-1]):
        merged.insert(0, g.op("Add", lateral, g.resize(merged[0], 2)))
    total = ""
    for i, level in enumerate(merged):
        smooth = g.relu(g.conv(level, f"smooth.{i}", 2 * width, 2 * width, 3, pad=1, bias=True))
        total = g.op("Add", total, g.resize(smooth, 1 << i)) if i else smooth
    return g.conv(total, "head", 2 * width, CLASSES, 1, bias=True)


def single_shot_detector(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build three scales with class and box heads: [batch, anchors of all scales, classes + 4]."""
    x, channels = g.relu(conv_bn(g, g.input((batch, 3, image, image)), "stem", 3, width, 3, 2)), width
    scores, boxes = [], []
    for i in range(3):
        x = g.relu(conv_bn(g, x, f"scales.{i}.down", channels, 2 * channels, 3, 2))
        channels *= 2
        x = g.relu(conv_bn(g, x, f"scales.{i}.same", channels, channels, 3))
        for part, size, found in (("class", CLASSES, scores), ("box", BOX, boxes)):
            y = g.conv(x, f"scales.{i}.{part}", channels, ANCHORS * size, 3, pad=1, bias=True)
            found.append(g.reshape(g.transpose(y, 0, 2, 3, 1), batch, -1, size))
    return g.concat(2, g.concat(1, *scores), g.concat(1, *boxes))


def autoencoder(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build two convolutions with stride 2 to a code, and two transposed ones back to an image."""
    side = image // 4
    x = g.relu(g.conv(g.input((batch, 1, image, image)), "down1", 1, width, 3, 2, 1, bias=True))
    x = g.relu(g.conv(x, "down2", width, 2 * width, 3, 2, 1, bias=True))
    code = g.linear(g.op("Flatten", x, axis=1), "encode", 2 * width * side * side, width)
    x = g.reshape(g.relu(g.linear(code, "decode", width, 2 * width * side * side)), batch, 2 * width, side, side)
    x = g.relu(g.conv_transpose(x, "up1", 2 * width, width, 4, 2, 1))
    return g.op("Sigmoid", g.conv_transpose(x, "up2", width, 1, 4, 2, 1))
