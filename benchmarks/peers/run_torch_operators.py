"""Measure PyTorch's operators; print one JSON line per case: name, best times of the forward pass and of forward pass and gradient in seconds.

    python -m benchmarks.peers.run_torch_operators --threads N --seconds S NAME ..."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks.operators.case import Case, output_gradient
from benchmarks.operators.cases import CASES

MIN_RUNS = 5


def best_time(work: Callable[[], Any], seconds: float) -> float:
    """Return the shortest time of a call within so many seconds."""
    best, runs, until = float("inf"), 0, time.perf_counter() + seconds
    while runs < MIN_RUNS or time.perf_counter() < until:
        started = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - started)
        del result                                        # freeing its memory does not count
        runs += 1
    return best


def measure(torch: Any, case: Case, seconds: float) -> tuple[float, float | None]:
    """Return the times of the forward pass, and of forward pass and gradient; None where the case has no gradient."""
    assert case.peer is not None
    arrays = case.arrays()
    differentiated = case.differentiated(arrays)
    tensors = {i: torch.from_numpy(x) for i, x in enumerate(arrays) if x is not None and not case.is_constant(i)}
    with torch.no_grad():
        forward = best_time(lambda: case.peer(torch, *tensors.values()), seconds)
    if not differentiated:
        return forward, None
    for i in differentiated:
        tensors[i].requires_grad_()
    y = case.peer(torch, *tensors.values())
    if not y.requires_grad:
        return forward, None
    dy = torch.from_numpy(output_gradient(y.shape))

    def both() -> Any:
        result = case.peer(torch, *tensors.values())
        return result, torch.autograd.grad(result, [tensors[i] for i in differentiated], dy)

    return forward, best_time(both, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.1)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    for name in options.names:
        try:
            forward, both = measure(torch, CASES[name], options.seconds)
        except Exception as error:                        # one operator that PyTorch refuses must not end the comparison
            print(json.dumps({"name": name, "error": f"{type(error).__name__}: {error}"[:300]}), flush=True)
            continue
        print(json.dumps({"name": name, "forward": forward, "both": both, "version": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
