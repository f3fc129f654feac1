"""A training model with clipped gradients, from a training model."""

from __future__ import annotations

from ortrain.errors import InvalidModelError
from ortrain.fusion import OPSETS, fuse
from ortrain.ir import Model, Node, TensorType
from ortrain.ops.recurrent import LAYERS
from ortrain.ops.training import ACCUMULATOR, BUFFER_SUFFIX
from ortrain.passes.fused_training import forward_part
from ortrain.passes.sample_clipping.backward import clipped_gradients

MAX_NORM, GRADIENT_SCALE = "ortrain::max_grad_norm", "ortrain::gradient_scale"
"""Inputs of the model, float32 [1]: the limit of the norm of a sample's gradient, and a factor of the sum over samples."""


TRAINING_FORMS = {f"{name}Training": (name, layer.states) for name, layer in LAYERS.items() if layer.saved}
"""Operator -> the one that it is the training form of, and how many outputs that one has."""


def _undo_training_form(node: Node) -> None:
    """Turn a recurrent layer back into the form that the backward pass starts with: the outputs behind its own were read by the old gradients alone."""
    if node.op_type in TRAINING_FORMS:
        node.op_type, count = TRAINING_FORMS[node.op_type]
        node.domain, node.outputs = "", node.outputs[:count]


def clipping_model(model: Model, parameters: list[str]) -> Model:
    """Return a training model with two more inputs and fused operators, whose gradients are scaled sums of the clipped gradients of single samples.

    model: a training model; its loss is its first output, and its own gradients are not looked at. parameters: its inputs that are none of the user's.
    Raises PerSampleGradientError where samples are not apart, InvalidModelError for a model without gradients."""
    accumulators = [node for node in model.graph.nodes if node.op_type == ACCUMULATOR]
    if not accumulators or any(not node.inputs[0].endswith(BUFFER_SUFFIX) for node in accumulators):
        raise InvalidModelError("expected a training model with gradients of parameters")
    trained = [node.inputs[0].removesuffix(BUFFER_SUFFIX) for node in accumulators]
    flags = {node.outputs[0] for node in accumulators}
    clipped = forward_part(model, [name for name in model.graph.outputs if name not in flags])
    graph = clipped.graph
    for node in graph.nodes:
        _undo_training_form(node)
    fuse(graph, trained)
    clipped.opsets |= {domain: version for domain, version in OPSETS.items() if domain not in clipped.opsets}
    for name in (MAX_NORM, GRADIENT_SCALE):
        graph.inputs.append(name)
        graph.types[name] = TensorType("float32", (1,))
    gradients = clipped_gradients(clipped, graph.outputs[0], trained, [*parameters, MAX_NORM, GRADIENT_SCALE], MAX_NORM, GRADIENT_SCALE)
    graph.nodes += [Node(node.op_type, [node.inputs[0], gradients[name], *node.inputs[2:]], list(node.outputs), node.name, node.domain, dict(node.attributes))
                    for name, node in zip(trained, accumulators, strict=True)]
    graph.outputs = list(model.graph.outputs)
    return clipped
