"""The networks of benchmarks/networks/others.py as torch modules."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers.networks.layers import CLASSES, ConvBN

TEMPERATURE, VISCOSITY, MESSAGES = 0.1, 0.01, 4


class Tabular(nn.Module):
    def __init__(self, batch: int, categories: int, numbers: int, bins: int, size: int, hidden: int) -> None:
        super().__init__()
        self.categories, self.norm = categories, nn.BatchNorm1d(numbers)
        self.embeddings = nn.ModuleList([nn.Embedding(bins, size) for _ in range(categories)])
        self.layers = nn.ModuleList([nn.Linear(categories * size + numbers, hidden), nn.Linear(hidden, hidden)])
        self.norms, self.head = nn.ModuleList([nn.BatchNorm1d(hidden) for _ in range(2)]), nn.Linear(hidden, CLASSES)

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        embedded = [embedding(table[:, i]) for i, embedding in enumerate(self.embeddings)]
        x = torch.cat([*embedded, self.norm(table[:, self.categories:].float())], 1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x)))
        return self.head(x)


class Siamese(nn.Module):
    def __init__(self, batch: int, image: int, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = ConvBN(1, width, 3), ConvBN(width, 2 * width, 3)
        self.project = nn.Linear(2 * width * (image // 4) ** 2, 2 * width)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(pairs.flatten(0, 1))), 2)
        x = F.normalize(self.project(F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)), eps=0.0)
        x = x.view(len(pairs), 2, -1)
        return x[:, 0] @ x[:, 1].T / TEMPERATURE


class GraphNetwork(nn.Module):
    def __init__(self, nodes: int, features: int, hidden: int) -> None:
        super().__init__()
        rng = np.random.default_rng(7)
        for name in ("sources", "targets"):
            self.register_buffer(name, torch.from_numpy(rng.integers(0, nodes, nodes * MESSAGES)), persistent=False)
        widths = [features, hidden, hidden]
        self.rounds = nn.ModuleList([nn.ModuleDict({"message": nn.Linear(2 * width, hidden), "combine": nn.Linear(width + hidden, hidden)})
                                     for width in widths])
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.rounds:
            messages = F.relu(layer["message"](torch.cat([x[self.sources], x[self.targets]], 1)))
            received = torch.zeros(len(x), messages.shape[1]).index_add(0, self.targets, messages)
            x = F.relu(layer["combine"](torch.cat([x, received], 1)))
        return self.head(x)


class Flow(nn.Module):
    def __init__(self, batch: int, size: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"first": nn.Linear(size // 2, hidden), "second": nn.Linear(hidden, hidden),
                                                    "last": nn.Linear(hidden, size)}) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, 1)
        total = torch.zeros(())
        for layer in self.layers:
            log_scale, shift = layer["last"](F.relu(layer["second"](F.relu(layer["first"](first))))).chunk(2, 1)
            log_scale = torch.tanh(log_scale)
            first, second = second * torch.exp(log_scale) + shift, first
            total = total + log_scale.sum(1, keepdim=True)
        z = torch.cat([first, second], 1)
        return 0.5 * (z * z).sum(1, keepdim=True) - total


class PhysicsInformed(nn.Module):
    def __init__(self, batch: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Linear(hidden if i else 2, hidden) for i in range(layers)]), nn.Linear(hidden, 1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        d_x, d_t, d_xx = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), None
        for i, layer in enumerate(self.layers):
            z, z_x, z_t = layer(value), F.linear(d_x, layer.weight), F.linear(d_t, layer.weight)
            if i == 0:
                value, slope = torch.sin(z), torch.cos(z)
                curvature = -value
            else:
                value = torch.tanh(z)
                slope = 1 - value * value
                curvature = -2 * value * slope
            bent = curvature * (z_x * z_x)
            d_xx = bent if d_xx is None else slope * F.linear(d_xx, layer.weight) + bent
            d_x, d_t = slope * z_x, slope * z_t
        u = self.head(value)
        u_x, u_t, u_xx = (F.linear(part, self.head.weight) for part in (d_x, d_t, d_xx))
        return torch.cat([u, u_t + u * u_x - VISCOSITY * u_xx], 1)
