"""Storing the weights of a prepared model as integers."""

from __future__ import annotations

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.ir import Graph, Model, Node
from ortrain.loading.loader import ModelSource, as_model


def convert(model: ModelSource) -> Model:
    """Return a copy of a prepared model in which quantized weights are int8 and biases of quantized layers are int32.

    model: what TrainingSession.inference_model or an exported file holds. The result computes what the prepared model computes, up to the rounding of
    biases to multiples of (input scale x weight scale), and its weights take a quarter of the memory.

    Raises InvalidArgumentError for a model without quantized weights."""
    converted = as_model(model)
    graph = converted.graph
    folded = _fold_weights(graph)
    if not folded:
        raise InvalidArgumentError("expected a model with QuantizeLinear nodes on weights, as ortrain.quantization.prepare makes, got one without")
    _quantize_biases(graph)
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in read}
    return converted


def _fold_weights(graph: Graph) -> int:
    """Replace each QuantizeLinear of a constant by its value; return how many there were."""
    kept: list[Node] = []
    count = 0
    for node in graph.nodes:
        if node.op_type != "QuantizeLinear" or node.domain or not all(name in graph.initializers for name in node.inputs):
            kept.append(node)
            continue
        value, scale, zero_point = (graph.initializers[name] for name in node.inputs)
        graph.initializers[node.outputs[0]] = quantize(value, scale, zero_point, int(node.attributes.get("axis", 1)))
        graph.types.pop(node.outputs[0], None)
        count += 1
    graph.nodes = kept
    return count


def quantize(value: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, axis: int) -> np.ndarray:
    """Return clip(round(value / scale) + zero_point) in the zero point's type, as the operator QuantizeLinear defines it."""
    if scale.ndim == 1 and scale.size > 1:
        shape = [-1 if i == axis % value.ndim else 1 for i in range(value.ndim)]
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    limits = np.iinfo(zero_point.dtype)
    return np.asarray(np.clip(np.rint(value / scale) + zero_point, limits.min, limits.max), zero_point.dtype)


def _quantize_biases(graph: Graph) -> None:
    """Store the biases of convolutions and Gemms whose input and weight are quantized as int32, which integer kernels need."""
    producers = graph.producers()
    added: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op_type not in ("Conv", "Gemm") or node.domain or len(node.inputs) < 3 or node.inputs[2] not in graph.initializers:
            continue
        sources = [producers.get(name) for name in node.inputs[:2]]
        if any(source is None or source.op_type != "DequantizeLinear" for source in sources) or any(node.attributes.get(name, 1.0) != 1.0
                                                                                                  for name in ("alpha", "beta")):
            continue
        bias = graph.initializers[node.inputs[2]]
        scale = np.asarray(graph.initializers[sources[0].inputs[1]] * graph.initializers[sources[1].inputs[1]], np.float32)      # type: ignore[union-attr]
        if bias.ndim != 1 or scale.shape not in ((), bias.shape):
            continue
        name = f"{node.outputs[0]}.bias"
        graph.initializers[f"{name}.quantized"] = quantize(bias.astype(np.float64), scale, np.zeros(scale.shape, np.int32), 0)
        graph.initializers[f"{name}.scale"] = scale
        graph.initializers[f"{name}.zero_point"] = np.zeros(scale.shape, np.int32)
        attributes = {"axis": 0} if scale.ndim else {}
        added[node.outputs[0]] = Node("DequantizeLinear", [f"{name}.quantized", f"{name}.scale", f"{name}.zero_point"], [name], f"{name}.DequantizeLinear",
                                      attributes=attributes)
        node.inputs[2] = name
    graph.nodes = [piece for node in graph.nodes for piece in ([added[node.outputs[0]], node] if node.outputs[0] in added else [node])]
