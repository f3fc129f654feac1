"""Small models for tests, and the forms in which half-precision models are distributed.

These are: everything in half precision, float32 inputs and outputs, some operators kept in float32, or only weights
in half precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ortrain.dtypes import NUMBERS, numpy_dtype

FLOAT = TensorProto.FLOAT


def model_of(nodes, inputs, outputs, weights, opset=17, **options) -> ModelProto:
    """Return a model. inputs, outputs: name -> (element type, shape)."""
    def values(named):
        return [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in named.items()]

    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), tensors, **options)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random float32 numbers that are representable in float16, so that both precisions start with the same
    weights."""
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float16).astype(np.float32)


def mlp() -> ModelProto:
    """x [n, 6] -> dense layer of 8 units, ReLU -> dense layer -> y [n, 3]."""
    nodes = [helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first", transB=1), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("MatMul", ["r", "w2"], ["m"]), helper.make_node("Add", ["m", "b2"], ["y"])]
    weights = {"w1": weight(8, 6), "b1": weight(8), "w2": weight(8, 3), "b2": weight(3)}
    return model_of(nodes, {"x": (FLOAT, ["n", 6])}, {"y": (FLOAT, ["n", 3])}, weights)


def conv() -> ModelProto:
    """x [n, 2, 8, 8] -> convolution, normalization, pooling -> y [n, 3]."""
    nodes = [helper.make_node("Conv", ["x", "kernel", "bias"], ["c"], pads=[1, 1, 1, 1]),
             helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["b"]), helper.make_node("Relu", ["b"], ["r"]),
             helper.make_node("GlobalAveragePool", ["r"], ["p"]), helper.make_node("Flatten", ["p"], ["f"]), helper.make_node("Gemm", ["f", "w", "v"], ["y"])]
    weights = {"kernel": weight(4, 2, 3, 3), "bias": weight(4), "scale": np.ones(4, np.float32), "shift": np.zeros(4, np.float32),
               "mean": np.zeros(4, np.float32), "var": np.ones(4, np.float32), "w": weight(4, 3), "v": weight(3)}
    return model_of(nodes, {"x": (FLOAT, ["n", 2, 8, 8])}, {"y": (FLOAT, ["n", 3])}, weights)


def lstm() -> ModelProto:
    """x [5, n, 4] -> last state of an LSTM with 6 units -> y [n, 3]."""
    nodes = [helper.make_node("LSTM", ["x", "W", "R", "B"], ["", "state"], hidden_size=6), helper.make_node("Squeeze", ["state", "axis"], ["s"]),
             helper.make_node("MatMul", ["s", "out"], ["y"])]
    weights = {"W": weight(1, 24, 4), "R": weight(1, 24, 6), "B": weight(1, 48), "out": weight(6, 3), "axis": np.array([0])}
    return model_of(nodes, {"x": (FLOAT, [5, "n", 4])}, {"y": (FLOAT, ["n", 3])}, weights)


def branches() -> ModelProto:
    """x [n, 6] -> one of two layers, selected by a flag -> y [n, 3]. The branches share an inner value name."""
    def branch(name):
        nodes = [helper.make_node("MatMul", ["x", name], ["inner"]), helper.make_node("Tanh", ["inner"], [f"{name}_out"])]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", FLOAT, ["n", 3])])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("left"), else_branch=branch("right"))
    return model_of([node], {"x": (FLOAT, ["n", 6]), "flag": (TensorProto.BOOL, [])}, {"y": (FLOAT, ["n", 3])},
                    {"left": weight(6, 3), "right": weight(6, 3, seed=1)})


