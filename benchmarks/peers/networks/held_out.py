"""The networks of benchmarks/networks/held_out.py as torch modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers.networks.images import pooled
from benchmarks.peers.networks.layers import CLASSES, ConvBN

NORM_GROUPS, COLORS = 8, 3
MOBILE_BLOCKS = ((1, 1, 3, 1), (2, 6, 3, 2), (2, 6, 3, 1), (3, 6, 5, 2), (3, 6, 5, 1), (5, 6, 5, 2))


class MobileBlock(nn.Module):
    def __init__(self, channels: int, size: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.expand, self.depthwise, self.project = ConvBN(channels, wide, 1), ConvBN(wide, wide, kernel, stride, wide), ConvBN(wide, size, 1)
        self.squeeze, self.excite = nn.Conv2d(wide, channels // 4, 1), nn.Conv2d(channels // 4, wide, 1)
        self.adds = stride == 1 and size == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.depthwise(F.silu(self.expand(x))))
        y = self.project(y * torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))))
        return y + x if self.adds else y


class EfficientNet(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.stem, channels, blocks = ConvBN(3, width, 3, 2), width, []
        for multiple, expansion, kernel, stride in MOBILE_BLOCKS:
            blocks.append(MobileBlock(channels, multiple * width, expansion, kernel, stride))
            channels = multiple * width
        self.blocks, self.last, self.head = nn.Sequential(*blocks), ConvBN(channels, 4 * channels, 1), nn.Linear(4 * channels, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(pooled(F.silu(self.last(self.blocks(F.silu(self.stem(x)))))))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, x: torch.Tensor, source: torch.Tensor, causal: bool = False) -> torch.Tensor:
        q, k, v = (part(y).view(*y.shape[:2], self.heads, -1).transpose(1, 2) for part, y in ((self.q, x), (self.k, source), (self.v, source)))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(x.shape))


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.expand, self.project = Attention(width, heads), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.project(F.relu(self.expand(x))))


class DecoderLayer(EncoderLayer):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.cross, self.norm3 = Attention(width, heads), nn.LayerNorm(width)

    def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        y = self.norm1(y + self.attention(y, y, causal=True))
        y = self.norm2(y + self.cross(y, x))
        return self.norm3(y + self.project(F.relu(self.expand(y))))


class EncoderDecoder(nn.Module):
    def __init__(self, batch: int, length: int, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList([EncoderLayer(width, heads) for _ in range(layers)])
        self.decoder = nn.ModuleList([DecoderLayer(width, heads) for _ in range(layers)])
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], 2).view(length, width), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, y = (self.tokens(ids[:, part]) * self.tokens.embedding_dim ** 0.5 + self.positions for part in range(2))
        for layer in self.encoder:
            x = layer(x)
        for layer in self.decoder:
            y = layer(y, x)
        return F.linear(y, self.tokens.weight).flatten(0, 1)


class FactorizationMachine(nn.Module):
    def __init__(self, batch: int, fields: int, bins: int, size: int, hidden: int) -> None:
        super().__init__()
        self.vectors, self.weights = nn.Embedding(fields * bins, size), nn.Embedding(fields * bins, 1)
        self.first, self.second, self.third = nn.Linear(fields * size, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.register_buffer("offsets", torch.arange(fields) * bins, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = ids + self.offsets
        vectors = self.vectors(rows)
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True) * 0.5
        score = self.weights(rows).sum(1) + pairs + self.third(F.relu(self.second(F.relu(self.first(vectors.flatten(1))))))
        return torch.cat([score, -score], 1)


class SuperBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(F.relu(self.first(x))) * 0.1


class SuperResolution(nn.Module):
    def __init__(self, batch: int, image: int, width: int, blocks: int) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(COLORS, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.blocks = nn.Sequential(*(SuperBlock(width) for _ in range(blocks)))
        self.up, self.head = nn.Conv2d(width, 4 * width, 3, padding=1), nn.Conv2d(width, COLORS, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.stem(x)
        return self.head(F.pixel_shuffle(self.up(self.body(self.blocks(first)) + first), 2))


class HalfStep(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.expand, self.project = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.5 * self.project(F.silu(self.expand(self.norm(x))))


class ConvolutionModule(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.norm, self.expand, self.project = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise, self.batch_norm = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width), nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(F.glu(self.expand(self.norm(x).transpose(1, 2)), 1))
        return x + self.project(F.silu(self.batch_norm(y))).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.before, self.after, self.convolution = HalfStep(width), HalfStep(width), ConvolutionModule(width, kernel)
        self.attention_norm, self.attention, self.norm = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        y = self.attention_norm(x)
        return self.norm(self.after(self.convolution(x + self.attention(y, y))))


class Conformer(nn.Module):
    def __init__(self, batch: int, frames: int, bands: int, width: int, heads: int, layers: int, kernel: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(bands, width), nn.Linear(width, CLASSES)
        self.layers = nn.Sequential(*(ConformerLayer(width, heads, kernel) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.stem(x))).flatten(0, 1)


class PointNet(nn.Module):
    def __init__(self, batch: int, points: int, width: int) -> None:
        super().__init__()
        sizes = (3, width, 2 * width, 8 * width)
        self.shared = nn.ModuleList([nn.Conv1d(a, b, 1) for a, b in zip(sizes, sizes[1:], strict=False)])
        self.shared_norms = nn.ModuleList([nn.BatchNorm1d(size) for size in sizes[1:]])
        self.dense, self.dense_norm, self.head = nn.Linear(8 * width, 4 * width), nn.BatchNorm1d(4 * width), nn.Linear(4 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.shared, self.shared_norms, strict=True):
            x = F.relu(norm(layer(x)))
        return self.head(F.relu(self.dense_norm(self.dense(x.amax(2)))))


class ConvBN3d(nn.Module):
    def __init__(self, size_in: int, size: int, kernel: Sequence[int], stride: Sequence[int] = (1, 1, 1)) -> None:
        super().__init__()
        self.conv = nn.Conv3d(size_in, size, tuple(kernel), tuple(stride), tuple(k // 2 for k in kernel), bias=False)
        self.bn = nn.BatchNorm3d(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(self.conv(x))


class WholeBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = ConvBN3d(width, width, (3, 3, 3)), ConvBN3d(width, width, (3, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


class SplitBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.image, self.time = ConvBN3d(channels, 2 * channels, (1, 3, 3), (1, 2, 2)), ConvBN3d(2 * channels, 2 * channels, (3, 1, 1), (2, 1, 1))
        self.short = ConvBN3d(channels, 2 * channels, (1, 1, 1), (2, 2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.time(F.relu(self.image(x))) + self.short(x))


class Video(nn.Module):
    def __init__(self, batch: int, frames: int, image: int, width: int) -> None:
        super().__init__()
        self.stem, self.whole = ConvBN3d(COLORS, width, (3, 3, 3), (1, 2, 2)), WholeBlock(width)
        self.split, self.head = nn.Sequential(SplitBlock(width), SplitBlock(2 * width)), nn.Linear(4 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.adaptive_avg_pool3d(self.split(self.whole(F.relu(self.stem(x)))), 1).flatten(1))


class Generator(nn.Module):
    def __init__(self, batch: int, latent: int, width: int) -> None:
        super().__init__()
        self.project, self.norm = nn.Linear(latent, 4 * width * 16), nn.BatchNorm2d(4 * width)
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 * width >> i, 2 * width >> i, 4, 2, 1) for i in range(2)])
        self.norms, self.last = nn.ModuleList([nn.BatchNorm2d(2 * width >> i) for i in range(2)]), nn.ConvTranspose2d(width, COLORS, 4, 2, 1)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.project(z).view(len(z), -1, 4, 4)))
        for up, norm in zip(self.up, self.norms, strict=True):
            x = F.leaky_relu(norm(up(x)), 0.2)
        return torch.tanh(self.last(x))


class RadianceField(nn.Module):
    def __init__(self, batch: int, frequencies: int, width: int, layers: int) -> None:
        super().__init__()
        size = 3 + 6 * frequencies
        self.layers = nn.ModuleList([nn.Linear(size if i == 0 else width + size if i == layers // 2 + 1 else width, width) for i in range(layers)])
        wide = width + size if layers // 2 == layers - 1 else width
        self.density, self.color = nn.Linear(wide, 1), nn.Linear(wide, COLORS)
        self.register_buffer("powers", 2.0 ** torch.arange(frequencies), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        powers = (x[:, :, None] * self.powers).flatten(1)
        encoded = y = torch.cat([x, powers.sin(), powers.cos()], 1)
        for i, layer in enumerate(self.layers):
            y = F.relu(layer(y))
            if i == len(self.layers) // 2:
                y = torch.cat([y, encoded], 1)
        return torch.cat([torch.sigmoid(self.color(y)), F.softplus(self.density(y))], 1)


class DiffusionBlock(nn.Module):
    def __init__(self, size_in: int, size: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.time = nn.GroupNorm(NORM_GROUPS, size_in), nn.GroupNorm(NORM_GROUPS, size), nn.Linear(time, size)
        self.conv1, self.conv2 = nn.Conv2d(size_in, size, 3, padding=1), nn.Conv2d(size, size, 3, padding=1)
        self.short = nn.Identity() if size == size_in else nn.Conv2d(size_in, size, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.short(x)


class Diffusion(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.time, self.stem = nn.Linear(COLORS, 4 * width), nn.Conv2d(COLORS, width, 3, padding=1)
        self.first, self.second, self.third, self.last = (DiffusionBlock(a * width, b * width, 4 * width) for a, b in ((1, 1), (1, 2), (2, 2), (2, 1)))
        self.down, self.up = nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, width, 3, padding=1)
        self.attention_norm, self.attention = nn.GroupNorm(NORM_GROUPS, 2 * width), Attention(2 * width, 1)
        self.norm, self.head = nn.GroupNorm(NORM_GROUPS, width), nn.Conv2d(width, COLORS, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time = F.silu(self.time(x.mean((2, 3))))
        first = self.first(self.stem(x), time)
        x = self.second(self.down(first), time)
        y = self.attention_norm(x).flatten(2).transpose(1, 2)
        x = self.third(x + self.attention(y, y).transpose(1, 2).reshape(x.shape), time)
        x = torch.cat([self.up(F.interpolate(x, scale_factor=2)), first], 1)
        return self.head(F.silu(self.norm(self.last(x, time))))
