"""Layers that several torch modules of the networks share."""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 10


class ConvBN(nn.Module):
    """A convolution without bias, padded to keep the size, and a batch normalization."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(channels_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(self.conv(x))


class FeedForward(nn.Module):
    """Two dense layers with GELU between them."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.expand, self.project, self.gelu = nn.Linear(size, hidden), nn.Linear(hidden, size), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(self.gelu(self.expand(x)))
