"""Merging adapters into the weights of their layers, and removing them."""

from __future__ import annotations

import numpy as np

from ortrain.errors import InvalidArgumentError, InvalidModelError
from ortrain.ir import Graph, Model, Node
from ortrain.loading.loader import ModelSource, as_model
from ortrain.lora.adapters import Adapter, read_adapters, write_adapters
from ortrain.lora.full_weights import read_full_weights, write_full_weights
from ortrain.passes.weight_layers import CONVOLUTION, EMBEDDING


def merge(model: ModelSource, name: str | None = None) -> Model:
    """Return a copy of a model with adapters added to the weights of their layers, so that it has the nodes of the model before lora.add.
    Weights that were trained in full beside them (modules_to_save) are in their places already.

    name: of one adapter; None for all. Raises InvalidArgumentError when there is no such adapter, or one belongs to a quantized layer, whose weights cannot
    take it up: such models are run with their adapters."""
    merged = as_model(model)
    chosen = _chosen(merged, name)
    quantized = [adapter.module for adapter in chosen if adapter.quantized]
    if quantized:
        raise InvalidArgumentError(f"expected adapters of float weights to merge, got those of quantized layers {quantized[:5]}: export the model with its "
                                   "adapters, or dequantize it first")
    for adapter in chosen:
        layer = _take_out(merged.graph, adapter)
        _add_to_weight(merged.graph, layer, adapter)
    return _without(merged, chosen)


def remove(model: ModelSource, name: str | None = None) -> Model:
    """Return a copy of a model without adapters, its layers as they were. name: of one adapter; None for all.

    Weights that were trained in full beside the adapters (modules_to_save) keep their values, since the model does not hold their former ones. Raises
    InvalidArgumentError when there is no such adapter."""
    bare = as_model(model)
    chosen = _chosen(bare, name)
    for adapter in chosen:
        _take_out(bare.graph, adapter)
    return _without(bare, chosen)


def _chosen(model: Model, name: str | None) -> list[Adapter]:
    found = read_adapters(model)
    chosen = [adapter for adapter in found if name in (None, adapter.name)]
    if not chosen:
        raise InvalidArgumentError(f"expected a model with {'adapters' if name is None else f'an adapter named {name!r}'}, "
                                   f"got one with {sorted({adapter.name for adapter in found}) or 'none'}")
    return chosen


def _without(model: Model, chosen: list[Adapter]) -> Model:
    graph = model.graph
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in read}
    write_adapters(model, [adapter for adapter in read_adapters(model) if adapter not in chosen])
    gone = {adapter.name for adapter in chosen}
    write_full_weights(model, {name: weights for name, weights in read_full_weights(model).items() if name not in gone})
    return model


def _take_out(graph: Graph, adapter: Adapter) -> Node:
    """Remove the nodes of an adapter and return the node of its layer."""
    added = next((node for node in graph.nodes if node.name == f"{adapter.prefix}Add"), None)
    if added is None or adapter.a not in graph.initializers or adapter.b not in graph.initializers:
        raise InvalidModelError(f"expected the nodes and weights of adapter {adapter.name!r} on {adapter.module!r}, which the metadata list, got a model "
                                "without them")
    base, result = added.inputs[0], added.outputs[0]
    graph.nodes = [node for node in graph.nodes if not node.name.startswith(adapter.prefix)]
    for node in graph.nodes:
        node.outputs = [result if value == base else value for value in node.outputs]
    graph.types.pop(base, None)
    producers = graph.producers()
    layer = producers[result]
    while layer.name.endswith(".Add") and ".lora." in layer.name:        # of another adapter on the same layer
        layer = producers[layer.inputs[0]]
    return layer


def _add_to_weight(graph: Graph, layer: Node, adapter: Adapter) -> None:
    position = 0 if adapter.kind == EMBEDDING else 1
    name = layer.inputs[position]
    if name not in graph.initializers:
        raise InvalidArgumentError(f"expected a constant weight to merge adapter {adapter.name!r} of {adapter.module!r} into, got the computed value {name!r}")
    a, b = (graph.initializers[value].astype(np.float64) for value in (adapter.a, adapter.b))
    if adapter.kind == CONVOLUTION:
        delta = np.einsum("or,r...->o...", b.reshape(b.shape[:2]), a)
    else:
        delta = a @ b
    if layer.op_type == "Gemm":
        delta = delta / float(layer.attributes.get("alpha", 1.0))
        delta = delta.T if layer.attributes.get("transB", 0) else delta
    weight = graph.initializers[name]
    readers = sum(node.inputs.count(name) for node in graph.nodes)
    if readers > 1:                                                      # a tied weight: only this layer changes
        name = f"{adapter.prefix}merged"
        layer.inputs[position] = name
    graph.initializers[name] = (weight.astype(np.float64) + adapter.scale * delta).astype(weight.dtype)
