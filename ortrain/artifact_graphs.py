"""From a forward model with its loss to the training and the eval graph, in the old package's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ortrain.dtypes import DIFFERENTIABLE
from ortrain.errors import InvalidModelError
from ortrain.gradient import add_gradient
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.ops.inference import infer
from ortrain.ops.record import MICROSOFT, record_of

RESET_FLAG = "lazy_reset_grad"
TRAINING_DOMAINS = {"ai.onnx.ml": 5, "ai.onnx.training": 1, "ai.onnx.preview.training": 1, MICROSOFT: 1, "com.microsoft.experimental": 1,
                    "com.microsoft.nchwc": 1, "org.pytorch.aten": 1}
"""What the old package writes into opset_import, used or not."""


@dataclass(frozen=True, slots=True)
class TrainingGraphs:
    """Both models, and which initializers became parameters, in initializer order."""

    training: Model
    eval: Model
    trainable: list[str]
    frozen: list[str]


def build_graphs(forward: Model, requires_grad: Sequence[str], frozen: Sequence[str]) -> TrainingGraphs:
    """The training and eval model of a forward model whose first output is the loss.

    Raises UnreachableParameterError, MissingGradientError, MissingKernelError or InvalidModelError."""
    initializers = forward.graph.initializers
    trained = [name for name in initializers if name in set(requires_grad)]
    kept = [name for name in initializers if name in set(frozen)]
    wanted = [name for name in requires_grad if name in forward.graph.inputs] + trained
    training = training_model(forward, wanted, {*trained, *kept})
    return TrainingGraphs(training, eval_model(forward, {*trained, *kept}), trained, kept)


def parameters_to_inputs(graph: Graph, parameters: set[str]) -> None:
    """Initializers that are parameters become inputs, in initializer order; unused initializers go."""
    for name in [name for name in graph.initializers if name in parameters]:
        graph.types[name] = TensorType.of(graph.initializers.pop(name))
        graph.inputs.append(name)
    used = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in used}


def eval_model(forward: Model, parameters: set[str]) -> Model:
    """The forward graph with its loss, in inference mode, parameters as inputs."""
    model = forward.copy()
    for node in model.graph.nodes:
        if node.op_type == "Dropout" and len(node.inputs) > 2:
            node.inputs[2] = ""
        elif node.op_type == "BatchNormalization":
            if "training_mode" in node.attributes:
                node.attributes["training_mode"] = 0
            del node.outputs[1:]
    parameters_to_inputs(model.graph, parameters)
    complete_types(model)
    return model


def training_model(forward: Model, wanted: Sequence[str], parameters: set[str]) -> Model:
    """Forward, backward and accumulators."""
    model = forward.copy()
    graph = model.graph
    model.opsets = model.opsets | {domain: version for domain, version in TRAINING_DOMAINS.items() if domain not in model.opsets}
    for node in graph.nodes:
        normalization_for_training(node)
    parameters_to_inputs(graph, parameters)
    loss = graph.outputs[0]
    if not wanted:
        complete_types(model)
        return model
    gradients = add_gradient(model, loss, wanted)
    accumulate(model, wanted, gradients)
    complete_types(model)
    return model


def normalization_for_training(node: Node) -> None:
    """BatchNormalization, also one in inference mode, trains on batch statistics, as the old package does."""
    if node.op_type != "BatchNormalization" or node.domain:
        return
    attributes = {"epsilon": float(node.attributes.get("epsilon", 1e-5)), "momentum": float(node.attributes.get("momentum", 0.9)), "training_mode": 1}
    names = (node.outputs + [""] * 3)[:3]
    y = names[0]
    for index, label in ((1, "running_mean"), (2, "running_var")):
        names[index] = names[index] or f"{y}_{label}"
    node.op_type, node.domain, node.attributes = "BatchNormInternal", MICROSOFT, attributes
    node.outputs = [*names, f"{y}_saved_mean", f"{y}_saved_inv_std"]


def accumulate(model: Model, wanted: Sequence[str], gradients: dict[str, str]) -> None:
    """Buffers, the reset flag, and one accumulator per wanted value, at the end of the graph."""
    graph = model.graph
    names = NameSource(graph.names())
    taken = [name for name in (RESET_FLAG, *(f"{value}_grad.accumulation.buffer" for value in wanted)) if name in graph.names()]
    if taken:
        raise InvalidModelError(f"expected a model without values named {taken}, which the training model needs for itself")
    for value in wanted:
        buffer = f"{value}_grad.accumulation.buffer"
        graph.inputs.append(buffer)
        graph.types[buffer] = graph.types[value]
    graph.inputs.append(RESET_FLAG)
    graph.types[RESET_FLAG] = TensorType("bool", (1,))
    for value in wanted:
        output = names.unique(f"{value}_grad.accumulation.out")
        position = len(graph.outputs)
        graph.nodes.append(Node("InPlaceAccumulatorV2", [f"{value}_grad.accumulation.buffer", gradients[value], RESET_FLAG], [output],
                                f"GradientAccumulator{position}", MICROSOFT))
        graph.outputs.append(output)
        graph.types[output] = TensorType("bool", (1,))


def complete_types(model: Model) -> None:
    """Writes what inference finds into the graph's types (the old runtime's pool gradients read their shape there)."""
    graph = model.graph
    known = infer(model)
    live = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)} | set(graph.inputs) | set(graph.outputs)
    graph.types = {name: kind for name, kind in (graph.types | {n: k for n, k in known.items() if n not in graph.types}).items()
                   if name in live and name not in graph.initializers and not (kind.shape is None and name not in graph.outputs)}


def reaching_weights(forward: Model, loss: str) -> list[str]:
    """Float initializers of rank 1 or more that reach the loss by a differentiable way, without running statistics."""
    needed = {loss}
    for node in reversed(forward.graph.nodes):
        record = record_of(node)
        if record is None or not record.differentiable or not needed.intersection(node.outputs):
            continue
        needed.update(name for i, name in enumerate(node.inputs) if name and i not in record.stop)
    statistics = set(running_statistics(forward))
    return [name for name, array in forward.graph.initializers.items()
            if name in needed and array.dtype.name in DIFFERENTIABLE and array.ndim >= 1 and np.size(array) and name not in statistics]


def running_statistics(forward: Model) -> list[str]:
    """Mean and variance of the batch normalisations, where they are initializers."""
    return [name for node in forward.graph.nodes if node.op_type == "BatchNormalization" for name in node.inputs[3:5] if name in forward.graph.initializers]
