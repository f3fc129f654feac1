"""The networks of benchmarks/networks/dense_prediction.py as torch modules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers.networks.layers import CLASSES, ConvBN

ANCHORS, BOX = 3, 4


def double(channels: int, size: int) -> nn.ModuleList:
    return nn.ModuleList([ConvBN(channels, size, 3), ConvBN(size, size, 3)])


class UNet(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.first, self.second, self.bottom = double(3, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up_second, self.up_first = double(6 * width, 2 * width), double(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def apply(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
            return F.relu(layers[1](F.relu(layers[0](x))))

        first = apply(self.first, x)
        second = apply(self.second, F.max_pool2d(first, 2))
        x = apply(self.bottom, F.max_pool2d(second, 2))
        x = apply(self.up_second, torch.cat([F.interpolate(x, scale_factor=2), second], 1))
        return self.head(apply(self.up_first, torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), first], 1)))


class FeaturePyramid(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        sizes = [width, width, 2 * width, 4 * width, 4 * width]
        self.stem = ConvBN(3, width, 3, 2)
        self.levels = nn.ModuleList([ConvBN(a, b, 3, 2) for a, b in zip(sizes, sizes[1:], strict=False)])
        self.laterals = nn.ModuleList([nn.Conv2d(size, 2 * width, 1) for size in sizes[1:]])
        self.smooth = nn.ModuleList([nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(4)])
        self.head = nn.Conv2d(2 * width, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, laterals = F.relu(self.stem(x)), []
        for level, lateral in zip(self.levels, self.laterals, strict=True):
            x = F.relu(level(x))
            laterals.append(lateral(x))
        merged = [laterals[-1]]
        for side in reversed(laterals[:-1]):
            merged.insert(0, side + F.interpolate(merged[0], scale_factor=2))
        total = F.relu(self.smooth[0](merged[0]))
        for i in range(1, 4):
            total = total + F.interpolate(F.relu(self.smooth[i](merged[i])), scale_factor=1 << i)
        return self.head(total)


class Scale(nn.Module):
    """Halve the image; return the features, class scores and boxes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.same = ConvBN(channels, 2 * channels, 3, 2), ConvBN(2 * channels, 2 * channels, 3)
        self.add_module("class", nn.Conv2d(2 * channels, ANCHORS * CLASSES, 3, padding=1))
        self.box = nn.Conv2d(2 * channels, ANCHORS * BOX, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = F.relu(self.same(F.relu(self.down(x))))
        scores, boxes = getattr(self, "class")(x), self.box(x)
        return x, scores.permute(0, 2, 3, 1).reshape(len(x), -1, CLASSES), boxes.permute(0, 2, 3, 1).reshape(len(x), -1, BOX)


class SingleShotDetector(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.stem, self.scales = ConvBN(3, width, 3, 2), nn.ModuleList([Scale(width << i) for i in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, scores, boxes = F.relu(self.stem(x)), [], []
        for scale in self.scales:
            x, score, box = scale(x)
            scores.append(score)
            boxes.append(box)
        return torch.cat([torch.cat(scores, 1), torch.cat(boxes, 1)], 2)


class Autoencoder(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.shape = (2 * width, image // 4, image // 4)
        flat = 2 * width * (image // 4) ** 2
        self.down1, self.down2 = nn.Conv2d(1, width, 3, 2, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.encode, self.decode = nn.Linear(flat, width), nn.Linear(width, flat)
        self.up1, self.up2 = nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ConvTranspose2d(width, 1, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = self.encode(F.relu(self.down2(F.relu(self.down1(x)))).flatten(1))
        x = F.relu(self.decode(code)).view(-1, *self.shape)
        return torch.sigmoid(self.up2(F.relu(self.up1(x))))
