"""Binding a training model to a state: parameter inputs, gradient buffers and running statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ortrain.dtypes import DIFFERENTIABLE
from ortrain.errors import InvalidModelError
from ortrain.ir import Graph, NameSource, TensorType
from ortrain.ops.training import BUFFER_SUFFIX, RESET_FLAG
from ortrain.runtime.state import TrainingState


def bind_parameters(graph: Graph, state: TrainingState) -> None:
    """Give a state the order of a training model's parameter inputs, and gradients for those that the model trains.

    Raises InvalidModelError for a graph that is not a training model, InvalidCheckpointError when the state's parameters are not the model's."""
    inputs = set(graph.inputs)
    known = (*state.trainable, *state.frozen)
    order = [name for name in graph.inputs if name in state.trainable or name in state.frozen]
    buffers = [name.removesuffix(BUFFER_SUFFIX) for name in graph.inputs if name.endswith(BUFFER_SUFFIX)]
    missing = [name for name in order if name in state.trainable and f"{name}{BUFFER_SUFFIX}" not in inputs]
    if missing:
        raise InvalidModelError(f"Gradient buffer input not provided for param: {missing[0]} (expected a training model)")
    if buffers and RESET_FLAG not in inputs:
        raise InvalidModelError(f"expected a training model with the input {RESET_FLAG!r}, got inputs {graph.inputs}")
    types: dict[str, TensorType] = {}
    for name in order:
        kind = graph.types.get(name)
        if kind is None or not kind.is_static:
            raise InvalidModelError(f"expected parameter {name!r} with a fixed shape, got {kind}")
        if name in state.trainable and kind.dtype not in DIFFERENTIABLE:
            raise InvalidModelError(f"expected parameters of {' or '.join(sorted(DIFFERENTIABLE))} in a training model, got {kind.dtype} for {name!r}: "
                                    "ortrain.artifacts makes one that trains float32 copies, from the forward model")
        types[name] = kind
    state.bind(order, [name for name in buffers if name in known], types)


def running_statistics(graph: Graph, fixed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Map the new running statistics of batch normalization to the parameters that receive them when a step commits."""
    names = NameSource(graph.names())
    commits: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        training = node.op_type == "BatchNormInternal" or node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0)
        if not training:
            continue
        node.outputs.extend([""] * (3 - len(node.outputs)))
        for source, output in ((3, 1), (4, 2)):
            if node.inputs[source] in fixed:
                node.outputs[output] = node.outputs[output] or names.unique(f"{node.inputs[source]}_updated")
                commits[node.outputs[output]] = fixed[node.inputs[source]]
    return commits
