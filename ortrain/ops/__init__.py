"""What each operator means: one record each (inference, gradient rule, lowering), by family. Names kernels by string."""

import importlib

from ortrain.ops.registry.onnx_definitions import defined
from ortrain.ops.registry.record import FALLBACK, MICROSOFT, REGISTRY, OpRecord, record_of

FAMILIES = ("elementwise", "trigonometry", "activation", "linear", "determinant", "einsum", "conv", "channels_last", "conv_transpose", "resize", "sampling",
            "roi_pooling", "pool", "fold", "norm", "cumulative", "reduce", "selection", "softmax", "attention", "contrib.transformer", "loss", "shape", "space_to_depth",
            "indexing", "padding", "scattering", "dropout", "encoding", "fourier", "recurrent", "control_flow", "loop", "quantization", "integer", "contrib.quantized",
            "training", "contrib.alternative_forms", "contrib.graph_passes",
            "contrib.optimizers")
"""Each has a module here, kernels in _core/kernels (or those of another family) and samples; `custom` is the user's own."""

for _family in (*FAMILIES, "custom"):
    importlib.import_module(f"ortrain.ops.{_family}")

FALLBACK.append(defined)

__all__ = ["FAMILIES", "MICROSOFT", "REGISTRY", "OpRecord", "record_of"]
