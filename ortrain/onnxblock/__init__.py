"""Composable graph building blocks: losses, optimizers, custom blocks (drop-in for onnxruntime.training.onnxblock)."""

from ortrain.onnxblock import blocks, loss, optim
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.checkpoint import load_checkpoint_to_model, save_checkpoint
from ortrain.onnxblock.model_accessor import base, custom_op_library, empty_base
from ortrain.onnxblock.training import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
