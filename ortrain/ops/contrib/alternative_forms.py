"""Variants of operators that ONNX Runtime training models may contain, decomposed into the variants that ortrain implements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import TensorType
from ortrain.ops.conv_transpose import convolution_attributes
from ortrain.ops.loss import REDUCTIONS, reduction_of
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, normalize_axis, operator
from ortrain.ops.resize import resize_grad_decomposition as resize_gradient_decomposition

# ---- losses


def loss_attributes(g: NodeBuilder, ignored: int) -> dict[str, Any]:
    """Return the attributes of SoftmaxCrossEntropyLoss. ignored: index of the input with the ignored label, which must be constant."""
    attributes: dict[str, Any] = {"reduction": g.attribute("reduction", "mean")}
    if g.has(ignored):
        value = g.value(g.inputs[ignored])
        if value is None or value.size != 1:
            raise g.error("expected a constant ignored label, got one computed at run time")
        attributes["ignore_index"] = int(value.reshape(-1)[0])
    return attributes


def infer_loss(c: InferenceContext) -> list[TensorType]:
    """Return the types of the loss and of the log-probabilities."""
    return [TensorType(c.dtype(0), c.shape(1) if reduction_of(c) == REDUCTIONS["none"] else ()), c.type(0)]


def class_weights(g: NodeBuilder) -> list[str]:
    """Return the class weights in input 2 as a list, empty where they are absent."""
    return [g.inputs[2]] if g.has(2) else []


def internal_loss_decomposition(g: NodeBuilder) -> list[str]:
    return g.ops("SoftmaxCrossEntropyLoss", *g.inputs[:2], *class_weights(g), outputs=[True, True], **loss_attributes(g, 3))


@operator("SoftmaxCrossEntropyLossInternal", domain=MICROSOFT, decompose=internal_loss_decomposition, stop_gradient=(1, 2, 3))
def softmax_cross_entropy_loss_internal(c: InferenceContext) -> list[TensorType]:
    """loss, log-probabilities = SoftmaxCrossEntropyLoss of (scores, labels, weights, ignored label)"""
    return infer_loss(c)


def internal_loss_gradient_decomposition(g: NodeBuilder) -> list[str]:
    """Return dscores of (dloss, log-probabilities, labels, weights, ignored label, bias)."""
    weight = [g.inputs[3]] if g.has(3) else []
    dx = g.op("SoftmaxCrossEntropyLossGrad", *g.inputs[:3], *weight, domain=MICROSOFT, **loss_attributes(g, 4))
    return [g.op("Add", dx, g.inputs[5]) if g.has(5) else dx]


@operator("SoftmaxCrossEntropyLossInternalGrad", domain=MICROSOFT, decompose=internal_loss_gradient_decomposition, differentiable=False)
def softmax_cross_entropy_loss_internal_grad(c: InferenceContext) -> list[TensorType]:
    """dscores = SoftmaxCrossEntropyLossGrad + bias, of (dloss, log-probabilities, labels, weights, ignored label, bias)"""
    return [c.type(1)]


def internal_likelihood_decomposition(g: NodeBuilder) -> list[str]:
    return [g.op("NegativeLogLikelihoodLoss", *g.inputs[:2], *class_weights(g), **{"ignore_index": -1, **loss_attributes(g, 3)})]


@operator("NegativeLogLikelihoodLossInternal", domain=MICROSOFT, decompose=internal_likelihood_decomposition, stop_gradient=(1, 2, 3))
@operator("NegativeLogLikelihoodLossInternal2", domain=MICROSOFT, decompose=internal_likelihood_decomposition, stop_gradient=(1, 2, 3))
def negative_log_likelihood_loss_internal(c: InferenceContext) -> list[TensorType]:
    """loss = NegativeLogLikelihoodLoss of (log-probabilities, labels, weights, ignored label)"""
    return infer_loss(c)[:1]


def element_count(g: NodeBuilder, value: str, like: str) -> str:
    """Return the number of elements of a value, in the dtype of `like`."""
    return g.op("Cast", g.op("Size", value), to=NUMBERS[g.type(like).dtype])


def sum_all(g: NodeBuilder, value: str) -> str:
    """Return the sum of all elements."""
    return g.reduce_sum(value, list(range(g.rank(value))), keepdims=False)


def reduce_total(g: NodeBuilder, total: str, divisor: str) -> str:
    """Return a total, divided by `divisor` if the node's reduction is "mean"."""
    return g.op("Div", total, divisor) if reduction_of(g.context()) == REDUCTIONS["mean"] else total


