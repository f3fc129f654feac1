"""Losses as blocks: called with the names of prediction and target, they return the name of the loss. Unless stated otherwise, the formulas are those of
PyTorch's modules of the same names."""

from ortrain.onnxblock.loss.base import Loss
from ortrain.onnxblock.loss.classification import CrossEntropyLoss, FocalLoss, NLLLoss
from ortrain.onnxblock.loss.elementwise import (
    BCEWithLogitsLoss,
    BinaryFocalLoss,
    HingeLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    SmoothL1Loss,
)
from ortrain.onnxblock.loss.embedding import CosineEmbeddingLoss, TripletMarginLoss
from ortrain.onnxblock.loss.names import loss_by_name, loss_inputs, losses_by_name
from ortrain.onnxblock.loss.sequence import CTCLoss
from ortrain.onnxblock.loss.weighted_sum import LossTerm, WeightedSum

__all__ = [
    "BCEWithLogitsLoss", "BinaryFocalLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "FocalLoss", "HingeLoss", "HuberLoss", "KLDivLoss",
    "L1Loss", "Loss", "LossTerm", "MSELoss", "NLLLoss", "SmoothL1Loss", "TripletMarginLoss", "WeightedSum", "loss_by_name", "loss_inputs",
    "losses_by_name",
]
