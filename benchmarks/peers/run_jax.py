"""Measure JAX on one workload without convolutions, as one jitted AdamW step with donated buffers; print one JSON line.

    python -m benchmarks.peers.run_jax WORKLOAD FOLDER --threads N

XLA sizes its thread pool by the affinity mask, so --threads sets that mask. The initial weights are drawn here, so losses differ from those of the other
runtimes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from benchmarks import measure

WORKLOADS = ("mlp-mnist", "mlp-tiny-b1", "mlp-tiny-b16", "mlp-wide", "bert-mini", "gpt-mini", "lstm")
BETA1, BETA2 = 0.9, 0.999
DIM, HEADS, LAYERS, SEQUENCE, VOCABULARY = 256, 4, 4, 128, 8192
Model = tuple[Any, Callable[[Any, Any], Any]]
"""Parameters, and a function of parameters and input."""


def models() -> dict[str, Callable[[], Model]]:
    """Return the constructors of the workloads."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    rng = np.random.default_rng(0)

    def dense(size_in: int, size_out: int) -> dict[str, np.ndarray]:
        bound = size_in ** -0.5
        return {"w": rng.uniform(-bound, bound, (size_in, size_out)).astype("f"), "b": np.zeros(size_out, "f")}

    def linear(p: Any, x: Any) -> Any:
        return x @ p["w"] + p["b"]

    def norm_parameters() -> dict[str, np.ndarray]:
        return {"g": np.ones(DIM, "f"), "b": np.zeros(DIM, "f")}

    def norm(p: Any, x: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        return centered * lax.rsqrt((centered ** 2).mean(-1, keepdims=True) + 1e-5) * p["g"] + p["b"]

    def mlp(*sizes: int) -> Model:
        def apply(params: Any, x: Any) -> Any:
            for p in params[:-1]:
                x = jax.nn.relu(linear(p, x))
            return linear(params[-1], x)

        return [dense(*pair) for pair in zip(sizes, sizes[1:], strict=False)], apply

    def transformer(causal: bool) -> Model:
        params: dict[str, Any] = {
            "tokens": rng.standard_normal((VOCABULARY, DIM)).astype("f"), "positions": rng.standard_normal((SEQUENCE, DIM)).astype("f") * np.float32(0.02),
            "norm": norm_parameters(), "head": dense(DIM, VOCABULARY if causal else 4), "pool": dense(DIM, DIM),
            "layers": [{**{part: dense(DIM, DIM) for part in "qkvo"}, "n1": norm_parameters(), "n2": norm_parameters(), "f1": dense(DIM, 4 * DIM),
                        "f2": dense(4 * DIM, DIM)} for _ in range(LAYERS)]}
        if causal:
            del params["pool"], params["head"]["b"]
        mask = np.triu(np.full((SEQUENCE, SEQUENCE), -1e9, "f"), 1)

        def attention(p: Any, x: Any) -> Any:
            n, length, _ = x.shape
            q, k, v = (linear(p[part], x).reshape(n, length, HEADS, -1).transpose(0, 2, 1, 3) for part in "qkv")
            scores = (q @ k.swapaxes(2, 3)) * (DIM // HEADS) ** -0.5
            mixed = jax.nn.softmax(scores + mask if causal else scores) @ v
            return linear(p["o"], mixed.transpose(0, 2, 1, 3).reshape(n, length, DIM))

        def feed_forward(p: Any, x: Any) -> Any:
            return linear(p["f2"], jax.nn.gelu(linear(p["f1"], x), approximate=False))

        def apply(params: Any, ids: Any) -> Any:
            x = params["tokens"][ids] + params["positions"]
            if causal:
                for p in params["layers"]:
                    x = x + attention(p, norm(p["n1"], x))
                    x = x + feed_forward(p, norm(p["n2"], x))
                return (norm(params["norm"], x) @ params["head"]["w"]).reshape(-1, VOCABULARY)
            x = norm(params["norm"], x)
            for p in params["layers"]:
                x = norm(p["n1"], x + attention(p, x))
                x = norm(p["n2"], x + feed_forward(p, x))
            return linear(params["head"], jnp.tanh(linear(params["pool"], x[:, 0])))

        return params, apply

    def lstm(inputs: int = 64, hidden: int = 128) -> Model:
        def apply(params: Any, x: Any) -> Any:
            def cell(carry: Any, gates_of_x: Any) -> Any:
                h, c = carry
                i, f, u, o = jnp.split(gates_of_x + linear(params["h"], h), 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
                return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

            zero = jnp.zeros((x.shape[0], hidden))
            (h, _), _ = lax.scan(cell, (zero, zero), linear(params["x"], x.swapaxes(0, 1)))
            return linear(params["head"], h)

        return {"x": dense(inputs, 4 * hidden), "h": dense(hidden, 4 * hidden), "head": dense(hidden, 10)}, apply

    return {"mlp-mnist": lambda: mlp(784, 500, 10), "mlp-tiny-b1": lambda: mlp(16, 32, 32, 4), "mlp-tiny-b16": lambda: mlp(16, 32, 32, 4),
            "mlp-wide": lambda: mlp(1024, 4096, 4096, 1000), "bert-mini": lambda: transformer(False), "gpt-mini": lambda: transformer(True), "lstm": lstm}


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Time whole steps."""
    if options.workload not in WORKLOADS:
        return measure.unsupported("this workload is not implemented in JAX here")
    import jax
    import jax.numpy as jnp

    imported_mb = measure.memory_mb() or 0.0
    params, apply = models()[options.workload]()

    def loss_of(ps: Any, x: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(apply(ps, x)), y[:, None], 1).mean()

    def update(ps: Any, ms: Any, vs: Any, t: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(ps, x, y)
        t = t + 1
        c1, c2 = 1 - BETA1 ** t, 1 - BETA2 ** t
        ms = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, ms, gradients)
        vs = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, vs, gradients)
        ps = jax.tree.map(lambda p, m, v: p - measure.LEARNING_RATE * (m / c1) / (jnp.sqrt(v / c2) + measure.EPSILON), ps, ms, vs)
        return loss, ps, ms, vs, t

    compiled = jax.jit(update, donate_argnums=(0, 1, 2, 3))
    zeros = [jax.tree.map(jnp.zeros_like, params) for _ in range(2)]
    state = [jax.tree.map(jnp.asarray, params), *zeros, jnp.zeros((), "float32")]

    def step(x: Any, y: Any) -> float:
        loss, *state[:] = compiled(*state, x, y)
        jax.block_until_ready(state)
        return float(loss)

    data = [(jnp.asarray(x.astype("int32") if x.dtype.kind == "i" else x), jnp.asarray(y.astype("int32"))) for x, y in measure.load_batches(options.folder)]
    return measure.time_steps(step, data, options, imported_mb, jax.__version__)


def main() -> None:
    options = measure.argument_parser(__doc__).parse_args()
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: options.threads]))
    options.pin = False
    measure.print_result({"status": "ok"} if options.prepare else train(options))


if __name__ == "__main__":
    main()
