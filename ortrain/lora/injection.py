"""Adding adapters to a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, Node, TensorType
from ortrain.loading.loader import ModelSource, as_model
from ortrain.lora.adapters import Adapter, adaptable_layers, read_adapters, write_adapters
from ortrain.lora.full_weights import read_full_weights, select_full_weights, write_full_weights
from ortrain.passes.weight_layers import ALL_LINEAR, CONVOLUTION, EMBEDDING, Layer, select_layers

CONV_ATTRIBUTES = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


def add(model: ModelSource, targets: str | Sequence[str] = ALL_LINEAR, rank: int = 8, *, alpha: float | None = None, dropout: float = 0.0,
        name: str = "default", seed: int = 0, modules_to_save: str | Sequence[str] | None = None) -> Model:
    """Return a copy of a forward model with an adapter on some of its layers; outputs are unchanged until the adapter is trained.

    model: a path, bytes, an onnx.ModelProto or an ortrain.ir.Model. Weights are shared with it where it is an ir.Model.
    targets: globs for modules, weights or nodes, such as "*attention*" or ["*.query", "*.value"]; "all-linear" is every dense layer (MatMul, Gemm,
    MatMulNBits). Convolutions (groups = 1) and embeddings (Gather) are adapted only when a glob names them.
    rank: of A B, at least 1. alpha: A B is multiplied by alpha / rank; None is the rank. dropout: ratio of the layer's inputs that training leaves out.
    name: of the adapter, so that a model can have several. seed: of the initial values of A; B is zero at first (for embeddings the other way round).
    modules_to_save: modules that are trained in full and saved with the adapter, such as a new head: globs for the paths of modules or their ends
    ("classifier"), for weights, or "head" for the last layers. Their layers get no adapters.

    Raises InvalidArgumentError when no layer fits a target, no weight fits modules_to_save, a layer has an adapter of that name, or a number is out of range;
    errors of load_model."""
    _check(rank, alpha, dropout, name)
    adapted = as_model(model)
    existing, full = read_adapters(adapted), select_full_weights(adapted, modules_to_save)
    layers = [layer for layer in select_layers(adaptable_layers(adapted), targets) if layer.weight not in full]
    if not layers:
        raise InvalidArgumentError(f"expected layers for adapters beside those of modules_to_save, got the targets {targets!r}, which name no others")
    twice = [layer.module for layer in layers if any(old.module == layer.module and old.name == name for old in existing)]
    if twice:
        raise InvalidArgumentError(f"expected layers without an adapter named {name!r}, got {twice}")
    if dropout and adapted.opset < 12:
        raise InvalidArgumentError(f"expected opset 12 or newer for dropout, got {adapted.opset}")
    random = np.random.default_rng(seed)
    made = []
    for layer in layers:
        adapter = Adapter(name, layer.module, layer.kind, layer.weight, layer.quantized, rank, float(rank if alpha is None else alpha))
        Injection(adapted, layer, adapter).insert(random, dropout)
        made.append(adapter)
    write_adapters(adapted, [*existing, *made])
    listed = read_full_weights(adapted)
    write_full_weights(adapted, listed | {name: dict.fromkeys([*listed.get(name, ()), *full])})
    return adapted


def _check(rank: int, alpha: float | None, dropout: float, name: str) -> None:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise InvalidArgumentError(f"expected a rank of at least 1, got {rank!r}")
    if alpha is not None and not (isinstance(alpha, int | float) and math.isfinite(alpha) and alpha > 0):
        raise InvalidArgumentError(f"expected a finite alpha above 0, got {alpha!r}")
    if not (isinstance(dropout, int | float) and 0 <= dropout < 1):
        raise InvalidArgumentError(f"expected a dropout of at least 0 and below 1, got {dropout!r}")
    if not isinstance(name, str) or not name or "." in name:
        raise InvalidArgumentError(f"expected a name of an adapter without points, got {name!r}")


class Injection:
    """The nodes and weights of one adapter, put behind the node of its layer."""

    def __init__(self, model: Model, layer: Layer, adapter: Adapter) -> None:
        self.graph = model.graph
        self.layer = layer
        self.adapter = adapter
        self.nodes: list[Node] = []

    def insert(self, random: np.random.Generator, dropout: float) -> None:
        """Add the adapter's weights with their initial values, and its nodes."""
        graph, layer, adapter = self.graph, self.layer, self.adapter
        dtype = numpy_dtype(layer.dtype)
        a, b = initial_values(layer, adapter.rank, random)
        graph.initializers[adapter.a], graph.initializers[adapter.b] = a.astype(dtype), b.astype(dtype)
        x = layer.node.inputs[1 if layer.kind == EMBEDDING else 0]
        if dropout and layer.kind != EMBEDDING:
            x = self._node("Dropout", [x, self._constant("ratio", np.array(dropout, dtype)), self._constant("training", np.array(True))])
        if layer.kind == EMBEDDING:
            h = self._node("Gather", [adapter.a, x])
        elif layer.kind == CONVOLUTION:
            h = self._node("Conv", [x, adapter.a], **{key: layer.node.attributes[key] for key in CONV_ATTRIBUTES if key in layer.node.attributes})
        else:
            h = self._node("MatMul", [x, adapter.a])
        if adapter.scale != 1:
            h = self._node("Mul", [h, self._constant("scale", np.array(adapter.scale, dtype))])
        delta = self._node("Conv" if layer.kind == CONVOLUTION else "MatMul", [h, adapter.b])
        self._append(delta)

    def _append(self, delta: str) -> None:
        """Put the nodes behind the layer's, and give its output's name to the sum."""
        graph, layer = self.graph, self.layer
        position = next(i for i, node in enumerate(graph.nodes) if node is layer.node)
        result = layer.node.outputs[0]
        base = f"{self.adapter.prefix}base"
        layer.node.outputs[0] = base
        if result in graph.types:
            graph.types[base] = TensorType(graph.types[result].dtype, graph.types[result].shape)
        self.nodes.append(Node("Add", [base, delta], [result], f"{self.adapter.prefix}Add"))
        graph.nodes[position + 1 : position + 1] = self.nodes

    def _node(self, op_type: str, inputs: list[str], **attributes: object) -> str:
        name = f"{self.adapter.prefix}{op_type}{len(self.nodes)}"
        self.nodes.append(Node(op_type, inputs, [f"{name}.output"], name, attributes=dict(attributes)))
        return self.nodes[-1].outputs[0]

    def _constant(self, label: str, value: np.ndarray) -> str:
        name = f"{self.adapter.prefix}{label}"
        self.graph.initializers[name] = value
        return name


def initial_values(layer: Layer, rank: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return (A, B): A uniform in ±1/sqrt(inputs) and B zero, as PEFT has them; for an embedding A zero and B normal."""
    if layer.kind == EMBEDDING:
        return np.zeros((layer.inputs, rank)), random.standard_normal((rank, layer.outputs))
    if layer.kind == CONVOLUTION:
        limit = 1 / math.sqrt(layer.inputs * math.prod(layer.kernel))
        return random.uniform(-limit, limit, (rank, layer.inputs, *layer.kernel)), np.zeros((layer.outputs, rank, *(1 for _ in layer.kernel)))
    limit = 1 / math.sqrt(layer.inputs)
    return random.uniform(-limit, limit, (layer.inputs, rank)), np.zeros((rank, layer.outputs))
