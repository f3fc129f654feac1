"""The workloads as torch modules, with the layers of the ONNX graphs in benchmarks/workloads.py and weights from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Stages of MobileNetV2: expansion, width, repetitions, stride."""


def conv_bn(channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution without bias, padded to keep the size, and a batch normalization."""
    return [nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(channels_out)]


class Residual(nn.Module):
    """relu(body(x) + shortcut(x))"""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def residual(channels_in: int, width: int, stride: int, bottleneck: bool) -> Residual:
    """Return a block of ResNet."""
    channels_out = width * 4 if bottleneck else width
    if bottleneck:
        layers = [*conv_bn(channels_in, width, 1), nn.ReLU(), *conv_bn(width, width, 3, stride), nn.ReLU(), *conv_bn(width, channels_out, 1)]
    else:
        layers = [*conv_bn(channels_in, width, 3, stride), nn.ReLU(), *conv_bn(width, width, 3)]
    same_shape = stride == 1 and channels_in == channels_out
    return Residual(nn.Sequential(*layers), None if same_shape else nn.Sequential(*conv_bn(channels_in, channels_out, 1, stride)))


def resnet(bottleneck: bool, depths: Sequence[int], stem: list[nn.Module], classes: int) -> nn.Module:
    """Return four stages of blocks after the stem, then pooling and a dense layer."""
    layers, channels = list(stem), 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            layers.append(residual(channels, 64 << stage, 2 if stage and i == 0 else 1, bottleneck))
            channels = (64 << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class InvertedResidual(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expand: int) -> None:
        super().__init__()
        middle = channels_in * expand
        layers = [*conv_bn(channels_in, middle, 1), nn.ReLU6()] if expand != 1 else []
        layers += [*conv_bn(middle, middle, 3, stride, groups=middle), nn.ReLU6(), *conv_bn(middle, channels_out, 1)]
        self.body, self.adds = nn.Sequential(*layers), stride == 1 and channels_in == channels_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class MobileNet(nn.Module):
    """MobileNetV2. With `transfer` the trunk is frozen and runs in inference mode."""

    def __init__(self, transfer: bool, classes: int = 10) -> None:
        super().__init__()
        layers, channels = [*conv_bn(3, 32, 3, 2), nn.ReLU6()], 32
        for expand, width, repeat, stride in BLOCKS:
            for i in range(repeat):
                layers.append(InvertedResidual(channels, width, stride if i == 0 else 1, expand))
                channels = width
        self.trunk = nn.Sequential(*layers, *conv_bn(channels, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(1280, classes)
        if transfer:
            self.trunk.requires_grad_(False).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.trunk(x))


class Attention(nn.Module):
    """Self-attention, with `fused` by torch's scaled_dot_product_attention."""

    def __init__(self, dim: int, heads: int, sequence: int, causal: bool, fused: bool) -> None:
        super().__init__()
        self.heads, self.size, self.causal, self.fused = heads, dim // heads, causal, fused
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        if causal:
            self.register_buffer("mask", torch.triu(torch.full((sequence, sequence), -1e9), 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, dim = x.shape
        q, k, v = (part(x).view(n, length, self.heads, self.size).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) * self.size ** -0.5
            mixed = torch.matmul(torch.softmax(scores + self.mask if self.causal else scores, -1), v)
        return self.o(mixed.transpose(1, 2).reshape(n, length, dim))


class Layer(nn.Module):
    """A transformer layer: normalization first for GPT (causal), last for BERT."""

    def __init__(self, dim: int, heads: int, sequence: int, causal: bool, fused: bool) -> None:
        super().__init__()
        self.attention, self.causal = Attention(dim, heads, sequence, causal, fused), causal
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.causal:
            x = x + self.attention(self.n1(x))
            return x + self.feed_forward(self.n2(x))
        x = self.n1(x + self.attention(x))
        return self.n2(x + self.feed_forward(x))


class Transformer(nn.Module):
    """GPT (causal, scores for every token) or BERT (four classes)."""

    def __init__(self, causal: bool, fused: bool, dim: int = 256, heads: int = 4, layers: int = 4, sequence: int = 128, vocabulary: int = 8192) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.positions = nn.Embedding(vocabulary, dim), nn.Parameter(torch.randn(sequence, dim) * 0.02)
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.Sequential(*(Layer(dim, heads, sequence, causal, fused) for _ in range(layers)))
        self.head = nn.Linear(dim, vocabulary, bias=False) if causal else nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions
        if self.causal:
            return self.head(self.norm(self.layers(x))).flatten(0, 1)
        return self.head(self.layers(self.norm(x))[:, 0])


class Lstm(nn.Module):
    """An LSTM of 128 units and a dense layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def mlp(*sizes: int) -> nn.Module:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for size_in, size_out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet() -> nn.Module:
    """Return two 5 x 5 convolutions with pooling and two dense layers."""
    return nn.Sequential(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))


def build(workload: str, fused_attention: bool = False) -> Any:
    """Return the module of a workload, in training mode. Raises KeyError for an unknown name."""
    torch.manual_seed(0)
    constructors = {
        "mlp-mnist": lambda: mlp(784, 500, 10), "mlp-tiny-b1": lambda: mlp(16, 32, 32, 4), "mlp-tiny-b16": lambda: mlp(16, 32, 32, 4),
        "mlp-wide": lambda: mlp(1024, 4096, 4096, 1000), "cnn-lenet": lenet,
        "resnet18-cifar": lambda: resnet(False, (2, 2, 2, 2), [*conv_bn(3, 64, 3), nn.ReLU()], 10),
        "resnet50-224": lambda: resnet(True, (3, 4, 6, 3), [*conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 1000),
        "mobilenetv2-transfer": lambda: MobileNet(transfer=True), "mobilenetv2-full": lambda: MobileNet(transfer=False),
        "bert-mini": lambda: Transformer(False, fused_attention), "gpt-mini": lambda: Transformer(True, fused_attention), "lstm": Lstm,
    }
    return constructors[workload]()
