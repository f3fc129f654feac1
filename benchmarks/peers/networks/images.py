"""The networks of benchmarks/networks/images.py as torch modules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers.networks.layers import CLASSES, ConvBN, FeedForward


def pooled(x: torch.Tensor) -> torch.Tensor:
    """Return the global average [n, c] of [n, c, h, w]."""
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


class GatedBlock(nn.Module):
    """A residual block whose channels are scaled by a gate computed from their means."""

    def __init__(self, channels: int, size: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = ConvBN(channels, size, 3, stride), ConvBN(size, size, 3)
        self.squeeze, self.excite = nn.Conv2d(size, size // 4, 1), nn.Conv2d(size // 4, size, 1)
        self.short = nn.Identity() if stride == 1 else ConvBN(channels, size, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(F.relu(self.first(x)))
        y = y * torch.sigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return F.relu(y + self.short(x))


class SqueezeExcitation(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.stem = ConvBN(3, width, 3)
        self.blocks = nn.Sequential(GatedBlock(width, width, 1), GatedBlock(width, 2 * width, 2), GatedBlock(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(pooled(self.blocks(F.relu(self.stem(x)))))


class DenseLayer(nn.Module):
    """Return the input beside `growth` new channels."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))], 1)


class Transition(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(nn.Module):
    def __init__(self, batch: int, image: int, growth: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem, self.blocks, self.transitions = nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.ModuleList(), nn.ModuleList()
        for block in range(3):
            self.blocks.append(nn.Sequential(*(DenseLayer(channels + i * growth, growth) for i in range(4))))
            channels += 4 * growth
            if block < 2:
                self.transitions.append(Transition(channels))
                channels //= 2
        self.norm, self.head = nn.BatchNorm2d(channels), nn.Linear(channels, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i < 2:
                x = self.transitions[i](x)
        return self.head(pooled(F.relu(self.norm(x))))


class InceptionBlock(nn.Module):
    """Four branches of different kernel sizes."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.one, self.pool = ConvBN(channels, 2 * width, 1), ConvBN(channels, width, 1)
        self.three_reduce, self.three = ConvBN(channels, width, 1), ConvBN(width, 2 * width, 3)
        self.five_reduce, self.five = ConvBN(channels, width // 2, 1), ConvBN(width // 2, width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        three = self.three(F.relu(self.three_reduce(x)))
        five = self.five(F.relu(self.five_reduce(x)))
        return torch.cat([F.relu(y) for y in (self.one(x), three, five, self.pool(F.max_pool2d(x, 3, 1, 1)))], 1)


class Inception(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.stem = ConvBN(3, 2 * width, 3)
        self.blocks = nn.ModuleList([InceptionBlock(2 * width if i == 0 else 6 * width, width) for i in range(3)])
        self.head = nn.Linear(6 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 1:
                x = F.max_pool2d(x, 3, 2, 1)
        return self.head(pooled(x))


class ConvNeXtBlock(FeedForward):
    def __init__(self, width: int) -> None:
        super().__init__(width, 4 * width)
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.scale * super().forward(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
        self.stages = nn.ModuleList([nn.Sequential(*(ConvNeXtBlock(size) for _ in range(2))) for size in (width, 2 * width)])
        self.down_norm, self.down = nn.LayerNorm(width), nn.Conv2d(width, 2 * width, 2, 2)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages[0](self.stem_norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        x = self.stages[1](self.down(self.down_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)))
        return self.head(self.norm(x.mean((2, 3))))


class GroupedBlock(nn.Module):
    """A bottleneck block of ResNeXt."""

    def __init__(self, channels: int, size: int, stride: int, groups: int) -> None:
        super().__init__()
        self.reduce, self.grouped, self.expand = ConvBN(channels, size, 1), ConvBN(size, size, 3, stride, groups), ConvBN(size, 2 * size, 1)
        self.short = ConvBN(channels, 2 * size, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.expand(F.relu(self.grouped(F.relu(self.reduce(x))))) + self.short(x))


class ResNeXt(nn.Module):
    def __init__(self, batch: int, image: int, width: int, groups: int) -> None:
        super().__init__()
        self.stem = ConvBN(3, width, 3)
        self.blocks = nn.Sequential(GroupedBlock(width, width, 1, groups), GroupedBlock(2 * width, 2 * width, 2, groups),
                                    GroupedBlock(4 * width, 4 * width, 2, groups))
        self.head = nn.Linear(8 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(pooled(self.blocks(F.relu(self.stem(x)))))


class ShuffleBranch(nn.Module):
    def __init__(self, size: int, stride: int) -> None:
        super().__init__()
        self.first, self.depthwise, self.last = ConvBN(size, size, 1), ConvBN(size, size, 3, stride, size), ConvBN(size, size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.last(self.depthwise(F.relu(self.first(x)))))


class ShuffleUnit(nn.Module):
    """A unit of ShuffleNet V2; with `down` it halves the image and doubles the channels."""

    def __init__(self, channels: int, down: bool) -> None:
        super().__init__()
        half = channels if down else channels // 2
        self.branch, self.down = ShuffleBranch(half, 2 if down else 1), down
        if down:
            self.short_depthwise, self.short = ConvBN(half, half, 3, 2, half), ConvBN(half, half, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.down:
            left, right = F.relu(self.short(self.short_depthwise(x))), x
        else:
            left, right = x.chunk(2, 1)
        y = torch.cat([left, self.branch(right)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class ShuffleNet(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.stem = ConvBN(3, width, 3, 2)
        self.units = nn.Sequential(*(ShuffleUnit((width << stage) * (1 if i == 0 else 2), i == 0) for stage in range(2) for i in range(3)))
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(pooled(self.units(F.relu(self.stem(x)))))


class Spectrogram(nn.Module):
    def __init__(self, batch: int, bands: int, frames: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([ConvBN(width * i or 1, width * (i + 1), 3) for i in range(4)])
        self.head = nn.Linear(4 * width * (bands // 8), CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x))
            if i < 3:
                x = F.max_pool2d(x, 2)
        return self.head(x.mean(3).flatten(1))
