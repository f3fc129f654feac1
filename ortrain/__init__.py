"""Training of ONNX models on CPUs. Names are imported when they are first used, so that `import ortrain` alone costs nothing."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortrain import api, artifacts, data, lora, metrics, onnxblock, quantization, trainer
    from ortrain.formats.onnx_files import write_model
    from ortrain.ops.custom import register_operator
    from ortrain.passes.new_head import replace_head
    from ortrain.runtime.differential_privacy import DifferentialPrivacy
    from ortrain.runtime.inference_session import InferenceSession
    from ortrain.runtime.options import RunOptions, SessionOptions
    from ortrain.runtime.seed import set_seed
    from ortrain.runtime.values import OrtValue
    from ortrain.trainer.trainer import Trainer
    from ortrain.training.parameter_groups import ParameterGroup
    from ortrain.training.session import TrainingSession

__version__ = "0.1.0"

_HOMES = {
    "DifferentialPrivacy": "ortrain.runtime.differential_privacy",
    "InferenceSession": "ortrain.runtime.inference_session",
    "OrtValue": "ortrain.runtime.values",
    "ParameterGroup": "ortrain.training.parameter_groups",
    "RunOptions": "ortrain.runtime.options",
    "SessionOptions": "ortrain.runtime.options",
    "Trainer": "ortrain.trainer.trainer",
    "TrainingSession": "ortrain.training.session",
    "register_operator": "ortrain.ops.custom",
    "replace_head": "ortrain.passes.new_head",
    "set_seed": "ortrain.runtime.seed",
    "write_model": "ortrain.formats.onnx_files",
}
_MODULES = ("api", "artifacts", "data", "lora", "metrics", "onnxblock", "quantization", "trainer")

__all__ = ["DifferentialPrivacy", "InferenceSession", "OrtValue", "ParameterGroup", "RunOptions", "SessionOptions", "Trainer", "TrainingSession", "api",
           "artifacts", "data", "lora", "metrics", "onnxblock", "quantization", "register_operator", "replace_head", "set_seed", "trainer", "write_model"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"ortrain.{name}")
    raise AttributeError(f"module 'ortrain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
