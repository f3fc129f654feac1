"""Storing the weights of a float model as integers or in half precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Graph, Model, NameSource, Node, TensorType
from ortrain.loading.loader import ModelSource, all_names, as_model
from ortrain.passes.half_precision import round_to_half, store_halves
from ortrain.passes.weight_layers import find_layers, select_layers
from ortrain.quantization.conversion import quantize
from ortrain.quantization.preparation import channel_axis, check_opset, is_quantizable, weight_scales

DTYPES = ("int8", "float16", "bfloat16")


def quantize_weights(model: ModelSource, targets: str | Sequence[str] = "*", dtype: str = "int8") -> Model:
    """Return a copy of a float model whose weights are stored as int8, with one scale for each output channel, or in half precision: in a quarter or a half of
    the memory.

    Each weight w becomes an initializer "<w>_quantized" with a DequantizeLinear, or "<w>_float16" with a Cast, whose result takes the place of w. Activations
    stay float, so that no calibration is needed. The weights can no longer be trained: this is for layers that stay frozen, as those below a new head or under
    LoRA adapters. Products of dense layers read what is stored, forward and backward, and make floats of a block of it at a time; a convolution's floats are
    computed right before it, and those of few are in memory at a time.

    model: a path, bytes, an onnx.ModelProto or an ortrain.ir.Model of opset 13 or newer.
    targets: globs for the layers (MatMul, Gemm, Conv with float32 weights), by module, weight or node; all by default.
    dtype: "int8", "float16" or "bfloat16".

    Raises InvalidArgumentError for another dtype, an older opset, when there is nothing to quantize, or for weights that are not finite, and InvalidStateError
    for weights that float16 cannot hold."""
    if dtype not in DTYPES:
        raise InvalidArgumentError(f"expected dtype to be one of {list(DTYPES)}, got {dtype!r}")
    stored = as_model(model)
    check_opset(stored)
    graph = stored.graph
    layers = [layer for layer in select_layers(find_layers(stored), targets) if is_quantizable(layer, stored)]
    if not layers:
        raise InvalidArgumentError("expected a model with dense layers or convolutions that have float32 weights, got none to quantize")
    names = NameSource(all_names(graph))
    converters: dict[tuple[str, int | None], Node] = {}
    before: dict[str, list[Node]] = {}
    for layer in layers:
        key = name, axis = layer.node.inputs[1], channel_axis(layer) if dtype == "int8" else None
        if key not in converters:
            converters[key] = _store(graph, names, name, axis, dtype)
            before[layer.node.outputs[0]] = [converters[key]]
        layer.node.inputs[1] = converters[key].outputs[0]
    graph.nodes = [piece for node in graph.nodes for piece in (*before.get(node.outputs[0], ()), node)]
    if dtype != "int8":
        store_halves(stored, [node.inputs[0] for node in converters.values()])
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in read}
    return stored


def _store(graph: Graph, names: NameSource, name: str, axis: int | None, dtype: str) -> Node:
    """Add a weight in another dtype; return the node that makes floats of it. axis: of the channels whose integers have a scale, None for half precision."""
    weight = graph.initializers[name]
    if not np.isfinite(weight).all():
        raise InvalidArgumentError(f"expected finite weights, got {weight[~np.isfinite(weight)][0]} in {name!r}")
    floats = names.unique(f"{name}_dequantized")
    graph.types[floats] = TensorType("float32", weight.shape)
    if axis is None:
        half = names.unique(f"{name}_{dtype}")
        graph.initializers[half] = round_to_half(name, weight, dtype)
        return Node("Cast", [half], [floats], f"{floats}.Cast", attributes={"to": NUMBERS["float32"]})
    scales, integers, scale = weight_scales(weight, axis), names.unique(f"{name}_quantized"), names.unique(f"{name}_scale")
    graph.initializers[integers] = quantize(weight, scales, np.zeros(scales.shape, np.int8), axis)
    graph.initializers[scale] = scales
    return Node("DequantizeLinear", [integers, scale], [floats], f"{floats}.DequantizeLinear", attributes={"axis": axis})
