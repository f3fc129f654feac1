"""The training API of the discontinued onnxruntime-training package, under its names: CheckpointState, Module, Optimizer, LinearLRScheduler."""

from ortrain.api.checkpoint_state import CheckpointState
from ortrain.api.lr_scheduler import LinearLRScheduler
from ortrain.api.module import Module
from ortrain.api.optimizer import Optimizer

__all__ = ["CheckpointState", "LinearLRScheduler", "Module", "Optimizer"]
