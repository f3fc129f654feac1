"""The networks of benchmarks/networks/sequences.py as torch modules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers.networks.layers import CLASSES

DILATIONS = (1, 2, 4, 8, 16, 32)


class TextCnn(nn.Module):
    def __init__(self, batch: int, length: int, vocabulary: int, size: int, filters: int) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, size), nn.Linear(3 * filters, CLASSES)
        self.convs = nn.ModuleList([nn.Conv1d(size, filters, 3 + i) for i in range(3)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids).transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1))


class DilatedLayer(nn.Module):
    """A gated causal convolution; return the input of the next layer and the skip."""

    def __init__(self, width: int, dilation: int, last: bool) -> None:
        super().__init__()
        self.dilated, self.skip = nn.Conv1d(width, 2 * width, 2, dilation=dilation), nn.Conv1d(width, width, 1)
        self.dilation, self.residual = dilation, None if last else nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        content, gate = self.dilated(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        y = torch.tanh(content) * torch.sigmoid(gate)
        return x if self.residual is None else x + self.residual(y), self.skip(y)


class DilatedAudio(nn.Module):
    def __init__(self, batch: int, length: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem, self.mix, self.head = nn.Conv1d(1, width, 1), nn.Conv1d(width, width, 1), nn.Conv1d(width, classes, 1)
        self.layers = nn.ModuleList([DilatedLayer(width, dilation, dilation == DILATIONS[-1]) for dilation in DILATIONS])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, skips = self.stem(x), []
        for layer in self.layers:
            x, skip = layer(x)
            skips.append(skip)
        total = skips[0]
        for skip in skips[1:]:
            total = total + skip
        return self.head(F.relu(self.mix(F.relu(total)))).unsqueeze(2)


class BiLstmAttention(nn.Module):
    def __init__(self, batch: int, length: int, vocabulary: int, size: int, hidden: int) -> None:
        super().__init__()
        self.tokens, self.rnn = nn.Embedding(vocabulary, size), nn.LSTM(size, hidden, 2, batch_first=True, bidirectional=True)
        self.score1, self.score2, self.head = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1, bias=False), nn.Linear(2 * hidden, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.rnn(self.tokens(ids))[0]
        weights = torch.softmax(self.score2(torch.tanh(self.score1(x))), 1)
        return self.head((x * weights).sum(1))


class GruSeq2Seq(nn.Module):
    def __init__(self, batch: int, length: int, vocabulary: int, size: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size)
        self.encoder, self.decoder = nn.GRU(size, hidden, batch_first=True), nn.GRU(size, hidden, batch_first=True)
        self.mix, self.head = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        encoded, last = self.encoder(self.tokens(ids[:, 0]))
        decoded = self.decoder(self.tokens(ids[:, 1]), last)[0]
        weights = torch.softmax(decoded @ encoded.transpose(1, 2), -1)
        return self.head(torch.tanh(self.mix(torch.cat([decoded, weights @ encoded], 2)))).flatten(0, 1)
