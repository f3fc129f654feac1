"""One training of a task, what of it runs in bfloat16, and the angles between its gradients in both precisions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.accuracy.data import Split
from benchmarks.accuracy.tasks import Forward, Task
from benchmarks.floor import PRODUCTS
from benchmarks.measure import BFLOAT16, FLOAT32
from ortrain import SessionOptions, Trainer, TrainingSession
from ortrain.plan.emission import OF_A_NODE

WARM_UP_SHARE = 0.1
"""The share of the steps over which the learning rate grows."""

Gradients = dict[str, np.ndarray]
"""Layer -> the gradient of its parameters."""
Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Cosines:
    """Cosines between a float32 gradient and others.

    bfloat16: the gradient of the same batch in bfloat16. other_batch: the float32 gradient of another batch. layers: bfloat16, by layer."""

    bfloat16: float
    other_batch: float
    layers: dict[str, float]


def recorded(found: Sequence[Cosines]) -> dict[str, Any]:
    """Return the cosines of all seeds as lists."""
    return {"bfloat16": [one.bfloat16 for one in found], "other_batch": [one.other_batch for one in found],
            "layers": {layer: [one.layers[layer] for one in found] for layer in found[0].layers}}


def options_of(precision: str, float32_nodes: Sequence[str] = ()) -> SessionOptions:
    return SessionOptions(intra_op_num_threads=1, precision=precision, float32_nodes=list(float32_nodes))


def train(task: Task, split: Split, precision: str, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Train and return what is recorded of it, and all parameters at its end. The seed is that of the first weights and of the order of the samples, which are
    the same in both precisions."""
    forward = task.forward(seed)
    steps = task.epochs * (task.steps_per_epoch or len(split.inputs) // task.batch_size)
    trainer = Trainer.from_model(
        forward.model, loss=task.loss, optimizer="adamw", learning_rate=task.learning_rate, requires_grad=forward.trained, frozen_params=forward.frozen,
        options=options_of(precision), seed=seed, metrics=[task.metric], schedule="cosine", warmup_steps=int(WARM_UP_SHARE * steps), progress=False)
    with trainer.session:
        history = trainer.fit(split.inputs, split.targets, epochs=task.epochs, batch_size=task.batch_size, steps_per_epoch=task.steps_per_epoch,
                              drop_last=True, validation=(split.test_inputs, split.test_targets))
        weights = trainer.save_weights()
    last = history[-1]
    return {"seed": seed, "loss": last.validation["loss"], task.metric: last.validation[task.metric], "training_loss": last.loss,
            "held_out_losses": [record.validation["loss"] for record in history]}, weights


def gradients(task: Task, forward: Forward, batch: Batch, weights: np.ndarray | None, options: SessionOptions) -> Gradients:
    """Return the gradient of a batch for each layer, as one vector of all its parameters. weights: all parameters; None for those of the model."""
    with TrainingSession.from_model(forward.model, loss=task.loss, requires_grad=forward.trained, frozen_params=forward.frozen, options=options) as session:
        if weights is not None:
            session.from_buffer(weights, trainable_only=False)
        session.train_step(*batch)
        parts: dict[str, list[np.ndarray]] = {}
        for name, parameter in session.parameters:
            if parameter.grad is not None:
                parts.setdefault(name.rpartition(".")[0] or name, []).append(parameter.grad.ravel().astype(np.float64))
        return {layer: np.concatenate(arrays) for layer, arrays in parts.items()}


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Return the cosine of the angle between two vectors other than 0."""
    return float(first @ second) / float(np.linalg.norm(first) * np.linalg.norm(second))


def gradient_cosines(task: Task, split: Split, seed: int, weights: np.ndarray | None) -> Cosines:
    """Return the cosines of the float32 gradient of a batch with the one in bfloat16, of all parameters and of each layer, and, for comparison, with that of
    another batch."""
    forward, size = task.forward(seed), task.batch_size
    batch, other = ((split.inputs[start : start + size], split.targets[start : start + size]) for start in (0, size))
    exact, narrow, elsewhere = (gradients(task, forward, samples, weights, options_of(precision))
                                for samples, precision in ((batch, FLOAT32), (batch, BFLOAT16), (other, FLOAT32)))
    whole, whole_narrow, whole_elsewhere = (np.concatenate([found[layer] for layer in exact]) for found in (exact, narrow, elsewhere))
    return Cosines(cosine(whole, whole_narrow), cosine(whole, whole_elsewhere), {layer: cosine(value, narrow[layer]) for layer, value in exact.items()})


def products_in_bfloat16(task: Task, split: Split) -> dict[str, Any]:
    """Return which nodes with products a train step computes in bfloat16, and their share of the operations of all products.

    Found by experiment: a node does if a step whose other nodes stay in float32 has other gradients than one in float32. A node counts with the operations of
    its gradients, also where some of its products stay in float32."""
    forward = task.forward(0)
    batch: Batch = split.inputs[: task.batch_size], split.targets[: task.batch_size]
    operations: dict[str, int] = {}
    with TrainingSession.from_model(forward.model, loss=task.loss, requires_grad=forward.trained, frozen_params=forward.frozen,
                                    options=options_of(FLOAT32)) as session, session.profile() as profile:
        session.train_step(*batch)
    for step in profile.steps:
        if step.operator in PRODUCTS:
            node = re.split(OF_A_NODE, step.node)[0]
            operations[node] = operations.get(node, 0) + (step.operations or 0)

    def found_with(options: SessionOptions) -> Gradients:
        return gradients(task, forward, batch, None, options)

    exact = found_with(options_of(FLOAT32))
    narrow = [node for node in operations if _differ(exact, found_with(options_of(BFLOAT16, [other for other in operations if other != node])))]
    return {"nodes": len(operations), "in_bfloat16": len(narrow), "share": sum(operations[node] for node in narrow) / sum(operations.values())}


def _differ(first: Gradients, second: Gradients) -> bool:
    return any(not np.array_equal(value, second[name]) for name, value in first.items())


def run_task(task: Task, seeds: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Train a task with each seed in both precisions; return what is recorded. report: is called with a line about each training."""
    split = task.data()
    runs: dict[str, list[dict[str, Any]]] = {FLOAT32: [], BFLOAT16: []}
    start, end = [], []
    for seed in range(seeds):
        for precision, found in runs.items():
            run, weights = train(task, split, precision, seed)
            found.append(run)
            report(f"seed {seed}, {precision}: held-out loss {run['loss']:.4f}, {task.metric} {run[task.metric]:.4f}, training loss {run['training_loss']:.4f}")
        start.append(gradient_cosines(task, split, seed, None))
        end.append(gradient_cosines(task, split, seed, weights))                    # those of the training in bfloat16
    return {"title": task.title, "metric": task.metric, "products": products_in_bfloat16(task, split), "runs": runs,
            "cosines": {"start": recorded(start), "end": recorded(end)}}
