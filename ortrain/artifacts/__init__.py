"""Training artifacts: training model, eval model, optimizer model and checkpoint (drop-in for onnxruntime.training.artifacts)."""

from ortrain.artifacts.files import Artifacts
from ortrain.artifacts.generation import build_artifacts, generate_artifacts
from ortrain.enums import LossType, OptimType

__all__ = ["Artifacts", "LossType", "OptimType", "build_artifacts", "generate_artifacts"]
