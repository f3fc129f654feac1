"""Binding models to a state: parameter inputs, gradient buffers, running statistics, and the runners of bound models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain.dtypes import BFLOAT16, DIFFERENTIABLE
from ortrain.errors import InvalidModelError
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.ops.training import ACCUMULATOR, BUFFER_SUFFIX, RESET_FLAG
from ortrain.passes.fused_training import fused_forward_model, fused_training_model
from ortrain.runtime.runner import Runner
from ortrain.runtime.state import TrainingState
from ortrain.training.update_nodes import Updates


def bind_parameters(graph: Graph, state: TrainingState, parameter_dtype: str) -> None:
    """Give a state the order of a training model's parameter inputs, and gradients for those that the model trains. parameter_dtype: in which it keeps them.

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
    state.bind(order, [name for name in buffers if name in known], types, parameter_dtype)


SYNCHRONIZED_STATISTICS = "SynchronizedStatistics"
"""The operator of ortrain.distributed.batch_normalization that updates running statistics, in the same inputs and outputs as BatchNormInternal."""


def statistics_of(node: Node) -> list[tuple[int, int]]:
    """Return (input, output) for the running mean and variance of a batch normalization in training mode; nothing for other nodes."""
    in_training = node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0)
    return [(3, 1), (4, 2)] if in_training or node.op_type in ("BatchNormInternal", SYNCHRONIZED_STATISTICS) else []


def running_statistics(graph: Graph, fixed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Map the new running statistics of batch normalization to the parameters that receive them when a step commits."""
    names = NameSource(graph.names())
    commits: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        for source, output in statistics_of(node):
            node.outputs.extend([""] * (3 - len(node.outputs)))
            if node.inputs[source] in fixed:
                node.outputs[output] = node.outputs[output] or names.unique(f"{node.inputs[source]}_updated")
                commits[node.outputs[output]] = fixed[node.inputs[source]]
    return commits


def parameter_arrays(state: TrainingState, inputs: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the parameters among a model's inputs, trainable and frozen, as they are kept."""
    return {name: (state.trainable if name in state.trainable else state.frozen)[name] for name in inputs if name in state.trainable or name in state.frozen}


def take_as_kept(model: Model, fixed: Mapping[str, np.ndarray]) -> Model:
    """Return a model that takes parameters in the dtypes in which they are kept: the model itself, or a copy with Casts from bfloat16."""
    kept = [name for name, array in fixed.items() if array.dtype.name == BFLOAT16 and model.graph.types[name].dtype == "float32"]
    if not kept:
        return model
    from ortrain.passes.half_precision import take_in_bfloat16

    return take_in_bfloat16(model, kept)


def training_runner(model: Model, state: TrainingState, gradients: Mapping[str, np.ndarray], reset_flag: np.ndarray, handle: EngineHandle,
                    updates: Updates | None, in_backward: bool, rewrite: Callable[[Model], Model] | None = None,
                    clipping: Mapping[str, np.ndarray] | None = None) -> Runner:
    """Return the runner of a training model, fused, over a state.

    gradients: parameter -> gradient buffer, empty with optimizer_in_backward. reset_flag: bool [1], whether a step overwrites the gradients.
    updates: the optimizer's updates, which run within the train step if in_backward, and may otherwise be deferred. rewrite: returns a changed copy of the
    fused model, which runs in its place. clipping: the inputs by which each sample's gradient is clipped, None to clip none."""
    if clipping is None:
        model = fused_training_model(model)
    else:
        from ortrain.passes.sample_clipping import clipping_model

        model = clipping_model(model, [name for name in model.graph.inputs if name in state.trainable or name in state.frozen or _is_internal(name)])
    if rewrite is not None:
        model = rewrite(model)
    flags = {node.outputs[0] for node in model.graph.nodes if node.op_type == ACCUMULATOR}
    parameters = parameter_arrays(state, model.graph.inputs)
    model = take_as_kept(model, parameters)
    fixed = parameters | dict(clipping or {})
    if updates is not None:
        fixed |= updates.arrays
        if in_backward:
            model = updates.put_into(model.copy())
    graph = model.graph
    for name in graph.inputs:
        if name == RESET_FLAG:
            fixed[name] = reset_flag
        elif name.endswith(BUFFER_SUFFIX) and name.removesuffix(BUFFER_SUFFIX) in gradients:
            fixed[name] = gradients[name.removesuffix(BUFFER_SUFFIX)]
    buffers = {f"{name}{BUFFER_SUFFIX}" for name in state.trainable}               # without arrays in case of optimizer_in_backward
    inputs = [name for name in graph.inputs if name not in fixed and name not in buffers]
    outputs = [name for name in graph.outputs if name not in flags]
    return Runner(model, inputs, outputs, fixed, handle, "training model", running_statistics(graph, fixed), deferred=None if in_backward else updates)


def _is_internal(name: str) -> bool:
    """Return whether an input of a training model is a gradient buffer or the reset flag."""
    return name == RESET_FLAG or name.endswith(BUFFER_SUFFIX)


def eval_runner(model: Model, outputs: Sequence[str], state: TrainingState, handle: EngineHandle, where: str, prune: bool = False) -> Runner:
    """Return the runner of some outputs of an eval model, fused, over a state.

    where: names the model in errors. prune: take only the user inputs that the outputs depend on."""
    fixed = parameter_arrays(state, model.graph.inputs)
    inputs = [name for name in model.graph.inputs if name not in fixed]
    if prune:
        needed = {name for node in model.graph.ancestors(outputs) for name in node.inputs}
        inputs = [name for name in inputs if name in needed]
    return Runner(take_as_kept(fused_forward_model(model, outputs), fixed), inputs, outputs, fixed, handle, where)
