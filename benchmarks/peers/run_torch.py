"""Measure PyTorch on one workload; print one JSON line.

    python -m benchmarks.peers.run_torch WORKLOAD FOLDER --threads N [--compile] [--fused-attention] [--channels-last]

The optimizer is torch's fused AdamW; bfloat16 means torch.autocast."""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks import measure


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Time whole steps: loss, backward, optimizer step and gradient reset."""
    import numpy as np
    import torch

    from benchmarks.peers import networks, torch_models

    imported_mb = measure.memory_mb() or 0.0
    torch.set_num_threads(options.threads)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    meta = measure.load_meta(options.folder)
    if (options.folder / measure.WEIGHTS).exists():
        with np.load(options.folder / measure.WEIGHTS) as weights:
            model = networks.build(options.workload, meta["sizes"], weights)
    else:
        model = torch_models.build(options.workload, options.fused_attention)
    if options.channels_last:
        model = model.to(memory_format=layout)
    loss_function = torch.nn.functional.mse_loss if meta["loss"] == measure.MEAN_SQUARED_ERROR else torch.nn.functional.cross_entropy
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=measure.LEARNING_RATE, eps=measure.EPSILON,
                                  weight_decay=measure.WEIGHT_DECAY, fused=True)

    def loss_of(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == measure.BFLOAT16):
            return loss_function(model(x), y)

    forward = torch.compile(loss_of) if options.compile else loss_of

    def step(x: Any, y: Any) -> float:
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    def tensor(array: Any) -> Any:
        result = torch.from_numpy(array)
        return result.contiguous(memory_format=layout) if result.dim() == 4 else result

    return measure.time_steps(step, [(tensor(x), tensor(y)) for x, y in measure.load_batches(options.folder)], options, imported_mb, torch.__version__)


def main() -> None:
    parser = measure.argument_parser(__doc__)
    for name in ("--compile", "--fused-attention", "--channels-last"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    measure.print_result({"status": "ok"} if options.prepare else train(options))


if __name__ == "__main__":
    main()
