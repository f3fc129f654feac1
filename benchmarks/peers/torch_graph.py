"""An ONNX graph as a PyTorch module, for the operators of the tutorials' networks.

Each node becomes the call that a hand-written module would make (conv2d, layer_norm, linear, lstm, ...), in the same order, so that eager PyTorch does the same
work. The graph comes as JSON and the weights as .npz (benchmarks.tutorial_tasks.portable_graph), since PyTorch's environment has no package onnx."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.tutorial_files import GRAPH, WEIGHTS

Operator = Callable[..., Any]
CASTS = {1: torch.float32, 7: torch.int64}


class GraphModule(nn.Module):
    """Runs a graph node by node; parameters are the trainable weights, buffers all others."""

    def __init__(self, folder: Path, trainable: Collection[str]) -> None:
        super().__init__()
        graph = json.loads((folder / GRAPH).read_text(encoding="utf-8"))
        self.outputs: list[str] = graph["outputs"]
        self.values: dict[str, torch.Tensor] = {}
        with np.load(folder / WEIGHTS) as stored:
            arrays = {name: stored[name] for name in stored.files}
        for number, (name, array) in enumerate(arrays.items()):
            tensor = torch.from_numpy(np.array(array))
            if name in trainable:
                tensor = nn.Parameter(tensor)
                self.register_parameter(f"p{number}", tensor)
            self.values[name] = tensor
        self.trainable = set(trainable)
        self.steps = [self._step(node, arrays) for node in graph["nodes"]]

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the graph's first output."""
        values = {**self.values, **inputs}
        for call, names, outputs in self.steps:
            result = call(*(values[name] if name else None for name in names))
            values[outputs[-1]] = result
        return values[self.outputs[0]]

    def _step(self, node: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[Operator, list[str], list[str]]:
        kind, names, attributes = node["op"], list(node["inputs"]), node["attributes"]
        if kind == "BatchNormalization":
            return _batch_norm(self, attributes, names[1] in self.trainable), names, node["outputs"]
        if kind == "LSTM":
            return self._lstm(names, attributes, arrays), names[:1], node["outputs"]
        if kind == "Dropout":
            ratio = float(arrays[names[1]])
            return lambda x: F.dropout(x, ratio, self.training), names[:1], node["outputs"]
        data, known = [], {}
        for position, name in enumerate(names):          # shapes and axes are Python numbers in a hand-written module, too
            if name in arrays and arrays[name].dtype.kind == "i" and name not in self.trainable and not (kind == "Gather" and arrays[name].size > 1):
                known[position] = arrays[name].tolist()
            else:
                data.append(name)
        return OPERATORS[kind](attributes, known), data, node["outputs"]

    def _lstm(self, names: Sequence[str], attributes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Operator:
        """Replace the weights of an LSTM by those of nn.LSTM: gates i, o, f, c become i, f, c, o, and the bias is in two halves."""
        hidden = attributes["hidden_size"]
        module = nn.LSTM(arrays[names[1]].shape[2], hidden)
        order = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in (0, 2, 3, 1)])
        input_bias, hidden_bias = np.split(arrays[names[3]][0], 2)
        values = (arrays[names[1]][0][order], arrays[names[2]][0][order], input_bias[order], hidden_bias[order])
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), values, strict=True):
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        for name in names[1:4]:
            number = next(key for key, parameter in self._parameters.items() if parameter is self.values[name])
            del self._parameters[number], self.values[name]
        self.add_module(f"lstm{len(self._modules)}", module)
        return lambda x: module(x)[1][0]


def _batch_norm(module: GraphModule, attributes: Mapping[str, Any], trained: bool) -> Operator:
    epsilon, momentum = attributes.get("epsilon", 1e-5), 1 - attributes.get("momentum", 0.9)
    return lambda x, scale, bias, mean, variance: F.batch_norm(x, mean, variance, scale, bias, trained and module.training, momentum, epsilon)


# ---- operators: (attributes, constant integer inputs by position) -> function of the other inputs