def scan() -> ModelProto:
    """xs [t, n, 3] -> state h = tanh(h w + x) over t -> y [n, 3]."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["h_in", "w"], ["hw"]), helper.make_node("Add", ["hw", "x_in"], ["sum"]), helper.make_node("Tanh", ["sum"], ["h_out"])],
        "body", [helper.make_tensor_value_info(name, FLOAT, ["n", 3]) for name in ("h_in", "x_in")],
        [helper.make_tensor_value_info("h_out", FLOAT, ["n", 3])])
    nodes = [helper.make_node("Gather", ["xs", "zero"], ["first"]), helper.make_node("Scan", ["first", "xs"], ["y"], body=body, num_scan_inputs=1)]
    return model_of(nodes, {"xs": (FLOAT, ["t", "n", 3])}, {"y": (FLOAT, ["n", 3])}, {"w": weight(3, 3), "zero": np.array(0)})


# ---- forms of half-precision models


def in_half(model: ModelProto, dtype: str = "float16") -> ModelProto:
    """Return the model with all float32 weights, inputs, outputs, subgraphs and constants in half precision (or
    another dtype)."""
    result = ModelProto()
    result.CopyFrom(model)
    if dtype == "bfloat16":
        result.opset_import[0].version, result.ir_version = 22, 10              # the first versions with bfloat16 convolutions
    _graph_in_half(result.graph, dtype)
    return result


def _graph_in_half(graph, dtype: str) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = NUMBERS[dtype]
    for tensor in graph.initializer:
        _tensor_in_half(tensor, dtype)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _graph_in_half(attribute.g, dtype)
            elif attribute.HasField("t"):
                _tensor_in_half(attribute.t, dtype)


def _tensor_in_half(tensor, dtype: str) -> None:
    if tensor.data_type == FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(numpy_dtype(dtype)), tensor.name))


def with_float_io(model: ModelProto) -> ModelProto:
    """Return the model in float16 with float32 inputs and outputs and Casts in between: keep_io_types in converters."""
    result = in_half(model)
    for value in result.graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = FLOAT
            _rename_reads(result.graph, value.name, f"{value.name}_half")
            result.graph.node.insert(0, helper.make_node("Cast", [value.name], [f"{value.name}_half"], to=TensorProto.FLOAT16))
    for value in result.graph.output:
        value.type.tensor_type.elem_type = FLOAT
        _rename_writes(result.graph, value.name, f"{value.name}_half")
        result.graph.node.append(helper.make_node("Cast", [f"{value.name}_half"], [value.name], to=FLOAT))
    return result


def with_float_operators(model: ModelProto, op_type: str) -> ModelProto:
    """Return the model in float16 except for operators of one type, which stay float32 between Casts."""
    result = in_half(model)
    nodes = []
    float_weights = {tensor.name: tensor for tensor in model.graph.initializer}
    float_inputs = {name for node in result.graph.node if node.op_type == op_type for name in node.input[1:]}
    for tensor in result.graph.initializer:
        if tensor.name in float_inputs:
            tensor.CopyFrom(float_weights[tensor.name])
    for node in result.graph.node:
        if node.op_type != op_type:
            nodes.append(node)
            continue
        source, target = node.input[0], node.output[0]
        node.input[0], node.output[0] = f"{source}_wide", f"{target}_wide"
        nodes += [helper.make_node("Cast", [source], [f"{source}_wide"], to=FLOAT), node,
                  helper.make_node("Cast", [f"{target}_wide"], [target], to=TensorProto.FLOAT16)]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


def with_half_weights(model: ModelProto, names: Sequence[str], as_nodes: bool = False) -> ModelProto:
    """Return the model in float32 with some weights stored as float16 and cast where they are used.

    as_nodes: store them as Constant nodes."""
    result = ModelProto()
    result.CopyFrom(model)
    for tensor in [tensor for tensor in result.graph.initializer if tensor.name in names]:
        _rename_reads(result.graph, tensor.name, f"{tensor.name}_wide")
        result.graph.node.insert(0, helper.make_node("Cast", [tensor.name], [f"{tensor.name}_wide"], to=FLOAT))
        _tensor_in_half(tensor, "float16")
        if as_nodes:
            result.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
            result.graph.initializer.remove(tensor)
    return result


def with_constant_nodes(model: ModelProto) -> ModelProto:
    """Return the model in float16 with all weights in Constant nodes."""
    result = in_half(model)
    for tensor in list(result.graph.initializer):
        result.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del result.graph.initializer[:]
    return result


def _rename_reads(graph, name: str, other: str) -> None:
    for node in graph.node:
        for index, read in enumerate(node.input):
            if read == name:
                node.input[index] = other
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_reads(attribute.g, name, other)


def _rename_writes(graph, name: str, other: str) -> None:
    for node in graph.node:
        for index, written in enumerate(node.output):
            if written == name:
                node.output[index] = other