def sparse_loss_decomposition(g: NodeBuilder) -> list[str]:
    logits, labels = g.inputs[:2]
    last = g.rank(labels)
    logs = g.op("LogSoftmax", logits, axis=last)
    loss = g.op("Neg", g.squeeze(g.op("GatherElements", logs, g.unsqueeze(labels, [last]), axis=last), [last]))
    total = sum_all(g, g.op("Mul", loss, g.inputs[2]) if g.has(2) else loss)
    return [reduce_total(g, total, sum_all(g, g.inputs[2]) if g.has(2) else element_count(g, labels, logits)), logs]


@operator("SparseSoftmaxCrossEntropy", decompose=sparse_loss_decomposition, stop_gradient=(1, 2))
def sparse_softmax_cross_entropy(c: InferenceContext) -> list[TensorType]:
    """loss = reduced -weight log softmax(logits)[label] over the last axis; output 1: log softmax(logits); weights are per sample

    ONNX Runtime puts the operator into ONNX's domain, although ONNX does not define it."""
    if len(c.shape(0)) != len(c.shape(1)) + 1 or c.attribute("reduction", "mean") not in ("mean", "sum"):
        raise c.error(f"expected logits [n…, c], labels [n…] and a mean or sum, got {list(c.shape(0))}, {list(c.shape(1))} and {c.attribute('reduction')}")
    return [TensorType(c.dtype(0), ()), c.type(0)]


def sparse_loss_gradient_decomposition(g: NodeBuilder) -> list[str]:
    dloss, logs, labels = g.inputs[:3]
    values = g.constant(np.array([0.0, 1.0]), logs)
    one_hot = g.op("OneHot", labels, g.constant(np.array(g.shape(logs)[-1], np.int64)), values, axis=-1)
    per_sample = reduce_total(g, dloss, sum_all(g, g.inputs[3]) if g.has(3) else element_count(g, labels, logs))
    dx = g.op("Mul", g.op("Sub", g.op("Exp", logs), one_hot), per_sample)
    return [g.op("Mul", dx, g.unsqueeze(g.inputs[3], [g.rank(labels)])) if g.has(3) else dx]


def dense_loss_decomposition(g: NodeBuilder) -> list[str]:
    logits, labels = g.inputs
    last = g.rank(logits) - 1
    logs = g.op("LogSoftmax", logits, axis=last)
    loss = g.op("Neg", g.reduce_sum(g.op("Mul", labels, logs), [last], keepdims=False))
    return [reduce_total(g, sum_all(g, loss), element_count(g, loss, logits)), logs]


def dense_loss_gradient_decomposition(g: NodeBuilder) -> list[str]:
    dloss, logs, labels = g.inputs
    rows = g.reduce_sum(labels, [g.rank(labels) - 1], keepdims=False)
    return [g.op("Mul", g.op("Sub", g.op("Exp", logs), labels), reduce_total(g, dloss, element_count(g, rows, logs)))]


@operator("SoftmaxCrossEntropy", domain=MICROSOFT, decompose=dense_loss_decomposition, stop_gradient=(1,))
def softmax_cross_entropy(c: InferenceContext) -> list[TensorType]:
    """loss = reduced -sum(labels log softmax(logits)) over the last axis; output 1: log softmax(logits); labels are one-hot floats"""
    if len(c.shape(0)) != len(c.shape(1)) or c.attribute("reduction", "mean") not in ("mean", "sum"):
        raise c.error(f"expected logits and labels [n…, c] and a mean or sum, got {list(c.shape(0))}, {list(c.shape(1))} and {c.attribute('reduction')}")
    return [TensorType(c.dtype(0), ()), c.type(0)]