def _conv(a: Mapping[str, Any], _: Any) -> Operator:
    pads = a.get("pads", [0, 0, 0, 0])
    assert pads[:2] == pads[2:], "expected symmetric padding"
    return lambda x, w, b=None: F.conv2d(x, w, b, a.get("strides", [1, 1]), pads[:2], a.get("dilations", [1, 1]), a.get("group", 1))


def _gemm(a: Mapping[str, Any], _: Any) -> Operator:
    assert a.get("transB") and a.get("alpha", 1.0) == a.get("beta", 1.0) == 1.0, "expected a dense layer as PyTorch writes it"
    return F.linear


def _gather(a: Mapping[str, Any], known: Mapping[int, Any]) -> Operator:
    axis = a.get("axis", 0)
    if 1 in known:
        return lambda x: x.select(axis, known[1] if isinstance(known[1], int) else known[1][0])
    return lambda x, index: F.embedding(index, x) if axis == 0 else x.index_select(axis, index)


def _reshape(_: Any, known: Mapping[int, Any]) -> Operator:
    if 1 not in known:
        return lambda x, shape: x.reshape(tuple(shape))
    return lambda x: x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(known[1])])


def _unsqueeze(_: Any, known: Mapping[int, Any]) -> Operator:
    def apply(x: torch.Tensor) -> torch.Tensor:
        for axis in known[1]:
            x = x.unsqueeze(axis)
        return x

    return apply


def _slice(_: Any, known: Mapping[int, Any]) -> Operator:
    (start,), (end,) = known[1], known[2]
    return lambda shape: shape[start:end]


def _stft(_: Any, known: Mapping[int, Any]) -> Operator:
    step, length = known[1], known[3]
    return lambda x, window: torch.view_as_real(torch.stft(x[..., 0], length, step, window=window, center=False, return_complex=True)).transpose(1, 2)


def _concat(a: Mapping[str, Any], known: Mapping[int, Any]) -> Operator:
    if known:                                            # of shapes
        (tail,) = known.values()
        return lambda shape: [*shape, *tail]
    return lambda *parts: torch.cat(parts, a["axis"])


def _sum(a: Mapping[str, Any], known: Mapping[int, Any]) -> Operator:
    return lambda x: x.sum(known[1], keepdim=bool(a.get("keepdims", 1)))


OPERATORS: dict[str, Callable[[Mapping[str, Any], Mapping[int, Any]], Operator]] = {
    "Add": lambda a, k: torch.add, "Sub": lambda a, k: torch.sub, "Mul": lambda a, k: torch.mul, "Div": lambda a, k: torch.div,
    "MatMul": lambda a, k: torch.matmul, "Relu": lambda a, k: F.relu, "HardSwish": lambda a, k: F.hardswish, "Log": lambda a, k: torch.log,
    "HardSigmoid": lambda a, k: lambda x: (x * a.get("alpha", 0.2) + a.get("beta", 0.5)).clamp(0, 1), "Identity": lambda a, k: lambda x: x,
    "Gelu": lambda a, k: F.gelu, "Softmax": lambda a, k: lambda x: x.softmax(a.get("axis", -1)), "Gemm": _gemm, "Conv": _conv, "Gather": _gather,
    "GlobalAveragePool": lambda a, k: lambda x: x.mean((2, 3), keepdim=True), "Flatten": lambda a, k: lambda x: x.flatten(1), "Reshape": _reshape,
    "MaxPool": lambda a, k: lambda x: F.max_pool2d(x, a["kernel_shape"], a["strides"]), "Transpose": lambda a, k: lambda x: x.permute(a["perm"]),
    "LayerNormalization": lambda a, k: lambda x, w, b: F.layer_norm(x, w.shape, w, b, a.get("epsilon", 1e-5)),
    "Cast": lambda a, k: lambda x: x.to(CASTS[a["to"]]), "Unsqueeze": _unsqueeze, "Squeeze": lambda a, k: lambda x: x.squeeze(k[1][0]), "Concat": _concat,
    "Shape": lambda a, k: lambda x: list(x.shape), "Slice": _slice, "STFT": _stft, "ReduceSum": _sum,
    "ReduceSumSquare": lambda a, k: lambda x: x.square().sum(a["axes"], keepdim=bool(a.get("keepdims", 1))),
}
