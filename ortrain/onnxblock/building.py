"""Functions that add nodes, initializers and inputs to the model being edited, query the types of its values, and check it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ortrain.errors import InvalidModelError, OutputNotFoundError
from ortrain.onnxblock.model_accessor import current_model
from ortrain.packages import onnx

MICROSOFT = "com.microsoft"
SMALL = 4096
"""Bytes up to which an initializer may be a shape; larger ones are omitted where only types matter."""

_process_counter = itertools.count(1)
_counter: ContextVar[Iterator[int] | None] = ContextVar("ortrain.onnxblock.counter", default=None)


@contextmanager
def fresh_names() -> Iterator[None]:
    """Restart the numbers in generated names at 1, so that the same model gives the same artifacts."""
    token = _counter.set(itertools.count(1))
    try:
        yield
    finally:
        _counter.reset(token)


GENERATED = "onnx::"
"""What generated names begin with, as those of onnxruntime-training do."""


def generate_name(token: str) -> str:
    """Return `onnx::<token>::<n>`, which no value of the model being edited has."""
    graph = current_model().graph
    used = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        used.update(node.output)
        used.add(node.name)
    return next(name for n in _counter.get() or _process_counter if (name := f"{GENERATED}{token}::{n}") not in used)


# ---- adding


def add_initializer(array: np.ndarray, token: str = "initializer", name: str | None = None) -> str:
    """Add a constant and return its name."""
    name = name or generate_name(token)
    current_model().graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return name


def add_node(
    op_type: str, inputs: Sequence[str], tokens: Sequence[str] = (), domain: str = "", version: int = 1, **attributes: Any
) -> list[str]:
    """Add a node with one output per token (default: `<op>_output`) and return the outputs' names.

    version: of the domain, when the model does not import it yet. Attributes that are None are omitted."""
    model = current_model()
    outputs = [generate_name(token) for token in tokens or [f"{op_type.lower()}_output"]]
    node = onnx.helper.make_node(op_type, list(inputs), outputs, generate_name(op_type), domain=domain or None,
                                 **{name: value for name, value in attributes.items() if value is not None})
    model.graph.node.append(node)
    if all(opset.domain != domain for opset in model.opset_import):
        model.opset_import.add(domain=domain, version=version)
    return outputs


def add_input(name: str, kind: onnx.TypeProto) -> str:
    """Add a graph input."""
    current_model().graph.input.append(onnx.ValueInfoProto(name=name, type=kind))
    return name


def has_input(name: str) -> bool:
    """Return whether the model being edited has a graph input or an initializer of that name."""
    graph = current_model().graph
    return any(value.name == name for value in (*graph.input, *graph.initializer))


# ---- types


def light_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its large initializers as inputs: the types are the same, and onnx can process it whatever the size of the weights."""
    light = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(light.graph, field).extend(getattr(model.graph, field))
    inputs = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= SMALL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return light


def infer_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Infer the types of a model's values with onnx, as far as possible. Raises InvalidModelError where inputs do not fit an operator."""
    try:
        graph = onnx.shape_inference.infer_shapes(light_copy(model), data_prop=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise InvalidModelError(f"expected a model whose types can be inferred: {' '.join(str(error).split())}") from error
    return {v.name: v.type for v in (*graph.value_info, *graph.input, *graph.output) if v.type.WhichOneof("value")}


def type_of(name: str) -> onnx.TypeProto:
    """Return the type of a value of the model being edited. Raises OutputNotFoundError when there is no such value or its type is unknown."""
    graph = current_model().graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name == name and value.type.WhichOneof("value"):
            kind = onnx.TypeProto()
            kind.CopyFrom(value.type)
            return kind
    for tensor in graph.initializer:
        if tensor.name == name:
            return onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    found = infer_types(current_model())
    if name not in found:
        raise OutputNotFoundError(f"Could not find input or output with name {name}: expected a value of the model whose type is known.")
    return found[name]


def dtype_of(name: str) -> np.dtype:
    """Return the NumPy dtype of a value; float32 when it is unknown."""
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(type_of(name).tensor_type.elem_type))
    except (OutputNotFoundError, KeyError):
        return np.dtype(np.float32)


def check(model: onnx.ModelProto) -> None:
    """Run onnx's full check. Raises InvalidModelError with its message."""
    try:
        onnx.checker.check_model(light_copy(model))
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InvalidModelError(f"expected a valid ONNX model, got: {error}") from error


def register_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Make the given values the model's outputs, in that order. Raises OutputNotFoundError for an unknown one."""
    graph = model.graph
    known = {v.name: v.type for v in (*graph.value_info, *graph.input, *graph.output)}
    known.update((t.name, onnx.helper.make_tensor_type_proto(t.data_type, list(t.dims))) for t in graph.initializer)
    if any(name not in known for name in names):
        known = infer_types(model) | known
    made = {output for node in graph.node for output in node.output}
    outputs = []
    for name in names:
        if name not in known and name not in made:
            raise OutputNotFoundError(f"The provided name {name} is not a graph value info or a graph output.")
        outputs.append(onnx.ValueInfoProto(name=name, type=known.get(name)))
    del graph.output[:]
    graph.output.extend(outputs)
    inner = [value for value in graph.value_info if value.name not in set(names)]
    del graph.value_info[:]
    graph.value_info.extend(inner)