@operator("SparseSoftmaxCrossEntropyGrad", decompose=sparse_loss_gradient_decomposition, differentiable=False)
def sparse_softmax_cross_entropy_grad(c: InferenceContext) -> list[TensorType]:
    """dlogits = dloss weight (softmax - one_hot(labels)) / divisor, of (dloss, log softmax, labels, weight)"""
    return [c.type(1)]


@operator("SoftmaxCrossEntropyGrad", domain=MICROSOFT, decompose=dense_loss_gradient_decomposition, differentiable=False)
def softmax_cross_entropy_grad(c: InferenceContext) -> list[TensorType]:
    """dlogits = dloss (softmax - labels) / divisor, of (dloss, log softmax, labels)"""
    return [c.type(1)]


# ---- shapes


@operator("Trilu", domain=MICROSOFT, decompose=lambda g: [g.op("Trilu", *g.inputs, **g.node.attributes)], stop_gradient=(1,))
def trilu(c: InferenceContext) -> list[TensorType]:
    """y = ONNX's Trilu of x; ONNX Runtime training emits it in gradients"""
    return [c.type(0)]


@operator("ShrunkenGather", domain=MICROSOFT, decompose=lambda g: [g.op("Gather", *g.inputs, **g.node.attributes)], stop_gradient=(1,))
def shrunken_gather(c: InferenceContext) -> list[TensorType]:
    """y = ONNX's Gather of x at the indices"""
    axis, shape = int(c.attribute("axis", 0)), c.shape(0)
    axis = normalize_axis(c, axis, len(shape))
    return [TensorType(c.dtype(0), (*shape[:axis], *c.shape(1), *shape[axis + 1 :]))]


# ---- gradients


def invertible_gradient_decomposition(g: NodeBuilder) -> list[str]:
    dy, y, scale, bias, inverse = g.inputs
    rank = g.rank(y)
    axis = int(g.attribute("axis", -1)) % rank
    inner = list(range(axis, rank))
    normalized, scaled_dy = g.op("Div", g.op("Sub", y, bias), scale), g.op("Mul", dy, scale)
    centered = g.op("Sub", scaled_dy, g.reduce("ReduceMean", scaled_dy, inner))
    dx = g.op("Mul", inverse, g.op("Sub", centered, g.op("Mul", normalized, g.reduce("ReduceMean", g.op("Mul", scaled_dy, normalized), inner))))
    return [dx, *(g.reduce_sum(value, list(range(axis)), keepdims=False) for value in (g.op("Mul", dy, normalized), dy))]


@operator("InvertibleLayerNormalizationGrad", domain=MICROSOFT, decompose=invertible_gradient_decomposition, differentiable=False)
def invertible_layer_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale, dbias) of LayerNormalization from its output, of (dy, y, scale, bias, 1 / standard deviation)"""
    return [c.type(1), c.type(2), c.type(2)]


def transposed_gradient_decomposition(g: NodeBuilder) -> list[str]:
    """Return (dx, dw, dbias): dx is the convolution of dy with w, and dw the weight gradient of that convolution at output gradient x."""
    dy, x, w = g.inputs
    attributes = convolution_attributes(g, 1, 2)
    dx = g.op("Conv", dy, w, **attributes)
    dw = g.ops("ConvGrad", x, dy, w, outputs=[False, True], domain=MICROSOFT, **attributes)[1]
    return [dx, dw, g.reduce_sum(dy, [0, *range(2, g.rank(dy))], keepdims=False)]


@operator("ConvTransposeGrad", domain=MICROSOFT, decompose=transposed_gradient_decomposition, differentiable=False)
def conv_transpose_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dw, dbias) of ConvTranspose, of (dy, x, w)"""
    return [c.type(1), c.type(2), TensorType(c.dtype(0), c.shape(0)[1:2])]


@operator("ResizeGrad", domain=MICROSOFT, decompose=resize_gradient_decomposition, differentiable=False)
def resize_grad(c: InferenceContext) -> list[TensorType]:
    """dx of Resize, of dy and the inputs of Resize"""
    return [c.type(1)]
