"""The layers of a model that have constant weights: dense layers, convolutions and embeddings. Adapters and quantization find their places here."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ortrain.dtypes import FLOATS
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Graph, Model, Node, TensorType
from ortrain.ops.registry.record import MICROSOFT, canonical_domain
from ortrain.ops.registry.shape_inference import infer

LINEAR, CONVOLUTION, EMBEDDING = "linear", "convolution", "embedding"
ALL_LINEAR = "all-linear"
"""As a target: every dense layer."""
BETWEEN = ("Cast", "DequantizeLinear", "Identity", "Transpose")
"""Operators that may stand between a weight and the layer that uses it."""
GENERIC = re.compile(r"^(onnx::|val_\d+$|\d+$|_v_\d+$)")
"""Names that exporters give to weights that they have transposed or merged, which say nothing of the layer."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with a constant weight."""

    node: Node
    module: str
    kind: str
    weight: str
    quantized: bool
    inputs: int
    """Features, input channels, or rows of an embedding."""
    outputs: int
    dtype: str
    """Element type of the layer's output."""
    kernel: tuple[int, ...] = ()


def find_layers(model: Model, ignored: Collection[str] = ()) -> list[Layer]:
    """Return the layers of the main graph in order; those in branches and loop bodies are not among them. ignored: weights whose layers are left out."""
    graph = model.graph
    types = infer(model)
    producers = graph.producers()
    found: dict[str, Layer] = {}
    for node in graph.nodes:
        layer = _layer(node, graph, producers, types)
        if layer is None or layer.weight in ignored:
            continue
        module, number = layer.module, 1
        while module in found:
            number += 1
            module = f"{layer.module}_{number}"
        found[module] = replace(layer, module=module)
    return list(found.values())


def select_layers(layers: Sequence[Layer], targets: str | Sequence[str]) -> list[Layer]:
    """Return the layers whose module, weight or node fits one of the globs, or that "all-linear" names.

    Raises InvalidArgumentError for a target that names none, listing the modules there are."""
    patterns = [targets] if isinstance(targets, str) else list(targets)
    chosen: set[str] = set()
    for pattern in patterns:
        found = {layer.module for layer in layers if _fits(layer, pattern)}
        if not found:
            known = sorted({layer.module for layer in layers})
            raise InvalidArgumentError(f"expected targets that name layers with constant weights, got {pattern!r}; modules are {known[:20]}"
                                       + (f" and {len(known) - 20} more" if len(known) > 20 else ""))
        chosen |= found
    return [layer for layer in layers if layer.module in chosen]


def _fits(layer: Layer, pattern: str) -> bool:
    if pattern == ALL_LINEAR:
        return layer.kind == LINEAR
    return any(fnmatchcase(text, pattern) for text in (layer.module, layer.weight, layer.node.name))


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
        return re.sub(r"[._](weight|kernel|W)(_quantized|_Q4|_q|_float16|_bfloat16)?$", "", weight)
    path = [part for part in node.name.split("/") if part]
    return ".".join(path[:-1]) or node.name or node.outputs[0]
