"""The networks of benchmarks/networks/transformers.py as torch modules, with scaled_dot_product_attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers.networks.layers import CLASSES, FeedForward


class VisionLayer(FeedForward):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, 4 * width)
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width))
        return x + super().forward(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, batch: int, image: int, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.class_token, self.positions = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.layers, self.norm, self.head = nn.Sequential(*(VisionLayer(width, heads) for _ in range(layers))), nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class WindowAttention(nn.Module):
    """Attention within windows of an image [n, h, w, width] that is rolled by `shift`."""

    def __init__(self, side: int, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.count, self.heads, self.window, self.shift = side // window, heads, window, shift
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.relative = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        rows, columns = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        rows, columns = rows.flatten(), columns.flatten()
        index = (rows[:, None] - rows + window - 1) * (2 * window - 1) + columns[:, None] - columns + window - 1
        self.register_buffer("index", index.flatten(), persistent=False)
        if shift:
            border = torch.repeat_interleave(torch.arange(3), torch.tensor([side - window, window - shift, shift]))
            regions = (3 * border[:, None] + border).view(self.count, window, self.count, window).transpose(1, 2).reshape(-1, window * window)
            self.register_buffer("mask", ((regions[:, :, None] != regions[:, None, :]) * -1e9)[:, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, side, _, width = x.shape
        count, window, tokens = self.count, self.window, self.window ** 2
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.view(n, count, window, count, window, width).transpose(2, 3).reshape(n, count * count, tokens, width)
        q, k, v = (part(x).view(n, count * count, tokens, self.heads, -1).transpose(2, 3) for part in (self.q, self.k, self.v))
        bias = self.relative[self.index].view(tokens, tokens, self.heads).permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, bias + self.mask if self.shift else bias)
        y = self.out(y.transpose(2, 3).reshape(n, count * count, tokens, width))
        y = y.view(n, count, count, window, window, width).transpose(2, 3).reshape(n, side, side, width)
        return torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y


class WindowLayer(FeedForward):
    def __init__(self, side: int, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__(width, 4 * width)
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), WindowAttention(side, width, heads, window, shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + super().forward(self.norm2(x))


class Swin(nn.Module):
    def __init__(self, batch: int, image: int, patch: int, width: int, heads: int, window: int) -> None:
        super().__init__()
        side = image // patch
        self.side, self.patch, self.patch_norm = side, nn.Conv2d(3, width, patch, patch), nn.LayerNorm(width)
        self.stages = nn.ModuleList([
            nn.Sequential(*(WindowLayer(size, width << stage, heads << stage, window, window // 2 if i and size > window else 0) for i in range(2)))
            for stage, size in enumerate((side, side // 2))])
        self.merge_norm, self.merge = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_norm(self.patch(x).permute(0, 2, 3, 1))
        x = self.stages[0](x)
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], 3)
        return self.head(self.norm(self.stages[1](self.merge(self.merge_norm(x)))).mean((1, 2)))


class LlamaLayer(nn.Module):
    def __init__(self, length: int, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.size, narrow = heads, width // heads, width // heads * groups
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, narrow, bias=False), nn.Linear(width, narrow, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down, self.norm1, self.norm2 = nn.Linear(3 * width, width, bias=False), nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(n, length, -1, self.size).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, batch: int, length: int, vocabulary: int, width: int, heads: int, groups: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(vocabulary, width), nn.RMSNorm(width, 1e-6), nn.Linear(width, vocabulary, bias=False)
        self.layers = nn.Sequential(*(LlamaLayer(length, width, heads, groups) for _ in range(layers)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.tokens(ids)))).flatten(0, 1)


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = FeedForward(tokens, width // 2), FeedForward(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, batch: int, image: int, patch: int, width: int, layers: int) -> None:
        super().__init__()
        self.patch, self.norm, self.head = nn.Conv2d(3, width, patch, patch), nn.LayerNorm(width), nn.Linear(width, CLASSES)
        self.layers = nn.Sequential(*(MixerLayer((image // patch) ** 2, width) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.patch(x).flatten(2).transpose(1, 2))).mean(1))
