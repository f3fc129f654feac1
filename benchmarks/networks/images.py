"""Image classifiers and a spectrogram classifier as ONNX graphs."""

from __future__ import annotations

from benchmarks.networks.builder import CLASSES, NetworkBuilder
from benchmarks.workloads import conv_bn


def squeeze_excitation(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build residual blocks whose channels are scaled by a gate computed from their means."""
    x, channels = g.relu(conv_bn(g, g.input((batch, 3, image, image)), "stem", 3, width, 3)), width
    for i, (size, stride) in enumerate(((width, 1), (2 * width, 2), (4 * width, 2))):
        name = f"blocks.{i}"
        y = conv_bn(g, g.relu(conv_bn(g, x, f"{name}.first", channels, size, 3, stride)), f"{name}.second", size, size, 3)
        gate = g.relu(g.conv(g.op("GlobalAveragePool", y), f"{name}.squeeze", size, size // 4, 1, bias=True))
        y = g.op("Mul", y, g.op("Sigmoid", g.conv(gate, f"{name}.excite", size // 4, size, 1, bias=True)))
        short = x if stride == 1 else conv_bn(g, x, f"{name}.short", channels, size, 1, stride)
        x, channels = g.relu(g.op("Add", y, short)), size
    return g.linear(g.global_pool(x), "head", channels, CLASSES)


def densenet(g: NetworkBuilder, batch: int, image: int, growth: int) -> str:
    """Build three blocks of four layers; each layer reads the outputs of all layers before it in its block."""
    channels = 2 * growth
    x = g.conv(g.input((batch, 3, image, image)), "stem", 3, channels, 3, pad=1)
    for block in range(3):
        for i in range(4):
            name = f"blocks.{block}.{i}"
            y = g.conv(g.relu(g.batch_norm(x, f"{name}.bn1", channels)), f"{name}.conv1", channels, 4 * growth, 1)
            y = g.conv(g.relu(g.batch_norm(y, f"{name}.bn2", 4 * growth)), f"{name}.conv2", 4 * growth, growth, 3, pad=1)
            x, channels = g.concat(1, x, y), channels + growth
        if block < 2:
            x = g.conv(g.relu(g.batch_norm(x, f"transitions.{block}.bn", channels)), f"transitions.{block}.conv", channels, channels // 2, 1)
            x, channels = g.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), channels // 2
    return g.linear(g.global_pool(g.relu(g.batch_norm(x, "norm", channels))), "head", channels, CLASSES)


def inception(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build three modules of four branches: 1 x 1, 3 x 3, 5 x 5 convolutions and pooling."""
    x, channels = g.max_pool(g.relu(conv_bn(g, g.input((batch, 3, image, image)), "stem", 3, 2 * width, 3)), 3, 2, 1), 2 * width
    for i in range(3):
        name = f"blocks.{i}"

        def unit(source: str, part: str, size_in: int, size_out: int, kernel: int, name: str = name) -> str:
            return g.relu(conv_bn(g, source, f"{name}.{part}", size_in, size_out, kernel))

        branches = [unit(x, "one", channels, 2 * width, 1),
                    unit(unit(x, "three_reduce", channels, width, 1), "three", width, 2 * width, 3),
                    unit(unit(x, "five_reduce", channels, width // 2, 1), "five", width // 2, width, 5),
                    unit(g.max_pool(x, 3, 1, 1), "pool", channels, width, 1)]
        x, channels = g.concat(1, *branches), 6 * width
        if i == 1:
            x = g.max_pool(x, 3, 2, 1)
    return g.linear(g.global_pool(x), "head", channels, CLASSES)


def convnext(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build two stages of 7 x 7 depthwise convolutions followed by layer normalization and two dense layers, channels last."""
    def normalize(x: str, name: str, size: int) -> str:
        return g.transpose(g.layer_norm(g.transpose(x, 0, 2, 3, 1), name, size), 0, 3, 1, 2)

    x = normalize(g.conv(g.input((batch, 3, image, image)), "stem", 3, width, 4, 4, bias=True), "stem_norm", width)
    for stage in range(2):
        for i in range(2):
            name = f"stages.{stage}.{i}"
            y = g.transpose(g.conv(x, f"{name}.depthwise", width, width, 7, pad=3, group=width, bias=True), 0, 2, 3, 1)
            y = g.dense(g.gelu(g.dense(g.layer_norm(y, f"{name}.norm", width), f"{name}.expand", width, 4 * width)), f"{name}.project", 4 * width, width)
            y = g.op("Mul", y, g.normal(f"{name}.scale", (width,), 0.1))
            x = g.op("Add", x, g.transpose(y, 0, 3, 1, 2))
        if stage == 0:
            x, width = g.conv(normalize(x, "down_norm", width), "down", width, 2 * width, 2, 2, bias=True), 2 * width
    return g.linear(g.layer_norm(g.mean(x, 2, 3), "norm", width), "head", width, CLASSES)


def resnext(g: NetworkBuilder, batch: int, image: int, width: int, groups: int) -> str:
    """Build bottleneck blocks with grouped 3 x 3 convolutions."""
    x, channels = g.relu(conv_bn(g, g.input((batch, 3, image, image)), "stem", 3, width, 3)), width
    for i, (size, stride) in enumerate(((width, 1), (2 * width, 2), (4 * width, 2))):
        name = f"blocks.{i}"
        y = g.relu(conv_bn(g, x, f"{name}.reduce", channels, size, 1))
        y = g.relu(conv_bn(g, y, f"{name}.grouped", size, size, 3, stride, groups))
        y = conv_bn(g, y, f"{name}.expand", size, 2 * size, 1)
        x, channels = g.relu(g.op("Add", y, conv_bn(g, x, f"{name}.short", channels, 2 * size, 1, stride))), 2 * size
    return g.linear(g.global_pool(x), "head", channels, CLASSES)


def shufflenet(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build ShuffleNet V2 units: half of the channels pass through, then channels are shuffled."""
    def branch(x: str, name: str, size_in: int, size: int, stride: int) -> str:
        y = g.relu(conv_bn(g, x, f"{name}.first", size_in, size, 1))
        y = conv_bn(g, y, f"{name}.depthwise", size, size, 3, stride, size)
        return g.relu(conv_bn(g, y, f"{name}.last", size, size, 1))

    x, channels = g.relu(conv_bn(g, g.input((batch, 3, image, image)), "stem", 3, width, 3, 2)), width
    side = image // 2
    for stage in range(2):
        for i in range(3):
            name, half = f"units.{3 * stage + i}", (channels if i == 0 else channels // 2)
            if i == 0:
                side = (side + 1) // 2
                left = conv_bn(g, x, f"{name}.short_depthwise", half, half, 3, 2, half)
                left, right = g.relu(conv_bn(g, left, f"{name}.short", half, half, 1)), branch(x, f"{name}.branch", half, half, 2)
                channels *= 2
            else:
                left, right = g.split(x, 1, half, half)
                right = branch(right, f"{name}.branch", half, half, 1)
            x = g.transpose(g.reshape(g.concat(1, left, right), batch, 2, channels // 2, side, side), 0, 2, 1, 3, 4)
            x = g.reshape(x, batch, channels, side, side)
    return g.linear(g.global_pool(x), "head", channels, CLASSES)


def spectrogram(g: NetworkBuilder, batch: int, bands: int, frames: int, width: int) -> str:
    """Build four 3 x 3 convolutions with pooling over spectrograms of odd sizes, and the mean over time of the flattened bands."""
    x, channels = g.input((batch, 1, bands, frames)), 1
    for i in range(4):
        x = g.relu(conv_bn(g, x, f"layers.{i}", channels, width * (i + 1), 3))
        if i < 3:
            x, bands = g.max_pool(x, 2, 2), bands // 2
        channels = width * (i + 1)
    return g.linear(g.op("Flatten", g.mean(x, 3), axis=1), "head", channels * bands, CLASSES)
