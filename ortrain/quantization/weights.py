"""Storing the weights of a float model as integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, NameSource, Node, TensorType
from ortrain.loading.loader import ModelSource, as_model
from ortrain.passes.weight_layers import find_layers, select_layers
from ortrain.quantization.conversion import quantize
from ortrain.quantization.preparation import channel_axis, check_opset, is_quantizable, weight_scales


def quantize_weights(model: ModelSource, targets: str | Sequence[str] = "*") -> Model:
    """Return a copy of a float model whose weights are stored as int8, with one scale for each output channel, in a quarter of the memory.

    Each weight w becomes an int8 initializer "<w>.quantized" and a DequantizeLinear, whose result takes the place of w. Activations stay float, so that no
    calibration is needed. The weights can no longer be trained: this is for layers that stay frozen, as those below a new head or under LoRA adapters. A
    session computes the floats of a layer right before it needs them, forward and backward, and keeps those of few layers at a time.

    model: a path, bytes, an onnx.ModelProto or an ortrain.ir.Model of opset 13 or newer.
    targets: globs for the layers (MatMul, Gemm, Conv with float32 weights), by module, weight or node; all by default.

    Raises InvalidArgumentError for an older opset, when there is nothing to quantize, or for weights that are not finite."""
    stored = as_model(model)
    check_opset(stored)
    graph = stored.graph
    layers = [layer for layer in select_layers(find_layers(stored), targets) if is_quantizable(layer, stored)]
    if not layers:
        raise InvalidArgumentError("expected a model with dense layers or convolutions that have float32 weights, got none to quantize")
    floats: dict[tuple[str, int], str] = {}
    before: dict[str, Node] = {}
    for layer in layers:
        name, axis = layer.node.inputs[1], channel_axis(layer)
        if (name, axis) not in floats:
            node = _store(stored, name, axis)
            floats[name, axis], before[layer.node.outputs[0]] = node.outputs[0], node
        layer.node.inputs[1] = floats[name, axis]
    graph.nodes = [piece for node in graph.nodes for piece in (*([before[node.outputs[0]]] if node.outputs[0] in before else ()), node)]
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in read}
    return stored


def _store(model: Model, name: str, axis: int) -> Node:
    """Add the integers and the scales of a weight; return the node that makes floats of them."""
    graph, weight = model.graph, model.graph.initializers[name]
    if not np.isfinite(weight).all():
        raise InvalidArgumentError(f"expected finite weights, got {weight[~np.isfinite(weight)][0]} in {name!r}")
    scales = weight_scales(weight, axis)
    names = NameSource(graph.names())
    stored, scale_name, floats = (names.unique(f"{name}.{part}") for part in ("quantized", "scale", "dequantized"))
    graph.initializers[stored] = quantize(weight, scales, np.zeros(scales.shape, np.int8), axis)
    graph.initializers[scale_name] = scales
    graph.types[floats] = TensorType("float32", weight.shape)
    return Node("DequantizeLinear", [stored, scale_name], [floats], f"{floats}.DequantizeLinear", attributes={"axis": axis})
