"""The workloads without convolutions in JAX, with the layers of the ONNX graphs in benchmarks/workloads.py and weights from one seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DIM, HEADS, LAYERS, SEQUENCE, VOCABULARY = 256, 4, 4, 128, 8192
INPUTS, HIDDEN = 64, 128
"""Sizes of the LSTM."""
Model = tuple[Any, Callable[[Any, Any], Any]]
"""Parameters, and a function of parameters and input."""


def dense_parameters(rng: np.random.Generator, size_in: int, size_out: int) -> dict[str, np.ndarray]:
    """Return the parameters of a linear layer with torch's default initialization."""
    bound = size_in ** -0.5
    return {"w": rng.uniform(-bound, bound, (size_in, size_out)).astype("f"), "b": np.zeros(size_out, "f")}


def linear(p: Any, x: Any) -> Any:
    return x @ p["w"] + p["b"]


def norm_parameters() -> dict[str, np.ndarray]:
    """Return the parameters of a layer normalization."""
    return {"g": np.ones(DIM, "f"), "b": np.zeros(DIM, "f")}


def norm(p: Any, x: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt((centered ** 2).mean(-1, keepdims=True) + 1e-5) * p["g"] + p["b"]


def mlp(rng: np.random.Generator, *sizes: int) -> Model:
    """Return linear layers with ReLU between them."""
    def apply(params: Any, x: Any) -> Any:
        for p in params[:-1]:
            x = jax.nn.relu(linear(p, x))
        return linear(params[-1], x)

    return [dense_parameters(rng, *pair) for pair in zip(sizes, sizes[1:], strict=False)], apply


def attention(p: Any, x: Any, mask: Any) -> Any:
    """Return self-attention of x [batch, sequence, DIM]. mask: added to the scores; None for no mask."""
    n, length, _ = x.shape
    q, k, v = (linear(p[part], x).reshape(n, length, HEADS, -1).transpose(0, 2, 1, 3) for part in "qkv")
    scores = (q @ k.swapaxes(2, 3)) * (DIM // HEADS) ** -0.5
    mixed = jax.nn.softmax(scores if mask is None else scores + mask) @ v
    return linear(p["o"], mixed.transpose(0, 2, 1, 3).reshape(n, length, DIM))


def feed_forward(p: Any, x: Any) -> Any:
    return linear(p["f2"], jax.nn.gelu(linear(p["f1"], x), approximate=False))


def transformer_parameters(rng: np.random.Generator, classes: int) -> dict[str, Any]:
    """Return the parameters of embeddings, layers, pooling and a classifier."""
    return {
        "tokens": rng.standard_normal((VOCABULARY, DIM)).astype("f"), "positions": rng.standard_normal((SEQUENCE, DIM)).astype("f") * np.float32(0.02),
        "norm": norm_parameters(), "head": dense_parameters(rng, DIM, classes), "pool": dense_parameters(rng, DIM, DIM),
        "layers": [{**{part: dense_parameters(rng, DIM, DIM) for part in "qkvo"}, "n1": norm_parameters(), "n2": norm_parameters(),
                    "f1": dense_parameters(rng, DIM, 4 * DIM), "f2": dense_parameters(rng, 4 * DIM, DIM)} for _ in range(LAYERS)]}


def gpt(rng: np.random.Generator) -> Model:
    """Return a causal transformer with normalization first, and scores for every token."""
    params = transformer_parameters(rng, VOCABULARY)
    del params["pool"], params["head"]["b"]
    mask = np.triu(np.full((SEQUENCE, SEQUENCE), -1e9, "f"), 1)

    def apply(params: Any, ids: Any) -> Any:
        x = params["tokens"][ids] + params["positions"]
        for p in params["layers"]:
            x = x + attention(p, norm(p["n1"], x), mask)
            x = x + feed_forward(p, norm(p["n2"], x))
        return (norm(params["norm"], x) @ params["head"]["w"]).reshape(-1, VOCABULARY)

    return params, apply


def bert(rng: np.random.Generator) -> Model:
    """Return a transformer with normalization last, and scores of four classes."""
    def apply(params: Any, ids: Any) -> Any:
        x = norm(params["norm"], params["tokens"][ids] + params["positions"])
        for p in params["layers"]:
            x = norm(p["n1"], x + attention(p, x, None))
            x = norm(p["n2"], x + feed_forward(p, x))
        return linear(params["head"], jnp.tanh(linear(params["pool"], x[:, 0])))

    return transformer_parameters(rng, 4), apply


def lstm(rng: np.random.Generator) -> Model:
    """Return an LSTM and a dense layer on its last state."""
    def apply(params: Any, x: Any) -> Any:
        def cell(carry: Any, gates_of_x: Any) -> Any:
            h, c = carry
            i, f, u, o = jnp.split(gates_of_x + linear(params["h"], h), 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zero = jnp.zeros((x.shape[0], HIDDEN))
        (h, _), _ = lax.scan(cell, (zero, zero), linear(params["x"], x.swapaxes(0, 1)))
        return linear(params["head"], h)

    return {"x": dense_parameters(rng, INPUTS, 4 * HIDDEN), "h": dense_parameters(rng, HIDDEN, 4 * HIDDEN), "head": dense_parameters(rng, HIDDEN, 10)}, apply


MODELS: dict[str, Callable[[np.random.Generator], Model]] = {
    "mlp-mnist": lambda rng: mlp(rng, 784, 500, 10), "mlp-tiny-b1": lambda rng: mlp(rng, 16, 32, 32, 4), "mlp-tiny-b16": lambda rng: mlp(rng, 16, 32, 32, 4),
    "mlp-wide": lambda rng: mlp(rng, 1024, 4096, 4096, 1000), "bert-mini": bert, "gpt-mini": gpt, "lstm": lstm,
}


def build(workload: str) -> Model:
    """Return the model of a workload. Raises KeyError for an unknown name."""
    return MODELS[workload](np.random.default_rng(0))
