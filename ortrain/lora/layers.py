"""The layers of a model that can be adapted: dense layers, convolutions and embeddings with constant weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ortrain.dtypes import FLOATS
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.lora.adapters import CONVOLUTION, EMBEDDING, LINEAR, read_adapters
from ortrain.ops.registry.record import MICROSOFT, canonical_domain
from ortrain.ops.registry.shape_inference import infer

BETWEEN = ("Cast", "DequantizeLinear", "Identity", "Transpose")
"""Operators that may stand between a weight and the layer that uses it."""
GENERIC = re.compile(r"^(onnx::|val_\d+$|\d+$|_v_\d+$)")
"""Names that exporters give to weights that they have transposed or merged, which say nothing of the layer."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that can be adapted."""

    node: Node
    module: str
    kind: str
    weight: str
    quantized: bool
    inputs: int
    """Size of what A multiplies: features, input channels or rows of an embedding."""
    outputs: int
    dtype: str
    """Element type of the layer's output, which A and B have."""
    kernel: tuple[int, ...] = ()


def find_layers(model: Model) -> Iterator[Layer]:
    """Yield the layers of the main graph in order, without those of adapters. Layers in branches and loop bodies are not adapted."""
    graph = model.graph
    adapted = {weight for adapter in read_adapters(model) for weight in (adapter.a, adapter.b)}
    types = infer(model)
    producers = graph.producers()
    taken: set[str] = set()
    for node in graph.nodes:
        layer = _layer(node, graph, producers, types)
        if layer is None or layer.weight in adapted:
            continue
        module, number = layer.module, 1
        while module in taken:
            number += 1
            module = f"{layer.module}_{number}"
        taken.add(module)
        yield layer if module == layer.module else Layer(node, module, layer.kind, layer.weight, layer.quantized, layer.inputs, layer.outputs, layer.dtype,
                                                         layer.kernel)


def _layer(node: Node, graph: Graph, producers: dict[str, Node], types: dict[str, TensorType]) -> Layer | None:
    domain = canonical_domain(node.domain)
    kind = types.get(node.outputs[0])
    if kind is None or kind.dtype not in FLOATS:
        return None
    if domain == MICROSOFT and node.op_type == "MatMulNBits":
        return Layer(node, _module(node, node.inputs[1]), LINEAR, node.inputs[1], True, int(node.attributes["K"]), int(node.attributes["N"]), kind.dtype)
    position = {"MatMul": 1, "Gemm": 1, "Conv": 1, "Gather": 0}.get(node.op_type)
    if domain != "" or position is None:
        return None
    source, quantized = _weight_of(node.inputs[position], graph, producers)
    shape = types[node.inputs[position]].shape if node.inputs[position] in types else None
    if source is None or shape is None or not all(isinstance(size, int) for size in shape):
        return None
    sizes = tuple(int(size) for size in shape)
    module = _module(node, source)
    if node.op_type == "Conv":
        if int(node.attributes.get("group", 1)) != 1:
            return None
        return Layer(node, module, CONVOLUTION, source, quantized, sizes[1], sizes[0], kind.dtype, sizes[2:])
    if len(sizes) != 2:
        return None
    if node.op_type == "Gather":
        is_table = int(node.attributes.get("axis", 0)) == 0
        return Layer(node, module, EMBEDDING, source, quantized, *sizes, kind.dtype) if is_table else None
    if node.op_type == "Gemm":
        if node.attributes.get("transA", 0):
            return None
        sizes = sizes[::-1] if node.attributes.get("transB", 0) else sizes
    return Layer(node, module, LINEAR, source, quantized, *sizes, kind.dtype)


def _weight_of(value: str, graph: Graph, producers: dict[str, Node]) -> tuple[str | None, bool]:
    """Return (the constant that a layer's weight comes from, whether it is quantized); None where the weight is computed."""
    quantized = False
    while value not in graph.initializers:
        node = producers.get(value)
        if node is None or node.op_type not in BETWEEN:
            return None, False
        quantized = quantized or node.op_type == "DequantizeLinear"
        value = node.inputs[0]
    return value, quantized


def _module(node: Node, weight: str) -> str:
    """Return the path of a layer's module: the weight's name without its last part, or where that is generic the node's name, as PyTorch's exporters
    write it ("/encoder/layer.0/query/MatMul")."""
    if not GENERIC.match(weight):
        return re.sub(r"[._](weight|kernel|W)(_quantized|_Q4|_q)?$", "", weight)
    path = [part for part in node.name.split("/") if part]
    return ".".join(path[:-1]) or node.name or node.outputs[0]
