"""Networks over tables, pairs, graphs, densities and differential equations as ONNX graphs."""

from __future__ import annotations

import numpy as np

from benchmarks.networks.builder import CLASSES, NetworkBuilder
from benchmarks.workloads import conv_bn

TEMPERATURE, VISCOSITY = 0.1, 0.01
MESSAGES = 4
"""Edges of a graph per node."""


def tabular(g: NetworkBuilder, batch: int, categories: int, numbers: int, bins: int, size: int, hidden: int) -> str:
    """Build a table's classifier: embeddings of the first columns beside the other columns, batch normalization of [n, c], two hidden layers."""
    table = g.input((batch, categories + numbers), bins)
    embedded = [g.embedding(g.index(table, 1, i), f"embeddings.{i}", bins, size) for i in range(categories)]
    numeric = g.op("Cast", g.slice(table, 1, categories, categories + numbers), to=1)
    x, width = g.concat(1, *embedded, g.batch_norm(numeric, "norm", numbers)), categories * size + numbers
    for i in range(2):
        x, width = g.relu(g.batch_norm(g.linear(x, f"layers.{i}", width, hidden), f"norms.{i}", hidden)), hidden
    return g.linear(x, "head", width, CLASSES)


def siamese(g: NetworkBuilder, batch: int, image: int, width: int) -> str:
    """Build a contrastive network: one convolutional network embeds both images of each pair; scores are cosines between all pairs."""
    x = g.reshape(g.input((batch, 2, 1, image, image)), 2 * batch, 1, image, image)
    x = g.max_pool(g.relu(conv_bn(g, x, "conv1", 1, width, 3)), 2, 2)
    x = g.max_pool(g.relu(conv_bn(g, x, "conv2", width, 2 * width, 3)), 2, 2)
    x = g.linear(g.op("Flatten", x, axis=1), "project", 2 * width * (image // 4) ** 2, 2 * width)
    x = g.op("Div", x, g.op("ReduceL2", x, axes=[1], keepdims=1))
    x = g.reshape(x, batch, 2, 2 * width)
    scores = g.op("MatMul", g.index(x, 1, 0), g.transpose(g.index(x, 1, 1), 1, 0))
    return g.op("Div", scores, g.scalar(TEMPERATURE))


def graph_edges(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sources and targets of a fixed random graph."""
    rng = np.random.default_rng(7)
    return rng.integers(0, nodes, nodes * MESSAGES), rng.integers(0, nodes, nodes * MESSAGES)


def graph_network(g: NetworkBuilder, nodes: int, features: int, hidden: int) -> str:
    """Build three rounds of messages along the edges of a fixed graph, summed by node: scores for every node."""
    x, width = g.input((nodes, features)), features
    sources, targets = (g.constant(name, ends) for name, ends in zip(("sources", "targets"), graph_edges(nodes), strict=True))
    rows = g.op("Unsqueeze", targets, g.integers(1))
    zeros = g.constant("zeros", np.zeros((nodes, hidden)), "float32")
    for i in range(3):
        pairs = g.concat(1, g.op("Gather", x, sources, axis=0), g.op("Gather", x, targets, axis=0))
        messages = g.relu(g.linear(pairs, f"rounds.{i}.message", 2 * width, hidden))
        received = g.op("ScatterND", zeros, rows, messages, reduction="add")
        x, width = g.relu(g.linear(g.concat(1, x, received), f"rounds.{i}.combine", width + hidden, hidden)), hidden
    return g.linear(x, "head", width, CLASSES)


def flow(g: NetworkBuilder, batch: int, size: int, hidden: int, layers: int) -> str:
    """Build affine coupling layers (RealNVP): the negative logarithm of the density of each row, without its constant."""
    half = size // 2
    first, second = g.split(g.input((batch, size)), 1, half, half)
    total = ""
    for i in range(layers):
        name = f"layers.{i}"
        y = g.relu(g.linear(g.relu(g.linear(first, f"{name}.first", half, hidden)), f"{name}.second", hidden, hidden))
        log_scale, shift = g.split(g.linear(y, f"{name}.last", hidden, size), 1, half, half)
        log_scale = g.op("Tanh", log_scale)
        first, second = g.op("Add", g.op("Mul", second, g.op("Exp", log_scale)), shift), first
        growth = g.sum(log_scale, 1, keepdims=1)
        total = g.op("Add", total, growth) if i else growth
    z = g.concat(1, first, second)
    return g.op("Sub", g.op("Mul", g.sum(g.op("Mul", z, z), 1, keepdims=1), g.scalar(0.5)), total)


def physics_informed(g: NetworkBuilder, batch: int, hidden: int, layers: int) -> str:
    """Build u(x, t), a network of a sine layer and tanh layers, with its derivatives: u beside u_t + u · u_x - ν · u_xx (Burgers' equation).

    The derivatives are carried forward through the layers, which is what automatic differentiation of the inputs computes."""
    value = g.input((batch, 2))
    d_x, d_t = g.constant("along_x", [[1, 0]], "float32"), g.constant("along_t", [[0, 1]], "float32")
    d_xx, width = "", 2
    for i in range(layers):
        weight = g.uniform(f"layers.{i}.weight", (hidden, width), width)
        z = g.op("Gemm", value, weight, g.uniform(f"layers.{i}.bias", (hidden,), width), transB=1)
        z_x, z_t = (g.op("Gemm", part, weight, transB=1) for part in (d_x, d_t))
        if i == 0:
            value, slope = g.op("Sin", z), g.op("Cos", z)
            curvature = g.op("Neg", value)
        else:
            value = g.op("Tanh", z)
            slope = g.op("Sub", g.scalar(1), g.op("Mul", value, value))
            curvature = g.op("Mul", g.op("Mul", g.scalar(-2), value), slope)
        bent = g.op("Mul", curvature, g.op("Mul", z_x, z_x))
        d_xx = g.op("Add", g.op("Mul", slope, g.op("Gemm", d_xx, weight, transB=1)), bent) if i else bent
        d_x, d_t, width = g.op("Mul", slope, z_x), g.op("Mul", slope, z_t), hidden
    weight = g.uniform("head.weight", (1, hidden), hidden)
    u = g.op("Gemm", value, weight, g.uniform("head.bias", (1,), hidden), transB=1)
    u_x, u_t, u_xx = (g.op("Gemm", part, weight, transB=1) for part in (d_x, d_t, d_xx))
    residual = g.op("Sub", g.op("Add", u_t, g.op("Mul", u, u_x)), g.op("Mul", g.scalar(VISCOSITY), u_xx))
    return g.concat(1, u, residual)
