"""Weights that are trained in full beside adapters, such as those of a new head. PEFT calls their modules `modules_to_save`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ortrain.dtypes import FLOATS
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, InvalidModelError
from ortrain.ir import Graph, Model, Node
from ortrain.loading.loader import ModelSource, as_model
from ortrain.lora.adapters import Adapter, adaptable_layers, read_adapters
from ortrain.passes.head import HEAD, head_parameters
from ortrain.passes.weight_layers import GENERIC, LINEAR, Layer

METADATA = "ortrain.lora.modules_to_save"
"""The metadata property that lists the weights that each adapter brings along in full, as JSON: adapter name -> weights."""


@dataclass(frozen=True, slots=True)
class FullWeight:
    """A weight of a model beside its adapters."""

    name: str
    """Its name in the model."""
    key: str
    """Its name in PyTorch as far as the model tells it, such as "classifier.weight"."""
    is_transposed: bool = False
    """Whether the model holds it as [inputs, outputs], where PyTorch has [outputs, inputs]."""

    @property
    def module(self) -> str:
        """The path of its module."""
        return self.key.rpartition(".")[0] or self.key


def full_weights(model: Model) -> dict[str, FullWeight]:
    """Return the float weights of a model that are not those of adapters, by name."""
    graph = model.graph
    adapters = read_adapters(model)
    known: dict[str, FullWeight] = {}
    producers, readers = graph.producers(), _readers(graph)
    own = {weight for adapter in adapters for weight in (adapter.a, adapter.b)}
    for layer in adaptable_layers(model):
        if layer.quantized or layer.weight in known:
            continue
        known[layer.weight] = FullWeight(layer.weight, f"{layer.module}.weight", layer.kind == LINEAR and not _has_outputs_first(layer, graph, producers))
        bias = _bias_of(layer, graph, readers, adapters)
        if bias is not None and bias not in known:
            known[bias] = FullWeight(bias, f"{layer.module}.bias" if GENERIC.match(bias) else bias)
    constants = {name for adapter in adapters for name in graph.initializers if name.startswith(adapter.prefix)}
    rest = (name for name, array in graph.initializers.items() if str(array.dtype) in FLOATS and name not in own | constants | set(known))
    return known | {name: FullWeight(name, name) for name in rest}


def running_statistics(model: Model) -> dict[str, set[str]]:
    """Return scale or bias of a batch normalization -> its running statistics, which are no trained weights and still belong to its module."""
    found: dict[str, set[str]] = {}
    for node in model.graph.nodes:
        if node.op_type == "BatchNormalization" and len(node.inputs) == 5:
            for name in node.inputs[1:3]:
                found.setdefault(name, set()).update(node.inputs[3:5])
    return found


def select_full_weights(model: Model, patterns: str | Sequence[str] | None) -> list[str]:
    """Return the weights that patterns name: the path of a module or its end ("classifier", "layer.11.*"), a weight, or "head".

    Raises InvalidArgumentError for a pattern that names none, listing the modules there are, ArgumentTypeError for what is not a str."""
    wanted = [patterns] if isinstance(patterns, str) else list(patterns or ())
    if not wanted:
        return []
    known = full_weights(model)
    statistics = set().union(*running_statistics(model).values())
    candidates = {name: weight for name, weight in known.items() if name not in statistics and model.graph.initializers[name].ndim}
    chosen: set[str] = set()
    for pattern in wanted:
        if not isinstance(pattern, str):
            raise ArgumentTypeError(f"expected names or patterns as modules_to_save, got {pattern!r}")
        found = {name for name, weight in candidates.items() if _fits(weight, pattern)}
        if not found and pattern == HEAD:
            found = set(head_parameters(model, candidates))
        if not found:
            modules = sorted({weight.module for weight in candidates.values()})
            raise InvalidArgumentError(f"expected modules_to_save that name modules with weights, got {pattern!r}; modules are {modules[:20]}"
                                       + (f" and {len(modules) - 20} more" if len(modules) > 20 else ""))
        chosen |= found
    return [name for name in candidates if name in chosen]


def _fits(weight: FullWeight, pattern: str) -> bool:
    """Whether a pattern fits a weight, its module, a module around it, or the end of the path of one."""
    return any(fnmatchcase(text, form) for text in (weight.name, weight.key) for form in (pattern, f"{pattern}.*", f"*.{pattern}.*"))


def read_full_weights(model: Model) -> dict[str, list[str]]:
    """Return adapter name -> the weights that it brings along in full, as the model's metadata list them. Raises InvalidModelError when they are damaged."""
    text = model.metadata.get(METADATA)
    if not text:
        return {}
    try:
        return {str(name): [str(weight) for weight in weights] for name, weights in json.loads(text).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidModelError(f"expected lists of weights in the metadata property {METADATA!r}, got one that cannot be read: {error}") from error


def write_full_weights(model: Model, found: Mapping[str, Iterable[str]]) -> None:
    """Store in a model's metadata which weights its adapters bring along in full."""
    lists = {name: list(weights) for name, weights in found.items() if weights}
    if lists:
        model.metadata[METADATA] = json.dumps(lists)
    else:
        model.metadata.pop(METADATA, None)


def parameters(model: ModelSource, name: str | None = None) -> list[str]:
    """Return the names of the weights to train, for requires_grad: those of the adapters, then those of modules_to_save. name: of one adapter; None for
    all."""
    loaded = as_model(model)
    own = [weight for adapter in read_adapters(loaded) if name in (None, adapter.name) for weight in (adapter.a, adapter.b)]
    return list(dict.fromkeys([*own, *(weight for adapter, full in read_full_weights(loaded).items() if name in (None, adapter) for weight in full)]))


def _readers(graph: Graph) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.inputs):
            found.setdefault(name, []).append(node)
    return found


def _has_outputs_first(layer: Layer, graph: Graph, producers: Mapping[str, Node]) -> bool:
    """Whether a dense layer's constant is [outputs, inputs]."""
    swapped = bool(layer.node.op_type == "Gemm" and layer.node.attributes.get("transB", 0))
    value = layer.node.inputs[1]
    while value not in graph.initializers:
        node = producers[value]
        swapped ^= node.op_type == "Transpose"
        value = node.inputs[0]
    return swapped


def _bias_of(layer: Layer, graph: Graph, readers: Mapping[str, Sequence[Node]], adapters: Collection[Adapter]) -> str | None:
    """Return the constant that a layer adds to its output."""
    node = layer.node
    if node.op_type in ("Gemm", "Conv"):
        return node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] in graph.initializers else None
    own = {f"{adapter.prefix}Add" for adapter in adapters}
    following = readers.get(node.outputs[0], ())
    while len(following) == 1 and following[0].name in own:              # the sum with an adapter's output
        following = readers.get(following[0].outputs[0], ())
    if node.op_type != "MatMul" or len(following) != 1 or following[0].op_type != "Add":
        return None
    return next((name for name in following[0].inputs if name in graph.initializers and graph.initializers[name].shape == (layer.outputs,)), None)
