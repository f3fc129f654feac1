"""Convolutional and recurrent networks over sequences as ONNX graphs."""

from __future__ import annotations

from benchmarks.networks.builder import CLASSES, NetworkBuilder

DILATIONS = (1, 2, 4, 8, 16, 32)


def text_cnn(g: NetworkBuilder, batch: int, length: int, vocabulary: int, size: int, filters: int) -> str:
    """Build convolutions 3, 4 and 5 tokens wide with the maximum over time."""
    x = g.transpose(g.embedding(g.input((batch, length), vocabulary), "tokens", vocabulary, size), 0, 2, 1)
    found = [g.op("ReduceMax", g.relu(g.conv1d(x, f"convs.{i}", size, filters, 3 + i)), axes=[2], keepdims=0) for i in range(3)]
    return g.linear(g.concat(1, *found), "head", 3 * filters, CLASSES)


def dilated_audio(g: NetworkBuilder, batch: int, length: int, width: int, classes: int) -> str:
    """Build causal convolutions of growing dilation with gates, residuals and skips, as in WaveNet: scores for every sample."""
    x, skips = g.conv1d(g.input((batch, 1, length)), "stem", 1, width, 1), ""
    for i, dilation in enumerate(DILATIONS):
        padded = g.op("Pad", x, g.integers(0, 0, dilation, 0, 0, 0))
        content, gate = g.split(g.conv1d(padded, f"layers.{i}.dilated", width, 2 * width, 2, dilation), 1, width, width)
        y = g.op("Mul", g.op("Tanh", content), g.op("Sigmoid", gate))
        skip = g.conv1d(y, f"layers.{i}.skip", width, width, 1)
        skips = g.op("Add", skips, skip) if i else skip
        if i + 1 < len(DILATIONS):
            x = g.op("Add", x, g.conv1d(y, f"layers.{i}.residual", width, width, 1))
    scores = g.conv1d(g.relu(g.conv1d(g.relu(skips), "mix", width, width, 1)), "head", width, classes, 1)
    return g.op("Unsqueeze", scores, g.integers(2))             # CrossEntropyLoss takes three axes for [n, t, classes]


def bilstm_attention(g: NetworkBuilder, batch: int, length: int, vocabulary: int, size: int, hidden: int) -> str:
    """Build two bidirectional LSTM layers and a weighted mean over time."""
    x = g.transpose(g.embedding(g.input((batch, length), vocabulary), "tokens", vocabulary, size), 1, 0, 2)
    for layer in range(2):
        states, _ = g.recurrent("LSTM", x, "rnn", size, hidden, layer=layer, bidirectional=True)
        x, size = g.reshape(g.transpose(states, 0, 2, 1, 3), length, batch, 2 * hidden), 2 * hidden
    x = g.transpose(x, 1, 0, 2)
    scores = g.dense(g.op("Tanh", g.dense(x, "score1", size, hidden)), "score2", hidden, 1, bias=False)
    return g.linear(g.sum(g.op("Mul", x, g.op("Softmax", scores, axis=1)), 1), "head", size, CLASSES)


def gru_seq2seq(g: NetworkBuilder, batch: int, length: int, vocabulary: int, size: int, hidden: int) -> str:
    """Build a GRU encoder and a GRU decoder that attends to the encoder's states; the input holds source and target: scores for every target token."""
    ids = g.input((batch, 2, length), vocabulary)
    table = g.normal("tokens.weight", (vocabulary, size))
    source, target = (g.transpose(g.op("Gather", table, g.index(ids, 1, i), axis=0), 1, 0, 2) for i in range(2))
    states, last = g.recurrent("GRU", source, "encoder", size, hidden)
    encoded = g.transpose(g.op("Squeeze", states, g.integers(1)), 1, 0, 2)
    states, _ = g.recurrent("GRU", target, "decoder", size, hidden, last)
    decoded = g.transpose(g.op("Squeeze", states, g.integers(1)), 1, 0, 2)
    weights = g.op("Softmax", g.op("MatMul", decoded, g.transpose(encoded, 0, 2, 1)), axis=-1)
    mixed = g.op("Tanh", g.dense(g.concat(2, decoded, g.op("MatMul", weights, encoded)), "mix", 2 * hidden, hidden))
    return g.reshape(g.dense(mixed, "head", hidden, vocabulary), -1, vocabulary)
