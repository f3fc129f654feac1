"""Losses of sequences that are not aligned with their labels."""

from __future__ import annotations

import numpy as np

from ortrain.errors import InvalidModelError
from ortrain.onnxblock.building import add_node, dtype_of, type_of
from ortrain.onnxblock.loss.base import Loss, check_number, own_operator, rank_of, sample_weight_input, scalar, target_input, tensor_type
from ortrain.packages import onnx


class CTCLoss(Loss):
    """Connectionist temporal classification (Graves et al. 2006): -log of the probability of all alignments that spell the target.

    The prediction is the log softmax of scores, [t, n, c], or [n, t, c] with batch_first; from_logits: take the log softmax here. The targets are three
    int64 inputs: `targets` [n, s], padded with -1 or any label, `input_lengths` [n], in [0, t], and `target_lengths` [n], in [0, s]; train steps raise
    LabelRangeError and IndexRangeError for others. blank: the class of blanks. zero_infinity: a target that does not fit into its frames has the loss 0
    instead of infinity.

    reduction: "mean" divides each loss by the length of its target (at least 1) and averages over the batch, "sum" and "none" do not divide. Raises
    InvalidArgumentError for a negative blank."""

    predictions, targets = ("log_probs",), ("targets", "input_lengths", "target_lengths")

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False, batch_first: bool = False, from_logits: bool = False,
                 sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._blank = int(check_number("a blank", blank, 0))
        self._attributes = {"blank": self._blank, "zero_infinity": int(zero_infinity), "batch_first": int(batch_first)}
        self._from_logits = from_logits

    def build(self, log_probs_name: str, targets_name: str = "targets", input_lengths_name: str = "input_lengths",
              target_lengths_name: str = "target_lengths") -> str:
        """Build the loss. Raises InvalidModelError for a prediction that is not of rank 3, or without the blank among its classes."""
        axis, dims = self._batch_axis_and_dims(log_probs_name)
        batch, integer = dims[axis], np.dtype(np.int64)
        targets = target_input(targets_name, tensor_type(integer, [batch, f"{targets_name}_length"]))
        lengths = [target_input(name, tensor_type(integer, [batch])) for name in (input_lengths_name, target_lengths_name)]
        weight = sample_weight_input(log_probs_name, axis) if self.has_sample_weight else None
        log_probs = add_node("LogSoftmax", [log_probs_name], axis=-1)[0] if self._from_logits else log_probs_name
        dtype = dtype_of(log_probs_name)
        loss = own_operator("CTCLoss", [log_probs, targets, *lengths], tensor_type(dtype, [batch]), **self._attributes)
        if self.reduction == "mean":
            length = add_node("Cast", [lengths[1]], to=onnx.helper.np_dtype_to_tensor_dtype(dtype))[0]
            loss = add_node("Div", [loss, add_node("Max", [length, scalar(1.0, log_probs_name)])[0]])[0]
        if weight is None:
            return loss if self.reduction == "none" else add_node("ReduceMean" if self.reduction == "mean" else "ReduceSum", [loss], keepdims=0)[0]
        return add_node("Mul", [loss, weight])[0] if self.reduction == "none" else self.weighted(loss, weight)

    def _batch_axis_and_dims(self, log_probs: str) -> tuple[int, list[onnx.TensorShapeProto.Dimension | None]]:
        axis = 0 if self._attributes["batch_first"] else 1
        rank = rank_of(log_probs)
        if rank is None:
            return axis, [None] * 3
        dims = list(type_of(log_probs).tensor_type.shape.dim)
        if rank != 3:
            raise InvalidModelError(f"expected log_probs {'[n, t, c]' if axis == 0 else '[t, n, c]'} for CTCLoss, got rank {rank} ({log_probs!r})")
        if dims[2].HasField("dim_value") and dims[2].dim_value <= self._blank:
            raise InvalidModelError(f"expected a blank among {dims[2].dim_value} classes, got {self._blank} ({log_probs!r})")
        return axis, dims
