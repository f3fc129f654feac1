"""Prints the losses of some training steps as JSON, so that those of two processors can be compared."""

from __future__ import annotations

import json

from benchmarks.workloads import VOCABULARY, WORKLOADS, Workload, transformer
from ortrain import TrainingSession
from ortrain.artifacts import LossType, OptimType

COMPARED = {name: WORKLOADS[name] for name in ("mlp-mnist", "cnn-lenet", "lstm")} | {
    "transformer": Workload(transformer(causal=False, batch=4, sequence=64, layers=1), (4, 64), 4, 4, VOCABULARY)}
STEPS = 3


def losses(name: str, workload: Workload) -> list[float]:
    """Return the losses of a workload, each step with a batch of its own."""
    found = []
    model, trained, frozen = workload.make(name)
    with TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=trained, frozen_params=frozen) as session:
        for batch in workload.batches(STEPS):
            found.append(float(session.train_step(*batch)[0]))
            session.optimizer_step()
            session.lazy_reset_grad()
    return found


if __name__ == "__main__":
    print(json.dumps({name: losses(name, workload) for name, workload in COMPARED.items()}))
