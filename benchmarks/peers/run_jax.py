"""Measure JAX on one workload without convolutions, as one jitted AdamW step with donated buffers; print one JSON line.

    python -m benchmarks.peers.run_jax WORKLOAD FOLDER --threads N

XLA sizes its thread pool by the affinity mask, so --threads sets that mask. The initial weights are random, so losses differ from those of the other
runtimes."""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks import measure

BETA1, BETA2 = 0.9, 0.999


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Time whole steps."""
    import jax
    import jax.numpy as jnp

    from benchmarks.peers import jax_models

    if options.workload not in jax_models.MODELS:
        return measure.unsupported("this workload is not implemented in JAX here")
    imported_mb = measure.memory_mb() or 0.0
    params, apply = jax_models.build(options.workload)

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
