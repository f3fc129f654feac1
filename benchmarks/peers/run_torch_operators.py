"""Measure PyTorch's operators on request: read one JSON line {"name", "part", "seconds"} at a time from standard input, and answer each with one JSON line
{"seconds": best time, None where the case has no gradient; "views": whether each gradient is a view; "version"} or {"error"}.

    python -m benchmarks.peers.run_torch_operators --threads N"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.operators.case import Case, output_gradient
from benchmarks.operators.cases import CASES

MIN_RUNS = 3


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


def is_view(gradient: Any, incoming: Any) -> bool:
    """Return whether a gradient was not written to memory: it has the memory of the incoming gradient, or elements that stand for many."""
    expanded = any(stride == 0 and size > 1 for stride, size in zip(gradient.stride(), gradient.shape, strict=True))
    return expanded or bool(gradient.untyped_storage().data_ptr() == incoming.untyped_storage().data_ptr())


class PreparedCase:
    """The tensors of a case, the calls to time, and whether each gradient is a view."""

    def __init__(self, torch: Any, case: Case) -> None:
        assert case.peer is not None
        arrays = case.arrays()
        differentiated = case.differentiated(arrays)
        tensors = {i: torch.from_numpy(x) for i, x in enumerate(arrays) if x is not None and not case.is_constant(i)}
        wanted = [tensors[i] for i in differentiated]
        peer = case.peer

        def forward() -> Any:
            with torch.no_grad():
                return peer(torch, *tensors.values())

        def both() -> Any:
            result = peer(torch, *tensors.values())
            return result, torch.autograd.grad(result, wanted, dy)

        for x in wanted:
            x.requires_grad_()
        y = peer(torch, *tensors.values())
        dy = torch.from_numpy(output_gradient(y.shape))
        differentiable = bool(wanted and y.requires_grad)
        self.calls: dict[str, Callable[[], Any] | None] = {"forward": forward, "both": both if differentiable else None}
        self.views = [is_view(gradient, dy) for gradient in torch.autograd.grad(y, wanted, dy)] if differentiable else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    name, prepared = "", None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["name"] != name:
                prepared = None                           # frees the tensors of the last case before the next ones are made
                name, prepared = request["name"], PreparedCase(torch, CASES[request["name"]])
            assert prepared is not None
            call = prepared.calls[request["part"]]
            seconds = None if call is None else best_time(call, request["seconds"])
            answer = {"seconds": seconds, "views": prepared.views, "version": torch.__version__}
        except Exception as error:                        # one operator that PyTorch refuses must not end the comparison
            name, answer = "", {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
