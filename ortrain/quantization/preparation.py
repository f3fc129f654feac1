"""Inserting pairs of QuantizeLinear and DequantizeLinear into a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, Node, TensorType
from ortrain.loading.loader import ModelSource, as_model
from ortrain.passes.weight_layers import EMBEDDING, Layer, find_layers, select_layers
from ortrain.quantization.calibration import value_ranges

OPSET = 13
"""The first opset with scales per channel."""
LEVELS_UINT8, LARGEST_INT8 = 255, 127


def prepare(model: ModelSource, calibration: Iterable[Any], targets: str | Sequence[str] = "*") -> Model:
    """Return a copy of a float model that computes with the rounding of int8 weights and uint8 activations.

    model: a path, bytes, an onnx.ModelProto or an ortrain.ir.Model of opset 13 or newer.
    calibration: a few batches of inputs, from which the ranges of activations come: mappings by input name, sequences in the order of inputs, or arrays.
    targets: globs for the layers (MatMul, Gemm, Conv with float weights) to quantize, by module, weight or node; all by default.
    Weights have one scale per output channel, symmetric around 0; activations one scale and zero point. Scales are float initializers "<weight>.scale"
    and "<value>.scale", which requires_grad may name to train them too (learned step size quantization, S. K. Esser et al., 2020).

    Raises InvalidArgumentError for an older opset, when there is nothing to quantize, or for calibration data that are empty or not finite."""
    prepared = as_model(model)
    check_opset(prepared)
    layers = [layer for layer in select_layers(find_layers(prepared), targets) if is_quantizable(layer, prepared)]
    if not layers:
        raise InvalidArgumentError("expected a model with dense layers or convolutions that have float weights, got none to quantize")
    inputs = list(dict.fromkeys(layer.node.inputs[0] for layer in layers))
    ranges = value_ranges(as_model(model), inputs, calibration)
    graph = prepared.graph
    quantized: dict[str, str] = {}
    before: dict[str, list[Node]] = {}
    for layer in layers:
        x, weight = layer.node.inputs[0], layer.node.inputs[1]
        nodes = before.setdefault(layer.node.outputs[0], [])
        if x not in quantized:
            low, high = ranges[x]
            scale = (high - low) / LEVELS_UINT8 or 1.0
            quantized[x] = _pair(prepared, x, np.float32(scale), np.uint8(np.clip(round(-low / scale), 0, LEVELS_UINT8)), None, nodes)
        if weight not in quantized:
            axis = channel_axis(layer)
            scales = weight_scales(graph.initializers[weight], axis)
            quantized[weight] = _pair(prepared, weight, scales, np.zeros(scales.shape, np.int8), axis, nodes)
        layer.node.inputs[:2] = [quantized[x], quantized[weight]]
    graph.nodes = [piece for node in graph.nodes for piece in (*before.get(node.outputs[0], ()), node)]
    return prepared


def check_opset(model: Model) -> None:
    """Raise InvalidArgumentError for a model of an opset without scales per channel."""
    if model.opset < OPSET:
        raise InvalidArgumentError(f"expected opset {OPSET} or newer for scales per channel, got {model.opset}: generate_artifacts(opset_version={OPSET}) "
                                   "and onnx.version_converter convert models")


def weight_scales(weight: np.ndarray, axis: int) -> np.ndarray:
    """Return float32 [channels], the largest magnitude of each channel divided by 127; 1 for a channel of zeros."""
    largest = np.abs(weight).max(axis=tuple(i for i in range(weight.ndim) if i != axis))
    return np.where(largest > 0, largest / LARGEST_INT8, 1).astype(np.float32)


def is_quantizable(layer: Layer, model: Model) -> bool:
    """Return whether a layer is dense or a convolution, with a float32 weight that is stored in the model."""
    return layer.kind != EMBEDDING and not layer.quantized and layer.dtype == "float32" and layer.node.inputs[1] in model.graph.initializers


def channel_axis(layer: Layer) -> int:
    """Return the axis of the output channels in the layer's weight."""
    if layer.node.op_type == "Conv" or layer.node.op_type == "Gemm" and layer.node.attributes.get("transB", 0):
        return 0
    return 1


def _pair(model: Model, value: str, scale: Any, zero_point: Any, axis: int | None, nodes: list[Node]) -> str:
    """Append a QuantizeLinear and a DequantizeLinear of a value and return the result."""
    graph = model.graph
    scale_name, zero_name, stored, result = (f"{value}.{label}" for label in ("scale", "zero_point", "quantized", "dequantized"))
    graph.initializers[scale_name], graph.initializers[zero_name] = np.asarray(scale), np.asarray(zero_point)
    attributes = {} if axis is None else {"axis": axis}
    nodes.append(Node("QuantizeLinear", [value, scale_name, zero_name], [stored], f"{value}.QuantizeLinear", attributes=dict(attributes)))
    nodes.append(Node("DequantizeLinear", [stored, scale_name, zero_name], [result], f"{value}.DequantizeLinear", attributes=dict(attributes)))
    if value in graph.types:
        graph.types[result] = TensorType(graph.types[value].dtype, graph.types[value].shape)
    return result
